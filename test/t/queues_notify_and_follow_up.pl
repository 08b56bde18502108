# Notifications (setting notify) and follow-up jobs. Notifications are coalesced, and tell of committed changes only;
# the scheduler sends them without waiting for other transactions. Follow-ups are enqueued by the transaction that ends
# a job, or by the scheduler; a full or missing target queue does not keep the job from ending.

use strict;
use warnings;

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('news', init => { allows_streaming => 1 });
loaded($node);
scheduler_of($node);

# --- notifications --------------------------------------------------------------------------------------------------

my $listener = session($node);

# The payloads that arrived on a channel since the last call.
sub heard
{
	my ($channel) = @_;
	my $out = ask($listener, q{select count(*) from tq_claim('nobody', wait => '20 ms')});    # poll
	return map { decode_json($_) } $out =~ /^Asynchronous notification "\Q$channel\E" with payload "(.*)" received/mg;
}

# Adds up the notifications of a queue until one of the counts has reached a value. Returns the sums, the number of
# notifications and the last of them.
sub told
{
	my ($queue, $figure, $sum, $channel) = @_;
	my %got = (enqueued => 0, finished => 0, dead => 0, n => 0);
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	while (time < $end)
	{
		for my $m (grep { $_->{queue} eq $queue } heard($channel // 'tq'))
		{
			$got{$_} += $m->{$_} for qw(enqueued finished dead);
			$got{ready} = $m->{ready};
			$got{n}++;
		}
		return \%got if $got{$figure} >= $sum;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	fail("$sum $figure are told of, not only $got{$figure}");
	return \%got;
}

sub queue
{
	my ($name, $settings) = @_;
	$node->safe_psql('postgres', "select tq_create_queue('$name', '$settings')");
	return;
}

sub enqueue
{
	my ($queue, $more) = @_;
	return $node->safe_psql('postgres', "select tq_enqueue('$queue'" . (defined $more ? ", $more" : '') . ')');
}

ask($listener, 'listen tq');
queue('mail', '{"notify": true}');
queue('quiet', '{}');
enqueue('quiet');
enqueue('mail');
my $got = told('mail', 'enqueued', 1);
is_deeply($got, { enqueued => 1, finished => 0, dead => 0, ready => 1, n => 1 }, 'one job, one notification');

# Uncommitted changes send no notification, and no notification waits for them.
my $open = session($node);
ask($open, 'begin');
ask($open, q{select tq_enqueue('mail')});
$node->safe_psql('postgres', q{begin; select tq_enqueue('mail'); rollback});
$node->safe_psql('postgres', q{begin; select tq_enqueue('mail'); savepoint s; select tq_enqueue('mail'); rollback to s; commit});
$got = told('mail', 'enqueued', 1);
is_deeply([ @$got{qw(enqueued ready)} ], [ 1, 2 ], 'only what has committed');
ask($open, 'commit');
$got = told('mail', 'enqueued', 1);
is_deeply([ @$got{qw(enqueued ready)} ], [ 1, 3 ], 'when it commits');

# Ends
take($node, 'mail', 1);
$node->safe_psql('postgres', q{select tq_fail(id, lease, 'no', fatal => true) from tq_claim('mail')});
$node->safe_psql('postgres', q{select tq_cancel(id) from tq_jobs where queue = 'mail' and state = 'ready'});
$got = told('mail', 'finished', 3);
is_deeply([ @$got{qw(enqueued finished dead ready)} ], [ 0, 3, 1, 0 ], 'how jobs ended');

# No job was enqueued, but one has become ready: its time has come, its attempt failed, its lease was lost.
enqueue('mail', q{delay => '9 min'});
$got = told('mail', 'enqueued', 1);
is($got->{ready}, 0, 'a job that is not ready yet');
clock($node, 541, 0);
for (1 .. 5)
{
	$got = told('mail', 'n', 1);
	last if $got->{ready};
}
is_deeply([ @$got{qw(enqueued finished ready)} ], [ 0, 0, 1 ], 'its time has come');
clock($node, 0, 0);
$node->safe_psql('postgres', q{select tq_fail(id, lease, 'again', retry_in => '0') from tq_claim('mail')});
$got = told('mail', 'n', 1);
is_deeply([ @$got{qw(enqueued finished ready)} ], [ 0, 0, 1 ], 'its attempt failed');
$node->safe_psql('postgres', q{select count(*) from tq_claim('mail', lease_for => '50 ms')});
$got = told('mail', 'n', 1);
is_deeply([ @$got{qw(enqueued finished ready)} ], [ 0, 0, 1 ], 'its lease was lost');
take($node, 'mail', 1);
told('mail', 'finished', 1);

# A bulk of jobs that is published only as a number
$node->safe_psql('postgres', q{set tq.publish_limit = 10; select count(tq_enqueue_many('mail', array_fill('{}'::jsonb, array[100])))});
$got = told('mail', 'enqueued', 100);
is_deeply([ @$got{qw(enqueued ready)} ], [ 100, 100 ], 'a bulk');
$node->safe_psql('postgres', q{select tq_purge('mail', 'ready')});
told('mail', 'finished', 100);

# Coalesced: many transactions, few notifications
$node->append_conf('postgresql.conf', 'tq.notify_interval = 1s');
$node->reload;
until_true($node, "select setting = '1000' from pg_settings where name = 'tq.notify_interval'");
my $many = session($node);
my $before = $node->safe_psql('postgres', 'select extract(epoch from clock_timestamp())');
ask($many, q{do $$ begin for i in 1 .. 300 loop perform tq_enqueue('mail'); commit; end loop; end $$});
$got = told('mail', 'enqueued', 300);
my $took = $node->safe_psql('postgres', 'select extract(epoch from clock_timestamp())') - $before;
is($got->{enqueued}, 300, 'all are told of');
cmp_ok($got->{n}, '<=', $took + 2, "300 transactions, $got->{n} notifications");
$node->append_conf('postgresql.conf', 'tq.notify_interval = 20ms');
$node->reload;
take_all($node, 'mail', 300);
told('mail', 'finished', 300);

# Channels, and names that need quoting
ask($listener, 'listen "Post & Co"');
queue('a "b" \ c', '{"notify": "Post & Co"}');
enqueue('a "b" \ c');
$got = told('a "b" \ c', 'enqueued', 1, 'Post & Co');
is($got->{enqueued}, 1, 'a channel of its own');
$node->safe_psql('postgres', q{select tq_alter_queue('a "b" \ c', '{"notify": false}')});
enqueue('a "b" \ c');
enqueue('mail');
told('mail', 'enqueued', 1);
is(scalar(heard('Post & Co')), 0, 'no more when it is turned off');
$node->safe_psql('postgres', q{select tq_alter_queue('a "b" \ c', '{"notify": true}')});
enqueue('a "b" \ c');
$got = told('a "b" \ c', 'enqueued', 1);
is($got->{enqueued}, 1, 'only what came after it was turned on again');

# The scheduler does not wait for the NOTIFY of another session, whose commit may wait for a standby (P4, H16).
my $stuck = session($node);
ask($stuck, 'create table written (n int)');
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
$node->reload;
until_true($node, "select setting = 'nobody' from pg_settings where name = 'synchronous_standby_names'");
# Commits wait once the checkpointer has read the setting, which it does between two checkpoints.
$node->safe_psql('postgres', 'checkpoint') for 1, 2;
begin_ask($stuck, q{do $$ begin insert into written values (1); notify other; end $$});
until_true($node, "select count(*) = 1 from pg_stat_activity where wait_event = 'SyncRep'", 'a NOTIFY waits for a standby');
my $quick = session($node);
ask($quick, 'set synchronous_commit = local');
ask($quick, "select tq_enqueue('$_', delay => '50 ms')") for qw(mail quiet);
until_true($node, q{select count(*) = 4 from tq_jobs where queue in ('mail', 'quiet') and state = 'ready'}, 'timers go on');
is(scalar(heard('tq')), 0, 'no notification while the other one waits');
$node->safe_psql('postgres', q{select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'});
end_ask($stuck);
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->reload;
$got = told('mail', 'enqueued', 1);
is_deeply([ @$got{qw(enqueued ready)} ], [ 1, 2 ], 'when it has ended');

# Counts that could not be sent are sent with the next ones, also by the next scheduler.
arm($node, 'notifications-before-commit', 'error');
enqueue('mail');
enqueue('mail');
$got = told('mail', 'enqueued', 2);
is_deeply([ @$got{qw(enqueued ready)} ], [ 2, 4 ], 'after an error');
arm($node, 'notifications-before-commit', 'error');
enqueue('mail');
until_true($node, q{select tq_test_passed('notifications-before-commit') > 0});
$node->safe_psql('postgres', 'select pg_terminate_backend(' . scheduler_of($node) . ')');
$got = told('mail', 'enqueued', 1);
is_deeply([ @$got{qw(enqueued ready)} ], [ 1, 5 ], 'after the end of the scheduler');

# A queue that is dropped while it has unsent counts
$node->append_conf('postgresql.conf', 'tq.notify_interval = 1h');
$node->reload;
queue('short', '{"notify": true}');
until_true($node, "select setting = '3600000' from pg_settings where name = 'tq.notify_interval'");
enqueue('short');
$got = told('short', 'enqueued', 1);    # then the scheduler reads the setting before it sends again
$node->safe_psql('postgres', q{select tq_purge('short', 'ready'); select tq_drop_queue('short')});
until_true($node, q{select count(*) = 0 from tq.queue where name = 'short'}, 'dropped');
queue('short', '{"notify": true}');
enqueue('short');
$got = told('short', 'enqueued', 1);
is_deeply($got, { enqueued => 1, finished => 0, dead => 0, ready => 1, n => 1 }, 'another queue of that name starts afresh');
$node->append_conf('postgresql.conf', 'tq.notify_interval = 20ms');
$node->reload;

# A crash loses counts; listeners are then told how many jobs are ready.
arm($node, 'notifications-before-commit', 'wait');
enqueue('short');
standing($node, 'notifications-before-commit');
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->stop('immediate');
$node->start;
leave($listener);
$listener = session($node);
ask($listener, 'listen tq');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
$got = told('short', 'n', 1);
is_deeply($got, { enqueued => 0, finished => 0, dead => 0, ready => 2, n => 1 }, 'after a crash');
check_journal($node);

# --- follow-ups -----------------------------------------------------------------------------------------------------

sub sql { return $node->safe_psql('postgres', $_[0]); }

my $one = session($node);
sub says { return ask($one, $_[0]); }

# The waiting jobs of a queue, in order: payloads without ids.
sub waiting
{
	my ($queue) = @_;
	return sql(qq{select coalesce(string_agg((j.payload - 'job')::text, ' ' order by j.id), '') from tq.job j join tq.queue q on q.id = j.queue_id
		where q.name = '$queue' and exists (select from tq_jobs t where t.id = j.id and t.state <> 'succeeded')});
}
sub count_in { return sql("select count(*) from tq_jobs where queue = '$_[0]' and state in ('ready', 'delayed')"); }

queue('after', '{"max_depth": 1000}');
queue('work', '{"follow_up": {"queue": "after", "kind": "report", "on": ["succeeded", "dead"], "priority": 7}, "max_attempts": 2}');
my $job = sql(q{select tq_enqueue('work', kind => 'scan')});
sql(q{select tq_complete(id, lease, '{"pages": 3}') from tq_claim('work')});
is(sql(q{with c as materialized (select * from tq_claim('after', kinds => '{report}'))
	select payload from c where priority = 7 and tq_complete(id, lease) = 'succeeded'}),
	qq({"job": $job, "kind": "scan", "queue": "work", "state": "succeeded", "result": {"pages": 3}}), 'a follow-up of success');
$job = sql(q{select tq_enqueue('work')});
sql(q{select tq_fail(id, lease, 'once', retry_in => '0') from tq_claim('work')});
is(count_in('after'), 0, 'not of an attempt that is repeated');
sql(q{select tq_fail(id, lease, 'twice', '{"line": 12}') from tq_claim('work')});
is(sql(q{with c as materialized (select * from tq_claim('after')) select payload from c where tq_complete(id, lease) = 'succeeded'}),
	qq({"job": $job, "kind": null, "error": "twice", "queue": "work", "state": "dead", "detail": {"line": 12}}), 'of death');
sql(q{select tq_enqueue('work') from generate_series(1, 2)});
sql(q{select tq_bury(id, lease, 'no') from tq_claim('work')});
sql(q{select tq_cancel(id) from tq_jobs where queue = 'work' and state = 'ready'});
is(count_in('after'), 0, 'not of what is not listed');

# With the job's own payload
queue('letters', '{}');
queue('post', '{"follow_up": {"queue": "letters", "on": ["dead"], "payload": true}}');
sub letter { return sql(q{with c as materialized (select * from tq_claim('letters')) select kind, payload, headers from c where tq_complete(id, lease) = 'succeeded'}) }
$job = sql(q{select tq_enqueue('post', '{"to": "ann"}', kind => 'letter', headers => '{"trace": 7}')});
sql(q{select tq_fail(id, lease, 'lost', fatal => true) from tq_claim('post')});
is(letter(), qq(letter|{"to": "ann"}|{"trace": 7, "follows": {"job": $job, "kind": "letter", "error": "lost", "queue": "post", "state": "dead"}}),
	'a follow-up with the payload, the kind and the headers of the job');
sql(q{select tq_enqueue('post', '[1]', options => '{"follow_up": {"queue": "letters", "on": ["cancelled"], "kind": "other", "payload": true, "outcome": false}}')});
sql(q{select tq_cancel(id, 'no') from tq_jobs where queue = 'post' and state = 'ready'});
like(letter(), qr/^other\|\[1\]\|\{"follows": \{.*"state": "cancelled", "left_out": true\}\}$/, '... with a kind of its own, and without the outcome');
sql(q{select tq_enqueue('post', headers => jsonb_build_object('x', repeat('x', 64000)))});
sql(q{select tq_fail(id, lease, repeat('long', 5000), fatal => true) from tq_claim('post')});
like(letter(), qr/"left_out": true/, '... and without an outcome that does not fit beside the headers');

# In the transaction that ends the job
sql(q{select tq_enqueue('work')});
sql(q{begin; select tq_complete(id, lease) from tq_claim('work'); rollback});
is(count_in('after'), 0, 'nothing follows what was rolled back');
sql(q{begin; create temp table c as select * from tq_claim('work'); savepoint s; select tq_complete(id, lease) from c;
	rollback to s; select tq_complete(id, lease, '"scalar"') from c; commit});
is(waiting('after'), '{"kind": null, "queue": "work", "state": "succeeded", "result": "scalar"}', 'once, whatever was tried before');
sql(q{select tq_purge('after', 'ready')});
sql(q{select tq_enqueue('work')});
arm($node, 'commit-before-publish', 'wait', pid => says('select pg_backend_pid()'));
begin_ask($one, q{select tq_complete(id, lease) from tq_claim('work')});
standing($node, 'commit-before-publish');
leave($listener);
$node->stop('immediate');
$node->start;
$listener = session($node);
ask($listener, 'listen tq');
leave($one);
$one = session($node);
loaded($node);
is(count_in('after') + sql(q{select count(*) from tq_jobs where queue = 'work' and state = 'ready'}), 1, 'after a crash: both or neither');
is(count_in('after'), 1, '... both, since it had committed');
sql(q{select tq_purge('after', 'ready')});

# By the scheduler: lost leases, expiry, claims that are always rolled back; by tq_cancel; by tq_fail of a job that was asked to stop
sql(q{select tq_alter_queue('work', '{"follow_up": {"queue": "after", "on": ["dead", "buried", "cancelled", "expired"]}, "on_lost": "bury"}')});
sql(q{select tq_enqueue('work'); select count(*) from tq_claim('work', lease_for => '10 ms')});
until_true($node, q{select count(*) = 1 from tq_jobs where queue = 'after' and state = 'ready'}, 'a lost lease is followed');
sql(q{select tq_enqueue('work', expires_at => clock_timestamp() + interval '20 ms')});
until_true($node, q{select count(*) = 2 from tq_jobs where queue = 'after' and state = 'ready'}, 'an expired job is followed');
sql(q{select tq_cancel(tq_enqueue) from tq_enqueue('work')});
is(count_in('after'), 2, 'no other session has seen a job that its own transaction cancels');
sql(q{select tq_enqueue('work')});
sql(q{select tq_cancel(id) from tq_jobs where queue = 'work' and state = 'ready'});
is(waiting('after'), join(' ', map { qq({"kind": null, "error": "$_->[1]", "queue": "work", "state": "$_->[0]"}) }
		[ 'buried', 'lease lost' ], [ 'expired', 'not started in time' ]) . ' {"kind": null, "queue": "work", "state": "cancelled"}',
	'each with what ended it');
sql(q{select tq_purge('after', 'ready')});

# Many at once
sql(q{select tq_alter_queue('work', '{"follow_up": {"queue": "after"}}')});
sql(q{select tq_enqueue('work') from generate_series(1, 50)});
sql(q{with c as materialized (select * from tq_claim('work', max_jobs => 50)) select count(m.*) from (select array_agg(id) i, array_agg(lease) l from c) a,
	tq_complete_many(i, l) m});
is(count_in('after'), 50, 'one for each of many');

# A finish that is interrupted while it enqueues the follow-up leaves its session in a normal state.
sql(q{select tq_enqueue('work')});
my $cut = session($node);
my $held = ask($cut, q{select id || ', ' || lease from tq_claim('work')});
ask($cut, q{set tq_test.draw_before_lock = 'select pg_cancel_backend(pg_backend_pid()), count(*) from generate_series(1, 100000)'});
like(ask($cut, "select tq_complete($held)"), qr/57014/, 'a finish is interrupted');
is(ask($cut, 'reset tq_test.draw_before_lock; select 1'), '1', 'the session is in no transaction');
is(ask($cut, "select tq_complete($held)"), 'succeeded', 'and can try again');
is(count_in('after'), 51, 'one job follows');
leave($cut);

# A follow-up that meets a lock makes the end of its job fail, and both can be retried.
my $locker = session($node);
$cut = session($node);
$held = sql(q{select tq_enqueue('work') as id \gset
	select id || ', ' || lease from tq_claim('work')});
$held =~ s/^\d+\n//;
ask($locker, 'begin');
ask($locker, "lock table $_ in share mode") for split /\n/, sql(q{select tableoid::regclass from tq.job group by 1});
like(ask($cut, "set lock_timeout = 50; select tq_complete($held)"), qr/55P03/, 'a follow-up that has to wait for too long is no reason to go without it');    # limit: it runs out
ask($locker, 'rollback');
is(ask($cut, "reset lock_timeout; select tq_complete($held)"), 'succeeded', 'it is tried again');
is(count_in('after'), 52, 'and one job follows');
leave($locker, $cut);

# The target is full: it takes follow-ups nevertheless. Or it is gone: the job ends nevertheless.
sub lost { return sql(q{select value from tq_health() where item = 'follow-ups that could not be enqueued'}); }
is(lost(), 0, 'none was lost');
sql(q{select tq_alter_queue('after', '{"max_depth": 54}')});
sql(q{select tq_enqueue('work') from generate_series(1, 5)});
my $curious = session($node);
ask($curious, 'set client_min_messages = log');
$curious->{stderr} = '';
is($curious->query(q{with c as materialized (select * from tq_claim('work', max_jobs => 5)) select count(*) from (select array_agg(id) i, array_agg(lease) l from c) a,
	tq_complete_many(i, l) m where m.status = 'ok'}), 5, 'a full target queue does not keep a job from ending');
unlike($curious->{stderr}, qr/after/, '... its name is not shown: the worker may have no right on it');
leave($curious);
is(count_in('after') . ' ' . lost(), '57 0', '... and all of them are followed');
like(says(q{select tq_enqueue('after')}), qr/TQ003/, '... they count: other jobs are refused');
sql(q{select tq_purge('after', 'ready'); select tq_drop_queue('after')});
until_true($node, q{select count(*) = 0 from tq.queue where name = 'after'}, 'dropped');
sql(q{select tq_enqueue('work')});
is(scalar(take($node, 'work', 1)) . ' ' . lost(), '1 1', 'a missing one does not keep it either');
like(slurp_file($node->logfile), qr/the follow-up of job \d+ was not enqueued: queue "after" does not exist/, '... and it is logged');
is(sql(q{select status from tq_health() where item = 'follow-ups that could not be enqueued'}), 'warn', 'tq_health says so');
like(sql('select tq_metrics()'), qr/^tq_follow_ups_lost_total 1$/m, '... and so does tq_metrics');

# A schedule continues without the target of its follow-up, and so do other schedules.
queue($_, '{}') for qw(target timed otherwise);
let_write($node, 'schedule');
sql(q{select tq_schedule('followed', 'timed', every => '1 day', options => '{"follow_up": {"queue": "target"}}')});
sql(q{select tq_drop_queue('target')});
until_true($node, q{select count(*) = 0 from tq.queue where name = 'target'}, 'dropped');
sql(q{select tq_schedule('other', 'otherwise', every => '1 s')});
ok(until_true($node, q{select count(*) > 0 from tq_jobs where queue = 'otherwise'}, 'a fire'), 'other schedules fire');
is(sql(q{select name || ' ' || state from tq_schedules where last_error is null order by name}), "followed active\nother active", 'tq_schedules shows both');
like(sql(q{select tq_schedule_run('followed')}), qr/^\d+$/, 'its job is enqueued');
is(scalar(take($node, 'timed', 1)) . ' ' . lost(), '1 2', '... and ends, and nothing follows it');
like(says(q{select tq_schedule('followed', 'timed', every => '1 day', options => '{"follow_up": {"queue": "target"}}')}), qr/TQ002/, 'defined again, it needs one');
sql(q{select tq_unschedule('followed'), tq_unschedule('other')});

# No circles, in whatever way they are defined
queue('after', '{}');
like(says(q{select tq_alter_queue('work', '{"follow_up": {"queue": "work"}}')}), qr/22023: .*The circle is work -> work/s, 'not itself');
like(says(q{select tq_alter_queue('after', '{"follow_up": {"queue": "work"}}')}), qr/22023: .*The circle is after -> work -> after/s, 'not by another queue either');
queue('last', '{"follow_up": {"queue": "work"}}');
my $two = session($node);
ask($two, 'begin');
ask($two, q{select tq_alter_queue('work', '{"follow_up": null}')});
ask($two, q{select tq_alter_queue('after', '{"follow_up": {"queue": "last"}}')});
begin_ask($one, q{select tq_alter_queue('work', '{"follow_up": {"queue": "after"}}')});
ask($two, 'commit');
like(end_ask($one), qr/22023: .*The circle is work -> after -> last -> work/s, 'not by two at once either');

# The job's own setting takes precedence
sql(q{select tq_alter_queue('after', '{"follow_up": null}'); select tq_alter_queue('work', '{"follow_up": {"queue": "after"}}')});
sql(q{select tq_purge('after', 'ready')}) if count_in('after');
sql(q{select tq_enqueue('work', options => '{"follow_up": false}')});
sql(q{select tq_enqueue('work', options => '{"follow_up": {"queue": "quiet", "kind": "own"}}')});
sql(q{select tq_enqueue('after', options => '{"follow_up": {"queue": "after"}}')});
take_all($node, 'work', 2);
take_all($node, 'after', 1);
is(count_in('after'), 1, 'a job may be followed in its own queue, once');
is(sql(q{select count(*) from tq_jobs where queue = 'quiet' and kind = 'own'}), 1, 'a job with a follow-up of its own, one with none');
# ... also after it was read from disk
sql(q{select tq_enqueue('work', run_at => now() + interval '1 day', options => '{"follow_up": {"queue": "quiet", "kind": "far"}}')});
sql(q{select tq_retry(id) from tq_jobs where queue = 'work' and state = 'delayed'});
take_all($node, 'work', 1);
is(sql(q{select count(*) from tq_jobs where queue = 'quiet' and kind = 'far'}), 1, 'a job that was on disk only');

# Rights: manage on this queue, produce on the target; the role that finishes a job needs neither.
sql(q{create role boss login; create role maker login; create role worker login;
	select tq_grant('work', 'boss', 'manage'); select tq_grant('work', 'maker', 'produce'); select tq_grant('work', 'worker', 'consume')});
sub as { my ($role, $what) = @_; my $s = session($node); ask($s, "set role $role"); my $answer = ask($s, $what); leave($s); return $answer; }
my $setting = q{select tq_alter_queue('work', '{"follow_up": {"queue": "after"}}')};
my $option = q{select tq_enqueue('work', options => '{"follow_up": {"queue": "after"}}')};
like(as('boss', $setting), qr/42501: .*queue "after"/s, 'a setting takes produce on the other queue');
like(as('maker', $option), qr/42501: .*queue "after"/s, 'so does an option');
like(as('maker', q{select tq_enqueue('work', options => '{"follow_up": {"queue": "nowhere"}}')}), qr/42501/, 'no probing');
sql(q{select tq_grant('after', 'boss', 'produce'); select tq_grant('after', 'maker', 'produce')});
like(as('boss', $setting =~ s/"queue"/"payload": true, "queue"/r), qr/42501: .*queue "work".*consume or inspect or monitor/s, 'payloads go only where the role may read them');
unlike(as('boss', $setting), qr/ERROR/, 'with it, it is set');
unlike(as('maker', $option), qr/ERROR/, 'also for a job');
my $already = count_in('after');
is(as('worker', q{select tq_complete(id, lease) from tq_claim('work')}), 'succeeded', 'a worker finishes');
is(count_in('after'), $already + 1, '... and the follow-up is there');
like(says(q{select tq_create_queue('x', '{"follow_up": {"queue": "nowhere"}}')}), qr/TQ002/, 'a queue that is not there');

# The role that requested the follow-up needs produce at the time of the enqueue.
sub ends
{
	my ($what, $follows) = @_;
	my $before = count_in('after');
	my $lost = sql(q{select value from tq_health() where item = 'follow-ups that could not be enqueued'});
	is(as('worker', q{select string_agg(tq_complete(id, lease), ' ') from tq_claim('work')}), 'succeeded', "$what: the job ends");
	is(count_in('after') - $before, $follows ? 1 : 0, $follows ? '... and is followed' : '... and is not followed');
	is(sql(q{select value from tq_health() where item = 'follow-ups that could not be enqueued'}) - $lost, $follows ? 0 : 1, '... which is counted');
	return;
}
my %call = (revoke => sub { sql("select tq_revoke('after', '$_[0]', 'produce')") }, grant => sub { sql("select tq_grant('after', '$_[0]', 'produce')") });
unlike(as('boss', $setting), qr/ERROR/, 'a setting by a role with the right');
is(sql(q{select settings->'follow_up' from tq_queues where queue = 'work'}), '{"queue": "after", "outcome": false}', '... does not show the role that requested it');
sql(q{select tq_enqueue('work') from generate_series(1, 3)});
ends('a setting', 1);
$call{revoke}->('boss');
my $log = -s $node->logfile;
clock($node, 0, 100);    # the log has at most one such line a minute
ends('a setting whose role has lost the right', 0);
like(slurp_file($node->logfile, $log), qr/the follow-up of job \d+ was not enqueued: role "boss", which requested the follow-up, may not enqueue to queue "after"/, '... the log says why');
$call{grant}->('boss');
ends('with the right again', 1);
unlike(as('maker', $option), qr/ERROR/, 'an option by a role with the right');
sql(q{alter role maker rename to doer});
ends('an option of a role that has another name now', 1);
sql(q{alter role doer rename to maker});
sql(q{select tq_alter_queue('work', '{"follow_up": null}')});
for my $by ('', sql(q{select ', "by": "' || id || '"' from tq.requester where role = current_user::regrole limit 1}), ', "by": "nobody"')
{
	my $own = qq{select tq_enqueue('work', options => '{"follow_up": {"queue": "after"$by}}')};
	unlike(as('maker', $own), qr/ERROR/, "an option ($by)");
	$call{revoke}->('maker');
	ends("... of a role that has lost the right", 0);
	$call{grant}->('maker');
}
# a copy of a job keeps the role that requested the follow-up
sql(q{select tq_create_queue('copies'); select tq_grant('copies', 'boss', p) from unnest('{produce,consume}'::text[]) p; select tq_grant('work', 'boss', 'consume');
	select tq_purge('work', 'dead')});
unlike(as('maker', $option), qr/ERROR/, 'an option of a job that dies');
sql(q{select tq_fail(id, lease, 'no', fatal => true) from tq_claim('work')});
sql(q{select tq_purge('after', 'ready')});
is(as('boss', q{select tq_retry_many('work', to_queue => 'copies')}), 1, 'a copy');
$call{revoke}->('maker');
take_all($node, 'copies', 1);
is(count_in('after'), 0, '... has no follow-up, although the role that created it may enqueue there');
$call{grant}->('maker');
# a queue of the same name that another role has created
sql(q{create role rival login; select tq_grant('*', 'rival', 'create'); select tq_create_queue('there'); select tq_grant('there', 'maker', 'produce')});
unlike(as('maker', q{select tq_enqueue('work', options => '{"follow_up": {"queue": "there"}}')}), qr/ERROR/, 'an option that names a queue');
sql(q{select tq_drop_queue('there')});
until_true($node, q{select count(*) = 0 from tq.queue where name = 'there'}, 'dropped');
unlike(as('rival', q{select tq_create_queue('there')}), qr/ERROR/, 'another role makes one of its name');
take_all($node, 'work', 1);
is(count_in('there'), 0, 'which gets no job of roles without a right there');
# the follow-up of a schedule's job has the rights of the schedule's owner
sql(q{select tq_schedule('followed', 'work', every => '1000 d', options => '{"follow_up": {"queue": "after"}}'); update tq.schedule set owner = 'maker' where name = 'followed'});
sql(q{select tq_schedule_run('followed')});
ends('a job of a schedule', 1);
sql(q{select tq_schedule_run('followed')});
$call{revoke}->('maker');
ends('a job of a schedule whose owner has lost the right', 0);
$call{grant}->('maker');
sql(q{select tq_unschedule('followed')});
# a role that was dropped, and a new role of the same name
unlike(as('maker', $option), qr/ERROR/, 'an option of a role');
sql(q{drop role maker; create role maker; select tq_grant('after', 'maker', 'produce')});
ends('... that was dropped', 0);
sql(q{select tq_alter_queue('work', '{"follow_up": {"queue": "after"}}')});
clock($node, 0, 0);

# A handler for the other queue is a function that is called after each end.
sql(q{create table told (job bigint, state text);
	create function on_end(j tq_job) returns jsonb language sql as $$
		insert into told values ((j.payload ->> 'job')::bigint, j.payload ->> 'state') returning to_jsonb(job) $$});
sql(q{select tq_purge('after', 'ready')});
sql(q{select tq_handle('after', null, 'on_end(tq_job)')});
$job = sql(q{select tq_enqueue('work')});
take_all($node, 'work', 1);
until_true($node, "select count(*) = 1 from told where job = $job and state = 'succeeded'", 'a handler on completion');
$job = sql(q{select tq_enqueue('work')});
sql(q{select tq_fail(id, lease, 'no', fatal => true) from tq_claim('work')});
until_true($node, "select count(*) = 1 from told where job = $job and state = 'dead'", 'a handler on death');
is(sql('select count(*) from told'), 2, 'a handler is called once for each end');
sql(q{select tq_unhandle('after', null)});

# A result that is larger than the limit of a payload
sql(q{alter system set tq.max_payload = '1kB'; select pg_reload_conf()});
until_true($node, "select setting = '1' from pg_settings where name = 'tq.max_payload'");
sql(q{select tq_enqueue('work')});
sql(q{select tq_purge('after', 'ready')});
sql(q{select tq_complete(id, lease, to_jsonb(repeat('x', 2000))) from tq_claim('work')});
is(waiting('after'), '{"kind": null, "queue": "work", "state": "succeeded", "left_out": true}', 'a large result is left out');
check_journal($node, 'the journal after follow-ups');
leave($one, $two);

leave($listener, $open, $many, $stuck, $quick);
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|a recount found/, 'nothing alarming in the log');
$node->stop;

done_testing();
