# pg_dump and pg_restore in every format, of a database under load. The copy has all jobs of the journal, delivers them
# once, continues the ids, and knows that it is a copy (R8). Also: data only, queue numbers, unusual encodings, CREATE
# and DROP EXTENSION in transactions that use jobs. Hazards: H6, H23, H33.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqLoad;
use TqTest;

my $conf = <<CONF;
shared_buffers = 64MB
tq.max_live_jobs = 2000
tq.max_databases = 20
tq.segment_rows = 1000
max_worker_processes = 40
CONF
my $source = tq_node('dump_source', conf => $conf);
my $target = tq_node('dump_target', conf => $conf);
scheduler_of($source);
my $dir = PostgreSQL::Test::Utils::tempdir;
my $mono = 0;    # seconds that the target's monotonic clock is ahead

# A restored database: unfinished jobs of its journal are delivered once, ids continue, and it knows that it is a copy.
sub works
{
	my ($name, $database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($target->safe_psql($database, "select value from tq_health() where item = 'activation'"), 'inactive', "$name: H33: it is inactive");
	is($target->safe_psql($database, 'select * from tq_activate()'), '', "$name: it is whole");
	scheduler_of($target, $database);
	tq_setup($target, $database);
	my $last = $target->safe_psql($database, 'select coalesce(max(id), 0) from tq.job');
	my $left = unfinished($target, 'load', $database);
	note("$name: $left jobs to deliver, ids up to $last");
	cmp_ok($target->safe_psql($database, "select min(i) from unnest(tq_enqueue_many('load', array_fill('{}'::jsonb, array[20]))) i"),
		'>', $last, "$name: ids go on");
	until_true($target, "select live = $left + 20 from tq_stats() where queue = 'load'", 'all are known', $database);
	clock($target, 0, $mono += 60);    # restored leases run out
	my @done = split /\n/, $target->safe_psql($database, <<'SQL');
create temp table done (id bigint);
do $$
declare
	got int;
	idle int := 0;
begin
	while idle < 900 loop
		with c as materialized (select id, lease from tq_claim('load', 500, wait => '200 ms')), -- poll
			f as materialized (select id, tq_complete(id, lease) from c),
			i as (insert into done select id from f returning id)
		select count(*) into got from i;
		commit;
		idle := case when got > 0 then 0 else idle + 1 end;
		exit when got = 0 and (select live = 0 from tq_stats() where queue = 'load');
	end loop;
end $$;
select count(*), count(distinct id) from done;
SQL
	is($done[-1], ($left + 20) . '|' . ($left + 20), "$name: all jobs are delivered, once");
	is(unfinished($target, 'load', $database), 0, "$name: nothing is left");
	check_journal($target, "$name: the journal is consistent", $database);
	until_true($target, 'select count(*) = 0 from tq_check() where expected <> found', 'memory agrees', $database);
	is($target->safe_psql($database, 'select * from tq_check() where expected <> found'), '', "$name: memory agrees with the journal");
	is($target->psql($database, 'drop extension tq'), 0, "$name: H23: DROP EXTENSION takes the restored segments along");
	is($target->safe_psql($database, "select count(*) from pg_class where relname ~ '^(job|event)_[0-9]+\$'"), 0, "$name: all of them");
	$target->safe_psql('postgres', "drop database $database");
	return;
}

#
# Under load
#
my $load = TqLoad->new('dump', $source->connstr('postgres'));
$load->start('producer', 1, 0.03);
$load->start('worker', 2);
ok($load->progress(100_000), 'the clients are at work');
until_true($source, 'select count(*) >= 3 from tq.segment', 'some segments');

$target->safe_psql('postgres', "create database $_") for qw(plain custom parallel data sections clean);

program($source, 'pg_dump, plain', 'pg_dump', '-d', 'postgres', '-f', "$dir/plain");
program($target, 'psql', 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', 'plain', '-f', "$dir/plain", '-o', '/dev/null');
works('plain', 'plain');

program($source, 'pg_dump, custom', 'pg_dump', '-d', 'postgres', '-Fc', '-f', "$dir/custom");
program($target, 'pg_restore', 'pg_restore', '-d', 'custom', "$dir/custom");
works('custom', 'custom');

program($source, 'pg_dump, directory, two jobs', 'pg_dump', '-d', 'postgres', '-Fd', '-j', '2', '-f', "$dir/parallel");
program($target, 'pg_restore, two jobs', 'pg_restore', '-j', '2', '-d', 'parallel', "$dir/parallel");
works('parallel', 'parallel');

program($target, 'pg_restore, schema', 'pg_restore', '--schema-only', '-d', 'data', "$dir/custom");
program($target, 'pg_restore, data', 'pg_restore', '--data-only', '-d', 'data', "$dir/custom");
is($target->safe_psql('data', q{select state from tq_queues where queue = 'load'}), 'inactive', 'data only: tq_queues says that it is inactive');
works('data only', 'data');

program($target, "pg_restore, $_", 'pg_restore', "--section=$_", '-d', 'sections', "$dir/custom") for qw(pre-data data post-data);
works('sections', 'sections');

# over a database that has jobs of its own
program($target, 'pg_restore', 'pg_restore', '-d', 'clean', "$dir/parallel");
$target->safe_psql('clean', 'select tq_activate()');
scheduler_of($target, 'clean');
$target->safe_psql('clean', "select tq_enqueue_many('load', array_fill('{}'::jsonb, array[50]))");
program($target, 'pg_restore, clean', 'pg_restore', '--clean', '--if-exists', '-d', 'clean', "$dir/custom");
works('clean', 'clean');

$load->drain($source);
$load->check($source);

#
# Data only, into a new extension: all rows are in segment 0 until a janitor has opened another segment
#
$source->append_conf('postgresql.conf', 'tq.workers = off');
$source->reload;
until_true($source, "select count(*) = 0 from pg_stat_activity where backend_type ~ '^tq (scheduler|janitor)'", 'no workers');
$source->safe_psql('postgres', 'create database small');
$source->safe_psql('small', 'create extension tq');
$source->safe_psql('small', "select tq_enqueue_many('load', array_fill('{}'::jsonb, array[50]))");
is(scalar(take($source, 'load', 10, 'small')), 10, 'without workers');
program($source, 'pg_dump, data only', 'pg_dump', '--data-only', '-d', 'small', '-f', "$dir/small");
program($source, 'pg_dump, data only, without triggers', 'pg_dump', '--data-only', '--disable-triggers', '-d', 'small', '-f', "$dir/untold");
for my $database ('small', 'untold')
{
	$target->safe_psql('postgres', "create database $database");
	$target->safe_psql($database, 'create extension tq');
	program($target, 'psql', 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $database, '-f', "$dir/$database", '-o', '/dev/null');
	works($database, $database);
}

# Queues are restored with their numbers, which new queues do not get
$target->safe_psql('postgres', 'create database parts');
$target->safe_psql('parts', 'create extension tq');
for my $table ('event_0', 'job_0', 'queue')
{
	my $rows = $source->safe_psql('small', "copy tq.$table to stdout");
	$target->safe_psql('parts', "copy tq.$table from stdin;\n$rows\n\\.\n");
}
$target->safe_psql('parts', "insert into tq.queue (id, name) select last_value + i, 'brought ' || i from tq.queue_id_seq, generate_series(1, 3) i");
$target->safe_psql('parts', 'select tq_activate()');
is(scalar(work_off($target, 'load', 'parts')), 40, 'COPY of single tables: finished jobs do not run again');
for my $queue ('brought 2', 'new', 'brought 3', 'newer')
{
	$target->safe_psql('parts', "select tq_enqueue('$queue')");
	is(scalar(take($target, $queue, 10, 'parts')), 1, "an enqueue to queue $queue");
}
is($target->safe_psql('parts', 'select count(*) from tq.job j left join tq.queue q on q.id = j.queue_id where q is null'), 0,
	'no job without a queue');
is($target->safe_psql('parts', "select count(*) from tq_check() where expected <> found"), 0, 'memory agrees with the journal');

$source->append_conf('postgresql.conf', 'tq.workers = on');
$source->reload;

#
# Letters that are control characters in other encodings
#
{
	my $create = q{create database ascii encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0};
	$_->safe_psql('postgres', $create) for $source, $target;
	tq_setup($source, 'ascii');
	for my $name ('kind', 'group_key', 'kind in follow_up')
	{
		my $what = $name =~ /follow/ ? q{options => E'{"follow_up": {"queue": "q", "kind": "\xc3\x84"}}'} : "$name => E'\\xc3\\x84'";
		my ($rc, $out, $err) = $source->psql('ascii', "select tq_enqueue('q', $what)");
		like($err, qr/control characters/, "$name that no restore could bring back is refused");
	}
	$source->safe_psql('ascii', q{select tq_enqueue('q', '{"n": 1}', kind => E'\xc3\xb6', group_key => E'\xc3\xb6', unique_key => E'\xc3\x84', options => E'{"tags": ["\xc3\x84"]}')});
	program($source, 'pg_dump of a database without an encoding', 'pg_dump', '-d', 'ascii', '-f', "$dir/ascii");
	program($target, '... which is restored', 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', 'ascii', '-f', "$dir/ascii", '-o', '/dev/null');
	$target->safe_psql('ascii', 'select tq_activate()');
	scheduler_of($target, 'ascii');
	is(scalar(take_all($target, 'q', 1, 'ascii')), 1, 'with its job');
	my ($rc, $out, $err) = $target->psql('ascii', q{insert into tq.job_0 (id, enqueued_at, queue_id, priority, payload, kind)
		select 77, now(), id, 0, '{}', E'a\x1fb' from tq.queue});
	like($err, qr/job_kind_is_name/, 'a control character by hand is refused');
	$_->safe_psql('postgres', 'drop database ascii') for $source, $target;
}

#
# CREATE and DROP EXTENSION
#
$source->safe_psql('postgres', 'create database ddl');
my $ddl = session($source, 'ddl');
is(ask($ddl, q{begin; create extension tq; select tq_enqueue('q'), count(*) from tq_claim('q')}), '1|0', 'a job in the transaction of CREATE EXTENSION');
ask($ddl, 'rollback');
is(ask($ddl, q{begin; create extension tq; select tq_enqueue('q', '{"n": 1}')}), '1', 'and again');
ask($ddl, 'commit');
is(ask($ddl, q{select payload from tq_claim('q', wait => '3 min', lease_for => '1 h')}), '{"n": 1}', 'it is there after commit');
ask($ddl, "select tq_enqueue_many('q', array_fill('{}'::jsonb, array[1200]))");
segment_after($source, 0, 'ddl');
ask($ddl, "select tq_enqueue_many('q', array_fill('{}'::jsonb, array[10]))");
is(ask($ddl, q{begin; select tq_enqueue('q', '{"n": 2}', priority => -1) > 0; drop extension tq}), 't', 'DROP EXTENSION after an enqueue');
ask($ddl, 'rollback');
is(ask($ddl, q{select count(*) from tq_claim('q', 10000) where payload <> '{}'}), 0, 'ROLLBACK: nothing is lost, nothing was enqueued');
is(unfinished($source, 'q', 'ddl'), 1211, 'all jobs are there');
is(ask($ddl, 'begin; drop extension tq; create extension tq; commit; select count(*) from tq.job'), 0, 'DROP and CREATE in one transaction');
is(ask($ddl, q{select count(*) from tq_claim('q', 100)}), 0, 'the new one does not know the jobs of the old one');
is(ask($ddl, q{select tq_enqueue('q', '{"n": 3}') > 0}), 't', 'and works');
is(ask($ddl, q{select payload from tq_claim('q', wait => '3 min')}), '{"n": 3}', 'at once');
is($source->safe_psql('ddl', 'select * from tq_check() where expected <> found'), '', 'memory agrees with the journal');
is(ask($ddl, 'drop extension tq'), '', 'H23: DROP EXTENSION without CASCADE');
$ddl->quit;
$source->safe_psql('postgres', 'drop database ddl');

unlike(slurp_file($_->logfile), qr/PANIC|TRAP|signal 11|signal 6/, 'nothing alarming in the log') for $source, $target;
$source->stop;
$target->stop;

done_testing();
