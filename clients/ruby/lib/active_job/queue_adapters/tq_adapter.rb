# frozen_string_literal: true

require 'English'
require 'active_job'
require 'tq'

module ActiveJob
  module QueueAdapters
    # Runs ActiveJob on tq. A job is a job of tq of the kind `active_job`; Tq::Worker and tq-worker run it.
    #
    #   config.active_job.queue_adapter = :tq
    #
    # Enqueues are part of the transaction of ActiveRecord. A job that retries itself (`retry_on`, `retry_job`) stays the
    # same job of tq: its checkpoint keeps what ActiveJob counts. An error that ActiveJob does not handle fails the job,
    # which is then tried again by the retry policy of its queue.
    class TqAdapter
      KIND = 'active_job'
      CURRENT = :tq_active_job

      # The job that a thread runs, and how ActiveJob wants it to go on.
      Running = Struct.new(:held, :job_id, :data, :run_at, :error)

      def enqueue(job)
        put(job, nil)
      end

      # Rails 7.2 asks whether jobs wait for the commit of a transaction. Those of tq are part of it.
      def enqueue_after_transaction_commit?
        false
      end

      # timestamp: seconds since 1970
      def enqueue_at(job, timestamp)
        put(job, timestamp)
      end

      # For ActiveJob.perform_all_later: one statement for each class and queue, all in one transaction. Returns the number of
      # jobs.
      def enqueue_all(jobs)
        ::Tq::Session.new(::Tq.connection).transaction do
          jobs.group_by { |job| [job.queue_name, job.class] }.each_value { |some| put_all(some) }
        end
        jobs.each { |job| job.successfully_enqueued = true if job.respond_to?(:successfully_enqueued=) }
        jobs.size
      end

      # The handler of the kind. Raises what the job raised.
      def self.perform(held)
        data = held.checkpoint || held.payload
        running = Thread.current[CURRENT] = Running.new(held, data['job_id'])
        ActiveJob::Base.execute(data.merge('provider_job_id' => held.id))
        again(running) if running.data
      ensure
        Thread.current[CURRENT] = nil
      end

      # Only the limit of ActiveJob counts: where tq has no attempt left, the attempt is given back.
      def self.again(running)
        held = running.held
        held.heartbeat(checkpoint: running.data)
        delay = [running.run_at.to_f - Time.now.to_f, 0].max
        message = "#{running.error || 'retried'} (ActiveJob, after #{running.data['executions']} executions)"
        raise held.attempt < held.max_attempts ? ::Tq::Retry.new(delay, message) : ::Tq::Release.new(delay, message)
      end
      private_class_method :again

      private

      def put(job, timestamp)
        running = Thread.current[CURRENT]
        return retry_later(running, job, timestamp) if running && itself?(running, job)

        at = timestamp && Time.at(timestamp)
        job.provider_job_id = ::Tq.enqueue(job.queue_name, job.serialize, kind: KIND, priority: job.priority, run_at: at,
                                           options: tags(job))
      end

      # Jobs of one class and queue.
      def put_all(jobs)
        times = jobs.map { |job| job.scheduled_at && Time.at(job.scheduled_at.to_f) }
        ids = ::Tq.enqueue_many(jobs.first.queue_name, jobs.map(&:serialize), kind: KIND, priorities: jobs.map(&:priority), run_ats: times,
                                                                             options: tags(jobs.first))
        jobs.zip(ids) { |job, id| job.provider_job_id = id }
      end

      def tags(job)
        { tags: [job.class.name.to_s.byteslice(0, 127).scrub('')] }
      end

      # Another queue or priority takes another job of tq.
      def itself?(running, job)
        held = running.held
        running.job_id == job.job_id && held.queue == job.queue_name && (job.priority.nil? || job.priority == held.priority)
      end

      def retry_later(running, job, timestamp)
        running.data = job.serialize
        running.run_at = timestamp
        running.error = $ERROR_INFO && "#{$ERROR_INFO.class}: #{$ERROR_INFO.message}" # ActiveJob is handling it
        job.provider_job_id = running.held.id
      end
    end
  end
end

Tq.handle(ActiveJob::QueueAdapters::TqAdapter::KIND) { |job| ActiveJob::QueueAdapters::TqAdapter.perform(job) }
