# Executors run the jobs of handlers inside the server (H9, H15). The sections have these numbers. Here:
#  1. the server crashes: before the claim commits, in the handler, around the commit that completes the job, before a
#     failure is journalled; a job that always crashes the server
#  2. the executor is terminated, and its handler stops or does not stop
#  3. the handler raises, runs too long, commits, catches its cancellation, ends its own job, fails at commit
#  4. the job is cancelled or loses its lease, or another transaction changes it when it is to end
# In executors_sessions_and_number.pl:
#  5. the handler changes its role or leaves state in its session; the function belongs to another role
#  6. the function is renamed or revoked; the role is dropped, locked, or has no rights on the queue
#     (handlers_function_changes.pl: the function is dropped or replaced)
#  7. a handler is replaced or removed while it runs; its queue is dropped
#  8. more roles or jobs than executors; max_worker_processes is used up; tq.executors is lowered
#  9. DROP DATABASE, CREATE DATABASE from it, DROP EXTENSION and tq.workers = off while executors run
# 10. copies: a dump, a clone

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('handlers', init => { extra => [ '--encoding', 'UTF8' ] }, conf => <<CONF);
max_worker_processes = 12
tq.executor_idle = '300 ms'
tq.retry = '{"policy": "fixed", "delay": "0 s", "jitter": 0, "on_lost": "0 s"}'
tq.segment_interval = '1 d'
CONF
scheduler_of($node);

sub sql
{
	my ($text, $database) = @_;
	return $node->safe_psql($database // 'postgres', $text);
}

sub enqueue
{
	my ($queue, $args) = @_;
	return sql("select tq_enqueue('$queue'" . ($args ? ", $args" : '') . ')');
}

# The state of a job, when it has that state.
sub becomes
{
	my ($job, $state) = @_;
	until_true($node, "select state = '$state' from tq_get($job)", "job $job is $state");
	return sql("select state from tq_get($job)");
}

sub events
{
	my ($job) = @_;
	return sql("select string_agg(type::text, ' ' order by step) from tq.event where job_id = $job");
}

my $executors = q{from pg_stat_activity where backend_type = 'tq executor'};

sub no_executors
{
	my ($database) = @_;
	return until_true($node, "select count(*) = 0 $executors" . ($database ? " and datname = '$database'" : ''), 'executors have left');
}

# The process that runs a job, when its handler waits in pg_sleep or for the lock of the tests.
sub runner
{
	my ($job) = @_;
	until_true($node, "select count(*) = 1 $executors and query ~ 'job $job ' and wait_event is not null", "an executor of job $job");
	return sql("select pid $executors and query ~ 'job $job '");
}

# Waits until the server has restarted after a process was killed, since the last call. The process is gone before the
# postmaster knows it.
my $end_of_log = 0;
sub crashed
{
	$node->wait_for_log(qr/terminated by signal 9(?!.*terminated by signal 9).*ready to accept connections/s, $end_of_log);
	$end_of_log = -s $node->logfile;
	loaded($node);
	scheduler_of($node);
	return;
}

sub logged
{
	my ($pattern) = @_;
	my $log = slurp_file($node->logfile);
	return scalar(() = $log =~ /$pattern/g);
}

#
# End to end
#
sql(<<'SQL');
create table done (job bigint, kind text, payload jsonb, who text, session text, path text, attempt int);
create function work(job tq_job) returns jsonb language plpgsql as $$
begin
	insert into done values (job.id, job.kind, job.payload, current_user, session_user, current_setting('search_path'), job.attempt);
	return jsonb_build_object('got', job.payload);
end $$;
create schema app;
create function app.nothing(job tq_job) returns void language sql as 'select';
select tq_create_queue('mail');
set search_path = app, public;
select tq_handle('mail', 'send', 'work(tq_job)'::regprocedure);
select tq_handle('mail', 'void', 'nothing(tq_job)'::regprocedure);
SQL
my $waiting = enqueue('mail', q{kind => 'other'});
my $job = enqueue('mail', q{'{"to": 1}', kind => 'send'});
is(becomes($job, 'succeeded'), 'succeeded', 'a handler runs a job');
is(sql("select result from tq_get($job)"), '{"got": {"to": 1}}', 'what it returns is the result');
is(sql("select kind, payload, path from done where job = $job"), 'send|{"to": 1}|app, public', 'it had the row of the job, and its search_path');
is(events($job), 'c s', 'its claim is in the journal');
like(sql("select worker from tq_history($job) where event = 'succeeded'"), qr/^executor \d+$/, 'and its history names the executor');
sql(q{create function parents(job tq_job) returns jsonb language sql as 'select job.parents'; select tq_handle('mail', 'parents', 'parents(tq_job)'::regprocedure)});
my $child = enqueue('mail', qq{kind => 'parents', depends_on => array[$job]});
is(becomes($child, 'succeeded') . ' ' . sql("select result->'$job'->'result' from tq_get($child)"), 'succeeded {"got": {"to": 1}}',
	'what the parents of a job returned is in its row');
my $void = enqueue('mail', q{kind => 'void'});
is(becomes($void, 'succeeded') . sql("select result is null from tq_get($void)"), 'succeededt', 'a handler without result');
sql(q{select tq_enqueue('mail', kind => 'send') from generate_series(1, 500)});
until_true($node, q{select count(*) = 501 from done});
is(sql(q{select count(distinct job) from done}), '501', 'each job is run once');
is(sql("select state from tq_get($waiting)"), 'ready', 'a kind without a handler waits');
sql(q{select tq_handle('mail', null, 'work(tq_job)'::regprocedure, '{"max": 1}')});
is(becomes($waiting, 'succeeded'), 'succeeded', 'until there is one for all others');
is(becomes(enqueue('mail'), 'succeeded'), 'succeeded', 'also for jobs without a kind');
is(becomes(enqueue('mail', q{kind => 'void'}), 'succeeded'), 'succeeded', 'beside it');
is(sql(q{select string_agg(coalesce(kind, '*') || ' ' || function || ' ' || role, ', ' order by kind) from tq_handlers}),
	sql(q{select format('parents public.parents %1$s, send public.work %1$s, void app.nothing %1$s, * public.work %1$s', current_user)}), 'tq_handlers shows them');
is(sql(q{select string_agg(value || ' ' || status, ', ') from tq_health() where item = 'handlers'}), '4 ok', 'and tq_health counts them');
ok(no_executors(), 'idle executors leave');
ok(until_true($node, q{select value = '0 of 4, 0 at work' from tq_health() where item = 'executors'}), 'all of them');
$job = enqueue('mail', q{kind => 'send'});
becomes($job, 'succeeded');

#
# 1. Crashes
#
sql(<<'SQL');
select tq_create_queue('crash', '{"max_attempts": 2}');
select tq_handle('crash', null, 'work(tq_job)'::regprocedure);
SQL
for my $case (
	['executor-before-claimed', 'c s', 1, 'before its claim is committed: as if it had not been claimed'],
	['executor-before-complete', 'c l c s', 2, 'before the job is completed: the attempt counts'],
	['executor-after-complete', 'c s', 1, 'after that: it is done'])
{
	my ($point, $events, $attempt, $what) = @$case;
	no_executors();
	arm($node, $point);
	$job = enqueue('crash');
	standing($node, $point);
	arm($node, $point, 'kill');    # not before, or the server goes down before it has answered
	crashed();
	is(becomes($job, 'succeeded'), 'succeeded', "$point: killed $what");
	is(events($job), $events, 'so says the journal');
	is(sql("select string_agg(attempt::text, ' ') from done where job = $job"), $attempt, 'its work was done once');
}
sql(<<'SQL');
create function suicide(job tq_job) returns void language plpgsql as $$
begin
	insert into done (job) values (job.id);
	perform tq_test_arm('executor-before-complete', 'kill', 0, 0);
end $$;
create function fail(job tq_job) returns void language plpgsql as $$ begin raise exception 'no'; end $$;
select tq_create_queue('suicide', '{"max_attempts": 2}');
select tq_handle('suicide', null, 'suicide(tq_job)'::regprocedure);
select tq_handle('suicide', 'fail', 'fail(tq_job)'::regprocedure);
SQL
arm($node, 'executor-after-claim');
$job = enqueue('suicide');
standing($node, 'executor-after-claim');
$node->psql('postgres', q{select tq_test_arm('executor-after-claim', 'none', 0, 0)}, on_error_die => 0);    # it may not be answered
is(becomes($job, 'dead'), 'dead', 'a job that takes the server down is dead after its last attempt');
is(events($job) . sql("select count(*) from done where job = $job"), 'c l c d0', 'its claims were journalled, its work was not done');
arm($node, 'executor-before-complete', 'none');
arm($node, 'executor-before-fail');
$job = enqueue('suicide', q{kind => 'fail'});
standing($node, 'executor-before-fail');
arm($node, 'executor-before-fail', 'kill');
is(becomes($job, 'dead'), 'dead', 'a crash before a failure is written down');
like(events($job), qr/^c l c [dl]/, 'is a lost attempt');
crashed();

# effects are exactly once, whatever happens in between
sql(<<'SQL');
create table effect (job bigint, of bigint);
create function chained(job tq_job) returns void language plpgsql as $$
begin
	insert into effect values (job.id, (job.payload->>'of')::bigint);
	if job.payload->>'of' is null then
		perform tq_enqueue('chain', jsonb_build_object('of', job.id));
	end if;
end $$;
select tq_create_queue('chain');
select tq_handle('chain', null, 'chained(tq_job)'::regprocedure);
SQL
my $skip = 0;
for my $point ('executor-before-complete', 'executor-after-complete', 'executor-before-claimed', 'commit-before-publish')
{
	no_executors();
	arm($node, $point, 'kill', skip => $skip += 7);
	$node->psql('postgres', q{select tq_enqueue('chain') from generate_series(1, 20)}, on_error_die => 0);
	until_true($node, q{select live = 0 from tq_stats() where queue = 'chain'});
	crashed();
	until_true($node, q{select live = 0 from tq_stats() where queue = 'chain'});
}
is(sql(q{select count(*) - count(distinct job) || ' ' || count(*) filter (where of is null) - count(of) from effect}), '0 0',
	'handlers that enqueue have done everything once, and all of it, whenever the server went down');
is(sql(q{select count(*) = (select count(*) from tq_jobs where queue = 'chain' and state = 'succeeded') from effect}), 't', 'for each job that succeeded');

#
# 2. Terminated
#
#
sql(<<'SQL');
create function sleep(job tq_job) returns void language plpgsql as $$
begin
	insert into done (job) values (job.id);
	perform pg_sleep(coalesce((job.payload->>'s')::float8, 0)); -- sleeps: long work
end $$;
create function stubborn(job tq_job) returns void language plpgsql as $$
begin
	loop
		begin
			perform pg_sleep(1000); -- sleeps: long work
		exception when query_canceled then
			raise log 'stubborn handler goes on';
		end;
	end loop;
end $$;
select tq_create_queue('sleep', '{"max_attempts": 2}');
select tq_handle('sleep', null, 'sleep(tq_job)'::regprocedure);
select tq_create_queue('stubborn', '{"max_attempts": 1, "cancel_grace": "1 s"}');
select tq_handle('stubborn', null, 'stubborn(tq_job)'::regprocedure);
SQL
$job = enqueue('sleep', q{'{"s": 1000}'});
my $pid = runner($job);
let_write($node, 'handler');
sql("update tq.handler set options = options");    # nothing changes for running handlers
sql("select tq_unhandle('sleep', null)");
sql("select pg_terminate_backend($pid)");
becomes($job, 'ready');
is(events($job) . sql("select attempt from tq_get($job)"), 'c r0', 'an executor that is terminated gives its job back, without an attempt being counted');
is(sql("select count(*) from done where job = $job"), '0', 'what it did is rolled back');
sql("select tq_handle('sleep', null, 'sleep(tq_job)'::regprocedure)");
$pid = runner($job);
$node->restart;
scheduler_of($node);
isnt(runner($job), $pid, 'so it is when the server shuts down');
is(events($job), 'c r c r c', 'the job runs again after the start');
sql("select tq_cancel($job)");
is(becomes($job, 'cancelled'), 'cancelled', 'a running handler is cancelled');
is(sql("select count(*) from done where job = $job"), '0', 'and what it did rolled back');
is(becomes(enqueue('sleep'), 'succeeded'), 'succeeded', 'its executor goes on');
$job = enqueue('stubborn');
$pid = runner($job);
sql("select pg_terminate_backend($pid)");
is(becomes($job, 'dead'), 'dead', 'one that does not stop is terminated');
is(sql("select reason from tq_history($job) where event = 'dead'"), 'its session has ended', 'and has lost its lease');
sql(q{select tq_handle('sleep', 'fail', 'fail(tq_job)'::regprocedure, '{"fatal": ["P0001"]}')});
no_executors();
arm($node, 'executor-before-fail');
$job = enqueue('sleep', q{kind => 'fail'});
standing($node, 'executor-before-fail');
my $other = session($node);
ask($other, 'begin; lock table tq.event in share mode');
release($node, 'executor-before-fail');
until_true($node, "select count(*) = 1 $executors and wait_event_type = 'Lock'", 'it waits for the lock');
sql("select pg_terminate_backend(pid) $executors");
ask($other, 'commit');
becomes($job, 'dead');
is(events($job) . sql("select reason from tq_history($job) where event = 'dead'"), 'c dno',
	'one that is terminated after its handler has failed writes down how');
no_executors();
$job = enqueue('stubborn', q{timeout => '1 s'});
is(becomes($job, 'dead'), 'dead', 'one that catches its timeout');
like(sql("select reason from tq_history($job) where event = 'dead'"), qr/timeout|too long/, 'loses its lease some time later');
until_true($node, "select count(*) = 0 $executors and query ~ 'job $job '", 'it is terminated');
$job = enqueue('stubborn');
runner($job);
sql("select tq_cancel($job)");
is(becomes($job, 'cancelled'), 'cancelled', 'one that was asked to stop and does not, is cancelled');
until_true($node, "select count(*) = 0 $executors and query ~ 'job $job '", 'it is terminated');

#
# 3. What handlers can do
#
sql(<<'SQL');
create table parent (id int primary key deferrable initially deferred);
insert into parent values (1);
create table late ();
create function wait_at_commit() returns trigger language plpgsql as 'begin perform pg_sleep(1000); return null; end'; -- sleeps: long work
create constraint trigger wait_at_commit after insert on late deferrable initially deferred for each row execute function wait_at_commit();
create function misbehave(job tq_job) returns jsonb language plpgsql as $$
begin
	insert into done (job) values (job.id);
	case job.payload->>'how'
		when 'raise' then raise exception 'no luck' using errcode = 'ZZ123', detail = 'the detail', hint = 'the hint';
		when 'commit' then commit;
		when 'duplicate' then insert into done select 1 / 0;
		when 'deferred' then insert into parent values (1);
		when 'late' then insert into late default values;
		when 'release' then perform tq_release(job.id, job.lease, '1 h');
		when 'bury' then perform tq_bury(job.id, job.lease, 'by itself');
		when 'fail' then perform tq_fail(job.id, job.lease, 'by itself', fatal => true);
		when 'complete' then perform tq_complete(job.id, job.lease, '"by itself"');
		when 'fatal' then raise exception 'bad input' using errcode = '22023';
		when 'class' then raise exception 'in a fatal class' using errcode = '23505';
		when 'chain' then perform tq_enqueue('mail', kind => 'send', payload => to_jsonb(job.id));
		when 'savepoint' then begin raise exception 'x'; exception when others then null; end;
		when 'big' then raise exception '%', repeat('ä', 100000);
	end case;
	return '[1, 2]';
end $$;
select tq_create_queue('mis', '{"max_attempts": 2}');
select tq_handle('mis', null, 'misbehave(tq_job)'::regprocedure, '{"fatal": ["22023", "23000"]}');
SQL

sub misbehave
{
	my ($how, $state) = @_;
	my $id = enqueue('mis', "'{\"how\": \"$how\"}'");
	becomes($id, $state);
	return ($id, join ' ', sql("select state from tq_get($id)"), events($id), sql("select count(*) from done where job = $id"));
}
my $said;
($job, $said) = misbehave('raise', 'dead');
is($said, 'dead c f c d 0', 'an error fails the attempt, which is rolled back; then the job is dead');
is(sql("select reason || ' ' || (detail - 'context') from tq_history($job) where event = 'failed'"),
	'no luck {"hint": "the hint", "detail": "the detail", "sqlstate": "ZZ123"}', 'what the error said is kept');
like(sql("select detail->>'context' from tq_history($job) where event = 'dead'"), qr/^PL\/pgSQL function (public\.)?misbehave\(tq_job\) line \d+ at RAISE$/,
	'and where it was raised');
($job, $said) = misbehave('commit', 'dead');
like(sql("select reason || detail from tq_history($job) where event = 'dead'"), qr/^invalid transaction termination.*2D000/, 'a handler cannot commit');
is($said, 'dead c f c d 0', 'and what it did is rolled back');
($job, $said) = misbehave('deferred', 'dead');
is($said, 'dead c d 0', 'an error at commit fails the attempt');
like(sql("select detail->>'constraint' from tq_history($job) where event = 'dead'"), qr/parent_pkey/, 'with the constraint');
is((misbehave('release', 'delayed'))[1], 'delayed c r 1', 'a handler may put its job off');
is((misbehave('bury', 'buried'))[1], 'buried c b 1', 'or aside');
is((misbehave('fail', 'dead'))[1], 'dead c d 1', 'or fail it, keeping what it did');
is((misbehave('complete', 'succeeded'))[1], 'succeeded c s 1', 'or complete it');
is((misbehave('fatal', 'dead'))[1], 'dead c d 0', 'after some errors there is no other attempt');
is((misbehave('class', 'dead'))[1], 'dead c d 0', 'also for their class');
is((misbehave('savepoint', 'succeeded'))[1], 'succeeded c s 1', 'an error that is caught is none');
($job, $said) = misbehave('big', 'dead');
is(sql("select length(reason) from tq_history($job) where event = 'dead'"), '4000', 'long messages are cut between characters');
($job, $said) = misbehave('chain', 'succeeded');
until_true($node, "select count(*) = 1 from done where payload = to_jsonb($job)");
is(sql("select count(*) from done where payload = to_jsonb($job)"), '1', 'a handler enqueues');

# timeouts
$job = enqueue('sleep', q{'{"s": 1000}', timeout => '200 ms'});
is(becomes($job, 'dead'), 'dead', 'a timeout ends an attempt');
is(sql("select reason || ' ' || (detail->>'sqlstate') from tq_history($job) where event = 'failed'"), 'canceling statement due to statement timeout 57014',
	'as the statement timeout of its handler');
is(becomes(enqueue('sleep', q{'{"s": 0.01}', timeout => '1 h'}), 'succeeded'), 'succeeded', 'one that is fast enough succeeds');

$job = enqueue('mis', q{'{"how": "late"}', timeout => '500 ms', max_attempts => 1});
is(becomes($job, 'dead'), 'dead', 'a timeout ends what a handler left for the commit');
is(sql("select reason from tq_history($job) where event = 'dead'") . sql("select count(*) from done where job = $job"),
	'canceling statement due to statement timeout0', 'in time, and with all it did');

# a row by hand that makes no sense
sql(q{update tq.handler set options = '{"max": "all"}' where kind = 'void'});
$void = enqueue('mail', q{kind => 'void'});
is(becomes(enqueue('mail', q{'{"to": 2}', kind => 'send'}), 'succeeded'), 'succeeded', 'options that make no sense keep no other handler');
is(becomes(enqueue('mail', q{kind => 'any'}), 'succeeded') . ' ' . sql("select state from tq_get($void)"), 'succeeded ready', 'and leave their jobs to no other');
ok(logged(qr/handler app.nothing of queue \d+ is not called: option "max"/), 'the log says so');
sql(q{set search_path = app, public; select tq_handle('mail', 'void', 'nothing(tq_job)'::regprocedure)});
is(becomes($void, 'succeeded'), 'succeeded', 'they wait for better ones');

#
# 4. A lease that is lost meanwhile
#
$job = enqueue('sleep', q{'{"s": 1000}', timeout => '100 s', max_attempts => 1});
runner($job);
clock($node, 0, 200);
is(becomes($job, 'dead'), 'dead', 'a lease whose time is over is taken away');
until_true($node, "select count(*) = 0 $executors and query ~ 'job $job '", 'and its handler interrupted');
is(sql("select count(*) from done where job = $job"), '0', 'what it did is rolled back');
no_executors();     # they would wait for the old time
clock($node, 0, 0);

# another transaction has ended the attempt, and can still roll back
my $meets = "select count(*) = 1 $executors and wait_event is not null and query ~";
my $late = 0;
for my $long (0, 1)
{
	arm($node, 'executor-before-complete');
	$job = enqueue('sleep');
	standing($node, 'executor-before-complete');
	$pid = sql("select pid $executors and query ~ 'job $job '");
	ask($other, 'begin');
	ask($other, "select tq_release($job, lease) from tq.event where job_id = $job and type = 'c'");
	my $began = time;
	release($node, 'executor-before-complete');
	until_true($node, "select ($meets 'job $job ') or not exists (select $executors and query ~ 'job $job ')", 'it waits, or has given up');
	if ($long)
	{
		clock($node, 0, 10);
		# or it has left already, five seconds later
		until_true($node, "select ($meets 'ending an attempt') or not exists (select from pg_stat_activity where pid = $pid)", 'its work was rolled back');
		clock($node, 0, 20);
		until_true($node, "select count(*) = 0 from pg_stat_activity where pid = $pid", 'it leaves');
	}
	ask($other, 'rollback');
	my $took = time - $began;
	my $became = becomes($job, 'succeeded');
	redo if !$long && $took >= 5 && $late++ < 10;    # the executor waits for five seconds
	is($became . ' ' . events($job), $long ? 'succeeded c l c s' : 'succeeded c s',
		$long ? 'if that takes long, the executor leaves and its lease with it' : 'a job that another transaction was changing when its handler was done');
	is(sql("select count(*) from done where job = $job"), '1', 'is done once');
}
leave($other);
clock($node, 0, 0);

check_journal($node);
$node->stop;
done_testing();
