# H19: no wake-up is lost, and no job goes to a client that is not there. H20: waiting without a snapshot.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

# Without a scheduler nobody looks every second for those who sleep beside startable jobs: only tokens wake them.
# A waiter whose time is up looks once more, so it must not be up; nor does a timer of the server's statistics wake it.
my $node = tq_node('waiting', conf => "tq.workers = off\ntq.max_pinned_wait = '1h'\ntrack_counts = off");
my $producer = session($node);
$node->safe_psql('postgres', q{select tq_create_queue('q')});

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

# The first waiter stands between registering and sleeping; the second sleeps. Whatever befalls the first, the second gets the job.
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

# a job that comes between a waiter's look and its sleep
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
is(end_ask($right), $y, 'H19: a job of kind y wakes who wants that');
my $x = enqueue(q{kind => 'x'});
is(end_ask($left), $x, 'H19: and one of kind x the other');

# one token, two jobs: the woken one takes both, nobody stays behind beside a third
sleep_in_claim($left, $pid_left, 'max_jobs => 2');
begin_ask($right, q{select id from tq_claim('q', wait => '1 h')});
until_true($node, q{select waiting = 2 from tq_stats() where queue = 'q'});
my @jobs = split /\n/, ask($producer, q{select unnest(tq_enqueue_many('q', array_fill('{}'::jsonb, array[3])))});
release($node, 'waiter-after-register');
is(join(',', sort { $a <=> $b } split(/\n/, end_ask($left)), split(/\n/, end_ask($right))), join(',', @jobs), 'H19: three jobs, two waiters');

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
		"H20: who waits in tq_wait holds no snapshot ($how)");
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
	$job = enqueue($how eq 'due' ? q{delay => '100 s'} : '');
	ask($holder, q{select id from tq_claim('q', lease_for => '100 s')}) if $how eq 'lease lost';
	begin_ask($right, q{select id from tq_claim('q', wait => '1 h')});
	until_true($node, q{select waiting = 1 from tq_stats() where queue = 'q'});
	clock($node, 101, $how eq 'due' ? 0 : 101);
	clock($node, 150, 101) if $how eq 'lease lost' && until_true($node, "select exists (select from tq.event where job_id = $job and type = 'l')");
	is(end_ask($right), $job, "H19: a job that the scheduler makes startable ($how)");
	clock($node, 0, 0);
}

check_journal($node);
leave($left, $right, $holder, $producer);
$node->stop;
done_testing();
