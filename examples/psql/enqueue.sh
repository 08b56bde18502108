#!/bin/bash
# Enqueues with psql.   usage: enqueue.sh QUEUE NAME COUNT   (and the usual PG* variables)
# Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
# so no worker ever sees its job.
set -eu
for ((i = 1; i <= $3; i++)); do
	printf '\\set i %d\n' "$i"
	cat <<-'SQL'
		BEGIN;
		INSERT INTO transfer VALUES (:'name' || '-' || :i, CASE WHEN :i % 10 = 9 THEN 0 ELSE :i END);
		SELECT tq_enqueue(:'queue', jsonb_build_object('transfer', name, 'amount', amount, 'seconds', (:i % 4) / 20.0,
				'failures', (:i % 5 = 0)::int), kind => 'transfer', delay => CASE WHEN :i % 4 = 0 THEN interval '300 ms' END) AS id
			FROM transfer WHERE name = :'name' || '-' || :i \gset
	SQL
	if ((i % 7 == 0)); then
		printf 'ROLLBACK;\n'
	else
		printf "COMMIT;\n\\\\echo :name'-':i :id\n"
	fi
done | psql -XqAt -v ON_ERROR_STOP=1 -v queue="$1" -v name="$2"
