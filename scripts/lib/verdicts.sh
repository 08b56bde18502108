# How the stages of scripts/test count and name cases: the counters stage_passed and stage_failed, and a line in $TQ_FAILED,
# "NAME: MESSAGE", for each failed one. Source it after tq.sh.
# shellcheck disable=SC2034 # counters are read by scripts/test

# tq_fail NAME MESSAGE: one failed case; NAME is what --only STAGE/NAME repeats
tq_fail() {
	stage_failed=$((stage_failed + 1))
	tq_say "FAILED: $1: $2"
	printf '%s: %s\n' "$1" "$2" >>"${TQ_FAILED:-/dev/null}"
}

# tq_case NAME COMMAND...: one case, decided by COMMAND
tq_case() {
	_tq_text=$1
	shift
	_tq_said=$TQ_BUILD/log/${stage:-case}.said
	mkdir -p "$TQ_BUILD/log"
	if "$@" >"$_tq_said" 2>&1; then
		stage_passed=$((stage_passed + 1))
	else
		cat "$_tq_said" >&2
		tq_fail "$_tq_text" "$(grep -v '^ *$' "$_tq_said" | head -n 3 | cut -c1-160 | paste -sd '|' -)"
	fi
}

# tq_judge STATUS LOG...: counts the cases in what a program that ended with STATUS printed. TQ_BY_FILE=1: a case is named
# by its log.
tq_judge() {
	_tq_ended=$1
	_tq_first=$2
	shift
	awk -v "by_file=${TQ_BY_FILE:-}" -f "$TQ_ROOT/scripts/lib/judge.awk" "$@" >"$_tq_first.verdict"
	read -r _tq_good _tq_bad <<-END
		$(tail -n 1 "$_tq_first.verdict")
	END
	sed '$d' "$_tq_first.verdict" >>"${TQ_FAILED:-/dev/null}"
	stage_passed=$((stage_passed + _tq_good))
	stage_failed=$((stage_failed + _tq_bad))
	if [ "$_tq_bad" -gt 0 ]; then
		tq_say "FAILED: $_tq_bad of $((_tq_good + _tq_bad))$([ $# -gt 1 ] || echo ", see $_tq_first")"
		sed '$d' "$_tq_first.verdict" >&2
	elif [ "$_tq_ended" -ne 0 ]; then
		tail -n 60 "$_tq_first" >&2
		tq_fail "${_tq_first##*/}" "it ended with exit status $_tq_ended: $(tail -n 1 "$_tq_first" | cut -c1-200), see $_tq_first"
	fi
}

# tq_wanted NAME: whether --only selects it; "=NAME=" selects exactly one
tq_wanted() {
	case "=$1=" in
	*"$TQ_ONLY"*) ;;
	*) return 1 ;;
	esac
}
