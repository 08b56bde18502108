# frozen_string_literal: true

# Handlers for tq-worker, which keeps a ledger for the checker of test/chaos.
require 'tq'
require_relative 'ledger'

module Ledger
  # Notes claims, heartbeats, and what the worker asks for and hears at the end of a job.
  module Kept
    private

    # A line for each request: one whose answer is lost is repeated.
    def flush(batch)
      batch.each { |one| Ledger.note('end', *Ledger.key(one.job), one.arguments[:fatal] ? 'kill' : one.verb) }
      super
    end

    def act(job, action, began)
      super.tap { Ledger.note('renewed', *Ledger.key(job), Ledger.wall(job.ends_at)) unless action == 'lost' }
    end

    def answered(one, status)
      answer = { 'ok' => one.verb == :complete && 'succeeded', 'lost' => 'lost', 'not_found' => 'lost' }[status]
      Ledger.note('told', *Ledger.key(one.job), answer) if answer
      super
    end
  end

  # Notes what a claim returned, before the job starts, and jobs that go back at once because this process still works on
  # them.
  module Fed
    def release(job)
      Ledger.note('end', *Ledger.key(job), :release)
      super
    end

    def claim(max)
      super.each do |row|
        Ledger.note('start', *row.values_at('id', 'lease', 'attempt'), row['lease_expires_at'],
                    JSON.parse(row['payload'])['t'], @lease)
      end
    end
  end

  def self.key(job)
    [job.id, job.lease, job.attempt]
  end

  # The time of day of a time of the monotonic clock.
  def self.wall(monotonic)
    format('%.6f', Time.now.to_f + monotonic - Process.clock_gettime(Process::CLOCK_MONOTONIC))
  end
end

Tq::Worker # loads the parts of the worker
Tq::Keeper.prepend(Ledger::Kept)
Tq::Feeder.prepend(Ledger::Fed)

Tq.handle('work') do |job|
  job.heartbeat(progress: 'begun') if job.payload['seconds'] > 1
  job.wait(job.payload['seconds'])
  raise 'the bank does not answer' if job.attempt <= job.payload['failures']
end
