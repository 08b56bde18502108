// Statements on connections of all kinds: whatever the caller has, inside the caller's transaction.
import { typed } from './errors.js';

/**
 * @typedef {object} Queryable one of:
 *   - a Client, PoolClient or Pool of pg, or anything else with `query(text, values)` (TypeORM)
 *   - Knex or a transaction of it: `raw(text, bindings)`
 *   - Prisma or a transaction of it: `$queryRawUnsafe(text, ...values)`
 *   - a connection of postgres.js: `unsafe(text, values)`
 */

/**
 * Runs one statement, whose placeholders $1, $2, ... stand in their order.
 * @param {any} client a Queryable
 * @param {string} text
 * @param {(string | null)[]} values
 * @returns {Promise<Record<string, any>[]>} the rows
 * @throws {import('./errors.js').TqError} by SQLSTATE
 */
export async function run(client, text, values) {
	let result;
	try {
		if (typeof client?.$queryRawUnsafe === 'function')
			result = await client.$queryRawUnsafe(text, ...values);
		else if (typeof client?.raw === 'function')
			result = await client.raw(text.replace(/\$\d+/g, '?'), values);
		else if (typeof client?.query === 'function')
			result = await client.query(text, values);
		else if (typeof client?.unsafe === 'function')
			result = await client.unsafe(text, values);
		else
			throw new TypeError('the client has none of query, raw, $queryRawUnsafe and unsafe');
	} catch (error) {
		throw typed(error);
	}
	return Array.isArray(result) ? result : result.rows;
}
