# Many queues and many slots for groups: after a restart all queues are there, and slots are used again.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $queues = 2000;
my $node = tq_node('many_queues', conf => <<CONF);
tq.max_queues = 3200
tq.max_groups = 300000
tq.max_live_jobs = 10000
CONF
scheduler_of($node);
$node->safe_psql('postgres', "SELECT count(tq_create_queue('q' || g)) FROM generate_series(1, $queues) g");
$node->safe_psql('postgres', "SELECT count(tq_enqueue('q' || g, group_key => 'g')) FROM generate_series(1, $queues) g");
$node->restart;
until_true($node, q{SELECT value LIKE 'loaded%' FROM tq_health() WHERE item = 'live state'}, 'loaded');
is($node->safe_psql('postgres', q{SELECT count(*) FROM tq_queues WHERE live = 1}), $queues, 'all queues are there, with their jobs');

# slots are freed and used again, names are found
$node->safe_psql('postgres', "SELECT count(tq_purge('q' || g, 'ready')) FROM generate_series(1, $queues, 3) g");
$node->safe_psql('postgres', "SELECT count(tq_drop_queue('q' || g)) FROM generate_series(1, $queues, 3) g");
until_true($node, "SELECT count(*) = $queues - (SELECT count(*) FROM generate_series(1, $queues, 3)) FROM tq_queues", 'queues are gone');
$node->safe_psql('postgres', "SELECT count(tq_enqueue('again' || g)) FROM generate_series(1, 900) g");
is($node->safe_psql('postgres', "SELECT count(*) FROM generate_series(1, 900) g, tq_claim('again' || g) c"), 900, 'queues in used slots work');
is($node->safe_psql('postgres', "SELECT count(*) FROM generate_series(2, $queues, 3) g, tq_claim('q' || g) c"),
	$node->safe_psql('postgres', "SELECT count(*) FROM generate_series(2, $queues, 3)"), 'the other queues still do');
check_journal($node, 'the journal is consistent');
$node->stop;
done_testing();
