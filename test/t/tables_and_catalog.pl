# H24: views hold no locks on segments. H25: signatures. H26: logical replication. H28: pg_upgrade. H31: administrators
# move or remove rows. H32: objects of users in the way of the janitor's DDL. H34: library and SQL of different
# versions.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('tables', conf => <<CONF);
tq.segment_rows = 20
CONF
my $one = session($node);
my $two = session($node);
scheduler_of($node);

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub newest { return sql('select coalesce(max(number), 0) from tq.segment'); }

# Enqueues n jobs with payloads {"n": 1}, ...
sub many
{
	my ($queue, $n) = @_;
	sql("select tq_enqueue_many('$queue', array_agg(jsonb_build_object('n', i))) from generate_series(1, $n) i");
	return;
}

# Enqueues as many jobs as fill the open segment; waits for the next.
sub fill
{
	my ($queue) = @_;
	my $before = newest();
	many($queue, 20);
	# the jobs may have gone into a segment that was opened after the query, and that is full now as well
	for (;;)
	{
		segment_after($node, $before);
		janitor_away($node);
		$before = newest();
		last if sql("select count(*) from tq.job_$before") == 0;
	}
	return;
}

# Claims and completes jobs; returns their payloads.
sub payloads
{
	my ($queue, $n) = @_;
	return sql(qq{select string_agg(n, ',' order by n::int) from (
		select c.payload->>'n' as n, tq_complete(c.id, c.lease) from tq_claim('$queue', max_jobs => $n) c) x});
}

#
# H24
#
fill('h24') for 1 .. 4;
my $locks = q{select coalesce(string_agg(relation::regclass::text, ' '), '') from pg_locks
	where pid = pg_backend_pid() and relation::regclass::text ~ '^tq\.(job|event)'};
is(ask($one, 'begin; select count(*) from tq_jobs'), 80, 'H24: a view of all jobs');
is(ask($one, $locks), '', 'H24: leaves no lock on any segment');
like(ask($one, 'select count(*) from tq_history((select max(id) from tq_jobs))'), qr/^\d+$/, 'H24: a history');
is(ask($one, $locks), '', 'H24: neither');
is(ask($one, 'declare c cursor for select id from tq_jobs; fetch 1 from c') =~ /^\d+$/ ? 1 : 0, 1, 'H24: a cursor over the view');
cmp_ok(ask($one, qq{select count(distinct substring(r from '_(\\d+)')) from regexp_split_to_table(($locks), ' ') r}), '<=', 1,
	'H24: is in one segment at a time');
ask($one, 'close c');
ask($two, q{begin; select tq_enqueue('hot'); select count(*) from tq_claim('h24')});
is(ask($two, qq{$locks and relation::regclass::text in ('tq.job', 'tq.event')}), '', 'H24: the hot path locks no parent');
ask($two, 'rollback');
$node->append_conf('postgresql.conf', 'tq.retention = 0');
$node->reload;
is(scalar(work_off($node, 'h24')), 80, 'H24: all jobs are done');
ok(until_true($node, q{select count(*) <= 1 from tq.segment}), 'H24: segments go while the reader is still in its transaction');
ask($one, 'commit');
$node->append_conf('postgresql.conf', "tq.retention = '1h'");
$node->reload;
until_true($node, q{select current_setting('tq.retention') = '1h'});

#
# H25
#
like(ask($one, q{select tq_enqueue('h25', priority => 5)}), qr/^\d+$/, 'H25: an integer literal is a priority');
like(ask($one, q{select tq_enqueue('h25', priority => 40000)}), qr/22023/, 'H25: within limits');
is(sql(q{select count(*) from (select proname from pg_proc p join pg_depend d on d.objid = p.oid join pg_extension e on e.oid = d.refobjid
	where extname = 'tq' and d.classid = 'pg_proc'::regclass group by pronamespace, proname having count(*) > 1) x}), 0, 'H25: no function has a twin');
is(scalar(take_all($node, 'h25', 1)), 1, 'H25: and it runs');

#
# H26
#
fill('h26');
work_off($node, 'h26');
sql('create publication everything for all tables');
like(ask($one, "delete from tq.$_ where false"), qr/55000: tq is active/, "H26: rows of tq.$_ can be deleted though it is published, if not past tq")
  for qw(change change_log change_mark job_0 event_0), map { ("job_$_", "event_$_") } newest();
sql('drop publication everything');
like(ask($one, q{set session_replication_role = replica; insert into tq.job_0 (id, enqueued_at, queue_id, priority, payload)
	select 7000000, now(), id, 100, '{}' from tq.queue where name = 'h26'}), qr/55000: tq is active/, 'H26: a row that replication writes is refused');
ask($one, 'reset session_replication_role');

#
# H28
#
is(sql(q{select coalesce(string_agg(c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, null), ', ' order by c.relname), '')
	from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
	where n.nspname = 'tq' and a.attnum > 0 and not a.attisdropped and c.relkind in ('r', 'p')
		and format_type(a.atttypid, null) ~ '^(reg|oid|xid$|cid|tid)' and format_type(a.atttypid, null) <> 'regrole'}),
	'handler.function_oid oid, meta.database oid, meta.extension oid', 'H28: no column that pg_upgrade refuses, and oids that count only in their database');

#
# H31
#
sub rolled_back
{
	my ($queue, $n) = @_;
	ask($one, "begin; select count(tq_enqueue('$queue', (select jsonb_agg(md5(random()::text || k)) from generate_series(1, 40) k)))
		from generate_series(1, $n); rollback");
	return;
}

for my $command ('vacuum full %s', 'cluster %s using %s_id', 'truncate %s', 'delete from %s')
{
	fill('filler');
	work_off($node, 'filler');
	my $n = newest();
	rolled_back('h31', 12);    # the rows of the following jobs are some blocks later
	many('h31', 5);
	is(sql("select count(*) from tq.job_$n where queue_id = (select id from tq.queue where name = 'h31')"), 5, 'H31: jobs in the last segment');
	my $statement = sprintf $command, "tq.job_$n", "job_$n";
	my $size = sql("select pg_relation_size('tq.job_$n')");
	$command =~ /vacuum|cluster/ ? sql($statement) : without_triggers($node, $statement, "tq.job_$n");
	if ($command =~ /vacuum|cluster/)
	{
		cmp_ok(sql("select pg_relation_size('tq.job_$n')"), '<', $size, "H31: $statement leaves fewer blocks than before");
		is(payloads('h31', 5), '1,2,3,4,5', 'H31: the jobs are found in their new places');
	}
	else
	{
		is(sql(q{select count(*) from tq_claim('h31', max_jobs => 5)}), 0, "H31: $statement: no job without its row");
		ok(until_true($node, q{select live = 0 from tq_stats() where queue = 'h31'}), 'H31: it is not in the counters');
	}
	many('h31', 3);
	is(payloads('h31', 5), '1,2,3', 'H31: the queue goes on');
}

#
# H32
#
sql(q{create function no_ddl() returns event_trigger language plpgsql as $$ begin raise 'no DDL here'; end $$});
sql(q{create role nosy});
sql(q{alter default privileges grant all on tables to public, nosy});
sql(q{create event trigger no_ddl on ddl_command_end execute function no_ddl()});
my $last = newest();
many('h32', 20);
ok(segment_after($node, $last), 'H32: event triggers of users do not stop the janitor');
$last++;
is(sql(qq{select count(distinct (relowner, relacl::text)) from pg_class where oid in ('tq.job'::regclass, 'tq.job_$last'::regclass)}), 1,
	'H32: owner and privileges of a new segment are its parent\'s');
is(sql(qq{select has_table_privilege('nosy', 'tq.job_$last', 'select') or has_table_privilege('nosy', 'tq.event_$last', 'insert')}), 'f',
	'H32: default privileges do not open it');
my $janitor = q{select status || ' ' || value from tq_health() where item = 'janitor'};
is(sql($janitor), 'ok nothing failed', 'tq_health finds nothing wrong with the janitor');
$node->psql('postgres', q{set session_replication_role = replica; alter event trigger no_ddl enable always});
many('h32 always', 20);
ok(until_true($node, qq{select ($janitor) = 'warn cannot open segments'}), 'one that always fires stops it, and tq_health says so');
like(sql('select tq_metrics()'), qr/^tq_janitor_failing 1$/m, '... and so does tq_metrics');
$node->psql('postgres', q{set session_replication_role = replica; alter event trigger no_ddl disable; drop event trigger no_ddl});
ok(until_true($node, qq{select ($janitor) = 'ok nothing failed'}), '... until it works again');
is(scalar(work_off($node, 'h32 always')), 20, '... and no job is lost');
is(sql(q{select count(*) from pg_event_trigger}), 0, 'the event trigger is gone');
many('h32', 1);
$last = newest();
sql("reindex index concurrently tq.job_${last}_id");
sql("reindex table concurrently tq.event_$last");
my $job = ask($one, q{select tq_enqueue('h32')});
is(ask($one, "select state from tq_get($job)"), 'ready', 'H32: a session sees indexes that were created again');
is(scalar(work_off($node, 'h32')), 22, 'H32: all jobs run');

#
# H34
#
sql(q{update pg_extension set extversion = '99.0' where extname = 'tq'});
my $late = session($node);
my $answer = ask($late, q{select tq_enqueue('h34')});
like($answer, qr/TQ007/, 'H34: other versions of SQL are refused');
like($answer, qr/HINT: .*(ALTER EXTENSION|restart)/, 'H34: with what to do');
sql(q{update pg_extension set extversion = (select default_version from pg_available_extensions where name = 'tq') where extname = 'tq'});
like(ask($late, q{select tq_enqueue('h34')}), qr/^\d+$/, 'H34: until they are the same again');
is(scalar(work_off($node, 'h34')), 1, 'H34: nothing of the refused call remains');

#
# An administrator's index that has fewer rows than tq's, and precedes it
#
sql('create index narrow on tq.job_0 (queue_id, kind, priority, id) where group_key is null and priority < 0');
sql('reindex index concurrently tq.job_0_lane');
sql(q{select tq_create_queue('narrow')});
my $above = sql('select max(id) from tq.job');
by_hand($node, qq{insert into tq.job_0 (id, enqueued_at, queue_id, priority, payload)
	select $above + i, now(), q.id, 0, '{}' from tq.queue q, generate_series(1, 300) i where q.name = 'narrow'});
is(scalar(work_off($node, 'narrow')), 300, 'jobs are not looked for in an index that has only some of them');
sql('drop index tq.narrow');

check_journal($node);

#
# H28, with pg_upgrade itself
#
many('upgrade', 50);
sql(q{select tq_fail(id, lease, 'x', fatal => true) from tq_claim('upgrade', max_jobs => 2)});
my $ids = sql('select max(id) from tq.job');
leave($one, $two, $late);
$node->stop;
my $new = PostgreSQL::Test::Cluster->new('upgraded');
$new->init;
$new->append_conf('postgresql.conf', "shared_preload_libraries = 'tq'\ntq.load_timeout = 3min");
my $bin = $node->config_data('--bindir');
{
	local $ENV{PATH} = $ENV{PATH};
	my ($where) = grep { -x "$_/pg_upgrade" } split(/:/, $ENV{PATH}), $bin;
	chdir PostgreSQL::Test::Utils::tempdir();
	command_ok([ "$where/pg_upgrade", '--no-sync', '-d', $node->data_dir, '-D', $new->data_dir, '-b', $where, '-B', $where, '-s',
			$new->host, '-p', $node->port, '-P', $new->port ], 'H28: pg_upgrade');
}
$new->start;
is($new->safe_psql('postgres', q{select value from tq_health() where item = 'activation'}), 'inactive', 'H33: the new cluster is inactive');
is($new->safe_psql('postgres', 'select * from tq_activate()'), '', 'H28: nothing is missing');
scheduler_of($new);
is($new->safe_psql('postgres', q{select count(*) from tq_dead}), 2, 'H28: dead letters are there');
cmp_ok($new->safe_psql('postgres', q{select tq_enqueue('upgrade')}), '>', $ids, 'H28: ids go on');
is(scalar(work_off($new, 'upgrade')), 49, 'H28: and all jobs run');
check_journal($new, 'H28: once');

#
# Properties of a database
#
$new->safe_psql('postgres', 'create database special');
$new->safe_psql('special', 'create access method other type table handler heap_tableam_handler; alter database special set default_table_access_method = other');
tq_setup($new, 'special');
is($new->safe_psql('special', q{select count(*) from pg_class c join pg_am a on a.oid = relam where relnamespace = 'tq'::regnamespace and relkind = 'r' and amname <> 'heap'}),
	0, 'all tables are heap tables, whatever the default is');
is($new->safe_psql('special', 'show default_table_access_method'), 'other', '... which stays');
scheduler_of($new, 'special');
$new->safe_psql('special', 'create role keeper login; alter database special owner to keeper');
my @dump = ('pg_dump', '-U', 'keeper', '-d', 'special', '-f', PostgreSQL::Test::Utils::tempdir() . '/special');
$new->command_fails_like(\@dump, qr/permission denied for schema tq/, 'the owner of a database cannot dump tables of tq');
$new->command_ok([ @dump, '--exclude-schema=tq' ], '... but all others');
$new->safe_psql('special', 'grant pg_read_all_data to keeper');
$new->command_ok(\@dump, '... and all with pg_read_all_data');
$new->safe_psql('special', 'alter database special is_template true');
ok(until_true($new, q{select value || coalesce(hint, '') ~ '^not running.*is a template.*IS_TEMPLATE false' from tq_health() where item = 'scheduler'}, 'a template', 'special'),
	'no worker runs in a template, and tq_health says why');
$new->safe_psql('special', 'alter database special is_template false');
scheduler_of($new, 'special');
$new->stop;
done_testing();
