# Launcher, scheduler and janitor start, stop and restart. Scenarios: CREATE and DROP EXTENSION, DDL on databases,
# settings of databases, killed processes, too few worker processes, a standby, binary upgrade. The test looks at
# pg_stat_activity, the server log and tq_health. Hazards: H28, H32, H33, H35.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

# A worker that is still in its start checks may find that it must not run.
my $running = q{query <> 'tq: looking for the extension'};

my $node = PostgreSQL::Test::Cluster->new('workers');
$node->init(allows_streaming => 1);
$node->append_conf('postgresql.conf', <<CONF);
shared_preload_libraries = 'tq'
restart_after_crash = on
max_prepared_transactions = 5
log_line_prefix = '%m [%p] %b %d '
CONF
$node->start;

# The process id of a worker, when there is one. It may end between two looks.
sub pid_of
{
	my ($server, $from) = @_;
	my $pid;
	my $is_there = sub {
		return 0 unless $server->poll_query_until('postgres', "select count(*) = 1 $from");
		$pid = $server->safe_psql('postgres', "select pid $from");
		return $pid ne '';
	};
	return until_so($is_there, "a process $from") ? $pid : undef;
}

# The process id of the scheduler of a database, when there is one; other than $old if given.
sub scheduler
{
	my ($server, $database, $old) = @_;
	my $from = "from pg_stat_activity where backend_type = 'tq scheduler' and datname = '$database' and $running";
	$from .= " and pid <> $old" if defined $old;
	return pid_of($server, $from);
}

# Whether no worker is left in a database.
sub no_worker
{
	my ($server, $database) = @_;
	return $server->poll_query_until('postgres',
		"select count(*) = 0 from pg_stat_activity where backend_type ~ '^tq' and datname = '$database'");
}

# The process id of the launcher; other than $old if given.
sub launcher
{
	my ($server, $old) = @_;
	my $from = "from pg_stat_activity where backend_type = 'tq launcher'";
	$from .= " and pid <> $old" if defined $old;
	return pid_of($server, $from);
}

# How often a pattern is in the log.
sub logged
{
	my ($server, $pattern) = @_;
	my $log = slurp_file($server->logfile);
	return scalar(() = $log =~ /$pattern/g);
}

#
# CREATE and DROP EXTENSION
#
ok(launcher($node), 'the launcher runs without any database having the extension');
is($node->safe_psql('postgres', "select datname from pg_stat_activity where backend_type = 'tq launcher'"),
	'', 'the launcher is connected to no database');

$node->safe_psql('postgres', 'begin; create extension tq; rollback');
$node->safe_psql('postgres', 'create extension tq; select tq_activate()');
my $pid = scheduler($node, 'postgres');
ok($pid, 'a database that becomes active gets a scheduler');
is($node->safe_psql('postgres', "select application_name from pg_stat_activity where pid = $pid"),
	'tq scheduler postgres', 'the scheduler says which database it is for');

my $session = session($node);
$session->query_safe('begin');
$session->query_safe('drop extension tq');
ok(no_worker($node, 'postgres'), 'DROP EXTENSION stops the scheduler before it commits');
$session->query_safe('rollback');
$pid = scheduler($node, 'postgres');
ok($pid, 'ROLLBACK of DROP EXTENSION brings it back');

$session->query_safe('begin');
$session->query_safe('savepoint s');
$session->query_safe('drop extension tq');
ok(no_worker($node, 'postgres'), 'DROP EXTENSION in a savepoint stops the scheduler');
$session->query_safe('rollback to s');
$pid = scheduler($node, 'postgres');
ok($pid, 'ROLLBACK TO brings it back while the transaction is still open');
$session->query_safe('rollback');

$node->safe_psql('postgres', 'begin; drop extension tq; create extension tq; select tq_activate(); commit');
ok(scheduler($node, 'postgres', $pid), 'DROP and CREATE in one transaction make a new scheduler');

$node->safe_psql('postgres', 'drop extension tq');
ok(no_worker($node, 'postgres'), 'DROP EXTENSION ends the scheduler');

$node->safe_psql('postgres', 'create schema s; create extension tq schema s; select s.tq_activate()');
ok(scheduler($node, 'postgres'), 'a scheduler for the extension in another schema');
$node->safe_psql('postgres', 'drop schema s cascade');
ok(no_worker($node, 'postgres'), 'DROP SCHEMA CASCADE over the extension ends the scheduler');

$session->query_safe('begin');
$session->query_safe('create extension tq');
$session->query_safe(q{prepare transaction 'create'});
$session->query_safe(q{commit prepared 'create'});
$node->safe_psql('postgres', 'select tq_activate()');
ok(scheduler($node, 'postgres'), 'after COMMIT PREPARED of CREATE EXTENSION the first use starts a scheduler');
$session->query_safe('begin');
$session->query_safe('drop extension tq');
$session->query_safe(q{prepare transaction 'drop'});
ok(no_worker($node, 'postgres'), 'a prepared DROP EXTENSION keeps the scheduler away');
$session->query_safe(q{rollback prepared 'drop'});
ok(scheduler($node, 'postgres'), 'ROLLBACK PREPARED of DROP EXTENSION brings it back');

# a wakeup for all databases starts a process in each that has no tq
my $probes = q{starting background worker process "tq scheduler plain"};
$node->safe_psql('postgres', 'alter system set log_min_messages = debug1');
$node->safe_psql('postgres', 'select pg_reload_conf()');
$node->safe_psql('postgres', 'create database plain');
until_true($node, q{select current_setting('log_min_messages') = 'debug1'});
$node->wait_for_log(qr/$probes/);
ok(no_worker($node, 'plain'), 'a database without tq has been looked at');
my $seen = logged($node, $probes);
for (1 .. 5)
{
	$session->query_safe('begin');
	$session->query_safe('select txid_current()');
	$session->query_safe(q{prepare transaction 'other'});
	$session->query_safe(q{commit prepared 'other'});
}
$node->safe_psql('postgres', 'create database last');
$node->wait_for_log(qr/starting background worker process "tq scheduler last"/);
is(logged($node, $probes), $seen, 'COMMIT PREPARED of anything else rings for none');
$session->query_safe('begin');
$session->query_safe('drop extension tq');
$session->query_safe(q{prepare transaction 'drop'});
$node->restart;
ok(no_worker($node, 'postgres'), 'a prepared DROP EXTENSION keeps the scheduler away after a restart');
$node->safe_psql('postgres', q{rollback prepared 'drop'});
ok(scheduler($node, 'postgres'), 'ROLLBACK PREPARED brings it back then, too');
$node->safe_psql('postgres', 'alter system reset log_min_messages');
$node->safe_psql('postgres', 'select pg_reload_conf()');
$node->safe_psql('postgres', 'drop database plain');
$node->safe_psql('postgres', 'drop database last');
leave($session);
$session = session($node);

# what was rolled back to a savepoint leaves nothing behind in the session that prepares
$node->safe_psql('postgres', q{select tq_create_queue('prepared')});
$session->query_safe('begin');
$session->query_safe('savepoint s');
$session->query_safe(q{select tq_pause('prepared')});
$session->query_safe('rollback to s');
$session->query_safe(q{prepare transaction 'undone'});
$session->query_safe(q{commit prepared 'undone'});
$session->query_safe(q{begin; select tq_enqueue('prepared') from generate_series(1, 100)});
$session->query_safe(q{select tq_alter_queue('prepared', jsonb_build_object('priority', k)) from generate_series(1, 40) k; commit});
is($node->safe_psql('postgres', q{select settings ->> 'priority', (select count(*) from tq_claim('prepared', 100)) from tq_queues where queue = 'prepared'}),
	'40|100', 'PREPARE after a savepoint that used tq');

#
# DDL on databases
#
$node->safe_psql('postgres', 'create database a');
$node->safe_psql('a', 'create extension tq; select tq_activate()');
my $pid_a = scheduler($node, 'a');
ok($pid_a, 'a second database has a scheduler of its own');
my $pid_postgres = scheduler($node, 'postgres');
isnt($pid_a, $pid_postgres, 'next to the first one');

$node->safe_psql('postgres', 'create database b template a');
pass('H33: CREATE DATABASE from a template with a running worker');
$node->safe_psql('b', 'select tq_activate()');
ok(scheduler($node, 'b'), 'the copy gets a scheduler when it becomes active');
$pid_a = scheduler($node, 'a', $pid_a);
ok($pid_a, 'the template gets its scheduler back');

$node->safe_psql('a', 'create database own template a; drop database own');
$pid_a = scheduler($node, 'a', $pid_a);
ok($pid_a, 'a session may copy its own database');

$node->safe_psql('postgres', 'alter database b rename to c');
my $pid_c = scheduler($node, 'c');
ok($pid_c, 'H33: ALTER DATABASE RENAME with a running worker');

$session->query_safe('begin');
$session->query_safe('alter database c rename to d');
$session->query_safe('rollback');
$pid_c = scheduler($node, 'c', $pid_c);
ok($pid_c, 'the scheduler is back after a RENAME that was rolled back');

$node->safe_psql('postgres', "set allow_in_place_tablespaces = on; create tablespace t location ''");
$node->safe_psql('postgres', 'alter database c set tablespace t');
ok(scheduler($node, 'c', $pid_c), 'H33: ALTER DATABASE SET TABLESPACE with a running worker');

$node->safe_psql('postgres', 'create role r login createdb; set role r; create database e');
$node->safe_psql('e', 'create extension tq; select tq_activate()');
my $pid_e = scheduler($node, 'e');
$node->safe_psql('e', 'create role other login createdb');
for my $ddl ('drop database e', 'alter database e rename to f', 'create database f template e',
	'alter database e set tablespace t')
{
	my ($result, $out, $err) = $node->psql('postgres', $ddl, extra_params => [ '-U', 'other' ]);
	isnt($result, 0, "$ddl by another role is refused");
}
is(scheduler($node, 'e'), $pid_e, 'and does not touch the scheduler');

my $user = session($node, 'e');
$user->query_safe('select 1');
my ($result, $out, $err) = $node->psql('postgres', 'drop database e');
like($err, qr/is being accessed by other users/, 'DROP DATABASE fails if a session is connected');
like($err, qr/There is 1 other session/, 'by that session, not by a worker');
$pid_e = scheduler($node, 'e', $pid_e);
ok($pid_e, 'the scheduler is back after the failed DROP DATABASE');
$node->safe_psql('postgres', 'alter database e with is_template true');
ok(no_worker($node, 'e'), 'a database that becomes a template loses its scheduler');
$node->safe_psql('postgres', 'alter database e with is_template false');
ok(scheduler($node, 'e'), 'and has one again when it is none any more');
$node->safe_psql('postgres', 'alter database e with allow_connections false');
ok(no_worker($node, 'e'), 'no scheduler where connections are not allowed');
$node->safe_psql('postgres', 'alter database e with allow_connections true');
ok(scheduler($node, 'e'), 'until they are');
leave($user);
$node->safe_psql('postgres', 'drop database e');
pass('DROP DATABASE with a running worker');
$node->safe_psql('postgres', 'drop database c with (force)');
pass('DROP DATABASE WITH (FORCE) with a running worker');
$node->safe_psql('postgres', 'drop tablespace t');

# The default template, if it is not marked as one
$node->safe_psql('postgres', 'alter database template1 with is_template false');
$node->safe_psql('template1', 'create extension tq; select tq_activate()');
my $pid_template = scheduler($node, 'template1');
$node->safe_psql('postgres', 'create database plain');
pass('CREATE DATABASE without TEMPLATE, with a worker in template1');
ok(scheduler($node, 'template1', $pid_template), 'which is back afterwards');
$node->safe_psql('template1', 'drop extension tq');
$node->safe_psql('postgres', 'alter database template1 with is_template true');
$node->safe_psql('postgres', 'drop database plain');

# Since 15 this waits until every process has answered a barrier.
$pid_a = scheduler($node, 'a');
$node->safe_psql('postgres', 'create database unrelated');
$node->safe_psql('postgres', 'drop database unrelated');
is(scheduler($node, 'a'), $pid_a, 'DROP of another database leaves the scheduler alone and does not wait for it');

# Settings by ALTER DATABASE SET
$node->safe_psql('postgres', <<SQL);
alter database a set default_transaction_read_only = on;
alter database a set default_transaction_isolation = 'serializable';
alter database a set search_path = 'nowhere';
alter database a set statement_timeout = 1; -- limit: the scheduler has none
alter database a set row_security = off;
SQL
$node->safe_psql('postgres', "select pg_terminate_backend($pid_a)");
$pid_a = scheduler($node, 'a', $pid_a);
ok($pid_a, 'H32: the scheduler starts whatever ALTER DATABASE SET says');
$node->safe_psql('postgres', 'alter database a reset all');

#
# Killed processes
#
$node->safe_psql('postgres', "select pg_terminate_backend($pid_a)");
$pid_a = scheduler($node, 'a', $pid_a);
ok($pid_a, 'a terminated scheduler comes back');

my $launcher = launcher($node);
$node->safe_psql('postgres', "select pg_terminate_backend($launcher)");
$launcher = launcher($node, $launcher);
ok($launcher, 'a terminated launcher comes back');
is(scheduler($node, 'a'), $pid_a, 'the scheduler has not noticed');
$node->safe_psql('a', 'begin; drop extension tq; create extension tq; select tq_activate(); commit');
$pid_a = scheduler($node, 'a', $pid_a);
ok($pid_a, 'the new launcher knows the workers that the old one started');

# a database that no launcher ever sees
my $places = "select value from tq_health() where item = 'queues'";
my $taken = $node->safe_psql('postgres', $places);
$node->safe_psql('postgres', "select pg_terminate_backend($launcher)");
$node->safe_psql('postgres', 'create database brief');
$node->safe_psql('brief', q{create extension tq; select tq_enqueue('q')});
isnt($node->safe_psql('postgres', $places), $taken, 'a queue of a database has a place in memory');
$node->safe_psql('postgres', 'drop database brief');
ok(launcher($node, $launcher), 'there is a launcher again');
ok(until_true($node, "select ($places) = '$taken'"), 'which frees the places of a database that was dropped meanwhile');

leave($session);
kill 'KILL', $pid_a;
until_true($node, "select count(*) = 0 from pg_stat_activity where pid = $pid_a");
ok(scheduler($node, 'a', $pid_a), 'schedulers are back after a crash');
ok(scheduler($node, 'postgres', $pid_postgres), 'of all databases');

#
# Settings
#
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->reload;
ok(no_worker($node, 'a') && no_worker($node, 'postgres'), 'tq.workers = off stops the schedulers');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
ok(scheduler($node, 'a') && scheduler($node, 'postgres'), 'tq.workers = on starts them again');
ok(until_true($node, "select count(*) = 3 from pg_stat_activity where backend_type ~ '^tq'"),
	'H35: three processes for two idle databases');

# One slot is for PostgreSQL's logical replication launcher, one for tq's launcher: one is left.
$node->append_conf('postgresql.conf', "max_worker_processes = 3\ntq.naptime = 50ms\ntq.segment_rows = 10");
my $began = time;
$node->restart;
my $one = "select count(*) = 1 from pg_stat_activity where backend_type = 'tq scheduler' and $running";
ok(until_true($node, $one), 'H35: one scheduler runs with a single worker slot');
my $scarce = "from tq_health() where item = 'background workers' and status = 'warn'";
for my $database ('a', 'postgres')
{
	ok(scheduler($node, $database), "H35: database $database gets its turn");
	$node->safe_psql($database, q{select tq_enqueue('turns') from generate_series(1, 20)});
}
for my $database ('a', 'postgres')
{
	ok(segment_after($node, 0, $database), "H35: ... and so does its janitor");
}
ok(until_true($node, "select count(*) > 0 $scarce and value ~ 'scheduler of database'"),
	'tq_health names the worker that waits for a free process');
# the reason is logged once while the wait lasts
my $waits = qr/out of background worker slots, could not start tq (\w+) for database/;
my %said;
$said{$_}++ for slurp_file($node->logfile) =~ /$waits/g;
is_deeply([ sort keys %said ], [ 'janitor', 'scheduler' ], 'the log names the kinds of workers that waited');
ok($said{scheduler} < 10 + (time - $began) / 5, '... and does not repeat it at each attempt') or diag explain \%said;
$node->safe_psql('postgres', 'drop extension tq');
ok(scheduler($node, 'a'), 'the other database is served when it is the only one');
ok(until_true($node, q{select value !~ 'for the' from tq_health() where item = 'background workers'}, 'a free slot', 'a'),
	'... and no worker waits');
$node->append_conf('postgresql.conf', 'tq.segment_rows = 1000000');

$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;
$node->safe_psql('postgres', 'create database late');
$node->safe_psql('late', 'create extension tq; select tq_activate()');

#
# A standby
#
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "select count(*) from pg_stat_activity where backend_type ~ '^tq'"),
	0, 'no worker on a standby');
$standby->promote;
ok(launcher($standby), 'promotion starts the launcher');
ok(scheduler($standby, 'late'), 'and the scheduler');
$standby->stop;

$node->stop('fast');

#
# The server that pg_upgrade starts
#
my @control = ('pg_ctl', '-w', '-t', $PostgreSQL::Test::Utils::timeout_default, '-D', $node->data_dir, '-l', $node->logfile);
system_or_bail(@control, '-o', '-b', 'start');
is($node->safe_psql('postgres', "select count(*) from pg_stat_activity where backend_type ~ '^tq'"),
	0, 'H28: no worker in a binary upgrade');
is($node->psql('postgres', 'create database copy template late'), 0, 'H28: no hook fails');
system_or_bail(@control, 'stop');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|leaked/, 'nothing alarming in the log');

done_testing();
