# More children become free than the list of the resolver holds, and other transactions have all of them locked. The
# resolver tries again, and frees the children of other jobs meanwhile. scripts/bench measures what that costs.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('busy_children', conf => "tq.max_live_jobs = 4000\ntq.segment_interval = '20d'");
scheduler_of($node);

sub sql { return $node->safe_psql('postgres', $_[0]); }

my $parent = sql(q{select tq_enqueue('p')});
sql("select count(tq_enqueue('c', depends_on => '{$parent}')) from generate_series(1, 1200)");
my $keeper = session($node);
ask($keeper, 'begin');
is(ask($keeper, q{select count(tq_cancel(id)) from tq_jobs where queue = 'c'}), '1200', 'an open transaction is cancelling all children');
take_all($node, 'p', 1);
until_true($node, "select count(*) = 0 from tq.dependency where state is null", 'the end of the parent is known');

my $other = sql(q{select tq_enqueue('p')});
my $child = sql("select tq_enqueue('other', depends_on => '{$other}')");
take_all($node, 'p', 1);
ok(until_true($node, "select state = 'ready' from tq_get($child)"), 'the child of another comes free meanwhile');
ask($keeper, 'rollback');
ok(until_true($node, q{select ready = 1200 and live = 1200 from tq_stats() where queue = 'c'}), 'when they can be, they are');
is(sql('select count(*) from tq.dependency'), '0', 'all of them');

check_journal($node);
leave($keeper);
$node->stop;
done_testing();
