// Who uses the console, and what that role may do. The buttons follow it; the database decides.
import { get, Refused, token } from "./api";
import type { Me } from "./types";

let me = $state<Me | null>(null);
let problem = $state<Refused | null>(null);

export const who = {
  get me() {
    return me;
  },
  /** Why it is not known: 401 asks for a token. */
  get problem() {
    return problem;
  },
};

/** Returns whether it is known now. */
export async function load(): Promise<boolean> {
  const given = token.get();
  try {
    const found = await get<Me>("/v1/me");
    if (given !== token.get()) return false; // the answer for another token
    me = found;
    problem = null;
    return true;
  } catch (error) {
    if (given !== token.get()) return false;
    problem = error as Refused;
    // while the gateway or the database is away, the screens stay, with what was typed
    if ([401, 403].includes(problem.status)) me = null;
    return false;
  }
}

/** Whether the role has one of these privileges on a queue. */
export function may(queue: string, ...anyOf: string[]): boolean {
  const has = [...(me?.rights["*"] ?? []), ...(me?.rights[queue] ?? [])];
  return anyOf.some((one) => has.includes(one));
}

/** ... on all queues. */
export function mayAll(...anyOf: string[]): boolean {
  return anyOf.some((one) => me?.rights["*"]?.includes(one));
}
