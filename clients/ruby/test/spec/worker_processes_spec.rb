# frozen_string_literal: true

require 'fileutils'
require 'socket'
require 'tmpdir'
require_relative 'helper'
require_relative 'processes'
Database.make
require_relative '../app/ledger'

# tq-worker as a process that is killed, while the checker of test/chaos looks at what it was told.
describe 'processes of tq-worker' do
  include Processes

  before { ENV['TQ_LEDGER'] = "#{ENV.fetch('TQ_WORK')}/ledger-worker" }
  after { FileUtils.rm_rf(@pooler) if @pooler }

  def start_worker(**options)
    arguments = { lease: 1, concurrency: 4, buffer: 8 }.merge(options).flat_map { |name, value| ["--#{name.to_s.tr('_', '-')}", value.to_s] }
    start('ruby', "#{Gem.dir}/bin/tq-worker", '--require', "#{Processes::APP}/handlers.rb", *arguments, 'work')
  end

  def enqueue(count, seconds)
    tokens = Array.new(count) { "t#{@serial = (@serial || 0) + 1}" }
    tokens.each_slice(50).with_index do |some, failures|
      tx = some.first
      Ledger.note('enqueue', tx, *some, who: 'producer')
      sql.transaction do
        some.each do |token|
          Tq.enqueue('work', { t: token, seconds: seconds, failures: failures % 2 }, kind: 'work', connection: sql.connection,
                     retry: { policy: 'fixed', delay: '50 ms' })
        end
      end
      Ledger.note('committed', tx, who: 'producer')
    end
  end

  def counts
    sql.rows("SELECT ready + delayed AS waiting, running, live FROM tq_queues WHERE queue = 'work'").first.transform_values { |text| Integer(text) }
  end

  it 'loses no job and runs none twice at once when workers are killed and the server restarts' do
    enqueue(200, 0.02)
    first = start_worker
    eventually { counts['live'] < 150 }
    kill(first, 'KILL')
    second = start_worker
    third = start_worker
    eventually { counts['live'] < 100 }
    Ledger.note('crash', who: 'producer')
    @sql = nil
    restart_server('immediate')
    Ledger.note('down', who: 'producer')
    eventually { counts['live'] < 50 }
    kill(second, 'KILL')
    enqueue(1, 0.02) # so the third has begun, also if the others have run all
    eventually { counts['live'].zero? }
    expect(kill(third, 'TERM').exitstatus).to eq(0)
    expect(judged(ENV.fetch('TQ_LEDGER'))).to be(true)
  end

  # Starts PgBouncer with so many connections to the server, which change after each transaction. Returns the folder of its
  # socket.
  def start_pooler(size)
    @pooler = Dir.mktmpdir('tq-p.', '/tmp') # short: the path of a socket
    settings = "#{ENV.fetch('TQ_WORK')}/pgbouncer.ini"
    File.write(settings, <<~INI)
      [databases]
      #{Database::NAME} = host=#{ENV.fetch('PGHOST')} port=#{ENV.fetch('PGPORT')} user=#{ENV.fetch('PGUSER')} pool_mode=transaction pool_size=#{size}
      [pgbouncer]
      listen_addr =
      listen_port = 6432
      unix_socket_dir = #{@pooler}
      auth_type = any
      logfile = #{ENV.fetch('TQ_WORK')}/pgbouncer.log
    INI
    start('pgbouncer', '-q', settings, PATH: "#{ENV.fetch('PATH')}:/usr/sbin")
    eventually do
      UNIXSocket.new("#{@pooler}/.s.PGSQL.6432").close || true
    rescue SystemCallError
      nil # not yet
    end
    @pooler
  end

  [1, 2].each do |size|
    it "works through PgBouncer with a pool of #{size}, and says if that is too small" do
      sql.call('tq_purge', queue: 'work', state: 'all')
      enqueue(100, 0.01)
      before = File.read(log).scan('its pool needs').size
      worker = start('ruby', "#{Gem.dir}/bin/tq-worker", '--require', "#{Processes::APP}/handlers.rb", '--lease', '6', 'work',
                     PGHOST: start_pooler(size), PGPORT: '6432')
      eventually { counts['live'].zero? }
      enqueue(1, 8)
      eventually { counts['live'].zero? }
      expect(kill(worker, 'TERM').exitstatus).to eq(0)
      # once for each claim that was lost before the first that came
      expect((File.read(log).scan('its pool needs').size - before).positive?).to be(size == 1)
    end
  end

  it 'says with its exit code whether it released jobs' do
    enqueue(8, 60)
    File.write(log, '', mode: 'a')
    began = File.size(log)
    worker = start_worker(lease: 60, shutdown_timeout: 0.1)
    eventually { counts['running'] == 8 && sql.rows('SELECT FROM tq_running WHERE progress IS NOT NULL').size == 4 }
    # the handlers end when they are cancelled, the jobs that have not begun are released; so is a handler's after a second
    expect(kill(worker, 'TERM').exitstatus).to eq(1)
    released = File.read(log, nil, began)[/released (job .*)/, 1].to_s.scan(/job \d+/).size
    expect(counts.slice('running', 'waiting')).to eq('running' => 0, 'waiting' => 4 + released)
  end

  def exit_code(*arguments, **environment)
    system(environment.transform_keys(&:to_s), 'ruby', "#{Gem.dir}/bin/tq-worker", *arguments, %i[out err] => IO::NULL)
    Process.last_status.exitstatus
  end

  it 'ends with 2 for wrong usage, and with 1 if it cannot start' do
    wrong = [['--lease', '1'], ['--no-such-option', 'work'], ['--concurrency', '0', 'work'], ['--lease', '0', 'work'], ['--require', './nowhere.rb', 'work']]
    expect(wrong.map { |arguments| exit_code(*arguments) }).to eq([2] * wrong.size)
    expect([exit_code('work', PGDATABASE: 'template1'), exit_code('work', PGDATABASE: 'nowhere')]).to eq([1, 1])
  end

  it 'ends with 0 when it has nothing to do' do
    sql.call('tq_purge', queue: 'work', state: 'all')
    expect(exit_code('--drain', 'work')).to eq(0)
  end

  it 'shows an error of the application as it is' do
    file = "#{ENV.fetch('TQ_WORK')}/broken.rb"
    File.write(file, "raise ArgumentError, 'a fault of the application'\n")
    output = IO.popen(['ruby', "#{Gem.dir}/bin/tq-worker", '--require', file, 'work'], err: %i[child out], &:read)
    expect(Process.last_status.exitstatus).to eq(1)
    expect(output).to include('a fault of the application').and include('broken.rb:1').and(satisfy { |text| !text.include?('usage:') })
  end
end
