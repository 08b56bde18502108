// What each button does, seen in the database.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import test from 'node:test';
import { begin, confirm, connect, database, dialog, gateway, press, sql, until, value, visit } from './harness.js';
import { DIGITS, seed } from './seed.js';

let address;
begin(async () => {
	await seed();
	address = await gateway();
});

const open = (t, hash) => visit(t, `${address}/${hash}`);
const state = (id) => value('SELECT state FROM tq_get($1)', id);
const comes = (expected, text, ...values) => until(async () => await value(text, ...values) === expected, `${text} is ${expected}`);

test('a queue: pause, resume, settings, enqueue, purge', async (t) => {
	const page = await open(t, '#/queues/mail');
	await press(page, 'Pause');
	await confirm(page, 'Pause');
	await comes(Infinity, "SELECT paused_until FROM tq_queues WHERE queue = 'mail'");
	await press(page, 'Resume');
	await comes(null, "SELECT paused_until FROM tq_queues WHERE queue = 'mail'");
	await press(page, 'Pause');
	await confirm(page, 'Pause', { 'Only this kind': 'welcome' });
	await comes('infinity', "SELECT kinds -> 'welcome' ->> 'paused_until' FROM tq_queues WHERE queue = 'mail'");
	await press(page, 'Resume kind');
	await comes(null, "SELECT kinds -> 'welcome' ->> 'paused_until' FROM tq_queues WHERE queue = 'mail'");
	await press(page, 'Change settings');
	await dialog(page).getByLabel('What changes').fill('{"max_running": 7, "nope": 1}');
	await dialog(page).getByRole('button', { name: 'Change' }).click();
	await dialog(page).getByRole('alert').waitFor();
	await confirm(page, 'Change', { 'What changes': '{"max_running": 7}' });
	await comes(7, "SELECT (settings ->> 'max_running')::int FROM tq_queues WHERE queue = 'mail'");
	await press(page, 'Enqueue a job');
	await confirm(page, 'Enqueue', { Kind: 'by hand', 'Start after': '10 min', Payload: '{"n": 1.0000000000000000000001}' });
	await page.getByText('is enqueued').waitFor();
	assert.equal(await value("SELECT payload ->> 'n' FROM tq_jobs j, tq_get(j.id) WHERE j.kind = 'by hand'"), '1.0000000000000000000001');
	await page.goto(`${address}/#/queues/mail`);
	await press(page, 'Purge');
	assert.equal(await dialog(page).getByRole('button', { name: 'Purge' }).isDisabled(), true);
	await dialog(page).getByLabel('State').selectOption('delayed');
	await dialog(page).getByText(`${await value("SELECT count(*) FROM tq_jobs WHERE queue = 'mail' AND state = 'delayed'")} jobs will be`).waitFor();
	await confirm(page, 'Purge', { Type: 'mail' });
	await comes(0, "SELECT count(*) FROM tq_jobs WHERE queue = 'mail' AND state = 'delayed'");
});

test('a queue: create and drop', async (t) => {
	const page = await open(t, '#/queues');
	await press(page, 'New queue');
	await confirm(page, 'Create', { Name: 'a/b c%' });
	await page.getByRole('heading', { name: 'a/b c%' }).waitFor();
	await comes(1, "SELECT count(*) FROM tq_queues WHERE queue = 'a/b c%'");
	await press(page, 'Drop');
	await confirm(page, 'Drop', { Type: 'a/b c%' });
	await comes(0, "SELECT count(*) FROM tq_queues WHERE queue = 'a/b c%'");
});

test('a job: cancel, retry, reschedule, duplicate, purge', async (t) => {
	const id = await value("SELECT max(id) FROM tq_jobs WHERE kind = 'digest' AND state = 'ready'");
	const page = await open(t, `#/jobs/${id}`);
	await press(page, 'Reschedule');
	await confirm(page, 'Reschedule', { 'New priority': '3' });
	await comes(3, 'SELECT priority FROM tq_get($1)', id);
	// a field that was emptied again changes nothing
	await press(page, 'Reschedule');
	await dialog(page).getByLabel('New priority').fill('');
	assert.equal(await dialog(page).getByRole('button', { name: 'Reschedule' }).isDisabled(), true);
	await press(page, 'Back');
	await press(page, 'Cancel');
	await confirm(page, 'Cancel', { Reason: 'not wanted' });
	await comes('cancelled', 'SELECT state FROM tq_get($1)', id);
	await page.getByText('not wanted').first().waitFor();
	await press(page, 'Retry');
	await confirm(page, 'Retry');
	await comes('ready', 'SELECT state FROM tq_get($1)', id);
	await press(page, 'Duplicate as new');
	await confirm(page, 'Enqueue the copy');
	const copy = await until(() => value('SELECT max(id) FROM tq_jobs WHERE id > $1 AND kind = $2', id, 'digest'), 'there is a copy');
	assert.deepEqual(await value('SELECT payload::text FROM tq_get($1)', copy), await value('SELECT payload::text FROM tq_get($1)', id));
	await page.getByRole('heading', { name: String(copy) }).waitFor();
	await press(page, 'Purge');
	await confirm(page, 'Purge');
	await comes(0, 'SELECT count(*) FROM tq_jobs WHERE id = $1', copy);
});

test('jobs: what is selected, and what matches', async (t) => {
	const page = await open(t, '#/jobs?queue=mail&state=ready&kind=invoice');
	const boxes = page.getByRole('checkbox', { name: /Select job/ });
	await boxes.first().waitFor();
	const names = await Promise.all([0, 1].map((n) => boxes.nth(n).getAttribute('aria-label')));
	const ids = names.map((name) => Number(name.match(/\d+/)[0]));
	for (const n of [0, 1])
		await boxes.nth(n).check();
	await page.getByText('2 selected').waitFor();
	await press(page, 'Reschedule');
	await confirm(page, 'Reschedule', { 'New priority': '0' });
	for (const id of ids)
		await comes(0, 'SELECT priority FROM tq_get($1)', id);
	for (const id of ids)
		await page.getByRole('checkbox', { name: `Select job ${id}`, exact: true }).check();
	// the list rests meanwhile
	await sql("SELECT tq_enqueue('mail', kind => 'invoice')");
	assert.equal(await boxes.first().getAttribute('aria-label'), names[0]);
	await press(page, 'Cancel');
	await confirm(page, 'Cancel');
	for (const id of ids)
		assert.equal(await state(id), 'cancelled');
	const left = await value("SELECT count(*) FROM tq_jobs WHERE queue = 'mail' AND kind = 'invoice' AND state = 'ready'");
	assert.ok(left > 1);
	await press(page, 'Cancel all …');
	await dialog(page).getByText(`${left} jobs would be cancelled`).waitFor();
	await confirm(page, 'Cancel', { Type: 'mail' });
	await comes(0, "SELECT count(*) FROM tq_jobs WHERE queue = 'mail' AND kind = 'invoice' AND state = 'ready'");
	assert.equal(await value("SELECT count(*) FROM tq_jobs WHERE queue = 'mail' AND kind = 'invoice' AND state = 'cancelled'"), left + 2);
	// filters are in the address
	await page.getByLabel('State').selectOption('cancelled');
	await page.waitForURL(/state=cancelled/);
	await page.getByText('Retry all …').waitFor();
	await page.reload();
	assert.equal(await page.getByLabel('State').inputValue(), 'cancelled');
	await page.getByLabel('enqueued from').fill('2100-01-01T00:00');
	await page.getByText('No job matches.').waitFor();
	await page.reload();
	assert.equal(await page.getByLabel('enqueued from').inputValue(), '2100-01-01T00:00');
});

test('a dialog closes when the filters change under it', async (t) => {
	const page = await open(t, '#/jobs?queue=mail&state=ready');
	await page.getByText('Cancel all …').waitFor();
	await page.evaluate(() => { location.hash = '#/jobs?queue=mail&state=ready&kind=digest'; });
	await page.waitForURL(/kind=digest/);
	await press(page, 'Cancel all …');
	await dialog(page).getByText('jobs would be').waitFor();
	await page.goBack();
	await dialog(page).waitFor({ state: 'detached' });
	await page.goto(`${address}/#/dead?queue=mail`);
	await press(page, 'Purge all …');
	await dialog(page).waitFor();
	await page.evaluate(() => { location.hash = '#/dead?queue=reports'; });
	await dialog(page).waitFor({ state: 'detached' });
});

test('jobs: a purge of one that has changed purges no other', async (t) => {
	await sql("SELECT tq_create_queue('changed')");
	await sql("SELECT tq_enqueue('changed') FROM generate_series(1, 2)");
	await sql("SELECT tq_fail(id, lease, 'no', fatal => true) FROM tq_claim('changed', 2)");
	const [first, second] = (await sql("SELECT id FROM tq_list('changed', 'dead', newest => false)")).map(({ id }) => id);
	const page = await open(t, '#/jobs?queue=changed&state=dead');
	await page.getByRole('checkbox', { name: `Select job ${first}`, exact: true }).check();
	await sql('SELECT tq_retry($1)', first);
	await press(page, 'Purge');
	await dialog(page).getByRole('button', { name: 'Purge', exact: true }).click();
	await page.getByText(`Job ${first} is no longer dead.`).waitFor();
	assert.equal(await state(second), 'dead');
	await page.goto(`${address}/#/jobs/${second}`);
	await page.reload();
	await press(page, 'Purge');
	await confirm(page, 'Purge');
	await comes(0, "SELECT count(*) FROM tq_jobs WHERE queue = 'changed' AND state = 'dead'");
	await sql("SELECT tq_purge('changed', 'all')");
	await sql("SELECT tq_drop_queue('changed')");
});

test('jobs: a change of all that match a number looks for all its digits', async (t) => {
	const search = `{"n": ${DIGITS}}`;
	const matching = await value("SELECT count(*) FROM tq_list('mail', 'ready', search => $1, max => 1000)", search);
	assert.ok(matching > 0);
	const page = await open(t, `#/jobs?queue=mail&state=ready&search=${encodeURIComponent(search)}`);
	await press(page, 'Cancel all …');
	await dialog(page).getByText(`${matching} jobs would be cancelled`).waitFor();
});

test('a list rests while the pointer is on it', async (t) => {
	await sql("SELECT tq_enqueue('idle', kind => 'first')");
	const page = await open(t, '#/jobs?queue=idle');
	await page.clock.install();
	await page.reload();
	let asked = 0;
	page.on('request', (request) => { asked += request.url().includes('/v1/jobs?'); });
	await page.getByText('first').hover();
	await page.clock.runFor(10_000);
	const before = asked;
	await sql("SELECT tq_enqueue('idle', kind => 'second')");
	await page.clock.runFor(10_000);
	assert.equal(asked, before);
	// still while the focus is there, though the pointer has left
	await page.getByRole('checkbox', { name: /Select job/ }).first().focus();
	await page.getByRole('heading', { name: 'Jobs' }).hover();
	await page.clock.runFor(10_000);
	assert.equal(asked, before);
	await page.getByLabel('State').focus();
	await page.clock.runFor(10_000);
	await page.getByText('second').waitFor();
	await sql("SELECT tq_purge('idle', 'all')");
});

test('a screen that stays open keeps few timers', async (t) => {
	const page = await open(t, '#/jobs');
	await page.addInitScript(() => {
		const { setInterval, clearInterval } = window;
		window.timers = new Set();
		window.setInterval = (...given) => { const id = setInterval(...given); window.timers.add(id); return id; };
		window.clearInterval = (id) => { window.timers.delete(id); clearInterval(id); };
	});
	await page.reload();
	let asked = 0;
	page.on('request', (request) => { asked += request.url().includes('/v1/jobs?'); });
	const timers = () => page.evaluate(() => window.timers.size);
	await until(() => asked >= 1, 'the list is read');
	const before = await timers();
	await until(() => asked >= 4, 'the list is read again');
	assert.ok(await timers() <= before + 1, `${before} timers, then ${await timers()}`);
});

test('dead letters: a group of a kind and an error', async (t) => {
	const page = await open(t, '#/dead?queue=mail');
	const groups = () => sql("SELECT kind, error, jobs FROM tq_dead_groups('mail') ORDER BY 1, 2");
	const before = await groups();
	// the kind of two groups, each with an error that other kinds have, too
	const { kind } = before.find((one, n) => one.kind === before[n + 1]?.kind);
	const [first, second] = before.filter((one) => one.kind === kind);
	for (const one of [first, second])
		assert.ok(before.some((other) => other.kind !== kind && other.error === one.error));
	const region = page.getByRole('region', { name: 'Dead jobs by error' });
	const row = (one) => region.getByRole('row').filter({ hasText: one.error }).filter({ has: page.getByRole('cell', { name: one.kind, exact: true }) });
	// its jobs, and the group alone, have addresses
	const ids = await sql("SELECT id FROM tq_list('mail', kind => $1, error => $2)", kind, first.error);
	await row(first).getByRole('link', { name: String(first.jobs), exact: true }).click();
	await page.waitForURL(/jobs\?.*error=/);
	const boxes = page.getByRole('checkbox', { name: /Select job/ });
	await until(async () => await boxes.count() === first.jobs, 'the jobs of the group');
	assert.deepEqual(await boxes.evaluateAll((all) => all.map((one) => one.getAttribute('aria-label'))), ids.map(({ id }) => `Select job ${id}`));
	assert.deepEqual(await page.getByRole('button', { name: / all …/ }).allTextContents(), ['Retry all …'], 'what can be done to dead jobs');
	assert.equal(await page.getByRole('link', { name: 'Older' }).count(), 0, 'there are no more');
	await page.goBack();
	await row(first).getByRole('link', { name: first.error }).click();
	await page.waitForURL(/dead\?.*error=/);
	await page.reload();
	await row(first).waitFor();
	assert.equal(await region.getByRole('row').count(), 2, 'this group only');
	await press(page, 'Show all');
	await row(second).waitFor();
	// each action changes this group alone
	const ready = await value("SELECT count(*) FROM tq_jobs WHERE queue = 'mail' AND state = 'ready'");
	await row(first).getByRole('button', { name: 'Retry …' }).click();
	await dialog(page).getByText(`${first.jobs} ${first.jobs === 1 ? 'job' : 'jobs'} of kind ${kind} with the error ${first.error}`).waitFor();
	assert.equal(await dialog(page).getByRole('button', { name: 'Retry', exact: true }).isDisabled(), true, 'the name is not typed yet');
	await confirm(page, 'Retry', { Type: 'mail' });
	await row(first).waitFor({ state: 'detached' });
	assert.deepEqual(await groups(), before.filter((one) => one !== first));
	await row(second).getByRole('button', { name: 'Purge …' }).click();
	await confirm(page, 'Purge', { Type: 'mail' });
	await row(second).waitFor({ state: 'detached' });
	assert.deepEqual(await groups(), before.filter((one) => one.kind !== kind));
	assert.equal(await value("SELECT count(*) FROM tq_jobs WHERE queue = 'mail' AND state = 'ready'"), ready + first.jobs, 'one is ready again, the other gone');
});

test('dead letters: a group without a kind, another without an error', async (t) => {
	await sql("SELECT tq_create_queue('letters')");
	for (const [kind, error] of [[null, 'no disk'], ['k', 'no disk'], [null, ''], ['k', '']]) {
		await sql("SELECT tq_enqueue('letters', kind => $1)", kind);
		await sql("SELECT tq_fail(id, lease, $1, fatal => true) FROM tq_claim('letters')", error);
	}
	const page = await open(t, '#/dead?queue=letters');
	const rows = page.getByRole('region', { name: 'Dead jobs by error' }).getByRole('row').filter({ has: page.getByRole('cell') });
	const act = async (which, what, said) => {
		await rows.filter(which).getByRole('button', { name: `${what} …` }).first().click();
		await dialog(page).getByText(said).waitFor();
		await confirm(page, what, { Type: 'letters' });
	};
	const left = () => sql("SELECT kind, error FROM tq_dead_groups('letters') ORDER BY 1, 2");
	await rows.nth(3).waitFor();
	const [kind, error] = [page.getByRole('cell', { name: 'k', exact: true }), page.getByText('no disk')];
	await act({ has: error, hasNot: kind }, 'Retry', '1 job without a kind with the error no disk');
	assert.deepEqual(await left(), [{ kind: 'k', error: 'no disk' }, { kind: 'k', error: null }, { kind: null, error: null }]);
	await act({ has: kind, hasNot: error }, 'Purge', '1 job of kind k without an error');
	assert.deepEqual(await left(), [{ kind: 'k', error: 'no disk' }, { kind: null, error: null }]);
	await sql("SELECT tq_purge('letters', 'all')");
	await sql("SELECT tq_drop_queue('letters')");
});

test('running jobs, dead letters', async (t) => {
	const page = await open(t, '#/running');
	await page.getByRole('button', { name: 'Cancel' }).first().click();
	await confirm(page, 'Cancel the job', { Reason: 'stop' });
	await comes(1, 'SELECT count(*) FROM tq_running WHERE cancel_asked');
	await page.getByText('asked to stop').first().waitFor();
	await page.goto(`${address}/#/dead?queue=mail`);
	await press(page, 'Retry all …');
	await dialog(page).getByText(`${await value('SELECT count(*) FROM tq_dead')} jobs`).waitFor();
	await confirm(page, 'Retry', { Type: 'mail' });
	await comes(0, 'SELECT count(*) FROM tq_dead');
	await page.getByText('No job of mail is dead.').waitFor();
});

test('schedules: times across a change of the clocks, define, run, pause, remove', async (t) => {
	const page = await open(t, '#/schedules');
	await press(page, 'New schedule');
	await dialog(page).getByLabel('Cron expression').fill('30 2 26-29 3 *');
	await dialog(page).getByLabel('Time zone').fill('Europe/Berlin');
	await dialog(page).getByText('GMT+02:00').first().waitFor();
	await dialog(page).getByText('GMT+01:00').first().waitFor();
	await dialog(page).getByLabel('Cron expression').fill('30 2 32 3 *');
	await dialog(page).getByRole('alert').first().waitFor();
	await confirm(page, 'Define', { Name: 'by hand', Queue: 'reports', 'Cron expression': '30 2 26-29 3 *', Payload: '{"n": 1}' });
	await comes('30 2 26-29 3 *', "SELECT cron FROM tq_schedules WHERE name = 'by hand'");
	const row = page.getByRole('row').filter({ hasText: 'by hand' });
	await row.getByRole('button', { name: 'Run now' }).click();
	await comes(1, "SELECT count(*) FROM tq_schedules WHERE name = 'by hand' AND last_job_id IS NOT NULL");
	await row.getByRole('button', { name: 'Pause' }).click();
	await comes('paused', "SELECT state FROM tq_schedules WHERE name = 'by hand'");
	await press(page, 'New schedule');
	await dialog(page).getByLabel('Name').fill('by hand');
	await dialog(page).getByText('will be replaced').waitFor();
	await press(page, 'Back');
	await row.getByRole('button', { name: 'Resume' }).click();
	await comes('active', "SELECT state FROM tq_schedules WHERE name = 'by hand'");
	await row.getByRole('button', { name: 'Remove' }).click();
	await confirm(page, 'Remove');
	await comes(0, "SELECT count(*) FROM tq_schedules WHERE name = 'by hand'");
});

test('workers and rights', async (t) => {
	const page = await open(t, '#/workers');
	const row = page.getByRole('row').filter({ hasText: 'w3' });
	await row.getByRole('button', { name: 'Drain' }).click();
	await comes(true, "SELECT draining FROM tq_workers WHERE worker = 'w3'");
	await row.getByRole('button', { name: 'Let it claim' }).click();
	await comes(false, "SELECT draining FROM tq_workers WHERE worker = 'w3'");
	await page.goto(`${address}/#/rights`);
	await press(page, 'Grant');
	await confirm(page, 'Grant', { Queue: 'mail', Role: 'console_reader', Privilege: 'produce' });
	const granted = "SELECT count(*) FROM tq_grants WHERE queue = 'mail' AND role = 'console_reader'::regrole AND privilege = 'produce'";
	await comes(1, granted);
	await page.getByRole('row').filter({ hasText: 'produce' }).getByRole('button', { name: 'Revoke' }).click();
	await confirm(page, 'Revoke');
	await comes(0, granted);
	await page.goto(`${address}/#/audit?action=revoke`);
	await page.getByText('console_reader').first().waitFor();
});

test('groups, handlers and subscriptions', async (t) => {
	const page = await open(t, '#/queues/mail');
	const group = page.getByRole('row').filter({ hasText: 'tenant 1' });
	await page.getByRole('row').filter({ hasText: 'tenant 2' }).getByText('100/min').waitFor();
	await group.getByRole('button', { name: 'Resume group' }).click();
	await group.waitFor({ state: 'detached' });
	assert.deepEqual(Object.keys(await value("SELECT groups FROM tq_queues WHERE queue = 'mail'")), ['tenant 2']);
	await page.goto(`${address}/#/handlers`);
	for (const kind of ['every kind without its own', 'greet']) {
		await page.getByRole('row').filter({ has: page.getByRole('cell', { name: kind, exact: true }) }).getByRole('button', { name: 'Remove' }).click();
		await confirm(page, 'Remove');
		await page.getByText(`for ${kind} is removed`).waitFor();
	}
	assert.equal(await value('SELECT count(*) FROM tq_handlers'), 0);
	await page.getByText('SELECT tq_handle').waitFor();
	await page.goto(`${address}/#/subscriptions`);
	await page.getByText('https://example.org/hooks').waitFor();
	assert.ok(!(await page.content()).includes('whsec_'));
	await press(page, 'New subscription');
	await dialog(page).getByLabel('Queue').fill('idle');
	await dialog(page).getByLabel('Address').fill('https://user@example.org');
	await press(page, 'Subscribe');
	await dialog(page).getByRole('alert').waitFor();
	await confirm(page, 'Subscribe', { Address: 'https://example.org/more', Options: '{"secret": "x", "timeout": 7}' });
	await comes(7, "SELECT (options ->> 'timeout')::int FROM tq_subscriptions WHERE url = 'https://example.org/more'");
	for (const url of ['https://example.org/hooks', 'https://example.org/more']) {
		await page.getByRole('row').filter({ hasText: url }).getByRole('button', { name: 'Remove' }).click();
		await confirm(page, 'Remove');
	}
	await comes(0, 'SELECT count(*) FROM tq_subscriptions');
});

test('by keyboard alone', async (t) => {
	const page = await open(t, '#/queues');
	await page.getByRole('link', { name: 'reports' }).waitFor();
	for (let n = 0; n < 40 && await page.evaluate(() => document.activeElement.textContent) !== 'reports'; ++n)
		await page.keyboard.press('Tab');
	await page.keyboard.press('Enter');
	await page.getByRole('button', { name: 'Pause' }).waitFor();
	await page.getByRole('button', { name: 'Pause' }).focus();
	await page.keyboard.press('Enter');
	await dialog(page).waitFor();
	await page.keyboard.press('Escape');
	await dialog(page).waitFor({ state: 'detached' });
	assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Pause', 'the focus is where it was');
});

test('progress of a running job, the next times of a schedule', async (t) => {
	const id = await value("SELECT min(id) FROM tq_running WHERE worker = 'w3' AND NOT cancel_asked");
	const page = await open(t, `#/jobs/${id}`);
	await page.getByText('30 %').waitFor();
	await page.goto(`${address}/#/schedules`);
	await page.getByText('the next ten').click();
	await until(async () => await page.getByRole('listitem').count() === 10, 'ten times are shown');
	assert.match(await page.getByRole('listitem').first().textContent(), /03:00.*GMT\+0[12]:00/);
});

test('rows keep their places while the pointer is on them', async (t) => {
	await sql("SELECT tq_enqueue('idle') FROM generate_series(1, 5)");
	const page = await open(t, '#/queues?order=ready');
	const names = async () => page.getByRole('row').getByRole('link').allTextContents();
	await until(async () => (await names()).length === 4, 'the queues are there');
	await page.getByRole('row').filter({ hasText: 'idle' }).getByText('5', { exact: true }).first().waitFor();  // not the figures from before
	const before = await names();
	await page.getByRole('link', { name: before[3] }).hover();
	await sql("SELECT tq_enqueue($1) FROM generate_series(1, 1000)", before[3]);
	await page.getByRole('row').filter({ hasText: before[3] }).getByText('1,0').waitFor();
	assert.deepEqual(await names(), before);
	await page.getByRole('heading', { name: 'Queues' }).hover();
	await until(async () => (await names())[0] === before[3], 'the fullest queue is the first');
	await sql("SELECT tq_purge($1, 'ready')", before[3]);
	await sql("SELECT tq_purge('idle', 'all')");
});

test('figures move while one looks', async (t) => {
	const page = await open(t, '#/queues');
	await page.getByRole('row').filter({ hasText: 'idle' }).waitFor();
	await sql("SELECT tq_enqueue('idle') FROM generate_series(1, 4321)");
	await page.getByRole('row').filter({ hasText: 'idle' }).getByText('4,321').waitFor();
	await sql("SELECT tq_purge('idle', 'all')");
});

test('a chart stays while its data change, and follows the colours that are chosen', async (t) => {
	const page = await open(t, '');
	const chart = await page.waitForSelector('.uplot');
	await page.waitForTimeout(3000);  // some figures
	assert.equal(await chart.evaluate((one) => one.isConnected), true);
	await page.getByLabel('Colours').selectOption('dark');
	await until(() => chart.evaluate((one) => !one.isConnected), 'it is drawn again');
});

test('an address that is not encoded', async (t) => {
	const page = await open(t, '#/queues/50%');
	await page.getByRole('heading', { name: '50%' }).waitFor();
});

test('what was typed stays while the database is away', async (t) => {
	const page = await open(t, '#/queues');
	await page.clock.install();
	await page.reload();
	await press(page, 'New queue');
	await dialog(page).getByLabel('Name').fill('typed before');
	await page.route('**/v1/me', (route) => route.fulfill({ status: 503, contentType: 'application/problem+json', body: '{}' }));
	const answered = page.waitForResponse('**/v1/me');
	await page.clock.runFor(31_000);
	await answered;
	await page.evaluate(() => fetch('healthz').then(() => {}));
	assert.equal(await dialog(page).getByLabel('Name').inputValue(), 'typed before');
});

test('a server that restarts', async (t) => {
	const page = await open(t, '#/queues');
	await page.getByText('live', { exact: true }).waitFor();
	const run = (...words) => execFileSync(process.env.TQ_PG_CTL, ['-D', process.env.TQ_DATA, '-w', ...words], { stdio: 'ignore' });
	await database.end();
	run('stop', '-m', 'fast');
	await page.getByText('not connected').waitFor();
	await page.getByRole('alert').first().waitFor();
	run('start', '-l', `${process.env.TQ_WORK}/restarted.log`);
	await page.getByText('live', { exact: true }).waitFor();
	await page.getByRole('link', { name: 'mail' }).waitFor();
	const again = await connect();
	await again.query("SELECT tq_enqueue('idle')");
	await page.getByRole('row').filter({ hasText: 'idle' }).getByText('1', { exact: true }).first().waitFor();
	await again.end();
});
