# Administrators put triggers, constraints, defaults and foreign keys on the tables of segments, also by pg_repack under
# load. tq's own writes heed them (R3). Hazard: H37.

use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqLoad;
use TqTest;

my $node = tq_node('triggers', conf => <<CONF);
tq.segment_rows = 100000
tq.claim_log_delay = 10ms
tq.retention = 1h
CONF
scheduler_of($node);
my $session = session($node);
sub sql { return $node->safe_psql('postgres', $_[0]); }
sub says { return ask($session, $_[0]); }

my $first = sql(q{select tq_enqueue('a')});
segment_after($node, 0);
take_all($node, 'a', 1);
my $n = 1;

# --- triggers ---------------------------------------------------------------------------------------------------------

sql(<<SQL);
create table seen (what text, id bigint, who text);
create function note() returns trigger language plpgsql as \$\$
begin
	insert into public.seen values (TG_OP || ' ' || TG_ARGV[0], case TG_ARGV[0] when 'job' then (to_jsonb(coalesce(new, old)) ->> 'id')::bigint
		else (to_jsonb(coalesce(new, old)) ->> 'job_id')::bigint end, current_user);
	return null;
end \$\$;
create trigger note after insert or delete on tq.job_$n for each row execute function note('job');
create trigger note after insert on tq.event_$n for each row execute function note('event');
alter table tq.event_$n enable always trigger note;
SQL
my @ids = split /\n/, says(q{select unnest(tq_enqueue_many('a', array['{"n": 1}', '{"n": 2}']::jsonb[]))});
is(sql("select string_agg(id::text, ',' order by id) from seen where what = 'INSERT job'"), join(',', @ids), 'a row trigger sees each job');
is(join(',', take_all($node, 'a', 2)), join(',', @ids), '... whose payloads are found');
is(sql("select count(distinct id) from seen where what = 'INSERT event'"), 2, '... and each end');
is(says(q{begin; select tq_enqueue('a') > 0; rollback}), 't', 'a transaction that is rolled back');
is(sql("select count(*) from seen where what = 'INSERT job'"), 2, '... and so is what its trigger did');

my $id = says(q{select tq_enqueue('a')});
is(says(q{select count(*) from tq_claim('a', lease_for => '50 ms')}), 1, 'a lease ends');
until_true($node, "select exists (select from seen where id = $id and what = 'INSERT event')", 'a worker fires the trigger');
is(sql("select string_agg(distinct who, ',') from seen"), sql('select current_user'), '... as the owner of the table');
take_all($node, 'a', 1);

sql(q{create role producer; select tq_grant('a', 'producer', 'produce')});
is(says(q{set role producer; select tq_enqueue('a') > 0; reset role}), 't', 'a role without rights on the tables');
is(sql("select count(*) from seen where what = 'INSERT job'"), 4, '... fires the trigger, too');
take_all($node, 'a', 1);

sql(<<SQL);
create function refuse() returns trigger language plpgsql as \$\$ begin if new.priority = 13 then return null; end if; return new; end \$\$;
create trigger refuse before insert on tq.job_$n for each row execute function refuse();
create function enqueue_more() returns trigger language plpgsql as \$\$ begin perform public.tq_enqueue('more'); return null; end \$\$;
create trigger enqueue_more after insert on tq.job_$n for each row when (new.priority = 14) execute function enqueue_more();
SQL
like(says(q{select tq_enqueue('a', priority => 13)}), qr/27000: a trigger or rule of table "job_$n" has kept tq from writing a row/,
	'a trigger that leaves a row out');
like(says(q{select tq_enqueue('a', priority => 14)}), qr/55000: functions of tq cannot be called while tq writes to one of its tables/, 'a trigger that calls tq');
is(sql(q{select count(*) from tq_claim('a')}), 0, 'neither left a job');
sql("drop trigger refuse on tq.job_$n; drop trigger enqueue_more on tq.job_$n; alter table tq.job_$n disable trigger note");
my $before = sql('select count(*) from seen');
sql(q{select tq_enqueue('a')});
is(sql('select count(*) from seen'), $before, 'a disabled trigger is not fired');
sql("drop trigger note on tq.event_$n");
take_all($node, 'a', 1);

# a trigger that comes while a transaction has written to the table waits for it
says(q{begin; select tq_enqueue('a')});
my $admin = session($node);
begin_ask($admin, "alter table tq.job_$n enable trigger note");
until_true($node, q{select exists (select from pg_locks where not granted)}, 'the trigger waits');
says('commit');
end_ask($admin);
says(q{select tq_enqueue('a')});
is(sql('select count(*) from seen'), $before + 1, 'a session that knew the table without the trigger fires it');
take_all($node, 'a', 2);
sql("drop trigger note on tq.job_$n");

# --- constraints, defaults, rules -------------------------------------------------------------------------------------

sql('alter table tq.job add constraint small check (priority < 1000)');
like(says(q{select tq_enqueue('a', priority => 1000)}), qr/23514: new row for relation "job_\d+" violates check constraint "small"/, 'a check of the administrator');
like(says(q{select tq_enqueue('a', priority => 999)}), qr/^\d+$/, '... permits other rows');
sql('alter table tq.job drop constraint small; alter table tq.event add noted_at timestamptz not null default now()');
is(scalar(take_all($node, 'a', 1)), 1, 'a column with a default');
is(sql(q{select count(*) from tq.event where noted_at is null}), 0, '... has it');
sql("alter table tq.event drop noted_at; create table also (id bigint); create rule also as on insert to tq.job_$n do also insert into also values (new.id)");
$id = says(q{select tq_enqueue('a')});
is(sql('select id from also'), $id, 'a rule');
sql("drop rule also on tq.job_$n");
is(join(',', take_all($node, 'a', 1)), $id, '... and the job is there');

# --- rows of segment 0 are deleted; the first job is one of them ------------------------------------------------------

my $queue = sql(q{select id from tq.queue where name = 'a'});
my @by_hand = map { sql(q{select nextval('tq.job_id_seq')}) } 1 .. 3;
by_hand($node, 'insert into tq.job_0 (id, enqueued_at, queue_id, priority, payload) values '
	  . join(', ', map { "($_, now(), $queue, 0, '{}')" } @by_hand));
is(join(',', sort { $a <=> $b } take_all($node, 'a', 3)), join(',', @by_hand), 'jobs by hand in segment 0');
sql(<<SQL);
create table receipt (job bigint references tq.job_0 (id) on delete cascade);
create table invoice (job bigint references tq.job_0 (id));
insert into receipt values ($by_hand[0]);
insert into invoice values ($by_hand[1]);
create trigger note after delete on tq.job_0 for each row execute function note('job');
SQL
my $log = -s $node->logfile;
clock($node, 100000, 100000);
ok($node->wait_for_log(qr/update or delete on table "job_0" violates foreign key constraint "invoice_job_fkey"/, $log), 'a foreign key keeps its row from being deleted');
is(sql("select count(*) from tq.job_0 where id = $by_hand[1]"), 1, '... it is there');
sql('drop table invoice');
clock($node, 200000, 200000);
until_true($node, 'select count(*) = 0 from tq.job_0', 'the rows are deleted when it is gone');
is(sql('select count(*) from receipt'), 0, 'a foreign key that cascades');
is(sql("select string_agg(id::text, ',' order by id) from seen where what = 'DELETE job'"), join(',', $first, @by_hand), 'a trigger for deleted rows');
janitor_away($node);
is(sql('select * from tq_check() where expected <> found'), '', 'memory and journal agree');
leave($session, $admin);
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|\(PID \d+\) was terminated by signal (?!3)|XX000/, 'nothing alarming in the log');
$node->stop;

# --- pg_repack under load ---------------------------------------------------------------------------------------------

SKIP:
{
	my $repack = $node->config_data('--bindir') . '/pg_repack';
	skip('pg_repack is not installed', 1) unless -x $repack;
	$node = PostgreSQL::Test::Cluster->new('repacked');
	$node->init;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'tq'\ntq.max_live_jobs = 2000\ntq.segment_rows = 50000000\n");
	$node->start;
	$node->safe_psql('postgres', 'create extension tq; create extension pg_repack');
	my $load = TqLoad->new('repacked', $node->connstr('postgres'));
	$load->start('producer', 2);
	$load->start('worker', 2);
	ok($load->progress(100_000), 'the clients are at work');
	for my $table ('tq.job_1', 'tq.event_1', 'tq.job_1', 'tq.event_1')
	{
		my $file = sql("select pg_relation_filenode('$table')");
		# its own timeout of a tenth of a second ends it if the machine is slow just then
		my ($done, $out, $err);
		my $end = time + $PostgreSQL::Test::Utils::timeout_default;
		$done = IPC::Run::run([ $repack, '--no-order', '--no-kill-backend', '--wait-timeout', 180, '-h', $node->host, '-p', $node->port, '-d', 'postgres', '-t', $table ],
			'>', \$out, '2>', \$err)
		  until $done || time > $end || ($err // '') !~ /^$|statement timeout/;
		ok($done, "pg_repack of $table") or diag($err);
		isnt(sql("select pg_relation_filenode('$table')"), $file, '... has given it a new file');
		ok($load->progress(30_000), 'the clients go on');
	}
	$load->drain($node);
	$load->check($node);
	is(sql('select * from tq_check() where expected <> found'), '', 'memory and journal agree after pg_repack');
	unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6|a recount found|is gone; the job is dropped/, 'nothing alarming in the log of the load');
	$node->stop;
}

done_testing();
