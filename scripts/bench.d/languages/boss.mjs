// pg-boss, with large batches that it fetches without a pause.
import { PgBoss } from 'pg-boss';
import { client, jobs, print, rate } from './measure.mjs';

const boss = new PgBoss({ max: 20, supervise: false, schedule: false });
boss.on('error', (error) => { throw error; });
await boss.start();
await boss.createQueue('empty');
for (let n = 0; n < jobs; n += 1000)
	await boss.insert('empty', Array(Math.min(1000, jobs - n)).fill({ data: {} }));
print({ rate: await rate((count) => boss.work('empty', { batchSize: 500, burstWhenBatchFull: true, localConcurrency: 4, pollingIntervalSeconds: 0.5 },
	async (batch) => batch.forEach(count)), "SELECT EXISTS (SELECT FROM pgboss.job WHERE name = 'empty' AND state < 'completed')") });
