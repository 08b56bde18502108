// Runs the programs of docs/guides/node.md and of the package's page, and the worker of README.md.
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import test from 'node:test';
import { promisify } from 'node:util';
import * as tq from 'tq';
import { connect, state, until } from './harness.js';

mkdirSync('guide', { recursive: true });
for (const page of [`${process.env.TQ_DOCS}/node.md`, '../clients/node/README.md'])
	for (const [, name, body] of readFileSync(page, 'utf8').matchAll(/^```js\n\/\/ (\S+)\n([^]*?)^```$/gm))
		writeFileSync(`guide/${name}`, body);
const { NODE_TEST_CONTEXT: _, ...env } = process.env; // a test runner of its own
const run = async (...args) => (await promisify(execFile)(process.execPath, args, { env })).stdout;
const client = await connect();

/** Runs `body` beside a worker of the command, which is to end in order. */
async function beside(args, body) {
	const worker = spawn('node_modules/.bin/tq-worker', args, { stdio: 'inherit' });
	try {
		await body();
	} finally {
		worker.kill('SIGTERM');
	}
	assert.equal(await new Promise((resolve) => { worker.on('exit', resolve); }), 0);
}

test('guide: the worker runs what the first program enqueues', async () => {
	assert.equal(await run('guide/enqueue.js'), 'number\n');
	await beside(['guide/app.js', '--concurrency', '2', '--lease', '1min'], async () => {
		for (const job of await until(async () => {
			const all = await tq.list(client, { queue: 'mail' });
			return all.length >= 3 && all; // the schedule may add one at seven
		}, 'three jobs'))
			await state(client, job.id, 'succeeded');
	});
	assert.deepEqual((await tq.schedules(client)).map(({ name }) => name).filter((name) => name === 'daily digest'), ['daily digest']);
	assert.deepEqual((await client.query('SELECT day FROM digest WHERE day > 0 ORDER BY day')).rows, [{ day: 1 }, { day: 2 }]);
});

test('README: its worker runs the jobs of its session', async () => {
	const [, body] = readFileSync(`${process.env.TQ_DOCS}/README.md`, 'utf8').match(/^```js\n\/\/ mailer\.js\n([^]*?)^```$/m);
	writeFileSync('guide/mailer.js', body);
	await client.query('CREATE TABLE sent (recipient text)');
	const id = await tq.enqueue(client, 'mail', { to: 'ada@example.org' });
	await beside(['guide/mailer.js'], () => state(client, id, 'succeeded'));
	assert.deepEqual((await client.query('SELECT recipient FROM sent')).rows, [{ recipient: 'ada@example.org' }]);
});

test('the page of the package: its worker runs the job of its program', async () => {
	await beside(['guide/hello.mjs'], async () => {
		const [, id] = (await run('guide/enqueue.mjs')).match(/^job (\d+)\n$/);
		await state(client, id, 'succeeded');
		assert.deepEqual((await tq.get(client, Number(id))).result, { greeted: 'Ada' });
	});
});

test('guide: codec, middleware and dead letters', async () => {
	assert.equal(await run('guide/codec.js'), "{ card: 4711 }\n[ { alg: 'A256GCM' } ]\n");
	assert.equal(await run('guide/middleware.js'), 'begin 7\ndone\n');
	assert.equal(await run('guide/again.js'), '');
});

test('guide: the tests of an application', async () => {
	assert.match(await run('--test', '--test-reporter=tap', 'guide/app.test.js'), /# pass 2\n# fail 0/);
});

test('the command says what is wrong', async () => {
	const code = async (...args) => {
		try {
			await run('node_modules/tq/bin/tq-worker.js', ...args);
			return 0;
		} catch (error) {
			return [error.code, error.stderr];
		}
	};
	for (const [args, wanted, message] of [[[], 2, /one MODULE is needed/], [['guide/app.js', '--what'], 2, /Unknown option/],
		[['guide/app.js', '--concurrency', 'x'], 2, /concurrency must be/], [['reporter.js'], 2, /exports no Worker/],
		[['guide/missing.js'], 2, /there is no file/]]) {
		const [found, text] = await code(...args);
		assert.equal(found, wanted, text);
		assert.match(text, message);
	}
	assert.match(await run('node_modules/tq/bin/tq-worker.js', '--help'), /^usage: tq-worker MODULE/);
});
