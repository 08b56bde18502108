# Servers with memory checks: variants of a build (scripts/lib/build.sh) in which the program `postgres` is a script
# that starts the real one under the checker. So every tool that starts a server uses it, and no client is slowed down.

# tq_memcheck_wrap: wraps the server of the current variant. Reports go to $TQ_RUN/reports.
tq_memcheck_wrap() {
	cp -Lpu "$("$PG_CONFIG" --bindir)/postgres" "$PG_BIN/postgres.real"
	gcc -shared -fPIC -Wl,-z,initfirst -o "$TQ_HOME/early.so" "$TQ_SRC/test/memcheck/early.c"
	case $TQ_VARIANT in
	sanitize-*) _tq_sanitized_server ;;
	valgrind-*) _tq_valgrind_server ;;
	esac >"$PG_BIN/postgres"
	chmod 755 "$PG_BIN/postgres"
}

# The server itself is not instrumented, so the runtimes must be loaded first. early.c makes them start in time.
#   detect_leaks: the server leaves the freeing of memory to the end of the process
#   detect_stack_use_after_return: would move locals off the stack that check_stack_depth() measures
#   abort_on_error: the postmaster must see a crash
#   allocator_may_return_null: the server tries oversized allocations, and reports them itself
_tq_sanitized_server() {
	cat <<-END
		#!/bin/bash
		LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so) $TQ_HOME/early.so"
		ASAN_OPTIONS=log_path=$TQ_RUN/reports/asan:detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=1:allocator_may_return_null=1
		UBSAN_OPTIONS=log_path=$TQ_RUN/reports/ubsan:print_stacktrace=1
		export LD_PRELOAD ASAN_OPTIONS UBSAN_OPTIONS
		# pg_ctl restart starts the program that the server records as its own
		exec -a "$PG_BIN/postgres" $PG_BIN/postgres.real "\$@"
	END
}

# A server without USE_VALGRIND does not describe its memory contexts to valgrind. Within a block that a context got
# from malloc(), valgrind sees neither the end of a chunk, nor its release, nor that it is unwritten. Valgrind still
# checks the stack, the edges of blocks, malloc() of others, and data not written since the block was allocated.
# --leak-check=no: see above. The server has errors of its own, so no error ends it.
_tq_valgrind_server() {
	cat <<-END
		#!/bin/sh
		case \$1 in
		-V | --*) exec $PG_BIN/postgres.real "\$@" ;;  # initdb, pg_ctl
		esac
		exec valgrind --trace-children=yes --leak-check=no --num-callers=30 --error-limit=no \\
			--suppressions=$TQ_SRC/test/memcheck/server.supp --log-file=$TQ_RUN/reports/valgrind.%p $PG_BIN/postgres.real "\$@"
	END
}

# Reports about tq: all reports of the sanitizers, and those of valgrind with a function of tq on the stack.
_tq_reports() {
	for _tq_report in "$TQ_RUN"/reports/*; do
		case $_tq_report in
		*/valgrind.*)
			sed 's/^==[0-9]*== \{0,1\}//' "$_tq_report" |
				awk -v RS= -v ORS='\n\n' '/ tq::|: tq_[a-z_]+ \(|\(in [^)]*\/tq\.so\)/'
			;;
		*'/*') ;;
		*) sed "1s:^:$_tq_report\\n:" "$_tq_report" ;;
		esac
	done
}

_tq_no_reports() {
	_tq_reports >"$TQ_RUN/reports.txt"
	[ ! -s "$TQ_RUN/reports.txt" ] || { head -n 200 "$TQ_RUN/reports.txt"; return 1; }
}

# A clean result counts only if the checker ran. Under valgrind, each server process has a report that begins with the
# command. The sanitizers run inside the library or the gateway, which cannot be loaded without their runtimes.
_tq_watched() {
	case $TQ_INSTEAD in
	valgrind-*)
		_tq_servers=$(grep -lsE '^==[0-9]+== Command: [^ ]*/postgres\.real .*-D ' "$TQ_RUN"/reports/valgrind.* | wc -l)
		# a server has more processes than its own background ones
		[ "$_tq_servers" -gt 5 ] || { tq_say "there are reports of $_tq_servers server processes"; return 1; }
		;;
	*)
		_tq_checked=$TQ_TREE$("$PG_CONFIG" --pkglibdir)/tq.so
		[ "$TQ_INSTEAD" != gateway-release ] || _tq_checked=$TQ_CORE/gateway/tq-gateway
		_tq_symbols=$(nm -D "$_tq_checked")
		for _tq_symbol in __asan_report_load8 __ubsan_handle_; do
			case $_tq_symbols in
			*"$_tq_symbol"*) ;;
			*) tq_say "${_tq_checked##*/} does not use $_tq_symbol"; return 1 ;;
			esac
		done
		;;
	esac
}

# tq_memcheck_stages STAGE...: runs stages of scripts/test with the variant $TQ_INSTEAD; adds a line to the results
tq_memcheck_stages() {
	case $TQ_INSTEAD in
	valgrind-*) tq_need valgrind libc6-dbg || return 1 ;;
	esac
	tq_prepare test || return 1
	_tq_began=$(date +%s)
	tq_as mkdir -p "$TQ_RUN/reports"
	rm -f "$TQ_RUN"/reports/*
	# those of the gateway; a sanitized server has its own
	export ASAN_OPTIONS="log_path=$TQ_RUN/reports/asan" UBSAN_OPTIONS="log_path=$TQ_RUN/reports/ubsan:print_stacktrace=1"
	for _tq_stage; do
		"tq_stage_$_tq_stage" || tq_fail "$_tq_stage" "it could not be run"
	done
	tq_case "${TQ_INSTEAD%-*}: the checker was at work" _tq_watched
	tq_case "${TQ_INSTEAD%-*}: the checker finds nothing" _tq_no_reports
	_tq_memcheck_result "$@"
}

# _tq_memcheck_result STAGE...
_tq_memcheck_result() {
	case $TQ_INSTEAD in
	valgrind-*) _tq_what="servers run under valgrind" ;;
	gateway-*) _tq_what="the gateway has AddressSanitizer and UBSan" ;;
	*) _tq_what="the library has AddressSanitizer and UBSan" ;;
	esac
	_tq_broken=
	[ "$stage_failed" -eq 0 ] || _tq_broken="$stage_failed tests"
	tq_result "$TQ_RUN/results.jsonl" "${TQ_INSTEAD%-*}$(printf -- '-%s' "$@" ${TQ_ONLY:+"$TQ_ONLY"})" "$_tq_what: scripts/test $*${TQ_ONLY:+ --only $TQ_ONLY}" \
		"\"tests\": $((stage_passed + stage_failed))" $((stage_passed + stage_failed)) "$_tq_broken" $(($(date +%s) - _tq_began))
}
