# Groups, limits and fair turns. Jobs of a group run in order, and never more at once than the limit allows, also after
# failures, rollbacks, full memory and a crash. A blocked group delays no other job. Rates and max_depth are exact.
# Hazard: H13.

use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('groups', conf => <<CONF);
shared_buffers = 64MB
tq.max_live_jobs = 100
tq.max_groups = 12
tq.segment_rows = 2000
tq.audit_interval = 1s
tq.naptime = 50ms
CONF
scheduler_of($node);
$node->safe_psql('postgres', <<'SQL');
create table started (lease bigint, id bigint, grp text, fate text);
create table violation (what text);
-- Claims one job at a time while there are any; a session that holds a group's lock is working for it. What is claimed and what
-- becomes of it are separate transactions. `at_once`: how many of a group may run.
create procedure work(queue text, at_once int, rolls_back boolean default false) language plpgsql as $$
declare
	j tq_job;
	g text;
	fate text;
	slot int;
	idle int := 0;
begin
	loop
		select c.* into j from tq_claim(queue, wait => '100 ms') c; -- poll
		if j.id is null then
			commit;
			idle := idle + 1;
			exit when idle > 10 and (select live = 0 from tq_stats() s where s.queue = work.queue);
			exit when idle > 1800;
			continue;
		end if;
		idle := 0;
		g := j.payload->>'g';
		fate := case when rolls_back and random() < 0.05 then 'rolled back'
			when random() < 0.1 and j.attempt < 3 then 'failed' when random() < 0.03 then 'released' else 'done' end;
		if fate = 'rolled back' then
			rollback;
			continue;
		end if;
		insert into started values (j.lease, j.id, g, fate);
		commit;
		slot := 0;
		if g is not null then
			for i in 1 .. at_once loop
				slot := i;
				exit when pg_try_advisory_lock(hashtext(g), i);
				slot := 0;
			end loop;
			if slot = 0 then
				insert into violation values ('more of group ' || g || ' at once than allowed: job ' || j.id);
			end if;
		end if;
		perform count(*) from generate_series(1, (random() * 3000)::int); -- some work
		commit;
		-- the lock goes before the lease does
		if slot > 0 then
			perform pg_advisory_unlock(hashtext(g), slot);
		end if;
		if fate = 'failed' then
			perform tq_fail(j.id, j.lease, 'it failed', retry_in => case when random() < 0.5 then interval '0' else '5 ms' end);
		elsif fate = 'released' then
			perform tq_release(j.id, j.lease, delay => '3 ms');
		else
			perform tq_complete(j.id, j.lease);
		end if;
		commit;
	end loop;
end $$;
SQL

# Jobs of a group that started before an earlier job had ended: strict order, one priority.
my $disorder = <<'SQL';
select coalesce(string_agg(format('%s: job %s after job %s', grp, id, before), '; '), '') from (
	select grp, id, max(id) over (partition by grp order by lease rows between unbounded preceding and 1 preceding) as before
	from started where grp is not null) x
where id < before
SQL

sub workers
{
	my ($n, $call) = @_;
	my @runs;
	for (1 .. $n)
	{
		my ($out, $err) = ('', '');
		my %io = (out => \$out, err => \$err);
		$io{run} = IPC::Run::start(['psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', "call work($call)"],
			'<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default * 10));
		push @runs, \%io;
	}
	return @runs;
}

sub finish
{
	my ($name, @runs) = @_;
	$_->{run}->finish for @runs;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join('', map { ${ $_->{err} } } @runs), '', "$name: the workers end");
	is($node->safe_psql('postgres', 'select * from violation'), '', "$name: never more at once than allowed");
	return;
}

sub reset_log
{
	$node->safe_psql('postgres', 'truncate started, violation');
	return;
}

# Jobs of 40 groups and jobs without a group, more than memory and slots can hold.
sub fill
{
	my ($queue, $n, $where) = @_;
	$node->safe_psql('postgres', <<SQL);
select count(tq_enqueue('$queue', jsonb_build_object('g', g), group_key => g, kind => k))
from (select case when i % 7 = 0 then null else 'group ' || (hashint4(i) & 31) end as g, case when i % 3 = 0 then 'odd' end as k
	from generate_series(1, $n) i) x;
select cardinality(tq_enqueue_many('$queue', array_agg(jsonb_build_object('g', g)), group_keys => array_agg(g)))
from (select 'group ' || ((i & 7) + 32) as g from generate_series(1, $n) i) x;
SQL
	return;
}

#
# One at a time, in order
#
$node->safe_psql('postgres', q{select tq_create_queue('strict', '{"max_attempts": 1000}')});
fill('strict', 1500);
finish('strict', workers(4, "'strict', 1, true"));
is($node->safe_psql('postgres', $disorder), '', 'strict: in order, also over failures');
is($node->safe_psql('postgres', "select count(distinct id) from started where fate = 'done'"), 3000, 'strict: all are done');
is(unfinished($node, 'strict'), 0, 'strict: nothing is left');
check_journal($node, 'strict: the journal is consistent');
reset_log();

#
# Two at a time; loose order
#
$node->safe_psql('postgres', q{select tq_create_queue('loose', '{"max_attempts": 1000, "group_max_running": 2, "group_order": "loose"}')});
fill('loose', 700);
finish('loose', workers(5, "'loose', 2"));
is($node->safe_psql('postgres', "select count(distinct id) from started where fate = 'done'"), 1400, 'loose: all are done');
check_journal($node, 'loose: the journal is consistent');
reset_log();

#
# A crash in the middle: journalled leases still count
#
$node->safe_psql('postgres', q{select tq_create_queue('crash', '{"max_attempts": 1000, "group_max_running": 1}')});
fill('crash', 400);
my $held = $node->safe_psql('postgres', q{select id || '|' || lease || '|' || (payload->>'g') from tq_claim('crash', 1, lease_for => '1 h')});
my ($id, $lease, $group) = split /\|/, $held, 3;
until_true($node, "select count(*) > 0 from tq.event where job_id = $id and type = 'c'", 'the claim is journalled');
$node->safe_psql('postgres', "select tq_enqueue('crash', '{}')");    # its commit is flushed, with all commits before it
$node->stop('immediate');
$node->start;
loaded($node);
my $others = $node->safe_psql('postgres', "select count(*) from tq_claim('crash', 1000, lease_for => '2 s') where payload->>'g' = '$group'");
is($others, 0, 'after a crash a journalled lease still keeps its group back');
$node->safe_psql('postgres', "select tq_complete($id, $lease)");
reset_log();
# the leases of the 1000 jobs claimed above run out
my @runs = workers(3, "'crash', 1");
until_true($node, 'select count(*) > 100 from started', 'some are done');
$node->stop('immediate');
$_->{run}->kill_kill for @runs;
$node->start;
scheduler_of($node);
loaded($node);
clock($node, 0, 7200);    # the leases of the workers that were killed end
finish('after a crash', workers(3, "'crash', 1"));
is(unfinished($node, 'crash'), 0, 'after a crash: nothing is left');
check_journal($node, 'after a crash: the journal is consistent');
reset_log();

#
# A group that may not start delays no other job, although its jobs would fill the memory many times
#
$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('blocked');
select count(*) from unnest(tq_enqueue_many('blocked', array_fill('{}'::jsonb, array[5000]), group_key => 'noisy'));
SQL
is($node->safe_psql('postgres', "select count(*) from tq_claim('blocked', 10, lease_for => '1 h')"), 1, 'one of the noisy group runs');
$node->safe_psql('postgres', q{select tq_enqueue('blocked', '{"g": "quiet"}', group_key => 'quiet'), tq_enqueue('blocked', '{"g": "none"}')});
is($node->safe_psql('postgres', q{select string_agg(payload->>'g', ' ' order by id) from tq_claim('blocked', 10, wait => '3 min')}), 'quiet none',
	'H13: others start at once');
$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('fair', '{"fair": true}');
select count(*) from unnest(tq_enqueue_many('fair', array_fill('{"g": "noisy"}'::jsonb, array[5000]), group_key => 'noisy'));
SQL
is(scalar(take_all($node, 'fair', 20)), 20, 'a noisy tenant alone has all turns');
$node->safe_psql('postgres', q{select tq_enqueue('fair', '{"g": "quiet"}', group_key => 'quiet')});
until_true($node, "select in_memory > 0 from tq_stats() where queue = 'fair'", 'something to start');
like($node->safe_psql('postgres', <<'SQL'), qr/^(noisy )?quiet/, "another tenant's one job waits for one turn at most");
select string_agg(payload->>'g', ' ' order by lease) from tq_claim('fair', 3, wait => '3 min')
SQL
$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('weights', '{"fair": true}');
select count(tq_enqueue('weights', jsonb_build_object('g', g), group_key => g, options => jsonb_build_object('weight', w)))
from generate_series(1, 200) i, (values ('one', 1), ('three', 3)) x (g, w);
SQL
is($node->safe_psql('postgres', q{select string_agg(g || ' ' || n, ', ' order by g) from
	(select payload->>'g' as g, count(*) as n from tq_claim('weights', 4) group by 1) x}), 'one 1, three 3', 'turns by weight');
# running jobs stay in memory, which is small here
my $end_running = 'select count(tq_complete(id, lease)) from tq_running';
$node->safe_psql('postgres', $end_running);

$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('no weight', '{"fair": true}');
select count(tq_enqueue('no weight', jsonb_build_object('g', g), group_key => g, options => jsonb_strip_nulls(jsonb_build_object('weight', w))))
from generate_series(1, 20) i, (values ('half', 0.5), ('none', null), ('two', 2)) x (g, w);
SQL
is($node->safe_psql('postgres', q{select string_agg(g || ' ' || n, ', ' order by g) from
	(select payload->>'g' as g, count(*) as n from tq_claim('no weight', 7) group by 1) x}), 'half 1, none 2, two 4',
	'a job without a weight weighs 1');
$node->safe_psql('postgres', "$end_running; select tq_purge('no weight', 'ready')");

$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('light'), tq_create_queue('heavy', '{"weight": 4}');
select count(tq_enqueue(q)) from generate_series(1, 15) i, unnest(array['light', 'heavy']) q;
SQL
until_true($node, "select sum(in_memory) = 30 from tq_stats() where queue in ('light', 'heavy')", 'all are in memory');
is($node->safe_psql('postgres', "select string_agg(queue || ' ' || n, ', ' order by queue) from
	(select queue, count(*) as n from tq_claim_any('{light,heavy}', 15) group by 1) x"), 'heavy 12, light 3', 'tq_claim_any: by weight');
is($node->safe_psql('postgres', "select count(*) from tq_claim_any('{light,heavy}', 15)"), 15, 'the queue with more jobs gives the rest');
$node->safe_psql('postgres', $end_running);

#
# Limits of the queue
#
$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('limited', '{"max_running": 3}');
select count(tq_enqueue('limited')) from generate_series(1, 10);
SQL
until_true($node, "select in_memory >= 4 from tq_stats() where queue = 'limited'", 'some are in memory');
my $first = $node->safe_psql('postgres', "select min(id) || '|' || min(lease) || '|' || count(*) from tq_claim('limited', 10)");
like($first, qr/\|3$/, 'max_running: as many as may run');
is($node->safe_psql('postgres', "select count(*) from tq_claim('limited', 10)"), 0, 'and no more');
my $waiting = session($node);
begin_ask($waiting, "select count(*) from tq_claim('limited', 10, wait => '3 min')");
until_true($node, "select count(*) = 1 from pg_stat_activity where wait_event_type = 'Extension' and query ~ 'limited'", 'one waits');
my ($one, $its_lease) = split /\|/, $first;
$node->safe_psql('postgres', "select tq_complete($one, $its_lease)");
is(end_ask($waiting), 1, 'a finish lets another job start, and wakes the claim that waits for it');
$waiting->quit;
until_true($node, "select count(*) = 3 from tq_running r join tq.event e on e.job_id = r.id and e.lease = r.lease and e.type = 'c'
	where r.queue = 'limited'", 'claims are journalled');
$node->safe_psql('postgres', "select tq_enqueue('limited')");    # its commit is flushed, with all commits before it
$node->stop('immediate');
$node->start;
loaded($node);
is($node->safe_psql('postgres', "select count(*) from tq_claim('limited', 10)"), 0, 'the limit holds over a crash');

$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('rate', '{"rate": "20/s", "burst": 2}');
select count(tq_enqueue('rate')) from generate_series(1, 30);
create table rated (lease bigint, got timestamptz);
do $$
begin
	for i in 1 .. 20 loop
		insert into rated select lease, clock_timestamp() from tq_claim('rate', 1, wait => '3 min');
		commit;
	end loop;
end $$;
SQL
my $starts = q{from tq.event e join tq_jobs j on j.id = e.job_id where j.queue = 'rate' and e.type = 'c'};
ok(until_true($node, "select count(*) = 20 $starts"), 'rate: all come in the end');
# a claim that stands still starts its job after `at`, and before `got`
is($node->safe_psql('postgres', <<"SQL"), 0, 'rate: never more than burst and rate allow');
select count(*) from (select got, lag(at, 3) over (order by lease) as before from (select e.at, e.lease $starts) s join rated using (lease)) x
where got - before < interval '95 ms'
SQL

$node->safe_psql('postgres', q{select tq_create_queue('deep', '{"max_depth": 5}'); select count(tq_enqueue('deep')) from generate_series(1, 4)});
my $open = session($node);
ask($open, 'begin');
is(ask($open, "select tq_enqueue('deep') > 0"), 't', 'max_depth: the last one that is let in');
my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nselect tq_enqueue('deep')");
like($err, qr/TQ003/, 'an open transaction counts');
ask($open, 'rollback');
is($node->psql('postgres', "select tq_enqueue('deep')"), 0, 'a rollback lets another one in');
like(ask($open, "select tq_enqueue('deep')"), qr/TQ003/, 'full again');
take($node, 'deep', 1);
is(ask($open, "begin; savepoint a; select tq_enqueue('deep') > 0"), 't', 'a finished job makes room');
like(ask($open, "rollback to a; savepoint b; select tq_enqueue_many('deep', array['{}', '{}']::jsonb[])"), qr/TQ003/, 'all or nothing');
is(ask($open, "rollback to a; select tq_enqueue('deep') > 0"), 't', 'ROLLBACK TO lets another one in');
ask($open, 'commit');
$open->quit;
is($node->safe_psql('postgres', "select live from tq_stats() where queue = 'deep'"), 5, 'exactly as many as max_depth');

# more groups than slots, among jobs without a group: neither waits for memory of the other
$node->append_conf('postgresql.conf', 'tq.max_groups = 200');
$node->restart;
$node->safe_psql('postgres', q{select count(tq_enqueue('crowd', group_key => g)) from
	(select case when i % 2 = 0 then 'g' || i % 400 end as g from generate_series(1, 4000) i order by hashint4(i)) x});
is(scalar(take_all($node, 'crowd', 4000)), 4000, 'P7: groups that fill memory do not keep out the jobs that they wait for');

#
# Both limits after a crash: a rate starts as if its burst had just been used up; the depth is that of the journal
#
$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('slow', '{"rate": "1/h", "burst": 3}'), tq_create_queue('full', '{"max_depth": 4}'),
	tq_create_queue('seldom', '{"enqueue_rate": "1/h"}');
select tq_enqueue('seldom');
select count(tq_enqueue('slow')) from generate_series(1, 10);
select count(tq_enqueue('full')) from generate_series(1, 4);
SQL
until_true($node, "select count(*) = 2 from tq_stats() where queue in ('slow', 'full') and in_memory >= 4", 'both are in memory');
is($node->safe_psql('postgres', "select count(*) from tq_claim('slow', 10)"), 3, 'rate: the burst');
take($node, 'full', 1);
is($node->safe_psql('postgres', "select tq_enqueue('full') > 0"), 't', 'max_depth: room for one');
$node->stop('immediate');
$node->append_conf('postgresql.conf', "tq_test.count_before_snapshot = 'select count(*) from generate_series(1, 10000000)'");
$node->start;
like(($node->psql('postgres', "\\set VERBOSITY verbose\nselect tq_enqueue('full')"))[2], qr/TQ003/, 'max_depth: it is not forgotten until the journal is read');
loaded($node);
$node->append_conf('postgresql.conf', "tq_test.count_before_snapshot = ''");
$node->reload;
is($node->safe_psql('postgres', "select count(*) from tq_claim('slow', 10)"), 0, 'a crash brings no new burst');
like(($node->psql('postgres', "\\set VERBOSITY verbose\nselect tq_enqueue('seldom')"))[2], qr/TQ003/, 'of enqueues neither');
like(($node->psql('postgres', "\\set VERBOSITY verbose\nselect tq_enqueue('full')"))[2], qr/TQ003/, 'what was full before a crash is full');
take($node, 'full', 1, undef, '3 min');
is($node->safe_psql('postgres', "select tq_enqueue('full') > 0"), 't', 'and lets in as many as go');
like(($node->psql('postgres', "\\set VERBOSITY verbose\nselect tq_enqueue('full')"))[2], qr/TQ003/, 'and not one more');

# a job that is being published is not counted twice
take_all($node, 'full', 3);
my $committing = session($node);
my $one_left = q{select tq_enqueue('full') > 0};
arm($node, 'commit-after-publish', 'wait', pid => ask($committing, 'select pg_backend_pid()'));
begin_ask($committing, q{select count(tq_enqueue('full')) from generate_series(1, 2)});
standing($node, 'commit-after-publish');
is($node->safe_psql('postgres', $one_left), 't', 'max_depth: a transaction that has committed two of four jobs leaves room');
release($node, 'commit-after-publish');
end_ask($committing);
like(($node->psql('postgres', "\\set VERBOSITY verbose\n$one_left"))[2], qr/TQ003/, '... for one');
ask($committing, q{set tq.publish_limit = 0});
take_all($node, 'full', 3);
arm($node, 'commit-after-publish', 'wait', pid => ask($committing, 'select pg_backend_pid()'));
begin_ask($committing, q{select count(tq_enqueue('full')) from generate_series(1, 2)});
standing($node, 'commit-after-publish');
is($node->safe_psql('postgres', $one_left), 't', 'the same in bulk');
release($node, 'commit-after-publish');
end_ask($committing);
like(($node->psql('postgres', "\\set VERBOSITY verbose\n$one_left"))[2], qr/TQ003/, '... for one');

# a job that replaces another one does not count for the jobs that are not published yet
ask($committing, q{set tq.publish_limit = 1});
take_all($node, 'full', 4);
$node->safe_psql('postgres', q{select count(tq_enqueue('full', unique_key => 'k')) from generate_series(1, 1)});
arm($node, 'commit-half-published', 'wait', pid => ask($committing, 'select pg_backend_pid()'));
begin_ask($committing, q{begin; select tq_enqueue('full', unique_key => 'k', unique_mode => 'replace'); select count(tq_enqueue('full')) from generate_series(1, 3); commit});
standing($node, 'commit-half-published');
like(($node->psql('postgres', "\\set VERBOSITY verbose\n$one_left"))[2], qr/TQ003/, 'max_depth: one that replaces another makes no room for others');
release($node, 'commit-half-published');
end_ask($committing);

# the cost of a commit depends on its jobs, not on its savepoints
$node->safe_psql('postgres', q{select tq_create_queue('savepoints', '{"max_depth": 1000000}')});
ask($committing, q{do $$ begin for i in 1 .. 20000 loop begin perform tq_enqueue('savepoints'); exception when others then raise; end; end loop; end $$});
is($node->safe_psql('postgres', q{select live from tq_stats() where queue = 'savepoints'}), 20000, '20000 jobs, each in a savepoint of its own');
leave($committing);

check_journal($node, 'the journal is consistent');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6|terminated by signal (?!9)/, 'nothing alarming in the log');
$node->stop;

done_testing();
