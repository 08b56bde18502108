// The functions of tq as methods, from their signatures in docs/reference.md. Arguments without a default are
// positional; the others are options, in camelCase.
import { encoders } from './values.js';

// conditions of the functions that change many jobs
const MANY = `kind text = null, worker text = null, tag text = null, group_key text = null, unique_key text = null,
	created_from timestamptz = null, created_to timestamptz = null, search jsonb = null, after bigint = null,
	max int = 1000, dry_run boolean = false`;

const SIGNATURES = `
	tq_batch_close(batch bigint) -> void
	tq_batch(batch bigint) -> row
	tq_cancel(id bigint, reason text = null) -> text
	tq_retry(id bigint, with_children boolean = false) -> text
	tq_retry_many(queue text, state text = 'dead', kind text = null, since timestamptz = null, max_jobs int = null,
		to_queue text = null, with_children boolean = false) -> bigint
	tq_purge(queue text, state text) -> bigint
	tq_reschedule(id bigint, run_at timestamptz = null, priority int = null) -> text
	tq_cancel_many(queue text, state text = null, ${MANY}, reason text = null) -> row
	tq_reschedule_many(queue text, state text = null, ${MANY}, run_at timestamptz = null, priority int = null) -> row
	tq_retry_where(queue text, state text = 'dead', ${MANY}, error text = null, with_children boolean = false) -> row
	tq_purge_many(queue text, state text, ${MANY}, error text = null) -> row
	tq_cancel_jobs(ids bigint[], reason text = null) -> rows
	tq_ended(ids bigint[]) -> bigint[]
	tq_outcomes(ids bigint[]) -> rows
	tq_get(id bigint) -> row
	tq_find(queue text, unique_key text) -> bigint
	tq_free_key(queue text, unique_key text) -> boolean
	tq_history(id bigint) -> rows
	tq_explain(id bigint) -> text
	tq_graph(id bigint, max_jobs int = 1000) -> rows
	tq_list(queue text = null, state text = null, kind text = null, worker text = null, tag text = null,
		group_key text = null, unique_key text = null, created_from timestamptz = null, created_to timestamptz = null,
		search jsonb = null, after bigint = null, max int = 50, newest boolean = true,
		error text = null) -> rows
	tq_changes(after text = null, queue text = null, max int = 1000, wait interval = null) -> rows
	tq_dead_groups(queue text, max_jobs int = 10000) -> rows
	tq_create_queue(name text, settings jsonb) -> void
	tq_alter_queue(name text, settings jsonb) -> void
	tq_drop_queue(name text) -> void
	tq_pause(queue text, kind text = null, until timestamptz = null, group_key text = null) -> void
	tq_resume(queue text, kind text = null, group_key text = null) -> void
	tq_limit_group(queue text, group_key text, max_running int = null, rate text = null) -> void
	tq_stats() -> rows
	tq_series(queue text = null, since interval = '1 day', step interval = '1 min') -> rows
	tq_unschedule(name text) -> void
	tq_schedule_pause(name text) -> void
	tq_schedule_resume(name text) -> void
	tq_schedule_run(name text) -> bigint
	tq_drain(worker text) -> bigint
	tq_undrain(worker text) -> boolean
	tq_enqueued(queue text, kind text = null, payload jsonb = null) -> bigint
	tq_health() -> rows
	tq_now() -> timestamptz
	tq_queues -> rows
	tq_running -> rows
	tq_dead -> rows
	tq_workers -> rows
	tq_schedules -> rows`;

/** snake_case to camelCase */
export const camel = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());

/**
 * @typedef {{name: string, view: boolean, args: {name: string, option: string, type: string, required: boolean}[],
 *   returns: string}} Signature
 */

/** @param {string} text of one function @returns {Signature} */
function parsed(text) {
	const [, name, args, returns] = /^(\w+)(?:\(([^]*)\))? -> (\w+(?:\[\])?)$/.exec(text);
	return {
		name,
		view: args === undefined,
		returns,
		args: (args ?? '').split(/,\s+/).filter(Boolean).map((arg) => {
			const [, argument, type, byDefault] = /^(\w+) (\w+(?:\[\])?)( = .*)?$/.exec(arg.trim());
			return { name: argument, option: camel(argument), type, required: byDefault === undefined };
		}),
	};
}

/** @type {Map<string, Signature>} by the name of the method */
export const signatures = new Map(SIGNATURES.trim().split(/\n\t(?=tq_)/).map((text) => {
	const signature = parsed(text);
	return [camel(signature.name.slice('tq_'.length)), signature];
}));

/**
 * The call of a function with those arguments that are given, and its values.
 * @param {string} name with its schema
 * @param {Record<string, [type: string, value: unknown]>} args undefined and null stand for the default
 */
export function call(name, args) {
	const values = [];
	const texts = [];
	for (const [argument, [type, value]] of Object.entries(args)) {
		if (value === undefined || value === null)
			continue;
		values.push(encoders[type](value, argument));
		texts.push(`${argument} => $${values.length}::text::${type === 'lease' ? 'bigint' : type}`);
	}
	return { text: `${name}(${texts.join(', ')})`, values };
}

// Each column as JSON text in a member of its own, so that no driver rounds or converts it.
const ROW = '(SELECT jsonb_object_agg(key, value::text) FROM jsonb_each(to_jsonb(r)))::text AS r';

/** @param {{text: string, values: string[]}} query a call or a view @param {string} returns */
export function select({ text, values }, returns) {
	if (returns === 'row' || returns === 'rows')
		return { text: `SELECT ${ROW} FROM ${text} r`, values };
	return { text: returns === 'void' ? `SELECT ${text}::text AS r` : `SELECT to_jsonb(${text})::text AS r`, values };
}

const TIME = /^(at|until|deadline|[a-z_]+_(at|until))$/;
// columns with JSON of the application
const OWN = new Set(['payload', 'result', 'checkpoint', 'headers', 'detail']);

const time = (value) => (value === null || value === 'infinity' || value === '-infinity' ? value : new Date(value));

/**
 * An object with a property for each column; `payload`, `result` and `checkpoint` also as text.
 * @param {string} text what `select` returned
 * @param {(text: string) => unknown} parse of the application's JSON
 */
export function row(text, parse) {
	const found = {};
	for (const [column, value] of Object.entries(JSON.parse(text))) {
		const name = camel(column);
		if (column === 'lease')
			found[name] = value === null || value === 'null' ? null : value;
		else if (OWN.has(column))
			found[name] = value === null ? null : parse(value);
		else
			found[name] = value === null ? null : TIME.test(column) ? time(JSON.parse(value)) : JSON.parse(value);
		if (column === 'payload' || column === 'result' || column === 'checkpoint')
			found[`${name}Text`] = value === 'null' ? null : value;
	}
	return found;
}

/** The value of a function that returns no row. @param {string | null} text */
export function scalar(text, returns) {
	if (text === null || returns === 'void')
		return returns === 'void' ? undefined : null;
	return returns === 'timestamptz' ? time(JSON.parse(text)) : JSON.parse(text);
}

/** @throws {TypeError} if an option is none of the function's */
export function checkOptions(name, options, known) {
	if (options === null || typeof options !== 'object')
		throw new TypeError(`the options of ${name} must be an object`);
	for (const option of Object.keys(options))
		if (!known.includes(option))
			throw new TypeError(`${name} has no option ${option}; it has ${known.join(', ') || 'none'}`);
}

