# Heartbeats across sessions and crashes. Scenarios: a checkpoint commits, or its commit is lost; a lease after a crash;
# the deadline of a request to stop; claims of a worker that drains; slots for the progress of jobs; leases that belong
# to a worker: its connections are killed, it comes back or does not, it is released, the server crashes.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('heartbeats', conf => <<CONF);
tq.lease = '1h'
tq.worker_grace = '30min'
tq.max_progress = 2
tq.claim_log_delay = '1min'
tq.worker_grace = '30min'
CONF
scheduler_of($node);

sub sql
{
	my ($text) = @_;
	return $node->safe_psql('postgres', $text);
}

sub claim
{
	my ($queue, $args) = @_;
	return sql("select id || ', ' || lease from tq_claim('$queue'" . ($args ? ", $args" : '') . ')');
}

# Waits until the journal has the event, and then memory, too, in which the lease has ended.
sub has_event
{
	my ($held, $type) = @_;
	my ($job) = split /, /, $held;
	return until_true($node, "select exists (select from tq.event where job_id = $job and type = '$type')"
		. " and not exists (select from tq_running where (id, lease) = ($held))", "event $type of $job");
}

# Advances the clock of leases by so many minutes, and sets the wall clock so many seconds ahead. The former is never set
# back, because timers of the future would wait.
my $mono = 0;

sub later
{
	my ($minutes, $wall) = @_;
	$mono += 60 * $minutes;
	clock($node, $wall // 0, $mono);
	return;
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	$mono = 0;
	loaded($node);
	scheduler_of($node);
	return;
}

#
# A checkpoint is as durable as its commit, and replaces the claim's event that was not journalled
#
sql(q{select tq_enqueue('crash')});
my $held = claim('crash', q{worker => 'w', lease_for => '100 min'});
is(sql("select action from tq_heartbeat($held, checkpoint => '{\"at\": 1}')"), 'run', 'a young claim keeps a checkpoint');
my ($job, $lease) = split /, /, $held;
crash();
is(sql("select state || ' ' || worker || ' ' || lease || ' ' || attempt || ' ' || checkpoint from tq_get($job)"), "running w $lease 1 {\"at\": 1}",
	'after a crash the job runs on');
is(sql("select action from tq_heartbeat($held)"), 'run', 'its lease is good');
is(sql("select lease_expires_at between clock_timestamp() + '90 min' and clock_timestamp() + '101 min' from tq_running where id = $job"), 't',
	'for a new period');
is(sql("select string_agg(type::text, ' ' order by step) from tq.event where job_id = $job"), 'k', 'though the journal has no claim');
later(102);
has_event($held, 'l');
later(0, 60);
is(sql(q{select checkpoint from tq_claim('crash', wait => '3 min')}), '{"at": 1}', 'the next attempt has the checkpoint');
is(sql("select action from tq_heartbeat($held, checkpoint => '2')"), 'lost', 'and the last one cannot keep another');
is(sql("select tq_complete(id, lease) from tq_running where id = $job"), 'succeeded', 'it ends');
later(0);

# the period of a lease is that of the last journalled heartbeat, however long the attempt has been running
sql(q{select tq_enqueue('crash')});
$held = claim('crash', q{lease_for => '100 min'});
for my $at (50, 100, 150, 200)
{
	later(50, 60 * $at);
	is(sql("select action from tq_heartbeat($held, checkpoint => '{\"at\": $at}')"), 'run', "alive after $at min");
}
crash();
is(sql("select lease_expires_at between clock_timestamp() + '90 min' and clock_timestamp() + '101 min' from tq_running where ($held) = (id, lease)"),
	't', 'after a crash its lease is no longer than it was');
is(sql("select tq_complete($held)"), 'succeeded', 'it ends');

# a checkpoint whose commit was lost, or did not happen
sql(q{select tq_enqueue('crash')});
$held = claim('crash');
sql("select tq_heartbeat($held, checkpoint => '1')");
my $worker = session($node);
ask($worker, 'begin');
is(ask($worker, "select action from tq_heartbeat($held, checkpoint => '2')"), 'run', 'an open transaction has a checkpoint');
crash();
leave($worker);
is(sql("select checkpoint from tq_running r, tq_get(r.id) where ($held) = (r.id, r.lease)"), '1', 'a crash takes it back');
is(sql("select action from tq_heartbeat($held, checkpoint => '3')"), 'run', 'the next is kept');
is(sql("select tq_complete($held)"), 'succeeded', 'it ends');

# a session that dies with an uncommitted checkpoint
sql(q{select tq_enqueue('crash')});
$held = claim('crash', q{lease_for => '100 min'});
$worker = session($node);
my $pid = ask($worker, 'select pg_backend_pid()');
ask($worker, 'begin');
ask($worker, "select action from tq_heartbeat($held, checkpoint => '1')");
later(101);
is(sql("select action from tq_heartbeat($held, extend => '1 s')"), 'run', 'while it is open the reaper leaves the job alone');
$node->safe_psql('postgres', "select pg_terminate_backend($pid)");
later(200);
has_event($held, 'l');
leave($worker);
later(0, 60);
is(sql(q{select checkpoint is null from tq_claim('crash', wait => '3 min')}), 't', 'the end of its session gives the job back, without');
is(scalar(split /\n/, sql(q{select tq_complete(id, lease) from tq_running where queue = 'crash'})), 1, 'it ends');
later(0);

# a claim that waits longer than the age of its statement's snapshot
my $waiter = session($node);
sql(q{select tq_enqueue('waits')});
$held = claim('waits');
begin_ask($waiter, q{select checkpoint from tq_claim('waits', wait => '3 min')});
until_true($node, q{select count(*) = 1 from pg_stat_activity where wait_event = 'TqWaitForJob' or query ~ 'tq_claim' and state = 'active' and pid <> pg_backend_pid()});
sql("select tq_heartbeat($held, checkpoint => '\"late\"')");
sql("select tq_release($held)");
is(end_ask($waiter), '"late"', 'a waiting claim has the checkpoint that was kept while it waited');

# the journal has another event at the step of a checkpoint
sql(q{select tq_enqueue('arbiter')});
$held = claim('arbiter');
($job) = split /, /, $held;
arm($node, 'checkpoint-before-append');
begin_ask($waiter, "select action from tq_heartbeat($held, checkpoint => '1')");
standing($node, 'checkpoint-before-append');
my $events = sql("select replace(tableoid::regclass::text, 'job_', 'event_') from tq.job where id = $job");
without_triggers($node, "insert into $events (job_id, at, step, priority, type) values ($job, now(), 2, 7, 'o')", $events);
release($node, 'checkpoint-before-append');
like(end_ask($waiter), qr/TQ001/, 'an event in its place makes the lease lost');
is(sql(q{select id || ' ' || priority || ' ' || (checkpoint is null) from tq_claim('arbiter', wait => '3 min')}), "$job 7 true",
	'and the job is read again from the journal');
sql(q{select tq_complete(id, lease) from tq_running where queue = 'arbiter'});
leave($waiter);

#
# A request to stop has a deadline
#
sql(q{select tq_create_queue('stop', '{"cancel_grace": "20 min"}')});
sql(q{select tq_enqueue('stop')});
$held = claim('stop');
is(sql("select tq_cancel(" . (split /, /, $held)[0] . ')'), 'asked', 'a running job is asked to stop');
is(sql("select action || ' ' || (lease_expires_at < clock_timestamp() + '21 min') from tq_heartbeat($held)"), 'cancel true',
	'and told by when');
later(15);
is(sql("select action from tq_heartbeat($held, extend => '1 h')"), 'cancel', 'heartbeats do not put that off');
is(sql("select tq_cancel(" . (split /, /, $held)[0] . ')'), 'asked', 'asking again');
later(6);
has_event($held, 'x');
is(sql(q{select state || ', ' || error from tq_get(} . (split /, /, $held)[0] . ')'), 'cancelled, asked to cancel, and did not stop in time',
	'gives no more time: then it is cancelled');
is(sql("select action from tq_heartbeat($held)"), 'lost', 'and its lease lost');

# also after a crash
sql(q{select tq_enqueue('stop')});
$held = claim('stop');
sql("select tq_heartbeat($held, checkpoint => '1')");
sql("select tq_cancel(" . (split /, /, $held)[0] . ')');
crash();
is(sql("select action || ' ' || (lease_expires_at < clock_timestamp() + '21 min') from tq_heartbeat($held)"), 'cancel true',
	'the request and its deadline survive a crash');
later(21);
has_event($held, 'x');
# a worker that stops in time
sql(q{select tq_enqueue('stop')});
$held = claim('stop');
sql("select tq_cancel(" . (split /, /, $held)[0] . ')');
is(sql("select tq_complete($held)"), 'succeeded', 'what succeeds in time has succeeded');

#
# A worker that drains
#
$waiter = session($node);
sql(q{select tq_create_queue('drain')});
my $claim_of_d = q{select id from tq_claim('drain', worker => 'd', wait => '1 h', lease_for => '9 h')};
# what waits in the worker's name returns at once: claims of one queue, of several queues, and for several workers
for my $form ($claim_of_d, q{select id from tq_claim_any('{drain,other}', worker => 'd', wait => '1 h')},
	q{select (job).id from tq_claim_for('{drain}', '{c,d}', wait => '1 h')})
{
	begin_ask($waiter, $form);
	until_true($node, q{select count(*) = 1 from tq_workers where worker = 'd'});
	until_true($node, q{select waiting = 1 from tq_stats() where queue = 'drain'}, 'it waits');
	is(sql(q{select tq_drain('d')}), '0', 'a waiting worker drains');
	is(end_ask($waiter), '', 'its claim returns nothing');
	sql(q{select tq_undrain('d')});
}
# drained between the look for jobs and the wait
{
	my $pid = ask($waiter, 'select pg_backend_pid()');
	arm($node, 'claim-before-pop', 'wait', pid => $pid);
	begin_ask($waiter, $claim_of_d);
	standing($node, 'claim-before-pop');
	is(sql(q{select tq_drain('d')}), '0', 'it drains before it waits');
	release($node, 'claim-before-pop');
	is(end_ask($waiter), '', 'and does not begin to');
}
# one that claims while it drains waits, so that a worker which does not notice does not call in a loop
begin_ask($waiter, $claim_of_d);
until_true($node, q{select count(*) = 1 from pg_stat_activity where state = 'active' and query ~ 'worker => .d.' and pid <> pg_backend_pid()});
$job = sql(q{select tq_enqueue('drain')});
is(sql(q{select id from tq_claim('drain', worker => 'e', wait => '3 min', lease_for => '9 h')}), $job, 'another gets the job that it was waiting for');
$job = sql(q{select tq_enqueue('drain')});
until_true($node, q{select waiting = 0 from tq_stats() where queue = 'drain'}, 'it waits for nothing any more');
is(sql("select state from tq_get($job)"), 'ready', 'it takes none');
my $untouched = sql(q{select tq_enqueue('untouched')});
my $again = session($node);
ask($again, 'set client_min_messages = notice');
$again->{stderr} = '';
$again->query(q{select count(*) from tq_claim('untouched', worker => 'd')});
like($again->{stderr}, qr/NOTICE: .*worker "d" is draining, so its claims get no jobs.*tq_undrain\('d'\)/s, 'a new one of its name is told why it gets nothing');
leave($again);
like(sql("select tq_explain($untouched)"), qr/no worker that may get jobs has asked for queue "untouched".* Worker "d" is draining, so its claims get no jobs; tq_undrain\('d'\) ends that\.$/,
	'... and so is who asks about the job');
my $unasked = sql(q{select tq_enqueue('unasked')});
like(sql("select tq_explain($unasked)"), qr/no worker has asked for queue "unasked" since the server started\. It needs a worker that calls tq_claim\('unasked'\)\.$/,
	'a job of a queue for which it has not asked does not name it');
my ($of_a, $of_b) = split /\n/, sql(q{select tq_enqueue('unasked', kind => k) from unnest('{a,b}'::text[]) k});
sql(q{select count(*) from tq_claim('unasked', kinds => '{a}', worker => 'd')});
like(sql("select tq_explain($of_a)"), qr/Worker "d" is draining/, 'a job of a kind for which it has asked names it');
unlike(sql("select tq_explain($_)"), qr/draining/, '... others do not') for $of_b, $unasked;
sql(q{select tq_purge('unasked', 'ready')});
sql("select tq_cancel($untouched)");
is(sql(q{select tq_undrain('d')}), 't', 'it may go on');
is(end_ask($waiter), $job, 'and takes the job');
sql(q{select tq_drain('d')});

# sweeps run every second; a claim without a job waits for two of them
sub sweeps { return is(sql(q{select count(*) from tq_claim('nothing', worker => 'e', wait => '2.5 s')}), '0', 'two sweeps later') }    # limit: nothing comes
later(0, 7200);
sweeps();
is(sql(q{select tq_enqueue('other') > 0}) . sql(q{select count(*) from tq_claim('other', worker => 'd')}), 't0',
	'a worker drains whatever the wall clock says');
sql(q{select tq_complete(id, lease) from tq_claim('other')});
later(50, 7200);
sql(q{select count(*) from tq_claim('drain', worker => 'd')});
later(50, 7200);
sql("select count(*) from tq_claim('nothing', worker => '$_')") for qw(e passer);
is(sql(q{select string_agg(worker || ' ' || draining, ', ' order by worker) from tq_workers where worker in ('d', 'e')}), 'd true, e false',
	'one that asks, or holds a job, is remembered');
later(100, 7200);
ok(until_true($node, q{select count(*) = 0 from tq_workers where worker = 'passer'}), 'a sweep has seen who holds a job: it has forgotten another worker');
sql(q{select tq_complete(id, lease) from tq_running where queue = 'drain'});
sweeps();
is(sql(q{select draining from tq_workers where worker = 'd'}), 't', 'so is one that has held a job within the last hour');
later(67, 7200);
ok(until_true($node, q{select count(*) = 0 from tq_workers where worker = 'd'}), 'after an hour without both it is forgotten');
later(0);

# after tq_drain returned 0, the worker gets no job, even in a claim that had begun
$job = sql(q{select tq_enqueue('drain')});
my $racer = session($node);
arm($node, 'claim-before-pop');
begin_ask($racer, q{select count(*) from tq_claim('drain', worker => 'r')});
standing($node, 'claim-before-pop');
is(sql(q{select tq_drain('r')}), '0', 'a worker drains while its claim is on its way');
release($node, 'claim-before-pop');
is(end_ask($racer), '0', 'which returns nothing');
is(sql(q{select count(*) from tq_claim('drain', worker => 's')}), '1', 'the job is for another');
sql(q{select tq_complete(id, lease) from tq_running where queue = 'drain'});
leave($racer);

# a worker that waited until it was forgotten
$waiter = session($node);
ask($waiter, q{set tq.max_pinned_wait = '1 d'});
begin_ask($waiter, q{select id from tq_claim('drain', worker => 'patient', wait => '1 d')});
until_true($node, q{select waiting = 1 from tq_stats() where queue = 'drain'}, 'it waits');
later(134);
ok(until_true($node, q{select count(*) = 0 from tq_workers where worker = 'patient'}), 'it is forgotten');
sql(qq{select count(*) from tq_claim('nothing', worker => 'new $_')}) for 1 .. 9;    # one of them takes its slot
$job = sql(q{select tq_enqueue('drain')});
is(end_ask($waiter), $job, 'a worker that has waited for hours takes a job');
is(sql("select worker from tq_running where id = $job"), 'patient', 'in its own name');
sql(q{select tq_complete(id, lease) from tq_running where queue = 'drain'});
leave($waiter);

#
# Slots of progress
#
my @held;
for my $i (1 .. 3)
{
	sql(q{select tq_enqueue('slots')});
	push @held, claim('slots');
}
sub report
{
	my ($i, $what) = @_;
	my ($stdout, $stderr) = ('', '');
	$node->psql('postgres', "select action from tq_heartbeat($held[$i], progress => '$what')", stdout => \$stdout, stderr => \$stderr);
	return $stdout . ($stderr =~ /WARNING:  (.*)/ ? " ($1)" : '');
}
is(report(0, 1), 'run', 'the first has a slot');
is(report(1, 2), 'run', 'the second');
like(report(2, 3), qr/^run \(the progress of job \d+ cannot be stored\)$/, 'the third is told that there is none');
is(report(0, 4), 'run', 'the first keeps its own');
is(report(1, 'null'), 'run', 'the second gives it back');
is(report(2, 5), 'run', 'so the third gets it');
is(sql(q{select string_agg(coalesce(progress::text, '-'), ' ' order by id) from tq_running where queue = 'slots'}), '4 - 5', 'each shows its own');
sql("select tq_complete($_)") for @held;
for my $i (1 .. 20)
{
	sql(q{select tq_enqueue('slots')});
	@held = (claim('slots'));
	is(report(0, $i), 'run', 'slots are given back') if $i > 17;
	report(0, $i);
	sql("select tq_release($held[0])") if $i % 2;
	sql("select tq_complete($held[0])") if $i % 2 == 0;
	sql(q{select tq_complete(id, lease) from tq_claim('slots')}) if $i % 2;
}
# slots of a lost lease, and of a queue that is dropped
sql(q{select tq_enqueue('slots')});
@held = (claim('slots', q{lease_for => '100 min'}));
report(0, 1);
later(101);
has_event($held[0], 'l');
later(0, 60);
is(sql(q{select count(*) from tq_claim('slots', wait => '3 min')}), '1', 'the job of a lost lease comes again');
is(sql(q{select progress is null from tq_running where queue = 'slots'}), 't', 'without its progress');
sql(q{select tq_complete(id, lease) from tq_running where queue = 'slots'});
later(0);
sql(q{select tq_enqueue('slots') from generate_series(1, 2)});
@held = (claim('slots'), claim('slots'));
is(report(0, 1) . report(1, 2), 'runrun', 'its slot is free again');
sql("select tq_complete($_)") for @held;

#
# Leases that belong to a worker
#
sub attempts { my ($queue) = @_; return sql("select string_agg(attempt::text, ' ' order by id) from tq_jobs where queue = '$queue' and state in ('ready', 'running')") }
# A session of the worker that claims, and its process.
sub worker_session
{
	my ($queue, $jobs) = @_;
	my $session = session($node);
	my $mine = ask($session, 'select pg_backend_pid()');
	is(ask($session, "select count(*) from tq_claim('$queue', $jobs, worker => 'w of $queue', lease_for => '100 min', bind_worker => true)"), $jobs,
		"a worker of $queue has jobs");
	return ($session, $mine);
}
# Claims jobs as they become free, until so many of them are in their second attempt.
sub get_free
{
	my ($queue, $jobs) = @_;
	until_true($node, "select (select count(*) from tq_claim('$queue', 9)) >= 0"
		. " and (select count(*) = $jobs from tq_jobs where queue = '$queue' and state = 'running' and attempt = 2)", "$jobs jobs of $queue are free");
	return;
}

sub kill_session
{
	my ($session, $mine) = @_;
	sql("select pg_terminate_backend($mine)");
	until_true($node, "select count(*) = 0 from pg_stat_activity where pid = $mine", 'its session has ended');
	leave($session);
	return;
}

# its connection is killed while it has jobs; it comes back in time, and no job runs twice
sql(q{select tq_enqueue('back') from generate_series(1, 3)});
kill_session(worker_session('back', 2));
my $ends = sql(q{select max(lease_expires_at) < clock_timestamp() + '31 min' from tq_running where queue = 'back'});
is($ends, 't', 'after the end of its connection a worker has a short time');
later(25);
is(sql(q{select jobs || ' ' || action from tq_heartbeat_worker('w of back')}), '2 run', 'it comes back in time, in another session');
later(50);
is(sql(q{select count(*) from tq_running where queue = 'back'}), '2', 'so it keeps its jobs');
later(40);
is(sql(q{select jobs from tq_heartbeat_worker('w of back')}), '2', 'as long as it sends heartbeats');
later(90);
my ($second, $second_pid) = worker_session('back', 1);
later(90);
is(attempts('back'), '1 1 1', 'a claim is a heartbeat too');
sql(q{select tq_heartbeat(id, lease) from tq_running where queue = 'back'});
kill_session($second, $second_pid);
later(20);
is(sql(q{select count(*) from tq_running r, tq_heartbeat(r.id, r.lease) where queue = 'back' and action = 'run'}), '3', 'so is the heartbeat of one job');
later(60);
is(attempts('back'), '1 1 1', 'which shows that the worker lives');
is(scalar(split /\n/, sql(q{select tq_complete(id, lease) from tq_running where queue = 'back'})), 3, 'all jobs are completed in their first attempt');

# it does not come back: all its jobs are given to others, those claimed elsewhere as well
sql(q{select tq_enqueue('gone') from generate_series(1, 5)});
my ($first, $first_pid) = worker_session('gone', 2);
($second, $second_pid) = worker_session('gone', 2);
is(sql(q{select count(*) from tq_claim('gone', worker => 'w of gone', lease_for => '9 h')}), '1', 'one lease in its name is not its own');
kill_session($first, $first_pid);
later(25);
is(attempts('gone'), '1 1 1 1 1', 'within the grace it keeps them');
later(10);
get_free('gone', 4);
is(attempts('gone'), '2 2 2 2 1', 'without the lease that was not its own');
is(sql(q{select distinct h.reason from tq_running r, tq_history(r.id) h where r.queue = 'gone' and h.event = 'lost'}), 'its worker has ended', 'the history says why');
is(ask($second, q{select jobs from tq_heartbeat_worker('w of gone')}), '0', 'the worker learns it');
leave($second);
sql(q{select tq_complete(id, lease) from tq_running where queue = 'gone'});

# released by its supervisor while a claim commits and while a job is being completed
sql(q{select tq_enqueue('freed') from generate_series(1, 4)});
my ($open, $open_pid) = worker_session('freed', 2);
my $finish = session($node);
ask($finish, 'begin');
is(ask($finish, q{select count(tq_complete(id, lease)) from (select id, lease from tq_running where queue = 'freed' order by id limit 1) r}), '1', 'a job is being completed');
ask($open, 'begin');
ask($open, q{select count(*) from tq_claim('freed', worker => 'w of freed', bind_worker => true)});
arm($node, 'revoke-before-end');
is(sql(q{select tq_release_worker('w of freed')}), '3', 'its leases end');
standing($node, 'revoke-before-end');
is(sql(q{select count(*) from tq_claim('freed', worker => 'w of freed', bind_worker => true)}), '1', 'a new process of that name claims meanwhile');
release($node, 'revoke-before-end');
ask($open, 'commit');
leave($open);
ok(until_true($node, q{select ready = 2 from tq_stats() where queue = 'freed'}), 'two jobs are free at once');
ask($finish, 'rollback');
ok(until_true($node, q{select ready = 3 from tq_stats() where queue = 'freed'}), 'a completion that is rolled back frees the job, too');
is(sql(q{select jobs from tq_heartbeat_worker('w of freed')}), '1', 'the new process keeps its own');
sql(q{select tq_release_worker('w of freed')});
ok(until_true($node, q{select ready = 4 from tq_stats() where queue = 'freed'}), '... until the next release');
# the same, and no process comes back: the scheduler looks again
is(ask($finish, q{select count(*) from tq_claim('freed', worker => 'w of freed', bind_worker => true)}), '1', 'one job again');
ask($finish, 'begin');
ask($finish, q{select tq_complete(id, lease) from tq_running where queue = 'freed'});
is(sql(q{select tq_release_worker('w of freed')}), '1', 'it is released while the job is being completed');
ask($finish, 'rollback');
ok(until_true($node, q{select ready = 4 from tq_stats() where queue = 'freed'}), 'the rollback frees the job');
leave($finish);
sql(q{select tq_complete(id, lease) from tq_claim('freed', 9)});

# a crash: journalled leases still belong to their worker, whose role must show its right to their queues
sql($_) for q{create role owner}, q{create role thief}, q{select tq_enqueue('kept') from generate_series(1, 2)}, q{select tq_enqueue('theirs')},
	q{select tq_grant('kept', 'owner', 'consume')}, q{select tq_grant('theirs', 'thief', 'consume')};
sql(q{set role owner; select tq_heartbeat(id, lease, checkpoint => '1') from tq_claim('kept', 2, worker => 'keeper', lease_for => '100 min', bind_worker => true)});
crash();
is(sql(q{select jsonb_agg(distinct bound) from tq.event where type = 'k' and bound is not null}), '[false]', 'the journal has the kind of the lease');
sub as_role { my ($role, $text) = @_; my ($out, $err) = ('', ''); $node->psql('postgres', "set role $role; $text", stdout => \$out, stderr => \$err); return $err =~ /ERROR:  (.*)/ ? $1 : $out }
is(as_role('thief', q{select jobs from tq_heartbeat_worker('keeper')}), 'worker "keeper" belongs to another role', 'another role does not get the worker');
is(as_role('thief', q{select count(*) from tq_claim('theirs', worker => 'keeper', lease_for => '9 h')}), '1', 'it may use the name');
is(as_role('thief', q{select tq_release_worker('keeper')}), 'worker "keeper" belongs to another role', 'but not the leases');
is(sql(q{select jobs from tq_heartbeat_worker('keeper')}), '2', 'an administrator extends them, and does not take the worker');
later(70);
is(as_role('owner', q{select jobs || ' ' || action from tq_heartbeat_worker('keeper')}), '2 run', 'its role extends them');
later(70);
is(attempts('kept'), '1 1', 'after a crash as well');
is(as_role('thief', q{select jobs from tq_heartbeat_worker('keeper')}), 'worker "keeper" belongs to another role', 'now it is known whose it is');
is(as_role('owner', q{select tq_release_worker('keeper')}), '2', 'and ends them');
get_free('kept', 2);
is(attempts('kept'), '2 2', 'for others');
is(scalar(split /\n/, sql(q{select tq_complete(id, lease) from tq_running where queue in ('kept', 'theirs')})), 3, 'which complete them');
later(32);
is(as_role('thief', q{select count(*) from tq_claim('theirs', worker => 'keeper', bind_worker => true)}), 'worker "keeper" belongs to another role', 'others do not get its name');
later(32);
ok(until_true($node, q{select count(*) = 0 from tq_workers where worker = 'keeper'}), 'and do not keep it from being forgotten');
is(as_role('thief', q{select count(*) from tq_claim('theirs', worker => 'keeper', bind_worker => true)}), '0', 'then they get it');

check_journal($node);
$node->stop;
done_testing();
