// Errors. Those of the server have a class for each SQLSTATE of docs/reference.md. Those of handlers say how a job ends.

/** An error that the server raised. */
export class TqError extends Error {
	/**
	 * @param {string} message
	 * @param {{code?: string, detail?: string, hint?: string, cause?: unknown}} [more]
	 */
	constructor(message, { code, detail, hint, cause } = {}) {
		super(message, cause === undefined ? undefined : { cause });
		this.name = new.target.name;
		/** SQLSTATE. */
		this.code = code;
		this.detail = detail;
		this.hint = hint;
	}
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
/** The database has no function of that name: tq is not installed there, or is older than this library. */
export class NotInstalled extends TqError {}

/** SQLSTATE -> class. InvalidArgument stands for all of 22xxx. */
export const classes = {
	TQ001: LeaseLost,
	TQ002: QueueNotFound,
	TQ003: QueueFull,
	TQ004: JobNotFound,
	TQ005: WrongState,
	TQ006: NotPreloaded,
	TQ007: VersionMismatch,
	TQ008: KeyTaken,
	TQ009: NotLoaded,
	TQ010: ChangesDeleted,
	'0A000': NotSupported,
	25006: ReadOnly,
	42501: NotAllowed,
	42704: NotFound,
	42710: Exists,
	42883: NotInstalled,
	53400: LimitReached,
	54000: TooLarge,
	'55P03': Busy,
	55006: Busy,
};

/** What a driver says of an error of the server: pg and Knex in the error, Prisma in its `meta`. */
function facts(error) {
	const meta = error.meta?.driverAdapterError?.cause ?? error.meta;
	if (!meta)
		return error;
	return {
		code: meta.originalCode ?? meta.code,
		message: meta.originalMessage ?? meta.message ?? error.message,
		detail: meta.detail,
		hint: meta.hint,
	};
}

/** @param {any} error @returns {string | undefined} the SQLSTATE, if the server raised the error */
export function sqlstate(error) {
	const { code } = facts(error ?? {});
	return typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) && !/^E[A-Z]+$/.test(code) ? code : undefined;
}

/**
 * The error as a TqError of its class, if the server raised it and there is a class. Else the error as it is.
 * @param {any} error
 */
export function typed(error) {
	const code = sqlstate(error);
	const kind = code?.startsWith('22') ? InvalidArgument : classes[code];
	if (error instanceof TqError || !kind)
		return error;
	let { message, detail, hint } = facts(error);
	// Knex puts the statement in front
	const at = message.indexOf(' - ');
	if (error.constructor?.name === 'DatabaseError' && /^select /i.test(message) && at > 0)
		message = message.slice(message.lastIndexOf(' - ') + 3);
	if (code === '42883')
		hint = `Is tq installed in this database and its schema in the search_path? Its version may be too old. ${hint ?? ''}`.trim();
	return new kind(message, { code, detail, hint, cause: error });
}

/** Is another connection needed? It broke, so that the outcome of the statement is unknown, or leads to a standby. */
export function isConnectionLost(error) {
	const code = sqlstate(error);
	return code === undefined ? !(error instanceof TypeError || error instanceof RangeError) : /^(57P0[1235]|08|25006)/.test(code);
}

// --- what a handler may throw

/** Fails the job, which is tried again after `delay`: milliseconds or an interval; else by its retry policy. */
export class Retry extends Error {
	constructor(delay, message = 'retry', options) {
		super(message, options);
		this.name = 'Retry';
		this.delay = delay;
	}
}

/** Fails the job for good: a retry cannot succeed. */
export class Fatal extends Error {
	constructor(message, options) {
		super(message, options);
		this.name = 'Fatal';
	}
}

/** Sets the job aside for people to look at. */
export class Bury extends Error {
	constructor(reason, options) {
		super(reason, options);
		this.name = 'Bury';
	}
}

/** Gives the job back without counting the attempt. No claim gets it before `delay` has passed. */
export class Release extends Error {
	constructor(delay = 0, message = 'released', options) {
		super(message, options);
		this.name = 'Release';
		this.delay = delay;
	}
}

/** The reason of `job.signal` if `tq_cancel` was called, the lease was lost, or the worker shuts down. */
export class Aborted extends Error {
	/** @param {'cancel' | 'lost' | 'shutdown'} why */
	constructor(why) {
		super({ cancel: 'the job was cancelled', lost: 'the lease of the job is lost', shutdown: 'the worker shuts down' }[why]);
		this.name = 'Aborted';
		this.why = why;
	}
}
