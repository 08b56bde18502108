#!/usr/bin/env node
// Enqueues with node-postgres.   usage: enqueue.js QUEUE NAME COUNT   (and the usual PG* variables)
// Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
// so no worker ever sees its job.
'use strict';

const { Client } = require('pg');

async function main(queue, name, count) {
	const client = new Client();
	await client.connect();
	for (let i = 1; i <= count; i++) {
		const transfer = `${name}-${i}`;
		const amount = i % 10 === 9 ? 0 : i;
		const payload = { transfer, amount, seconds: i % 4 / 20, failures: i % 5 === 0 ? 1 : 0 };
		await client.query('BEGIN');
		await client.query('INSERT INTO transfer VALUES ($1, $2)', [transfer, amount]);
		const { rows: [{ id }] } = await client.query(
			`SELECT tq_enqueue($1, $2, kind => 'transfer', delay => $3) AS id`, [queue, payload, i % 4 === 0 ? '300 ms' : null]);
		if (i % 7 === 0) {
			await client.query('ROLLBACK');
		} else {
			await client.query('COMMIT');
			console.log(transfer, id);
		}
	}
	await client.end();
}

main(...process.argv.slice(2));
