// A job in the hands of a handler.
import { encoded } from './codec.js';
import { run } from './connection.js';
import { Aborted } from './errors.js';
import { jsonText, interval } from './values.js';

const time = (text) => (text === null || text === undefined ? null : new Date(text));

/** What a worker holds: a claimed job, its lease, and what has become of it. */
export class Held {
	#aborter;

	/**
	 * @param {Record<string, any>} row of tq_job, values as text
	 * @param {number} until when the lease ends at the earliest, by performance.now()
	 */
	constructor(row, until) {
		this.row = row;
		this.id = Number(row.id);
		this.lease = row.lease;
		this.until = until;
		this.lost = false;
		/** The handler has completed the job in a transaction of its own. */
		this.completed = false;
		/** The worker shut down and released it: what its handler returns is dropped. */
		this.released = false;
	}

	/** Made when it is needed: few handlers ask for their signal. */
	get aborter() {
		return this.#aborter ??= new AbortController();
	}

	/** @param {'cancel' | 'lost' | 'shutdown'} why */
	abort(why) {
		if (why === 'lost')
			this.lost = true;
		if (!this.aborter.signal.aborted)
			this.aborter.abort(new Aborted(why));
	}
}

export class Job {
	#held;
	#tools;

	/**
	 * @param {Held} held
	 * @param {{payloadText: string, payload: unknown, checkpoint: unknown, parents: any}} values decoded
	 * @param {{query: (text: string, values: any[]) => Promise<any[]>, codec?: import('./codec.js').Codec, prefix: string}} tools
	 */
	constructor(held, values, tools) {
		const { row } = held;
		this.#held = held;
		this.#tools = tools;
		this.id = held.id;
		this.lease = held.lease;
		this.queue = row.queue;
		this.kind = row.kind;
		this.payload = values.payload;
		this.payloadText = values.payloadText;
		this.headers = row.headers ? JSON.parse(row.headers) : null;
		this.attempt = Number(row.attempt);
		this.maxAttempts = Number(row.max_attempts);
		this.priority = Number(row.priority);
		this.groupKey = row.group_key ?? null;
		this.uniqueKey = row.unique_key ?? null;
		this.tags = row.tags ?? null;
		this.checkpoint = values.checkpoint;
		this.parents = values.parents;
	}

	get enqueuedAt() {
		return time(this.#held.row.enqueued_at);
	}

	get deadline() {
		return time(this.#held.row.deadline);
	}

	/** As of the claim. */
	get leaseExpiresAt() {
		return time(this.#held.row.lease_expires_at);
	}

	/** Aborts when the job is cancelled, its lease is lost, or the worker shuts down. Its reason is an Aborted. */
	get signal() {
		return this.#held.aborter.signal;
	}

	/** Was tq_cancel called? */
	get cancelled() {
		return this.signal.aborted && this.signal.reason.why === 'cancel';
	}

	/**
	 * Extends the lease and reports progress (tq_heartbeat). The worker extends leases by itself.
	 * @param {{progress?: unknown, checkpoint?: unknown, extend?: number | string}} [options] `progress` is for people,
	 *   `checkpoint` for the next attempt, `extend` in ms or an interval
	 * @param {any} [client] whose transaction the checkpoint is a part of
	 * @returns {Promise<'run' | 'cancel' | 'quiet' | 'lost'>}
	 */
	async heartbeat({ progress, checkpoint, extend } = {}, client) {
		const { query, codec, prefix } = this.#tools;
		let text = checkpoint === undefined ? null : jsonText(checkpoint, 'checkpoint');
		if (text !== null && codec)
			text = encoded(codec, text, `tq.v1:checkpoint:${this.id}`);
		const statement = `SELECT action FROM ${prefix}tq_heartbeat($1::text::bigint, $2::text::bigint, `
			+ 'extend => $3::text::interval, progress => $4::text::jsonb, checkpoint => $5::text::jsonb)';
		const values = [String(this.id), this.lease, extend === undefined ? null : interval(extend, 'extend'),
			progress === undefined ? null : jsonText(progress, 'progress'), text];
		const [{ action }] = client ? await run(client, statement, values) : await query(statement, values);
		if (action === 'lost' || action === 'cancel')
			this.#held.abort(action);
		else if (text !== null)
			this.checkpoint = checkpoint;
		return action;
	}

	/**
	 * Completes the job (tq_complete) in the caller's transaction: both take effect, or neither.
	 * @param {any} client
	 * @param {unknown} [result]
	 * @returns {Promise<string>} `succeeded`
	 * @throws {import('./errors.js').LeaseLost} roll back: another worker has the job or will get it
	 */
	async complete(client, result) {
		const { codec, prefix } = this.#tools;
		const text = resultText(codec, this.id, result);
		const [{ r }] = await run(client,
			`SELECT ${prefix}tq_complete($1::text::bigint, $2::text::bigint, $3::text::jsonb) AS r`,
			[String(this.id), this.lease, text]);
		this.#held.completed = true;
		return r;
	}
}

/** The JSON that tq_complete gets. Undefined: no result. @returns {string | null} */
export function resultText(codec, id, result) {
	if (result === undefined)
		return null;
	const text = jsonText(result, 'result');
	return codec ? encoded(codec, text, `tq.v1:result:${id}`) : text;
}
