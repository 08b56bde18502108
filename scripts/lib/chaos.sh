# Scenarios of test/chaos, for scripts/chaos and its stage of scripts/test.

# A disk that can be filled, if this user may mount one; unmounted at exit.
_tq_mount_small() {
	mkdir -p "$1"
	mount -t tmpfs -o "size=200m,mode=700,uid=$(id -u "$TQ_USER")" tmpfs "$1" 2>/dev/null || return 1
	_tq_mounts=$1
}

# tq_chaos ARG...: run them in a folder of their own; results are added to $TQ_RUN/results.jsonl
tq_chaos() {
	_tq_status=0
	tq_need python3 python3-psycopg2 || return 1
	tq_prepare test || return 1
	tq_need libfaketime || tq_say "what needs libfaketime is skipped"
	tq_as mkdir -p "$TQ_RUN/chaos"
	if _tq_mount_small "$TQ_RUN/small"; then
		set -- --small-disk "$TQ_RUN/small" "$@"
	fi
	tq_as env PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$TQ_SRC/test/chaos/run.py" --bin "$PG_BIN" --dir "$TQ_RUN/chaos" \
		--results "$TQ_RUN/results.jsonl" "$@" || _tq_status=$?
	_tq_unmount
	return "$_tq_status"
}
