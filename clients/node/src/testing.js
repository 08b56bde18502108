// Helpers for the tests of an application.
import { AssertionError } from 'node:assert';
import { enqueued } from './index.js';
import { run } from './connection.js';
import { Held } from './job.js';
import { perform } from './perform.js';
import { arrayText, jsonText, timestamp } from './values.js';
import { checkOptions } from './verbs.js';

const STATES = { complete: 'succeeded', fail: 'failed', bury: 'buried', release: 'released', none: 'succeeded' };

/**
 * Runs one handler here and now, without a database.
 * @param {import('./worker.js').Worker} worker
 * @param {string | null} kind
 * @param {unknown} [payload]
 * @param {{id?: number, queue?: string, attempt?: number, maxAttempts?: number, headers?: object, checkpoint?: unknown,
 *   priority?: number, groupKey?: string, tags?: string[], signal?: AbortSignal}} [options] of the job
 * @returns {Promise<{state: string, result?: unknown, error?: Error, outcome: object, checkpoint: unknown, progress: unknown}>}
 */
export async function runJob(worker, kind, payload = {}, options = {}) {
	checkOptions('runJob', options,
		['id', 'queue', 'attempt', 'maxAttempts', 'headers', 'checkpoint', 'priority', 'groupKey', 'tags', 'signal']);
	const { id = 1, queue = worker.queues[0], attempt = 1, maxAttempts = 20, headers, checkpoint, priority = 100, groupKey, tags,
		signal } = options;
	const held = new Held({
		id: String(id), lease: '1', queue, kind, attempt: String(attempt), max_attempts: String(maxAttempts), priority: String(priority),
		payload: jsonText(payload, 'payload'), headers: headers ? JSON.stringify(headers) : null,
		checkpoint: checkpoint === undefined ? null : jsonText(checkpoint, 'checkpoint'), group_key: groupKey ?? null, tags: tags ?? null,
		enqueued_at: new Date().toISOString(), parents: null, deadline: null,
	}, Infinity);
	if (signal?.aborted)
		held.abort('cancel');
	signal?.addEventListener('abort', () => held.abort('cancel'));
	const kept = { checkpoint: null, progress: null };
	const query = async (_, [, , , progress, text]) => {
		kept.progress = progress === null ? kept.progress : JSON.parse(progress);
		kept.checkpoint = text === null ? kept.checkpoint : JSON.parse(text);
		return [{ action: held.aborter.signal.aborted ? 'cancel' : 'run' }];
	};
	const { tq } = worker;
	const plain = Object.assign(Object.create(tq), { codec: undefined });
	const { outcome, error, value } = await perform(held, { ...worker.tools, tq: plain, query });
	return { state: STATES[outcome.verb], result: value, error, outcome, ...kept };
}

const QUEUES = 8; // of one claim
const DRAIN = 1000; // jobs, so that a handler that enqueues itself ends a test

/**
 * Claims the jobs of the worker's queues and kinds on this connection and runs them one after the other, until none is ready.
 * In a transaction it needs `SET LOCAL tq.claim_own = on`, and sees what the transaction has enqueued.
 * @param {import('./worker.js').Worker} worker
 * @param {any} client
 * @returns {Promise<{id: number, kind: string | null, state: string, result?: unknown, error?: Error}[]>}
 * @throws if there are more than 1000
 */
export async function drain(worker, client) {
	const { tq } = worker;
	const ran = [];
	const texts = `id::text, lease::text, queue, kind, payload::text, attempt::text, max_attempts::text, checkpoint::text,
		headers::text, priority::text, enqueued_at::text, lease_expires_at::text, parents::text, (to_jsonb(j) ->> 'group_key') AS group_key,
		(to_jsonb(j) ->> 'unique_key') AS unique_key, (to_jsonb(j) -> 'tags')::text AS tags, (to_jsonb(j) ->> 'deadline') AS deadline`;
	const kinds = worker.kinds && arrayText(worker.kinds);
	const next = async () => {
		for (let i = 0; i < worker.queues.length; i += QUEUES) {
			const [row] = await run(client, `SELECT ${texts} FROM ${tq.prefix}tq_claim_any($1::text::text[], worker => $2, kinds => $3::text::text[]) j`,
				[arrayText(worker.queues.slice(i, i + QUEUES)), worker.name, kinds]);
			if (row)
				return row;
		}
		return null;
	};
	for (;;) {
		const row = await next();
		if (!row)
			return ran;
		if (ran.length === DRAIN)
			throw new Error(`drain has run ${DRAIN} jobs, and there are more`);
		row.tags = row.tags === null ? null : JSON.parse(row.tags);
		const held = new Held(row, Infinity);
		const query = (text, values) => run(client, text, values);
		const { outcome, error, value } = await perform(held, { ...worker.tools, query });
		ran.push({ id: held.id, kind: row.kind, state: STATES[outcome.verb], result: value, error });
		await finish(client, tq.prefix, held, outcome);
	}
}

async function finish(client, prefix, { row: { id, lease } }, outcome) {
	const statements = {
		complete: ['tq_complete($1::text::bigint, $2::text::bigint, $3::text::jsonb)', [outcome.result ?? null]],
		fail: ['tq_fail($1::text::bigint, $2::text::bigint, $3::text, retry_in => $4::text::interval, fatal => $5::text::boolean)',
			[outcome.error, outcome.retryIn ?? null, String(Boolean(outcome.fatal))]],
		bury: ['tq_bury($1::text::bigint, $2::text::bigint, $3::text)', [outcome.reason]],
		release: ['tq_release($1::text::bigint, $2::text::bigint, $3::text::interval)', [outcome.delay]],
	};
	if (outcome.verb === 'none')
		return;
	const [call, values] = statements[outcome.verb];
	await run(client, `SELECT ${prefix}${call}::text AS r`, [id, lease, ...values]);
}

/**
 * @param {any} client
 * @param {string} queue
 * @param {{kind?: string, payload?: unknown, count?: number}} [options] `payload` is contained in that of the job;
 *   `count`: exactly so many, else at least one
 * @throws {AssertionError}
 */
export async function assertEnqueued(client, queue, { kind, payload, count, ...unknown } = {}) {
	checkOptions('assertEnqueued', unknown, []);
	const found = await enqueued(client, queue, { kind, payload });
	if (count === undefined ? found > 0 : found === count)
		return;
	const what = [kind === undefined ? '' : ` of kind ${kind}`, payload === undefined ? '' : ` with ${jsonText(payload, 'payload')}`];
	throw new AssertionError({
		message: `queue ${queue} has ${found} jobs${what.join('')}, not ${count ?? 'at least 1'}`,
		actual: found, expected: count, operator: 'assertEnqueued', stackStartFn: assertEnqueued,
	});
}

/** No such job is enqueued. */
export const assertNotEnqueued = (client, queue, options = {}) => assertEnqueued(client, queue, { ...options, count: 0 });

/**
 * Sets the clock of the database (tq_set_now), in which tq.testing must be on. Without a time: the server's.
 * @param {any} client
 * @param {Date | string} [at]
 * @returns {Promise<Date>} the time of tq
 */
export async function setNow(client, at) {
	const [{ r }] = await run(client, 'SELECT to_jsonb(tq_set_now($1::text::timestamptz))::text AS r',
		[at === undefined ? null : timestamp(at)]);
	return new Date(JSON.parse(r));
}

/** Removes all jobs of a queue, or of the database (tq_reset). @returns {Promise<number>} how many */
export async function reset(client, queue = null) {
	const [{ r }] = await run(client, 'SELECT tq_reset($1::text)::text AS r', [queue]);
	return Number(r);
}
