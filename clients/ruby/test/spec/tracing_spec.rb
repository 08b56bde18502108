# frozen_string_literal: true

require_relative 'helper'
require 'tq/testing'
Database.make

# Stands in for the gem opentelemetry-api, which Debian does not have: the calls that Tq::Tracing makes.
module Spans
  TRACE = '0af7651916cd43dd8448eb211c80319c'
  Span = Struct.new(:name, :kind, :attributes, :parent, :id, :error)

  class << self
    attr_accessor :recorded

    def tracer_provider = self
    def propagation = self
    def tracer(_name, _version) = self

    def in_span(name, attributes:, kind:)
      span = Span.new(name, kind, attributes, Context.current, format('%016x', recorded.size + 1))
      recorded << span
      Context.with_current(span.id) { yield span, nil }
    rescue StandardError => e
      span.error = e.message
      raise
    end

    def inject(carrier)
      carrier['traceparent'] = "00-#{TRACE}-#{Context.current}-01"
    end

    def extract(carrier)
      carrier['traceparent']&.split('-')&.fetch(2)
    end
  end

  # The id of the current span.
  class Context
    class << self
      attr_reader :current

      def with_current(context)
        before = @current
        @current = context
        yield context
      ensure
        @current = before
      end
    end
  end
end

describe Tq::Tracing do
  let(:parent) { '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' }
  let(:worker) { Tq::Worker.new('work', handlers: {}, logger: Logger.new(IO::NULL)) }

  before { sql.rows('BEGIN') }
  after { sql.rows('ROLLBACK') }

  def enqueue(kind, **arguments)
    Tq.enqueue('work', {}, kind: kind, connection: sql.connection, **arguments)
  end

  def drain
    Tq::Testing.drain('work', connection: sql.connection, worker: worker)
  end

  it 'passes the trace of a job on to the jobs that its handler enqueues' do
    worker.handle('first') do
      enqueue('second')
      enqueue('second', headers: { 'mine' => 2 })
      enqueue('second', headers: { traceparent: 'own' })
      Tq.enqueue_many('work', [1], kind: 'second', connection: sql.connection)
      Tq.enqueue_info('work', 1, kind: 'second', connection: sql.connection)
    end
    worker.handle('second') { nil }
    enqueue('first', headers: { traceparent: parent, tracestate: 'a=1', mine: 1 })
    first, *others = drain.map { |ran| ran.job.headers }
    expect(first).to eq('traceparent' => parent, 'tracestate' => 'a=1', 'mine' => 1)
    expect(others.map { |headers| headers.except('traceparent') })
      .to eq([{ 'tracestate' => 'a=1' }, { 'tracestate' => 'a=1', 'mine' => 2 }, {}, { 'tracestate' => 'a=1' }, { 'tracestate' => 'a=1' }])
    own = others.delete_at(2)
    expect(own['traceparent']).to eq('own')
    parents = others.map { |headers| headers['traceparent'] }
    expect(parents).to all(match(/\A00-0af7651916cd43dd8448eb211c80319c-\h{16}-01\z/))
    expect([*parents, parent].uniq.size).to eq(5)
  end

  it 'adds no headers without a trace' do
    worker.handle('first') { enqueue('second') }
    worker.handle('second') { nil }
    enqueue('first')
    enqueue('first', headers: { traceparent: 'no trace' })
    enqueue('first', headers: { traceparent: 1 })
    expect(drain.select { |ran| ran.job.kind == 'second' }.map { |ran| ran.job.headers }).to eq([nil, nil, nil])
    expect(Thread.current.thread_variable_get(:tq_trace)).to be_nil
  end

  it 'makes spans where OpenTelemetry is loaded' do
    stub_const('OpenTelemetry', Spans)
    Spans.recorded = []
    worker.handle('first') { enqueue('second') }
    worker.handle('second') { raise Tq::Fatal, 'seen in the span' }
    id = enqueue('first')
    expect(drain.map(&:state)).to eq(%w[succeeded dead])
    spans = Spans.recorded
    expect(spans.map { |span| [span.name, span.kind] })
      .to eq([['send work', :producer], ['process work', :consumer], ['send work', :producer], ['process work', :consumer]])
    expect(spans.map(&:parent)).to eq([nil, *spans.first(3).map(&:id)])
    expect(spans[1].attributes).to include('messaging.message.id' => id.to_s, 'tq.kind' => 'first', 'tq.attempt' => 1)
    expect(spans.map(&:error)).to eq([nil, nil, nil, 'seen in the span'])
  end
end
