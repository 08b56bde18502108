# Beside 50 000 schedules of one role each second, timers, leases and schedules of other queues and roles go on: while
# the 50 000 fire, are loaded after a restart, catch up, are pruned or wait for locks. Limits of schedules per queue and
# role hold. scripts/bench measures the delays.

use strict;
use warnings;

use List::Util 'sum';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $many = $ENV{TQ_SCHEDULES} // 50_000;

my $node = tq_node('schedule_load', conf => <<CONF);
shared_buffers = 256MB
tq.max_live_jobs = 20000
max_worker_processes = 20
tq.naptime = 1s
CONF
scheduler_of($node);

sub sql { my ($sql) = @_; return $node->safe_psql('postgres', $sql); }

sql(<<'SQL');
create role attacker login;
create role victim login;
select tq_create_queue('attacked'), tq_create_queue('second'), tq_create_queue('victim'), tq_create_queue('timers'), tq_create_queue('leases', '{"max_attempts": 1000, "retry": {"delay": "0 s"}}');
select tq_grant('attacked', 'attacker', 'produce'), tq_grant('second', 'attacker', 'produce'), tq_grant('attacked', 'victim', 'produce'),
	tq_grant('victim', 'victim', 'produce'), tq_grant('victim', 'victim', 'consume');
SQL

# Three tests: delayed jobs, leases and schedules of other queues and roles go on.
sub goes_on
{
	my ($beside) = @_;
	my $from = sql('select tq_now()');
	sql(q{select count(tq_enqueue('timers', delay => '100 ms')) from generate_series(1, 5)});
	sql(q{select tq_enqueue('leases')});
	sql(q{select count(*) from tq_claim('leases', lease_for => '200 ms', wait => '3 min')});
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar(take_all($node, 'timers', 5)), 5, "delayed jobs go on $beside");
	is(scalar(take_all($node, 'leases', 1)), 1, "leases end $beside");
	ok(until_true($node, "select count(distinct schedule) = 3 from tq.schedule_fire where schedule in ('single', 'other role', 'other queue') and fire_at > '$from'", 'fires'),
		"schedules of others fire $beside");
	return;
}

#
# 50 000 schedules each second, all at the same time
#
let_write($node, 'schedule', 'schedule_fire');
sql(<<'SQL');
create function multiply(template text, prefix text, n int) returns void language sql as $$
	insert into tq.schedule select r.* from generate_series(1, n) i, tq.schedule s, jsonb_populate_record(s, jsonb_build_object('name', prefix || i)) r where s.name = template
$$;
SQL
sql("set role attacker; select tq_schedule('a', 'attacked', jsonb_build_object('filler', repeat('x', 500)), every => '1 s'), tq_schedule('other queue', 'second', every => '1 s')");
sql("select tq_schedule('single', 'victim', every => '1 s')");
sql("set role victim; select tq_schedule('other role', 'attacked', every => '1 s')");
sql("select multiply('a', 'a ', $many - 1)");
until_true($node, "select count(distinct schedule) > 500 from tq.schedule_fire where schedule like 'a %'", 'the attack has begun');
goes_on('beside 50 000 schedules');
# a fast machine is not five seconds late unless its scheduler stands still
arm($node, 'fire-before-commit');
standing($node, 'fire-before-commit');
ok(until_true($node, "select tq_metrics() ~ 'tq_schedule_lateness_seconds\\{queue=\"attacked\"\\} ([2-9]|[1-9][0-9])'"), 'metrics say which queue is late');
ok(until_true($node, "select status = 'warn' and value ~ 'most of \"attacked\": ' from tq_health() where item = 'late schedules'"), 'so does tq_health()');
release($node, 'fire-before-commit');
my $log = -s $node->logfile;
sql('select pg_log_backend_memory_contexts(' . scheduler_of($node) . ')');
$node->wait_for_log(qr/Grand total/, $log);
my $found = sum(0, slurp_file($node->logfile, $log) =~ /tq (?:\w+ of )?schedules: (\d+) total/g);
cmp_ok($found, '>', 0, 'the scheduler says what its schedules need');
cmp_ok($found / $many, '<', 700, 'a schedule costs the scheduler less than 700 bytes');

#
# After a restart all are read
#
$node->restart;
scheduler_of($node);
loaded($node, 'postgres');
goes_on('after a restart');

#
# A change of a schedule makes the scheduler scan all of them; a count of the journal makes it check all for lost jobs
#
my $busy = session($node);
ask($busy, 'set role attacker');
begin_ask($busy, "do \$\$ begin for i in 1 .. 1e6 loop perform tq_schedule('a', 'attacked', every => '1 s', options => jsonb_build_object('priority', i % 100)); commit; end loop; end \$\$");
goes_on('while one is changed all the time');
sql("select pg_cancel_backend(pid) from pg_stat_activity where query like 'do %tq_schedule%' and pid <> pg_backend_pid()");
end_ask($busy);
my $checker = session($node);
begin_ask($checker, 'select count(*) from tq_check()');
goes_on('after a count of the journal');
end_ask($checker);

sub gone
{
	sql("delete from tq.schedule where name like 'a%'");
	sql("truncate tq.schedule_fire");
	sql("select tq_purge('attacked', 'ready')");
	return;
}
gone();
ok(until_true($node, "select value = 'none' and status = 'ok' from tq_health() where item = 'late schedules'"), 'nothing is late when they are gone');

#
# Many times of one schedule
#
sql("set role attacker; select tq_schedule('all', 'attacked', every => '1 s', catch_up => 'all', options => '{\"max_catch_up\": 1000}')");
sql("select multiply('all', 'all ', 20)");
until_true($node, "select count(distinct schedule) = 21 from tq.schedule_fire where schedule like 'all%'", 'they fire');
clock($node, 1500, 0);
until_true($node, "select count(*) > 100 from tq.schedule_fire where schedule like 'all%' and fire_at > tq_now() - interval '1400 s'", 'catching up');
goes_on('beside some that catch up');
clock($node, 0, 0);
gone();

#
# Many rows to prune
#
sql("set role attacker; select tq_schedule('a', 'attacked', every => '1 h')");
sql("select multiply('a', 'a ', 1000)");
sql("insert into tq.schedule_fire (schedule, fire_at, at, outcome) select name, now() - interval '1 s' * i, now(), 'missed' from tq.schedule s, generate_series(1, 250) i where name like 'a%'");
sql("update tq.schedule set every = '1 s', revision = revision + 1 where name like 'a%'");
until_true($node, "select count(*) > 10 from tq.schedule_fire where schedule like 'a%' and outcome = 'fired'", 'they fire');
goes_on('beside some that are pruned');
ok(until_true($node, "select count(*) < 150 * 1001 from tq.schedule_fire where schedule like 'a%'"), 'pruned');
gone();

#
# Locks of other sessions
#
begin_ask($busy, "begin; select count(tq_enqueue('attacked', unique_key => 'k' || i)) from generate_series(1, 1000) i");
end_ask($busy);
sql("set role attacker; select tq_schedule('a', 'attacked', every => '1 s')");
sql("insert into tq.schedule select r.* from generate_series(1, 1000) i, tq.schedule s, jsonb_populate_record(s, jsonb_build_object('name', 'a ' || i, 'options', jsonb_build_object('unique_key', 'k' || i))) r where s.name = 'a'");
until_true($node, "select tq_metrics() ~ 'tq_schedule_errors_total ([1-9][0-9])'", 'they are locked');
goes_on('beside some that wait for locks');
leave($busy, $checker);
gone();

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
