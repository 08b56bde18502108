# The stages of scripts/test that need no server. Source it after tq.sh. A stage returns non-zero only if it could not run
# at all; scripts/lib/verdicts.sh has how it counts its cases.

. "$TQ_ROOT/scripts/lib/verdicts.sh"
. "$TQ_ROOT/scripts/lib/fuzz.sh"
. "$TQ_ROOT/scripts/lib/server_stages.sh"

# _tq_run LOG COMMAND...: runs it and counts the cases that it prints
_tq_run() {
	_tq_log=$1
	shift
	_tq_status=0
	PYTHONDONTWRITEBYTECODE=1 "$@" >"$_tq_log" 2>&1 || _tq_status=$?
	tq_judge "$_tq_status" "$_tq_log"
}

# Whether a stage whose cases cannot be selected is to run: not with --only NAME, which is for cases elsewhere.
_tq_whole() {
	case $TQ_ONLY in
	'' | =*) ;;
	*) return 1 ;;
	esac
}

# _tq_names GLOB...: the base names of existing test files that --only selects, in order.
_tq_names() {
	for _tq_file; do
		[ -e "$_tq_file" ] || continue
		_tq_name=$(basename "$_tq_file")
		_tq_name=${_tq_name%.*}
		! tq_wanted "$_tq_name" || printf '%s\n' "$_tq_name"
	done
}

# ---- build, lint

_tq_no_warnings() {
	! grep -n 'warning:' "$1"
}

tq_stage_build() {
	_tq_whole || return 0
	# a full build, so that every file's warnings are seen
	tq_prepare_variant release
	rm -rf "$TQ_HOME/obj"
	tq_case "the extension builds" tq_prepare release
	tq_case "g++ and clang find nothing to warn of" _tq_no_warnings "$TQ_HOME/build.log"
	tq_case "the extension builds with wait points" tq_prepare test
	tq_case "no warning of the build with wait points" _tq_no_warnings "$TQ_HOME/build.log"
}

tq_stage_lint() {
	tq_prepare release || return 1
	TQ_SO=$TQ_HOME/obj/tq.so
	export TQ_SO
	for _tq_check in "$TQ_SRC"/scripts/check_*; do
		! tq_wanted "${_tq_check##*/}" || tq_case "${_tq_check##*/}" "$_tq_check"
	done
}

# ---- the core, outside a server

# _tq_core NAME [CMAKE_ARG...]: builds a variant of the core, or TQ_TARGETS of it; prints the compiler's errors on failure
_tq_core() {
	tq_need make g++ cmake libgtest-dev || return 1
	tq_prepare_folders
	TQ_CORE=$TQ_BUILD/core-$1
	_tq_log=$TQ_CORE.log
	shift
	_tq_built=${TQ_PREPARED:-/nonexistent}/${TQ_CORE##*/}${TQ_TARGETS:+-part}
	[ ! -e "$_tq_built" ] || return 0
	set -- "$@" -DCMAKE_CXX_COMPILER_LAUNCHER="$TQ_CCACHE"
	# the cache of a checkout that was elsewhere is invalid
	if ! cmake -S "$TQ_SRC" -B "$TQ_CORE" "$@" >"$_tq_log" 2>&1; then
		rm -rf "$TQ_CORE"
		cmake -S "$TQ_SRC" -B "$TQ_CORE" "$@" >"$_tq_log" 2>&1 || { cat "$_tq_log" >&2; return 1; }
	fi
	# shellcheck disable=SC2086 # a list of names
	cmake --build "$TQ_CORE" -j "$TQ_JOBS" --target ${TQ_TARGETS:-all} >>"$_tq_log" 2>&1 ||
		{ grep -E -A 5 '(error|warning):|undefined reference' "$_tq_log" | head -n 60 >&2; return 1; }
	[ -z "${TQ_PREPARED:-}" ] || : >"$_tq_built"
}

# _tq_program PROGRAM [ARG...]: runs it and counts GoogleTest cases, or any other program as one case. TQ_WRAPPER holds a
# command to run PROGRAM with, such as setarch.
_tq_program() {
	_tq_log=$1.log
	_tq_status=0
	# shellcheck disable=SC2086 # a command with its options
	(cd "$TQ_SRC" && exec timeout -k 10 $((900 * TQ_PATIENCE)) ${TQ_WRAPPER:-} "$@") >"$_tq_log" 2>&1 || _tq_status=$?
	[ "$_tq_status" -ne 0 ] || grep -q '^\[==========\]' "$_tq_log" || echo "ok - ${1##*/}" >>"$_tq_log"
	tq_judge "$_tq_status" "$_tq_log"
}

# what selects GoogleTest cases as --only does
_tq_gtest_filter() {
	case $TQ_ONLY in
	=*) printf -- '--gtest_filter=%s' "$TQ_ONLY" | sed 's/==*/=/; s/=$//' ;;
	*) printf -- '--gtest_filter=*%s*' "$TQ_ONLY" ;;
	esac
}

# every program in one folder of a build of the core
_tq_programs() {
	_tq_dir=$1
	shift
	for _tq_one in "$_tq_dir"/*; do
		case $_tq_one in
		*.log | *.verdict | *'/*') ;;
		*) _tq_program "$_tq_one" "$@" ;;
		esac
	done
}

tq_stage_unit() {
	_tq_core plain || return 1
	_tq_programs "$TQ_CORE/unit" "$(_tq_gtest_filter)"
}

tq_stage_asan() {
	_tq_core asan -DTQ_SANITIZE=address,undefined || return 1
	UBSAN_OPTIONS=print_stacktrace=1 _tq_programs "$TQ_CORE/unit" "$(_tq_gtest_filter)"
}

tq_stage_tsan() {
	_tq_core tsan -DTQ_SANITIZE=thread || return 1
	# this compiler's ThreadSanitizer does not support the address layouts of newer kernels
	TQ_WRAPPER=
	if setarch -R true 2>/dev/null; then
		TQ_WRAPPER="setarch -R"
	fi
	_tq_programs "$TQ_CORE/unit" "$(_tq_gtest_filter)"
	TQ_WRAPPER=
}

tq_stage_model() {
	_tq_core plain || return 1
	_tq_programs "$TQ_CORE/model" "$(_tq_gtest_filter)"
}

# First the corpus, which includes every input that ever failed; then a short fuzzing run from there; then a server.
tq_stage_fuzz() {
	_tq_tests=$(_tq_names "$TQ_ROOT"/test/fuzz/*.cpp)
	[ -z "$_tq_tests" ] || tq_fuzz_build || return 1
	for _tq_test in $_tq_tests; do
		_tq_inputs=$TQ_BUILD/fuzz-inputs/$_tq_test
		tq_case "$_tq_test: its corpus can be unpacked" tq_fuzz_unpack "$_tq_test" "$_tq_inputs"
		_tq_program "$TQ_CORE/fuzz/$_tq_test" -seed=1 -runs=200000 -max_total_time=5 -max_len=1024 -timeout=180 \
			-artifact_prefix="$TQ_CORE/" "$_tq_inputs"
	done
	_tq_fuzz_servers
}

# TQ_SEED=n sets another seed.
_tq_fuzz_servers() {
	_tq_tests=
	for _tq_test in $tq_fuzz_server_names; do
		! tq_wanted "$_tq_test" || _tq_tests="$_tq_tests $_tq_test"
	done
	[ -n "$_tq_tests" ] || return 0
	tq_need python3 python3-psycopg2 || return 1
	_tq_server fuzz test "log_line_prefix = '%m [%p] %b %d %e '" || return 1
	for _tq_test in $_tq_tests; do
		_tq_status=0
		tq_fuzz_server "$_tq_test" "$_tq_out/$_tq_test.log" --seed "${TQ_SEED:-1}" --cases 700 --time 60 || _tq_status=$?
		tq_judge "$_tq_status" "$_tq_out/$_tq_test.log"
	done
	_tq_server_end
}

# TQ_SEED=n and TQ_RUNS=n set another seed and another number of expressions.
tq_stage_cron() {
	_tq_whole || return 0
	tq_need python3 python3-croniter || return 1
	_tq_core plain || return 1
	_tq_run "$TQ_CORE/cron/compare.log" timeout -k 10 $((600 * TQ_PATIENCE)) /usr/bin/python3 "$TQ_SRC/test/cron/compare.py" --seed "${TQ_SEED:-1}" \
		--expressions "${TQ_RUNS:-1000}" "$TQ_CORE/cron/cron_next"
}

# ---- models for spin

# _tq_spin MODEL SWITCHES: searches a model in a separate folder; pan.log gets the output
_tq_spin() {
	rm -rf "$_tq_dir"
	mkdir -p "$_tq_dir"
	(
		cd "$_tq_dir" || exit 1
		# shellcheck disable=SC2046 # a list of options
		spin -a $(printf ' %s' "$2" | tr ',' ' ' | sed 's/ -$//; s/ / -D/g') "$TQ_SRC/test/spin/$1.pml" >build.log 2>&1 &&
			$TQ_CCACHE gcc -O1 -w -DSAFETY -DCOLLAPSE -DMEMLIM=1000 -c -o pan.o pan.c >>build.log 2>&1 &&
			gcc -o pan pan.o >>build.log 2>&1 || { cat build.log >&2; exit 1; }
		timeout -k 10 "$((1800 * TQ_PATIENCE))" ./pan -m1000000 >pan.log 2>&1 || :
		rm -f pan pan.? *.trail
	)
}

# The search was complete and found no error; without switches, it also reached every line of the model.
_tq_spin_passes() {
	_tq_spin "$1" "$2" || return 1
	if grep -q 'errors: 0$' "$_tq_dir/pan.log" && ! grep -Eq 'Search not completed|search depth too small' "$_tq_dir/pan.log"; then
		[ "$2" = - ] || return 0
		grep -E 'pml:[0-9]+, state [0-9]+, ' "$_tq_dir/pan.log" | grep -qv '"-end-"' || return 0
	fi
	head -n 50 "$_tq_dir/pan.log" >&2
	return 1
}

# The expected assertion fails.
_tq_spin_finds() {
	_tq_spin "$1" "$2" || return 1
	grep -qE "assertion violated .*($3)" "$_tq_dir/pan.log" || { head -n 50 "$_tq_dir/pan.log" >&2; return 1; }
}

tq_stage_spin() {
	tq_need gcc libc6-dev spin || return 1
	tq_prepare_folders
	while read -r _tq_model _tq_switches _tq_reason; do
		_tq_name=$_tq_model-$_tq_switches
		_tq_name=${_tq_name%--}
		_tq_dir=$TQ_BUILD/spin/$_tq_name
		case $_tq_model in
		'' | '#'*) continue ;;
		esac
		tq_wanted "$_tq_name" || continue
		if [ "$_tq_reason" = - ]; then
			tq_case "$_tq_name: spin finds nothing" _tq_spin_passes "$_tq_model" "$_tq_switches"
		else
			tq_case "$_tq_name: spin finds $_tq_reason" _tq_spin_finds "$_tq_model" "$_tq_switches" "$_tq_reason"
		fi
	done <"$TQ_SRC/test/spin/runs.txt"
}
