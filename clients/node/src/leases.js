// Renews the leases of all jobs that the worker holds, and hears what to do with them.
import { about } from './log.js';
import { Closed, caughtUp } from './session.js';
import { numbersText } from './values.js';

const ANSWER_TIME = 1000; // ms, at least, until a connection without answers is given up

export class Leases {
	#timers = [];
	#asking = false;
	#since = null; // when the first question without an answer began

	/**
	 * @param {object} options
	 * @param {import('./session.js').Session} options.session
	 * @param {string} options.prefix of functions
	 * @param {number} options.lease ms
	 * @param {import('./log.js').Logger} options.log
	 * @param {() => Iterable<import('./job.js').Held>} options.held
	 * @param {(quiet: boolean) => void} options.heard is told whether the worker is to claim nothing
	 */
	constructor({ session, prefix, lease, log, held, heard }) {
		Object.assign(this, { session, prefix, lease, log, held, heard });
	}

	start() {
		this.#timers = [setInterval(() => this.#beat(), this.lease / 3), setInterval(() => this.#watch(), this.lease / 6)];
	}

	stop() {
		this.#timers.forEach(clearInterval);
	}

	async #beat() {
		if (this.#asking)
			return;
		this.#asking = true;
		this.#since ??= performance.now();
		for (let again = true; again;) {
			again = false;
			try {
				await this.renew([...this.held()].filter(({ lost }) => !lost));
				this.#since = null;
			} catch (error) {
				again = error.connectionLost; // as soon as there is another one
				if (!again && !(error instanceof Closed))
					this.log.error('a heartbeat failed', { error: error.message });
			}
		}
		this.#asking = false;
	}

	/** Jobs whose leases could not be renewed in time are lost: other workers may have them. */
	async #watch() {
		await caughtUp();
		const now = performance.now();
		if (this.#since === null || now - this.#since < this.lease / 6) // in a loop that was blocked, the answer is under way
			return;
		for (const held of this.held())
			if (now >= held.until)
				this.#lost(held);
	}

	/** @param {import('./job.js').Held[]} held */
	async renew(held) {
		if (held.length === 0) {
			this.heard(false);
			return;
		}
		const asked = performance.now();
		// many ends of jobs may wait, such as those that the server refused together
		const rows = await this.session.urgent(
			`SELECT action FROM ${this.prefix}tq_heartbeat_many($1::bigint[], $2::bigint[])`,
			[numbersText(held.map(({ row }) => row.id)), numbersText(held.map(({ lease }) => lease))],
			Math.max(this.lease / 3, ANSWER_TIME));
		rows.forEach(({ action }, i) => {
			if (action === 'lost')
				this.#lost(held[i]);
			else
				held[i].until = asked + this.lease;
			if (action === 'cancel')
				held[i].abort('cancel');
		});
		this.heard(rows.some(({ action }) => action === 'quiet'));
	}

	#lost(held) {
		// a job that ended meanwhile has no lease either
		if (held.lost || held.completed || held.ending)
			return;
		this.log.warn('the lease of a job is lost', about(held.row));
		held.abort('lost');
	}
}
