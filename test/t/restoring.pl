# H6, H33: while tq.restoring is on in a database, nothing happens there. After tq_restore_end() everything is there.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('restoring', init => { allows_streaming => 1 }, conf => <<CONF);
tq.segment_rows = 20
max_worker_processes = 40
max_prepared_transactions = 2
tq.max_databases = 20
CONF
scheduler_of($node);

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

sub activation { my ($database) = @_; return sql(q{select value || ' ' || status from tq_health() where item = 'activation'}, $database); }

sub held { my ($database) = @_; return until_true($node, q{select value = 'restoring' from tq_health() where item = 'activation'}, 'held', $database); }

#
# A database with several segments, parents, unique keys, running and expiring jobs
#
for my $round (1 .. 3)
{
	my $before = sql('select coalesce(max(number), 0) from tq.segment');
	sql(q{select tq_enqueue_many('work', array_agg(jsonb_build_object('n', i))) from generate_series(1, 25) i});
	until_true($node, "select coalesce(max(number), 0) > $before from tq.segment", 'a new segment');
}
is(scalar(take_all($node, 'work', 10)), 10, 'some jobs are done');
my $parent = sql(q{select tq_enqueue('parent')});
my $child = sql("select tq_enqueue('child', depends_on => '{$parent}')");
my $unique = sql(q{select tq_enqueue('keys', unique_key => 'k')});
my $brief = sql(q{select tq_enqueue('brief', expires_at => now() + '100 s')});
sql(q{select tq_create_queue('closing'), tq_create_queue('ticks')});
sql(q{select tq_schedule('often', 'ticks', every => '1 s')});
until_true($node, q{select count(*) > 0 from tq.schedule_fire}, 'the schedule fires');
sql(q{select tq_schedule_pause('often')});
my $left = unfinished($node, 'work');
my $jobs = sql('select count(*) from tq.job');
my $events = sql('select count(*) from tq.event');
my $dir = PostgreSQL::Test::Utils::tempdir();
$node->command_ok([ 'pg_dump', '--no-sync', '-Fc', '-f', "$dir/dump", '-p', $node->port, '-h', $node->host, 'postgres' ], 'pg_dump');

sub restore
{
	my ($database, @options) = @_;
	$node->command_ok([ 'pg_restore', @options, '-p', $node->port, '-h', $node->host, '-d', $database, "$dir/dump" ], "pg_restore @options into $database");
	return;
}

# All rows of the dump are there once, and all work continues.
sub whole
{
	my ($database, $how) = @_;
	is(unfinished($node, 'work', $database), $left, "$how: every job");
	is(sql("select state from tq_get($child)", $database), 'blocked', "$how: the child waits");
	is(scalar(work_off($node, 'parent', $database)), 1, "$how: its parent runs");
	ok(until_true($node, "select state = 'ready' from tq_get($child)", 'freed', $database), "$how: which frees it");
	is(sql(q{select tq_enqueue('keys', unique_key => 'k')}, $database), $unique, "$how: unique keys are known");
	is(scalar(work_off($node, 'work', $database)), $left, "$how: all jobs run");
	check_journal($node, "$how: each of them once", $database);
	return;
}

#
# pg_restore -j2 while workers run, time passes and clients try to use tq
#
sql('create database aided');
my $early = session($node, 'aided');
ask($early, 'select 1');
sql('alter database aided set tq.restoring = on');
restore('aided', '-j', 2, '--section=pre-data');
my $scheduler = scheduler_of($node, 'aided');
restore('aided', '-j', 2, '--section=data');
ok(held('aided'), 'tq_health() names the state');
clock($node, 90000, 90000);
like(complaint(q{select tq_enqueue('work')}, 'aided'), qr/TQ009: this database is being restored/, 'an enqueue is refused');
like(complaint(q{select count(*) from tq_claim('work')}, 'aided'), qr/TQ009: this database is being restored/, 'so is a claim');
like(ask($early, q{select count(*) from tq_claim('work')}), qr/TQ009/, '... of a session that began before the setting');
like(complaint(q{select tq_stats()}, 'aided'), qr/TQ009/, 'so is what must be loaded');
like(complaint(q{select tq_activate()}, 'aided'), qr/TQ009/, 'so is tq_activate()');
like(complaint(q{select tq_restore_end()}, 'aided'), qr/55006: the restore is not complete.*are missing on segments: 1/s, 'tq_restore_end() before the indexes are there');
ok(held('aided'), '... ends nothing');
restore('aided', '-j', 2, '--section=post-data');
# several rounds of a worker, in which it would act without the setting
sql(q{select tq_enqueue('turns', delay => '1 ms')});
until_true($node, q{select ready = 1 from tq_stats() where queue = 'turns'}, 'others work');
is(sql('select count(*) from tq.event', 'aided'), $events, 'nothing has happened');
is(sql('select count(*) from tq.job', 'aided'), $jobs, 'nothing was made or dropped');
is(sql('select count(*) from tq.unique_key', 'aided'), 1, 'no key was dropped');
is(sql('select count(*) from tq.dependency where state is not null', 'aided'), 0, 'nothing was resolved');
$node->stop('immediate');
$node->start;
scheduler_of($node, 'aided');
ok(held('aided'), 'held after a crash');
clock($node, 0, 0);
leave($early);
$early = session($node, 'aided');

#
# tq_restore_end()
#
my $copying = session($node, 'aided');
ask($copying, 'begin; copy tq.queue from program \'true\'');
like(complaint(q{select tq_restore_end()}, 'aided'), qr/55006: the restore is not complete.*written or changed by process \d+/s, 'not while a COPY is under way');
ask($copying, 'rollback');
leave($copying);
my $ending = session($node, 'aided');
ask($ending, 'begin');
like(ask($ending, q{select jobs, unfinished, segments, held from tq_restore_end()}), qr/^$jobs\|\d+\|\d+\|schedules and executors, until tq_activate\(\)$/, 'the summary');
ask($ending, 'rollback');
ok(held('aided'), 'a rollback of tq_restore_end() ends nothing');
like(complaint(q{select tq_enqueue('work')}, 'aided'), qr/TQ009/, '... not for clients either');
is(sql(q{select jobs from tq_restore_end()}, 'aided'), $jobs, 'its end');
is(sql(q{select count(*) from pg_db_role_setting s join pg_database d on d.oid = setdatabase where datname = 'aided' and setrole = 0}), 0, 'the setting is gone');
like(ask($early, q{select tq_enqueue('late')}), qr/^\d+$/, 'sessions see it at once');
is(sql(q{select jobs > 0 from tq_restore_end()}, 'aided'), 't', 'a second call does no harm');
is(activation('aided'), 'dormant warn', 'the database is a copy as any other');
whole('aided', 'aided');
leave($early, $ending);
like(slurp_file($node->logfile), qr/restore complete: $jobs jobs/, 'the log says so');

#
# A database in use: the setting takes effect at once, and the end does not take ten minutes
#
sql('create database used template template0');
sql('create extension tq', 'used');
sql(q{select tq_activate(); select tq_create_queue('ticks'), tq_schedule('clock', 'ticks', every => '1 s'); select tq_enqueue('old', expires_at => now() + '50 s'), tq_enqueue('later', delay => '50 s')}, 'used');
until_true($node, q{select count(*) > 0 from tq.schedule_fire}, 'its schedule fires', 'used');
sql(q{create function run(job tq_job) returns jsonb language sql as $$select null::jsonb$$}, 'used');
sql(q{select tq_create_queue('handled'); select tq_handle('handled', 'k', 'run(tq_job)')}, 'used');
my $handled = sql(q{select tq_enqueue('handled', kind => 'k')}, 'used');
until_true($node, "select state = 'succeeded' from tq_get($handled)", 'an executor runs it', 'used');
$handled = sql(q{select tq_enqueue('handled', kind => 'k', delay => '50 s')}, 'used');
my $waiter = session($node, 'used');
my $xact = session($node, 'used');
ask($xact, q{begin; alter database used set tq.restoring = on});
is(activation('used'), 'active ok', 'not before the commit');
ask($xact, 'rollback');
is(activation('used'), 'active ok', 'not after a rollback either');
begin_ask($waiter, q{select count(*) from tq_claim('later', wait => '2 s')});    # limit: nothing comes
sql('alter database used set tq.restoring = on');
my $fires = sql('select count(*) from tq.schedule_fire', 'used');
clock($node, 100, 0);
is(end_ask($waiter), 0, 'a claim that waits gets nothing');
scheduler_of($node, 'used');
is(sql('select count(*) from tq.schedule_fire', 'used'), $fires, 'nothing fires');
is(sql(q{select count(*) from tq.event where type = 'e'}, 'used'), 0, 'nothing expires');
is(sql("select count(*) from tq.event where job_id = $handled", 'used'), 0, 'no executor takes a job');
is(sql(q{select count(*) from tq_restore_end()}, 'used'), 1, 'the end');
ok(until_true($node, "select state = 'succeeded' from tq_get($handled)", 'run', 'used'), 'executors go on');
ok(until_true($node, "select count(*) > $fires from tq.schedule_fire", 'fires again', 'used'), 'schedules go on at once');
ok(until_true($node, q{select count(*) = 1 from tq.event where type = 'e'}, 'expires', 'used'), 'what was due expires');
clock($node, 0, 0);

# a restore in place
$node->command_ok([ 'pg_dump', '--no-sync', '-Fc', '-f', "$dir/dump", '-p', $node->port, '-h', $node->host, 'used' ], 'pg_dump');
sql('alter database used set tq.restoring = on');
restore('used', '-j', 2, '--clean', '--if-exists');
scheduler_of($node, 'used');
ok(held('used'), 'held though tq.meta says that it is no copy');
$fires = sql('select count(*) from tq.schedule_fire', 'used');
is(sql(q{select held is null from tq_restore_end()}, 'used'), 't', 'nothing else is held');
ok(until_true($node, q{select value = 'active' from tq_health() where item = 'activation'}, 'active', 'used'), 'it is active without a wait of ten minutes');
ok(until_true($node, "select count(*) > $fires from tq.schedule_fire", 'fires again', 'used'), '... and fires');

# RESET by hand returns to the unannounced case
sql('alter database used set tq.restoring = on');
ok(held('used'), 'held again');
sql('alter database used reset all');
is(activation('used'), 'active ok', 'RESET ALL ends it, too');

# a prepared transaction
ask($xact, q{begin; alter database used set tq.restoring = on; prepare transaction 'set'});
is(activation('used'), 'active ok', 'prepared: not before the commit');
sql(q{commit prepared 'set'}, 'used');
is(activation('used'), 'restoring warn', 'prepared: after it');
is(sql(q{select value from tq_health() where item = 'restore'}, 'used'), 'under way: tq.restoring is on until tq_restore_end()', 'tq_health says that a restore is under way');
sql(q{select tq_restore_end()}, 'used');
leave($xact, $waiter);

#
# Roles that may set it, and where
#
like(complaint('set tq.restoring = on'), qr/22023: invalid value for parameter "tq.restoring".*for a database only/s, 'not in a session');
like(complaint('alter system set tq.restoring = on'), qr/22023/, 'not for all databases');
sql('create role nobody login; create role owner login; create role manager login; alter database used owner to owner');
sql(q{select tq_grant('*', 'manager', 'manage')}, 'used');
like(complaint('set role nobody; alter database used set tq.restoring = on'), qr/42501/, 'a role without rights cannot set it');
like(complaint('set role owner; alter database used set tq.restoring = on'), qr/42501/, 'the owner of the database cannot either');
like(complaint('set role nobody; select tq_restore_end()', 'used'), qr/42501/, 'a role without rights cannot call tq_restore_end()');
is(activation('used'), 'active ok', 'which changes nothing');
is(sql('set role manager; select count(*) from tq_restore_end()', 'used'), "1", 'manage on all queues is enough without the setting');
sql('alter database used set tq.restoring = on');
like(complaint('set role manager; select tq_restore_end()', 'used'), qr/42501/, '... but not for the setting');
ok(held('used'), 'which stays');

#
# A standby: the setting applies when it is promoted
#
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('restoring_standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
like($standby->safe_psql('used', 'select string_agg(value, $$ $$) from tq_health()'), qr/standby/, 'a standby');
like(($standby->psql('used', 'select tq_restore_end()'))[2], qr/recovery|read-only/, 'tq_restore_end() on a standby');
$standby->promote;
ok(until_true($standby, q{select value = 'restoring' from tq_health() where item = 'activation'}, 'held', 'used'), 'held after a promotion');
$standby->stop;

# the first call after a start without workers
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->restart;
is(sql(q{select count(*) from tq_claim('late')}, 'aided'), 1, 'without workers a claim looks itself');
like(complaint(q{select count(*) from tq_claim('later')}, 'used'), qr/TQ009: this database is being restored/, '... and is refused if the setting is on');

my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|TRAP:|terminated by signal/, 'nothing alarming in the log');
$node->stop;
done_testing();
