// How values of JavaScript become arguments of tq's functions, and back. Every argument is sent as text and cast in the
// statement, so that all drivers send the same.

/** JSON text that is sent as it is: `json('{"price": 1.50}')` keeps every digit. */
export class Json {
	/** @param {string} text */
	constructor(text) {
		this.text = text;
	}
}

/** @param {string} text JSON @returns {Json} */
export const json = (text) => new Json(text);

/**
 * The JSON text of a payload, result or checkpoint.
 * @param {unknown} value
 * @param {string} name of the argument, for errors
 * @returns {string}
 * @throws {TypeError} if the value has no JSON: a function, a BigInt, a cycle
 */
export function jsonText(value, name) {
	if (value instanceof Json)
		return value.text;
	const text = JSON.stringify(value);
	if (text === undefined)
		throw new TypeError(`${name} has no JSON: ${typeof value}`);
	return text;
}

/** Ids are at most 2^53 - 1, so they are numbers here. A lease uses all of a bigint, so it is a string. */
export function id(value, name = 'id') {
	if (/^\d{1,16}$/.test(String(value)) && Number.isSafeInteger(Number(value)))
		return String(value);
	throw new TypeError(`${name} is not the id of a job: ${String(value)}`);
}

/** @param {unknown} value a number of milliseconds, or an interval in PostgreSQL's words @returns {string} */
export function interval(value, name = 'interval') {
	if (typeof value === 'number' && Number.isFinite(value))
		return `${value} ms`;
	if (typeof value === 'string')
		return value;
	throw new TypeError(`${name} must be a number of milliseconds or a string such as "30 s"`);
}

/** @param {Date | string} value @returns {string} */
export function timestamp(value, name = 'time') {
	if (value instanceof Date) {
		if (Number.isNaN(value.getTime()))
			throw new TypeError(`${name} is an invalid Date`);
		return value.toISOString();
	}
	if (typeof value === 'string')
		return value;
	throw new TypeError(`${name} must be a Date or a string`);
}

/** The text of an array with one dimension. @param {(string | null)[]} elements */
export function arrayText(elements) {
	const texts = elements.map((element) => (element === null || element === undefined
		? 'NULL' : `"${element.replace(/["\\]/g, '\\$&')}"`));
	return `{${texts.join(',')}}`;
}

/** The text of an array of numbers. @param {string[]} numbers */
export const numbersText = (numbers) => `{${numbers.join(',')}}`;

const UNITS = { ms: 1, s: 1000, min: 60_000, h: 3_600_000, d: 86_400_000 };

/**
 * Milliseconds of an option.
 * @param {number | string} value milliseconds, or a number with ms, s, min, h or d
 * @returns {number}
 */
export function duration(value, name) {
	const found = typeof value === 'string' ? /^([0-9]+(?:\.[0-9]+)?) ?(ms|s|min|h|d)$/.exec(value) : null;
	const time = found ? Number(found[1]) * UNITS[found[2]] : value;
	if (typeof time !== 'number' || !(time >= 0 && time <= 49 * UNITS.d))
		throw new TypeError(`${name} must be milliseconds, or a string such as "30 s", up to 49 days: ${value}`);
	return time;
}

/** The texts of types that arguments have: from a value of JavaScript, never null, to text. */
export const encoders = {
	text: (value) => String(value),
	int: (value, name) => {
		if (!Number.isInteger(Number(value)) || value === '')
			throw new TypeError(`${name} must be a whole number: ${value}`);
		return String(value);
	},
	boolean: (value) => String(Boolean(value)),
	bigint: id,
	lease: (value) => String(value),
	interval,
	timestamptz: timestamp,
	jsonb: jsonText,
	'text[]': (value) => arrayText(value.map((one) => (one === null || one === undefined ? null : String(one)))),
	'int[]': (value) => arrayText(value.map((one) => (one === null || one === undefined ? null : String(one)))),
	'bigint[]': (value, name) => arrayText(value.map((one) => id(one, name))),
	'timestamptz[]': (value, name) =>
		arrayText(value.map((one) => (one === null || one === undefined ? null : timestamp(one, name)))),
	'jsonb[]': (value, name) => arrayText(value.map((one) => jsonText(one, name))),
};
