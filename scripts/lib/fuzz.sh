# The fuzzers of test/fuzz: those of the core (libFuzzer) with their corpora, and those of a server (test/fuzz/server).
# A corpus is one file, test/fuzz/corpus/NAME.txt: an input per line, in base64, sorted.  Source it after tq.sh.

tq_fuzz_server_names="calls rows"

# tq_fuzz_title NAME: the first sentence of its source
tq_fuzz_title() {
	_tq_source=$TQ_ROOT/test/fuzz/$1.cpp
	[ -f "$_tq_source" ] || _tq_source=$TQ_ROOT/test/fuzz/server/$1.py
	sed '/^#\|^import\|^$/Q; s:^// ::' "$_tq_source" | tr '\n' ' ' | tr -d '\\"' | sed 's/\. .*//'
}

# tq_fuzz_build: builds the fuzzers; their programs are in $TQ_CORE/fuzz
tq_fuzz_build() {
	tq_need clang libclang-rt-dev libboost1.81-dev libpq-dev libspdlog-dev libssl-dev || return 1
	_tq_core fuzz -DCMAKE_CXX_COMPILER=clang++ -DTQ_FUZZ=ON
}

# tq_fuzz_unpack NAME FOLDER: a file for each input, in a fresh folder
tq_fuzz_unpack() {
	rm -rf "$2"
	mkdir -p "$2"
	_tq_packed=$TQ_ROOT/test/fuzz/corpus/$1.txt
	[ -f "$_tq_packed" ] || return 0
	_tq_nth=0
	while IFS= read -r _tq_line; do
		_tq_nth=$((_tq_nth + 1))
		printf '%s\n' "$_tq_line" | base64 -d >"$2/$_tq_nth" || return 1
	done <"$_tq_packed"
}

# tq_fuzz_pack FOLDER NAME
tq_fuzz_pack() {
	mkdir -p "$TQ_ROOT/test/fuzz/corpus"
	for _tq_input in "$1"/*; do
		[ -s "$_tq_input" ] || continue
		base64 -w 0 "$_tq_input"
		echo
	done | sort -u >"$TQ_ROOT/test/fuzz/corpus/$2.txt"
}

# tq_fuzz_server NAME LOG [OPTION...]: runs a fuzzer of test/fuzz/server (calls, rows) against the server that
# _tq_server has started. LOG gets its output.
tq_fuzz_server() {
	_tq_name=$1
	_tq_log=$2
	shift 2
	tq_as env PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$TQ_SRC/test/fuzz/server/run.py" --pg-ctl "$PG_BIN/pg_ctl" \
		--data "$_tq_out/data" "$@" "host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE" "$_tq_name" >"$_tq_log" 2>&1
}
