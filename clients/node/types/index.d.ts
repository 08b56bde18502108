// Types of the package tq. The functions are those of docs/reference.md, their options in camelCase.

/** Milliseconds, or an interval in PostgreSQL's words such as "10 min". */
export type Interval = number | string;
export type Time = Date | string;
/** An id is at most 2^53 - 1. */
export type Id = number | bigint | string;
export type State =
	'ready' | 'delayed' | 'blocked' | 'running' | 'succeeded' | 'dead' | 'buried' | 'cancelled' | 'expired' | 'purged';

/** Any of these runs a statement in the transaction that is open on it. */
export type Queryable =
	| { query(text: string, values?: any[]): Promise<any> }
	| { raw(text: string, bindings: any): PromiseLike<any> }
	| { $queryRawUnsafe(text: string, ...values: any[]): PromiseLike<any> }
	| { unsafe(text: string, values?: any[]): PromiseLike<any> };

/** JSON text that is sent as it is. */
export class Json {
	constructor(text: string);
	readonly text: string;
}
export function json(text: string): Json;

export interface RetryPolicy {
	policy?: 'exponential' | 'linear' | 'fixed' | 'list';
	delay?: string;
	max?: string;
	factor?: number;
	jitter?: number;
	delays?: string[];
	on_lost?: string;
}

interface JobOptions {
	lease?: Interval;
	tags?: string[];
	uniqueFor?: Interval;
	weight?: number;
	onParentFailure?: 'cancel' | 'run';
	followUp?: unknown;
	batch?: number;
}

interface CommonOptions extends JobOptions {
	kind?: string | null;
	priority?: number;
	runAt?: Time;
	delay?: Interval;
	expiresAt?: Time;
	maxAttempts?: number;
	retry?: RetryPolicy;
	timeout?: Interval;
	groupKey?: string;
	uniqueMode?: 'skip' | 'skip_waiting' | 'ignore' | 'replace' | 'replace_waiting' | 'keep_run_at' | 'error';
	headers?: Record<string, unknown>;
	dependsOn?: Id[];
	/** Further keys of the argument `options`, by their names in SQL. */
	options?: Record<string, unknown>;
}

export interface EnqueueOptions extends CommonOptions {
	uniqueKey?: string;
}

export interface EnqueueManyOptions extends CommonOptions {
	kinds?: (string | null)[];
	priorities?: (number | null)[];
	runAts?: (Time | null)[];
	uniqueKeys?: (string | null)[];
	groupKeys?: (string | null)[];
}

export interface BatchOptions extends JobOptions {
	kind?: string;
	onFailure?: 'run' | 'cancel';
	options?: Record<string, unknown>;
}

export interface JobInfo {
	id: number;
	queue: string | null;
	kind: string | null;
	state: State;
	priority: number;
	attempt: number;
	maxAttempts: number;
	payload: any;
	/** As the database has it. */
	payloadText: string | null;
	headers: Record<string, any> | null;
	runAt: Date | null;
	enqueuedAt: Date;
	claimedAt: Date | null;
	finishedAt: Date | null;
	lease: string | null;
	leaseExpiresAt: Date | null;
	worker: string | null;
	result: any;
	resultText: string | null;
	error: string | null;
	checkpoint: any;
	checkpointText: string | null;
	groupKey: string | null;
	uniqueKey: string | null;
	tags: string[] | null;
	expiresAt: Date | 'infinity' | null;
	origin: number | null;
	policies: Record<string, { value: any; from: 'job' | 'queue' | 'server' }>;
}

/** A row of a function or view, its columns in camelCase. */
export type Row = Record<string, any>;

interface Conditions {
	kind?: string;
	worker?: string;
	tag?: string;
	groupKey?: string;
	uniqueKey?: string;
	createdFrom?: Time;
	createdTo?: Time;
	search?: unknown;
	after?: Id | null;
	max?: number;
}

interface ManyOptions extends Conditions {
	dryRun?: boolean;
}

export interface Changed {
	changed: number;
	nextAfter: number | null;
}

export interface ScheduleOptions {
	queue?: string;
	kind?: string;
	payload?: unknown;
	cron?: string;
	every?: Interval;
	timezone?: string;
	catchUp?: 'none' | 'latest' | 'all';
	overlap?: 'allow' | 'skip' | 'cancel';
	priority?: number;
	maxAttempts?: number;
	retry?: RetryPolicy;
	timeout?: Interval;
	groupKey?: string;
	uniqueKey?: string;
	uniqueMode?: 'skip' | 'skip_waiting' | 'ignore' | 'replace' | 'replace_waiting' | 'keep_run_at' | 'error';
	headers?: Record<string, unknown>;
	lease?: Interval;
	tags?: string[];
	uniqueFor?: Interval;
	weight?: number;
	followUp?: unknown;
	delay?: Interval;
	expiresIn?: Interval;
	start?: Time;
	end?: Time;
	jitter?: Interval;
	maxCatchUp?: number;
	late?: Interval;
}

export interface Enqueued {
	/** Null: the unique key is taken, and uniqueMode is ignore. */
	id: number | null;
	outcome: 'created' | 'replaced' | 'skipped';
}

export interface Outcome {
	id: number;
	/** Null: the job does not exist, no longer exists or may not be seen. */
	state: State | null;
	result: any;
	/** As the database has it. */
	resultText: string | null;
	/** The last error or reason, if the job has not succeeded. */
	error: string | null;
}

/** The functions of tq. Each runs on the connection of the caller. */
export interface Verbs {
	/** Adds a job. Null: the unique key is taken, and uniqueMode is ignore. */
	enqueue(client: Queryable, queue: string, payload?: unknown, options?: EnqueueOptions): Promise<number | null>;
	enqueueInfo(client: Queryable, queue: string, payload?: unknown, options?: EnqueueOptions): Promise<Enqueued>;
	enqueueManyInfo(client: Queryable, queue: string, payloads: unknown[], options?: EnqueueManyOptions): Promise<Enqueued[]>;
	enqueueMany(client: Queryable, queue: string, payloads: unknown[], options?: EnqueueManyOptions): Promise<(number | null)[]>;
	batchOpen(client: Queryable, queue: string, payload?: unknown, options?: BatchOptions): Promise<number>;
	batchClose(client: Queryable, batch: Id): Promise<void>;
	batch(client: Queryable, batch: Id): Promise<Row>;
	/** Waits until the jobs have ended, or with `first` until one of them has. Outside a transaction. */
	waitFor(client: Queryable, id: Id, options?: { timeout?: Interval }): Promise<JobInfo>;
	waitFor(client: Queryable, ids: Id[], options?: { timeout?: Interval; first?: boolean }): Promise<JobInfo[]>;
	/** Those of the jobs that have ended, in the same order. */
	ended(client: Queryable, ids: Id[]): Promise<number[]>;
	/** States and results, in the same order. */
	outcomes(client: Queryable, ids: Id[]): Promise<Outcome[]>;
	get(client: Queryable, id: Id): Promise<JobInfo>;
	find(client: Queryable, queue: string, uniqueKey: string): Promise<number | null>;
	freeKey(client: Queryable, queue: string, uniqueKey: string): Promise<boolean>;
	history(client: Queryable, id: Id): Promise<Row[]>;
	explain(client: Queryable, id: Id): Promise<string>;
	graph(client: Queryable, id: Id, options?: { maxJobs?: number }): Promise<Row[]>;
	list(client: Queryable, options?: Conditions & {
		queue?: string; state?: State; newest?: boolean; error?: string;
	}): Promise<Row[]>;
	changes(client: Queryable, options?: { after?: string; queue?: string; max?: number; wait?: Interval }): Promise<Row[]>;
	cancel(client: Queryable, id: Id, options?: { reason?: string }): Promise<'cancelled' | 'asked'>;
	cancelJobs(client: Queryable, ids: Id[], options?: { reason?: string }): Promise<{ id: number; status: string }[]>;
	cancelMany(client: Queryable, queue: string | null, options?: ManyOptions & { state?: State; reason?: string }): Promise<Changed>;
	retry(client: Queryable, id: Id, options?: { withChildren?: boolean }): Promise<'ready' | 'blocked'>;
	retryMany(client: Queryable, queue: string, options?: {
		state?: State; kind?: string; since?: Time; maxJobs?: number; toQueue?: string; withChildren?: boolean;
	}): Promise<number>;
	/** `error`: of a group of deadGroups. `withChildren`: also restores the jobs below. */
	retryWhere(client: Queryable, queue: string | null, options?: ManyOptions & {
		state?: State; error?: string; withChildren?: boolean;
	}): Promise<Changed>;
	reschedule(client: Queryable, id: Id, options: { runAt?: Time; priority?: number }): Promise<'ready' | 'delayed' | 'blocked'>;
	rescheduleMany(client: Queryable, queue: string | null,
		options: ManyOptions & { state?: State; runAt?: Time; priority?: number }): Promise<Changed>;
	purge(client: Queryable, queue: string, state: State | 'all'): Promise<number>;
	purgeMany(client: Queryable, queue: string | null, state: State | 'all',
		options?: ManyOptions & { error?: string }): Promise<Changed>;
	deadGroups(client: Queryable, queue: string, options?: { maxJobs?: number }): Promise<Row[]>;
	/** Settings by their names in SQL. */
	createQueue(client: Queryable, name: string, settings?: Record<string, unknown>): Promise<void>;
	alterQueue(client: Queryable, name: string, settings: Record<string, unknown>): Promise<void>;
	dropQueue(client: Queryable, name: string): Promise<void>;
	pause(client: Queryable, queue: string, options?: { kind?: string; until?: Time; groupKey?: string }): Promise<void>;
	resume(client: Queryable, queue: string, options?: { kind?: string; groupKey?: string }): Promise<void>;
	limitGroup(client: Queryable, queue: string, groupKey: string, options?: { maxRunning?: number; rate?: string }): Promise<void>;
	schedule(client: Queryable, name: string, options: ScheduleOptions & { queue: string }): Promise<void>;
	unschedule(client: Queryable, name: string): Promise<void>;
	schedulePause(client: Queryable, name: string): Promise<void>;
	scheduleResume(client: Queryable, name: string): Promise<void>;
	scheduleRun(client: Queryable, name: string): Promise<number | null>;
	drain(client: Queryable, worker: string): Promise<number>;
	undrain(client: Queryable, worker: string): Promise<boolean>;
	enqueued(client: Queryable, queue: string, options?: { kind?: string; payload?: unknown }): Promise<number>;
	health(client: Queryable): Promise<Row[]>;
	now(client: Queryable): Promise<Date>;
	stats(client: Queryable): Promise<Row[]>;
	series(client: Queryable, options?: { queue?: string; since?: Interval; step?: Interval }): Promise<Row[]>;
	queues(client: Queryable): Promise<Row[]>;
	running(client: Queryable): Promise<Row[]>;
	dead(client: Queryable): Promise<Row[]>;
	workers(client: Queryable): Promise<Row[]>;
	schedules(client: Queryable): Promise<Row[]>;
}

export interface EnqueueRequest {
	client: Queryable;
	queue: string;
	payloads: unknown[];
	options: Record<string, any>;
}

export interface Middleware {
	/** May change the request; returns what next() returned. */
	enqueue?(request: EnqueueRequest, next: () => Promise<any>): unknown;
	/** Returns the result of the job. */
	run?(job: Job, next: () => Promise<any>): unknown;
}

export interface TqOptions {
	codec?: Codec;
	/** With a codec: whether plain values are read as well. */
	acceptPlain?: boolean;
	/** The first is the outermost. */
	middleware?: Middleware[];
	/** Reads payloads, results and checkpoints. The default, JSON.parse, rounds numbers. */
	parse?(text: string): any;
	/** Of the extension, if it is not in the search_path. */
	schema?: string;
}

export class Tq {
	constructor(options?: TqOptions);
	use(middleware: Middleware): this;
}
export interface Tq extends Verbs {}

export interface CodecOptions {
	/** By key id: 32 bytes, or these in base64. */
	keys: Record<string, Uint8Array | string>;
	/** The key that encodes. */
	kid: string;
	alg?: 'A256GCM' | 'HS256';
}

export class Codec {
	constructor(options: CodecOptions);
	encode(text: string, context: string): Record<string, string>;
	/** @throws {CodecError} */
	decode(value: unknown, context: string): string;
}
export class CodecError extends Error {}

export class Job<Payload = any, Result = any> {
	private constructor();
	readonly id: number;
	readonly lease: string;
	readonly queue: string;
	readonly kind: string | null;
	readonly payload: Payload;
	/** As the database has it, decoded. */
	readonly payloadText: string;
	readonly headers: Record<string, any> | null;
	readonly attempt: number;
	readonly maxAttempts: number;
	readonly priority: number;
	readonly groupKey: string | null;
	readonly uniqueKey: string | null;
	readonly tags: string[] | null;
	readonly enqueuedAt: Date;
	readonly deadline: Date | null;
	/** As of the claim. */
	readonly leaseExpiresAt: Date | null;
	readonly checkpoint: any;
	/** By id: the outcomes of the jobs that this one waited for. */
	readonly parents: Record<string, { state: State; result?: any; error?: string }> | null;
	/** Aborts when the job is cancelled, its lease is lost, or the worker shuts down. The reason is an Aborted. */
	readonly signal: AbortSignal;
	readonly cancelled: boolean;
	/** Progress is for people, a checkpoint for the next attempt. */
	heartbeat(options?: { progress?: unknown; checkpoint?: unknown; extend?: Interval }, client?: Queryable):
		Promise<'run' | 'cancel' | 'quiet' | 'lost'>;
	/** Completes the job in the transaction of the caller. @throws {LeaseLost} roll back */
	complete(client: Queryable, result?: Result): Promise<'succeeded'>;
}

export type Handler<Payload = any, Result = any> = (job: Job<Payload, Result>) => Result | Promise<Result>;

export interface LogEntry {
	time: string;
	level: 'debug' | 'info' | 'warn' | 'error';
	message: string;
	worker: string;
	job_id?: number;
	queue?: string;
	kind?: string | null;
	attempt?: number;
	[field: string]: unknown;
}

export function jsonLines(level?: LogEntry['level'], stream?: { write(text: string): unknown }): (entry: LogEntry) => void;

export interface WorkerOptions extends TqOptions {
	queues: string[];
	/** Claim only these kinds. */
	kinds?: string[];
	/** Default: host, process id and a random part. */
	name?: string;
	/** Jobs that run at once; 10. */
	concurrency?: number;
	/** Jobs that the worker holds at most, running ones included; `concurrency`. */
	buffer?: number;
	/** Length of a lease: milliseconds, or a string with ms, s, min, h or d; 30 s. */
	lease?: Interval;
	/** How long the first finished job waits for others; 1 ms. 0: not at all. */
	flushInterval?: Interval;
	/** How long running jobs may go on after the stop; 25 s. */
	shutdownTimeout?: Interval;
	/** A configuration of pg or a connection string. Default: the PG* variables. */
	connection?: Record<string, any> | string;
	/** The owner of the declared schedules: those that it declares no more are removed. */
	app?: string;
	log?(entry: LogEntry): void;
	/** Instead of codec, acceptPlain, middleware, parse and schema. */
	tq?: Tq;
}

export class Worker {
	constructor(options: WorkerOptions);
	readonly name: string;
	readonly queues: string[];
	/** Changes options before the start. */
	configure(options: Partial<Omit<WorkerOptions, 'tq' | keyof TqOptions>>): this;
	/** The kind null is that of jobs without one. */
	handle<Payload = any, Result = any>(kind: string | null, handler: Handler<Payload, Result>): this;
	/** The start of the worker defines it. Without a queue: the first of the worker. */
	schedule(name: string, options: ScheduleOptions): this;
	start(): Promise<void>;
	/** Returns how many jobs were released or have an unknown end. */
	stop(options?: { now?: boolean }): Promise<number>;
	/** Runs until SIGTERM or SIGINT, and returns the exit code: 1 if jobs were released. */
	run(): Promise<0 | 1>;
}

// --- errors of the server, by SQLSTATE

export class TqError extends Error {
	constructor(message: string, more?: { code?: string; detail?: string; hint?: string; cause?: unknown });
	/** SQLSTATE. */
	readonly code: string | undefined;
	readonly detail: string | undefined;
	readonly hint: string | undefined;
}
export class LeaseLost extends TqError {}
export class QueueNotFound extends TqError {}
export class QueueFull extends TqError {}
export class JobNotFound extends TqError {}
export class WrongState extends TqError {}
export class NotPreloaded extends TqError {}
export class VersionMismatch extends TqError {}
export class KeyTaken extends TqError {}
export class NotLoaded extends TqError {}
export class ChangesDeleted extends TqError {}
export class InvalidArgument extends TqError {}
export class NotAllowed extends TqError {}
export class NotFound extends TqError {}
export class Exists extends TqError {}
export class LimitReached extends TqError {}
export class TooLarge extends TqError {}
export class ReadOnly extends TqError {}
export class Busy extends TqError {}
export class NotSupported extends TqError {}
export class NotInstalled extends TqError {}

// --- what a handler may throw

export class Retry extends Error {
	constructor(delay?: Interval, message?: string, options?: ErrorOptions);
}
export class Fatal extends Error {
	constructor(message?: string, options?: ErrorOptions);
}
export class Bury extends Error {
	constructor(reason?: string, options?: ErrorOptions);
}
export class Release extends Error {
	constructor(delay?: Interval, message?: string, options?: ErrorOptions);
}
/** The reason of `job.signal`. */
export class Aborted extends Error {
	constructor(why: 'cancel' | 'lost' | 'shutdown');
	readonly why: 'cancel' | 'lost' | 'shutdown';
}

export const enqueue: Verbs['enqueue'];
export const enqueueInfo: Verbs['enqueueInfo'];
export const enqueueMany: Verbs['enqueueMany'];
export const enqueueManyInfo: Verbs['enqueueManyInfo'];
export const batchOpen: Verbs['batchOpen'];
export const batchClose: Verbs['batchClose'];
export const batch: Verbs['batch'];
export const waitFor: Verbs['waitFor'];
export const find: Verbs['find'];
export const freeKey: Verbs['freeKey'];
export const ended: Verbs['ended'];
export const outcomes: Verbs['outcomes'];
export const get: Verbs['get'];
export const history: Verbs['history'];
export const explain: Verbs['explain'];
export const graph: Verbs['graph'];
export const list: Verbs['list'];
export const changes: Verbs['changes'];
export const cancel: Verbs['cancel'];
export const cancelJobs: Verbs['cancelJobs'];
export const cancelMany: Verbs['cancelMany'];
export const retry: Verbs['retry'];
export const retryMany: Verbs['retryMany'];
export const retryWhere: Verbs['retryWhere'];
export const reschedule: Verbs['reschedule'];
export const rescheduleMany: Verbs['rescheduleMany'];
export const purge: Verbs['purge'];
export const purgeMany: Verbs['purgeMany'];
export const deadGroups: Verbs['deadGroups'];
export const createQueue: Verbs['createQueue'];
export const alterQueue: Verbs['alterQueue'];
export const dropQueue: Verbs['dropQueue'];
export const pause: Verbs['pause'];
export const resume: Verbs['resume'];
export const limitGroup: Verbs['limitGroup'];
export const schedule: Verbs['schedule'];
export const unschedule: Verbs['unschedule'];
export const schedulePause: Verbs['schedulePause'];
export const scheduleResume: Verbs['scheduleResume'];
export const scheduleRun: Verbs['scheduleRun'];
export const drain: Verbs['drain'];
export const undrain: Verbs['undrain'];
export const enqueued: Verbs['enqueued'];
export const health: Verbs['health'];
export const now: Verbs['now'];
export const stats: Verbs['stats'];
export const series: Verbs['series'];
export const queues: Verbs['queues'];
export const running: Verbs['running'];
export const dead: Verbs['dead'];
export const workers: Verbs['workers'];
export const schedules: Verbs['schedules'];
