# tq_changes: a cursor misses no commit, whatever the order of commits; waits end with a commit; old changes are deleted by the
# time of their commit, and a cursor that is too old is refused.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('changes', conf => "tq.max_live_jobs = 10000\nautovacuum = off\ntq.claim_log_delay = 1min\n");
scheduler_of($node);
$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('q', '{"change_retention": "1 day"}'), tq_create_queue('other', '{"change_retention": "1 day"}'),
	tq_create_queue('quiet');
create database elsewhere;
SQL

my $reader = session($node);
my $cursor = 'now';

# The changes since the last call, as "job event state"; goes on from there.
sub changes
{
	my ($max, $more) = @_;
	my $rows = ask($reader, "select coalesce(id::text, ''), event, state, next_after from tq_changes('$cursor', max => "
		  . ($max // 1000) . ($more // '') . ')');
	return $rows if $rows =~ /ERROR/;
	my @rows = map { [ split /\|/, $_, -1 ] } split /\n/, $rows;
	$cursor = $rows[-1][3];
	return join("\n", map { "$_->[0] $_->[1] $_->[2]" } grep { $_->[0] ne '' } @rows);
}

sub all_changes
{
	my ($max) = @_;
	my @all;
	while ((my $some = changes($max)) ne '')
	{
		push @all, split(/\n/, $some);
		last if @all > 100_000;
	}
	return @all;
}

is(ask($reader, "select queue, event from tq_changes()"), "q|recorded\nother|recorded", 'it has begun');
is(changes(), '', 'nothing has changed');
like($cursor, qr{^[0-9a-f]{8}/\d+:\d+:[\d,]*$}, 'an empty page has a cursor');

#
# a queue that begins to record while the janitor deletes the changes of queues that do not
#
arm($node, 'changes-after-collect');
$node->safe_psql('postgres', q{select tq_create_queue('first', '{"change_retention": "1 day"}')});    # there is something to do
standing($node, 'changes-after-collect');
$node->safe_psql('postgres', q{select tq_create_queue('second', '{"change_retention": "1 day"}')});
release($node, 'changes-after-collect');
janitor_away($node);
is(ask($reader, q{select queue, event from tq_changes(null, 'second')}), 'second|recorded', 'a queue that the janitor did not know keeps its changes');
changes();

#
# transactions commit in another order than they write
#
my ($a, $b, $far) = (session($node), session($node), session($node, 'elsewhere'));
ask($far, 'begin; create table t ()');    # open until the end of the test
my $first = ask($a, "begin; select tq_enqueue('q')");
my $second = ask($b, "begin; select tq_enqueue('q')");
is(changes(), '', 'what is open is not returned');
ask($b, 'commit');
is(changes(), "$second enqueued ready", 'the later transaction commits first');
ask($a, 'commit');
is(changes(), "$first enqueued ready", 'the earlier one follows');
is(changes(), '', 'once');

# a transaction with an old id that comes to tq late
ask($a, 'begin; create table early ()');
my $third = ask($b, "select tq_enqueue('q', run_at => tq_now() + '1 hour')");
is(changes(), "$third enqueued delayed", 'a delayed job');
my $fourth = ask($a, "select tq_enqueue('q')");
ask($a, 'commit');
is(changes(), "$fourth enqueued ready", 'the id of the transaction was older than the cursor');

# rollbacks
ask($a, "begin; select tq_enqueue('q'); rollback");
my $fifth = ask($a, "begin; savepoint s; select tq_enqueue('q'); rollback to s; savepoint s; select tq_enqueue('q'); commit");
$fifth = (split /\n/, $fifth)[-1];
is(changes(), "$fifth enqueued ready", 'only what was committed');

# its own transaction
ask($reader, 'begin');
my $own = ask($reader, "select tq_enqueue('q')");
is(changes(), '', 'its own changes are open, too');
ask($reader, 'rollback');
ask($reader, 'begin isolation level repeatable read; select 1');
my $sixth = ask($a, "select tq_enqueue('q')");
is(changes(), "$sixth enqueued ready", 'a transaction with an old snapshot reads what is committed');
$own = ask($reader, "select tq_enqueue('q')");
ask($reader, 'commit');
is(changes(), "$own enqueued ready", 'its own changes, after the commit');

# events, the same transaction
my $job = ask($a, "begin; select tq_enqueue('q'); select tq_cancel(currval('tq.job_id_seq')) where false; commit");
$job = (split /\n/, $job)[0];
is(ask($a, "begin; select tq_reschedule($job, run_at => tq_now() + '1 hour'); select tq_cancel($job); commit") =~ /ERROR/ ? 1 : 0,
	0, 'it is rescheduled and cancelled');
is(changes(), "$job enqueued ready\n$job rescheduled delayed\n$job cancelled cancelled", 'by the order of its steps');
$job = ask($a, "begin; select tq_enqueue('q')");
ask($a, "select tq_cancel($job); commit");
is(changes(), "$job enqueued ready\n$job cancelled cancelled", 'a job that its own transaction cancelled');

# other queues
ask($a, "select tq_enqueue('quiet')");
is(changes(), '', 'a queue without change_retention records nothing');
like(ask($reader, "select * from tq_changes('now', 'quiet')"), qr/55000: changes of queue "quiet" are not recorded/, 'which is an error');
my $elsewhere = ask($a, "select tq_enqueue('other')");
is(ask($reader, "select count(id) from tq_changes('$cursor', 'q')"), 0, 'one queue');
is(changes(), "$elsewhere enqueued ready", 'all queues');

#
# what the server does by itself
#
ask($reader, "select tq_complete(id, lease) from tq_claim('q', 100)");
all_changes();
ask($a, "select tq_complete(id, lease) from tq_claim('other')");
is(changes(), "$elsewhere succeeded succeeded", 'a short attempt has no claim');
$job = ask($a, "select tq_enqueue('other', max_attempts => 1)");
my $child = ask($a, "select tq_enqueue('other', depends_on => array[$job], options => '{\"on_parent_failure\": \"run\"}')");
ask($a, "select tq_claim('other', lease_for => '1 s')");
my $expiring = ask($a, "select tq_enqueue('other', run_at => tq_now() + '3 s', expires_at => tq_now() + '4 s')");
until_true($node, "select 2 = (select count(*) from tq.event where (job_id = $job and type = 'd') or (job_id = $expiring and type = 'e'))
	and exists (select from tq.event where job_id = $child and type = 'u')", 'the workers are done');
my %seen = map { $_ => 1 } all_changes();
is(join(', ', sort keys %seen), join(', ', sort("$job enqueued ready", "$job dead dead", "$expiring enqueued delayed",
			"$expiring expired expired", "$child enqueued blocked", "$child freed ready")), 'lost, expired and freed jobs')
  or diag(join("\n", sort keys %seen));

#
# pages
#
ask($a, 'begin; create table late ()');
ask($b, "select tq_enqueue_many('q', (select array_agg('{}'::jsonb) from generate_series(1, 2500)))");
my @paged = split /\n/, changes(700);
is(scalar(@paged), 700, 'a part of a transaction');
$job = ask($a, "select tq_enqueue('q')");
ask($a, 'commit');
push @paged, all_changes(333);
my %once = map { $_ => 1 } @paged;
is(scalar(@paged), 2501, 'the rest, and what was committed meanwhile');
is(scalar(keys %once), 2501, 'each once');
ok($once{"$job enqueued ready"}, 'also with an older transaction');

# in several queues, from the beginning: page by page or at once
my $from_start = sub {
	my ($max) = @_;
	my ($at, @ids) = ('null');
	while (1)
	{
		my @rows = map { [ split /\|/, $_, -1 ] } split /\n/, ask($reader, "select coalesce(id::text, ''), coalesce(step::text, ''), next_after from tq_changes($at, max => $max)");
		last if $rows[0][1] eq '';
		push @ids, map { "$_->[0].$_->[1]" } grep { $_->[0] ne '' } @rows;
		$at = "'$rows[-1][2]'";
	}
	return join(' ', sort @ids);
};
is($from_start->(97), $from_start->(10_000), 'from the beginning: pages make the whole');
is(ask($reader, "select count(*) from tq.change where job_id > 0") - 1, ($from_start->(10_000) =~ tr/ //), 'all that is kept');

# what a page costs does not depend on what was returned before
my $cost = "select (p -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::int from x(\$q\$select * from tq_changes('$cursor')\$q\$) p";
ask($reader, <<'SQL');
create function x(statement text) returns jsonb language plpgsql as $$
declare p jsonb;
begin execute 'explain (analyze, buffers, format json) ' || statement into p; return p; end $$
SQL
ask($reader, $cost) for 1 .. 2;
cmp_ok(ask($reader, $cost), '<', 60, 'an empty page reads few blocks');

#
# waiting
#
changes();
begin_ask($reader, "select id from tq_changes('$cursor', wait => '1 h')");
until_true($node, "select wait_event = 'Extension' or wait_event = 'TqWaitForJob' from pg_stat_activity where query ~ 'tq_changes' and pid <> pg_backend_pid()", 'it waits');
ask($a, "begin; select tq_enqueue('q'); rollback; select tq_enqueue('quiet')");
$job = ask($a, "select tq_enqueue('other')");
is(end_ask($reader), $job, 'a commit ends the wait');
changes();
is(changes(1, ", wait => '50 ms'"), '', 'a wait without a change');    # limit: nothing comes
begin_ask($reader, "select id from tq_changes('now', 'q', wait => '1 h')");
until_true($node, q{select wait_event in ('Extension', 'TqWaitForJob') from pg_stat_activity where query ~ 'tq_changes' and pid <> pg_backend_pid()},
	'it waits for one queue');
ask($a, "select tq_enqueue('other')");
$job = ask($a, "select tq_enqueue('q')");
is(end_ask($reader), $job, 'a change of that queue ends the wait');

#
# a crash
#
changes();
ask($a, 'set synchronous_commit = off');
my $lost = ask($a, "begin; select tq_enqueue('q')");
$job = ask($b, "set synchronous_commit = off; select tq_enqueue('q')");
is(changes(), "$job enqueued ready", 'read before it is on disk');
leave($a, $b, $far, $reader);
$node->stop('immediate');
$node->start;
loaded($node);
($a, $b, $reader) = (session($node), session($node), session($node));
is($node->safe_psql('postgres', "select state from tq_get($job)"), 'ready', 'reading it has put it on disk');
is(changes(), '', 'what was open is gone');
$job = ask($a, "select tq_enqueue('q')");
is(changes(), "$job enqueued ready", 'the reader goes on');

#
# deletion
#
ask($a, 'begin; create table old ()');
ask($a, "select tq_enqueue('other')") =~ /(\d+)/;
my $late = $1;
my $stale = $cursor;
ask($b, "select tq_enqueue('other')");
changes();
ask($b, "select tq_alter_queue('other', '{\"change_retention\": \"1500 ms\"}')");
until_true($node, "select not exists (select from tq.change c join tq.queue q on q.id = c.queue_id where q.name = 'other')", 'old changes are deleted');
is($node->safe_psql('postgres', "select count(*) > 2000 from tq.change"), 't', 'those of other queues are kept');
ask($b, "select tq_alter_queue('other', '{\"change_retention\": \"10 min\"}')");
clock($node, 3600);
ask($a, 'commit');
is(changes(), "$late enqueued ready", 'a change is kept from its commit on, not from its time');
my $too_old = $cursor;
$cursor = $stale;
like(changes(), qr/TQ010: changes after the cursor have been deleted/, 'a cursor that is too old');
like(changes(1000, ", queue => 'other'"), qr/TQ010/, 'also for this queue');
is(changes(1000, ", queue => 'q'"), '', 'the other queue has all');
ask($b, "select tq_alter_queue('q', '{\"change_retention\": null}')");
until_true($node, "select not exists (select from tq.change c join tq.queue q on q.id = c.queue_id where q.name = 'q')", 'all changes of a queue that records none');
ask($b, "select tq_alter_queue('q', '{\"change_retention\": \"1 day\"}')");
$cursor = $stale;
is(ask($reader, "select id, event, state from tq_changes('$cursor', 'q')"), '|recorded|', 'recorded again: there was a gap');

# another database, and a copy
tq_setup($node, 'elsewhere');
$node->safe_psql('elsewhere', q{select tq_create_queue('q', '{"change_retention": "1 day"}')});
my $there = session($node, 'elsewhere');
like(ask($there, "select * from tq_changes('$too_old')"), qr/TQ010: the cursor is of another log/, 'another database');

for my $bad ('', 'x', '/', '12345678/1:2:', '12345678/2:1:3', '12345678/1:9:3,2', '12345678/1:9:3/4.1.1.1', '12345678/1:9:3/3.1.1', '12345678/1:9:3/3.1.1.1x', '12345678/1:99999999999999999999:')
{
	like(ask($reader, "select * from tq_changes('$bad')"), qr/22023: after is not a cursor|TQ010/, "a cursor \"$bad\"");
}

# a queue that is dropped
ask($reader, "select tq_cancel_many('other')");
ask($b, "select tq_drop_queue('other')");
until_true($node, "select not exists (select from tq_queues where queue = 'other')", 'the queue is gone');
until_true($node, "select not exists (select from tq.change c where not exists (select from tq.queue q where q.id = c.queue_id))", 'its changes are deleted');
until_true($node, "select not exists (select from tq.change_log c where queue_id <> 0 and not exists (select from tq.queue q where q.id = c.queue_id))", 'and what was noted of it');

check_journal($node);
leave($a, $b, $reader, $there);
$node->stop;
done_testing();
