# H6, H33: a database is active or inactive. Which of them a new extension, a template, a copy, a dump of one schema, a
# dump restored over its original, a backup, a point in time, a standby, a database after a rename, a crash and
# tq_deactivate() are; what happens while a database is inactive, which is nothing; what tq_activate() and
# tq_deactivate() refuse.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('activation', init => { allows_streaming => 1, has_archiving => 1 }, conf => <<CONF);
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

# What a statement says.
sub notice
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "set client_min_messages = notice;\n$sql");
	return $err =~ s/^psql:<stdin>:\d+: //r;
}

sub activation { my ($database, $on) = @_; return ($on // $node)->safe_psql($database // 'postgres', q{select value from tq_health() where item = 'activation'}); }

my $inactive = qr/TQ009: tq is inactive in this database.*HINT:  When all rows are restored, call SELECT tq_activate\(\)/s;

#
# A new extension is active at its first use, which no session waits for
#
sql('create database new');
sql('create extension tq', 'new');
like(activation('new'), qr/^unused/, 'a new extension is not used');
is(sql(q{select count(*) from tq_claim('q')}, 'new'), 0, 'a claim does not use it');
is(sql('select count(*) from tq_queues', 'new'), 0, '... nor does a look');
is(sql('select count(*) from tq.meta', 'new'), 0, 'it has no row');
my $one = session($node, 'new');
my $two = session($node, 'new');
begin_ask($two, q{select count(*) from tq_claim('q', wait => '3 min')});
# it stays until a worker has recorded the use; after five seconds it would do that in its own transaction
arm($node, 'use-before-request', 'wait', skip => 1, pid => ask($one, 'select pg_backend_pid()'));
begin_ask($one, q{begin; select tq_enqueue('q')});
ok(until_true($node, q{select value = 'active' from tq_health() where item = 'activation'}, 'used', 'new'), 'an enqueue uses it, though it has not committed');
release($node, 'use-before-request');
like(end_ask($one), qr/^\d+$/, '... and goes on');
my $three = session($node, 'new');
like(ask($three, q{select tq_enqueue('q')}), qr/^\d+$/, 'another session does not wait for it');
is(end_ask($two), 1, 'a session that waited gets the job');
ask($one, 'rollback');
is(activation('new'), 'active', 'it stays active');
$node->stop('immediate');
$node->start;
is(activation('new'), 'active', '... also after a crash');
leave($one, $two, $three);
for my $use (q{select tq_create_queue('q')}, q{select tq_activate()}, q{begin; select tq_enqueue('q'); commit})
{
	sql('drop extension tq; create extension tq', 'new');
	like(activation('new'), qr/^unused/, 'a new one is not used');
	sql($use, 'new');
	is(activation('new'), 'active', "$use is a use");
}
sql("begin; drop extension tq; create extension tq; select tq_enqueue('q'); commit", 'new');
is(activation('new'), 'active', 'so is an enqueue with CREATE EXTENSION');
sql('begin; drop extension tq; create extension tq; commit', 'new');

#
# A template
#
sql('create database fresh');
sql('create extension tq', 'fresh');
is(notice('create database copied template fresh'), '', 'nothing is said of a copy of a database that is not used');
sql('drop database copied');
sql('create database instance template new');
is(sql(q{select tq_enqueue('q') > 0}, 'instance'), 't', 'a copy of a template without jobs is active at its first use');
sql('drop database instance');
sql(q{select tq_enqueue('q')}, 'new');
is(notice('create database instance template new'), qq{NOTICE:  tq is inactive in database "instance": it is a copy
HINT:  In that database, call SELECT tq_activate() to process the copied jobs again.}, 'CREATE DATABASE says that the copy is inactive');
is(activation('instance'), 'inactive', 'a copy of a database with jobs is inactive');
ok($node->wait_for_log(qr/tq: inactive in database "instance": it was restored, copied or upgraded/), '... and so does the log');
sql(q{select tq_activate()}, 'instance');
is(scalar(take_all($node, 'q', 1, 'instance')), 1, '... until tq_activate()');
sql('alter database instance rename to renamed');
is(activation('renamed'), 'active', 'a rename changes nothing');
sql('drop database renamed');

#
# Dumps of one schema, and dumps over their original
#
my $dir = PostgreSQL::Test::Utils::tempdir;
segment_after($node, 0, 'new');
until_true($node, 'select count(*) = 1 from tq.queue', 'the row of its queue', 'new');
sql(q{select tq_enqueue('q')}, 'new');
program($node, 'pg_dump', 'pg_dump', '-d', 'new', '-Fc', '-f', "$dir/all");
sql('create database parts');
program($node, 'pg_restore, schema only', 'pg_restore', '-d', 'parts', '--schema-only', "$dir/all");
is(activation('parts'), 'inactive', 'numbered segments alone make a database inactive');
program($node, 'pg_restore, rows of one schema', 'pg_restore', '-d', 'parts', '--data-only', '--schema=tq', "$dir/all");
is(activation('parts'), 'inactive', '... and so do the rows of the schema tq');
sql('select tq_activate()', 'parts');
is(scalar(take_all($node, 'q', 2, 'parts')), 2, '... until tq_activate()');
sql('drop database parts');
is(activation('new'), 'active', 'the original is active');
program($node, 'pg_restore, clean', 'pg_restore', '-d', 'new', '--clean', '--if-exists', "$dir/all");
is(activation('new'), 'inactive', 'a dump restored over its original with --clean makes it inactive');
sql('select tq_activate()', 'new');
is(scalar(take_all($node, 'q', 2, 'new')), 2, '... until tq_activate()');


# data only, over its original, which a row of tq.meta in the dump would make active halfway
sql(q{select tq_enqueue('q'), tq_enqueue('q', unique_key => 'k')}, 'new');
program($node, 'pg_dump, data only', 'pg_dump', '-d', 'new', '-Fc', '--data-only', '-f', "$dir/rows");
sql('select tq_deactivate()', 'new');
sql(q{do $$ begin execute (select 'truncate only ' || string_agg(oid::regclass::text, ', ') from pg_class where relnamespace = 'tq'::regnamespace and relkind = 'r'
	and relname !~ '^(help|change.*)$'); end $$}, 'new');
program($node, 'pg_restore, data only', 'pg_restore', '-d', 'new', '--data-only', "$dir/rows");
is(activation('new'), 'inactive', 'a restore of its own rows makes no database active');
sql('select tq_activate()', 'new');
is(scalar(take_all($node, 'q', 2, 'new')), 2, '... until tq_activate()');

# a restore in one transaction that has made a segment, and a first use meanwhile
sql('drop extension tq; create extension tq', 'new');
my $making = session($node, 'new');
ask($making, 'begin; create table tq.job_1 () inherits (tq.job)');
like(complaint(q{select tq_enqueue('q')}, 'new'), qr/TQ009: tq cannot become active.*Other sessions write/s, 'a first use beside a restore is refused');
ask($making, 'rollback');
sql(q{select tq_enqueue('q')}, 'new');
is(activation('new'), 'active', '... and accepted without it');
leave($making);

#
# A database with work of every kind
#
sql('create database used');
sql('create extension tq', 'used');
sql(q{select tq_create_queue('ticks'), tq_create_queue('handled'), tq_schedule('clock', 'ticks', every => '1 s')}, 'used');
sql(q{create function run(job tq_job) returns jsonb language sql as $$select null::jsonb$$}, 'used');
sql(q{select tq_handle('handled', 'k', 'run(tq_job)')}, 'used');
my $handled = sql(q{select tq_enqueue('handled', kind => 'k')}, 'used');
until_true($node, "select state = 'succeeded' from tq_get($handled)", 'an executor runs it', 'used');
until_true($node, 'select count(*) > 0 from tq.schedule_fire', 'its schedule fires', 'used');
sql(q{select tq_enqueue('brief', expires_at => now() + '50 s'), tq_enqueue('later', delay => '50 s'), tq_enqueue('unique', unique_key => 'k')}, 'used');
my $parent = sql(q{select tq_enqueue('parent')}, 'used');
my $child = sql("select tq_enqueue('child', depends_on => '{$parent}')", 'used');
$handled = sql(q{select tq_enqueue('handled', kind => 'k', delay => '50 s')}, 'used');

#
# tq_deactivate()
#
my $reading = session($node, 'used');
my $cancelled = sql(q{select tq_enqueue('later')}, 'used');
sql("select tq_cancel($cancelled)", 'used');
arm($node, 'pin-before-fold', 'wait', pid => ask($reading, 'select pg_backend_pid()'));
begin_ask($reading, "select tq_retry($cancelled)");
standing($node, 'pin-before-fold');
like(complaint(q{set tq.load_timeout = '200 ms'; select tq_deactivate()}, 'used'), qr/55006: tq is in use by open transactions/, 'not while a call reads a job in');    # limit: it runs out
release($node, 'pin-before-fold');
is(end_ask($reading), 'ready', 'the call goes on');
sql("select tq_cancel($cancelled)", 'used');
leave($reading);
my $user = session($node, 'used');
ask($user, q{begin; select tq_enqueue('open')});
my $closing = session($node, 'used');
arm($node, 'deactivate-before-users');
begin_ask($closing, 'select tq_deactivate()');
until_true($node, q{select count(*) = 0 from pg_stat_activity where backend_type ~ '^tq' and datname = 'used'}, 'workers leave');
standing($node, 'deactivate-before-users');
release($node, 'deactivate-before-users');
like(complaint(q{select tq_enqueue('late')}, 'used'), qr/TQ009: tq is being deactivated/, 'new calls are refused');
ask($user, 'commit');
is(end_ask($closing), '', 'tq_deactivate() waits for open transactions');
is(activation('used'), 'inactive', 'the database is inactive');
is(sql('select item, value, status from tq_health() limit 1', 'used'), 'activation|inactive|error', 'tq_health() says so first');
is(sql(q{select string_agg(distinct queue || ' ' || state, ', ' order by queue || ' ' || state) from tq_queues}, 'used'),
	'brief inactive, child inactive, handled inactive, later inactive, open inactive, parent inactive, ticks inactive, unique inactive', 'so does tq_queues');
like(sql('select tq_metrics()', 'used'), qr/^tq_inactive 1$/m, 'so does tq_metrics()');
like(complaint($_, 'used'), $inactive, "$_ is refused")
  for q{select tq_enqueue('late')}, q{select count(*) from tq_claim('later')}, q{select tq_complete(1, 1)}, q{select tq_cancel(1)}, q{select count(*) from tq_jobs},
  q{select tq_create_queue('x')}, q{select tq_schedule('x', 'ticks', every => '1 s')}, q{select tq_check()}, q{select tq_reload()}, q{call tq_wait('{later}', '3 min')};
like(ask($user, q{select tq_enqueue('late')}), $inactive, 'also in a session that has used it');

# nothing happens, whatever time passes
my $events = sql('select count(*) from tq.event', 'used');
my $fires = sql('select count(*) from tq.schedule_fire', 'used');
clock($node, 90000, 90000);
sql(q{select tq_enqueue('turns', delay => '1 ms')});
until_true($node, q{select ready = 1 from tq_stats() where queue = 'turns'}, 'other databases work');
is(sql('select count(*) from tq.event', 'used'), $events, 'nothing happens to jobs');
is(sql('select count(*) from tq.schedule_fire', 'used'), $fires, 'nothing fires');
is(sql(q{select count(*) from pg_stat_activity where backend_type ~ '^tq (janitor|executor)' and datname = 'used'}), 0, 'no worker runs');
clock($node, 0, 0);
$node->stop('immediate');
$node->start;
is(activation('used'), 'inactive', 'it is inactive after a crash');
leave($user, $closing);

# rows may be written
is(sql(q{update tq.job set priority = -5 where id = } . $parent . ' returning id', 'used'), $parent, 'rows are written');
like(slurp_file($node->logfile), qr/tq: rows are written to tables of tq: it is inactive in this database/, 'the log says once that it is inactive');

#
# tq_activate()
#
my $copying = session($node, 'used');
ask($copying, 'begin; copy tq.queue from program \'true\'');
like(complaint('select tq_activate()', 'used'), qr/55006: the tables of tq are being written.*by process \d+.*after the end of the restore/s, 'not while a COPY is under way');
ask($copying, 'rollback');
my $rolled = session($node, 'used');
ask($rolled, 'begin; select tq_activate()');
like(ask($rolled, q{select tq_enqueue('later')}), qr/TQ009: tq is being activated or deactivated/, 'it takes effect at commit');
ask($rolled, 'rollback');
is(activation('used'), 'inactive', 'a rollback undoes it');
like(complaint(q{begin; insert into tq.edge values (1, 2); select tq_activate(); insert into tq.edge values (1, 3)}, 'used'),
	qr/55000: tq is active in this database.*"edge"/s, 'a transaction that has called it writes no more rows');
like(complaint(q{begin; select tq_activate(); prepare transaction 'p'}, 'used'), qr/cannot PREPARE/, 'it cannot be prepared');
is(sql('select * from tq_activate()', 'used'), '', 'tq_activate()');
is(sql('select * from tq_activate()', 'used'), '', 'a second call does nothing');
is(activation('used'), 'active', 'the database is active');
is(sql('select priority from tq.job where id = ' . $parent, 'used') . sql("select priority from tq_jobs where id = $parent", 'used'), '-5-5', 'the written rows count');
is(sql(q{select count(*) from tq_claim('unique')}, 'used'), 1, 'jobs go on');
ok(until_true($node, "select count(*) > $fires from tq.schedule_fire", 'fires', 'used'), 'schedules go on');
clock($node, 60, 0);
ok(until_true($node, "select state = 'succeeded' from tq_get($handled)", 'run', 'used'), 'handlers go on');
ok(until_true($node, q{select count(*) = 1 from tq.event where type = 'e'}, 'expires', 'used'), 'what was due expires');
clock($node, 0, 0);
leave($copying, $rolled);

# a transaction that has used tq; a session that waits
like(complaint(q{begin; select tq_enqueue('q'); select tq_deactivate()}, 'used'), qr/25001: tq_deactivate\(\) cannot be called in a transaction that has used tq/, 'not after an enqueue');
my $waiter = session($node, 'used');
begin_ask($waiter, q{select count(*) from tq_claim('nothing', wait => '3 min')});
until_true($node, q{select count(*) = 1 from pg_stat_activity where datname = 'used' and query ~ 'nothing' and wait_event_type = 'Extension'}, 'it waits');
sql('select tq_deactivate()', 'used');
like(activation('used'), qr/inactive/, 'a session that waits for jobs does not hold it up');
like(end_ask($waiter), $inactive, '... and is told');

#
# What is not whole
#
sql("delete from tq.job where id = $parent", 'used');
my $later = sql("delete from tq.queue where name = 'later' returning id", 'used');
my $its = sql("select substr(tableoid::regclass::text, 4) from tq.job where queue_id = $later and id <> $cancelled", 'used');    # its live job
sql("insert into tq.acl values ($later, 'pg_monitor'::regrole, 'produce'); insert into tq.group_setting (queue_id, group_key, max_running) values ($later, 'a', 1), ($later, 'b', 1)", 'used');
like(complaint('select tq_activate()', 'used'),
	qr/55000: rows of tq are missing: 5 others refer.*acl, queue $later: a setting of a queue that is missing.*dependency, job $child: it depends on job $parent, which is missing.*its queue is missing/s,
	'tq_activate() says what is missing');
is(sql('select relation, problem from tq_activate(dry_run => true)', 'used'), join("\n", 'acl|a setting of a queue that is missing',
		"dependency|it depends on job $parent, which is missing", ('group_setting|a setting of a queue that is missing') x 2, "$its|its queue is missing"),
	'dry_run lists it');
is(activation('used'), 'inactive', '... and activates nothing');
is(sql('select count(*) from tq_activate(discard => true)', 'used'), 5, 'discard returns it');
is(activation('used'), 'active', '... and activates the database');
is(sql("select (select count(*) from tq.acl where queue_id = $later) + (select count(*) from tq.group_setting where queue_id = $later)", 'used'), 0,
	'... without the settings, which the next queue with this id would have');
ok(until_true($node, "select state = 'cancelled' from tq_get($child)", 'ended', 'used'), 'the child ends, as its parent is missing');
is(sql(q{select count(*) from tq.event where type = 'x' and reason = 'its queue is missing'}, 'used'), 1, 'the job without a queue has ended');
check_journal($node, 'the journal is whole', 'used');
leave($waiter);

# an id determines its segment
my $first = sql('select max(number) from tq.segment', 'used');
sql(q{select tq_enqueue_many('fill', array_fill('{}'::jsonb, array[25]))}, 'used');
segment_after($node, $first, 'used');
sql(q{select tq_enqueue('fill')}, 'used');
sql('select tq_deactivate()', 'used');
my $stray = sql(q{select max(id) + 1000 from tq.job}, 'used');
sql("insert into tq.job_$first (id, enqueued_at, queue_id, priority, payload) select $stray, now(), id, 0, '{}' from tq.queue where name = 'fill'", 'used');
like(complaint('select tq_activate()', 'used'), qr/55000: the ids of segments $first and \d+ are not apart.*move the rows/s, 'not with ids of one segment in another');
sql("with stray as (delete from tq.job_$first where id = $stray returning *) insert into tq.job_0 select * from stray", 'used');
sql('select tq_activate()', 'used');
is(scalar(take_all($node, 'fill', 27, 'used')), 27, 'in segment 0 there may be any');
cmp_ok(sql(q{select tq_enqueue('fill')}, 'used'), '>', $stray, 'and ids go on above it');

#
# Roles
#
sql('create role nobody login; create role manager login');
sql(q{select tq_grant('*', 'manager', 'manage')}, 'used');
like(complaint("set role nobody; select $_", 'used'), qr/42501/, "a role without rights cannot call $_") for 'tq_activate()', 'tq_deactivate()';
sql("set role manager; select tq_deactivate()", 'used');
is(activation('used'), 'inactive', 'manage on all queues is enough');
sql("set role manager; select tq_activate()", 'used');
is(activation('used'), 'active', '... for both');

#
# Physical copies are the same database: they are active, as after a failover
#
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('activation_standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
$standby->promote;
until_true($standby, q{select count(*) > 0 from tq_queues}, 'promoted', 'used');
is(activation('used', $standby), 'active', 'a promoted standby is active');
$standby->stop;
my $backup = PostgreSQL::Test::Cluster->new('activation_backup');
$backup->init_from_backup($node, 'copy');
$backup->start;
is(activation('used', $backup), 'active', 'so is a base backup');
$backup->stop;

# a point in time, from a backup of the same server and its archive
my $later_job = sql(q{select tq_enqueue('unique')}, 'used');
my $file = sql(q{select pg_walfile_name(pg_create_restore_point('here'))}, 'used');
my $lost = sql(q{select tq_enqueue('unique')}, 'used');
sql('select pg_switch_wal()', 'used');
until_true($node, "select last_archived_wal >= '$file' from pg_stat_archiver", 'the archive has it');
my $past = PostgreSQL::Test::Cluster->new('activation_past');
$past->init_from_backup($node, 'copy', has_restoring => 1, standby => 0);
$past->append_conf('postgresql.conf', "recovery_target_name = 'here'\nrecovery_target_action = 'promote'\nrecovery_target_timeline = 'current'");
$past->start;
until_true($past, 'select not pg_is_in_recovery()', 'recovered', 'used');
is(activation('used', $past), 'active', 'so is a database of a point in time');
is($past->safe_psql('used', "select (select count(*) from tq_get($later_job)), (select count(*) from tq.job where id = $lost)"), '1|0', '... with the jobs of that time');
$past->stop;

my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|TRAP:|\(PID \d+\) was terminated by signal/, 'nothing alarming in the log');
$node->stop;
done_testing();
