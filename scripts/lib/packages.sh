# Installs missing packages on Debian. On other systems the user installs them.

_tq_updated=

_tq_apt() {
	_tq_sudo=
	if [ "$(id -u)" -ne 0 ]; then
		sudo -n true 2>/dev/null || [ -t 0 ] || { tq_say "not root and no sudo; please run: apt-get $*"; return 1; }
		_tq_sudo=sudo
	fi
	mkdir -p "$TQ_ROOT/build"
	# an installation that was killed
	[ -z "$(dpkg --audit)" ] || $_tq_sudo dpkg --configure -a >"$TQ_ROOT/build/apt.log" 2>&1 || :
	$_tq_sudo env LD_PRELOAD= DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=600 "$@" >"$TQ_ROOT/build/apt.log" 2>&1 7<&- ||
		{ tail -n 20 "$TQ_ROOT/build/apt.log" >&2; return 1; }
}

_tq_apt_update() {
	[ -n "$_tq_updated" ] || _tq_apt update || return 1
	_tq_updated=yes
}

# tq_need PACKAGE...: installs those that are missing, one caller at a time on this machine: apt-get update does not wait.
tq_need() {
	command -v dpkg-query >/dev/null || return 0
	mkdir -p "$TQ_ROOT/build"
	_tq_find_missing "$@"
	[ -n "$_tq_missing" ] || return 0
	(
		flock 7
		_tq_find_missing "$@"
		[ -n "$_tq_missing" ] || exit 0
		tq_say "installing:$_tq_missing"
		_tq_apt_update || tq_say "going on with the package lists that are there"
		# shellcheck disable=SC2086 # a list of names
		_tq_apt install --yes --no-install-recommends $_tq_missing
	) 7</var/lib/dpkg
}

_tq_find_missing() {
	_tq_missing=
	for _tq_package; do
		case $(dpkg-query -W -f '${db:Status-Abbrev}' "$_tq_package" 2>/dev/null) in
		ii*) ;;
		*) _tq_missing="$_tq_missing $_tq_package" ;;
		esac
	done
}

# The server to build for: PG_CONFIG from the environment, else the newest server with headers on this machine, else
# the one of this Debian release. Sets PG_CONFIG, PG_MAJOR and TQ_SERVER (its version); installs server and headers.
_tq_server_packages() {
	if [ -z "${PG_CONFIG:-}" ]; then
		PG_MAJOR=
		for _tq_dir in /usr/lib/postgresql/*/lib/pgxs; do
			[ -d "$_tq_dir" ] || continue
			_tq_dir=${_tq_dir#/usr/lib/postgresql/}
			[ "${_tq_dir%%/*}" -le "${PG_MAJOR:-0}" ] || PG_MAJOR=${_tq_dir%%/*}
		done
		if [ -z "$PG_MAJOR" ] && command -v apt-cache >/dev/null; then
			(flock 7 && _tq_apt_update) 7</var/lib/dpkg || :
			PG_MAJOR=$(apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p')
		fi
		if [ -n "$PG_MAJOR" ]; then
			tq_need "postgresql-$PG_MAJOR" "postgresql-server-dev-$PG_MAJOR" || return 1
			PG_CONFIG=/usr/lib/postgresql/$PG_MAJOR/bin/pg_config
		else
			PG_CONFIG=pg_config
		fi
	fi
	PG_MAJOR=$("$PG_CONFIG" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/') || tq_die "$PG_CONFIG does not run"
	[ -f "$("$PG_CONFIG" --pgxs)" ] || tq_die "no headers for the server of $PG_CONFIG (postgresql-server-dev-$PG_MAJOR)"
	TQ_SERVER=$("$PG_CONFIG" --version | sed 's/^[^0-9]*\([^ ]*\).*/\1/')
	export PG_CONFIG TQ_SERVER
}
