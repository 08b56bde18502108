// The process of a worker: signals and exit codes.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import test from 'node:test';
import * as tq from 'tq';
import { connect, ended, until } from './harness.js';

const client = await connect();
writeFileSync('signals_app.js', `
import { setTimeout as pause } from 'node:timers/promises';
import { Worker } from 'tq';
export default new Worker({ queues: ['signals'] }).handle('short', () => began(300)).handle('long', () => began(3_600_000));
function began(ms) {
	console.error('{"message": "began"}'); // a claim that the server has answered may not be here yet
	return pause(ms);
}
`);

async function begin(...args) {
	const process_ = spawn('node_modules/.bin/tq-worker', ['signals_app.js', ...args], { stdio: ['ignore', 'ignore', 'pipe'] });
	process_.text = '';
	process_.stderr.on('data', (data) => { process_.text += data; });
	ended(() => process_.kill('SIGKILL'));
	process_.code = new Promise((resolve) => { process_.on('close', (code, signal) => resolve(code ?? signal)); });
	return process_;
}

for (const signal of ['SIGTERM', 'SIGINT'])
	test(`${signal} lets a running job end, and the exit code is 0`, async () => {
		const worker = await begin();
		const id = await tq.enqueue(client, 'signals', {}, { kind: 'short' });
		await until(() => worker.text.includes('began'), 'the handler');
		worker.kill(signal);
		assert.equal(await worker.code, 0, worker.text);
		assert.equal((await tq.get(client, id)).state, 'succeeded');
		for (const line of worker.text.trim().split('\n'))
			assert.ok(JSON.parse(line).message);
	});

test('after the shutdown timeout jobs are released, and the exit code is 1', async () => {
	const worker = await begin('--shutdown-timeout', '100ms');
	const id = await tq.enqueue(client, 'signals', {}, { kind: 'long' });
	await until(() => worker.text.includes('began'), 'the handler');
	worker.kill('SIGTERM');
	assert.equal(await worker.code, 1);
	const job = await tq.get(client, id);
	assert.deepEqual([job.state, job.attempt], ['ready', 0]);
	await tq.cancel(client, id);
});

test('a second signal releases at once', async () => {
	const worker = await begin('--shutdown-timeout', '1h');
	const id = await tq.enqueue(client, 'signals', {}, { kind: 'long' });
	await until(() => worker.text.includes('began'), 'the handler');
	worker.kill('SIGTERM');
	await until(() => worker.text.includes('the worker stops'), 'the first signal');
	worker.kill('SIGTERM');
	assert.equal(await worker.code, 1);
	assert.equal((await tq.get(client, id)).state, 'ready');
	await tq.cancel(client, id);
});

test('SIGTERM ends a worker that cannot reach the server', async () => {
	const { PGPORT, PGHOST } = process.env;
	Object.assign(process.env, { PGPORT: '1', PGHOST: '127.0.0.1' });
	const worker = await begin();
	Object.assign(process.env, { PGPORT, PGHOST });
	await until(() => worker.text.includes('cannot connect'), 'its complaint');
	worker.kill('SIGTERM');
	assert.equal(await worker.code, 0);
	assert.equal(worker.text.trim().split('\n').length, 1, worker.text);
});

test('a refused start has the exit code 1 and says why', async () => {
	process.env.PGDATABASE = 'template1';
	const worker = await begin();
	process.env.PGDATABASE = 'node';
	assert.equal(await worker.code, 1);
	assert.match(worker.text, /tq_now.*does not exist \(42883\)\n.*Is tq installed/);
});
