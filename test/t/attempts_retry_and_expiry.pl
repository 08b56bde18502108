# Policies of an attempt: when it is retried, how long it may take, until when it may start. Each can come from the
# claim, the job, the queue or the server, and survives a restart. Tests move the clocks instead of waiting. Scenarios:
# retries, on_lost, lease and timeout, expiry (also against a concurrent verb, and of more jobs than memory holds).

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('times', conf => <<CONF);
tq.max_live_jobs = 200
tq.segment_rows = 3000
tq.claim_log_delay = 10ms
tq.retry = '{"policy": "fixed", "delay": "7 s", "jitter": 0}'
CONF
scheduler_of($node);
my $db = session($node);
my $mono = 0;

sub query { return $node->safe_psql('postgres', $_[0]) }

# "id, lease" of the next job
sub claim
{
	my ($queue, $args) = @_;
	return ask($db, "select id || ', ' || lease from tq_claim('$queue'" . ($args ? ", $args" : '') . ')');
}

# One test: the lease that a claim sets is so many seconds long, by the times before and after it.
sub lasts
{
	my ($call, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(query("select round(extract(epoch from lease_expires_at - now())) >= $expected, round(extract(epoch from lease_expires_at - clock_timestamp())) <= $expected from $call"),    # limit: later is less
		't|t', $name);
	return;
}

# Advances the clock of leases by so many seconds; the wall clock stays.
sub go_on
{
	my ($seconds) = @_;
	$mono += $seconds;
	clock($node, 0, $mono);
	return;
}

sub has_event
{
	my ($job, $type) = @_;
	return until_true($node, "select exists (select from tq.event where job_id = $job and type = '$type')", "event $type of $job");
}

sub state { return query("select state || coalesce(' ' || error, '') from tq_get($_[0])") }

# Seconds from the last event of a job to its next attempt.
sub pause_of
{
	return query("select coalesce(round(extract(epoch from retry_at - at), 2)::text, 'none') from tq_history($_[0]) order by step desc limit 1");
}

# Cancels the waiting jobs.
sub none_waits
{
	query("select tq_cancel(id) from tq_jobs where queue = '$_' and state in ('ready', 'delayed')") for @_;
	return;
}

sub restart
{
	my ($how) = @_;
	leave($db);
	$node->stop($how);
	$node->start;
	$mono = 0; # the offsets of the clocks are gone
	$db = session($node);
	loaded($node);
	scheduler_of($node);
	return;
}

# Fails a job repeatedly; returns the pauses.
sub pauses
{
	my ($queue, $times) = @_;
	my @pauses;
	for (1 .. $times)
	{
		my $held = claim($queue, q{wait => '3 min'});
		my ($job) = split /,/, $held;
		my $state = ask($db, "select tq_fail($held, 'no')");
		push @pauses, $state eq 'delayed' ? pause_of($job) : $state;
		ask($db, "select tq_retry($job)") if $state eq 'delayed';
	}
	return join ' ', map { $_ =~ s/\.?0+$//r } @pauses;
}

#
# Retries: the job's, else the queue's, else the server's
#
query(q{select tq_create_queue('q', '{"retry": {"policy": "linear", "delay": "3 s"}}'), tq_create_queue('plain')});
query(q{select tq_enqueue('plain')});
is(pauses('plain', 3), '7 7 7', 'retry: the server\'s policy');
query(q{select tq_enqueue('q')});
is(pauses('q', 3), '3 6 9', 'retry: the queue\'s');
none_waits('q', 'plain');
query(q{select tq_enqueue('q', retry => '{"policy": "list", "delays": ["1 s", "5 s", "60 s"]}', max_attempts => 5)});
is(pauses('q', 5), '1 5 60 60 dead', 'retry: the job\'s, a list');
query(q{select tq_enqueue('q', retry => '{"delay": "2 s"}', max_attempts => 2)});
is(pauses('q', 2), '2 dead', 'retry: what the job leaves out is its queue\'s');
query(q{select tq_enqueue('plain', retry => '{"policy": "exponential", "delay": "2 s", "factor": 3, "max": "10 s"}')});
is(pauses('plain', 3), '2 6 10', 'retry: exponential, with a cap');
none_waits('plain');
query(q{select tq_enqueue_many('plain', array_fill('{}'::jsonb, '{2}'), retry => '{"policy": "fixed", "delay": "1 h"}')});
my $many = query(q{with c as materialized (select array_agg(id) ids, array_agg(lease) leases from tq_claim('plain', 2)),
	f as materialized (select c.ids, (tq_fail_many(ids, leases, '{a,b}')).status from c)
	select string_agg(status, ' ') from f});
is($many, 'ok ok', 'retry: of two jobs at once');
is(query(q{select string_agg(round(extract(epoch from g.run_at - clock_timestamp()) / 600)::text, ' ')
	from tq_jobs j, tq_get(j.id) g where j.queue = 'plain' and j.state = 'delayed'}),
	'6 6', 'retry: each by its own policy');
none_waits('plain');
my $job = query(q{select tq_enqueue('plain', retry => '{"delay": "1 h"}')});
my $held = claim('plain');
is(ask($db, "select tq_fail($held, 'no', retry_in => '11 min')"), 'delayed', 'retry_in');
is(pause_of($job), '660.00', 'retry_in wins over the policy');
query("select tq_retry($job)");
$held = claim('plain');
is(ask($db, "select tq_fail($held, 'no', fatal => true)"), 'dead', 'fatal wins over everything');

# on_lost
for my $case (['plain', '{"delay": "1 h"}', 'ready', 'at once by default'], ['plain', '{"on_lost": "45 s"}', '45.00', 'the job\'s delay'],
	['q', '{"on_lost": "0 s"}', 'ready', 'none'])
{
	my ($queue, $retry, $expected, $name) = @$case;
	$job = query("select tq_enqueue('$queue', retry => '$retry')");
	$held = claim($queue, q{lease_for => '10 min'});
	has_event($job, 'c');
	go_on(601);
	has_event($job, 'l');
	is($expected eq 'ready' ? query("select state from tq_get($job)") : pause_of($job), $expected, "a lost lease is retried: $name");
	is(query("select attempt from tq_get($job)"), 1, 'and its attempt counts');
	like(ask($db, "select tq_complete($held)"), qr/TQ001/, 'the old lease is lost');
	query("select tq_cancel($job)");
}
# an unreadable row does not block other jobs
$job = query(q{select tq_enqueue('plain', retry => '{"on_lost": "45 s"}')});
my $table = query("select tableoid::regclass from tq.job where id = $job");
without_triggers($node, "update $table set retry = '{\"on_lost\": \"soon\"}' where id = $job", $table);
$held = claim('plain', q{lease_for => '10 min'});
has_event($job, 'c');
go_on(601);
has_event($job, 'l');
is(state($job), 'ready lease lost', 'a policy broken by hand is ignored');
query("select tq_cancel($job)");

# the queue's action after a lost lease
query(q{select tq_create_queue('bury', '{"on_lost": "bury"}'), tq_create_queue('dead', '{"on_lost": "dead"}')});
for my $case (['bury', 'b', 'buried'], ['dead', 'd', 'dead'])
{
	my ($queue, $type, $state) = @$case;
	$job = query("select tq_enqueue('$queue')");
	$held = claim($queue, q{lease_for => '10 min'});
	go_on(601);
	has_event($job, $type);
	is(state($job), "$state lease lost", "on_lost: $queue");
	is(query("select attempt from tq_get($job)"), 1, 'an attempt was used');
	is(query("select tq_retry($job)"), 'ready', 'and it can be retried');
	query("select tq_cancel($job)");
}
$job = query(q{select tq_enqueue('plain', max_attempts => 1)});
claim('plain', q{lease_for => '10 min'});
go_on(601);
has_event($job, 'd');
is(state($job), 'dead lease lost', 'no attempts left: dead');

#
# Lease and timeout: the claim's, else the job's, else the queue's, else the server's
#
query(q{select tq_create_queue('limits', '{"lease": "40 min", "timeout": "2 h", "lease_grace": "20 min"}')});
query(q{select tq_enqueue('limits', options => '{"lease": "25 min"}', priority => 1), tq_enqueue('limits', options => '{"lease": "25 min"}', priority => 2),
	tq_enqueue('limits', priority => 3), tq_enqueue('limits', timeout => '15 min', priority => 4), tq_enqueue('limits', timeout => '10 h', options => '{"lease": "3 h"}', priority => 5),
	tq_enqueue('plain')});
lasts(q{tq_claim('limits')}, 1500, 'lease: the job\'s');
lasts(q{tq_claim('limits', lease_for => '5 min')}, 300, 'lease: the claim\'s');
lasts(q{tq_claim('limits')}, 2400, 'lease: the queue\'s');
lasts(q{tq_claim('limits')}, 900, 'a job\'s timeout cuts it off');
lasts(q{tq_claim('limits', lease_for => '12 h')}, 36000, 'also where the claim asks for more');
lasts(q{tq_claim('plain')}, 300, 'lease: the server\'s');
go_on(40_000);
until_true($node, q{select count(*) = 0 from tq_running});
none_waits('plain', 'limits');

# heartbeats do not extend a timeout
$job = query(q{select tq_enqueue('limits')});
$held = claim('limits');
has_event($job, 'c');
for (1 .. 4)
{
	go_on(1680);
	is(query("select action from tq_heartbeat($held)"), 'run', 'timeout: a heartbeat goes on');
}
is(query("select lease_expires_at - now() <= '481 s' from tq_heartbeat($held)"), 't', 'timeout: but not beyond the end of the attempt');    # limit: it only falls
go_on(500);
is(query("select action from tq_heartbeat($held)"), 'run', 'timeout: within the grace');
go_on(1300);
has_event($job, 'l');
is(state($job), 'ready timeout', 'timeout: then it is lost');
is(query("select action from tq_heartbeat($held)"), 'lost', 'and the heartbeat says so');
query("select tq_cancel($job)");

# a heartbeat does not extend the deadline of a worker that was asked to stop
query(q{select tq_alter_queue('plain', '{"cancel_grace": "30 min"}')});
$job = query(q{select tq_enqueue('plain')});
$held = claim('plain');
has_event($job, 'c');
is(query("select tq_cancel($job)"), 'asked', 'a running job is asked to stop');
query("select tq_heartbeat($held, extend => '1 h')");
go_on(1500);
is(query("select action from tq_heartbeat($held, extend => '1 h')"), 'cancel', 'its worker has some time for that');
go_on(400);
has_event($job, 'x');
is(state($job), 'cancelled asked to cancel, and did not stop in time', 'then the job is cancelled');

# after a crash, a journalled claim has a full new period, and the attempt keeps its end
$job = query(q{select tq_enqueue('limits', timeout => '10 h', options => '{"lease": "1 h"}')});
$held = claim('limits');
has_event($job, 'c');
my $own = query(q{select tq_enqueue('q', retry => '{"policy": "fixed", "delay": "33 s"}')});
query('create table flushed ()');
restart('immediate');
is(query("select action from tq_heartbeat($held)"), 'run', 'after a crash: the lease is there');
go_on(2400);
query("select tq_heartbeat($held, extend => '20 h')");
go_on(30_000);
is(query("select action from tq_heartbeat($held)"), 'run', 'and goes on');
go_on(6000);
has_event($job, 'l');
is(state($job), 'ready timeout', 'after a crash: the attempt has its end');
query("select tq_cancel($job)");
is(pauses('q', 1), '33', 'after a crash: the job has its policy');
query("select tq_cancel($own)");
go_on(0);

#
# Expiry
#
query(q{select tq_create_queue('ttl', '{"expires_in": "1 h"}')});
$job = query(q{select tq_enqueue('plain', expires_at => clock_timestamp() + interval '200 ms')});
my $delayed = query(q{select tq_enqueue('ttl', delay => '30 min')});
has_event($job, 'e');
is(state($job), 'expired not started in time', 'a job expires');
is(query("select h.at >= j.expires_at from tq_history($job) h, tq.job j where j.id = $job and h.event = 'expired'"), 't', 'not before its time');
is(query(q{select expired from tq_stats() where queue = 'plain'}), 1, 'and is counted');
is(query("select round(extract(epoch from expires_at - enqueued_at) / 60) from tq.job where id = $delayed"), 90, 'the queue\'s expires_in, from the time it may start');
query("select tq_cancel($delayed)");
like(ask($db, "select tq_cancel($job)"), qr/TQ005.*expired/s, 'an expired job cannot be cancelled');
is(query("select tq_retry($job)"), 'ready', 'but retried');
is(join(',', take($node, 'plain', 1)), $job, 'and has no end any more');

# a started job does not expire, a released one does
$job = query(q{select tq_enqueue('plain', expires_at => clock_timestamp() + interval '1 h')});
$held = claim('plain');
my $back = query(q{select tq_enqueue('plain', expires_at => clock_timestamp() + interval '1 h')});
my $rolled = query(q{select tq_enqueue('plain', expires_at => clock_timestamp() + interval '1 h')});
my $held_back = claim('plain');
ask($db, "begin; select id from tq_claim('plain'); rollback");
is(ask($db, "select tq_fail($held, 'no', retry_in => '2 h')"), 'delayed', 'a job fails');
is(ask($db, "select tq_release($held_back)"), 'ready', 'another is given back');
clock($node, 3601, 0);
has_event($back, 'e');
has_event($rolled, 'e');
is(state($job), 'delayed no', 'the one that was started waits for its next attempt');
clock($node, 2 * 3600 + 10, 0);
is(join(',', take_all($node, 'plain', 1)), $job, 'and gets it');
clock($node, 0, 0);

# an open verb prevents the expiry, and so does an event in the journal after a restart
$job = query(q{select tq_enqueue('plain', expires_at => clock_timestamp() + interval '1 h')});
my $new_life = query(q{select tq_enqueue('plain', expires_at => clock_timestamp() + interval '1 h', delay => '10 min')});
query("select tq_cancel($new_life)");
query("select tq_retry($new_life)");
ask($db, "begin; select tq_reschedule($job, priority => 7)");
clock($node, 3601, 0);
my $other = query(q{select tq_enqueue('plain', expires_at => clock_timestamp())});
has_event($other, 'e');
is(query("select count(*) from tq_history($job) where event = 'expired'"), 0, 'a job that another transaction is changing does not expire');
ask($db, 'rollback');
has_event($job, 'e');
clock($node, 0, 0);
restart('fast');
clock($node, 3601, 0);
is(join(',', take($node, 'plain', 5, undef, '3 min')), $new_life, 'after a restart: a new life has no end');
clock($node, 0, 0);

# a claim never returns an expired job, with or without a scheduler
query(q{select tq_enqueue('late', expires_at => clock_timestamp() + interval '1 h', priority => g) from generate_series(1, 20) g});
my $stays = query(q{select tq_enqueue('late', priority => 50)});
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->reload;
until_true($node, q{select count(*) = 0 from pg_stat_activity where backend_type like 'tq scheduler'});
clock($node, 3601, 0);
is(join(',', take($node, 'late', 30)), $stays, 'a claim passes over expired jobs');
my $aside = query(q{select min(id) from tq_jobs where queue = 'late' and state = 'expired'});
is(query("select state from tq_get($aside)"), 'expired', 'which are shown as what they are');
like(ask($db, "select tq_cancel($aside)"), qr/55P03/, 'they are the scheduler\'s now');
is(query(q{select string_agg(item, ',') from tq_check() where expected <> found}), '', 'tq_check knows them');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
until_true($node, q{select expired = 20 from tq_stats() where queue = 'late'}, '20 jobs that expired late');
is(query(q{select live from tq_stats() where queue = 'late'}), 0, 'when the scheduler comes, it ends them');
clock($node, 0, 0);

# more jobs than memory holds
query(q{select tq_enqueue_many('disk', array_fill('{}'::jsonb, '{2000}'), expires_at => clock_timestamp() + interval '1 h')});
query(q{select tq_enqueue_many('disk', array_fill('{}'::jsonb, '{1000}'), expires_at => clock_timestamp() + interval '90 min', delay => '80 min')});
my $last = query(q{select tq_enqueue('disk', priority => 200)});
clock($node, 3601, 0);
is(join(',', take_all($node, 'disk', 1)), $last, 'expired jobs on disk do not keep the one behind them');
until_true($node, q{select expired >= 2000 from tq_stats() where queue = 'disk'}, '2000 expired');
is(query(q{select count(*) from tq.event e join tq.job j on j.id = e.job_id join tq.queue q on q.id = j.queue_id where name = 'disk' and type = 'e' and j.run_at is null}),
	2000, 'they expire when they are read in');
clock($node, 5401, 0);
until_true($node, q{select expired = 3000 from tq_stats() where queue = 'disk'}, '3000 expired');
is(query(q{select count(*) from tq_claim('disk')}), 0, 'and so do delayed ones');
clock($node, 0, 0);

# jobs on disk that nothing reads in: of a paused queue, kind or group, and behind jobs that do not expire
query(q{select tq_create_queue('rests', '{"max_depth": 2501}'), tq_pause('rests'), tq_create_queue('busy'), tq_create_queue('both')});
query(q{select tq_enqueue('both', kind => 'k', group_key => 'g0'), tq_pause('both', kind => 'k'), tq_pause('both', group_key => 'g0')});
my $until = q{expires_at => clock_timestamp() + interval '1 h'};
query(qq{select tq_enqueue_many('rests', array_fill('{}'::jsonb, '{1500}'), $until, unique_keys => array(select 'key ' || g from generate_series(1, 1500) g))});
query(qq{select tq_enqueue_many('rests', array_fill('{}'::jsonb, '{1000}'), $until, group_keys => array(select 'g' || g % 7 from generate_series(1, 1000) g))});
query(qq{select tq_enqueue_many('both', array_fill('{}'::jsonb, '{1000}'), kind => 'k', $until)});
query(qq{select tq_enqueue_many('both', array_fill('{}'::jsonb, '{1000}'), group_key => 'g0', $until)});
query(q{select tq_enqueue_many('busy', array_fill('{}'::jsonb, '{1000}'))});
query(qq{select tq_enqueue_many('busy', array_fill('{}'::jsonb, '{1000}'), $until)});
my $awaited = query(q{select max(id) from tq_jobs where queue = 'rests'});
$job = query(qq{select tq_enqueue('children', depends_on => array[$awaited], options => '{"on_parent_failure": "run"}')});
clock($node, 3700, 0);
is(query(q{select string_agg(queue || n, ' ' order by queue) from (select queue, count(*) as n from tq_jobs where state = 'expired' and queue in ('rests', 'both', 'busy') group by queue) x}),
	'both2000 busy1000 rests2500', 'tq_jobs shows expired jobs as such at once');
ok(until_true($node, "select string_agg(queue || ready || ' ' || expired, ', ' order by queue) = 'both1 2000, busy1000 1000, rests0 2500' from tq_stats() where queue in ('rests', 'both', 'busy')"),
	'jobs that wait on disk expire, whatever keeps them there');
is(query(q{select string_agg(queue || live, ' ' order by queue) from tq_queues where queue in ('rests', 'both', 'busy')}), 'both1 busy1000 rests0', '... they are no backlog');
is(query(q{select outcome from tq_enqueue_info('rests', unique_key => 'key 7')}), 'created', '... have no key');
ok(until_true($node, "select state = 'ready' from tq_get($job)"), '... and keep no child waiting');
like(query("select tq_explain($awaited)"), qr/has expired/, '... which tq_explain says, too');
clock($node, 0, 0);

# a janitor that has just run does not delay the next one: after other work it pauses for five naps
query("alter system set $_") for q{tq.naptime = '1h'}, 'tq.segment_rows = 1000000', q{tq.segment_interval = '20d'};
$node->reload;
until_true($node, q{select current_setting('tq.naptime') = '1h'});
for my $round (1 .. 3)
{
	my $ahead = 700 * $round;
	query(qq{select tq_enqueue_many('rests', array_fill('{}'::jsonb, '{600}'), expires_at => clock_timestamp() + interval '@{[$ahead - 60]} s')});
	clock($node, $ahead, 0);
	ok(until_true($node, q{select live = 1 from tq_queues where queue = 'rests'}), "jobs on disk expire soon after others, $round");
}
query("alter system reset $_") for 'tq.naptime', 'tq.segment_rows', 'tq.segment_interval';
$node->reload;
until_true($node, q{select current_setting('tq.naptime') = '100ms'});
clock($node, 0, 0);

# the journal decides
$job = query(q{select tq_enqueue('plain', expires_at => clock_timestamp() + interval '1 h')});
arm($node, 'expire-after-mark');
clock($node, 3601, 0);
standing($node, 'expire-after-mark');
like(ask($db, "select tq_cancel($job)"), qr/55P03/, 'while it expires, it is being changed');
is(claim('plain'), '', 'and no claim gets it');
release($node, 'expire-after-mark');
has_event($job, 'e');
clock($node, 0, 0);

# the scheduler finds a job that a claim saw expire after the scheduler had begun
query(qq{select tq_enqueue('plain', expires_at => clock_timestamp() + g * interval '1 h') from generate_series(1, 2) g});
$job = query(q{select max(id) from tq_jobs where queue = 'plain'});
arm($node, 'expire-before-lock');
clock($node, 3601, 0);
standing($node, 'expire-before-lock');
clock($node, 7201, 0);
is(claim('plain'), '', 'a claim passes over the second job');
release($node, 'expire-before-lock');
has_event($job, 'e');
is(query("select count(*) from tq.event e join tq.job j on j.id = e.job_id where type = 'e' and e.at < j.expires_at"), 0, 'no job expired before its time');
clock($node, 0, 0);

# a claim that read the clock before an enqueue with the same key
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->restart;
my $first = query(q{select tq_enqueue('keys', unique_key => 'k', expires_at => clock_timestamp() + interval '1 h')});
leave($db);
$db = session($node);
my $pid = ask($db, 'select pg_backend_pid()');
query('select count(*) from tq_stats()');
arm($node, 'claim-before-pop', 'wait', pid => $pid);
begin_ask($db, q{select id from tq_claim('keys')});
standing($node, 'claim-before-pop');
clock($node, 3601, 0);
my $second = query(q{select tq_enqueue('keys', unique_key => 'k')});
isnt($second, $first, 'when a job has expired, its key is free');
release($node, 'claim-before-pop');
isnt(end_ask($db), $first, '... and no claim gets it, not even one that began before');
clock($node, 0, 0);
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
scheduler_of($node);

check_journal($node);
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6|a recount found/, 'nothing alarming in the log');
leave($db);
$node->stop;

done_testing();
