# frozen_string_literal: true

require_relative 'helper'
Database.make
require_relative 'application'
require 'active_job'
require 'global_id/identification'
GlobalID.app = 'specs'
ActiveRecord::Base.include(GlobalID::Identification)

class Story
  def shout
    update!(text: text.upcase)
  end
  handle_asynchronously :shout, queue: 'stories', priority: 7
end

Broken = Struct.new(:times) do
  def perform
    raise 'the bank does not answer'
  end

  def max_attempts
    times
  end

  def reschedule_at(now, _attempts)
    now + 3600
  end
end

# Fails with bytes that are no text.
class Binary < Broken
  def perform
    raise "\xff\0".b
  end
end

# Loses the connection of the worker.
class Cut < Broken
  def perform
    ActiveRecord::Base.connection.execute('SELECT pg_terminate_backend(pg_backend_pid())')
  end
end

# A mailer: its method makes a mail, which is then delivered.
class Postman
  Letter = Struct.new(:story) do
    def deliver
      story.update!(text: 'delivered')
    end
  end

  def self.letter(story)
    Letter.new(story)
  end
end

# What the shared examples do not ask: how jobs of delayed_job look in tq, and what happens when a lock is lost.
describe 'jobs of delayed_job in tq' do
  before { Delayed::Job.delete_all }

  let(:worker) { Delayed::Worker.new }

  def row(id)
    sql.rows('SELECT * FROM tq_get($1)', [id.to_s]).first
  end

  it 'are enqueued in the transaction of ActiveRecord' do
    ActiveRecord::Base.transaction do
      Story.create!(text: 'gone').delay.tell
      raise ActiveRecord::Rollback
    end
    expect([Delayed::Job.count, Story.where(text: 'gone').count]).to eq([0, 0])

    ActiveRecord::Base.transaction do
      Story.create!(text: 'kept').delay.tell
      expect(Delayed::Job.count).to eq(0)
    end
    expect(Delayed::Job.count).to eq(1)
  end

  it 'run a method that is handled asynchronously' do
    story = Story.create!(text: 'hello')
    story.shout
    found = sql.rows("SELECT * FROM tq_list('stories')").first
    expect([found['kind'], found['priority'], found['tags']]).to eq(['delayed_job', '7', '{Story#shout_without_delay}'])
    expect(worker.work_off).to eq([1, 0])
    expect(story.reload.text).to eq('HELLO')
    expect(row(found['id'])['state']).to eq('succeeded')
  end

  it 'are dead, with their error, when they have failed and are destroyed' do
    job = Delayed::Job.enqueue(Broken.new(2), run_at: Time.now - 1)
    worker.work_off
    Delayed::Job.find(job.id).update(run_at: Time.now - 1)
    worker.work_off
    expect(row(job.id)['state']).to eq('dead')
    expect(row(job.id)['error']).to start_with('the bank does not answer')
    expect(Delayed::Job.count).to eq(0)
    expect { Delayed::Job.find(job.id) }.to raise_error(Delayed::Backend::Tq::RecordNotFound)
  end

  it 'are found as failed when failed jobs are kept' do
    Delayed::Worker.destroy_failed_jobs = false
    job = Delayed::Job.enqueue(Broken.new(1))
    worker.work_off
    found = Delayed::Job.find(job.id)
    expect([found.failed?, found.attempts, Delayed::Job.count]).to eq([true, 1, 1])
    found.destroy
    expect(Delayed::Job.count).to eq(0)
  ensure
    Delayed::Worker.destroy_failed_jobs = true
  end

  it 'are destroyed alone, also if they leave their state meanwhile' do
    waiting = Array.new(2) { Delayed::Job.enqueue(Broken.new(3)) }
    Delayed::Job.find(waiting.first.id).destroy
    expect(waiting.map { |job| row(job.id)['state'] }).to eq(%w[cancelled ready])

    failed = Array.new(2) { Delayed::Job.create(payload_object: Broken.new(9), attempts: 4, failed_at: Time.now) }
    before = Delayed::Job.store.get(failed.first.id)
    sql.call('tq_retry', id: failed.first.id)
    Delayed::Job.store.purge(before)
    expect(failed.map { |job| row(job.id)['state'] }).to eq(%w[ready dead])
  end

  it 'keep start time and priority if they cannot be locked' do
    job = Delayed::Job.enqueue(Broken.new(3), queue: 'held', priority: 4, run_at: Time.now + 3600)
    sql.call('tq_pause', queue: 'held')
    expect { job.update(attempts: 1) }.to raise_error(Delayed::Backend::Tq::NotSupported)
    expect(row(job.id).values_at('state', 'priority')).to eq(%w[delayed 4])
  ensure
    sql.call('tq_resume', queue: 'held')
  end

  it 'drop their result when the lock was lost' do
    job = Delayed::Job.enqueue(Broken.new(3))
    held = Delayed::Job.reserve(worker)
    sql.call('tq_release', id: held.id, lease: held.lease)
    expect { worker.run(held) }.not_to raise_error
    expect([row(job.id)['state'], row(job.id)['attempt']]).to eq(%w[ready 0])
  end

  it 'fail when they lose the connection, and the worker goes on' do
    job = Delayed::Job.enqueue(Cut.new(3))
    expect(worker.work_off).to eq([0, 1])
    expect(row(job.id)['state']).to eq('delayed')
  end

  it 'fail with a message that is no text' do
    job = Delayed::Job.enqueue(Binary.new(3))
    expect(worker.work_off).to eq([0, 1])
    expect([row(job.id)['state'], row(job.id)['error'].lines.first]).to eq(['delayed', "\uFFFD\n"])
  end

  it 'can be brought here with what they went through' do
    failed = Delayed::Job.create(payload_object: Broken.new(9), attempts: 4, last_error: 'no answer', failed_at: Time.now)
    waiting = Delayed::Job.create(payload_object: Broken.new(9), attempts: 4, last_error: 'no answer', run_at: Time.now + 60)
    expect(worker.work_off).to eq([0, 0])
    expect([failed.reload.attempts, failed.last_error, failed.failed?]).to eq([4, 'no answer', true])
    expect([waiting.reload.attempts, waiting.last_error, waiting.failed?]).to eq([4, 'no answer', false])
    expect(row(waiting.id)['max_attempts']).to eq('5')
  end

  it 'are encoded, and buried when another program wrote them' do
    Tq.codec = Tq::Codec.new({ 'k1' => 'k' * 32 }, kid: 'k1')
    job = Delayed::Job.enqueue(Broken.new(1))
    expect(row(job.id)['payload']).not_to include('Broken')
    forged = sql.value('tq_enqueue', queue: 'delayed_job', kind: 'delayed_job', payload: { handler: Broken.new(1).to_yaml })
    expect(worker.work_off).to eq([0, 1])
    expect([row(job.id)['state'], row(forged)['state']]).to eq(%w[dead buried])
  ensure
    Tq.codec = nil
  end

  it 'are buried when they are malformed, those of an earlier worker too' do
    worker.name = 'malformed'
    payloads = ['{}', '[]', '"text"', '[' * 101 + ']' * 101, '{"handler": 1, "attempts": "x"}']
    ids = payloads.map { |payload| sql.rows('SELECT tq_enqueue($1, $2::jsonb, kind => $1) AS id', ['delayed_job', payload]).first['id'] }
    left = sql.rows("SELECT id FROM tq_claim('delayed_job', 1, 'malformed', '1 hour', kinds => '{delayed_job}')").first['id']
    good = Delayed::Job.enqueue(Broken.new(3))
    expect([Delayed::Job.reserve(worker), Delayed::Job.reserve(worker)]).to eq([good, nil])
    expect(ids).to include(left)
    expect(ids.map { |id| row(id)['state'] }.uniq).to eq(['buried'])
  end

  describe 'with permitted classes' do
    before { Delayed::Backend::Tq.permitted_classes = %w[Story Broken Postman] }

    after do
      Delayed::Backend::Tq.permitted_classes = nil
      Delayed::Backend::Tq.format = :yaml
    end

    # The error of a job with this handler, which another program wrote.
    def error_of(handler)
      id = sql.value('tq_enqueue', queue: 'delayed_job', kind: 'delayed_job', payload: { handler: handler })
      worker.work_off
      expect(row(id)['state']).to eq('dead')
      row(id)['error']
    end

    def performable(object, method, *args)
      { 'object' => object, 'method_name' => method, 'args' => args }.to_yaml.sub('---', '--- !ruby/object:Delayed::PerformableMethod')
    end

    %i[yaml json].each do |format|
      it "run, written as #{format}" do
        Delayed::Backend::Tq.format = format
        story = Story.create!(text: 'hello')
        story.shout
        mailed = Story.create!(text: 'not yet')
        Delayed::Job.enqueue(Delayed::PerformableMailer.new(Postman, :letter, [mailed]))
        broken = Delayed::Job.enqueue(Broken.new(1))
        expect(worker.work_off).to eq([2, 1])
        expect(mailed.reload.text).to eq('delivered')
        expect([story.reload.text, row(broken.id)['error'].lines.first]).to eq(['HELLO', "the bank does not answer\n"])
      end
    end

    it 'load no other class from YAML' do
      expect(error_of("--- !ruby/object:OpenStruct\na: 1\n")).to include('class OpenStruct is not in permitted_classes')
      expect(error_of("--- !ruby/struct:Process::Tms\nutime: 1\n")).to include('class Process::Tms is not in permitted_classes')
      expect(error_of(performable(Process, :kill))).to include('class Process is not in permitted_classes')
    end

    it 'call no method that a permitted class does not define' do
      expect(error_of(performable(Story, :class_eval, 'exit!'))).to include('no class of permitted_classes defines Story.class_eval')
    end

    it 'load no YAML if they are JSON, and no other class' do
      Delayed::Backend::Tq.format = :json
      expect(error_of(Broken.new(1).to_yaml)).to include('Job failed to load')
      expect(error_of('{"class": "OpenStruct", "fields": [{}]}')).to include('class OpenStruct is not in permitted_classes')
      evaluated = [{ '_aj_serialized' => 'ActiveJob::Serializers::ModuleSerializer', 'value' => 'Story' }, 'class_eval', 'exit!']
      expect(error_of(JSON.generate(class: 'Delayed::PerformableMethod', method: evaluated))).to include('no class of permitted_classes defines Story.class_eval')
    end

    it 'are JSON only with permitted classes' do
      Delayed::Backend::Tq.permitted_classes = nil
      Delayed::Backend::Tq.format = :json
      expect { Delayed::Job.enqueue(Broken.new(1)) }.to raise_error(ArgumentError, /needs permitted_classes/)
    end
  end

  it 'cannot change their handler or queue' do
    job = Delayed::Job.enqueue(Broken.new(1), run_at: Time.now + 60)
    expect { job.update(queue: 'other') }.to raise_error(Delayed::Backend::Tq::NotSupported)
    expect(job.reload.queue).to be_nil
  end

  it 'leave jobs of other programs in their queue alone' do
    id = sql.value('tq_enqueue', queue: 'shared', payload: {}, kind: 'mail')
    Delayed::Job.enqueue(Broken.new(1), queue: 'shared')
    expect(worker.work_off).to eq([0, 1])
    expect(row(id)['state']).to eq('ready')
    Delayed::Job.delete_all
    expect(row(id)['state']).to eq('ready')
  end

  it 'are taken up by a worker that comes back under its name' do
    worker.name = 'steady'
    job = Delayed::Job.enqueue(Broken.new(3))
    expect(Delayed::Job.reserve(worker)).to eq(job)
    again = Delayed::Worker.new
    again.name = 'steady'
    ends = row(job.id)['lease_expires_at']
    held = Delayed::Job.reserve(again)
    expect([held, held.attempts]).to eq([job, 0])
    expect(row(job.id)['lease_expires_at']).to be > ends
    GC.start
    expect(Delayed::Job.reserve(again)).to be_nil
  end
end
