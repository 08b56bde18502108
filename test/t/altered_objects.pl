# The owner of the extension alters its types and tables and commits. Workers and sessions raise errors; no process
# crashes. When the change is undone, all waiting work is done. Scenarios: types, tables that workers read, a server
# that starts with an altered table.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('altered', conf => "tq.claim_log_delay = 10ms\n");
scheduler_of($node);
my $session = session($node);
sub sql { return $node->safe_psql('postgres', $_[0]); }
sub says { return ask($session, $_[0]); }

# The part of the server's log that was written since the last call.
my $seen = 0;
sub logged
{
	my ($pattern) = @_;
	my $log = slurp_file($node->logfile, $seen);
	return $log =~ $pattern;
}
sub look_away { $seen = -s $node->logfile; return; }
sub until_logged
{
	my ($pattern, $what) = @_;
	return ok(until_so(sub { logged($pattern) }, $what), $what);
}

$node->safe_psql('postgres', <<'SQL');
create table done (id bigint, row jsonb);
create function handled(job tq_job) returns void language sql as 'insert into done select job.id, to_jsonb(job)';
select tq_create_queue('work'), tq_create_queue('plain'), tq_create_queue('kids');
select tq_handle('work', null, 'handled(tq_job)');
SQL
let_write($node, 'handler', 'queue', 'schedule');
my $started = sql('select pg_postmaster_start_time()');
sub is_done { return until_true($node, "select exists (select from done where id = $_[0])", "job $_[0] is handled"); }
ok(is_done(sql(q{select tq_enqueue('work')})), 'as it is');

# --- types ------------------------------------------------------------------------------------------------------------

sql('alter type tq_job add attribute x text');
my $id = sql(q{select tq_enqueue('work', '{"n": 7}')});
ok(until_true($node, q{select problem ~ 'type .*tq_job is not as tq needs it' from tq_handlers}), 'an executor notes what is wrong with tq_job');
sql(q{select tq_enqueue('plain', '{"n": 2}')});
like(says(q{select * from tq_claim('plain')}), qr/42804: the row type of function tq_claim.* is not as tq needs it\nDETAIL:  It has a column "x"/s, 'a claim says so');
sql('alter type tq_job drop attribute x');
ok(is_done($id), 'taken back: the job is handled');
is(sql("select row->'payload'->>'n' from done where id = $id"), 7, '... with its columns where they belong');
is(says(q{select payload->>'n' || ' ' || (parents is null) from tq_claim('plain')}), '2 true', '... so is one that is claimed');
sql('alter type tq_job drop attribute priority');
like(says(q{select * from tq_claim('plain')}), qr/DETAIL:  It has no column "priority" of type integer/, 'an attribute less');
sql('alter type tq_job add attribute priority int');
$id = sql(q{select tq_enqueue('work', '{"n": 8}', priority => 9)});
ok(is_done($id), 'added again, at the end');
is(sql("select concat_ws(' ', row->'payload'->>'n', row->>'priority', row->>'max_attempts') from done where id = $id"), '8 9 20', '... columns are found by name');
sql('alter type tq.job_line add attribute x text');
like(says('select count(*) from tq_jobs'), qr/42804: .*tq\.jobs.*DETAIL:  It has a column "x"/s, 'tq_jobs');
sql('alter type tq.job_line drop attribute x');
like(says('select count(*) from tq_jobs'), qr/^\d+$/, '... taken back');

# --- tables that workers read -------------------------------------------------------------------------------------------

# views would prevent changes of the columns that they show
sql(qq{alter extension tq drop view $_; drop view $_}) for qw(tq_handlers tq_queues tq_grants tq_rights);

# Makes a change, runs a call that needs the changed object, reads the log, undoes the change, and checks that the work
# is done.
sub altered
{
	my ($what, $change, $undo, $work, $said, $done) = @_;
	look_away();
	sql($change);
	my $got = $work ? sql($work) : '';
	until_logged($said, "$what: said") if $said;
	sql($undo);
	(my $done_now = $done // 'select true') =~ s/\$got/$got/g;
	ok(until_true($node, $done_now, $what), "$what: taken back, it is done");
	ok(is_done(sql(q{select tq_enqueue('work')})), '... and the rest goes on');
	is(sql('select pg_postmaster_start_time()'), $started, '... in the same server');
	return;
}

altered('options of handlers', 'alter table tq.handler alter options drop default, alter options type text',
	q{alter table tq.handler alter options type jsonb using options::jsonb, alter options set default '{}'},
	'update tq.handler set problem_at = now()', qr/column "options" of a table of tq has type text/);
altered('a handler without a function', q{alter table tq.handler alter function drop not null; update tq.handler set function = null},
	q{update tq.handler set function = 'public.handled'; alter table tq.handler alter function set not null; select tq_handle('work', null, 'handled(tq_job)')},
	q{select tq_enqueue('work')}, undef, 'select exists (select from done where id = $got)');
altered('times of schedules', 'alter table tq.schedule alter revision type text',
	'alter table tq.schedule alter revision type bigint using revision::bigint',
	q{insert into tq.schedule (name, queue, payload, every, timezone, catch_up, overlap, options, owner, anchor, fired_until, defined_at, revision, paused)
		values ('s', 'kids', '{}', '1 s', 'UTC', 'latest', 'allow', '{}', current_user::regrole, now(), now(), now(), '1', false)},
	qr/column "revision" of a table of tq has type text/, q{select exists (select from tq_jobs where queue = 'kids')});
sql(q{select tq_unschedule('s')});
altered('a schedule of nulls', q{alter table tq.schedule alter options drop not null, alter payload drop not null, alter timezone drop not null;
		insert into tq.schedule (name, queue, every, catch_up, overlap, owner, anchor, fired_until, defined_at, revision, paused)
		values ('n', 'kids', '1 s', 'latest', 'allow', current_user::regrole, now(), now(), now(), 1, false)},
	q{delete from tq.schedule; alter table tq.schedule alter options set not null, alter payload set not null, alter timezone set not null},
	undef, qr/schedule "n" is ignored/);
altered('counts of batches', 'alter table tq.batch alter total type text', 'alter table tq.batch alter total type bigint using total::bigint',
	q{with b as materialized (select tq_batch_open('work') as id), j as materialized (select id, tq_enqueue('kids', options => jsonb_build_object('batch', id)) as job from b)
		select max(id) from j}
	# in one transaction the batch cannot be closed before its jobs have joined
	. q{; select tq_batch_close(max(id)) from tq.batch; select tq_complete(id, lease) from tq_claim('kids', 10)}
	. q{; select max(id) from tq.batch},
	qr/column "total" of a table of tq has type text/, 'select count(*) > 0 from done where id = (select max(id) from tq.batch)');
altered('how parents ended', 'alter table tq.dependency alter state type name',
	'alter table tq.dependency alter state type text',
	q{select tq_enqueue('work', depends_on => array[tq_enqueue('plain', kind => 'parent')])});
altered('segments', 'alter table tq.segment alter opened_at type text',
	'alter table tq.segment alter opened_at type timestamptz using opened_at::timestamptz',
	undef);
altered('a column of events that is never null', 'alter table tq.event add x int not null default 1; alter table tq.event alter x drop default', 'alter table tq.event drop x',
	q{select tq_enqueue('work')}, qr/column "x" of table "event_\d+" must not be null, but tq has no value for it/, 'select exists (select from done where id = $got)');
altered('priorities of jobs', 'alter table tq.job alter priority type bigint', 'alter table tq.job alter priority type int',
	undef);

# --- at the start -------------------------------------------------------------------------------------------------------

sql('alter table tq.queue alter settings drop default, alter settings type text');
$node->stop('immediate');
look_away();
$node->start;
like(says_again(q{select tq_enqueue('work')}), qr/42804: column "settings" of a table of tq has type text\nDETAIL:  Its type must be jsonb/, 'queues cannot be read');
until_logged(qr/tq (?:scheduler|janitor) .*column "settings" of a table of tq has type text/, 'the load says so');
sql(q{alter table tq.queue alter settings type jsonb using settings::jsonb, alter settings set default '{}'});
loaded($node);
ok(is_done(sql(q{select tq_enqueue('work')})), 'it is loaded when that is taken back');
sql(q{alter table tq.queue alter name drop not null; insert into tq.queue (id, name) values (77777, null)});
$node->stop('immediate');
$node->start;
loaded($node);
ok(is_done(sql(q{select tq_enqueue('work')})), 'a queue without a name is none');

sub says_again { leave($session); $session = session($node); return says($_[0]); }

leave($session);
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|\(PID \d+\) was terminated by signal (?!3)|XX000/, 'nothing alarming in the log');
$node->stop;

done_testing();
