// A database with tq, gateways in front of it, and a browser.
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { after, before } from 'node:test';
import pg from 'pg';
import { chromium } from 'playwright-core';

export const PATIENCE = Number(process.env.PG_TEST_TIMEOUT_DEFAULT ?? 180) * 1000;
const work = process.env.TQ_WORK;
const DATABASE = 'tq_console';

export let database;
export let browser;
const gateways = new Set();

pg.types.setTypeParser(20, Number);

export async function sql(text, ...values) {
	return (await database.query(text, values)).rows;
}

export async function value(text, ...values) {
	return Object.values((await sql(text, ...values))[0] ?? {})[0];
}

export async function until(condition, what) {
	for (const end = Date.now() + PATIENCE; ;) {
		const found = await condition();
		if (found)
			return found;
		if (Date.now() > end)
			throw new Error(`it did not come true: ${what}`);
		await new Promise((resolve) => { setTimeout(resolve, 50); });  // poll
	}
}

export async function connect() {
	const client = new pg.Client({ database: DATABASE });
	client.on('error', () => {});  // a server that restarts
	await client.connect();
	return client;
}

/** Before the tests of a file: a new database, what `seed` puts there, and a browser. */
export function begin(seed) {
	before(async () => {
		const admin = new pg.Client({ database: 'postgres' });
		await admin.connect();
		// a process may leave it, or template1, later than the five seconds that PostgreSQL waits (55006)
		const patiently = (text) => until(() => admin.query(text).catch((error) => { if (error.code !== '55006') throw error; }), text);
		await patiently(`DROP DATABASE IF EXISTS ${DATABASE} WITH (FORCE)`);
		for (const role of ['console_reader', 'console_operator'])
			await admin.query(`DROP ROLE IF EXISTS ${role}`);
		await patiently(`CREATE DATABASE ${DATABASE}`);
		await admin.end();
		database = await connect();
		await database.query('CREATE EXTENSION tq; CREATE ROLE console_reader LOGIN; CREATE ROLE console_operator LOGIN');
		await seed?.();
		browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] });
	});
	after(async () => {
		await browser?.close();
		await database?.end();
		for (const one of gateways)
			one.kill('SIGKILL');
	});
}

/** A gateway on a free port; its address. */
export async function gateway(...options) {
	const process_ = spawn(`${process.env.TQ_BUILT}/gateway/tq-gateway`,
		['--http', '127.0.0.1:0', '--grpc', 'off', '--dsn', `dbname=${DATABASE}`, '--pool-timeout', String(PATIENCE / 1000), ...options],
		{ stdio: ['ignore', 'pipe', 'inherit'], env: { ...process.env, PGCONNECT_TIMEOUT: String(PATIENCE / 1000) } });
	gateways.add(process_);
	let said = '';
	process_.stdout.on('data', (data) => { said += data; });
	return until(() => /is ready: (\S+)/.exec(said)?.[1], 'the gateway is ready');
}

/** A gateway where tokens stand for roles. */
export async function guarded(roles) {
	const file = `${work}/tokens`;
	writeFileSync(file, Object.entries(roles).map(([token, role]) => `${createHash('sha256').update(token).digest('hex')} ${role}\n`).join(''));
	return gateway('--auth', file);
}

/** A page whose errors fail its test. */
export async function visit(context, address, options = {}) {
	const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, ...options });
	page.setDefaultTimeout(PATIENCE);
	page.faults = [];
	page.on('pageerror', (error) => page.faults.push(error.stack));
	page.on('console', (message) => {
		// a refused call is no fault of the page
		if (message.type() === 'error' && !message.text().startsWith('Failed to load resource'))
			page.faults.push(message.text());
	});
	context.after(async () => {
		const faults = page.faults;
		await page.close();
		if (faults.length)
			throw new Error(`the page had errors: ${faults.join('; ')}`);
	});
	await page.goto(address);
	return page;
}

export const press = (page, name) => page.getByRole('button', { name, exact: true }).click();
export const dialog = (page) => page.getByRole('dialog');
/** Fills what a dialog asks, and confirms. */
export async function confirm(page, action, fields = {}) {
	for (const [label, text] of Object.entries(fields)) {
		const field = dialog(page).getByLabel(label);
		if (await field.evaluate((one) => one.tagName) === 'SELECT')
			await field.selectOption(text);
		else
			await field.fill(text);
	}
	await dialog(page).getByRole('button', { name: action, exact: true }).click();
	await dialog(page).waitFor({ state: 'detached' }).catch(async (error) => {
		throw new Error(`the dialog stays: ${await dialog(page).innerText()}`, { cause: error });
	});
}
