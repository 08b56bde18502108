// Who uses the console, and what that role may do. The buttons follow it; the database decides.
import { get, Refused } from "./api";
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

export async function load(): Promise<void> {
  try {
    me = await get<Me>("/v1/me");
    problem = null;
  } catch (error) {
    me = null;
    problem = error as Refused;
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
