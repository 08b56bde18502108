# frozen_string_literal: true

require 'delayed/serialization/active_record'
