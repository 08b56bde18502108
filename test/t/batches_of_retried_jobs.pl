# A failed job of a batch that is retried counts as open again, and the callback waits for it. Scenarios: callbacks that
# run and callbacks that were cancelled, a retried callback, the resolver beside an open retry, a crash, a large batch;
# callbacks that are ready, have begun, have ended, are on disk or are being changed; a job without a record. Hazard: H36.

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

# --- a callback that is ready waits again ----------------------------------------------------------------------------

my ($one, $other) = map { session($node) } 1, 2;
sub told { my (undef, $out, $err) = $node->psql('postgres', "set client_min_messages = notice; $_[0]"); return "$out $err"; }
sub succeed { my ($job, $result) = @_; return sql("select tq_complete(id, lease, '$result') from tq_claim('m', wait => '3 min') where id = $job"); }
sub claimed { return sql(q{select count(*) from tq_claim('cb')}); }
my $begun = qr/NOTICE: .*has begun/;

# A batch whose first job has failed and whose other job has succeeded; the callback is ready.
sub ready_batch
{
	my ($on_failure) = @_;
	my ($batch, @jobs) = failed_batch($on_failure // 'run', 2);
	finish('m');
	ok(becomes($batch, 'ready'), '... and the callback is ready') if !defined $on_failure;
	return ($batch, @jobs);
}

# The retried job succeeds.
sub runs_in_the_end
{
	my ($batch, $job, $how) = @_;
	succeed($job, '"again"');
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(becomes($batch, 'ready'), "$how: it is ready when the job has succeeded");
	is(progress($batch), 'f 2 2 2 0', '... which the batch counts');
	is(given("count(*) filter (where value ->> 'state' = 'succeeded') || min(parents -> '$job' ->> 'result')"), '2again', '... with the new result');
	return;
}

($b, @m) = ready_batch();
unlike(told("select tq_retry($m[0])"), $begun, 'a job is retried');
is(state_of($b) . claimed(), 'blocked0', '... and its callback is blocked again at once');
ok(until_true($node, "select done = 1 from tq_batch($b)"), '... the job counts as open');
is(state_of($b), 'blocked', '... and the callback stays blocked');
like(sql("select tq_explain($b)"), qr/waits for .*$m[0]/, '... tq_explain names the job');
runs_in_the_end($b, $m[0], 'a retry');
is(sql("select string_agg(event, ' ' order by step) from tq_history($b) where event <> 'claimed'"), 'enqueued freed blocked freed succeeded', '... its history says so');

# undone, in whole and in part
($b, @m) = ready_batch();
ask($one, 'begin');
ask($one, "select tq_retry($m[0])");
is(claimed(), 0, 'while the retry is open, no worker gets the callback');
ask($one, 'rollback');
is(state_of($b) . ' ' . progress($b), 'ready f 2 2 1 1', 'a retry that is rolled back changes nothing');
ask($one, 'begin; savepoint s');
ask($one, "select tq_retry($m[0])");
ask($one, 'rollback to s; commit');
is(state_of($b), 'ready', '... nor does one in a savepoint');
ask($one, 'begin; savepoint s');
ask($one, "select tq_retry($m[0])");
is(ask($one, "select tq_retry($b)"), 'ready', 'the callback can be started in the same transaction');
ask($one, 'rollback to s');
ask($one, "select tq_retry($m[0])");
ask($one, 'release s; commit');
is(state_of($b), 'blocked', 'a savepoint that is released');
runs_in_the_end($b, $m[0], 'a savepoint');

# started while it waits again: without outcomes, as before it was freed
($b, @m) = ready_batch();
sql("select tq_retry($m[0])");
is(sql("select tq_retry($b)"), 'ready', 'a callback that waits again is started');
is(sql(q{select parents is null from tq_claim('cb')}), 't', '... and is not given an end that was taken back');
sql(q{select tq_complete(id, lease) from tq_running where queue = 'cb'});
succeed($m[0], '1');

# two failed jobs; one fails again
sql(q{select tq_purge('m', 'dead')});
($b, @m) = failed_batch('run', 3);
fails('m');
finish('m');
ok(becomes($b, 'ready'), 'a callback of two failed jobs is ready');
ask($one, 'begin');
ask($one, "select tq_retry($m[0])");
like(ask($other, "select tq_retry($m[1])"), qr/55P03.*a job that waits for job $m[1] is being changed/, 'H36: another retry waits for a moment, and gives up');
is(state_of($m[1]), 'dead', '... and has changed nothing');
ask($one, 'commit');
is(ask($other, "select tq_retry($m[1])"), 'ready', '... it succeeds when the first one has ended');
ok(until_true($node, "select done = 1 from tq_batch($b)"), '... both jobs count as open');
succeed($m[0], '0');
ok(until_true($node, "select done = 2 from tq_batch($b)"), '... one succeeds');
is(state_of($b), 'blocked', '... the callback waits for the other');
fails('m');
ok(becomes($b, 'ready'), '... until that has failed again');
is(progress($b), 'f 3 3 2 1', '... as the batch says');
is(sql(q{select tq_retry_many('m')}) . state_of($b), '1blocked', 'tq_retry_many does the same');
fails('m');
ok(becomes($b, 'ready'), '... again and again');
is(sql(q{select changed from tq_retry_where(queue => 'm', state => 'dead')}) . state_of($b), '1blocked', '... and tq_retry_where');
sql(q{select tq_cancel(id) from tq_jobs where queue = 'm' and state = 'ready'});
ok(becomes($b, 'ready'), '... until the job is cancelled');
is(given("string_agg(value ->> 'state', ' ' order by key::bigint)"), 'succeeded cancelled succeeded', '... and has all outcomes');

# a callback that has begun
for my $how ('claims', 'is claiming', 'has failed', 'has succeeded')
{
	my $holder = session($node);
	($b, @m) = ready_batch();
	ask($holder, 'begin') if $how eq 'is claiming';
	my $lease = ask($holder, q{select lease from tq_claim('cb')});
	sql("select tq_complete($b, $lease)") if $how eq 'has succeeded';
	sql("select tq_fail($b, $lease, 'x', retry_in => '1 h')") if $how eq 'has failed';
	like(told("select tq_retry($m[0])"), $begun, "a worker $how: a NOTICE says that the callback has begun");
	ask($holder, 'commit') if $how eq 'is claiming';
	ok(until_true($node, "select done = 1 from tq_batch($b)"), '... the job counts as open');
	is(state_of($b), { 'has succeeded' => 'succeeded', 'has failed' => 'delayed' }->{$how} // 'running', '... the callback goes on');
	sql(q{select tq_cancel(id) from tq_jobs where queue in ('m', 'cb') and state in ('ready', 'delayed')});
	sql(q{select tq_complete(id, lease) from tq_running});
	leave($holder);
}

# one that has ended waits when it is retried
for my $how ('cancelled', 'dead')
{
	($b, @m) = ready_batch();
	$how eq 'dead' ? fails('cb') : sql("select tq_cancel($b)");
	$how eq 'dead' ? like(told("select tq_retry($m[0])"), $begun, 'a callback that is dead has begun') : unlike(told("select tq_retry($m[0])"), $begun, 'a callback that was cancelled has not begun');
	is(state_of($b), $how, "... it stays $how");
	is(sql("select tq_retry($b)"), 'blocked', '... and waits when it is retried');
	runs_in_the_end($b, $m[0], "one that was $how");
}

# in a paused queue; being changed; with a time; on disk after a crash
($b, @m) = ready_batch();
sql(q{select tq_pause('cb')});
sql("select tq_retry($m[0])");
is(state_of($b), 'blocked', 'a callback in a paused queue waits');
sql(q{select tq_resume('cb')});
runs_in_the_end($b, $m[0], 'a paused queue');

($b, @m) = ready_batch();
ask($one, 'begin');
ask($one, "select tq_reschedule($b, priority => 5)");
like(ask($other, "select tq_retry($m[0])"), qr/55P03/, 'a callback that another transaction changes is busy');
is(state_of($m[0]), 'dead', '... and nothing is retried');
ask($one, 'commit');
sql("select tq_reschedule($b, run_at => now() + interval '1 h')");
sql("select tq_retry($m[0])");
is(state_of($b), 'blocked', 'a delayed callback waits');
succeed($m[0], '1');
ok(becomes($b, 'delayed'), '... and is delayed again');
is(sql("select run_at > now() + interval '30 min' and priority = 5 from tq_get($b)"), 't', '... until its time');
sql("select tq_cancel($b)");

($b, @m) = ready_batch();
sql(q{select tq_enqueue_many('cb', array_fill('{}'::jsonb, array[600]), priority => 1)});
crash();
sql("select tq_retry($m[0])");
is(state_of($b), 'blocked', 'a callback on disk waits');
take_all($node, 'cb', 600);
is(claimed(), 0, '... behind all others');
$_ = session($node) for $one, $other;
runs_in_the_end($b, $m[0], 'on disk');

# crashes: before and after the commit of the retry, and before the resolver knows of it
for my $point ('retry-after-key', 'commit-before-publish')
{
	my $committed = $point eq 'commit-before-publish';
	($b, @m) = ready_batch();
	sql(q{select pg_logical_emit_message(true, 'test', '')});    # flushes what the scheduler has committed
	my $log = -s $node->logfile;
	arm($node, $point, 'kill', pid => ask($other, 'select pg_backend_pid()'), skip => $committed ? 0 : 1);
	begin_ask($other, "select tq_retry($m[0])");
	$node->wait_for_log(qr/all server processes terminated; reinitializing.*ready to accept/s, $log);
	leave($one, $other);
	$_ = session($node) for $one, $other;
	loaded($node);
	scheduler_of($node);
	is(state_of($m[0]) . state_of($b), $committed ? 'readyblocked' : 'deadready', "H36: killed at $point: all or nothing");
	check_journal($node, '... and the journal agrees');
	sql("select tq_retry($m[0])") unless $committed;
	crash();
	$_ = session($node) for $one, $other;
	ok(until_true($node, "select done = 1 from tq_batch($b)"), '... the job counts as open');
	runs_in_the_end($b, $m[0], $point);
}

# the resolver is about to free the callback: before it looks at the failed jobs, and after it has
$busy = scheduler_of($node);
for my $point ('resolve-before-free', 'resolve-before-append')
{
	($b, @m) = failed_batch('run', 2);
	arm($node, $point, 'wait', pid => $busy);
	finish('m');
	standing($node, $point);
	my $retrying = ask($one, 'begin; select pg_backend_pid()');
	begin_ask($one, "select tq_retry($m[0])");
	until_true($node, "select count(*) > 0 or exists (select from pg_stat_activity where pid = $retrying and state ~ 'aborted')
		from pg_locks where relation::regclass::text ~ '^tq.event_' and mode = 'RowExclusiveLock' and pid <> $busy", 'the job is marked');
	release($node, $point);
	my $said = end_ask($one);
	# it gives up after two seconds
	my $waited = sub {
		return 1 if $said !~ /55P03.*a job that waits for job $m[0] is being changed/;
		ask($one, 'rollback; begin');
		$said = ask($one, "select tq_retry($m[0])");
		return 0;
	};
	until_so($waited, 'the resolver is done');
	is($said, 'ready', "H36: $point: a retry waits for the resolver");
	ask($one, 'commit');
	is(state_of($b), 'blocked', '... and the callback waits');
	runs_in_the_end($b, $m[0], $point);
}

# the last job ends while the retry is open
($b, @m) = failed_batch('run', 2);
ask($one, 'begin');
ask($one, "select tq_retry($m[0])");
arm($node, 'resolve-before-free', 'wait', pid => $busy);
finish('m');
standing($node, 'resolve-before-free');
release($node, 'resolve-before-free');
is(state_of($b), 'blocked', 'H36: a callback is not freed beside an open retry');
ask($one, 'commit');
ok(until_true($node, "select done = 1 from tq_batch($b)"), '... whose job counts as open');
is(sql("select count(*) from tq_history($b) where event = 'freed'"), 0, '... when it has committed');
runs_in_the_end($b, $m[0], 'an open retry');
($b, @m) = failed_batch('run', 2);
ask($one, 'begin');
ask($one, "select tq_retry($m[0])");
finish('m');
ask($one, 'rollback');
ok(becomes($b, 'ready'), '... or the callback is freed when that is rolled back');
finish('cb');

# a callback that a user has let run although jobs had failed; a large batch
($b, @m) = failed_batch('cancel', 2);
ok(becomes($b, 'cancelled'), 'a callback is cancelled');
sql("select tq_retry($b)");
finish('m');
ok(becomes($b, 'ready'), '... and let run');
sql("select tq_retry($m[0])");
is(state_of($b), 'blocked', '... it waits again, too');
fails('m');
ok(becomes($b, 'ready'), '... and runs even if the job fails again');
finish('cb');

$b = sql(q{select tq_batch_open('cb')});
sql(qq{select tq_enqueue_many('large', array_fill('{}'::jsonb, array[150]), options => '{"batch": $b}')});
sql("select tq_batch_close($b)");
take_all($node, 'large', 120);
sql(q{select tq_fail(id, lease, 'broken', fatal => true) from tq_claim('large', wait => '3 min')}) for 1 .. 30;
ok(becomes($b, 'ready'), 'the callback of a large batch is ready');
is(sql(q{select tq_retry_many('large', max_jobs => 20)}) . state_of($b), '20blocked', '... and waits when some jobs are retried');
ok(until_true($node, "select done = 130 from tq_batch($b)"), '... which count as open');
crash();
is(sql(q{select tq_retry_many('large')}), 10, '... so do the others');
take_all($node, 'large', 29);
ok(until_true($node, "select done = 149 from tq_batch($b)"), '... it waits for the last');
is(state_of($b), 'blocked', '... one of them');
fails('large');
ok(becomes($b, 'ready'), '... and starts');
is(given('distinct parents'), '{"total": 150, "failed": 1, "succeeded": 149}', '... with the counts');

# the rows of a batch with failures go with the record of its callback
is(sql("select count(*) from tq.dependency where child_id = $b"), 1, 'a batch keeps its failed jobs');

# a key whose window is longer than the retention of its job
my $kept = sql(q{select tq_enqueue('u', unique_key => 'kept', options => '{"unique_for": "1 h"}')});
finish('u');
by_hand($node, "delete from tq.event where job_id = $kept; delete from tq.job where id = $kept");
$b = sql(q{select tq_batch_open('cb', on_failure => 'cancel')});
is(sql(qq{select tq_enqueue('u', unique_key => 'kept', options => '{"batch": $b}')}), $kept, 'a key is taken although the record of its job is gone');
sql("select tq_batch_close($b)");
ok(becomes($b, 'ready'), '... which does not count as a failed job of a batch');
is(progress($b), 'f 0 0 0 0', '... since it does not join');
finish('cb');

sql(q{select count(tq_complete(id, lease)) from tq_running});
check_journal($node);
leave($one, $other);
$node->stop;
done_testing();
