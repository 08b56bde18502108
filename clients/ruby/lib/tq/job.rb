# frozen_string_literal: true

module Tq
  # A job that a worker holds. Its handler may run in any thread.
  class Job
    attr_reader :id, :lease, :queue, :kind, :payload, :headers, :attempt, :max_attempts, :priority, :group_key, :tags,
                :unique_key, :enqueued_at, :lease_expires_at, :deadline, :checkpoint, :parents
    # What the history keeps when the handler returns: any JSON, or nil.
    attr_accessor :result

    TAGS = PG::TextDecoder::Array.new
    private_constant :TAGS

    # row: of a claim, see CLAIM of Feeder. keeper: renews and ends the lease.
    def initialize(row, keeper)
      @keeper = keeper
      @id = Integer(row['id'])
      @lease = Integer(row['lease'])
      @queue, @kind, @group_key, @unique_key = row.values_at('queue', 'kind', 'group_key', 'unique_key')
      @attempt, @max_attempts, @priority = row.values_at('attempt', 'max_attempts', 'priority').map { |text| Integer(text) }
      @tags = row['tags'] ? TAGS.decode(row['tags']) : []
      times = row.values_at('enqueued_at', 'lease_expires_at', 'deadline')
      @enqueued_at, @lease_expires_at, @deadline = times.map { |seconds| seconds && Time.at(Rational(seconds)) }
      @raw = row.values_at('payload', 'checkpoint', 'headers', 'parents')
      @lock = Mutex.new
      @changed = ConditionVariable.new
    end

    # Reads payload, checkpoint, headers and parents. Raises Codec::DecodeError.
    def decode(codec)
      @codec = codec
      @payload, @checkpoint, @headers, @parents = @raw.map { |text| text && JSON.parse(text) }
      return unless codec

      @payload = codec.decode(@payload, Codec::PAYLOAD)
      @checkpoint &&= codec.decode(@checkpoint, Codec.checkpoint(id))
      @parents&.each do |parent, outcome|
        next if !outcome.is_a?(Hash) || outcome['result'].nil? # the callback of a large batch gets counts

        outcome['result'] = codec.decode(outcome['result'], Codec.result(parent))
      end
    rescue JSON::ParserError => e
      raise Codec::DecodeError, e.is_a?(JSON::NestingError) ? 'it is nested too deep' : 'it is no JSON'
    end

    # Why the handler should stop: :cancel (tq_cancel), :lost (the lease), :shutdown (the worker), or nil.
    attr_reader :cancelled

    def cancelled?
      !@cancelled.nil?
    end

    # Sleeps. Returns true at once when the job is cancelled.
    def wait(seconds)
      finish = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
      @lock.synchronize do
        until @cancelled || (left = finish - Process.clock_gettime(Process::CLOCK_MONOTONIC)) <= 0
          @changed.wait(@lock, left)
        end
      end
      cancelled?
    end

    def cancel(reason)
      @lock.synchronize do
        @cancelled ||= reason
        @changed.broadcast
      end
    end

    # Reports progress for people, or keeps a checkpoint for the next attempt. Returns the action of tq_heartbeat.
    def heartbeat(progress: nil, checkpoint: nil)
      checkpoint = @codec.encode(checkpoint, Codec.checkpoint(id)) if @codec && !checkpoint.nil?
      @keeper.heartbeat(self, progress: progress, checkpoint: checkpoint)
    end

    # Completes the job in the transaction of the caller, together with its work. The worker then does not.
    def complete(result = nil, connection: Tq.connection)
      answer = Session.new(connection).value('tq_complete', id: id, lease: lease, result: encoded(result))
      @completed = true
      answer
    end

    def completed?
      !!@completed
    end

    # Ends the job by complete, fail, bury or release, unless it has been ended.
    def finish(verb, **arguments)
      @keeper.finish(self, verb, **arguments)
    end

    # The text of the result, or nil. Raises if it cannot be JSON.
    def result_text
      @result.nil? ? nil : Session::Text.new(JSON.generate(encoded(@result)))
    end

    # The first that ends the job wins: the handler, or the end of the worker.
    def end_once
      @lock.synchronize do
        return false if @ended

        @ended = true
      end
    end

    def ended?
      !!@ended
    end

    # The time of the monotonic clock at which the lease ends without a heartbeat.
    attr_accessor :ends_at

    def to_s
      "job #{id} (kind #{kind || '-'}, attempt #{attempt})"
    end

    private

    def encoded(value)
      value.nil? || @codec.nil? ? value : @codec.encode(value, Codec.result(id))
    end
  end
end
