# frozen_string_literal: true

require_relative 'helper'
Database.make
require_relative 'application'
require 'delayed/backend/shared_spec'

# The examples that delayed_job has for all backends.
describe Delayed::Backend::Tq::Job do
  it_behaves_like 'a delayed_job backend'

  # 82 in the file; those in a loop or in a nested group run several times
  it 'meets all examples of delayed_job' do
    count = ->(group) { group.examples.size + group.children.sum(&count) }
    expect(count.call(self.class.children.first)).to eq(87)
  end
end
