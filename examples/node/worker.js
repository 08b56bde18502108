#!/usr/bin/env node
// A tq worker with node-postgres.   usage: worker.js QUEUE NAME   (and the usual PG* variables)
'use strict';

const { appendFileSync } = require('fs');
const { setTimeout: pause } = require('timers/promises');
const { Pool } = require('pg');

const [queue, name] = process.argv.slice(2);
const lease = 3; // seconds; renewed after a third of it
const pool = new Pool({ application_name: name, max: 2 }); // one for the job, one for its heartbeats
const state = { stopping: false };
const report = (error) => console.error(error.message);
pool.on('error', report); // of idle connections; an error that nobody hears ends the process
pool.on('connect', (client) => client.on('error', report)); // of connections in use

class Fatal extends Error {} // a retry cannot succeed

function note(event, job, word) {
	if (process.env.WORK_LOG)
		appendFileSync(process.env.WORK_LOG,
			`${(Date.now() / 1000).toFixed(6)} ${name} ${event} ${job.id} ${job.lease} ${job.attempt} ${word}\n`);
}

// The first column of the only row. Ids and leases are bigint, so they are strings here, and are sent back unchanged.
async function value(client, sql, args) {
	const { rows } = await client.query({ text: sql, values: args, rowMode: 'array' });
	return rows[0][0];
}

async function claim() {
	const { rows } = await pool.query(
		`SELECT id, lease, attempt, payload, extract(epoch FROM lease_expires_at) AS until
		 FROM tq_claim($1, worker => $2, lease_for => $3 * interval '1 s', wait => '2 s')`, [queue, name, lease]);
	return rows[0];
}

// The slow work, outside any transaction.
async function work(job, signal) {
	const { amount, seconds = 0, failures = 0 } = job.payload;
	if (job.attempt <= failures)
		throw new Error('the bank does not answer');
	if (amount <= 0)
		throw new Fatal('nothing to book');
	await pause(seconds * 1000, null, { signal });
}

// Renews the lease during the work, and aborts the work on a stop request.
async function keepLease(job, working) {
	try {
		const action = await value(pool, 'SELECT action FROM tq_heartbeat($1, $2)', [job.id, job.lease]);
		if (action === 'lost' || action === 'cancel')
			working.abort();
		else if (action === 'quiet')
			state.stopping = true;
	} catch (error) {
		console.error(error.message); // the server restarts; the next heartbeat may succeed
	}
}

async function complete(job) {
	note('end', job, 'complete');
	const client = await pool.connect();
	try {
		await client.query('BEGIN'); // both or neither
		await client.query('INSERT INTO booking VALUES ($1, $2, $3, $4)',
			[job.id, job.payload.transfer, job.payload.amount, name]);
		const answer = await value(client, 'SELECT tq_complete($1, $2)', [job.id, job.lease]);
		await client.query('COMMIT');
		client.release();
		return answer;
	} catch (error) {
		client.release(true); // closes it, which rolls back
		throw error;
	}
}

function fail(job, error) {
	const fatal = error instanceof Fatal;
	note('end', job, fatal ? 'kill' : 'fail');
	return value(pool, 'SELECT tq_fail($1, $2, $3, fatal => $4)', [job.id, job.lease, error.message, fatal]);
}

// A server error has a code of five characters, a connection error does not; 57P0x means that the server stops.
const isConnectionLost = (error) => error.code ? /^(57P0|08|E[A-Z]+$)/.test(error.code) : /[Cc]onnection/.test(error.message);

async function perform(job) {
	note('start', job, job.until);
	const working = new AbortController();
	const heartbeats = setInterval(keepLease, lease * 1000 / 3, job, working);
	try {
		await work(job, working.signal);
		return await complete(job);
	} catch (error) {
		if (error.code === 'TQ001' || isConnectionLost(error))
			throw error;
		return await fail(job, error);
	} finally {
		clearInterval(heartbeats);
	}
}

async function main() {
	process.on('SIGTERM', () => { state.stopping = true; });
	while (!state.stopping) {
		let job;
		try {
			job = await claim();
			if (job)
				note('told', job, await perform(job));
		} catch (error) {
			if (error.code === 'TQ001') { // another worker has the job by now
				note('told', job, 'lost');
				continue;
			}
			// the server restarts: jobs in hand run again after their leases expire
			console.error(error.message);
			await pause(200);
		}
	}
	await pool.end();
}

if (require.main === module)
	main();
else // for dispatcher.js
	module.exports = { lease, name, note, perform, pool, queue, state };
