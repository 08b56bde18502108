# frozen_string_literal: true

require 'logger'
require 'socket'
require 'tq'

module Tq
  # A backend of Rage::Deferred.
  #
  #   require 'tq/rage'
  #   Rage.configure { config.deferred.backend = :tq, { queue: 'deferred' } }
  #
  # Each task is a job of tq of the kind `rage`, leased to the process that runs the task from its enqueue on. Heartbeats
  # renew the leases. The tasks of a process that dies are taken up by the others, or by the next one, when the leases end.
  module Rage
    # Lets `config.deferred.backend` take :tq.
    module Configuration
      def backend=(config)
        name, options = config.is_a?(Array) ? config : [config, {}]
        @tq_options = name == :tq ? options.to_h : nil
        super(@tq_options ? nil : config)
      end

      def backend
        @tq_options ? Backend.new(**@tq_options) : super
      end
    end

    # The storage layer that Rage::Deferred calls: `add`, `remove`, `pending_tasks`.
    class Backend
      KIND = 'rage'
      # Tasks that one round takes up.
      ROUND = 100
      # Rounds in which a new task must come.
      TRIES = 10
      # Seconds until a task whose class is unknown here can be claimed again.
      UNKNOWN = 60
      CLAIM = <<~SQL
        SELECT id, lease, payload, checkpoint FROM tq_claim($1, $2::int, $3, $4::interval, kinds => '{#{KIND}}')
      SQL

      # queue: a name. lease: seconds. codec: a Tq::Codec; by default one whose key comes from Rage's secret_key_base, since
      # only a value that no other program can have written may be unmarshalled. connect: returns a PG::Connection. recovered:
      # gets the id, context and start time of a task that another process has left.
      def initialize(queue: 'deferred', lease: 30, codec: nil, name: nil, connect: nil, recovered: nil, logger: nil)
        @queue = queue
        @lease = lease
        @codec = codec || Tq.codec || Rage.codec
        @name = Tq.worker_name(name || "rage:#{Socket.gethostname}:#{Process.pid}")
        @connect = connect || -> { Tq.connect(application_name: @name) }
        @recovered = recovered || Rage.method(:schedule)
        @logger = logger || Logger.new($stderr, progname: @name)
        @lock = Mutex.new
        @changed = ConditionVariable.new
        @calls = Monitor.new
        @process = Process.pid
        @leases = {} # of the tasks that this process has; 0: the lease is lost
        @stored = {} # of these tasks: the context, and its number of attempts when it was stored
        @removed = {}
        @beating = Thread.new { beat_until_closed }
        at_exit { close }
      end

      # Stores a task, or with `task_id` its state after an attempt. context: what Rage marshals. publish_at: seconds since 1970,
      # or nil. Returns the id: a String. Raises LeaseLost if another process has the task by now.
      def add(context, publish_at: nil, task_id: nil)
        value = { task: [Marshal.dump(context)].pack('m0'), publish_at: publish_at }
        id = with_session { |session| task_id ? change(session, task_id, value) : insert(session, value) }
        remember(Integer(id), context)
        id
      end

      # Removes a task that has been run, or given up. Rage does not tell the two apart, but counts an attempt in the context
      # if it failed. If the server is away or refuses the call for now, the next heartbeat repeats it.
      def remove(task_id)
        id = Integer(task_id)
        lease, (context, attempts) = @lock.synchronize { [@leases.delete(id), @stored.delete(id)] }
        return if lease.nil?
        return warn_of_loss(task_id) if lease.zero?

        failed = attempts_of(context) if context && attempts_of(context) > attempts
        finish(id, lease, failed)
      rescue Error => e
        raise unless e.is_a?(ConnectionLost) || e.temporary?

        @lock.synchronize { @removed[id] = [lease, failed] }
      end

      # Takes up the tasks that no living process holds. Returns [id, context, publish_at] for each. After an error it
      # returns those that it has, since this process renews their leases.
      def pending_tasks
        found = []
        loop do
          rows = with_session { |session| session.rows(CLAIM, [@queue, ROUND.to_s, @name, Session.interval(@lease)]) }
          rows.each { |row| (task = take(row)) && found << task }
          return found if rows.size < ROUND
        end
      rescue Error
        raise if found.empty?

        found
      end

      # Gives back the tasks that are left, so that another process runs them at once. Called when the process exits.
      def close
        @lock.synchronize do
          return if @closed || @process != Process.pid

          @closed = true
          @changed.broadcast
        end
        @beating.join
        @leases.reject { |_, lease| lease.zero? }.each { |id, lease| release(id, lease) }
        finish_removed
        @session&.connection&.close
      rescue Error, PG::Error => e
        @logger.warn("tq: tasks are left until their leases end: #{e.message}")
      end

      private

      # Enqueues and claims in one transaction: no other process gets the job in between.
      def insert(session, value)
        id, lease = session.transaction do
          id = Integer(session.value('tq_enqueue', queue: @queue, payload: @codec.encode(value, Codec::PAYLOAD), kind: KIND))
          session.rows('SET LOCAL tq.claim_own = on')
          row = claim_until(session, id)
          raise Error, "task #{id} cannot be claimed: is queue #{@queue} paused or limited?" unless row

          [id, Integer(row['lease'])]
        end
        @lock.synchronize { @leases[id] = lease }
        id.to_s
      end

      # Older tasks that are ready come first; they are given back. Returns the row of the task, or nil.
      def claim_until(session, id)
        others = []
        TRIES.times do
          rows = session.rows(CLAIM, [@queue, ROUND.to_s, @name, Session.interval(@lease)])
          own, more = rows.partition { |row| Integer(row['id']) == id }
          others.concat(more)
          next if own.empty? && rows.any?

          give_back(session, others)
          return own.first
        end
        nil # the caller rolls back
      end

      def give_back(session, rows)
        rows.each { |row| session.value('tq_release', id: Integer(row['id']), lease: Integer(row['lease'])) }
      end

      def change(session, task_id, value)
        id = Integer(task_id)
        lease = @lock.synchronize { @leases[id] || 0 }
        checkpoint = @codec.encode(value, Codec.checkpoint(id))
        answer = session.call('tq_heartbeat', id: id, lease: lease, checkpoint: checkpoint).first['action']
        raise LeaseLost, "another process has task #{id}, or will" if answer == 'lost'

        task_id
      rescue Error
        forget(id)
        raise
      end

      # Renews the lease no longer: Rage does not run the task, so a process takes it up when the lease ends.
      def forget(id)
        @lock.synchronize { [@leases, @stored].each { |tasks| tasks.delete(id) } }
      end

      def remember(id, context)
        @lock.synchronize { @stored[id] = [context, attempts_of(context)] }
      end

      def attempts_of(context)
        ::Rage::Deferred::Context.get_attempts(context).to_i
      end

      # failed: the attempts of a task that was given up.
      def finish(id, lease, failed)
        with_session do |session|
          next session.value('tq_complete', id: id, lease: lease) unless failed

          session.value('tq_fail', id: id, lease: lease, error: "Rage gave the task up after #{failed} attempts", fatal: true)
        end
      rescue LeaseLost, JobNotFound
        warn_of_loss(id)
      end

      def warn_of_loss(id)
        @logger.warn("tq: the lease of task #{id} was lost; it may run twice")
      end

      # The task of a claimed row; nil if it cannot be read, or is here already because only its lease was lost.
      def take(row)
        id = Integer(row['id'])
        raw, context = row['checkpoint'] ? [row['checkpoint'], Codec.checkpoint(id)] : [row['payload'], Codec::PAYLOAD]
        value = @codec.decode(JSON.parse(raw), context, strict: true)
        task = Marshal.load(value['task'].unpack1('m0')) # rubocop:disable Security/MarshalLoad -- the codec has checked it
        had = @lock.synchronize { @leases.key?(id).tap { @leases[id] = Integer(row['lease']) } }
        return if had

        remember(id, task)
        [id.to_s, task, value['publish_at']]
      rescue Codec::DecodeError, JSON::ParserError => e
        refuse(row, 'tq_bury', "cannot be decoded: #{e.message}", reason: "the task cannot be decoded: #{e.message}")
      rescue StandardError => e
        refuse(row, 'tq_release', "cannot be loaded: #{e.message}", delay: UNKNOWN)
      end

      def refuse(row, function, why, **arguments)
        @logger.error("tq: task #{row['id']} #{why}")
        with_session { |session| session.value(function, id: Integer(row['id']), lease: Integer(row['lease']), **arguments) }
        nil
      rescue LeaseLost, JobNotFound
        nil # another process has it
      end

      def beat_until_closed
        backoff = Backoff.new
        pause = @lease / 3.0
        until closed_within?(pause)
          begin
            beat
            finish_removed
            pending_tasks.each { |task| schedule(task) }
            backoff.reset
            pause = @lease / 3.0
          rescue StandardError => e
            @logger.warn("tq: heartbeats wait for the server: #{e.message}") if pause == @lease / 3.0
            pause = backoff.next
          end
        end
      end

      def schedule(task)
        @recovered.call(*task)
      rescue StandardError => e
        @logger.error("tq: task #{task.first} cannot be scheduled: #{e.class}: #{e.message}")
        forget(Integer(task.first))
      end

      def closed_within?(seconds)
        @lock.synchronize do
          @changed.wait(@lock, seconds) unless @closed
          @closed
        end
      end

      # After the heartbeats, which an error here must not stop.
      def finish_removed
        @lock.synchronize { @removed.dup }.each do |id, (lease, failed)|
          finish(id, lease, failed)
          @lock.synchronize { @removed.delete(id) }
        end
      end

      def release(id, lease)
        with_session { |session| session.value('tq_release', id: id, lease: lease) }
      rescue LeaseLost, JobNotFound
        nil # another process has it
      end

      def beat
        held = @lock.synchronize { @leases.reject { |_, lease| lease.zero? } }
        return if held.empty?

        rows = with_session { |session| session.call('tq_heartbeat_many', ids: held.keys, leases: held.values, extend: @lease) }
        lost = rows.filter_map { |row| Integer(row['id']) if row['action'] == 'lost' }
        @lock.synchronize { lost.each { |id| @leases[id] = 0 if @leases[id] == held[id] } }
      end

      def drop_session
        @session.connection.close
      rescue PG::Error
        nil # closed already
      ensure
        @session = nil
      end

      # One call at a time, on one connection, which is made again after it broke.
      def with_session
        @calls.synchronize do
          @session ||= Session.open(@connect, limit: Keeper.limit(@lease))
          begin
            yield @session
          rescue ConnectionLost
            drop_session
            raise
          end
        end
      end
    end

    # The codec whose keys are derived from Rage's secrets; values of the fallback secrets are decoded, too.
    def self.codec
      config = ::Rage.config
      secrets = [config.secret_key_base, *config.fallback_secret_key_base].compact
      raise ArgumentError, 'Tq::Rage needs codec:, Tq.codec or secret_key_base of Rage' if secrets.empty?

      keys = secrets.to_h do |secret|
        key = OpenSSL::KDF.hkdf(secret, salt: '', info: 'tq rage deferred', length: 32, hash: 'SHA256')
        ["rage-#{OpenSSL::Digest::SHA256.hexdigest(key)[0, 8]}", key]
      end
      Codec.new(keys, kid: keys.keys.first)
    end

    # Gives a task to the queue of Rage.
    def self.schedule(task_id, context, publish_at)
      publish_in = publish_at && publish_at - Time.now.to_i
      ::Rage::Deferred.__queue.schedule(task_id, context, publish_in: publish_in)
    end
  end
end

require 'openssl'
require 'monitor'
require_relative 'backoff'
require_relative 'keeper'
Rage::Configuration::Deferred.prepend(Tq::Rage::Configuration) if defined?(Rage::Configuration::Deferred)
