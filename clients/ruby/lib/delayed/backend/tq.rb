# frozen_string_literal: true

require 'tq'
require 'delayed_job'

module Delayed
  module Backend
    # A backend of delayed_job: each of its jobs is a job of tq of the kind `delayed_job`.
    #
    #   Delayed::Worker.backend = :tq
    module Tq
      # The kind of all jobs of delayed_job, so that other programs can use the same queues.
      KIND = 'delayed_job'
      # The queue in tq of a job without a queue.
      NO_QUEUE = 'delayed_job'

      class Error < StandardError; end

      # The job has been destroyed, or never existed.
      class RecordNotFound < Error; end

      # tq cannot change a job in this way.
      class NotSupported < Error; end

      class << self
        # Names of the classes that handlers may use: an Array, or nil: all. Then YAML is loaded safely.
        attr_accessor :permitted_classes

        # :yaml or :json, for handlers that are written and read. JSON needs permitted_classes and ActiveJob.
        attr_writer :format

        def json?
          return false if @format.nil? || @format == :yaml
          raise ArgumentError, "format must be :yaml or :json, not #{@format.inspect}" unless @format == :json
          raise ArgumentError, 'the format :json needs permitted_classes' unless permitted_classes

          true
        end
      end
    end
  end
end

require_relative 'tq/handler'
require_relative 'tq/store'
require_relative 'tq/job'
require_relative 'tq/waiting'

Delayed::Worker.plugins |= [Delayed::Backend::Tq::Waiting]
