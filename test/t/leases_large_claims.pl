# One claim of very many jobs, which returns all of them. Very large jobs: each function that returns or compares their
# payloads needs the memory of one row.

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
my $payload = q(length(payload #>> '{}'));
my %calls = (
	'tq_claim' => "SELECT count(*), sum($payload) FROM tq_claim('large', $jobs)",
	'tq_claim_any' => "SELECT count(*), sum($payload) FROM tq_claim_any('{large}', $jobs)",
	'tq_claim_for' => "SELECT count(*), sum(length((job).payload #>> '{}')) FROM tq_claim_for('{large}', '{w1,w2}', $jobs / 2)",
	'tq_claim_next' => "SELECT count(*), sum($payload) FROM tq_claim_next('large', '{}', '{}', max_jobs => $jobs)",
	'tq_enqueued' => "SELECT tq_enqueued('large', payload => to_jsonb(repeat('x', 1000000))), ${jobs}000000",
	# each payload is compared
	'tq_list' => "SELECT $jobs + count(*) FILTER (WHERE id IS NOT NULL), ${jobs}000000 FROM tq_list('large', search => '\"none\"', max => 1000)",
);
for my $call (sort keys %calls)
{
	my $session = session($node);
	my $pid = ask($session, 'SELECT pg_backend_pid()');
	ask($session, q(SELECT count(*) FROM tq_queues));
	my $before = own_memory($pid);
	is(ask($session, $calls{$call}), "$jobs|${jobs}000000", "$call: all large jobs come, whole");
	my $after = own_memory($pid);
	cmp_ok($after, '<', $before + 50, "... for which the session needs the memory of some rows, not of $jobs MB") or diag("$before MB before, $after MB after");
	ask($session, q(SELECT count(tq_release(id, lease)) FROM tq_running WHERE queue = 'large'));
	leave($session);
}

$node->stop;
done_testing();
