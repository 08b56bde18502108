# tq_health names the cause: jobs that do not run fill the memory, a database cannot be loaded because tq.max_live_jobs was
# lowered, a load fails or takes long, the clock was ahead, a session has locked a segment, the open segment is too old,
# groups fill the memory, all executors are at work. After a restart it warns of nothing.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('health', conf => <<CONF);
tq.max_live_jobs = 400
tq.max_groups = 64
tq.lease = '1h'
tq.claim_log_delay = 0
tq.max_executors = 2
CONF

sub health
{
	my ($item) = @_;
	return $node->safe_psql('postgres', "select status, value from tq_health() where item = '$item'");
}

# a segment that was opened while the clock was ahead
is(health('segments of the future'), 'ok|none', 'no segment is of the future');
clock($node, 86400, 0);
$node->safe_psql('postgres', q{select tq_enqueue('first')});
segment_after($node, 0);
is(health('segments of the future'), 'ok|none', '... as long as the clock is ahead');
clock($node, 0, 0);
like(health('segments of the future'), qr/^warn\|1, up to \d/, '... but one is when the clock is right again');
is(scalar(take_all($node, 'first', 1)), 1, 'its job runs');

like(health('jobs that cannot leave memory'), qr/^ok\|0 of \d+$/, 'nothing is kept in memory');
$node->safe_psql('postgres', <<'SQL');
select tq_enqueue('q' || i % 20, priority => 5) from generate_series(1, 260) i;
do $$
declare
	job bigint;
begin
	for job in select id from tq_jobs where state = 'ready' loop
		begin
			perform tq_reschedule(job, priority => 1);
		exception when sqlstate '53400' then
			exit;
		end;
		commit;
	end loop;
end $$;
SQL
like(health('jobs that cannot leave memory'), qr/^warn\|2\d\d of 2\d\d$/, 'jobs that were rescheduled fill memory');
is(health('running jobs'), 'ok|0 of 400', '... and none runs');
$node->safe_psql('postgres', q{do $$
declare
	job bigint;
begin
	for job in select id from tq_jobs where priority = 1 loop
		perform tq_reschedule(job, priority => 5);
		commit;
	end loop;
end $$});
$node->safe_psql('postgres', q{select tq_claim('q' || i, 5) from generate_series(0, 19) i});
# tq_history shows claims that a restart would forget; the table has those that it keeps
ok(until_true($node, q{select count(*) = 100 from tq.event where type = 'c'}, 'the claims are journalled'), '100 jobs run');
like(health('live state'), qr/^ok\|loaded at /, 'the database is loaded');

$node->append_conf('postgresql.conf', 'tq.max_live_jobs = 16');
$node->restart;
ok(until_true($node, q{select status = 'error' and value ~ 'tq.max_live_jobs is 16' from tq_health() where item = 'live state'}, 'a load that fails'),
	'memory that is too small for the running jobs is said to be so');
ok($node->safe_psql('postgres', q{select tq_enqueue('q1')}) > 0, '... and jobs can be enqueued');
$node->append_conf('postgresql.conf', 'tq.max_live_jobs = 400');
$node->restart;
ok(until_true($node, q{select status = 'ok' and value ~ '^loaded' from tq_health() where item = 'live state'}, 'loaded'), 'with more it is loaded');
is($node->safe_psql('postgres', q{select count(*) from tq_running}), '100', '... with all that runs');
check_journal($node, 'and is consistent');

# a load that fails, and one that takes long; no worker repeats it
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->restart;
my $loads = session($node);
like(health('live state'), qr/^warn\|not loaded$/, 'nothing has loaded the database');
arm($node, 'load-between-segments');
begin_ask($loads, 'select count(*) > 0 from tq_stats()');
standing($node, 'load-between-segments');
like(health('live state'), qr/^warn\|loading since \d.*, 1 segments read$/, 'a load that takes long is shown');
arm($node, 'load-between-segments', 'error');
like(end_ask($loads), qr/error injected/, 'it fails');
like(health('live state'), qr/^error\|cannot be loaded: the load of \d.* failed$/, '... which is said');
is(ask($loads, 'select count(*) > 0 from tq_stats()'), 't', '... until one succeeds');
like(health('live state'), qr/^ok\|loaded at /, 'the database is loaded');

# an open segment that no janitor closes
like(health('open segment'), qr/^ok\|tq.job_\d+ with \d+ jobs$/, 'the open segment is young');
clock($node, 3 * 86400, 0);    # it was opened on the second day
like(health('open segment'), qr/^warn\|tq.job_\d+ with \d+ jobs$/, '... and too old when no janitor has opened another one for long');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
ok(until_true($node, q{select status = 'ok' from tq_health() where item = 'open segment'}, 'another segment'), 'a janitor opens it');
clock($node, 0, 0);
leave($loads);

# groups whose jobs run keep their places
is(health('groups'), 'ok|0 of 64, 0 cannot leave memory', 'there are no groups');
$node->safe_psql('postgres', 'select tq_complete(id, lease) from tq_running');
$node->safe_psql('postgres', q{select tq_enqueue('q' || i % 20, group_key => 'g' || i, kind => 'of group') from generate_series(1, 60) i});
$node->safe_psql('postgres', q{select tq_claim('q' || i, 3, kinds => '{of group}') from generate_series(0, 19) i});
like(health('groups'), qr/^warn\|6\d of 64, (5[89]|60) cannot leave memory$/, 'groups whose jobs run fill the memory');
$node->safe_psql('postgres', q{select tq_complete(id, lease) from tq_running where kind = 'of group'});
like(health('groups'), qr/^ok\|/, '... until they have ended');

# a session that has locked a segment
my $locker = session($node);
is(health('segments locked by others'), 'ok|none', 'no segment is locked');
my $pid = ask($locker, 'begin; lock table tq.event_1 in share mode; select pg_backend_pid()');
ok(until_true($node, "select status = 'warn' and value = 'tq.event_1 by process $pid' from tq_health() where item = 'segments locked by others'"),
	'the session that has locked a segment is named');
ask($locker, 'rollback');
is(health('segments locked by others'), 'ok|none', '... until it lets go');
leave($locker);

# executors that are all at work
$locker = session($node);
ask($locker, 'select pg_advisory_lock(1)');
$node->safe_psql('postgres', <<'SQL');
create function slow(job tq_job) returns void language sql as $$select pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1)$$;
select tq_create_queue('slow'), tq_handle('slow', null, 'slow(tq_job)');
SQL
$node->safe_psql('postgres', q{select tq_enqueue('slow') from generate_series(1, 2)});
ok(until_true($node, q{select value = '2 of 2, 2 at work' from tq_health() where item = 'executors'}), 'all executors are at work');
clock($node, 61, 61);
# the scheduler may have seen a job that the second one was about to claim
ok(until_true($node, q{select status = 'ok' and value = '2 of 2, 2 at work' from tq_health() where item = 'executors'}), '... which is normal');
$node->safe_psql('postgres', q{select tq_enqueue('slow')});
ok(until_true($node, q{select count(*) = 1 from tq_ready() where queue = 'slow'}), 'a job waits for one');
clock($node, 200, 200);
ok(until_true($node, q{select status = 'warn' and value ~ '^2 of 2, 2 at work, jobs have waited for one for \d+ s$' from tq_health() where item = 'executors'}),
	'... and tq_health() says so after a while');
leave($locker);
ok(until_true($node, q{select count(*) = 3 from tq.event where type = 's' and job_id in (select j.id from tq.job j join tq.queue q on q.id = j.queue_id where name = 'slow')}),
	'all run');
ok(until_true($node, q{select status = 'ok' from tq_health() where item = 'executors'}), '... and all is well');
clock($node, 0, 0);

# a restart with more jobs of every kind than fit into memory
$node->safe_psql('postgres', <<'SQL');
select tq_create_queue('all'), tq_create_queue('strict', '{"group_max_running": 1}'), tq_create_queue('turns', '{"order": "ready"}');
select tq_enqueue('all', kind => 'k' || i % 3, priority => i % 5, delay => case when i % 4 = 0 then make_interval(secs => i * 10) end,
	expires_at => case when i % 7 = 0 then now() + make_interval(secs => i * 20) end) from generate_series(1, 300) i;
select tq_enqueue('strict', group_key => 'g' || i % 90, delay => case when i % 5 = 0 then make_interval(secs => i * 10) end) from generate_series(1, 300) i;
select tq_enqueue('turns', group_key => case when i % 2 = 0 then 'g' || i % 9 end) from generate_series(1, 100) i;
select tq_enqueue('all', kind => 'child', depends_on => array[id]) from tq_jobs where queue = 'turns' limit 20;
SQL
for my $queue (qw(all strict turns))
{
	$node->safe_psql('postgres', "select tq_fail(id, lease, 'x', retry_in => '1 s') from tq_claim('$queue', 3)");
	$node->safe_psql('postgres', "select tq_fail(id, lease, 'x', retry_in => '1 h') from tq_claim('$queue', 3)");
	$node->safe_psql('postgres', "select tq_release(id, lease, '10 min') from tq_claim('$queue', 3)");
	$node->safe_psql('postgres', "select tq_complete(id, lease) from tq_claim('$queue', 3)");
	$node->safe_psql('postgres', "select tq_cancel(id) from tq_claim('$queue', 3)");
	$node->safe_psql('postgres', "select tq_claim('$queue', 3)");
}
$node->safe_psql('postgres', q{select tq_reschedule(id, priority => 1) from (select id from tq_jobs where queue = 'all' and state = 'ready' limit 5) j});
for my $mode (qw(fast immediate))
{
	my $warned = $node->safe_psql('postgres', q{select string_agg(quote_literal(item), ', ') from tq_health() where status <> 'ok' or item = 'clock'});
	$node->stop($mode);
	$node->start;
	loaded($node);
	ok(until_true($node, "select not exists (select from tq_health() where status <> 'ok' and item not in ($warned))"),
		"tq_health() warns of nothing else after a restart, $mode");
	clock($node, 300, 0);    # some are due, and some have expired
	check_journal($node, "the journal is consistent after a restart, $mode");
	is(health('jobs found again by audits'), 'ok|0', '... and audits found nothing that a restart explains');
	clock($node, 0, 0);
}

done_testing();
