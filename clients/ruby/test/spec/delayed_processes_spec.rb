# frozen_string_literal: true

require_relative 'helper'
require_relative 'processes'
Database.make
require_relative '../app/environment'

# Workers of delayed_job that are killed, stopped, and cut off from the server.
describe 'processes of delayed_job' do
  include Processes

  before do
    ActiveRecord::Base.clear_all_connections!
    Database.make
    ENV['TQ_LEDGER'] = ledger
  end

  let(:ledger) { "#{ENV.fetch('TQ_WORK')}/ledger-#{SecureRandom.hex(4)}" }

  def enqueue(jobs)
    jobs.each do |token, seconds, failures|
      Ledger.note('enqueue', token, token, who: 'producer')
      Delayed::Job.enqueue(Work.new(token, seconds, failures))
      Ledger.note('committed', token, who: 'producer')
    end
  end

  def running?(token)
    File.exist?("#{ledger}.#{token}")
  end

  # Lets the job that waits go on.
  def go
    File.write("#{ledger}.go", '')
  end

  def live
    Integer(sql.rows('SELECT coalesce(sum(live), 0) AS jobs FROM tq_queues').first['jobs'])
  end

  def succeeded
    Integer(sql.rows("SELECT count(*) AS jobs FROM tq_jobs WHERE state = 'succeeded'").first['jobs'])
  end

  it 'runs the jobs of a killed worker again when its lock has ended' do
    enqueue([['a', nil, 0]] + (1..20).map { |i| ["b#{i}", 0.02, i % 3 / 2] })
    killed = start_rake
    eventually { running?('a') }
    kill(killed, 'KILL')
    File.write(ledger, format("%.6f w%d gone\n", Time.now.to_f, killed), mode: 'a')
    go
    expect(Integer(sql.rows('SELECT count(*) AS jobs FROM tq_running').first['jobs'])).to eq(1)

    worker = start_rake
    eventually { live.zero? }
    expect(kill(worker, 'TERM').exitstatus).to eq(0)
    expect(File.read("#{ledger}.a").to_i).to eq(worker)
    expect(succeeded).to eq(21)
    expect(judged(ledger)).to be(true)
  end

  it 'lets the running job end on SIGTERM, and leaves the others' do
    enqueue([['a', nil, 0], ['b', 0, 0]])
    worker = start_rake
    eventually { running?('a') }
    expect(kill(worker, 'TERM') { go }.exitstatus).to eq(0)
    expect(running?('b')).to be(false)
    expect(live).to eq(1)
    expect(judged(ledger)).to be(true)
  end

  it 'goes on after a restart of the server, and finishes the job that ran' do
    enqueue([['a', nil, 0]])
    worker = start_rake
    eventually { running?('a') }
    restart_server('immediate')
    go
    ActiveRecord::Base.clear_all_connections!
    eventually { live.zero? }
    enqueue([['b', 0, 0]])
    eventually { live.zero? }
    expect(kill(worker, 'TERM').exitstatus).to eq(0)
    expect(File.readlines(ledger).grep(/ told .* succeeded/).size).to eq(2)
  end
  it 'wakes an idle worker long before its sleep_delay' do
    worker = start_rake(SLEEP_DELAY: '3600', QUEUES: 'delayed_job')
    eventually { Integer(sql.rows('SELECT count(*) AS n FROM pg_stat_activity WHERE query LIKE $1', ['CALL tq_wait%']).first['n']).positive? }
    enqueue([['a', 0, 0]])
    eventually { running?('a') }
    expect(kill(worker, 'TERM').exitstatus).to eq(0)
  end

  it 'deletes all jobs by rake jobs:clear' do
    enqueue([['a', 0, 0], ['b', 0, 0]])
    expect(system('rake', '--silent', '-f', "#{Processes::APP}/Rakefile", 'jobs:clear', %i[out err] => IO::NULL)).to be(true)
    expect(live).to eq(0)
  end

  it 'are daemons of script/delayed_job' do
    pids = "#{ENV.fetch('TQ_WORK')}/pids"
    run = ["#{Processes::APP}/delayed_job", "--pid-dir=#{pids}", "--log-dir=#{ENV.fetch('TQ_WORK')}"]
    enqueue([['a', 0, 0]])
    expect(system(*run, 'start', %i[out err] => IO::NULL)).to be(true)
    eventually { live.zero? }
    expect(File.exist?("#{pids}/delayed_job.pid")).to be(true)
    expect(system(*run, 'stop', %i[out err] => IO::NULL)).to be(true)
    expect(File.exist?("#{pids}/delayed_job.pid")).to be(false)
  end
end
