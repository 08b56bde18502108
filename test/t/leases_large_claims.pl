# One claim of very many jobs, and one of very large jobs. The claim returns all of them, and needs the memory of one
# row.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('large_claims', conf => <<CONF);
tq.max_live_jobs = 250000
tq.claim_batch_limit = 100000
fsync = off
shared_buffers = 32MB
CONF
scheduler_of($node);

# --- many

$node->safe_psql('postgres', <<'SQL');
DO $$ BEGIN FOR i IN 1 .. 90 LOOP PERFORM tq_enqueue_many('many', array_fill('{}'::jsonb, ARRAY[1000])); COMMIT; END LOOP; END $$;
SQL
is($node->safe_psql('postgres', q(SELECT count(*), count(DISTINCT lease) FROM tq_claim('many', 90000))), '90000|90000',
	'one claim takes them all: more than there are numbers of leases in a block');

# --- large

my $jobs = 200;
$node->safe_psql('postgres', "SELECT count(tq_enqueue('large', to_jsonb(repeat('x', 1000000)))) FROM generate_series(1, $jobs)");
my $session = session($node);
my $pid = ask($session, 'SELECT pg_backend_pid()');

ask($session, q(SELECT count(*) FROM tq_queues));
my $before = own_memory($pid);
ask($session, 'BEGIN');
is(ask($session, "SELECT count(*), sum(length(payload #>> '{}')) FROM tq_claim('large', $jobs)"), "$jobs|${jobs}000000", 'all large jobs come, whole');
my $after = own_memory($pid);
cmp_ok($after, '<', $before + 50, "the session needs the memory of some rows, not of $jobs MB") or diag("$before MB before, $after MB after");
ask($session, 'COMMIT');
leave($session);

$node->stop;
done_testing();
