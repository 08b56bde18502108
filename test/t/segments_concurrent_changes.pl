# H3: a segment is not dropped while a transaction has written to it, or if one of its jobs lives again. H5: a move
# leaves one live copy. H8: an id leads to its segment. H18: a load does not read finished segments. H21: maintenance
# does not queue for a lock. H22: rows of segments are never updated or deleted, and vacuum does not truncate them.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('segments', conf => <<CONF);
tq.segment_rows = 20
tq.retention = 0
log_lock_waits = on
deadlock_timeout = 10ms
max_connections = 30
CONF
scheduler_of($node);
my $writer = session($node);
my $other = session($node);

# Number of the youngest segment.
sub newest { return $node->safe_psql('postgres', 'select coalesce(max(number), 0) from tq.segment'); }

# The number of the segment in which a session sees a job; -1 if in none.
sub segment_of
{
	my ($session, $id) = @_;
	my $table = ask($session, "select tableoid::regclass from tq.job where id = $id order by tableoid desc limit 1");
	return $table =~ /job_(\d+)/ ? $1 : -1;
}

# Enqueues until the open segment is sealed; returns the ids.
sub fill
{
	my ($queue) = @_;
	my $before = newest();
	my $ids = $node->safe_psql('postgres', "select unnest(tq_enqueue_many('$queue', array_fill('{}'::jsonb, array[20])))");
	segment_after($node, $before);
	janitor_away($node);
	return split /\n/, $ids;
}

sub exists_segment
{
	my ($n) = @_;
	return $node->safe_psql('postgres', "select to_regclass('tq.job_$n') is not null");
}

# The first job goes to segment 0 and makes the janitor open a numbered one.
$node->safe_psql('postgres', q{select tq_enqueue('a')});
segment_after($node, 0);
janitor_away($node);
is(scalar(take_all($node, 'a', 1)), 1, 'the first job, from segment 0');

#
# H3: an open transaction has written to a segment without other live jobs
#
my $job = ask($writer, q{begin; select tq_enqueue('late')});
my $n = segment_of($writer, $job);
cmp_ok($n, '>', 0, 'H3: a job of an open transaction, in a numbered segment');
arm($node, 'finish-before-lock');
fill('a');
is(scalar(work_off($node, 'a')), 20, 'H3: the other jobs of its segment are finished');
standing($node, 'finish-before-lock');
release($node, 'finish-before-lock');
arm($node, 'finish-before-lock');
standing($node, 'finish-before-lock');    # so it has tried once and failed
is($node->safe_psql('postgres', "select finished_at is null from tq.segment where number = $n"), 't',
	'H3: the janitor does not close a segment with an open transaction in it');
ask($writer, 'commit');
release($node, 'finish-before-lock');
is(join(',', take_all($node, 'late', 1)), $job, 'H3: the job of the late commit runs');
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'H3: and then the segment is dropped');
is($node->safe_psql('postgres', "select to_regclass('tq.event_$n') is null and not exists (select from tq.segment where number = $n)"),
	't', 'H3: with all that belongs to it');

#
# H21, with the drop itself
#
$n = newest();
fill('a');
ask($other, "begin; lock table tq.job_$n in access share mode");
arm($node, 'drop-before-lock');
work_off($node, 'a');
standing($node, 'drop-before-lock');
release($node, 'drop-before-lock');
arm($node, 'drop-before-lock');
standing($node, 'drop-before-lock');
release($node, 'drop-before-lock');
is(exists_segment($n), 't', 'H21: a reader keeps a segment');
is(ask($writer, "begin; set local lock_timeout = 1; select count(*) from tq.job_$n; commit"), 20, 'H21: no session queues behind the drop');    # limit: nobody waits
is(scalar(take_all($node, 'a', 0)), 0, 'H21: claims go on');
ok(slurp_file($node->logfile) !~ /still waiting for AccessExclusiveLock/, 'H21: the drop has never waited for a lock');
ask($other, 'commit');
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'H21: it is dropped when the reader has gone');

#
# A session has a snapshot, by which it lists the tables, and locks them later, as pg_dump does
#
for my $locks (1, 0)
{
	$n = newest();
	fill('a');
	ask($other, 'begin isolation level repeatable read; select 1');
	arm($node, 'drop-waits');
	work_off($node, 'a');
	standing($node, 'drop-waits');
	# before the release: the drop waits for ten seconds only
	is(ask($other, "lock table tq.job_$n, tq.event_$n in access share mode"), '', 'the drop of a segment waits for a snapshot') if $locks;
	release($node, 'drop-waits');
	if ($locks)
	{
		is(ask($other, "select count(*) from tq.job_$n"), 20, '... whose session reads the segment');
		ask($other, 'commit');
	}
	else
	{
		clock($node, 0, 20);
	}
	ok(until_true($node, "select to_regclass('tq.job_$n') is null"),
		$locks ? 'it is dropped when the session has gone' : 'without a lock it is dropped after ten seconds');
}
ask($other, 'commit');
clock($node, 0, 0);

#
# H5
#
my ($stays, $dies);

# A segment whose jobs have all ended, except a waiting and a dead one.
sub outlived
{
	$n = newest();
	$stays = ask($writer, q{select tq_enqueue('stays', priority => 7)});
	$dies = ask($writer, q{select tq_enqueue('dies', max_attempts => 1)});
	is(segment_of($writer, $stays), $n, 'H5: a job that will outlive its segment');
	ask($writer, q{select tq_fail(id, lease, 'x', detail => '{"a":1}') from tq_claim('dies')});
	fill('a');
	return;
}

my $offset = -s $node->logfile;
outlived();
arm($node, 'move-after-copy');
work_off($node, 'a');
standing($node, 'move-after-copy');
arm($node, 'move-after-copy', 'kill');
$node->wait_for_log(qr/terminated by signal 9.*all server processes terminated; reinitializing.*ready to accept/s, $offset);
pass('H5: a crash in the middle of the move');
leave($writer, $other);
$writer = session($node);
$other = session($node);
loaded($node);
check_journal($node, 'H5: every job is in one place after that');
is(join(',', take_all($node, 'stays', 1)), $stays, 'H5: and runs once');
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'H5: its segment goes');
is($node->safe_psql('postgres', "select count(*) from tq.event_0 where job_id = $dies and type = 'd' and detail = '{\"a\":1}'"), 1,
	'H5: the dead letter is kept with its history');

outlived();
ask($other, "begin; lock table tq.job_$n in row exclusive mode");    # keeps the segment from being finished
arm($node, 'move-after-copy');
work_off($node, 'a');
standing($node, 'move-after-copy');
is(ask($writer, q{select count(*) from tq_claim('stays')}), 0, 'H5: a job that is being moved is not offered');
is(segment_of($writer, $stays), $n, 'H5: and is in one place only');
release($node, 'move-after-copy');
ok(until_true($node, "select exists (select from tq.event_$n where type = 'm' and job_id = $stays)"), 'H5: the old copy is marked');
is(join(',', take_all($node, 'stays', 1)), $stays, 'H5: it runs once');
is(segment_of($writer, $stays), $n, 'H5: the old copy is still there');
$node->stop('immediate');
$node->start;
leave($writer, $other);
$writer = session($node);
$other = session($node);
loaded($node);
is(ask($writer, q{select count(*) from tq_claim('stays')}), 0, 'H5: and does not come to life when the journal is read again');
check_journal($node, 'H5: the journal in the end');
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'H5: the old segment goes');

# a process that loads the job may wait for a lock meanwhile: the janitor skips the job and does not fail
my $reader = session($node);
outlived();
$offset = -s $node->logfile;
arm($node, 'pin-before-fold', 'wait', pid => ask($reader, 'select pg_backend_pid()'));
begin_ask($reader, "select tq_retry($dies)");
standing($node, 'pin-before-fold');
arm($node, 'move-before-commit');
work_off($node, 'a');
standing($node, 'move-before-commit');
release($node, 'move-before-commit');
is(segment_of($writer, $dies), $n, 'H5: a job that is being read in is not moved');
release($node, 'pin-before-fold');
end_ask($reader);
# the janitor rests a hundred times as long as its look took, which includes the wait above; a new server does not know that
leave($reader, $writer, $other);
$node->restart;
($writer, $other) = (session($node), session($node));
loaded($node);
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'H5: but then it is');
unlike(slurp_file($node->logfile, $offset), qr/ERROR/, 'H5: nothing has failed');
is(join(',', take_all($node, 'stays', 1), take_all($node, 'dies', 1)), "$stays,$dies", 'H5: both run');

# an ended job is retried, and dies, while the jobs that outlive its segment are moved: it is a dead letter like the
# others
my $again = ask($writer, q{select tq_enqueue('dies', max_attempts => 1)});
ask($writer, "select tq_cancel($again)");
outlived();
is(segment_of($writer, $again), $n, 'H5: a job that was cancelled');
arm($node, 'move-before-commit');
work_off($node, 'a');
standing($node, 'move-before-commit');
ask($writer, "select tq_retry($again)");
ask($writer, q{select tq_fail(id, lease, 'again', fatal => true) from tq_claim('dies')});
release($node, 'move-before-commit');
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'H5: the segment goes');
is(ask($writer, "select state from tq_get($again)"), 'dead', 'H5: with nothing that is to be kept');
take_all($node, 'stays', 1);

# an index of segment 0 has a function by which the janitor forgets what it knows of both tables, while it copies events;
# the tables have their columns at different positions
$node->safe_psql('postgres', <<'SQL');
alter table tq.event drop bound, add bound boolean;
create function forget() returns void language plpgsql as $$
declare
	name text;
begin
	if (select backend_type from pg_stat_activity where pid = pg_backend_pid()) = 'tq janitor' then
		for name in select inhrelid::regclass from pg_inherits where inhparent = 'tq.event'::regclass loop
			execute format('grant select on %s to public', name);
		end loop;
	end if;
end $$;
create function forgetting(id bigint) returns bigint language plpgsql immutable as 'begin perform public.forget(); return id; end';
create index forgetting on tq.event_0 (forgetting(job_id));
SQL
fill('a');    # the next segment is made after tq.event
work_off($node, 'a');
outlived();
ask($writer, "select tq_retry($dies)");
ask($writer, q{select tq_fail(id, lease, 'again', detail => '{"b":2}', fatal => true) from tq_claim('dies')});
my $events = "select string_agg(concat_ws(' ', type, reason, detail), ', ' order by step) from tq.event where job_id = $dies and type in ('d', 'R')";
is(ask($writer, $events), 'd x {"a": 1}, R, d again {"b": 2}', 'H5: a dead letter that was retried');
work_off($node, 'a');
ok(until_true($node, "select to_regclass('tq.job_$n') is null"), 'H5: its segment goes');
is(ask($writer, $events), 'd x {"a": 1}, R, d again {"b": 2}', 'H5: and its history is what it was');
$node->safe_psql('postgres', 'drop index tq.forgetting; drop function forgetting, forget');
take_all($node, 'stays', 1);

#
# H8
#
$node->append_conf('postgresql.conf', "tq.retention = '1h'");
$node->reload;
until_true($node, q{select current_setting('tq.retention') = '1h'});
scheduler_of($node);
$n = newest();
arm($node, 'segment-before-map');
my @ids = split /\n/, $node->safe_psql('postgres', q{select unnest(tq_enqueue_many('h8', array_fill('{}'::jsonb, array[20])))});
standing($node, 'segment-before-map');
push @ids, ask($writer, q{select tq_enqueue('h8')}) for 1 .. 5;
is(segment_of($writer, $ids[-1]), $n, 'H8: a new segment has its tables, but jobs still go to the old one');
release($node, 'segment-before-map');
ok(until_true($node, q{select tq_enqueue('h8') is not null and max(substring(tableoid::regclass::text from '\d+$')::int) = } . ($n + 1) . q{ from tq.job}),
	'H8: then to the new one');
my $all = $node->safe_psql('postgres', q{select count(*) from tq.job j join tq.queue q on q.id = queue_id where name = 'h8'});
is(scalar(work_off($node, 'h8')), $all, 'H8: all of them run');
is(ask($writer, "select tq_complete($_, 1)") =~ /TQ001/ ? 'found' : 'lost', 'found', "H8: job $_ is found by its id") for @ids[ 19, 20, 24 ];

#
# H18
#
fill('h18') for 1 .. 3;
work_off($node, 'h18');
ok(until_true($node, 'select count(finished_at) >= 3 and bool_and(finished_at is not null or sealed_at is null) from tq.segment'),
	'H18: segments are marked as finished');
janitor_away($node);
$n = $node->safe_psql('postgres', q{select count(*) from tq.job where tableoid::regclass::text not in
	(select 'tq.job_' || number from tq.segment where finished_at is not null)});
$offset = -s $node->logfile;
$node->stop('immediate');
$node->start;
loaded($node);
$node->wait_for_log(qr/tq: loaded 0 unfinished of $n jobs/, $offset);
pass('H18: finished segments are not read again');
leave($writer, $other);
$writer = session($node);

#
# H22
#
is($node->safe_psql('postgres', q{select count(*) from pg_class c join pg_inherits on c.oid = inhrelid
	join pg_class t on t.oid = c.reltoastrelid where inhparent in ('tq.job'::regclass, 'tq.event'::regclass)
	and c.relname !~ '_0$' and not (c.reloptions @> '{autovacuum_enabled=off,vacuum_truncate=off}'
		and t.reloptions @> '{autovacuum_enabled=off,vacuum_truncate=off}')}), 0, 'H22: no autovacuum and no truncation of segments');
$n = newest();
ask($writer, q{begin; select count(tq_enqueue('h22', (select jsonb_agg(md5(random()::text || i || k)) from generate_series(1, 40) k)))
	from generate_series(1, 19) i; rollback});
my $size = $node->safe_psql('postgres', "select pg_relation_size('tq.job_$n')");
cmp_ok($size, '>', 8192, 'H22: a rollback leaves pages behind');
$node->safe_psql('postgres', "vacuum tq.job_$n");
is($node->safe_psql('postgres', "select pg_relation_size('tq.job_$n')"), $size, 'H22: VACUUM does not truncate them');
is(ask($writer, q{select tq_enqueue('h22') > 0}), 't', 'H22: and the segment goes on');
segment_after($node, $n);    # that job was the last of its segment
is(scalar(work_off($node, 'h22')), 1, 'H22: only the committed job runs');
is($node->safe_psql('postgres', q{select sum(n_tup_upd + n_tup_del) from pg_stat_user_tables
	where schemaname = 'tq' and relname ~ '^(job|event)_[1-9]'}), 0, 'H22: no row of a segment was updated or deleted');

#
# A job of a finished segment is retried in a transaction whose snapshot is older
#
my @late = fill('late');
my %lease = map { split /\|/ } split /\n/, $node->safe_psql('postgres', q{select id, lease from tq_claim('late', 1000, lease_for => '1 h')});
my ($dead, $last) = @late[ 0, 1 ];
$n = segment_of($writer, $dead);
$node->safe_psql('postgres', join '', map { "select tq_fail($_, $lease{$_}, 'no use', fatal => true);" } grep { $_ != $last } sort keys %lease);
my $old = session($node);
ask($old, 'begin isolation level repeatable read; select 1');
$node->safe_psql('postgres', "select tq_complete($last, $lease{$last})");
ok(until_true($node, "select finished_at is not null from tq.segment where number = $n"), 'a segment is finished');
is(ask($old, "select tq_retry($dead)"), 'ready', 'an older transaction retries a job of it');
ask($old, 'commit');
is($node->safe_psql('postgres', "select finished_at is null from tq.segment where number = $n"), 't', 'and it is open again, also after a restart');
leave($old);
is(join(',', take_all($node, 'late', 1)), $dead, 'the job runs');

#
# A session that has written to many segments caches only those that exist.
#
$node->append_conf('postgresql.conf', 'tq.retention = 0');
$node->reload;
my $first = newest() + 1;
my $many = 0;
for my $number ($first .. $first + 4)
{
	ask($writer, q{select count(tq_enqueue('many')) from generate_series(1, 20)});
	$many += 20;
	# the row of a segment is there before jobs go to it: some may be in the one before
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	while (newest() < $number && time < $end)
	{
		ask($writer, q{select tq_enqueue('many')});
		$many++;
	}
	cmp_ok(newest(), '>=', $number, 'a new segment');
}
is(scalar(work_off($node, 'many')), $many, 'jobs of several segments');
$n = newest();
until_true($node, "select count(*) = 0 from tq.segment where number between $first and $n - 1", 'the segments are dropped');
# It forgets them when it next uses a table that it has not cached; the segment that it writes to may be cached.
my $forgot = 'f';
my $end = time + $PostgreSQL::Test::Utils::timeout_default;
while ($forgot ne 't' && time < $end)
{
	ask($writer, q{select tq_enqueue('many')});
	$forgot = ask($writer, q{select count(*) <= (select count(*) from pg_class where relnamespace = 'tq'::regnamespace and relkind = 'r'
		and relname ~ '^(job|event)_[0-9]+$') from pg_backend_memory_contexts where name = 'tq table'});
}
is($forgot, 't', 'a session forgets the tables of segments that were dropped');
work_off($node, 'many');

#
# A segment that the janitor cannot process does not prevent it from processing others or opening the next.
#
janitor_away($node);
my $viewed = newest();
$node->safe_psql('postgres', "create view viewed as select * from tq.job_$viewed");
fill('a');
my $next = newest();
fill('a');
work_off($node, 'a');
ok(until_true($node, "select to_regclass('tq.job_$next') is null"), 'a segment is dropped though another one cannot be');
is(exists_segment($viewed), 't', 'which is still there');
fill('a');    # opens the next one
$node->safe_psql('postgres', 'drop view viewed');
ok(until_true($node, "select to_regclass('tq.job_$viewed') is null"), 'and goes when nothing depends on it any more');
work_off($node, 'a');

# A lock on the open segment does not prevent the janitor from opening the next.
my $locker = session($node);
my $locked = newest();
ask($locker, "begin; lock table tq.job_$locked");
my @waiting = map { session($node) } 1 .. 3;
begin_ask($_, q{select count(tq_enqueue_many('a', array_fill('{}'::jsonb, array[10])))}) foreach @waiting;
ok(segment_after($node, $locked), 'the next segment is opened although the open one is locked');
ask($locker, 'rollback');
end_ask($_) foreach @waiting;
leave($locker, @waiting);
work_off($node, 'a');

# An audit is due, and cannot read a segment.
my $locked = newest();
my $held = ask($writer, q{select tq_enqueue('a')});
is(segment_of($writer, $held), $locked, 'a job in a live segment');
fill('a');
janitor_away($node);
$other = session($node);
ask($other, "begin; lock table tq.event_$locked");
my $log = -s $node->logfile;
$node->append_conf('postgresql.conf', 'tq.audit_interval = 1s');
$node->reload;
$node->wait_for_log(qr/tq janitor .*ERROR: .*lock timeout/, $log);
my $latest = newest();
fill('b');
cmp_ok(newest(), '>', $latest, 'a segment is opened while an audit fails');
ask($other, 'commit');
leave($other);
work_off($node, $_) for qw(a b);
my $audits = q{(regexp_match(tq_metrics(), '\ntq_audits_total\S* (\d+)'))[1]::int};
$n = $node->safe_psql('postgres', "select $audits");
ok(until_true($node, "select $audits > $n"), 'and audits go on when they can');
$node->append_conf('postgresql.conf', 'tq.audit_interval = 1h');
$node->reload;

#
# A locked tq.dependency prevents the janitor from checking whether a job has children: it leaves the job as it was.
#
$node->safe_psql('postgres', 'create database locked');
tq_setup($node, 'locked');
my ($user, $admin) = (session($node, 'locked'), session($node, 'locked'));
my $ended = ask($user, q{select tq_enqueue('q')});
ask($user, q{select tq_enqueue('q', depends_on => array[tq_enqueue('q', delay => '1 h')])});
ask($admin, 'begin; lock table tq.dependency');
is(ask($user, q{select c.id || ' ' || tq_complete(c.id, c.lease) from tq_claim('q') c}), "$ended succeeded", 'a job of segment 0 ends');
my $janitors = q{select coalesce(max(pid), 0) from pg_stat_activity where backend_type = 'tq janitor' and wait_event_type = 'Lock'};
until_true($node, "select ($janitors) > 0", 'a janitor waits for the table');
my $waits = $node->safe_psql('postgres', $janitors);
until_true($node, "select count(*) = 0 from pg_stat_activity where pid = $waits", 'it does not wait for long');
ask($admin, 'commit');
ok(until_true($node, "select count(*) = 0 from tq.job_0 where id = $ended", undef, 'locked'), 'another one deletes the job later');
leave($user, $admin);

check_journal($node);
leave($writer);
$node->stop;
done_testing();
