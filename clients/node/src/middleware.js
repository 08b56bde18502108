/**
 * What runs around each enqueue and each run of a handler.
 * @typedef {object} Middleware
 * @property {(request: {client: any, queue: string, payloads: unknown[], options: Record<string, any>},
 *   next: () => Promise<any>) => Promise<any>} [enqueue] may change the request; returns what next() returned
 * @property {(job: import('./job.js').Job, next: () => Promise<any>) => Promise<any>} [run] returns the result
 */

/**
 * The functions around each other, the first as the outermost.
 * @param {(((subject: any, next: () => Promise<any>) => any) | undefined)[]} around
 * @param {(subject: any) => any} last
 * @returns {(subject: any) => Promise<any>}
 */
export function chain(around, last) {
	return around.filter(Boolean).reduceRight((next, one) => async (subject) => one(subject, () => next(subject)),
		async (subject) => last(subject));
}
