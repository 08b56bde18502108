// The figures of all queues, once a second, from one stream; kept for some minutes, for rates and charts.
import { address, Refused, token } from "./api";
import type { Figures } from "./types";

const KEPT = 300; // samples
const SILENCE = 15_000; // ms; the gateway sends figures each second
const COUNTERS = ["enqueued", "claimed", "succeeded", "failed", "lost", "dead"] as const;
export type Counter = (typeof COUNTERS)[number];

interface Sample {
  at: number; // ms
  depth: number; // ready, delayed, blocked and running
  running: number;
  counters: Record<Counter, number>;
}

let queues = $state.raw<Figures[]>([]);
let samples = $state.raw<Sample[]>([]);
let connected = $state(false);
let failure = $state<Refused | null>(null);
let before = new Map<string, { at: number; figures: Figures }>();
let rates = $state.raw(new Map<string, Record<Counter, number>>());

export const live = {
  get queues() {
    return queues;
  },
  get samples() {
    return samples;
  },
  get connected() {
    return connected;
  },
  get failure() {
    return failure;
  },
  get known() {
    return samples.length > 0;
  },
};

const sum = (of: (one: Figures) => number) => queues.reduce((total, one) => total + of(one), 0);

export const total = (name: "ready" | "delayed" | "blocked" | "running" | "waiting") => sum((one) => one[name]);

/** Events per second: of a queue, or of all, over the last ten seconds. */
export function rate(counter: Counter, queue?: string): number {
  if (queue !== undefined) return rates.get(queue)?.[counter] ?? 0;
  const last = samples.at(-1);
  const first = samples.findLast((one) => last && last.at - one.at >= 9_500) ?? samples[0];
  if (!last || first === last) return 0;
  return Math.max(0, last.counters[counter] - first.counters[counter]) / ((last.at - first.at) / 1000);
}

function take(figures: Figures[]): void {
  const at = Date.now();
  queues = figures;
  const counters = Object.fromEntries(COUNTERS.map((name) => [name, sum((one) => one[name])])) as Record<Counter, number>;
  const running = total("running");
  const sample = { at, depth: total("ready") + total("delayed") + total("blocked") + running, running, counters };
  samples = [...samples.slice(-KEPT + 1), sample];
  const next = new Map(rates);
  for (const one of figures) {
    const last = before.get(one.queue);
    if (last && at - last.at < 4_500) continue;
    if (last) {
      const seconds = (at - last.at) / 1000;
      const of = (name: Counter) => Math.max(0, one[name] - last.figures[name]) / seconds;
      next.set(one.queue, Object.fromEntries(COUNTERS.map((name) => [name, of(name)])) as Record<Counter, number>);
    }
    before.set(one.queue, { at, figures: one });
  }
  rates = next;
}

/** Calls `take` with the name and the data of each event, until the stream ends or is silent. */
async function events(path: string, take: (name: string, data: string) => void, signal: AbortSignal): Promise<void> {
  const headers: Record<string, string> = token.get() ? { Authorization: "Bearer " + token.get() } : {};
  // a connection that broke somewhere on its way does not end by itself
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENCE);
  try {
    const answer = await fetch(address(path), { headers, signal: AbortSignal.any([signal, silent.signal]) });
    if (!answer.ok || !answer.body) throw new Refused(answer.status, `The gateway answered ${answer.status}.`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE);
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const lines = text.slice(0, end).split("\n");
        text = text.slice(end + 2);
        const of = (name: string) => lines.find((one) => one.startsWith(name + ": "))?.slice(name.length + 2) ?? "";
        take(of("event"), of("data"));
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

/** Follows the figures for ever; a lost stream is opened again, more and more seldom. */
export async function follow(signal: AbortSignal): Promise<void> {
  for (let pause = 500; !signal.aborted; pause = Math.min(pause * 2, 10_000)) {
    try {
      await events(
        "/v1/events",
        (name, data) => {
          if (name === "error") {
            const said = JSON.parse(data);
            failure = new Refused(said.status, said.detail ?? said.title, said.hint, said.code);
          } else if (name === "stats") {
            take(JSON.parse(data).queues);
            connected = true;
            failure = null;
            pause = 500;
          }
        },
        signal,
      );
    } catch (error) {
      if (signal.aborted) return;
      failure ??= error instanceof Refused ? error : new Refused(0, "The gateway does not answer.");
    }
    connected = false;
    await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
  }
}
