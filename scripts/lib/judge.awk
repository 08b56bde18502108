# Reads what test programs print: TAP, GoogleTest, pg_regress (its output, then regression.diffs). The last line of the
# output is "PASSED FAILED"; before it comes a line for each failed case: "NAME: the beginning of its message".
# Variables: by_file=1 if a case is named by its file, as those of prove are.

function finish() {
	if (name != "")
		print name ": " detail
	name = detail = ""
	lines = 0
}

function add(text) {
	gsub(/^[# \t]+/, "", text)
	gsub(/\t/, " ", text)
	if (text == "" || lines >= 5 || text ~ /^Failed test /)
		return
	detail = detail (detail == "" ? "" : " | ") substr(text, 1, 160)
	lines++
}

# "ok 7 - text" and "ok - text" without what comes before the text
function title(line) {
	sub(/^(not )?ok *[0-9]* *(- )?/, "", line)
	return line
}

FNR == 1 {
	finish()
	file = FILENAME
	sub(/.*\//, "", file)
	sub(/\.(pl|sql)$/, "", file)
	in_diffs = FILENAME ~ /regression\.diffs$/
	test = ""
}

in_diffs {
	if (/^diff /) {
		test = $NF
		sub(/.*\//, "", test)
		sub(/(_[0-9])?\.out$/, "", test)
	} else if (/^[-+]/ && !/^(---|\+\+\+) / && shown[test] < 4) {
		shown[test]++
		diffs[test] = diffs[test] " | " substr($0, 1, 120)
	}
	next
}

/^ok / {
	finish()
	if ($0 !~ /# *[Ss][Kk][Ii][Pp]/)
		good++
	next
}

/^not ok / {
	finish()
	if ($0 ~ /# *[Tt][Oo][Dd][Oo]/)
		next
	bad++
	text = title($0)
	if (text ~ /^[a-z_0-9]+ +[0-9]+ ms$/) { # pg_regress of 16 and later
		sub(/ .*/, "", text)
		failed_tests[text] = 1
	} else if (by_file) {
		name = file
		add(text)
	} else {
		# a name, and behind a colon what was wrong
		name = text
		colon = index(text, ": ")
		if (colon > 0) {
			name = substr(text, 1, colon - 1)
			add(substr(text, colon + 2))
		}
	}
	next
}

/^\[ RUN      \] / { finish(); running = $4; detail = ""; lines = 0; next }
/^\[       OK \] / { good++; running = detail = ""; lines = 0; next }
/^\[  FAILED  \] .*\([0-9]+ ms\)$/ { bad++; name = $4; sub(/,$/, "", name); running = ""; finish(); next }
/^\[[-= ]/ { next }

/^test .* \.\.\. ok / { good++; next }
/^(test)? .* \.\.\. FAILED/ {
	bad++
	test = $1 == "test" ? $2 : $1
	failed_tests[test] = 1
	next
}

name != "" || running != "" { add($0) }

END {
	if (running != "") {
		bad++
		name = running
		detail = detail " | it did not end"
	}
	finish()
	for (test in failed_tests)
		print test ": differs" diffs[test]
	print good + 0, bad + 0
}
