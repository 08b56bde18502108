# frozen_string_literal: true

require 'date' # Time#to_time
require 'json'
require 'pg'
require 'timeout'

module Tq
  # Calls on one PG::Connection, which the caller owns. Its type maps and its type of column names are neither used nor
  # changed. Errors of the server become Tq::Error.
  class Session
    JSON_ARGUMENTS = %i[payload headers retry options result checkpoint parents progress detail search settings].freeze
    ARRAY = PG::TextEncoder::Array.new(elements_type: PG::TextEncoder::String.new)
    TEXT = PG::TypeMapAllStrings.new
    private_constant :ARRAY, :TEXT

    attr_reader :connection

    # JSON that is a text already.
    Text = Struct.new(:text)

    # On a new connection of `connect`. limit: seconds after which a silent server counts as lost.
    def self.open(connect, limit: nil)
      new(connect.call, limit: limit)
    rescue PG::Error => e
      raise Tq.translated(e)
    end

    def initialize(connection, limit: nil)
      @connection = connection
      @limit = limit
    end

    # Runs a statement. params: texts or nil. Returns rows: Array of Hash from column to text or nil.
    def rows(sql, params = [])
      result = limited { connection.exec_params(sql, params, 0, TEXT) }
      result.type_map = TEXT
      result.field_name_type = :string
      result.to_a
    rescue PG::Error => e
      raise Tq.translated(e)
    end

    # Raises ConnectionLost if the block takes longer than the limit. The connection cannot be used then.
    def limited(&block)
      @limit ? Timeout.timeout(@limit, ConnectionLost, 'the server does not answer', &block) : yield
    end

    # Calls a function with named arguments; those that are nil are left out. Returns rows.
    def call(function, **arguments)
      names, values = arguments.compact.to_a.transpose
      list = (names || []).each_with_index.map { |name, i| "#{name} => $#{i + 1}" }.join(', ')
      rows("SELECT * FROM #{function}(#{list})", (names || []).zip(values || []).map { |name, value| self.class.text(name, value) })
    end

    # As `call`, for a function that returns one value: its text.
    def value(function, **arguments)
      call(function, **arguments).first&.values&.first
    end

    # Runs the block in a transaction, or in the one that is open.
    def transaction
      return yield if in_transaction?

      rows('BEGIN')
      begin
        result = yield
      rescue Exception
        rollback
        raise
      end
      rows('COMMIT')
      result
    end

    def in_transaction?
      connection.transaction_status != PG::PQTRANS_IDLE
    end

    def lost?
      connection.finished? || connection.status != PG::CONNECTION_OK
    end

    # The text of an argument: JSON, an interval from seconds, a time, an array, or as it is.
    def self.text(name, value)
      return value.text if value.is_a?(Text)
      return JSON.generate(value) if JSON_ARGUMENTS.include?(name)

      case value
      when Array then array(value)
      when Numeric, true, false then %i[delay timeout lease_for wait extend retry_in].include?(name) ? interval(value) : value.to_s
      when nil then nil
      else value.respond_to?(:strftime) ? time(value) : interval(value)
      end
    end

    # The encoder leaves a string that passes for ASCII, and would not be converted for the connection.
    def self.array(values)
      ARRAY.encode(values.map { |one| one.nil? ? nil : text(nil, one) }, Encoding::UTF_8).force_encoding(Encoding::UTF_8)
    end

    # The text of an interval: seconds, an ActiveSupport::Duration, or text as it is.
    def self.interval(value)
      return value.to_s if value.is_a?(String) || value.is_a?(Symbol)

      raise ArgumentError, "not a duration: #{value.inspect}" unless value.respond_to?(:to_f) && value.to_f.finite?

      format('%.6f s', value.to_f)
    end

    def self.time(value)
      value.to_time.getutc.strftime('%F %T.%6N+00')
    end

    private

    def rollback
      rows('ROLLBACK') unless lost?
    rescue Error
      nil # the connection is broken; the first error counts
    end
  end
end
