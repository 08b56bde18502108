# H27: two live jobs never have the same unique key: in races, under load, after a restart and a dump. The janitor
# deletes the rows of keys that are no longer used, and makes no session wait for long.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('unique', conf => <<CONF);
max_connections = 40
tq.max_live_jobs = 512
tq.segment_rows = 2000
tq.naptime = 20ms
deadlock_timeout = 100ms
CONF
scheduler_of($node);

sub sql
{
	my ($statement) = @_;
	return $node->safe_psql('postgres', $statement);
}

# One test: the keys that the janitor leaves.
sub keys_left
{
	my ($keys, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(until_true($node, "select array_agg(key order by key) = '$keys' from tq.unique_key"), "H27: $name")
	  or diag(sql('select u, (select state from tq_get(u.job_id)) from tq.unique_key u'));
	return;
}

# Keys with several unfinished jobs that are not superseded, in one snapshot of the journal.
my $doubles = q{select count(*) from (
	select from tq.job j where unique_key is not null and not exists (
		select from tq.event e where e.job_id = j.id and e.type in ('s', 'd', 'b', 'x', 'e', 'p')
		and not exists (select from tq.event r where r.job_id = j.id and r.type = 'R' and r.step > e.step))
	and not exists (select from tq.event s where s.job_id = j.id and s.type = 'S'
		and not exists (select from tq.event r where r.job_id = j.id and r.type = 'R' and r.step > s.step))
	and not exists (select from tq.event m where m.job_id = j.id and m.type = 'm' and m.tableoid <> 'tq.event_0'::regclass
		and j.tableoid <> 'tq.job_0'::regclass)
	group by queue_id, unique_key having count(*) > 1) d};

#
# races between sessions. Six sessions change at most 21 keys at once, so memory has room for all changed jobs (53400).
#
sql(<<'SQL');
select tq_create_queue('storm');
create table trouble (code text, message text, detail text, context text);
create procedure storm(turns int) language plpgsql as $$
declare
	modes text[] := array['skip', 'skip_waiting', 'ignore', 'replace', 'replace_waiting', 'keep_run_at', 'error'];
	job record;
	code text;
	message text;
	detail text;
	context text;
begin
	for i in 1 .. turns loop
		begin
			case (random() * 9)::int
				when 0, 1, 2 then
					perform tq_enqueue('storm', unique_key => 'k' || (random() * 20)::int, unique_mode => modes[1 + (random() * 6)::int],
						delay => case when random() < 0.3 then interval '1 hour' end);
				when 3 then
					perform tq_enqueue_many('storm', array_agg('{}'::jsonb), unique_mode => modes[1 + (random() * 5)::int],
						unique_keys => array_agg('k' || k order by random())) from generate_series(1, 20) k where random() < 0.4 having count(*) > 0;
				when 4, 5 then
					for job in select * from tq_claim('storm', 3) loop
						case (random() * 4)::int
							when 0 then perform tq_fail(job.id, job.lease, 'error', fatal => true);
							when 1 then perform tq_release(job.id, job.lease);
							else perform tq_complete(job.id, job.lease);
						end case;
					end loop;
				when 6 then
					perform tq_cancel(id) from (select id from tq_jobs where queue = 'storm' and state in ('ready', 'delayed') limit 1) c;
				when 7, 8 then
					perform tq_retry(id) from (select id from tq_jobs where queue = 'storm' and state in ('dead', 'cancelled') limit 1) c;
				else
					perform tq_retry_many('storm', 'dead', max_jobs => 1);
			end case;
			if random() < 0.1 then
				raise exception using errcode = 'TQ999';
			end if;
			code := null;
		exception when others then
			get stacked diagnostics code = returned_sqlstate, message = message_text, detail = pg_exception_detail, context = pg_exception_context;
		end;
		-- taken, in another state meanwhile, just being changed
		if code not in ('TQ008', 'TQ005', 'TQ004', 'TQ001', '55P03', 'TQ999') then
			insert into trouble values (code, message, detail, context);
		end if;
		commit;
	end loop;
end
$$;
SQL
my @storm = map { $node->background_psql('postgres', on_error_stop => 0) } 1 .. 6;
$_->query_until(qr/off/, "\\echo off\ncall storm(400);\n") for @storm;
my $samples = 0;
my $bad = 0;
until_true($node, q{select count(*) > 0 from pg_stat_activity where query ~ '^call storm'}, 'the storm begins');
do
{
	$bad += sql($doubles);
	++$samples;
} while (sql(q{select count(*) from pg_stat_activity where query ~ '^call storm' and state = 'active'}) > 0);
leave(@storm);
cmp_ok($samples, '>', 0, "H27: the journal was looked at $samples times meanwhile");
is($bad, 0, 'H27: never two jobs with the same key that have not ended');
is(sql($doubles), 0, 'H27: not afterwards either');
is(sql(q{select coalesce(string_agg(concat_ws(' ', code, message, detail, context), E'\\n'), 'none') from trouble}), 'none', 'H27: no deadlock, nothing unexpected');
cmp_ok(sql(q{select count(*) from tq.job where unique_key is not null}), '>', 200, 'H27: there was something to race for');
check_journal($node, 'H27: races');

#
# the same jobs after a crash
#
my $ready = sql(q{select tq_enqueue('calm', unique_key => 'ready')});
my $later = sql(q{select tq_enqueue('calm', unique_key => 'later', delay => '1 hour')});
my $window = sql(q{select tq_enqueue('calm', kind => 'window', unique_key => 'window', options => '{"unique_for": "1 hour"}')});
sql(q{select tq_bury(id, lease, 'window') from tq_claim('calm', kinds => '{window}')});
sql(q{select count(tq_enqueue('calm', unique_key => 'many ' || n)) from generate_series(1, 1000) n});    # more than memory holds
$node->stop('immediate');
$node->start;
is(sql(q{select tq_enqueue('calm', unique_key => 'ready')}), $ready, 'H27: a crash leaves the key of a ready job');
is(sql(q{select tq_enqueue('calm', unique_key => 'later')}), $later, 'H27: of a delayed one');
is(sql(q{select tq_enqueue('calm', unique_key => 'window')}), $window, 'H27: and a window');
is(sql(q{select count(tq_enqueue('calm', unique_key => 'many ' || n, unique_mode => 'ignore')) from generate_series(1, 1000) n}), 0,
	'H27: also those of jobs that are only on disk');

#
# a dump
#
my $dir = PostgreSQL::Test::Utils::tempdir;
$node->command_ok([ 'pg_dump', '-p', $node->port, '-h', $node->host, '-Fc', '-f', "$dir/dump", 'postgres' ], 'H27: pg_dump');
sql('create database restored');
$node->command_ok([ 'pg_restore', '-p', $node->port, '-h', $node->host, '-d', 'restored', "$dir/dump" ], 'H27: pg_restore');
$node->safe_psql('restored', 'select tq_activate()');
is($node->safe_psql('restored', q{select tq_enqueue('calm', unique_key => 'later')}), $later, 'H27: keys come along');
sql('drop database restored');

#
# the janitor deletes rows without effect
#
sql(qq{do \$\$
declare
	job bigint;
begin
	for job in select id from tq_jobs where queue in ('calm', 'storm') and state in ('ready', 'delayed') and id not in ($ready, $later) loop
		perform tq_cancel_jobs(array[job]);    -- a superseded job may be cancelled meanwhile
		commit;
	end loop;
end \$\$});
my $gone = sql(q{select tq_enqueue('calm', unique_key => 'gone')});
sql("select tq_cancel($gone)");
my $kept = sql(q{select tq_enqueue('calm', kind => 'kept', unique_key => 'kept', options => '{"unique_for": "1 hour"}')});
sql(q{select tq_bury(id, lease, 'kept') from tq_claim('calm', kinds => '{kept}')});
keys_left('{kept,later,ready,window}', 'rows whose jobs have ended are deleted, except those with a window');
my $retrying = session($node);
ask($retrying, "begin; select tq_retry($kept)");    # holds the row; no other session sees its job as live
clock($node, 3700, 0);
keys_left('{kept,later,ready}', 'a row with a window goes after its end, but not under the hands of a transaction');
ask($retrying, 'commit');
is(sql(q{select tq_enqueue('calm', unique_key => 'kept')}), $kept, 'H27: the job that was retried meanwhile has its key');
clock($node, 0, 0);

# a job that ends just before it is retried has to get its key again
my $ends = sql(q{select tq_enqueue('calm', unique_key => 'ends', delay => '1 h')});
arm($node, 'retry-after-key', 'wait', pid => ask($retrying, 'begin; select pg_backend_pid()'));
begin_ask($retrying, "select tq_retry($ends)");
standing($node, 'retry-after-key');
sql("select tq_cancel($ends)");
release($node, 'retry-after-key');
is(end_ask($retrying), 'ready', 'H27: it is retried');
my $taking = session($node);
begin_ask($taking, q{select tq_enqueue('calm', unique_key => 'ends')});
until_true($node, q{select count(*) > 0 from pg_locks where not granted}, 'the session that wants the key waits');
ask($retrying, 'commit');
is(end_ask($taking), $ends, 'H27: and hears that it is taken');
leave($taking);
leave($retrying);

#
# a key that is used repeatedly while an old transaction prevents vacuum
#
my $old = session($node);
ask($old, 'begin isolation level repeatable read; select 1');
sql(q{do $$
declare
	job bigint;
begin
	for i in 1 .. 2000 loop
		job := tq_enqueue('again', unique_key => 'k');
		commit;
		perform tq_cancel(job);
		commit;
	end loop;
end $$});
is(sql(q{select count(*) from tq.job j join tq.queue q on q.id = j.queue_id where q.name = 'again'}), 2000, 'H27: a key used 2000 times under a pinned horizon');
leave($old);

ok(slurp_file($node->logfile) !~ /PANIC|TRAP:|\(PID \d+\) was terminated by signal/, 'nothing alarming in the log');
$node->stop;
done_testing();
