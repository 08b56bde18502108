// Data that is read again and again while its screen is shown.
import type { Refused } from "./api";

export class Polled<T> {
  value = $state.raw<T | undefined>(undefined);
  /** Why the last read failed, or an action, which sets it. */
  problem = $state<Refused | undefined>(undefined);
  /** While this is true nothing changes: rows are selected, or a dialog is open. */
  paused = $state(false);
  /** For the element that shows it: it rests while the pointer or the focus is there. */
  readonly rests = {
    onpointerenter: (event: { currentTarget: Element }) => (this.#pointed = event.currentTarget),
    onpointerleave: () => (this.#pointed = undefined),
    onfocusin: (event: { currentTarget: Element }) => (this.#focused = event.currentTarget),
  };
  #pointed: Element | undefined;
  #focused: Element | undefined;
  #read: (signal: AbortSignal) => Promise<T>;
  #pause: number;
  #wanted = false; // now, also if a read is under way that began before
  #again = () => {};

  constructor(read: (signal: AbortSignal) => Promise<T>, pause = 2000) {
    this.#read = read;
    this.#pause = pause;
    $effect(() => {
      const stop = new AbortController();
      void this.#run(stop.signal);
      return () => (stop.abort(), this.#again());
    });
  }

  /** Reads now. */
  again(): void {
    this.problem = undefined;
    this.#wanted = true;
    this.#again();
  }

  // An element that is removed sends no event when it loses the pointer or the focus.
  #resting(): boolean {
    return this.paused || document.hidden || !!this.#pointed?.isConnected || !!this.#focused?.contains(document.activeElement);
  }

  async #run(signal: AbortSignal): Promise<void> {
    let failed: Refused | undefined; // the last read
    for (let first = true; !signal.aborted; first = false) {
      this.#wanted = false;
      try {
        const value = await this.#read(signal);
        if (signal.aborted) return;
        if (!this.paused || this.value === undefined) {
          this.value = value;
          // the problem of an action stays until the next action
          if (first || this.problem === failed) this.problem = undefined;
        }
      } catch (error) {
        if (signal.aborted) return;
        this.problem = failed = error as Refused;
        if (first) this.value = undefined; // of other conditions
      }
      if (this.#wanted) continue;
      await new Promise<void>((resolve) => {
        const timer = setInterval(() => this.#resting() || end(), this.#pause);
        const end = () => (clearInterval(timer), resolve());
        this.#again = end;
      });
    }
  }
}
