# A lock on one segment delays no timer of other queues, even if many queues have jobs in it. Claims, expiries and
# leases of other segments go on. Also: leases of many queues that are lost at once take few transactions, and a load of
# many jobs serves timers in between.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $queues = 100;
my $node = tq_node('locked_segments', conf => <<CONF);
tq.segment_rows = 300
tq.max_live_jobs = 5000
tq.max_queues = 400
tq.lease = '1h'
tq.retry = '{"policy": "fixed", "delay": "0 s", "jitter": 0, "on_lost": "0 s"}'
log_lock_waits = off
max_locks_per_transaction = 256
CONF
scheduler_of($node);
my $locker = session($node);

sub newest { return $node->safe_psql('postgres', 'select coalesce(max(number), 0) from tq.segment'); }

# The number of transactions that wrote a segment's events of a type.
sub transactions
{
	my ($segment, $type) = @_;
	return $node->safe_psql('postgres', "select count(distinct xmin::text) from tq.event_$segment where type = '$type'");
}

# Enqueues into another queue until the open segment is sealed; returns its number.
sub seal
{
	my $before = newest();
	$node->safe_psql('postgres', q{select count(*) from tq_enqueue_many('filler', array_fill('{}'::jsonb, array[300]))});
	segment_after($node, $before);
	janitor_away($node);
	return $before;
}

# One test: delayed jobs of an unaffected queue come.
sub timers_come
{
	my ($ahead) = @_;    # seconds that tq's clock is ahead
	$node->safe_psql('postgres', "select count(tq_enqueue('timers', run_at => now() + '$ahead s' + n * interval '20 ms')) from generate_series(1, 20) n");
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar(take_all($node, 'timers', 20)), 20, 'timers of another queue fire');
	return;
}

$node->safe_psql('postgres', q{select tq_enqueue('timers')});
segment_after($node, 0);
janitor_away($node);
take($node, 'timers', 1);

#
# Claims to journal: a hundred queues have one claimed job each in a sealed segment that is locked.
#
$node->safe_psql('postgres', "select count(tq_enqueue('q' || n)) from generate_series(1, $queues) n");
$node->safe_psql('postgres', "select count(tq_enqueue('x' || n, expires_at => now() + '2000 s', priority => 900)) from generate_series(1, $queues) n");
my $sealed = seal();
my $free = $node->safe_psql('postgres', q{select tq_enqueue('q1', priority => 900)});
my $ends = $node->safe_psql('postgres', q{select tq_enqueue('x1', priority => 950, expires_at => now() + '2000 s')});
my $kept = $node->safe_psql('postgres', "select id from tq.job_$sealed order by id limit 1");
ask($locker, "begin; lock table tq.event_$sealed in share mode");
$node->safe_psql('postgres', "select count(*) from generate_series(1, $queues) n, lateral tq_claim('q' || n, lease_for => '1000 s')");
timers_come(0);
is($node->safe_psql('postgres', "select count(*) from tq.event_$sealed where job_id = $kept"), 0, 'while they wait');
is($node->safe_psql('postgres', q{select count(*) from tq_claim('q1', lease_for => '1000 s')}), 1, 'a job of the same queue in another segment');
ok(until_true($node, "select exists (select from tq.event where job_id = $free and type = 'c')"), 'has its claim journalled meanwhile');

# ... their leases are lost, and others expire
clock($node, 3000, 3000);
ok(until_true($node, "select exists (select from tq.event where job_id = $free and type = 'l')"), 'its lease is taken back meanwhile');
ok(until_true($node, "select exists (select from tq.event where job_id = $ends and type = 'e')"), 'a job in another segment expires meanwhile');
timers_come(3000);
ask($locker, 'commit');
ok(until_true($node, "select count(*) = $queues from tq.event_$sealed where type = 'l'"), 'then all leases are taken back');
ok(until_true($node, "select count(*) = $queues from tq.event_$sealed where type = 'e'"), 'and all the others expire');
cmp_ok(transactions($sealed, 'l'), '<=', 30, 'leases of a hundred queues in few transactions');
cmp_ok(transactions($sealed, 'e'), '<=', 30, 'expiries too');
cmp_ok(transactions($sealed, 'c'), '<=', 30, 'and claims');
my $log = slurp_file($node->logfile);
my $said = () = $log =~ /tq scheduler.* ERROR: /g;
cmp_ok($said, '<', 20, 'and the log is not flooded') or diag($said);

#
# Leases that many queues lose at once, without a lock: one transaction for all.
#
until_true($node, "select sum(ready) = $queues + 1 from tq_stats() where queue ~ '^q[0-9]'", 'all are ready again');
my $leases = $node->safe_psql('postgres', 'select max(lease) from tq.event');
$node->safe_psql('postgres', "select count(*) from generate_series(1, $queues) n, lateral tq_claim('q' || n, lease_for => '10000 s')");
ok(until_true($node, "select count(*) = $queues from tq.event_$sealed where type = 'c' and lease > $leases"), 'all are claimed again');
my $before = transactions($sealed, 'l');
clock($node, 20000, 20000);
ok(until_true($node, "select count(*) = 2 * $queues from tq.event_$sealed where type = 'l'"), 'leases of many queues are lost');
cmp_ok(transactions($sealed, 'l') - $before, '<=', 30, 'in few transactions');

#
# Jobs that are due at the same moment are read in one load. Timers of other queues are served before it ends.
#
my $together = 1000;
$node->safe_psql('postgres', "select count(tq_enqueue('together', run_at => now() + '30000 s')) from generate_series(1, $together)");
arm($node, 'timers-before-install');
clock($node, 29980, 29980);
standing($node, 'timers-before-install');
my $job = $node->safe_psql('postgres', q{select tq_enqueue('timers', run_at => now() + '29990 s')});
clock($node, 29995, 29995);
arm($node, 'timers-before-raise');
release($node, 'timers-before-install');
standing($node, 'timers-before-raise');
is($node->safe_psql('postgres', q{select id from tq_claim('timers')}), $job, 'a timer of another queue is served amid a load');
release($node, 'timers-before-raise');
clock($node, 30010, 30010);
is(scalar(take_all($node, 'together', $together)), $together, 'and all that are due together come');

check_journal($node);
leave($locker);
$node->stop;
done_testing();
