# What a queue tells the outside: notifications (setting notify), coalesced, of what has committed and of nothing else, sent by the
# scheduler, which waits for nobody.

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

# The payloads that have come on a channel since the last call.
sub heard
{
	my ($channel) = @_;
	my $out = ask($listener, q{select count(*) from tq_claim('nobody', wait => '20 ms')});
	return map { decode_json($_) } $out =~ /^Asynchronous notification "\Q$channel\E" with payload "(.*)" received/mg;
}

# Gathers what is told of a queue until a figure of it has added up to so much. Returns the sums, the number of notifications and the
# last of them.
sub told
{
	my ($queue, $figure, $sum, $channel) = @_;
	my %got = (enqueued => 0, finished => 0, dead => 0, n => 0);
	for (1 .. 600)
	{
		for my $m (grep { $_->{queue} eq $queue } heard($channel // 'tq'))
		{
			$got{$_} += $m->{$_} for qw(enqueued finished dead);
			$got{ready} = $m->{ready};
			$got{n}++;
		}
		return \%got if $got{$figure} >= $sum;
	}
	diag("heard of $got{$figure} $figure only");
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

# What did not commit is not told of, nor waited for.
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

# Nothing was enqueued, but a job has become ready: its time has come, its attempt failed, its lease was lost.
enqueue('mail', q{delay => '300 ms'});
$got = told('mail', 'enqueued', 1);
is($got->{ready}, 0, 'a job that is not ready yet');
for (1 .. 600)
{
	$got = told('mail', 'n', 1);
	last if $got->{ready};
}
is_deeply([ @$got{qw(enqueued finished ready)} ], [ 0, 0, 1 ], 'its time has come');
$node->safe_psql('postgres', q{select tq_fail(id, lease, 'again', retry_in => '0') from tq_claim('mail')});
$got = told('mail', 'n', 1);
is_deeply([ @$got{qw(enqueued finished ready)} ], [ 0, 0, 1 ], 'its attempt failed');
$node->safe_psql('postgres', q{select count(*) from tq_claim('mail', lease_for => '50 ms')});
$got = told('mail', 'n', 1);
is_deeply([ @$got{qw(enqueued finished ready)} ], [ 0, 0, 1 ], 'its lease was lost');
take($node, 'mail', 1);
told('mail', 'finished', 1);

# A bulk of jobs that is published by their number only
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

# The scheduler does not wait for another's NOTIFY, whose commit may wait for a standby (P4, H16).
my $stuck = session($node);
ask($stuck, 'create table written (n int)');
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
$node->reload;
until_true($node, "select setting = 'nobody' from pg_settings where name = 'synchronous_standby_names'");
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

# What could not be sent is sent with what comes next, also by the next scheduler.
arm($node, 'news-before-commit', 'error');
enqueue('mail');
enqueue('mail');
$got = told('mail', 'enqueued', 2);
is_deeply([ @$got{qw(enqueued ready)} ], [ 2, 4 ], 'after an error');
arm($node, 'news-before-commit', 'error');
enqueue('mail');
until_true($node, q{select tq_test_passed('news-before-commit') > 0});
$node->safe_psql('postgres', 'select pg_terminate_backend(' . scheduler_of($node) . ')');
$got = told('mail', 'enqueued', 1);
is_deeply([ @$got{qw(enqueued ready)} ], [ 1, 5 ], 'after the end of the scheduler');

# A queue that goes while it has news
$node->append_conf('postgresql.conf', 'tq.notify_interval = 1h');
$node->reload;
queue('short', '{"notify": true}');
enqueue('short');
$got = told('short', 'enqueued', 1);
until_true($node, "select setting = '3600000' from pg_settings where name = 'tq.notify_interval'");
$node->safe_psql('postgres', q{select tq_purge('short', 'ready'); select tq_drop_queue('short')});
until_true($node, q{select count(*) = 0 from tq.queue where name = 'short'}, 'dropped');
queue('short', '{"notify": true}');
enqueue('short');
$got = told('short', 'enqueued', 1);
is_deeply($got, { enqueued => 1, finished => 0, dead => 0, ready => 1, n => 1 }, 'another queue of that name starts afresh');
$node->append_conf('postgresql.conf', 'tq.notify_interval = 20ms');
$node->reload;

# After a crash nobody knows what was told of; who listens is told what is ready.
arm($node, 'news-before-commit', 'wait');
enqueue('short');
standing($node, 'news-before-commit');
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

leave($listener, $open, $many, $stuck, $quick);
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|a recount found/, 'nothing alarming in the log');
$node->stop;

done_testing();
