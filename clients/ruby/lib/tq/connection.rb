# frozen_string_literal: true

require 'pg'

module Tq
  # libpq adds the SQLSTATE to the error of a server that refuses a connection, if it is asked to before it connects:
  # see Tq.translated.
  class Connection < PG::Connection
    def self.open(**options)
      new(**options).tap { |connection| connection.set_error_verbosity(PG::PQERRORS_DEFAULT) }
    end

    # PG calls it for each new connection.
    def self.connect_start(*)
      super&.tap { |connection| connection.set_error_verbosity(PG::PQERRORS_VERBOSE) }
    end
  end
  private_constant :Connection
end
