# tq_health names the cause in two states: jobs that do not run fill the memory, and a database cannot be loaded because
# tq.max_live_jobs was lowered.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('health', conf => <<CONF);
tq.max_live_jobs = 400
tq.lease = '1h'
tq.claim_log_delay = 0
CONF

sub health
{
	my ($item) = @_;
	return $node->safe_psql('postgres', "select status, value from tq_health() where item = '$item'");
}

like(health('jobs that cannot leave memory'), qr/^ok\|0 of \d+$/, 'nothing is kept in memory');
$node->safe_psql('postgres', <<'SQL');
select tq_enqueue('q' || i % 20, priority => 5) from generate_series(1, 260) i;
do $$
declare
	job bigint;
begin
	for job in select id from tq_jobs loop
		begin
			perform tq_reschedule(job, priority => 1);
		exception when sqlstate '53400' then
			exit;
		end;
		commit;
	end loop;
end $$;
SQL
like(health('jobs that cannot leave memory'), qr/^warn\|2\d\d of 2\d\d$/, 'jobs that were rescheduled fill memory');
is(health('running jobs'), 'ok|0 of 400', '... and none runs');
$node->safe_psql('postgres', q{do $$
declare
	job bigint;
begin
	for job in select id from tq_jobs where priority = 1 loop
		perform tq_reschedule(job, priority => 5);
		commit;
	end loop;
end $$});
$node->safe_psql('postgres', q{select tq_claim('q' || i, 5) from generate_series(0, 19) i});
# tq_history shows claims that a restart would forget; the table has those that it keeps
ok(until_true($node, q{select count(*) = 100 from tq.event where type = 'c'}, 'the claims are journalled'), '100 jobs run');
like(health('live state'), qr/^ok\|loaded at /, 'the database is loaded');

$node->append_conf('postgresql.conf', 'tq.max_live_jobs = 16');
$node->restart;
ok(until_true($node, q{select status = 'error' and value ~ 'tq.max_live_jobs is 16' from tq_health() where item = 'live state'}, 'a load that fails'),
	'memory that is too small for the running jobs is said to be so');
ok($node->safe_psql('postgres', q{select tq_enqueue('q1')}) > 0, '... and jobs can be enqueued');
$node->append_conf('postgresql.conf', 'tq.max_live_jobs = 400');
$node->restart;
ok(until_true($node, q{select status = 'ok' and value ~ '^loaded' from tq_health() where item = 'live state'}, 'loaded'), 'with more it is loaded');
is($node->safe_psql('postgres', q{select count(*) from tq_running}), '100', '... with all that runs');
check_journal($node, 'and is consistent');

done_testing();
