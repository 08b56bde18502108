// A long backlog: each screen shows exact counts and one page, and costs what it costs on a short one. TQ_MANY=10000000
// tries it on ten million jobs; the times of the screens are in the output.
import assert from 'node:assert/strict';
import test from 'node:test';
import { begin, dialog, gateway, press, sql, until, value, visit } from './harness.js';
import { seed } from './seed.js';

const MANY = Number(process.env.TQ_MANY ?? 20_000);
const CHUNK = 10_000;
const number = new Intl.NumberFormat('en').format;

begin(async () => {
	await seed();
	await sql("SELECT tq_create_queue('many', '{}')");
	await sql("SELECT tq_enqueue('many', kind => 'oldest')");
	const began = Date.now();
	for (let n = 1; n < MANY; n += CHUNK)
		await sql(`SELECT tq_enqueue_many('many', array_agg(jsonb_build_object('n', g)), kinds => array_agg((array['a', 'b', 'c'])[1 + g % 3]))
			FROM generate_series($1::int, $2::int) g`, n, Math.min(n + CHUNK, MANY) - 1);
	console.log(`enqueued ${number(MANY)} jobs in ${Math.round((Date.now() - began) / 1000)} s`);
});

test('each screen with a long backlog', async (t) => {
	const address = await gateway();
	const page = await visit(t, address);
	const newest = await value("SELECT id FROM tq_list('many', max => 1)");
	const oldest = await value("SELECT id FROM tq_list('many', max => 1, newest => false)");
	for (const [hash, text] of [
		['', number(MANY)],
		['#/queues', number(MANY)],
		['#/queues/many', `${number(MANY)} ready`],
		['#/jobs', String(newest)],
		['#/jobs?queue=many&state=ready', String(newest)],
		['#/jobs?queue=many&kind=b', String(await value("SELECT id FROM tq_list('many', kind => 'b', max => 1)"))],
		[`#/jobs?queue=many&search=${encodeURIComponent(`{"n": ${MANY - 1}}`)}`, String(newest)],
		[`#/jobs?queue=many&after=${oldest + 10}`, String(oldest)],
		[`#/jobs/${oldest}`, 'What happened'],
		['#/running', '30 %'],
		['#/dead?queue=mail', 'the address is unknown'],
		['#/dead?queue=many', 'No job of many is dead.'],
		['#/schedules', 'Europe/Berlin'],
		['#/workers', 'w3'],
		['#/handlers', 'public.greet'],
		['#/subscriptions', 'https://example.org/hooks'],
		['#/rights', 'console_reader'],
		['#/audit', 'create queue'],
	]) {
		await page.goto('about:blank');
		const began = Date.now();
		await page.goto(`${address}/${hash}`);
		await page.getByText(text).first().waitFor();
		console.log(`${hash || 'overview'}: ${Date.now() - began} ms`);
		assert.ok(await page.getByRole('row').count() <= 250, `${hash} has the rows of a page`);
	}
});

test('a search that finds nothing goes on, and a change of all says how many', async (t) => {
	const page = await visit(t, `${await gateway()}/#/jobs?queue=many&search=${encodeURIComponent('{"n": 1}')}`);
	const found = page.getByRole('checkbox', { name: /Select job/ });
	const further = page.getByRole('link', { name: 'Look at older ones' });
	await found.or(further).first().waitFor();
	if (MANY <= 20_000)
		await until(async () => await found.count() === 1 || further.click({ timeout: 1000 }).catch(() => false), 'the oldest is found');
	await page.goto(page.url().replace(/#.*/, '#/jobs?queue=many&state=ready'));
	await press(page, 'Cancel all …');
	await dialog(page).getByText(`${MANY > 100_000 ? 'more than 100,000' : number(MANY)} jobs would be cancelled`).waitFor();
	await press(page, 'Back');
});
