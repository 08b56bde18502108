#!/usr/bin/env node
// A tq worker with node-postgres.   usage: worker.js QUEUE NAME   (and the usual PG* variables)
'use strict';

const { appendFileSync } = require('fs');
const { setTimeout: pause } = require('timers/promises');
const { Pool } = require('pg');

const [queue, name] = process.argv.slice(2);
const lease = 3; // seconds; renewed at a third of it
const pool = new Pool({ application_name: name, max: 2 }); // one for the job, one for its heartbeats
let stopping = false;

class Fatal extends Error {} // no other attempt will do better

function note(event, job, word) {
	if (process.env.WORK_LOG)
		appendFileSync(process.env.WORK_LOG,
			`${(Date.now() / 1000).toFixed(6)} ${name} ${event} ${job.id} ${job.lease} ${job.attempt} ${word}\n`);
}

// The first column of the only row. Ids and leases are strings here, as every bigint, and go back as they came.
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

// The work that takes time, outside of any transaction.
async function work(job, signal) {
	const { amount, seconds = 0, failures = 0 } = job.payload;
	if (job.attempt <= failures)
		throw new Error('the bank does not answer');
	if (amount <= 0)
		throw new Fatal('nothing to book');
	await pause(seconds * 1000, null, { signal });
}

// Keeps the lease while the work lasts, and aborts it if it is to stop.
async function keepLease(job, working) {
	try {
		const action = await value(pool, 'SELECT action FROM tq_heartbeat($1, $2)', [job.id, job.lease]);
		if (action === 'lost' || action === 'cancel')
			working.abort();
		else if (action === 'quiet')
			stopping = true;
	} catch (error) {
		console.error(error.message); // the server restarts; the next one may get through
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

// An error of the server has a code of five characters, one of the connection has not, and 57P0x is a server that stops.
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
	process.on('SIGTERM', () => { stopping = true; });
	pool.on('error', (error) => console.error(error.message)); // of idle connections
	while (!stopping) {
		let job;
		try {
			job = await claim();
			if (job)
				note('told', job, await perform(job));
		} catch (error) {
			if (error.code === 'TQ001') { // somebody else has the job by now
				note('told', job, 'lost');
				continue;
			}
			// the server restarts: what was in hand is done again when its lease has run out
			console.error(error.message);
			await pause(200);
		}
	}
	await pool.end();
}

main();
