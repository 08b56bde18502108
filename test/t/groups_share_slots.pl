# More groups than slots, and more of their jobs than memory holds (ADR 7). A job that must be in memory gets a slot: a
# running job after a restart, the job of a verb, the job of an open transaction. Groups that cannot start a job give
# their slots to those that can. Hazard: H13.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('slots', conf => <<CONF);
tq.max_groups = 4
tq.naptime = 50ms
CONF
scheduler_of($node);

#
# A running job has a slot after a restart, although the jobs read before it belong to as many groups as there are slots
#
$node->safe_psql('postgres', "select count(tq_enqueue('q', group_key => 'g' || i)) from generate_series(1, 5) i");
my $late = $node->safe_psql('postgres', "select tq_enqueue('q', group_key => 'a', priority => 1)");
is(scalar(take($node, 'q', 1)), 1, 'one ends, and gives its slot away');
# a claim that comes before the slot is given away gets one of the others
until_true($node, "with c as materialized (select id, lease from tq_claim('q', 1, lease_for => '1 h')),
	back as materialized (select tq_release(id, lease) from c where id <> $late)
	select (select count(*) from back) = 0 and id = $late from c", 'its claim');    # in this order: else nothing is released
my $lease = $node->safe_psql('postgres', 'select lease from tq_running');
is($node->safe_psql('postgres', 'select id from tq_running'), $late, 'the last one of the table is next');
until_true($node, "select count(*) = 1 from tq.event where job_id = $late and type = 'c'", 'its claim is journalled');
$node->safe_psql('postgres', "select tq_enqueue('other')");    # its commit is flushed, with all commits before it
$node->stop('immediate');
$node->start;
scheduler_of($node);
loaded($node);
is($node->safe_psql('postgres', 'select id from tq_running'), $late, 'it runs after a crash');
check_journal($node, 'after the load');
$node->safe_psql('postgres', "select tq_complete($late, $lease)");
is(scalar(take_all($node, 'q', 4)), 4, 'and the others come');
is(unfinished($node, 'q'), 0, 'nothing is left');
check_journal($node, 'at the end');

#
# Groups that cannot start a job now give up their slots to those that can
#
my $other = q{select count(*) from tq_claim('%s', 1, wait => '3 min')};
$node->safe_psql('postgres', "select count(tq_enqueue('later', group_key => 'g' || i, delay => '9 min')) from generate_series(1, 10) i");
$node->safe_psql('postgres', q{select tq_enqueue('now', group_key => 'x')});
is($node->safe_psql('postgres', sprintf($other, 'now')), 1, 'delayed jobs leave a slot to one that may start');
$node->safe_psql('postgres', 'select tq_complete(id, lease) from tq_running');
$node->safe_psql('postgres', q{select tq_create_queue('paused'), tq_pause('paused')});
$node->safe_psql('postgres', "select count(tq_enqueue('paused', group_key => 'g' || i)) from generate_series(1, 10) i");
$node->safe_psql('postgres', q{select tq_enqueue('now', group_key => 'y')});
is($node->safe_psql('postgres', sprintf($other, 'now')), 1, 'a paused queue gives its slots away');
$node->safe_psql('postgres', q{select tq_complete(id, lease) from tq_running; select tq_resume('paused')});
is(scalar(take_all($node, 'paused', 10)), 10, 'and its jobs come when it is resumed');
check_journal($node, 'before their time');
clock($node, 600);
is(scalar(take_all($node, 'later', 10)), 10, 'the delayed ones come at their time');
$node->safe_psql('postgres', "select count(tq_enqueue('unclaimed', group_key => 'g' || i)) from generate_series(1, 10) i");
$node->safe_psql('postgres', q{select tq_enqueue('now', group_key => 'z')});
is($node->safe_psql('postgres', sprintf($other, 'now')), 1, 'a queue without claims gives others their share');
$node->safe_psql('postgres', 'select tq_complete(id, lease) from tq_running');
is(scalar(take_all($node, 'unclaimed', 10)), 10, 'and has lost nothing');
check_journal($node, 'after their time');

#
# Memory is full of jobs whose groups have more urgent jobs on disk: the urgent ones replace them
#
$node->append_conf('postgresql.conf', "tq.max_groups = 100\ntq.max_live_jobs = 16");
$node->restart;
scheduler_of($node);
loaded($node);
$node->safe_psql('postgres', "select count(tq_enqueue('full', group_key => 'g' || i, priority => 100)) from generate_series(1, 30) i");
$node->safe_psql('postgres', "select count(tq_enqueue('full', group_key => 'g' || i, priority => 1)) from generate_series(1, 30) i");
is(scalar(take_all($node, 'full', 60)), 60, 'P7: jobs that fill memory do not keep out those before them');
is(unfinished($node, 'full'), 0, 'nothing is left');
check_journal($node, 'at the end');

#
# A load finds a slot for a running job even if delayed jobs took all slots during the load
#
$node->append_conf('postgresql.conf', 'tq.max_groups = 4');
$node->restart;
loaded($node);
$node->safe_psql('postgres', "select count(tq_enqueue('runs', group_key => 'g' || i)) from generate_series(1, 3) i");
my $run = $node->safe_psql('postgres', q{select string_agg(format('(%s, %s)', id, lease), ',') from tq_claim('runs', 3, lease_for => '1 h')});
until_true($node, "select count(*) = 3 from tq.event e join tq_running using (lease) where e.type = 'c'", 'the claims are journalled');
$node->safe_psql('postgres', "select tq_enqueue('other')");
$node->stop('immediate');
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->start;
$node->safe_psql('postgres', "select count(tq_enqueue('waits', group_key => 'd' || i, delay => '9 min')) from generate_series(1, 3) i");
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
scheduler_of($node);
loaded($node);
is($node->safe_psql('postgres', q{select count(*) from tq_running where queue = 'runs'}), 3, 'delayed jobs leave the slots to those that run');
ok(until_true($node, q{select delayed = 3 from tq_stats() where queue = 'waits'}), 'each of them is counted once');
check_journal($node, 'after the load');
$node->safe_psql('postgres', "select tq_complete(id, lease) from (values $run) v(id, lease)");

# a verb also finds a slot for its job if delayed jobs have all others
$node->safe_psql('postgres', "select count(tq_enqueue('soon', group_key => 's' || i, delay => '8 min')) from generate_series(1, 3) i");
$node->safe_psql('postgres', q{select tq_enqueue('runs', group_key => 'h')});
$run = $node->safe_psql('postgres', q{select format('(%s, %s)', id, lease) from tq_claim('runs', 1, wait => '3 min')});
my $disk = $node->safe_psql('postgres', q{select tq_enqueue('moved', group_key => 'm')});
# refused while a loader has all slots that could be freed
until_true($node, "select tq_reschedule($disk, priority => 1) is not null", 'it is changed');
is(scalar(take_all($node, 'moved', 1)), 1, 'a job on disk can be changed');
ok(until_true($node, q{select delayed = 3 from tq_stats() where queue = 'soon'}), 'what made room for it is counted once');
$node->safe_psql('postgres', "select tq_complete(id, lease) from (values $run) v(id, lease)");

# so does a job that must be in memory, when its transaction commits
take_all($node, 'other', 2);
$node->safe_psql('postgres', "select count(tq_enqueue('waiting', group_key => 'w' || i)) from generate_series(1, 4) i");
until_so(sub { ($node->psql('postgres', q{begin; select tq_enqueue('moved', group_key => 'm') as id \gset
	select tq_reschedule(:id, priority => 1); commit}))[0] == 0 }, 'it is enqueued and changed');
is(scalar(take_all($node, 'moved', 1)), 1, 'a job that is enqueued and changed in one transaction finds a slot');
is(scalar(take_all($node, 'waiting', 4)), 4, 'no group has lost a job');
clock($node, 1200);
is(scalar(take_all($node, 'waits', 3)) + take_all($node, 'soon', 3), 6, 'no job is lost of those that gave way');
check_journal($node, 'at the end');

$node->stop;
done_testing();
