# Shared by everything in scripts/: folders, the user that runs servers, clean-up. Source it from a script in scripts/;
# POSIX sh. Functions and variables that begin with tq_ / TQ_ / PG_ are public, those that begin with an underscore are
# private.

umask 022
export LC_ALL=C

TQ_ROOT=$(cd "$(dirname "$0")/.." && pwd -P)
TQ_JOBS=${TQ_JOBS:-$(nproc 2>/dev/null || echo 2)}
# factor for the server's time limits
TQ_PATIENCE=${TQ_PATIENCE:-1}
export PGCTLTIMEOUT=$((180 * TQ_PATIENCE))
_tq_clusters=
_tq_mounts=

tq_say() {
	printf '%s\n' "$*" >&2
}

tq_die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

_tq_unmount() {
	for _tq_dir in $_tq_mounts; do
		umount -l "$_tq_dir" || :
	done
	_tq_mounts=
}

# Stops running servers, whatever ends the script. A script with clean-up of its own defines tq_on_exit.
_tq_exit() {
	_tq_status=$?
	trap - EXIT INT TERM HUP
	if command -v tq_on_exit >/dev/null; then
		tq_on_exit || :
	fi
	for _tq_dir in $_tq_clusters; do
		tq_cluster_stop "$_tq_dir" immediate >/dev/null 2>&1 || :
	done
	_tq_unmount
	exit "$_tq_status"
}
trap _tq_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# postgres refuses to run as root, so root uses another user for it.
_tq_user() {
	if [ "$(id -u)" -ne 0 ]; then
		TQ_USER=$(id -un)
		return
	fi
	TQ_USER=${TQ_USER:-tqtest}
	# another checkout may create it at this moment
	id "$TQ_USER" >/dev/null 2>&1 ||
		useradd --system --no-create-home --home-dir /nonexistent --shell /bin/sh "$TQ_USER" ||
		id "$TQ_USER" >/dev/null
}

# tq_as CMD...: runs CMD as the user that runs servers, in a folder that this user can enter.
tq_as() (
	cd "${TQ_RUN:-/}" || exit 1
	export HOME="${TQ_RUN:-/nonexistent}" USER="$TQ_USER" LOGNAME="$TQ_USER"
	# a server must not inherit, and keep, the lock of scripts/test
	if [ "$(id -un)" = "$TQ_USER" ]; then
		exec "$@" 8>&-
	fi
	exec runuser -u "$TQ_USER" -- "$@" 8>&-
)

# The build folder, and a copy of the sources that the user can read: normally build/ and the checkout. A checkout
# below a folder closed to the user (a home directory) is copied to a permanent one in /tmp.
_tq_folders() {
	TQ_SRC=$TQ_ROOT
	TQ_BUILD=$TQ_ROOT/build
	mkdir -p "$TQ_BUILD"
	if [ -z "$(tq_as find "$TQ_ROOT" \( -path "$TQ_BUILD" -o -name .git \) -prune -o \
		! -readable -print -quit 2>&1)" ] && tq_as test -x "$TQ_BUILD"; then
		return
	fi
	_tq_there=$TQ_BUILD/elsewhere
	TQ_BUILD=$(cat "$_tq_there" 2>/dev/null || :)
	if [ ! -O "${TQ_BUILD:-/nonexistent}" ]; then
		TQ_BUILD=$(mktemp -d /tmp/tq-build.XXXXXX)
		chmod 755 "$TQ_BUILD"
		echo "$TQ_BUILD" >"$_tq_there"
	fi
	tq_say "$TQ_USER cannot read $TQ_ROOT: working on a copy in $TQ_BUILD"
	TQ_SRC=$TQ_BUILD/src
	mkdir -p "$TQ_SRC"
	tar -C "$TQ_ROOT" -c --exclude=./build --exclude=./.git . | tar -C "$TQ_SRC" -x --no-same-owner -p
	(cd "$TQ_SRC" && find . -type f) | while IFS= read -r _tq_file; do
		[ -e "$TQ_ROOT/$_tq_file" ] || rm -f "$TQ_SRC/$_tq_file"
	done
	chmod -R a+rX "$TQ_SRC"
}

. "$TQ_ROOT/scripts/lib/packages.sh"
. "$TQ_ROOT/scripts/lib/build.sh"
. "$TQ_ROOT/scripts/lib/cluster.sh"
. "$TQ_ROOT/scripts/lib/results.sh"
. "$TQ_ROOT/scripts/lib/memcheck.sh"
. "$TQ_ROOT/scripts/lib/chaos.sh"
