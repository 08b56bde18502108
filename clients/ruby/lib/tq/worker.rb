# frozen_string_literal: true

require 'logger'
require 'socket'
require_relative 'backoff'
require_relative 'job'
require_relative 'keeper'
require_relative 'feeder'

module Tq
  # Runs jobs in threads.
  #
  #   worker = Tq::Worker.new('mail', concurrency: 5)
  #   worker.handle('welcome') { |job| Mailer.welcome(job.payload) }
  #   exit worker.run
  class Worker
    # Seconds after which a job of a kind without a handler can be claimed again.
    UNKNOWN = 30
    # Seconds that cancelled handlers have.
    AFTER_CANCEL = 1
    # Seconds that the last finishes may take.
    AFTER_RELEASE = 5
    BACKTRACE = 8192
    # A server that starts, stops or has no room, or a pooler that does not reach it.
    PASSING = /\A(08|53|57)/
    private_constant :PASSING
    # Seconds that an idle thread waits until its claim may be smaller than half of the buffer.
    PATIENCE = 0.005
    NO_ROOM = 'the pooler has no connection for heartbeats while this worker waits, so leases may end early: its pool needs ' \
              'one connection for each worker and one more, at least 2 (default_pool_size of PgBouncer)'
    private_constant :NO_ROOM

    # queues: names. Options: see clients/README.md; durations in seconds. handlers: Hash from kind to a callable.
    # kinds: claim only these. codec: a Tq::Codec. connect: returns a new PG::Connection.
    def initialize(*queues, name: nil, handlers: Tq.handlers, kinds: nil, concurrency: 10, buffer: concurrency, lease: 30,
                   flush_interval: 0.001, shutdown_timeout: 25, codec: Tq.codec, logger: nil, connect: nil)
      raise ArgumentError, 'name at least one queue' if queues.flatten.empty?
      raise ArgumentError, 'concurrency must be at least 1, and buffer at least concurrency' unless (1..buffer).cover?(concurrency)
      raise ArgumentError, 'lease must be at least 0.1 s' unless lease >= 0.1

      @name = Tq.worker_name(name || "#{Socket.gethostname}:#{Process.pid}")
      @handlers = handlers.dup
      @concurrency = concurrency
      @buffer = buffer
      @shutdown_timeout = shutdown_timeout
      @codec = codec
      @logger = logger || Logger.new($stderr, progname: @name)
      connect ||= -> { Tq.connect(application_name: @name) }
      @waker, @wake = IO.pipe
      @keeper = Keeper.new(lease: lease, flush_interval: flush_interval, connect: connect, logger: @logger)
      @feeder = Feeder.new(queues: queues.flatten.map(&:to_s).uniq, kinds: kinds, name: @name, lease: lease, connect: connect, waker: @waker,
                           limit: Keeper.limit(lease))
      @todo = Thread::Queue.new
      @around = [FRAMEWORK]
      @stops = 0
      @unknown = {}
    end

    attr_reader :name

    # Says what to do with jobs of a kind; nil: with jobs without a kind.
    def handle(kind, &handler)
      @handlers[kind&.to_s] = handler
      self
    end

    # Adds a block around each handler: it gets the job and a callable that runs the rest.
    def around(&block)
      @around << block
      self
    end

    # Runs until `stop`, SIGTERM or SIGINT; with `drain` also until no job is ready. Returns 0 if all jobs ended, 1 if some
    # were released or their end could not be reported.
    def run(signals: true, drain: false)
      @drain = drain
      previous = signals ? %w[TERM INT].to_h { |signal| [signal, trap(signal) { stop }] } : {}
      @keeper.start
      threads = Array.new(@concurrency) { Thread.new { work } }
      feed
      shut_down
    ensure
      @todo.close
      threads&.each { |thread| thread.join(0) || thread.kill }
      previous&.each { |signal, handler| trap(signal, handler || 'DEFAULT') }
    end

    # Asks the worker to stop; a second call, to stop at once. May be called in a signal handler.
    def stop
      @stops += 1
      @wake.write_nonblock('.')
    rescue IO::WaitWritable
      nil # it has been woken
    end

    # Runs one job.
    def perform(job)
      return job.finish(:release) if job.cancelled == :lost # while it waited

      handler = decode(job) && (@handlers[job.kind] || unknown(job))
      return unless handler

      run = @around.reverse.inject(-> { handler.call(job) }) { |inner, block| -> { block.call(job, inner) } }
      Tracing.run(job, &run)
      job.finish(:complete, result: job.result_text)
    rescue Retry => e
      job.finish(:fail, **{ error: describe(e), retry_in: e.delay }.compact)
    rescue Fatal => e
      job.finish(:fail, error: describe(e), fatal: true)
    rescue Bury => e
      job.finish(:bury, reason: message_of(e))
    rescue Release => e
      @cut_short = true if @stops.positive?
      job.finish(:release, delay: e.delay)
    rescue Exception => e # whatever a handler raises ends its job only
      return cut_short(job) if job.cancelled == :shutdown

      @logger.error("#{Tq.clean("tq: #{job} failed: #{e.class}: ")}#{message_of(e)}")
      job.finish(:fail, error: describe(e))
    end

    private

    # Middleware of Rails, or of ActiveRecord alone: gives connections back after each job.
    FRAMEWORK = lambda do |_job, run|
      if defined?(::Rails) && ::Rails.respond_to?(:application) && ::Rails.application
        ::Rails.application.executor.wrap { run.call }
      elsif defined?(::ActiveRecord::Base)
        begin
          run.call
        ensure
          ::ActiveRecord::Base.connection_handler.clear_active_connections!
        end
      else
        run.call
      end
    end
    private_constant :FRAMEWORK

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def feed
      backoff = Backoff.new
      worked = false
      until @stops.positive? || @empty
        begin
          worked || @feeder.room? || @logger.error("tq: #{NO_ROOM}")
          fill
          backoff.reset
          worked = true
          said = false
        rescue StandardError => e
          refuse if !worked && refused?(e)
          @logger.warn("tq: claims wait for the server: #{e.message}") unless said
          said = true
          @feeder.close
          @feeder.pause(backoff.next)
        end
      end
      @feeder.close
    end

    # Whether no more attempts help: the database has no tq, or the server refuses the connection.
    def refused?(error)
      return true if error.is_a?(FunctionNotFound)

      error.is_a?(ConnectionLost) && !error.sqlstate.nil? && !PASSING.match?(error.sqlstate)
    end

    # Raises the current error.
    def refuse
      @feeder.close
      @keeper.close(0)
      raise
    end

    # Claims when half of the buffer is free or a thread is idle, and waits if nothing was there.
    def fill
      held = @keeper.size(seconds: 0.1) { |jobs| jobs <= @buffer / 2 || idle?(jobs) }
      held = @keeper.size(seconds: PATIENCE) { |jobs| jobs <= @buffer / 2 } if held > @buffer / 2
      return unless held <= @buffer / 2 || idle?(held)
      return @feeder.pause(0.1) if @keeper.quiet?

      began = now
      rows = @feeder.claim(@buffer - held)
      take(rows.map { |row| Job.new(row, @keeper) }, began)
      return if rows.any?

      return @feeder.wait unless @drain

      held.zero? ? @empty = true : @feeder.pause(0.05)
    end

    # Whether there is room for a job that could start now.
    def idle?(held)
      held < @buffer && @todo.empty? && @todo.num_waiting.positive?
    end

    # A handler may still work on an earlier claim of a job, whose lease was lost: the two must not run at once.
    def take(jobs, began)
      added, again = jobs.partition { |job| @keeper.add(job, began) }
      added.each { |job| @todo << job }
      again.each { |job| @feeder.release(job) }
    end

    def work
      while (job = @todo.pop)
        perform(job)
      end
    end

    # The handler was told to stop because the worker stops.
    def cut_short(job)
      @cut_short = true
      job.finish(:release)
    end

    def decode(job)
      job.decode(@codec)
      true
    rescue Codec::DecodeError => e
      @logger.error("tq: the payload of #{job} cannot be decoded: #{e.message}")
      job.finish(:bury, reason: "the payload cannot be decoded: #{e.message}")
      false
    end

    def unknown(job)
      @logger.warn("tq: no handler for kind #{job.kind.inspect}; its jobs are released") unless @unknown[job.kind]
      @unknown[job.kind] = true
      job.finish(:release, delay: UNKNOWN)
      nil
    end

    def describe(error)
      trace = (error.backtrace || []).map { |line| Tq.clean(line) }.join("\n")
      "#{error.class}: #{message_of(error)}\n#{Tq.clean(trace.byteslice(0, BACKTRACE))}"
    end

    # An exception of the handler must not end the thread of the worker: its message may raise, or be no text.
    def message_of(error)
      Tq.clean(error.message.to_s)
    rescue StandardError => e
      "its message raises #{e.class}"
    end

    def shut_down
      waiting = unstarted
      waiting.each { |job| job.finish(:release) }
      ended?(@shutdown_timeout, 2)
      left = @keeper.open
      left.each { |job| job.cancel(:shutdown) }
      ended?(AFTER_CANCEL, 2) if left.any?
      left = @keeper.open
      left.each { |job| job.finish(:release) }
      @logger.warn("tq: released #{left.map(&:to_s).join(', ')}") if left.any?
      @keeper.close(AFTER_RELEASE)
      unreported = @keeper.size
      @logger.warn("tq: the end of #{unreported} jobs could not be reported; their leases run out") if unreported.positive?
      waiting.empty? && left.empty? && unreported.zero? && !@cut_short ? 0 : 1
    end

    # Takes the jobs that no thread has begun.
    def unstarted
      found = []
      loop { found << @todo.pop(true) }
    rescue ThreadError # there are no more
      found
    end

    # Waits until the running jobs have ended, for `seconds` at most, or until `stops` requests to stop.
    def ended?(seconds, stops)
      finish = now + seconds
      sleep 0.01 until @keeper.open.empty? || now > finish || @stops >= stops # poll
    end
  end
end
