// A connection of the worker that is made again when it breaks.
import { connect as connectSocket } from 'node:net';
import { setTimeout as pause } from 'node:timers/promises';
import { isConnectionLost, sqlstate, typed } from './errors.js';
import { load } from './optional.js';

const FIRST_PAUSE = 100; // ms
const LONGEST_PAUSE = 30_000; // ms
// a server that starts, stops or has no room, or a pooler that does not reach it; a user has to see other errors at the
// first connect
const PASSING = /^(08|53|57)/;
const NO_PASSWORD = /password must be a string/; // an error of pg: the server wants one
const CLOSE_TIME = 1000; // ms for the server to close it
const TEXT_ARRAY = 1009;

/** Whether the server refuses a connection, so that trying again does not help. */
function isRefused(error) {
	const code = sqlstate(error);
	return code === undefined ? NO_PASSWORD.test(error.message) : !PASSING.test(code);
}

/** The session was closed by the worker. */
export class Closed extends Error {}

/** Waits until the input that has arrived was handled: timers come before it in a loop that was blocked. */
export const caughtUp = () => new Promise((resolve) => setImmediate(() => setImmediate(resolve)));

export class Session {
	#client = null;
	#cause; // of the last loss
	#ready = null;
	#nextPause = FIRST_PAUSE; // doubled until a statement is answered
	#waiting = []; // statements, one after the other: pg 9 will have no queue
	#busy = false;
	#closing = new AbortController();
	#config;
	#log;
	#role;
	#timeout;
	#pg;

	/**
	 * @param {object} options
	 * @param {any} options.config of pg; undefined: by the PG* variables
	 * @param {string} options.role what it is for, in logs and application_name
	 * @param {import('./log.js').Logger} options.log
	 * @param {string} options.name of the worker
	 * @param {number} options.timeout ms, after which a silent connection is given up
	 */
	constructor({ config, role, log, name, timeout }) {
		this.#pg = load('pg');
		if (!this.#pg)
			throw new Error('the package pg is not installed: npm install pg');
		const given = typeof config === 'string' ? { connectionString: config } : config;
		this.#config = {
			connectionTimeoutMillis: 10_000, keepAlive: true, application_name: `${name} ${role}`.slice(-63), ...given,
			// values as the server's text, whatever parsers the application has set
			types: { getTypeParser: (oid) => (oid === TEXT_ARRAY ? this.#pg.types.getTypeParser(oid) : (text) => text) },
		};
		this.#log = log;
		this.#role = role;
		this.#timeout = timeout;
	}

	/** Connects for the first time. @throws unless trying again may help */
	open() {
		this.#ready = this.#open().finally(() => { this.#ready = null; });
		return this.#ready;
	}

	async #open() {
		try {
			await this.#connect();
		} catch (error) {
			if (isRefused(error))
				throw error;
			this.#log.warn('cannot connect, trying again', { role: this.#role, error: error.message });
			await this.#again(error, isRefused);
		}
		this.#nextPause = FIRST_PAUSE;
	}

	async #connect() {
		const client = new this.#pg.Client(this.#config);
		const gone = (error) => {
			if (this.#client === client) {
				this.#client = null;
				this.#cause = error;
			}
		};
		client.on('error', gone); // without a listener the process would end
		client.on('end', gone);
		try {
			await client.connect();
		} catch (error) {
			client.end().catch(() => {});
			throw error;
		}
		if (this.#closing.signal.aborted) {
			client.end().catch(() => {});
			throw new Closed();
		}
		this.#client = client;
	}

	/** Connects again: 0.1 s after the loss, then twice as long each time. Gives up if `isFinal` says so of an error. */
	async #again(cause, isFinal = () => false) {
		for (;;) {
			await pause(this.#nextPause * (0.5 + Math.random()), null, { signal: this.#closing.signal }).catch(() => {});
			this.#nextPause = Math.min(2 * this.#nextPause, LONGEST_PAUSE);
			if (this.#closing.signal.aborted)
				throw new Closed('the worker has stopped', { cause });
			try {
				await this.#connect();
				this.#log.info('connected again', { role: this.#role });
				return;
			} catch (error) {
				if (error instanceof Closed || isFinal(error))
					throw error;
			}
		}
	}

	/** Resolves when there is a connection. */
	ready() {
		if (this.#client)
			return Promise.resolve();
		if (this.#closing.signal.aborted)
			return Promise.reject(new Closed('the worker has stopped'));
		if (!this.#ready) {
			if (this.#nextPause === FIRST_PAUSE)
				this.#log.warn('connection lost, connecting again', { role: this.#role, error: this.#cause?.message });
			this.#ready = this.#again(this.#cause).finally(() => { this.#ready = null; });
		}
		return this.#ready;
	}

	/**
	 * @param {string} text
	 * @param {any[]} [values]
	 * @param {number} [timeout] ms, if not that of the session
	 * @returns {Promise<Record<string, string | null>[]>} rows, each value as text
	 * @throws an error with `connectionLost` if the outcome is unknown, else the server's
	 */
	query(text, values, timeout) {
		return new Promise((resolve, reject) => {
			this.#waiting.push(() => this.#query(text, values, timeout).then(resolve, reject));
			this.#send();
		});
	}

	/** As `query`, but before all statements that wait. */
	urgent(text, values, timeout) {
		return new Promise((resolve, reject) => {
			this.#waiting.unshift(() => this.#query(text, values, timeout).then(resolve, reject));
			this.#send();
		});
	}

	async #send() {
		if (this.#busy)
			return;
		this.#busy = true;
		while (this.#waiting.length > 0)
			await this.#waiting.shift()();
		this.#busy = false;
	}

	async #query(text, values, timeout = this.#timeout) {
		while (!this.#client)
			await this.ready();
		const client = this.#client;
		let settled = false;
		const timer = setTimeout(async () => {
			await caughtUp();
			if (!settled)
				client.connection.stream.destroy(new Error(`no answer within ${Math.round(timeout)} ms`));
		}, timeout);
		try {
			const { rows } = await client.query(text, values);
			this.#nextPause = FIRST_PAUSE;
			return rows;
		} catch (error) {
			if (isConnectionLost(error)) {
				if (this.#client === client)
					this.#client = null;
				this.#cause = error;
				client.end().catch(() => {});
				throw Object.assign(error, { connectionLost: true });
			}
			this.#nextPause = FIRST_PAUSE;
			throw typed(error);
		} finally {
			settled = true;
			clearTimeout(timer);
		}
	}

	/** Asks the server to end the statement that runs (a CancelRequest). */
	async cancel() {
		const client = this.#client;
		if (!client)
			return;
		const request = Buffer.alloc(16);
		[16, 80877102, client.processID, client.secretKey].forEach((word, i) => request.writeInt32BE(word | 0, 4 * i));
		await new Promise((resolve) => {
			const socket = client.host.startsWith('/')
				? connectSocket(`${client.host}/.s.PGSQL.${client.port}`) : connectSocket(client.port, client.host);
			socket.setTimeout(1000, () => socket.destroy());
			socket.on('connect', () => socket.end(request)).on('error', () => {}).on('close', resolve).resume();
		});
	}

	/** Breaks the connection, also during a statement. */
	destroy() {
		this.#client?.connection.stream.destroy();
	}

	/** Ends it; statements that wait for a connection are refused. A server that does not answer is left behind. */
	async close() {
		this.#closing.abort();
		const client = this.#client;
		this.#client = null;
		const timer = setTimeout(() => client?.connection.stream.destroy(), CLOSE_TIME);
		await client?.end().catch(() => {});
		clearTimeout(timer);
	}
}
