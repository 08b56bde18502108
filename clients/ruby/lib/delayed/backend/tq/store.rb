# frozen_string_literal: true

require 'json'
require 'time'

module Delayed
  module Backend
    module Tq
      # The statements of the backend, on the connection of the caller.
      class Store
        # Priority of a job that is being taken by its id: no job comes before it.
        FIRST = -32_768
        # Jobs that a worker with min_priority looks at, at most, in one reservation.
        LOOKED_AT = 100
        # Claims until a job that was moved to the head of its queue must have come.
        TRIES = 10
        # Queues that one claim can serve.
        QUEUES = 8
        # Seconds that the lease lasts longer than the job may run, so that its failure can still be reported.
        MARGIN = 5
        # Seconds for which a finish is tried again while the server is away.
        PATIENCE = 60
        # States in which delayed_job still has the job.
        KEPT = %w[ready delayed blocked running dead buried].freeze

        OPEN = <<~SQL
          SELECT q.queue FROM tq_queues q WHERE q.kinds ? '#{KIND}' ORDER BY q.queue
        SQL
        READY = "SELECT queue FROM tq_ready() WHERE kind = '#{KIND}'"
        BACKLOG = "SELECT queue FROM tq_queues WHERE (kinds -> '#{KIND}' ->> 'ready')::bigint > 0"
        RUNNING = <<~SQL
          SELECT id, queue, lease FROM tq_running WHERE kind = '#{KIND}' AND NOT open AND ($1::text IS NULL OR worker = $1)
        SQL
        COUNT = <<~SQL
          SELECT (SELECT coalesce(sum(v.value::bigint), 0)
                  FROM tq_queues q, jsonb_each_text(q.kinds -> '#{KIND}') v
                  WHERE v.key IN ('ready', 'delayed', 'blocked', 'running'))
            + (SELECT count(*) FROM tq_dead d WHERE d.kind = '#{KIND}' AND d.detail ->> 'destroyed' IS NULL) AS jobs
        SQL
        GET = <<~SQL
          SELECT g.*, extract(epoch FROM g.run_at) AS run, extract(epoch FROM g.enqueued_at) AS enqueued,
            extract(epoch FROM g.claimed_at) AS claimed, extract(epoch FROM g.finished_at) AS finished,
            (SELECT d.detail ->> 'destroyed' FROM tq_dead d WHERE g.state IN ('dead', 'buried') AND d.id = g.id) AS destroyed
          FROM tq_get($1) g
        SQL
        CLAIM = <<~SQL
          SELECT c.*, extract(epoch FROM c.enqueued_at) AS enqueued
          FROM tq_claim_any($1, $2::int, $3, $4::interval, kinds => '{#{KIND}}') c
        SQL

        # The session on the connection that the thread of the caller uses now.
        def session
          connection = ::Tq.connection_source || ::Tq.active_record? ? ::Tq.connection : own_connection
          ::Tq::Session.new(connection)
        rescue StandardError => e
          raise unless ::Tq.active_record? && e.is_a?(::ActiveRecord::ConnectionNotEstablished)

          raise ::Tq::ConnectionLost, e.message
        end

        def enqueue(**arguments)
          Integer(session.value('tq_enqueue', kind: KIND, **arguments))
        end

        # Enqueues a job and claims it in the same transaction, so that no other worker gets it. Returns its id and lease.
        def enqueue_locked(worker, lease_for, **arguments)
          transaction do
            id = enqueue(**arguments)
            session.rows('SET LOCAL tq.claim_own = on')
            row = claim_until(id, arguments[:queue], worker, lease_for) || raise(NotSupported, "job #{id} cannot be locked now")
            session.rows('SET LOCAL tq.claim_own = off')
            [id, row['lease']]
          end
        end

        # Claims one job that the worker may have. Returns a row with id, lease and more, or nil.
        def claim(queues, worker, lease_for, priorities)
          (queues || ready_queues).shuffle.each_slice(QUEUES) do |some|
            some = [some] if priorities.none?
            Array(some).each do |one|
              row = claim_within(Array(one), worker, lease_for, priorities)
              return row if row
            end
          end
          nil
        end

        # Leases of a worker, or of all of them: rows with id, queue and lease.
        def running(worker = nil)
          session.rows(RUNNING, [worker])
        end

        # The row of a job, or nil if delayed_job no longer has it.
        def get(id)
          row = session.rows(GET, [id.to_s]).first
          row if KEPT.include?(row['state']) && row['destroyed'].nil?
        rescue ::Tq::JobNotFound
          nil
        end

        # Takes one job by its id, for `lease_for` seconds. tq has no such call, so the job goes to the head of its queue
        # and is claimed there. Returns its row. Raises NotSupported if another worker has it, or is faster.
        def take(id, queue, worker, lease_for)
          session.call('tq_reschedule', id: id, priority: FIRST, run_at: Time.now - 1)
          claim_until(id, queue, worker, lease_for) || raise(NotSupported, "job #{id} cannot be locked now")
        rescue ::Tq::WrongState, ::Tq::JobNotFound
          raise NotSupported, "job #{id} cannot be locked: another worker has it, or it has ended"
        end

        # Renews a lease. Returns whether it was still held.
        def hold(id, lease, lease_for)
          session.call('tq_heartbeat', id: Integer(id), lease: Integer(lease), extend: lease_for.to_f).first['action'] != 'lost'
        end

        # Ends a lease by tq_complete, tq_fail or tq_release. Tries again while the server is away, unless a transaction
        # of the caller is open. Returns the answer, or nil if the lease was lost.
        def finish(function, id, lease, **arguments)
          patiently { session.value(function, id: Integer(id), lease: Integer(lease), **arguments) }
        rescue ::Tq::LeaseLost, ::Tq::JobNotFound
          Delayed::Worker.logger&.warn("The lock on job #{id} is lost. Another worker runs the job, or will.")
          nil
        end

        def call(...)
          session.call(...)
        end

        def transaction(&block)
          session.transaction(&block)
        end

        def count
          Integer(session.rows(COUNT).first['jobs'])
        end

        def delete_all
          running.each { |row| finish('tq_complete', row['id'], row['lease']) }
          open_queues.each do |queue|
            after = nil
            loop do
              after = session.call('tq_purge_many', queue: queue, state: 'all', kind: KIND, after: after).first['next_after']
              break if after.nil?
            end
          end
        end

        # Cancels a job that waits or runs, unless it has ended.
        def cancel(id)
          session.call('tq_cancel', id: id)
        rescue ::Tq::WrongState, ::Tq::JobNotFound
          nil
        end

        # Purges one dead or buried job. Without its time, the call would take the next one if this has left its state.
        def purge(row)
          made = Time.at(Rational(row['enqueued']))
          session.call('tq_purge_many', queue: row['queue'], state: row['state'], kind: KIND, after: Integer(row['id']) - 1, max: 1,
                                        created_from: made, created_to: made)
        end

        # Queues that have jobs of delayed_job to claim. Those whose jobs are only on disk come when there are no others.
        def ready_queues
          found = session.rows(READY)
          found = session.rows(BACKLOG) if found.empty?
          found.map { |row| row['queue'] }
        end

        # Queues that have, or had since the server started, jobs of delayed_job.
        def open_queues
          session.rows(OPEN).map { |row| row['queue'] }
        end

        # Connects again after an error; called between two attempts.
        def recover
          if ::Tq.connection_source.nil? && ::Tq.active_record?
            ::ActiveRecord::Base.connection.reconnect! unless ::ActiveRecord::Base.connection.active?
          elsif (own = Thread.current[:tq_delayed_connection]) && ::Tq::Session.new(own).lost?
            disconnect
          end
        rescue StandardError
          nil # the next statement raises if the server is still away
        end

        def disconnect
          Thread.current[:tq_delayed_connection]&.close
        rescue PG::Error
          nil # closed already
        ensure
          Thread.current[:tq_delayed_connection] = nil
        end

        private

        def own_connection
          Thread.current[:tq_delayed_connection] ||= ::Tq.connect(application_name: 'delayed_job')
        end

        # Claims until it gets this job, and gives back the others. Returns its row, or nil if it was not among the first.
        def claim_until(id, queue, worker, lease_for)
          others = []
          TRIES.times do
            row = claim_within([queue], worker, lease_for, [nil, nil])
            return row if row.nil? || Integer(row['id']) == id

            others << row
          end
          nil
        ensure
          others.each { |row| finish('tq_release', row['id'], row['lease']) }
        end

        # With limits of priority a claim serves one queue: within it, jobs come by priority.
        def claim_within(queues, worker, lease_for, (min, max))
          held = []
          LOOKED_AT.times do
            row = session.rows(CLAIM, [::Tq::Session.text(:queues, queues), '1', worker, ::Tq::Session.interval(lease_for)]).first
            return row if row.nil? || ((min.nil? || Integer(row['priority']) >= min) && (max.nil? || Integer(row['priority']) <= max))

            held << row
            return nil if max && Integer(row['priority']) > max
          end
          nil
        ensure
          held.each { |row| finish('tq_release', row['id'], row['lease']) }
        end

        def patiently
          return yield if transaction_open?

          give_up = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE
          pause = 0.1
          begin
            yield
          rescue ::Tq::ConnectionLost, ::Tq::NotLoaded
            raise if Process.clock_gettime(Process::CLOCK_MONOTONIC) > give_up

            sleep pause * rand(0.5..1.5) # poll: until the server is back
            pause = [pause * 2, 5].min
            recover
            retry
          end
        end

        # A lost connection has no transaction of its own; that of ActiveRecord still waits for its end.
        def transaction_open?
          found = session
          return found.in_transaction? unless found.lost?

          !::Tq.connection_source.nil? || (::Tq.active_record? && ::ActiveRecord::Base.connection.transaction_open?)
        rescue ::Tq::Error, PG::Error
          false
        end
      end
    end
  end
end
