# Makes the comments of functions, views, types and their columns, and the texts of tq_help, from docs/reference.md.
# POSIX awk; the Makefile appends the output to the install script and to the newest update script.
#
# In the reference, "## " begins a topic and "### " a function, view or type, or several. A section has
#   the signatures     the first block of ```text; "<as tq_f>" stands for the arguments of tq_f between the neighbours
#   the description    the first sentence of the first paragraph; for several names, the sentence that begins with the
#                      name
#   tables             "| argument | meaning |" or "| column | meaning |"; the table in "## Conventions" has what is said
#                      of arguments elsewhere in the page. "| `name` | effect |" lists the values of an argument or
#                      column, and "| key of `name` | meaning |" the keys of a jsonb
#   sessions           the first statement that uses the name is the example

function first_word(s) { sub(/ .*/, "", s); return s }
function trim(s) { sub(/^[ \t]+/, "", s); sub(/[ \t]+$/, "", s); return s }

# Markdown to plain text, without references to what follows in the page.
function plain(s,    before, link, word) {
	while (match(s, /\[[^]]*\]\([^)]*\)/)) {
		before = substr(s, 1, RSTART - 1)
		link = substr(s, RSTART, RLENGTH)
		s = substr(s, RSTART + RLENGTH)
		word = link
		sub(/^\[/, "", word)
		sub(/\]\([^)]*\)$/, "", word)
		s = before word s
	}
	gsub(/`/, "", s)
	gsub(/\*\*/, "", s)
	sub(/[:,;]? [Ss]ee below\.?/, ".", s)
	return trim(s)
}

function sentence(s) {
	if (match(s, /[^.]\.( |$)/))
		s = substr(s, 1, RSTART + 1)
	sub(/:$/, ".", s)
	return s
}

# The first sentence of a text that begins with `name`, without the name.
function sentence_on(s, name,    at) {
	at = index(s, "`" name "` ")
	s = at ? sentence(substr(s, at + length(name) + 3)) : ""
	return toupper(substr(s, 1, 1)) substr(s, 2)
}

function quote(s) { return "$tq$" s "$tq$" }

# Wraps a text to the right of `left`, in lines of 100 characters.
function beside(left, width, s,    n, words, i, line, out) {
	n = split(s, words, " ")
	line = sprintf("%-" width "s", left)
	for (i = 1; i <= n; i++) {
		if (length(line) + 1 + length(words[i]) > 100 && length(line) > width) {
			out = out line "\n"
			line = sprintf("%-" width "s", "")
		}
		line = line " " words[i]
	}
	sub(/ +$/, "", line)
	return out line "\n"
}

function wrapped(s) {
	s = beside("", 0, s)
	gsub(/\n /, "\n", s)
	return substr(s, 2)
}

# Splits "a text, b jsonb = '{}'" at its commas into args[1..n].
function split_arguments(s, args,    i, c, n, depth, quoted) {
	n = 1
	args[1] = ""
	for (i = 1; i <= length(s); i++) {
		c = substr(s, i, 1)
		if (c == "'") quoted = !quoted
		if (!quoted && (c == "(" || c == "[" || c == "{")) depth++
		if (!quoted && (c == ")" || c == "]" || c == "}")) depth--
		if (c == "," && !quoted && depth == 0)
			args[++n] = ""
		else
			args[n] = args[n] c
	}
	for (i = 1; i <= n; i++)
		args[i] = trim(args[i])
	return s == "" ? 0 : n
}

# What the section says of an argument, or the page, or the section of the function for one job or queue.
function meaning_of(name, arg) {
	if (arg in meaning)
		return meaning[arg]
	sub(/_(many|any|for|next|info)$/, "", name)
	return ((name, arg) in said) ? said[name, arg] : common[arg]
}

# The lists of values and keys in the section, and those of arguments that another section describes.
function lists_of(name,    i, arg, base, out) {
	for (i = 1; i <= nlists; i++) {
		list[name, listed[i]] = rows_of(listed[i])
		out = out "\n" listed[i] ":\n" list[name, listed[i]]
	}
	base = name
	sub(/_(many|any|for|next|info)$/, "", base)
	for (i = 1; i <= order[name]; i++) {
		arg = named[name, i]
		if ((base, arg) in list && !((name, arg) in list)) {
			list[name, arg] = list[base, arg]
			out = out "\n" arg ":\n" list[base, arg]
		}
	}
	return out
}

# Texts are aligned. A value of more than 30 characters has lines of its own.
function rows_of(title,    i, width, long, out) {
	for (i = 1; i <= nrows[title]; i++)
		if (length(value[title, i]) > width && length(value[title, i]) <= 30)
			width = length(value[title, i])
	for (i = 1; i <= nrows[title]; i++) {
		long = length(value[title, i]) > 30
		out = out (long ? beside("   ", 3, value[title, i]) : "") \
			beside(long ? "" : "    " value[title, i], width + 5, effect[title, i])
	}
	return out
}

# Puts the arguments of another function in the place of "<as tq_f>" in args[i]; returns how many there are now.
function insert_those_of(other, args, i, n,    before, after, k, from, to) {
	before = first_word(args[i - 1])
	after = first_word(args[i + 1])
	for (k = 1; k <= order[other]; k++) {
		if (named[other, k] == before) from = k + 1
		if (named[other, k] == after) to = k - 1
	}
	for (k = n; k > i; k--)
		args[k + to - from] = args[k]
	for (k = from; k <= to; k++)
		args[i + k - from] = written[other, k]
	for (k = 1; k <= order[other]; k++)
		if (!(named[other, k] in meaning))
			meaning[named[other, k]] = said[other, named[other, k]]
	return n + to - from
}

function standard_and_range(usual, limits) {
	return (usual !~ /^(none|required|all|)$/ ? " Default: " usual "." : "") \
		(limits !~ /^(a name|)$/ ? " Range: " limits "." : "")
}

function emit_function(name, signature, text, example,    kind, open, close_at, inside, tail, args, n, i, arg, types, width, body, m) {
	kind = signature ~ /^procedure / ? "procedure" : "function"
	open = index(signature, "(")
	close_at = index(signature, ") ->")
	if (!close_at)
		close_at = length(signature)
	inside = substr(signature, open + 1, close_at - open - 1)
	tail = trim(substr(signature, close_at + 1))
	n = split_arguments(inside, args)
	for (i = 1; i <= n; i++)
		if (args[i] ~ /^<as /)
			n = insert_those_of(substr(args[i], 5, length(args[i]) - 5), args, i, n)
	width = 0
	types = ""
	order[name] = n
	for (i = 1; i <= n; i++) {
		if (length(args[i]) > width)
			width = length(args[i])
		arg = args[i]
		sub(/ =.*/, "", arg)
		sub(/^[a-z_]+ /, "", arg)
		types = types (i > 1 ? ", " : "") arg
	}
	body = (kind == "procedure" ? "CALL " : "") name "(" (n > 0 ? "\n" : "")
	for (i = 1; i <= n; i++) {
		arg = first_word(args[i])
		m = meaning_of(name, arg)
		m = m standard_and_range(args[i] ~ / = null$/ ? standard[arg] : "", range[arg])
		said[name, arg] = m
		named[name, i] = arg
		written[name, i] = args[i]
		body = body beside("    " args[i], width + 5, m)
	}
	body = body (tail != "" ? beside(")", 1, tail) : ")\n") "\n" wrapped(text) lists_of(name)
	printf "COMMENT ON %s @extschema@.%s(%s) IS %s;\n", toupper(kind), name, types, quote(text)
	emit_help(name, text, body, example)
}

function emit_relation(name, text, example,    i, width, body, of, what) {
	what = text ~ /^The composite type/ ? "TYPE" : "VIEW"
	if (ncolumns == 0 && as_arguments != "") # its columns are the arguments of that function
		for (i = 1; i <= order[as_arguments]; i++) {
			columns[++ncolumns] = named[as_arguments, i]
			meaning[columns[ncolumns]] = said[as_arguments, columns[ncolumns]]
		}
	width = 0
	for (i = 1; i <= ncolumns; i++)
		if (length(columns[i]) > width)
			width = length(columns[i])
	body = wrapped(text) "\n"
	printf "COMMENT ON %s @extschema@.%s IS %s;\n", what, name, quote(text)
	for (i = 1; i <= ncolumns; i++) {
		printf "COMMENT ON COLUMN @extschema@.%s.%s IS %s;\n", name, columns[i], quote(meaning[columns[i]])
		body = body beside("    " columns[i], width + 5, meaning[columns[i]])
	}
	body = body lists_of(name)
	emit_help(name, text, body, example)
}

function emit_help(name, text, body, example) {
	if (example != "")
		body = body "\nExample:\n" example
	sub(/\n+$/, "", body)
	printf "INSERT INTO tq.help (position, topic, name, summary, details) VALUES (%d, %s, %s, %s, %s);\n", ++position, quote(topic), quote(name), quote(text), quote(body)
}

function end_section(    i, text) {
	for (i = 1; i <= nnames; i++) {
		text = nnames > 1 ? sentence_on(prose, names[i]) : sentence(prose)
		text = plain(text)
		if (signatures[i] != "")
			emit_function(names[i], signatures[i], text, examples[i])
		else
			emit_relation(names[i], text, examples[i])
	}
	nnames = 0
}

function begin_section(heading,    i) {
	end_section()
	split("", names); split("", signatures); split("", examples); split("", meaning); split("", standard); split("", range)
	split("", columns); split("", listed); split("", nrows)
	ncolumns = nsignatures = told = nlists = 0
	prose = as_arguments = header = ""
	if (heading !~ /^tq_/)
		return
	nnames = split(heading, names, /, */)
	for (i = 1; i <= nnames; i++)
		signatures[i] = examples[i] = ""
}

# A line of the block with the signatures.
function add_signature(line) {
	if (line ~ /^(procedure )?tq_[a-z_]+\(/) {
		nsignatures++
		signatures[nsignatures] = line
	} else if (nsignatures > 0)
		signatures[nsignatures] = signatures[nsignatures] " " trim(line)
}

# A line of a block with SQL: a statement ends with a semicolon.
function add_example(line,    i) {
	if (statement == "" && line !~ /^(SELECT|CALL|INSERT|COPY) /)
		return
	statement = statement "    " line "\n"
	if (line !~ /;[ ]*(--.*)?$/)
		return
	for (i = 1; i <= nnames; i++)
		if (examples[i] == "" && statement ~ ("(^|[^a-z_])" names[i] "([^a-z_]|$)"))
			examples[i] = statement
	statement = ""
}

function add_row(line,    cells, n, i, words, k, text) {
	n = split(line, cells, / *\| */)
	if (header == "") {
		header = line
		first = what = usual = limits = 0
		for (i = 2; i < n; i++) {
			if (cells[i] == "argument" || cells[i] == "column") first = i
			if (cells[i] == "meaning") what = i
			if (cells[i] == "default") usual = i
			if (cells[i] == "range") limits = i
		}
		is_column = cells[first] == "column"
		in_list = ""
		if (nnames == 1 && cells[2] ~ /^(key of )?`[a-z_]+`$/) {
			in_list = plain(cells[2])
			sub(/^key of /, "", in_list)
			listed[++nlists] = in_list
		}
		return
	}
	if (in_list != "" && line !~ /^\|[-|]+$/) {
		k = ++nrows[in_list]
		value[in_list, k] = plain(cells[2])
		effect[in_list, k] = plain(cells[3]) standard_and_range(usual ? plain(cells[usual]) : "", limits ? plain(cells[limits]) : "")
		return
	}
	if (!first || !what || line ~ /^\|[-|]+$/ || (is_column && nsignatures > 0)) # columns of a result
		return
	text = plain(cells[what])
	k = split(cells[first], words, /, */)
	for (i = 1; i <= k; i++) {
		gsub(/[`*]/, "", words[i])
		if (topic == "Conventions")
			common[words[i]] = text
		else if (!(words[i] in meaning)) {
			meaning[words[i]] = text
			if (usual)
				standard[words[i]] = plain(cells[usual])
			if (limits)
				range[words[i]] = plain(cells[limits])
			if (is_column)
				columns[++ncolumns] = words[i]
		}
	}
}

BEGIN { print "DELETE FROM tq.help;" }

/^## / { begin_section(""); topic = substr($0, 4); next }
/^### / { begin_section(substr($0, 5)); next }

/^```/ {
	in_block = !in_block
	statement = ""
	is_signature = in_block && nsignatures == 0 && $0 == "```text"
	next
}
in_block && is_signature && nsignatures == 0 && !/^(procedure )?tq_/ { is_signature = 0 }
in_block && is_signature { add_signature($0); next }
in_block { add_example($0); next }

/^\|/ { add_row($0); next }
{ header = "" }

match($0, /columns are the arguments of/) { as_arguments = "?" }
as_arguments == "?" && match($0, /`tq_[a-z_]+`/) { as_arguments = substr($0, RSTART + 1, RLENGTH - 2) }

nnames > 0 && !told && NF > 0 && !/^</ { prose = prose (prose == "" ? "" : " ") $0 }
nnames == 1 && NF == 0 && prose != "" { told = 1 }

END { end_section() }
