# Segments are opened by size and age, sealed, finished, and dropped after retention, with readers and without. Jobs
# that outlive their segment move to segment 0. Administrators rewrite tables and add rows by hand (R1, R3, R6).
# Hazards: H3, H5, H21, H31.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('segment_life', conf => <<CONF);
tq.claim_log_delay = 1min
shared_buffers = 64MB
tq.segment_rows = 200
tq.max_live_jobs = 600
tq.segment_interval = 10min
tq.retention = 1h
tq.dead_retention = 1d
tq.cancel_grace = 1h
log_lock_waits = on
deadlock_timeout = 10ms
CONF
scheduler_of($node);

my $ahead = 0;     # seconds that the wall clock is ahead
my $mono = 0;      # the same for the monotonic clock, which never goes back

sub pass_time
{
	my ($seconds) = @_;
	$ahead += $seconds;
	clock($node, $ahead, $mono);
	return;
}

sub sql { return $node->safe_psql('postgres', $_[0]); }

# The number of the open segment.
sub newest { return sql('select coalesce(max(number), 0) from tq.segment'); }

# Enqueues n jobs and waits until they have filled their segment, if they should.
sub fill
{
	my ($queue, $n) = @_;
	my $before = newest();
	my @ids = split /\n/, sql(<<SQL);
select unnest(tq_enqueue_many('$queue', array_agg(jsonb_build_object('n', g, 'text', repeat('x', g))))) from generate_series(1, $n) g
SQL
	segment_after($node, $before) if $n >= 200;
	janitor_away($node);
	return @ids;
}

# Whether tq_check() finds that memory and journal agree.
sub check
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql('select * from tq_check() where expected <> found'), '', "tq_check(): $name");
	return;
}

# Claims and completes all ready jobs of a queue; returns ids whose payload has changed.
sub consume
{
	my ($queue) = @_;
	my @wrong;
	# one queue may have at most half of the memory, and the rest is read from disk
	for (1 .. 1800)
	{
		my ($n, @some) = split /\n/, sql(<<SQL);
create temp table claimed as select id, lease, payload from tq_claim('$queue', 100, wait => '100 ms'); -- poll
select count(*) from claimed;
select id from claimed where length(payload->>'text') <> (payload->>'n')::int;
select from tq_complete_many(array(select id from claimed), array(select lease from claimed)) where status <> 'ok';
SQL
		push @wrong, @some;
		last if $n == 0 && unfinished($node, $queue) == 0;
	}
	return @wrong;
}

#
# Opened, sealed, finished
#
sql(q{select tq_enqueue('a', '{"n": 0, "text": ""}')});
segment_after($node, 0);
pass('the first job makes the janitor open segment 1');
my @ids = fill('a', 200);
is(newest(), 2, 'segment 2 is opened by size');
is(sql("select count(*), min(id), max(id) from tq.job_1"), "200|$ids[0]|$ids[-1]", 'segment 1 has as many jobs as it may');
is(sql('select sealed_at is not null, finished_at is null from tq.segment where number = 1'), 't|t', 'it is sealed, not finished');
push @ids, fill('a', 1);
pass_time(660);
segment_after($node, 2);
pass('segment 3 is opened by age');
pass_time(660);
janitor_away($node);
is(newest(), 3, 'an empty one is left open however old it is');
is(scalar(consume('a')), 0, 'all jobs are delivered as they were enqueued');
until_true($node, 'select count(*) = 2 from tq.segment where finished_at is not null', 'two are finished');
pass('segments without live jobs are finished');
check('finished segments');

#
# Dropped, but not while a session reads it; the janitor does not wait for the reader
#
my $reader = session($node);
ask($reader, 'begin; declare c cursor for select id from tq.job_1 order by id; fetch c');
my $log = -s $node->logfile;
pass_time(4000);
until_true($node, "select to_regclass('tq.job_2') is null", 'segment 2 is dropped');
pass('retention drops a segment without readers');
sql(<<'SQL');
do $$
declare
	until timestamptz := clock_timestamp() + interval '2 s';
begin
	loop
		perform tq_enqueue('hot');
		perform tq_complete(id, lease) from tq_claim('hot');
		commit;
		exit when clock_timestamp() >= until;
	end loop;
end $$;
SQL
is(sql("select to_regclass('tq.job_1') is not null"), 't', 'a segment that is read stays');
take_all($node, 'hot', 1);    # each transaction took the jobs that the one before had enqueued
is(unfinished($node, 'hot'), 0, 'the others go on');
unlike(slurp_file($node->logfile, $log), qr/\] tq janitor .* still waiting for (Share|ShareRowExclusive|Exclusive|AccessExclusive)Lock on relation/,
	'H21: the janitor waits for no lock, behind which others would wait');
is(ask($reader, 'fetch c'), $ids[1], 'the reader goes on reading');
ask($reader, 'commit');
until_true($node, "select to_regclass('tq.job_1') is null and not exists (select from tq.segment where number = 1)", 'segment 1 goes');
pass('and the segment is dropped when he has gone');
is(sql("select count(*) from pg_class where relnamespace = 'tq'::regnamespace and relname ~ '_[12](_|\$)'"), 0, 'with all that belongs to it');

#
# Moved to segment 0
#
@ids = fill('m', 200);
my $n = sql("select tableoid::regclass from tq.job where id = $ids[0]") =~ s/.*job_//r;
my ($ready, $failed, $dead, $buried, $cancelled, $gone) = @ids[ 10, 20, 30, 40, 50, 60 ];
sql(<<"SQL");
create temp table claimed as select id, lease from tq_claim('m', 1000, lease_for => '1 day');
select tq_release(id, lease) from claimed where id in ($ready, $gone);
select tq_fail(id, lease, 'later', retry_in => '3 days') from claimed where id = $failed;
select tq_fail(id, lease, 'never', fatal => true) from claimed where id = $dead;
select tq_bury(id, lease, 'look at it') from claimed where id = $buried;
select tq_complete(id, lease) from claimed where id not in ($ready, $failed, $dead, $buried, $cancelled, $gone);
SQL
my $held = sql("select id || ', ' || lease from tq_get($cancelled)");
check('before the move');
pass_time(4000);
until_true($node, "select count(*) = 5 from tq.job_0 where id in ($ready, $failed, $dead, $buried, $gone)", 'five jobs are moved');
pass('few jobs that outlive their segment are moved');
janitor_away($node);
is(sql("select to_regclass('tq.job_$n') is not null"), 't', 'the segment stays as long as a job in it is running');
is(sql("select tq_cancel($gone)"), 'cancelled', 'a moved job is cancelled');
is(sql("select state from tq_get($gone)"), 'cancelled', 'which shows though its old segment is there');
pass_time(4000);
until_true($node, "select count(*) = 0 from tq.job_0 where id = $gone", 'it goes from segment 0');
like(($node->psql('postgres', "\\set VERBOSITY verbose\nselect state from tq_get($gone)"))[2], qr/TQ004/,
	'then it is not there any more, though its old row is');
is(sql("select tq_cancel($cancelled)"), 'asked', 'a running job is asked to stop');
is(sql("select action from tq_heartbeat($held)"), 'cancel', 'and hears of it');
is(sql("select tq_fail($held, 'stopped')"), 'cancelled', 'it is cancelled');
until_true($node, "select finished_at is not null from tq.segment where number = $n", 'the segment is finished');
pass_time(4000);
until_true($node, "select to_regclass('tq.job_$n') is null", 'the segment is dropped');
pass('then the segment has its retention, too, and is dropped');
check('after the move');
is(sql("select string_agg(state || ' ' || attempt, ', ' order by id) from unnest(array[$ready, $failed, $dead, $buried]) i, tq_get(i)"),
	'ready 0, delayed 1, dead 1, buried 1', 'what was moved has the state it had');
like(sql("select string_agg(event, ',' order by step) from tq_history($failed)"), qr/^enqueued,(claimed,)?failed$/, 'and its history');
is(join(',', take_all($node, 'm', 1)), $ready, 'a moved job is claimed and finished');
is(sql("select state from tq_get($ready)"), 'succeeded', 'and ends in segment 0');
is(sql("select tq_retry($buried)"), 'ready', 'a buried job can be retried there');
is(join(',', take_all($node, 'm', 1)), $buried, 'and runs');
is(sql("select tq_retry($failed)"), 'ready', 'and so can the delayed one');
is(join(',', take_all($node, 'm', 1)), $failed, 'and runs');
$node->stop('immediate');
$node->start;
clock($node, $ahead, $mono);
loaded($node);
is(sql("select string_agg(state, ', ' order by id) from unnest(array[$ready, $failed, $dead, $buried]) i, tq_get(i)"),
	'succeeded, succeeded, dead, succeeded', 'a crash changes nothing of that');
check('after a crash');

pass_time(4000);
until_true($node, "select count(*) = 0 from tq.job_0 where id in ($ready, $failed, $buried)", 'finished jobs of segment 0 go');
pass('segment 0 is cleaned after retention');
is(sql("select count(*) from tq.event_0 where job_id in ($ready, $failed, $buried)"), 0, 'events too');
is(sql("select state from tq_get($dead)"), 'dead', 'a dead letter is kept longer');
pass_time(86400);
until_true($node, "select count(*) = 0 from tq.job_0 where id = $dead", 'the dead letter goes');
pass('but not for ever');
my ($code, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nselect state from tq_get($dead)");
like($err, qr/TQ004/, 'then there is no such job');
check('after cleaning');

#
# Changes by administrators
#
$n = newest();
# rolled-back rows leave gaps, so after a rewrite of the table the positions in memory are wrong
sql("begin; select tq_enqueue_many('admin', array_agg(jsonb_build_object('text', repeat('y', 500)))) from generate_series(1, 150); rollback");
my @statements = (
	'vacuum full tq.job_N', 'vacuum full tq.event_N', 'cluster tq.job_N using job_N_id', 'reindex table concurrently tq.job_N',
	'reindex table concurrently tq.event_N', 'alter table tq.job_N alter column payload set storage external',
	'alter table tq.job_N set (fillfactor = 90)', 'alter table tq.job_N add constraint c check (priority < 1000000)',
	'alter table tq.job_N set unlogged', 'alter table tq.job_N set logged', 'vacuum (full, analyze) tq.job_N', 'vacuum freeze tq.job_N');
for my $statement (@statements)
{
	my @some = fill('admin', 5);
	my $segment = sql("select replace(tableoid::regclass::text, 'tq.job_', '') from tq.job where id = $some[0]");
	(my $ddl = $statement) =~ s/N\b|N(?=_)/$segment/g;
	is($node->psql('postgres', $ddl), 0, $ddl);
	is(sql("select tq_claim.id from tq_claim('admin') offset 1"), '', 'a session claims one and loses its lease');
	push @some, fill('admin', 1);
	$mono += 1000;    # its lease ends
	pass_time(0);
	is(join(',', sort { $a <=> $b } take_all($node, 'admin', scalar @some)), join(',', @some), 'then every job is delivered');
}
check('after what administrators do');

@ids = fill('gone', 3);
my $table = sql("select tableoid::regclass from tq.job where id = $ids[0]");
without_triggers($node, "delete from $table where id = $ids[0]", $table);
is(join(',', take_all($node, 'gone', 2)), "$ids[1],$ids[2]", 'a job whose row was deleted by hand is not delivered');
like(slurp_file($node->logfile), qr/the row of job $ids[0] is gone; the job is dropped/, 'and the log says so');
until_true($node, 'select count(*) = 0 from tq_check() where expected <> found', 'counters put right');
check('after a DELETE by hand');
@ids = fill('gone', 3);
$table = sql("select tableoid::regclass from tq.job where id = $ids[0]");
my $events = $table =~ s/job_/event_/r;
without_triggers($node, "truncate $table, $events", $table, $events);
is(sql("select count(*) from tq_claim('gone', 10)"), 0, 'the jobs of a truncated table are not delivered');
is(join(',', fill('gone', 1)), join(',', take_all($node, 'gone', 1)), 'the queue goes on');
until_true($node, 'select count(*) = 0 from tq_check() where expected <> found', 'counters put right');
check('after a TRUNCATE by hand');

my $queue = sql("select id from tq.queue where name = 'gone'");
my $highest = sql('select tq_enqueue($$gone$$)');
take_all($node, 'gone', 1);
my @hand = ($highest + 5000, $highest + 20000, $highest + 30000);
my (undef, undef, $refusal) = $node->psql('postgres', "insert into tq.job_0 (id, enqueued_at, queue_id, priority, payload) values ($hand[0], now(), $queue, 0, '{}')");
like($refusal, qr/tq is active in this database.*Call SELECT tq_deactivate\(\) first/s, 'a row that is written past tq is refused');
by_hand($node, "insert into tq.job_0 (id, enqueued_at, queue_id, priority, payload) values ($hand[0], now(), $queue, 0, '{}')");
is(join(',', take_all($node, 'gone', 1)), $hand[0], 'unless the database is inactive: then it is delivered');
by_hand($node, "copy tq.job_0 (id, enqueued_at, queue_id, priority, payload) from stdin;\n$hand[1]\tnow\t$queue\t0\t{}\n$hand[2]\tnow\t$queue\t0\t{}\n\\.\n");
is(join(',', take_all($node, 'gone', 2)), "$hand[1],$hand[2]", 'so are rows that were copied in');
cmp_ok(sql('select tq_enqueue($$gone$$)'), '>', $hand[2], 'ids go on after theirs');
take_all($node, 'gone', 1);
by_hand($node, "insert into tq.job_0 (id, enqueued_at, queue_id, priority, payload) values (4000000000000000, now(), $queue, 0, '{}')");
is(join(',', take_all($node, 'gone', 1)), '4000000000000000', 'a job with an id far away');
cmp_ok(sql('select tq_enqueue($$gone$$)'), '>', 4000000000000000, 'ids go on after that, too');
until_true($node, 'select count(*) = 0 from tq_check() where expected <> found', 'counters put right');
check('after rows written by hand');

#
# Rows by hand in a finished segment
#
my $youngest = newest();
until_true($node, "select count(*) = 0 from tq.segment where number < $youngest and finished_at is null", 'all sealed segments are finished');
pass_time(100000);
until_true($node, "select count(*) = 0 from tq.segment where number < $youngest", 'all finished segments are dropped');

# Fills a segment; returns so many unused ids of its range.
sub fill_with_gap
{
	my ($size) = @_;
	for (1 .. 5)
	{
		my $open = sql('select max(number) from tq.segment');
		my @unused = split /\n/, sql("begin; select unnest(tq_enqueue_many('late', array_fill('{}'::jsonb, array[$size]))); rollback");
		@ids = fill('late', 200);
		$n = sql("select tableoid::regclass from tq.job where id = $ids[0]") =~ s/.*job_//r;
		return @unused if $n == $open;
		work_off($node, 'late');    # its time was over, and another process has taken the jobs
	}
	return;
}

my @gap = fill_with_gap(3);
$queue = sql("select id from tq.queue where name = 'late'");
my $is_finished = "select finished_at is not null from tq.segment where number = $n";
work_off($node, 'late');
until_true($node, $is_finished, 'finished');
by_hand($node, "insert into tq.job_$n (id, enqueued_at, queue_id, priority, payload) values ($gap[0], now(), $queue, 0, '{}')");
is(join(',', take_all($node, 'late', 1)), $gap[0], 'a row that is written by hand into a finished segment is delivered');
until_true($node, $is_finished, 'finished again');
by_hand($node, "insert into tq.event_$n (job_id, step, at, type) select $ids[0], max(step) + 1, now(), 'R' from tq.event_$n where job_id = $ids[0]");
is(join(',', take_all($node, 'late', 1)), $ids[0], 'so is a job that begins a new life by hand');
ok(until_true($node, $is_finished), 'then the segment is finished again');
check('after rows in a finished segment');

# an end event written by hand is kept as long as any other; rows that tq would not write block nothing
@ids = fill('by hand', 200);
$n = sql("select tableoid::regclass from tq.job where id = $ids[0]") =~ s/.*job_//r;
take_all($node, 'by hand', 198);
my @left = split /\n/, sql("select id from tq_jobs where queue = 'by hand' and state = 'ready'");
my $done = sql("select min(job_id) from tq.event_$n where type = 's'");
$log = -s $node->logfile;
by_hand($node, "insert into tq.event_$n (job_id, at, step, type) values ($left[0], tq_now(), 1000, 'd'), ($done, tq_now(), 1000, 'z')");
until_true($node, "select state = 'dead' from tq_get($left[0])", 'dead');
is(join(',', take_all($node, 'by hand', 1)), $left[1], 'a job that was killed by hand is not delivered, the other one is');
ok(until_true($node, "select finished_at is not null from tq.segment where number = $n"), 'what tq would not have written keeps no segment open');
my $again = () = substr(slurp_file($node->logfile), $log) =~ /counting again/g;
cmp_ok($again, '<=', 1, '... and it is not counted again and again');
pass_time(7200);
ok(until_true($node, "select count(*) = 0 from tq.job where id = $done"), 'the segment has had its time');
is(sql("select state from tq_get($left[0])"), 'dead', '... but not what was killed by hand');

check_journal($node);
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6/, 'nothing alarming in the log');
$node->stop;

done_testing();
