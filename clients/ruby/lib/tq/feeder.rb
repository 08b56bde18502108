# frozen_string_literal: true

module Tq
  # Waits for jobs and claims them, on one connection.
  class Feeder
    QUEUES = 8
    # Seconds that one wait lasts at most.
    WAIT = 30
    # Seconds to pause when a wait says that there are jobs, and the claim gets none.
    REFUSED = 0.05
    # Seconds between two cancels of a wait.
    CANCEL = 0.05
    # Seconds that a pooler has to give a second connection, for which the server may have to start a process.
    PROBE = 10
    CLAIM = <<~SQL
      SELECT id, lease, queue, kind, payload, attempt, max_attempts, checkpoint, headers, priority, parents, group_key, tags,
          unique_key, extract(epoch FROM enqueued_at) AS enqueued_at, extract(epoch FROM lease_expires_at) AS lease_expires_at,
          extract(epoch FROM deadline) AS deadline
      FROM tq_claim_any($1, $2::int, $3, $4::interval, kinds => $5)
    SQL

    # kinds: Array or nil, all kinds. waker: an IO that becomes readable when the worker has to stop.
    # limit: seconds after which a silent server counts as lost.
    def initialize(queues:, kinds:, name:, lease:, connect:, waker:, limit:)
      @groups = queues.each_slice(QUEUES).to_a
      @pairs = kinds ? queues.product(kinds) : queues.map { |queue| [queue, nil] }
      @kinds = kinds && Session.text(:kinds, kinds)
      @name = name
      @lease = lease
      @connect = connect
      @waker = waker
      @limit = limit
      @wait = WAIT
    end

    # Whether heartbeats get a connection while this one waits. A pooler may have only one: then waits are short.
    def room?
      return true if Integer(session.value('pg_backend_pid')) == session.connection.backend_pid
      return true if session.transaction { probe }

      @wait = @lease / 6.0
      false
    end

    # Claims up to `max` jobs. Returns rows.
    def claim(max)
      @groups.rotate!
      @groups.each_with_object([]) do |group, found|
        left = max - found.size
        next if left <= 0

        found.concat(session.rows(CLAIM, [Session.text(:queues, group), left.to_s, @name, Session.interval(@lease), @kinds]))
      rescue Error
        raise if found.empty?

        break found # their leases run
      end
    end

    # Gives back a job that must not start yet.
    def release(job)
      session.value('tq_release', id: job.id, lease: job.lease, delay: 1)
    rescue LeaseLost
      nil # another worker has it
    end

    # Waits until there may be a job, or the waker is readable.
    def wait
      began = now
      connection = session.connection
      connection.send_query_params('CALL tq_wait($1, $2::interval, $3)',
                                   [Session.text(:queues, @pairs.map(&:first)), Session.interval(@wait),
                                    @kinds && Session.text(:kinds, @pairs.map(&:last))])
      socket = connection.socket_io
      ready, = IO.select([socket, @waker], nil, nil, WAIT * 2)
      raise ConnectionLost, 'the server does not answer' unless ready

      # a cancel that comes before the statement has begun does nothing
      session.limited do
        connection.cancel until IO.select([socket], nil, nil, CANCEL)
        connection.get_last_result
      end
      pause(REFUSED) if now - began < REFUSED
    rescue PG::QueryCanceled
      nil # the worker stops
    rescue PG::Error => e
      raise Tq.translated(e)
    end

    # Sleeps, or returns when the waker is readable.
    def pause(seconds)
      IO.select([@waker], nil, nil, seconds)
    end

    def close
      @session&.connection&.close
    rescue PG::Error
      nil # closed already
    ensure
      @session = nil
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # Whether another connection answers.
    def probe
      other = Session.open(@connect, limit: PROBE)
      other.rows('SELECT')
      true
    rescue ConnectionLost
      false
    ensure
      other&.connection&.close
    end

    def session
      @session ||= Session.open(@connect, limit: @limit)
    end
  end
end
