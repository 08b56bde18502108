// Waits for jobs on a connection of its own, and claims them.
import { setTimeout as pause } from 'node:timers/promises';
import { NotInstalled, NotLoaded, TooLarge, sqlstate } from './errors.js';
import { Held } from './job.js';
import { Closed } from './session.js';

const QUEUES = 8; // of one claim
const PATIENCE = 5; // ms from the first idle slot until a claim that is smaller than half of the buffer
const EMPTY_WAIT = 100; // ms that a claim waits if the one before found nothing after a wait
const LONGEST_EMPTY_WAIT = 1000; // ms
const PAUSE = 1000; // ms after an error of the server, doubled up to LONGEST_PAUSE
const LONGEST_PAUSE = 30_000; // ms
const STOP_TIME = 1000; // ms for the server to end a wait
const ANSWER_TIME = 10_000; // ms, beyond the time that the server may wait

export class Claimer {
	#stopping = new AbortController();
	#waiting = false;
	#wake = null;
	#running = null;
	#turn = 0;
	#byKind;

	/**
	 * @param {object} options
	 * @param {import('./session.js').Session} options.session
	 * @param {string} options.prefix of functions
	 * @param {string} options.worker its name
	 * @param {string[]} options.queues
	 * @param {string[] | null} options.kinds
	 * @param {number} options.lease ms
	 * @param {(patient: boolean) => number} options.room how many jobs to claim now; 0: none
	 * @param {(held: Held[]) => void} options.claimed
	 * @param {() => void} options.waits is called once, when the first wait begins
	 * @param {import('./log.js').Logger} options.log
	 */
	constructor(options) {
		Object.assign(this, options);
		// ends before leases do, so that heartbeats get through a pooler with one connection
		this.wait = Math.min(10_000, this.lease / 3);
		this.#byKind = this.kinds !== null;
	}

	start() {
		this.#running = this.#loop();
	}

	/** Asks again for room. */
	wake() {
		this.#wake?.();
	}

	/** Claims no more. A claim that is under way is awaited, because it may bring jobs. */
	async stop() {
		this.#stopping.abort();
		this.wake();
		if (this.#waiting) {
			this.session.cancel();
			const timer = setTimeout(() => this.#waiting && this.session.destroy(), STOP_TIME);
			await this.#running;
			clearTimeout(timer);
		}
		await this.#running;
	}

	get #stopped() {
		return this.#stopping.signal.aborted;
	}

	async #loop() {
		let empty = 0; // claims without jobs since the last one with some
		let more = true; // the last claim got all that it asked for
		let failures = 0;
		while (!this.#stopped) {
			let room = this.room(true);
			if (room === 0 && this.room(false) > 0) {
				await pause(PATIENCE);
				if (this.#stopped) // the stop came too early to end a wait
					break;
				room = this.room(false);
			}
			if (room === 0) {
				await new Promise((resolve) => { this.#wake = resolve; });
				continue;
			}
			try {
				if (!more) {
					await this.#waitForJobs();
					if (this.#stopped)
						break;
				}
				const found = await this.#claim(this.room(true) || room,
					more || empty === 0 ? 0 : Math.min(EMPTY_WAIT * 2 ** (empty - 1), LONGEST_EMPTY_WAIT));
				more = found.length >= room;
				empty = found.length > 0 ? 0 : empty + 1;
				failures = 0;
				if (found.length > 0)
					this.claimed(found);
			} catch (error) {
				if (error instanceof Closed)
					break;
				more = false;
				if (error.connectionLost)
					await this.session.ready().catch(() => {});
				else
					await this.#failed(error, failures++);
			}
		}
	}

	async #failed(error, failures) {
		const passing = error instanceof NotLoaded;
		if (failures === 0 && !passing)
			this.log.error('cannot claim, trying again', { code: sqlstate(error), error: error.message, hint: error.hint });
		await pause(passing ? 100 : Math.min(PAUSE * 2 ** failures, LONGEST_PAUSE), null, { signal: this.#stopping.signal }).catch(() => {});
	}

	async #waitForJobs() {
		const pairs = this.#byKind && this.queues.flatMap((queue) => this.kinds.map((kind) => [queue, kind]));
		const values = [pairs ? pairs.map(([queue]) => queue) : this.queues, `${this.wait} ms`];
		this.#waiting = true;
		this.waits?.();
		this.waits = null;
		try {
			await this.session.query(`CALL ${this.prefix}tq_wait($1::text[], $2::text::interval${pairs ? ', $3::text[]' : ''})`,
				pairs ? [...values, pairs.map(([, kind]) => kind)] : values, this.wait + ANSWER_TIME);
		} catch (error) {
			// version 0.1.0 of the extension cannot wait for kinds, and no version for too many
			if (pairs && (error instanceof NotInstalled || error instanceof TooLarge))
				this.#byKind = false;
			// canceled: by stop, or by a statement_timeout
			else if (sqlstate(error) !== '57014' && !(error.connectionLost && this.#stopped))
				throw error;
		} finally {
			this.#waiting = false;
		}
	}

	/** @returns {Promise<string[]>} up to 8 queues, those that have jobs first */
	async #choice() {
		if (this.queues.length <= QUEUES)
			return this.queues;
		const rows = await this.session.query(
			`SELECT queue FROM ${this.prefix}tq_ready($1::text[]) GROUP BY queue ORDER BY random() LIMIT ${QUEUES}`, [this.queues]);
		if (rows.length > 0)
			return rows.map(({ queue }) => queue);
		this.#turn = (this.#turn + QUEUES) % this.queues.length;
		return [...this.queues, ...this.queues].slice(this.#turn, this.#turn + QUEUES);
	}

	async #claim(jobs, wait) {
		const queues = await this.#choice();
		const asked = performance.now();
		const rows = await this.session.query(
			`SELECT * FROM ${this.prefix}tq_claim_any($1::text[], max_jobs => $2, worker => $3, lease_for => $4::text::interval, `
			+ 'wait => $5::text::interval, kinds => $6::text[])',
			[queues, jobs, this.worker, `${this.lease} ms`, wait === 0 ? null : `${wait} ms`, this.kinds], wait + 2 * ANSWER_TIME);
		return rows.map((row) => new Held(row, asked + this.lease));
	}
}
