import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import test from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import * as tq from 'tq';
import { connect, deferred, state, until, worker } from './harness.js';

const client = await connect();
const count = async (queue, wanted) => Number((await client.query(
	'SELECT count(*) FROM tq_jobs WHERE queue = $1 AND state = $2', [queue, wanted])).rows[0].count);

test('a job is run, and its result is kept', async () => {
	const seen = deferred();
	const one = worker({ queues: ['run'], name: 'w1' }).handle('welcome', async (job) => {
		seen.resolve(job);
		return { sent: job.payload.to };
	});
	await one.start();
	const id = await tq.enqueue(client, 'run', { to: 'ada' }, { kind: 'welcome', headers: { a: 1 }, tags: ['t'], groupKey: 'g',
		uniqueKey: 'u', timeout: '1 min' });
	const job = await seen.promise;
	assert.deepEqual([job.id, job.queue, job.kind, job.payload, job.payloadText, job.headers, job.attempt, job.maxAttempts, job.tags,
		job.groupKey, job.uniqueKey, job.checkpoint, job.parents],
		[id, 'run', 'welcome', { to: 'ada' }, '{"to": "ada"}', { a: 1 }, 1, 20, ['t'], 'g', 'u', null, null]);
	assert.ok(job.enqueuedAt instanceof Date && job.deadline > job.enqueuedAt && /^\d+$/.test(job.lease));
	assert.ok(job.leaseExpiresAt > job.enqueuedAt);
	const { rows } = await client.query(
		"SELECT attname FROM pg_attribute WHERE attrelid = 'tq_job'::regclass AND attnum > 0 AND NOT attisdropped");
	const member = ({ attname }) => attname.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
	assert.deepEqual(rows.map(member).filter((name) => !(name in job)), []);
	const ended = await tq.waitFor(client, id, { timeout: '3 min' });
	assert.deepEqual([ended.state, ended.result, ended.worker], ['succeeded', { sent: 'ada' }, 'w1']);
	assert.equal(await one.stop(), 0);
});

test('handlers decide how a job ends', async () => {
	class Refused extends Error {}
	const ends = {
		plain: () => { throw new Refused('no answer'); },
		text: () => { throw 'just text\0'; }, // eslint-disable-line no-throw-literal
		retry: () => { throw new tq.Retry('1 h', 'later'); },
		again: (job) => { if (job.attempt === 1) throw new tq.Retry(0); },
		fatal: () => { throw new tq.Fatal('no such number'); },
		bury: () => { throw new tq.Bury('looks wrong'); },
		release: () => { throw new tq.Release(3_600_000); },
		unjson: () => 1n,
		large: () => 'x'.repeat(17 << 20),
		zero: () => ({ a: '\0' }),
		cyclic: () => { throw new tq.Retry({}); },
		bare: () => { throw Object.create(null); }, // eslint-disable-line no-throw-literal
	};
	const one = worker({ queues: ['ends'] });
	const began = await tq.now(client);
	for (const [kind, handler] of Object.entries(ends))
		one.handle(kind, handler);
	await one.start();
	const found = {};
	for (const kind of [...Object.keys(ends), 'unknown', 'unknown'])
		found[kind] = await tq.enqueue(client, 'ends', {}, { kind });
	const expected = {
		plain: ['delayed', /^Refused: no answer\n    at /], text: ['delayed', /^just text\ufffd$/], retry: ['delayed', /^Retry: later\n/],
		again: ['succeeded', null], fatal: ['dead', /^Fatal: no such number\n/], bury: ['buried', /^looks wrong$/],
		release: ['delayed', null], unjson: ['delayed', /^TypeError: .*BigInt/], large: ['delayed', /^TooLarge: /],
		zero: ['delayed', /^InvalidArgument: /], cyclic: ['delayed', /^TypeError: delay must be/],
		bare: ['delayed', /^an error without a text$/], unknown: ['delayed', null],
	};
	for (const [kind, [wanted, error]] of Object.entries(expected)) {
		const job = await state(client, found[kind], wanted);
		if (error)
			assert.match(job.error, error, kind);
		else
			assert.equal(job.error, null, kind);
	}
	for (const [kind, delay] of [['retry', 3_600_000], ['release', 3_600_000], ['unknown', 30_000]]) {
		const job = await tq.get(client, found[kind]);
		const at = job.runAt - delay;
		assert.ok(at >= began && at <= await tq.now(client), `${kind}: ${job.runAt}`);
		assert.equal(job.attempt, kind === 'retry' ? 1 : 0);
	}
	assert.equal(one.logged('no handler').length, 1);
	await one.stop();
});

test('concurrency and buffer hold, and jobs that end together are finished together', async () => {
	const open = deferred();
	let running = 0;
	let most = 0;
	const one = worker({ queues: ['limits'], concurrency: 3, buffer: 8, name: 'limits' }).handle(null, async () => {
		most = Math.max(most, ++running);
		await open.promise;
		running--;
	});
	await one.start();
	await tq.enqueueMany(client, 'limits', Array(40).fill(0));
	await until(async () => running === 3 && await count('limits', 'running') === 8, '8 jobs in the buffer');
	assert.equal(await count('limits', 'ready'), 32);
	open.resolve();
	await until(async () => await count('limits', 'succeeded') === 40, 'all jobs');
	assert.equal(most, 3);
	await one.stop();
});

test('idle slots are filled though long jobs fill half of the buffer', async () => {
	const gate = deferred();
	const one = worker({ queues: ['slots'], concurrency: 4 }).handle('long', () => gate.promise).handle('short', () => 'done');
	assert.notEqual(worker({ queues: ['slots'] }).name, one.name);
	for (let i = 0; i < 3; i++)
		await tq.enqueue(client, 'slots', {}, { kind: 'long' });
	await one.start();
	await until(async () => await count('slots', 'running') === 3, 'three long jobs');
	for (let i = 0; i < 3; i++)
		await state(client, await tq.enqueue(client, 'slots', {}, { kind: 'short' }), 'succeeded');
	gate.resolve();
	assert.equal(await one.stop(), 0);
});

test('a worker with more queues and kinds than one wait takes hears of jobs', async () => {
	const queues = Array.from({ length: 16 }, (_, i) => `wide${i}`);
	const kinds = Array.from({ length: 16 }, (_, i) => `kind${i}`);
	const one = worker({ queues, kinds }).handle('kind7', () => 'done');
	for (const queue of queues)
		await tq.createQueue(client, queue);
	await one.start();
	for (let i = 0; i < 3; i++)
		await state(client, await tq.enqueue(client, `wide${i}`, {}, { kind: 'kind7' }), 'succeeded');
	assert.equal(await one.stop(), 0);
	assert.deepEqual(one.logged('cannot claim'), []);
});

test('kinds and several queues, more than one claim takes', async () => {
	const queues = Array.from({ length: 10 }, (_, i) => `several${i}`);
	const seen = [];
	const one = worker({ queues, kinds: ['a'] }).handle('a', (job) => { seen.push(job.queue); });
	await one.start();
	for (const queue of queues) {
		await tq.enqueue(client, queue, {}, { kind: 'b' });
		await tq.enqueue(client, queue, {}, { kind: 'a' });
	}
	await until(() => seen.length === 10, 'a job of each queue');
	assert.deepEqual(seen.sort(), queues.sort());
	assert.equal(await count('several0', 'ready'), 1);
	await one.stop();
});

test('job.complete is part of the transaction of the handler', async () => {
	await client.query('CREATE TABLE IF NOT EXISTS effect (job bigint, attempt int)');
	const own = await connect();
	const one = worker({ queues: ['inside'] }).handle(null, async (job) => {
		await own.query('BEGIN');
		await own.query('INSERT INTO effect VALUES ($1, $2)', [job.id, job.attempt]);
		await job.complete(own, { attempt: job.attempt });
		if (job.attempt === 1) {
			await own.query('ROLLBACK');
			throw new tq.Retry(0);
		}
		await own.query('COMMIT');
	});
	await one.start();
	const id = await tq.enqueue(client, 'inside');
	assert.deepEqual((await state(client, id, 'succeeded')).result, { attempt: 2 });
	assert.deepEqual((await client.query('SELECT attempt FROM effect WHERE job = $1', [id])).rows, [{ attempt: 2 }]);
	await one.stop();
});

test('leases are renewed, and the answer cancel aborts the signal', async () => {
	const started = deferred();
	const one = worker({ queues: ['renewed'], lease: '20 s' }).handle(null, async (job) => {
		started.resolve(job);
		await pause(300_000, null, { signal: job.signal }); // sleeps: until it is cancelled
	});
	await one.start();
	const id = await tq.enqueue(client, 'renewed');
	const job = await started.promise;
	const { lease, leaseExpiresAt } = job;
	await until(async () => await tq.now(client) > leaseExpiresAt, 'the end of the first lease');
	assert.equal((await tq.get(client, id)).lease, lease);
	assert.equal(await tq.cancel(client, id), 'asked');
	assert.match((await state(client, id, 'cancelled')).error ?? '', /./);
	assert.ok(job.cancelled && job.signal.reason instanceof tq.Aborted);
	await one.stop();
});

test('checkpoints and progress', async () => {
	const seen = [];
	const own = await connect();
	const one = worker({ queues: ['checkpoints'] }).handle(null, async (job) => {
		seen.push(job.checkpoint);
		if (job.attempt === 1) {
			assert.equal(await job.heartbeat({ progress: { percent: 40 }, checkpoint: { page: 3 } }), 'run');
			const progress = (await tq.running(client)).find((row) => row.id === job.id).progress;
			await own.query('BEGIN');
			await job.heartbeat({ checkpoint: { page: 4 } }, own);
			await own.query('ROLLBACK');
			throw new tq.Retry(0, JSON.stringify(progress));
		}
	});
	await one.start();
	const id = await tq.enqueue(client, 'checkpoints');
	await state(client, id, 'succeeded');
	assert.deepEqual(seen, [null, { page: 3 }]);
	assert.match((await tq.history(client, id)).find(({ event }) => event === 'failed').reason, /Retry: \{"percent":40\}/);
	await one.stop();
});

test('parents: a job sees the results of those that it waited for', async () => {
	const one = worker({ queues: ['parents'] }).handle('p', () => ({ n: 1 })).handle('c', (job) => job.parents);
	await one.start();
	const parent = await tq.enqueue(client, 'parents', {}, { kind: 'p' });
	const child = await tq.enqueue(client, 'parents', {}, { kind: 'c', dependsOn: [parent] });
	assert.deepEqual((await state(client, child, 'succeeded')).result, { [parent]: { state: 'succeeded', result: { n: 1 } } });
	await one.stop();
});

test('stop lets jobs end, aborts those that do not, and releases the rest', async () => {
	const started = { short: deferred(), obeys: deferred(), ignores: deferred() };
	const let_go = deferred();
	const one = worker({ queues: ['stop'], concurrency: 3, buffer: 4, shutdownTimeout: 300 })
		.handle('short', async () => { started.short.resolve(); await pause(100); }) // sleeps: short work
		.handle('obeys', async (job) => { started.obeys.resolve(); await pause(600_000, null, { signal: job.signal }); }) // sleeps: until it is cancelled
		.handle('ignores', async () => { started.ignores.resolve(); await let_go.promise; });
	const ids = {};
	for (const kind of ['short', 'obeys', 'ignores'])
		ids[kind] = await tq.enqueue(client, 'stop', {}, { kind });
	ids.waits = await tq.enqueue(client, 'stop', {}, { kind: 'short', priority: 30_000 });
	await one.start();
	for (const { promise } of Object.values(started))
		await promise;
	assert.ok(await one.stop() >= 2);
	let_go.resolve();
	assert.equal((await tq.get(client, ids.short)).state, 'succeeded');
	for (const kind of ['obeys', 'ignores', 'waits']) {
		const job = await tq.get(client, ids[kind]);
		assert.deepEqual([job.state, job.attempt], ['ready', 0], kind);
	}
	assert.deepEqual((await tq.running(client)).filter(({ queue }) => queue === 'stop'), []);
});

test('a job that completed itself and goes on does not count as released', async () => {
	const own = await connect();
	const completed = deferred();
	const one = worker({ queues: ['goes on'] }).handle(null, async (job) => {
		await job.complete(own);
		completed.resolve();
		return new Promise(() => {});
	});
	await one.start();
	const id = await tq.enqueue(client, 'goes on');
	await completed.promise;
	assert.equal(await one.stop(), 0);
	assert.equal((await tq.get(client, id)).state, 'succeeded');
});

test('an idle worker stops at once, and a stopped one does not wait in the server', async () => {
	const one = worker({ queues: ['idle'], name: 'idle' });
	const sessions = async (condition) => (await client.query(`SELECT 1 FROM pg_stat_activity
		WHERE application_name = 'idle waits' AND ${condition}`)).rows.length;
	await one.start();
	await until(() => sessions("query LIKE 'CALL%' AND state = 'active'"), 'a wait');
	await one.stop();
	await until(async () => await sessions('true') === 0, 'the end of its session');
});

test('a drained worker claims nothing, and neither in a loop', async () => {
	const one = worker({ queues: ['drained'], name: 'drained', lease: 300 }).handle(null, () => {});
	await one.start();
	await state(client, await tq.enqueue(client, 'drained'), 'succeeded');
	assert.equal(await tq.drain(client, 'drained'), 0);
	let claims = 0;
	const { query } = one.waiting;
	one.waiting.query = (text, ...more) => {
		claims += /tq_claim_any/.test(text);
		return query.call(one.waiting, text, ...more);
	};
	const id = await tq.enqueue(client, 'drained');
	const before = performance.now();
	await until(() => performance.now() - before > 500, 'half a second');
	assert.ok(claims < 10, `${claims} claims`);
	assert.equal((await tq.get(client, id)).state, 'ready');
	await tq.undrain(client, 'drained');
	await state(client, id, 'succeeded');
	await one.stop();
});

test('middleware runs around enqueue and run, the first outermost', async () => {
	const calls = [];
	const around = (name) => ({
		enqueue: async (request, next) => {
			calls.push(`${name} enqueue`);
			request.options.headers = { ...request.options.headers, [name]: true };
			return next();
		},
		run: async (job, next) => {
			calls.push(`${name} run ${job.payload}`);
			return [name, await next()];
		},
	});
	const both = new tq.Tq({ middleware: [around('a'), around('b')] });
	const one = worker({ queues: ['middleware'], tq: both }).handle(null, (job) => job.headers);
	await one.start();
	const id = await both.enqueue(client, 'middleware', 7);
	const headers = { a: true, b: true };
	assert.deepEqual((await state(client, id, 'succeeded')).result, ['a', ['b', headers]]);
	assert.deepEqual(calls, ['a enqueue', 'b enqueue', 'a run 7', 'b run 7']);
	await one.stop();
});

test('schedules declared beside handlers are kept in step', async () => {
	await client.query("SELECT tq_create_queue('crons')");
	await client.query("SELECT tq_schedule('by hand', 'crons', cron => '@daily')");
	const names = async () => (await tq.schedules(client)).filter(({ queue }) => queue !== 'mail').map(({ name }) => name).sort();
	const one = worker({ queues: ['crons'], app: 'crons' })
		.schedule('nightly', { kind: 'report', payload: { a: 1 }, cron: '0 3 * * *', timezone: 'Europe/Berlin', timeout: 60_000 })
		.schedule('often', { queue: 'made by the start', every: 60_000, overlap: 'skip', tags: ['x'] });
	assert.throws(() => one.schedule('bad', { cronn: '@daily' }), /no option cronn/);
	await one.start();
	await one.stop();
	assert.deepEqual(await names(), ['by hand', 'nightly', 'often']);
	const nightly = (await tq.schedules(client)).find(({ name }) => name === 'nightly');
	assert.deepEqual([nightly.kind, nightly.payload, nightly.timezone, nightly.options.timeout],
		['report', { a: 1 }, 'Europe/Berlin', '60000 ms']);
	const two = worker({ queues: ['crons'], app: 'crons' }).schedule('often', { every: '2 min' });
	await two.start();
	await two.stop();
	assert.deepEqual(await names(), ['by hand', 'often']);
	assert.equal((await tq.schedules(client)).find(({ name }) => name === 'often').queue, 'crons');
});

test('options are checked, and a refused start says why', async () => {
	for (const [options, message] of [[undefined, /queues must be/], [{ queues: [] }, /queues must be/], [{ queues: ['a'], buffer: 1 }, /buffer/],
		[{ queues: ['a'], lease: '30 parsecs' }, /lease must be/], [{ queues: ['a'], leases: 1 }, /no option leases; it has name/],
		[{ queues: ['a'], concurrency: 0 }, /concurrency/]])
		assert.throws(() => new tq.Worker(options), message);
	assert.throws(() => new tq.Worker({ queues: ['a'] }).handle('a', () => {}).handle('a', () => {}), /has a handler already/);
	await assert.rejects(new tq.Worker({ queues: ['a'], connection: { database: 'missing' } }).start(), (error) => error.code === '3D000');
	await assert.rejects(new tq.Worker({ queues: ['a'], connection: { database: 'template1' } }).start(),
		(error) => error instanceof tq.NotInstalled && /Is tq installed/.test(error.hint));
});

test('the start is refused where a password is missing or wrong, but not while the server has no room', async () => {
	const message = (type, ...parts) => {
		const body = Buffer.concat(parts.map((part) => (typeof part === 'number' ? Buffer.from([0, 0, 0, part]) : Buffer.from(part))));
		const head = Buffer.from(`${type}....`);
		head.writeInt32BE(body.length + 4, 1);
		return Buffer.concat([head, body]);
	};
	const refusal = (code) => message('E', `SFATAL\0C${code}\0Mrefused\0\0`);
	const servers = []; // what each connection is answered: one message for each of the client's
	const server = createServer((socket) => {
		const answers = servers.shift();
		socket.on('data', () => answers?.length > 0 && socket.write(answers.shift())).on('error', () => {});
	}).listen(0, '127.0.0.1');
	await once(server, 'listening');
	const start = (...answers) => {
		servers.push(...answers);
		const connection = { host: '127.0.0.1', port: server.address().port, user: 'a', database: 'a', password: undefined };
		return new tq.Worker({ queues: ['a'], connection, log: () => {} }).start();
	};
	await assert.rejects(start([message('R', 10, 'SCRAM-SHA-256\0\0'), message('R', 11, 'r=x,s=eA==,i=4096')]), /password must be/);
	await assert.rejects(start([refusal('53300')], [refusal('57P03')], [refusal('28P01')]), (error) => error.code === '28P01');
	const ready = Buffer.concat([message('R', 0), message('Z', 'I')]);
	await assert.rejects(start([ready, refusal('08P01')], [ready, refusal('42883')]), (error) => error.code === '42883');
	assert.equal(servers.length, 0);
	server.close();
});
