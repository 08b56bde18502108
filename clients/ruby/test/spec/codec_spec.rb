# frozen_string_literal: true

require_relative 'helper'
require 'tq/job'

# The values that every library must decode or refuse.
describe Tq::Codec do
  vectors = JSON.parse(File.read("#{ENV.fetch('TQ_VECTORS')}/codec.json"))
  keys = vectors['keys'].transform_values { |key| key.unpack1('m0') }

  vectors['accepted'].each do |vector|
    it "decodes #{vector['name']}" do
      expect(described_class.new(keys, kid: '2026a').decode_text(vector['encoded'], vector['context'])).to eq(vector['text'])
    end
  end

  vectors['refused'].each do |vector|
    it "refuses #{vector['name']}" do
      codec = described_class.new(keys, kid: '2026a')
      expect { codec.decode(vector['encoded'], vector['context']) }.to raise_error(Tq::Codec::DecodeError)
    end
  end

  %w[A256GCM HS256].each do |alg|
    it "decodes what it encodes with #{alg}, with another key and in its own context only" do
      value = { 'to' => 'Grüße', 'n' => [1, 2.5, nil] }
      encoded = described_class.new(keys, kid: '2026b', alg: alg).encode(value, Tq::Codec::PAYLOAD)
      codec = described_class.new(keys, kid: '2026a')
      expect(codec.decode(JSON.parse(JSON.generate(encoded)), Tq::Codec::PAYLOAD)).to eq(value)
      expect { codec.decode(encoded, Tq::Codec.result(1)) }.to raise_error(Tq::Codec::DecodeError, /key id 2026b/)
    end
  end

  it 'leaves the counts of a large batch as they are' do
    codec = described_class.new(keys, kid: '2026a')
    row = { 'id' => '1', 'lease' => '1', 'attempt' => '1', 'max_attempts' => '20', 'priority' => '100', 'enqueued_at' => '0',
            'payload' => JSON.generate(codec.encode({}, Tq::Codec::PAYLOAD)), 'parents' => '{"total": 101, "failed": 0}' }
    job = Tq::Job.new(row, nil)
    job.decode(codec)
    expect(job.parents).to eq('total' => 101, 'failed' => 0)
  end

  it 'lets plain values through only if told so' do
    expect { described_class.new(keys, kid: '2026a').decode({ 'a' => 1 }, Tq::Codec::PAYLOAD) }.to raise_error(Tq::Codec::DecodeError)
    plain = described_class.new(keys, kid: '2026a', accept_plain: true)
    expect(plain.decode({ 'a' => 1 }, Tq::Codec::PAYLOAD)).to eq('a' => 1)
  end
end
