# Scenarios of test/chaos, for scripts/chaos and its stage of scripts/test.

# tq_chaos ARG...: run them in a folder of their own; results are added to $TQ_RUN/results.jsonl
tq_chaos() {
	tq_need python3 python3-psycopg2 || return 1
	tq_prepare test || return 1
	tq_as mkdir -p "$TQ_RUN/chaos"
	tq_as env PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$TQ_SRC/test/chaos/run.py" --bin "$PG_BIN" --dir "$TQ_RUN/chaos" \
		--results "$TQ_RUN/results.jsonl" "$@"
}
