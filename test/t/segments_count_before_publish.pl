# H3: a count of the journal runs after a transaction has become visible and before it is published. The count includes
# its changes once. A segment is finished only if the journal agrees. Scenarios: the end of a job, an enqueue, a delayed
# enqueue, the first load.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('late_count', conf => "tq.segment_rows = 20\ntq.retention = '1h'\n");
scheduler_of($node);
my $worker = session($node);

sub newest { return $node->safe_psql('postgres', 'select coalesce(max(number), 0) from tq.segment'); }
sub live { return $node->safe_psql('postgres', "select ready + delayed + running from tq_stats() where queue = '$_[0]'"); }

$node->safe_psql('postgres', q{select tq_enqueue('a')});
segment_after($node, 0);
janitor_away($node);
is(scalar(take_all($node, 'a', 1)), 1, 'the job of segment 0 is claimed');

# a segment with a job for tomorrow, and a job that a transaction has finished but not published
my $n = newest();
my $stays = $node->safe_psql('postgres', q{select tq_enqueue('stays', run_at => now() + interval '1 day')});
$node->safe_psql('postgres', q{select tq_enqueue('late')});
$node->safe_psql('postgres', q{select count(*) from tq_enqueue_many('a', array_fill('{}'::jsonb, array[18]))});
segment_after($node, $n);
janitor_away($node);
is(scalar(work_off($node, 'a')), 18, 'the jobs that fill the segment are claimed');
my $job = ask($worker, q{select id || ', ' || lease from tq_claim('late')});
arm($node, 'commit-before-publish');
begin_ask($worker, "select tq_complete($job)");
standing($node, 'commit-before-publish');
$node->safe_psql('postgres', 'select count(*) from tq_check()');    # sees the end of the job
release($node, 'commit-before-publish');
is(end_ask($worker), 'succeeded', 'the job ends although a count ran before it was published');
is(live('late'), 0, 'the job that ended is counted once');
is(live('stays'), 1, 'and so is the one that waits');
janitor_away($node);
is($node->safe_psql('postgres', "select finished_at is null from tq.segment where number = $n"), 't', 'its segment is not finished');

# the same with an enqueue, which would be counted twice
arm($node, 'commit-before-publish');
begin_ask($worker, q{select tq_enqueue('twice') > 0});
standing($node, 'commit-before-publish');
$node->safe_psql('postgres', 'select count(*) from tq_check()');
release($node, 'commit-before-publish');
is(end_ask($worker), 't', 'the enqueue ends although a count ran before it was published');
is(live('twice'), 1, 'a job that was published late is counted once');

# and with a delayed enqueue, which has one more counter
arm($node, 'commit-before-publish');
begin_ask($worker, q{select tq_enqueue('delayed', delay => '1 day') > 0});
standing($node, 'commit-before-publish');
$node->safe_psql('postgres', 'select count(*) from tq_check()');
release($node, 'commit-before-publish');
is(end_ask($worker), 't', 'the delayed enqueue ends although a count ran before it was published');
is($node->safe_psql('postgres', q{select ready || ' ' || delayed from tq_stats() where queue = 'delayed'}), '0 1', 'a delayed job that was published late is counted once');
is($node->safe_psql('postgres', 'select count(*) from tq_check() where expected <> found'), 0, 'memory agrees with the journal');

clock($node, 100000, 100000);
is(join(',', take_all($node, 'stays', 1)), $stays, 'tomorrow it runs');
clock($node, 0, 0);

# and with the first load, which begins and ends before jobs for tomorrow are published
$node->append_conf('postgresql.conf', "tq.workers = off\ntq.publish_limit = 2");
$node->stop('immediate');
$node->start;
leave($worker);
$worker = session($node);
arm($node, 'commit-before-publish');
begin_ask($worker, q{select count(*) from tq_enqueue_many('many', array_fill('{}'::jsonb, array[3]), delay => '1 day')});
standing($node, 'commit-before-publish');
my $other = session($node);
begin_ask($other, q{select tq_enqueue('one', delay => '1 day') > 0});
until_true($node, "select tq_test_waiting('commit-before-publish') = 2", 'two at commit-before-publish');
my $figures = q{select string_agg(queue || ': ' || ready || ' ' || delayed, ', ' order by queue) from tq_stats() where queue in ('many', 'one')};
is($node->safe_psql('postgres', $figures), 'many: 0 3, one: 0 1', 'the first load has met jobs that are not published');
release($node, 'commit-before-publish');
is(end_ask($worker), 1, 'the enqueue of many jobs ends after the first load');
is(end_ask($other), 't', 'the enqueue of one job ends after the first load');
is($node->safe_psql('postgres', $figures), 'many: 0 3, one: 0 1', 'publishing them does not count them again');
leave($other);
unlike(slurp_file($node->logfile), qr/a recount found/, 'no count takes what is published late for lost');
done_testing();
