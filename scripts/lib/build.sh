# Building tq and installing it into a server tree of its own, so that neither the system's PostgreSQL nor
# another variant sees it.

# A private copy of the server.  PostgreSQL finds its libraries and its share folder relative to the executable
# if they lie as they did when it was built, so a copy under a prefix works.
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
	PG_BIN=$TQ_TREE$_tq_bin
	PG_TESTLIB=$TQ_TREE$("$PG_CONFIG" --pkglibdir)/pgxs/src/test
}

# _tq_make LOG DIR MAKEFILE TARGET...: make in DIR with the variant's settings; the output goes to LOG and, if it
# fails, to the terminal.
_tq_make() {
	_tq_log=$1 _tq_dir=$2 _tq_makefile=$3
	shift 3
	mkdir -p "$_tq_dir"
	# bitcode of a test build is compile time spent on nothing
	case $TQ_VARIANT in
	*test*) set -- "$@" TQ_TEST=1 with_llvm=no ;;
	*clang*) set -- "$@" with_llvm=no ;;
	esac
	case $TQ_VARIANT in
	*clang*) set -- "$@" CXX=clang++ ;;
	esac
	if ! make -C "$_tq_dir" -f "$_tq_makefile" -j "$TQ_JOBS" PG_CONFIG="$PG_CONFIG" "$@" >>"$_tq_log" 2>&1; then
		grep -E 'error|warning|\*\*\*' "$_tq_log" >&2 || tail -n 20 "$_tq_log" >&2
		tq_say "build of $TQ_VARIANT failed, see $_tq_log"
		return 1
	fi
}

# tq_prepare VARIANT: packages, build, install into the private server tree.  Variants: release, test (with wait
# points and the test modules), clang, clang-test.  Sets and exports
#   TQ_SRC TQ_BUILD TQ_RUN TQ_USER PG_BIN PG_MAJOR (also PG_TESTLIB, TQ_VARIANT, TQ_TREE), and puts PG_BIN first in PATH.
tq_prepare() {
	TQ_VARIANT=$1
	tq_need make g++
	case $TQ_VARIANT in
	*clang*) tq_need clang ;;
	esac
	_tq_server_packages
	_tq_user
	_tq_folders
	_tq_home=$TQ_BUILD/pg$PG_MAJOR-$TQ_VARIANT
	TQ_TREE=$_tq_home/server
	TQ_RUN=$_tq_home/run
	mkdir -p "$TQ_RUN"
	[ "$(id -un)" = "$TQ_USER" ] || chown "$TQ_USER" "$TQ_RUN"
	(
		flock 9
		_tq_server_tree
		: >"$_tq_home/build.log"
		_tq_make "$_tq_home/build.log" "$_tq_home/obj" "$TQ_SRC/Makefile" all &&
			_tq_make "$_tq_home/build.log" "$_tq_home/obj" "$TQ_SRC/Makefile" install DESTDIR="$TQ_TREE" ||
			exit 1
		case $TQ_VARIANT in
		*test*)
			for _tq_module in "$TQ_SRC"/test/modules/*/Makefile; do
				[ -f "$_tq_module" ] || continue
				_tq_name=$(basename "$(dirname "$_tq_module")")
				_tq_make "$_tq_home/build.log" "$_tq_home/obj-$_tq_name" "$_tq_module" all &&
					_tq_make "$_tq_home/build.log" "$_tq_home/obj-$_tq_name" "$_tq_module" install \
						DESTDIR="$TQ_TREE" || exit 1
			done
			;;
		esac
	) 9>"$_tq_home/lock" || return 1
	PG_BIN=$TQ_TREE$("$PG_CONFIG" --bindir)
	PG_TESTLIB=$TQ_TREE$("$PG_CONFIG" --pkglibdir)/pgxs/src/test
	TQ_BUILD_LOG=$_tq_home/build.log
	PATH=$PG_BIN:${_tq_path:=$PATH}
	export TQ_ROOT TQ_SRC TQ_BUILD TQ_RUN TQ_USER TQ_TREE TQ_VARIANT PG_BIN PG_MAJOR PG_TESTLIB PATH
}
