# frozen_string_literal: true

module Delayed
  module Backend
    module Tq
      # A job of delayed_job that is stored as a job of tq.
      #
      #   locked    the job of tq is running; the lease lasts max_run_time
      #   attempts  attempts of tq that have ended; an attempt whose worker died counts too
      #   failed    the job of tq is dead
      class Job
        include Delayed::Backend::Base

        ATTRIBUTES = %i[id priority attempts handler last_error run_at locked_at locked_by failed_at queue created_at].freeze
        attr_accessor(*ATTRIBUTES)
        # The number of the lease by which this object holds the job, or nil.
        attr_reader :lease

        @adopted = {}.compare_by_identity

        class << self
          def store
            @store ||= Store.new
          end

          def create(attributes = {})
            new(attributes).tap(&:save)
          end
          alias create! create

          # Raises RecordNotFound if there is no such job, or it has been destroyed.
          def find(id)
            new.load_row(store.get(id) || raise(RecordNotFound, "no job of delayed_job with id #{id}"))
          end

          # The jobs that wait, run or have failed.
          def count
            store.count
          end

          # Deletes all jobs of delayed_job, locked ones included.
          def delete_all
            store.delete_all
          end

          def db_time_now
            Time.respond_to?(:zone) && Time.zone ? Time.zone.now : Time.now.utc
          end

          # Locks a job that the worker may run, or returns nil. A worker that starts under the name of an earlier one first
          # takes up what that one had locked.
          def reserve(worker, max_run_time = Worker.max_run_time)
            lease_for = max_run_time.to_f + Store::MARGIN
            while (row = adopt(worker, lease_for) || store.claim(queues, worker_name(worker.name), lease_for, priorities))
              job = claimed(row, worker)
              return job if job
            end
          end

          # Unlocks the jobs of a worker.
          def clear_locks!(name)
            store.running(worker_name(name)).each { |row| find_running(row)&.unlock_now }
          end

          # Called by the worker when it could not reserve.
          def recover_from(_error)
            store.recover
          end

          # ActiveRecord drops its connections in a child itself.
          def before_fork
            store.disconnect
            ::ActiveRecord::Base.connection_handler.clear_all_connections! if ::Tq.active_record?
          end

          # The queues of the workers of this process, or nil: all of them.
          def queues
            Array(Worker.queues).presence&.map(&:to_s)
          end

          # [lowest, highest] priority that the workers of this process run; nil: no limit.
          def priorities
            [Worker.min_priority, Worker.max_priority].map { |limit| limit.presence && Integer(limit) }
          end

          def worker_name(name)
            ::Tq.worker_name(name)
          end

          private

          # The job of a row that this worker has claimed; nil if it is malformed, and buried.
          def claimed(row, worker)
            new.load_claim(row, worker.name)
          rescue ::Tq::Codec::DecodeError, JSON::ParserError, KeyError, TypeError, NoMethodError => e
            why = ::Tq.clean("the handler cannot be decoded: #{e.class}: #{e.message.lines.first}")
            store.finish('tq_bury', row['id'], row['lease'], reason: why)
            nil
          end

          # The next row that an earlier worker of this name has left, with a new lease, or nil.
          def adopt(worker, lease_for)
            left = @adopted[worker] ||= store.running(worker_name(worker.name))
            while (row = left.shift)
              found = running_row(row)
              return found if found && store.hold(row['id'], row['lease'], lease_for)
            end
            nil
          end

          # The row of tq_get for one of tq_running, if it still has that lease.
          def running_row(row)
            found = store.get(row['id'])
            found if found && found['lease'] == row['lease']
          end

          # The job of a row of tq_running, if it still has that lease.
          def find_running(row)
            found = running_row(row)
            found && new.load_row(found, lease: row['lease'])
          end
        end

        def initialize(attributes = {})
          self.attempts = 0
          self.priority = Worker.default_priority
          attributes.each { |name, value| public_send("#{name}=", value) }
          @saved = {}
        end

        # --- attributes

        def new_record?
          id.nil?
        end

        def persisted?
          !new_record? && !@destroyed
        end

        def destroyed?
          !!@destroyed
        end

        def ==(other)
          other.instance_of?(self.class) && (id.nil? ? equal?(other) : id == other.id)
        end
        alias eql? ==

        def hash
          id.hash
        end

        def update(attributes)
          attributes.each { |name, value| public_send("#{name}=", value) }
          save
        end
        alias update_attributes update
        alias update! update

        # --- the payload object

        def payload_object=(object)
          @payload_object = object
          self.handler = Handler.dump(object)
        end

        def payload_object
          @payload_object ||= Handler.load(handler)
        rescue TypeError, LoadError, NameError, ArgumentError, KeyError, SyntaxError, Psych::Exception, JSON::ParserError => e
          raise DeserializationError, "Job failed to load: #{e.message}. Handler: #{handler.inspect}"
        end

        def name
          super
        rescue NoMethodError
          'unknown' # the handler is no YAML
        end

        # --- saving

        # Writes what has changed. A job that this object holds is failed, released or failed for good. Any other job is
        # rescheduled, or locked first. Returns true.
        def save
          set_default_run_at
          new_record? ? insert : write
          remember
          true
        end
        alias save! save

        # Raises RecordNotFound.
        def reload
          reset
          @name = nil
          load_row(self.class.store.get(id) || raise(RecordNotFound, "no job of delayed_job with id #{id}"), lease: @lease)
        end

        # A job that has run is completed, one that waits is cancelled. A job that failed is dead in tq, where it keeps its
        # errors until the retention of dead jobs is over; delayed_job no longer finds it.
        def destroy
          if @lease && error
            finish('tq_fail', error: error_text, fatal: true, detail: { destroyed: true })
          elsif @lease
            finish('tq_complete')
          elsif persisted? && (row = store.get(id))
            %w[dead buried].include?(row['state']) ? store.purge(row) : store.cancel(id)
          end
          @destroyed = true
          self
        end

        # Gives up the lock at once.
        def unlock_now
          unlock
          save
        end

        # --- reading

        # From a row of tq_get. lease: the one that this object holds.
        def load_row(row, lease: nil)
          self.id = Integer(row['id'])
          load_payload(row)
          running = row['state'] == 'running'
          self.attempts += Integer(row['attempt']) - (running ? 1 : 0)
          self.last_error = row['error'] || last_error
          self.run_at = at(row['run'] || row['enqueued'])
          self.created_at = at(row['enqueued'])
          self.locked_by, self.locked_at = running ? [row['worker'], at(row['claimed'])] : nil
          self.failed_at = at(row['finished']) unless %w[ready delayed blocked running].include?(row['state'])
          @lease = running && row['lease'] == lease.to_s ? row['lease'] : nil
          remember
        end

        # From a row of a claim.
        def load_claim(row, worker)
          self.id = Integer(row['id'])
          load_payload(row)
          self.attempts += Integer(row['attempt']) - 1
          self.created_at = at(row['enqueued'])
          self.run_at ||= created_at
          self.locked_by = worker
          self.locked_at = self.class.db_time_now
          @lease = row['lease']
          remember
        end

        private

        def store
          self.class.store
        end

        def at(epoch)
          time = Time.at(Rational(epoch)).utc
          Time.respond_to?(:zone) && Time.zone ? time.in_time_zone : time
        end

        def load_payload(row)
          payload = JSON.parse(row['payload'])
          payload = ::Tq.codec.decode(payload, ::Tq::Codec::PAYLOAD) if ::Tq.codec
          current_priority = Integer(row['priority'])
          self.handler = payload.fetch('handler')
          self.attempts = payload['attempts'] || 0
          self.last_error = payload['last_error']
          self.failed_at = nil
          self.priority = current_priority == Store::FIRST ? payload.fetch('priority', current_priority) : current_priority
          self.queue = row['queue'] == NO_QUEUE ? nil : row['queue']
          @taken = current_priority == Store::FIRST
        end

        def remember
          @saved = ATTRIBUTES.to_h { |name| [name, public_send(name)] }
          self
        end

        def changed?(*names)
          names.any? { |name| public_send(name) != @saved[name] }
        end

        def error_text
          last_error.to_s.empty? ? 'failed' : ::Tq.clean(last_error.to_s)
        end

        def tq_queue
          queue.nil? || queue.to_s.empty? ? NO_QUEUE : queue.to_s
        end

        def seconds_until(time)
          [time.to_f - Time.now.to_f, 0].max
        end

        def insert
          locked = locked_at && locked_by ? seconds_until(locked_at + Worker.max_run_time + Store::MARGIN) : 0
          if failed_at || locked.positive?
            insert_locked(failed_at ? 'delayed_job' : locked_by, failed_at ? MARGIN_OF_CHANGE : locked)
          else
            self.id = store.enqueue(**arguments(attempts))
          end
          self.created_at = self.class.db_time_now
        end

        # Inserts a job that is locked or has failed, as when jobs of another backend are brought here.
        def insert_locked(worker, lease_for)
          store.transaction do
            self.id, @lease = store.enqueue_locked(self.class.worker_name(worker), lease_for, **arguments(attempts - (failed_at ? 1 : 0)))
            finish('tq_fail', error: error_text, fatal: true) if failed_at
          end
        end

        # The arguments of tq_enqueue for this job. `made` is the number of attempts made elsewhere.
        def arguments(made)
          payload = { handler: handler, priority: priority, attempts: made.zero? ? nil : made, last_error: last_error }.compact
          payload = ::Tq.codec.encode(payload, ::Tq::Codec::PAYLOAD) if ::Tq.codec
          { queue: tq_queue, payload: payload, priority: priority, run_at: locked_by || failed_at ? nil : future_run_at,
            max_attempts: attempts_left, options: tags }
        end

        # A job without a start time in the future starts in the order of ids.
        def future_run_at
          run_at if run_at > Time.now
        end

        # How often tq may start the job: a worker that dies uses up an attempt, too.
        def attempts_left
          limit = begin
            max_attempts
          rescue DeserializationError
            nil
          end
          ((limit || Worker.max_attempts) - attempts).clamp(1, 65_535)
        end

        # The name of the job, to find it by.
        def tags
          { tags: [name.to_s.scrub.gsub(/[[:cntrl:]]/, ' ').byteslice(0, 127).scrub('')].reject(&:empty?) }
        rescue StandardError
          { tags: [] } # a handler that cannot be read has no name
        end

        def write
          raise NotSupported, 'the handler and the queue of a job cannot change: enqueue another job' if changed?(:handler, :queue)

          over = changed?(:attempts, :last_error) || (failed_at && changed?(:failed_at))
          lock(locked_by || 'delayed_job', MARGIN_OF_CHANGE) if @lease.nil? && (over || (locked_by && changed?(:locked_by)))
          return hold(over) if @lease

          changes = { run_at: changed?(:run_at) ? run_at : nil, priority: changed?(:priority) ? priority : nil }.compact
          store.call('tq_reschedule', id: id, **changes) if changes.any?
        end

        # Seconds for which a job that no worker runs is locked while it is changed.
        MARGIN_OF_CHANGE = 30
        private_constant :MARGIN_OF_CHANGE

        # Ends the lease that this object holds, or keeps it.
        def hold(over)
          if failed_at
            finish('tq_fail', error: error_text, fatal: true)
          elsif over
            answer = finish('tq_fail', error: error_text, retry_in: seconds_until(run_at))
            self.failed_at = self.class.db_time_now if answer == 'dead'
          elsif locked_by.nil?
            finish('tq_release', delay: seconds_until(run_at))
          end
        end

        # Ends the lease. A job that was at the head of its queue gets its priority back.
        def finish(function, **arguments)
          lease = @lease
          @lease = nil
          answer = store.finish(function, id, lease, **arguments)
          if @taken && %w[ready delayed].include?(answer)
            put_back(priority: priority)
            @taken = false
          end
          answer
        end

        def lock(worker, lease_for)
          row = store.take(id, tq_queue, self.class.worker_name(worker), lease_for)
          @taken = true
          @lease = row['lease']
        rescue NotSupported
          put_back(priority: @saved[:priority], run_at: @saved[:run_at])
          raise
        end

        # Takes the job from the head of its queue, unless another worker has it by now.
        def put_back(**changes)
          store.call('tq_reschedule', id: id, **changes)
        rescue ::Tq::WrongState, ::Tq::JobNotFound
          nil
        end
      end
    end
  end
end
