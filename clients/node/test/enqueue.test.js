import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import knexOf from 'knex';
import * as tq from 'tq';
import { connect, ended, until, worker } from './harness.js';

const client = await connect();
const jobs = async (queue) => (await client.query('SELECT id, kind, payload::text FROM tq_list($1, newest => false) l', [queue])
	).rows.map(({ id, kind, payload }) => [Number(id), kind, payload]);

test('enqueue returns the id, and sends every option', async () => {
	const parent = await tq.enqueue(client, 'options');
	const runAt = new Date(Date.now() + 3_600_000);
	const id = await tq.enqueue(client, 'options', { to: 'ada' }, {
		kind: 'welcome', priority: 5, runAt, expiresAt: 'infinity', maxAttempts: 3, retry: { policy: 'fixed', delay: '1 min' },
		timeout: 60_000, groupKey: 'g "1"\\', uniqueKey: 'u', uniqueMode: 'error', headers: { trace: 1 }, dependsOn: [parent],
		lease: 90_000, tags: ['a', 'b'], uniqueFor: '1 day', weight: 2, onParentFailure: 'run',
	});
	assert.equal(typeof id, 'number');
	const job = await tq.get(client, id);
	assert.deepEqual([job.kind, job.priority, job.maxAttempts, job.payload, job.headers, job.groupKey, job.uniqueKey, job.tags],
		['welcome', 5, 3, { to: 'ada' }, { trace: 1 }, 'g "1"\\', 'u', ['a', 'b']]);
	assert.deepEqual(job.runAt, runAt);
	assert.equal(job.policies.lease.value, '00:01:30');
	assert.equal(job.policies.timeout.value, '00:01:00');
	await assert.rejects(tq.enqueue(client, 'options', {}, { uniqueKey: 'u', uniqueMode: 'error' }),
		(error) => error instanceof tq.KeyTaken && error.code === 'TQ008' && error.detail.includes(id));
	assert.equal(await tq.enqueue(client, 'options', {}, { uniqueKey: 'u', uniqueMode: 'ignore' }), null);
	assert.equal(await tq.enqueue(client, 'options', {}, { uniqueKey: 'u' }), id);
});

test('a job belongs to the transaction of the caller', async () => {
	await client.query('BEGIN');
	await tq.enqueue(client, 'transactions', 1);
	await client.query('ROLLBACK');
	await client.query('BEGIN');
	const id = await tq.enqueue(client, 'transactions', 2);
	await client.query('COMMIT');
	assert.deepEqual(await jobs('transactions'), [[id, null, '2']]);
});

test('enqueueMany adds a job for each payload, in order', async () => {
	const ids = await tq.enqueueMany(client, 'many', [{ n: 1 }, '"\\', null, 4], {
		kinds: ['a', null, 'b "{},', 'NULL'], priority: 3, uniqueKeys: ['x', 'y', null, 'z'],
	});
	assert.deepEqual(await jobs('many'), [[ids[0], 'a', '{"n": 1}'], [ids[1], null, '"\\"\\\\"'], [ids[2], 'b "{},', 'null'],
		[ids[3], 'NULL', '4']]);
	assert.deepEqual(await tq.enqueueMany(client, 'many', []), []);
	assert.deepEqual(await tq.enqueueMany(client, 'many', [1], { uniqueKeys: ['x'], uniqueMode: 'ignore' }), [null]);
});

test('json() keeps every digit of a payload, and get returns the text', async () => {
	const text = '{"n": 12345678901234567890.120}';
	const id = await tq.enqueue(client, 'digits', tq.json(text));
	const job = await tq.get(client, id);
	assert.equal(job.payloadText, text);
	const exact = new tq.Tq({ parse: (found) => found.replace(/\d+\.\d+/, (digits) => `"${digits}"`) });
	assert.equal((await exact.get(client, id)).payload, '{"n": "12345678901234567890.120"}');
});

test('values that have no JSON and unknown options are refused before the call', async () => {
	await assert.rejects(tq.enqueue(client, 'refused', { n: 1n }), TypeError);
	await assert.rejects(tq.enqueue(client, 'refused', () => {}), TypeError);
	await assert.rejects(tq.enqueue(client, 'refused', {}, { prio: 1 }), /no option prio; it has kind/);
	await assert.rejects(tq.cancel(client, 2 ** 60), TypeError);
	for (const call of [() => tq.cancel(client), () => tq.get(client, null), () => tq.pause(client, null)])
		await assert.rejects(call, /^TypeError: \w+ needs (id|queue)/);
	await assert.rejects(tq.enqueue({}, 'refused'), /none of query/);
});

test('errors have a class, SQLSTATE, detail and hint', async () => {
	const cases = [
		[() => tq.enqueue(client, 'errors', {}, { priority: 1e6 }), tq.InvalidArgument, '22023'],
		[() => tq.enqueue(client, 'errors', {}, { priority: 3e9 }), tq.InvalidArgument, '22003'],
		[() => tq.pause(client, 'missing'), tq.QueueNotFound, 'TQ002'],
		[() => tq.get(client, 2 ** 52), tq.JobNotFound, 'TQ004'],
		[() => tq.enqueue(client, 'errors', 'x'.repeat(2 << 20)), tq.TooLarge, '54000'],
		[() => tq.enqueue(client, 'errors', tq.json('{')), tq.InvalidArgument, '22P02'],
		[() => tq.createQueue(client, 'errors', { leas: '1 s' }), tq.InvalidArgument, '22023'],
		[() => new tq.Tq({ schema: 'elsewhere' }).enqueue(client, 'errors'), Error, '3F000'],
	];
	for (const [call, kind, code] of cases)
		await assert.rejects(call, (error) => error instanceof kind && error.code === code, code);
	await assert.rejects(tq.createQueue(client, 'errors', { leas: '1 s' }), (error) => /Perhaps you meant "lease"/.test(error.hint));
	const id = await tq.enqueue(client, 'errors');
	await tq.cancel(client, id);
	await assert.rejects(tq.cancel(client, id), (error) => error instanceof tq.WrongState && /Only jobs/.test(error.detail));
});

test('every SQLSTATE of the reference that is tq\'s own has a class', () => {
	const reference = readFileSync(`${process.env.TQ_DOCS}/reference.md`, 'utf8');
	const codes = new Set(reference.match(/TQ0\d\d/g));
	assert.ok(codes.size >= 10);
	assert.deepEqual([...codes].filter((code) => !(code in tq.classes)), []);
});

test('the signatures of the verbs are those of the database', async () => {
	for (const { name, view, args } of tq.signatures.values()) {
		if (view)
			continue;
		const { rows } = await client.query(`SELECT proargnames, proargmodes, pronargs,
			array(SELECT format_type(t, null) FROM unnest(proargtypes) t) AS types FROM pg_proc WHERE proname = $1`, [name]);
		assert.equal(rows.length, 1, name);
		const types = rows[0].types.map((type) => ({ integer: 'int', 'timestamp with time zone': 'timestamptz' }[type] ?? type));
		assert.deepEqual(args.map(({ name: argument, type }) => `${argument} ${type}`),
			types.map((type, i) => `${rows[0].proargnames[i]} ${type}`), name);
	}
});

test('an enqueue tells its outcome, and a job is found by its key', async () => {
	const options = { uniqueKey: 'k', uniqueMode: 'skip_waiting', uniqueFor: '1 h' };
	const first = await tq.enqueueInfo(client, 'info', { n: 1 }, options);
	assert.equal(first.outcome, 'created');
	assert.deepEqual(await tq.enqueueInfo(client, 'info', { n: 2 }, options), { id: first.id, outcome: 'skipped' });
	assert.equal(await tq.find(client, 'info', 'k'), first.id);
	const many = await tq.enqueueManyInfo(client, 'info', [1, 2], { uniqueMode: 'replace_waiting', uniqueKeys: ['k', null] });
	assert.deepEqual(many.map(({ outcome }) => outcome), ['replaced', 'created']);
	assert.equal(await tq.find(client, 'info', 'k'), many[0].id);
	assert.deepEqual((await tq.cancelJobs(client, [many[0].id, first.id])).map(({ status }) => status), ['cancelled', 'cancelled']);
	assert.equal(await tq.find(client, 'info', 'k'), null);
	assert.equal(await tq.freeKey(client, 'info', 'k'), false);
});

test('operators list, cancel, retry, reschedule, purge and pause', async () => {
	const ids = await tq.enqueueMany(client, 'operate', [1, 2, 3], { delay: '1 h', tags: ['t'] });
	assert.equal(await tq.cancel(client, ids[0], { reason: 'by hand' }), 'cancelled');
	assert.equal(await tq.retry(client, ids[0]), 'ready');
	assert.equal(await tq.reschedule(client, ids[0], { runAt: new Date(Date.now() + 3_600_000), priority: 7 }), 'delayed');
	assert.deepEqual((await tq.list(client, { queue: 'operate', tag: 't' })).map((job) => [job.id, job.state, job.payload]),
		[[ids[2], 'delayed', '3'], [ids[1], 'delayed', '2'], [ids[0], 'delayed', '1']]);
	assert.deepEqual(await tq.cancelMany(client, 'operate', { search: 2, dryRun: true }), { changed: 1, nextAfter: null });
	assert.equal((await tq.cancelMany(client, null, { tag: 't', dryRun: true })).changed, 3);
	assert.deepEqual((await tq.history(client, ids[0])).map(({ event }) => event), ['enqueued', 'cancelled', 'retried', 'rescheduled']);
	assert.match(await tq.explain(client, ids[0]), /waits until/);
	assert.equal(await tq.pause(client, 'operate', { until: new Date(Date.now() + 3_600_000) }), undefined);
	const queue = (await tq.queues(client)).find((row) => row.queue === 'operate');
	assert.ok(queue.pausedUntil instanceof Date && queue.delayed === 3);
	await tq.resume(client, 'operate');
	assert.equal(await tq.purge(client, 'operate', 'delayed'), 3);
	const batch = await tq.batchOpen(client, 'operate', {}, { onFailure: 'cancel' });
	await tq.enqueue(client, 'operate', 1, { batch });
	await tq.batchClose(client, batch);
	const found = await until(async () => {
		const now = await tq.batch(client, batch);
		return now.closedAt && now;
	}, 'the end of the batch');
	assert.deepEqual([found.open, found.total], [false, 1]);
	assert.ok(found.closedAt instanceof Date);
	assert.ok(await tq.now(client) instanceof Date);
});

test('outcomes of many jobs, and waits for the first', async () => {
	const coded = new tq.Tq({ codec: new tq.Codec({ keys: { a: new Uint8Array(32) }, kid: 'a' }) });
	const ids = await coded.enqueueMany(client, 'outcomes', [1, 2, 3], { kinds: ['ends', 'ends', 'waits'] });
	const sent = [];
	const counting = { query: (text, values) => {
		sent.push(text);
		return client.query(text, values);
	} };
	const early = await coded.waitFor(counting, ids, { first: true, timeout: 1 }); // limit: nothing comes
	assert.deepEqual(early.map((job) => [job.id, job.state, job.payload]), [[ids[0], 'ready', 1], [ids[1], 'ready', 2], [ids[2], 'ready', 3]]);
	assert.equal(sent.length, 2);
	const one = worker({ queues: ['outcomes'], kinds: ['ends'], tq: coded }).handle('ends', (job) => {
		if (job.payload === 2)
			throw new tq.Fatal('two');
		return { of: job.payload };
	});
	await one.start();
	const [first] = await tq.waitFor(client, ids.slice(0, 1), { first: true });
	assert.equal(first.state, 'succeeded');
	await tq.waitFor(client, ids, { first: true });
	await tq.waitFor(client, ids.slice(0, 2));
	assert.deepEqual(await tq.ended(client, ids.toReversed()), [ids[1], ids[0]]);
	const found = await coded.outcomes(client, [...ids, 2 ** 52]);
	assert.deepEqual(found.map(({ id, state, result }) => [id, state, result]),
		[[ids[0], 'succeeded', { of: 1 }], [ids[1], 'dead', null], [ids[2], 'ready', null], [2 ** 52, null, null]]);
	assert.match(found[1].error, /two/);
	assert.equal((await tq.outcomes(client, ids))[0].result.kid, 'a');
});

test('dead letters of one error are listed, retried with their children, and purged', async () => {
	const ids = await tq.enqueueMany(client, 'errors of jobs', [1, 2, 3]);
	const child = await tq.enqueue(client, 'errors of jobs', {}, { kind: 'child', dependsOn: [ids[0]] });
	await client.query(`SELECT tq_fail(id, lease, CASE payload WHEN '3' THEN 'busy' ELSE 'no number ' || id END, fatal => true)
		FROM tq_claim('errors of jobs', 3)`);
	await until(async () => (await tq.get(client, child)).state === 'cancelled', 'the end of the child');
	const [group, other] = await tq.deadGroups(client, 'errors of jobs');
	assert.deepEqual([group.error, group.jobs, other.error, other.jobs], ['no number ?', 2, 'busy', 1]);
	assert.deepEqual((await tq.list(client, { queue: 'errors of jobs', error: 'busy' })).map(({ id }) => id), [ids[2]]);
	assert.equal((await tq.retryWhere(client, 'errors of jobs', { error: group.error, withChildren: true })).changed, 2);
	assert.deepEqual((await tq.outcomes(client, [...ids, child])).map(({ state }) => state), ['ready', 'ready', 'dead', 'blocked']);
	assert.equal((await tq.purgeMany(client, 'errors of jobs', 'dead', { error: group.error })).changed, 0);
	assert.equal((await tq.purgeMany(client, 'errors of jobs', 'dead', { error: 'busy' })).changed, 1);
	const series = await tq.series(client, { queue: 'errors of jobs', since: '1 min', step: 86_400_000 });
	assert.ok(series.every(({ at, enqueued }) => at instanceof Date && Number.isInteger(enqueued)));
});

test('Knex: a job belongs to its transaction, and errors are typed', async () => {
	const knex = knexOf({ client: 'pg', connection: { database: 'node' }, pool: { min: 0, max: 2 } });
	ended(() => knex.destroy());
	await assert.rejects(knex.transaction(async (trx) => {
		await tq.enqueue(trx, 'knex', { undone: true });
		throw new Error('undo');
	}), /undo/);
	const id = await knex.transaction((trx) => tq.enqueue(trx, 'knex', { a: '?' }, { kind: 'k?' }));
	assert.deepEqual(await jobs('knex'), [[id, 'k?', '{"a": "?"}']]);
	assert.equal((await tq.get(knex, id)).state, 'ready');
	await assert.rejects(tq.enqueue(knex, 'knex', 1, { priority: 1e6 }),
		(error) => error instanceof tq.InvalidArgument && error.message === 'priority is out of range: 1000000');
});

test('clients like Prisma, TypeORM and postgres.js', async () => {
	// these return rows only, and Prisma hides the server's error in meta
	const prisma = { $queryRawUnsafe: async (text, ...values) => {
		try {
			return (await client.query(text, values)).rows;
		} catch (error) {
			throw Object.assign(new Error('Raw query failed'), { code: 'P2010', meta: { code: error.code, message: error.message } });
		}
	} };
	const rows = async (text, values) => (await client.query(text, values)).rows;
	for (const one of [prisma, { query: rows }, { unsafe: rows }]) {
		const id = await tq.enqueue(one, 'drivers', { n: 1 });
		assert.deepEqual((await tq.get(one, id)).payload, { n: 1 });
	}
	await assert.rejects(tq.pause(prisma, 'missing'), (error) => error instanceof tq.QueueNotFound && /missing/.test(error.message));
});
