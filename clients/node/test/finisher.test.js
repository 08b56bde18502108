// Answers of the server to the ends of jobs, by a session that only pretends.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Finisher } from '../clients/node/src/finisher.js';
import { isConnectionLost } from '../clients/node/src/errors.js';

const log = { error() {} };

async function finish(errors, outcome = { verb: 'complete', result: '1' }) {
	const statements = [];
	let last;
	const session = {
		async query(text, values) {
			statements.push(/tq_\w+/.exec(text)[0]);
			last = values;
			const code = errors.shift();
			if (code)
				throw Object.assign(new Error('refused'), { code });
			return [{ status: 'ok' }];
		},
	};
	const status = await new Promise((resolve) => {
		const finisher = new Finisher({ session, prefix: '', flushInterval: 0, log, ended: (held, answer) => resolve(answer) });
		finisher.add({ row: { id: '1' }, lease: '1' }, outcome);
	});
	return { status, statements, last };
}

for (const code of ['53100', '57014', '40001', '40P01', '55P03', 'TQ009'])
	test(`a job that succeeded is completed after ${code}`, async () => {
		const { status, statements } = await finish([code, code]);
		assert.deepEqual([status, statements], ['ok', Array(3).fill('tq_complete_many')]);
	});

test('a result that the server refuses fails the job', async () => {
	const { status, statements } = await finish(['54000', '54000']);
	assert.deepEqual([status, statements], ['ok', ['tq_complete_many', 'tq_complete', 'tq_fail_many']]);
});

test('a text that the database cannot encode is sent in ASCII', async () => {
	for (const [outcome, name, text] of [[{ verb: 'fail', error: 'Fatal: 世界', fatal: true }, 'tq_fail', 'Fatal: ?'],
		[{ verb: 'bury', reason: 'é' }, 'tq_bury', '?']]) {
		const { status, statements, last } = await finish(['22P05'], outcome);
		assert.deepEqual([status, statements, last[2]], ['ok', [name, name], text]);
		assert.equal(last[4], outcome.fatal && 'true');
	}
	const { statements, last } = await finish(['22P05', '22P05'], { verb: 'fail', error: 'é' });
	assert.deepEqual([statements, last[2]], [['tq_fail_many', 'tq_fail', 'tq_fail_many'], '{"?"}']);
});

test('a connection to a standby is given up', () => {
	assert.ok(isConnectionLost(Object.assign(new Error('read-only'), { code: '25006' })));
});
