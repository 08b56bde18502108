# frozen_string_literal: true

require_relative 'helper'
require_relative 'processes'
Database.make
require_relative '../app/rage'

# The backend of Rage::Deferred, against a double of its published interface.
describe Tq::Rage::Backend do
  include Processes

  let(:log) { StringIO.new }
  let(:file) { "#{ENV.fetch('TQ_WORK')}/lines-#{SecureRandom.hex(4)}" }
  let(:left) { Thread::Queue.new }
  let(:queue) { "q#{SecureRandom.hex(4)}" }

  after { (@made || []).each(&:close) }

  def make(name, **options)
    logger = Logger.new(log)
    backend = described_class.new(**{ queue: queue, lease: 30, name: name, logger: logger, recovered: ->(*task) { left << task } }, **options)
    (@made ||= []) << backend
    backend
  end

  def row(id)
    sql.rows('SELECT * FROM tq_get($1)', [id.to_s]).first
  end

  def lines(words)
    File.exist?(file) ? File.readlines(file).grep(/\A#{words} /) : []
  end

  it 'is chosen by its name' do
    backend = Rage.config.deferred.backend
    expect(backend).to be_a(described_class)
    backend.close
    expect(Rage.config.deferred.configured).to be(true)
  end

  it 'keeps a task from its enqueue to its removal, for the process that runs it' do
    one = make('one')
    other = make('other')
    id = one.add(['task', [1]])
    expect(row(id).values_at('state', 'worker')).to eq(%w[running one])
    expect(other.pending_tasks).to eq([])
    one.remove(id)
    expect(row(id)['state']).to eq('succeeded')
    expect { one.remove(id) }.not_to raise_error
  end

  it 'keeps a task that Rage gave up as a dead letter' do
    one = make('one')
    context = [Hopeless, [], nil, Rage::Deferred::Queue::ATTEMPTS - 1]
    id = Rage::Deferred::Queue.new(one).enqueue(context)
    eventually { row(id)['state'] == 'dead' }
    expect(row(id)['error']).to eq('Rage gave the task up after 5 attempts')
  end

  it 'keeps a task that another process took up, and gave up, as a dead letter' do
    one = make('one')
    one.add([Hopeless, [], nil, nil])
    one.close
    two = make('two')
    (id, context), = two.pending_tasks
    context[3] = 1
    sql.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'two'")
    two.remove(id)
    eventually { row(id)['state'] == 'dead' }
  end

  it 'renews the leases of the tasks that it holds' do
    one = make('one')
    id = one.add(['task', []])
    ends = row(id)['lease_expires_at']
    eventually { row(id)['lease_expires_at'] > ends }
    expect(row(id)['attempt']).to eq('1')
  end

  it 'replays what is left after a restart, with start times and attempts' do
    one = make('one')
    at = Time.now.to_i + 100
    now = one.add(['task', [1], nil, nil])
    later = one.add(['task', [2], nil, nil], publish_at: at)
    retried = one.add(['task', [3], nil, nil])
    expect(one.add(['task', [3], nil, 1], publish_at: at, task_id: retried)).to eq(retried)
    one.close
    expect(make('two').pending_tasks.sort)
      .to eq([[now, ['task', [1], nil, nil], nil], [later, ['task', [2], nil, nil], at], [retried, ['task', [3], nil, 1], at]].sort)
  end

  it 'takes up the tasks of a process that sends no heartbeats' do
    silent = make('silent', lease: 3600)
    id = silent.add(['task', []])
    sql.call('tq_release', id: id, lease: row(id)['lease']) # as the end of its lease would
    make('alive')
    expect(left.pop).to eq([id, ['task', []], nil])
    expect { silent.add(['task', []], task_id: id) }.to raise_error(Tq::LeaseLost)
    silent.remove(id)
    expect(row(id).values_at('state', 'worker')).to eq(%w[running alive])
  end

  it 'does not schedule a task again that it still has, when it gets the lease back' do
    one = make('one')
    id = one.add(['task', []])
    lease = row(id)['lease']
    sql.call('tq_release', id: id, lease: lease)
    # claimed again, and renewed: so it knows the new lease
    eventually { row(id)['state'] == 'running' && row(id)['lease'] != lease }
    ends = row(id)['lease_expires_at']
    eventually { row(id)['lease_expires_at'] > ends }
    one.remove(id)
    expect(row(id)['state']).to eq('succeeded')
    expect(left).to be_empty
  end

  it 'stores only what it can check, and buries what others wrote' do
    id = make('one').add(['task', ['secret']])
    expect(row(id)['payload']).not_to include([Marshal.dump(['task', ['secret']])].pack('m0'))
    forged = sql.value('tq_enqueue', queue: queue, payload: { task: [Marshal.dump('x')].pack('m0') }, kind: 'rage')
    expect(make('two').pending_tasks).to eq([])
    eventually { row(forged)['state'] == 'buried' }
  end

  it 'loads no plain value, even with a codec that accepts them' do
    codec = Tq::Codec.new({ 'k1' => 'k' * 32 }, kid: 'k1', accept_plain: true)
    forged = sql.value('tq_enqueue', queue: queue, payload: { task: [Marshal.dump('x')].pack('m0') }, kind: 'rage')
    expect(make('one', codec: codec).pending_tasks).to eq([])
    eventually { row(forged)['state'] == 'buried' }
  end

  it 'buries a value that is nested too deep, and goes on with its heartbeats' do
    one = make('one')
    id = one.add(['task', []])
    sql.rows('SELECT tq_enqueue($1, $2::jsonb, kind => $3)', [queue, '[' * 101 + ']' * 101, 'rage'])
    eventually { log.string.include?('cannot be decoded') }
    ends = row(id)['lease_expires_at']
    eventually { row(id)['lease_expires_at'] > ends }
  end

  it 'adds a task while older ones are ready' do
    one = make('one', lease: 60)
    older = one.add(['task', [1]])
    sql.call('tq_release', id: older, lease: row(older)['lease'])
    id = one.add(['task', [2]])
    expect([row(id)['state'], row(older)['state']]).to eq(%w[running ready])
  end

  it 'removes a task later if the server is away' do
    one = make('one')
    id = one.add(['task', []])
    sql.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'one'")
    one.remove(id)
    eventually { row(id)['state'] == 'succeeded' }
  end

  it 'renews no lease of a task whose new state it could not store' do
    one = make('one', lease: 60)
    id = one.add(['task', []])
    sql.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'one'")
    expect { one.add(['task', [], nil, 1], task_id: id) }.to raise_error(Tq::ConnectionLost)
    expect(one.instance_variable_get(:@leases)).to be_empty
  end

  it 'schedules what it has claimed before an error' do
    one = make('one', lease: 60)
    ids = [one.add(['task', [1]]), one.add(['task', [2]])]
    one.close
    two = make('two', lease: 60)
    two.define_singleton_method(:take) { |row| row['id'] == ids.first ? super(row) : raise(Tq::ConnectionLost, 'away') }
    expect(two.pending_tasks.map(&:first)).to eq([ids.first])
  end

  it 'gives back its other tasks when it closes after the loss of one' do
    one = make('one', lease: 60)
    ids = [one.add(['task', [1]]), one.add(['task', [2]])]
    sql.call('tq_release', id: ids.first, lease: row(ids.first)['lease'])
    one.close
    expect(ids.map { |id| row(id)['state'] }).to eq(%w[ready ready])
  end

  it 'removes a task later if the server refuses it for now' do
    one = make('one')
    id = one.add(['task', []])
    refusals = [Tq::ReadOnly.new('a standby', sqlstate: '25006')]
    one.define_singleton_method(:finish) { |*arguments| (error = refusals.shift) ? raise(error) : super(*arguments) }
    one.remove(id)
    eventually { row(id)['state'] == 'succeeded' }
  end

  # Starts a process of the application. Returns its number and the pipe to its standard input.
  def start_rage
    input, pipe = IO.pipe
    output, ready = IO.pipe
    pid = spawn('ruby', "#{Processes::APP}/rage.rb", in: input, out: ready, err: [log_file, 'a'], chdir: ENV.fetch('TQ_WORK'))
    [input, ready].each(&:close)
    workers << pid
    raise 'the application does not start' unless output.gets == "ready\n"

    [pid, pipe]
  end

  def log_file
    "#{ENV.fetch('TQ_WORK')}/rage.log"
  end

  it 'lets the other process run the tasks of one that was killed' do
    one, pipe = start_rage
    other, = start_rage
    pipe.puts(JSON.generate([file, 'a', 600]), JSON.generate([file, 'b']))
    eventually { lines('a').any? && lines('b').size == 2 }
    kill(one, 'KILL')
    eventually { lines('a').size == 2 }
    expect(lines('a').last).to eq("a begins in #{other}\n")
    expect(lines('b').size).to eq(2)
  end
end
