// A program that tsc must accept, and lines that it must refuse.
import pg from 'pg';
import knexOf from 'knex';
import { cancel, Codec, enqueue, enqueueMany, get, json, LeaseLost, list, outcomes, Retry, retryWhere, schedule, Tq, KeyTaken, waitFor, Worker } from 'tq';
import { assertEnqueued, drain, runJob, setNow } from 'tq/testing';

interface Mail { to: string }

export const codec = new Codec({ keys: { a: new Uint8Array(32) }, kid: 'a', alg: 'HS256' });
export const tq = new Tq({ codec, middleware: [{ run: async (job, next) => [job.id, await next()] }] });
export const worker: Worker = new Worker({ queues: ['mail'], tq, lease: '30 s', connection: { host: 'localhost' } })
	.handle<Mail, { sent: string }>('welcome', async (job) => {
		const to: string = job.payload.to;
		await fetch(`http://localhost/${to}`, { signal: job.signal });
		if (job.cancelled)
			throw new Retry(1000);
		return { sent: to };
	})
	.handle(null, () => {})
	.schedule('nightly', { kind: 'welcome', cron: '@daily', timeout: '1 min' });

export async function main(pool: pg.Pool): Promise<number | null> {
	const client: pg.PoolClient = await pool.connect();
	const knex = knexOf({ client: 'pg' });
	await knex.transaction((trx) => enqueue(trx, 'mail', { to: 'ada' }));
	await enqueue({ $queryRawUnsafe: async (_: string, ..._values: unknown[]) => [] }, 'mail');
	await schedule(client, 'hourly', { queue: 'mail', every: 3_600_000 });
	try {
		const ids: (number | null)[] = await enqueueMany(client, 'mail', [json('1.50')], { kinds: [null], runAts: [new Date()] });
		const jobs = await waitFor(client, ids.filter((id) => id !== null), { timeout: '1 s' });
		const job = await get(client, 1);
		const text: string | null = jobs[0].resultText ?? job.payloadText;
		const done: 'cancelled' | 'asked' = await cancel(client, 1n, { reason: text ?? '' });
		const state: string | null = (await outcomes(client, [1, 2n]))[0].state;
		await retryWhere(client, null, { error: state ?? undefined, withChildren: true });
		await list(client, { queue: 'mail', state: 'dead', search: { done } });
	} catch (error) {
		if (error instanceof KeyTaken || error instanceof LeaseLost)
			console.error(error.code, error.detail, error.hint);
	}
	const { state, result } = await runJob(worker, 'welcome', { to: 'ada' });
	await assertEnqueued(client, 'mail', { count: (await drain(worker, client)).length + (state === 'failed' ? 1 : result) });
	await setNow(client, new Date());
	void enqueue(client, 'mail', {}, { uniqueMode: 'replace_waiting', uniqueKey: 'u' });
	return enqueue(client, 'mail', {}, { uniqueMode: 'ignore', uniqueKey: 'u' });
}

export function refused(client: pg.Client): void {
	// @ts-expect-error no such option
	void enqueue(client, 'mail', {}, { prio: 1 });
	// @ts-expect-error no connection
	void enqueue('mail', {});
	// @ts-expect-error no queues
	new Worker({ concurrency: 1 });
	// @ts-expect-error not a unique mode
	void tq.enqueue(client, 'mail', {}, { uniqueMode: 'maybe' });
	// @ts-expect-error the constructor takes it
	worker.configure({ codec });
	worker.handle<Mail>('welcome', (job) => {
		// @ts-expect-error not in the payload
		return job.payload.from;
	});
}
