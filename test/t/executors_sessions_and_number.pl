# Executors: the role of their session, their number, and how they end. The section numbers are those of the list in
# handlers_run_jobs.pl. Hazards: H9, H33, H35.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('executors', conf => <<CONF);
max_worker_processes = 16
tq.executor_idle = '300 ms'
tq.max_executors = 3
tq.retry = '{"policy": "fixed", "delay": "0 s", "jitter": 0, "on_lost": "0 s"}'
CONF
scheduler_of($node);
my $executors = q{from pg_stat_activity where backend_type = 'tq executor' and query <> 'tq: looking for the extension'};
# an idle executor still shows its last job
my $at_gate = "$executors and state = 'active' and query ~ 'gated'";

sub sql
{
	my ($text, $database) = @_;
	return $node->safe_psql($database // 'postgres', $text);
}

# The error of a statement that a role runs.
sub error_as
{
	my ($role, $text) = @_;
	my ($stdout, $stderr) = ('', '');
	$node->psql('postgres', "\\set VERBOSITY verbose\nset role $role;\n$text", stdout => \$stdout, stderr => \$stderr, on_error_stop => 0);
	return $stderr =~ /ERROR:  (.*)/ ? $1 : 'none';
}

sub enqueue
{
	my ($queue, $args) = @_;
	return sql("select tq_enqueue('$queue'" . ($args ? ", $args" : '') . ')');
}

sub becomes
{
	my ($job, $state, $database) = @_;
	until_true($node, "select state = '$state' from tq_get($job)", "job $job is $state", $database);
	return sql("select state from tq_get($job)", $database);
}

sub problem
{
	my ($queue, $pattern) = @_;
	until_true($node, "select problem ~ '$pattern' from tq_handlers where queue = '$queue'", "problem of $queue");
	return sql("select problem from tq_handlers where queue = '$queue'");
}

sub logged
{
	my ($pattern) = @_;
	my $log = slurp_file($node->logfile);
	return scalar(() = $log =~ /$pattern/g);
}

sub reload
{
	my ($setting) = @_;
	$node->append_conf('postgresql.conf', $setting);
	$node->reload;
	return;
}

#
# 5. The role that a handler runs as
#
sql(<<'SQL');
create role alice login;
create role bob login;
create role friend;
create role nologin;
grant friend to alice;
create table who (job bigint, session name, who name, role text, setting text, temp text, prepared bigint, locks bigint, after name);
grant insert, select, update on who to public;
create table secret (s text);
create schema alice authorization alice;
grant create on schema public to alice, bob;
select tq_create_queue(q) from unnest('{a,b,c}'::text[]) q;
select tq_grant(q, r::regrole, p) from (values ('a', 'alice'), ('b', 'bob')) v (q, r), unnest('{manage,consume}'::text[]) p;
create function leak(job tq_job) returns void language sql as 'insert into secret values (current_user)';
create function locked(job tq_job) returns void language sql as 'select';
revoke execute on function locked from public;
create procedure proc(job tq_job) language sql as 'select';
create function two(job tq_job, x int) returns void language sql as 'select';
create function text_result(job tq_job) returns text language sql as $$select 'x'$$;
create function many(job tq_job) returns setof jsonb language sql as $$select '1'::jsonb$$;
set role alice;
create function alice.who(job tq_job) returns void language plpgsql as $$
declare
	after name;
begin
	insert into who values (job.id, session_user, current_user, current_setting('role'), current_setting('work_mem'),
		to_regclass('pg_temp.mine'), (select count(*) from pg_prepared_statements),
		(select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()));
	set work_mem = '1MB';
	create temp table mine ();
	-- its constraint is toasted in the catalog
	execute 'create temp table checked (s text check (s in (' ||
		(select string_agg(quote_literal(md5(n::text)), ', ') from generate_series(1, 1000) n) || ')))';
	prepare p as select 1;
	perform pg_advisory_lock(42);
	perform set_config('search_path', 'pg_catalog', false);
	set role friend;
	reset role;
	update public.who w set after = current_user where w.job = (who.job).id;
	set role friend;
end $$;
select tq_handle('a', null, 'alice.who(tq_job)'::regprocedure);
set role bob;
-- with "max": 1 no second executor is on its way that can still connect when the first one has left
select tq_handle('b', null, 'leak(tq_job)'::regprocedure, '{"max": 1}');
SQL
# one after the other, so that one executor can run both
becomes(enqueue('a'), 'succeeded') for 1 .. 2;
is(sql(q{select distinct session || ' ' || who || ' ' || role || ' ' || setting || ' ' || coalesce(temp, '-') || ' ' || prepared || ' ' || locks || ' '
	|| after from who}),
	'alice alice none 4MB - 0 0 alice', 'H9: a handler runs in a session of its role, and finds nothing of the one before; RESET ROLE leads to its role');
is(logged('cannot fetch toast data'), 0, '... and a large constraint of its temporary table does not end the executor');
sql(<<'SQL');
alter role bob set exit_on_error = on;
select tq_create_queue('exits'), tq_grant('exits', 'bob', 'manage', 'consume');
set role bob;
create function raises(job tq_job) returns void language plpgsql as $$begin raise exception 'on purpose'; end$$;
select tq_handle('exits', null, 'raises(tq_job)'::regprocedure, '{"max": 1}');
SQL
is(becomes(my $raised = enqueue('exits', 'max_attempts => 1'), 'dead'), 'dead', 'with exit_on_error a handler fails');
is(sql("select error from tq_get($raised)"), 'on purpose', '... with its error');
sql(q{alter role bob reset exit_on_error; select tq_unhandle('exits', null)});
my $job = enqueue('b', 'max_attempts => 1');
becomes($job, 'dead');
is(sql("select reason || ' ' || (detail->>'sqlstate') from tq_history($job) where event = 'dead'"), 'permission denied for table secret 42501',
	q{H9: a superuser's function runs with the rights of the role that registered it});
is(error_as('bob', q{select tq_handle('b', 'k', 'locked(tq_job)'::regprocedure)}), '42501: permission denied for function locked', 'it takes EXECUTE');
is(error_as('bob', q{select tq_handle('a', 'k', 'leak(tq_job)'::regprocedure)}), '42501: permission denied for queue "a"', 'and rights on the queue');
is(error_as('none', qq{select tq_handle('c', 'k', '$_'::regprocedure)}), "42P13: function $_ cannot handle jobs", "$_")
	for ('two(tq_job,integer)', 'text_result(tq_job)', 'many(tq_job)', 'proc(tq_job)');
like(error_as('none', q{create function pg_temp.t(job tq_job) returns void language sql as 'select'; select tq_handle('c', 'k', 'pg_temp.t(tq_job)'::regprocedure)}),
	qr/^42P13: function pg_temp.* cannot handle jobs$/, 'a temporary function');
sql(q{select tq_grant('c', 'nologin', p) from unnest('{manage,consume}'::text[]) p});
if (sql('show server_version_num') < 170000)
{
	is(error_as('nologin', q{select tq_handle('c', 'k', 'leak(tq_job)'::regprocedure)}), '28000: role "nologin" cannot run handlers', 'a role must have LOGIN');
}
else
{
	is(error_as('nologin', q{select tq_handle('c', 'k', 'leak(tq_job)'::regprocedure)}), 'none', 'a role need not have LOGIN');
	sql(q{select tq_unhandle('c', 'k')});
}

#
# 6. A handler loses something that it needs
#
sql(<<'SQL');
create function work(job tq_job) returns jsonb language sql as $$select '1'::jsonb$$;
create function slow(job tq_job) returns jsonb language sql as $$select '1'::jsonb from pg_sleep(1000)$$; -- sleeps: long work
select tq_handle('b', null, 'work(tq_job)'::regprocedure);
set role bob;
select tq_handle('b', null, 'work(tq_job)'::regprocedure, '{"max": 1}');
SQL
my %taken = (
	'its name' => [ 'alter function work rename to gone', 'alter function gone rename to work', 'function public.work.tq_job. has another name now' ],
	'EXECUTE' => [ 'revoke execute on function work from public', 'grant execute on function work to public', 'permission denied for function work' ],
	'consume' => [ q{select tq_revoke('b', 'bob', 'consume')}, q{select tq_grant('b', 'bob', 'consume')}, 'permission denied for queue "b"' ],
	'CONNECT' => [ 'revoke connect on database postgres from public', 'grant connect on database postgres to public', 'could not be started' ],
	'LOGIN' => [ 'alter role bob nologin', 'alter role bob login', 'role "bob" is not permitted to log in' ],
);
delete $taken{LOGIN} if sql('show server_version_num') >= 170000;
for my $what (sort keys %taken)
{
	my ($take, $give, $says) = @{ $taken{$what} };
	until_true($node, "select count(*) = 0 $executors");
	sql($take);
	$job = enqueue('b');
	like(problem('b', $says), qr/$says/, "without $what its jobs wait");
	like(sql("select tq_explain($job)"), qr/^Job $job is ready, but its handler public.work is not called: .*$says/, 'tq_explain says why') if $what ne 'CONNECT';
	like(sql(q{select value || ' ' || status from tq_health() where item = 'handlers'}), qr/^1 of \d cannot be called: b: .*$says.* warn$/, 'tq_health warns');
	sql($give);
	is(becomes($job, 'succeeded') . sql("select attempt from tq_get($job)"), 'succeeded1', 'with it again they run, and have used no attempts');
	is(sql(q{select problem is null from tq_handlers where queue = 'b'}), 't', 'and all is well');
}
sql(q{create role carol login; select tq_grant('c', 'carol', p) from unnest('{manage,consume}'::text[]) p});
sql(q{set role carol; select tq_handle('c', null, 'work(tq_job)'::regprocedure)});
sql('drop role carol');
$job = enqueue('c');
like(problem('c', 'does not exist'), qr/^role \d+ does not exist$/, 'a role that was dropped');
sql(q{select tq_handle('c', null, 'slow(tq_job)'::regprocedure)});
until_true($node, "select count(*) = 1 $executors and query ~ 'job $job '");

#
# 7. A handler is replaced or removed while it runs
#
sql(q{select tq_unhandle('c', null)});
sql("select tq_cancel($job)");
is(becomes($job, 'cancelled'), 'cancelled', 'a job whose handler was taken away runs on, and can be cancelled');
until_true($node, "select count(*) = 0 $executors");
$job = enqueue('c');
sql(q{select tq_purge('c', 'all')});
sql(q{select tq_handle('c', 'k', 'work(tq_job)'::regprocedure); select tq_drop_queue('c')});
until_true($node, q{select count(*) = 0 from tq_queues where queue = 'c'});
is(sql(q{select count(*) from tq.handler where queue_id not in (select id from tq.queue)}), '0', 'handlers go with their queue');

#
# 8. The number of executors
#
sql(<<'SQL');
create table gate (open boolean);
insert into gate values (false);
create function gated(job tq_job) returns void language plpgsql as $$
begin
	while not (select open from public.gate) loop perform pg_sleep(0.02); end loop; -- poll
end $$;
grant select on gate to public;
select tq_create_queue('many');
select tq_handle('many', 'two', 'gated(tq_job)'::regprocedure, '{"max": 2}');
select tq_handle('many', null, 'gated(tq_job)'::regprocedure);
select tq_enqueue('many', kind => 'two') from generate_series(1, 20);
SQL
until_true($node, "select count(*) = 2 $at_gate", 'two');
sql(q{select tq_enqueue('many') from generate_series(1, 20)});
until_true($node, "select count(*) = 3 $at_gate", 'three');
is(sql(q{select running || ' ' || (kinds->'two'->>'running') from tq_stats() where queue = 'many'}), '3 2', 'no more than the limits of a handler and of the server') or diag sql(q{select kinds from tq_stats() where queue = 'many'});
sql(q{select tq_create_queue('few', '{"executors": 1}'); select tq_handle('few', k, 'gated(tq_job)'::regprocedure) from unnest('{a,b}'::text[]) k});
sql(q{update gate set open = true});
until_true($node, q{select live = 0 from tq_stats() where queue = 'many'});
sql(q{update gate set open = false});
sql(q{select tq_enqueue('few', kind => 'a'), tq_enqueue('few', kind => 'b'), tq_enqueue('many')});
until_true($node, "select count(*) = 2 $at_gate", 'two');
is(sql(q{select string_agg(running::text, ' ' order by queue) from tq_stats() where queue in ('few', 'many')}), '1 1', 'no more than a queue may have');
sql(q{select tq_enqueue('many') from generate_series(1, 20)});
# another role has jobs while all executors are busy: an executor leaves after its job
$job = enqueue('a');
sql(q{update gate set open = true});
is(becomes($job, 'succeeded'), 'succeeded', 'roles take turns');
until_true($node, q{select sum(live) = 0 from tq_stats() where queue in ('few', 'many')});
until_true($node, "select count(*) = 0 $executors");    # or they take the next jobs before they see the setting
sql(q{update gate set open = false});
reload(q{tq.executors = 1});
sql(q{select tq_enqueue('many') from generate_series(1, 3)});
until_true($node, "select count(*) = 1 $at_gate");
$job = enqueue('a');
sql(q{update gate set open = true});
is(becomes($job, 'succeeded'), 'succeeded', 'even if there is one place');
until_true($node, q{select live = 0 from tq_stats() where queue = 'many'});
# one role has a long job, the other one always has a next job
reload(q{tq.executors = 2});
sql(<<'SQL');
create function again(job tq_job) returns void language plpgsql as $$
begin
	perform pg_sleep(0.2), tq_enqueue('endless'); -- sleeps: long work
end $$;
select tq_create_queue(q) from unnest('{long,longer,endless}'::text[]) q;
select tq_handle('long', null, 'slow(tq_job)'::regprocedure);
select tq_handle('longer', null, 'slow(tq_job)'::regprocedure);
select tq_handle('endless', null, 'again(tq_job)'::regprocedure, '{"max": 1}');
SQL
until_true($node, "select count(*) = 0 $executors");
my $long = enqueue('long');
until_true($node, "select count(*) = 1 $executors and query ~ 'job $long '", 'long');
enqueue('endless');
until_true($node, "select count(*) > 3 from tq_jobs where queue = 'endless'", 'endless');
$job = enqueue('a');
is(becomes($job, 'succeeded'), 'succeeded', 'and if the executor that should leave first has a long job');
sql(q{select tq_unhandle('endless', null), tq_pause('endless')});
sql("select tq_cancel($long)");
is(becomes($long, 'cancelled'), 'cancelled', 'which it keeps');
# one role has all executors, with long jobs
enqueue('long');
until_true($node, "select count(*) = 1 $executors and query ~ 'slow'");
enqueue('longer');
until_true($node, "select count(*) = 2 $executors and query ~ 'slow'");
my $executor = sql("select 'executor ' || min(pid) $executors and query ~ 'slow'");
is(error_as('bob', "select count(*) from tq_claim('b', worker => '$executor')"), 'none', 'another role claims in the name of an executor');
like(error_as('bob', "select tq_drain('$executor')"), qr/42501/, '... and cannot drain it');
$job = enqueue('a');
is(becomes($job, 'succeeded'), 'succeeded', 'and if all executors have long jobs of one role');
# the other one is terminated only if that takes five seconds more, that is ten since the role waits
is(sql(qq{select string_agg(attempt - (state = 'running')::int || ' ' || (select count(*) from tq_history(id) h where h.reason = 'the executor was stopped'
		and (queue = 'longer' or h.at < (select enqueued_at from tq_get($job)) + interval '10 s')), ', ' order by id)
	from tq_jobs where queue ~ '^long' and state in ('ready', 'running')}), '0 0, 0 1', 'the one that began last is given back, and its attempt not counted');
sql(q{select tq_cancel(id) from tq_jobs where queue ~ '^long' and state in ('ready', 'running')});
until_true($node, q{select sum(live) = 0 from tq_stats() where queue ~ '^long'});
reload(q{tq.executors = 0});
until_true($node, "select count(*) = 0 $executors");
$job = enqueue('many');
like(sql("select tq_explain($job)"), qr/tq.executors or tq.max_executors is 0/, 'tq_explain knows that they are turned off');
is(sql("select status from tq_health() where item = 'executors'"), 'warn', 'so does tq_health');
is(sql("select state from tq_get($job)"), 'ready', 'no executor runs it');
reload(q{tq.executors = 3});
is(becomes($job, 'succeeded'), 'succeeded', 'until they are turned on');

sql(q{create database other});
tq_setup($node, 'other');
scheduler_of($node, 'other');

#
# 7. A queue is dropped when an executor is about to claim from it, and another queue gets its slot in memory
#
for my $database ('postgres', 'other')
{
	sql(q{select tq_create_queue('going'); select tq_handle('going', null, 'work(tq_job)'::regprocedure)});
	arm($node, 'executor-before-claim');
	$job = enqueue('going');
	standing($node, 'executor-before-claim');
	is(join(' ', take($node, 'going', 1)), $job, 'another session takes its job');
	sql(q{select tq_drop_queue('going')});
	until_so(sub { error_as('none', q{select tq_purge('going', 'all')}) =~ /TQ002/ }, 'the queue is dropped');
	sql(q{select tq_create_queue('coming')}, $database);
	my $new = sql(q{select tq_enqueue('coming')}, $database);
	release($node, 'executor-before-claim');
	until_true($node, "select count(*) = 0 $executors");
	is(join(' ', take($node, 'coming', 1, $database)), $new, "a handler of a dropped queue takes no job of the next one in its place, of database $database");
	is(sql("select attempt from tq_get($new)", $database), '1', 'which was not tried before');
	sql(q{select tq_drop_queue('coming')}, $database);
}

#
# 9. DDL while executors run
#
sql(q{create function slow(job tq_job) returns void language sql as $$select from pg_sleep(1000) /* sleeps: long work */$$;
	select tq_create_queue('q', '{"max_attempts": 5}'); select tq_handle('q', null, 'slow(tq_job)'::regprocedure)}, 'other');
$job = sql(q{select tq_enqueue('q')}, 'other');
my $busy = "select count(*) = 1 $executors and datname = 'other' and query ~ 'slow'";
until_true($node, $busy, 'busy');
my $log = -s $node->logfile;
sql(q{create database clone template other});
is(sql(q{select count(*) from tq.handler}, 'clone'), '1', 'a database with a busy executor can be copied');
until_true($node, $busy, 'busy again');
my $events = sql("select string_agg(type::text, ' ' order by step) from tq.event where job_id = $job", 'other');
# a second SIGTERM, three seconds after the first, ends an executor that is slow to give its job back
my $ended = slurp_file($node->logfile, $log) =~ /terminating background worker "tq executor"/;
like($events, $ended ? qr/^c [rl] c$/ : qr/^c r c$/, 'its job was given back');
sql(q{begin; drop extension tq cascade; rollback}, 'other');
# the executor before may still show its job
ok(until_true($node, "select string_agg(type::text, ' ' order by step) = '$events r c' from tq.event where job_id = $job", 'given back', 'other'),
	'as for DROP EXTENSION');
until_true($node, $busy, 'busy again');
reload(q{tq.workers = off});
ok(until_true($node, "select count(*) = 0 from pg_stat_activity where backend_type ~ '^tq (sch|exe)'", 'tq.workers = off'),
	'tq.workers = off ends an executor that is busy') or diag sql("select backend_type, query from pg_stat_activity where backend_type ~ 'tq'");
reload(q{tq.workers = on});
until_true($node, $busy, 'busy again');

# One test: tq.workers = off ends the executor, and its job is released.
sub given_back
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(until_true($node, "select count(*) = 0 from pg_stat_activity where backend_type ~ '^tq (sch|exe)'", "tq.workers = off $what"), "so it does $what");
	is(sql("select right(string_agg(type::text, ' ' order by step), 3) from tq.event where job_id = $job", 'other'), 'c r', 'its job is given back');
	return;
}
reload(q{tq.executors = 0});
until_true($node, q{select current_setting('tq.executors') = '0'});
for my $round (1, 2)    # in the second round the scheduler has seen the problem
{
	my $soon = sql(q{select tq_enqueue('none', run_at => now() + interval '20 ms')}, 'other');
	until_true($node, "select state = 'ready' from tq_get($soon)", 'its time has come', 'other');
}
reload(q{tq.workers = off});
given_back('one that was to leave when its job is done');
arm($node, 'executor-after-claim');
reload("tq.executors = 3\ntq.workers = on");
standing($node, 'executor-after-claim');
reload(q{tq.workers = off});
until_true($node, "select count(*) = 0 from pg_stat_activity where backend_type = 'tq scheduler'", 'asked to go');
release($node, 'executor-after-claim');
given_back('one that has just claimed a job');
reload(q{tq.workers = on});
until_true($node, $busy, 'busy again');

# 10. A copy runs no handlers
is(sql(q{select value || ' ' || status from tq_health() where item = 'activation'}, 'clone'), 'inactive error', 'H33: the copy is inactive');
is(sql("select count(*) $executors and datname = 'clone'"), '0', 'it has no executors');
sql('drop database other');
pass('a database with a busy executor can be dropped');
sql(q{select tq_activate()}, 'clone');
until_true($node, "select count(*) = 1 $executors and datname = 'clone' and query ~ 'slow'", 'clone');
sql('drop extension tq cascade', 'clone');
pass('so can its extension');
sql('drop database clone');

# a dump has the handlers
sql(q{create database restored});
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', $dump ], 'pg_dump');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $dump ], 'restored');
my $list = q{select string_agg(queue || coalesce(kind, '') || function || role || options || search_path, ' ' order by queue, kind) from tq_handlers};
is(sql($list, 'restored'), sql($list), 'a dump has the handlers') or diag sql($list);
sql('drop database restored');

# 8. max_worker_processes used up
check_journal($node);
$node->append_conf('postgresql.conf', "max_worker_processes = 5\ntq.naptime = 50ms\nlog_min_messages = debug1");
$node->restart;
loaded($node);
scheduler_of($node);
sql(q{update gate set open = false});
sql(q{select tq_enqueue('many') from generate_series(1, 20)});
until_true($node, "select count(*) = 1 $at_gate", 'one');
my $lines = 'out of background worker slots, could not start tq executor for database "postgres"';

# Whether it was said once, and once more for each worker that was started since, such as a janitor. The postmaster may
# say later that it has started it.
sub said_once
{
	my (undef, @after) = split /$lines/, slurp_file($node->logfile);
	my $starts = () = join('', @after) =~ /starting background worker process "tq /g;
	return @after && @after - 1 <= $starts;
}
$node->wait_for_log(qr/$lines/);
ok(until_so(\&said_once, 'it is said once'), 'H35: the log says that there is no room for another executor');
is(sql("select count(*) $executors"), '1', 'the slots of others stay free');
sql(q{update gate set open = true});
until_true($node, q{select live = 0 from tq_stats() where queue = 'many'});
ok(until_so(\&said_once, 'it is said once'), 'once');

# 6. Pauses after failures
my $ahead = 0;
my $denied = 'FATAL:  permission denied for database "postgres"';

# Waits until an executor has failed once more, then until so many seconds after its pause.
sub fails_again
{
	my ($count, $pause) = @_;
	until_so(sub { logged($denied) > $count }, 'an executor has failed');
	until_true($node, "select count(*) = 0 $executors");
	clock($node, $ahead += $pause);
	return logged($denied);
}
until_true($node, "select count(*) = 0 $executors");
sql('revoke connect on database postgres from public');
$job = enqueue('b');
my $count = logged($denied);
$count = fails_again($count, $_ + 1) for (1, 2, 4, 8, 16, 32);
sql('grant connect on database postgres to public');
clock($node, $ahead += 70);
is(becomes($job, 'succeeded'), 'succeeded', 'a role whose executors failed for long');
until_true($node, "select count(*) = 0 $executors");
sql('revoke connect on database postgres from public');
$job = enqueue('b');
$count = logged($denied);
fails_again($count, 3);
sql('grant connect on database postgres to public');
is(becomes($job, 'succeeded'), 'succeeded', 'after one of them was well');

# a role whose sessions begin as another role
sql(<<'SQL');
create role dora login;
grant friend to dora;
alter role dora set role = 'friend';
select tq_create_queue('d'), tq_grant('d', 'dora', 'manage'), tq_grant('d', 'dora', 'consume');
grant create on schema public to dora;
set session authorization dora;
create function as_dora(job tq_job) returns void language sql as
	$$insert into who (job, session, who, role) values (job.id, session_user, current_user, current_setting('role'))$$;
select tq_handle('d', null, 'as_dora(tq_job)'::regprocedure);
SQL
$job = enqueue('d');
is(becomes($job, 'succeeded'), 'succeeded', 'H9: jobs of a role with ALTER ROLE SET role');
is(sql("select session || ' ' || who || ' ' || role from who where job = $job"), 'dora dora none', '... run as that role');

# a configuration that changes while there is no pause between two jobs
sql(<<'SQL');
create table seen (pid int, setting text);
create function see(job tq_job) returns void language sql as
	$$insert into seen values (pg_backend_pid(), current_setting('work_mem')); select pg_sleep(0.01)$$; -- sleeps: short work
select tq_create_queue('busy');
select tq_handle('busy', null, 'see(tq_job)'::regprocedure);
select tq_enqueue_many('busy', array_fill('{}'::jsonb, array[20000]));
SQL
until_true($node, 'select count(*) > 0 from seen', 'jobs run');
reload('work_mem = 5MB');
ok(until_true($node, q{select exists (select from seen group by pid having count(distinct setting) = 2)}), 'a busy executor takes it between two jobs');
sql(q{select tq_pause('busy')});

check_journal($node);
$node->stop;
done_testing();
