# Delayed jobs, retries and lost leases, none of them early: jobs beyond the horizon, more timers than memory, clocks
# that jump. How late they are is measured by scripts/bench.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('timers', conf => <<CONF);
shared_buffers = 64MB
tq.max_live_jobs = 200
tq.timer_horizon = 1s
tq.segment_rows = 4000
CONF
scheduler_of($node);
$node->safe_psql('postgres', <<'SQL');
create table taken (queue text, id bigint, lease bigint, due timestamptz, at timestamptz);
-- Claims and completes what comes until `expected` jobs came, or nothing for long.
create procedure consume(queue text, expected int, batch int default 1)
language plpgsql as $$
declare
	got int;
begin
	while expected > 0 loop
		with c as materialized (select *, clock_timestamp() as now from tq_claim(queue, batch, wait => '3 min')),
			t as (insert into taken select c.queue, id, lease, (payload->>'due')::timestamptz, now from c),
			f as materialized (select tq_complete(id, lease) from c)
		select count(*) into got from f;
		commit;
		exit when got = 0;
		expected := expected - got;
	end loop;
end $$;
create procedure delayed(queue text, n int, first interval, step interval)
begin atomic
	select tq_enqueue_many(queue, array_agg(jsonb_build_object('due', now() + first + g * step)),
		run_ats => array_agg(now() + first + g * step)) from generate_series(1, n) g;
end;
SQL

# One test: a query returns differences, and none is below 0.
sub not_early
{
	my ($name, $sql) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql('postgres', "select count(*) > 0, min(d) >= '0' from ($sql) x (d)"), 't|t', "$name, not early");
	return;
}

#
# Delayed jobs
#
$node->safe_psql('postgres', "call delayed('near', 100, '0.1 s', '7 ms'); call consume('near', 100)");
not_early('a delayed job starts', "select at - due from taken where queue = 'near'");
is($node->safe_psql('postgres', "select count(distinct id) from taken where queue = 'near'"), 100, 'all of them');

$node->safe_psql('postgres', "call delayed('beyond', 100, '2 s', '15 ms'); call consume('beyond', 100)");
not_early('a job beyond the horizon starts', "select at - due from taken where queue = 'beyond'");
is($node->safe_psql('postgres', "select count(distinct id) from taken where queue = 'beyond'"), 100, 'all of them');

my $worker = session($node);
begin_ask($worker, "call consume('many', 10000, 50)");
$node->safe_psql('postgres', "call delayed('many', 5000, '0.1 s', '1 ms')");
$node->safe_psql('postgres', "call delayed('many', 2500, '1 s', '2 ms')");
$node->safe_psql('postgres', "call delayed('many', 2500, '6 s', '-2 ms')");
end_ask($worker);
is($node->safe_psql('postgres', "select count(*), count(distinct id) from taken where queue = 'many'"),
	'10000|10000', '10000 delayed jobs with memory for 200, each once');
not_early('they start', "select at - due from taken where queue = 'many'");

#
# Retries
#
$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('retry', '{"retry": {"policy": "exponential", "delay": "50 ms", "factor": 2, "jitter": 0}}');
select tq_enqueue('retry', max_attempts => 5);
do $$
declare
	last text := 'delayed';
begin
	while last = 'delayed' loop
		select tq_fail(id, lease, 'no') into last from tq_claim('retry', wait => '3 min');
		commit;
	end loop;
end $$;
SQL
is($node->safe_psql('postgres', <<'SQL'), '50,100,200,400,d', 'retries wait longer each time, and come to an end');
select string_agg(case when e.type = 'f' then round(extract(epoch from retry_at - at) * 1000)::text else e.type::text end, ',' order by step)
from tq.event e join tq.job j on j.id = e.job_id join tq.queue q on q.id = j.queue_id where q.name = 'retry' and e.type <> 'c'
SQL
not_early('a retry starts', <<'SQL');
select next.claimed_at - e.retry_at from tq.event e join tq.event next on next.job_id = e.job_id and next.attempt = e.attempt + 1
	and next.type in ('f', 'd') where e.type = 'f'
SQL

#
# Lost leases
#
$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('lost', '{"retry": {"on_lost": "0 s"}}');
select count(tq_enqueue('lost', kind => 'k' || i)) from generate_series(1, 50) i;
create table leased (id bigint, until timestamptz);
do $$
begin
	for i in 1 .. 50 loop -- a kind each, so that none is claimed again
		insert into leased select id, lease_expires_at from tq_claim('lost', lease_for => i * interval '5 ms' + interval '200 ms', kinds => array['k' || i]);
		commit;
	end loop;
end $$;
SQL
my $lost = "tq.event e join tq.job j on j.id = e.job_id join tq.queue q on q.id = j.queue_id where q.name = 'lost' and e.type = 'l'";
until_true($node, "select count(*) = 50 from $lost");
not_early('a lost lease is reaped', <<"SQL");
select e.at - until from leased, $lost and leased.id = e.job_id
SQL
is($node->safe_psql('postgres', "call consume('lost', 50, 50); select count(*), count(distinct id) from taken where queue = 'lost'"),
	'50|50', 'and the job offered again');

#
# Clocks
#
my $id = $node->safe_psql('postgres', "select tq_enqueue('clock', delay => '30 min')");
is($node->safe_psql('postgres', "select count(*) from tq_claim('clock')"), 0, 'a job in half an hour');
clock($node, 3600, 0);
is(join(',', take_all($node, 'clock', 1)), $id, 'the wall clock jumps ahead: it starts');
$id = $node->safe_psql('postgres', "select tq_enqueue('clock', delay => '20 min')");
my $later = $node->safe_psql('postgres', "select tq_enqueue('clock', delay => '10 min')");
clock($node, 0, 0);
is($node->safe_psql('postgres', "select count(*) from tq_claim('clock', wait => '1500 ms')"), 0, 'the wall clock jumps back: none starts');    # limit: nothing comes
clock($node, 3600 + 605, 0);
is(join(',', take_all($node, 'clock', 1)), $later, 'and ahead again: that which is due');
clock($node, 3600 + 1205, 0);
is(join(',', take_all($node, 'clock', 1)), $id, 'then the other one');

$node->safe_psql('postgres', "select tq_enqueue('clock')");
my $held = $node->safe_psql('postgres', "select id || ', ' || lease from tq_claim('clock', lease_for => '1 h')");
clock($node, 86400, 0);
is($node->safe_psql('postgres', "select action from tq_heartbeat($held)"), 'run', 'a lease does not end when the wall clock jumps');
clock($node, 86400, 7201);
until_true($node, "select count(*) = 1 from tq.event where (job_id, lease) = ($held) and type = 'l'");
is($node->safe_psql('postgres', "select action from tq_heartbeat($held)"), 'lost', 'it does when the monotonic clock says so');
clock($node, 0, 0);

check_journal($node);
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6|a recount found/, 'nothing alarming in the log');
$node->stop;

done_testing();
