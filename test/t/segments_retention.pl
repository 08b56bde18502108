# Retention with different mixes of jobs. Jobs that outlive their segment move when that frees space, or when segment
# numbers run short. Segments open so slowly that the longest retention fits. A scan without result is not repeated at
# once. Jobs that ended while the clock was ahead are kept for their retention.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $most = 16;
my $node = tq_node('mix', conf => <<CONF);
tq.max_segments = $most
tq.segment_rows = 40
tq.segment_interval = 20d
tq.retention = 1h
tq.dead_retention = 30d
tq.max_live_jobs = 2000
tq.audit_interval = 0
shared_preload_libraries = 'tq, pg_stat_statements'
CONF
scheduler_of($node);

my $ahead = 0;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub pass_time
{
	my ($seconds) = @_;
	$ahead += $seconds;
	clock($node, $ahead, 0);
	return;
}

# Claims and completes all ready jobs, without reading the tables. Some of them may have to come from disk.
sub work
{
	until_true($node, q{with ended as (select count(tq_complete(id, lease)) as n from tq_claim('now', 1000))
		select n = 0 and (select ready = 0 from tq_stats() where queue = 'now') from ended}, 'all are done');
	return;
}
sub newest { return sql('select coalesce(max(number), 0) from tq.segment'); }
sub count_of { return sql(q{select count(*) from pg_class where relnamespace = 'tq'::regnamespace and relname ~ '^job_[1-9][0-9]*$'}); }

# A full segment: so many jobs are delayed by 30 days, the others end. Returns its number.
sub fill
{
	my ($delayed) = @_;
	my $before = newest();
	sql("select tq_enqueue('later', delay => '30 days') from generate_series(1, $delayed)") if $delayed > 0;
	sql("select tq_enqueue('now') from generate_series($delayed + 1, 40)");
	work() if $delayed < 40;
	segment_after($node, $before);
	return $before;
}

# Whether it is finished, and perhaps dropped already.
sub over { return "select not exists (select from tq.segment where number = $_[0] and finished_at is null)"; }

sub gone { return "select to_regclass('tq.job_$_[0]') is null"; }

sql(q{select tq_create_queue('now'), tq_create_queue('later')});
sql(q{select tq_enqueue('now')});
segment_after($node, 0);
work();

#
# A fifth of the jobs stays live: the segment is dropped after its retention
#
sql(q{select tq_enqueue('later')});
sql(q{do $$
declare c record;
begin
	select id, lease into c from tq_claim('later');
	for i in 1 .. 200 loop
		perform tq_heartbeat(c.id, c.lease, checkpoint => to_jsonb(repeat('x', 900000)));
	end loop;
	perform tq_release(c.id, c.lease, '30 days');
end $$});
my $some = fill(8);
my $many = fill(30);
janitor_away($node);
arm($node, 'move-after-copy');
pass_time(4000);
standing($node, 'move-after-copy');
my $copied = own_memory(sql(q{select pid from pg_stat_activity where backend_type = 'tq janitor'}));
cmp_ok($copied, '<', 60, sprintf('a history of 180 MB is copied event by event: %d MB', $copied));
release($node, 'move-after-copy');
ok(until_true($node, 'select count(*) = 8 from tq.job_0 where run_at is not null'), 'a fifth of a segment is moved');
ok(until_true($node, "select finished_at is not null from tq.segment where number = $some"), '... and the segment is finished');
pass_time(4000);
ok(until_true($node, gone($some)), '... and dropped');
is(sql("select to_regclass('tq.job_$many') is not null and count(*) = 8 from tq.job_0 where run_at is not null"), 't', 'three quarters are not');

#
# Only jobs that stay live: they take half of the slots, no more
#
my $highest = 0;
for my $i (1 .. 24)
{
	fill(40);
	janitor_away($node);    # else it gets one round for each segment, and places run out
	pass_time(4000);
	my $n = count_of();
	$highest = $n if $n > $highest;
}
cmp_ok($highest, '<', $most - 1, 'places do not run out if all jobs live on');
cmp_ok(sql('select max(n) from (select count(*) n from tq.job where tableoid <> $$tq.job_0$$::regclass group by tableoid) c'), '<=', 60, '... and no segment grows');
is(sql(q{select delayed from tq_stats() where queue = 'later'}), 1 + 8 + 30 + 24 * 40, 'all of them are there');
is(sql('select * from tq_check() where expected <> found'), '', 'tq_check()');

#
# Ended jobs are kept for their retention: then each segment takes jobs for longer
#
pass_time(100000);
ok(until_true($node, 'select count(*) < 10 from tq.segment'), 'old ones go');
my $before = count_of();
for (1 .. 3 * $most)
{
	sql("select tq_enqueue('now') from generate_series(1, 40)");
	work();
	pass_time(200);
	janitor_away($node);
}
my $now = count_of();
note("$before segments before, $now after");
cmp_ok($now, '<', $most - 1, 'segments of less than retention fit');
my $log = slurp_file($node->logfile);
unlike($log, qr/no slot is free for another segment/, 'a slot is free all the time');
my ($code, $out, $err) = $node->psql('postgres', q{select tq_create_queue('archive', '{"retention": "90 days"}')});
like($err, qr/WARNING:  retention of queue "archive" is long.*HINT:  Raise tq.max_segments/s, 'a warning if segments will be long');
($code, $out, $err) = $node->psql('postgres', q{select tq_alter_queue('archive', '{"retention": "81 days"}')});
like($err, qr/WARNING:  retention of queue/, '... also when it is altered');
($code, $out, $err) = $node->psql('postgres', q{select tq_alter_queue('archive', '{"retention": "10 days"}')});
is($err, '', '... but not if all fits');

#
# A segment with a running job, which cannot be moved, is not read repeatedly
#
sql(q{select tq_drop_queue('archive')});
sql(q{select tq_enqueue('runs', options => '{"lease": "30 days"}')});
is(sql(q{select count(*) from tq_claim('runs')}), 1, 'a job runs');
my $running = sql(q{select substr(tableoid::regclass::text, 8) from tq.job j, tq_running r where r.id = j.id});
pass_time(8000);
sql("select tq_enqueue('now') from generate_series(1, 40)");
work();
ok(until_true($node, "select sealed_at is not null from tq.segment where number = $running"), 'its segment is sealed');
pass_time(8000);
sub scans { return sql("select seq_scan from pg_stat_user_tables where relname = 'job_$_[0]'") }
ok(until_true($node, "select seq_scan > 0 from pg_stat_user_tables where relname = 'job_$running'"), 'it is looked at');
my $some_scans = scans($running);
my $began = time;

# a segment that an open transaction keeps from being finished is not read repeatedly either
my $writer = session($node);
my $open = newest();
ask($writer, q{begin; select tq_enqueue('now')});
my $open_scans = scans($open);

# rounds of the janitor, which checks all segments each time
my $last = 0;
for (1 .. 8)
{
	$last = fill(0);
	pass_time(8000);
}
until_true($node, over($last), 'the last one is finished');
pass_time(8000);
ok(until_true($node, gone($last)), 'others are dropped meanwhile');
sql('select pg_stat_force_next_flush()');
# it rests for 60 times tq.naptime, 6 s, at least
cmp_ok(scans($running) - $some_scans, '<=', 2 + (time - $began) / 6, 'but not again at each round');
cmp_ok(scans($open) - $open_scans, '<=', 2 + (time - $began) / 6, 'nor is a segment that a transaction writes to');
ask($writer, 'commit');
work();
ok(until_true($node, over($open)), 'it is finished later');
sql(q{select tq_complete(r.id, r.lease) from tq_running r});
ok(until_true($node, "select finished_at is not null from tq.segment where number = $running"), 'so is the other');
is(sql('select * from tq_check() where expected <> found'), '', 'tq_check() at the end');
leave($writer);

#
# A job of segment 0 that ended while the clock was ahead is kept for its retention, not until that date
#
clock($node, $ahead + 31 * 86400, 0);
my $early = sql(q{select id from tq_claim('later', wait => '3 min') c, tq_complete(c.id, c.lease)});
is(sql("select tableoid::regclass from tq.job where id = $early"), 'tq.job_0', 'a job of segment 0 ends ahead of time');
clock($node, $ahead, 0);
is(sql("select finished_at > tq_now() + interval '30 days' from tq_get($early)"), 't', 'its end is of the future');
my $there = 1;
for (my $hour = 1; $there && $hour < 40; ++$hour)
{
	arm($node, 'clean-before-delete');
	$ahead += 3700;
	clock($node, $ahead, $hour * 3700);
	standing($node, 'clean-before-delete');
	release($node, 'clean-before-delete');
	janitor_away($node);
	$there = sql("select count(*) from tq.job_0 where id = $early");
}
is($there, 0, 'it goes when the monotonic clock says so');

sql('create extension pg_stat_statements');
is(sql(q{select count(*) from pg_stat_statements where query ~ '^(CREATE|ALTER|DROP|REVOKE).* tq.(job|event)_[0-9]'}), 0,
	'segments leave nothing in pg_stat_statements');
done_testing();
