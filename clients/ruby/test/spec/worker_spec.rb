# frozen_string_literal: true

require_relative 'helper'
Database.make

# Workers in a thread of the test.
describe Tq::Worker do
  let(:log) { StringIO.new }
  let(:queue) { "q#{SecureRandom.hex(4)}" }

  # a job that failed stays delayed
  before { sql.call('tq_create_queue', name: queue, settings: { retry: { policy: 'fixed', delay: '1 h' } }) }
  after { stop(@worker) if @worker }

  def start(**options)
    @worker = described_class.new(queue, logger: Logger.new(log), lease: 60, **options)
    yield @worker
    @running = Thread.new { @worker.run(signals: false) }
    @worker
  end

  def stop(worker)
    worker.stop
    @worker = nil
    (@running.join(180) || raise('the worker does not end')).value
  end

  def enqueue(payload = {}, **arguments)
    Tq.enqueue(queue, payload, connection: sql.connection, **arguments)
  end

  def row(id)
    sql.rows('SELECT * FROM tq_get($1)', [id.to_s]).first
  end

  def state(id)
    row(id)['state']
  end

  # Waits until the worker has renewed the lease of a job, which it has in hand then.
  def renewed(id)
    ends = eventually { row(id)['lease_expires_at'] }
    eventually { row(id)['lease_expires_at'].to_s > ends }
  end

  it 'gives a handler the job, and keeps its result' do
    seen = nil
    start do |worker|
      worker.handle('mail') do |job|
        seen = job
        job.result = { sent: job.payload['to'] }
      end
    end
    id = enqueue({ to: 'ada' }, kind: 'mail', headers: { trace: 'x' }, priority: 7, options: { tags: ['a b', 'c'] })
    eventually { state(id) == 'succeeded' }
    expect(JSON.parse(row(id)['result'])).to eq('sent' => 'ada')
    expect([seen.id, seen.attempt, seen.headers, seen.priority, seen.tags, seen.queue]).to eq([id, 1, { 'trace' => 'x' }, 7, ['a b', 'c'], queue])
    expect(stop(@worker)).to eq(0)
  end

  it 'gives a handler every column of a claim' do
    seen = nil
    start { |worker| worker.handle('mail') { |job| seen = job } }
    enqueue({}, kind: 'mail', timeout: 3600, group_key: 'g', unique_key: 'u')
    eventually { seen }
    columns = sql.rows("SELECT attname FROM pg_attribute WHERE attrelid = 'tq_job'::regclass AND attnum > 0 AND NOT attisdropped")
    expect(columns.map { |column| column['attname'] }.reject { |name| seen.respond_to?(name) }).to eq([])
    expect([seen.enqueued_at, seen.lease_expires_at, seen.deadline]).to all(be_a(Time))
    expect(seen.lease_expires_at).to be_between(seen.enqueued_at + 1, seen.deadline)
    expect([seen.group_key, seen.unique_key]).to eq(%w[g u])
  end

  it 'tells the outcome of an enqueue, and finds a job by its key' do
    unique = { unique_key: 'k', unique_mode: 'skip_waiting', connection: sql.connection }
    first = Tq.enqueue_info(queue, {}, **unique)
    expect(first[:outcome]).to eq('created')
    expect(Tq.enqueue_info(queue, {}, **unique)).to eq(id: first[:id], outcome: 'skipped')
    replaced = Tq.enqueue_info(queue, {}, **unique, unique_mode: 'replace_waiting')
    expect(replaced[:outcome]).to eq('replaced')
    expect(Tq.find(queue, 'k', connection: sql.connection)).to eq(replaced[:id])
    expect { Tq.free_key(queue, 'k', connection: sql.connection) }.to raise_error(Tq::UniqueKeyTaken)
    expect(Tq.find(queue, 'none', connection: sql.connection)).to be_nil
    expect(Tq.free_key(queue, 'none', connection: sql.connection)).to be(false)
  end

  it 'waits for jobs, and returns their outcomes' do
    conn = sql.connection
    Tq.codec = Tq::Codec.new({ 'a' => 'k' * 32 }, kid: 'a')
    start { |worker| worker.handle('half') { |job| job.payload.odd? ? raise(Tq::Fatal, 'odd') : job.result = job.payload / 2 } }
    ids = Tq.enqueue_many(queue, [4, 5], kind: 'half', connection: conn)
    later = enqueue(6, kind: 'half', delay: 3600)
    Tq.wait_jobs([*ids, later], first: true, connection: conn)
    Tq.wait_jobs(ids, timeout: '10 min', connection: conn)
    Tq.wait_jobs([later], timeout: 0.01, connection: conn) # limit: nothing comes
    found = Tq.outcomes([ids[1], later, ids[0], 2**52], connection: conn)
    expect(found.map { |one| one.slice(:id, :state, :result).values })
      .to eq([[ids[1], 'dead', nil], [later, 'delayed', nil], [ids[0], 'succeeded', 2], [2**52, nil, nil]])
    expect(found[0][:error]).to include('odd')
  ensure
    Tq.codec = nil
  end

  it 'ends jobs as their handlers say' do
    start do |worker|
      worker.handle('mail') do |job|
        case job.payload
        when 'retry' then raise Tq::Retry.new(60, 'not yet')
        when 'fatal' then raise Tq::Fatal, 'no such number'
        when 'bury' then raise Tq::Bury, 'looks wrong'
        when 'release' then raise Tq::Release, 60
        else raise ArgumentError, "a \0 byte"
        end
      end
    end
    ids = %w[retry fatal bury release raise].to_h { |word| [word, enqueue(word, kind: 'mail')] }
    eventually { ids.values.none? { |id| %w[ready running].include?(state(id)) } }
    expect(ids.transform_values { |id| state(id) })
      .to eq('retry' => 'delayed', 'fatal' => 'dead', 'bury' => 'buried', 'release' => 'delayed', 'raise' => 'delayed')
    expect(row(ids['release'])['attempt']).to eq('0')
    expect(row(ids['raise'])['error']).to match(/\AArgumentError: a  byte\n.*worker_spec/)
  end

  it 'releases jobs of a kind without a handler, and says so once' do
    start { |worker| worker.handle('mail') { nil } }
    ids = [enqueue(kind: 'other'), enqueue(kind: 'other')]
    eventually { ids.all? { |id| state(id) == 'delayed' } }
    expect(log.string.scan('no handler').size).to eq(1)
  end

  it 'renews leases, and cancels jobs that are asked to stop' do
    reason = nil
    start(lease: 15) { |worker| worker.handle('mail') { |job| reason = job.cancelled if job.wait(600) } }
    id = enqueue(kind: 'mail')
    renewed(id)
    sql.call('tq_cancel', id: id)
    eventually { reason }
    expect(reason).to eq(:cancel)
    eventually { state(id) == 'succeeded' }
  end

  it 'drops the result of a job whose lease is lost, and does not run it twice at once' do
    running = 0
    most = 0
    runs = 0
    start(lease: 15) do |worker|
      worker.handle('mail') do |job|
        most = [most, running += 1].max
        runs += 1
        job.wait(600) if runs == 1
        sleep 0.3 # sleeps: longer than the job is ready
        running -= 1
      end
    end
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'running' && runs == 1 }
    sql.call('tq_release', id: id, lease: row(id)['lease'])
    eventually { state(id) == 'succeeded' }
    expect([most, runs, row(id)['attempt']]).to eq([1, 2, '1'])
    expect(log.string).to include('is lost')
  end

  it 'lets a handler complete its job in its own transaction' do
    start do |worker|
      worker.handle('mail') do |job|
        conn = PG.connect
        conn.transaction { job.complete({ booked: true }, connection: conn) }
        conn.close
      end
    end
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'succeeded' }
    expect(row(id)['result']).to eq('{"booked": true}')
    expect(stop(@worker)).to eq(0)
    expect(log.string).to be_empty
  end

  it 'keeps a checkpoint for the next attempt' do
    seen = []
    start do |worker|
      worker.handle('mail') do |job|
        seen << job.checkpoint
        job.heartbeat(progress: { percent: 50 }, checkpoint: { page: 3 })
        raise Tq::Retry, 0 if seen.size == 1
      end
    end
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'succeeded' }
    expect(seen).to eq([nil, { 'page' => 3 }])
  end

  it 'encodes what it writes, and buries what it cannot decode' do
    codec = Tq::Codec.new({ 'k1' => 'k' * 32 }, kid: 'k1')
    seen = parents = nil
    start(codec: codec) do |worker|
      worker.handle('child') { |job| parents = job.parents }
      worker.handle('mail') do |job|
        seen = job.payload
        job.result = 'secret result'
      end
    end
    encoded = enqueue(codec.encode({ 'to' => 'ada' }, Tq::Codec::PAYLOAD), kind: 'mail')
    plain = enqueue({ 'to' => 'ada' }, kind: 'mail')
    child = enqueue(codec.encode({}, Tq::Codec::PAYLOAD), kind: 'child', depends_on: [encoded])
    eventually { state(encoded) == 'succeeded' && state(plain) == 'buried' && state(child) == 'succeeded' }
    expect(seen).to eq('to' => 'ada')
    expect(parents[encoded.to_s]).to include('state' => 'succeeded', 'result' => 'secret result')
    expect(codec.decode(JSON.parse(row(encoded)['result']), Tq::Codec.result(encoded))).to eq('secret result')
    expect(row(plain)['error']).not_to include('ada')
  end

  it 'finishes many jobs, with batches, with a buffer larger than its concurrency' do
    seen = Thread::Queue.new
    start(concurrency: 4, buffer: 40) { |worker| worker.handle('mail') { |job| seen << job.id } }
    sql.call('tq_enqueue_many', queue: queue, payloads: ['{}'] * 300, kind: 'mail')
    eventually { sql.rows("SELECT live FROM tq_queues WHERE queue = $1", [queue]).first['live'] == '0' }
    expect(Array.new(seen.size) { seen.pop }.uniq.size).to eq(300)
  end

  it 'ends when no job is ready if it drains the queue' do
    seen = []
    worker = described_class.new(queue, logger: Logger.new(log))
    worker.handle('mail') { |job| seen << job.id }
    ids = [enqueue(kind: 'mail'), enqueue(kind: 'mail')]
    later = enqueue(kind: 'mail', delay: 3600)
    expect(worker.run(signals: false, drain: true)).to eq(0)
    expect([seen.sort, state(later)]).to eq([ids, 'delayed'])
  end

  it 'releases what does not end in time when it stops' do
    start(shutdown_timeout: 0.1) { |worker| worker.handle('mail') { sleep 600 } } # sleeps: deaf to cancellation
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'running' }
    expect(stop(@worker)).to eq(1)
    expect([state(id), row(id)['attempt']]).to eq(%w[ready 0])
  end

  it 'says with its status that it could not report the end of a job' do
    away = false
    start(connect: -> { away ? raise(PG::ConnectionBad, 'away') : PG.connect(application_name: 'unreported') }) do |worker|
      worker.handle('mail') do
        away = true
        PG.connect { |conn| conn.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'unreported'") }
      end
    end
    id = enqueue(kind: 'mail')
    eventually { log.string.include?('finishes wait for the server') }
    expect([stop(@worker), state(id)]).to eq([1, 'running'])
  end

  it 'releases the job of a handler that raises because the worker stops' do
    start(shutdown_timeout: 0.1) { |worker| worker.handle('mail') { |job| raise 'cut short' if job.wait(600) } }
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'running' }
    expect(stop(@worker)).to eq(1)
    expect([state(id), row(id)['attempt']]).to eq(%w[ready 0])
  end

  it 'says with its status that a handler released its job because the worker stops' do
    start(shutdown_timeout: 0.1) { |worker| worker.handle('mail') { |job| raise Tq::Release, 0 if job.wait(600) } }
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'running' }
    expect([stop(@worker), state(id)]).to eq([1, 'ready'])
  end

  it 'tells handlers that their lease is lost when the server is away for longer' do
    away = begun = false
    reason = nil
    start(lease: 1, connect: -> { away ? raise(Tq::ConnectionLost, 'away') : PG.connect(application_name: 'away') }) do |worker|
      worker.handle('mail') do |job|
        begun = true
        job.wait(600)
        reason = job.cancelled
      end
    end
    enqueue(kind: 'mail')
    eventually { begun }
    away = true
    eventually do # also a connection that was just being made
      sql.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'away'")
      reason
    end
    expect(reason).to eq(:lost)
    away = false
  end

  it 'connects again when its connections are terminated, and says so once' do
    start { |worker| worker.handle('mail') { |job| job.wait(0.5) } } # sleeps: short work
    first = enqueue(kind: 'mail')
    eventually { state(first) == 'succeeded' } # both connections are there
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'running' }
    sql.rows('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()')
    eventually { state(id) == 'succeeded' }
    other = enqueue(kind: 'mail')
    eventually { state(other) == 'succeeded' }
    expect(log.string.scan('wait for the server').size).to be_between(1, 2)
  end

  it 'fails the job whose result is no JSON, and ends the others' do
    start(flush_interval: 0.2) { |worker| worker.handle('mail') { |job| job.result = job.payload == 'bad' ? Float::NAN : 'sent' } }
    bad = enqueue('bad', kind: 'mail')
    good = enqueue('good', kind: 'mail')
    eventually { [state(bad), state(good)] == %w[delayed succeeded] }
    expect(row(bad)['error']).to start_with('JSON::GeneratorError')
  end

  it 'fails jobs whose end the server or the library refuses, with binary messages too' do
    start do |worker|
      worker.handle('mail') do |job|
        case job.payload
        when 'infinite' then raise Tq::Retry, Float::INFINITY
        when 'negative' then raise Tq::Retry, -1
        else raise Tq::Fatal, "\xff".b
        end
      end
    end
    ids = %w[infinite negative binary].to_h { |word| [word, enqueue(word, kind: 'mail')] }
    eventually { ids.transform_values { |id| state(id) } == { 'infinite' => 'delayed', 'negative' => 'delayed', 'binary' => 'dead' } }
    expect(row(ids['infinite'])['error']).to start_with('ArgumentError: not a duration')
  end

  it 'survives an error whose message raises, or is no text' do
    raising = Class.new(StandardError) { define_method(:message) { raise 'again' } }
    none = Class.new(StandardError) { define_method(:message) { nil } }
    start(concurrency: 1) { |worker| worker.handle('mail') { |job| raise job.payload == 'none' ? none : raising } }
    ids = [enqueue('none', kind: 'mail'), enqueue('raising', kind: 'mail')]
    eventually { ids.all? { |id| state(id) == 'delayed' } }
    expect(row(ids.last)['error']).to include('its message raises RuntimeError')
  end

  it 'survives a binary message of a job whose kind is not ASCII' do
    start { |worker| worker.handle('größe') { raise "\xff".b } }
    id = enqueue(kind: 'größe')
    eventually { state(id) == 'delayed' }
  end

  it 'ends a job once the server takes its result again' do
    read_only = true
    main = nil
    connect = lambda do
      main ||= Thread.current # the first connection is the one for claims
      name = main == Thread.current ? 'claims' : 'keeps'
      PG.connect(application_name: name).tap { |conn| conn.exec('SET default_transaction_read_only = on') if read_only && name == 'keeps' }
    end
    start(connect: connect) { |worker| worker.handle('mail') { nil } }
    id = enqueue(kind: 'mail')
    eventually { log.string.include?('will be finished later') }
    expect(state(id)).to eq('running')
    read_only = false
    sql.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'keeps'")
    eventually { state(id) == 'succeeded' }
    expect(row(id)['attempt']).to eq('1')
  end

  it 'cancels jobs of a server that falls silent, and still ends' do
    away = false
    reason = nil
    start(lease: 15, connect: -> { away ? raise(PG::ConnectionBad, 'away') : PG.connect(application_name: 'silent') }) do |worker|
      worker.handle('mail') { |job| reason = job.cancelled if job.wait(600) }
    end
    id = enqueue(kind: 'mail')
    renewed(id) # both connections are there
    away = true
    pids = sql.rows("SELECT pid FROM pg_stat_activity WHERE application_name = 'silent'").map { |found| Integer(found['pid']) }
    begin
      pids.each { |pid| Process.kill('STOP', pid) }
      eventually { reason }
      expect(reason).to eq(:lost)
      stop(@worker)
    ensure
      pids.each { |pid| Process.kill('CONT', pid) }
    end
  end

  it 'does not start a job whose lease was lost while it waited' do
    gate = Thread::Queue.new
    seen = Thread::Queue.new
    start(lease: 15, concurrency: 1, buffer: 2) do |worker|
      worker.handle('mail') do |job|
        seen << [job.id, job.lease]
        gate.pop if job.payload == 'first'
      end
    end
    enqueue('first', kind: 'mail')
    waiting = enqueue('waiting', kind: 'mail')
    renewed(waiting)
    lease = Integer(row(waiting)['lease'])
    sql.call('tq_release', id: waiting, lease: lease)
    eventually { log.string.include?('is lost') }
    gate << true
    eventually { state(waiting) == 'succeeded' }
    expect(Array.new(seen.size) { seen.pop }).not_to include([waiting, lease])
  end

  it 'buries a job whose headers are nested too deep' do
    start { |worker| worker.handle('mail') { nil } }
    id = sql.rows('SELECT tq_enqueue($1, headers => ($2::jsonb), kind => $3) AS id', [queue, %({"a": #{'[' * 101}#{']' * 101}}), 'mail']).first['id']
    other = enqueue(kind: 'mail')
    eventually { [state(id), state(other)] == %w[buried succeeded] }
  end

  it 'goes on after an error of the driver while it connects' do
    tries = 0
    start(connect: -> { (tries += 1) == 1 ? raise(PG::ConnectionBad, 'away') : PG.connect }) { |worker| worker.handle('mail') { nil } }
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'succeeded' }
  end

  it 'ends with the error of a server that refuses it at the start' do
    threads = Thread.list.size
    sql.rows('CREATE ROLE ruby_no_login')
    [{ dbname: 'nowhere' }, { user: 'ruby_no_login' }].zip(%w[3D000 28000]) do |dsn, sqlstate|
      Tq.dsn = dsn
      expect { described_class.new(queue, logger: Logger.new(log)).run(signals: false) }.to raise_error(Tq::ConnectionLost) { |error|
        expect(error.sqlstate).to eq(sqlstate)
        expect(error.message).to match(/FATAL:  (role|database) "#{dsn.values.first}"/).and(satisfy { |text| !text.include?('LOCATION') })
      }
    end
    expect(log.string).to eq('')
    eventually { Thread.list.size <= threads }
  ensure
    Tq.dsn = nil
    sql.rows('DROP ROLE ruby_no_login')
  end

  it 'tries again if the server refuses it for now, or later' do
    states = %w[57P03 53300]
    connect = lambda do
      state = states.shift
      raise Tq::ConnectionLost.new('refused', sqlstate: state) if state

      PG.connect
    end
    start(connect: connect) { |worker| worker.handle('mail') { nil } }
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'succeeded' }
    states.push('28P01', '3D000')
    sql.rows('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()')
    other = enqueue(kind: 'mail')
    eventually { state(other) == 'succeeded' }
    expect(stop(@worker)).to eq(0)
  end

  it 'starts a job while most of the buffer is taken, if a thread is idle' do
    gate = Thread::Queue.new
    start(concurrency: 4, buffer: 4) { |worker| worker.handle('mail') { |job| gate.pop if job.payload == 'long' } }
    long = Array.new(3) { enqueue('long', kind: 'mail') }
    eventually { long.all? { |id| state(id) == 'running' } }
    short = enqueue('short', kind: 'mail')
    eventually { state(short) == 'succeeded' }
    3.times { gate << true }
    eventually { long.all? { |id| state(id) == 'succeeded' } }
  end

  it 'stops though a thread takes the last waiting job meanwhile' do
    start { |worker| worker.handle('mail') { nil } }
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'succeeded' }
    todo = @worker.instance_variable_get(:@todo)
    answers = [false]
    todo.define_singleton_method(:empty?) { answers.empty? ? super() : answers.shift }
    expect(stop(@worker)).to eq(0)
  end

  it 'ends a job whose handler could not complete it itself' do
    start do |worker|
      worker.handle('mail') do |job|
        job.complete(connection: PG.connect.tap(&:close))
      rescue StandardError
        nil # the worker completes it
      end
    end
    id = enqueue(kind: 'mail')
    eventually { state(id) == 'succeeded' }
  end
end

describe Tq do
  it 'connects with limits, to a server that takes writes, unless the caller says otherwise' do
    described_class.dsn = 'connect_timeout=3' # limit: it is read only
    conn = described_class.connect(application_name: 'limits')
    options = conn.conninfo.to_h { |one| [one[:keyword], one[:val]] }
    expect(options.values_at('connect_timeout', 'tcp_user_timeout', 'target_session_attrs', 'client_encoding', 'application_name'))
      .to eq(%w[3 20000 read-write UTF8 limits])
    conn.close
  ensure
    described_class.dsn = nil
  end

  it 'has a class for each SQLSTATE' do
    expect { described_class.enqueue('mail', {}, connection: sql.connection, priority: 100_000) }
      .to raise_error(Tq::InvalidArgument) { |error| expect([error.sqlstate, error.detail]).to eq(['22023', 'It must be between -32768 and 32767.']) }
    described_class.enqueue('keys', {}, connection: sql.connection, unique_key: 'a')
    expect { described_class.enqueue('keys', {}, connection: sql.connection, unique_key: 'a', unique_mode: 'error') }
      .to raise_error(Tq::UniqueKeyTaken)
    expect(described_class.enqueue('keys', {}, connection: sql.connection, unique_key: 'a', unique_mode: 'ignore')).to be_nil
    expect { sql.call('tq_complete', id: 1 << 50, lease: 1) }.to raise_error(Tq::JobNotFound)
    expect { sql.call('tq_claim', queue: nil) }.to raise_error(Tq::FunctionNotFound)
  end

  it 'takes times, durations and arrays' do
    parent = described_class.enqueue('kinds', {}, connection: sql.connection, delay: 90)
    id = described_class.enqueue('kinds', { a: [1] }, connection: sql.connection, run_at: Time.at(4_000_000_000, 5, :usec), depends_on: [parent])
    found = sql.rows('SELECT state, extract(epoch FROM run_at) AS at FROM tq_get($1)', [id.to_s]).first
    expect(found).to eq('state' => 'blocked', 'at' => '4000000000.000005')
  end

  it 'passes texts in arrays in the encoding of the connection' do
    sql.connection.set_client_encoding('LATIN1')
    ids = described_class.enqueue_many('kinds', ['größe'], connection: sql.connection, kinds: ['maß'.encode(Encoding::ISO_8859_1)])
    found = sql.rows("SELECT payload #>> '{}' AS payload, kind FROM tq_get($1)", [ids.first.to_s]).first
    expect(found.transform_values { |text| text.encode(Encoding::UTF_8) }).to eq('payload' => 'größe', 'kind' => 'maß')
  end

  it 'works on a connection whose column names are symbols' do
    sql.connection.field_name_type = :symbol
    expect(described_class.enqueue_info('kinds', {}, connection: sql.connection)[:outcome]).to eq('created')
  end

  it 'leaves the time of the caller as it is' do
    time = Time.at(4_000_000_000, in: '+02:00').freeze
    described_class.enqueue('kinds', {}, connection: sql.connection, run_at: time)
    expect(time.utc_offset).to eq(7200)
  end
end
