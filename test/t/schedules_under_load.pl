# 50 000 schedules of one role each second delay no timers, leases and schedules of other queues: while they fire, are
# loaded after a restart, catch up or are pruned. Limits of schedules per queue and role hold. With TQ_FIGURES_ONLY the
# test prints the delays and tests nothing, to compare versions.

use strict;
use warnings;

use List::Util 'sum';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $many = $ENV{TQ_SCHEDULES} // 50_000;
my $old = $ENV{TQ_FIGURES_ONLY};
my $longest = $old ? 120 : 20;    # the longest wait for a job or a lease, in seconds

my $node = tq_node('schedule_load', conf => <<CONF);
shared_buffers = 256MB
tq.max_live_jobs = 20000
max_worker_processes = 20
tq.naptime = 1s
CONF
scheduler_of($node);

sub sql { my ($sql) = @_; return $node->safe_psql('postgres', $sql); }

sql(<<SQL);
create role attacker login;
create role victim login;
select tq_create_queue('attacked'), tq_create_queue('second'), tq_create_queue('victim'), tq_create_queue('timers'), tq_create_queue('leases', '{"max_attempts": 1000, "retry": {"delay": "0 s"}}');
select tq_grant('attacked', 'attacker', 'produce'), tq_grant('second', 'attacker', 'produce'), tq_grant('attacked', 'victim', 'produce'),
	tq_grant('victim', 'victim', 'produce'), tq_grant('victim', 'victim', 'consume');
create table late (what text, ms numeric);

-- jobs delayed by 100 ms: from their time to the claim
create procedure delayed(what text, n int) language plpgsql as \$\$
declare
	due timestamptz;
	got int;
begin
	for i in 1 .. n loop
		perform tq_enqueue('timers', delay => '100 ms');
		due := clock_timestamp() + '100 ms';
		commit;
		with c as materialized (select * from tq_claim('timers', wait => '$longest s')), f as materialized (select tq_complete(id, lease) from c)
		select count(*) into got from f;
		insert into late values (what, extract(epoch from clock_timestamp() - due) * 1000);
		commit;
	end loop;
end \$\$;

-- leases of 200 ms without heartbeats: from their end to the next claim
create procedure leases(what text, n int) language plpgsql as \$\$
declare
	due timestamptz;
	c record;
begin
	perform tq_enqueue('leases');
	commit;
	for i in 0 .. n loop
		select id, lease into c from tq_claim('leases', lease_for => '200 ms', wait => '$longest s');
		if i > 0 then
			insert into late values (what, extract(epoch from clock_timestamp() - due) * 1000);
		end if;
		exit when i = n;
		commit;
		due := clock_timestamp() + '200 ms';
	end loop;
	perform tq_complete(c.id, c.lease);
	commit;
end \$\$;
SQL

# Median and worst in milliseconds of the last measurement.
sub figures
{
	my ($what) = @_;
	my ($n, $p50, $worst) = split /\|/, sql("select count(*), round(coalesce(percentile_cont(0.5) within group (order by ms), 1e6)::numeric, 1), round(coalesce(max(ms), 1e6), 1) from late where what = '$what'");
	note("$what: n $n, median $p50 ms, worst $worst ms");
	return ($p50, $worst);
}

sub in_time
{
	my ($what, $p50_most, $most) = @_;
	my ($p50, $worst) = figures($what);
	note("$what: median $p50 ms, worst $worst ms; on an idle machine at most $p50_most and $most");
	return;
}

# Delayed jobs, leases and, if there are any, schedules of other queues.
sub measure
{
	my ($beside, $n) = @_;
	$n = 2 if $old;
	my $from = sql('select tq_now()');
	sql("call delayed('delayed jobs $beside', $n)");
	sql("call leases('leases $beside', $n)");
	in_time("delayed jobs $beside", 150, 1000);
	in_time("leases $beside", 150, 1000);
	fires($beside, $from) if sql("select count(*) from tq.schedule where name in ('single', 'other role', 'other queue')") > 0;
	return;
}

sub fires
{
	my ($beside, $from) = @_;
	until_true($node, "select count(distinct schedule) = 3 from tq.schedule_fire where schedule in ('single', 'other role', 'other queue') and fire_at > '$from'", 'fires') unless $old;
	for my $name ('single', 'other role', 'other queue')
	{
		# missed times were late, and so are times that have not fired yet
		sql("insert into late select 'schedule \"$name\" $beside', extract(epoch from d) * 1000 from"
			  . " (select at - fire_at + least(missed, floor(extract(epoch from fire_at - '$from'))) * interval '1 s' as d from tq.schedule_fire where schedule = '$name' and fire_at > '$from'"
			  . " union all select tq_now() - max(fire_at) - interval '1 s' from tq.schedule_fire where schedule = '$name') x where d > '0'");
		in_time("schedule \"$name\" $beside", 250, 1500);
	}
	return;
}

measure('alone', 10);

#
# 50 000 schedules each second, all at the same time
#
sql(<<'SQL');
create function multiply(template text, prefix text, n int) returns void language sql as $$
	insert into tq.schedule select r.* from generate_series(1, n) i, tq.schedule s, jsonb_populate_record(s, jsonb_build_object('name', prefix || i)) r where s.name = template
$$;
SQL
sql("set role attacker; select tq_schedule('a', 'attacked', jsonb_build_object('filler', repeat('x', 500)), every => '1 s'), tq_schedule('other queue', 'second', every => '1 s')");
sql("select tq_schedule('single', 'victim', every => '1 s')");
sql("set role victim; select tq_schedule('other role', 'attacked', every => '1 s')");
sql("select multiply('a', 'a ', $many - 1)");
my $begin = time;
until_true($node, "select count(distinct schedule) > 500 from tq.schedule_fire where schedule like 'a %'", 'the attack has begun');
measure('beside 50 000 schedules', 15);
note(sprintf('fired in %d s: %s', time - $begin, sql("select count(*) from tq.schedule_fire")));
unless ($old)
{
	ok(until_true($node, "select tq_metrics() ~ 'tq_schedule_lateness_seconds\\{queue=\"attacked\"\\} ([2-9]|[1-9][0-9])'"), 'metrics say which queue is late');
	like(sql('select tq_metrics()'), qr/tq_schedule_lateness_seconds\{queue="victim"\} 0\.?[0-4]?/, '... and which is not');
	ok(until_true($node, "select status = 'warn' and value ~ '^of 1 queues, most of \"attacked\": ' from tq_health() where item = 'late schedules'"), 'so does tq_health()');
	my $log = -s $node->logfile;
	sql('select pg_log_backend_memory_contexts(' . scheduler_of($node) . ')');
	my $found = 0;
	for (1 .. 1000)
	{
		my $text = slurp_file($node->logfile, $log);
		last if $text =~ /Grand total/ and $found = sum(0, $text =~ /tq (?:\w+ of )?schedules: (\d+) total/g);
		select undef, undef, undef, 0.05;    # poll: the log
	}
	note("memory: $found bytes");
	cmp_ok($found / $many, '<', 700, 'a schedule costs the scheduler less than 700 bytes');
}

#
# After a restart all are read
#
$node->restart;
scheduler_of($node);
loaded($node, 'postgres');
my $up = sql('select clock_timestamp()');
measure('after a restart', 8);
until_true($node, "select count(distinct schedule) = 3 from tq.schedule_fire where schedule in ('single', 'other role', 'other queue') and at > '$up'",
	'what became due meanwhile fires') unless $old;

#
# A change of a schedule makes the scheduler scan all of them; a count of the journal makes it check all for lost jobs
#
my $busy = session($node);
ask($busy, 'set role attacker');
begin_ask($busy, "do \$\$ begin for i in 1 .. 1e6 loop perform tq_schedule('a', 'attacked', every => '1 s', options => jsonb_build_object('priority', i % 100)); commit; end loop; end \$\$");
measure('while one is changed all the time', 8);
sql("select pg_cancel_backend(pid) from pg_stat_activity where query like 'do %tq_schedule%' and pid <> pg_backend_pid()");
end_ask($busy);
my $checker = session($node);
begin_ask($checker, 'select count(*) from tq_check()');
measure('after a count of the journal', 8);
end_ask($checker);

sub gone
{
	sql("delete from tq.schedule where name like 'a%'");
	sql("truncate tq.schedule_fire");
	sql("select tq_purge('attacked', 'ready')");
	return;
}
gone();
ok(until_true($node, "select value = 'none' and status = 'ok' from tq_health() where item = 'late schedules'"), 'nothing is late when they are gone') unless $old;

#
# Many times of one schedule
#
sql("set role attacker; select tq_schedule('all', 'attacked', every => '1 s', catch_up => 'all', options => '{\"max_catch_up\": 1000}')");
sql("select multiply('all', 'all ', 20)");
until_true($node, "select count(distinct schedule) = 21 from tq.schedule_fire where schedule like 'all%'", 'they fire');
clock($node, 1500, 0);
until_true($node, "select count(*) > 100 from tq.schedule_fire where schedule like 'all%' and fire_at > tq_now() - interval '1400 s'", 'catching up');
measure('beside some that catch up', 8);
clock($node, 0, 0);
gone();

#
# Many rows to prune
#
sql("set role attacker; select tq_schedule('a', 'attacked', every => '1 h')");
sql("select multiply('a', 'a ', 3000)");
sql("insert into tq.schedule_fire (schedule, fire_at, at, outcome) select name, now() - interval '1 s' * i, now(), 'missed' from tq.schedule s, generate_series(1, 250) i where name like 'a%'");
sql("update tq.schedule set every = '1 s', revision = revision + 1 where name like 'a%'");
until_true($node, "select count(*) > 10 from tq.schedule_fire where schedule like 'a%' and outcome = 'fired'", 'they fire');
measure('beside some that are pruned', 8);
ok(until_true($node, "select count(*) < 150 * 3001 from tq.schedule_fire where schedule like 'a%'"), 'pruned');
gone();

#
# Locks of other sessions
#
begin_ask($busy, "begin; select count(tq_enqueue('attacked', unique_key => 'k' || i)) from generate_series(1, 1000) i");
end_ask($busy);
sql("set role attacker; select tq_schedule('a', 'attacked', every => '1 s')");
sql("insert into tq.schedule select r.* from generate_series(1, 1000) i, tq.schedule s, jsonb_populate_record(s, jsonb_build_object('name', 'a ' || i, 'options', jsonb_build_object('unique_key', 'k' || i))) r where s.name = 'a'");
until_true($node, "select tq_metrics() ~ 'tq_schedule_errors_total ([1-9][0-9])'", 'they are locked');
measure('beside some that wait for locks', 8);
leave($busy, $checker);
gone();

done_testing() if $old;
exit if $old;

#
# Limits
#
sql("alter system set tq.max_schedules_per_queue = 3");
sql("alter system set tq.max_schedules_per_role = 5");
$node->reload;
until_true($node, "select current_setting('tq.max_schedules_per_role') = '5'");
my ($one, $two, $other) = map { session($node) } 1 .. 3;
ask($_, 'set role attacker') for $one, $two;
ask($other, 'set role victim');
sub add { my ($session, $name, $queue) = @_; return ask($session, "select tq_schedule('$name', '$queue', every => '1 h')"); }
sub waits { my ($n) = @_; return until_true($node, "select count(*) = $n from pg_locks where locktype = 'object' and not granted"); }
is(sql("select count(*) from tq.schedule where queue in ('attacked', 'second')"), 2, 'two are there');
ask($one, 'begin');
add($one, 'a 1', 'attacked');
begin_ask($other, "select tq_schedule('v 1', 'victim', every => '1 h')");
is(end_ask($other), '', 'another role and queue does not wait');
add($one, 'a 2', 'attacked');
begin_ask($two, "select tq_schedule('b 1', 'attacked', every => '1 h')");
waits(1);
ask($one, 'commit');
like(end_ask($two), qr/ERROR:  53400: too many schedules for queue "attacked"/, 'the last place of a queue goes to one of two transactions');
ask($one, 'begin');
add($one, 's 1', 'second');
begin_ask($two, "select tq_schedule('s 2', 'second', every => '1 h')");
waits(1);
ask($one, 'rollback');
is(end_ask($two), '', '... to the other, if the first is rolled back');
ask($one, 'begin');
add($one, 's 3', 'second');
ask($two, "reset role; select tq_grant('victim', 'attacker', 'produce'); set role attacker");
begin_ask($two, "select tq_schedule('b 1', 'victim', every => '1 h')");
waits(1);
ask($one, 'commit');
like(end_ask($two), qr/ERROR:  53400: too many schedules of role "attacker"/, 'so it is with the last place of a role');
is(add($other, 'v 2', 'victim'), '', 'another role still can');
is(add($two, 's 3', 'second'), '', 'what there is can be defined again');
leave($one, $two, $other);

done_testing();
