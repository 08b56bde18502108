# frozen_string_literal: true

require 'logger'
require 'active_record'
require 'delayed_job'

# A small application with ActiveRecord and delayed_job.
ActiveRecord::Base.logger = Logger.new(IO::NULL)
ActiveRecord::Base.establish_connection(adapter: 'postgresql', database: ENV.fetch('PGDATABASE'))
ActiveRecord::Schema.verbose = false
ActiveRecord::Schema.define do
  create_table(:stories, if_not_exists: true) { |table| table.string :text }
end
Delayed::Worker.logger = Logger.new(ENV['TQ_LOG'] || IO::NULL)
Delayed::Worker.backend = :tq

class Story < ActiveRecord::Base
  def tell
    text
  end
end
