/**
 * @typedef {{time: string, level: 'debug' | 'info' | 'warn' | 'error', message: string, [field: string]: unknown}} Entry
 * @typedef {(entry: Entry) => void} Log
 */

const LEVELS = ['debug', 'info', 'warn', 'error'];

/** Writes entries of at least `level` as lines of JSON to standard error. @returns {Log} */
export function jsonLines(level = 'info', stream = process.stderr) {
	if (!LEVELS.includes(level))
		throw new TypeError(`the level must be one of ${LEVELS.join(', ')}: ${level}`);
	const write = (entry) => {
		if (LEVELS.indexOf(entry.level) >= LEVELS.indexOf(level))
			stream.write(`${JSON.stringify(entry)}\n`);
	};
	return Object.assign(write, { level });
}

/** A log with a method for each level, and fields that all entries have. */
export class Logger {
	/** @param {Log & {level?: string}} write entries below its level are not made @param {Record<string, unknown>} fields */
	constructor(write, fields) {
		for (const [i, level] of LEVELS.entries())
			this[level] = i < LEVELS.indexOf(write.level) ? () => {}
				: (message, more) => write({ time: new Date().toISOString(), level, message, ...fields, ...more });
	}
}

/** The fields of entries about a job. */
export const about = ({ id, queue, kind, attempt }) => ({ job_id: Number(id), queue, kind, attempt: Number(attempt) });
