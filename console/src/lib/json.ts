// JSON as text. Payloads are shown with the digits that the database has, so they are never parsed into numbers.

const WORD = /[^\s{}[\],:"]+/y;
const MARK = /"|\\./g; // the end of a string, or an escape in it

// One step for each mark: a pattern for a whole string runs out of stack in one of 10 MB.
function string(text: string, at: number): string | undefined {
  MARK.lastIndex = at + 1;
  for (let found; (found = MARK.exec(text)); ) if (found[0] === '"') return text.slice(at, MARK.lastIndex);
  return undefined;
}

/** The parts of a JSON text, without spaces: punctuation, strings and words. The text is valid. */
function* tokens(text: string): Generator<string> {
  for (let at = 0; at < text.length; ) {
    const first = text[at];
    if (" \t\r\n".includes(first)) {
      ++at;
      continue;
    }
    WORD.lastIndex = at;
    const found = "{}[],:".includes(first) ? first : first === '"' ? string(text, at) : WORD.exec(text)?.[0];
    if (found === undefined) throw new SyntaxError("not JSON: " + text.slice(at, at + 20));
    yield found;
    at += found.length;
  }
}

/** The parts of the outermost object or array of a text, each as text, with their names or places. */
function parts(text: string): [string, string][] {
  const found: [string, string][] = [];
  let depth = 0;
  let name: string | undefined;
  let begun = -1; // of a value
  let at = 0;
  let list = false;
  for (const token of tokens(text)) {
    at = text.indexOf(token, at);
    const opens = token === "{" || token === "[";
    const closes = token === "}" || token === "]";
    if (depth === 1 && (token === "," || closes)) {
      if (begun >= 0) found.push([name ?? String(found.length), text.slice(begun, at).trim()]);
      begun = -1;
      name = undefined;
    } else if (depth === 1 && begun < 0) {
      if (list) begun = at;
      else if (token === ":") begun = at + 1;
      else name = JSON.parse(token);
    }
    if (depth === 0) list = token === "[";
    if (opens) ++depth;
    if (closes) --depth;
    at += token.length;
  }
  return found;
}

/** The members of an object, each as text. */
export function members(text: string): Map<string, string> {
  return new Map(parts(text));
}

/** The elements of an array, each as text. */
export function elements(text: string): string[] {
  return parts(text).map(([, one]) => one);
}

/** A JSON text over several lines. Values of members whose names `hidden` matches are replaced. */
export function pretty(text: string, hidden?: RegExp): string {
  let out = "";
  let indent = 0;
  let before = "";
  let name = "";
  let skipped = -1; // the depth at which a hidden value began
  const line = () => "\n" + "  ".repeat(indent);
  for (const token of tokens(text)) {
    const opens = token === "{" || token === "[";
    const closes = token === "}" || token === "]";
    if (closes) --indent;
    if (skipped >= 0 && (indent > skipped || opens || (closes && indent === skipped))) {
      if (opens) ++indent;
      if (closes && indent === skipped) skipped = -1;
      before = token;
      continue;
    }
    if (before === ":" && hidden?.test(name)) {
      out += "•••";
      if (opens) skipped = indent++;
      before = token;
      continue;
    }
    if (closes) out += before === "{" || before === "[" ? token : line() + token;
    else {
      if (before === "{" || before === "[" || before === ",") out += line();
      out += token === ":" ? ": " : token;
    }
    if (opens) ++indent;
    if (token.startsWith('"')) name = JSON.parse(token);
    before = token;
  }
  return out;
}

/** Whether a text is JSON; what is wrong with it otherwise. */
export function fault(text: string): string {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return (error as Error).message;
  }
}
