// graphile-worker, with the settings that its manual names for speed.
import { Logger, makeWorkerUtils, run } from 'graphile-worker';
import pg from 'pg';
import { client, jobs, print, rate } from './measure.mjs';

const pgPool = new pg.Pool({ max: 20 });
for (const event of ['error', 'connect'])
	pgPool.on(event, () => {});
const options = { pgPool, logger: new Logger(() => () => {}) };
const utils = await makeWorkerUtils(options);
await utils.migrate();
await client.query("SELECT count(graphile_worker.add_job('empty', '{}')) FROM generate_series(1, $1::int)", [jobs]);
const preset = { worker: { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } };
print({ rate: await rate((count) => run({ ...options, preset, noHandleSignals: true, taskList: { empty: async () => count() } }),
	'SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)') });
