# frozen_string_literal: true

require_relative 'helper'
require_relative 'processes'
Database.make
ENV['TQ_LEDGER'] = "#{ENV.fetch('TQ_WORK')}/active-job"
require_relative '../app/rails'

# The adapter of ActiveJob, in a Rails application.
describe 'ActiveJob on tq' do
  include Processes

  before do
    Note.delete_all
    %w[default unlucky].each { |queue| sql.call('tq_purge', queue: queue, state: 'all') if sql.rows('SELECT FROM tq_queues WHERE queue = $1', [queue]).any? }
  end

  let(:note) { Note.create!(text: '') }

  def row(id)
    sql.rows('SELECT * FROM tq_get($1)', [id.to_s]).first
  end

  # Runs what is there with a worker in a thread, until the block says true.
  def work(&done)
    worker = Tq::Worker.new('default', 'unlucky', logger: Logger.new(IO::NULL))
    thread = Thread.new { worker.run(signals: false) }
    eventually(&done)
  ensure
    worker.stop
    thread.join
  end

  def start_worker
    start('ruby', "#{Gem.dir}/bin/tq-worker", '--require', "#{Processes::APP}/rails.rb", '--lease', '12', 'default')
  end

  it 'is chosen by its name' do
    expect(ActiveJob::Base.queue_adapter).to be_a(ActiveJob::QueueAdapters::TqAdapter)
    expect(ActiveJob::Base.queue_adapter.enqueue_after_transaction_commit?).to be(false)
  end

  it 'enqueues in the transaction of ActiveRecord' do
    ActiveRecord::Base.transaction do
      Append.perform_later(note, 'gone')
      raise ActiveRecord::Rollback
    end
    expect(sql.value('tq_enqueued', queue: 'default', kind: 'active_job')).to eq('0')
    ActiveRecord::Base.transaction { Append.perform_later(Note.create!(text: ''), 'kept') }
    expect(sql.value('tq_enqueued', queue: 'default', kind: 'active_job')).to eq('1')
  end

  it 'passes queue, priority and start time' do
    job = Append.set(queue: 'unlucky', priority: 7, wait: 60).perform_later(note, 'later')
    found = row(job.provider_job_id)
    expect(found.values_at('queue', 'priority', 'state', 'kind', 'tags')).to eq(['unlucky', '7', 'delayed', 'active_job', '{Append}'])
  end

  it 'enqueues many jobs in one transaction' do
    jobs = [Append.new(note, 'one'), Unlucky.new('none'), Append.new(note, 'two').tap { |job| job.priority = 7 }]
    jobs.last.scheduled_at = (Time.now + 3600).to_f
    expect(ActiveJob::Base.queue_adapter.enqueue_all(jobs)).to eq(3)
    found = jobs.map { |job| row(job.provider_job_id).values_at('queue', 'state', 'priority', 'kind', 'tags') }
    expect(found).to eq([%w[default ready 100 active_job {Append}], %w[unlucky ready 100 active_job {Unlucky}], %w[default delayed 7 active_job {Append}]])
    work { row(jobs.first.provider_job_id)['state'] == 'succeeded' }
    expect(note.reload.text).to eq(' one')
    sql.call('tq_alter_queue', name: 'unlucky', settings: { max_depth: 1 })
    before = sql.value('tq_enqueued', queue: 'default')
    more = [Append.new(note, 'three'), Unlucky.new('none'), Unlucky.new('none')]
    expect { ActiveJob::Base.queue_adapter.enqueue_all(more) }.to raise_error(Tq::QueueFull)
    expect(sql.value('tq_enqueued', queue: 'default')).to eq(before)
  ensure
    sql.call('tq_alter_queue', name: 'unlucky', settings: { max_depth: nil })
  end

  it 'runs a job with a record among its arguments' do
    job = Append.perform_later(note, 'hello')
    work { row(job.provider_job_id)['state'] == 'succeeded' }
    expect(note.reload.text).to eq(' hello')
  end

  it 'retries as the same job of tq, and leaves the limit to ActiveJob' do
    sql.call('tq_create_queue', name: 'unlucky', settings: {}) unless sql.rows("SELECT FROM tq_queues WHERE queue = 'unlucky'").any?
    sql.call('tq_alter_queue', name: 'unlucky', settings: { max_attempts: 2 })
    job = Unlucky.perform_later('retry')
    work { row(job.provider_job_id)['state'] == 'succeeded' }
    expect(Note.order(:id).pluck(:text)).to eq(['retry 1', 'retry 2', 'retry 3', 'gave up after 3'])
    expect(sql.value('tq_enqueued', queue: 'unlucky')).to eq('1')
    expect(sql.call('tq_history', id: job.provider_job_id).find { |step| step['event'] == 'failed' }['reason'])
      .to start_with('Tq::Retry: ArgumentError: no luck (ActiveJob, after 1 executions)')
  ensure
    sql.call('tq_alter_queue', name: 'unlucky', settings: { max_attempts: nil })
  end

  it 'discards' do
    job = Unlucky.perform_later('discard')
    work { row(job.provider_job_id)['state'] == 'succeeded' }
    expect(Note.pluck(:text)).to eq(['discard 1'])
  end

  it 'fails a job whose error ActiveJob does not handle' do
    job = Unlucky.perform_later('fail')
    work { row(job.provider_job_id)['state'] == 'delayed' }
    expect(row(job.provider_job_id)['error']).to start_with('RuntimeError: unexpected')
  end

  it 'runs the job of a killed tq-worker again, and stops on SIGTERM' do
    killed = start_worker
    job = Append.perform_later(note, 'twice', "#{ENV.fetch('TQ_LEDGER')}.go1")
    eventually { row(job.provider_job_id)['state'] == 'running' && File.exist?("#{ENV.fetch('TQ_LEDGER')}.twice") }
    kill(killed, 'KILL')
    File.write("#{ENV.fetch('TQ_LEDGER')}.go1", '')
    worker = start_worker
    eventually { row(job.provider_job_id)['state'] == 'succeeded' }
    expect(note.reload.text).to eq(' twice')
    expect(row(job.provider_job_id)['attempt']).to eq('2')
    last = Append.perform_later(note, 'last', "#{ENV.fetch('TQ_LEDGER')}.go2")
    eventually { File.exist?("#{ENV.fetch('TQ_LEDGER')}.last") }
    expect(kill(worker, 'TERM') { File.write("#{ENV.fetch('TQ_LEDGER')}.go2", '') }.exitstatus).to eq(0)
    expect(row(last.provider_job_id)['state']).to eq('succeeded')
  end
end
