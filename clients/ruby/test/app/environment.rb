# frozen_string_literal: true

# The application whose workers the specs start as processes. It keeps a ledger for the checker of test/chaos.
require 'logger'
require 'time'
require 'active_record'
require 'delayed_job'
require_relative 'ledger'

ActiveRecord::Base.establish_connection(adapter: 'postgresql', database: ENV.fetch('PGDATABASE'))
Delayed::Worker.backend = :tq
Delayed::Worker.logger = Logger.new(IO::NULL)
Delayed::Worker.max_run_time = 20
Delayed::Worker.sleep_delay = 1

module Ledger
  # Notes what a job asks the server for, and what the server says.
  module Noted
    VERBS = { 'tq_complete' => 'complete', 'tq_fail' => 'fail', 'tq_release' => 'release' }.freeze

    def load_claim(row, worker)
      super
      @attempt = row['attempt']
      Ledger.note('start', id, lease, @attempt, Time.parse(row['lease_expires_at']).to_f, payload_object.token)
      self
    end

    private

    def arguments(made)
      found = super
      found.merge(payload: found[:payload].merge(t: payload_object.token))
    end

    def finish(function, **arguments)
      held = lease
      Ledger.note('end', id, held, @attempt, arguments[:fatal] ? 'kill' : VERBS.fetch(function))
      answer = super
      Ledger.note('told', id, held, @attempt, answer || 'lost')
      answer
    end
  end
end
Delayed::Backend::Tq::Job.prepend(Ledger::Noted)

# Works for some seconds, or nil: until the ledger has a file `go` beside it. Fails in its first attempts.
Work = Struct.new(:token, :seconds, :failures) do
  def perform
    File.write("#{ENV.fetch('TQ_LEDGER')}.#{token}", Process.pid.to_s)
    seconds ? sleep(seconds) : (sleep 0.02 until File.exist?("#{ENV.fetch('TQ_LEDGER')}.go")) # sleeps: long work
    raise 'the bank does not answer' if @attempts < failures
  end

  def before(job)
    @attempts = job.attempts
  end

  def reschedule_at(now, _attempts)
    now + 0.1
  end
end
