// Schedules that are declared beside handlers. The start of a worker defines them, and removes those that the same
// application declared before and declares no more.
import { encoded } from './codec.js';
import { Exists, NotFound, QueueNotFound } from './errors.js';
import { Json, jsonText, timestamp } from './values.js';
import { call, camel } from './verbs.js';

const ARGUMENTS = {
	queue: 'text', kind: 'text', cron: 'text', every: 'interval', timezone: 'text', catch_up: 'text', overlap: 'text',
};
// the options of tq_schedule; intervals there are strings
const OPTIONS = {
	priority: '', max_attempts: '', retry: '', timeout: 'interval', group_key: '', unique_key: '', unique_mode: '', headers: '',
	lease: 'interval', tags: '', unique_for: 'interval', weight: '', follow_up: '', delay: 'interval', expires_in: 'interval',
	start: 'time', end: 'time', jitter: 'interval', max_catch_up: '', late: 'interval',
};
const MARK = 'declared_by'; // the member of the headers that names the application

function option(type, value, name) {
	if (type === 'interval' && typeof value === 'number')
		return `${value} ms`;
	return type === 'time' ? timestamp(value, name) : value;
}

/**
 * The arguments of tq_schedule, but its name.
 * @param {import('./client.js').Tq} tq
 * @param {Record<string, any>} declared
 * @param {string} [app]
 * @throws {TypeError} for an unknown option
 */
export function scheduleArguments(tq, declared, app) {
	const args = {};
	const options = {};
	let payload = '{}';
	for (const [key, value] of Object.entries(declared)) {
		const name = key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
		if (camel(name) !== key || !(name in ARGUMENTS || name in OPTIONS || name === 'payload'))
			throw new TypeError(`a schedule has no option ${key}`);
		if (name in ARGUMENTS)
			args[name] = [ARGUMENTS[name], value];
		else if (name === 'payload')
			payload = jsonText(value, 'payload');
		else if (value !== undefined)
			options[name] = option(OPTIONS[name], value, key);
	}
	args.payload = ['jsonb', new Json(tq.codec ? encoded(tq.codec, payload, 'tq.v1:payload') : payload)];
	if (app !== undefined)
		options.headers = { ...options.headers, [MARK]: app };
	if (Object.keys(options).length > 0)
		args.options = ['jsonb', options];
	return args;
}

/**
 * @param {import('./session.js').Session} session
 * @param {import('./client.js').Tq} tq
 * @param {string | undefined} app whose other schedules are removed; undefined: none are
 * @param {Map<string, object>} schedules
 * @param {import('./log.js').Logger} log
 */
export async function declare(session, tq, app, schedules, log) {
	const { prefix } = tq;
	for (const [name, declared] of schedules) {
		const { text, values } = call(`${prefix}tq_schedule`, { name: ['text', name], ...scheduleArguments(tq, declared, app) });
		try {
			await session.query(`SELECT ${text}`, values);
		} catch (error) {
			if (!(error instanceof QueueNotFound))
				throw error;
			await session.query(`SELECT ${prefix}tq_create_queue($1)`, [declared.queue]).catch((other) => {
				if (!(other instanceof Exists))
					throw other;
			});
			await session.query(`SELECT ${text}`, values);
		}
	}
	if (app === undefined)
		return;
	const gone = await session.query(
		`SELECT name FROM ${prefix}tq_schedules WHERE options -> 'headers' ->> '${MARK}' = $1 AND name <> ALL ($2::text[])`,
		[app, [...schedules.keys()]]);
	for (const { name } of gone) {
		try {
			await session.query(`SELECT ${prefix}tq_unschedule($1)`, [name]);
		} catch (error) {
			if (error instanceof NotFound)
				continue; // another worker was faster
			throw error;
		}
		log.info('a schedule that is declared no more is removed', { schedule: name });
	}
}
