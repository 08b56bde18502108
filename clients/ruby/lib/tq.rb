# frozen_string_literal: true

require_relative 'tq/version'
require_relative 'tq/errors'
require_relative 'tq/connection'
require_relative 'tq/session'
require_relative 'tq/tracing'

# A client of tq, a task queue inside PostgreSQL. It calls only the public SQL functions, and its names are theirs.
module Tq
  autoload :Codec, File.expand_path('tq/codec', __dir__)
  autoload :Worker, File.expand_path('tq/worker', __dir__)
  @handlers = {}
  # A server that is gone is noticed; a standby gets no calls; texts are UTF-8, as the kinds of handlers are.
  DEFAULTS = { connect_timeout: 10, keepalives_idle: 10, keepalives_interval: 3, keepalives_count: 3, tcp_user_timeout: 20_000,
               target_session_attrs: 'read-write', client_encoding: 'UTF8' }.freeze
  private_constant :DEFAULTS

  class << self
    # Where a new connection goes: what PG.connect takes, or nil for ActiveRecord's database, else libpq's environment.
    attr_accessor :dsn
    # Encodes payloads and results, and decodes them: a Tq::Codec or nil.
    attr_accessor :codec
    # A callable that returns the PG::Connection of the caller; nil: ActiveRecord's, if it is connected.
    attr_accessor :connection_source

    # Handlers by kind, for workers that are given none.
    attr_reader :handlers

    # Says what to do with jobs of a kind; nil: with jobs without a kind. The block gets a Tq::Job.
    def handle(kind, &handler)
      @handlers[kind&.to_s] = handler
    end

    # Enqueues a job in the transaction that is open on `connection`, and returns its id. Returns nil if `unique_mode` is
    # ignore and the key is taken. Arguments: those of tq_enqueue; durations in seconds or text, times as Time.
    def enqueue(queue, payload = {}, connection: nil, **arguments)
      payload = codec.encode(payload, Codec::PAYLOAD) if codec
      id = Tracing.enqueue(queue, arguments) do |all|
        session(connection).value('tq_enqueue', queue: queue, payload: payload, **all)
      end
      id && Integer(id)
    end

    # Enqueues a job for each payload. Returns the ids in the same order. Arguments: those of tq_enqueue_many.
    def enqueue_many(queue, payloads, connection: nil, **arguments)
      texts = payloads.map { |payload| JSON.generate(codec ? codec.encode(payload, Codec::PAYLOAD) : payload) }
      ids = Tracing.enqueue(queue, arguments) do |all|
        session(connection).value('tq_enqueue_many', queue: queue, payloads: texts, **all)
      end
      PG::TextDecoder::Array.new.decode(ids).map { |id| id && Integer(id) }
    end

    # As `enqueue`, but returns the id and the outcome, 'created', 'replaced' or 'skipped': { id:, outcome: }.
    def enqueue_info(queue, payload = {}, connection: nil, **arguments)
      payload = codec.encode(payload, Codec::PAYLOAD) if codec
      row = Tracing.enqueue(queue, arguments) do |all|
        session(connection).call('tq_enqueue_info', queue: queue, payload: payload, **all).first
      end
      { id: row['id'] && Integer(row['id']), outcome: row['outcome'] }
    end

    # The id of the job that has a unique key; nil if the key is free.
    def find(queue, unique_key, connection: nil)
      id = session(connection).value('tq_find', queue: queue, unique_key: unique_key)
      id && Integer(id)
    end

    # Frees a key that an ended job keeps because of unique_for. Returns whether it was taken.
    def free_key(queue, unique_key, connection: nil)
      session(connection).value('tq_free_key', queue: queue, unique_key: unique_key) == 't'
    end

    # Waits until all of the jobs have ended, or with `first` one of them, or until `timeout` has passed. Outside a
    # transaction, which would keep a snapshot.
    def wait_jobs(ids, timeout: nil, first: false, connection: nil)
      session(connection).rows('CALL tq_wait_jobs($1::bigint[], $2::interval, $3::boolean)',
                               [Session.text(:ids, ids), Session.text(:timeout, timeout), first.to_s])
      nil
    end

    # States and results of jobs, in the same order: { id:, state:, result:, error: } for each. The state of a job that
    # does not exist is nil.
    def outcomes(ids, connection: nil)
      session(connection).call('tq_outcomes', ids: ids).map do |row|
        id = Integer(row['id'])
        result = row['result'] && JSON.parse(row['result'])
        result = codec.decode(result, Codec.result(id)) if codec && !result.nil?
        { id: id, state: row['state'], result: result, error: row['error'] }
      end
    end

    # The connection of the caller: a PG::Connection.
    def connection
      return connection_source.call if connection_source
      return active_record.connection.raw_connection if active_record?

      raise ArgumentError, 'no connection: give connection:, or set Tq.connection_source'
    end

    # A new connection, for the caller to close.
    def connect(application_name: 'tq')
      where = dsn || (active_record? ? active_record_dsn : {})
      where = PG::Connection.conninfo_parse(where).to_h { |one| [one[:keyword].to_sym, one[:val]] }.compact if where.is_a?(String)
      Connection.open(**defaults, application_name: application_name, **where.transform_keys(&:to_sym))
    rescue PG::Error => e
      raise Tq.translated(e)
    end

    # A name that tq takes: the last 63 bytes, where the number of a process is.
    def worker_name(name)
      name.bytesize > 63 ? name.byteslice(-63, 63).scrub('') : name
    end

    def active_record?
      defined?(::ActiveRecord::Base) && ::ActiveRecord::Base.respond_to?(:connection_db_config) &&
        ::ActiveRecord::Base.connection_handler.connection_pool_list.any? &&
        ::ActiveRecord::Base.connection_db_config.adapter == 'postgresql'
    end

    private

    def session(connection)
      Session.new(connection || self.connection)
    end

    # What holds unless the environment or the caller says otherwise.
    def defaults
      yielding = { connect_timeout: 'PGCONNECT_TIMEOUT', target_session_attrs: 'PGTARGETSESSIONATTRS', client_encoding: 'PGCLIENTENCODING' }
      DEFAULTS.reject { |name, _| ENV.key?(yielding[name].to_s) }
    end

    def active_record
      ::ActiveRecord::Base
    end

    # The options of libpq among those of ActiveRecord.
    def active_record_dsn
      found = active_record.connection_db_config.configuration_hash
      renamed = found.merge(dbname: found[:database], user: found[:username]).compact
      renamed.slice(*PG::Connection.conndefaults_hash.keys)
    end
  end
end

require_relative 'tq/railtie' if defined?(Rails::Railtie)
