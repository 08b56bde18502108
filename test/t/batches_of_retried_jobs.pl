# A failed job of a batch that is retried counts as open again, and the callback waits for it. Scenarios: callbacks that
# run and callbacks that were cancelled, a retried callback, the resolver beside an open retry, a crash, a large batch.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('batches', conf => <<CONF);
tq.lease = '1h'
CONF
scheduler_of($node);

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub state_of { return sql("select state from tq_get($_[0])"); }
sub becomes { my ($job, $state) = @_; return until_true($node, "select state = '$state' from tq_get($job)", "$job $state"); }
sub finish { my ($queue) = @_; return sql("select tq_complete(id, lease) from tq_claim('$queue')"); }
sub progress { return sql("select concat_ws(' ', open, total, done, succeeded, failed) from tq_batch($_[0])"); }
sub in_batch { return sql(qq{select tq_enqueue('m', options => '{"batch": $_[0]}')}); }

sub crash
{
	$node->stop('immediate');
	$node->start;
	loaded($node);
	scheduler_of($node);
	return;
}

sub fails { return sql("select tq_fail(id, lease, 'broken', fatal => true) from tq_claim('$_[0]')"); }

# Of the parents that the callback is given. It is finished at once: a crash would return a claim.
sub given
{
	my ($what) = @_;
	my $parents = sql(q{select parents from tq_claim('cb')});
	sql(q{select tq_complete(id, lease) from tq_running where queue = 'cb'});
	return sql("select $what from (select '$parents'::jsonb as parents) c, jsonb_each(parents)");
}

# A closed batch of jobs. The first one has failed.
sub failed_batch
{
	my ($on_failure, $n) = @_;
	my $batch = sql("select tq_batch_open('cb', on_failure => '$on_failure')");
	my @jobs = map { in_batch($batch) } 1 .. $n;
	sql("select tq_batch_close($batch)");
	fails('m');
	ok(until_true($node, "select failed = 1 and total is not null from tq_batch($batch)"), 'a job of a batch has failed');
	return ($batch, @jobs);
}

my ($b, @m) = failed_batch('run', 2);
sql("select tq_retry($m[0])");
ok(until_true($node, "select done = 0 from tq_batch($b)"), 'it is retried, and counts as open again');
sql("select tq_reschedule($m[0], run_at => now() + interval '1 h')");
finish('m');
ok(until_true($node, "select done = 1 from tq_batch($b)"), '... when the other has succeeded');
is(progress($b) . ' ' . state_of($b), 'f 2 1 1 0 blocked', '... so the callback waits');
sql("select tq_retry($m[0])");
sql(q{select tq_complete(id, lease, '"late"') from tq_claim('m')});
ok(becomes($b, 'ready'), '... until it has succeeded');
is(progress($b), 'f 2 2 2 0', '... which counts as one success');
is(given("distinct parents -> '$m[0]'"), '{"state": "succeeded", "result": "late"}', '... and the callback is given its result');

# the callback that was cancelled, before and after the others have ended
for my $others_first (0, 1)
{
	($b, @m) = failed_batch('cancel', 2);
	ok(becomes($b, 'cancelled'), 'the callback is cancelled');
	is(sql("select detail ->> 'failed' from tq_history($b) where event = 'cancelled'"), '1', '... because of one job');
	finish('m') if $others_first;
	ok(until_true($node, "select done = total from tq_batch($b)"), '... and all have ended') if $others_first;
	crash();
	sql("select tq_retry($m[0])");
	ok(becomes($b, 'blocked'), '... after the retry of that job it waits again');
	is(scalar(take($node, 'm', 5)), $others_first ? 1 : 2, '... until all have succeeded');
	ok(becomes($b, 'ready'), '... and starts');
	is(given("count(*) || min(value ->> 'state')"), '2succeeded', '... with all outcomes');
}

# one that fails again; two that have failed
($b, @m) = failed_batch('cancel', 2);
ok(becomes($b, 'cancelled'), 'a callback is cancelled');
fails('m');
ok(until_true($node, "select failed = 2 from tq_batch($b)"), '... because of two jobs');
sql("select tq_retry($m[1])");
ok(until_true($node, "select failed = 1 from tq_batch($b)"), '... one of them is retried');
is(state_of($b), 'cancelled', '... it stays cancelled because of the other');
sql("select tq_retry($m[0])");
ok(becomes($b, 'blocked'), '... and waits when both are retried');
fails('m');
ok(becomes($b, 'cancelled'), '... one fails again');
is(sql("select string_agg(event, ' ' order by step) from tq_history($b)"), 'enqueued cancelled blocked cancelled', '... its history says so');

# a callback that is retried itself runs although jobs have failed
is(sql("select tq_retry($b)"), 'blocked', 'a callback is retried');
finish('m');
ok(becomes($b, 'ready'), '... and starts when all have ended');
is(given("string_agg(value ->> 'state', ' ' order by value ->> 'state')"), 'dead succeeded', '... with all outcomes');

# one that is cancelled by a user stays so
($b, @m) = failed_batch('run', 1);
finish('cb') if becomes($b, 'ready');
$b = sql(q{select tq_batch_open('cb', on_failure => 'cancel')});
@m = map { in_batch($b) } 1, 2;
sql("select tq_cancel($b, 'by a user')");
fails('m');
ok(until_true($node, "select failed = 1 from tq_batch($b)"), 'a callback that a user has cancelled');
sql("select tq_retry($m[0])");
ok(until_true($node, "select failed = 0 from tq_batch($b)"), '... when a failure is taken back');
is(state_of($b), 'cancelled', '... stays so');
sql("select tq_batch_close($b)");
take($node, 'm', 2);

# the resolver cancels, and does not see a retry that is open
$b = sql(q{select tq_batch_open('cb', on_failure => 'cancel')});
$m[0] = in_batch($b);
my $busy = scheduler_of($node);
arm($node, 'resolve-before-cancel', 'wait', pid => $busy);
fails('m');
standing($node, 'resolve-before-cancel');
sql("select tq_retry($m[0])");
release($node, 'resolve-before-cancel');
ok(until_true($node, "select done = 0 from tq_batch($b)"), 'a job that is retried while its failure is worked on');
is(sql("select count(*) from tq_history($b) where event = 'cancelled'"), 0, '... cancels nothing');
sql("select tq_batch_close($b)");
finish('m');
ok(becomes($b, 'ready'), '... and its batch goes on');
finish('cb');

# of a large batch
$b = sql(q{select tq_batch_open('cb', on_failure => 'cancel')});
sql(qq{select tq_enqueue_many('large', array_fill('{}'::jsonb, array[250]), options => '{"batch": $b}')});
sql("select tq_batch_close($b)");
take_all($node, 'large', 120);
sql(q{select tq_fail(id, lease, 'broken', fatal => true) from tq_claim('large', wait => '3 min')}) for 1 .. 10;
take_all($node, 'large', 120);
ok(until_true($node, "select done = total from tq_batch($b)"), 'a large batch has ended');
is(progress($b) . ' ' . state_of($b), 'f 250 250 240 10 cancelled', '... with failures');
is(sql(q{select tq_retry_many('large')}), 10, '... which are retried');
ok(becomes($b, 'blocked'), '... its callback waits again');
take_all($node, 'large', 10);
ok(becomes($b, 'ready'), '... and starts');
is(given('distinct parents'), '{"total": 250, "failed": 0, "succeeded": 250}', '... with the counts');
sql(q{select count(tq_complete(id, lease)) from tq_running});
check_journal($node);
$node->stop;
done_testing();
