# H4: verbs on jobs that are only on disk, and two open transactions with the same job. H7: a job whose priority is not
# that of its row. H3: a job is retried while its segment is being dropped. Also: two verbs of one transaction, a queue
# that is created in a savepoint and rolled back.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('verbs', conf => <<CONF);
tq.max_live_jobs = 64
tq.segment_rows = 10000
CONF
scheduler_of($node);
my $one = session($node);
my $two = session($node);
my $bulk = session($node);    # publishes by lowering watermarks
ask($bulk, 'set tq.publish_limit = 0');

sub enqueue
{
	my ($session, $queue, $args) = @_;
	return ask($session, "select tq_enqueue('$queue'" . ($args ? ", $args" : '') . ')');
}

# The state of a job according to the journal and tq_get().
sub state_of
{
	my ($job) = @_;
	return $node->safe_psql('postgres', "select state from tq_get($job)");
}

#
# H4: on disk only. The loader is stopped, so that the jobs are not loaded.
#
arm($node, 'refill-after-snapshot');
my @jobs = map { enqueue($bulk, 'disk') } 1 .. 4;
standing($node, 'refill-after-snapshot');
is(ask($one, "begin; select tq_cancel($jobs[0])"), 'cancelled', 'H4: a job that is only on disk is cancelled');
like(ask($two, "select tq_cancel($jobs[0])"), qr/55P03/, 'H4: another session that wants the job gets an error at once');
like(ask($two, "select tq_reschedule($jobs[0], priority => 1)"), qr/55P03/, 'H4: whatever the verb');
ask($one, 'commit');
like(ask($two, "select tq_cancel($jobs[0])"), qr/TQ005/, 'H4: afterwards it is over');
is(ask($one, "begin; select tq_cancel($jobs[1])"), 'cancelled', 'H4: another one');
ask($one, 'rollback');
is(ask($two, "select tq_reschedule($jobs[1], priority => 500)"), 'ready', 'H4: is free again after a rollback');
ask($one, "begin; savepoint s; select tq_cancel($jobs[2])");
ask($one, 'rollback to s');
is(ask($two, "select tq_reschedule($jobs[2], run_at => now() + '1 h')"), 'delayed', 'H4: also after one to a savepoint');
ask($one, 'commit');
release($node, 'refill-after-snapshot');    # with all four in the loader's list
is(join(',', sort { $a <=> $b } take_all($node, 'disk', 2)), "$jobs[1],$jobs[3]", 'H4: the loader brings back what is left');
is(scalar(take($node, 'disk', 5)), 0, 'H4: and nothing else');
is(state_of($jobs[0]), 'cancelled', 'H4: the cancelled one stays cancelled');
is(state_of($jobs[2]), 'delayed', 'H4: the delayed one waits');
is(ask($one, "select tq_cancel($jobs[2])"), 'cancelled', 'H4: until it is cancelled');

# two sessions load the same job
arm($node, 'refill-after-snapshot');
my $job = enqueue($bulk, 'disk');
standing($node, 'refill-after-snapshot');
arm($node, 'pin-before-fold', 'wait', pid => ask($one, 'select pg_backend_pid()'));
begin_ask($one, "select tq_cancel($job)");
standing($node, 'pin-before-fold');
begin_ask($two, "select tq_cancel($job)");
release($node, 'pin-before-fold');
my @answers = sort map { end_ask($_) =~ /(cancelled|TQ005|55P03)/ ? $1 : 'strange' } $one, $two;
is($answers[1], 'cancelled', 'H4: two sessions load a job at the same time: one cancels it');
like($answers[0], qr/TQ005|55P03/, 'H4: the other does not');
release($node, 'refill-after-snapshot');
is(scalar(work_off($node, 'disk')), 0, 'H4: and no claim gets it');

#
# H4: in memory
#
@jobs = map { enqueue($one, 'memory') } 1 .. 3;
is(ask($one, "begin; select tq_reschedule($jobs[0], priority => 500)"), 'ready', 'H4: a job of an open transaction');
like(ask($two, "select tq_reschedule($jobs[0], priority => 1)"), qr/55P03/, 'H4: cannot be changed by another session');
is(ask($two, q{begin; select id from tq_claim('memory')}), $jobs[1], 'H4: claims step over it');
like(ask($one, "select tq_cancel($jobs[1])"), qr/TQ005|55P03|asked/, 'H4: a job of an open claim');
ask($one, 'rollback');
ask($two, 'rollback');
is(ask($two, "select tq_reschedule($jobs[0], priority => 600)"), 'ready', 'H4: marks go with their transactions');
is(ask($two, "select tq_reschedule($jobs[2], priority => -5)"), 'ready', 'H4: both of them');
is(ask($two, "select tq_reschedule($jobs[2], priority => 7)"), 'ready', 'H4: and again');
my $history = qq{select string_agg(event, ' ' order by step) from tq_history($jobs[2])};
my $before = $node->safe_psql('postgres', $history);
$node->stop('immediate');
$node->start;
leave($one, $two, $bulk);
($one, $two, $bulk) = map { session($node) } 1 .. 3;
ask($bulk, 'set tq.publish_limit = 0');
loaded($node);
scheduler_of($node);
is($node->safe_psql('postgres', $history), $before, 'H4: the same history after a crash');
is(join(',', work_off($node, 'memory')), "$jobs[2],$jobs[1],$jobs[0]", 'H4: memory and the fold of the journal have the same order');

# a running job
$job = enqueue($one, 'running');
my $held = ask($two, q{select id || ', ' || lease from tq_claim('running')});
is(ask($one, "begin; select tq_cancel($job)"), 'asked', 'H4: a running job is asked to stop');
is(ask($two, "select action from tq_heartbeat($held)"), 'run', 'H4: which its worker learns after the commit');
ask($one, 'commit');
is(ask($two, "select action from tq_heartbeat($held)"), 'cancel', 'H4: then');
is(ask($two, "select tq_complete($held)"), 'succeeded', 'H4: a finish wins');
$job = enqueue($one, 'running');
$held = ask($two, q{select id || ', ' || lease from tq_claim('running')});
is(ask($one, "begin; select tq_cancel($job)"), 'asked', 'H4: another one');
is(ask($two, "select tq_complete($held)"), 'succeeded', 'H4: ends while the cancelling transaction is open');
is(ask($one, 'commit'), '', 'H4: which does not mind');
is(state_of($job), 'succeeded', 'H4: the job has succeeded');

#
# H7, with tq_reschedule
#
my $lowered = enqueue($one, 'keys', 'priority => 50');
my $raised = enqueue($one, 'keys', 'priority => 900');
is(ask($one, "select tq_reschedule($lowered, priority => 200)"), 'ready', 'H7: a job goes behind its row\'s place');
is(ask($one, "select tq_reschedule($raised, priority => 10)"), 'ready', 'H7: another before');
my @middle = split /\n/, ask($one, q{select unnest(tq_enqueue_many('keys', array_fill('{}'::jsonb, array[200]), priority => 100))});
my @done = work_off($node, 'keys');
is($done[0], $raised, 'H7: with more jobs than memory, the raised one comes first');
is($done[-1], $lowered, 'H7: the lowered one last');
is(scalar(@done), 202, 'H7: and all of them once');

#
# H3: retried while its segment is dropped
#
$node->append_conf('postgresql.conf', "tq.segment_rows = 5\ntq.retention = 0\ntq.dead_retention = 0");
$node->reload;
until_true($node, q{select current_setting('tq.segment_rows') = '5'});

# A dead job in a segment; the janitor is just about to drop it.
sub dead_at
{
	my ($point) = @_;
	my $n = $node->safe_psql('postgres', 'select max(number) from tq.segment');
	$node->safe_psql('postgres', q{select tq_enqueue_many('filler', array_fill('{}'::jsonb, array[10]))});
	segment_after($node, $n);
	work_off($node, 'filler');
	janitor_away($node);
	until_true($node, q{select count(*) = 1 from tq.segment}, 'no older segment');
	my $dead = enqueue($one, 'dead', 'max_attempts => 1');
	$n = $node->safe_psql('postgres', "select substring(tableoid::regclass::text from '[0-9]+') from tq.job where id = $dead");
	ask($one, q{select tq_fail(id, lease, 'x') from tq_claim('dead')});
	arm($node, $point);
	$node->safe_psql('postgres', q{select tq_enqueue_many('filler', array_fill('{}'::jsonb, array[5]))});
	take_all($node, 'filler', 5);    # and no read of the journal, which the janitor may have locked
	standing($node, $point);
	return ($dead, $n);
}

my ($dead, $n) = dead_at('drop-before-lock');
is(ask($one, "select tq_retry($dead)"), 'ready', 'H3: a dead job gets a new life when its segment is about to be dropped');
arm($node, 'finish-before-lock');
release($node, 'drop-before-lock');
janitor_away($node);
is($node->safe_psql('postgres', "select to_regclass('tq.job_$n') is not null"), 't', 'H3: the segment stays');
is(join(',', take_all($node, 'dead', 1)), $dead, 'H3: the job runs');
release($node, 'finish-before-lock');
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'H3: then the segment goes');

($dead, $n) = dead_at('drop-before-lock');
is(ask($one, "begin; select tq_retry($dead)"), 'ready', 'H3: the same, with a transaction that is still open');
release($node, 'drop-before-lock');
janitor_away($node);
is($node->safe_psql('postgres', "select to_regclass('tq.job_$n') is not null"), 't', 'H3: keeps the segment');
ask($one, 'commit');
is(join(',', take_all($node, 'dead', 1)), $dead, 'H3: and runs');

($dead, $n) = dead_at('drop-after-lock');
begin_ask($one, "select tq_retry($dead)");
until_true($node, q{select count(*) > 0 from pg_locks where not granted}, 'a session waits for the drop');
is(enqueue($two, 'during') > 0, 1, 'H3: no other session waits for it');
is(scalar(take_all($node, 'during', 1)), 1, 'H3: claims and finishes go on');
release($node, 'drop-after-lock');
like(end_ask($one), qr/TQ004/, 'H3: too late: the segment is gone, and the job does not exist');

#
# Two verbs of one transaction
#
my $both = enqueue($one, 'both');
my $its = ask($one, "select lease from tq_claim('both', lease_for => '1 h')");
is(ask($one, "begin; select tq_cancel($both) || ' ' || tq_fail($both, $its, 'stopped'); commit"), 'asked cancelled',
	'a transaction that asks a job to stop and ends it in another way has cancelled it');
is(ask($two, "select state from tq_get($both)"), 'cancelled', 'and so it is');
$node->safe_psql('postgres', q{begin; select count(tq_enqueue_many('both', array_fill('{}'::jsonb, array[1500]), delay => '1 min'));
	select tq_test_clock(60000000, 60000000); select tq_cancel(max(id)) from tq.job; commit});
clock($node, 0);
is($node->safe_psql('postgres', q{select count(*) from tq_check() where expected <> found}), 0, 'a job that falls due before its bulk changes it is counted once');
$node->safe_psql('postgres', q{select tq_purge('both', 'all')});

#
# A queue created in a savepoint that is rolled back: its jobs do not count for the next queue in its slot
#
ask($one, q{begin; select tq_enqueue('both'); savepoint a; select tq_create_queue('not me'), tq_enqueue('not me'); rollback to a});
arm($node, 'commit-before-publish', 'wait', pid => ask($one, 'select pg_backend_pid()'));
begin_ask($one, 'commit');
standing($node, 'commit-before-publish');
ask($two, q{select tq_create_queue('next')});
release($node, 'commit-before-publish');
end_ask($one);
is($node->safe_psql('postgres', q{select found from tq_check() where item = 'queue users without a transaction'}), 0, 'no user is left over');
ask($two, q{select tq_drop_queue('next')});
ok(until_true($node, q{select count(*) = 0 from tq.queue where name = 'next'}), 'and it can be dropped');

check_journal($node);
leave($one, $two, $bulk);
$node->stop;
done_testing();
