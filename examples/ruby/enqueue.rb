#!/usr/bin/env ruby
# frozen_string_literal: true

# Enqueues with ruby-pg.   usage: enqueue.rb QUEUE NAME COUNT   (and the usual PG* variables)
# Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
# so no worker ever sees its job.
require 'json'
require 'pg'

queue, name, count = ARGV
conn = PG.connect
(1..count.to_i).each do |i|
  transfer = "#{name}-#{i}"
  amount = i % 10 == 9 ? 0 : i
  payload = { transfer: transfer, amount: amount, seconds: i % 4 / 20.0, failures: (i % 5).zero? ? 1 : 0 }
  conn.exec('BEGIN')
  conn.exec_params('INSERT INTO transfer VALUES ($1, $2)', [transfer, amount])
  id = conn.exec_params("SELECT tq_enqueue($1, $2, kind => 'transfer', delay => $3)",
                        [queue, payload.to_json, ((i % 4).zero? ? '300 ms' : nil)]).getvalue(0, 0)
  if (i % 7).zero?
    conn.exec('ROLLBACK')
  else
    conn.exec('COMMIT')
    puts "#{transfer} #{id}"
  end
end
