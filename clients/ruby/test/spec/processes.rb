# frozen_string_literal: true

# Workers as processes of their own, and the server below them.
module Processes
  APP = File.expand_path('../app', __dir__)
  CHECKER = File.expand_path('../../../../test/chaos/checker.py', __dir__)

  def self.included(group)
    group.after { workers.each { |pid| kill(pid, 'KILL') } }
  end

  def workers
    @workers ||= []
  end

  # Starts a process; its output goes to a log.
  def start(*command, **environment)
    env = environment.transform_keys(&:to_s)
    pid = spawn(env, *command, %i[out err] => [log, 'a'], chdir: ENV.fetch('TQ_WORK'))
    workers << pid
    pid
  end

  def start_rake(**environment)
    start('rake', '--silent', '-f', "#{APP}/Rakefile", 'jobs:work', **environment)
  end

  # Sends a signal, runs the block and waits for the end. Returns the Process::Status, or nil if it had ended.
  def kill(pid, signal)
    Process.kill(signal, pid)
    yield if block_given?
    reap(pid)
  rescue Errno::ESRCH, Errno::ECHILD
    nil
  ensure
    workers.delete(pid)
  end

  def reap(pid)
    eventually { Process.wait2(pid, Process::WNOHANG) }.last
  end

  def log
    "#{ENV.fetch('TQ_WORK')}/workers.log"
  end

  def restart_server(mode)
    args = [ENV.fetch('TQ_PG_CTL'), '-D', ENV.fetch('TQ_DATA'), '-m', mode, '-w', '-t', '180', '-l', "#{ENV.fetch('TQ_WORK')}/server.log", 'restart']
    raise 'the server does not restart' unless system(*args, out: IO::NULL, err: IO::NULL)
  end

  # The checker's answer about the ledger: true, or what it found.
  def judged(ledger)
    dsn = "dbname=#{ENV.fetch('PGDATABASE')}"
    output = IO.popen(['/usr/bin/python3', '-B', CHECKER, dsn, ledger], err: %i[child out], &:read)
    Process.last_status.success? || output.lines.grep_v(/\Aok - /).join
  end
end
