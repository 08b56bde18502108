// What the programs beside this file share. usage of each: node PROGRAM JOBS [SAMPLES]; libpq's environment names the
// database. A program enqueues JOBS empty jobs, runs them, and prints {"rate": jobs per second} as JSON.
import { setTimeout as pause } from 'node:timers/promises';
import pg from 'pg';

export const [jobs, samples = 0] = process.argv.slice(2).map(Number);
export const client = new pg.Client();
await client.connect();

// Jobs per second of a worker, from its start until the database has no job left. start: a function that starts it and
// gets the handler; left: a query that returns whether there are any.
export async function rate(start, left) {
	let ran = 0, all;
	const done = new Promise((resolve) => { all = resolve; });
	const began = performance.now();
	await start(() => { if (++ran === jobs) all(); });
	await done;
	while ((await client.query({ text: left, rowMode: 'array' })).rows[0][0])
		await pause(2);
	return jobs / (performance.now() - began) * 1000;
}

// Milliseconds from the answer to each enqueue until its handler runs; 0 if the handler was first. onJob: sets what the
// handler does.
export async function latencies(enqueue, onJob) {
	const late = [];
	for (let n = -samples / 10; n < samples; n++) { // the first ones warm up
		await pause(3 + Math.random() * 2); // until the worker waits again
		const handled = new Promise((resolve) => onJob(() => resolve(performance.now())));
		await enqueue();
		const committed = performance.now();
		const at = await handled;
		if (n >= 0)
			late.push(Math.max(at - committed, 0));
	}
	late.sort((a, b) => a - b);
	return { p50: late[Math.floor(samples / 2)], p99: late[Math.floor(samples * 0.99)] };
}

export function print(figures) {
	console.log(JSON.stringify(figures));
	process.exit(0);
}
