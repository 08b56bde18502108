# A job that waits for other jobs becomes ready when the last of them has ended (H17). Scenarios: the order of the
# commits of parent and child, savepoints; the resolver against other transactions, errors and crashes; parents that
# fail; verbs on a blocked job; batches; a restored dump.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('dependencies', conf => <<CONF);
tq.segment_rows = 150
tq.segment_interval = '20d'
tq.lease = '1h'
max_connections = 30
CONF
scheduler_of($node);
my ($one, $other);

sub sql { return $node->safe_psql('postgres', $_[0]); }

# The scheduler's commits are asynchronous; a commit that is not writes them, too.
sub crash
{
	sql(q{select pg_logical_emit_message(true, 'test', '')});
	$node->stop('immediate');
	$node->start;
	loaded($node);
	scheduler_of($node);
	$_ = session($node) for $one, $other;
	return;
}

sub enqueue { my ($queue, $args) = @_; return sql("select tq_enqueue('$queue'" . ($args ? ", $args" : '') . ')'); }

# A job with parents.
sub child { my ($queue, $parents, $args) = @_; return enqueue($queue, "depends_on => '{$parents}'" . ($args ? ", $args" : '')); }

sub state_of { return sql("select state from tq_get($_[0])"); }

sub becomes { my ($job, $state) = @_; return until_true($node, "select state = '$state' from tq_get($job)", "$job $state"); }

# No job waits for another, and the resolver knows it.
sub settled
{
	# a batch with failures keeps those of the jobs that have ended
	return until_true($node, q{select count(*) = 0 from tq.dependency where state is null or child_id not in
		(select id from tq.batch where failed > 0)}, 'no dependencies');
}

#
# one parent
#
$_ = session($node) for $one, $other;
my $p = enqueue('p');
my $c = child('c', $p);
is(state_of($c), 'blocked', 'a job that depends on another is blocked');
is(sql("select ready || ' ' || live from tq_stats() where queue = 'c'"), '0 1', 'and not among the ready ones');
is(sql(q{select count(*) from tq_claim('c')}), '0', 'no claim gets it');
sql(q{select tq_complete(id, lease, '{"answer": 42}') from tq_claim('p')});
ok(becomes($c, 'ready'), 'when its parent has succeeded it is ready');
is(sql(q{select parents from tq_claim('c')}), qq({"$p": {"state": "succeeded", "result": {"answer": 42}}}),
	'and is given the result');
is(sql("select string_agg(event, ' ' order by step) from tq_history($c)"), 'enqueued freed claimed', 'its history says so');
ok(settled(), 'the registry is empty');

# across a restart
$p = enqueue('p');
$c = child('c', $p);
crash();
is(state_of($c), 'blocked', 'after a crash it is blocked as before');
sql(q{select tq_complete(id, lease) from tq_claim('p')});
ok(becomes($c, 'ready'), 'and is freed');
crash();
is(state_of($c), 'ready', 'after another one it is ready');
is(sql("select count(*) from tq_claim('c', 10) where id = $c"), '1', 'and can be claimed');

# --- the order of commits (H17) ---------------------------------------------------------------------------------------------

sub finish { my ($queue) = @_; return sql("select tq_complete(id, lease) from tq_claim('$queue')"); }

# Ends all jobs of earlier tests.
sub clear
{
	# the resolver may be cancelling some of them itself
	my $emptied = sub {
		$node->psql('postgres', q{select count(tq_cancel(id)) from (select id from tq_jobs where state in ('ready', 'delayed', 'blocked') limit 100) x;
			select count(tq_complete(id, lease)) from tq_running}, on_error_stop => 0);
		return sql(q{select count(*) from tq_jobs where state in ('ready', 'delayed', 'blocked', 'running')}) == 0;
	};
	until_so($emptied, 'no job is left');
	settled();
	return;
}
clear();

# parents that ended before; more children than parents
$p = enqueue('p');
finish('p');
my $dead = enqueue('p');
sql("select tq_fail(id, lease, 'no', fatal => true) from tq_claim('p')");
my $open = enqueue('p');
sub children { return split ' ', sql("select array_to_string(tq_enqueue_many('c', array_fill('{}'::jsonb, array[3]), depends_on => '{$_[0]}'), ' ')"); }
my @of_one = children($p);
ok(becomes($_, 'ready'), 'H17: children of a parent that had ended') for @of_one;
ok(becomes($_, 'cancelled'), '... or failed') for children($dead);
ok(becomes($_, 'cancelled'), '... or failed while another goes on') for children("$dead,$open");
my @of_two = children("$p,$open");
is(state_of($_), 'blocked', 'one of two parents had ended') for @of_two;
finish('p');
ok(becomes($_, 'ready'), '... and now the other') for @of_two;
clear();

# the parent ends while the transaction of the child is open
$p = enqueue('p');
ask($one, 'begin');
$c = ask($one, "select tq_enqueue('c', depends_on => '{$p}')");
finish('p');
ask($one, 'commit');
ok(becomes($c, 'ready'), 'H17: a parent that ended before its child was committed');

# ... when the child is visible, but not published yet
$p = enqueue('p');
arm($node, 'commit-before-publish', 'wait', pid => ask($other, 'select pg_backend_pid()'));
begin_ask($other, "select tq_enqueue('c', depends_on => '{$p}')");
standing($node, 'commit-before-publish');
finish('p');
release($node, 'commit-before-publish');
$c = end_ask($other);
ok(becomes($c, 'ready'), 'H17: ... or before it was published');

# the end of the parent is visible, but not published yet
$p = enqueue('p');
my $held = sql(q{select id || ', ' || lease from tq_claim('p')});
arm($node, 'commit-before-publish', 'wait', pid => ask($other, 'select pg_backend_pid()'));
begin_ask($other, "select tq_complete($held)");
standing($node, 'commit-before-publish');
$c = child('c', $p);
ok(becomes($c, 'ready'), 'H17: a child of a parent whose end is visible, and nothing else');
release($node, 'commit-before-publish');
end_ask($other);

# two parents end at once
my @p = (enqueue('p'), enqueue('p'));
$c = child('c', join ',', @p);
my @held = split /\n/, sql(q{select id || ', ' || lease from tq_claim('p', 2)});
for my $i (0, 1)
{
	ask(($one, $other)[$i], 'begin');
	ask(($one, $other)[$i], "select tq_complete($held[$i])");
}
is(state_of($c), 'blocked', 'H17: two parents are about to end');
arm($node, 'commit-before-publish', 'wait', pid => ask($one, 'select pg_backend_pid()'));
begin_ask($one, 'commit');
standing($node, 'commit-before-publish');
ask($other, 'commit');
release($node, 'commit-before-publish');
end_ask($one);
ok(becomes($c, 'ready'), 'H17: two parents that end at once');

# parent and child in one transaction; a parent that the transaction of its child finishes
ask($one, 'begin');
$p = ask($one, q{select tq_enqueue('p')});
$c = ask($one, "select tq_enqueue('c', depends_on => '{$p}')");
is(ask($one, "select tq_explain($c) ~ 'enqueued by this transaction'"), 't', 'a child in its own transaction');
ask($one, 'commit');
is(state_of($c), 'blocked', 'a parent of the same transaction is waited for');
ask($one, 'begin');
ask($one, q{select tq_complete(id, lease) from tq_claim('p')});
my $after = ask($one, "select tq_enqueue('c', depends_on => '{$p}')");
ask($one, 'commit');
ok(becomes($_, 'ready'), "... and its end frees $_") for $c, $after;

# a parent that its own transaction cancels
ask($one, 'begin');
$p = ask($one, q{select tq_enqueue('p')});
$c = ask($one, "select tq_enqueue('c', depends_on => '{$p}')");
ask($one, "select tq_cancel($p)");
ask($one, 'commit');
ok(becomes($c, 'cancelled'), 'a parent that never came');

# savepoints
$p = enqueue('p');
ask($one, 'begin');
ask($one, 'savepoint s');
ask($one, "select tq_enqueue('c', depends_on => '{$p}')");
ask($one, 'rollback to s');
$c = ask($one, "select tq_enqueue('c', depends_on => '{$p}')");
ask($one, 'commit');
is(sql("select string_agg(child_id::text, ' ') from tq.dependency where parent_id = $p"), $c, 'a savepoint takes its child back');
finish('p');
ok(becomes($c, 'ready'), 'the other one is freed');
ask($one, 'begin');
ask($one, 'savepoint s');
$p = ask($one, q{select tq_enqueue('p')});
ask($one, 'rollback to s');
like(ask($one, "select tq_enqueue('c', depends_on => '{$p}')"), qr/TQ004/, 'a parent that was rolled back does not exist');
ask($one, 'rollback');
like(ask($one, "select tq_enqueue('c', depends_on => '{$p}')"), qr/TQ004/, '... for anybody');
$p = enqueue('p');
ask($one, 'begin');
ask($one, "select tq_enqueue('c', depends_on => '{$p}')");
like(ask($one, q{prepare transaction 'x'}), qr/0A000|prepared transactions are disabled/, 'no PREPARE');
ask($one, 'rollback');
clear();

# --- the resolver and other processes

# another transaction is changing the child when the resolver wants to free it
$p = enqueue('p');
$c = child('c', $p);
ask($one, 'begin');
is(ask($one, "select tq_cancel($c)"), 'cancelled', 'a blocked job can be cancelled');
like(ask($other, "select tq_reschedule($c, priority => 1)"), qr/55P03/, 'by one at a time');
finish('p');
until_true($node, "select state is not null from tq.dependency where child_id = $c", 'the end recorded');
is(state_of($c), 'blocked', 'a child that is being changed is not freed');
ask($one, 'rollback');
ok(becomes($c, 'ready'), '... but afterwards');
$p = enqueue('p');
$c = child('c', $p);
ask($one, 'begin');
ask($one, "select tq_cancel($c)");
finish('p');
until_true($node, "select state is not null from tq.dependency where child_id = $c", 'the end recorded');
ask($one, 'commit');
is(state_of($c), 'cancelled', 'a cancel that comes first wins');
ok(settled(), 'nothing is left');

# another process loads the child
$c = child('c', enqueue('p'));
arm($node, 'pin-before-fold', 'wait', pid => ask($other, 'select pg_backend_pid()'));
begin_ask($other, "select tq_reschedule($c, priority => 7)");
standing($node, 'pin-before-fold');
finish('p');
until_true($node, "select exists (select from tq.dependency where child_id = $c)", 'the resolver waits');
release($node, 'pin-before-fold');
# ready: the job got its slot, and the resolver was faster than the change; busy: the resolver is just freeing it
my $said = end_ask($other);
until_so(sub { $said = ask($other, "select tq_reschedule($c, priority => 7)") if $said =~ /55P03/; return $said !~ /55P03/ }, "job $c is not busy");
like($said, qr/^(?:blocked|ready)$/, 'a job that is read in while it is to be freed');
ok(becomes($c, 'ready'), '... is freed in the end');
is(sql("select priority from tq_get($c)"), '7', '... with its new priority');
clear();

# the scheduler fails half-way, or is killed half-way and takes the server down
for my $point ('resolve-before-append', 'resolve-before-commit')
{
	for my $action ('error', 'kill')
	{
		my $scheduler = scheduler_of($node);
		$p = enqueue('p');
		$c = child('c', $p);
		my $log = -s $node->logfile;
		arm($node, $point, $action, pid => $scheduler);
		$node->psql('postgres', q{select tq_complete(id, lease) from tq_claim('p')}); # the server may go down before it answers
		if ($action eq 'kill')
		{
			$node->wait_for_log(qr/all server processes terminated; reinitializing.*ready to accept/s, $log);
			scheduler_of($node);
			loaded($node);
			$_ = session($node) for $one, $other;
			finish('p'); # if an earlier note of the resolver has brought the server down
		}
		else
		{
			until_true($node, "select tq_test_passed('$point') > 0", "an error at $point");
			sql("select tq_test_arm('$point', 'none', 0, 0)");
		}
		ok(becomes($c, 'ready'), "freed after $action at $point");
		is(sql("select count(*) from tq.event where job_id = $c and type = 'u'"), '1', '... once');
		clear();
	}
}

# more ends at once than the list has entries
@p = split / /, sql(q{select array_to_string(tq_enqueue_many('p', array_fill('{}'::jsonb, array[1000])), ' ')});
$c = child('c', join ',', @p);
my $late = sql("select array_to_string(tq_enqueue_many('d', array_fill('{}'::jsonb, array[700]), depends_on => '{$p[0],$p[-1]}'), ' ')");
is(sql(q{select blocked || ' ' || ready from tq_stats() where queue = 'd'}), '700 0', 'many children');
is(scalar(take_all($node, 'p', 1000)), 1000, 'many parents');
ok(becomes($c, 'ready'), 'one that waited for a thousand');
is(sql("select count(*) from tq_claim('c', 10), jsonb_object_keys(parents) where id = $c"), '1000', '... is given all their outcomes');
sql(q{select count(tq_complete(id, lease)) from tq_running});
is(scalar(take_all($node, 'd', 700)), 700, 'hundreds that waited for two');
ok(settled(), 'nothing is left');
check_journal($node, 'after many');

# --- failures -------------------------------------------------------------------------------------------------------

sub dies { my ($how) = @_; return sql("select $how from tq_claim('p')"); }

my %ends = (
	dead => q{tq_fail(id, lease, 'broken', fatal => true)},
	buried => q{tq_bury(id, lease, 'odd')},
);
for my $how (sort keys %ends)
{
	$p = enqueue('p');
	$c = child('c', $p);
	my $grandchild = child('c', $c);
	my $anyway = child('c', $p, q{options => '{"on_parent_failure": "run"}'});
	dies($ends{$how});
	ok(becomes($_, 'cancelled'), "a parent that is $how: $_ is cancelled") for $c, $grandchild;
	is(sql("select error from tq_get($c)"), "parent $p is $how", '... and says why');
	is(sql("select error from tq_get($grandchild)"), "parent $c is cancelled", '... so does its child');
	ok(becomes($anyway, 'ready'), '... but one that runs anyway');
	is(sql("select parents -> '$p' ->> 'state' from tq_claim('c') where id = $anyway"), $how, '... and knows');
}
is(sql("select tq_retry($c)"), 'blocked', 'a child that was cancelled can be retried');
ok(becomes($c, 'ready'), '... and starts');
is(sql("select parents -> '$p' ->> 'state' <> 'succeeded' from tq_claim('c') where id = $c"), 't', '... although its parent has failed');
$p = enqueue('p', q{max_attempts => 2, retry => '{"delay": "0"}'});
$c = child('c', $p);
dies(q{tq_fail(id, lease, 'once')});
is(state_of($c), 'blocked', 'a parent that is tried again has not ended');
finish('p');
ok(becomes($c, 'ready'), '... until it has');
$p = enqueue('p', q{run_at => now() + interval '1 d'});
$c = child('c', $p);
sql("select tq_purge('p', 'delayed')");
ok(becomes($c, 'cancelled'), 'a parent that is purged has failed');
$p = enqueue('p', q{expires_at => now() + interval '1 s'});
$c = child('c', $p);
ok(becomes($c, 'cancelled'), 'one that has expired, too');
$p = enqueue('p');
finish('p');
sql(q{select tq_purge('p', 'succeeded')});
$c = child('c', $p);
ok(becomes($c, 'ready'), 'one whose record is purged has succeeded all the same');
clear();

# --- other verbs on a blocked job

$p = enqueue('p');
$c = child('c', $p, q{run_at => now() + interval '1 h'});
my $soon = child('c', $p);
my $group = child('c', $p, q{group_key => 'g'});
my $free = enqueue('c', q{group_key => 'g'});
is(sql("select tq_reschedule($soon, run_at => now() + interval '2 h', priority => 3)"), 'blocked', 'it can be rescheduled');
is(sql("select id from tq_claim('c')"), $free, 'and blocks no job of its group');
like(sql("select tq_explain($c)"), qr/waits for job $p\b/, 'tq_explain says what it waits for');
finish('p');
ok(becomes($c, 'delayed'), 'one that has a time waits for that, too');
ok(becomes($soon, 'delayed'), '... or for what it was rescheduled to');
is(sql("select priority || ' ' || (run_at between now() + interval '1 h' and now() + interval '2 h') from tq_get($soon)"), '3 true', '... as it was told');
ok(becomes($group, 'ready'), 'one of a group is free');
$p = enqueue('p');
$c = child('c', $p);
is(sql("select tq_retry($c)"), 'ready', 'it can be started without waiting');
finish('p');
ok(settled(), '... and is not freed again');
is(sql("select count(*) from tq.event where job_id = $c and type = 'u'"), '0', '... by no call');
$p = enqueue('p');
$c = child('b', $p);
is(sql(q{select tq_purge('b', 'blocked')}), '1', 'it can be purged');
finish('p');
ok(settled(), '... and no session waits');
clear();
sql(q{select count(tq_cancel(id)) from tq_running});
check_journal($node, 'after changes');

# --- batches --------------------------------------------------------------------------------------------------------

sub progress { return sql("select concat_ws(' ', open, total, done, succeeded, failed) from tq_batch($_[0])"); }

sub in_batch { return enqueue('m', qq{options => '{"batch": $_[0]}'}); }

my $b = sql(q{select tq_batch_open('cb', '{"a": 1}', 'sum')});
is(state_of($b), 'blocked', 'the callback of a batch is blocked');
my @m = map { in_batch($b) } 1 .. 3;
like(ask($one, "select tq_enqueue('c', depends_on => '{$b}')"), qr/TQ005.*is open/, 'no job can wait for an open batch');
is(progress($b), 't 3 0 0 0', 'an open batch');
is(scalar(take($node, 'm', 3)), 3, 'all of its jobs are done');
ok(until_true($node, "select done = 3 from tq_batch($b)"), '... which counts');
is(state_of($b), 'blocked', '... but it is open');
ask($one, 'begin');
my $joins = ask($one, qq{select tq_enqueue('m', options => '{"batch": $b}')});
sql("select tq_batch_close($b)");
is(progress($b), 'f 3 3 3 0', 'a batch is closed while a transaction is joining it');
like(ask($other, qq{select tq_enqueue('m', options => '{"batch": $b}')}), qr/TQ005/, 'no other job can join it');
ask($one, "select from tq.dependency where parent_id = 0 and child_id = $b for no key update");    # as the resolver does
like(ask($other, "select tq_batch_close($b)"), qr/TQ005/, 'it cannot be closed again');
is(state_of($b), 'blocked', 'the callback waits for the jobs that were joining');
ask($one, 'commit');
ok(until_true($node, "select total = 4 from tq_batch($b)"), '... whose job counts');
$c = child('c', $b);
finish('m');
ok(becomes($b, 'ready'), 'when all are done the callback is ready');
is(sql(q{select count(*) || ' ' || max(state) from tq_claim('cb'), jsonb_each(parents) p, jsonb_to_record(value) r (state text)}), '4 succeeded',
	'... and is given the outcomes');
is(progress($b), 'f 4 4 4 0', 'progress of a batch that is done');
sql("select tq_complete(id, lease) from tq_running where id = $b");
ok(becomes($c, 'ready'), 'jobs that waited for the batch are free');

$b = sql(q{select tq_batch_open('cb', on_failure => 'cancel')});
in_batch($b) for 1 .. 2;
sql(q{select tq_fail(id, lease, 'broken', fatal => true) from tq_claim('m')});
ok(becomes($b, 'cancelled'), 'a batch that is cancelled when one fails');
is(scalar(take($node, 'm', 5)), 1, 'the others go on');
$late = in_batch($b);
sql("select tq_batch_close($b)");
is(join(',', take($node, 'm', 5)), $late, 'and others join until it is closed');
ok(until_true($node, "select total = 3 and done = 3 from tq_batch($b)"), '... and count');
is(state_of($b), 'cancelled', '... though its callback is cancelled');
$b = sql(q{select tq_batch_open('cb')});
in_batch($b);
sql("select tq_cancel($b)");
is(scalar(take($node, 'm', 5)), 1, 'to cancel a callback does nothing to the jobs');
sql("select tq_batch_close($b)");
ok(until_true($node, "select total = 1 and done = 1 from tq_batch($b)"), '... which count');
is(state_of($b), 'cancelled', '... but it is not freed');

# --- unique keys: the job that has the key joins the batch; who waits for a replaced job waits for the new one -------------

clear();
sub keyed { my ($key, $args) = @_; return enqueue('u', "unique_key => '$key'" . ($args ? ", $args" : '')); }
my $first = keyed('a');
$b = sql(q{select tq_batch_open('cb')});
my $in = qq{options => '{"batch": $b}'};
is(keyed('a', $in), $first, 'an enqueue with the key of a job that waits returns that job');
is(keyed('a', "$in, unique_mode => 'ignore'"), '', '... or null');
like(sql(qq{select tq_enqueue_many('u', array_fill('{}'::jsonb, array[3]), unique_keys => '{a,b,b}', $in)}),
	qr/^\{$first,(\d+),\1\}$/, '... among others');
sql("select tq_batch_close($b)");
ok(until_true($node, "select closed_at is not null from tq_batch($b)"), 'the batch is closed');
is(progress($b), 'f 2 0 0 0', 'each of them has joined it once');
sql(q{select tq_complete(id, lease, '{"r": 1}') from tq_claim('u')});
ok(until_true($node, "select done = 1 from tq_batch($b)"), 'one has ended');
is(state_of($b), 'blocked', '... and the callback waits for the other');
sql(q{select tq_complete(id, lease, '{"r": 2}') from tq_claim('u')});
ok(becomes($b, 'ready'), 'the callback starts when all have ended');
is(sql(q{select jsonb_path_query_array(parents, '$.*.result.r') from tq_claim('cb')}), '[1, 2]', '... and is given their results');

# a job that has ended and keeps its key; one that ends before the transaction that joins commits
my $kept = keyed('kept', q{options => '{"unique_for": "1 h"}'});
finish('u');
my $ends = keyed('ends');
$b = sql(q{select tq_batch_open('cb')});
$in = qq{options => '{"batch": $b}'};
ask($one, 'begin');
is(ask($one, "select tq_enqueue('u', unique_key => '$_', $in)"), $_ eq 'kept' ? $kept : $ends, "a job with the key $_ joins") for qw(kept ends);
finish('u');
ask($one, 'commit');
sql("select tq_batch_close($b)");
ok(becomes($b, 'ready'), 'jobs that have ended meanwhile count as well');
is(progress($b), 'f 2 2 2 0', '... both of them');
finish('cb');

# replace: children and batches wait for the new job; one that is replaced twice
$first = keyed('a');
$b = sql(q{select tq_batch_open('cb', on_failure => 'cancel')});
keyed('a', qq{options => '{"batch": $b}'});
sql("select tq_batch_close($b)");
$c = child('c', $first);
my $twice = keyed('a', q{unique_mode => 'replace'});
my $newest = keyed('a', q{unique_mode => 'replace'});
is(state_of($first) . ' ' . sql("select detail from tq_history($first) where event = 'cancelled'"), qq(cancelled {"replaced_by": $twice}), 'a job is replaced');
ok(until_true($node, "select array_agg(parent_id) = '{$newest,$newest}' from tq.dependency where state is null"), 'who waits for it waits for the newest');
is(state_of($c) . ' ' . state_of($b), 'blocked blocked', 'nobody is cancelled');
my $later_child = child('c', $first);
sql(q{select tq_complete(id, lease, '{"new": true}') from tq_claim('u')});
ok(becomes($_, 'ready'), 'freed when the newest has succeeded') for $c, $b, $later_child;
is(sql(q{select distinct parents from tq_claim('c', 2)}), qq({"$newest": {"state": "succeeded", "result": {"new": true}}}), '... with its result');
is(progress($b), 'f 1 1 1 0', 'the batch counts it once');
sql(q{select tq_complete(id, lease) from tq_running});

# both are in the batch
$b = sql(q{select tq_batch_open('cb')});
keyed('a', qq{options => '{"batch": $b}'});
$newest = keyed('a', qq{unique_mode => 'replace', options => '{"batch": $b}'});
sql("select tq_batch_close($b)");
finish('u');
ok(becomes($b, 'ready'), 'a batch of a job and the one that replaced it');
like(progress($b), qr/^f 1 1 1 0$/, '... counts one');
finish('cb');

# the circle of a job that depends on one that waits for the job that it replaces
$first = keyed('a');
$c = child('c', $first);
my $below = child('c', $c);
like(ask($one, "select tq_enqueue('u', unique_key => 'a', unique_mode => 'replace', depends_on => '{$below}')"), qr/22023.*parent $below waits/s,
	'a job that would wait for itself is refused');
is(state_of($_), $_ == $first ? 'ready' : 'blocked', 'nothing has changed') for $first, $c, $below;

# the result of a job that replaces another goes to roles that may read the queue
sql(q{create role maker; select tq_grant('u', 'maker', 'produce'); select tq_grant('c', 'maker', 'produce')});
ask($one, 'set role maker; begin');
$first = ask($one, q{select tq_enqueue('u', unique_key => 'secret')});
$c = ask($one, qq{select tq_enqueue('c', depends_on => '{$first}')});
ask($one, 'commit; reset role');
$newest = keyed('secret', q{unique_mode => 'replace'});
sql(qq{select tq_complete(id, lease, '{"s": 1}') from tq_claim('u', 5)});
ok(becomes($c, 'ready'), 'the child of a role that may not read the queue');
is(sql("select parents from tq_claim('c', 5) where id = $c"), qq({"$newest": {"state": "succeeded"}}), '... is not given the result of the job that replaced its parent');
check_journal($node, 'after unique keys');
clear();

# an empty batch; a large one, and a crash
$b = sql(q{select tq_batch_open('cb')});
sql("select tq_batch_close($b)");
ok(becomes($b, 'ready'), 'an empty batch');
finish('cb');
$b = sql(q{select tq_batch_open('cb')});
sql(qq{select tq_enqueue_many('m', array_fill('{}'::jsonb, array[250]), options => '{"batch": $b}')});
is(scalar(take_all($node, 'm', 130)), 130, 'half of a large batch');
ok(until_true($node, "select done = 130 from tq_batch($b)"), 'is done');
sql(q{select tq_fail(id, lease, 'broken', fatal => true) from tq_claim('m')});
crash();
is(progress($b) =~ s/ 13[01] 130 [01]$//r, 't 250', 'after a crash it is as it was');
sql("select tq_batch_close($b)");
take_all($node, 'm', 119);
ok(becomes($b, 'ready'), 'the callback of a large batch');
is(sql(q{select parents from tq_claim('cb')}), '{"total": 250, "failed": 1, "succeeded": 249}', '... is given counts');
sql(q{select count(tq_complete(id, lease)) from tq_running});
ok(settled(), 'nothing is left');
check_journal($node, 'after batches');

# --- expires_in counts from the time at which the job is freed ---------------------------------------------------------

clear();
sql(q{select tq_create_queue('ttl', '{"expires_in": "1 h"}')});
sub expiry_of { return sql("select expires_at from tq_get($_[0])") }
sub policy_of { return sql("select policies -> 'expires_at' from tq_get($_[0])") }
$p = enqueue('p');
$c = child('ttl', $p);
my $delayed = child('ttl', $p, q{delay => '3 h'});
my $own_time = child('ttl', $p, q{expires_at => 'infinity'});
my $callback = sql(q{select tq_batch_open('ttl')});
is(expiry_of($_), '', 'a job that waits has no time to expire yet') for $c, $delayed, $callback;
is(policy_of($c), '{"from": "queue", "value": null}', '... which its queue will set');
clock($node, 2 * 3600, 0);
my $before = sql('select clock_timestamp()');
finish('p');
sql("select tq_batch_close($callback)");
ok(becomes($_, 'ready'), 'it is freed two hours later') for $c, $callback, $own_time;
ok(becomes($delayed, 'delayed'), '... or delayed');
is(sql("select expires_at - interval '3 h' between '$before' and clock_timestamp() from tq_get($c)"), 't',
	'from then it has an hour');
is(sql("select expires_at - run_at from tq_get($delayed)"), '01:00:00', '... or from its run_at');
is(policy_of($own_time), '{"from": "job", "value": null}', 'a time of its own stays');
like(policy_of($c), qr/"from": "queue", "value": "20/, 'the policies have the time');
my %expiry = map { $_ => expiry_of($_) } $c, $delayed, $callback;
crash();
is(expiry_of($_), $expiry{$_}, 'after a crash it is the same') for $c, $delayed, $callback;
clock($node, 3 * 3600 + 60, 0);
ok(becomes($_, 'expired'), 'after the hour it expires') for $c, $callback;
ok(becomes($own_time, 'ready'), '... unless it never does');
clock($node, 0, 0);
sql("select tq_cancel($_)") for $delayed, $own_time;

# --- a restored dump ------------------------------------------------------------------------------------------------

clear();
$p = enqueue('p');
$c = child('c', $p);
$b = sql(q{select tq_batch_open('cb')});
in_batch($b);
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', 'postgres' ], 'a dump');
$node->safe_psql('postgres', 'create database copy');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', 'copy', '-f', $dump ], 'a restore');
$node->safe_psql('copy', 'select tq_activate()');
scheduler_of($node, 'copy');
loaded($node, 'copy');
ok(until_true($node, "select state = 'blocked' from tq_get($c)", 'blocked in the copy', 'copy'), 'in a restored dump it is blocked as well');
$node->safe_psql('copy', "select tq_batch_close($b)");
ok(until_true($node, q{select count(tq_complete(id, lease)) > 0 from tq_claim('p')}, 'the parent', 'copy'), '... until its parent has ended there');
ok(until_true($node, "select state = 'ready' from tq_get($c)", 'freed in the copy', 'copy'), '... when it is freed');
ok(until_true($node, q{select count(tq_complete(id, lease)) > 0 from tq_claim('m')}, 'the job', 'copy'), 'the same with a batch');
ok(until_true($node, "select state = 'ready' from tq_get($b)", 'the callback in the copy', 'copy'), '... whose callback is freed there');
check_journal($node, 'in the copy', 'copy');
is(state_of($c) . ' ' . state_of($b), 'blocked blocked', 'and here they are as before');
sql("select tq_batch_close($b)");
$node->safe_psql('postgres', 'drop database copy');

# --- outcomes that are too large

clear();
# ... for many children at once: the scheduler passes it on in parts
$p = enqueue('p');
sql("select tq_enqueue_many('c', array_fill('{}'::jsonb, array[150]), depends_on => '{$p}')");
my $resolver = scheduler_of($node);
sub peak { return slurp_file("/proc/$resolver/status") =~ /^VmHWM:\s+(\d+)/m ? $1 : die }
my $kilobytes = peak();
sql(q{select tq_complete(id, lease, jsonb_build_object('a', repeat('x', 3000000))) from tq_claim('p')});
ok(until_true($node, q{select count(*) = 150 from tq_jobs where queue = 'c' and state = 'ready'}), '150 children of a parent with 3 MB of results');
cmp_ok(peak() - $kilobytes, '<', 400_000, '... cost the scheduler not much memory');
is(sql(q{select count(*) from tq.event where type = 'u' and length(detail::text) > 3000000}), 150, '... and each is given them');

clear();
$p = enqueue('p');
$c = child('c', $p);
sql(q{select tq_complete(id, lease, jsonb_build_object('a', repeat('x', 16000000))) from tq_claim('p')});
ok(becomes($c, 'ready'), 'a child of a parent with 16 MB of results, which compress well');
is(sql('select parents from tq_claim(\'c\')'), qq({"$p": {"state": "succeeded", "left_out": true}}), '... is told that they are left out');
my @sized = map { enqueue('p') } 1 .. 4;
$c = child('c', join ',', @sized);
sql("select tq_complete(id, lease, case when id > $sized[1] then to_jsonb(repeat('x', 3000000)) else '{\"small\": 1}' end) from tq_claim('p', 4)");
ok(becomes($c, 'ready'), 'a child of parents with 6 MB of results together');
is(sql(q{select string_agg(concat_ws(' ', value ->> 'left_out', length(value ->> 'result')), ', ' order by key) from tq_claim('c'), jsonb_each(parents)}),
	'12, 12, 3000000, true', '... is given all but the largest');
$p = enqueue('p', 'max_attempts => 1');
$c = child('c', $p, q{options => '{"on_parent_failure": "run"}'});
sql(q{set tq.max_error = '1 MB'; select tq_fail(id, lease, repeat('x', 300000000)) from tq_claim('p')});
ok(becomes($c, 'ready'), 'a child of a parent that failed with a megabyte of words');
is(sql("select length(parents -> '$p' ->> 'error') from tq_claim('c')"), '100000', '... is given the first of them');

# --- rows that were deleted by hand ------------------------------------------------------------------------------------

clear();
$p = enqueue('p');
$c = child('c', $p);
sub orphans
{
	return sql(q{select found from tq_check() where item = 'blocked jobs that no parent frees'}) . ', '
		. sql(q{select status || ' ' || value from tq_health() where item = 'jobs that wait for others'}) . ', '
		. sql(q{select line from regexp_split_to_table(tq_metrics(), '\n') line where line ~ '^tq_orphaned_jobs '});
}
is(orphans(), '0, ok 1, tq_orphaned_jobs 0', 'a job that waits is not lost');
let_write($node, 'dependency');
sql("delete from tq.dependency where child_id = $c");
is(orphans(), '1, warn 1, of which no parent frees 1, tq_orphaned_jobs 1', '... but if the registry has nothing of it any more, it is');
finish('p');
is(state_of($c), 'blocked', '... since no resolver frees it');
sql("select tq_cancel($c)");
is(orphans(), '0, ok 0, tq_orphaned_jobs 0', 'it can be cancelled');
my $callback = sql(q{select tq_batch_open('c')});
sql("select tq_enqueue('p', options => '{\"batch\": $callback}'), tq_batch_close($callback)");
is(orphans(), '0, ok 1, tq_orphaned_jobs 0', 'the callback of a batch is not lost');

# --- a locked segment ------------------------------------------------------------------------------

sub table_of { return sql("select tableoid::regclass from tq.job where id = $_[0]"); }

sub locked { my ($job, $mode) = @_; return ask($one, 'begin; lock table ' . table_of($job) . " in $mode mode"); }

# A claimed job, as the arguments of the verb that ends it.
sub attempt { my ($queue) = @_; return sql("select id || ', ' || lease from tq_claim('$queue')"); }

# Ends jobs while no resolver runs; then tq.workers is turned on.
sub unseen
{
	my ($ends) = @_;
	$node->append_conf('postgresql.conf', 'tq.workers = off');
	$node->reload;
	until_true($node, q{select count(*) = 0 from pg_stat_activity where backend_type = 'tq scheduler'});
	sql($ends);
	$node->restart;
	$_ = session($node) for $one, $other;
	loaded($node);
	return;
}

for my $restart (0, 1)
{
	clear();
	my $slow = enqueue('p');
	fill();
	my $fast = enqueue('q');
	isnt(table_of($slow), table_of($fast), 'two segments');
	my ($of_slow, $of_fast) = (child('c', $slow), child('c', $fast));
	my $both = 'select tq_complete(' . attempt('p') . '), tq_complete(' . attempt('q') . ')';
	unseen($both) if $restart;
	is(locked($slow, 'access exclusive'), '', 'the first is locked');
	if ($restart)
	{
		$node->append_conf('postgresql.conf', 'tq.workers = on');
		$node->reload;
	}
	else
	{
		my $first = child('c', enqueue('r')); # keeps the resolver busy, so that it sees both ends at once
		arm($node, 'resolve-before-append');
		finish('r');
		standing($node, 'resolve-before-append');
		sql($both);
		release($node, 'resolve-before-append');
		becomes($first, 'ready');
	}
	ok(becomes($of_fast, 'ready'), 'children of jobs elsewhere are freed' . ($restart ? ', also after a restart' : ''));
	is(state_of($of_slow), 'blocked', '... those of its own wait');
	ask($one, 'commit');
	ok(becomes($of_slow, 'ready'), '... until it can be read');
}

# children in the locked segment
clear();
$p = enqueue('p');
fill();
my $there = child('c', $p);
fill();
my $here = child('c', $p);
my $ends = attempt('p');
locked($there, 'access exclusive');
sql("select tq_complete($ends)");
ok(becomes($here, 'ready'), 'a child there does not hold up one elsewhere');
ask($one, 'commit');
ok(becomes($there, 'ready'), '... and is freed in the end');

# parents in the locked segment, which can be read: their children in other segments are freed
clear();
my $early = enqueue('q');
fill();
my $shut_in = child('d', $early);
my $reader = enqueue('p');
fill();
my $away = child('c', $reader);
my $all_end = 'select tq_complete(' . attempt('p') . '), tq_complete(' . attempt('q') . ')';
unseen($all_end);
ask($one, 'begin; lock table ' . table_of($reader) =~ s/job_/event_/r . ' in share mode');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
ok(becomes($away, 'ready'), 'a job that can be freed does not wait for one that met with it');
is(state_of($shut_in), 'blocked', '... and waits for the lock');
ask($one, 'commit');
ok(becomes($shut_in, 'ready'), '... until it is gone');

# the follow-up of a child meets a lock
clear();
enqueue('after');
$p = enqueue('p');
my $well = enqueue('q');
my $followed = child('c', $p, q{options => '{"follow_up": {"queue": "after", "on": ["cancelled"]}}'});
my $beside = child('c', $p, q{options => '{"on_parent_failure": "run"}'});
my $free_soon = child('c', $well);
$ends = 'select tq_fail(' . attempt('p') . q{, 'no', fatal => true), tq_complete(} . attempt('q') . ')';
locked($free_soon, 'share');
sql($ends);
ok(becomes($free_soon, 'ready'), 'a follow-up that waits for a lock holds up no other job');
ok(becomes($beside, 'ready'), '... another child of the same parent does not wait either');
is(state_of($followed), 'blocked', '... only the child that it follows');
ask($one, 'commit');
ok(becomes($followed, 'cancelled'), '... until the lock is gone');
is(sql(q{select count(*) from tq_jobs where queue = 'after'}), '2', '... when it follows');
clear();
check_journal($node, 'after locks');

# --- retention ------------------------------------------------------------------------------------------------------

sub newest { return sql('select coalesce(max(number), 0) from tq.segment'); }

# Fills the open segment, so that the next one is opened.
sub fill
{
	my $n = newest();
	sql(q{select count(tq_enqueue('fill')) from generate_series(1, 150)});
	segment_after($node, $n);
	take_all($node, 'fill', 150);
	return;
}

# a lookup of parents that fails, after which the extension is created again
clear();
ask($one, 'begin; savepoint s');
like(ask($one, "select tq_enqueue('c', depends_on => '{999999}')"), qr/TQ004/, 'no such parent');
ask($one, q{rollback to s; drop extension tq; create extension tq; select tq_enqueue('x'); commit});
is(scalar(take_all($node, 'x', 1)), 1, 'a new extension');

fill();
$p = enqueue('p');
my $n = newest();
finish('p');
my $done = sql(q{select tq_batch_open('callback')});
sql("select tq_enqueue('member', options => '{\"batch\": $done}'), tq_batch_close($done)");
finish('member');
ok(becomes($done, 'ready'), 'a batch is done');
finish('callback');
my $unseen = enqueue('p');
fill();
my $p2 = enqueue('p2');
$c = child('c', "$p,$p2");
ask($one, 'begin');
my $c2 = ask($one, "select tq_enqueue('c', depends_on => '{$unseen}')");
finish('p');
$node->append_conf('postgresql.conf', "tq.retention = '1s'");
$node->reload;
until_true($node, "select state is not null from tq.dependency where parent_id = $p and child_id = $c");
clock($node, 4000);
fill();
fill();
clock($node, 8000);
is(sql("select to_regclass('tq.job_$n') is not null"), 't', 'no segment is dropped while a process looks up parents');
ask($one, 'commit');
ok(becomes($c2, 'ready'), '... and he finds them');
clock($node, 12000);
fill();
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'a segment of which all outcomes are known goes');
ok(until_true($node, "select count(*) = 0 from tq.batch where id = $done"), 'so does the record of a batch whose callback was there');
finish('p2');
ok(becomes($c, 'ready'), 'a child outlives its parents\' retention');
is(sql("select parents -> '$p' ->> 'state' from tq_claim('c', 5) where id = $c"), 'succeeded', '... and is given what it knew of them');
like(ask($one, "select tq_enqueue('c', depends_on => '{$p}')"), qr/TQ004/, 'for others there is no such job any more');

check_journal($node);
leave($one, $other);
$node->stop;
done_testing();
