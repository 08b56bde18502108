# Workers that are terminated or fail in the middle of their work leave nothing undone: the next worker does it.
# Scenarios: a scheduler that journals claims, a janitor that counts or deletes unique keys, a starting server.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('interrupted', conf => <<CONF);
autovacuum = off
tq.audit_interval = 0
tq.claim_log_delay = 50ms
CONF
my $id = 9_000_000;

# A job that memory does not know. A count of the journal finds it.
sub unknown_job
{
	my ($queue) = @_;
	++$id;
	without_triggers($node, 'insert into tq.job_0 (id, enqueued_at, queue_id, priority, payload)'
		  . " select $id, now(), q.id, 100, '{}' from tq.queue q where name = '$queue'", 'tq.job_0');
	return $id;
}

sub found
{
	my ($job) = @_;
	return until_true($node, "select count(*) = 1 from tq_claim('q', 100) where id = $job", "job $job in memory");
}

# Waits until a process has been terminated, or has failed, at a wait point.
sub came_to
{
	my ($point) = @_;
	until_true($node, "select tq_test_passed('$point') > 0", "a process reached $point");
	janitor_away($node);
	return;
}

$node->safe_psql('postgres', q{select tq_enqueue('q')});
loaded($node);

# a scheduler that ends while it journals claims
arm($node, 'claimlog-before-commit', 'exit');
my $job = $node->safe_psql('postgres', q{select id from tq_claim('q')});
came_to('claimlog-before-commit');
ok( until_true($node, "select count(*) = 1 from tq.event where job_id = $job and type = 'c'", 'the claim is journalled'),
	'a claim is journalled by the scheduler after the one that left meanwhile');

# a janitor that ends while it counts
arm($node, 'count-before-snapshot', 'exit');
$job = unknown_job('q');
$node->append_conf('postgresql.conf', 'tq.audit_interval = 1');
$node->reload;
came_to('count-before-snapshot');
ok(found($job), 'rows are read in after the janitor left meanwhile');
$node->append_conf('postgresql.conf', 'tq.audit_interval = 0');
$node->reload;

# a janitor that ends while it deletes unique keys
arm($node, 'keys-before-commit', 'exit');
$job = $node->safe_psql('postgres', q{select tq_enqueue('q', unique_key => 'k')});
$node->safe_psql('postgres', "select tq_cancel($job)");
came_to('keys-before-commit');
ok(until_true($node, q{select count(*) = 0 from tq.unique_key}, 'no keys'),
	'the keys of jobs that have ended are deleted after the janitor left meanwhile');

# a server that is starting, and has not read its queues yet
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->restart;
is($node->safe_psql('postgres', q{select tq_enqueue('other', options => '{"follow_up": {"queue": "q"}}') is not null}), 't',
	'a queue to follow up in is known before memory is');

$node->stop;
done_testing();
