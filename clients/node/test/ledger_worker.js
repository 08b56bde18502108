// A worker that keeps a ledger (test/chaos/ledger.py).   usage: ledger_worker.js LEDGER NAME
import { appendFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import { Fatal, Retry, Worker } from 'tq';

const [ledger, name] = process.argv.slice(2);
const note = (event, ...words) =>
	appendFileSync(ledger, `${(Date.now() / 1000).toFixed(6)} ${name} ${event} ${words.join(' ')}\n`);
const asked = new Map(); // lease -> the words of its end, and what the server says if it takes it
const LENGTH = 2; // of a lease, in seconds

function ask(id, lease, attempt, verb, answer) {
	asked.set(lease, { words: ['end', id, lease, attempt, verb], answer });
	note(...asked.get(lease).words);
}

function told(id, lease, attempt, answer) {
	note('told', id, lease, attempt, answer);
	asked.delete(lease);
}

const worker = new Worker({
	queues: ['chaos'], name, concurrency: 20, buffer: 40, lease: `${LENGTH} s`, shutdownTimeout: 200,
	log: ({ level, message, lease, job_id: id, attempt, ...more }) => {
		if (message === 'a job is released' && !asked.has(lease))
			ask(id, lease, attempt, 'release', 'ready');
		else if (message === 'a job has ended' && asked.has(lease))
			told(id, lease, attempt, asked.get(lease).answer);
		else if (message.includes('its lease is lost') && asked.has(lease))
			told(id, lease, attempt, 'lost');
		else if (message === 'connected again') // what has no answer is sent again
			asked.forEach(({ words }) => note(...words));
		else if (level !== 'debug' && process.env.TQ_LOG)
			console.error(level, message, id ?? '', attempt ?? '', more.error ?? '');
	},
});
worker.handle('work', async (job) => {
	note('start', job.id, job.lease, job.attempt, job.leaseExpiresAt / 1000, job.payload.t, LENGTH);
	const { seconds = 0, failures = 0, dead = false } = job.payload;
	try {
		await pause(seconds * 1000, null, { signal: job.signal });
	} catch (error) {
		if (job.signal.reason.why === 'shutdown')
			ask(job.id, job.lease, job.attempt, 'release', 'ready');
		throw error;
	}
	if (dead) {
		ask(job.id, job.lease, job.attempt, 'kill', 'dead');
		throw new Fatal('no use');
	}
	if (job.attempt <= failures) {
		ask(job.id, job.lease, job.attempt, 'fail', 'delayed');
		throw new Retry('10 ms', 'try again');
	}
	ask(job.id, job.lease, job.attempt, 'complete', 'succeeded');
	return { t: job.payload.t };
});
process.exit(await worker.run());
