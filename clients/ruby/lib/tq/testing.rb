# frozen_string_literal: true

require 'tq'

module Tq
  # Helpers for the tests of an application. They use the connection of the test, and its transaction: a rollback undoes
  # everything. worker: a Tq::Worker whose handlers run; by default those of Tq.handle.
  module Testing
    # A job that was run. state: the job's afterwards. result: what the handler left. error: of the attempt, or the reason
    # of a burial.
    Ran = Struct.new(:job, :state, :result, :error)
    LEASE = '1 h'
    # Jobs that one drain runs at most.
    LIMIT = 10_000
    # A row of a claim, for a job that is in no database.
    ROW = { 'id' => '1', 'lease' => '1', 'attempt' => '1', 'max_attempts' => '20', 'priority' => '100', 'enqueued_at' => '0' }.freeze
    STATES = { complete: 'succeeded', fail: 'delayed', bury: 'buried', release: 'ready' }.freeze
    private_constant :LEASE, :ROW, :STATES

    # Stands for the keeper of a worker. session: nil for a job that is in no database.
    class Direct
      def initialize(session)
        @session = session
      end

      def run(worker, job)
        worker.perform(job)
        Ran.new(job, @state, job.result, @error)
      end

      def finish(job, verb, **arguments)
        @error = arguments[:error] || arguments[:reason]
        @state = STATES.fetch(verb)
        @state = 'dead' if arguments[:fatal]
        @state = 'delayed' if arguments[:delay].to_f.positive?
        return if @session.nil? || (job.completed? && verb == :complete)

        @state = @session.value("tq_#{verb}", id: job.id, lease: job.lease, **arguments)
      end

      def heartbeat(job, **arguments)
        @session ? @session.call('tq_heartbeat', id: job.id, lease: job.lease, **arguments).first['action'] : 'run'
      end
    end
    private_constant :Direct

    class << self
      # Runs the handler of a kind without a database. attributes: columns of tq_job. Returns a Ran.
      def run_inline(kind, payload = {}, worker: Worker.new('test'), **attributes)
        row = { 'kind' => kind&.to_s, 'payload' => JSON.generate(payload) }
        attributes.each do |name, value|
          row[name.to_s] = value.respond_to?(:strftime) ? value.to_time.to_r.to_s : Session.text(name, value)
        end
        direct = Direct.new(nil)
        direct.run(worker, Job.new(ROW.merge(row), direct))
      end

      # Runs jobs until none is ready, those of the open transaction and those that handlers enqueue included. Returns a Ran
      # for each. A job that fails with attempts left is delayed, and not run again.
      def drain(*queues, connection: nil, worker: Worker.new(*queues))
        session = Session.new(connection || Tq.connection)
        session.rows("SELECT set_config('tq.claim_own', 'on', true)")
        found = []
        while (row = session.rows(Feeder::CLAIM, [Session.text(:queues, queues.flatten), '1', worker.name, LEASE, nil]).first)
          raise Error, "more than #{LIMIT} jobs; do they enqueue each other?" if found.size == LIMIT

          direct = Direct.new(session)
          found << direct.run(worker, Job.new(row, direct))
        end
        found
      end

      # The number of jobs of a queue, those of the open transaction included. payload: what theirs contain.
      def enqueued(queue, kind: nil, payload: nil, connection: nil)
        arguments = { kind: kind, payload: payload }.compact
        Integer(Session.new(connection || Tq.connection).value('tq_enqueued', queue: queue, **arguments))
      end

      # Sets the clock of a database where tq.testing is on; nil: to the time of the server. Returns the time.
      def set_now(time = nil, connection: nil)
        session = Session.new(connection || Tq.connection)
        Time.at(Rational(session.rows('SELECT extract(epoch FROM tq_set_now($1)) AS now', [time && Session.time(time)]).first['now']))
      end
    end
  end
end
