# frozen_string_literal: true

module Delayed
  module Backend
    module Tq
      # A worker that found no job waits until one arrives, for sleep_delay at most. Without this it would sleep.
      class Waiting < Delayed::Plugin
        # Seconds after which a wait looks whether the worker stops.
        SLICE = 0.5
        # Seconds to wait when jobs are ready that no claim returned, because of a rate limit for example.
        REFUSED = 0.2

        callbacks do |lifecycle|
          lifecycle.before(:execute) do |worker|
            worker.extend(Instead) if Delayed::Job == Tq::Job
          end
        end

        # The worker calls `sleep` between two rounds.
        module Instead
          private

          def sleep(seconds)
            Waiting.wait(self, seconds) || super
          end
        end

        # Returns false if the caller has to sleep: limits of priority, no queue, or no connection.
        def self.wait(worker, seconds)
          return false if Job.priorities.any?

          queues = Job.queues || Job.store.open_queues
          return false if queues.empty?

          Kernel.sleep([REFUSED, seconds].min) if ready?(queues)
          wait_until(worker, queues, Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds)
        rescue ::Tq::Error
          false
        end

        def self.wait_until(worker, queues, finish)
          until worker.stop? || (left = finish - Process.clock_gettime(Process::CLOCK_MONOTONIC)) <= 0
            return true if ready?(queues)

            Job.store.session.rows('CALL tq_wait($1, $2::interval, $3)',
                                   [::Tq::Session.text(:queues, queues), ::Tq::Session.interval([left, SLICE].min),
                                    ::Tq::Session.text(:kinds, [KIND] * queues.size)])
          end
          true
        end

        def self.ready?(queues)
          Job.store.session.call('tq_ready', queues: queues, kinds: [KIND] * queues.size).any?
        end
      end
    end
  end
end
