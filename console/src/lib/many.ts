// Jobs that match conditions, however many: a call changes or counts a bounded number of them.
import { send } from "./api";

const STEP = 5000;

/**
 * Changes all of them, or with `dry_run` counts them, and returns how many. Before each call `goOn` hears how many so far, and
 * ends it with false.
 */
export async function all(what: string, conditions: object, goOn: (n: number) => boolean): Promise<number> {
  let n = 0;
  for (let after: number | null = 0; after !== null && goOn(n); ) {
    const body = { ...conditions, ...(after && { after }), max: STEP };
    const found: { changed: number; next_after: number | null } = await send("POST", `/v1/jobs:${what}`, body);
    n += found.changed;
    after = found.next_after;
  }
  return n;
}
