// Each screen with real data: in both schemes, on a phone and on a large screen; for screen readers; what roles see.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, readdirSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import test from 'node:test';
import { gzipSync } from 'node:zlib';
import { begin, gateway, guarded, sql, until, value, visit } from './harness.js';
import { DIGITS, seed } from './seed.js';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const shots = `${process.env.TQ_WORK}/screenshots`;
mkdirSync(shots, { recursive: true });

begin(seed);

// the address of each screen, and a text that is there when it has its data
const screens = async () => ({
	overview: ['', 'The fullest queues', 'mail'],
	queues: ['#/queues', 'Queues', 'reports'],
	queue: ['#/queues/mail', 'Settings', 'change retention'],
	jobs: ['#/jobs', 'Jobs', 'welcome'],
	job: [`#/jobs/${await value("SELECT id FROM tq_jobs WHERE kind = 'part' LIMIT 1")}`, 'Parents and children', 'waits for job'],
	dead_job: [`#/jobs/${await value("SELECT min(id) FROM tq_dead WHERE state = 'dead'")}`, 'What happened', 'SMTP 451'],
	running: ['#/running', 'Running', '30 %'],
	dead: ['#/dead?queue=mail', 'By error', 'the address is unknown'],
	schedules: ['#/schedules', 'Schedules', 'Europe/Berlin'],
	workers: ['#/workers', 'Workers', 'w3'],
	handlers: ['#/handlers', 'Handlers', 'public.greet'],
	subscriptions: ['#/subscriptions', 'Subscriptions', 'https://example.org/hooks'],
	rights: ['#/rights', 'Grants', 'console_reader'],
	audit: ['#/audit', 'Audit', 'create queue'],
});

const VIEWS = {
	light: { colorScheme: 'light' },
	dark: { colorScheme: 'dark' },
	phone: { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true },
	large: { viewport: { width: 3840, height: 2160 } },
};

async function violations(page) {
	// by the debugging protocol, which the page's policy does not stop
	await page.evaluate(AXE);
	const { violations: found } = await page.evaluate(() => window.axe.run());
	return found.map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(' | ')}`);
}

for (const [view, options] of Object.entries(VIEWS))
	test(`all screens: ${view}`, async (t) => {
		const address = await gateway();
		const page = await visit(t, address, options);
		const faults = [];
		for (const [name, [hash, title, text]] of Object.entries(await screens())) {
			await page.goto(`${address}/${hash}`);
			await page.getByText(title, { exact: true }).first().waitFor();
			await page.getByText(text).first().waitFor();
			await page.getByText('live', { exact: true }).waitFor();
			await page.screenshot({ path: `${shots}/${name}-${view}.png`, fullPage: true });
			faults.push(...(await violations(page)).map((one) => `${name}: ${one}`));
			const width = await page.evaluate(() => document.scrollingElement.scrollWidth - innerWidth);
			if (width > 0)
				faults.push(`${name} is wider than the screen, by ${width} px`);
		}
		assert.deepEqual(faults, []);
	});

test('a database without queues says the next step', async (t) => {
	const address = await guarded({ none: 'console_operator' });
	await sql("SELECT tq_revoke('mail', 'console_operator', 'operate', 'inspect')");
	const page = await visit(t, address);
	await page.getByLabel('Token').fill('none');
	await page.getByRole('button', { name: 'Sign in' }).click();
	for (const hash of ['', '#/queues'])
		await page.goto(`${address}/${hash}`).then(() => page.getByText('SELECT tq_enqueue').waitFor());
	await page.goto(`${address}/#/schedules`);
	await page.getByText('SELECT tq_schedule').waitFor();
	await sql("SELECT tq_grant('mail', 'console_operator', 'operate', 'inspect')");
});

test('a queue without workers shows the line that starts one', async (t) => {
	const page = await visit(t, `${await gateway()}/#/queues/reports`);
	await page.getByText('tq work reports -- COMMAND').waitFor();
});

test('payloads keep their digits, and hidden keys are hidden', async (t) => {
	const id = await value("SELECT max(id) FROM tq_jobs WHERE kind = 'welcome'");
	const page = await visit(t, `${await gateway()}/#/jobs/${id}`);
	const payload = page.getByRole('region', { name: 'payload' });
	await payload.getByText(DIGITS).waitFor();
	assert.ok(!(await page.content()).includes('s3cret'));
	await page.getByText('Hidden keys').click();
	await page.getByLabel('Values of these are not shown').fill('to');
	await until(async () => (await payload.textContent()).includes('s3cret'), 'the password is shown');
	assert.ok(!(await payload.textContent()).includes('example.org'));
	await page.reload();
	await payload.getByText('s3cret').waitFor();
});

test('a role that only looks has no buttons, and is refused', async (t) => {
	const address = await guarded({ reads: 'console_reader', operates: 'console_operator' });
	const page = await visit(t, address);
	await page.getByLabel('Token').fill('wrong');
	await page.getByRole('button', { name: 'Sign in' }).click();
	await page.getByText('a valid token is missing').waitFor();
	await page.getByLabel('Token').fill('reads');
	await page.getByRole('button', { name: 'Sign in' }).click();
	await page.getByText('console_reader @').waitFor();
	const allowed = new Set(['Sign out', 'Select none', 'Show all']);
	for (const [name, [hash, title, text]] of Object.entries(await screens())) {
		await page.goto(`${address}/${hash}`);
		await page.getByText(title, { exact: true }).first().waitFor();
		if (!['workers', 'handlers', 'subscriptions', 'audit', 'rights'].includes(name))
			await page.getByText(text).first().waitFor();
		const buttons = (await page.getByRole('button').allTextContents()).filter((one) => !allowed.has(one.trim()));
		assert.deepEqual(buttons, [], name);
	}
	const status = await page.evaluate(async () => (await fetch('v1/queues/mail:pause', {
		method: 'POST', headers: { Authorization: `Bearer ${sessionStorage.getItem('tq.token')}`, 'Content-Type': 'application/json' }, body: '{}',
	})).status);
	assert.equal(status, 403);
	// one that operates one queue has buttons there, and nowhere else
	await page.getByRole('button', { name: 'Sign out' }).click();
	await page.getByLabel('Token').fill('operates');
	await page.getByRole('button', { name: 'Sign in' }).click();
	await page.goto(`${address}/#/queues/mail`);
	await page.getByRole('button', { name: 'Pause' }).waitFor();
	assert.equal(await page.getByRole('button', { name: 'Drop' }).count(), 0);
	await page.goto(`${address}/#/queues/reports`);
	await page.getByRole('alert').first().waitFor();
	assert.equal(await page.getByRole('button', { name: 'Pause' }).count(), 0);
});

test('it works below a path', async (t) => {
	const address = new URL(await gateway());
	const proxy = http.createServer((request, answer) => {
		if (!request.url.startsWith('/jobs/tq/'))
			return answer.writeHead(404).end();
		const forward = http.request({ host: address.hostname, port: address.port, method: request.method, path: request.url.slice(8), headers: request.headers },
			(from) => { answer.writeHead(from.statusCode, from.headers); from.pipe(answer); });
		request.pipe(forward);
		return forward.on('error', () => answer.destroy());
	});
	await new Promise((resolve) => { proxy.listen(0, '127.0.0.1', resolve); });
	t.after(() => { proxy.closeAllConnections?.(); proxy.close(); });
	const page = await visit(t, `http://127.0.0.1:${proxy.address().port}/jobs/tq/`);
	await page.getByText('live', { exact: true }).waitFor();
	await page.getByRole('link', { name: 'Queues', exact: true }).click();
	await page.getByRole('link', { name: 'reports' }).click();
	await page.getByText('Kept', { exact: true }).waitFor();
});

test('the scripts are small', async () => {
	const address = await gateway();
	const index = await (await fetch(address)).text();
	let size = 0;
	for (const [, script] of index.matchAll(/src="(.*?\.js)"/g))
		size += gzipSync(Buffer.from(await (await fetch(new URL(script, address))).arrayBuffer())).length;
	assert.ok(size > 10_000 && size < 150_000, `${size} bytes`);
	assert.ok(readdirSync(shots).length > 0);
});
