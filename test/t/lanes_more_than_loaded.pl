# More kinds have jobs on disk than are loaded at a time. Each kind is delivered in the end (P7). The queue setting
# `order`: jobs that are ready again start after those that were ready before, also beside a backlog on disk.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('dry_lanes', conf => <<CONF);
tq.max_live_jobs = 1000
tq.max_lanes = 1200
CONF
scheduler_of($node);
# --- jobs that poll -------------------------------------------------------------------------------------------------------

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub ids { return split /\n/, sql($_[0]); }
sub many { return ids("select unnest(tq_enqueue_many('$_[0]', array_fill('{}'::jsonb, array[$_[1]])))"); }

# Claims and releases jobs; returns their ids.
sub poll_some
{
	my ($queue, $n, $delay) = @_;
	$delay //= '0';
	return ids("with c as materialized (select id, lease from tq_claim('$queue', $n, wait => '3 min')) select id from c, tq_release(id, lease, '$delay')");
}

sql(q{select tq_create_queue('by age'), tq_create_queue('polls', '{"order": "ready"}')});
for my $queue ('by age', 'polls')
{
	my @polling = many($queue, 60);
	my @first = map { poll_some($queue, 10) } 1 .. 3;
	my $new = sql("select tq_enqueue('$queue')");
	my @next = map { poll_some($queue, 10) } 1 .. 7;
	if ($queue eq 'by age')
	{
		is_deeply([ @first, @next ], [ (@polling[ 0 .. 9 ]) x 10 ], 'by default the oldest jobs that poll keep the others waiting');
		next;
	}
	is_deeply(\@first, [ @polling[ 0 .. 29 ] ], 'jobs that were released start after others');
	is_deeply(\@next, [ @polling[ 30 .. 59 ], @polling[ 0 .. 29 ], $new, @polling[ 30 .. 38 ] ], '... and a new one in its turn');
	is(scalar(take($node, 'polls', 100)), 61, '... and all can be done');
}

# failed, retried and due jobs
my @jobs = map { sql("select tq_enqueue('polls')") } 1 .. 4;
my @late = map { sql("select tq_enqueue('polls', delay => '$_ min')") } 5, 6;    # in memory, not on disk
sql("select tq_fail(id, lease, 'broken', fatal => true) from tq_claim('polls')");
sql("select tq_fail(id, lease, 'broken', retry_in => '0') from tq_claim('polls')");
poll_some('polls', 1, '7 min');
$jobs[4] = sql("select tq_enqueue('polls')");
sql("select tq_retry($jobs[0])");
$jobs[5] = sql("select tq_enqueue('polls')");
clock($node, 600);
ok(until_true($node, q{select delayed = 0 from tq_stats() where queue = 'polls'}), 'delayed jobs become due');
$jobs[6] = sql("select tq_enqueue('polls')");
is_deeply([ take($node, 'polls', 100) ], [ @jobs[ 3, 1, 4, 0, 5 ], @late, @jobs[ 2, 6 ] ], 'jobs start in the order in which they became ready');
clock($node, 0);

# a backlog on disk
my @polling = many('polls', 20);
my @backlog = many('polls', 3000);
is_deeply([ poll_some('polls', 20) ], \@polling, 'jobs poll while others wait on disk');
is_deeply([ take_all($node, 'polls', 2000) ], [ @backlog[ 0 .. 1999 ] ], '... which come first');
poll_some('polls', 1);
my $newest = sql("select tq_enqueue('polls')");
is_deeply([ take_all($node, 'polls', 1021) ], [ @backlog[ 2001 .. 2999 ], @polling, $backlog[2000], $newest ], '... in the order of their ids');

# a restart
@polling = many('polls', 20);
poll_some('polls', 20);
my @before = map { sql("select tq_enqueue('polls')") } 1 .. 3;
$node->restart;
loaded($node);
is_deeply([ map { poll_some('polls', 1) } 1 .. 20 ], \@polling, 'after a restart jobs sort by age');
my $after = sql("select tq_enqueue('polls')");
is_deeply([ take_all($node, 'polls', 24) ], [ @before, @polling, $after ], '... until they are ready again');

# --- more kinds than are loaded at a time ---------------------------------------------------------------------------------

$node->safe_psql('postgres', <<'SQL');
select count(tq_enqueue_many('q', array_fill('{}'::jsonb, array[100]), kind => 'kind ' || k)) from generate_series(1, 400) k;
select tq_pause('q'), tq_resume('q');
SQL
for my $kind ('kind 1', 'kind 200', 'kind 400')
{
	is($node->safe_psql('postgres', "select count(*) from tq_claim('q', 1, kinds => '{$kind}', wait => '3 min')"), 1, "a job of $kind comes");
}
check_journal($node, 'the journal is consistent');
$node->stop;
done_testing();
