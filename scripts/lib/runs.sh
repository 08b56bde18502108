# What a run of scripts/test has started and left, even if it was killed. Each process of a run has TQ_TEST_RUN in its
# environment: "PID.START:FOLDER" of scripts/test itself, START being when that process began.

# whether process $1 is of a server; that of a sanitized one is postgres.real
_tq_is_server() {
	case $(cat "/proc/$1/comm" 2>/dev/null) in
	postgres*) ;;
	*) return 1 ;;
	esac
}

# when process $1 began, in ticks since the machine did; nothing if there is none
_tq_began() {
	sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20
}

# The processes of run $1. The children of a postmaster write their titles over their environment. They end with it; if it
# is gone already, they are found by their working folder, which is that of their data. To be called in a subshell.
_tq_run_pids() {
	unset TQ_TEST_RUN # grep would find itself
	grep -lzsxF "TQ_TEST_RUN=$1" /proc/[0-9]*/environ | cut -d / -f 3
	find /proc/[0-9]*/cwd -maxdepth 0 -lname "${1#*:}/*" 2>/dev/null | cut -d / -f 3 | while read -r _tq_pid; do
		_tq_parent=$(sed -n 's/^PPid:\t//p' "/proc/$_tq_pid/status" 2>/dev/null)
		_tq_is_server "$_tq_pid" && ! _tq_is_server "$_tq_parent" &&
			! grep -qz '^PATH=' "/proc/$_tq_pid/environ" || continue
		echo "$_tq_pid"
	done
}

# tq_run_end RUN: ends its processes and removes what they left outside the folder. Servers are asked to stop first, so
# that they give back their shared memory. They wait 5 s for their children.
tq_run_end() {
	_tq_round=0
	while :; do
		_tq_pids=$(_tq_run_pids "$1")
		[ -n "$_tq_pids" ] && [ "$_tq_round" -lt 600 ] || break
		for _tq_pid in $_tq_pids; do
			_tq_signal=KILL
			[ "$_tq_round" -ge 300 ] || ! _tq_is_server "$_tq_pid" || _tq_signal=QUIT
			[ "$_tq_pid" = "$$" ] || kill "-$_tq_signal" "$_tq_pid" 2>/dev/null || :
		done
		_tq_round=$((_tq_round + 1))
		sleep 0.1 # poll
	done
	awk -v "folder=${1#*:}/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | while IFS= read -r _tq_dir; do
		umount -l "$_tq_dir" || :
	done
	rm -rf "/tmp/tq.${1%%:*}"
}

# Ends runs that were killed, in this folder or another one. Those of scripts/matrix are in a PID namespace of their own
# and end with it.
tq_runs_end_dead() {
	{
		_tq_space=$(readlink /proc/self/ns/pid)
		for _tq_file in $(grep -lzsE '^TQ_TEST_RUN=' /proc/[0-9]*/environ); do
			[ "$(readlink "${_tq_file%environ}ns/pid")" != "$_tq_space" ] || tr '\0' '\n' <"$_tq_file" | sed -n 's/^TQ_TEST_RUN=//p'
		done 2>/dev/null
		cat /tmp/tq.*/run 2>/dev/null
	} | sort -u | while IFS= read -r _tq_dead; do
		_tq_pid=${_tq_dead%%.*}
		[ "$(_tq_began "$_tq_pid")" != "$(printf '%s' "${_tq_dead%%:*}" | cut -d . -f 2)" ] || continue
		tq_say "ending what a killed run in ${_tq_dead#*:} has left"
		tq_run_end "$_tq_dead"
	done
}

# tq_run_begin FOLDER: this process is a run; from now on it exports TQ_TEST_RUN and TMPDIR. A watcher outlives it and ends
# what it leaves. To be called with the lock of FOLDER.
tq_run_begin() {
	tq_runs_end_dead
	_tq_this=$$.$(_tq_began $$):$1
	setsid "$0" --watch "$_tq_this" >/dev/null 2>&1 </dev/null 8>&- 3>&- &
	TQ_TEST_RUN=$_tq_this
	# short enough for sockets
	TMPDIR=/tmp/tq.${_tq_this%%:*}
	mkdir -p "$TMPDIR"
	chmod 1777 "$TMPDIR"
	echo "$TQ_TEST_RUN" >"$TMPDIR/run"
	export TQ_TEST_RUN TMPDIR
}

# tq_run_watch RUN: what the watcher does
tq_run_watch() {
	trap '' INT TERM HUP
	tail --pid="${1%%.*}" -f /dev/null
	tq_run_end "$1"
}
