# H4: a claim is journalled before the end of its job. H10: lease numbers never repeat, and a revoked lease stays
# revoked. H11: a reload keeps young leases, and no claim is reported lost before the load has finished. H29: heartbeats
# against the reaper. H30: leases that end with their session. H16: a locked segment blocks its own jobs only. R2: ids
# never repeat.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

# Only commits flush the WAL, so a crash loses everything that no commit has flushed
my $node = tq_node('leases', conf => <<CONF);
wal_writer_delay = 10s
autovacuum = off
tq.lease = '1h'
CONF
my ($worker, $producer);
reconnect();

sub reconnect
{
	for my $s ($worker, $producer)
	{
		leave($s) if defined $s;
		$s = session($node);
	}
	loaded($node);
	return;
}

# Flushes everything written so far.
sub flush
{
	ask($producer, q{create table if not exists flushed (); drop table flushed});
	return;
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	reconnect();
	return;
}

sub enqueue
{
	my ($queue) = @_;
	return ask($producer, "select tq_enqueue('$queue')");
}

# "id, lease" of the next job
sub claim
{
	my ($queue, $args) = @_;
	return ask($worker, "select id || ', ' || lease from tq_claim('$queue'" . ($args ? ", $args" : '') . ')');
}

sub has_event
{
	my ($job, $type) = @_;
	return until_true($node, "select exists (select from tq.event where job_id = $job and type = '$type')", "event $type of $job");
}

#
# H4: the claim is journalled after the end of its job
#
for my $end ('complete', 'fail')
{
	my $job = enqueue('h4');
	arm($node, 'claimlog-before-insert');
	my $held = claim('h4');
	standing($node, 'claimlog-before-insert');
	is(ask($worker, "select tq_$end($held" . ($end eq 'fail' ? q{, 'x', retry_in => '1 h')} : ')')),
		$end eq 'fail' ? 'delayed' : 'succeeded', "H4: a job ends while its claim is being journalled ($end)");
	release($node, 'claimlog-before-insert');
	has_event($job, 'c');
	flush();
	is($node->safe_psql('postgres', "select string_agg(type::text, ' ' order by ctid) || ', ' || string_agg(type::text, ' ' order by step)
		from tq.event where job_id = $job"), $end eq 'fail' ? 'f c, c f' : 's c, c s', "H4: the journal has the claim last, but as an earlier step ($end)");
	crash();
	is(claim('h4'), '', "H4: a restart does not offer it ($end)");
	like(ask($worker, "select tq_complete($held)"), qr/TQ001/, "H4: it does not revive the lease ($end)");
	next if $end eq 'complete';
	clock($node, 3601, 0);
	is(join(',', take_all($node, 'h4', 1)), $job, 'H4: the failed job comes again in its time');
	clock($node, 0, 0);
}

#
# H10: a revocation is durable before the job is offered again
#
my $job = enqueue('h10');
my $stale = claim('h10');
has_event($job, 'c');
flush();
clock($node, 0, 3601);    # the wall clock stays, or the janitor would open a segment and flush
has_event($job, 'l');
clock($node, 10, 3601);
my $fresh = '';
for (1 .. 600)
{
	$fresh = claim('h10', q{wait => '1 s'});    # poll
	last if $fresh ne '';
}
like($fresh, qr/^$job, /, 'H10: a lost lease lets the job be claimed again');
isnt($fresh, $stale, 'H10: by another number');
crash();
like(ask($worker, "select tq_complete($stale)"), qr/TQ001/, 'H10: a crash does not bring the revoked lease back');
clock($node, 10, 3601);    # the last lease ends if it was journalled and flushed
is(join(',', take_all($node, 'h10', 1)), $job, 'H10: the job is there');
clock($node, 0, 0);

# A restored backup, or a standby without the last WAL, knows only numbers that were reserved earlier.
my ($known, $last) = ($node->safe_psql('postgres', 'select last_value from tq.lease_seq'), 0);
for my $what ('as it was', 'of a restored backup', 'ahead of the clock')
{
	$node->safe_psql('postgres', "select setval('tq.lease_seq', $known)") if $what =~ /backup/;
	$node->safe_psql('postgres', q{select setval('tq.lease_seq', last_value + 1000000000000) from tq.lease_seq}) if $what =~ /ahead/;
	my ($mark, $clock) = split /\|/, $node->safe_psql('postgres',
		q{select last_value, (extract(epoch from now() - '2020-01-01 00:00:00Z') * 1000000)::bigint from tq.lease_seq});
	flush();
	crash();
	$job = enqueue('h10');
	my (undef, $lease) = split /, /, claim('h10');
	cmp_ok($lease, '>', $last, "H10: a new lease number after a crash, high water $what");
	$last = $lease;
	cmp_ok($lease, '>=', $clock, "H10: not below the clock, high water $what");
	cmp_ok($lease, '>=', $mark, "H10: not below what was reserved, high water $what");
	ask($worker, "select tq_complete($job, $lease)");
}

#
# H11: a reload
#
$node->append_conf('postgresql.conf', "tq.claim_log_delay = '60s'");
$node->reload;
until_true($node, q{select current_setting('tq.claim_log_delay') = '1min'});
scheduler_of($node);
$job = enqueue('h11');
my $young = claim('h11');
without_triggers($node, q{insert into tq.job_0 (id, enqueued_at, queue_id, priority, payload)
	select 5000000, now(), id, 100, '{}' from tq.queue where name = 'h11'}, 'tq.job_0');
$node->safe_psql('postgres', 'select tq_reload()');
is(join(',', take_all($node, 'h11', 1)), 5000000, 'H11: a row of which memory does not know is read in');
is(ask($worker, "select tq_complete($young)"), 'succeeded', 'H11: a lease that was not yet journalled has survived the reload');

# a crash: journalled leases survive; young and bound ones do not
$node->append_conf('postgresql.conf', "tq.claim_log_delay = '10ms'");
$node->reload;
until_true($node, q{select current_setting('tq.claim_log_delay') = '10ms'});
my @jobs = map { enqueue('h11') } 1 .. 3;
my $old = claim('h11');
has_event($jobs[0], 'c');
my $bound = claim('h11', 'bind_session => true');
has_event($jobs[1], 'c');
arm($node, 'claimlog-before-insert');
$young = claim('h11');
standing($node, 'claimlog-before-insert');
flush();
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->stop('immediate');
$node->start;
# nothing may be loaded before the wait point is armed: without a scheduler the first call loads
leave($worker, $producer);
$worker = session($node);
$producer = session($node);
my $loader = session($node);
arm($node, 'load-between-segments');
begin_ask($loader, q{select count(*) from tq_claim('something else')});
standing($node, 'load-between-segments');
like(ask($worker, "set tq.load_timeout = '300ms'; select tq_complete($old)"), qr/TQ009/, 'H11: while the journal is read a finish says so');    # limit: it runs out
like(ask($worker, "select tq_heartbeat($old)"), qr/TQ009/, 'H11: so does a heartbeat');
my $new = enqueue('h11');
like($new, qr/^\d+$/, 'H11: jobs can be enqueued');
ask($worker, 'reset tq.load_timeout');
begin_ask($worker, "select tq_complete($old)");
release($node, 'load-between-segments');
is(end_ask($worker), 'succeeded', 'H11: one that waits gets its answer, and the journalled lease is good');
end_ask($loader);
leave($loader);
like(ask($worker, "select tq_complete($young)"), qr/TQ001/, 'H11: a young lease is lost for certain');
$node->append_conf('postgresql.conf', "tq.workers = on\ntq.claim_log_delay = '100ms'");
$node->reload;
scheduler_of($node);
clock($node, 60, 60);
is(join(',', sort { $a <=> $b } work_off($node, 'h11')), join(',', @jobs[ 1, 2 ], $new), 'H11: its job, and that of a session that is gone, run again');
clock($node, 0, 0);

#
# H29
#
enqueue('h29');
my $held = claim('h29');
arm($node, 'reap-after-mark');
clock($node, 0, 3601);
standing($node, 'reap-after-mark');
is(ask($worker, "select action from tq_heartbeat($held)"), 'lost', 'H29: a heartbeat knows that the reaper was faster');
is(ask($worker, "select string_agg(action, '') from tq_heartbeat_many(array[split_part('$held', ', ', 1)::bigint], array[split_part('$held', ', ', 2)::bigint])"),
	'lost', 'H29: also one for many');
like(ask($worker, "select tq_complete($held)"), qr/TQ001/, 'H29: and so does a finish');
release($node, 'reap-after-mark');
clock($node, 60, 0);
is(scalar(take_all($node, 'h29', 1)), 1, 'H29: the job runs again');
clock($node, 0, 0);
$job = enqueue('h29');
$held = claim('h29', q{lease_for => '100 min'});
my $second = enqueue('h29');
claim('h29', q{lease_for => '100 min'});
clock($node, 0, 50 * 60);
is(ask($worker, "select action from tq_heartbeat($held)"), 'run', 'H29: a heartbeat in time');
clock($node, 0, 101 * 60);
has_event($second, 'l');
is(ask($worker, "select tq_complete($held)"), 'succeeded', 'H29: keeps the lease when one without is reaped');
clock($node, 60, 0);
is(scalar(work_off($node, 'h29')), 1, 'H29: which runs again');
clock($node, 0, 0);

# a lease that ends while its claim is not committed
$job = enqueue('h29');
ask($worker, 'begin');
$held = claim('h29');
clock($node, 0, 3601);
has_event($job, 'l');
like(ask($worker, "select tq_complete($held)"), qr/TQ001/, 'H29: the deadline runs for open transactions, too');
ask($worker, 'rollback');
clock($node, 60, 0);
is(join(',', work_off($node, 'h29')), $job, 'H29: the rollback leaves the job to the reaper');
clock($node, 0, 0);

#
# H30
#
for my $how ('idle', 'in a transaction that finishes it', 'in a transaction that claimed it')
{
	$job = enqueue('h30');
	my $session = session($node);
	my $pid = ask($session, 'select pg_backend_pid()');
	ask($session, 'begin') if $how =~ /claimed/;
	my $lease = ask($session, q{select lease from tq_claim('h30', bind_session => true)});
	ask($session, "begin; select tq_complete($job, $lease)") if $how =~ /finishes/;
	my $running = ask($worker, q{select count(*) from tq_claim('h30')});
	is($running, 0, "H30: a session has a job ($how)");
	$node->safe_psql('postgres', "select pg_terminate_backend($pid)");
	until_true($node, "select count(*) = 0 from pg_stat_activity where pid = $pid");
	clock($node, 60, 0);
	is(join(',', take_all($node, 'h30', 1)), $job, "H30: its end gives the job back ($how)");
	clock($node, 0, 0);
	leave($session);
}

# on a machine whose uptime is shorter than the grace of leases
my ($up) = split / /, slurp_file('/proc/uptime');
$node->append_conf('postgresql.conf', q{tq.lease_grace = '1 h'});
$node->reload;
until_true($node, q{select current_setting('tq.lease_grace') = '1h'});
clock($node, 0, 600 - $up);
$job = enqueue('h30');
my $holder = session($node);
is(ask($holder, q{select id from tq_claim('h30', bind_session => true)}), $job, 'H30: a session has a job soon after the machine was started');
leave($holder);
clock($node, 60, 600 - $up);
is(join(',', take_all($node, 'h30', 1)), $job, 'H30: its end gives the job back, whatever the grace of leases');
clock($node, 0, 0);

check_journal($node);
leave($worker, $producer);
$node->stop;

#
# H16: a lock on a segment delays its jobs only. The scheduler processes queue `stuck` first; its jobs are in that
# segment.
#
$node = tq_node('locked');
reconnect();
ask($producer, "select tq_create_queue('$_')") for 'stuck', 'other', 'third';
my ($free, $ends) = split /\|/, ask($producer, q{select tq_enqueue('other'), tq_enqueue('other', priority => 900, expires_at => now() + '50 min')});
is(ask($producer, 'select count(*) from tq.job_0'), 2, 'jobs in segment 0');
segment_after($node, 0);
my $asked = enqueue('stuck');
ask($worker, 'begin');
claim('stuck');
is(ask($producer, "select tq_cancel($asked)"), 'asked', 'jobs in segment 1: one that is to be cancelled,');
my $lost = enqueue('stuck');
my $overdue = ask($producer, q{select tq_enqueue('stuck', priority => 900, expires_at => now() + '50 min')});
my ($delayed, $third) = map { ask($producer, "select tq_enqueue('$_', delay => '50 min')") } 'stuck', 'third';
is(ask($producer, q{select id from tq_claim('stuck', lease_for => '30 min')}), $lost, 'one whose lease will be lost');
is(ask($producer, q{select id from tq_claim('other', lease_for => '30 min')}), $free, 'as that of one in segment 0');
is(ask($producer, 'select count(*) from tq.job_1'), 5, 'that is where they are');
my $locker = session($node);
ask($locker, 'begin; lock table tq.event_1 in share mode');
ask($worker, 'rollback');
clock($node, 3600, 3600);
is(ask($producer, q{select id from tq_claim('stuck', wait => '3 min')}), $delayed, 'H16: a delayed job behind the one to be cancelled starts');
is(ask($producer, q{select id from tq_claim('third', wait => '3 min')}), $third, 'H16: and one of another queue');
ok(until_true($node, "select exists (select from tq.event where job_id = $free and type = 'l')"), 'H16: the reaper comes to other queues');
ok(until_true($node, "select exists (select from tq.event where job_id = $ends and type = 'e')"), 'H16: and jobs expire there');
is($node->safe_psql('postgres', "select count(*) from tq.event where job_id in ($asked, $lost, $overdue) and type in ('x', 'l', 'e')"), 0,
	'while the segment is locked');
ask($locker, 'commit');
ok(until_true($node, "select state = 'cancelled' from tq_get($asked)"), 'then the job is cancelled');
ok(until_true($node, "select exists (select from tq.event where job_id = $lost and type = 'l')"), 'the lease is taken back');
ok(until_true($node, "select exists (select from tq.event where job_id = $overdue and type = 'e')"), 'and the third job expires');
ask($locker, 'begin; lock table tq.event_1 in share mode');
enqueue('stuck');
my ($kept, $its_lease) = split /, /, claim('stuck', q{wait => '3 min'});
my ($noted, $lease) = split /, /, claim('other', q{wait => '3 min'});
is($noted, $free, 'a claim of a job in the locked segment, and one in segment 0');
ok(until_true($node, "select exists (select from tq.event_0 where job_id = $noted and type = 'c' and lease = $lease)"),
	'H16: claims of other queues are journalled while the segment is locked');
ask($locker, 'commit');
ok(until_true($node, "select exists (select from tq.event_1 where job_id = $kept and type = 'c' and lease = $its_lease)"), 'and then that one');
check_journal($node);
leave($worker, $producer, $locker);
$node->stop;

#
# R2: one WAL record reserves many blocks of ids. The session that has written it has not flushed it, and another session
# returns an id of the next block.
#
$node = tq_node('ids', conf => "wal_writer_delay = 10s\nautovacuum = off\n");
reconnect();
ask($producer, q{select tq_create_queue('ids')});
$node->append_conf('postgresql.conf', 'tq.workers = off');    # their commits would flush the record
$node->restart;    # after a checkpoint nextval writes a record
reconnect();
my $left = 'select log_cnt from tq.job_id_seq';    # blocks that the last record has reserved and nobody has drawn
arm($node, 'draw-before-flush', 'wait', pid => ask($producer, 'select pg_backend_pid()'));
begin_ask($producer, q{select tq_enqueue('ids')});
standing($node, 'draw-before-flush');
my $reserved = ask($worker, $left);
my $returned = ask($worker, q{begin; select tq_enqueue('ids')});
is(ask($worker, $left), $reserved - 1, 'R2: an id of a block that the record of another session has reserved');
crash();
cmp_ok(enqueue('ids'), '>', $returned, 'R2: it does not come again after a crash, and none before it');
check_journal($node);
leave($worker, $producer);
$node->stop;
done_testing();
