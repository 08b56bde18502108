# H1: one process at a time loads delayed jobs, also if claims load them because no scheduler runs.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('timer_loaders', conf => <<CONF);
tq.workers = off
tq.timer_horizon = '1h'
tq.publish_limit = 0
CONF
my ($one, $two) = map { session($node) } 1 .. 2;
$node->safe_psql('postgres', q{select count(*) from tq_claim('q')});

# on disk, within the horizon: a bulk transaction publishes by lowering the timers' watermark
$node->safe_psql('postgres', q{select count(*) from tq_enqueue_many('q', array_fill('{}'::jsonb, array[3]), delay => '10 min')});
arm($node, 'timers-before-raise');
begin_ask($one, q{select count(*) from tq_claim('q')});
standing($node, 'timers-before-raise');

# on disk, beyond the horizon, while the first loader reads; the second one reaches a job that it would leave there
my $far = $node->safe_psql('postgres', q{select tq_enqueue('q', delay => '2 h')});
is(ask($two, q{select count(*) from tq_claim('q')}), 0, 'a second loader does not begin');
is($node->safe_psql('postgres', q{select tq_test_waiting('timers-before-raise')}), 1, 'and the first one is still at it');
release($node, 'timers-before-raise');
is(end_ask($one), 0, 'the first loader claims nothing before the jobs are due');

clock($node, 7300, 7300);
is(scalar(take_all($node, 'q', 3)), 3, 'those due in 10 minutes');
is(join(',', take_all($node, 'q', 1)), $far, 'the one due in 2 hours');
# only the scheduler handles a job that was asked to stop while an open transaction had claimed it, and no scheduler
# runs
my $job = $node->safe_psql('postgres', q{select tq_enqueue('stop')});
ask($one, 'begin');
is(ask($one, q{select id from tq_claim('stop')}), $job, 'a claim in an open transaction');
is($node->safe_psql('postgres', "select tq_cancel($job)"), 'asked', 'its job is asked to stop');
ask($one, 'rollback');
is(ask($two, q{select id from tq_claim('stop')}), '', 'a job that is to be cancelled does not start again');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
ok(until_true($node, "select state = 'cancelled' from tq_get($job)"), 'the scheduler cancels it when it is there');

is($node->safe_psql('postgres', q{select coalesce(sum(found), 0) from tq_check() where expected is not null and item like '%missing%'}),
	0, 'memory has missed none');
done_testing();
