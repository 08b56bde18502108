import assert from 'node:assert/strict';
import test from 'node:test';
import { NotFound, Tq } from '../clients/node/src/index.js';
import { Leases } from '../clients/node/src/leases.js';
import { declare } from '../clients/node/src/schedules.js';
import { Session } from '../clients/node/src/session.js';
import { connect, ended } from './harness.js';

const log = { warn() {}, info() {}, error() {} };
const client = await connect();

test('heartbeats go before the ends of jobs that wait for the connection', async () => {
	const session = new Session({ role: 'works', log, name: 'ordered', timeout: 60_000 });
	await session.open();
	ended(() => session.close());
	const order = [];
	await client.query('SELECT pg_advisory_lock(1)');
	const all = ['first', 'second', 'third'].map((name) => session.query('SELECT pg_advisory_xact_lock(1)').then(() => order.push(name)));
	const leases = new Leases({ session, prefix: '', lease: 60_000, log, held: () => [], heard: () => order.push('heartbeat') });
	all.push(leases.renew([{ row: { id: '1' }, lease: '1', lost: true }]));
	await client.query('SELECT pg_advisory_unlock(1)');
	await Promise.all(all);
	assert.deepEqual(order, ['first', 'heartbeat', 'second', 'third']);
});

test('workers that start together may remove the same schedule', async () => {
	const removed = [];
	const session = { async query(text, values) {
		if (/^SELECT name/.test(text))
			return [{ name: 'one' }, { name: 'two' }];
		removed.push(values[0]);
		throw new NotFound('the schedule does not exist', { code: '42704' });
	} };
	await declare(session, new Tq(), 'shop', new Map(), log);
	assert.deepEqual(removed, ['one', 'two']);
});

test('the pauses grow while each connection is lost again, and the loss is said once', async () => {
	const said = [];
	const note = (message) => said.push(message);
	const session = new Session({ role: 'works', log: { warn: note, info: note, error: note }, name: 'refused', timeout: 60_000 });
	await session.open();
	ended(() => session.close());
	const lost = () => assert.rejects(session.query("DO $$ BEGIN RAISE 'a standby' USING ERRCODE = '25006'; END $$"), { connectionLost: true });
	const losses = () => said.filter((message) => message.includes('connection lost')).length;
	const before = performance.now();
	for (let i = 0; i < 4; i++)
		await lost();
	assert.ok(performance.now() - before > 340, 'pauses of at least 50, 100 and 200 ms');
	assert.equal(losses(), 1);
	await session.query('SELECT 1');
	await lost();
	await session.query('SELECT 1');
	assert.equal(losses(), 2);
});
