// Types of tq/testing.
import type { Queryable, Time, Worker } from './index.js';

export interface RunResult {
	state: 'succeeded' | 'failed' | 'buried' | 'released';
	/** What the handler returned. */
	result?: any;
	/** What it threw. */
	error?: any;
	outcome: { verb: 'complete' | 'fail' | 'bury' | 'release' | 'none'; [detail: string]: unknown };
	checkpoint: any;
	progress: any;
}

/** Runs one handler here and now, without a database. */
export function runJob(worker: Worker, kind: string | null, payload?: unknown, options?: {
	id?: number; queue?: string; attempt?: number; maxAttempts?: number; headers?: Record<string, unknown>;
	checkpoint?: unknown; priority?: number; groupKey?: string; tags?: string[]; signal?: AbortSignal;
}): Promise<RunResult>;

/** Claims and runs the jobs of the worker's queues and kinds on this connection, one after the other, until none is ready. */
export function drain(worker: Worker, client: Queryable):
	Promise<{ id: number; kind: string | null; state: RunResult['state']; result?: any; error?: any }[]>;

/** `payload` is contained in that of the job. `count`: exactly so many, else at least one. @throws {AssertionError} */
export function assertEnqueued(client: Queryable, queue: string,
	options?: { kind?: string; payload?: unknown; count?: number }): Promise<void>;
export function assertNotEnqueued(client: Queryable, queue: string,
	options?: { kind?: string; payload?: unknown }): Promise<void>;

/** Sets the clock of the database (tq_set_now). Without a time: that of the server. Returns the time of tq. */
export function setNow(client: Queryable, at?: Time): Promise<Date>;
/** Removes all jobs of a queue, or of the database (tq_reset). Returns how many. */
export function reset(client: Queryable, queue?: string | null): Promise<number>;
