# frozen_string_literal: true

require 'securerandom'

module Tq
  # W3C trace context in the headers of jobs, and spans where OpenTelemetry is loaded. Without it, a job that a handler
  # enqueues gets the trace of the handler's own job.
  module Tracing
    FIELDS = %w[traceparent tracestate].freeze
    TRACEPARENT = /\A(\h{2}-\h{32})-\h{16}-(\h{2})\z/
    # A variable of the thread: what the job that runs in it carries.
    CURRENT = :tq_trace
    private_constant :FIELDS, :TRACEPARENT, :CURRENT

    class << self
      # Calls the block with the arguments of an enqueue, and with the trace in their headers unless the caller gave one.
      def enqueue(queue, arguments)
        return yield(add(arguments, child)) unless spans?

        span('send', queue, :producer) do
          carried = {}
          ::OpenTelemetry.propagation.inject(carried)
          yield(add(arguments, carried.empty? ? child : carried))
        end
      end

      # Calls the block, which runs the handler of a job.
      def run(job, &handler)
        headers = job.headers.is_a?(Hash) ? job.headers : {}
        carried = headers.slice(*FIELDS).select { |_, text| text.is_a?(String) }
        carrying(carried) { spans? ? continue(job, carried, &handler) : yield }
      end

      private

      def spans?
        defined?(::OpenTelemetry) && ::OpenTelemetry.respond_to?(:tracer_provider)
      end

      def span(operation, queue, kind, more = {}, &block)
        attributes = { 'messaging.system' => 'tq', 'messaging.operation.type' => operation,
                       'messaging.destination.name' => queue.to_s, **more }
        tracer = ::OpenTelemetry.tracer_provider.tracer('tq', VERSION)
        tracer.in_span("#{operation} #{queue}", attributes: attributes, kind: kind, &block)
      end

      def continue(job, carried, &handler)
        more = { 'messaging.message.id' => job.id.to_s, 'tq.kind' => job.kind.to_s, 'tq.attempt' => job.attempt }
        ::OpenTelemetry::Context.with_current(::OpenTelemetry.propagation.extract(carried)) do
          span('process', job.queue, :consumer, more) { handler.call }
        end
      end

      def carrying(carried)
        before = Thread.current.thread_variable_get(CURRENT)
        Thread.current.thread_variable_set(CURRENT, carried)
        yield
      ensure
        Thread.current.thread_variable_set(CURRENT, before)
      end

      # The trace of the job that runs in this thread, with a new parent; empty if there is none.
      def child
        carried = Thread.current.thread_variable_get(CURRENT)
        trace, flags = carried && TRACEPARENT.match(carried['traceparent'])&.captures
        return {} unless trace

        carried.merge('traceparent' => "#{trace}-#{SecureRandom.hex(8)}-#{flags}")
      end

      def add(arguments, carried)
        headers = arguments[:headers] || {}
        return arguments if carried.empty? || !headers.is_a?(Hash) || headers.transform_keys(&:to_s).key?('traceparent')

        arguments.merge(headers: headers.merge(carried))
      end
    end
  end
end
