# One role with one right on one queue takes as much memory as it can. Another queue still delivers 300 new jobs. One
# section for each shared resource: live jobs, kinds, groups, names of workers, progress, queues, kinds of many queues.
# The server warns of sizes that are too small.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('shares', conf => <<CONF);
tq.max_live_jobs = 8000
tq.max_queues = 64
tq.max_lanes = 256
tq.max_groups = 200
tq.max_workers = 20
tq.max_progress = 8
tq.publish_limit = 100
CONF
my $many = 12_000;
$node->safe_psql('postgres', <<SQL);
CREATE ROLE producer LOGIN;
CREATE ROLE consumer LOGIN;
CREATE ROLE manager LOGIN;
CREATE ROLE maker LOGIN;
SELECT tq_create_queue('qa');
SELECT tq_grant('qa', 'producer', 'produce'), tq_grant('qa', 'consumer', 'consume'), tq_grant('qa', 'manager', 'manage'),
	tq_grant('*', 'maker', 'create');
-- claims and completes until no jobs are waiting, or nothing comes for long
CREATE PROCEDURE work_off(q text, INOUT done int) LANGUAGE plpgsql AS \$\$
DECLARE got int; idle int := 0;
BEGIN
	done := 0;
	LOOP
		WITH c AS MATERIALIZED (SELECT * FROM tq_claim(q, 20, wait => '100 ms')), -- poll
			f AS MATERIALIZED (SELECT tq_complete(id, lease) FROM c)
		SELECT count(*) INTO got FROM f;
		COMMIT;
		idle := CASE WHEN got > 0 THEN 0 ELSE idle + 1 END;
		EXIT WHEN idle > 1800 OR got = 0 AND NOT EXISTS (SELECT FROM tq_jobs j WHERE j.queue = q AND j.state IN ('ready', 'delayed'));
		done := done + got;
	END LOOP;
END \$\$;
SQL

my $victims = 0;

# A new queue's 300 jobs, some of them delayed, some of a kind and in groups, are all delivered.
sub victim_works
{
	my ($beside) = @_;
	my $q = 'v' . ++$victims;
	$node->safe_psql('postgres', <<SQL);
SELECT tq_enqueue('$q', kind => CASE WHEN g % 3 = 0 THEN 'k' || g % 4 END, group_key => CASE WHEN g % 5 = 0 THEN 'g' || g % 20 END,
	delay => CASE WHEN g % 7 = 0 THEN interval '100 ms' END) FROM generate_series(1, 300) g;
SQL
	is($node->safe_psql('postgres', "CALL work_off('$q', NULL)"), '300', "a new queue's jobs are delivered beside $beside");
	$node->safe_psql('postgres', "SELECT tq_drop_queue('$q')");
	return;
}

# Claims and completes all jobs of the attacked queue.
sub empty
{
	for (1 .. 100)
	{
		$node->safe_psql('postgres', "CALL work_off('qa', NULL)");
		return if unfinished($node, 'qa') == 0;
	}
	fail('the jobs of the attacked queue end');
	return;
}

sub counters_hold
{
	my ($after) = @_;
	is($node->safe_psql('postgres', "SELECT string_agg(c::text, ' ') FROM tq_check() c WHERE expected >= 0 AND expected <> found"), '',
		"counters are right after $after");
	return;
}

sub as { my ($role) = @_; my $s = session($node); ask($s, "SET ROLE $role"); return $s; }

$node->safe_psql('postgres', "SELECT tq_enqueue('qa') FROM generate_series(1, $many)");
my $claim_all = <<'SQL';
DO $$ DECLARE k int; z int := 0; total int := 0; wanted int := current_setting('shares.wanted', true); BEGIN
	LOOP
		SELECT count(*) INTO k FROM tq_claim('qa', 10000, wait => '200 ms', lease_for => '49 days'); -- limit: it gets its share only
		z := CASE WHEN k = 0 THEN z + 1 ELSE 0 END;
		total := total + k;
		-- what comes from the disk may come late
		EXIT WHEN z > 900 OR z > 5 AND total >= coalesce(wanted, 0);
	END LOOP;
	IF current_setting('shares.raise', true) = 'on' THEN RAISE EXCEPTION 'rolled back'; END IF;
END $$;
SQL

#
# Claims that are rolled back, held by an open transaction, and held for 49 days
#
my $consumer = as('consumer');
ask($consumer, "SET shares.raise = on");
like(ask($consumer, $claim_all), qr/rolled back/, 'a role claims what it can get, and rolls back');
victim_works('jobs whose claims were rolled back');
ask($consumer, "SET shares.raise = off");
ask($consumer, 'SET shares.wanted = 3201');
ask($consumer, 'BEGIN');
ask($consumer, $claim_all);
my $held = ask($consumer, "SELECT running FROM tq_queues WHERE queue = 'qa'");
cmp_ok($held, '<', 8000 * 0.6, "one queue holds at most about half of the memory ($held)");
cmp_ok($held, '>', 8000 * 0.4, 'and no less');
victim_works('claims of an open transaction');
my $next = $node->safe_psql('postgres',
	"SELECT tq_explain(id) FROM tq_jobs WHERE queue = 'qa' AND state = 'ready' ORDER BY id LIMIT 1");
like($next, qr/queue "qa" has its share of memory: \d+ jobs run/, 'tq_explain says what the next job waits for');
ask($consumer, 'COMMIT');
victim_works('claims held for 49 days');

#
# The calls of a manager when the share is used up, and a rollback in between
#
my $manager = as('manager');
my $ready = $node->safe_psql('postgres', "SELECT id FROM tq_jobs WHERE queue = 'qa' AND state = 'ready' LIMIT 1");
like(ask($manager, "SELECT tq_reschedule($ready, priority => 3)"),
	qr/53400.*no room in memory for job/s, 'a queue that has its share gets no rescheduled job');
is($node->safe_psql('postgres', "SELECT count(*) FROM tq_complete_many((SELECT array_agg(id) FROM tq_running WHERE queue = 'qa'),
	(SELECT array_agg(lease) FROM tq_running WHERE queue = 'qa')) WHERE status = 'ok'"), $held, 'all of them end');
ask($manager, <<'SQL');
DO $$ DECLARE j bigint; BEGIN
	FOR j IN SELECT id FROM tq_jobs WHERE queue = 'qa' AND state = 'ready' LOOP
		BEGIN PERFORM tq_reschedule(j, priority => 3); EXCEPTION WHEN configuration_limit_exceeded THEN EXIT; END;
	END LOOP;
END $$;
SQL
victim_works('rescheduled jobs');
$node->restart;
victim_works('rescheduled jobs after a restart');
ask($manager = as('manager'), 'BEGIN');
ask($manager, "SELECT tq_purge('qa', 'ready')");
victim_works('a purge that is not committed');
ask($manager, 'ROLLBACK');
counters_hold('all of it');
empty();

#
# Kinds
#
my $producer = as('producer');
like(ask($producer, "BEGIN; SELECT tq_enqueue('qa', kind => 'z' || i) FROM generate_series(1, 1100) i"),
	qr/53400.*too many kinds of jobs in queue "qa".*The queue has \d+ kinds/s, 'one queue cannot take all kinds');
like(ask($producer, "ROLLBACK; SELECT tq_enqueue_many('qa', array_fill('{}'::jsonb, '{1100}'), kinds => array_agg('z' || i)) FROM generate_series(1, 1100) i"),
	qr/53400.*CONTEXT:  element \d+ of the arrays/s, 'the error names the element whose kind has no place');
ask($producer, "BEGIN; SELECT tq_enqueue('qa', kind => 'z' || i) FROM generate_series(1, 1100) i");
victim_works('an open transaction that has taken its share of kinds');
ask($producer, 'ROLLBACK');
my $lanes = "SELECT used FROM (SELECT substring(m FROM '\\d+\$')::int AS used FROM string_to_table(tq_metrics(), E'\\n') m
	WHERE m LIKE 'tq_memory_places_used{place=\"kind\"}%') x";
cmp_ok($node->safe_psql('postgres', $lanes), '<', 20, 'a rollback frees its kinds');
ask($producer, "SELECT tq_enqueue('qa', kind => 'y' || i) FROM generate_series(1, 90) i");
victim_works('ninety kinds');
empty();
is(ask($producer, "SELECT count(tq_enqueue('qa', kind => 'x' || i)) FROM generate_series(1, 90) i"), '90',
	'kinds without jobs make way for others');
empty();

#
# Groups
#
ask($producer, "SELECT tq_enqueue('qa', group_key => 'g' || i) FROM generate_series(1, 3000) i");
$consumer = as('consumer');
ask($consumer, 'BEGIN');
my $last = "SELECT tq_explain(id) FROM tq_jobs WHERE queue = 'qa' AND state = 'ready' ORDER BY id DESC LIMIT 1";
my $waits_for_place = qr/waits on disk: queue "qa" has its share of the places for groups/;
# what comes from the disk may come late
until_so(sub { ask($consumer, $claim_all); $node->safe_psql('postgres', $last) =~ $waits_for_place }, 'queue qa has its share');
cmp_ok(ask($consumer, "SELECT running FROM tq_queues WHERE queue = 'qa'"), '<', 180, 'one queue cannot take all places for groups');
victim_works('groups that run');
like($node->safe_psql('postgres', $last), $waits_for_place, 'tq_explain says what a group waits for');
ask($consumer, 'ROLLBACK');
empty();

#
# Names of workers, progress
#
$consumer = as('consumer');
ask($consumer, "SELECT FROM tq_claim('qa', worker => 'made up ' || $_)") for 1 .. 40;
is($node->safe_psql('postgres', "SELECT tq_drain('victim')"), '0', 'made-up names of workers do not keep anybody from draining');
$node->safe_psql('postgres', "SELECT tq_enqueue('qb', '{}'), tq_enqueue('qa') FROM generate_series(1, 20)");
is($node->safe_psql('postgres', "SELECT count(*) FROM tq_claim('qb', worker => 'named')"), '1', 'another role claims by name');
is($node->safe_psql('postgres', "SELECT count(*) FROM tq_workers WHERE worker = 'named'"), '1', 'and its name is known');
is($consumer->query("SELECT action FROM tq_claim('qa') c, tq_heartbeat(c.id, c.lease, worker => 'one more')"), 'run', 'a job without room for its new holder goes on');
like($consumer->{stderr}, qr/WARNING: .*the name of worker "one more" cannot be stored/, 'the caller is warned');
ask($consumer, "SELECT tq_heartbeat(id, lease, progress => '\"half\"') FROM tq_claim('qa', 20, worker => 'hog')");
$node->safe_psql('postgres', "SELECT tq_heartbeat(id, lease, progress => '\"mine\"') FROM tq_claim('qb', 1)");
is($node->safe_psql('postgres', "SELECT count(*) FROM tq_running WHERE queue = 'qb' AND progress IS NOT NULL"), '1',
	'one queue cannot take all places for progress');

#
# Queues
#
my $maker = as('maker');
my $made = 0;
for my $i (1 .. 64)
{
	my $answer = ask($maker, "SELECT tq_create_queue('m$i')");
	if ($answer =~ /ERROR/)
	{
		like($answer, qr/53400.*too many queues.*role "maker" has created $made\./s, "one role cannot make all queues ($made)");
		last;
	}
	++$made;
}
cmp_ok($made, '<', 40, 'but half of them');
is($node->safe_psql('postgres', "SELECT tq_create_queue('late') IS NULL"), 'f', 'others can make some');

#
# Progress and kinds of many queues that one role created
#
sub complete_all
{
	$node->safe_psql('postgres', "SELECT count(*) FROM tq_complete_many((SELECT array_agg(id) FROM tq_running), (SELECT array_agg(lease) FROM tq_running))");
	return;
}
complete_all();
ask($maker, "SELECT tq_enqueue('m' || 1 + i % 3) FROM generate_series(1, 30) i");
ask($maker, "SELECT tq_heartbeat(id, lease, progress => '\"half\"') FROM tq_claim('m$_', 10)") for 1 .. 3;
$node->safe_psql('postgres', "SELECT tq_heartbeat(id, lease, progress => '\"mine\"') FROM tq_claim('qb', 1)");
is($node->safe_psql('postgres', "SELECT string_agg(DISTINCT queue, ' ') FILTER (WHERE queue <> 'qb') || '|' || count(*) FILTER (WHERE queue = 'qb') FROM tq_running WHERE progress IS NOT NULL"),
	'm1|1', 'one role cannot take all places for progress with the queues that it creates');
complete_all();

sub fill_kinds
{
	ask($maker, <<'SQL');
DO $$ BEGIN
	FOR q IN 1 .. 10 LOOP
		FOR k IN 1 .. 40 LOOP
			BEGIN PERFORM tq_enqueue('m' || q, kind => 'k' || k); EXCEPTION WHEN configuration_limit_exceeded THEN EXIT; END;
		END LOOP;
	END LOOP;
END $$;
SQL
	return $node->safe_psql('postgres', "SELECT count(DISTINCT (queue, kind)) FROM tq_jobs WHERE queue LIKE 'm%' AND kind IS NOT NULL");
}
my $refused = qr/53400.*too many kinds of jobs in queue "m1".*Role "maker" has created $made queues with 1?\d\d kinds\. Beyond 1 for each queue, a role can have at most 96\./s;
cmp_ok(fill_kinds(), '<=', 10 + 96, 'one role cannot take all kinds with the queues that it creates');
like(ask($maker, "SELECT tq_enqueue('m1', kind => 'one more')"), $refused, 'the error names the role and its limit');
victim_works('kinds in many queues of one role');
$node->safe_psql('postgres', "SELECT tq_revoke('m' || g, 'maker', 'monitor') FROM generate_series(1, $made) g");
leave($consumer, $manager, $producer, $maker);
$node->restart;
$maker = as('maker');
cmp_ok(fill_kinds(), '<=', 10 + 96, 'nor after a restart, and without all rights on them');
like(ask($maker, "SELECT tq_enqueue('m1', kind => 'one more')"), $refused, '... with the same error');
like(ask($maker, "SELECT tq_create_queue('m more')"), qr/53400.*role "maker" has created $made\./s, '... and no more queues');
ask($maker, "SELECT tq_drop_queue('m$made')");
ok(until_true($node, "SELECT count(*) = $made - 1 FROM tq.creator WHERE role = 'maker'::regrole"), 'a dropped queue does not count');

#
# Sizes that are too small
#
my $log = slurp_file($node->logfile);
like($log, qr/WARNING: +tq\.max_groups is too small for a guaranteed share of each of the queues\n.*DETAIL: +200 groups guarantee a share to 50 of 64 queues \(tq\.max_queues\)\.\n.*HINT: +Set tq\.max_groups to at least 256, or tq\.max_queues to at most 50, and restart the server\./,
	'the server warns of a size that cannot guarantee a share to each queue');
unlike($log, qr/tq\.max_(?!groups)\w+ is too small/, '... and of no other');
is($node->safe_psql('postgres', "SELECT value, status, hint FROM tq_health() WHERE item = 'guaranteed shares'"),
	'tq.max_groups: 50 of 64 queues|warn|Set tq.max_groups to at least 256, or tq.max_queues to at most 50, and restart the server.', '... and so does tq_health');

counters_hold('everything');
leave($maker);
check_journal($node);

#
# One transaction that changes waiting jobs of many queues, with savepoints
#
my $boss = session($node);
ask($boss, "SELECT tq_enqueue_many('many ' || k, array_fill('{}'::jsonb, array[1000]), delay => '3 days') FROM generate_series(1, 6) k");
ask($boss, <<'SQL');
CREATE PROCEDURE hold(verb text, queues text = 'many %') LANGUAGE plpgsql AS $$
DECLARE j bigint;
BEGIN
	FOR j IN SELECT id FROM tq_jobs WHERE queue LIKE queues AND state IN ('delayed', 'cancelled') ORDER BY id LOOP
		BEGIN EXECUTE format('SELECT ' || verb, j); EXCEPTION WHEN configuration_limit_exceeded THEN EXIT; WHEN OTHERS THEN NULL; END;
	END LOOP;
END $$;
SQL
my $pinned = q{SELECT split_part(value, ' ', 1) FROM tq_health() WHERE item = 'jobs that cannot leave memory'};
my $before = $node->safe_psql('postgres', $pinned);
for my $verb ('tq_cancel(%s)', q{tq_reschedule(%s, run_at => now() + interval '5 days')})
{
	ask($boss, 'BEGIN');
	ask($boss, "CALL hold(\$_\$$verb\$_\$)");
	is($node->safe_psql('postgres', $pinned), $before + 4000, "a transaction holds half of memory: $verb");
	ask($boss, "SAVEPOINT s; CALL hold('tq_reschedule(%s, priority => 3)')");
	is($node->safe_psql('postgres', $pinned), $before + 4000, '... also with another verb');
	my $other = session($node);
	ask($other, 'BEGIN');
	ask($other, "CALL hold('tq_reschedule(%s, priority => 4)')");
	cmp_ok($node->safe_psql('postgres', $pinned), '<=', $before + 4375 + 6 * 15, '... and all of them do not get the reserve for claims');
	$node->safe_psql('postgres', "SELECT tq_enqueue('many 1') FROM generate_series(1, 5)");
	# a claim brings those that have been read in by then
	my ($started, $got) = (0, 1);
	for (; $started < 5 && $got > 0; $started += $got)
	{
		$got = $node->safe_psql('postgres', "SELECT count(tq_complete(id, lease)) FROM tq_claim('many 1', 5, wait => '180 s')");
	}
	is($started, 5, '... from which their own queues start jobs');
	victim_works("transactions that do so: $verb");
	ask($other, 'ROLLBACK');
	ask($boss, 'ROLLBACK');
}
counters_hold('transactions that hold many jobs');

#
# Jobs rescheduled in many queues of one database, by transactions that have committed
#
my $in_use = $node->safe_psql('postgres', $pinned);
my $health = q{SELECT status FROM tq_health() WHERE item = 'jobs that cannot leave memory'};
is($node->safe_psql('postgres', $health), 'ok', 'the database may change more jobs');
ask($boss, "CALL hold('tq_reschedule(%s, priority => 3)', 'many $_')") for 1 .. 6;
my $kept = $node->safe_psql('postgres', $pinned) - $in_use;
cmp_ok($kept, '>=', 3900, 'a database keeps rescheduled jobs in half of the memory');
cmp_ok($kept, '<=', 4000 + 6 * 15, '... but no more, in however many queues');
is($node->safe_psql('postgres', $health), 'warn', 'tq_health tells that');
like($node->safe_psql('postgres', q{SELECT value FROM tq_health() WHERE item = 'queues at their share of memory'}),
	qr/many 1 \(1000 jobs, 0 of them run, more can start\)/, '... and of which queues no more jobs can be changed');
like(ask($boss, "SELECT tq_reschedule((SELECT max(id) FROM tq_jobs WHERE queue = 'many 6'), priority => 3)"),
	qr/53400.*Its queue, its database or this transaction has its share of these/s, '... which the error says');
victim_works('rescheduled jobs of many queues');
$node->safe_psql('postgres', 'CREATE DATABASE beside');
$node->safe_psql('beside', 'CREATE EXTENSION tq');
$node->safe_psql('beside', "SELECT tq_enqueue_many('beside', array_fill('{}'::jsonb, array[1000]), delay => '3 days')");
scheduler_of($node, 'beside');
$node->safe_psql('beside', <<'SQL');
DO $$
DECLARE j bigint;
BEGIN
	FOR j IN SELECT id FROM tq_jobs ORDER BY id LOOP
		BEGIN PERFORM tq_reschedule(j, priority => 3); EXCEPTION WHEN configuration_limit_exceeded THEN EXIT; END;
	END LOOP;
END $$;
SQL
my $theirs = $node->safe_psql('beside', q{SELECT count(*) FROM tq_jobs WHERE priority = 3});
cmp_ok($theirs, '>=', 200, "another database can change some, too ($theirs)");
counters_hold('rescheduled jobs of many queues');

$node->stop;
done_testing();
