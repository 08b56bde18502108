# The stages of scripts/test. Source it after tq.sh. Each tq_stage_X counts its cases in stage_passed and stage_failed
# and prints the details of failures. It returns non-zero only if it could not run at all.
# shellcheck disable=SC2034 # counters are read by scripts/test

. "$TQ_ROOT/scripts/lib/fuzz.sh"

tq_pass_cases() {
	stage_passed=$((stage_passed + $1))
}

# tq_fail_cases N [LOG]: LOG names them
tq_fail_cases() {
	stage_failed=$((stage_failed + $1))
	[ "$1" -gt 0 ] && [ -n "${2:-}" ] || return 0
	{
		grep -aE '^not ok|^\[  FAILED  \] .*ms\)$|\.\.\. FAILED|Failed test|^[^ ]*\.pl .*Wstat' "$2" | head -n 20
		echo "$1 failed, see $2"
	} >>"${TQ_FAILED:-/dev/null}"
}

# tq_fail_case TEXT: one failed case, named
tq_fail_case() {
	tq_say "FAILED: $1"
	echo "$1" >>"${TQ_FAILED:-/dev/null}"
	tq_fail_cases 1
}

# tq_case TEXT COMMAND...: one case, decided by COMMAND
tq_case() {
	_tq_text=$1
	shift
	if "$@"; then
		tq_pass_cases 1
	else
		tq_fail_case "$_tq_text"
	fi
}

# Number of lines of a file that match (grep -c fails on 0).
_tq_count() {
	grep -cE "$1" "$2" || :
}

# _tq_names GLOB...: the base names of existing test files that --only selects, in order.
_tq_names() {
	for _tq_file; do
		[ -e "$_tq_file" ] || continue
		_tq_name=$(basename "$_tq_file")
		_tq_name=${_tq_name%.*}
		case $_tq_name in
		*$TQ_ONLY*) printf '%s\n' "$_tq_name" ;;
		esac
	done
}

# ---- build, lint

_tq_no_warnings() {
	! grep -n 'warning:' "$1" >&2
}

tq_stage_build() {
	# a full build, so that every file's warnings are seen
	tq_prepare_variant release
	rm -rf "$TQ_HOME/obj"
	tq_case "the extension builds" tq_prepare release
	tq_case "g++ and clang find nothing to warn of" _tq_no_warnings "$TQ_HOME/build.log"
	tq_case "the extension builds with wait points" tq_prepare test
	tq_case "nor with wait points" _tq_no_warnings "$TQ_HOME/build.log"
}

tq_stage_lint() {
	tq_prepare release || return 1
	TQ_SO=$TQ_HOME/obj/tq.so
	export TQ_SO
	for _tq_check in "$TQ_SRC"/scripts/check_*; do
		case ${_tq_check##*/} in
		'check_*') ;;
		*$TQ_ONLY*) tq_case "${_tq_check##*/}" "$_tq_check" >&2 ;;
		esac
	done
}

# ---- the core, outside a server

# _tq_core NAME TARGET_DIR [CMAKE_ARG...]: builds a variant of the core; prints the compiler's errors on failure
_tq_core() {
	tq_need make g++ cmake libgtest-dev || return 1
	tq_prepare_folders
	TQ_CORE=$TQ_BUILD/core-$1
	_tq_log=$TQ_CORE.log
	shift
	[ ! -e "${TQ_PREPARED:-/nonexistent}/${TQ_CORE##*/}" ] || return 0
	set -- "$@" -DCMAKE_CXX_COMPILER_LAUNCHER="$TQ_CCACHE"
	# the cache of a checkout that was elsewhere is invalid
	if ! cmake -S "$TQ_SRC" -B "$TQ_CORE" "$@" >"$_tq_log" 2>&1; then
		rm -rf "$TQ_CORE"
		cmake -S "$TQ_SRC" -B "$TQ_CORE" "$@" >"$_tq_log" 2>&1 || { cat "$_tq_log" >&2; return 1; }
	fi
	cmake --build "$TQ_CORE" -j "$TQ_JOBS" >>"$_tq_log" 2>&1 ||
		{ grep -E -A 5 '(error|warning):|undefined reference' "$_tq_log" | head -n 60 >&2; return 1; }
	[ -z "${TQ_PREPARED:-}" ] || : >"$TQ_PREPARED/${TQ_CORE##*/}"
}

# _tq_program PROGRAM [ARG...]: runs it and counts GoogleTest cases, or the program as one case. TQ_WRAPPER holds a
# command to run PROGRAM with, such as setarch.
_tq_program() {
	_tq_log=$1.log
	_tq_status=0
	# shellcheck disable=SC2086 # a command with its options
	(cd "$TQ_SRC" && exec timeout -k 10 900 ${TQ_WRAPPER:-} "$@") >"$_tq_log" 2>&1 || _tq_status=$?
	_tq_ok=$(_tq_count '^\[       OK \]' "$_tq_log")
	_tq_bad=$(_tq_count '^\[  FAILED  \].*\([0-9]+ ms\)$' "$_tq_log")
	if [ $((_tq_ok + _tq_bad)) -eq 0 ] && [ "$_tq_status" -eq 0 ]; then
		_tq_ok=1
	elif [ "$_tq_bad" -eq 0 ] && [ "$_tq_status" -ne 0 ]; then
		_tq_bad=1
	fi
	tq_pass_cases "$_tq_ok"
	tq_fail_cases "$_tq_bad" "$_tq_log"
	if [ "$_tq_bad" -ne 0 ]; then
		tq_say "FAILED: ${1##*/} (exit status $_tq_status), from $_tq_log:"
		if grep -q '^\[  FAILED  \]' "$_tq_log"; then
			grep -vE '^\[( RUN|       OK|-----)' "$_tq_log" | head -n 100 >&2
		else
			tail -n 100 "$_tq_log" >&2
		fi
	fi
}

# every program in one folder of a build of the core
_tq_programs() {
	_tq_dir=$1
	shift
	for _tq_one in "$_tq_dir"/*; do
		case $_tq_one in
		*.log | *'/*') ;;
		*) _tq_program "$_tq_one" "$@" ;;
		esac
	done
}

tq_stage_unit() {
	_tq_core plain || return 1
	_tq_programs "$TQ_CORE/unit" ${TQ_ONLY:+"--gtest_filter=*$TQ_ONLY*"}
}

tq_stage_asan() {
	_tq_core asan -DTQ_SANITIZE=address,undefined || return 1
	UBSAN_OPTIONS=print_stacktrace=1 _tq_programs "$TQ_CORE/unit" ${TQ_ONLY:+"--gtest_filter=*$TQ_ONLY*"}
}

tq_stage_tsan() {
	_tq_core tsan -DTQ_SANITIZE=thread || return 1
	# this compiler's ThreadSanitizer does not support the address layouts of newer kernels
	TQ_WRAPPER=
	if setarch -R true 2>/dev/null; then
		TQ_WRAPPER="setarch -R"
	fi
	_tq_programs "$TQ_CORE/unit" ${TQ_ONLY:+"--gtest_filter=*$TQ_ONLY*"}
	TQ_WRAPPER=
}

tq_stage_model() {
	_tq_core plain || return 1
	_tq_programs "$TQ_CORE/model"
}

# First the corpus, which includes every input that ever failed; then a short fuzzing run from there; then a server.
tq_stage_fuzz() {
	_tq_tests=$(_tq_names "$TQ_ROOT"/test/fuzz/*.cpp)
	[ -z "$_tq_tests" ] || tq_fuzz_build || return 1
	for _tq_test in $_tq_tests; do
		_tq_inputs=$TQ_BUILD/fuzz-inputs/$_tq_test
		tq_case "$_tq_test: its corpus can be unpacked" tq_fuzz_unpack "$_tq_test" "$_tq_inputs"
		_tq_program "$TQ_CORE/fuzz/$_tq_test" -seed=1 -runs=200000 -max_total_time=5 -max_len=1024 -timeout=20 \
			-artifact_prefix="$TQ_CORE/" "$_tq_inputs"
	done
	_tq_fuzz_servers
}

# TQ_SEED=n sets another seed.
_tq_fuzz_servers() {
	case " $tq_fuzz_server_names " in
	*$TQ_ONLY*) ;;
	*) return 0 ;;
	esac
	tq_need python3 python3-psycopg2 || return 1
	_tq_server fuzz test "log_line_prefix = '%m [%p] %b %d %e '" || return 1
	for _tq_test in $tq_fuzz_server_names; do
		case $_tq_test in
		*$TQ_ONLY*)
			tq_case "$_tq_test" tq_fuzz_server "$_tq_test" "$_tq_out/$_tq_test.log" --seed "${TQ_SEED:-1}" --cases 700 --time 60
			grep -q '^ok - ' "$_tq_out/$_tq_test.log" || head -n 60 "$_tq_out/$_tq_test.log" >&2
			;;
		esac
	done
	_tq_server_end
}

# TQ_SEED=n and TQ_RUNS=n set another seed and another number of expressions.
tq_stage_cron() {
	tq_need python3 python3-croniter || return 1
	_tq_core plain || return 1
	_tq_log=$TQ_CORE/cron/compare.log
	_tq_status=0
	PYTHONDONTWRITEBYTECODE=1 timeout -k 10 600 /usr/bin/python3 "$TQ_SRC/test/cron/compare.py" --seed "${TQ_SEED:-1}" \
		--expressions "${TQ_RUNS:-1000}" "$TQ_CORE/cron/cron_next" >"$_tq_log" 2>&1 || _tq_status=$?
	_tq_bad=$(_tq_count '^not ok - ' "$_tq_log")
	if [ "$_tq_status" -ne 0 ]; then
		[ "$_tq_bad" -gt 0 ] || _tq_bad=1
		head -n 100 "$_tq_log" >&2
	fi
	tq_pass_cases "$(_tq_count '^ok - ' "$_tq_log")"
	tq_fail_cases "$_tq_bad" "$_tq_log"
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
			gcc -O1 -w -DSAFETY -DCOLLAPSE -DMEMLIM=1000 -o pan pan.c >>build.log 2>&1 || { cat build.log >&2; exit 1; }
		timeout -k 10 300 nice -n 10 ./pan -m1000000 >pan.log 2>&1 || :
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
		case $_tq_model:$_tq_name in
		'':* | '#'*) ;;
		*$TQ_ONLY*)
			if [ "$_tq_reason" = - ]; then
				tq_case "$_tq_name: spin finds nothing" _tq_spin_passes "$_tq_model" "$_tq_switches"
			else
				tq_case "$_tq_name: spin finds $_tq_reason" _tq_spin_finds "$_tq_model" "$_tq_switches" "$_tq_reason"
			fi
			;;
		esac
	done <"$TQ_SRC/test/spin/runs.txt"
}

# ---- in a server

# _tq_server STAGE VARIANT [CONF_LINE...]: a fresh cluster for a stage
_tq_server() {
	tq_prepare "$2" || return 1
	_tq_out=$TQ_RUN/$1
	shift 2
	_tq_reap "$_tq_out"
	tq_cluster_remove "$_tq_out"
	tq_cluster_start "$_tq_out" "fsync = off" "max_connections = 100" "log_autovacuum_min_duration = -1" "$@"
}

# Stops it, and checks its log: no test of these stages may crash a server.
_tq_server_end() {
	tq_cluster_stop "$_tq_out"
	tq_case "no server process crashed" _tq_no_crash "$_tq_out/server.log"
}

_tq_no_crash() {
	! grep -nE 'PANIC|TRAP:|was terminated by signal' "$1" >&2
}

# Servers that a killed test left running, below one of the build's folders.
_tq_reap() {
	[ -d "$1" ] || return 0
	find "$1" -name postmaster.pid | while IFS= read -r _tq_pid; do
		tq_as "$PG_BIN/pg_ctl" -D "${_tq_pid%/*}" -m immediate -w stop >/dev/null 2>&1 </dev/null || :
	done
}

# _tq_pg_regress PROGRAM INPUTDIR NAME...: counts its results, prints the differences
_tq_pg_regress() {
	_tq_tool=$1
	_tq_input=$2
	shift 2
	_tq_status=0
	tq_as mkdir -p "$_tq_out/out"
	tq_as env PGOPTIONS="-c client_min_messages=warning" timeout -k 10 "$((900 * TQ_PATIENCE))" "$_tq_tool" --inputdir="$_tq_input" --outputdir="$_tq_out/out" --bindir="$PG_BIN" \
		--host="$PGHOST" --port="$PGPORT" --user="$PGUSER" --dbname=regression --load-extension=tq "$@" \
		>"$_tq_out/tool.log" 2>&1 || _tq_status=$?
	# up to PostgreSQL 15 "test name ... ok", later TAP
	_tq_ok=$(_tq_count '^(test .* \.\.\. ok |ok [0-9])' "$_tq_out/tool.log")
	_tq_bad=$(_tq_count '^(test .* \.\.\. FAILED|not ok [0-9])' "$_tq_out/tool.log")
	if [ "$_tq_status" -ne 0 ]; then
		[ "$_tq_bad" -gt 0 ] || _tq_bad=1
		grep -E 'FAILED|^not ok|^Bail' "$_tq_out/tool.log" >&2 || tail -n 20 "$_tq_out/tool.log" >&2
		[ ! -f "$_tq_out/out/regression.diffs" ] || head -n 200 "$_tq_out/out/regression.diffs" >&2
	fi
	tq_pass_cases "$_tq_ok"
	tq_fail_cases "$_tq_bad" "$_tq_out/tool.log"
}

tq_stage_regress() {
	_tq_tests=$(_tq_names "$TQ_ROOT"/sql/*.sql)
	[ -n "$_tq_tests" ] || return 0
	_tq_server regress release || return 1
	# shellcheck disable=SC2086 # a list of names
	_tq_pg_regress "$PG_TESTLIB/regress/pg_regress" "$TQ_SRC" $_tq_tests
	_tq_server_end
}

tq_stage_isolation() {
	_tq_tests=$(_tq_names "$TQ_ROOT"/test/isolation/specs/*.spec)
	[ -n "$_tq_tests" ] || return 0
	_tq_server isolation test || return 1
	# shellcheck disable=SC2086 # a list of names
	PGISOLATIONTIMEOUT=$((180 * TQ_PATIENCE)) _tq_pg_regress "$PG_TESTLIB/isolation/pg_isolation_regress" "$TQ_SRC/test/isolation" $_tq_tests
	_tq_server_end
}

# _tq_tap_results DIR STATUS LOG: counts the results that the harness wrote to DIR
_tq_tap_results() {
	find "$1" -type f -exec cat {} + >"$1.tap"
	_tq_ok=$(_tq_count '^ok ' "$1.tap")
	_tq_skipped=$(_tq_count '^ok .*# [Ss][Kk][Ii][Pp]' "$1.tap")
	_tq_bad=$(_tq_count '^not ok ' "$1.tap")
	# a file can also fail as a whole: it died, or ran fewer tests than planned
	_tq_bad=$((_tq_bad + $(_tq_count 'Wstat: .* Failed: 0\)' "$3")))
	if [ "$2" -ne 0 ]; then
		[ "$_tq_bad" -gt 0 ] || _tq_bad=1
		head -n 200 "$3" >&2
	fi
	tq_pass_cases $((_tq_ok - _tq_skipped))
	tq_fail_cases "$_tq_bad" "$3"
}

# One database per file: everything that a file leaves behind, or has running, ends with the database.
tq_stage_pgtap() {
	_tq_tests=$(_tq_names "$TQ_ROOT"/test/pgtap/*.sql)
	[ -n "$_tq_tests" ] || return 0
	_tq_server_packages || return 1
	tq_need "postgresql-$PG_MAJOR-pgtap" libtap-parser-sourcehandler-pgtap-perl || return 1
	_tq_server pgtap test || return 1
	for _tq_test in $_tq_tests; do
		_tq_status=0
		tq_as mkdir -p "$_tq_out/tap/$_tq_test"
		tq_psql -c "create database $_tq_test" || return 1
		tq_psql -d "$_tq_test" -c "set client_min_messages = warning" -c "create extension pgtap" \
			-c "create extension tq" || return 1
		tq_as env PERL_TEST_HARNESS_DUMP_TAP="$_tq_out/tap/$_tq_test" timeout -k 10 "$((900 * TQ_PATIENCE))" pg_prove --dbname "$_tq_test" \
			"$TQ_SRC/test/pgtap/$_tq_test.sql" >"$_tq_out/$_tq_test.log" 2>&1 || _tq_status=$?
		_tq_tap_results "$_tq_out/tap/$_tq_test" "$_tq_status" "$_tq_out/$_tq_test.log"
		tq_case "$_tq_test: its database can be dropped" tq_psql -c "drop database $_tq_test"
	done
	_tq_server_end
}

# The seeds are fixed; TQ_SEED=n and TQ_RUNS=n set others, TQ_OPS=n makes each run longer.
tq_stage_property() {
	tq_need python3 python3-psycopg2 || return 1
	_tq_server property test "tq.max_live_jobs = 100" "tq.naptime = 100ms" "tq.claim_log_delay = 10ms" \
		"tq.retention = 3652d" "tq.segment_interval = 2147483" "tq.segment_rows = 200" "tq.timer_horizon = 2147483" || return 1
	_tq_status=0
	tq_as env PYTHONDONTWRITEBYTECODE=1 timeout -k 10 900 /usr/bin/python3 "$TQ_SRC/test/property/run.py" \
		--first "${TQ_SEED:-1}" --runs "${TQ_RUNS:-12}" --ops "${TQ_OPS:-400}" --log "$_tq_out/statements.log" \
		--pg-ctl "$PG_BIN/pg_ctl" --data "$_tq_out/data" "host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE" \
		>"$_tq_out/property.log" 2>&1 || _tq_status=$?
	_tq_bad=$(_tq_count '^not ok - ' "$_tq_out/property.log")
	if [ "$_tq_status" -ne 0 ]; then
		[ "$_tq_bad" -gt 0 ] || _tq_bad=1
		head -n 200 "$_tq_out/property.log" >&2
		tq_say "the statements are in $_tq_out/statements.log"
	fi
	tq_pass_cases "$(_tq_count '^ok - ' "$_tq_out/property.log")"
	tq_fail_cases "$_tq_bad" "$_tq_out/property.log"
	_tq_server_end
}

# The example programs and their dependencies, as built, where TQ_USER can run them.
_tq_build_examples() {
	tq_need bash gcc make libpq-dev pgbouncer python3-psycopg python3-asyncpg golang-go golang-github-lib-pq-dev libpostgresql-jdbc-java \
		ruby ruby-pg libdbd-pg-perl php-cli php-pgsql || return 1
	# these two may be installed from elsewhere
	command -v javac >/dev/null || tq_need default-jdk-headless || return 1
	command -v npm >/dev/null || tq_need nodejs npm || return 1
	_tq_examples=$TQ_RUN/examples
	tq_as mkdir -p "$_tq_examples/go/bin"
	tq_as cp -Rpu "$TQ_SRC/examples/." "$_tq_examples"
	tq_as make -s -C "$_tq_examples/c" PG_CONFIG="$PG_CONFIG" CFLAGS="-O2 -Wall -Wextra -Werror" || return 1
	tq_as javac -Xlint:all -Werror -cp /usr/share/java/postgresql.jar -d "$_tq_examples/java" "$_tq_examples"/java/*.java || return 1
	for _tq_program in worker enqueue; do
		tq_as env GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE="$TQ_RUN/go-cache" \
			go build -o "$_tq_examples/go/bin/$_tq_program" "$_tq_examples/go/$_tq_program/main.go" || return 1
	done
	if ! cmp -s "$_tq_examples/node/package-lock.json" "$_tq_examples/node/node_modules/.installed"; then
		tq_as npm --prefix "$_tq_examples/node" --cache "$TQ_RUN/npm-cache" ci --no-audit --no-fund --ignore-scripts >"$_tq_out/npm.log" 2>&1 ||
			{ tail -n 20 "$_tq_out/npm.log" >&2; return 1; }
		tq_as cp "$_tq_examples/node/package-lock.json" "$_tq_examples/node/node_modules/.installed"
	fi
}

# --only selects drivers and cases.
tq_stage_callers() {
	tq_need python3 python3-psycopg2 || return 1
	# JDBC has no Unix sockets
	_tq_port=$(/usr/bin/python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
	_tq_server callers release "tq.claim_log_delay = 20ms" "listen_addresses = 'localhost'" "port = $_tq_port" || return 1
	PGPORT=$_tq_port
	_tq_build_examples || return 1
	_tq_status=0
	tq_as mkdir -p "$_tq_out/callers"
	{
		tq_as env PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$TQ_SRC/test/chaos/test_checker.py" &&
			tq_as env PYTHONDONTWRITEBYTECODE=1 timeout -k 10 1500 /usr/bin/python3 "$TQ_SRC/test/callers/run.py" --only "$TQ_ONLY" \
				--examples "$_tq_examples" --pg-ctl "$PG_BIN/pg_ctl" --data "$_tq_out/data" --log "$_tq_out/callers" \
				"host=$PGHOST port=$PGPORT user=$PGUSER dbname=callers"
	} >"$_tq_out/callers.log" 2>&1 || _tq_status=$?
	_tq_bad=$(_tq_count '^not ok - ' "$_tq_out/callers.log")
	if [ "$_tq_status" -ne 0 ]; then
		[ "$_tq_bad" -gt 0 ] || _tq_bad=1
		grep -v '^ok - ' "$_tq_out/callers.log" | head -n 200 >&2
	fi
	# cases without anything to judge do not count
	tq_pass_cases $(($(_tq_count '^ok - ' "$_tq_out/callers.log") - $(_tq_count '^ok - .* # SKIP ' "$_tq_out/callers.log")))
	tq_fail_cases "$_tq_bad" "$_tq_out/callers.log"
	_tq_server_end
}

# clients/*/test/run, with a server of its own for each: it prints "ok - ..." or "not ok - ..." for each case. PG* names the
# server, TQ_PG_CTL and TQ_DATA restart it, and TQ_WORK is a folder to write to. clients/*/test/packages lists Debian
# packages. A library with a CMakeLists.txt is built before, into TQ_BUILT. --only selects libraries.
tq_stage_clients() {
	tq_prepare release || return 1
	for _tq_run in "$TQ_SRC"/clients/*"$TQ_ONLY"*/test/run; do
		[ -x "$_tq_run" ] || continue
		_tq_client=${_tq_run%/test/run}
		_tq_packages=$(cat "$_tq_client/test/packages")
		# these two may be installed from elsewhere
		! command -v npm >/dev/null || _tq_packages=$(printf '%s\n' "$_tq_packages" | sed -E 's/\<(nodejs|npm)\>//g')
		# shellcheck disable=SC2086 # a list of names
		tq_need $_tq_packages || return 1
		TQ_CORE=
		[ ! -f "$_tq_client/CMakeLists.txt" ] || _tq_core clients -DTQ_CLIENTS=ON || return 1
		_tq_port=$(/usr/bin/python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
		_tq_server "clients/${_tq_client##*/}" release "tq.claim_log_delay = 20ms" "listen_addresses = 'localhost'" "port = $_tq_port" \
			"max_worker_processes = 16" || return 1
		PGPORT=$_tq_port
		_tq_status=0
		tq_as mkdir -p "$_tq_out/work" "$TQ_RUN/npm-cache"
		tq_as env TQ_PG_CTL="$PG_BIN/pg_ctl" TQ_DATA="$_tq_out/data" TQ_WORK="$_tq_out/work" TQ_BUILT="$TQ_CORE" npm_config_cache="$TQ_RUN/npm-cache" \
			timeout -k 10 1800 "$_tq_run" >"$_tq_out/run.log" 2>&1 || _tq_status=$?
		_tq_bad=$(_tq_count '^not ok ' "$_tq_out/run.log")
		if [ "$_tq_status" -ne 0 ]; then
			[ "$_tq_bad" -gt 0 ] || _tq_bad=1
			grep -v '^ok ' "$_tq_out/run.log" | head -n 200 >&2
		fi
		tq_pass_cases "$(_tq_count '^ok ' "$_tq_out/run.log")"
		tq_fail_cases "$_tq_bad" "$_tq_out/run.log"
		_tq_server_end
	done
}

# --only selects pages
tq_stage_docs() {
	tq_need python3 || return 1
	_tq_server docs release "max_worker_processes = 16" || return 1
	_tq_status=0
	tq_as env PYTHONDONTWRITEBYTECODE=1 timeout -k 10 900 /usr/bin/python3 "$TQ_SRC/test/docs/run.py" --page "$TQ_ONLY" --psql "$PG_BIN/psql" \
		>"$_tq_out/docs.log" 2>&1 || _tq_status=$?
	_tq_bad=$(_tq_count '^not ok - ' "$_tq_out/docs.log")
	if [ "$_tq_status" -ne 0 ]; then
		[ "$_tq_bad" -gt 0 ] || _tq_bad=1
		grep -v '^ok - ' "$_tq_out/docs.log" | head -n 400 >&2
	fi
	tq_pass_cases "$(_tq_count '^ok - ' "$_tq_out/docs.log")"
	tq_fail_cases "$_tq_bad" "$_tq_out/docs.log"
	_tq_server_end
}

# TQ_SEED=n sets another seed, --only selects scenarios; scripts/chaos is the long form.
tq_stage_chaos() {
	tq_prepare test || return 1
	_tq_log=$TQ_RUN/chaos.log
	_tq_status=0
	tq_chaos --short --seed "${TQ_SEED:-1}" --only "$TQ_ONLY" >"$_tq_log" 2>&1 || _tq_status=$?
	_tq_bad=$(_tq_count '^not ok - ' "$_tq_log")
	if [ "$_tq_status" -ne 0 ]; then
		[ "$_tq_bad" -gt 0 ] || _tq_bad=1
		grep -v '^ok - ' "$_tq_log" | head -n 200 >&2
	fi
	grep ': skipped, ' "$_tq_log" >&2 || :
	tq_pass_cases "$(_tq_count '^ok - ' "$_tq_log")"
	tq_fail_cases "$_tq_bad" "$_tq_log"
}

# --only selects scenarios; TQ_SECONDS=n measures each for longer. Speeds and delays are judged only with TQ_QUIET=1,
# which says that the machine is otherwise idle.
tq_stage_attack() {
	tq_need python3 python3-psycopg2 || return 1
	_tq_judge=--unmeasured
	[ -z "${TQ_QUIET:-}" ] || _tq_judge=--quiet-machine
	_tq_server attack release "max_connections = 400" "max_worker_processes = 16" || return 1
	_tq_status=0
	tq_as env PYTHONDONTWRITEBYTECODE=1 timeout -k 10 "$((1800 * TQ_PATIENCE))" /usr/bin/python3 "$TQ_SRC/test/attack/run.py" \
		"$_tq_judge" --only "$TQ_ONLY" --seconds "${TQ_SECONDS:-1}" "host=$PGHOST port=$PGPORT user=$PGUSER" >"$_tq_out/attack.log" 2>&1 || _tq_status=$?
	_tq_bad=$(_tq_count '^not ok - ' "$_tq_out/attack.log")
	if [ "$_tq_status" -ne 0 ]; then
		[ "$_tq_bad" -gt 0 ] || _tq_bad=1
		grep -A 40 '^not ok - ' "$_tq_out/attack.log" | head -n 200 >&2 || tail -n 40 "$_tq_out/attack.log" >&2
	fi
	tq_pass_cases "$(_tq_count '^ok - ' "$_tq_out/attack.log")"
	tq_fail_cases "$_tq_bad" "$_tq_out/attack.log"
	_tq_server_end
}

# The library with AddressSanitizer and UndefinedBehaviorSanitizer; scripts/memcheck runs more tests on it.
tq_stage_sanitize() {
	TQ_INSTEAD=sanitize-test
	_tq_ran=0
	tq_memcheck_stages regress pgtap || _tq_ran=1
	TQ_INSTEAD=
	return "$_tq_ran"
}

tq_stage_tap() {
	[ -n "$(_tq_names "$TQ_ROOT"/test/t/*.pl)" ] || return 0
	tq_need perl libipc-run-perl libdbd-pg-perl python3-psycopg2 || return 1
	case $(_tq_names "$TQ_ROOT"/test/t/*.pl) in
	*metrics_*) tq_need prometheus prometheus-postgres-exporter || tq_say "what needs them in metrics_and_monitoring is skipped" ;;
	esac
	tq_prepare test || return 1
	_tq_out=$TQ_RUN/tap
	_tq_reap "$_tq_out"
	rm -rf "$_tq_out"
	tq_as mkdir -p "$_tq_out/tap" "$_tq_out/tmp_check/log"
	_tq_tests=$(_tq_names "$TQ_SRC"/test/t/*.pl)
	# TQ_SHORT: those that also pass beside other load, and are soon over
	[ -z "${TQ_SHORT:-}" ] || _tq_tests="altered_objects application_day changes_cursor changes_under_load crash_under_load dependencies_locked_children executors_fair_shares"
	# shellcheck disable=SC2086 # a list of names
	_tq_tests=$(printf '%s\n' $_tq_tests | sed "s:.*:$TQ_SRC/test/t/&.pl:")
	_tq_status=0
	# shellcheck disable=SC2086 # a list of files
	tq_as env PERL_TEST_HARNESS_DUMP_TAP="$_tq_out/tap" TESTDIR="$_tq_out" TESTDATADIR="$_tq_out/tmp_check" \
		TESTLOGDIR="$_tq_out/tmp_check/log" PG_REGRESS="$PG_TESTLIB/regress/pg_regress" \
		timeout -k 10 "$((2400 * TQ_PATIENCE))" prove -j "${TQ_PROVE_JOBS:-2}" --timer -I "$PG_TESTLIB/perl" -I "$TQ_SRC/test/perl" \
		$_tq_tests >"$_tq_out/prove.log" 2>&1 || _tq_status=$?
	_tq_reap "$_tq_out"
	_tq_tap_results "$_tq_out/tap" "$_tq_status" "$_tq_out/prove.log"
}
