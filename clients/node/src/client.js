// Enqueueing, looking and operating, on a connection of the caller.
import { decoded, encoded } from './codec.js';
import { run } from './connection.js';
import { chain } from './middleware.js';
import { scheduleArguments } from './schedules.js';
import { sending } from './tracing.js';
import { Json, jsonText } from './values.js';
import { call, camel, checkOptions, row, scalar, select, signatures } from './verbs.js';

const COMMON = {
	kind: 'text', priority: 'int', run_at: 'timestamptz', delay: 'interval', expires_at: 'timestamptz',
	max_attempts: 'int', retry: 'jsonb', timeout: 'interval', group_key: 'text', unique_mode: 'text',
	headers: 'jsonb', depends_on: 'bigint[]', options: 'jsonb',
};
const ENQUEUE = { ...COMMON, unique_key: 'text' };
const ENQUEUE_MANY = {
	...COMMON, kinds: 'text[]', priorities: 'int[]', run_ats: 'timestamptz[]', unique_keys: 'text[]', group_keys: 'text[]',
};
const BATCH_OPEN = { kind: 'text', on_failure: 'text', options: 'jsonb' };
// keys of the argument `options` of tq_enqueue; intervals there are strings
const MORE = { lease: 'interval', tags: '', unique_for: 'interval', weight: '', on_parent_failure: '', follow_up: '', batch: '' };

const milliseconds = (value) => (typeof value === 'number' ? `${value} ms` : value);

/** Moves the keys of MORE from the options of the call to the argument `options`. */
function withMore(options) {
	const own = { ...options };
	const more = {};
	for (const [key, type] of Object.entries(MORE)) {
		const option = camel(key);
		if (own[option] !== undefined)
			more[key] = type === 'interval' ? milliseconds(own[option]) : own[option];
		delete own[option];
	}
	if (Object.keys(more).length > 0)
		own.options = { ...own.options, ...more };
	return own;
}

const names = (types) => [...Object.keys(types), ...Object.keys(MORE)].map(camel);
const typedArguments = (types, options) =>
	Object.fromEntries(Object.entries(types).map(([name, type]) => [name, [type, options[camel(name)]]]));

/**
 * The functions of tq. Each method takes the connection as its first argument and runs in the transaction that is open
 * there. The functions of the same names in the package are those of an instance without options.
 */
export class Tq {
	/**
	 * @param {object} [options]
	 * @param {import('./codec.js').Codec} [options.codec] of payloads, results and checkpoints
	 * @param {boolean} [options.acceptPlain] with a codec: whether plain values are read as well
	 * @param {import('./middleware.js').Middleware[]} [options.middleware] the first is the outermost
	 * @param {(text: string) => unknown} [options.parse] reads payloads, results and checkpoints; JSON.parse rounds numbers
	 * @param {string} [options.schema] of the extension, if it is not in the search_path
	 */
	constructor({ codec, acceptPlain = false, middleware = [], parse = JSON.parse, schema, ...unknown } = {}) {
		checkOptions('Tq', unknown, []);
		this.codec = codec;
		this.acceptPlain = acceptPlain;
		this.middleware = [...middleware];
		this.parse = parse;
		this.prefix = schema === undefined ? '' : `"${schema.replace(/"/g, '""')}".`;
	}

	/** Adds middleware as the innermost. @param {import('./middleware.js').Middleware} middleware */
	use(middleware) {
		this.middleware.push(middleware);
		return this;
	}

	/**
	 * Adds a job (tq_enqueue).
	 * @param {any} client
	 * @param {string} queue
	 * @param {unknown} [payload] what JSON.stringify takes, or json('...')
	 * @param {object} [options] the other arguments of tq_enqueue and the keys of its `options`, in camelCase
	 * @returns {Promise<number | null>} the id; null if the unique key was taken and uniqueMode is ignore
	 */
	async enqueue(client, queue, payload = {}, options = {}) {
		checkOptions('enqueue', options, names(ENQUEUE));
		return this.#send({ client, queue, payloads: [payload], options: { ...options } }, async (request) => {
			const args = { queue: ['text', request.queue], payload: ['jsonb', this.#payload(request.payloads[0])],
				...typedArguments(ENQUEUE, withMore(request.options)) };
			return this.#scalar(request.client, 'tq_enqueue', args, 'bigint');
		});
	}

	/**
	 * As enqueue, but also tells the outcome (tq_enqueue_info).
	 * @returns {Promise<{id: number | null, outcome: 'created' | 'replaced' | 'skipped'}>}
	 */
	async enqueueInfo(client, queue, payload = {}, options = {}) {
		checkOptions('enqueueInfo', options, names(ENQUEUE));
		return this.#send({ client, queue, payloads: [payload], options: { ...options } }, async (request) => {
			const args = { queue: ['text', request.queue], payload: ['jsonb', this.#payload(request.payloads[0])],
				...typedArguments(ENQUEUE, withMore(request.options)) };
			const [info] = await this.#rows(request.client, 'tq_enqueue_info', args);
			return info;
		});
	}

	/**
	 * As enqueueMany, but also tells the outcomes (tq_enqueue_many_info).
	 * @returns {Promise<{id: number | null, outcome: 'created' | 'replaced' | 'skipped'}[]>}
	 */
	async enqueueManyInfo(client, queue, payloads, options = {}) {
		checkOptions('enqueueManyInfo', options, names(ENQUEUE_MANY));
		return this.#send({ client, queue, payloads: [...payloads], options: { ...options } }, async (request) => {
			const args = { queue: ['text', request.queue],
				payloads: ['jsonb[]', request.payloads.map((payload) => this.#payload(payload))],
				...typedArguments(ENQUEUE_MANY, withMore(request.options)) };
			return this.#rows(request.client, 'tq_enqueue_many_info', args);
		});
	}

	/**
	 * Adds a job for each payload (tq_enqueue_many).
	 * @param {any} client
	 * @param {string} queue
	 * @param {unknown[]} payloads
	 * @param {object} [options] as for enqueue; kinds, priorities, runAts, uniqueKeys, groupKeys: one for each payload
	 * @returns {Promise<(number | null)[]>} the ids in the order of the payloads
	 */
	async enqueueMany(client, queue, payloads, options = {}) {
		checkOptions('enqueueMany', options, names(ENQUEUE_MANY));
		return this.#send({ client, queue, payloads: [...payloads], options: { ...options } }, async (request) => {
			const args = { queue: ['text', request.queue],
				payloads: ['jsonb[]', request.payloads.map((payload) => this.#payload(payload))],
				...typedArguments(ENQUEUE_MANY, withMore(request.options)) };
			return this.#scalar(request.client, 'tq_enqueue_many', args, 'bigint[]');
		});
	}

	/** Opens a batch (tq_batch_open). Jobs join with the option `batch`. @returns {Promise<number>} its id */
	async batchOpen(client, queue, payload = {}, options = {}) {
		checkOptions('batchOpen', options, names(BATCH_OPEN));
		return this.#send({ client, queue, payloads: [payload], options: { ...options } }, async (request) => {
			const args = { queue: ['text', request.queue], payload: ['jsonb', this.#payload(request.payloads[0])],
				...typedArguments(BATCH_OPEN, withMore(request.options)) };
			return this.#scalar(request.client, 'tq_batch_open', args, 'bigint');
		}, false);
	}

	/**
	 * Waits until the jobs have ended (tq_wait_jobs), and returns what is known of them then.
	 * @param {any} client outside a transaction
	 * @param {number | number[]} ids
	 * @param {{timeout?: number | string, first?: boolean}} [options] timeout: milliseconds, or an interval; first: waits
	 *   until one of them has ended
	 * @returns {Promise<any>} what `get` returns, for each of an array. A job that has not ended has another state.
	 */
	async waitFor(client, ids, options = {}) {
		checkOptions('waitFor', options, ['timeout', 'first']);
		const all = Array.isArray(ids) ? ids : [ids];
		const { text, values } = call(`${this.prefix}tq_wait_jobs`,
			{ ids: ['bigint[]', all], timeout: ['interval', options.timeout], first: ['boolean', options.first] });
		await run(client, `CALL ${text}`, values);
		const get = select({ text: `unnest($1::text::bigint[]) WITH ORDINALITY i (id, n), ${this.prefix}tq_get(i.id)`,
			values: values.slice(0, 1) }, 'rows');
		const found = (await run(client, `${get.text} ORDER BY i.n`, get.values)).map(({ r }) => this.#row(r, 'get'));
		return Array.isArray(ids) ? found : found[0];
	}

	/** Creates a queue (tq_create_queue). @param {Record<string, unknown>} [settings] by their names in SQL */
	async createQueue(client, name, settings = {}) {
		return this.call('createQueue', client, name, settings);
	}

	/**
	 * Defines a schedule, or replaces it (tq_schedule).
	 * @param {any} client
	 * @param {string} name
	 * @param {object} declared queue, kind, payload, cron or every, timezone, catchUp, overlap, and the options of tq_schedule
	 */
	async schedule(client, name, declared) {
		const args = { name: ['text', name], ...scheduleArguments(this, declared) };
		return this.#scalar(client, 'tq_schedule', args, 'void');
	}

	/** @param {unknown} payload */
	#payload(payload) {
		const text = jsonText(payload, 'payload');
		return new Json(this.codec ? encoded(this.codec, text, 'tq.v1:payload') : text);
	}

	#send(request, last, traced = true) {
		const through = chain(this.middleware.map(({ enqueue }) => enqueue), last);
		return traced ? sending(request, through) : through(request);
	}

	async #scalar(client, name, args, returns) {
		const { text, values } = select(call(this.prefix + name, args), returns);
		const [{ r }] = await run(client, text, values);
		return scalar(r, returns);
	}

	async #rows(client, name, args) {
		const { text, values } = select(call(this.prefix + name, args), 'rows');
		return (await run(client, text, values)).map(({ r }) => row(r, this.parse));
	}

	/** A verb of `signatures`. */
	async call(method, client, ...args) {
		const { name, view, args: all, returns } = signatures.get(method);
		const required = all.filter((argument) => argument.required);
		const options = args[required.length] ?? {};
		checkOptions(method, options, all.filter((argument) => !argument.required).map(({ option }) => option));
		const given = Object.fromEntries(all.map(({ name: argument, option, type }) =>
			[argument, [type, options[option]]]));
		required.forEach(({ name: argument, type }, i) => {
			// the functions on many jobs take a null queue for all queues
			if (args[i] === undefined || (args[i] === null && !(argument === 'queue' && returns === 'row')))
				throw new TypeError(`${method} needs ${argument}`);
			given[argument] = [type, args[i]];
		});
		if (given.payload?.[1] !== undefined && method !== 'enqueued')
			given.payload[1] = this.#payload(given.payload[1]);
		const query = view ? { text: this.prefix + name, values: [] } : call(this.prefix + name, given);
		if (returns === 'row' && given.queue?.[1] === null)
			query.text = query.text.replace('(', '(queue => NULL, ');
		const { text, values } = select(query, returns);
		const rows = await run(client, text, values);
		if (returns !== 'row' && returns !== 'rows')
			return scalar(rows[0].r, returns);
		const found = rows.map(({ r }) => this.#row(r, method));
		return returns === 'row' ? found[0] : found;
	}

	#row(text, method) {
		if ((method !== 'get' && method !== 'outcomes') || !this.codec)
			return row(text, method === 'list' ? JSON.parse : this.parse);
		const found = row(text, (value) => value);
		for (const name of ['payload', 'result', 'checkpoint']) {
			const value = found[`${name}Text`];
			if (value === undefined)
				continue;
			if (value === null) {
				found[name] = null;
				continue;
			}
			found[`${name}Text`] = decoded(this.codec, value, name === 'payload' ? 'tq.v1:payload' : `tq.v1:${name}:${found.id}`,
				this.acceptPlain);
			found[name] = this.parse(found[`${name}Text`]);
		}
		for (const name of ['headers', 'detail'])
			if (typeof found[name] === 'string')
				found[name] = JSON.parse(found[name]);
		return found;
	}
}

for (const method of signatures.keys())
	if (!Object.hasOwn(Tq.prototype, method))
		Object.defineProperty(Tq.prototype, method, {
			value(client, ...args) {
				return this.call(method, client, ...args);
			},
			writable: true, configurable: true,
		});

