# frozen_string_literal: true

require_relative 'lib/tq/version'

Gem::Specification.new do |spec|
  spec.name = 'tq'
  spec.version = Tq::VERSION
  spec.authors = ['The tq developers']
  spec.summary = 'Client of tq, a task queue inside PostgreSQL'
  spec.description = 'Enqueues inside your transaction, runs jobs in threads, and is a backend of delayed_job.'
  spec.license = 'PostgreSQL'
  spec.required_ruby_version = '>= 3.1'
  spec.files = Dir.chdir(__dir__) { Dir['lib/**/*.rb'] + Dir['exe/*'] + ['README.md'] }
  spec.bindir = 'exe'
  spec.executables = ['tq-worker']
  spec.require_paths = ['lib']
  spec.add_runtime_dependency 'pg', '~> 1.2'
  spec.metadata = { 'rubygems_mfa_required' => 'true' }
end
