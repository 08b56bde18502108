# Private clusters: a folder DIR with data/, the socket and server.log, run by TQ_USER, reached through a Unix
# socket only.

# tq_cluster_start DIR [CONF_LINE...]: creates the cluster if DIR is new, appends the settings, starts it, and sets
# PGHOST etc. to it. TQ_POSTGRES is run instead of postgres.
tq_cluster_start() {
	_tq_dir=$1
	shift
	if [ ! -f "$_tq_dir/data/PG_VERSION" ]; then
		mkdir -p "$_tq_dir"
		[ "$(id -un)" = "$TQ_USER" ] || chown "$TQ_USER" "$_tq_dir"
		tq_as "$PG_BIN/initdb" -D "$_tq_dir/data" -U postgres -A trust -E UTF8 --locale=C -N >"$_tq_dir/initdb.log" 2>&1 ||
			{ cat "$_tq_dir/initdb.log" >&2; return 1; }
		# the path of a socket must fit into 107 bytes; TMPDIR of a run is short and goes with the run
		_tq_short=/tmp
		[ -z "${TQ_TEST_RUN:-}" ] || _tq_short=$TMPDIR
		if [ ${#_tq_dir} -le 80 ]; then
			_tq_socket=$_tq_dir/s
			tq_as mkdir "$_tq_socket"
		else
			_tq_socket=$(tq_as mktemp -d "$_tq_short/tq-s.XXXXXX")
		fi
		echo "$_tq_socket" >"$_tq_dir/socket"
		cat >>"$_tq_dir/data/postgresql.conf" <<-CONF
			listen_addresses = ''
			unix_socket_directories = '$_tq_socket'
			port = 5432
			log_line_prefix = '%m [%p] %b %d '
			shared_preload_libraries = 'tq'
		CONF
	fi
	for _tq_line; do
		printf '%s\n' "$_tq_line" >>"$_tq_dir/data/postgresql.conf"
	done
	[ -z "${TEMP_CONFIG:-}" ] || cat "$TEMP_CONFIG" >>"$_tq_dir/data/postgresql.conf"
	# a server that is too slow for pg_ctl still has to be stopped at the end
	_tq_clusters="$_tq_clusters $_tq_dir"
	tq_as "$PG_BIN/pg_ctl" ${TQ_POSTGRES:+-p "$TQ_POSTGRES"} -D "$_tq_dir/data" -l "$_tq_dir/server.log" -w -t "$PGCTLTIMEOUT" start >"$_tq_dir/start.log" 2>&1 ||
		{ tail -n 20 "$_tq_dir/server.log" >&2; tq_say "the server in $_tq_dir does not start"; return 1; }
	tq_cluster_use "$_tq_dir"
}

tq_cluster_use() {
	PGHOST=$(cat "$1/socket")
	PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
	export PGHOST PGPORT PGUSER PGDATABASE
}

# tq_cluster_stop DIR [MODE]
tq_cluster_stop() {
	tq_as "$PG_BIN/pg_ctl" -D "$1/data" -m "${2:-fast}" -w -t "$PGCTLTIMEOUT" stop >/dev/null || return 1
	_tq_left=
	for _tq_one in $_tq_clusters; do
		[ "$_tq_one" = "$1" ] || _tq_left="$_tq_left $_tq_one"
	done
	_tq_clusters=$_tq_left
}

# tq_cluster_restart DIR [MODE]
tq_cluster_restart() {
	tq_as "$PG_BIN/pg_ctl" -D "$1/data" -l "$1/server.log" -m "${2:-fast}" -w -t "$PGCTLTIMEOUT" restart >/dev/null
}

# tq_cluster_remove DIR
tq_cluster_remove() {
	if [ -f "$1/data/postmaster.pid" ]; then
		tq_cluster_stop "$1" immediate || :
	fi
	if [ -f "$1/socket" ]; then
		rm -rf "$(cat "$1/socket")"
	fi
	rm -rf "$1"
}

tq_psql() {
	tq_as "$PG_BIN/psql" -X -v ON_ERROR_STOP=1 -qAt "$@"
}
