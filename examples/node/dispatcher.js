#!/usr/bin/env node
// Several tq jobs at once with one waiting connection, with node-postgres.   usage: dispatcher.js QUEUE[,QUEUE...] NAME
// The connection waits and claims, however many queues and jobs there are. The pool of worker.js serves heartbeats and
// ends of jobs, whatever their number.
'use strict';

const { setTimeout: pause } = require('timers/promises');
const { Client } = require('pg');
const { lease, name, note, perform, pool, queue, state } = require('./worker.js');

const queues = queue.split(',');
const most = 2; // jobs at once

// Waits for jobs of any of the queues, then claims from those that have some; a call takes up to 8 queues.
async function claim(client, n) {
	await client.query("CALL tq_wait($1::text[], '2 s')", [queues]);
	const { rows: ready } = await client.query(
		'SELECT queue FROM tq_ready($1::text[]) GROUP BY queue ORDER BY random() LIMIT 8', [queues]);
	const some = ready.length ? ready.map((row) => row.queue) : queues.slice(0, 8);
	const { rows } = await client.query(
		`SELECT id, lease, attempt, payload, extract(epoch FROM lease_expires_at) AS until
		 FROM tq_claim_any($1::text[], max_jobs => $2, worker => $3, lease_for => $4 * interval '1 s')`,
		[some, n, name, lease]);
	return rows;
}

async function run(job) {
	try {
		note('told', job, await perform(job));
	} catch (error) {
		if (error.code === 'TQ001')
			note('told', job, 'lost'); // another worker has the job by now
		else
			console.error(error.message); // the server restarts: the job runs again after its lease expires
	}
}

async function main() {
	process.on('SIGTERM', () => { state.stopping = true; });
	const busy = new Set();
	while (!state.stopping) {
		const client = new Client({ application_name: `${name} waits` });
		client.on('error', (error) => console.error(error.message));
		try {
			await client.connect();
			while (!state.stopping) {
				if (busy.size === most) { // no wait for jobs that cannot begin
					await Promise.race(busy);
					continue;
				}
				for (const job of await claim(client, most - busy.size)) {
					const running = run(job).finally(() => busy.delete(running));
					busy.add(running);
				}
			}
		} catch (error) {
			console.error(error.message);
			await pause(200);
		} finally {
			await client.end().catch(() => {});
		}
	}
	await Promise.all(busy);
	await pool.end();
}

main();
