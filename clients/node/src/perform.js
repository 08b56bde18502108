// Runs the handler of one job and says how the job ends. Uses no connection of its own.
import { CodecError, decoded } from './codec.js';
import { Bury, Fatal, Release, Retry } from './errors.js';
import { Job, resultText } from './job.js';
import { chain } from './middleware.js';
import { processing } from './tracing.js';
import { interval } from './values.js';

const UNKNOWN_KIND_DELAY = '30 s';
const STACK = 8192; // bytes of a backtrace
const MESSAGE = 32_768; // bytes of a message; the server keeps no more either

/**
 * @typedef {{verb: 'complete', result: string | null} |
 *   {verb: 'fail', error: string, retryIn?: string, fatal?: boolean} |
 *   {verb: 'bury', reason: string} |
 *   {verb: 'release', delay: string, unknown?: boolean} |
 *   {verb: 'none'}} Outcome
 */

const cut = (text, bytes) => (Buffer.byteLength(text) <= bytes ? text
	: Buffer.from(text).subarray(0, bytes).toString('utf8').replace(/\ufffd$/, ''));
// PostgreSQL's text has no zero bytes
const clean = (text) => text.replaceAll('\0', '\ufffd');

/** Class, message and the beginning of the backtrace. @param {unknown} error */
export function errorText(error) {
	try {
		return described(error);
	} catch {
		return 'an error without a text'; // such as Object.create(null)
	}
}

function described(error) {
	if (!(error instanceof Error))
		return clean(cut(String(error), MESSAGE));
	const name = error.name && error.name !== 'Error' ? error.name : error.constructor?.name ?? 'Error';
	const stack = String(error.stack ?? '');
	const at = stack.indexOf('\n    at ');
	return clean(cut(`${name}: ${error.message}`, MESSAGE) + (at < 0 ? '' : cut(stack.slice(at), STACK)));
}

/** What the handler sees of payload, checkpoint and parents. @throws {CodecError} */
function read(held, { codec, acceptPlain, parse }) {
	const { payload, checkpoint, parents } = held.row;
	const part = (what, action) => {
		try {
			return action();
		} catch (error) {
			throw new CodecError(`the ${what} cannot be decoded: ${error instanceof CodecError ? error.message : 'it cannot be parsed'}`);
		}
	};
	const values = { checkpoint: null, parents: null };
	values.payloadText = part('payload', () => decoded(codec, payload, 'tq.v1:payload', acceptPlain));
	values.payload = part('payload', () => parse(values.payloadText));
	if (checkpoint !== null && checkpoint !== undefined && checkpoint !== 'null')
		values.checkpoint = part('checkpoint',
			() => parse(decoded(codec, checkpoint, `tq.v1:checkpoint:${held.id}`, acceptPlain)));
	if (parents) {
		values.parents = part('result of a parent', () => parse(parents));
		for (const [id, outcome] of codec ? Object.entries(values.parents) : [])
			if (outcome?.result !== undefined && outcome.result !== null)
				outcome.result = part('result of a parent',
					() => parse(decoded(codec, JSON.stringify(outcome.result), `tq.v1:result:${id}`, acceptPlain)));
	}
	return values;
}

/**
 * @param {import('./job.js').Held} held
 * @param {object} tools
 * @param {Map<string | null, (job: Job) => any>} tools.handlers by kind
 * @param {import('./client.js').Tq} tools.tq
 * @param {(text: string, values: any[]) => Promise<any[]>} tools.query for heartbeats
 * @returns {Promise<{outcome: Outcome, error?: unknown, value?: unknown}>}
 */
export async function perform(held, { handlers, tq, query }) {
	const handler = handlers.get(held.row.kind ?? null);
	if (!handler)
		return { outcome: { verb: 'release', delay: UNKNOWN_KIND_DELAY, unknown: true } };
	let job;
	try {
		job = new Job(held, read(held, tq), { query, codec: tq.codec, prefix: tq.prefix });
	} catch (error) {
		return { outcome: { verb: 'bury', reason: clean(error.message) }, error };
	}
	try {
		const run = tq.middleware.length === 0 ? handler : chain(tq.middleware.map((one) => one.run), handler);
		const value = await processing(job, () => run(job));
		return { outcome: held.completed ? { verb: 'none' } : { verb: 'complete', result: resultText(tq.codec, job.id, value) }, value };
	} catch (error) {
		return { outcome: ended(error, held), error };
	}
}

/** @returns {Outcome} */
function ended(error, held) {
	try {
		if (error instanceof Release)
			return { verb: 'release', delay: interval(error.delay, 'delay') };
		if (error instanceof Bury)
			return { verb: 'bury', reason: clean(cut(error.message, MESSAGE)) };
		if (error instanceof Fatal)
			return { verb: 'fail', error: errorText(error), fatal: true };
		if (error instanceof Retry)
			return { verb: 'fail', error: errorText(error),
				...(error.delay !== undefined && { retryIn: interval(error.delay, 'delay') }) };
	} catch (wrong) {
		return { verb: 'fail', error: errorText(wrong) };
	}
	const { signal } = held.aborter;
	if (signal.aborted && signal.reason.why === 'shutdown')
		return { verb: 'release', delay: '0' };
	return { verb: 'fail', error: errorText(error) };
}
