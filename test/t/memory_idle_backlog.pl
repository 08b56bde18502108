# A backlog that does not fit into memory. Without clients the server stops reading from disk, whatever the backlog
# consists of. Jobs that are evicted and loaded again without need are counted, and tq_health() reports them.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('idle_backlog', conf => <<CONF);
tq.max_live_jobs = 2000
tq.max_queues = 128
tq.max_lanes = 512
tq.max_groups = 300
CONF
scheduler_of($node);
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION counter(what text) RETURNS bigint LANGUAGE sql AS $$
	SELECT substring(m FROM ('\n' || what || '(?:{[^}]*})? (\d+)'))::bigint FROM tq_metrics() m $$;
-- how many jobs go to disk or come from there while a claim waits for a job that does not come
CREATE PROCEDURE reads_in(period interval, INOUT reads bigint) LANGUAGE plpgsql AS $$
DECLARE before bigint := counter('tq_refilled_jobs_total') + counter('tq_evicted_jobs_total');
BEGIN
	COMMIT;
	PERFORM FROM tq_claim('nothing here', 1, wait => period);
	reads := counter('tq_refilled_jobs_total') + counter('tq_evicted_jobs_total') - before;
END $$;
SQL

# True when nothing was read for two seconds. Without the protection, thousands of jobs are read in each second.
sub comes_to_rest
{
	my ($what) = @_;
	my $reads = -1;
	for (1 .. 90)
	{
		$reads = $node->safe_psql('postgres', q{CALL reads_in('2 s', NULL)});
		last if $reads == 0;
	}
	is($reads, 0, "the server comes to rest with $what");
	return;
}

# The scheduler does not read the same delayed jobs again and again.
sub leaves_timers_alone
{
	my ($what) = @_;
	arm($node, 'timers-before-raise', 'wait', skip => 100);
	$node->safe_psql('postgres', q{CALL reads_in('2 s', NULL)});
	is($node->safe_psql('postgres', q{SELECT tq_test_waiting('timers-before-raise')}), 0, "the scheduler rests with $what");
	release($node, 'timers-before-raise');
	return;
}

sub restart
{
	$node->restart;
	loaded($node);
	scheduler_of($node);
	return;
}

sub drop_all
{
	$node->safe_psql('postgres', 'DROP EXTENSION tq CASCADE');
	$node->safe_psql('postgres', 'CREATE EXTENSION tq');
	scheduler_of($node);
	return;
}

my %backlogs = (
	'queues' => "SELECT tq_enqueue_many('q' || g % 60, array_fill('{}'::jsonb, array[50])) FROM generate_series(1, 120) g",
	'kinds' => "SELECT tq_enqueue_many('q', array_fill('{}'::jsonb, array[50]), kind => 'k' || g % 100) FROM generate_series(1, 200) g",
	'groups' => "SELECT tq_enqueue_many('q' || g % 2, array_fill('{}'::jsonb, array[50]), group_key => 'g' || g % 100) FROM generate_series(1, 200) g",
	'kinds and groups' => "SELECT tq_enqueue_many('q' || g % 3, array_fill('{}'::jsonb, array[50]), kind => CASE WHEN g % 5 < 2 THEN 'k' || g % 7 END,
		group_key => CASE WHEN g % 5 > 2 THEN 'g' || g % 31 END) FROM generate_series(1, 400) g",
	'more groups than slots' => "SELECT tq_enqueue_many('q' || g % 4, array_fill('{}'::jsonb, array[10]), group_key => CASE WHEN g % 9 > 1 THEN 'g' || g END)
		FROM generate_series(1, 900) g",
	'delayed jobs' => "SELECT tq_enqueue_many('q' || g % 20, array_fill('{}'::jsonb, array[50]), delay => CASE WHEN g % 2 = 0 THEN interval '50 s' END)
		FROM generate_series(1, 100) g",
);
for my $what (sort keys %backlogs)
{
	$node->safe_psql('postgres', $backlogs{$what});
	comes_to_rest($what);
	restart();
	comes_to_rest("$what, after a restart");
	is($node->safe_psql('postgres', "SELECT string_agg(c::text, ' ') FROM tq_check() c WHERE expected >= 0 AND expected <> found"), '',
		"counters are right with $what");
	drop_all();
}

#
# Delayed jobs that become due while memory is full are left to their lanes
#
$node->safe_psql('postgres', "SELECT tq_enqueue_many('q', array_fill('{}'::jsonb, array[4000]))");
$node->safe_psql('postgres', "SELECT tq_enqueue_many('late', array_fill('{}'::jsonb, array[3000]), delay => '1 s')");
until_true($node, "SELECT ready = 3000 FROM tq_stats() WHERE queue = 'late'", 'they are due');
comes_to_rest('jobs that became due');
leaves_timers_alone('jobs that became due');
drop_all();

#
# Jobs that are evicted and reloaded are reported: jobs of other kinds replace the first ones, which are reloaded when
# jobs have ended. The scheduler counts by the minute, so a minute must see enough of them at any speed: memory is small.
#
$node->append_conf('postgresql.conf', "tq.max_live_jobs = 64");
restart();
my $again = q{SELECT status FROM tq_health() WHERE item = 'jobs evicted and read again'};
is($node->safe_psql('postgres', $again), 'ok', 'tq_health() finds nothing wrong at rest');
sub evict_and_reload
{
	$node->safe_psql('postgres', "SELECT tq_enqueue_many('q', array_fill('{}'::jsonb, array[16]))") for 1 .. 4;
	$node->safe_psql('postgres', "SELECT tq_enqueue_many('q', array_fill('{}'::jsonb, array[8]), kind => 'k$_')") for 1 .. 6;
	return until_true($node, q{SELECT count(*) = 7 FROM tq_ready('{q}')}, 'all kinds are in memory')
	  && until_true($node, <<'SQL', 'all jobs have ended');
SELECT CASE
	WHEN (SELECT live = 0 FROM tq_queues WHERE queue = 'q') THEN true
	ELSE (SELECT count(tq_complete(id, lease)) < 0 FROM tq_claim('q', 8)) END
SQL
}
my ($status, $minutes) = ('ok', 0);
while ($status eq 'ok' && $minutes < 100 && evict_and_reload() && evict_and_reload())
{
	clock($node, 0, 61 * ++$minutes);
	$status = $node->safe_psql('postgres', $again);
}
is($status, 'warn', 'tq_health() names jobs that are evicted and read again');

$node->stop;
done_testing();
