// A CommonJS program in TypeScript that tsc must accept.
import tq = require('tq');
import testing = require('tq/testing');
import { type Job, Worker } from 'tq';

export const worker: Worker = new tq.Worker({ queues: ['mail'] }).handle(null, (job: Job) => job.attempt);
export const ran = testing.runJob(worker, null);
