// A long backlog: each screen shows exact counts and one page, and costs what it costs on a short one. The output has the
// times of the screens, with the slowest call of each. scripts/test --all tries it on ten million jobs; TQ_MANY=n sets
// another number.
import assert from 'node:assert/strict';
import test from 'node:test';
import { PATIENCE, begin, connect, dialog, gateway, press, sql, until, value, visit } from './harness.js';
import { seed } from './seed.js';

const MANY = Number(process.env.TQ_MANY || (process.env.TQ_ALL ? 10_000_000 : 20_000));
const ENDED = MANY / 10;  // so many succeeded, and so many are dead
const READY = MANY - 2 * ENDED;
const CHUNK = 10_000;
const SESSIONS = 2;
const LONG = PATIENCE * Math.max(1, MANY / 2_000_000);  // ms
const number = new Intl.NumberFormat('en').format;

async function timed(what, n, run) {
	const began = Date.now();
	await run();
	console.log(`${what} ${number(n)} jobs in ${Math.round((Date.now() - began) / 1000)} s`);
}

async function look(context, address) {
	const page = await visit(context, address);
	page.setDefaultTimeout(LONG);
	return page;
}

/** Numbers from 0 on, in pieces for several sessions. */
async function inPieces(n, run) {
	let next = 0;
	await Promise.all(Array.from({ length: SESSIONS }, async () => {
		const session = await connect();
		while (next < n) {
			const first = next;
			next = Math.min(next + CHUNK, n);
			await run(session, first, next);
		}
		await session.end();
	}));
}

/** Claims so many jobs, the oldest first, and ends them. */
const end = (n, verb, more = '') => inPieces(n, async (session, first, last) => {
	for (let left = last - first; left > 0;) {
		const { rows } = await session.query(`WITH c AS MATERIALIZED
			(SELECT array_agg(id) AS ids, array_agg(lease) AS leases FROM tq_claim('many', $1, wait => '10 s') HAVING count(*) > 0)
			SELECT count(*) FROM c, ${verb}(ids, leases${more})`, [left]);
		left -= rows[0].count;
	}
});

begin(async () => {
	await seed();
	await sql("SELECT tq_create_queue('many', '{}')");
	await timed('enqueued', MANY, () => inPieces(MANY, (session, first, last) => session.query(
		`SELECT cardinality(tq_enqueue_many('many', array_agg(jsonb_build_object('n', g)), max_attempts => 1,
			kinds => array_agg((array['a', 'b', 'c'])[1 + g % 3]))) FROM generate_series($1::int + 1, $2::int) g`, [first, last])));
	await timed('completed', ENDED, () => end(ENDED, 'tq_complete_many'));
	await timed('failed', ENDED, () => end(ENDED, 'tq_fail_many',
		", (SELECT array_agg(CASE i % 2 WHEN 0 THEN format('timeout after %s s', i) ELSE 'no such table' END ORDER BY n) FROM unnest(ids) WITH ORDINALITY u(i, n))"));
});

test('each screen with a long backlog', async (t) => {
	const address = await gateway();
	const page = await look(t, address);
	let slowest = {};
	const pending = new Set();
	page.on('request', (request) => request.url().includes('/v1/events') || pending.add(request));
	for (const end of ['requestfinished', 'requestfailed'])
		page.on(end, (request) => {
			pending.delete(request);
			const ms = Math.round(request.timing().responseStart);
			if (ms > slowest.ms)
				slowest = { ms, call: new URL(request.url()).pathname };
		});
	const first = (more, newest = true) => value(`SELECT id FROM tq_list('many', max => 1, newest => ${newest}${more})`);
	const newest = await first('');
	const oldest = await first('', false);
	const [group] = await sql("SELECT kind, error FROM tq_dead_groups('many')");
	const dead = await first(", state => 'dead'");
	for (const [hash, text] of [
		['', number(READY)],
		['#/queues', number(READY)],
		['#/queues/many', `${number(READY)} ready`],
		['#/jobs', String(newest)],
		['#/jobs?queue=many&state=ready', String(newest)],
		['#/jobs?queue=many&state=dead', String(dead)],
		['#/jobs?queue=many&kind=b', String(await first(", kind => 'b'"))],
		[`#/jobs?queue=many&error=${encodeURIComponent(group.error)}`, String(await first(`, state => 'dead', error => '${group.error}'`))],
		[`#/jobs?queue=many&search=${encodeURIComponent(`{"n": ${await value('SELECT payload FROM tq_get($1)', newest).then(({ n }) => n)}}`)}`, String(newest)],
		[`#/jobs?queue=many&after=${oldest + 10}`, String(oldest)],
		[`#/jobs/${oldest}`, 'What happened'],
		['#/running', '30 %'],
		['#/dead', String(dead)],
		['#/dead?queue=mail', 'the address is unknown'],
		['#/dead?queue=many', group.error],
		[`#/dead?queue=many&error=${encodeURIComponent(group.error)}`, group.error],
		['#/dead?queue=reports', 'No job of reports is dead.'],
		['#/schedules', 'Europe/Berlin'],
		['#/workers', 'w3'],
		['#/handlers', 'public.greet'],
		['#/subscriptions', 'https://example.org/hooks'],
		['#/rights', 'console_reader'],
		['#/audit', 'create queue'],
	]) {
		await page.goto('about:blank');
		slowest = { ms: -1 };
		const began = Date.now();
		await page.goto(`${address}/${hash}`);
		await page.getByText(text).first().waitFor();
		const ms = Date.now() - began;
		await until(() => pending.size === 0, 'its calls are answered');
		console.log(`${hash || 'overview'}: ${ms} ms, ${slowest.call} ${slowest.ms} ms`);
		assert.ok(await page.getByRole('row').count() <= 250, `${hash} has the rows of a page`);
	}
});

test('pages follow each other', async (t) => {
	const page = await look(t, `${await gateway()}/#/jobs?queue=many&kind=b&state=ready`);
	const shown = () => page.getByRole('checkbox', { name: /Select job/ }).evaluateAll((all) => all.map((one) => Number(one.getAttribute('aria-label').match(/\d+/)[0])));
	let after = null;
	for (let n = 0; n < 3; ++n) {
		const ids = (await sql("SELECT id FROM tq_list('many', 'ready', kind => 'b', after => $1)", after)).map(({ id }) => id);
		await until(async () => String(await shown()) === String(ids), `page ${n} has its jobs`);
		after = ids.at(-1);
		await page.getByRole('link', { name: 'Older' }).click();
	}
	await page.getByRole('link', { name: 'The newest' }).click();
	const newest = await value("SELECT id FROM tq_list('many', 'ready', kind => 'b', max => 1)");
	await until(async () => (await shown())[0] === newest, 'the first page again');
});

test('a search goes on until it finds a job', async (t) => {
	const oldest = await value("SELECT id FROM tq_list('many', max => 1, newest => false)");
	const { n } = await value('SELECT payload FROM tq_get($1)', oldest);
	const page = await look(t, `${await gateway()}/#/jobs?queue=many&search=${encodeURIComponent(`{"n": ${n}}`)}`);
	await press(page, 'Look at older ones');
	await page.getByRole('checkbox', { name: `Select job ${oldest}` }).waitFor();
});

test('a change of all that match says how many, exactly', async (t) => {
	const address = await gateway();
	const page = await look(t, `${address}/#/jobs?queue=many&state=ready`);
	const counted = async (button, text) => {
		const began = Date.now();
		await button.click();
		await dialog(page).getByText(text).waitFor();
		console.log(`counted ${text} in ${Date.now() - began} ms`);
		await press(page, 'Back');
	};
	await counted(page.getByRole('button', { name: 'Cancel all …' }), `${number(READY)} jobs would be cancelled`);
	await page.goto(`${address}/#/dead?queue=many`);
	await counted(page.getByRole('button', { name: 'Purge all …' }), `${number(ENDED)} jobs will be`);
	const { kind, error } = (await sql("SELECT kind, error FROM tq_dead_groups('many')"))[0];
	const group = await value("SELECT count(*) FROM tq_dead WHERE queue = 'many' AND kind = $1 AND regexp_replace(reason, '[0-9]+', '?') = $2", kind, error);
	const row = page.getByRole('region', { name: 'Dead jobs by error' }).getByRole('row').filter({ hasText: error }).filter({ has: page.getByRole('cell', { name: kind, exact: true }) });
	await counted(row.getByRole('button', { name: 'Retry …' }), `${number(group)} jobs of kind ${kind}`);
});
