# A count of the journal against concurrent changes (H3, H8). Scenarios: a segment is finished after an enqueue has
# drawn ids of it; a segment is finished or dropped during a count; a queue is dropped during a count or a verb, and
# another queue gets its slot; a long transaction counts while a later one has ended; queues are busy during checks.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('closing', conf => "tq.segment_rows = 20\ntq.retention = '1h'\n");
scheduler_of($node);
my $writer = session($node);

sub finished { return "select finished_at is not null from tq.segment where number = $_[0]"; }

$node->safe_psql('postgres', q{select tq_enqueue('a')});
segment_after($node, 0);
janitor_away($node);
is(scalar(take_all($node, 'a', 1)), 1, 'the first job, from segment 0');

$node->safe_psql('postgres', q{select count(*) from tq_enqueue_many('a', array_fill('{}'::jsonb, array[19]))});
is(scalar(take_all($node, 'a', 19)), 19, 'all jobs of segment 1 have ended');
arm($node, 'draw-before-lock');
begin_ask($writer, q{select tq_enqueue('late')});
standing($node, 'draw-before-lock');
ok(until_true($node, finished(1)), 'H8: a segment is finished whose last id was drawn and not used yet');
release($node, 'draw-before-lock');
my $job = end_ask($writer);
is($node->safe_psql('postgres', "select tableoid::regclass from tq.job where id = $job"), 'tq.job_2', 'H8: the job goes to the next one');

# the last job of a segment ends, and the segment is finished, while a count has its snapshot
$node->safe_psql('postgres', q{select count(*) from tq_enqueue_many('a', array_fill('{}'::jsonb, array[19]))});
segment_after($node, 2);
janitor_away($node);
is(scalar(take_all($node, 'a', 19)), 19, 'H3: all jobs of the segment but the last one are claimed');
arm($node, 'count-after-snapshot');
begin_ask($writer, 'select count(*) > 0 from tq_check()');
standing($node, 'count-after-snapshot');
is(join(',', take_all($node, 'late', 1)), $job, 'H8: it is delivered');
ok(until_true($node, finished(2)), 'H3: a segment is finished while a count is at work');
release($node, 'count-after-snapshot');
is(end_ask($writer), 't', 'H3: the count reports its results');
is($node->safe_psql('postgres', 'select count(*) from tq_check() where expected <> found'), 0, 'H3: the count was right');

# a queue whose jobs the count has read is dropped, and another one takes its slot in memory
$node->safe_psql('postgres', q{select tq_enqueue_many('first', array_fill('{}'::jsonb, array[3]))});
arm($node, 'count-before-end');
begin_ask($writer, 'select count(*) from tq_check() where expected <> found');
standing($node, 'count-before-end');
is(scalar(take_all($node, 'first', 3)), 3, 'jobs end after a count has met them');
$node->safe_psql('postgres', q{select tq_drop_queue('first')});
until_true($node, q{select not exists (select from tq.queue where name = 'first')}, 'their queue is dropped');
$job = $node->safe_psql('postgres', q{select tq_enqueue('second')});
release($node, 'count-before-end');
is(end_ask($writer), 0, 'the count does not take them for jobs of another queue');
is($node->safe_psql('postgres', 'select count(*) from tq_check() where expected <> found'), 0, 'the counters are right');
is(join(',', take_all($node, 'second', 1)), $job, 'that goes on');

# a job that the count sees before it is published
my $other = session($node);
arm($node, 'commit-before-publish', 'wait', pid => ask($writer, 'select pg_backend_pid()'));
begin_ask($writer, q{set tq.publish_limit = 0; select tq_enqueue('unpublished')});
standing($node, 'commit-before-publish');
my $counts = ask($other, 'select pg_backend_pid()');
begin_ask($other, 'select count(*) from tq_check() where expected <> found');
ok(until_true($node, "select query ~ 'tq_check' and (state = 'idle' or wait_event = 'Extension') from pg_stat_activity where pid = $counts"),
	'a count meets a job that is not published');
release($node, 'commit-before-publish');
end_ask($writer);
ask($writer, 'reset tq.publish_limit');
is(end_ask($other), 0, '... waits for it');
is($node->safe_psql('postgres', q{select value from tq_health() where item = 'jobs found again by audits'}), 0, '... and does not take it for lost');
is(scalar(take_all($node, 'unpublished', 1)), 1, '... which it is not');

# a transaction that counts in the middle of its own work, when a later one has ended
my $wrong = 'select count(*) from tq_check() where expected <> found';
my $own = ask($writer, q{begin; select tq_enqueue('own')});
$job = $node->safe_psql('postgres', q{select tq_enqueue('own')});
is(ask($writer, $wrong), 0, 'a transaction counts');
ask($writer, 'commit');
is($node->safe_psql('postgres', $wrong), 0, 'what it had written itself is counted when it commits');
is(join(',', take_all($node, 'own', 2)), "$own,$job", 'and delivered');

# a segment that a count has read is dropped, and another one takes its slot in memory
$node->append_conf('postgresql.conf', 'tq.retention = 0');
$node->reload;
my $newest = $node->safe_psql('postgres', 'select max(number) from tq.segment');
$node->safe_psql('postgres', q{select count(*) from tq_enqueue_many('a', array_fill('{}'::jsonb, array[20]))});
segment_after($node, $newest);
janitor_away($node);
arm($node, 'count-before-end');
begin_ask($writer, $wrong);
standing($node, 'count-before-end');
is(scalar(take_all($node, 'a', 20)), 20, 'jobs end after a count has met them');
ok(until_true($node, "select to_regclass('tq.job_$newest') is null"), 'their segment is dropped');
for (1 .. 4)
{
	$newest = $node->safe_psql('postgres', 'select max(number) from tq.segment');
	$node->safe_psql('postgres', q{select count(*) from tq_enqueue_many('a', array_fill('{}'::jsonb, array[20]))});
	segment_after($node, $newest);
}
release($node, 'count-before-end');
is(end_ask($writer), 0, 'the count does not take them for jobs of another segment');
is($node->safe_psql('postgres', $wrong), 0, 'the counters are right');
is(scalar(take_all($node, 'a', 80)), 80, 'that goes on');

$job = $node->safe_psql('postgres', q{select tq_enqueue('after')});
$node->restart;
is(join(',', take_all($node, 'after', 1)), $job, 'and it goes on after a restart');

# a slot is freed while the journal is read after a start, and a queue takes it whose jobs are read; kinds and names do
# not matter
my $name = "it\x{c2}\x{80}s";
$node->append_conf('postgresql.conf', "tq.workers = off\ntq.retention = '1h'");
$node->safe_psql('postgres', qq{select tq_enqueue(q, kind => 'k', delay => '1 d') from generate_series(1, 5), unnest(array['later', '$name']) q});
$node->restart;
my $reader = session($node);
arm($node, 'count-after-snapshot');
begin_ask($reader, q{select live from tq_stats() where queue = 'later'});
standing($node, 'count-after-snapshot');
$node->safe_psql('postgres', q{begin; select tq_create_queue('given up'); select tq_enqueue('given up', kind => x) from unnest(array['x', 'y']) x; rollback});
release($node, 'count-after-snapshot');
is(end_ask($reader), 5, 'jobs are counted that take the place of others');
is($node->safe_psql('postgres', qq{select live from tq_stats() where queue = '$name'}), 5, 'also of a queue with an odd name');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
scheduler_of($node);

# a verb has looked up the queue of a job; then the queue is dropped, and another one takes its slot in memory
my $verb = session($node);
$node->safe_psql('postgres', q{select tq_create_queue('leaves')});
my $ended = $node->safe_psql('postgres', q{select tq_enqueue('leaves')});
$node->safe_psql('postgres', "select tq_cancel($ended)");
arm($node, 'pin-before-lock', 'wait', pid => ask($verb, 'select pg_backend_pid()'));
begin_ask($verb, "select tq_retry($ended)");
standing($node, 'pin-before-lock');
$node->safe_psql('postgres', q{select tq_drop_queue('leaves')});
until_true($node, q{select not exists (select from tq.queue where name = 'leaves')}, 'the queue goes');
my $comes = $node->safe_psql('postgres', q{select tq_enqueue('comes')});
release($node, 'pin-before-lock');
like(end_ask($verb), qr/ERROR/, 'a job of a queue that was dropped meanwhile is not retried');
is(join(',', take_all($node, 'comes', 1)), $comes, 'the queue in its place has its own jobs alone');
check_journal($node, 'after it was dropped');
leave($verb);

# a queue that changes while the counters of its limits are compared is counted again, without its lock
$node->safe_psql('postgres', q{select tq_create_queue('busy', '{"group_max_running": 2}')});
$node->safe_psql('postgres', q{select tq_enqueue('busy', group_key => 'g' || i % 20) from generate_series(1, 40) i});
my $checker = session($node);
arm($node, 'check-after-entries');
arm($node, 'check-before-lock', 'error');
begin_ask($checker, $wrong);
standing($node, 'check-after-entries');
$node->safe_psql('postgres', q{select count(*) from tq_claim('busy', 5)});
release($node, 'check-after-entries');
is(end_ask($checker), 0, 'a queue that changed once is counted again');
ask($checker, q{set tq_test.check_after_entries = 'select tq_claim(''busy'')'});
like(ask($checker, $wrong), qr/error injected at "check-before-lock"/, 'the lock is taken for a queue that changes each time');
is(ask($checker, $wrong), 0, '... and no difference is found');
ask($checker, 'reset tq_test.check_after_entries');
# two sessions that enqueue, claim, release and complete without a pause
my @crowd = map { session($node) } 1 .. 2;
begin_ask($_, <<'SQL') for @crowd;
do $$
begin
	while exists (select from tq_queues where queue = 'busy' and paused_until is null) loop
		perform tq_enqueue('busy', group_key => 'g' || (random() * 20)::int, delay => case when random() < 0.3 then interval '5 ms' end);
		commit;
		perform case when random() < 0.3 then tq_release(id, lease, '5 ms') else tq_complete(id, lease) end from tq_claim('busy', 2);
		commit;
	end loop;
end $$
SQL
until_true($node, q{select succeeded >= 20 from tq_stats() where queue = 'busy'}, 'the queue is busy');
is(join("\n", map { $node->safe_psql('postgres', 'select * from tq_check() where expected <> found') } 1 .. 10), "\n" x 9,
	'checks of a busy queue report no difference');
$node->safe_psql('postgres', q{select tq_pause('busy')});
is(end_ask($_), '', 'the sessions end without an error') for @crowd;
leave(@crowd, $checker);
$node->safe_psql('postgres', q{select tq_resume('busy')});

check_journal($node);
done_testing();
