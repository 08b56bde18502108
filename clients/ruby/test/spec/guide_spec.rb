# frozen_string_literal: true

require 'open3'
require_relative 'helper'

# Runs the programs of docs/guides/ruby.md that show their output.
describe 'docs/guides/ruby.md' do
  page = File.read(File.expand_path('../../../../docs/guides/ruby.md', __dir__))
  programs = page.scan(/^```ruby\n(.*?)^```\n\n```text\n(.*?)^```$/m)
  before_it = { 'Delayed::' => "require '#{__dir__}/application'" }

  before { Database.make }

  it 'has programs' do
    expect(programs.size).to eq(3)
  end

  programs.each do |program, output|
    it "shows what this prints: #{program[/^(?!require)\S.*$/]}" do
      prelude = before_it.select { |word, _| program.include?(word) }.values.join("\n")
      printed, status = Open3.capture2e('ruby', stdin_data: "#{prelude}\n#{program}")
      expect([printed, status.exitstatus]).to eq([output, 0])
    end
  end
end
