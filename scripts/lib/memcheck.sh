# Servers whose memory is watched: variants of a build (scripts/lib/build.sh) in which the program `postgres` is a script that
# starts the real one as it has to be.  So every tool that starts a server does, and no client is slowed down.

# tq_memcheck_wrap: do so in the variant that is being made.  Reports go to $TQ_RUN/reports.
tq_memcheck_wrap() {
	cp -Lpu "$("$PG_CONFIG" --bindir)/postgres" "$PG_BIN/postgres.real"
	mkdir -p "$TQ_RUN/reports"
	[ "$(id -un)" = "$TQ_USER" ] || chown "$TQ_USER" "$TQ_RUN/reports"
	gcc -shared -fPIC -Wl,-z,initfirst -o "$TQ_HOME/early.so" "$TQ_SRC/test/memcheck/early.c"
	case $TQ_VARIANT in
	sanitize-*) _tq_sanitized_server ;;
	valgrind-*) _tq_valgrind_server ;;
	esac >"$PG_BIN/postgres"
	chmod 755 "$PG_BIN/postgres"
}

# The server itself is not instrumented, so the runtimes must come first.  That they begin in time is told in early.c.
#   detect_leaks                    the server leaves it to the end of the process to free what it has
#   detect_stack_use_after_return   would put locals elsewhere than on the stack that check_stack_depth() measures
#   abort_on_error                  the postmaster is to see a crash
#   allocator_may_return_null       the server asks for what it may not get, and says so itself
_tq_sanitized_server() {
	cat <<-END
		#!/bin/bash
		LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so) $TQ_HOME/early.so"
		ASAN_OPTIONS=log_path=$TQ_RUN/reports/asan:detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=1:allocator_may_return_null=1
		UBSAN_OPTIONS=log_path=$TQ_RUN/reports/ubsan:print_stacktrace=1
		export LD_PRELOAD ASAN_OPTIONS UBSAN_OPTIONS
		# pg_ctl restart starts what the server takes for its own name
		exec -a "$PG_BIN/postgres" $PG_BIN/postgres.real "\$@"
	END
}

# A server that was built without USE_VALGRIND tells valgrind nothing of its memory contexts: within a block that a context got from
# malloc() it sees neither where a chunk ends, nor that it was freed or never written to.  What is left is the stack, the blocks' edges,
# what malloc() gives to others, and what has not been written to since the block came.  --leak-check=no: see above.  Not all of a
# server's errors are ours, so no error ends it.
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

# Reports that are about us: what the sanitizers say always is, valgrind's if one of our functions is on the stack.
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
	[ ! -s "$TQ_RUN/reports.txt" ] || { head -n 200 "$TQ_RUN/reports.txt" >&2; return 1; }
}

# That nothing was found says something only if something looked: valgrind at servers, each process of which has a report that
# begins with the command, or the sanitizers from within the library, which cannot be loaded without their runtimes.
_tq_watched() {
	case $TQ_INSTEAD in
	valgrind-*)
		_tq_servers=$(grep -lsE '^==[0-9]+== Command: [^ ]*/postgres\.real .*-D ' "$TQ_RUN"/reports/valgrind.* | wc -l)
		# of its own processes alone a server has more
		[ "$_tq_servers" -gt 5 ] || { tq_say "there are reports of $_tq_servers server processes"; return 1; }
		;;
	*)
		_tq_symbols=$(nm -D "$TQ_TREE$("$PG_CONFIG" --pkglibdir)/tq.so")
		for _tq_symbol in __asan_report_load8 __ubsan_handle_; do
			case $_tq_symbols in
			*"$_tq_symbol"*) ;;
			*) tq_say "the library does not use $_tq_symbol"; return 1 ;;
			esac
		done
		;;
	esac
}

# tq_memcheck_stages STAGE...: stages of scripts/test with the variant $TQ_INSTEAD; adds a line to the results
tq_memcheck_stages() {
	case $TQ_INSTEAD in
	valgrind-*) tq_need valgrind libc6-dbg || return 1 ;;
	esac
	tq_prepare test || return 1
	_tq_began=$(date +%s)
	rm -f "$TQ_RUN"/reports/*
	for _tq_stage; do
		"tq_stage_$_tq_stage" || tq_fail_case "$_tq_stage could not be run"
	done
	tq_case "${TQ_INSTEAD%-*} was at work" _tq_watched
	tq_case "${TQ_INSTEAD%-*} finds nothing in the library" _tq_no_reports
	_tq_memcheck_result "$@"
}

# _tq_memcheck_result STAGE...
_tq_memcheck_result() {
	case $TQ_INSTEAD in
	valgrind-*) _tq_what="servers run under valgrind" ;;
	*) _tq_what="the library has AddressSanitizer and UndefinedBehaviorSanitizer built in" ;;
	esac
	_tq_broken=
	[ "$stage_failed" -eq 0 ] || _tq_broken="$stage_failed tests"
	tq_result "$TQ_RUN/results.jsonl" "${TQ_INSTEAD%-*}$(printf -- '-%s' "$@" ${TQ_ONLY:+"$TQ_ONLY"})" "$_tq_what: scripts/test $*${TQ_ONLY:+ --only $TQ_ONLY}" \
		"\"tests\": $((stage_passed + stage_failed))" $((stage_passed + stage_failed)) "$_tq_broken" $(($(date +%s) - _tq_began))
}
