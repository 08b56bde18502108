# Schedules fire in time, once for each time. Scenarios: catching up after a downtime, changes of the clock and of the
# time zone's offset, overlap with the job before, locks, errors, crashes, a promotion, a restored dump and a clone.
# Hazards: H16, H33.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::Local 'timegm';
use TqTest;

my $node = tq_node('schedules', init => { allows_streaming => 1 }, conf => <<CONF);
shared_buffers = 64MB
tq.max_live_jobs = 4000
max_worker_processes = 20
max_prepared_transactions = 2
CONF
my $log = 0;    # the end of the log that was read before
scheduler_of($node);

sub sql { my ($sql, $database) = @_; return $node->safe_psql($database // 'postgres', $sql); }

# One test: no time has two jobs, according to the jobs themselves.
sub once
{
	my ($name, $on) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(($on // $node)->safe_psql('postgres', <<'SQL'), '', "$name: one job for each time");
select string_agg(format('%s of %s: %s', n, s, f), ', ') from (
	select headers->'schedule'->>'name' as s, headers->'schedule'->>'fire_at' as f, count(distinct id) as n from tq.job where headers ? 'schedule' group by 1, 2) x
where n > 1
SQL
	return;
}

# Waits until a schedule has processed a time.
sub dealt_with
{
	my ($name, $time) = @_;
	return until_true($node, "select count(*) > 0 from tq.schedule_fire where schedule = '$name' and fire_at >= '$time'", "$name at $time");
}

# Sets the wall clock of all processes, and leaves the monotonic one.
my $ahead = 0;

sub set_clock
{
	my ($time) = @_;    # 'YYYY-MM-DD hh:mm:ss', UTC
	my ($y, $mo, $d, $h, $mi, $s) = $time =~ /(\d+)/g;
	$ahead = timegm($s // 0, $mi, $h, $d, $mo - 1, $y) - time;
	clock($node, $ahead, 0);
	return;
}

sub forward { my ($seconds) = @_; clock($node, $ahead += $seconds, 0); return; }

# One test: each time of schedules that fire every second has its row, or is counted as missed by the next one's.
sub none_is_missing
{
	my ($where, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql("select count(*) filter (where d is not null) > 0, count(*) filter (where d <> (missed + 1) * interval '1 s') from"
		. " (select fire_at - lag(fire_at) over (partition by schedule order by fire_at) as d, missed from tq.schedule_fire where $where) x"), 't|0', $name);
	return;
}

sub logged { my ($pattern) = @_; return slurp_file($node->logfile, $log) =~ $pattern; }

#
# Not early, each time once
#
sql(<<'SQL');
create table taken (schedule text, fire_at timestamptz, job bigint, at timestamptz);
create procedure consume(queue text, expected int) language plpgsql as $$
declare
	got int;
begin
	while expected > 0 loop
		with c as materialized (select *, clock_timestamp() as now from tq_claim(queue, 5, wait => '3 min')),
			t as (insert into taken select headers->'schedule'->>'name', (headers->'schedule'->>'fire_at')::timestamptz, id, now from c),
			f as materialized (select tq_complete(id, lease) from c)
		select count(*) into got from f;
		commit;
		exit when got = 0;
		expected := expected - got;
	end loop;
end $$;
SQL
# tq_schedule wants queues that exist
sql("select tq_create_queue('$_')")
  for 'ticks', 'down', 'many', 'long', 'other', 'zones', 'free', 'hand', 'made by it', 'twice', 'crash', 'anew';
sql("select tq_schedule('tick ' || i, 'ticks', every => '1 s') from generate_series(1, 20) i where pg_sleep(0.02) is not null -- sleeps: at different times");
sql("select tq_schedule('tock', 'ticks', cron => '* * * * * *')");
sql("call consume('ticks', 100)");
cmp_ok(sql('select count(*) from taken'), '>=', 100, 'schedules fire');
is(sql('select count(*) from taken where at < fire_at'), 0, 'no job is claimed before its time');
none_is_missing('true', 'and none is missing');
sql("select tq_unschedule(name) from tq_schedules");
is(sql('select count(*) from taken t group by schedule, fire_at having count(*) > 1'), '', 'no time came twice');
cmp_ok(sql("select value from (select regexp_matches(tq_metrics(), 'tq_schedule_fires_total (\\d+)') as m) x, unnest(m) value"), '>=', 100, 'the metrics count them');
sql("select tq_purge('ticks', 'ready')");
once('ticking');

#
# After a downtime, and when the clock is set
#
my @policies = qw(none latest all);
sql("select tq_schedule('$_', 'down', every => '1 h', catch_up => '$_', options => '{\"max_catch_up\": 3, \"late\": \"20 min\"}')") for @policies;
my %zero = map { $_ => sql("select fired_until from tq.schedule where name = '$_'") } @policies;
forward(5 * 3600 + 1800);
dealt_with($_, sql("select timestamptz '$zero{$_}' + '5 h'")) for @policies;

sub outcomes
{
	my ($name) = @_;
	return sql("select string_agg(format('%s %s %s', extract(epoch from fire_at - timestamptz '$zero{$name}')::int / 3600, outcome, missed), ', ' order by fire_at)"
		  . " from tq.schedule_fire where schedule = '$name'");
}
is(outcomes('none'), '5 missed 5', 'five and a half hours later: none');
is(outcomes('latest'), '5 fired 4', 'latest');
is(outcomes('all'), '3 fired 2, 4 fired 0, 5 fired 0', 'all, at most three');
is(sql("select string_agg(name || ' ' || missed || ' ' || last_outcome, ', ' order by name) from tq_schedules"), 'all 2 fired, latest 4 fired, none 5 missed', 'tq_schedules says so');

forward(-5 * 3600);    # the clock was wrong: 00:30
until_true($node, "select bool_and(next_at = fired_until + '1 h') from tq_schedules join tq.schedule using (name)", 'the clock is set back');
forward(1800 + 5);     # 01:00
dealt_with($_, sql("select timestamptz '$zero{$_}' + '1 h'")) for @policies;
until_true($node, "select count(*) = 3 from tq.schedule_fire where fire_at - (select fired_until from tq.schedule where name = schedule) = '1 h'", 'the first hour');
is(outcomes('none'), '1 fired 0, 5 missed 5', 'set back, times that had not come come: none');
is(outcomes('latest'), '1 fired 0, 5 fired 4', 'latest');
is(outcomes('all'), '1 fired 0, 3 fired 2, 4 fired 0, 5 fired 0', 'all');
forward(4 * 3600);     # 05:00
until_true($node, "select bool_and(next_at = fired_until + '6 h') from tq_schedules join tq.schedule using (name)", 'all of it has been seen');
is(outcomes('latest'), '1 fired 0, 5 fired 4', 'a time that had its job gets no other');
is(outcomes('all'), '1 fired 0, 3 fired 2, 4 fired 0, 5 fired 0', '... several do not either');
forward(3600);
dealt_with($_, sql("select timestamptz '$zero{$_}' + '6 h'")) for @policies;
is(sql("select string_agg(distinct outcome, ' ') from tq.schedule_fire f join tq.schedule s on s.name = f.schedule where fire_at = s.fired_until + '6 h'"), 'fired', 'and it goes on');
# bounds, and the random part of the start
sql("select tq_schedule('bounded', 'down', every => '1 h', catch_up => 'all',"
	  . " options => jsonb_build_object('start', tq_now() + '30 min', 'end', tq_now() + '2 h 30 min', 'jitter', '1 h'))");
forward(6 * 3600);
until_true($node, "select state = 'ended' and next_at is null from tq_schedules where name = 'bounded'", 'ended');
is(sql("select count(*), count(distinct run_at - at), bool_and(run_at between at and at + interval '1 h') from tq.schedule_fire f join tq.job j on j.id = f.job_id where schedule = 'bounded'"),
	'3|3|t', 'start and end are themselves times, none is outside; jitter');
sql("select tq_schedule('patient', 'down', every => '1 h', catch_up => 'none', options => '{\"late\": \"2 h\"}')");
forward(2 * 3600 + 600);
until_true($node, "select last_outcome = 'fired' and missed = 1 from tq_schedules where name = 'patient'", 'late');
pass('late: how long a time may be ago');
once('clocks');
sql("select tq_unschedule(name) from tq_schedules");

#
# Many times at once; the rows about them do not accumulate
#
sql("select tq_schedule('many', 'many', every => '1 s', catch_up => 'all', options => '{\"max_catch_up\": 250}')");
forward(1000);
ok(until_true($node, "select count(*) >= 250 from tq.job where headers->'schedule'->>'name' = 'many'"), 'the jobs are there');
until_true($node, "select count(*) between 90 and 150 and min(fire_at) > (select fired_until from tq.schedule) from tq.schedule_fire where schedule = 'many'", 'pruned');
cmp_ok(sql("select missed from tq_schedules"), '>=', 740, 'what was missed is still known');
once('many');
forward(-1000);    # the clock was wrong: the pruned rows are in the future
ok(until_true($node, "select count(*) > 1 from tq.schedule_fire where schedule = 'many' and fire_at <= tq_now()"), 'set back after that, it fires at once');
is(sql("select next_at - tq_now() < '2 s' from tq_schedules"), 't', '... as tq_schedules says');    # limit: it only falls
sql("select tq_unschedule('many')");
# the previous job is still known when all kept rows are younger
sql("select tq_schedule('long', 'long', every => '1 s', overlap => 'skip', catch_up => 'all', options => '{\"max_catch_up\": 250}')");
until_true($node, "select count(*) > 0 from tq.schedule_fire where schedule = 'long' and outcome = 'fired'", 'long');
forward(1000);
until_true($node, "select count(*) between 90 and 150 and min(fire_at) filter (where outcome = 'skipped') > (select fired_until from tq.schedule)"
	  . " from tq.schedule_fire where schedule = 'long'", 'pruned');
sql("select tq_schedule('other', 'other', every => '1 s')");    # all schedules are read again
until_true($node, "select count(*) > 1 from tq.schedule_fire where schedule = 'other'", 'other');
dealt_with('long', sql('select tq_now()'));
is(sql("select count(*) from tq.job where headers->'schedule'->>'name' = 'long'"), 1, 'a job that runs for longer than rows are kept is not joined by a second one');
forward(1000);
until_true($node, "select count(*) between 90 and 150 from tq.schedule_fire where schedule = 'long' and fire_at > tq_now() - interval '1000 s'", 'pruned again');
is(sql("select count(*) filter (where outcome = 'fired') = 1 and count(distinct job_id) = 1 from tq.schedule_fire where schedule = 'long'"), 't', '... not later either');
my $fired = sql("select fire_at from tq.schedule_fire where schedule = 'long' and outcome = 'fired'");
my $back = sql("select tq_now() - interval '1500 s'");
forward(-1500);    # the clock was wrong: all rows between that row and now were pruned
until_true($node, "select count(*) > 1 from tq.schedule_fire where schedule = 'long' and fire_at > '$back' and fire_at <= tq_now()", 'set back');
is(sql("select count(*) from tq.schedule_fire where schedule = 'long' and fire_at > '$fired' and fire_at < timestamptz '$back' - interval '3 s'"), 0,
	'set back after that, it does not begin at the row of the job');
sql("select tq_unschedule(name) from tq_schedules");

#
# Clocks of time zones: every change between the two times, UTC
#
for my $case (
	[ 'Europe/Berlin', '30 2 * * *', '2027-03-27 12:00:00', '2027-03-29 12:00:00', '03-28 01:00 03-29 00:30' ],
	[ 'Europe/Berlin', '30 2 * * *', '2027-10-30 12:00:00', '2027-11-01 12:00:00', '10-31 00:30 11-01 01:30' ],
	[ 'Europe/Berlin', '*/20 1-3 * * *', '2027-03-27 22:00:00', '2027-03-28 01:45:00', '03-28 00:00 03-28 00:20 03-28 00:40 03-28 01:00 03-28 01:20 03-28 01:40' ],
	[ 'America/New_York', '30 1 * * *', '2027-11-06 12:00:00', '2027-11-08 12:00:00', '11-07 05:30 11-08 06:30' ],
	[ 'America/New_York', '30 * * * *', '2027-11-07 05:00:00', '2027-11-07 07:00:00', '11-07 05:30 11-07 06:30' ],
	[ 'Australia/Lord_Howe', '15 2 * * *', '2027-10-02 00:00:00', '2027-10-03 20:00:00', '10-02 15:30 10-03 15:15' ],
	[ 'Australia/Lord_Howe', '45 1 * * *', '2027-04-03 00:00:00', '2027-04-04 20:00:00', '04-03 14:45 04-04 15:15' ],
	[ 'Asia/Kathmandu', '0 9 * * *', '2027-01-01 00:00:00', '2027-01-02 12:00:00', '01-01 03:15 01-02 03:15' ],
	[ 'Asia/Kathmandu', '@daily', '1985-12-30 00:00:00', '1986-01-01 20:00:00', '12-30 18:30 12-31 18:30 01-01 18:15' ],
	[ 'Pacific/Apia', '0 12 * * *', '2011-12-29 12:00:00', '2011-12-31 12:00:00', '12-29 22:00 12-30 10:00 12-30 22:00' ],
  )
{
	my ($zone, $cron, $from, $to, $wanted) = @$case;
	my $name = "$zone $from";
	set_clock($from);
	sql("select tq_schedule('$name', 'zones', cron => '$cron', timezone => '$zone', catch_up => 'all')");
	my ($last) = $wanted =~ /(\S+ \S+)$/;
	set_clock($to);
	until_true($node, "select to_char(last_at at time zone 'UTC', 'MM-DD HH24:MI') = '$last' from tq_schedules", "$zone $cron");
	is(sql("select string_agg(to_char(fire_at at time zone 'UTC', 'MM-DD HH24:MI'), ' ' order by fire_at) from tq.schedule_fire where schedule = '$name' and outcome = 'fired'"),
		$wanted, "$zone, $cron from $from");
	sql("select tq_unschedule('$name')");
}
# not caught up, but when the clock reaches it
set_clock('2027-03-28 00:50:00');
sql("select tq_schedule('zone', 'zones', cron => '30 2 * * *', timezone => 'Europe/Berlin')");
set_clock('2027-03-28 00:59:57');
ok(until_true($node, "select last_at = '2027-03-28 01:00:00+00' from tq_schedules", 'the end of the gap'), 'a skipped time, as it comes');
sql("select tq_unschedule('zone')");
clock($node, $ahead = 0, 0);
once('time zones');

#
# The previous job
#
sql("select tq_schedule('o_$_', 'o_$_', every => '1 h', overlap => '$_') from tq_create_queue('o_$_')") for qw(allow skip cancel);
forward(3601);
until_true($node, "select count(*) = 3 from tq_schedules where last_outcome = 'fired'", 'first');
my %first = map { $_ => sql("select last_job_id from tq_schedules where name = 'o_$_'") } qw(allow skip cancel);
forward(3600);
until_true($node, "select count(*) = 6 from tq.schedule_fire where schedule ~ '^o_'", 'second');
is(sql("select state from tq_get($first{allow})"), 'ready', 'allow: the first job is still there');
is(sql("select last_outcome from tq_schedules where name = 'o_allow'"), 'fired', '... and so is the second');
is(sql("select last_outcome, last_job_id is null from tq_schedules where name = 'o_skip'"), 'skipped|t', 'skip: there is none');
is(sql("select state from tq_get($first{cancel})"), 'cancelled', 'cancel: the first job waited, and is cancelled');
like(sql("select reason from tq_history($first{cancel}) where event = 'cancelled'"), qr/^schedule "o_cancel" fired again at /, '... and says why');
my $second = sql("select last_job_id from tq_schedules where name = 'o_cancel'");
is(sql("select id from tq_claim('o_cancel', lease_for => '1 d')"), $second, 'the second runs');
is(sql("select id, tq_complete(id, lease) from tq_claim('o_skip')"), "$first{skip}|succeeded", 'skip: the first job ends');
forward(3600);
until_true($node, "select count(*) = 9 from tq.schedule_fire where schedule ~ '^o_'", 'third');
is(sql("select last_outcome from tq_schedules where name = 'o_skip'"), 'fired', '... then there is another');
is(sql("select state from tq_get($second)"), 'running', 'cancel: a running job goes on');
is(sql("select action from tq_running r, tq_heartbeat(r.id, r.lease) where r.id = $second"), 'cancel', '... and is asked to stop');
forward(3 * 3600);
sql("select tq_schedule('o_skip', 'o_skip', every => '1 h', overlap => 'skip', catch_up => 'all')");    # other rules, at the same times
is(sql("select count(*) from tq_schedules where last_outcome = 'manual'"), 0, 'none by hand so far');
# the clock is set back while the schedules cannot be read: times are repeated, and the job that was fired after them is
# the previous job
$log = -s $node->logfile;
sql("select tq_schedule('o_back', 'o_back', every => '1 h', overlap => 'skip') from tq_create_queue('o_back')");
my $zero = sql("select fired_until from tq.schedule where name = 'o_back'");
forward(2 * 3600 + 1);
dealt_with('o_back', sql("select timestamptz '$zero' + '2 h'"));
my $holder = session($node);
ask($holder, 'begin; lock table tq.schedule');
forward(-5400);
until_so(sub { logged(qr/canceling statement due to lock timeout/) }, 'the schedules cannot be read');
ask($holder, 'commit');
leave($holder);
forward(1800 + 5);
ok(until_true($node, "select count(*) = 1 from tq.schedule_fire where schedule = 'o_back' and fire_at = timestamptz '$zero' + '1 h'", 'set back'),
	'a clock that is set back while schedules cannot be read is not forgotten');
is(sql("select outcome from tq.schedule_fire where schedule = 'o_back' order by fire_at limit 1"), 'skipped', '... and the job that was fired before that is not either');
# a job that does not belong to the schedule is not cancelled
my $theirs = sql("select tq_enqueue('o_key', unique_key => 'k')");
sql("select tq_schedule('o_key', 'o_key', every => '1 h', overlap => 'cancel', options => '{\"unique_key\": \"k\"}')");
for my $hour (1 .. 2)
{
	forward(3601);
	until_true($node, "select count(*) = $hour from tq.schedule_fire where schedule = 'o_key'", 'duplicate');
}
is(sql("select distinct outcome, job_id from tq.schedule_fire where schedule = 'o_key'"), "duplicate|$theirs", 'a unique key that another job has');
is(sql("select state from tq_get($theirs)"), 'ready', '... whose job is let be');
sql("select tq_unschedule(name) from tq_schedules");
clock($node, $ahead = 0, 0);

#
# H16: locks of other sessions are not waited for
#
my $user = session($node);
ask($user, 'begin');
ask($user, "select tq_enqueue('keyed', unique_key => 'k')");
sql("select tq_schedule('keyed', 'keyed', every => '1 s', options => '{\"unique_key\": \"k\"}')");
sql("select tq_schedule('free', 'free', every => '1 s')");
until_true($node, "select count(*) >= 3 from tq.schedule_fire where schedule = 'free'", 'free');
is(sql("select count(*) from tq.schedule_fire where schedule = 'keyed'"), 0, 'H16: a key that an open transaction holds, which does not keep others');
ask($user, 'rollback');
dealt_with('keyed', '-infinity');
is(sql("select outcome from tq.schedule_fire where schedule = 'keyed' order by fire_at limit 1"), 'fired', '... and when it is free it fires');
until_true($node, "select outcome = 'duplicate' from tq.schedule_fire where schedule = 'keyed' order by fire_at desc limit 1", 'duplicate');
is(sql("select count(distinct job_id), count(*) > 1 from tq.schedule_fire where schedule = 'keyed'"), '1|t', 'a key that its own job has');
ask($user, 'begin');
ask($user, "select tq_unschedule('free')");
my $before = sql("select count(*) from tq.schedule_fire where schedule = 'keyed'");
until_true($node, "select count(*) > $before + 1 from tq.schedule_fire where schedule = 'keyed'", 'keyed goes on');
ask($user, 'rollback');
$before = sql("select max(fire_at) from tq.schedule_fire where schedule = 'free'");
dealt_with('free', sql("select timestamptz '$before' + '1 s'"));
pass('a schedule that was not dropped after all goes on');
my $since = sql('select clock_timestamp()');
ask($user, "begin; select tq_schedule('free', 'free', '{\"new\": true}', every => '1 s')");
$before = sql("select max(fire_at) from tq.schedule_fire where schedule = 'free'");
dealt_with('free', sql("select timestamptz '$before' + '1 s'"));
is(sql("select payload from tq_get((select last_job_id from tq_schedules where name = 'free'))"), '{}', 'as long as a change is open the old definition holds');
ask($user, 'commit');
until_true($node, "select payload = '{\"new\": true}' from tq_get((select last_job_id from tq_schedules where name = 'free'))", 'new');
none_is_missing("schedule = 'free' and fire_at > '$since'", 'and no time is lost by it');
sql("select tq_unschedule(name) from tq_schedules");

#
# Errors
#
$log = -s $node->logfile;
sql("select tq_create_queue('full', '{\"max_depth\": 1}'), tq_enqueue('full')");
sql("select tq_schedule('full', 'full', every => '1 s')");
until_true($node, "select last_error like 'queue \"full\" is full%' from tq_schedules", 'full');
is(sql("select status, value from tq_health() where item = 'schedules'"), 'warn|1; cannot enqueue: "full"', 'an error is in tq_health()');
until_true($node, "select (regexp_match(tq_metrics(), 'tq_schedule_errors_total (\\d+)'))[1]::int >= 3", 'tried again');
is(() = slurp_file($node->logfile, $log) =~ /schedule "full" cannot enqueue its job: queue "full" is full/g, 1, '... and in the log, once');
sql("select tq_alter_queue('full', '{\"max_depth\": 1000}')");
until_true($node, "select last_outcome = 'fired' and last_error is null from tq_schedules", 'not full');
pass('when it has passed it fires, and the error is gone');
is(sql("select status from tq_health() where item = 'schedules'"), 'ok', 'tq_health() is content');
sql("select tq_unschedule('full')");

sql("create role one; select tq_create_queue('rights'); select tq_grant('rights', 'one', 'produce')");
sql("set role one; select tq_schedule('rights', 'rights', every => '1 s')");
until_true($node, "select last_outcome = 'fired' from tq_schedules", 'with rights');
sql("select tq_revoke('rights', 'one', 'produce')");
until_true($node, "select last_outcome = 'denied' and last_error like 'permission denied for queue \"rights\"%' from tq_schedules", 'without');
pass('without the right to produce its owner gets no jobs');
until_true($node, "select count(*) filter (where outcome = 'denied') > 2 from tq.schedule_fire", 'denied again');
is(() = slurp_file($node->logfile, $log) =~ /schedule "rights" cannot enqueue its job: permission denied/g, 1, 'the log says so once');
sql("select tq_grant('rights', 'one', 'produce')");
until_true($node, "select last_outcome = 'fired' and last_error is null from tq_schedules", 'with rights again');
sql("drop role one");
until_true($node, "select last_outcome = 'denied' and last_error like 'the role that schedule \"rights\" belongs to does not exist' from tq_schedules", 'no owner');
pass('a deleted one does not either');
sql("select tq_unschedule('rights')");

like(ask($user, "begin; select tq_create_queue('x'), tq_schedule('x', 'x', every => '1 s'); prepare transaction 'x'"), qr/ERROR:  0A000/, 'a transaction that changes a schedule is not prepared');
is(sql("select count(*) from tq_schedules"), 0, '... and gone');

# by hand
let_write($node, 'schedule', 'schedule_fire');
sql("select tq_schedule('hand', 'hand', every => '1 s'), tq_schedule('odd', 'hand', every => '1 s')");
sql("update tq.schedule set catch_up = 'latest', payload = '{\"by\": \"hand\"}' where name = 'hand'");
until_true($node, "select payload = '{\"by\": \"hand\"}' from tq_get((select last_job_id from tq_schedules where name = 'hand'))", 'by hand');
pass('a change by hand counts');
sql("update tq.schedule set timezone = 'Nowhere' where name = 'odd'");
until_true($node, "select state = 'invalid' from tq_schedules where name = 'odd'", 'odd');
$before = sql("select max(fire_at) from tq.schedule_fire where schedule = 'hand'");
dealt_with('hand', sql("select timestamptz '$before' + '1 s'"));
ok(until_so(sub { logged(qr/schedule "odd" is ignored: time zone "Nowhere" does not exist/) }, 'odd is ignored'),
	'a row that makes no sense is logged, and keeps no other');
sql("truncate tq.schedule");
is(sql("select count(*) from tq_schedules"), 0, 'truncated');

# the first job of a queue that it creates, when only the scheduler can write the queue's row
sql("select tq_schedule('maker', 'made by it', every => '1 s'); select tq_drop_queue('made by it')");
until_true($node, "select count(*) = 1 from tq_queues where queue = 'made by it'", 'made');
pass('a queue that was dropped is made again');
sql("select tq_unschedule('maker')");
once('errors');

#
# Another process has handled a time, as a second scheduler would
#
sql("select tq_schedule('twice', 'twice', every => '2 s')");
arm($node, 'fire-before-row');
standing($node, 'fire-before-row');
my $time = sql("select next_at from tq_schedules");
sql("insert into tq.schedule_fire (schedule, fire_at, at, outcome) values ('twice', '$time', now(), 'fired')");
release($node, 'fire-before-row');
dealt_with('twice', sql("select timestamptz '$time' + '2 s'"));
is(sql("select count(*) from tq.job where headers->'schedule'->>'name' = 'twice' and (headers->'schedule'->>'fire_at')::timestamptz = '$time'"), 0,
	'a time that has its row gets no job');
is(sql("select last_outcome, last_error is null from tq_schedules"), 'fired|t', '... and the next one does');
sql("select tq_unschedule('twice')");

#
# Crashes
#
sql("select tq_schedule('crash ' || i, 'crash', every => '1 s', catch_up => 'all', options => '{\"max_catch_up\": 1000}') from generate_series(1, 5) i");
until_true($node, "select count(*) >= 5 from tq.schedule_fire", 'before the crash');
my $pid = scheduler_of($node);
arm($node, 'fire-before-row', 'kill');
until_true($node, "select count(*) = 1 from pg_stat_activity where backend_type = 'tq scheduler' and datname = 'postgres' and pid <> $pid", 'another scheduler');
for my $crash (1 .. 3)
{
	$node->stop('immediate');
	$node->start;
	scheduler_of($node);
	my $now = sql('select now()');
	until_true($node, "select count(distinct schedule) = 5 from tq.schedule_fire where fire_at > '$now'", "after crash $crash");
}
tq_setup($node, 'postgres');
my $armed = sql('select clock_timestamp()');
arm($node, 'fire-before-row', 'error');
until_true($node, "select count(distinct schedule) = 5 from tq.schedule_fire where fire_at > '$armed'", 'after an error');
until_true($node, "select bool_and(last_error is null) from tq_schedules", 'no error is left');
once('crashes');
is(sql("select string_agg(distinct extract(epoch from d)::text, ' ') from (select fire_at - lag(fire_at) over (partition by schedule order by fire_at) as d from tq.schedule_fire) x where d > '0'"),
	'1.000000', 'no time is missing');
is(sql("select count(*) from tq.schedule_fire f where outcome = 'fired' and not exists (select from tq.job j where j.id = f.job_id)"), 0, 'each has its job');
is(sql("select count(*) from tq.job j where headers->'schedule'->>'name' ~ '^crash' and not exists (select from tq.schedule_fire f where j.id = f.job_id)"
	  . " and (headers->'schedule'->>'fire_at')::timestamptz >= (select min(fire_at) from tq.schedule_fire f where schedule = headers->'schedule'->>'name')"),
	0, 'and each job its time');

#
# A standby is promoted
#
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$node->reload;
until_true($node, "select count(*) = 1 from pg_stat_replication where sync_state = 'sync'", 'a synchronous standby');
like(ask(session($standby), "select tq_schedule('x', 'y', every => '1 s')"), qr/ERROR:  25006/, 'a standby defines none');
my $seen = sql("select max(fire_at) from tq.schedule_fire");
$node->stop('immediate');
$standby->promote;
scheduler_of($standby);
until_true($standby, "select count(distinct schedule) = 5 from tq.schedule_fire where fire_at > timestamptz '$seen' + interval '2 s'");
once('promotion', $standby);
is($standby->safe_psql('postgres', "select string_agg(distinct extract(epoch from d)::text, ' ') from (select fire_at - lag(fire_at) over (partition by schedule order by fire_at) as d from tq.schedule_fire) x where d > '0'"),
	'1.000000', 'over the promotion no time is missing');
is($standby->safe_psql('postgres', 'select count(*) from tq_check() where expected >= 0 and expected <> found'), 0, 'memory and journal agree');

#
# H33: a restored dump, a clone
#
$node = $standby;
sql("select tq_unschedule(name) from tq_schedules where name <> 'crash 1'");
sql("select tq_schedule('crash 1', 'crash', every => '1 s', catch_up => 'latest')");
my $dump = PostgreSQL::Test::Utils::tempdir . '/dump';
{
	local %ENV = $node->_get_env();
	IPC::Run::run([ 'pg_dump', '-d', 'postgres', '-Fc', '-f', $dump ]) or die;
	sql('create database copy');
	IPC::Run::run([ 'pg_restore', '-d', 'copy', $dump ]) or die;
}
my ($rows, $last) = split /\|/, sql('select count(*), max(fire_at) from tq.schedule_fire', 'copy');
$before = sql("select max(fire_at) from tq.schedule_fire");
dealt_with('crash 1', sql("select timestamptz '$before' + '2 s'"));
is(sql('select count(*) from tq.schedule_fire', 'copy'), $rows, 'H33: schedules of a copy do not fire');
sql('select tq_activate()', 'copy');
until_true($node, "select count(*) >= 2 from tq.schedule_fire where outcome = 'fired' and fire_at > '$last'", 'activated', 'copy');
pass('until tq_activate()');
cmp_ok(sql("select missed from tq_schedules", 'copy'), '>=', 1, '... when they catch up as they say');
is(sql("select count(*) from tq.schedule_fire f where outcome = 'fired' and not exists (select from tq.job j where j.id = f.job_id)", 'copy'), 0, 'each time has its job');

# a schedule that is dropped and created again while it fires
sql(q{select tq_schedule_pause(name) from tq_schedules});
sql(q{select tq_schedule('anew', 'anew', '{"v": "old"}', every => '1 s')});
arm($node, 'fire-before-row', 'wait', pid => scheduler_of($node));
standing($node, 'fire-before-row');
sql(q{select tq_unschedule('anew')});
sql(q{select tq_schedule('anew', 'anew', '{"v": "new"}', every => '1 s')});
release($node, 'fire-before-row');
until_true($node, q{select count(*) > 0 from tq.job j join tq.queue q on q.id = j.queue_id where q.name = 'anew' and payload->>'v' = 'new'}, 'anew');
is(sql(q{select string_agg(distinct j.payload->>'v', ',') from tq.job j join tq.schedule_fire f on f.job_id = j.id where schedule = 'anew'}), 'new',
	'a schedule that is dropped and created again does not fire with its old definition');
sql(q{select tq_unschedule('anew')});

# a database whose first use is a schedule
sql('create database fresh');
tq_setup($node, 'fresh');
sql("select tq_create_queue('first'); select tq_schedule('first', 'first', every => '1 s')", 'fresh');
until_true($node, "select count(*) > 0 from tq.schedule_fire", 'fresh', 'fresh');
pass('a schedule is a use');
is($node->psql('fresh', 'drop extension tq'), 0, 'DROP EXTENSION with schedules');
sql('create database fresher');
sql("begin; create extension tq; select tq_create_queue('first'); select tq_schedule('first', 'first', every => '1 s'); commit", 'fresher');
ok(until_true($node, "select count(*) > 0 from tq.schedule_fire", 'fresher', 'fresher'), 'also one that comes with the extension');
sql('drop database fresher');

# the row of a schedule stays locked: that uses up no turn of its queue
sql(q{select tq_create_queue('paced', '{"enqueue_rate": "20/min"}')});
sql(q{select tq_schedule('kept', 'paced', every => '1 d', options => jsonb_build_object('start', clock_timestamp() + interval '1 h'))});
my $locker = session($node);
ask($locker, q{begin; select from tq.schedule where name = 'kept' for update});
my $ticks = q{select count(*) from tq.schedule_fire where schedule = 'ticks'};
sql(q{select tq_schedule('ticks', 'ticks', every => '1 s')});
clock($node, 3700, 3700);
until_true($node, "select count(*) > 1 from tq.schedule_fire where schedule = 'ticks'", 'others fire');
my $ticked = sql($ticks);
until_true($node, "select ($ticks) > $ticked + 4", 'for some seconds');
is(sql(q{select count(*) from tq.schedule_fire where schedule = 'kept'}), 0, 'a schedule whose row is locked does not fire');
is(sql(q{select tq_enqueue('paced') > 0}), 't', '... and uses up nothing of what its queue lets in');
leave($locker);
ok(until_true($node, q{select count(*) = 1 from tq.schedule_fire where schedule = 'kept'}), '... and fires when it is free');
sql(q{select tq_unschedule(name) from tq_schedules});
clock($node, 0, 0);

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6/, 'nothing alarming in the log');
$node->stop;

done_testing();
