# frozen_string_literal: true

# A Rails application with jobs, for tq-worker.
require 'rails'
require 'active_record/railtie'
require 'active_job/railtie'
require 'tq/railtie' # since the specs load tq before Rails

class Application < Rails::Application
  config.root = ENV.fetch('TQ_WORK')
  config.load_defaults 6.1
  config.eager_load = false
  config.logger = Logger.new(IO::NULL)
  config.secret_key_base = 'test'
  config.active_job.queue_adapter = :tq
end
ENV['DATABASE_URL'] = "postgresql:///#{ENV.fetch('PGDATABASE')}"
Rails.application.initialize!
ActiveRecord::Schema.verbose = false
ActiveRecord::Schema.define do
  create_table(:notes, if_not_exists: true) { |table| table.string :text }
end

class Note < ActiveRecord::Base
end

# Appends its words to the note, once the file `go` is there.
class Append < ActiveJob::Base
  def perform(note, words, go = nil)
    File.write("#{ENV.fetch('TQ_LEDGER')}.#{words}", Process.pid.to_s)
    sleep 0.02 until go.nil? || File.exist?(go) # sleeps: long work
    note.with_lock { note.update!(text: "#{note.text} #{words}") }
  end
end

class Unlucky < ActiveJob::Base
  class Discarded < StandardError; end

  queue_as :unlucky
  retry_on ArgumentError, wait: 0.05.seconds, attempts: 3 do |job, _error|
    Note.create!(text: "gave up after #{job.executions}")
  end
  discard_on Discarded

  def perform(what)
    Note.create!(text: "#{what} #{executions}")
    raise Discarded if what == 'discard'
    raise ArgumentError, 'no luck' if what == 'retry'
    raise 'unexpected' if what == 'fail'
  end
end
