// Bad days that one process can have.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createConnection, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import * as tq from 'tq';
import { connect, deferred, ended, state, until, worker } from './harness.js';

const client = await connect();

function block(ms) {
	for (const end = performance.now() + ms; performance.now() < end;);
}

test('an event loop that is blocked beyond the lease: the job never runs twice at once, and the lost result is dropped', async () => {
	let running = 0;
	let most = 0;
	const attempts = [];
	const seen = [];
	const one = worker({ queues: ['blocked'], concurrency: 3, lease: '10 s' }).handle('blocks', async (job) => {
		most = Math.max(most, ++running);
		attempts.push(job.attempt);
		if (job.attempt === 1) {
			await pause(20); // sleeps: the loop runs before it is blocked
			do // again if a heartbeat was faster than the scheduler
				block(11_000);
			while ((await tq.get(client, job.id)).lease === job.lease);
			// goes on after the loss, until the abort has come and another claim had time to start the job again
			await until(() => job.signal.aborted, 'the abort');
			seen.push(job.signal.reason.why);
			await until(async () => (await tq.get(client, job.id)).attempt === 2, 'the next claim');
			await pause(100); // sleeps: nothing may start
		}
		running--;
		return { attempt: job.attempt };
	});
	await one.start();
	const id = await tq.enqueue(client, 'blocked', {}, { kind: 'blocks' });
	const job = await state(client, id, 'succeeded');
	assert.deepEqual(job.result, { attempt: 2 });
	assert.deepEqual([most, attempts, seen], [1, [1, 2], ['lost']]);
	assert.equal(one.logged('is dropped').length, 1);
	assert.equal(await one.stop(), 0);
});

test('heartbeats without answers: a handler ends with its lease, and the job runs again', async () => {
	const seen = [];
	const one = worker({ queues: ['cut_off'], concurrency: 1, lease: '12 s' }).handle('waits', async (job) => {
		if (job.attempt > 1)
			return;
		await until(() => job.signal.aborted, 'the abort');
		seen.push(job.signal.reason.why);
	});
	await one.start();
	const answers = deferred();
	one.leases.renew = () => answers.promise;
	const id = await tq.enqueue(client, 'cut_off', {}, { kind: 'waits', retry: { policy: 'fixed', delay: '0 s' } });
	await until(() => seen.length === 1, 'the end of the lease');
	delete one.leases.renew;
	answers.resolve();
	await state(client, id, 'succeeded');
	assert.deepEqual(seen, ['lost']);
	assert.equal(await one.stop(), 0);
});

test('a job that waited in the buffer of a blocked worker beyond its lease is not run', async () => {
	const ran = [];
	const losses = async () => (await tq.history(client, ids[1])).filter(({ event }) => event === 'lost').length;
	const one = worker({ queues: ['stale'], concurrency: 1, buffer: 2, lease: '10 s' }).handle('blocks', async () => {
		await until(async () => (await tq.running(client)).filter(({ queue }) => queue === 'stale').length === 2, 'a full buffer');
		do // again if a heartbeat was faster than the scheduler
			block(11_000);
		while (await losses() === 0);
	}).handle('waits', (job) => { ran.push(job.lease); });
	const ids = [await tq.enqueue(client, 'stale', {}, { kind: 'blocks', maxAttempts: 1 }),
		await tq.enqueue(client, 'stale', {}, { kind: 'waits', priority: 200 })];
	await one.start();
	const job = await state(client, ids[1], 'succeeded');
	assert.equal(ran.length, 1);
	assert.equal(job.attempt, 2);
	assert.equal(await losses(), 1);
	await one.stop();
});

test('10000 running jobs are cancelled', async () => {
	const jobs = 10_000;
	const running = new Set();
	const one = worker({ queues: ['mass'], concurrency: jobs, lease: '30 s' }).handle(null, (job) => {
		running.add(job.id);
		return new Promise((_, reject) => { job.signal.addEventListener('abort', () => reject(job.signal.reason)); });
	});
	await one.start();
	await tq.enqueueMany(client, 'mass', Array(jobs).fill(0));
	await until(() => running.size === jobs, 'all jobs to run');
	let changed = 0;
	for (let after; after !== null;) {
		const found = await tq.cancelMany(client, 'mass', { state: 'running', max: jobs, after });
		changed += found.changed;
		after = found.nextAfter;
	}
	assert.equal(changed, jobs);
	await until(async () => (await tq.queues(client)).find(({ queue }) => queue === 'mass').live === 0, 'the end of all jobs');
	assert.deepEqual((await client.query("SELECT state, count(*)::int FROM tq_jobs WHERE queue = 'mass' GROUP BY state")).rows,
		[{ state: 'cancelled', count: jobs }]);
	await until(() => one.finisher.pending === 0, 'the last answer');
	assert.equal(await one.stop(), 0);
});

test('a lost connection is made again, and said once', async () => {
	const go = deferred();
	const one = worker({ queues: ['cut'], name: 'cut', lease: '15 s' }).handle(null, () => go.promise);
	await one.start();
	const id = await tq.enqueue(client, 'cut');
	await state(client, id, 'running');
	for (let i = 0; i < 3; i++) {
		const { rows } = await client.query("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name ~ '^cut '");
		assert.equal(rows.length, 2);
		await until(async () => (await client.query("SELECT 1 FROM pg_stat_activity WHERE application_name ~ '^cut '")).rows.length === 2,
			'both connections');
	}
	go.resolve('done');
	const job = await state(client, id, 'succeeded');
	assert.deepEqual([job.attempt, job.result], [1, 'done']);
	assert.ok(one.logged('connection lost').length <= 6);
	await one.stop();
});

test('a heartbeat of a handler is repeated if the connection is lost', async () => {
	const own = await connect();
	const one = worker({ queues: ['repeated'], name: 'repeated' }).handle(null, async (job) => {
		const cut = own.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'repeated works'");
		block(300); // the worker does not hear of the loss before it sends the heartbeat
		const action = await job.heartbeat({ progress: 1 });
		await cut;
		return action;
	});
	await one.start();
	const job = await state(client, await tq.enqueue(client, 'repeated'), 'succeeded');
	assert.deepEqual([job.attempt, job.result], [1, 'run']);
	await one.stop();
});

test('a connection that goes silent is given up before the lease is lost', async () => {
	const open = new Set();
	const target = process.env.PGHOST.startsWith('/') ? { path: `${process.env.PGHOST}/.s.PGSQL.${process.env.PGPORT}` }
		: { host: process.env.PGHOST, port: process.env.PGPORT };
	const proxy = createServer((socket) => {
		const server = createConnection(target);
		for (const one of [socket, server])
			one.on('error', () => {});
		socket.pipe(server).pipe(socket);
		open.add([socket, server]);
	}).listen(0, '127.0.0.1');
	await new Promise((resolve) => { proxy.on('listening', resolve); });
	ended(() => {
		open.forEach((both) => both.forEach((one) => one.destroy()));
		proxy.close();
	});
	const go = deferred();
	const one = worker({ queues: ['silent'], connection: { host: '127.0.0.1', port: proxy.address().port }, lease: '20 s' })
		.handle(null, () => go.promise);
	await one.start();
	const id = await tq.enqueue(client, 'silent');
	const { lease_expires_at: before } = await state(client, id, 'running');
	await until(async () => (await tq.get(client, id)).leaseExpiresAt > before, 'a heartbeat');
	for (const [socket, server] of open) {
		socket.unpipe(server);
		server.unpipe(socket);
		socket.resume();
	}
	await until(() => one.logged('connected again').some(({ role }) => role === 'works'), 'another connection');
	go.resolve('done');
	const job = await state(client, id, 'succeeded');
	assert.deepEqual([job.attempt, job.result], [1, 'done']);
});

test('a finish that another transaction blocks is tried again', async () => {
	const own = await connect();
	const one = worker({ queues: ['busy'] }).handle(null, async (job) => {
		await own.query('BEGIN');
		await own.query('SELECT tq_heartbeat($1, $2, checkpoint => $3)', [job.id, job.lease, '1']);
		return 'done';
	});
	await one.start();
	const id = await tq.enqueue(client, 'busy');
	await until(() => one.finisher?.pending === 1, 'the finish');
	await pause(100); // sleeps: nothing may change
	assert.equal((await tq.get(client, id)).state, 'running');
	await own.query('ROLLBACK');
	assert.equal((await state(client, id, 'succeeded')).result, 'done');
	await one.stop();
});

test('a second stop releases at once', async () => {
	const started = deferred();
	const one = worker({ queues: ['urgent'], shutdownTimeout: '1 h' }).handle(null, () => {
		started.resolve();
		return new Promise(() => {});
	});
	await one.start();
	const id = await tq.enqueue(client, 'urgent');
	await started.promise;
	const first = one.stop();
	one.stop({ now: true });
	assert.equal(await first, 1);
	assert.equal((await tq.get(client, id)).state, 'ready');
});

async function pooler(size) {
	const folder = mkdtempSync(join(tmpdir(), 'tq-pooler')); // short: the path of a socket
	const config = { host: folder, port: 6432 };
	writeFileSync(`${folder}/ini`, `[databases]
node = host=${process.env.PGHOST} port=${process.env.PGPORT} user=${process.env.PGUSER} pool_mode=transaction pool_size=${size}
[pgbouncer]
listen_port = ${config.port}
unix_socket_dir = ${folder}
auth_type = any
logfile = ${folder}/log
ignore_startup_parameters = extra_float_digits
`);
	const process_ = spawn('pgbouncer', ['-q', `${folder}/ini`], { stdio: 'ignore',
		env: { ...process.env, PATH: `${process.env.PATH}:/usr/sbin` } });
	ended(() => {
		process_.kill();
		rmSync(folder, { recursive: true, force: true });
	});
	await until(async () => {
		try {
			return await connect(config);
		} catch {
			return null;
		}
	}, 'an answer of PgBouncer');
	return config;
}

test('PgBouncer in transaction mode with a pool of 2: leases are renewed while the worker waits', async () => {
	const connection = await pooler(2);
	await until(async () => {
		const one = worker({ queues: ['pooled'], connection, lease: '15 s' })
			.handle('slow', (job) => until(async () => await tq.now(client) > job.leaseExpiresAt, 'the end of the first lease'))
			.handle('quick', () => {});
		await one.start();
		const slow = await tq.enqueue(client, 'pooled', {}, { kind: 'slow' });
		for (let i = 0; i < 5; i++)
			await state(client, await tq.enqueue(client, 'pooled', {}, { kind: 'quick' }), 'succeeded');
		assert.equal((await state(client, slow, 'succeeded')).attempt, 1);
		assert.equal(await one.stop(), 0);
		return one.logged('pooler').length === 0; // the warning is right if PgBouncer or the server stood still for 2 s
	}, 'a worker without a warning');
});

test('PgBouncer with a pool of 1: the worker says what it needs', async () => {
	const connection = await pooler(1);
	const one = worker({ queues: ['pooled too'], connection }).handle(null, () => {});
	const starting = one.start();
	await until(() => one.entries.some(({ message }) => /room for 2 server connections/.test(message)), 'the warning');
	await starting;
	assert.equal(await one.stop(), 0);
});

test('an extension of version 0.1.0 is served, and what it lacks has a clear error', async () => {
	const old = await connect({ database: 'node_old' });
	const only = worker({ queues: ['old'], kinds: ['only'], connection: { database: 'node_old' } }).handle('only', () => {});
	await only.start();
	for (let i = 0; i < 2; i++) // the second one comes while it waits
		await state(old, await tq.enqueue(old, 'old', {}, { kind: 'only' }), 'succeeded');
	assert.deepEqual(only.logged('cannot claim'), []);
	assert.equal(await only.stop(), 0);
	const one = worker({ queues: ['old'], connection: { database: 'node_old' } }).handle(null, (job) => [job.attempt, job.tags]);
	await one.start();
	const id = await tq.enqueue(old, 'old', { n: 1 });
	const job = await state(old, id, 'succeeded');
	assert.deepEqual(job.result, [1, null]);
	assert.equal((await tq.get(old, id)).payload.n, 1);
	await assert.rejects(tq.list(old), (error) => error instanceof tq.NotInstalled && /too old/.test(error.hint));
	assert.equal(await one.stop(), 0);
});
