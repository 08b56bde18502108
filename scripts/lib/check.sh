# For scripts/check_*: they run from the top of the checkout, print each error, and fail if there is any. POSIX sh.

export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

_found=0

# complain TEXT: reports one error
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

# sources [NAME...]: the files of the project, all or below the named folders. In a copy without a repository, all
# files except build output.
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
