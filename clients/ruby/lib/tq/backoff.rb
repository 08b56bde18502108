# frozen_string_literal: true

module Tq
  # Pauses between attempts to connect: 0.1 s, doubled up to 30 s, each with a random deviation of up to a half.
  class Backoff
    FIRST = 0.1
    LONGEST = 30

    def initialize
      reset
    end

    def reset
      @pause = FIRST
    end

    # The next pause in seconds.
    def next
      pause = @pause * rand(0.5..1.5)
      @pause = [@pause * 2, LONGEST].min
      pause
    end
  end
end
