# Segments with old contents. Rows added by hand to one segment hide no row of another, also after a restart. A dead job
# that the janitor has given up, and that is retried and dies again, is kept again. Dead jobs that cannot be moved are
# not retried all the time, and keep their segment for their own retention.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('old_segments', conf => "tq.segment_rows = 40\ntq.segment_interval = 10h\ntq.retention = 1h\ntq.dead_retention = 1d\n");
scheduler_of($node);

my $ahead = 0;    # seconds that the wall clock is ahead

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub pass_time
{
	my ($seconds) = @_;
	$ahead += $seconds;
	clock($node, $ahead, 0);
	return;
}

sub restart
{
	$node->restart;
	clock($node, $ahead, 0);
	loaded($node);
	return;
}

# Enqueues as many jobs as a segment takes; returns the segment's number.
sub fill
{
	my ($queue) = @_;
	my $before = sql('select max(number) from tq.segment');
	my $id = sql("select ids[1] from tq_enqueue_many('$queue', array_fill('{}'::jsonb, array[40])) ids");
	segment_after($node, $before);
	janitor_away($node);
	return sql("select tableoid::regclass from tq.job where id = $id") =~ s/.*job_//r;
}

sub finished { return "select finished_at is not null from tq.segment where number = $_[0]"; }

# Passes the retention of a segment that is finished now. The janitor processes it after the older ones, and drops it.
sub retention_passes
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $other = fill('other');
	work_off($node, 'other');
	until_true($node, finished($other), 'another one, too');
	pass_time(7200);
	ok(until_true($node, "select to_regclass('tq.job_$other') is null"), 'their time is over');
	return;
}

# Whether a job is still a dead letter after that.
sub stays_dead
{
	my ($id) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	retention_passes();
	is(sql("select state from tq_get($id)"), 'dead', 'but not that of the dead letter');
	return;
}

sub workers
{
	my ($on) = @_;
	$node->append_conf('postgresql.conf', "tq.workers = $on");
	$node->reload;
	return;
}

sub no_workers { return until_true($node, "select count(*) = 0 from pg_stat_activity where backend_type ~ '^tq (scheduler|janitor)'", 'no workers'); }

sql(q{select tq_enqueue('first')});
segment_after($node, 0);
janitor_away($node);

# parents and batches in the segment after an old one
my $old = fill('old');
my $parent = sql(q{select tq_enqueue('parent')});
my $child = sql("select tq_enqueue('child', depends_on => array[$parent])");
my $batch = sql(q{select tq_batch_open('callback')});
sql("select tq_enqueue('member', options => '{\"batch\": $batch}')");
sql("select tq_batch_close($batch)");
is(sql("select count(distinct tableoid) = 1 and min(tableoid::regclass::text) <> 'tq.job_$old' from tq.job where id in ($parent, $child)"),
	't', 'jobs are in the segment after the old one');
is(scalar(take_all($node, 'member', 1)), 1, 'the batch is over');
is(join(',', take_all($node, 'callback', 1)), $batch, 'and its callback, too');
restart();
is(sql("select state from tq_get($parent)"), 'ready', 'the parent is found after a restart');
is(join(',', take_all($node, 'parent', 1)), $parent, 'the parent is claimed after a restart');
is(sql("select state from tq_get($parent)"), 'succeeded', '... also when it has left memory');
is(join(',', take_all($node, 'child', 1)), $child, 'the job that waits for it is freed');
work_off($node, 'old');
ok(until_true($node, finished($old)), 'the old segment is finished');
pass_time(7200);
ok(until_true($node, "select to_regclass('tq.job_$old') is null"), '... and dropped');
is(sql("select count(*) from tq.batch where id = $batch"), 1, 'but not what is known of the batch');
is(sql("select state from tq_get($parent)"), 'succeeded', '... and of the job');

# a dead job whose retention had passed for the janitor, in a segment that a lock keeps from being dropped
work_off($node, $_) foreach qw(first child);
my $full = fill('mortal');
my $letter = sql("select id from tq_claim('mortal') c, tq_fail(c.id, c.lease, 'first', fatal => true)");
work_off($node, 'mortal');
until_true($node, finished($full), 'finished');
restart();
my $reader = session($node);
ask($reader, "begin; select count(*) from tq.job_$full");
arm($node, 'drop-before-lock');
pass_time(100000);
standing($node, 'drop-before-lock');
workers('off');
release($node, 'drop-before-lock');
ok(no_workers(), 'no workers');
is(sql("select state from tq_get($letter)"), 'dead', 'a dead letter in a segment that cannot be dropped');
sql("select tq_retry($letter)");
is(sql("select id from tq_claim('mortal') c, tq_fail(c.id, c.lease, 'second', fatal => true)"), $letter, 'it is retried, and dies again');
ask($reader, 'commit');
leave($reader);
workers('on');
ok(until_true($node, finished($full)), 'the segment is finished again');
stays_dead($letter);

# the same while the janitor empties the segment: the retry of the dead job is committed, but not yet published
$full = fill('emptied');
$letter = sql("select id from tq_claim('emptied') c, tq_fail(c.id, c.lease, 'first', fatal => true)");
my $late = sql("select id from tq_claim('emptied') c, tq_release(c.id, c.lease, delay => '10 days')");
is(scalar(take_all($node, 'emptied', 38)), 38, 'a dead letter and a delayed job are left of a segment');
my $retrier = session($node);
arm($node, 'commit-before-publish', 'wait', pid => ask($retrier, 'select pg_backend_pid()'));
begin_ask($retrier, "select tq_retry($letter)");
standing($node, 'commit-before-publish');
arm($node, 'move-after-commit');
pass_time(7200);
standing($node, 'move-after-commit');
release($node, 'commit-before-publish');
end_ask($retrier);
leave($retrier);
is(sql("select id from tq_claim('emptied') c, tq_fail(c.id, c.lease, 'second', fatal => true)"), $letter, 'the letter is retried, and dies again');
release($node, 'move-after-commit');
is(sql("select count(*) from tq.job_0 where id = $late"), 1, 'the delayed job was moved');
ok(until_true($node, finished($full)), 'the segment is finished');
stays_dead($letter);

# the same when the retention of another queue's dead jobs has passed before
sql(q{select tq_create_queue('brief', '{"dead_retention": "1h"}')});
my $writer = session($node);
my $job = ask($writer, q{begin; select tq_enqueue('late')});
my $brief = sql(q{select tq_enqueue('brief')});
is(sql("select id from tq_claim('brief') c, tq_fail(c.id, c.lease, 'first', fatal => true)"), $brief, 'a letter that is kept for an hour');
$full = fill('crowd');
is(sql("select string_agg(distinct tableoid::regclass::text, ' ') from tq.job where id = $brief"), "tq.job_$full", 'in the segment that is full then');
my $kept = sql("select id from tq_claim('crowd') c, tq_release(c.id, c.lease, delay => '10 days')");
is(scalar(take_all($node, 'crowd', 39)), 39, 'with a delayed job');
pass_time(7200);
ok(until_true($node, "select count(*) = 1 from tq.job_0 where id = $kept"), 'which is moved');
janitor_away($node);
workers('off');
no_workers();
is(sql(q{select tq_purge('brief', 'dead')}), 1, 'the letter is purged');
ask($writer, 'commit');
leave($writer);
is(sql("select id from tq_claim('late') c, tq_fail(c.id, c.lease, 'first', fatal => true)"), $job, 'a job whose commit was late dies');
workers('on');
ok(until_true($node, finished($full)), 'the segment is finished');
stays_dead($job);

# dead jobs that cannot be moved, because their queue is gone, are not retried all the time; no other job is to be moved,
# because the retention of the other letter has passed
pass_time(100000);
ok(until_true($node, 'select count(*) = 1 from tq.segment'), 'only the open segment is left');
fill('other');    # and the next one is new
work_off($node, 'other');
$brief = sql(q{select tq_enqueue('brief')});
$full = fill('going');
is(sql("select string_agg(distinct tableoid::regclass::text, ' ') from tq.job where id = $brief"), "tq.job_$full", 'a job kept for an hour is with the others');
sql("select tq_fail(c.id, c.lease, 'first', fatal => true) from tq_claim('brief') c");
my $orphan = sql("select id from tq_claim('going') c, tq_fail(c.id, c.lease, 'first', fatal => true)");
work_off($node, 'going');
until_true($node, finished($full), 'finished');
sql(q{select tq_drop_queue('going')});
until_true($node, q{select not exists (select from tq.queue where name = 'going')}, 'the queue is dropped');
arm($node, 'move-after-commit');
pass_time(7200);
standing($node, 'move-after-commit');
release($node, 'move-after-commit');
janitor_away($node);

# if the first scan met the end of the queue, a second one follows after a few seconds
my $again = 1;
for (my $tries = 0; $again && $tries < 3; ++$tries)
{
	my $younger = fill('other');
	arm($node, 'move-after-commit');
	work_off($node, 'other');
	until_true($node, "select tq_test_waiting('move-after-commit') > 0 or (" . finished($younger) . ')', 'the janitor has been at a younger segment');
	$again = sql(q{select tq_test_waiting('move-after-commit')});
	release($node, 'move-after-commit');
	janitor_away($node);
}
is($again, 0, 'a segment whose last letter has no queue is left alone for a while');
arm($node, 'move-after-commit');
pass_time(1200);
standing($node, 'move-after-commit');
release($node, 'move-after-commit');
retention_passes();
is(sql("select count(*) from tq.job where id = $orphan"), 1, 'more scans do not drop the letter whose queue is gone');
pass_time(100000);
ok(until_true($node, "select to_regclass('tq.job_$full') is null"), '... and dropped when the time of letters is over');

is(sql('select count(*) from tq_check() where expected <> found'), 0, 'counters');
check_journal($node);
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6/, 'nothing alarming in the log');
$node->stop;

done_testing();
