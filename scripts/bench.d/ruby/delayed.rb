# frozen_string_literal: true

# Jobs of delayed_job that do nothing, in one worker.   usage: delayed.rb active_record|tq JOBS
#
# Prints jobs per second, enqueued and run, as JSON.
require 'json'
require 'logger'
require 'active_record'
require 'delayed_job'
require 'delayed_job_active_record'

backend = ARGV[0].to_sym
jobs = ARGV[1].to_i
ActiveRecord::Base.establish_connection(adapter: 'postgresql', database: ENV.fetch('PGDATABASE'))
ActiveRecord::Schema.verbose = false
# as the generator of delayed_job makes it
ActiveRecord::Schema.define do
  create_table :delayed_jobs, force: true do |table|
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
    table.index %i[priority run_at], name: 'delayed_jobs_priority'
  end
end
Delayed::Worker.backend = backend
Delayed::Worker.logger = Logger.new(IO::NULL)

Empty = Struct.new(:number) do
  def perform; end
end

# Jobs per second of a block.
rate = lambda do |&work|
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  work.call
  jobs / (Process.clock_gettime(Process::CLOCK_MONOTONIC) - began)
end
enqueue = rate.call { jobs.times { |number| Delayed::Job.enqueue(Empty.new(number)) } }
succeeded = failed = nil
run = rate.call { succeeded, failed = Delayed::Worker.new.work_off(jobs) }
abort "#{succeeded} of #{jobs} jobs succeeded, #{failed} failed" unless succeeded == jobs
puts JSON.generate(enqueue: enqueue, run: run)
