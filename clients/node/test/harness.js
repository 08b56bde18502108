// What the tests share.
import { after } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import pg from 'pg';
import { Worker } from 'tq';

process.env.PGDATABASE = 'node';
export const PATIENCE = Number(process.env.PG_TEST_TIMEOUT_DEFAULT ?? 180); // seconds
const ending = [];
after(async () => {
	for (const end of ending.reverse())
		await end();
});

/** A connection that is closed when the file's tests have ended. It survives the loss of the server. */
export async function connect(config = {}) {
	const client = new pg.Client(config);
	client.on('error', () => {});
	await client.connect();
	ending.push(() => client.end().catch(() => {}));
	return client;
}

/** Polls until `condition` returns something true, and returns that. */
export async function until(condition, what, patience = PATIENCE) {
	for (const end = performance.now() + patience * 1000; ;) {
		const found = await condition();
		if (found)
			return found;
		if (performance.now() > end)
			throw new Error(`waited ${patience} s for ${what}`);
		await pause(5); // poll
	}
}

/** A worker, with its log in `entries`, that is stopped when the file's tests have ended. */
export function worker(options) {
	const entries = [];
	const made = new Worker({ lease: '30 s', log: (entry) => entries.push(entry), shutdownTimeout: 100, ...options });
	made.entries = entries;
	made.logged = (message) => entries.filter((entry) => entry.message.includes(message));
	ending.push(() => made.log && made.stop({ now: true }));
	return made;
}

/** The outcome of a job, when it is in one of the states. */
export const state = async (client, job, ...states) => until(async () => {
	const { rows: [row] } = await client.query('SELECT * FROM tq_get($1)', [job]);
	return states.length === 0 || states.includes(row.state) ? row : null;
}, `job ${job} to be ${states}`);

/** A promise with its functions, for a handler that waits for the test. */
export function deferred() {
	let resolve, reject;
	const promise = new Promise((yes, no) => {
		resolve = yes;
		reject = no;
	});
	return { promise, resolve, reject };
}

export const ended = (end) => ending.push(end);
