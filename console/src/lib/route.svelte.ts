// Which screen is shown, with its filters: #/jobs?queue=mail&state=ready. In the fragment, so that it works below any path.

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand
  }
}

function read() {
  const [path, rest = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    parts: path.split("/").filter(Boolean).map(decoded),
    filters: Object.fromEntries(new URLSearchParams(rest)) as Record<string, string>,
  };
}

let now = $state(read());

addEventListener("hashchange", () => {
  now = read();
});

export const route = {
  /** ["queues", "mail"] */
  get parts() {
    return now.parts;
  },
  get screen() {
    return now.parts[0] ?? "overview";
  },
  get filters() {
    return now.filters;
  },
};

export function link(parts: (string | number)[], filters: Record<string, string | number | null | undefined> = {}): string {
  const given = Object.entries(filters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const rest = given.length ? "?" + new URLSearchParams(given.map(([name, value]) => [name, String(value)])) : "";
  return "#/" + parts.map((one) => encodeURIComponent(String(one))).join("/") + rest;
}

export function go(to: string): void {
  location.hash = to;
}

/** Changes filters of this screen, without a further step of "back" for each letter that is typed. */
export function filter(changes: Record<string, string>): void {
  history.replaceState(null, "", link(now.parts, { ...now.filters, ...changes }));
  now = read();
}
