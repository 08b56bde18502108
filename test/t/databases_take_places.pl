# Only active databases have workers and a place of tq.max_databases. Scenarios: copies and new databases take nothing;
# calls in a new database hold a place until their transaction ends; a backend that waits exits; a place is taken back
# while its database uses it; the first use and a worker that has looked before it, or that looks while it is open;
# DROP DATABASE; tq_deactivate() that is rolled back; a restart with more copies than places.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('places', conf => <<CONF);
tq.max_databases = 2
tq.max_queues = 24
max_worker_processes = 16
log_min_messages = debug1
CONF

sub sql
{
	my ($sql, $database) = @_;
	return $node->safe_psql($database // 'postgres', $sql);
}

# The error of a statement.
sub complaint
{
	my ($sql, $database) = @_;
	my ($rc, $out, $err) = $node->psql($database // 'postgres', "\\set VERBOSITY verbose\n$sql");
	return $err;
}

# A new database with the extension.
sub make
{
	my ($database) = @_;
	sql("create database $database");
	tq_setup($node, $database);
	return;
}

# The item "databases" of tq_health().
sub places { my ($database) = @_; return sql(q{select value || ' ' || status from tq_health() where item = 'databases'}, $database); }

# Waits until no process of tq is in a database.
sub no_worker
{
	my ($database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_true($node, "select count(*) = 0 from pg_stat_activity where backend_type ~ '^tq' and datname = '$database'", "no worker in $database");
}

my $full = qr/53400: too many databases use tq\nDETAIL:  tq\.max_databases is 2.*HINT:  Raise tq\.max_databases and restart the server, or call tq_deactivate\(\)/s;

#
# Copies and new databases take nothing
#
sql(qq{select tq_create_queue('q$_')}) for 1 .. 8;
sql("create database copy$_ template postgres") for 1 .. 3;
make('new');
is(places(), '1 of 2 ok', 'one database is active');
for my $database (qw(copy1 copy2 copy3 new))
{
	sql($_, $database) for 'select count(*) from tq_health()', 'select count(*) from tq_stats()', 'select tq_metrics()', 'select count(*) from tq_queues',
	  'select count(*) from tq_grants', 'select count(*) from tq_subscriptions';
	complaint('select count(*) from tq_claim($$q1$$)', $database);
	ok(no_worker($database), "$database has no worker");
}
is(places('copy1'), '1 of 2 ok', 'calls in the others take no place');
is(sql(q{select tq_enqueue('q9') > 0}), 't', 'nor do these have queues in memory');
make('second');
is(sql(q{select tq_enqueue('q') > 0}, 'second'), 't', 'a new database becomes active at its first use');
scheduler_of($node, 'second');
is(places(), '2 of 2 ok', '... and takes a place');
like(complaint(q{select tq_enqueue('q')}, 'new'), $full, 'without a place the first use is refused');
is(places('new'), '2 of 2 warn', '... and tq_health says why');
like(sql(q{select hint from tq_health() where item = 'databases'}, 'new'), qr/^No place is left.*Raise tq.max_databases/, '... and what to do');
like(complaint('select tq_activate()', 'copy1'), $full, 'tq_activate() is refused as well');
like(complaint(q{select tq_enqueue('q')}, 'copy1'), qr/TQ009: tq is inactive/, 'other calls say that the copy is inactive');
is(places('copy1'), '2 of 2 warn', 'so does tq_health');

#
# A transaction in a new database holds a place
#
sql('drop database second');
my $new = session($node, 'new');
is(ask($new, q{begin; select count(*) from tq_claim('q')}), 0, 'a call in a new database');
make('second');
like(complaint(q{select tq_enqueue('q')}, 'second'), $full, 'holds a place');
like(complaint(q{select tq_enqueue('q')}, 'second'), qr/Active databases have 1 places, transactions in others 1\./, '... and the error says so');
ask($new, 'rollback');
sql(q{select tq_enqueue('q')}, 'second');
is(places('new'), '2 of 2 warn', 'until its transaction ends, though the session stays');
like(ask($new, q{select count(*) from tq_claim('q')}), qr/53400/, 'the session then finds no place');
sql('drop database second');
ask($new, 'begin; savepoint s');
ask($new, q{select count(*) from tq_claim('q')});
ask($new, 'rollback to s');
make('second');
like(complaint(q{select tq_enqueue('q')}, 'second'), $full, 'ROLLBACK TO does not give the place back');
ask($new, 'rollback');

# a backend that waits for a job exits
my $pid = ask($new, 'select pg_backend_pid()');
begin_ask($new, q{select count(*) from tq_claim('q', wait => '1 h')});
my $waits = "from pg_stat_activity where datname = 'new' and wait_event_type = 'Extension' and query ~ 'tq_claim'";
until_true($node, "select count(*) = 1 $waits", 'a session waits');
like(complaint(q{select tq_enqueue('q')}, 'second'), $full, 'a session that waits in a new database holds a place');
sql("select pg_terminate_backend(pid) $waits");
until_true($node, "select count(*) = 0 from pg_stat_activity where pid = $pid", 'it is gone');
is(sql(q{select tq_enqueue('q') > 0}, 'second'), 't', '... until it exits');
leave($new);
sql('drop database second');

# a backend that asks for the first use exits
make('second');
arm($node, 'use-before-request', 'exit');
complaint(q{select tq_enqueue('q')}, 'second');
release($node, 'use-before-request');
is(sql(q{select tq_enqueue('q') > 0}, 'new'), 't', 'so does one that asks for the first use');
is(places(), '2 of 2 ok', '... and its database has no place');
sql('drop database second');

# a place is taken back while its database uses it
sql('drop database new');
for my $at ('take-back-before-lock', 'take-back-before-release')
{
	make('new');
	make('second');
	sql(q{select count(*) from tq_claim('q')}, 'new');
	arm($node, $at);
	my $second = session($node, 'second');
	begin_ask($second, q{select tq_enqueue('q') > 0});
	standing($node, $at);
	$new = session($node, 'new');
	begin_ask($new, q{select tq_enqueue('q') > 0});
	if ($at eq 'take-back-before-lock')
	{
		is(end_ask($new), 't', "$at: a first use keeps its place");
		release($node, $at);
		like(end_ask($second), $full, "$at: the other first use finds none");
		is(sql(q{select ready from tq_stats()}, 'new'), 1, "$at: the job is in memory");
	}
	else
	{
		until_true($node, q{select count(*) = 1 from pg_stat_activity where datname = 'new' and wait_event_type = 'Lock'}, 'the call waits');
		release($node, $at);
		is(end_ask($second), 't', "$at: a first use takes the place back");
		like(end_ask($new), $full, "$at: a call that begins meanwhile finds none");
	}
	leave($new, $second);
	sql("drop database $_") for 'new', 'second';
}

#
# The first use and the launcher
#
# Makes database "new" anew, and lets its first worker wait after it has read that the database is not used.
sub make_beside_worker
{
	arm($node, 'activation-read-by-worker');
	make('new');
	my $looks = "from pg_stat_activity where backend_type = 'tq scheduler' and query = 'tq: looking for the extension'";
	until_true($node, "select count(*) > 0 and (select count(*) $looks) = tq_test_waiting('activation-read-by-worker') $looks and datname = 'new'", 'a worker looks');
	return;
}

make_beside_worker();
is(sql(q{select tq_enqueue('q') > 0}, 'new'), 't', 'without a worker the session records the first use');
release($node, 'activation-read-by-worker');
scheduler_of($node, 'new');
is(places('new'), '2 of 2 ok', 'the launcher looks again after a worker that has looked too early');
sql('drop database new');

make_beside_worker();
$new = session($node, 'new');
is(ask($new, q{begin; select tq_enqueue('q') > 0}), 't', 'a session has recorded the first use, and is open');
my $before = -s $node->logfile;
release($node, 'activation-read-by-worker');
$node->wait_for_log(qr/(starting background worker process "tq scheduler new".*){2}/s, $before);
ok(no_worker('new'), 'workers have looked');
ask($new, 'commit');
scheduler_of($node, 'new');
is(places('new'), '2 of 2 ok', '... and its commit starts one');
leave($new);

#
# DROP DATABASE
#
make('second');
like(complaint(q{select tq_enqueue('q')}, 'second'), $full, 'no place');
sql('drop database new');
my $second = session($node, 'second');
is(ask($second, q{begin; select count(*) from tq_claim('q')}), 0, 'a call in a new database');
make('third');
like(complaint(q{select tq_enqueue('q')}, 'third'), $full, '... holds a place');
sql('drop database second with (force)');
leave($second);
is(sql(q{select tq_enqueue('q') > 0}, 'third'), 't', 'DROP DATABASE gives its place back');
scheduler_of($node, 'third');
sql('drop extension tq', 'third');
until_true($node, q{select value = '1 of 2' from tq_health() where item = 'databases'}, 'DROP EXTENSION gives the place back');
is(complaint('select tq_activate()', 'copy1'), '', 'so does DROP EXTENSION');
scheduler_of($node, 'copy1');
is(places(), '2 of 2 ok', 'the copy has its place');

#
# tq_deactivate() that is rolled back
#
my $rolled = session($node, 'copy1');
ask($rolled, 'begin; select tq_deactivate()');
is(places(), '1 of 2 ok', 'tq_deactivate() gives the place back at once');
sql('select tq_activate()', 'copy2');
scheduler_of($node, 'copy2');
ask($rolled, 'rollback');
leave($rolled);
like(complaint(q{select tq_enqueue('q1')}, 'copy1'), $full, 'after a rollback the place may be lost, and calls say so');
is(places('copy1'), '2 of 2, no place for this one error', '... and tq_health');
$node->wait_for_log(qr/tq starts no workers for database "copy1"/);
ok(no_worker('copy1'), '... and it has no worker');
is(sql(q{select tq_enqueue('q1') > 0}, 'copy2'), 't', 'the other database works');
sql('select tq_deactivate()', 'copy2');
scheduler_of($node, 'copy1');
is(sql(q{select tq_enqueue('q1') > 0}, 'copy1'), 't', 'a place that becomes free is taken');

#
# A restart with more copies than places
#
make('fresh');
$node->stop('immediate');
$node->start;
complaint(q{select count(*) from tq_claim('q1')}, $_) for qw(copy2 copy3 fresh);
scheduler_of($node, $_) for 'postgres', 'copy1';
for my $database (qw(copy2 copy3 fresh))
{
	ok(no_worker($database), "after a restart $database has no worker");
	is(places($database), '2 of 2 warn', '... and no place');
}
is(places($_), '2 of 2 ok', "... but $_") for 'postgres', 'copy1';
check_journal($node);
check_journal($node, 'the journal of a copy', 'copy1');

done_testing();
