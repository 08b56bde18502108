# frozen_string_literal: true

require 'rails/railtie'

module Tq
  # Lets Rails find the adapter by its name.
  class Railtie < ::Rails::Railtie
    initializer 'tq.active_job', before: 'active_job.set_configs' do
      ActiveSupport.on_load(:active_job) { require 'active_job/queue_adapters/tq_adapter' }
    end
  end
end
