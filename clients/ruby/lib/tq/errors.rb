# frozen_string_literal: true

module Tq
  # An error that the server raised for a call of tq. `cause` is the error of the driver.
  class Error < StandardError
    # sqlstate: String of 5 characters; detail, hint: String or nil
    attr_reader :sqlstate, :detail, :hint

    def initialize(message, sqlstate: nil, detail: nil, hint: nil)
      super(message)
      @sqlstate = sqlstate
      @detail = detail
      @hint = hint
    end

    # Whether the same call may succeed later.
    def temporary?
      TEMPORARY.include?(sqlstate)
    end

    def full_message(...)
      [super, detail && "DETAIL:  #{detail}", hint && "HINT:  #{hint}"].compact.join("\n")
    end
  end

  TEMPORARY = %w[TQ003 TQ009 55P03 57014 40001 40P01 53100 53200 53300 53400 25006].freeze
  private_constant :TEMPORARY

  # The lease has expired or was revoked, or the job has ended. Drop the work.
  class LeaseLost < Error; end

  class QueueNotFound < Error; end

  # The queue is full, or its rate is exceeded. Try again later.
  class QueueFull < Error; end

  # No such job, or no right on its queue.
  class JobNotFound < Error; end

  # The job, queue or batch is in the wrong state.
  class WrongState < Error; end

  # tq is not in shared_preload_libraries.
  class NotPreloaded < Error; end

  # The library of the server cannot serve the version of the extension.
  class VersionMismatch < Error; end

  # The unique key is taken. The detail names the job that has it.
  class UniqueKeyTaken < Error; end

  # The queues of this database are not loaded yet. Try again.
  class NotLoaded < Error; end

  # Changes after the cursor were deleted.
  class ChangesDeleted < Error; end

  # A value out of range, null where it is not allowed, or malformed.
  class InvalidArgument < Error; end

  # A right on the queue or the job is missing.
  class InsufficientPrivilege < Error; end

  # No such role, schedule, handler or kind.
  class UnknownObject < Error; end

  # The queue exists.
  class DuplicateObject < Error; end

  # A fixed limit is reached, such as the number of queues.
  class LimitReached < Error; end

  # An argument is larger than a setting allows. The hint names the setting.
  class TooLarge < Error; end

  # A read-only transaction, or a standby.
  class ReadOnly < Error; end

  # Another transaction is changing the job, the queue or the batch. Try again.
  class Busy < Error; end

  # The functions of tq are not there: no CREATE EXTENSION, another schema, or an older version.
  class FunctionNotFound < Error; end

  # The connection broke; the outcome of the statement is unknown.
  class ConnectionLost < Error; end

  NOT_INSTALLED = 'Is tq installed in this database, and its schema in the search_path? Its version may be too old.'

  CLASSES = {
    'TQ001' => LeaseLost, 'TQ002' => QueueNotFound, 'TQ003' => QueueFull, 'TQ004' => JobNotFound, 'TQ005' => WrongState,
    'TQ006' => NotPreloaded, 'TQ007' => VersionMismatch, 'TQ008' => UniqueKeyTaken, 'TQ009' => NotLoaded,
    'TQ010' => ChangesDeleted, '25006' => ReadOnly, '42501' => InsufficientPrivilege, '42704' => UnknownObject,
    '42710' => DuplicateObject, '42883' => FunctionNotFound, '53400' => LimitReached, '54000' => TooLarge,
    '55P03' => Busy, '55006' => Busy
  }.freeze
  # An error of libpq: the server wants one.
  NO_PASSWORD = 'no password supplied'
  private_constant :CLASSES, :NOT_INSTALLED, :NO_PASSWORD

  # The class for a SQLSTATE. Classes 22 and 08 have one each; 57P01 to 57P03 say that the server stops.
  def self.error_class(sqlstate)
    CLASSES.fetch(sqlstate) do
      case sqlstate
      when /\A22/ then InvalidArgument
      when /\A(08|57P0[1-3])/ then ConnectionLost
      else Error
      end
    end
  end

  # The error of tq for a PG::Error.
  def self.translated(error)
    result = error.result if error.respond_to?(:result)
    state = result&.error_field(PG::PG_DIAG_SQLSTATE)
    return without_result(error) if state.nil?

    hint = state == '42883' ? NOT_INSTALLED : result.error_field(PG::PG_DIAG_MESSAGE_HINT)
    error_class(state).new(result.error_field(PG::PG_DIAG_MESSAGE_PRIMARY), sqlstate: state,
                           detail: result.error_field(PG::PG_DIAG_MESSAGE_DETAIL), hint: hint)
  end

  # The error for one of libpq. That of a server that refuses a connection has a SQLSTATE: see Connection.
  def self.without_result(error)
    message = clean(error.message)
    state = message.include?(NO_PASSWORD) ? '28P01' : message[/:  (\w{5}): /, 1]
    lost = error.is_a?(PG::ConnectionBad) || error.is_a?(PG::UnableToSend)
    text = message.gsub(/(?<=:  )\w{5}: /, '').gsub(/^LOCATION:.*\n?/, '').strip
    (lost ? ConnectionLost : Error).new(text, sqlstate: state)
  end
  private_class_method :without_result

  # A text that the server takes: UTF-8 without NUL.
  def self.clean(text)
    text.dup.force_encoding(Encoding::UTF_8).scrub.delete("\0")
  end

  # What a handler raises to end its job otherwise than with an error.

  # Fails the job, which is tried again after `delay` (seconds, or text with an interval), else by its retry policy.
  class Retry < StandardError
    attr_reader :delay

    def initialize(delay = nil, message = 'retry')
      super(message)
      @delay = delay
    end
  end

  # Fails the job for good: a retry cannot succeed.
  class Fatal < StandardError; end

  # Sets the job aside for people to look at.
  class Bury < StandardError; end

  # Gives the job back without counting the attempt. No claim gets it before `delay` has passed.
  class Release < StandardError
    attr_reader :delay

    def initialize(delay = 0, message = 'released')
      super(message)
      @delay = delay
    end
  end
end
