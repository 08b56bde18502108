# For scripts/check_*: they run from the top of the checkout, print what is wrong, and fail if that is anything.
# POSIX sh.

export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

_found=0

# complain TEXT: one thing that is wrong
complain() {
	printf '%s: %s\n' "${0##*/}" "$*"
	_found=1
}

# complain_lines TEXT: the same for each line of standard input
complain_lines() {
	while IFS= read -r _line; do
		printf '%s: %s: %s\n' "${0##*/}" "$1" "$_line"
		_any=yes
	done
	[ -z "${_any:-}" ]
}

# sources [NAME...]: the files that make up the project, all or below the named folders.  A copy without
# repository is listed as it lies, without what a build leaves.
sources() {
	if [ -e .git ] && git rev-parse >/dev/null 2>&1; then
		git ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r _file; do
			[ ! -f "$_file" ] || printf '%s\n' "$_file"
		done
	else
		find "${@:-.}" \( -name build -o -name .git -o -name results \) -prune -o -type f \
			! -name '*.o' ! -name '*.bc' ! -name '*.d' ! -name '*.so' -print 2>/dev/null | sed 's:^\./::'
	fi | sort
}

finish() {
	exit "$_found"
}
