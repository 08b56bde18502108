# frozen_string_literal: true

require 'open3'
require_relative 'helper'
require_relative 'processes'

# Runs the programs of docs/guides/ruby.md that show their output.
describe 'docs/guides/ruby.md' do
  page = File.read(File.expand_path('../../../../docs/guides/ruby.md', __dir__))
  programs = page.scan(/^```ruby\n(.*?)^```\n\n```text\n(.*?)^```$/m)
  before_it = { 'Delayed::' => "require '#{__dir__}/application'" }

  before { Database.make }

  it 'has programs' do
    expect(programs.size).to eq(4)
  end

  programs.each do |program, output|
    it "shows what this prints: #{program[/^(?!require)\S.*$/]}" do
      prelude = before_it.select { |word, _| program.include?(word) }.values.join("\n")
      printed, status = Open3.capture2e('ruby', stdin_data: "#{prelude}\n#{program}")
      expect([printed, status.exitstatus]).to eq([output, 0])
    end
  end
end

describe 'the page of the gem' do
  include Processes

  before { Database.make }

  it 'shows a worker, and a program that gives it a job' do
    page = File.read(File.expand_path('../../README.md', __dir__))
    page.scan(/^```ruby\n# (\S+)\n(.*?)^```$/m) { |name, body| File.write("#{ENV.fetch('TQ_WORK')}/#{name}", body) }
    worker = start('ruby', "#{Gem.dir}/bin/tq-worker", '--require', './hello.rb', 'greetings')
    printed, = Open3.capture2e('ruby', "#{ENV.fetch('TQ_WORK')}/enqueue.rb")
    id = printed[/^job (\d+)$/, 1]
    eventually { sql.rows('SELECT state FROM tq_get($1)', [id]).first['state'] == 'succeeded' }
    expect(Tq.outcomes([id], connection: sql.connection).first[:result]).to eq('greeted' => 'Ada')
    expect(kill(worker, 'TERM').exitstatus).to eq(0)
  end
end
