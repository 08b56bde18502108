#!/usr/bin/env ruby
# frozen_string_literal: true

# A tq worker with ruby-pg.   usage: worker.rb QUEUE NAME   (and the usual PG* variables)
require 'json'
require 'pg'

QUEUE, NAME = ARGV
LEASE = 3 # seconds; renewed after a third of it
CLAIM = <<~SQL
  SELECT id, lease, attempt, payload, extract(epoch FROM lease_expires_at) AS until
  FROM tq_claim($1, worker => $2, lease_for => $3, wait => '2 s')
SQL

Job = Struct.new(:id, :lease, :attempt, :payload, :until)

# A retry cannot succeed.
class Fatal < StandardError; end

# The work must stop early.
class Stopped < StandardError; end

@stopping = false
Signal.trap('TERM') { @stopping = true }

def note(event, job, word)
  return unless ENV['WORK_LOG']

  File.open(ENV['WORK_LOG'], 'a') do |log|
    log.syswrite(format("%.6f %s %s %s %s %s %s\n", Time.now.to_f, NAME, event, job.id, job.lease, job.attempt, word))
  end
end

def connect
  PG.connect(application_name: NAME).tap { |conn| conn.type_map_for_results = PG::BasicTypeMapForResults.new(conn) }
end

def value(conn, sql, *args)
  conn.exec_params(sql, args).getvalue(0, 0)
end

def lost?(error)
  error.is_a?(PG::Error) && error.result && error.result.error_field(PG::PG_DIAG_SQLSTATE) == 'TQ001'
end

# Renews the lease in a thread with its own connection while the block works; interrupts the block on a stop request.
def with_heartbeats(job)
  worker = Thread.current
  beating = Thread.new do
    loop do
      sleep LEASE / 3.0
      conn = connect
      action = value(conn, 'SELECT action FROM tq_heartbeat($1, $2)', job.id, job.lease)
      worker.raise(Stopped, 'stopped as asked') if %w[lost cancel].include?(action)
      @stopping = true if action == 'quiet'
    rescue PG::Error => e
      warn e.message # the server restarts; the next heartbeat may succeed
    ensure
      conn&.close
    end
  end
  yield
ensure
  beating.kill.join
end

# The slow work, outside any transaction.
def work(job)
  raise 'the bank does not answer' if job.attempt <= job.payload.fetch('failures', 0)
  raise Fatal, 'nothing to book' unless job.payload['amount'].positive?

  with_heartbeats(job) { sleep job.payload.fetch('seconds', 0) }
end

def complete(conn, job)
  note('end', job, 'complete')
  conn.transaction do # both or neither
    conn.exec_params('INSERT INTO booking VALUES ($1, $2, $3, $4)', [job.id, *job.payload.values_at('transfer', 'amount'), NAME])
    value(conn, 'SELECT tq_complete($1, $2)', job.id, job.lease)
  end
end

def fail(conn, job, error)
  fatal = error.is_a?(Fatal)
  note('end', job, fatal ? 'kill' : 'fail')
  value(conn, 'SELECT tq_fail($1, $2, $3, fatal => $4)', job.id, job.lease, error.message, fatal)
end

def process(conn, job)
  note('start', job, job.until)
  answer =
    begin
      work(job)
      complete(conn, job)
    rescue StandardError => e
      raise if lost?(e) || conn.status != PG::CONNECTION_OK

      fail(conn, job, e)
    end
  note('told', job, answer)
rescue PG::Error => e
  raise unless lost?(e)

  note('told', job, 'lost') # another worker has the job by now
end

until @stopping
  begin
    conn = connect
    until @stopping
      conn.exec_params(CLAIM, [QUEUE, NAME, "#{LEASE} s"]).each_row do |id, lease, attempt, payload, ends|
        process(conn, Job.new(id, lease, attempt, payload.is_a?(String) ? JSON.parse(payload) : payload, ends.to_s('F')))
      end
    end
  rescue PG::Error => e
    # the server restarts: jobs in hand run again after their leases expire
    warn e.message
    sleep 0.2
  end
end
