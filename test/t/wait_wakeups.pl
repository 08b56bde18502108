# H19: no wakeup is lost, and no job goes to a client that has gone. Scenarios: a job that comes between a waiter's
# check and its sleep, filters, two jobs for one wakeup, jobs that become startable without a commit. H20: waiting
# without a snapshot. Waiting for a queue that does not exist.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

# Without a scheduler there is no sweep for waiters that sleep although jobs can start: only tokens wake them.
# A waiter looks once more at its timeout, so the timeout is long; no timer of the server's statistics wakes it.
my $node = tq_node('waiting', conf => "tq.workers = off\ntrack_counts = off");
my $producer = session($node);
$node->safe_psql('postgres', q{select tq_create_queue('q')});

# The first call of this session reads the clock only.
is($node->safe_psql('postgres', q{select tq_now() > '2020-01-01'; call tq_wait('{q}', '10 ms'); select 'waited'}), "t\nwaited",    # limit: it runs out
	'a session waits after tq_now');

# A session, and its process id.
sub waiter
{
	my $s = session($node);
	return ($s, ask($s, 'select pg_backend_pid()'));
}

# Lets a session wait for a job, and returns when it is registered and asleep.
sub sleep_in_claim
{
	my ($session, $pid, $args) = @_;
	arm($node, 'waiter-after-register', 'wait', pid => $pid);
	begin_ask($session, "select id from tq_claim('q', wait => '1 h'" . ($args ? ", $args" : '') . ')');
	standing($node, 'waiter-after-register');
	return;
}

sub enqueue
{
	my ($args) = @_;
	return ask($producer, q{select tq_enqueue('q'} . ($args ? ", $args" : '') . ')');
}

# The first waiter is between registering and sleeping; the second one sleeps. Whatever happens to the first, the second
# gets the job.
sub pass_on
{
	my ($what, $befall, %options) = @_;
	my ($one, $pid_one) = waiter();
	my ($two, $pid_two) = waiter();
	sleep_in_claim($one, $pid_one);
	begin_ask($two, q{select id from tq_claim('q', wait => '1 h')});
	until_true($node, q{select waiting = 2 from tq_stats() where queue = 'q'}, 'two waiters');
	my $job = enqueue();
	$befall->($one, $pid_one);
	release($node, 'waiter-after-register');
	is(end_ask($two), $job, "H19: $what");
	until_true($node, q{select waiting = 0 from tq_stats() where queue = 'q'}, 'no waiter');
	leave($one, $two);
	$node->safe_psql('postgres', "select tq_complete(id, lease) from tq_get($job)");
	return;
}

# a job that arrives between a waiter's check and its sleep
my ($one, $pid) = waiter();
sleep_in_claim($one, $pid);
my $job = enqueue();
release($node, 'waiter-after-register');
is(end_ask($one), $job, 'H19: a job that comes between the look and the sleep');
leave($one);

pass_on('a cancelled waiter passes its token on', sub {
	$node->safe_psql('postgres', "select pg_cancel_backend($_[1])");
});
pass_on('a terminated one, too', sub {
	$node->safe_psql('postgres', "select pg_terminate_backend($_[1])");
});
pass_on('no job goes to a client that is not there', sub {
	my ($session) = @_;
	$session->{run}->kill_kill;
});

# a filter
my ($left, $pid_left) = waiter();
my ($right) = waiter();
begin_ask($left, q{select id from tq_claim('q', kinds => '{x}', wait => '1 h')});
until_true($node, q{select waiting = 1 from tq_stats() where queue = 'q'});
begin_ask($right, q{select id from tq_claim('q', kinds => '{y}', wait => '1 h')});
until_true($node, q{select waiting = 2 from tq_stats() where queue = 'q'});
my $y = enqueue(q{kind => 'y'});
is(end_ask($right), $y, 'H19: a job of kind y wakes the waiter for that kind');
my $x = enqueue(q{kind => 'x'});
is(end_ask($left), $x, 'H19: and one of kind x the other');

# one token, two jobs: the woken session takes both, and no session sleeps while a third job is ready
sleep_in_claim($left, $pid_left, 'max_jobs => 2');
begin_ask($right, q{select id from tq_claim('q', wait => '1 h')});
until_true($node, q{select waiting = 2 from tq_stats() where queue = 'q'});
my @jobs = split /\n/, ask($producer, q{select unnest(tq_enqueue_many('q', array_fill('{}'::jsonb, array[3])))});
release($node, 'waiter-after-register');
is(join(',', sort { $a <=> $b } split(/\n/, end_ask($left)), split(/\n/, end_ask($right))), join(',', @jobs), 'H19: three jobs, two waiters');

# A batch is divided among the waiters that it wakes: two sleep, and the second claims before the first runs.
# The queue is paused while the jobs are enqueued, so that all of them are there when the waiters wake.
sub six_at_once
{
	ask($producer, $_) for q{select tq_pause('q')}, q{select tq_enqueue_many('q', array_fill('{}'::jsonb, array[6]))}, q{select tq_resume('q')};
	return;
}
sleep_in_claim($left, $pid_left, 'max_jobs => 10');
begin_ask($right, q{select count(*) from tq_claim('q', 10, wait => '1 h')});
until_true($node, q{select waiting = 2 from tq_stats() where queue = 'q'});
six_at_once();
is(end_ask($right), 3, 'a claim leaves half to another waiter that is awake');
is(ask($producer, q{select count(*) from tq_claim('q', 10)}), 2, 'so does one that did not wait');
release($node, 'waiter-after-register');
is(scalar(split /\n/, end_ask($left)), 1, 'which takes the rest');
begin_ask($right, q{select count(*) from tq_claim('q', 10, wait => '1 h')});
until_true($node, q{select waiting = 1 from tq_stats() where queue = 'q'});
six_at_once();
is(end_ask($right), 6, 'alone, a waiter takes all');

# startable without a commit: lease lost, job released, rolled back claim, due, resumed
my ($holder) = waiter();
for my $how ('rollback', 'release', 'failure', 'resumed kind')
{
	ask($producer, q{select tq_pause('q')}) if $how eq 'resumed kind';
	$job = enqueue();
	my $held = '';
	if ($how ne 'resumed kind')
	{
		ask($holder, 'begin') if $how eq 'rollback';
		$held = ask($holder, q{select id || ', ' || lease from tq_claim('q')});
	}
	begin_ask($right, q{select id from tq_claim('q', wait => '1 h')});
	until_true($node, q{select waiting = 1 from tq_stats() where queue = 'q'});
	ask($holder,
		  $how eq 'rollback' ? 'rollback'
		: $how eq 'release' ? "select tq_release($held)"
		: $how eq 'failure' ? "select tq_fail($held, 'x', retry_in => '0')"
		: q{select tq_resume('q')});
	is(end_ask($right), $job, "H19: a job that becomes startable without being enqueued ($how)");
}

#
# H20
#
my $pid_holder = ask($holder, 'select pg_backend_pid()');
for my $how ('', 'begin; ')
{
	begin_ask($holder, qq{${how}call tq_wait('{q}', '1 h')});
	until_true($node, q{select waiting = 1 from tq_stats() where queue = 'q'}, 'a session in tq_wait');
	is($node->safe_psql('postgres', "select backend_xmin is null and backend_xid is null from pg_stat_activity where pid = $pid_holder"), 't',
		"H20: a session in tq_wait holds no snapshot ($how)");
	$job = enqueue();
	is(end_ask($holder), '', "H20: a job wakes it ($how)");
	is(ask($holder, q{select id from tq_claim('q')}), $job, "H20: and it can claim it ($how)");
	ask($holder, 'commit') if $how ne '';
}

# with a scheduler: due, lease lost
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
scheduler_of($node);
for my $how ('due', 'lease lost')
{
	$node->safe_psql('postgres', 'select tq_complete(id, lease) from tq_running');
	$job = enqueue($how eq 'due' ? q{delay => '100 min'} : '');
	ask($holder, q{select id from tq_claim('q', lease_for => '100 min')}) if $how eq 'lease lost';
	begin_ask($right, q{select id from tq_claim('q', wait => '1 h')});
	until_true($node, q{select waiting = 1 from tq_stats() where queue = 'q'});
	clock($node, 6060, $how eq 'due' ? 0 : 6060);
	clock($node, 6120, 6060) if $how eq 'lease lost' && until_true($node, "select exists (select from tq.event where job_id = $job and type = 'l')");
	is(end_ask($right), $job, "H19: a job that the scheduler makes startable ($how)");
	clock($node, 0, 0);
}

#
# A queue that does not exist is waited for
#
sub sleep_for_queue
{
	my ($session, $pid, $sql) = @_;
	arm($node, 'waiter-after-register', 'wait', pid => $pid);
	begin_ask($session, $sql);
	standing($node, 'waiter-after-register');
	release($node, 'waiter-after-register');
	return;
}

sub has_waiter
{
	my ($queue) = @_;
	return until_true($node, "select waiting = 1 from tq_stats() where queue = '$queue'", "a waiter of $queue");
}

my $pid_right = ask($right, 'select pg_backend_pid()');
ask($producer, 'set client_min_messages = notice');

# the first enqueue creates it
sleep_for_queue($right, $pid_right, q{select id from tq_claim('first', wait => '1 h')});
is($node->safe_psql('postgres', q{select count(*) from tq_queues where queue = 'first'}), 0, 'a claim does not create its queue');
ask($producer, 'begin');
sub notices
{
	my ($sql) = @_;
	$producer->{stderr} = '';
	$producer->query($sql);
	return $producer->{stderr};
}

like(notices(q{select tq_enqueue('first')}), qr/NOTICE:.*queue "first" is created on first use/, 'the first enqueue says that it creates the queue');
has_waiter('first');
unlike(notices(q{select tq_enqueue('first', priority => 200)}), qr/NOTICE/, '... and the second one does not');
ask($producer, 'commit');
is(end_ask($right), $node->safe_psql('postgres', q{select id from tq_running where queue = 'first'}), 'a claim that waits for a queue gets its first job');

# one of several; the others go on
sleep_for_queue($right, $pid_right, q{select queue from tq_claim_any('{none,q,second}', wait => '1 h')});
ask($producer, q{select tq_enqueue('second')});
is(end_ask($right), 'second', 'one of several queues that is created');
sleep_for_queue($right, $pid_right, q{select queue from tq_claim_any('{none,q}', wait => '1 h')});
ask($producer, q{select tq_enqueue('q')});
is(end_ask($right), 'q', 'one of several queues that exists, beside one that does not');

# tq_create_queue, in a transaction that rolls back and in one that commits
sleep_for_queue($right, $pid_right, q{select queue from tq_claim('third', wait => '1 h')});
ask($producer, q{begin; select tq_create_queue('third'); rollback});
arm($node, 'waiter-after-register', 'wait', pid => $pid_right);
ask($producer, q{begin; select tq_create_queue('third')});
is($node->safe_psql('postgres', q{select coalesce(sum(waiting), 0) from tq_stats() where queue = 'third'}), 0, 'until tq_create_queue commits nobody waits in the queue');
ask($producer, 'commit');
standing($node, 'waiter-after-register');
release($node, 'waiter-after-register');
has_waiter('third');
ask($producer, q{select tq_enqueue('third')});
is(end_ask($right), 'third', 'a queue of tq_create_queue');

# dropped while the claim waits
begin_ask($right, q{select queue from tq_claim('third', wait => '1 h')});
has_waiter('third');
$node->safe_psql('postgres', q{select tq_complete(id, lease) from tq_running where queue = 'third'; select tq_drop_queue('third')});
like(end_ask($right), qr/ERROR:  TQ002/, 'a queue that is dropped while a claim waits ends the wait');

# tq_wait returns when the queue is created
sleep_for_queue($right, $pid_right, q{call tq_wait('{fourth}', '1 h')});
is($node->safe_psql('postgres', "select backend_xmin is null and backend_xid is null from pg_stat_activity where pid = $pid_right"), 't',
	'H20: tq_wait for a queue that does not exist holds no snapshot');
ask($producer, q{select tq_enqueue('fourth')});
is(end_ask($right), '', '... and returns when the queue is created');
my $many = join(',', map { "wide $_" } 1 .. 2000);
my $more = join(',', 'q', map { "old $_" } 1 .. 10);
$node->safe_psql('postgres', q{select tq_create_queue('old ' || i) from generate_series(1, 10) i});
for my $wait ("call tq_wait('{wide one,$more}', '1 h')", q{call tq_wait('{wide two,q}', '1 h', '{some,other}')},
	"call tq_wait('{wide three,$many}', '1 h')")
{
	my ($queue) = $wait =~ /(wide [a-z]+)/;
	sleep_for_queue($right, $pid_right, $wait);
	is($node->safe_psql('postgres', "select count(*) from tq_queues where queue like 'wide%'"), 0, "tq_wait does not create $queue");
	ask($producer, "select tq_create_queue('$queue')");
	is(end_ask($right), '', '... and returns when it is created');
	$node->safe_psql('postgres', "select tq_drop_queue('$queue')");
	until_true($node, "select count(*) = 0 from tq_queues where queue = '$queue'");
}
is($node->safe_psql('postgres', q{select count(*) from tq_ready('{wide one}')}), 0, 'tq_ready has no row for a queue that does not exist');

# claims for several workers, and tq_drain
sleep_for_queue($right, $pid_right, q{select worker, (job).queue from tq_claim_for('{none,sixth}', '{w1,w2}', wait => '1 h')});
ask($producer, q{select tq_enqueue('sixth')});
is(end_ask($right), 'w1|sixth', 'tq_claim_for waits for a queue');
for my $claim (q{tq_claim('none', worker => 'w3', wait => '1 h')}, q{tq_claim_for('{none,never}', '{w1,w3}', wait => '1 h')})
{
	sleep_for_queue($right, $pid_right, "select count(*) from $claim");
	$node->safe_psql('postgres', q{select tq_drain('w3')});
	is(end_ask($right), 0, 'tq_drain ends a claim that waits for a queue');
	$node->safe_psql('postgres', q{select tq_undrain('w3')});
}
is($node->safe_psql('postgres', q{select count(*) from tq_claim_next('none', '{}', '{}')}), 0, 'tq_claim_next does not wait for a queue');
is($node->safe_psql('postgres', q{select count(*) from tq_queues where queue in ('none', 'never')}), 0, '... and no claim creates one');

# the right is checked when the queue exists
$node->safe_psql('postgres', q{create role maker; select tq_grant('*', 'maker', 'create')});
ask($right, 'set role maker');
sleep_for_queue($right, $pid_right, q{select queue from tq_claim('fifth', wait => '1 h')});
ask($producer, q{select tq_enqueue('fifth')});
like(end_ask($right), qr/ERROR:  42501/, 'a role that may create queues has no right on one that another role creates');
ask($right, 'reset role');

# a right that is revoked while a session waits
$node->safe_psql('postgres', q{create role reader; select tq_create_queue('seventh'), tq_grant('seventh', 'reader', 'consume')});
ask($right, 'set role reader');
for my $queues (q{'{seventh}'}, 'null')
{
	begin_ask($right, "call tq_wait($queues, '1 h')");
	until_true($node, q{select waiting = 1 from tq_stats() where queue = 'seventh'});
	begin_ask($left, q{select queue from tq_claim('seventh', wait => '1 h')});
	until_true($node, q{select waiting = 2 from tq_stats() where queue = 'seventh'});
	$node->safe_psql('postgres', q{select tq_revoke('seventh', 'reader', 'consume')});
	ask($producer, q{select tq_enqueue('seventh')});
	is(end_ask($left), 'seventh', 'a session whose right was revoked leaves the job to another one');
	if ($queues eq 'null')
	{
		$node->safe_psql('postgres', qq{select pg_cancel_backend($pid_right)});
		like(end_ask($right), qr/57014/, '... and waits on for the queues that it may consume from');
	}
	else
	{
		like(end_ask($right), qr/42501/, '... and gets an error if it has named the queue');
	}
	$node->safe_psql('postgres', q{select tq_complete(id, lease) from tq_running where queue = 'seventh'; select tq_grant('seventh', 'reader', 'consume')});
}
ask($right, 'reset role');

check_journal($node);
leave($left, $right, $holder, $producer);
$node->stop;
done_testing();
