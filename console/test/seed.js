// Jobs in every state, for the screens.
import { database } from './harness.js';

export const DIGITS = '12345678901234567890.1234567890123';

const STATEMENTS = `
SELECT tq_create_queue('mail', '{"max_running": 10, "change_retention": "1 day"}'), tq_create_queue('reports', '{}'), tq_create_queue('idle', '{}');
SELECT tq_enqueue('mail', format('{"to": "user%s@example.org", "n": ${DIGITS}, "password": "s3cret"}', g)::jsonb,
	kind => (array['welcome', 'invoice', 'digest'])[1 + g % 3], options => '{"tags": ["bulk"]}') FROM generate_series(1, 120) g;
SELECT tq_enqueue('mail', '{}', kind => 'later', delay => '1 h') FROM generate_series(1, 5);
SELECT tq_enqueue('reports', '{"month": 11}', kind => 'monthly');
CREATE FUNCTION greet(job tq_job) RETURNS jsonb LANGUAGE sql RETURN jsonb_build_object('hello', 1);
SELECT tq_create_queue('inside');
SELECT tq_handle('inside', 'greet', 'greet(tq_job)', '{"max": 2}'), tq_handle('inside', NULL, 'greet(tq_job)');
SELECT tq_subscribe('idle', 'https://example.org/hooks', '{"secret": "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", "timeout": 5}');
SELECT tq_pause('mail', group_key => 'tenant 1'), tq_limit_group('mail', 'tenant 2', max_running => 3, rate => '100/min');
SELECT tq_schedule('nightly', 'reports', cron => '0 3 * * *', timezone => 'Europe/Berlin'), tq_schedule('beat', 'mail', every => '1 d');
SELECT tq_grant('*', 'console_reader', 'monitor'), tq_grant('mail', 'console_operator', 'operate', 'inspect');
SELECT tq_enqueue('reports', '{"part": 1}', kind => 'part', depends_on => array[(SELECT max(id) FROM tq_jobs WHERE kind = 'monthly')]) FROM generate_series(1, 3);
SELECT tq_enqueue('reports', '{"sum": true}', kind => 'sum', depends_on => (SELECT array_agg(id) FROM tq_jobs WHERE kind = 'part'));
SELECT count(tq_complete(id, lease, '{"sent": true}')) FROM tq_claim('mail', 10, worker => 'w1');
SELECT count(tq_fail(id, lease, 'SMTP 451: try again later', fatal => true)) FROM tq_claim('mail', 6, worker => 'w2');
SELECT count(tq_bury(id, lease, 'the address is unknown')) FROM tq_claim('mail', 2, worker => 'w2');
SELECT count(tq_heartbeat(id, lease, progress => '{"done": 3, "of": 10}')) FROM tq_claim('mail', 4, worker => 'w3', lease_for => '1 h')`;

/** Each in a transaction of its own: what is claimed counts against max_running until it is committed. */
export async function seed() {
	for (const statement of STATEMENTS.split(';\n'))
		await database.query(statement);
}
