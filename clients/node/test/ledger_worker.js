// A worker that keeps a ledger (test/chaos/ledger.py).   usage: ledger_worker.js LEDGER NAME
import { appendFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import { Fatal, Retry, Worker } from 'tq';

const [ledger, name] = process.argv.slice(2);
const note = (event, ...words) =>
	appendFileSync(ledger, `${(Date.now() / 1000).toFixed(6)} ${name} ${event} ${words.join(' ')}\n`);
const answers = new Map(); // lease -> what the server says if it takes the end

const worker = new Worker({
	queues: ['chaos'], name, concurrency: 20, buffer: 40, lease: '2 s', shutdownTimeout: 200,
	log: ({ level, message, lease, job_id: id, attempt, ...more }) => {
		if (message === 'a job is released' && !answers.has(lease)) {
			note('end', id, lease, attempt, 'release');
			answers.set(lease, 'ready');
		} else if (message === 'a job has ended' && answers.has(lease))
			note('told', id, lease, attempt, answers.get(lease));
		else if (message.includes('its lease is lost') && answers.has(lease))
			note('told', id, lease, attempt, 'lost');
		else if (level !== 'debug' && process.env.TQ_LOG)
			console.error(level, message, id ?? '', attempt ?? '', more.error ?? '');
	},
});
worker.handle('work', async (job) => {
	note('start', job.id, job.lease, job.attempt, job.leaseExpiresAt / 1000, job.payload.t);
	const { seconds = 0, failures = 0, dead = false } = job.payload;
	try {
		await pause(seconds * 1000, null, { signal: job.signal });
	} catch (error) {
		if (job.signal.reason.why === 'shutdown') {
			note('end', job.id, job.lease, job.attempt, 'release');
			answers.set(job.lease, 'ready');
		}
		throw error;
	}
	if (dead) {
		note('end', job.id, job.lease, job.attempt, 'kill');
		answers.set(job.lease, 'dead');
		throw new Fatal('no use');
	}
	if (job.attempt <= failures) {
		note('end', job.id, job.lease, job.attempt, 'fail');
		answers.set(job.lease, 'delayed');
		throw new Retry('10 ms', 'try again');
	}
	note('end', job.id, job.lease, job.attempt, 'complete');
	answers.set(job.lease, 'succeeded');
	return { t: job.payload.t };
});
process.exit(await worker.run());
