# Builds tq and installs it into a separate server tree, so that neither the system's PostgreSQL nor another variant
# sees it.

# A private copy of the server. PostgreSQL finds its libraries and its share folder relative to the executable, so a
# copy under a prefix works.
_tq_server_tree() {
	_tq_bin=$("$PG_CONFIG" --bindir)
	mkdir -p "$TQ_TREE$_tq_bin"
	for _tq_file in "$_tq_bin"/postgres "$_tq_bin"/initdb "$_tq_bin"/psql "$_tq_bin"/pg_* "$_tq_bin"/pgbench \
		"$_tq_bin"/createdb "$_tq_bin"/dropdb "$_tq_bin"/createuser "$_tq_bin"/dropuser "$_tq_bin"/vacuumdb \
		"$_tq_bin"/reindexdb; do
		cp -Lpu "$_tq_file" "$TQ_TREE$_tq_bin/"
	done
	for _tq_dir in "$("$PG_CONFIG" --pkglibdir)" "$("$PG_CONFIG" --sharedir)"; do
		mkdir -p "$TQ_TREE$_tq_dir"
		cp -Rpu "$_tq_dir/." "$TQ_TREE$_tq_dir/"
	done
}

# _tq_make MAKEFILE FOLDER: builds in FOLDER of the variant, with its settings, and installs into its server tree. The
# compiler's output goes to build.log. If the build fails, the errors go to the terminal.
_tq_make() {
	_tq_makefile=$1
	_tq_objects=$TQ_HOME/$2
	case $TQ_VARIANT in
	# the same library, in a separate server
	valgrind-* | gateway-*) _tq_objects=$TQ_BUILD/pg$PG_MAJOR-${TQ_VARIANT#*-}/$2 ;;
	esac
	mkdir -p "$_tq_objects"
	set -- -C "$_tq_objects" -f "$_tq_makefile" PG_CONFIG="$PG_CONFIG" TQ_LAUNCHER="$TQ_CCACHE"
	# a test build needs no bitcode
	case $TQ_VARIANT in
	*test*) set -- "$@" TQ_TEST=1 with_llvm=no ;;
	*clang*) set -- "$@" with_llvm=no ;;
	esac
	case $TQ_VARIANT in
	*clang*) set -- "$@" CXX=clang++ ;;
	# the vptr check needs type information, which -fno-rtti leaves out
	sanitize-*) set -- "$@" TQ_CXXFLAGS="-O0 -fsanitize=address,undefined -fno-sanitize=vptr" PG_LDFLAGS=-fsanitize=address,undefined ;;
	esac
	if ! { make -j "$TQ_JOBS" "$@" all && make "$@" install DESTDIR="$TQ_TREE"; } >>"$TQ_HOME/build.log" 2>&1; then
		grep -E '(error|warning):|undefined reference|\*\*\*' "$TQ_HOME/build.log" >&2 || tail -n 20 "$TQ_HOME/build.log" >&2
		tq_say "the build of $TQ_VARIANT failed, see $TQ_HOME/build.log"
		return 1
	fi
}

# ccache keeps what any checkout of this user has compiled. Paths in the checkout count as relative to it.
_tq_ccache() {
	tq_need ccache || :
	TQ_CCACHE=$(command -v ccache) || TQ_CCACHE=
	CCACHE_BASEDIR=${TQ_SRC:-$TQ_ROOT} CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1 CCACHE_MAXSIZE=4G
	export CCACHE_PCH_EXTSUM TQ_CCACHE CCACHE_BASEDIR CCACHE_NOHASHDIR CCACHE_SLOPPINESS CCACHE_MAXSIZE
}

# tq_prepare_folders: the user and the folders, for stages without a server.
tq_prepare_folders() {
	[ -z "${TQ_BUILD:-}" ] || return 0
	_tq_user
	_tq_folders
	_tq_ccache
	TQ_COMMIT=${TQ_COMMIT-$(tq_commit)}
	export TQ_ROOT TQ_SRC TQ_BUILD TQ_USER TQ_COMMIT
}

# tq_prepare_variant VARIANT: also the server's packages, and the variant's folder.
tq_prepare_variant() {
	TQ_VARIANT=${TQ_INSTEAD:-$1}
	tq_prepare_folders
	tq_need make g++ || return 1
	case $TQ_VARIANT in
	*clang*) tq_need clang || return 1 ;;
	esac
	_tq_server_packages || return 1
	TQ_HOME=$TQ_BUILD/pg$PG_MAJOR-$TQ_VARIANT
	TQ_TREE=$TQ_HOME/server
	TQ_RUN=$TQ_HOME/run
	PG_BIN=$TQ_TREE$("$PG_CONFIG" --bindir)
	PG_TESTLIB=$TQ_TREE$("$PG_CONFIG" --pkglibdir)/pgxs/src/test
	PATH=$PG_BIN:${_tq_path:=$PATH}
	mkdir -p "$TQ_RUN"
	[ "$(id -un)" = "$TQ_USER" ] || chown "$TQ_USER" "$TQ_RUN"
	export TQ_VARIANT TQ_HOME TQ_TREE TQ_RUN PG_BIN PG_MAJOR PG_TESTLIB PATH
}

# tq_prepare VARIANT: packages, build, install into the private server tree.  Variants: release, test (with wait
# points and the test modules), clang, clang-test, sanitize-test (with ASan and UBSan), valgrind-test (in a server that
# runs under valgrind), gateway-release (with ASan and UBSan in the gateway).  TQ_INSTEAD=VARIANT has that one built whatever is asked for.  Afterwards these are set and exported
#   TQ_ROOT  the checkout                   TQ_SRC    the sources as TQ_USER can read them
#   TQ_BUILD the build folder               TQ_HOME   the variant's part of it: obj/, server/, run/, build.log
#   TQ_TREE  the private server's prefix    TQ_RUN    where TQ_USER can write: clusters, logs, results
#   TQ_USER  the user that servers run as   PG_BIN PG_MAJOR PG_CONFIG PG_TESTLIB; PG_BIN is first in PATH
#   TQ_COMMIT, TQ_SERVER  what is tested (scripts/lib/results.sh)
tq_prepare() {
	tq_prepare_variant "$1" || return 1
	(
		flock 9
		# each time: a stage may have installed a package for the server, such as pgTAP
		_tq_server_tree
		# once in a run of scripts/test, whose stages use the server at the same time
		[ ! -e "${TQ_PREPARED:-/nonexistent}/$TQ_VARIANT" ] || exit 0
		: >"$TQ_HOME/build.log"
		_tq_make "$TQ_SRC/Makefile" obj || exit 1
		case $TQ_VARIANT in
		*test*)
			for _tq_module in "$TQ_SRC"/test/modules/*/Makefile; do
				[ -f "$_tq_module" ] || continue
				_tq_make "$_tq_module" "obj-$(basename "$(dirname "$_tq_module")")" || exit 1
			done
			;;
		esac
		case $TQ_VARIANT in
		sanitize-* | valgrind-*) tq_memcheck_wrap ;;
		esac
		[ -z "${TQ_PREPARED:-}" ] || : >"$TQ_PREPARED/$TQ_VARIANT"
	) 9>"$TQ_HOME/lock"
}

# Builds the console in build/console, which the gateway embeds. Packages for it come from npm.
tq_build_console() {
	# these two may be installed from elsewhere
	command -v npm >/dev/null || tq_need nodejs npm || return 1
	(
		cd "$TQ_ROOT/console" && mkdir -p "$TQ_ROOT/build" && exec 7>"$TQ_ROOT/build/console.lock" && flock 7 || exit 1
		if ! cmp -s package-lock.json node_modules/.installed; then
			npm ci --no-audit --no-fund --ignore-scripts && cp package-lock.json node_modules/.installed || exit 1
		fi
		npm run build
	) >"$TQ_ROOT/build/console.log" 2>&1 || { tail -n 20 "$TQ_ROOT/build/console.log" >&2; return 1; }
}

# Builds targets (default all) of libtq, the command and the gateway, with the console; programs are in build/bin.
tq_build_clients() {
	case "${*:-all}" in
	*all* | *tq-gateway*) tq_build_console || tq_die "the build of the console failed, see build/console.log" ;;
	esac
	# shellcheck disable=SC2046 # a list of names
	tq_need $(cat "$TQ_ROOT/clients/cpp/test/packages" "$TQ_ROOT/gateway/test/packages" | grep -vx -e nodejs -e npm) || return 1
	[ -n "${TQ_CCACHE+set}" ] || _tq_ccache
	{
		cmake -S "$TQ_ROOT" -B "$TQ_ROOT/build/clients" -DCMAKE_CXX_COMPILER_LAUNCHER="$TQ_CCACHE" -DTQ_CLIENTS=ON -DTQ_CLIENT_TESTS=OFF -DTQ_CONSOLE="$TQ_ROOT/build/console" \
			-DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$TQ_ROOT/build/bin" &&
			cmake --build "$TQ_ROOT/build/clients" -j "$TQ_JOBS" --target "${@:-all}"
	} >"$TQ_ROOT/build/clients.log" 2>&1 ||
		{ grep -A 5 -E 'rror:' "$TQ_ROOT/build/clients.log" | head -n 40 >&2; tq_die "the build of libtq failed, see build/clients.log"; }
}
