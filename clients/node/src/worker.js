// A worker: claims jobs, runs their handlers, and ends the jobs.
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as pause } from 'node:timers/promises';
import { Tq } from './client.js';
import { Claimer } from './claimer.js';
import { Finisher } from './finisher.js';
import { Leases } from './leases.js';
import { about, jsonLines, Logger } from './log.js';
import { errorText, perform } from './perform.js';
import { declare, scheduleArguments } from './schedules.js';
import { caughtUp, Session } from './session.js';
import { duration } from './values.js';
import { checkOptions } from './verbs.js';

const ANSWER_TIME = 10_000; // ms, at least, until a connection without answers is given up
const ABORT_TIME = 1000; // ms for handlers to end after the abort of a shutdown
const DRAIN_TIME = 5000; // ms for the server to answer the last ends of jobs
const WAIT_BEGINS = 200; // ms until the first wait has certainly reached the server
const POOLER_TIME = 2000; // ms in which the second connection must answer
const LONGEST_TIMER = 2 ** 31 - 1; // ms; Node fires a longer one at once

const whole = (value, name) => {
	if (!Number.isInteger(value) || value < 1 || value > 10_000)
		throw new TypeError(`${name} must be a whole number from 1 to 10000: ${value}`);
	return value;
};
const list = (value, name, most) => {
	if (!Array.isArray(value) || value.length === 0 || value.length > most || value.some((one) => typeof one !== 'string'))
		throw new TypeError(`${name} must be an array of 1 to ${most} names`);
	return [...value];
};

/** Repeats statements that may run twice if the connection is lost meanwhile. */
async function untilAnswered(statements) {
	for (;;)
		try {
			return await statements();
		} catch (error) {
			if (!error.connectionLost)
				throw error;
		}
}

export class Worker {
	#handlers = new Map();
	#schedules = new Map();
	#held = new Set();
	#buffer = [];
	#running = new Map();
	#unknown = new Set();
	#quiet = false;
	#stopping = null;
	#urgent = new AbortController();
	#idle = null;
	#released = 0;
	#options = { concurrency: 10, lease: '30 s', flushInterval: 1, shutdownTimeout: '25 s' };

	/** @param {import('../types/index.js').WorkerOptions} options */
	constructor(options = {}) {
		const { tq, codec, acceptPlain, middleware, parse, schema, ...own } = options;
		this.tq = tq ?? new Tq({ codec, acceptPlain, middleware, parse, schema });
		this.configure({ name: `${hostname()}:${process.pid}:${randomBytes(3).toString('hex')}`.slice(-63), log: jsonLines(), ...own });
	}

	/** Changes options before the start. @param {Partial<import('../types/index.js').WorkerOptions>} options */
	configure(options) {
		if (this.log)
			throw new Error('the worker has started');
		checkOptions('Worker', options,
			['name', 'queues', 'kinds', 'concurrency', 'buffer', 'lease', 'flushInterval', 'shutdownTimeout', 'connection', 'app', 'log']);
		const all = { ...this.#options, ...options };
		this.queues = list(all.queues, 'queues', 1000);
		this.kinds = all.kinds ? list(all.kinds, 'kinds', 64) : null;
		this.name = String(all.name);
		this.concurrency = whole(all.concurrency, 'concurrency');
		this.buffer = whole(all.buffer ?? all.concurrency, 'buffer');
		if (this.buffer < this.concurrency)
			throw new TypeError('buffer must not be less than concurrency');
		this.lease = duration(all.lease, 'lease');
		if (this.lease < 100)
			throw new TypeError('lease must be at least 100 ms');
		this.flushInterval = duration(all.flushInterval, 'flushInterval');
		this.shutdownTimeout = duration(all.shutdownTimeout, 'shutdownTimeout');
		this.#options = all;
		return this;
	}

	/**
	 * Sets the handler of a kind; null: of jobs without a kind. What it returns is the result of the job.
	 * @param {string | null} kind
	 * @param {(job: import('./job.js').Job) => any} handler
	 */
	handle(kind, handler) {
		if (typeof handler !== 'function')
			throw new TypeError('the handler must be a function');
		if (this.#handlers.has(kind))
			throw new TypeError(`kind ${kind} has a handler already`);
		this.#handlers.set(kind, handler);
		return this;
	}

	/**
	 * Declares a schedule, which the start of the worker defines (tq_schedule).
	 * @param {string} name
	 * @param {object} options queue, kind, payload, cron or every, timezone, catchUp, overlap, and the options of tq_schedule
	 */
	schedule(name, options) {
		scheduleArguments(this.tq, { queue: this.queues[0], ...options });
		this.#schedules.set(name, { queue: this.queues[0], ...options });
		return this;
	}

	/** What runs a handler: for src/testing.js. */
	get tools() {
		return { handlers: this.#handlers, tq: this.tq };
	}

	/** Connects, defines the schedules and begins to claim. @throws if the server refuses, or stop is called meanwhile */
	async start() {
		const { connection: config, log, app } = this.#options;
		const { name, tq: { prefix } } = this;
		this.log = new Logger(log, { worker: name });
		const timeout = Math.max(this.lease / 3, ANSWER_TIME);
		this.waiting = new Session({ config, role: 'waits', log: this.log, name, timeout });
		this.session = new Session({ config, role: 'works', log: this.log, name, timeout });
		try {
			await this.waiting.open();
			await untilAnswered(async () => {
				await this.waiting.query(`SELECT ${prefix}tq_now()`);
				if (this.#schedules.size > 0 || app)
					await declare(this.waiting, this.tq, app, this.#schedules, this.log);
			});
		} catch (error) {
			await this.waiting.close();
			throw error;
		}
		this.finisher = new Finisher({ session: this.session, prefix, flushInterval: this.flushInterval, log: this.log,
			ended: (held, status) => this.#ended(held, status) });
		this.leases = new Leases({ session: this.session, prefix, lease: this.lease, log: this.log, held: () => this.#held,
			heard: (quiet) => {
				this.#quiet = quiet;
				this.claimer.wake();
			} });
		this.claimer = new Claimer({ session: this.waiting, prefix, worker: name, queues: this.queues, kinds: this.kinds,
			lease: this.lease, log: this.log, room: (patient) => this.#room(patient), claimed: (held) => this.#claimed(held), waits: () => this.#tryBoth() });
		try {
			await this.session.open();
		} catch (error) {
			await this.waiting.close();
			throw error;
		}
		this.leases.start();
		this.claimer.start();
		this.log.info('the worker has started', { queues: this.queues, kinds: [...this.#handlers.keys()] });
	}

	/** Uses the second connection while the first waits: a pooler without room for both shows here. */
	async #tryBoth() {
		await pause(WAIT_BEGINS, null, { ref: false });
		let answered = false;
		const timer = setTimeout(async () => {
			await caughtUp();
			if (!answered)
				this.log.warn('the second connection gets no answer while the first waits: a pooler needs room for 2 server '
					+ 'connections for each worker');
		}, POOLER_TIME);
		try {
			await this.session.query('SELECT 1');
		} catch {
			// what needs the connection next says so
		} finally {
			answered = true;
			clearTimeout(timer);
		}
	}

	/**
	 * @param {boolean} patient until half of the buffer is free; else a slot that has no job to wait for is enough
	 * @returns {number} how many jobs to claim
	 */
	#room(patient) {
		const free = this.buffer - this.#buffer.length - this.#running.size;
		const hears = this.#quiet && this.#held.size > 0;
		const idle = !patient && this.#buffer.length === 0 && this.#running.size < this.concurrency;
		return hears || (free < this.buffer / 2 && !idle) || this.finisher.pending >= 2 * this.buffer ? 0 : free;
	}

	#claimed(all) {
		for (const held of all) {
			this.#held.add(held);
			// a job never runs twice at once: what runs of it has lost its lease
			this.#running.get(held.id)?.abort('lost');
		}
		if (this.#stopping) {
			for (const held of all)
				this.#release(held);
			return;
		}
		this.#buffer.push(...all);
		this.#pump();
	}

	#pump() {
		for (let i = 0; i < this.#buffer.length && this.#running.size < this.concurrency;) {
			const held = this.#buffer[i];
			if (this.#running.has(held.id)) {
				i++; // waits for the handler that had the job before
				continue;
			}
			this.#buffer.splice(i, 1);
			this.#running.set(held.id, held);
			this.#run(held);
		}
		this.claimer.wake();
	}

	async #run(held) {
		while (performance.now() >= held.until && !held.lost && !held.released)
			await this.leases.renew([held]).catch((error) => { // the loop was blocked: does it still have its lease?
				if (!error.connectionLost)
					held.abort('lost');
			});
		if (!held.lost && !held.released) {
			const query = (...args) => untilAnswered(() => this.session.query(...args));
			const { outcome, error } = await perform(held, { ...this.tools, query });
			if (held.released)
				this.log.debug('the handler of a released job has ended', about(held.row));
			else
				this.#finish(held, outcome, error);
		} else if (held.lost) {
			this.#held.delete(held);
		}
		if (this.#running.get(held.id) === held)
			this.#running.delete(held.id);
		this.#pump();
		if (this.#running.size === 0)
			this.#idle?.();
	}

	#finish(held, outcome, error) {
		if (held.lost) {
			this.log.warn('the result of a job whose lease is lost is dropped', about(held.row));
			this.#held.delete(held);
			return;
		}
		if (outcome.verb === 'none') {
			this.log.debug('the job completed itself', about(held.row));
			this.#held.delete(held);
			return;
		}
		if (outcome.unknown && !this.#unknown.has(held.row.kind)) {
			this.#unknown.add(held.row.kind);
			this.log.warn('there is no handler for jobs of this kind: they are released', about(held.row));
		}
		if (outcome.verb === 'fail' || outcome.verb === 'bury')
			this.log.warn(outcome.verb === 'fail' ? 'a job failed' : 'a job is buried', { ...about(held.row), error: errorText(error) });
		if (outcome.verb === 'release' && this.#stopping)
			this.#released++;
		held.ending = true;
		this.finisher.add(held, outcome);
	}

	#release(held) {
		held.released = true;
		held.ending = true;
		this.#released++;
		this.log.debug('a job is released', { ...about(held.row), lease: held.lease });
		this.finisher.add(held, { verb: 'release', delay: '0' });
	}

	/** The server has answered the end of a job. */
	#ended(held, status) {
		this.#held.delete(held);
		if (status === 'lost' && held.released && held.completed) {
			this.#released--; // its handler has ended it, and goes on
			return;
		}
		if (status === 'ok')
			this.log.debug('a job has ended', { ...about(held.row), lease: held.lease });
		else
			this.log.warn('the result of a job is dropped: its lease is lost', { ...about(held.row), lease: held.lease, status });
		this.claimer.wake();
	}

	/**
	 * Claims nothing more and lets running jobs end for `shutdownTimeout`; then aborts their signals and releases those
	 * that do not end.
	 * @param {{now?: boolean}} [options] now: releases them at once, also if a stop is under way
	 * @returns {Promise<number>} how many jobs were released or have an unknown end
	 */
	stop({ now = false } = {}) {
		if (now)
			this.#urgent.abort();
		this.#stopping ??= this.claimer ? this.#stop() : this.#giveUp();
		return this.#stopping;
	}

	/** Ends a start that still waits for the server. */
	async #giveUp() {
		await Promise.all([this.waiting?.close(), this.session?.close()]);
		return 0;
	}

	async #stop() {
		this.log.info('the worker stops', { running: this.#running.size });
		const claims = this.claimer.stop();
		for (const held of this.#buffer.splice(0))
			this.#release(held);
		await this.#runningEnded(this.shutdownTimeout);
		for (const held of this.#running.values())
			held.abort('shutdown');
		await this.#runningEnded(ABORT_TIME);
		for (const held of this.#running.values())
			if (!held.lost)
				this.#release(held);
		await Promise.race([claims, pause(DRAIN_TIME, null, { ref: false })]);
		await this.finisher.drain(DRAIN_TIME).catch(() => {});
		this.leases.stop();
		await Promise.all([this.waiting.close(), this.session.close()]);
		const count = this.#released + this.finisher.pending;
		this.log.info('the worker has stopped', { released: count });
		return count;
	}

	/** Resolves when nothing runs, after `timeout` ms, or when it is urgent. */
	async #runningEnded(timeout) {
		if (this.#running.size === 0 || this.#urgent.signal.aborted)
			return;
		const idle = new Promise((resolve) => { this.#idle = resolve; });
		const over = new AbortController(); // a timer would keep the process alive
		await Promise.race([idle, pause(Math.min(timeout, LONGEST_TIMER), null,
			{ signal: AbortSignal.any([this.#urgent.signal, over.signal]) }).catch(() => {})]);
		over.abort();
	}

	/**
	 * Runs until SIGTERM or SIGINT; a second signal releases the running jobs at once.
	 * @returns {Promise<0 | 1>} the exit code: 1 if jobs were released
	 */
	async run() {
		let signals = 0;
		let signalled;
		const first = new Promise((resolve) => { signalled = resolve; });
		const onSignal = () => {
			if (++signals === 1)
				signalled();
			else
				this.stop({ now: true });
		};
		process.on('SIGTERM', onSignal).on('SIGINT', onSignal);
		try {
			const started = this.start();
			started.catch(() => {});
			await Promise.race([started, first]);
			await first;
			return await this.stop() > 0 ? 1 : 0;
		} finally {
			process.off('SIGTERM', onSignal).off('SIGINT', onSignal);
		}
	}
}
