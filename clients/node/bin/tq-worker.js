#!/usr/bin/env node
// Runs the worker that a module exports, until SIGTERM or SIGINT. Exit codes: 0 all jobs ended, 1 some were released or
// the start was refused, 2 wrong usage.
import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const USAGE = `usage: tq-worker MODULE [OPTION...]

Runs the Worker that MODULE exports, as its default or as "worker". PG* variables name the server.

  --queue NAME             a queue, instead of those of the module; may be repeated
  --kind NAME              claim only this kind; may be repeated
  --name NAME              the name of the worker
  --concurrency N          jobs that run at once
  --buffer N               jobs that the worker holds at most
  --lease TIME             length of a lease, such as 30s
  --flush-interval TIME    how long the first finished job waits for others
  --shutdown-timeout TIME  how long running jobs may go on after SIGTERM

Example: tq-worker app.js --concurrency 20 --lease 1min`;

const text = { type: 'string' };
const many = { type: 'string', multiple: true };
const OPTIONS = {
	queue: many, kind: many, name: text, concurrency: text, buffer: text, lease: text, 'flush-interval': text,
	'shutdown-timeout': text, help: { type: 'boolean', short: 'h' },
};
const NAMES = { queue: 'queues', kind: 'kinds', 'flush-interval': 'flushInterval', 'shutdown-timeout': 'shutdownTimeout' };

function fail(code, message) {
	console.error(`tq-worker: ${message}`);
	process.exit(code);
}

let parsed;
try {
	parsed = parseArgs({ options: OPTIONS, allowPositionals: true });
	if (!parsed.values.help && parsed.positionals.length !== 1)
		throw new Error('one MODULE is needed');
} catch (error) {
	fail(2, `${error.message}\n\n${USAGE}`);
}
if (parsed.values.help) {
	console.log(USAGE);
	process.exit(0);
}
const given = { ...parsed.values };
const module = resolve(parsed.positionals[0]);
if (!existsSync(module))
	fail(2, `there is no file ${parsed.positionals[0]}`);
let code = 1;
try {
	const found = await import(pathToFileURL(module).href);
	const worker = found.worker ?? found.default;
	if (typeof worker?.configure !== 'function')
		fail(2, `${parsed.positionals[0]} exports no Worker, neither as its default nor as "worker"`);
	try {
		worker.configure(Object.fromEntries(Object.entries(given).map(([name, value]) =>
			[NAMES[name] ?? name, /^(concurrency|buffer)$/.test(name) ? Number(value) : value])));
	} catch (error) {
		fail(2, error.message);
	}
	code = await worker.run();
} catch (error) {
	const { message, detail, hint } = error;
	fail(1, [error.code ? `${message} (${error.code})` : error.stack, detail, hint].filter(Boolean).join('\n'));
}
process.exit(code);
