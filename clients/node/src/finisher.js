// Ends jobs at the server: those that end close together in one statement.
import { setTimeout as pause } from 'node:timers/promises';
import { JobNotFound, LeaseLost } from './errors.js';
import { about } from './log.js';
import { Closed } from './session.js';
import { errorText } from './perform.js';
import { arrayText, numbersText } from './values.js';

const BATCH = 1000; // jobs of a statement
const ENOUGH = 100; // jobs that do not wait for others
const BATCH_TEXT = 8 << 20; // characters of their results and errors, about
const LATER = 50; // ms until a job is tried again that another transaction is changing
// conflicts, resources, locks, cancelled statements, system errors, tq not loaded: the server may take the same end later
const PASSING = /^(40|53|55|57|58|TQ009)/;
const VALUE_REFUSED = /^(22|54)/; // a result or error that the server never takes

const size = ({ outcome }) => (outcome.result ?? outcome.error)?.length ?? 0;

/** @param {any[]} entries @returns {any[][]} */
function batches(entries) {
	const found = [];
	let room = 0;
	for (const entry of entries) {
		if (found.length === 0 || found.at(-1).length === BATCH || room < size(entry)) {
			found.push([]);
			room = BATCH_TEXT;
		}
		found.at(-1).push(entry);
		room -= size(entry);
	}
	return found;
}

export class Finisher {
	#entries = [];
	#timer = null;
	#flushing = null;

	/**
	 * @param {object} options
	 * @param {import('./session.js').Session} options.session
	 * @param {string} options.prefix of functions
	 * @param {number} options.flushInterval ms
	 * @param {import('./log.js').Logger} options.log
	 * @param {(held: import('./job.js').Held, status: string) => void} options.ended is called when the server has answered
	 */
	constructor({ session, prefix, flushInterval, log, ended }) {
		Object.assign(this, { session, prefix, flushInterval, log, ended });
	}

	/** How many jobs wait for an answer. */
	pending = 0;

	/** @param {import('./job.js').Held} held @param {import('./perform.js').Outcome} outcome */
	add(held, outcome) {
		this.pending++;
		this.#entries.push({ held, outcome });
		if (this.#flushing)
			return;
		if (this.#entries.length === ENOUGH || (this.flushInterval === 0 && !this.#timer)) {
			clearTimeout(this.#timer);
			this.#timer = setImmediate(() => this.#flush());
		} else {
			this.#timer ??= setTimeout(() => this.#flush(), this.flushInterval);
		}
	}

	/** Sends what is left, and resolves when all is answered or `timeout` ms have passed. */
	async drain(timeout) {
		const end = performance.now() + timeout;
		while (this.pending > 0 && performance.now() < end)
			await Promise.race([this.#flush(), pause(Math.max(0, end - performance.now()), null, { ref: false })]);
	}

	#flush() {
		// closed: the stop of the worker counts what is left
		this.#flushing ??= this.#send().catch((error) => {
			if (!(error instanceof Closed))
				throw error;
		}).finally(() => {
			this.#flushing = null;
			if (this.#entries.length > 0)
				this.#timer ??= setTimeout(() => this.#flush(), LATER);
		});
		return this.#flushing;
	}

	async #send() {
		while (this.#entries.length > 0) {
			clearTimeout(this.#timer);
			clearImmediate(this.#timer);
			this.#timer = null;
			const entries = this.#entries;
			this.#entries = [];
			const many = (test) => batches(entries.filter(({ outcome }) => test(outcome)));
			const plain = (outcome) => outcome.verb === 'fail' && !outcome.fatal && outcome.retryIn === undefined;
			const jobs = [
				...many((outcome) => outcome.verb === 'complete').map((batch) => this.#many(batch, 'tq_complete_many', 'results', 'jsonb')),
				...many(plain).map((batch) => this.#many(batch, 'tq_fail_many', 'errors', 'text')),
				...entries.filter(({ outcome }) => outcome.verb !== 'complete' && !plain(outcome)).map((entry) => this.#one(entry)),
			];
			const again = (await Promise.all(jobs)).flat();
			if (again.length > 0) {
				this.#entries.push(...again);
				await pause(LATER);
			}
		}
	}

	#answer(entry, status) {
		this.pending--;
		this.ended(entry.held, status);
	}

	/** One statement for all. Returns those to try again. */
	async #many(entries, name, argument, type) {
		const last = type === 'jsonb' ? ({ outcome }) => outcome.result : ({ outcome }) => outcome.error;
		const without = entries.every((entry) => last(entry) === null);
		const statement = `SELECT status FROM ${this.prefix}${name}($1::bigint[], $2::bigint[]`
			+ `${without ? '' : `, ${argument} => $3::${type}[]`})`;
		let rows;
		try {
			rows = await this.session.query(statement,
				[numbersText(entries.map(({ held }) => held.row.id)), numbersText(entries.map(({ held }) => held.lease)),
					...(without ? [] : [arrayText(entries.map(last))])]);
		} catch (error) {
			if (this.#passes(error))
				return entries;
			// one value is refused: each for itself tells which
			return (await Promise.all(entries.map((entry) => this.#one(entry)))).flat();
		}
		const again = [];
		rows.forEach(({ status }, i) => {
			if (status === 'busy')
				again.push(entries[i]);
			else
				this.#answer(entries[i], status);
		});
		return again;
	}

	/** One statement for one job. Returns it if it is to be tried again. */
	async #one(entry) {
		const { held, outcome } = entry;
		const { name, args, values } = this.#statement(outcome);
		try {
			await this.session.query(`SELECT ${this.prefix}${name}($1, $2${args})`, [held.row.id, held.lease, ...values]);
			this.#answer(entry, 'ok');
			return [];
		} catch (error) {
			if (this.#passes(error))
				return [entry];
			if (error instanceof LeaseLost || error instanceof JobNotFound) {
				this.#answer(entry, 'lost');
				return [];
			}
			this.log.error('the server refused the end of a job', { ...about(held.row), error: error.message });
			if (entry.refused || !VALUE_REFUSED.test(error.code)) {
				this.#answer(entry, 'refused'); // its lease runs out
				return [];
			}
			const name = outcome.verb === 'bury' ? 'reason' : 'error';
			const ascii = outcome[name]?.replace(/[^\0-\x7f]+/g, '?');
			if (ascii !== outcome[name]) // the encoding of the database lacks a character
				return [{ held, outcome: { ...outcome, [name]: ascii } }];
			return [{ held, outcome: { verb: 'fail', error: errorText(error) }, refused: true }];
		}
	}

	#statement(outcome) {
		switch (outcome.verb) {
		case 'complete':
			return { name: 'tq_complete', args: ', $3::text::jsonb', values: [outcome.result] };
		case 'fail':
			return { name: 'tq_fail', args: ', $3, retry_in => $4::text::interval, fatal => $5::text::boolean',
				values: [outcome.error, outcome.retryIn ?? null, String(Boolean(outcome.fatal))] };
		case 'bury':
			return { name: 'tq_bury', args: ', $3', values: [outcome.reason] };
		default:
			return { name: 'tq_release', args: ', $3::text::interval', values: [outcome.delay] };
		}
	}

	#passes(error) {
		if (error instanceof Closed)
			throw error;
		return error.connectionLost || PASSING.test(error.code);
	}
}
