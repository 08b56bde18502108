#!/bin/bash
# A tq worker with psql only.   usage: worker.sh QUEUE NAME   (and the usual PG* variables)
# Each statement has its own connection, so a server restart needs only a retry.
set -u
queue=$1 name=$2
lease=3 # seconds; renewed after a third of it
stopping=
beat=
trap 'stopping=yes' TERM
export PGAPPNAME=$name

# sql [psql arguments]: statements from standard input; status 3 is a server error, 2 a broken connection
sql() {
	psql -XqAt -v ON_ERROR_STOP=1 -v VERBOSITY=verbose -v queue="$queue" -v name="$name" -v lease="$lease" "$@"
}

note() {
	[ -z "${WORK_LOG:-}" ] || printf '%s %s %s %s\n' "$(date +%s.%6N)" "$name" "$1" "$2" >>"$WORK_LOG"
}

# heartbeats ID LEASE: in the background, until the lease is lost or the job must stop
heartbeats() {
	trap - TERM
	while sleep "$(awk "BEGIN { print $lease / 3 }")"; do
		case $(sql -v id="$1" -v job_lease="$2" <<<"SELECT action FROM tq_heartbeat(:id, :job_lease)") in
		lost | cancel) kill -USR1 "$$" ;;
		quiet) kill -TERM "$$" ;;
		esac
	done
}

# finish STATEMENTS: runs the statements that end a job; prints the server's answer or "lost"
finish() {
	said=$(sql "${vars[@]}" 2>&1 <<<"$1") && note told "$job ${said##*$'\n'}" && return
	case $said in
	*TQ001*) note told "$job lost" ;;
	*) printf '%s\n' "$said" >&2 ;; # unknown outcome: if nothing was committed, the lease expires
	esac
}

process() {
	note start "$job $until"
	vars=(-v id="$id" -v job_lease="$job_lease" -v transfer="$transfer" -v amount="$amount")
	if [ "$attempt" -le "$failures" ]; then
		note end "$job fail"
		finish "SELECT tq_fail(:id, :job_lease, 'the bank does not answer')"
		return
	fi
	if [ "$amount" -le 0 ]; then
		note end "$job kill"
		finish "SELECT tq_fail(:id, :job_lease, 'nothing to book', fatal => true)"
		return
	fi
	# the slow work, outside any transaction
	heartbeats "$id" "$job_lease" &
	beat=$!
	sleep "$seconds" &
	work=$!
	trap 'kill $work' USR1
	# a trapped signal ends wait before the work has ended
	until wait "$work"; status=$?; [ "$status" -le 128 ] || ! kill -0 "$work" 2>/dev/null; do :; done
	trap '' USR1 # a late signal would end the worker
	kill "$beat"
	if [ "$status" -ne 0 ]; then
		note end "$job fail"
		finish "SELECT tq_fail(:id, :job_lease, 'stopped as asked')"
		return
	fi
	note end "$job complete"
	finish "BEGIN;
		INSERT INTO booking VALUES (:id, :'transfer', :amount, :'name');
		SELECT tq_complete(:id, :job_lease);
		COMMIT"
}

while [ -z "$stopping" ]; do
	row=$(sql <<-'SQL'
		SELECT id, lease, attempt, extract(epoch FROM lease_expires_at), payload->>'transfer', payload->>'amount',
			coalesce(payload->>'seconds', '0'), coalesce(payload->>'failures', '0')
		FROM tq_claim(:'queue', worker => :'name', lease_for => :lease * interval '1 s', wait => '2 s')
	SQL
	) || sleep 0.2
	if [ -n "$row" ]; then
		IFS='|' read -r id job_lease attempt until transfer amount seconds failures <<<"$row"
		job="$id $job_lease $attempt"
		process
	fi
done
