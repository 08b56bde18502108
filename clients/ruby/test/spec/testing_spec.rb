# frozen_string_literal: true

require_relative 'helper'
require 'tq/testing'
Database.make

# What an application's tests use.
describe Tq::Testing do
  let(:worker) { Tq::Worker.new('work', handlers: {}, logger: Logger.new(IO::NULL)) }

  before { sql.rows('BEGIN') }
  after { sql.rows('ROLLBACK') }

  def inline(kind, payload = {}, **attributes)
    described_class.run_inline(kind, payload, worker: worker, **attributes)
  end

  def drain
    described_class.drain('work', connection: sql.connection, worker: worker)
  end

  def enqueue(payload, kind)
    Tq.enqueue('work', payload, kind: kind, connection: sql.connection)
  end

  it 'runs a handler without a database' do
    worker.handle('add') { |job| job.result = job.payload['n'] + (job.checkpoint || 0) + job.parents['7']['result'] }
    ran = inline('add', { n: 1 }, checkpoint: 20, parents: { '7' => { state: 'succeeded', result: 300 } }, tags: ['sum'], attempt: 3)
    expect([ran.state, ran.result, ran.error]).to eq(['succeeded', 321, nil])
    expect([ran.job.attempt, ran.job.tags]).to eq([3, ['sum']])
    times = %i[enqueued_at lease_expires_at deadline].zip([1, 2, 3].map { |day| Time.utc(2040, 1, day) }).to_h
    worker.handle('times') { |job| job.result = times.keys.map { |name| job.public_send(name) } }
    expect([inline('times', **times).result, inline('times').result[1..]]).to eq([times.values, [nil, nil]])
    worker.handle('beat') { |job| job.result = job.heartbeat(progress: 1) }
    expect(inline('beat').result).to eq('run')
  end

  it 'says how an attempt ended' do
    ends = { 'fail' => RuntimeError.new('no'), 'fatal' => Tq::Fatal.new('never'), 'bury' => Tq::Bury.new('odd'), 'later' => Tq::Release.new(60),
             'now' => Tq::Release.new, 'retry' => Tq::Retry.new(60) }
    ends.each { |kind, error| worker.handle(kind) { raise error } }
    states = { 'fail' => 'delayed', 'fatal' => 'dead', 'bury' => 'buried', 'later' => 'delayed', 'now' => 'ready', 'retry' => 'delayed' }
    expect(ends.keys.to_h { |kind| [kind, inline(kind).state] }).to eq(states)
    expect([inline('fail').error, inline('bury').error]).to match([/\ARuntimeError: no\n/, 'odd'])
    expect(inline('unknown').state).to eq('delayed')
    expect(ends.keys.reject { |kind| kind == 'now' }.to_h do |kind|
      enqueue({}, kind)
      [kind, drain.find { |ran| ran.job.kind == kind }.state]
    end).to eq(states.except('now'))
  end

  it 'runs the jobs of a transaction, and those that they enqueue' do
    worker.handle('first') { |job| enqueue({ of: job.id }, 'second') }
    worker.handle('second') { |job| job.complete({ of: job.payload['of'] }, connection: sql.connection) }
    id = enqueue({}, 'first')
    first, second = drain
    expect([first, second].map { |ran| [ran.job.kind, ran.state] }).to eq([%w[first succeeded], %w[second succeeded]])
    expect(second.job.payload).to eq('of' => id)
    expect(described_class.enqueued('work', kind: 'second', connection: sql.connection)).to eq(1)
  end

  it 'counts what was enqueued' do
    enqueue({ to: 'ada', n: 1 }, 'mail')
    count = ->(**conditions) { described_class.enqueued('work', **conditions, connection: sql.connection) }
    expect([count.call, count.call(kind: 'mail', payload: { to: 'ada' })]).to eq([1, 1])
    expect([count.call(kind: 'sms'), count.call(payload: { to: 'bob' })]).to eq([0, 0])
  end

  it 'sets the clock of the database' do
    sql.rows('ROLLBACK')
    sql.rows("ALTER DATABASE #{Database::NAME} SET tq.testing = on")
    @sql = nil
    at = Time.utc(2040, 1, 2, 3, 4, 5)
    expect(described_class.set_now(at, connection: sql.connection) - at).to be_between(0, 3600)
    expect(described_class.set_now(connection: sql.connection)).to be < at
    sql.rows('BEGIN')
  end
end
