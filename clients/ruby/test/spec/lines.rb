# frozen_string_literal: true

require 'rspec/core'

# Prints "ok - ..." or "not ok - ..." for each example, as the stage `clients` wants it.
class Lines
  RSpec::Core::Formatters.register self, :example_passed, :example_failed, :example_pending, :message, :dump_summary

  def initialize(output)
    @output = output
  end

  def example_passed(notification)
    @output.puts "ok - #{notification.example.full_description}"
  end

  # A listed example that failed as expected.
  def example_pending(notification)
    result = notification.example.execution_result
    @output.puts "ok - #{notification.example.full_description} # cannot hold: #{result.pending_message}"
  end

  def example_failed(notification)
    @output.puts "not ok - #{notification.example.full_description}"
    @output.puts notification.fully_formatted(1).gsub(/^/, '  ')
  end

  def message(notification)
    @output.puts notification.message.gsub(/^/, '# ')
  end

  def dump_summary(summary)
    @output.puts 'not ok - the specs could not be loaded' if summary.errors_outside_of_examples_count.positive?
    @output.puts 'not ok - there are no specs' if summary.example_count.zero?
  end
end
