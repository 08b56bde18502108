# H1: the loader does not bring back a job that finished while it was reading. H2: a commit is visible before it is
# published; its jobs are loaded once. Also: claims that load without a scheduler, rows written without tq.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('loader', conf => 'tq.timer_horizon = 30min');
scheduler_of($node);
my $bulk = session($node);    # publishes by lowering watermarks
ask($bulk, 'set tq.publish_limit = 0');
my $worker = session($node);
my $producer = session($node);

# Enqueues a job with a payload that describes it; returns its id.
sub enqueue
{
	my ($session, $queue, $args) = @_;
	return ask($session, "select tq_enqueue('$queue'" . ($args ? ", $args" : '') . ')');
}

# id and lease of the next job, '' if there is none
sub claim
{
	my ($queue) = @_;
	return ask($worker, "select id || ', ' || lease from tq_claim('$queue')");
}

#
# H1
#
my $job = enqueue($producer, 'h1', 'priority => 100');
my $in_zero = $job;    # the first job of a database is there
my $held = claim('h1');
like($held, qr/^$job, /, 'H1: a job is running');
arm($node, 'refill-after-snapshot');
my $other = enqueue($bulk, 'h1', 'priority => 50');    # the watermark falls below the running job
standing($node, 'refill-after-snapshot');
is(ask($worker, "select tq_complete($held)"), 'succeeded', 'H1: it finishes while a loader has it in its list');
release($node, 'refill-after-snapshot');
is(join(',', work_off($node, 'h1')), $other, 'H1: the loader does not bring it back');

$job = enqueue($producer, 'h1', 'priority => 100');
$held = claim('h1');
arm($node, 'refill-before-install');
$other = enqueue($bulk, 'h1', 'priority => 50');
standing($node, 'refill-before-install');
is(ask($worker, "select tq_complete($held)"), 'succeeded', 'H1: it finishes after the loader has made placeholders');
release($node, 'refill-before-install');
is(join(',', work_off($node, 'h1')), $other, 'H1: not then either');

# its row and its history may be deleted meanwhile, as happens in segment 0
arm($node, 'refill-after-snapshot');
$other = enqueue($bulk, 'h1', 'priority => 50');
standing($node, 'refill-after-snapshot');
without_triggers($node, "delete from tq.event_0 where job_id = $in_zero; delete from tq.job_0 where id = $in_zero", 'tq.job_0', 'tq.event_0');
release($node, 'refill-after-snapshot');
is(join(',', work_off($node, 'h1')), $other, 'H1: it does not come back as a new one');
unlike(slurp_file($node->logfile), qr/the row of job $in_zero is gone/, 'H1: its row is not reported as gone');

# a job that failed meanwhile is not ready before its time
$job = enqueue($producer, 'h1', 'priority => 100');
$held = claim('h1');
arm($node, 'refill-after-snapshot');
$other = enqueue($bulk, 'h1', 'priority => 50');
standing($node, 'refill-after-snapshot');
is(ask($worker, "select tq_fail($held, 'x', retry_in => '1 h')"), 'delayed', 'H1: a job fails while it is in the list');
release($node, 'refill-after-snapshot');
is(join(',', take_all($node, 'h1', 1)), $other, 'H1: and is not in the way');
is(claim('h1'), '', 'H1: the loader does not make it ready before its time');
clock($node, 3601, 0);
is(join(',', take_all($node, 'h1', 1)), $job, 'H1: it is ready when that comes');
clock($node, 0, 0);

# the watermark falls while a loader is at work
$job = enqueue($bulk, 'sink', 'priority => 100');
is(join(',', work_off($node, 'sink')), $job, 'H1: a lane that was read from disk');
arm($node, 'refill-before-raise');
my $first = enqueue($bulk, 'sink', 'priority => 60');
standing($node, 'refill-before-raise');
my $second = enqueue($bulk, 'sink', 'priority => 50');
my $third = enqueue($bulk, 'sink', 'priority => 70');
release($node, 'refill-before-raise');
is(join(',', work_off($node, 'sink')), "$second,$first,$third", 'H1: what was committed behind the loader is not passed over');

# the same for delayed jobs
arm($node, 'timers-before-raise');
$first = enqueue($bulk, 'timer', q{run_at => now() + '9 min'});
standing($node, 'timers-before-raise');
$second = enqueue($bulk, 'timer', q{run_at => now() + '5 min'});
release($node, 'timers-before-raise');
clock($node, 310, 0);
is(join(',', take_all($node, 'timer', 1)), $second, 'H1: a delayed job committed behind the loader starts in time');
clock($node, 550, 0);
is(join(',', take_all($node, 'timer', 1)), $first, 'H1: and so does the other');
clock($node, 0, 0);

#
# H2
#
my $flag = $node->data_dir . '/hold';
my $slow = session($node);
ask($slow, q{load 'tq_test_callbacks'; set tq_test_callbacks.hold_commit = 'hold'});

for my $how ('one by one', 'as a bulk')
{
	my $limit = $how eq 'as a bulk' ? 0 : 1000;
	ask($slow, "set tq.publish_limit = $limit");
	append_to_file($flag, '');
	begin_ask($slow, q{select tq_enqueue('h2', priority => 100)});
	until_true($node, q{select count(*) = 1 from tq.job j join tq.queue q on q.id = queue_id where name = 'h2'
		and not exists (select from tq.event where job_id = j.id)}, 'the job is visible');
	# make a loader read the lane
	$other = enqueue($bulk, 'h2', 'priority => 50');
	my @done = take_all($node, 'h2', 1);
	is($done[0], $other, "H2: a loader reads the lane while a visible job is not published ($how)");
	enqueue($bulk, 'h2', 'priority => 50');
	take_all($node, 'h2', 1);
	# a single job has an entry; a bulk has an older key than the loader looks for
	is(claim('h2'), '', "H2: the loader leaves it to its own commit ($how)");
	unlink $flag;
	$job = end_ask($slow);
	like($job, qr/^\d+$/, "H2: the commit goes on ($how)");
	is(join(',', work_off($node, 'h2')), $job, "H2: the job runs once ($how)");
}

# a claim and a finish whose transaction is visible, but not published
$job = enqueue($producer, 'h2');
$held = claim('h2');
append_to_file($flag, '');
begin_ask($slow, "select tq_complete($held)");
until_true($node, "select count(*) = 1 from tq.event where job_id = $job and type = 's'");
enqueue($bulk, 'h2', 'priority => 50');
take_all($node, 'h2', 1);
is(claim('h2'), '', 'H2: a job whose finish is visible but not published is not offered');
like(ask($worker, "select tq_complete($held)"), qr/55P03/, 'H2: and is still held by the finishing transaction');
unlink $flag;
is(end_ask($slow), 'succeeded', 'H2: until that is over');
like(ask($worker, "select tq_complete($held)"), qr/TQ001/, 'H2: then its lease is gone');

# a callback that raises an error before the commit, so that tq's callback never gets PRE_COMMIT
like(ask($slow, q{begin; set local tq_test_callbacks.fail_pre_commit = on; select tq_enqueue('h2'); commit}),
	qr/commit refused/, 'H2: another callback refuses the commit');
is(claim('h2'), '', 'H2: nothing of it remains');

# without a scheduler a claim reads from disk itself
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->reload;
until_true($node, q{select count(*) = 0 from pg_stat_activity where backend_type = 'tq scheduler'});

# No commit publishes the jobs of a segment that can be read again. A loader that has not seen them must not skip jobs that a
# count has found on disk. Here they are rows that memory does not know
my $hand = 10_000_000;

# Lets a claim load a job of a new queue while a row is written and counted; returns the number of jobs. A group of a
# paused queue gets no slot at commit.
sub count_behind_loader
{
	my ($point, $queue, $args, $group, $due) = @_;
	++$hand;
	$node->safe_psql('postgres', "select tq_create_queue('$queue')");
	$node->safe_psql('postgres', "select tq_pause('$queue')") if $point eq 'groups-before-found';
	enqueue($bulk, $queue, $args);
	$node->safe_psql('postgres', "select tq_resume('$queue')") if $point eq 'groups-before-found';
	arm($node, $point);
	begin_ask($worker, "select count(tq_complete(id, lease)) from tq_claim('$queue')");
	standing($node, $point);
	without_triggers($node, 'insert into tq.job_0 (id, enqueued_at, queue_id, payload, priority, group_key, run_at)'
		  . " select $hand, now(), id, '{}', 60, $group, $due from tq.queue where name = '$queue'", 'tq.job_0');
	$node->safe_psql('postgres', 'select tq_reload()');
	release($node, $point);
	return end_ask($worker);
}

my $done = count_behind_loader('refill-before-raise', 'hand', 'priority => 50', 'null', 'null');
is($done + take_all($node, 'hand', 2 - $done), 2, 'H1: a row by hand, counted while a loader is at work, is not passed over');
$done = count_behind_loader('group-refill-before-raise', 'hand in group', q{priority => 50, group_key => 'g'}, q{'g'}, 'null');
is($done + take_all($node, 'hand in group', 2 - $done), 2, 'H1: a job of a group is not lost');
$done = count_behind_loader('groups-before-found', 'hand in new group', q{priority => 50, group_key => 'g'}, q{'f'}, 'null');
is($done + take_all($node, 'hand in new group', 2 - $done), 2, 'H1: a job of a new group is not lost');
$done = count_behind_loader('timers-before-raise', 'hand later', q{run_at => tq_now() + '5 min'}, 'null', q{tq_now() + '9 min'});
is($done, 0, 'H1: one of a later time');
clock($node, 550, 0);
is(scalar(take_all($node, 'hand later', 2)), 2, 'H1: is not passed over, too');
clock($node, 0, 0);

# it may have to wait; its lease begins when it has the job
enqueue($bulk, 'late');
arm($node, 'refill-after-snapshot');
begin_ask($worker, q{select id || ', ' || lease, lease_expires_at > tq_now() + '20 min' from tq_claim('late', lease_for => '30 min')});
standing($node, 'refill-after-snapshot');
clock($node, 3600, 3600);
release($node, 'refill-after-snapshot');
my ($late, $whole) = split /\|/, end_ask($worker);
is($whole, 't', 'a lease is as long as it was asked for, however long the claim took');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
scheduler_of($node);
like(ask($worker, "select tq_heartbeat($late)"), qr{,run\)}, 'and is not reaped');
is(ask($worker, "select tq_complete($late)"), 'succeeded', 'before its time');
clock($node, 0, 0);

# after a count that fails at its very beginning, another process can become the loader
my $pid = ask($worker, 'select pg_backend_pid()');
arm($node, 'count-before-begin', 'error', pid => $pid);
like(ask($worker, 'select count(*) from tq_check()'), qr/error injected/, 'a count fails before it has begun');
like(ask($worker, 'select count(*) from tq_check()'), qr/^\d+$/, 'the next one does not');

check_journal($node, 'H1, H2: every job finished once');
leave($bulk, $worker, $producer, $slow);
$node->stop;

# a delayed job that finds no free entry, because memory is full of jobs that may not start
$node = tq_node('no_room', conf => 'tq.max_live_jobs = 64');
scheduler_of($node);
my $transactions = q{select xact_commit from pg_stat_database where datname = 'postgres'};
$node->safe_psql('postgres', q{select count(tq_enqueue('paused')) from generate_series(1, 100)});
$node->safe_psql('postgres', q{select tq_pause('paused')});
my $later = $node->safe_psql('postgres', q{select tq_enqueue('delayed', delay => '4 min')});
my $soon = $node->safe_psql('postgres', q{select tq_enqueue('delayed', delay => '3 s')});
my $before = $node->safe_psql('postgres', $transactions);
my $began = time;
is(join(',', take($node, 'delayed', 1, undef, '3 min')), $soon, 'a delayed job gets in when it is due, however full memory is');
# a machine that is slow has more time for them; processes report them some time later
cmp_ok($node->safe_psql('postgres', $transactions) - $before, '<', 20 * (time - $began + 10), 'no process looks for free memory all the time until then');
clock($node, 241, 0);
is(join(',', take_all($node, 'delayed', 1)), $later, 'the next one gets in as well');
clock($node, 0, 0);
$node->stop;
done_testing();
