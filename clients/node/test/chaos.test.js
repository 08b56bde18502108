// Workers that are killed, cut off and stopped, and a server that crashes. test/chaos/checker.py judges the tables and
// the ledgers.
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { appendFileSync, existsSync, mkdirSync, rmSync } from 'node:fs';
import test from 'node:test';
import { promisify } from 'node:util';
import * as tq from 'tq';
import { connect, ended, until } from './harness.js';

process.env.PGDATABASE = 'node_chaos';
const run = promisify(execFile);
rmSync('ledgers', { recursive: true, force: true });
mkdirSync('ledgers');
const ledgers = [];
const workers = new Set();
ended(() => workers.forEach((worker) => worker.kill('SIGKILL')));

function note(who, event, ...words) {
	const ledger = `ledgers/${who}`;
	if (!ledgers.includes(ledger))
		ledgers.push(ledger);
	appendFileSync(ledger, `${(Date.now() / 1000).toFixed(6)} ${who} ${event} ${words.join(' ')}\n`);
}

let made = 0;

/** A worker that has begun a job. */
async function begin() {
	const name = `w${++made}`;
	const ledger = `ledgers/${name}`;
	const worker = spawn(process.execPath, ['ledger_worker.js', ledger, name], { stdio: 'inherit' });
	ledgers.push(ledger);
	workers.add(worker);
	worker.name = name;
	worker.gone = new Promise((resolve) => { worker.on('exit', (code) => resolve(code)); });
	worker.gone.then(() => workers.delete(worker));
	await until(() => existsSync(ledger), `a job of ${name}`);
	return worker;
}

const producer = { client: null, serial: 0, stop: false };

async function produce() {
	while (!producer.stop) {
		const payloads = Array.from({ length: 1 + producer.serial % 7 }, () => {
			const i = producer.serial++;
			return { t: `p-${i}`, seconds: i % 40 === 0 ? 3 : i % 10 === 0 ? 0.05 : 0, failures: i % 9 === 0 ? 1 : 0, dead: i % 31 === 0 };
		});
		const tx = `p/${payloads[0].t}`;
		const tokens = payloads.map(({ t }) => t);
		let committing = false;
		try {
			producer.client ??= await connect();
			await producer.client.query('BEGIN');
			await tq.enqueueMany(producer.client, 'chaos', payloads, { kind: 'work' });
			if (producer.serial % 11 === 0) {
				await producer.client.query('ROLLBACK');
				note('p', 'rolledback', ...tokens);
				continue;
			}
			note('p', 'enqueue', tx, ...tokens);
			committing = true;
			await producer.client.query('COMMIT');
			note('p', 'committed', tx);
		} catch {
			if (!committing)
				note('p', 'rolledback', ...tokens);
			producer.client?.end().catch(() => {});
			producer.client = null;
			await new Promise((resolve) => { setTimeout(resolve, 20); }); // poll: until the server is back
		}
	}
}

const succeeded = async (client) => Number((await client.query('SELECT succeeded FROM tq_stats()')).rows[0]?.succeeded ?? 0);

async function more(client, jobs) {
	const before = await succeeded(client);
	await until(async () => await succeeded(client) >= before + jobs, `${jobs} more jobs`);
}

test('no job is lost or run twice at once: killed worker, ended sessions, crash of the server, SIGTERM', async () => {
	let client = await connect();
	const producing = produce();
	let one = await begin();
	const two = await begin();
	await more(client, 100);

	one.kill('SIGKILL');
	await one.gone;
	note(one.name, 'gone');
	one = await begin();
	await more(client, 100);

	for (let i = 0; i < 3; i++) {
		await client.query(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name ~ '^w[0-9]+ ' AND datname = current_database()`);
		await more(client, 50);
	}

	note('p', 'crash');
	await run(process.env.TQ_PG_CTL, ['-D', process.env.TQ_DATA, '-m', 'immediate', '-w', '-t', '180', 'stop']);
	note('p', 'down');
	await run('sh', ['-c', '"$TQ_PG_CTL" -D "$TQ_DATA" -l "$TQ_DATA/../server.log" -w -t 180 start >/dev/null 2>&1']);
	client = await connect();
	await more(client, 100);

	one.kill('SIGTERM'); // most likely during a claim
	assert.ok([0, 1].includes(await one.gone));
	const three = await begin();
	await more(client, 100);

	producer.stop = true;
	await producing;
	await until(async () => (await tq.queues(client)).every(({ live }) => live === 0), 'the end of all jobs');
	for (const worker of [two, three]) {
		worker.kill('SIGTERM');
		assert.equal(await worker.gone, 0);
	}
	const { stdout, stderr } = await run('/usr/bin/python3', ['-B', `${process.env.TQ_DOCS}/checker.py`, '--token', 't', 'dbname=node_chaos', ...ledgers],
		{ maxBuffer: 1 << 26 }).catch((error) => error);
	const lines = stdout.split('\n');
	assert.deepEqual(lines.filter((line) => line.startsWith('not ok')), []);
	assert.ok(lines.filter((line) => line.startsWith('ok')).length > 30, stderr);
});
