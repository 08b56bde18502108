# Values of hundreds of megabytes are refused or cut on input, and never read from rows that have them. Scenarios:
# payloads, schedules, rows written by hand, errors, handlers. Schedules do not make the scheduler's memory grow.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

# the server inherits the limit: an error instead of a machine without memory
system('prlimit', '--pid', $$, '--as=8000000000') == 0 or plan skip_all => 'prlimit is needed';

my $node = tq_node('sizes', conf => <<CONF);
shared_buffers = 32MB
max_wal_size = 8GB
fsync = off
CONF
$node->safe_psql('postgres', <<SQL);
CREATE ROLE producer LOGIN;
CREATE ROLE consumer LOGIN;
SELECT tq_create_queue('q');
SELECT tq_grant('q', 'producer', 'produce'), tq_grant('q', 'consumer', 'consume');
SQL

sub scheduler_has_read
{
	my ($what, $n) = @_;
	until_true($node, "SELECT value = '$n' FROM tq_health() WHERE item = 'schedules that cannot be read'", $what);
	return;
}

# --- arguments

scheduler_of($node);
my $scheduler = scheduler_of($node);
$node->safe_psql('postgres', q{SELECT tq_schedule('first', 'q', every => '1 day')});
my $before = own_memory($scheduler);
for my $n (1 .. 6)
{
	my ($status, $out, $err) = $node->psql('postgres',
		"SET ROLE producer; SELECT tq_schedule('big $n', 'q', cron => repeat('1,', 150000000) || '1 * * * *')", on_error_stop => 0);
	like($err, qr/cron is too long.*300000009 bytes; the limit is 1024/s, "a schedule with 300 MB of cron is refused, $n");
}
my ($status, $out, $err) = $node->psql('postgres', "SET ROLE producer; SELECT tq_enqueue('q', headers => jsonb_build_object('h', repeat('x', 200000000)))");
like($err, qr/headers is too large.*raise tq\.max_headers/s, '200 MB of headers are refused');
($status, $out, $err) = $node->psql('postgres', "SET ROLE producer; SET tq.max_headers = '32MB'");
like($err, qr/permission denied to set parameter "tq.max_headers"/, 'a role cannot raise a limit for itself');
is($node->safe_psql('postgres', 'SELECT count(*) FROM tq_schedules'), '1', 'no such schedule is there');

# --- large payloads of many schedules are not in the scheduler's memory

$node->safe_psql('postgres', <<SQL);
SELECT tq_schedule('s' || g, 'q', jsonb_build_object('p', repeat('x', 1000000)), every => '1 day') FROM generate_series(1, 300) g;
SELECT tq_schedule('fires', 'q', jsonb_build_object('p', repeat('y', 1000000)), kind => 'fired', every => '1 s', options => '{"max_attempts": 3}');
SQL
until_true($node, "SELECT count(*) > 1 FROM tq_jobs WHERE kind = 'fired'", 'the schedule fires');
is($node->safe_psql('postgres', "SELECT length(payload ->> 'p') || ' ' || max_attempts FROM tq_claim('q', kinds => '{fired}')"), '1000000 3',
	'its jobs are given all of it');
$node->safe_psql('postgres', "SELECT tq_unschedule('fires')");
my $after = own_memory($scheduler);
cmp_ok($after - $before, '<', 60, sprintf('the memory of the scheduler has not grown by 300 MB: from %d to %d MB', $before, $after));
is(scheduler_of($node), $scheduler, 'and it is the same process');

# --- rows by hand, and after a restart

let_write($node, 'schedule');
$node->safe_psql('postgres', <<SQL);
INSERT INTO tq.schedule (name, queue, payload, cron, timezone, catch_up, overlap, options, owner, anchor, fired_until, defined_at, revision, paused)
	SELECT 'hand ' || g, 'q', '{}', repeat('1,', 150000000) || '1 * * * *', 'UTC', 'latest', 'allow', '{}', 'producer', now(), now(), now(), 1, false
	FROM generate_series(1, 3) g;
INSERT INTO tq.schedule (name, queue, payload, cron, timezone, catch_up, overlap, options, owner, anchor, fired_until, defined_at, revision, paused)
	SELECT 'options', 'q', '{}', '* * * * *', 'UTC', 'latest', 'allow', jsonb_build_object('unique_key', repeat('x', 200000000)), 'producer', now(), now(), now(), 1, false;
SQL
scheduler_has_read('those by hand are found', 4);
$after = own_memory($scheduler);
cmp_ok($after - $before, '<', 60, sprintf('the scheduler does not read what is too large: from %d to %d MB', $before, $after));
$node->restart;
scheduler_has_read('those by hand are found after a restart', 4);
$after = own_memory(scheduler_of($node));
cmp_ok($after - $before, '<', 60, sprintf('the same after a restart: %d MB', $after));
is($node->safe_psql('postgres', "SELECT string_agg(name || ' ' || state, ', ' ORDER BY name) FROM tq_schedules WHERE name !~ '^s|first'"),
	'hand 1 invalid, hand 2 invalid, hand 3 invalid, options invalid', 'tq_schedules says that they cannot be read');
like($node->safe_psql('postgres', "SELECT cron || ' ' || last_error FROM tq_schedules WHERE name = 'hand 1'"), qr/^1,1.*\[cut: it had 300000009 bytes\] cron/s,
	'and shows the beginning');
like($node->safe_psql('postgres', "SELECT hint FROM tq_health() WHERE item = 'schedules that cannot be read' AND status = 'warn'"), qr/tq_schedules says why/,
	'tq_health warns');

# --- errors

my $mb = 300;
$node->safe_psql('postgres', "SELECT tq_enqueue('q', kind => 'fails', max_attempts => 1) FROM generate_series(1, 2)");
$node->safe_psql('postgres', <<SQL);
SET ROLE consumer;
SELECT tq_fail(id, lease, repeat('e', ${mb}000000), jsonb_build_object('d', repeat('d', 200000000))) FROM tq_claim('q', kinds => '{fails}');
SQL
is($node->safe_psql('postgres', "SELECT length(reason) <= 32768, right(reason, 31), detail FROM tq_dead WHERE kind = 'fails'"),
	qq{t|. [cut: it had ${mb}000000 bytes]|{"cut": true, "bytes": 200000013}}, "an error of $mb MB is cut");

# values from a dump of an older version
by_hand($node, <<SQL);
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload, headers)
	SELECT g, now(), id, 0, jsonb_build_object('p', repeat('p', 200000000)), jsonb_build_object('h', repeat('h', 200000000))
	FROM tq.queue, generate_series(11, 12) g WHERE name = 'q';
INSERT INTO tq.event_0 (job_id, at, step, type, reason, detail)
	VALUES (11, now(), 1, 'd', repeat('e', 700000000), jsonb_build_object('d', repeat('d', 200000000)));
SQL
is($node->safe_psql('postgres', "SELECT length(reason) <= 1048576 AND reason ~ '700000000 bytes', detail -> 'bytes' FROM tq_dead WHERE id = 11"), 't|200000013',
	'an error of 700 MB in a row does not break tq_dead');
is($node->safe_psql('postgres', 'SELECT count(*) FROM tq_dead'), '2', 'which shows all the dead');
is($node->safe_psql('postgres', "SELECT payload -> 'bytes', headers -> 'bytes', length(error) <= 1048576 FROM tq_get(11)"), '200000013|200000013|t', 'tq_get does not fail');
is($node->safe_psql('postgres', 'SELECT count(*), max(length(reason)) <= 1048576 FROM tq_history(11)'), '2|t', 'tq_history does not fail');
cmp_ok(length($node->safe_psql('postgres', 'SELECT tq_explain(11)')), '<', 2_000_000, 'tq_explain does not fail');
until_true($node, "SELECT count(*) = 1 FROM tq_jobs WHERE id = 12 AND state = 'ready'", 'the job by hand waits');

# --- handlers

$node->safe_psql('postgres', <<'SQL');
SELECT tq_create_queue('run', '{"max_attempts": 1}');
CREATE FUNCTION run(job tq_job) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF job.kind = 'error' THEN
		RAISE EXCEPTION '%', repeat('e', 50000000) USING DETAIL = repeat('d', 50000000);
	END IF;
	RETURN to_jsonb(repeat('r', (job.payload #>> '{}')::int));
END $$;
SELECT tq_handle('run', NULL, 'run(tq_job)');
SELECT tq_enqueue('run', kind => 'error'), tq_enqueue('run', '100000000', kind => 'large'), tq_enqueue('run', '1000000', kind => 'fits');
SQL
until_true($node, "SELECT count(*) = 3 FROM tq_jobs WHERE queue = 'run' AND state IN ('dead', 'succeeded')", 'handlers have run');
is($node->safe_psql('postgres', "SELECT length(reason) <= 8000 AND reason ~ 'it had 50000000 bytes', length(detail ->> 'detail') <= 8000 FROM tq_dead WHERE kind = 'error'"),
	't|t', 'the error of a handler is cut');
is($node->safe_psql('postgres', "SELECT reason FROM tq_dead WHERE kind = 'large'"), 'result is too large', 'a result that is too large is an error');
is($node->safe_psql('postgres', "SELECT length((tq_get(id)).result #>> '{}') FROM tq_jobs WHERE kind = 'fits'"), '1000000', 'one that fits is kept');

is($node->safe_psql('postgres', "SELECT string_agg(c::text, ' ') FROM tq_check() c WHERE expected >= 0 AND expected <> found"), '', 'counters are right');
$node->stop;
done_testing();
