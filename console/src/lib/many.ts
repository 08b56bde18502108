// Changes of jobs that match conditions, however many: a call changes or counts a bounded number of them.
import { Refused, send } from "./api";
import type { Listed } from "./types";

const STEP = 5000;

/**
 * Changes all of them, or with `dry_run` counts them, and returns how many. Before each call `goOn` hears how many so far, and
 * ends it with false. `search` is JSON, sent as it is: its numbers keep their digits.
 */
export async function all(what: string, { search, ...conditions }: Record<string, unknown>, goOn: (n: number) => boolean): Promise<number> {
  if (search) JSON.parse(String(search)); // from the address of the page: it must not end the object
  let n = 0;
  for (let after: number | null = 0; after !== null && goOn(n); ) {
    const body = JSON.stringify({ ...conditions, ...(after && { after }), max: STEP }).slice(0, -1) + (search ? `, "search": ${search}}` : "}");
    const found: { changed: number; next_after: number | null } = await send("POST", `/v1/jobs:${what}`, body);
    n += found.changed;
    after = found.next_after;
  }
  return n;
}

/** Purges one job, if it is still in the state that was shown. */
export async function purge({ id, queue, state, enqueued_at }: Pick<Listed, "id" | "queue" | "state" | "enqueued_at">): Promise<void> {
  const job = { queue, state, created_from: enqueued_at, created_to: enqueued_at, after: id - 1, max: 1 };
  // if its state has changed, the first job that matches is another one
  for (const dry_run of [true, false]) {
    const found: { changed: number; next_after: number | null } = await send("POST", "/v1/jobs:purge", { ...job, dry_run });
    if (found.changed !== 1 || found.next_after !== id) throw new Refused(409, `Job ${id} is no longer ${state}.`);
  }
}
