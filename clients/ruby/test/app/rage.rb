# frozen_string_literal: true

# A double of the published interface of Rage::Deferred: its configuration, and a queue that runs tasks in threads.
module Rage
  class Configuration
    attr_accessor :secret_key_base, :fallback_secret_key_base

    def deferred
      @deferred ||= Deferred.new
    end

    class Deferred
      attr_reader :configured

      def backend=(config)
        raise ArgumentError, 'unsupported backend value' unless config.nil?

        @configured = true
      end

      def backend
        :nil
      end
    end
  end

  def self.config
    @config ||= Configuration.new
  end

  module Deferred
    def self.__queue
      @__queue ||= Queue.new(Rage.config.deferred.backend)
    end

    # A context is an Array: task, arguments, and at 3 the number of attempts.
    module Context
      def self.get_attempts(context)
        context[3]
      end
    end

    class Queue
      ATTEMPTS = 5
      attr_reader :backend

      def initialize(backend)
        @backend = backend
      end

      def enqueue(context, delay: nil, task_id: nil)
        publish_at = delay && Time.now.to_i + delay
        id = @backend.add(context, publish_at: publish_at, task_id: task_id)
        schedule(id, context, publish_in: delay)
        id
      end

      def schedule(task_id, context, publish_in: nil)
        Thread.new do
          sleep publish_in if publish_in&.positive? # sleeps: until the task is due
          if context[0].new.perform(*context[1])
            @backend.remove(task_id)
          else
            context[3] = context[3].to_i + 1
            context[3] < ATTEMPTS ? enqueue(context, delay: 1, task_id: task_id) : @backend.remove(task_id)
          end
        end
      end
    end
  end
end

require 'tq/rage'

Rage.config.secret_key_base = 'a secret of the application'
Rage.config.deferred.backend = :tq, { lease: 15 }

# Fails always.
class Hopeless
  def perform
    false
  end
end

# Appends a line to a file; its second argument makes it work for long, the third makes it fail once.
class Line
  def perform(file, words, seconds = 0, fail_once: false)
    File.write(file, "#{words} begins in #{Process.pid}\n", mode: 'a')
    sleep seconds # sleeps: long work
    done = !fail_once || File.read(file).scan("#{words} begins").size > 1
    File.write(file, "#{words} ends in #{Process.pid}\n", mode: 'a') if done
    done
  end
end

# Started as a process: takes up what is there, enqueues what standard input asks for, and runs until it ends.
if $PROGRAM_NAME == __FILE__
  queue = Rage::Deferred.__queue
  queue.backend.pending_tasks.each { |task| Tq::Rage.schedule(*task) }
  $stdout.sync = true
  puts 'ready'
  $stdin.each_line { |line| queue.enqueue([Line, JSON.parse(line), nil, nil]) }
end
