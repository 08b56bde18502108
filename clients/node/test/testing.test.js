// tq/testing.
import assert from 'node:assert/strict';
import test from 'node:test';
import * as tq from 'tq';
import { assertEnqueued, assertNotEnqueued, drain, reset, runJob, setNow } from 'tq/testing';
import { connect, worker } from './harness.js';

const client = await connect();

test('runJob runs a handler without a database', async () => {
	const one = worker({ queues: ['inline'], codec: new tq.Codec({ keys: { a: Buffer.alloc(32) }, kid: 'a' }),
		middleware: [{ run: async (job, next) => ({ got: await next() }) }] })
		.handle('ok', async (job) => {
			const { checkpoint } = job;
			assert.equal(await job.heartbeat({ progress: 1, checkpoint: { page: 2 } }), job.cancelled ? 'cancel' : 'run');
			return job.cancelled || [job.id, job.queue, job.kind, job.payload, job.attempt, job.maxAttempts, job.headers, checkpoint, job.tags];
		})
		.handle('bad', () => { throw new tq.Fatal('no'); })
		.handle('later', () => { throw new tq.Release('1 h'); })
		.handle('set aside', () => { throw new tq.Bury('odd'); });
	const ran = await runJob(one, 'ok', { n: 1 }, { id: 7, attempt: 2, maxAttempts: 3, headers: { h: 1 }, checkpoint: 'c', tags: ['t'] });
	assert.deepEqual([ran.state, ran.result, ran.progress, ran.checkpoint],
		['succeeded', { got: [7, 'inline', 'ok', { n: 1 }, 2, 3, { h: 1 }, 'c', ['t']] }, 1, { page: 2 }]);
	const bad = await runJob(one, 'bad');
	assert.deepEqual([bad.state, bad.error.message, bad.outcome.fatal], ['failed', 'no', true]);
	assert.deepEqual([(await runJob(one, 'later')).state, (await runJob(one, 'set aside')).state, (await runJob(one, 'none')).state],
		['released', 'buried', 'released']);
	await assert.rejects(runJob(one, 'ok', {}, { atempt: 1 }), /no option atempt/);
	const cancelled = new AbortController();
	cancelled.abort();
	assert.deepEqual((await runJob(one, 'ok', {}, { signal: cancelled.signal })).result, { got: true });
});

test('drain runs the jobs of the open transaction, and those that these enqueue', async () => {
	const one = worker({ queues: ['drained "1"', 'drained 2'] })
		.handle('first', async (job) => tq.enqueue(client, 'drained 2', job.payload, { kind: 'second', tags: ['a'] }))
		.handle('second', (job) => job.tags)
		.handle('bad', () => { throw new tq.Retry(0, 'again'); })
		.handle('own', async (job) => { await job.complete(client, 'own'); });
	await client.query('BEGIN');
	await client.query('SET LOCAL tq.claim_own = on');
	const first = await tq.enqueue(client, 'drained "1"', { n: 1 }, { kind: 'first' });
	const bad = await tq.enqueue(client, 'drained "1"', {}, { kind: 'bad' });
	const own = await tq.enqueue(client, 'drained "1"', {}, { kind: 'own' });
	const ran = await drain(one, client);
	assert.deepEqual(ran.map(({ kind, state }) => `${kind} ${state}`).sort(),
		['bad failed', 'first succeeded', 'own succeeded', 'second succeeded']);
	assert.deepEqual(ran.find(({ kind }) => kind === 'second').result, ['a']);
	assert.equal((await tq.get(client, first)).state, 'succeeded');
	assert.equal((await tq.get(client, bad)).state, 'ready');
	assert.equal((await tq.get(client, own)).result, 'own');
	await client.query('ROLLBACK');
	await assert.rejects(tq.get(client, first), tq.JobNotFound);
});

test('drain claims as the worker does: from many queues, its kinds only', async () => {
	const queues = Array.from({ length: 9 }, (_, i) => `drained too ${i}`);
	const one = worker({ queues, kinds: ['mine'] }).handle('mine', (job) => job.queue);
	for (const queue of queues)
		await tq.createQueue(client, queue);
	const other = await tq.enqueue(client, queues[8], {}, { kind: 'other' });
	await tq.enqueue(client, queues[8], {}, { kind: 'mine' });
	assert.deepEqual((await drain(one, client)).map(({ result }) => result), [queues[8]]);
	assert.equal((await tq.get(client, other)).state, 'ready');
});

test('assertEnqueued and assertNotEnqueued', async () => {
	await tq.enqueueMany(client, 'asserted', [{ to: 'ada', n: 1 }, { to: 'bob' }], { kind: 'welcome' });
	await assertEnqueued(client, 'asserted');
	await assertEnqueued(client, 'asserted', { kind: 'welcome', payload: { to: 'ada' }, count: 1 });
	await assertNotEnqueued(client, 'asserted', { kind: 'goodbye' });
	await assert.rejects(assertEnqueued(client, 'asserted', { kind: 'welcome', payload: { to: 'eve' } }),
		{ name: 'AssertionError', message: 'queue asserted has 0 jobs of kind welcome with {"to":"eve"}, not at least 1' });
	await assert.rejects(assertEnqueued(client, 'asserted', { count: 1 }), /has 2 jobs, not 1/);
	await assert.rejects(assertNotEnqueued(client, 'asserted'), assert.AssertionError);
});

test('setNow moves the clock of the database, and reset empties it', async () => {
	const own = await connect({ database: 'node_clock' });
	const one = worker({ queues: ['clock'] }).handle(null, (job) => job.payload);
	await tq.enqueue(own, 'clock', 'due', { delay: '3 days' });
	assert.deepEqual(await drain(one, own), []);
	const at = await setNow(own, new Date(Date.now() + 3 * 86_400_000 + 60_000));
	assert.ok(at - Date.now() > 3 * 86_400_000);
	const { rows } = await own.query("SELECT count(*)::int AS n FROM tq_claim('clock', wait => '3 min')");
	assert.equal(rows[0].n, 1);
	assert.equal(await reset(own, 'clock'), 1);
	await setNow(own);
	assert.ok(Math.abs(await tq.now(own) - Date.now()) < 3600_000);
	await assert.rejects(setNow(client), (error) => error.code === '55000');
});
