# The stages of scripts/test that run in a server of their own. See stages.sh.

# _tq_server STAGE VARIANT [CONF_LINE...]: a fresh cluster for a stage. A load after a crash may take long on a slow machine.
_tq_server() {
	tq_prepare "$2" || return 1
	_tq_out=$TQ_RUN/$1
	shift 2
	tq_cluster_remove "$_tq_out"
	tq_cluster_start "$_tq_out" "fsync = off" "max_connections = 100" "log_autovacuum_min_duration = -1" \
		"tq.load_timeout = 3min" "$@"
}

# A free TCP port below those that the kernel gives to connections: one of these could have it while the server is down.
_tq_free_port() {
	/usr/bin/python3 -c '
import random, socket
while True:
    port = random.randrange(12000, 32000)
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        continue
    print(port)
    break'
}

# As _tq_server, on a TCP port of localhost: JDBC has no Unix sockets. Another process may take a free port before the
# server does.
_tq_tcp_server() {
	for _tq_try in 1 2 3 4; do
		_tq_port=$(_tq_free_port)
		! _tq_server "$@" "tq.claim_log_delay = 20ms" "listen_addresses = 'localhost'" "port = $_tq_port" || { PGPORT=$_tq_port; return 0; }
	done
	return 1
}

# Stops it, and checks its log: no test of these stages may crash a server, or keep one from stopping. With --only, these
# cases were not asked for: they count only if they fail.
_tq_server_end() {
	_tq_before=$stage_passed
	tq_case "the server stops" _tq_server_stops
	tq_case "no server process crashed" _tq_no_crash "$_tq_out/server.log"
	[ -z "$TQ_ONLY" ] || stage_passed=$_tq_before
}

# a stage may have stopped it already
_tq_server_stops() {
	[ ! -f "$_tq_out/data/postmaster.pid" ] || tq_cluster_stop "$_tq_out"
}

_tq_no_crash() {
	! grep -nE 'PANIC|TRAP:|was terminated by signal' "$1"
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
	tq_as touch "$_tq_out/out/regression.diffs"
	[ "$_tq_status" -eq 0 ] || head -n 200 "$_tq_out/out/regression.diffs" >&2
	tq_judge "$_tq_status" "$_tq_out/tool.log" "$_tq_out/out/regression.diffs"
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

# _tq_prove FOLDER LOG COMMAND...: runs a harness and counts the cases of each file. FOLDER gets what the files print,
# --merge also what went wrong.
_tq_prove() {
	_tq_dump=$1
	_tq_log=$2
	shift 2
	_tq_status=0
	rm -rf "$_tq_dump"
	tq_as mkdir -p "$_tq_dump"
	tq_as env PERL_TEST_HARNESS_DUMP_TAP="$_tq_dump" timeout -k 10 "$((3600 * TQ_PATIENCE))" "$@" >"$_tq_log" 2>&1 || _tq_status=$?
	find "$_tq_dump" -type f >"$_tq_log.files"
	# a file can also fail as a whole: it died, or ran fewer tests than planned
	sed -nE 's:^([^ ]*/)?([^ /]*)\.(pl|sql) +\(Wstat.*Failed\: 0\)$:\2:p' "$_tq_log" | sed "s:.*:not ok - &\: it died or ended early, see $_tq_dump:" >"$_tq_log.died"
	# shellcheck disable=SC2046 # a list of files
	TQ_BY_FILE=1 tq_judge 0 $(cat "$_tq_log.files") /dev/null
	tq_judge 0 "$_tq_log.died"
	[ "$_tq_status" -eq 0 ] || [ "$stage_failed" -gt 0 ] || tq_judge "$_tq_status" "$_tq_log"
}

# Creates or drops a database. A process that stands still may leave it, or template1, later than the server waits.
_tq_database() {
	_tq_tries=36 # of 5 s or more
	until tq_psql -c "$1 database $2" >"$_tq_out/database.log" 2>&1; do
		_tq_tries=$((_tq_tries - 1))
		if [ "$_tq_tries" -eq 0 ] || ! grep -q 'is being accessed by other users' "$_tq_out/database.log"; then
			cat "$_tq_out/database.log"
			return 1
		fi
	done
}

# One database per file: everything that a file leaves behind, or has running, ends with the database.
tq_stage_pgtap() {
	_tq_tests=$(_tq_names "$TQ_ROOT"/test/pgtap/*.sql)
	[ -n "$_tq_tests" ] || return 0
	_tq_server_packages || return 1
	tq_need "postgresql-$PG_MAJOR-pgtap" libtap-parser-sourcehandler-pgtap-perl || return 1
	_tq_server pgtap test "tq.max_pinned_wait = 3min" || return 1
	tq_psql -d template1 -c "set client_min_messages = warning" -c "create extension pgtap" || return 1
	for _tq_test in $_tq_tests; do
		_tq_database create "$_tq_test" || return 1
		tq_psql -d "$_tq_test" -c "set client_min_messages = warning" -c "create extension tq" || return 1
		_tq_prove "$_tq_out/tap/$_tq_test" "$_tq_out/$_tq_test.log" pg_prove --merge --dbname "$_tq_test" "$TQ_SRC/test/pgtap/$_tq_test.sql"
		tq_case "$_tq_test: its database can be dropped" _tq_database drop "$_tq_test"
	done
	_tq_server_end
}

# The seeds are fixed; TQ_SEED=n and TQ_RUNS=n set others, TQ_OPS=n makes each run longer.
tq_stage_property() {
	_tq_whole || return 0
	tq_need python3 python3-psycopg2 || return 1
	# --only property/seed-7: this one
	case $TQ_ONLY in
	=seed-*) TQ_SEED=${TQ_ONLY#=seed-} TQ_SEED=${TQ_SEED%=} TQ_RUNS=1 ;;
	esac
	_tq_server property test "tq.max_live_jobs = 100" "tq.max_pinned_wait = 3min" "tq.naptime = 100ms" "tq.claim_log_delay = 10ms" \
		"tq.retention = 3652d" "tq.segment_interval = 2147483" "tq.segment_rows = 200" "tq.timer_horizon = 2147483" || return 1
	_tq_run "$_tq_out/property.log" tq_as timeout -k 10 "$((900 * TQ_PATIENCE))" /usr/bin/python3 "$TQ_SRC/test/property/run.py" \
		--first "${TQ_SEED:-1}" --runs "${TQ_RUNS:-12}" --ops "${TQ_OPS:-400}" --log "$_tq_out/statements.log" \
		--pg-ctl "$PG_BIN/pg_ctl" --data "$_tq_out/data" "host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE"
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
	_tq_tcp_server callers release || return 1
	_tq_build_examples || return 1
	tq_as mkdir -p "$_tq_out/callers"
	! _tq_whole || _tq_run "$_tq_out/checker.log" tq_as /usr/bin/python3 "$TQ_SRC/test/chaos/test_checker.py"
	_tq_run "$_tq_out/callers.log" tq_as timeout -k 10 "$((1500 * TQ_PATIENCE))" /usr/bin/python3 "$TQ_SRC/test/callers/run.py" --only "$TQ_ONLY" \
		--examples "$_tq_examples" --pg-ctl "$PG_BIN/pg_ctl" --data "$_tq_out/data" --log "$_tq_out/callers" \
		"host=$PGHOST port=$PGPORT user=$PGUSER dbname=callers"
	_tq_server_end
}

# clients/*/test/run, gateway/test/run and console/test/run, with a server of its own for each: it prints "ok - ..." or "not ok - ..." for each case. PG* names the
# server, TQ_PG_CTL and TQ_DATA restart it, and TQ_WORK is a folder to write to. clients/*/test/packages lists Debian
# packages. A library with a CMakeLists.txt is built before, into TQ_BUILT. --only selects libraries; --only clients/python/NAME
# passes NAME on, which selects cases.
tq_stage_clients() {
	tq_prepare release || return 1
	_tq_cases=
	case $TQ_ONLY in
	=*/*=)
		_tq_cases=${TQ_ONLY#=*/}
		_tq_cases=${_tq_cases%=}
		TQ_ONLY=${TQ_ONLY%%/*}=
		;;
	esac
	case $TQ_ONLY in
	'' | *gateway* | *console*) tq_build_console || return 1 ;;
	esac
	for _tq_run in "$TQ_SRC"/clients/*/test/run "$TQ_SRC/gateway/test/run" "$TQ_SRC/console/test/run"; do
		_tq_client=${_tq_run%/test/run}
		_tq_name=${_tq_client##*/}
		tq_wanted "$_tq_name" || continue
		_tq_packages=$(cat "$_tq_client/test/packages")
		# these two may be installed from elsewhere
		! command -v npm >/dev/null || _tq_packages=$(printf '%s\n' "$_tq_packages" | sed -E 's/\<(nodejs|npm)\>//g')
		# shellcheck disable=SC2086 # a list of names
		tq_need $_tq_packages || return 1
		TQ_CORE=
		# all of it, with the gateway, takes much longer
		TQ_TARGETS=
		[ "$_tq_name" != cpp ] || TQ_TARGETS="tq tq_tests"
		set -- clients
		case $TQ_VARIANT in
		gateway-*)
			TQ_TARGETS=tq-gateway
			set -- clients-asan -DTQ_SANITIZE=address,undefined -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g"
			;;
		esac
		[ ! -f "$_tq_client/CMakeLists.txt" ] && [ "$_tq_name" != console ] ||
			_tq_core "$@" -DTQ_CLIENTS=ON -DTQ_CONSOLE="$TQ_ROOT/build/console" || return 1
		_tq_tcp_server "clients/$_tq_name" release "max_worker_processes = 16" || return 1
		tq_as mkdir -p "$_tq_out/work" "$TQ_RUN/npm-cache"
		_tq_status=0
		_tq_limit=1800
		[ "$_tq_name${TQ_ALL:-}" != consoleyes ] || _tq_limit=5400 # ten million jobs
		tq_as env PYTHONDONTWRITEBYTECODE=1 TQ_PG_CTL="$PG_BIN/pg_ctl" TQ_DATA="$_tq_out/data" TQ_WORK="$_tq_out/work" TQ_BUILT="$TQ_CORE" \
			npm_config_cache="$TQ_RUN/npm-cache" timeout -k 10 "$((_tq_limit * TQ_PATIENCE))" "$_tq_run" ${_tq_cases:+"$_tq_cases"} \
			>"$_tq_out/printed.log" 2>&1 || _tq_status=$?
		sed "s:^not ok - :&$_tq_name/:" "$_tq_out/printed.log" >"$_tq_out/run.log"
		tq_judge "$_tq_status" "$_tq_out/run.log"
		_tq_server_end
	done
}

# --only selects pages
tq_stage_docs() {
	tq_need python3 || return 1
	_tq_server docs release "max_worker_processes = 16" || return 1
	_tq_run "$_tq_out/docs.log" tq_as timeout -k 10 "$((900 * TQ_PATIENCE))" /usr/bin/python3 "$TQ_SRC/test/docs/run.py" --page "$TQ_ONLY" --psql "$PG_BIN/psql"
	_tq_server_end
}

# TQ_SEED=n sets another seed, --only selects scenarios; scripts/chaos is the long form.
tq_stage_chaos() {
	tq_prepare test || return 1
	_tq_run "$TQ_RUN/chaos.log" tq_chaos --short --seed "${TQ_SEED:-1}" --only "$TQ_ONLY"
	grep ': skipped, ' "$TQ_RUN/chaos.log" >&2 || :
}

# --only selects scenarios; TQ_SECONDS=n measures each for longer. Speeds and delays are judged only with TQ_QUIET=1,
# which says that the machine is otherwise idle.
tq_stage_attack() {
	tq_need python3 python3-psycopg2 || return 1
	_tq_judge=--unmeasured
	[ -z "${TQ_QUIET:-}" ] || _tq_judge=--quiet-machine
	_tq_server attack release "max_connections = 400" "max_worker_processes = 16" || return 1
	_tq_run "$_tq_out/attack.log" tq_as timeout -k 10 "$((3600 * TQ_PATIENCE))" /usr/bin/python3 "$TQ_SRC/test/attack/run.py" \
		"$_tq_judge" --only "$TQ_ONLY" --seconds "${TQ_SECONDS:-1}" "host=$PGHOST port=$PGPORT user=$PGUSER"
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

# The longest files first.
tq_stage_tap() {
	_tq_tests=$(_tq_names "$TQ_SRC"/test/t/*.pl)
	[ -n "$_tq_tests" ] || return 0
	_tq_server_packages || return 1
	tq_need perl libipc-run-perl libdbd-pg-perl python3-psycopg2 || return 1
	case $_tq_tests in
	*metrics_*) tq_need prometheus prometheus-postgres-exporter || tq_say "what needs them in metrics_and_monitoring is skipped" ;;
	esac
	case $_tq_tests in
	*_with_triggers*) tq_need "postgresql-$PG_MAJOR-repack" || tq_say "pg_repack in tables_with_triggers is skipped" ;;
	esac
	tq_prepare test || return 1
	_tq_out=$TQ_RUN/tap
	rm -rf "$_tq_out"
	tq_as mkdir -p "$_tq_out/tmp_check/log"
	# shellcheck disable=SC2086,SC2046 # lists of files
	_tq_prove "$_tq_out/tap" "$_tq_out/prove.log" env TESTDIR="$_tq_out" TESTDATADIR="$_tq_out/tmp_check" TESTLOGDIR="$_tq_out/tmp_check/log" \
		PG_REGRESS="$PG_TESTLIB/regress/pg_regress" prove --merge -j "${TQ_PROVE_JOBS:-4}" --timer -I "$PG_TESTLIB/perl" -I "$TQ_SRC/test/perl" \
		$(ls -S $(printf "$TQ_SRC/test/t/%s.pl\n" $_tq_tests))
}
