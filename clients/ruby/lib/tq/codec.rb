# frozen_string_literal: true

require 'json'
require 'openssl'

module Tq
  # Encrypts or signs payloads, results and checkpoints, in the format of clients/README.md.
  class Codec
    PAYLOAD = 'tq.v1:payload'
    ALGORITHMS = %w[A256GCM HS256].freeze
    IV = 12
    TAG = 16

    # A value that cannot be decoded. The message names the key id and the fault, never a byte of the value.
    class DecodeError < StandardError; end

    def self.result(id)
      "tq.v1:result:#{id}"
    end

    def self.checkpoint(id)
      "tq.v1:checkpoint:#{id}"
    end

    # keys: Hash from key id to 32 bytes. kid: the id of the key that encodes. alg: A256GCM or HS256. accept_plain: whether
    # `decode` lets values through that are not encoded.
    def initialize(keys, kid:, alg: 'A256GCM', accept_plain: false)
      raise ArgumentError, "unknown alg #{alg.inspect}: use #{ALGORITHMS.join(' or ')}" unless ALGORITHMS.include?(alg)
      raise ArgumentError, "no key #{kid.inspect}" unless keys.key?(kid)

      wrong = keys.find { |_, key| key.bytesize != 32 }
      raise ArgumentError, "key #{wrong.first.inspect} must have 32 bytes" if wrong

      @keys = keys
      @kid = kid
      @alg = alg
      @accept_plain = accept_plain
    end

    # The encoded value: a Hash.
    def encode(value, context)
      text = JSON.generate(value).encode(Encoding::UTF_8)
      @alg == 'A256GCM' ? encrypt(text, context) : sign(text, context)
    end

    # The value. strict: whether it must be encoded, whatever accept_plain says. Raises DecodeError.
    def decode(encoded, context, strict: false)
      JSON.parse(decode_text(encoded, context, strict: strict), create_additions: false)
    rescue JSON::ParserError
      raise DecodeError, 'the value is no JSON'
    end

    # The text of the value: JSON in UTF-8.
    def decode_text(encoded, context, strict: false)
      unless encoded.is_a?(Hash) && encoded['tq'] == 'v1'
        raise DecodeError, 'the value is not encoded' unless @accept_plain && !strict && !(encoded.is_a?(Hash) && encoded.key?('tq'))

        return JSON.generate(encoded)
      end
      text = case encoded['alg']
             when 'A256GCM' then decrypt(encoded, context)
             when 'HS256' then verify(encoded, context)
             else raise DecodeError, 'unknown alg'
             end
      text.force_encoding(Encoding::UTF_8)
      text.valid_encoding? ? text : raise(DecodeError, 'the text is not UTF-8')
    end

    private

    def encrypt(text, context)
      cipher = OpenSSL::Cipher.new('aes-256-gcm').encrypt
      cipher.key = @keys.fetch(@kid)
      iv = cipher.random_iv
      cipher.auth_data = context
      sealed = text.empty? ? '' : cipher.update(text)
      sealed += cipher.final + cipher.auth_tag(TAG)
      { 'tq' => 'v1', 'alg' => 'A256GCM', 'kid' => @kid, 'iv' => base64(iv), 'ct' => base64(sealed) }
    end

    def decrypt(encoded, context)
      iv = bytes(encoded, 'iv')
      sealed = bytes(encoded, 'ct')
      key = key(encoded)
      raise fault(encoded, 'its iv must have 12 bytes') unless iv.bytesize == IV
      raise fault(encoded, 'it is too short') if sealed.bytesize < TAG

      cipher = OpenSSL::Cipher.new('aes-256-gcm').decrypt
      cipher.key = key
      cipher.iv = iv
      cipher.auth_tag = sealed.byteslice(-TAG, TAG)
      cipher.auth_data = context
      text = sealed.byteslice(0, sealed.bytesize - TAG)
      (text.empty? ? '' : cipher.update(text)) + cipher.final
    rescue OpenSSL::Cipher::CipherError
      raise fault(encoded, 'it was changed, or belongs elsewhere')
    end

    def sign(text, context)
      { 'tq' => 'v1', 'alg' => 'HS256', 'kid' => @kid, 'text' => text, 'mac' => base64(mac(@keys.fetch(@kid), text, context)) }
    end

    def verify(encoded, context)
      text = encoded['text']
      given = bytes(encoded, 'mac')
      key = key(encoded)
      raise fault(encoded, 'text is no string') unless text.is_a?(String)
      raise fault(encoded, 'it was changed, or belongs elsewhere') unless OpenSSL.secure_compare(given, mac(key, text, context))

      text.dup
    end

    def mac(key, text, context)
      OpenSSL::HMAC.digest('SHA256', key, "#{context}\0".b + text.b)
    end

    def key(encoded)
      @keys.fetch(encoded['kid']) { raise fault(encoded, 'no such key') }
    end

    def base64(bytes)
      [bytes].pack('m0')
    end

    def bytes(encoded, name)
      raise fault(encoded, "#{name} is no string") unless encoded[name].is_a?(String)

      encoded[name].unpack1('m0')
    rescue ArgumentError
      raise fault(encoded, "#{name} is no base64")
    end

    # The key id is shown as far as it can be one.
    def fault(encoded, text)
      kid = encoded['kid']
      kid = kid.is_a?(String) && kid.match?(/\A[\w.:-]{1,64}\z/) ? kid : '?'
      DecodeError.new("key id #{kid}: #{text}")
    end
  end
end
