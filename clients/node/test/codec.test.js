import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { Codec, CodecError, Retry, Tq } from 'tq';
import { connect, state, worker } from './harness.js';

const vectors = JSON.parse(readFileSync(`${process.env.TQ_DOCS}/codec.json`, 'utf8'));
const client = await connect();

test('the vectors of all libraries are decoded or refused', () => {
	const codec = new Codec({ keys: vectors.keys, kid: '2026a' });
	assert.ok(vectors.accepted.length >= 12 && vectors.refused.length >= 20);
	for (const { name, context, text, encoded } of vectors.accepted)
		assert.equal(codec.decode(encoded, context), text, name);
	for (const { name, context, encoded } of vectors.refused)
		assert.throws(() => codec.decode(encoded, context), CodecError, name);
});

test('what is encoded is decoded, by the other algorithm and after a change of keys too', () => {
	const { keys } = vectors;
	for (const alg of ['A256GCM', 'HS256'])
		for (const { text } of vectors.accepted) {
			const value = new Codec({ keys, kid: '2026a', alg }).encode(text, 'tq.v1:payload');
			assert.deepEqual([value.alg, value.kid], [alg, '2026a']);
			assert.equal(new Codec({ keys, kid: '2026b' }).decode(JSON.parse(JSON.stringify(value)), 'tq.v1:payload'), text);
		}
	const codec = new Codec({ keys, kid: '2026a' });
	assert.notEqual(codec.encode('1', 'c').ct, codec.encode('1', 'c').ct);
});

test('keys are checked', () => {
	for (const options of [{ keys: { a: randomBytes(31) }, kid: 'a' }, { keys: { a: 'short' }, kid: 'a' }, { keys: {}, kid: 'a' },
		{ keys: { a: randomBytes(32) }, kid: 'a', alg: 'none' }])
		assert.throws(() => new Codec(options), TypeError);
});

for (const alg of ['A256GCM', 'HS256'])
	test(`a worker decodes payloads, checkpoints and results of parents, and encodes its own: ${alg}`, async () => {
		const queue = `codec ${alg}`;
		const tq = new Tq({ codec: new Codec({ keys: vectors.keys, kid: '2026b', alg }) });
		const one = worker({ queues: [queue], tq }).handle('first', async (job) => {
			if (job.attempt === 1) {
				await job.heartbeat({ checkpoint: { page: 3 } });
				throw new Retry(0);
			}
			return [job.payload, job.checkpoint];
		}).handle('second', (job) => Object.values(job.parents)[0].result);
		await one.start();
		const first = await tq.enqueue(client, queue, { secret: 'word' }, { kind: 'first' });
		const [second] = await tq.enqueueMany(client, queue, [1], { kind: 'second', dependsOn: [first] });
		const expected = [{ secret: 'word' }, { page: 3 }];
		await state(client, second, 'succeeded');
		assert.deepEqual((await tq.get(client, second)).result, expected);
		const found = await tq.get(client, first);
		assert.deepEqual([found.payload, found.checkpoint, found.result], [{ secret: 'word' }, { page: 3 }, expected]);
		for (const column of ['payload', 'checkpoint', 'result']) {
			const { rows: [{ value }] } = await client.query(`SELECT ${column} AS value FROM tq_get($1)`, [first]);
			assert.deepEqual([value.tq, value.alg, value.kid], ['v1', alg, '2026b'], column);
			assert.equal(JSON.stringify(value).includes('word'), alg === 'HS256' && column !== 'checkpoint');
		}
		await one.stop();
	});

test('a payload that cannot be decoded is buried and never run, and no byte of it is shown', async () => {
	const codec = new Codec({ keys: vectors.keys, kid: '2026a' });
	const mine = new Tq({ codec });
	const other = new Tq({ codec: new Codec({ keys: { theirs: randomBytes(32) }, kid: 'theirs' }) });
	const plain = new Tq();
	let ran = 0;
	const one = worker({ queues: ['undecoded'], codec }).handle(null, () => ran++);
	await one.start();
	const forged = codec.encode('{"a": 1}', 'tq.v1:result:1');
	const cases = [
		[() => other.enqueue(client, 'undecoded', { a: 'word' }), /cannot be decoded: key "theirs" is unknown$/],
		[() => plain.enqueue(client, 'undecoded', { a: 'word' }), /cannot be decoded: the value is not encoded$/],
		[() => plain.enqueue(client, 'undecoded', forged), /cannot be decoded: key "2026a": the value was changed/],
	];
	for (const [send, reason] of cases) {
		const { error } = await state(client, await send(), 'buried');
		assert.match(error, reason);
		assert.doesNotMatch(error, /word/);
	}
	assert.equal((await state(client, await mine.enqueue(client, 'undecoded', 1), 'succeeded')).state, 'succeeded');
	assert.equal(ran, 1);
	await one.stop();
	const lenient = worker({ queues: ['lenient'], codec, acceptPlain: true }).handle(null, (job) => job.payload);
	await lenient.start();
	await state(client, await plain.enqueue(client, 'lenient', { a: 'word' }), 'succeeded');
	await state(client, await other.enqueue(client, 'lenient', { a: 'word' }), 'buried');
	await state(client, await plain.enqueue(client, 'lenient', { tq: 1, alg: 'HS256' }), 'buried');
	await lenient.stop();
});
