# Modes skip_waiting and replace_waiting: only the newest job of a key gets further attempts. Scenarios: the older job
# starts, or waits again, while an enqueue looks at it (H27); its claim was in the journal before a crash, or not; it was
# evicted before the newer one committed.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('beside', conf => <<CONF);
tq.max_live_jobs = 16
tq.segment_rows = 50
tq.naptime = 20ms
tq.timer_horizon = 1s
tq.claim_log_delay = 1min
CONF
scheduler_of($node);

sub sql { return $node->safe_psql('postgres', $_[0]) }

# Claims the next job of a queue: its id and its lease.
sub claim { return split /\|/, sql("select id, lease from tq_claim('$_[0]', wait => '3 min')") }

# Enqueues a job with the key k.
sub enqueue { return sql("select id from tq_enqueue_info('$_[0]', unique_key => 'k', unique_mode => 'skip_waiting')") }

sub state { return sql("select state from tq_get($_[0])") }

sub restart
{
	$node->stop('immediate');
	$node->start;
	scheduler_of($node);
	return;
}

sub becomes
{
	my ($job, $state, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(until_true($node, "select state = '$state' from tq_get($job)"), $name)
	  or diag(state($job));
	return;
}

# A statement that enqueues a job with the key k in place of a waiting one.
sub replacing
{
	my ($queue, $v) = @_;
	return qq{select outcome from tq_enqueue_info('$queue', '{"v": $v}', unique_key => 'k', unique_mode => 'replace_waiting')};
}

# The jobs of a queue: their states and payloads.
sub jobs { return sql("select string_agg(g.state || ' ' || (g.payload ->> 'v'), ', ' order by j.id) from tq_jobs j, tq_get(j.id) g where j.queue = '$_[0]'") }

#
# two producers, and a worker that starts the job, or releases it, after one of them has looked
#
my @producers = (session($node), session($node));
my @pids = map { ask($_, 'select pg_backend_pid()') } @producers;
sql(replacing('starts', 1));
ask($producers[0], 'begin');
arm($node, 'unique-after-check', 'wait', pid => $pids[0]);
begin_ask($producers[0], replacing('starts', 2));
standing($node, 'unique-after-check');
begin_ask($producers[1], replacing('starts', 3));
until_true($node, "select cardinality(pg_blocking_pids($pids[1])) > 0", 'the other producer waits for the key');
my ($first, $lease) = claim('starts');
release($node, 'unique-after-check');
is(end_ask($producers[0]), 'created', 'H27: a job that starts meanwhile is not replaced: the new one waits beside it');
ask($producers[0], 'commit');
is(end_ask($producers[1]), 'replaced', 'H27: the next one replaces the one that waits');
is(jobs('starts'), 'running 1, cancelled 2, ready 3', 'H27: one runs, and the newest waits');
is(sql("select tq_fail($first, $lease, 'error', retry_in => '1 h')"), 'cancelled', 'H27: the running one was superseded');

sql(replacing('waits', 1));
($first, $lease) = claim('waits');
arm($node, 'unique-after-check', 'wait', pid => $pids[0]);
begin_ask($producers[0], replacing('waits', 2));
standing($node, 'unique-after-check');
is(sql("select tq_release($first, $lease)"), 'ready', 'a job waits again while an enqueue looks at it');
release($node, 'unique-after-check');
is(end_ask($producers[0]), 'replaced', 'H27: it is replaced');
is(jobs('waits'), 'cancelled 1, ready 2', 'H27: only the newest waits');
leave(@producers);

#
# crashes
#
$first = enqueue('crash');
claim('crash');
sql(replacing('crash', 1));
my $second = sql("select id from tq_enqueue_info('crash', unique_key => 'k', unique_mode => 'replace_waiting')");
isnt($second, $first, 'a job is enqueued beside the running one');
is(sql("select count(*) from tq.event where job_id = $first and type = 'c'"), 0, 'whose claim is not in the journal');
restart();
becomes($first, 'cancelled', 'a crash that loses the claim ends the older job');
is(sql("select reason from tq_history($first) where event = 'cancelled'"), 'superseded by a newer job with its unique key', 'which says why');
is((claim('crash'))[0], $second, 'the newer job is claimed');

$node->append_conf('postgresql.conf', 'tq.claim_log_delay = 10ms');
$node->reload;
$first = enqueue('logged');
(undef, $lease) = claim('logged');
until_true($node, "select exists (select from tq.event where job_id = $first and type = 'c')", 'the claim is journalled');
$second = enqueue('logged');
restart();
is(state($first), 'running', 'a journalled claim survives a crash');
is(enqueue('logged'), $second, 'and the newer job waits');
is(sql("select tq_fail($first, $lease, 'error')"), 'cancelled', 'the older job is still superseded');
is((claim('logged'))[0], $second, 'only the newer job remains');

#
# evicted
#
$first = enqueue('evicted');
(undef, $lease) = claim('evicted');
my $producer = session($node);
ask($producer, 'begin');
$second = ask($producer, "select id from tq_enqueue_info('evicted', unique_key => 'k', unique_mode => 'skip_waiting')");
is(sql("select tq_fail($first, $lease, 'error', retry_in => '1 h')"), 'delayed', 'the older job fails before the newer one is committed');
sql("select cardinality(tq_enqueue_many('evicted', array_fill('{}'::jsonb, '{200}')))");
until_true($node, "select in_memory < 16 and on_disk > 100 from tq_queues where queue = 'evicted'", 'memory is full');
ask($producer, 'commit');
is(enqueue('evicted'), $second, 'the newer job waits');
clock($node, 3700);
becomes($first, 'cancelled', 'when the older job is due, it is cancelled');
is(sql("select string_agg(event, ' ' order by step) from tq_history($first) where step > 1"), 'superseded failed cancelled', 'without another attempt');

leave($producer);
is(sql('select coalesce(sum(found), 0) from tq_check() where expected >= 0'), 0, 'memory and journal agree');

done_testing();
