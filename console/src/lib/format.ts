// Numbers, times and lengths for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export function count(n: number | null | undefined): string {
  return n === null || n === undefined ? "" : whole.format(n);
}

export function perSecond(n: number): string {
  return (n < 10 ? fine : whole).format(n) + "/s";
}

const UNITS: [string, number][] = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["min", 60_000],
  ["s", 1000],
  ["ms", 1],
];

/** 90 061 000 ms: "1 d 1 h". Of two units at most. */
export function length(ms: number): string {
  if (ms < 0) return "-" + length(-ms);
  const first = UNITS.findIndex(([, size]) => ms >= size);
  if (first < 0) return ms > 0 ? fine.format(ms) + " ms" : "0 s";
  const [name, size] = UNITS[first];
  if (name === "ms" || name === "s") return fine.format(ms / size) + " " + name;
  const rest = Math.floor((ms % size) / UNITS[first + 1][1]);
  return `${Math.floor(ms / size)} ${name}` + (rest ? ` ${rest} ${UNITS[first + 1][0]}` : "");
}

const ISO = /^P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?$/;
const SIZES = [31_557_600_000, 2_592_000_000, 86_400_000, 3_600_000, 60_000, 1000];

/** An interval as the gateway writes it (P1DT2H3M4.5S), in ms; NaN if it is none. */
export function interval(text: string | null): number {
  const found = text ? ISO.exec(text) : null;
  return found ? SIZES.reduce((ms, size, n) => ms + size * Number(found[n + 1] ?? 0), 0) : NaN;
}

/** A value of a setting: intervals for people, other things as JSON. */
export function setting(value: unknown): string {
  if (value === null) return "none";
  if (typeof value !== "string") return JSON.stringify(value);
  return ISO.test(value) && value.length > 1 ? length(interval(value)) : value;
}

/** A time of the database in this place's time zone, with its date unless that is today's. */
export function time(at: string | null, now: number): string {
  if (!at) return "";
  if (at.includes("infinity")) return at;
  const when = new Date(at);
  const today = when.toDateString() === new Date(now).toDateString();
  const clock = when.toLocaleTimeString("en-GB");
  return today ? clock : `${when.toLocaleDateString("en-CA")} ${clock}`;
}

/** A time of the database as a field for dates and times has it. */
export function local(at: string | undefined): string {
  const when = new Date(at ?? NaN);
  return Number.isNaN(when.getTime()) ? "" : new Date(when.getTime() - when.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** "3 min ago", "in 5 s". */
export function ago(at: string | null, now: number): string {
  if (!at) return "";
  const ms = now - Date.parse(at);
  if (Number.isNaN(ms)) return at;
  if (Math.abs(ms) < 1000) return "now";
  const rough = length(Math.floor(Math.abs(ms) / 1000) * 1000);
  return ms >= 0 ? `${rough} ago` : `in ${rough}`;
}

/** active, paused, creating or closing. */
export function stateOf(queue: { state: string; paused_until: string | null }, now: number): string {
  const until = queue.paused_until;
  return until && (until === "infinity" || Date.parse(until) > now) ? "paused" : queue.state;
}

/** A word of SQL for people: last_outcome, "last outcome". */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}
