# frozen_string_literal: true

require 'pg'
require 'securerandom'
require 'stringio'
require 'tq'

# A new database with tq, and sessions in it.
module Database
  NAME = 'tq_ruby'

  def self.make
    PG.connect(dbname: 'postgres') do |conn|
      conn.exec('SET client_min_messages = warning')
      ["DROP DATABASE IF EXISTS #{NAME} WITH (FORCE)", "CREATE DATABASE #{NAME}"].each { |sql| eventually { unused(conn, sql) } }
      conn.exec("ALTER DATABASE #{NAME} SET client_min_messages = warning")
    end
    ENV['PGDATABASE'] = NAME
    PG.connect { |conn| conn.exec('CREATE EXTENSION tq') }
  end

  # Creates or drops a database. False if a process has not left it, or template1, within the five seconds that PostgreSQL
  # waits.
  def self.unused(conn, sql)
    conn.exec(sql)
    true
  rescue PG::ObjectInUse
    false
  end

  # Calls the block until it returns something true.
  def eventually
    limit = Integer(ENV.fetch('PG_TEST_TIMEOUT_DEFAULT', '180'))
    finish = Process.clock_gettime(Process::CLOCK_MONOTONIC) + limit
    until (found = yield)
      raise "not within #{limit} s" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > finish

      sleep 0.02 # poll
    end
    found
  end
  module_function :eventually

  # A session on a connection of its own.
  def sql
    @sql ||= Tq::Session.new(PG.connect)
  end
end

RSpec.configure do |config|
  config.expect_with(:rspec) { |expectations| expectations.max_formatted_output_length = nil }
  config.include Database
  config.after { @sql&.connection&.close }
end
