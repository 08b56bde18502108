# frozen_string_literal: true

# An application with a table of delayed_job.   usage: delayed_job.rb fill | drain BACKEND
require 'logger'
require 'active_record'
require 'delayed_job'
require 'delayed_job_active_record'

ActiveRecord::Base.establish_connection(adapter: 'postgresql', database: ENV.fetch('PGDATABASE'))
Delayed::Worker.logger = Logger.new(IO::NULL)
$stdout.sync = true

Say = Struct.new(:number) do
  def perform
    puts "ran #{number}"
  end
end

def fill
  ActiveRecord::Schema.verbose = false
  ActiveRecord::Schema.define do
    create_table :delayed_jobs do |table|
      table.integer :priority, default: 0, null: false
      table.integer :attempts, default: 0, null: false
      table.text :handler, null: false
      table.text :last_error
      table.datetime :run_at
      table.datetime :locked_at
      table.datetime :failed_at
      table.string :locked_by
      table.string :queue
      table.timestamps null: true
    end
  end
  Delayed::Worker.backend = :active_record
  Delayed::Job.enqueue(Say.new(1))
  Delayed::Job.enqueue(Say.new(2), queue: 'mail', priority: -5)
  Delayed::Job.enqueue(Say.new(3), queue: 'mail').update!(attempts: 3, last_error: 'no answer')
  Delayed::Job.enqueue(Say.new(4), run_at: Time.now + 3600)
  locked = { locked_at: Time.now, locked_by: 'a worker' }
  Delayed::Job.enqueue(Say.new(5)).update!(attempts: 25, last_error: 'no answer', failed_at: Time.now, **locked)
  Delayed::Job.enqueue(Say.new(6)).update!(**locked)
end

def drain(backend)
  Delayed::Worker.backend = backend
  Delayed::Job.where(locked_by: 'a worker').update_all(locked_at: nil, locked_by: nil) if backend == :active_record
  Delayed::Worker.new.work_off
end

ARGV.first == 'fill' ? fill : drain(ARGV.last.to_sym)
