# frozen_string_literal: true

# Appends lines to the file that TQ_LEDGER names, in the format of test/chaos/ledger.py.
module Ledger
  WHO = "w#{Process.pid}"

  def self.note(event, *words, who: WHO)
    line = [format('%.6f', Time.now.to_f), who, event, *words].join(' ')
    File.open(ENV.fetch('TQ_LEDGER'), 'a') { |file| file.syswrite("#{line}\n") }
  end
end
