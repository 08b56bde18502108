# More kinds have jobs on disk than are loaded at a time. Each kind is delivered in the end (P7).

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('dry_lanes', conf => <<CONF);
tq.max_live_jobs = 1000
CONF
scheduler_of($node);
$node->safe_psql('postgres', <<'SQL');
select count(tq_enqueue_many('q', array_fill('{}'::jsonb, array[100]), kind => 'kind ' || k)) from generate_series(1, 400) k;
select tq_pause('q'), tq_resume('q');
SQL
for my $kind ('kind 1', 'kind 200', 'kind 400')
{
	is($node->safe_psql('postgres', "select count(*) from tq_claim('q', 1, kinds => '{$kind}', wait => '3 min')"), 1, "a job of $kind comes");
}
check_journal($node, 'the journal is consistent');
$node->stop;
done_testing();
