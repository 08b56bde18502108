# frozen_string_literal: true

# Jobs that do nothing in the threads of a worker, as tq-worker runs them.   usage: threads.rb JOBS THREADS
#
# Prints jobs per second as JSON.
require 'json'
require 'tq'

jobs = ARGV[0].to_i
ran = Queue.new
Tq.handle('empty') { ran << 1 }
connection = PG.connect
(0...jobs).step(1000) do |done|
  Tq.enqueue_many('ruby', [{}] * [1000, jobs - done].min, kind: 'empty', connection: connection)
end
worker = Tq::Worker.new('ruby', concurrency: ARGV[1].to_i, buffer: 200)
began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
code = worker.run(drain: true)
seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
abort "#{ran.size} of #{jobs} jobs ran, exit code #{code}" unless code.zero? && ran.size == jobs
puts JSON.generate(rate: jobs / seconds)
