// Signals to workers of a server that does not answer.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import test from 'node:test';
import * as tq from 'tq';
import { connect, ended, PATIENCE, state, until } from './harness.js';

const client = await connect();
writeFileSync('outage_app.js', `
import { Worker } from 'tq';
export default new Worker({ queues: ['outage'] }).handle(null, () => {
	console.error('began');
	return new Promise(() => {});
});
`);

function begin(...args) {
	const worker = spawn('node_modules/.bin/tq-worker', ['outage_app.js', '--shutdown-timeout', '100ms', ...args],
		{ stdio: ['ignore', 'ignore', 'pipe'] });
	worker.text = '';
	worker.stderr.on('data', (data) => { worker.text += data; });
	ended(() => worker.kill('SIGKILL'));
	return worker;
}

function parent(pid) {
	try {
		return Number(readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').pop().split(' ')[1]);
	} catch {
		return 0; // it has ended
	}
}

// Stops the postmaster and all of its processes meanwhile.
async function frozen(body) {
	const postmaster = Number(readFileSync(`${process.env.TQ_DATA}/postmaster.pid`, 'utf8').split('\n')[0]);
	process.kill(postmaster, 'SIGSTOP'); // starts no others
	const stopped = [postmaster, ...readdirSync('/proc').filter((pid) => /^\d+$/.test(pid) && parent(pid) === postmaster).map(Number)];
	try {
		for (const pid of stopped)
			process.kill(pid, 'SIGSTOP');
		await body();
	} finally {
		for (const pid of stopped.reverse())
			process.kill(pid, 'SIGCONT');
	}
}

test('SIGTERM ends the workers of a server that is frozen', async () => {
	const busy = begin();
	const idle = begin('--queue', 'nothing');
	const id = await tq.enqueue(client, 'outage');
	await until(() => busy.text.includes('began'), 'the handler');
	const waits = `SELECT count(*)::int AS n FROM pg_stat_activity
		WHERE query LIKE 'CALL tq_wait%' AND state = 'active' AND datname = current_database()`;
	await until(async () => (await client.query(waits)).rows[0].n === 2, 'both to wait');
	await frozen(async () => {
		for (const worker of [busy, idle])
			worker.kill('SIGTERM');
		await until(() => busy.exitCode !== null && idle.exitCode !== null, `their end\n${busy.text}${idle.text}`,
			PATIENCE / 2); // the server has to go on before the runner gives up this test
		assert.deepEqual([busy.exitCode, idle.exitCode], [1, 0], busy.text + idle.text);
	});
	await state(client, id, 'ready', 'delayed'); // released, or its lease ran out
	await tq.cancel(client, id);
});
