# H6: pg_dump and pg_restore lose nothing, in whatever order and at whatever time the tables come. H23: DROP EXTENSION
# needs no CASCADE, and a new extension starts without old state. H33: a copy of a database.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('restore', conf => <<CONF);
tq.segment_rows = 20
max_worker_processes = 40
tq.max_databases = 20
CONF
scheduler_of($node);
my $session = session($node);

sub in_db
{
	my ($database, $sql) = @_;
	return $node->safe_psql($database, $sql);
}

#
# A database with objects of every kind
#
for my $round (1 .. 4)
{
	my $before = in_db('postgres', 'select coalesce(max(number), 0) from tq.segment');
	in_db('postgres', qq{select tq_enqueue_many('work', array_agg(jsonb_build_object('n', i)), priorities => array_agg(i % 3))
		from generate_series(1, 25) i});
	until_true($node, "select coalesce(max(number), 0) > $before from tq.segment", 'a new segment');
}
is(scalar(take_all($node, 'work', 30)), 30, 'some jobs are done');
in_db('postgres', q{select tq_enqueue_many('work', array_fill('{}'::jsonb, array[3]), delay => '100 s')});
in_db('postgres', q{select tq_fail(id, lease, 'x', fatal => true) from tq_claim('work', max_jobs => 2)});
in_db('postgres', q{select tq_fail(id, lease, 'x', retry_in => '50 s') from tq_claim('work', max_jobs => 2)});
ask($session, q{select count(*) from tq_claim('work', max_jobs => 4, lease_for => '30 s')});
until_true($node, q{select count(*) = 4 from tq.event where type = 'c'}, 'claims are journalled');
in_db('postgres', q{select tq_reschedule(id, priority => -7) from (select max(id) as id from tq.job where run_at is null) j});
my $left = unfinished($node, 'work');
is($left, 71, 'jobs that are left');
my $last = in_db('postgres', 'select max(id) from tq.job');
my $top = in_db('postgres', 'select id from tq.job j where id in (select job_id from tq.event where priority = -7)');
my $dead = in_db('postgres', q{select string_agg(job_id::text, ',' order by job_id) from tq.event where type = 'd'});

my $dir = PostgreSQL::Test::Utils::tempdir();
my @dump = ('pg_dump', '--no-sync', '-p', $node->port, '-h', $node->host, 'postgres');
# the test functions of this database need the library only
$node->command_ok([ @dump, '-f', "$dir/plain.sql" ], 'pg_dump, plain');
$node->command_ok([ @dump, '-Fc', '-f', "$dir/custom" ], 'pg_dump, custom');

# All objects of the original database are in this one.
sub whole
{
	my ($database, $how) = @_;
	scheduler_of($node, $database);
	is(unfinished($node, 'work', $database), $left, "$how: the journal has every job");
	ok(until_true($node, qq{select ready + delayed + running = $left from tq_stats() where queue = 'work'}, 'all jobs are live', $database),
		"$how: all of them are live");
	my ($first) = take_all($node, 'work', 1, $database);
	is($first, $top, "$how: overrides count");
	is(in_db($database, "select state from tq_get((string_to_array('$dead', ','))[1]::bigint)"), 'dead', "$how: dead letters are there");
	my $new = in_db($database, q{select tq_enqueue('work')});
	cmp_ok($new, '>', $last, "$how: ids go on");
	clock($node, 1000, 1000);
	my @ids = work_off($node, 'work', $database);
	clock($node, 0, 0);
	is(scalar(@ids), $left, "$how: they all run");
	is(in_db($database, q{select count(*) from tq.job j join tq.queue q on q.id = queue_id where name = 'work'}), 104, "$how: not a row too many");
	check_journal($node, "$how: each of them once", $database);
	return;
}

in_db('postgres', 'create database plain');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-p', $node->port, '-h', $node->host, '-d', 'plain', '-f', "$dir/plain.sql" ],
	'H6: psql reads the dump');
ok(until_true($node, q{select value like 'complete, last rows at 20%' from tq_health() where item = 'restore'}, 'complete', 'plain'),
	'tq_health says that the restore is complete');
is(in_db('plain', q{select string_agg(item, ', ') from tq_health() where status <> 'ok'}), '', '... and finds nothing to warn of');
whole('plain', 'H6: plain');
is(in_db('postgres', q{select value from tq_health() where item = 'restore'}), 'none since the server started', 'where nothing was restored it says so');

in_db('postgres', 'create database parallel');
$node->command_ok([ 'pg_restore', '-j', 2, '-p', $node->port, '-h', $node->host, '-d', 'parallel', "$dir/custom" ], 'H6: pg_restore -j 2');
whole('parallel', 'H6: parallel');

# the same with the rows of the queues last, as can happen in a parallel restore
my $plain = slurp_file("$dir/plain.sql");
$plain =~ s/(^COPY tq\.queue .*?^\\\.\n)//ms or die 'no queues in the dump';
my $queues = $1;
unlink "$dir/late.sql", "$dir/queues.sql";
append_to_file("$dir/late.sql", $plain);
append_to_file("$dir/queues.sql", $queues);
in_db('postgres', 'create database late');
my @psql = ('psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-p', $node->port, '-h', $node->host, '-d', 'late');
$node->command_ok([ @psql, '-f', "$dir/late.sql" ], 'H6: a restore without the queues');
until_true($node, q{select count(*) >= 4 from pg_depend d join pg_inherits on objid = inhrelid
	where inhparent = 'tq.job'::regclass and refclassid = 'pg_extension'::regclass and deptype = 'a'}, 'segments adopted', 'late');
janitor_away($node);
$node->command_ok([ @psql, '-f', "$dir/queues.sql" ], 'H6: and then the queues');
whole('late', 'H6: queues last');

in_db('postgres', 'create database parts');
$node->command_ok([ 'pg_restore', "--section=$_", '-p', $node->port, '-h', $node->host, '-d', 'parts', "$dir/custom" ], "H6: pg_restore --section=$_")
  for qw(pre-data data post-data);
whole('parts', 'H6: by sections');

in_db('postgres', 'create database data');
$node->command_ok([ 'pg_restore', '--schema-only', '-p', $node->port, '-h', $node->host, '-d', 'data', "$dir/custom" ], 'H6: pg_restore --schema-only');
scheduler_of($node, 'data');
$node->command_ok([ 'pg_restore', '--data-only', '-p', $node->port, '-h', $node->host, '-d', 'data', "$dir/custom" ], 'H6: pg_restore --data-only');
whole('data', 'H6: data only');

# a table that is complete but empty when the segments are looked up is filled later
in_db('postgres', 'create database single');
$node->command_ok([ 'pg_restore', '--schema-only', '--single-transaction', '-p', $node->port, '-h', $node->host, '-d', 'single', "$dir/custom" ],
	'H6: pg_restore --schema-only in one transaction');
scheduler_of($node, 'single');
is(in_db('single', 'select tq_metrics() is not null'), 't', 'a session looks the segments up');
$node->command_ok([ 'pg_restore', '--data-only', '-p', $node->port, '-h', $node->host, '-d', 'single', "$dir/custom" ], 'H6: pg_restore --data-only after it');
whole('single', 'H6: data only, after all tables at once');

# tables that are filled much later than they were created; jobs that ended before are kept
in_db('postgres', q{alter system set tq.retention = '30d'});
$node->reload;
in_db('postgres', 'create database tables');
my @tables = ('pg_restore', '-p', $node->port, '-h', $node->host, '-d', 'tables', "$dir/custom");
$node->command_ok([ @tables, '--schema-only' ], 'H6: pg_restore --schema-only');
scheduler_of($node, 'tables');
clock($node, 100000, 0);
in_db('tables', 'select tq_reload()');
until_true($node, 'select count(*) = 0 from tq_check() where expected <> found', 'a count', 'tables');
janitor_away($node);
$node->command_ok([ @tables, '--data-only' ], 'H6: pg_restore --data-only a day later');
clock($node, 0, 0);
whole('tables', 'H6: data of a day later');
in_db('postgres', 'alter system reset tq.retention');
$node->reload;

# a segment that was restored empty, and whose retention had passed, before it took jobs here
in_db('postgres', 'create database idle');
in_db('idle', 'create extension tq');
in_db('idle', q{select tq_enqueue_many('work', array_fill('{}'::jsonb, array[25]))});
until_true($node, q{select to_regclass('tq.job_1') is not null}, 'a segment', 'idle');
in_db('idle', 'update tq.segment set finished_at = now() where number = 1');
janitor_away($node);
$node->restart;
in_db('idle', q{select tq_enqueue_many('work', array_fill('{}'::jsonb, array[25]))});
until_true($node, q{select to_regclass('tq.job_2') is not null}, 'the next one', 'idle');
$node->stop('immediate');
$node->start;
is(scalar(work_off($node, 'work', 'idle')), 50, 'H6: a segment that was finished and takes jobs again is read after each start');
in_db('postgres', "drop database $_") for qw(tables idle);

# ids of a dump in the range of a segment that was opened during the restore
in_db('postgres', 'create database far');
in_db('far', q{create extension tq; select setval('tq.job_id_seq', 4096 * 5000)});
for my $segment (1 .. 4)
{
	in_db('far', q{select tq_enqueue_many('far', array_fill('{}'::jsonb, array[25]))});
	until_true($node, "select to_regclass('tq.job_$segment') is not null", 'a segment', 'far');
}
my $far = in_db('far', q{select min(id) from tq.job_1});
is(in_db('far', "select tq_cancel($far)"), 'cancelled', 'a job in segment 1');
$node->command_ok([ 'pg_dump', '--no-sync', '-Fc', '-f', "$dir/far", '-p', $node->port, '-h', $node->host, 'far' ], 'pg_dump of large ids');
in_db('postgres', 'create database within');
my @within = ('pg_restore', '-p', $node->port, '-h', $node->host, '-d', 'within', "$dir/far");
$node->command_ok([ @within, "--section=$_" ], "H6: a restore of large ids, $_") for qw(pre-data data);
my $youngest = in_db('far', 'select max(number) from tq.segment');
scheduler_of($node, 'within');
until_true($node, "select max(number) > $youngest from tq.segment", 'a segment is opened meanwhile', 'within');
$node->command_ok([ @within, '--section=post-data' ], 'H6: a restore of large ids, post-data');
until_true($node, q{select live = 99 from tq_stats() where queue = 'far'}, 'all jobs', 'within');
in_db('within', q{select tq_enqueue_many('near', array_fill('{}'::jsonb, array[25]))});
until_true($node, "select max(number) > $youngest + 1 from tq.segment", 'and sealed', 'within');
is(in_db('within', "select state from tq_get($far)"), 'cancelled', 'H6: which is looked up in its own segment');
is(scalar(work_off($node, 'far', 'within')), 99, 'H6: all jobs run');
check_journal($node, 'H6: each of them once', 'within');
in_db('postgres', 'drop database far');
in_db('postgres', 'drop database within');

# a table was incomplete when a process read it; or a segment was opened before the highest id of the dump was known
for my $opened (0, 1)
{
	my $database = $opened ? 'late_and_opened' : 'late_rows';
	in_db('postgres', "create database $database");
	my @late_rows = ('pg_restore', '-p', $node->port, '-h', $node->host, '-d', $database, "$dir/custom");
	$node->command_ok([ @late_rows, '--section=pre-data' ], 'H6: a restore of tables');
	if ($opened)
	{
		until_true($node, 'select count(*) = 0 from tq_check() where expected <> found', 'loaded', $database);
		arm($node, 'count-before-snapshot');
		in_db($database, 'delete from tq.event_0');
		standing($node, 'count-before-snapshot');
		until_true($node, "select count(*) = 1 from pg_stat_activity where backend_type = 'tq janitor' and datname = '$database'", 'its janitor');
	}
	$node->command_ok([ @late_rows, '--section=data' ], 'H6: ... of rows');
	if ($opened)
	{
		release($node, 'count-before-snapshot');
		until_true($node, 'select max(number) > 4 from tq.segment', 'a segment is opened meanwhile', $database);
	}
	my $held_back = in_db($database, q{with gone as (delete from tq.job_1 where id > (select min(id) from tq.job_1) returning *)
		select string_agg(format('insert into tq.job_1 select (jsonb_populate_record(null::tq.job_1, %L)).*', to_jsonb(g)), ';') from gone g});
	in_db($database, 'vacuum tq.job_1');
	$node->command_ok([ @late_rows, '--section=post-data' ], 'H6: ... except some of them');
	until_true($node, q{select count(*) > 0 from pg_depend where objid = 'tq.job_1'::regclass and deptype = 'a' and refclassid = 'pg_extension'::regclass},
		'segments adopted', $database);
	janitor_away($node);
	in_db($database, $held_back);
	whole($database, $opened ? 'H6: rows that were late for a segment among others' : 'H6: rows that were late');
	is(in_db($database, 'select count(*) from tq.job_1 left join lateral tq_get(id) g on true where g.state is null'), 0,
		'H6: ... each of which is found by its id');
}

# with triggers disabled and enabled around each table, which leaves them in the ordinary mode
sub restore_untold
{
	my ($database, $seen) = @_;
	in_db('postgres', "create database $database");
	$node->command_ok([ 'pg_restore', '--schema-only', '-p', $node->port, '-h', $node->host, '-d', $database, "$dir/custom" ],
		"H6: pg_restore --schema-only into $database");
	scheduler_of($node, $database) if $seen;
	$node->command_ok([ 'pg_restore', '--data-only', '--disable-triggers', '-p', $node->port, '-h', $node->host, '-d', $database, "$dir/custom" ],
		"H6: pg_restore --data-only --disable-triggers into $database");
	return;
}
my $modes = q{select string_agg(distinct concat_ws(' ', regexp_replace(relname, '_\d+$', ''), tgname, tgenabled), ', ')
	from pg_trigger join pg_class c on c.oid = tgrelid where relnamespace = 'tq'::regnamespace and not tgisinternal};
restore_untold('untold', 1);
whole('untold', 'H6: triggers disabled');
until_true($node, q{select count(*) = 0 from pg_trigger join pg_class c on c.oid = tgrelid where relnamespace = 'tq'::regnamespace and tgenabled = 'O'},
	'triggers in their own modes', 'untold');
is(in_db('untold', $modes), in_db('postgres', $modes), 'H6: triggers disabled: they are as before');

in_db('postgres', 'create database cleaned template parallel');
$node->command_ok([ 'pg_restore', '--clean', '--if-exists', '-p', $node->port, '-h', $node->host, '-d', 'cleaned', "$dir/custom" ],
	'H6: pg_restore --clean over a database that has been in use');
whole('cleaned', 'H6: clean');

# no janitor adopts the segments while they are restored
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->reload;
until_true($node, q{select count(*) = 0 from pg_stat_activity where backend_type ~ '^tq (scheduler|janitor)'}, 'no worker');
in_db('postgres', 'create database unseen');
$node->command_ok([ 'pg_restore', '-p', $node->port, '-h', $node->host, '-d', 'unseen', "$dir/custom" ], 'H6: pg_restore without workers');
# neither a count nor a request adopts them
for my $database ('counted', 'vacuumed')
{
	in_db('postgres', "create database $database");
	my @restore = ('pg_restore', '-p', $node->port, '-h', $node->host, '-d', $database, "$dir/custom");
	$node->command_ok([ @restore, '--section=pre-data' ], 'H6: pg_restore without workers, the tables');
	is(in_db($database, 'select tq_metrics() is not null'), 't', 'tq_metrics before they are whole');
	$node->command_ok([ @restore, "--section=$_" ], "H6: pg_restore without workers, $_") for qw(data post-data);
}
in_db('counted', 'select tq_reload()');
# VACUUM may have locked a table when the janitor looks at it, and does not wake the janitor at its end
my $vacuum = session($node, 'vacuumed');
ask($vacuum, 'begin; lock table tq.job_2 in share update exclusive mode');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
scheduler_of($node, 'vacuumed');
until_true($node, "select ready + delayed + running between 1 and $left - 1 from tq_stats() where queue = 'work'", 'the other segments', 'vacuumed');
leave($vacuum);
clock($node, 0, 61);
ok(until_true($node, "select ready + delayed + running = $left from tq_stats() where queue = 'work'", 'all jobs are live', 'vacuumed'),
	'H6: ... which is looked at again a minute later');
clock($node, 0, 0);
in_db('postgres', 'drop database vacuumed');
whole('unseen', 'H6: without workers');
whole('counted', 'H6: without workers, after tq_reload()');
in_db('unseen', 'drop extension tq');
is(in_db('unseen', q{select count(*) from pg_namespace where nspname = 'tq'}), 0, 'H23: restored segments belong to the extension');

# rows of tq.segment without their tables, as after a restore of data alone into a new extension; and one wrong row
in_db('postgres', 'create database numbers');
in_db('numbers', q{create extension tq; insert into tq.segment select i, now() - interval '31 days', now() - interval '30 days', now() - interval '30 days'
	from generate_series(1, 3) i});
scheduler_of($node, 'numbers');
for my $number (1 .. 4)
{
	in_db('numbers', q{select tq_enqueue_many('work', array_fill('{}'::jsonb, array[20]))});
	until_true($node, "select to_regclass('tq.event_$number') is not null", "segment $number", 'numbers');
}
is(in_db('numbers', 'select count(*) from tq.segment where finished_at is not null or opened_at < now() - $$1 day$$::interval'), 0,
	'H6: a new segment takes nothing over from a row of its number');
in_db('numbers', q{update tq.segment set finished_at = now() - interval '30 days' where number = 2});

$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->restart;
restore_untold('untold_unseen');
$node->restart;
# the first session that looks may be read-only
is(in_db('untold_unseen', q{set default_transaction_read_only = on; select tq_metrics() ~ 'tq_segments\{state="open"\} 1'}), 't',
	'tq_metrics in a read-only session that comes first');
is(in_db('untold_unseen', qq{select tq_enqueue('other') > $last}), 't', 'H6: triggers disabled: an enqueue after a restart');
is(in_db('untold_unseen', q{select live from tq_stats() where queue = 'work'}), $left, 'H6: triggers disabled: all jobs after a restart');
is(in_db('untold_unseen', q{select count(*) from tq_claim('other')}), 1, 'H6: triggers disabled: the new one, too');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
scheduler_of($node, 'numbers');
until_true($node, q{select live = 80 from tq_stats() where queue = 'work'}, 'all are known', 'numbers');
is(scalar(work_off($node, 'work', 'numbers')), 80, 'H6: what lives in a segment that is said to have had its time is not dropped');

#
# H33: a copy
#
leave($session);
in_db('template1', 'create database copy template postgres');
whole('copy', 'H33: a copy of the database');
is(in_db('copy', q{select value || ' ' || status from tq_health() where item = 'activation'}), 'dormant ok', 'H33: which knows that it is one, and holds nothing');
is(in_db('postgres', q{select status from tq_health() where item = 'activation'}), 'ok', 'H33: as the original knows that it is none');
in_db('copy', 'select tq_activate()');
is(in_db('copy', q{select status from tq_health() where item = 'activation'}), 'ok', 'H33: until it is told otherwise');
scheduler_of($node);
is(unfinished($node, 'work'), $left, 'H33: which the original does not notice');

#
# H23
#
is(in_db('postgres', q{select count(*) > 0 from pg_inherits where inhrelid::regclass::text ~ '^tq.job_[1-9]'}), 't', 'H23: there are numbered segments');
in_db('postgres', q{begin; drop extension tq; create extension tq; select tq_enqueue('work'); commit});
is(in_db('postgres', q{select count(*) from tq.job}), 1, 'H23: DROP EXTENSION takes the segments along without CASCADE');
is(scalar(work_off($node, 'work')), 1, 'H23: the new extension has its own jobs only');
my (undef, undef, $both) = $node->psql('postgres', q{begin; set local tq.publish_limit = 0; select tq_enqueue('work');
	drop extension tq; create extension tq; select tq_enqueue('work'); commit});
like($both, qr/cannot use tq before and after re-creating the extension/, 'H23: many jobs cannot be enqueued on both sides');
in_db('postgres', 'drop extension tq');
is(in_db('postgres', q{select count(*) from pg_namespace where nspname = 'tq'}), 0, 'H23: nothing remains');
in_db('postgres', 'create extension tq');
until_true($node, q{select count(*) = 0 from tq_claim('work')});
is(in_db('postgres', q{select tq_enqueue('work') > 0}), 't', 'H23: a new one works');
is(scalar(take_all($node, 'work', 1)), 1, 'H23: from end to end');

ok(slurp_file($node->logfile) !~ /PANIC|TRAP:|terminated by signal/, 'nothing alarming in the log');
$node->stop;
done_testing();
