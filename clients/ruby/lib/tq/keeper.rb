# frozen_string_literal: true

module Tq
  # Holds the jobs of a worker: renews their leases and reports how they ended, on one connection, in one thread.
  class Keeper
    # at: the time of the monotonic clock when it is due. said: whether a refusal has been logged.
    Finish = Struct.new(:job, :verb, :arguments, :at, :said)
    # Seconds after which a finish is tried again that another transaction was in the way of.
    BUSY = 0.2
    # The same, if the server refused it for now.
    LATER = 1
    # The shortest limit of a call.
    SHORTEST = 1

    # Seconds that the last call may take longer than `close` was told.
    LAST = 0.5

    # Seconds after which a server that is silent counts as lost.
    def self.limit(lease)
      [lease / 3.0, SHORTEST].max
    end

    # lease, flush_interval: seconds. connect: returns a PG::Connection.
    def initialize(lease:, flush_interval:, connect:, logger:)
      @lease = lease
      @flush_interval = flush_interval
      @connect = connect
      @logger = logger
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @held = {}
      @finished = []
      @calls = Mutex.new
      @next_beat = 0
    end

    def start
      @thread = Thread.new { run }
      @watch = Thread.new { watch }
      self
    end

    # Takes a job that was claimed at `began`. Returns false if the worker still works on an earlier claim of it.
    def add(job, began)
      @lock.synchronize do
        return false if @held.key?(job.id)

        job.ends_at = began + @lease
        @held[job.id] = job
      end
      true
    end

    # Ends a job by complete, fail, bury or release, unless it has been ended.
    def finish(job, verb, **arguments)
      return unless job.end_once

      @lock.synchronize do
        @finished << Finish.new(job, verb, arguments, now)
        @changed.broadcast
      end
    end

    # Jobs that have not ended.
    def open
      @lock.synchronize { @held.values.reject(&:ended?) }
    end

    # The number of jobs that are held. Waits up to `seconds` until the block says that it will do.
    def size(seconds: 0)
      finish = now + seconds
      @lock.synchronize do
        @changed.wait(@lock, finish - now) until !block_given? || yield(@held.size) || now >= finish
        @held.size
      end
    end

    # Whether the last heartbeat asked to claim no more.
    def quiet?
      @quiet && size.positive?
    end

    # See Job#heartbeat.
    def heartbeat(job, **arguments)
      @calls.synchronize do
        began = now
        act(job, session.call('tq_heartbeat', id: job.id, lease: job.lease, **arguments).first['action'], began)
      end
    end

    # Reports what has ended, for `seconds` at most, and closes the connection.
    def close(seconds)
      @closing = now + seconds
      @lock.synchronize { @changed.broadcast }
      @thread.join(seconds + LAST) || @thread.kill
      @watch.kill
      @session&.connection&.close
    rescue PG::Error
      nil # closed already
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def session
      @session ||= Session.open(@connect, limit: self.class.limit(@lease))
    end

    def run
      backoff = Backoff.new
      until @closing && (now > @closing || @lock.synchronize { @finished.empty? })
        begin
          batch = collect
          @calls.synchronize do
            flush(batch)
            beat if now >= @next_beat
          end
          backoff.reset
          @said = false
        rescue StandardError => e
          reconnect(e, backoff)
        end
      end
    end

    # Waits for the first job that ends, and `flush_interval` for others. Returns at the next heartbeat at the latest.
    def collect
      @lock.synchronize do
        while (left = due - now).positive? && !(@closing && @finished.empty?)
          @changed.wait(@lock, left)
        end
        @finished.select { |one| one.at <= now }
      end
    end

    def due
      first = @finished.map(&:at).min
      return [@next_beat, first && first + @flush_interval].compact.min unless @closing

      [@closing, @next_beat, first].compact.min
    end

    def flush(batch)
      lost, batch = batch.partition { |one| one.job.cancelled == :lost || one.job.completed? && one.verb == :complete }
      drop(lost)
      completes, others = batch.partition { |one| one.verb == :complete }
      fails, others = others.partition { |one| one.verb == :fail && one.arguments.keys == [:error] }
      many('tq_complete_many', completes, results: completes.map { |one| one.arguments[:result] })
      many('tq_fail_many', fails, errors: fails.map { |one| one.arguments[:error] })
      others.each { |one| single(one) }
    end

    def many(function, batch, **arguments)
      return if batch.empty?

      rows = session.call(function, ids: batch.map { |one| one.job.id }, leases: batch.map { |one| one.job.lease }, **arguments)
      batch.zip(rows) { |one, row| answered(one, row['status']) }
    rescue ConnectionLost, NotLoaded
      raise
    rescue StandardError
      batch.each { |one| single(one) } # one of them has a wrong result
    end

    def single(one)
      session.value("tq_#{one.verb}", id: one.job.id, lease: one.job.lease, **one.arguments)
      drop([one])
    rescue LeaseLost, JobNotFound
      answered(one, 'lost')
    rescue Busy
      answered(one, 'busy')
    rescue ConnectionLost, NotLoaded
      raise
    rescue StandardError => e
      e.is_a?(Error) && e.temporary? ? later(one, e) : refused(one, e)
    end

    def later(one, error)
      @logger.warn("tq: #{one.job} will be finished later: #{error.message}") unless one.said
      replace(one, Finish.new(*one.to_a.first(3), now + LATER, true))
    end

    # What the server does not take becomes a plain failure.
    def refused(one, error)
      @logger.error(Tq.clean("tq: #{one.job} could not be finished: ") + Tq.clean(error.message))
      return drop([one]) if one.verb == :fail && (one.arguments.keys - %i[error fatal]).empty?

      text = "#{error.class}: #{Tq.clean(error.message)}"
      replace(one, Finish.new(one.job, :fail, { error: text, fatal: one.arguments[:fatal] }.compact, now))
    end

    def answered(one, status)
      return replace(one, Finish.new(*one.to_a.first(3), now + BUSY)) if status == 'busy'

      @logger.warn("tq: the lease of #{one.job} is lost; its result is dropped") unless status == 'ok'
      drop([one])
    end

    def drop(batch)
      @lock.synchronize do
        @finished -= batch
        batch.each { |one| @held.delete(one.job.id) }
        @changed.broadcast
      end
    end

    def replace(one, by)
      @lock.synchronize { @finished = @finished - [one] + [by] }
    end

    def beat
      jobs = @lock.synchronize { @held.values.reject { |job| job.cancelled == :lost } }
      began = now
      if jobs.empty?
        @next_beat = began + @lease / 3.0
        return @quiet = false
      end
      rows = session.call('tq_heartbeat_many', ids: jobs.map(&:id), leases: jobs.map(&:lease), extend: @lease)
      @next_beat = began + @lease / 3.0 # only now: one that is lost is repeated at once
      @quiet = jobs.zip(rows).map { |job, row| act(job, row['action'], began) }.include?('quiet')
    end

    def act(job, action, began)
      job.ends_at = began + @lease unless action == 'lost'
      @logger.warn("tq: the lease of #{job} is lost; its result is dropped") if action == 'lost' && !job.completed? && !job.ended?
      job.cancel(action.to_sym) if %w[cancel lost].include?(action) && !job.ended?
      action
    end

    # A worker that cannot send heartbeats must not go on after the end of its leases.
    def expire
      @lock.synchronize { @held.values.select { |job| !job.ended? && job.ends_at < now } }.each { |job| job.cancel(:lost) }
    end

    # In a thread of its own, which waits for no server.
    def watch
      loop do
        expire
        sleep @lease / 10.0
      end
    end

    # Waits for the next attempt, or the end of the worker.
    def rest(finish)
      @lock.synchronize do
        @changed.wait(@lock, finish - now) while now < finish && !@closing
        @changed.wait(@lock, BUSY) if @closing && now < @closing
      end
    end

    def reconnect(error, backoff)
      @logger.warn("tq: heartbeats and finishes wait for the server: #{error.message}") unless @said
      @said = true
      rest(now + backoff.next)
      @calls.synchronize do
        @session&.connection&.close
      rescue PG::Error
        nil # closed already
      ensure
        @session = nil
      end
    end
  end
end
