# A backlog 200 times as large as the memory for it (P7, R12). Each job is delivered exactly once, each lane is in
# priority order, delayed jobs come after their time, and no kind waits for another. Scenarios: one and several
# consumers, memory full of running jobs, producers and consumers at once. Hazards: H1, H2, H7, H13.

use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqLoad;

my $jobs = $ENV{TQ_SPILL_JOBS} // 20_000;

my $node = PostgreSQL::Test::Cluster->new('spill');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
shared_preload_libraries = 'tq'
shared_buffers = 64MB
tq.max_live_jobs = 100
tq.max_pinned_wait = 1h
tq.load_timeout = 3min
tq.segment_rows = 4000
tq.audit_interval = 1s
CONF
$node->start;
$node->safe_psql('postgres', <<'SQL');
create extension tq;
-- leases are numbered in the order of the claims
create table taken (lease bigint, id bigint, kind text, priority int, attempt int, payload jsonb, at timestamptz);
-- Claims and completes in batches until there are no more jobs, nothing comes for long, or the batches are used up.
create procedure consume(queue text, batch int, batches int default 1000000, kinds text[] default null)
language plpgsql as $$
declare
	got int;
	idle int := 0;
begin
	for i in 1 .. batches loop
		with c as materialized (select * from tq_claim(queue, batch, wait => '100 ms', kinds => consume.kinds)), -- poll
			t as (insert into taken select lease, id, kind, priority, attempt, payload, clock_timestamp() from c),
			f as materialized (select tq_complete(id, lease) from c)
		select count(*) into got from f;
		commit;
		idle := case when got > 0 then 0 else idle + 1 end;
		exit when idle > 1800 or got = 0 and not exists (select from tq_jobs j where j.queue = consume.queue
			and j.state in ('ready', 'delayed') and (consume.kinds is null or j.kind = any (consume.kinds)));
	end loop;
end $$;
SQL

# Number of jobs of `taken` that came in the wrong order within their lane; delayed jobs have an order of their own.
my $disorder = <<'SQL';
select count(*) from (select priority, id, lag(priority) over w as p, lag(id) over w as i from taken
	where payload->>'delay' is null window w as (partition by kind order by lease)) x where (p, i) > (priority, id)
SQL

#
# Nothing is enqueued meanwhile
#
$node->safe_psql('postgres', <<SQL);
select tq_enqueue_many('q', array_agg(jsonb_build_object('n', g)), kinds => array_agg('kind ' || g % 3),
	priorities => array_agg((hashint4(g) & 7) * 10)) from generate_series(1, $jobs / 2) g;
select tq_enqueue_many('q', array_agg(jsonb_build_object('n', g)), priorities => array_agg((hashint4(g) & 3) * 10))
	from generate_series(1, $jobs / 4) g;
select count(tq_enqueue('q', '{}', priority => hashint4(g) & 7)) from generate_series(1, $jobs / 8) g;
select tq_enqueue_many('q', array_agg(jsonb_build_object('delay', now() + g * interval '1 ms')), kind => 'kind 1',
	run_ats => array_agg(now() + g * interval '1 ms')) from generate_series(1, $jobs / 8) g;
SQL
$node->safe_psql('postgres', "call consume('q', 7)");
is($node->safe_psql('postgres', 'select count(*), count(distinct id), max(attempt) from taken'),
	"$jobs|$jobs|1", 'every job was delivered once');
is($node->safe_psql('postgres', $disorder), 0, 'each lane in the order of its priorities');
is($node->safe_psql('postgres', "select count(*) from taken where at < (payload->>'delay')::timestamptz"),
	0, 'no delayed job before its time');

#
# Several consumers
#
$node->safe_psql('postgres', <<SQL);
truncate taken;
select tq_enqueue_many('q', array_agg(jsonb_build_object('n', g)), priorities => array_agg((hashint4(g) & 7) * 10))
	from generate_series(1, $jobs / 4) g;
SQL
my @consumers = map {
	IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-c', "call consume('q', 5)" ],
		'<', \undef, '2>&1')
} 1 .. 3;
is(scalar(grep { !$_->finish } @consumers), 0, 'three consumers at once');
is($node->safe_psql('postgres', 'select count(*), count(distinct id) from taken'),
	($jobs / 4) . '|' . ($jobs / 4), 'every job was delivered once');
is($node->safe_psql('postgres', $disorder), 0, 'in the order of the priorities');

#
# H13: a kind at the end of the backlog does not wait for those before it, although these fill the memory
#
$node->safe_psql('postgres', <<'SQL');
truncate taken;
select tq_enqueue_many('h13', array_agg('{}'::jsonb), kind => 'common') from generate_series(1, 3000) g;
select tq_enqueue_many('h13', array_agg('{}'::jsonb), kind => 'rare', priority => 1000) from generate_series(1, 20) g;
call consume('h13', 10, batches => 5);
call consume('h13', 10, kinds => '{rare}');
SQL
is($node->safe_psql('postgres', "select count(*) filter (where kind = 'rare'), count(*) <= 70 from taken"),
	'20|t', 'H13: a rare kind is found behind a common one');
$node->safe_psql('postgres', "call consume('h13', 100)");
is($node->safe_psql('postgres', 'select count(*), count(distinct id) from taken'), '3020|3020', 'H13: and the rest is delivered');

#
# Memory is full of running jobs. When they end, a claim that waits gets the next ones
#
$node->safe_psql('postgres', q{select tq_enqueue_many('full', array_agg('{}'::jsonb)) from generate_series(1, 4000)});
$node->safe_psql('postgres', <<'SQL');
create procedure fill_and_wait() language plpgsql as $$
declare
	ids bigint[] := '{}';
	leases bigint[] := '{}';
	more bigint[];
	theirs bigint[];
begin
	loop
		select array_agg(id), array_agg(lease) into more, theirs from tq_claim('full', 2000, wait => '100 ms'); -- limit: all are running
		exit when more is null;
		ids := ids || more;
		leases := leases || theirs;
		commit;
	end loop;
	perform tq_complete_many(ids, leases);
	commit;
	perform tq_complete(id, lease) from tq_claim('full', wait => '3 min');
	assert found, 'a claim that waited while memory was full of running jobs gets one';
	commit;
end $$;
SQL
is($node->psql('postgres', 'call fill_and_wait(); call fill_and_wait(); call fill_and_wait()'), 0,
	'a claim that waits while memory is full of running jobs gets the next one');
is($node->safe_psql('postgres', q{select count(*) > 0 from tq_jobs where queue = 'full' and state = 'ready'}), 't', '... and there was something to wait for');
$node->safe_psql('postgres', "truncate taken; call consume('full', 100)");

#
# Producers and consumers at once
#
my $load = TqLoad->new('spill', $node->connstr('postgres'));
$load->start('producer', 2);
ok($load->progress(100_000), 'producers are at work');
$load->start('worker', 3);
ok($load->progress(600_000), 'producers and consumers are at work');
$load->drain($node);
$load->check($node);

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6|a recount found|is gone; the job is dropped/,
	'nothing alarming in the log');
$node->stop;

done_testing();
