# Lines of results, from which scripts/chaos --report writes docs/reliability.md; test/chaos/report.py defines their
# format. Their origin is determined here by the user that runs the script, because git refuses to read the repository
# of another user. Programs that write results get it from the environment: TQ_COMMIT, and TQ_SERVER after a server was
# chosen.

# tq_commit: the short name of the commit, with a + if the sources differ from it (without docs/); empty without git
tq_commit() {
	[ -e "$TQ_ROOT/.git" ] && command -v git >/dev/null || return 0
	_tq_hash=$(git -C "$TQ_ROOT" rev-parse --short=7 HEAD 2>/dev/null) || return 0
	_tq_changes=$(git --no-optional-locks -C "$TQ_ROOT" status --porcelain -- . ':!docs' 2>/dev/null) || return 0
	printf '%s%s\n' "$_tq_hash" "${_tq_changes:++}"
}

# tq_result FILE SCENARIO TITLE TIMES CHECKED BROKEN SECONDS [SEED]: adds a line; TIMES are members of an object,
# BROKEN is text or empty
tq_result() {
	printf '{"scenario": "%s", "title": "%s", "times": {%s}, "checked": %d, "broken": [%s], "seconds": %d, "date": "%s"%s%s%s}\n' \
		"$2" "$3" "$4" "$5" "${6:+\"$6\"}" "$7" "$(date -u +%F)" "${8:+, \"seed\": $8}" \
		"${TQ_COMMIT:+, \"commit\": \"$TQ_COMMIT\"}" "${TQ_SERVER:+, \"server\": \"$TQ_SERVER\"}" >>"$1"
}
