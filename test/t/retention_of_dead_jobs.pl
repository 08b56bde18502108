# Dead jobs are kept longer than other ended jobs, in any segment and after a restart. Purging them lets their segment
# be dropped. Also: retrying into another queue copies a job once; a purge skips locked jobs and stays within memory.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('endings', conf => <<CONF);
tq.segment_rows = 150
tq.segment_interval = '20d'
tq.retention = 0
tq.dead_retention = '1h'
max_connections = 30
CONF
scheduler_of($node);
my $one = session($node);
my $other = session($node);

sub sql { return $node->safe_psql('postgres', $_[0]); }

# The clocks never go back.
my $ahead = 0;

sub later { $ahead += $_[0]; clock($node, $ahead); return; }

sub newest { return sql('select coalesce(max(number), 0) from tq.segment'); }

# Fills the open segment: so many jobs of a queue die, the others succeed. Returns its number.
sub segment_with
{
	my ($queue, $dead) = @_;
	my $n = newest();
	sql("select count(tq_enqueue('$queue', max_attempts => 1)) from generate_series(1, $dead)");
	sql("select count(tq_fail(id, lease, 'broken')) from tq_claim('$queue', $dead)") if $dead > 0;
	sql("select count(tq_enqueue('fill')) from generate_series(1, @{[150 - $dead]})");
	segment_after($node, $n);
	take_all($node, 'fill', 150 - $dead);
	return $n;
}

# Whether the janitor has finished a round since: it has dropped a segment without jobs to keep.
sub janitor_has_been { my $n = segment_with('none', 0); return until_true($node, "select to_regclass('tq.job_$n') is null"); }

sub is_there { return sql("select to_regclass('tq.job_$_[0]') is not null"); }

sub dead { return sql("select count(*) from tq_dead where queue = '$_[0]'"); }

# the first job goes to segment 0 and makes the janitor open a numbered one
sql(q{select tq_enqueue('fill')});
segment_after($node, 0);
take_all($node, 'fill', 1);

#
# many dead jobs: their segment is kept
#
my $n = segment_with('many', 110);
ok(until_true($node, "select finished_at is not null from tq.segment where number = $n"), 'a segment with many dead letters is finished');
ok(janitor_has_been(), 'others are dropped when their retention has passed');
is(is_there($n), 't', 'that one is not');
is(dead('many'), 110, 'the dead letters are there');
is(sql("select count(*) from tq.event_$n where type = 'm'"), 0, 'none was moved');
is(sql(q{select tq_purge('many', 'dead')}), 110, 'they are purged');
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'and then the segment goes');

#
# few dead jobs: they are moved, and deleted from segment 0 after the retention of their queue
#
sql(q{select tq_create_queue('long', '{"dead_retention": "3 h"}')});
$n = segment_with('few', 1);
my $m = segment_with('long', 1);
ok(until_true($node, "select to_regclass('tq.job_$n') is null and to_regclass('tq.job_$m') is null"), 'segments with one dead letter each go');
is(dead('few') . dead('long'), 11, 'the dead letters do not');
is(sql(q{select count(*) from tq.job_0 j join tq.queue q on q.id = queue_id where name in ('few', 'long')}), 2, 'they are in segment 0');
is(sql(q{select string_agg((kept_until - died_at)::text, ' ' order by queue) from tq_dead}), '01:00:00 03:00:00', 'each says how long it is kept');
later(2 * 3600);
ok(until_true($node, q{select count(*) = 0 from tq_dead where queue = 'few'}), 'the one of an ordinary queue goes after its time');
is(dead('long'), 1, 'the one of a queue that keeps its own longer stays');
is(sql(q{select tq_purge('long', 'all')}), 1, 'until it is purged');
is(dead('long'), 0, 'then it is gone');
later(3 * 3600);
ok(until_true($node, q{select count(*) = 0 from tq.job_0 j join tq.queue q on q.id = queue_id where name = 'long'}), 'from the table as well');

#
# a job of a group is deleted while others of the group wait
#
$n = newest();
sql(q{select tq_enqueue('grouped', group_key => 'g', max_attempts => 1)});
sql(q{select tq_fail(id, lease, 'broken') from tq_claim('grouped')});
my ($waits, $second) = split /\n/, sql(q{select tq_enqueue('grouped', group_key => 'g', delay => '5 min') from generate_series(1, 2)});
sql(q{select count(tq_enqueue('fill')) from generate_series(1, 147)});
segment_after($node, $n);
take_all($node, 'fill', 147);
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'a segment with a dead letter and live jobs of its group goes');
is(sql(q{select string_agg(item, ', ') from tq_check() where expected <> found}), '', 'nothing has drifted');
is(sql("select tq_retry($waits)"), 'ready', 'one of the group is to start');
is(join(',', take_all($node, 'grouped', 1)), $waits, 'and starts');
is(sql(q{select tq_retry_many('grouped')}), 1, 'the dead one as well');
is(sql("select tq_retry($second)"), 'ready', 'and the other');
is(scalar(take_all($node, 'grouped', 2)), 2, 'all of them run');

#
# ended jobs of a dropped queue are deleted from segment 0 as well
#
$n = segment_with('short', 1);
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'a dead letter is moved to segment 0');
my $id = sql(q{select id from tq_dead where queue = 'short'});
sql(q{select tq_drop_queue('short')});
until_true($node, q{select count(*) = 0 from tq.queue where name = 'short'}, 'the queue is gone');
is(sql("select count(*) from tq.job_0 where id = $id"), 1, 'it is there without its queue');
later(2 * 3600);
ok(until_true($node, "select count(*) = 0 from tq.job_0 where id = $id"), 'and goes after its time');

#
# a restart: the number of dead jobs in a finished segment is unknown until a process reads it
#
$node->append_conf('postgresql.conf', "tq.retention = '10min'");
$node->reload;
until_true($node, q{select current_setting('tq.retention') = '10min'});
$n = segment_with('known', 110);
until_true($node, "select finished_at is not null from tq.segment where number = $n", 'finished');
janitor_away($node);
leave($one, $other);
$node->restart;
loaded($node);
later(0);
scheduler_of($node);
$one = session($node);
$other = session($node);
is(sql(q{select tq_retry_many('known', max_jobs => 1)}), 1, 'after a restart, one is retried');
is(sql(q{select count(tq_complete(id, lease)) from tq_claim('known')}), 1, 'and succeeds');
is(sql(q{with one as (select min(id) as id from tq_dead where queue = 'known') select tq_retry_many('known', max_jobs => 1, to_queue => 'known_again')}),
	1, 'another is retried elsewhere');
until_true($node, "select finished_at is not null from tq.segment where number = $n", 'finished again');
later(1200);
ok(until_true($node, q{select bool_and(finished_at is null or number = } . $n . q{) from tq.segment}), 'retention has passed for the others');
is(dead('known'), 108, 'the other dead letters are still there');
is(is_there($n), 't', 'with their segment');
$m = sql("select count(*) from tq.event_$n where type = 'd'");
is($m, 110, 'which has its history');
later(4 * 3600);
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'until their own retention has passed');

#
# two transactions
#
sql(q{select count(tq_enqueue('both', max_attempts => 1)) from generate_series(1, 4)});
sql(q{select count(tq_fail(id, lease, 'broken')) from tq_claim('both', 4)});
is(ask($one, q{begin; select tq_retry_many('both', to_queue => 'copies', max_jobs => 2)}), 2, 'one copies two');
is(ask($other, q{select tq_retry_many('both', to_queue => 'copies')}), 2, 'another skips those');
is(ask($other, q{select tq_purge('both', 'all')}), 0, 'and cannot purge them');
like(ask($other, q{select tq_retry(min(id)) from tq_dead where queue = 'both'}), qr/55P03/, 'a session cannot retry one of them');
ask($one, 'rollback');
is(dead('both'), 2, 'a rollback gives them back');
is(ask($other, q{select tq_retry_many('both', to_queue => 'copies')}), 2, 'and now they can be copied');
is(ask($other, q{select tq_retry_many('both', to_queue => 'copies')}), 0, 'once');
is(sql(q{select count(*) || ' ' || count(distinct c.origin) from tq.job c join tq.job o on o.id = c.origin join tq.queue q on q.id = o.queue_id
	where q.name = 'both'}), '4 4', 'each has one copy');
my $job = sql(q{select tq_enqueue('held')});
ask($one, "begin; select tq_reschedule($job, priority => 3)");
is(ask($other, q{select tq_purge('held', 'ready')}), 0, 'a job that another transaction is changing is not purged');
is(ask($one, q{select tq_purge('held', 'ready'); commit}), 1, 'but by himself');
is(sql("select state from tq_get($job)"), 'purged', 'and then it is');

#
# more jobs than memory holds
#
is(sql(q{select count(*) from unnest(tq_enqueue_many('backlog', array_fill('{}'::jsonb, array[600])))}), 600, 'a backlog');
my $left = 600;
my $calls = 0;
while ($left > 0 && $calls < 20)
{
	my $done = sql(q{select tq_purge('backlog', 'ready')});
	cmp_ok($done, '<=', 128, 'half of the memory at most');
	last if $done == 0;
	$left -= $done;
	$calls++;
}
is($left, 0, 'call by call, all of it is purged');
is(sql(q{select live from tq_stats() where queue = 'backlog'}), 0, 'nothing is left');
is(scalar(take($node, 'backlog', 10)), 0, 'to claim');

#
# a crash
#
sql(q{select count(tq_enqueue('crash')) from generate_series(1, 6)});
sql(q{select count(tq_fail(id, lease, 'broken', fatal => true)) from tq_claim('crash', 2)});
is(sql(q{select tq_purge('crash', 'dead') + tq_retry_many('known_again', state => 'cancelled', to_queue => 'crash')}), 2, 'purged');
ask($one, q{begin; select tq_purge('crash', 'all')});
$node->stop('immediate');
$node->start;
leave($one, $other);
loaded($node);
later(0);
is(sql(q{select ready || ' ' || live from tq_stats() where queue = 'crash'}), '4 4', 'a purge that did not commit has not happened');
is(dead('crash'), 0, 'and one that did has');
is(scalar(take_all($node, 'crash', 4)), 4, 'the others run');
take_all($node, 'known_again', 1);
take_all($node, 'copies', 4);

check_journal($node);
$node->stop;
done_testing();
