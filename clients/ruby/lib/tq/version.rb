# frozen_string_literal: true

module Tq
  VERSION = '0.2.0'
end
