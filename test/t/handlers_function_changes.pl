# The function of a handler changes. A role that can replace the function never gets its code run as another role.
# Hazard: H9. The sections have these numbers:
#
#  1. the function is dropped, and another role creates one of the same name
#  2. the function gets another owner between claim and call, or between the call and the reading of its code
#  3. the owner of the function loses the rights of the handler's role
#  4. the function changes while tq does not see it: no workers, tq not loaded, a crash, a locked row of the handler
#  5. the database is a copy or a restored dump: other oids, maybe other functions
#  6. the SQL is that of the release before, which does not record functions
# test/pgtap/handlers.sql tests which changes hold a handler at once.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('functions', conf => <<CONF);
max_worker_processes = 24
tq.executor_idle = '300 ms'
tq.max_databases = 10
tq.retry = '{"policy": "fixed", "delay": "0 s", "jitter": 0, "on_lost": "0 s"}'
CONF
scheduler_of($node);
my $executors = q{from pg_stat_activity where backend_type = 'tq executor'};

sub sql
{
	my ($text, $database) = @_;
	return $node->safe_psql($database // 'postgres', $text);
}

sub enqueue
{
	my ($queue, $database) = @_;
	return sql("select tq_enqueue('$queue')", $database);
}

# The state of a job, when it has that state, and its number of attempts.
sub becomes
{
	my ($job, $state, $database) = @_;
	until_true($node, "select state = '$state' from tq_get($job)", "job $job is $state", $database);
	return sql("select state || ' ' || attempt from tq_get($job)", $database);
}

# The problem of a queue's handler, when there is one, without its hint; and whether the hint names the only remedy.
sub problem
{
	my ($queue, $database) = @_;
	until_true($node, "select problem is not null from tq_handlers where queue = '$queue'", "problem of $queue", $database);
	return sql(qq{select regexp_replace(problem, '; call tq_handle again\$', '') || case when retry_at = 'infinity' then ' HELD' else '' end
		from tq_handlers where queue = '$queue'}, $database);
}

# A queue with a handler of the same name, registered by the handler's owner.
sub handler
{
	my ($queue, $role, $database, $settings) = @_;
	$role //= 'app';
	$settings //= '';
	sql(qq{do \$\$ begin if not exists (select from tq_queues where queue = '$queue') then perform tq_create_queue('$queue'); end if; end \$\$;
		select tq_grant('$queue', '$role', p) from unnest('{manage,consume}'::text[]) p;
		set role $role;
		create or replace function shared.$queue(job tq_job) returns void language plpgsql $settings as
			'begin insert into public.ran (job, who, code) values (job.id, current_user, ''good''); end';
		select tq_handle('$queue', null, 'shared.$queue(tq_job)')}, $database);
	return;
}

# All the statements that make a function of that name do something else.
sub evil
{
	my ($queue, $replace) = @_;
	return qq{create @{[ $replace ? 'or replace ' : '' ]}function shared.$queue(job tq_job) returns void language plpgsql as
		'begin insert into public.ran (job, who, code) values (job.id, current_user, ''evil''); end'};
}

sub no_executors
{
	until_true($node, "select count(*) = 0 $executors", 'executors have left');
	return;
}

my $setup = <<'SQL';
create table ran (job bigint, who text, code text);
grant insert on ran to public;
create schema shared;
grant all on schema shared to app, mallory;
SQL
sql('create role app login; create role mallory login; create role chief login superuser');
sql($setup);

#
# 1. A function of another role
#
for my $role ('chief', 'app')
{
	my $queue = "nightly_$role";
	handler($queue, $role);
	is(becomes(enqueue($queue), 'succeeded'), 'succeeded 1', "$role: a handler runs");
	sql("drop function shared.$queue(tq_job)");
	sql('set role mallory; ' . evil($queue));
	my $job = enqueue($queue);
	is(problem($queue), "the registered function shared.$queue(tq_job) does not exist any more HELD", "$role: without its function it is held");
	# although the mark in memory is gone
	let_write($node, 'handler');
	sql("update tq.handler set problem = null, problem_at = null, retry_at = null where function = 'shared.$queue'");
	is(problem($queue), "function shared.$queue(tq_job) is not the one that was registered HELD", "H9: $role: another one of its name is not called");
	is(sql("select state || ' ' || attempt from tq_get($job)"), 'ready 0', 'its jobs wait, and use no attempts');
	my ($rc, $out, $err) = $node->psql('postgres', "set role $role; select tq_handle('$queue', null, 'shared.$queue(tq_job)')");
	like($err, qr/function shared.$queue\(tq_job\) cannot be a handler of role "$role"/, "$role: it cannot be registered");
	sql("drop function shared.$queue(tq_job)");
	handler($queue, $role);
	is(becomes($job, 'succeeded'), 'succeeded 1', "$role: until another one is");
}
is(sql('select count(*) from ran where code = \'evil\''), '0', 'nothing else has run');

#
# 2. Between the claim and the code
#
for my $point ('executor-after-claim', 'executor-before-call')
{
	for my $settings ('', 'set search_path = public, pg_temp', 'security definer')
	{
		my $queue = ($point =~ s/.*-/to_/r) . ($settings =~ /^(\w*)/)[0];
		handler($queue, 'app', 'postgres', $settings);
		no_executors();
		arm($node, $point);
		my $job = enqueue($queue);
		standing($node, $point);
		sql("alter function shared.$queue(tq_job) owner to mallory; set role mallory; " . evil($queue, 1));
		arm($node, $point, 'none');
		release($node, $point);
		until_true($node, "select count(*) = 1 from tq_history($job) where event = 'released'", 'given back');
		is(becomes($job, 'ready'), 'ready 0', "H9: $point, '$settings': given to another role, its job is given back, and has used no attempt");
		is(problem($queue), qq{function shared.$queue(tq_job) belongs to role "mallory" now, not to role "app" HELD}, '... and it is held');
		like(sql("select reason from tq_history($job) where event = 'released'"), qr/belongs to role "mallory" now/, '... as the job says');
		sql("drop function shared.$queue(tq_job)");
		handler($queue, 'app', 'postgres', $settings);
		is(becomes($job, 'succeeded'), 'succeeded 1', '... until it is registered again');
	}
	my $queue = ($point =~ s/.*-/gone_/r);
	handler($queue);
	no_executors();
	arm($node, $point);
	my $job = enqueue($queue);
	standing($node, $point);
	sql("drop function shared.$queue(tq_job); set role mallory; " . evil($queue));
	arm($node, $point, 'none');
	release($node, $point);
	until_true($node, "select count(*) = 1 from tq_history($job) where event = 'released'", 'given back');
	is(becomes($job, 'ready'), 'ready 0', "$point: dropped, its job is given back");
}
is(sql('select count(*) from ran where code = \'evil\''), '0', 'nothing else has run');
# CREATE OR REPLACE by its owner, as in a deployment
handler('deployed');
sql(q{set role app; create or replace function shared.deployed(job tq_job) returns void language plpgsql as
	'begin insert into public.ran (job, who, code) values (job.id, current_user, ''new''); end'});
my $job = enqueue('deployed');
is(becomes($job, 'succeeded') . sql(" select code from ran where job = $job"), 'succeeded 1new', 'CREATE OR REPLACE by its owner goes on');

#
# 3. Rights of the owner
#
sql('create role deploy login; grant app to deploy; grant all on schema shared to deploy');
handler('owned', 'deploy');
sql(q{select tq_grant('owned', 'app', p) from unnest('{manage,consume}'::text[]) p; set role app; select tq_handle('owned', null, 'shared.owned(tq_job)')});
is(becomes(enqueue('owned'), 'succeeded'), 'succeeded 1', 'a function whose owner is a member of the role');
no_executors();
sql('revoke app from deploy');
$job = enqueue('owned');
is(problem('owned'), 'function shared.owned(tq_job) belongs to role "deploy", which does not have the rights of role "app"', 'not any more');
is(sql("select state || ' ' || attempt from tq_get($job)"), 'ready 0', 'its jobs wait');
sql('grant app to deploy');
is(becomes($job, 'succeeded'), 'succeeded 1', 'with the rights it goes on');
sql(q{create role former login superuser; create role boss login superuser});
handler('former', 'former');
sql(q{set role boss; select tq_handle('former', null, 'shared.former(tq_job)')});
is(becomes(enqueue('former'), 'succeeded'), 'succeeded 1', 'superusers have the rights of each other');
no_executors();
sql('alter role former nosuperuser');
$job = enqueue('former');
is(problem('former'), 'function shared.former(tq_job) belongs to role "former", which does not have the rights of role "boss"', 'a former superuser does not have them');
sql(q{drop function shared.former(tq_job); select tq_unhandle('former', null), tq_cancel(} . "$job)");
handler('schema');
no_executors();
sql('revoke all on schema shared from app');
$job = enqueue('schema');
is(problem('schema'), 'permission denied for schema shared', 'a role that may not use the schema');
sql('grant all on schema shared to app');
is(becomes($job, 'succeeded'), 'succeeded 1', 'until it may again');

#
# 4. While tq does not see the change
#
handler($_) for qw(crash open late off);
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->reload;
until_true($node, q{select count(*) = 0 from pg_stat_activity where backend_type ~ '^tq (sch|exe)'}, 'no workers');
sql('begin; drop function shared.off(tq_job); set role app; ' . evil('off') . '; commit');
is(problem('off'), 'the registered function shared.off(tq_job) does not exist any more HELD', 'without workers it is held at once');
sql('drop function shared.crash(tq_job)');
my $session = session($node);
ask($session, 'begin; drop function shared.open(tq_job)');
$node->stop('immediate');
leave($session);
$node->start;
is(problem('crash'), 'the registered function shared.crash(tq_job) does not exist any more HELD', 'a crash takes back no hold');
is(sql(q{select count(*) from tq_handlers where queue = 'open' and problem is null}), '1', 'and leaves none of a drop that it took back');

# where tq's hook does not run, only the owner and the scheduler's check remain
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\ntq.workers = on");
$node->restart;
sql('drop function shared.late(tq_job); set role app; ' . evil('late'));
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'tq'");
$node->restart;
loaded($node);
is(problem('late'), 'function shared.late(tq_job) is not the one that was registered HELD', 'replaced while tq was not loaded: the scheduler sees it, before there is a job');
is(becomes(enqueue('open'), 'succeeded'), 'succeeded 1', 'what was not replaced runs');

# another transaction registers it again: neither the drop nor an executor waits, and the executor retries with pauses
handler('busy');
no_executors();
$session = session($node);
ask($session, q{begin; set role app; select tq_handle('busy', null, 'shared.busy(tq_job)')});
is(sql(q{set lock_timeout = '3 min'; drop function shared.busy(tq_job)}), '', 'a drop waits for no transaction that has the handler');
my $log = -s $node->logfile;
my $began = time;
$job = enqueue('busy');
$node->wait_for_log(qr/ERROR:  the registered function shared.busy\(tq_job\) does not exist any more/, $log);
is(becomes(enqueue('deployed'), 'succeeded'), 'succeeded 1', 'other handlers go on');
cmp_ok(scalar(() = slurp_file($node->logfile, $log) =~ /ERROR:  the registered function shared.busy/g), '<', 20 * (time - $began + 1),
	'it is tried now and then');    # a slow machine has more time for it
ask($session, 'commit');
leave($session);
is(problem('busy'), 'the registered function shared.busy(tq_job) does not exist any more HELD', 'it is held in the end');

#
# 5. Copies and dumps
#
# The original, in a separate database: handlers that work, that are held, or whose function another role will replace.
sub original
{
	my ($database) = @_;
	sql("create database $database");
	sql("create extension tq; $setup", $database);
	handler($_, 'app', $database) for qw(well replaced missing kept held);
	# a follow-up, with the right of app
	sql(q{select tq_create_queue('after'); select tq_grant('after', 'app', 'produce'); set role app; select tq_alter_queue('kept', '{"follow_up": {"queue": "after"}}')},
		$database);
	sql('drop function shared.held(tq_job)', $database);
	sql('set role app; create function shared.held(job tq_job) returns void language plpgsql as ' .
		q{'begin insert into public.ran (job, who, code) values (job.id, current_user, ''other''); end'}, $database);
	is(problem('held', $database), 'the registered function shared.held(tq_job) does not exist any more HELD', "$database: a handler is held");
	is(becomes(enqueue('well', $database), 'succeeded', $database), 'succeeded 1', "$database: others run");
	return;
}

# The correct state of the copy. Changes of functions before the activation count as well.
sub copied
{
	my ($database, $name, $meanwhile) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql(q{select value from tq_health() where item = 'activation'}, $database), 'inactive', "$name: it is inactive");
	sql('drop function shared.replaced(tq_job); set role mallory; ' . evil('replaced'), $database);
	sql('drop function shared.missing(tq_job)', $database);
	sql('select tq_activate()', $database);
	my %jobs = map { $_ => enqueue($_, $database) } qw(well replaced missing kept held);
	is(becomes($jobs{$_}, 'succeeded', $database), 'succeeded 1', "$name: after tq_activate() $_ runs") for qw(well kept);
	is(sql(q{select count(*) from tq_jobs where queue = 'after'}, $database), '1', "$name: and its job is followed");
	is(problem('replaced', $database), 'function shared.replaced(tq_job) belongs to role "mallory" now, not to role "app" HELD', "$name: not a function of another role");
	is(problem('missing', $database), 'the registered function shared.missing(tq_job) does not exist any more HELD', "$name: not a missing function");
	is(problem('held', $database), 'the registered function shared.held(tq_job) does not exist any more HELD', "$name: what was held is held");
	is(sql("select string_agg(distinct state || attempt, ' ') from unnest(array[$jobs{replaced}, $jobs{missing}, $jobs{held}]) id, tq_get(id)", $database),
		'ready0', "$name: their jobs wait");
	is(sql(q{select string_agg(distinct code, ' ') from ran}, $database), 'good', "$name: no other code has run");
	sql('drop function shared.well(tq_job)', $database);
	is(problem('well', $database), 'the registered function shared.well(tq_job) does not exist any more HELD', "$name: from then on a drop holds");
	return;
}

# Runs a program of the server.
sub run_ok
{
	my ($name, @command) = @_;
	my ($out, $err) = ('', '');
	local %ENV = $node->_get_env();
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(IPC::Run::run(\@command, '>', \$out, '2>', \$err) && $err eq '', $name) or diag("@command: $err");
	return;
}

original('original');
my $dir = PostgreSQL::Test::Utils::tempdir;
sql('create database clone template original');
copied('clone', 'a clone');
sql('drop database clone');
run_ok('pg_dump', 'pg_dump', '-d', 'original', '-Fc', '-f', "$dir/dump");
sql('create database restored');
run_ok('pg_restore', 'pg_restore', '-d', 'restored', "$dir/dump");
copied('restored', 'a restored dump');
sql('drop database restored');
# functions of another role, with a dump of tq alone
sql('create database parts');
sql("create extension tq; $setup", 'parts');
sql("set role mallory; " . evil('well'), 'parts');
sql("set role app; create function shared.kept(job tq_job) returns void language plpgsql as 'begin insert into public.ran (job, who, code)
	values (job.id, current_user, ''good''); end'", 'parts');
run_ok('pg_restore, only the rows of tq', 'pg_restore', '--data-only', '--schema=tq', (map { ('-t', $_) } qw(queue queue_id_seq acl handler meta)),
	'-d', 'parts', "$dir/dump");
sql('select tq_activate()', 'parts');
my %parts = map { $_ => enqueue($_, 'parts') } qw(well kept);
is(problem('well', 'parts'), 'function shared.well(tq_job) belongs to role "mallory" now, not to role "app" HELD', 'only data: a function of another role');
is(becomes($parts{kept}, 'succeeded', 'parts'), 'succeeded 1', 'only data: of the right one');
is(sql(q{select string_agg(distinct code, ' ') from ran}, 'parts'), 'good', 'only data: no other code has run');
sql('drop database parts');
sql('drop database original');

#
# 6. The SQL of the release before
#
my $before = sql(q{select source from pg_extension_update_paths('tq') u join pg_available_extensions a on a.name = 'tq' and a.default_version = u.target
	where path is not null order by string_to_array(source, '.')::int[] desc limit 1});
sql('create database old');
sql("create extension tq version '$before'; $setup", 'old');
scheduler_of($node, 'old');
handler($_, 'app', 'old') for qw(well taken same);
SKIP:
{
	skip 'it records functions', 4 if sql(q{select count(*) from pg_attribute where attrelid = 'tq.handler'::regclass and attname = 'function_oid'}, 'old');
	is(becomes(enqueue('well', 'old'), 'succeeded', 'old'), 'succeeded 1', "$before: handlers run");
	sql('drop function shared.taken(tq_job); set role mallory; ' . evil('taken'), 'old');
	$job = enqueue('taken', 'old');
	is(problem('taken', 'old'), 'function shared.taken(tq_job) belongs to role "mallory", which does not have the rights of role "app"',
		"$before: not with another role's function");
	sql('alter extension tq update', 'old');
	is(becomes(enqueue('same', 'old'), 'succeeded', 'old'), 'succeeded 1', "$before: updated, they run");
	sql('drop function shared.same(tq_job)', 'old');
	is(problem('same', 'old'), 'the registered function shared.same(tq_job) does not exist any more HELD', "$before: and keep their functions");
}
is(sql(q{select count(*) from ran where code <> 'good'}, 'old'), '0', "$before: nothing else has run");

is(sql('select count(*) from ran where code = \'evil\''), '0', 'nothing else has run');
check_journal($node);
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6/, 'nothing alarming in the log');
$node->stop;
done_testing();
