// The time, for ages and countdowns: that of the database, second by second.
import { who } from "./me.svelte";

let ticks = $state(Date.now());
setInterval(() => (ticks = Date.now()), 1000);

let ahead = 0; // of this machine's clock, in ms

export const clock = {
  get now() {
    return ticks + ahead;
  },
};

/** Compares the clocks. */
export function set(): void {
  if (who.me) ahead = Date.parse(who.me.now) - Date.now();
}
