// A worker of clients/node.
import { createQueue, enqueue, enqueueMany, Worker } from 'tq';
import { client, jobs, latencies, print, rate } from './measure.mjs';

let handler;
const worker = new Worker({ queues: ['node'], concurrency: 100, buffer: 1000 }).handle(null, () => handler());
await createQueue(client, 'node').catch((error) => { if (error.code !== '42710') throw error; });
for (let n = 0; n < jobs; n += 1000)
	await enqueueMany(client, 'node', Array(Math.min(1000, jobs - n)).fill({}));
const figures = { rate: await rate((count) => {
	handler = count;
	return worker.start();
}, "SELECT live > 0 FROM tq_stats() WHERE queue = 'node'") };
const late = await latencies(() => enqueue(client, 'node', {}), (run) => { handler = run; });
await worker.stop();
print({ ...figures, ...late });
