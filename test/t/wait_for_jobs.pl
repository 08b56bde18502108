# tq_wait holds no snapshot (H20), wakes at once and alone (H19), and ends by timeout, cancel, or the death of its
# client. Also: fifty waiters and one job, a woken session that does not claim, a dropped queue, procedures; one session
# that waits for many queues and kinds, or for all.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;
use Time::HiRes qw(time);

my $node = tq_node('wait', conf => "max_connections = 100\ntq.naptime = 1s\ntq.max_queues = 400\n");
scheduler_of($node);
$node->safe_psql('postgres', "select tq_create_queue('q')");

my $call = "call tq_wait(array['q'], '1 h')";
my $waiter = session($node);
my $pid = ask($waiter, 'select pg_backend_pid()');

# Waits until so many sessions wait for queue q.
sub waiting
{
	my ($n) = @_;
	return until_true($node, "select waiting = $n from tq_queues where queue = 'q'", "$n waiters");
}

sub held
{
	my ($what) = @_;
	return $node->safe_psql('postgres', "select $what from pg_stat_activity where pid = $pid");
}

# Enqueues and completes one job.
sub one_job
{
	$node->safe_psql('postgres', "select tq_enqueue('q')");
	return;
}

sub take_one
{
	is(scalar(take($node, 'q', 1)), 1, 'the job is there');
	return;
}

#
# H20: nothing is pinned
#
my @forms = (
	[ 'a CALL of its own', $call ],
	[ 'a CALL in a transaction block', "begin; $call; commit" ],
	[ 'a CALL in a block that has read', "begin; select from pg_class limit 1; $call; commit" ],
	[ 'a CALL behind a savepoint', "begin; savepoint s; $call; commit" ],
	[ 'a CALL in DO', "do \$\$ begin perform 1; $call; perform 2; $call; end \$\$" ],
	[ 'a CALL for a queue that is new', "call tq_wait(array['q', 'never used'], '1 h')" ]);
for my $form (@forms)
{
	begin_ask($waiter, $form->[1]);
	waiting(1);
	is(held("coalesce(backend_xmin::text, 'no') || ' ' || coalesce(backend_xid::text, 'no')"), 'no no', "H20: $form->[0] holds no snapshot");
	one_job();
	is(end_ask($waiter), '', 'it ends with the job');
	take_one();
}
is(ask($waiter, "prepare w as select 1; execute w"), '1', 'the session goes on');

# if the snapshot cannot be released, the wait is limited
my @pinned = (
	[ 'repeatable read', "begin isolation level repeatable read; select 1; $call; commit" ],
	[ 'an open cursor', "begin; declare c cursor for select 1; fetch c; $call; commit" ],
	[ 'a transaction that wrote', "begin; create temp table gone_at_commit () on commit drop; $call; commit" ],
	[ 'a query around it', "select f()" ],
	[ 'a handler around it', "do \$\$ begin $call; exception when no_data_found then null; end \$\$" ]);
ask($waiter, "create function f() returns int language plpgsql as \$\$ begin $call; return 1; end \$\$");
for my $form (@pinned)
{
	begin_ask($waiter, $form->[1]);
	waiting(1);
	isnt(held("coalesce(backend_xmin::text, 'no') || ' ' || coalesce(backend_xid::text, 'no')"), 'no no', "$form->[0] holds others back");
	one_job();
	unlike(end_ask($waiter), qr/ERROR/, 'it ends without an error');
	take_one();
}
ask($waiter, "set tq.max_pinned_wait = '500 ms'");
for my $form (@pinned)
{
	my $began = time;
	unlike(ask($waiter, $form->[1]), qr/ERROR/, "$form->[0] ends without a job, too");
	my $took = time - $began;
	ok($took >= 0.4, "after tq.max_pinned_wait ($took s)");
}
is(ask($waiter, "select count(*) from tq_claim('q', wait => '1 h')"), '0', 'tq_claim waits with a snapshot');
ask($waiter, 'reset tq.max_pinned_wait');

#
# timeout, cancel
#
my $began = time;
is(ask($waiter, "call tq_wait(array['q'], '300 ms')"), '', 'the time is over');    # limit: it runs out
my $took = time - $began;
ok($took >= 0.3, "when it should be ($took s)");
like(ask($waiter, "call tq_wait(array['q'], '-1 s')"), qr/22023/, 'a negative time is refused');
like(ask($waiter, "call tq_wait(array[]::text[], '1 h')"), qr/22023/, 'so are no queues');
like(ask($waiter, "call tq_wait(array['q', null], '1 h')"), qr/22004/, 'and queues that are null');
like(ask($waiter, "set tq.auto_create_queues = off; call tq_wait(array['nobody made it'], '1 h')"),
	qr/TQ002/, 'and those that do not exist, where queues are not made by their use');
ask($waiter, 'reset tq.auto_create_queues');

begin_ask($waiter, $call);
waiting(1);
$node->safe_psql('postgres', "select pg_cancel_backend($pid)");
like(end_ask($waiter), qr/57014/, 'a wait can be cancelled');
waiting(0);
for my $form ("select count(*) from tq_claim('q', wait => '1 h')", "select count(*) from tq_claim('q', worker => 'drains', wait => '1 h')",
	"select count(*) from tq_claim_any('{q,other}', wait => '1 h')", "select count(*) from tq_claim_for('{q}', '{v,w}', wait => '1 h')",
	"call tq_wait(timeout => '1 h')")
{
	$node->safe_psql('postgres', q{select tq_drain('drains')});
	begin_ask($waiter, $form);
	until_true($node, "select count(*) = 1 from pg_stat_activity where pid = $pid and state = 'active' and query ~ '1 h' and wait_event_type = 'Extension'");
	$node->safe_psql('postgres', "select pg_cancel_backend($pid)");
	like(end_ask($waiter), qr/57014/, "so can $form");
	waiting(0);
}
begin_ask($waiter, "begin; savepoint s; $call");
waiting(1);
$node->safe_psql('postgres', "select pg_cancel_backend($pid)");
like(end_ask($waiter), qr/57014/, 'also behind a savepoint');
ask($waiter, 'rollback to s');
waiting(0);
ask($waiter, 'commit');

# an available job is not waited for
one_job();
is(ask($waiter, $call), '', 'a job that is there ends the wait at once');
take_one();

#
# Fifty sessions wait for one job: one wakes. The scheduler's sweep, once a second, may wake another if it runs between
# wakeup and claim.
#
$node->safe_psql('postgres', 'create table woken (id bigint)');
my $script = PostgreSQL::Test::Utils::tempdir() . '/wait.sql';
append_to_file($script, <<SQL);
$call;
with c as materialized (select id, lease from tq_claim('q')), f as (select id, tq_complete(id, lease) from c)
	insert into woken select (select id from f);
SQL
my $clients = IPC::Run::start(
	[ 'pgbench', '-n', '-c', 50, '-j', 2, '-t', 1, '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
	'>', \my $pgbench_out, '2>', \my $pgbench_err);
waiting(50);
my $since = time;
for my $n (1 .. 3)
{
	one_job();
	until_true($node, "select count(id) = $n from woken");
	my $woken = $node->safe_psql('postgres', 'select count(*) from woken');
	ok($woken < $n + 5 + time - $since, "one of fifty wakes for job $n (so far $woken)");
	until_true($node, "select waiting + count(w) = 50 from tq_queues, woken w where queue = 'q' group by waiting");
}
my $left = $node->safe_psql('postgres', "select waiting from tq_queues where queue = 'q'");
$node->safe_psql('postgres', "select tq_enqueue_many('q', array_fill('{}'::jsonb, array[$left]))");
$clients->finish;
is($node->safe_psql('postgres', "select count(*) filter (where id is not null) - $left from woken"), '3', 'and each of the others gets a job of its own');

#
# H19: the token of a waiter whose client is dead goes to another waiter
#
for my $form ($call, "select count(*) from tq_claim('q', wait => '1 h')")
{
	my $doomed = session($node);
	begin_ask($doomed, $form);
	waiting(1);
	begin_ask($waiter, "select id is not null from tq_claim('q', wait => '1 h')");
	waiting(2);
	$doomed->{run}->kill_kill;
	one_job();
	is(end_ask($waiter), 't', 'H19: the job goes to the next in line');
	waiting(0);
	is($node->safe_psql('postgres', "select count(*) from tq_running where queue = 'q' and open"), '0', 'H19: and to no other session');
	is($node->safe_psql('postgres', "select tq_complete(id, lease) from tq_running where queue = 'q'"), 'succeeded', 'it can be finished');
}

# a woken session that does not claim does not keep the job from others for long
my $idler = session($node);
begin_ask($idler, $call);
waiting(1);
begin_ask($waiter, "select id is not null from tq_claim('q', wait => '1 h')");
waiting(2);
one_job();
is(end_ask($idler), '', 'one is woken');
is(end_ask($waiter), 't', 'and does nothing, so the next gets the job');
is($node->safe_psql('postgres', "select tq_complete(id, lease) from tq_running where queue = 'q'"), 'succeeded', 'it can be finished');

#
# jobs that become startable without the commit of an enqueue
#
$node->safe_psql('postgres', "select tq_pause('q')");
one_job();
begin_ask($waiter, $call);
waiting(1);
$node->safe_psql('postgres', "select tq_resume('q')");
is(end_ask($waiter), '', 'a resumed queue wakes');
take_one();
begin_ask($waiter, $call);
waiting(1);
$node->safe_psql('postgres', "select tq_enqueue('q', delay => '200 ms')");
is(end_ask($waiter), '', 'a delayed job wakes when it is due');
take_one();

#
# the queue is dropped
#
$node->safe_psql('postgres', "select tq_create_queue('gone')");
begin_ask($waiter, "call tq_wait(array['gone'], '1 h')");
until_true($node, "select waiting = 1 from tq_queues where queue = 'gone'");
$node->safe_psql('postgres', "select tq_drop_queue('gone')");
like(end_ask($waiter), qr/TQ002/, 'a session that waits for a queue is told that it was dropped');
$node->safe_psql('postgres', "select tq_create_queue('also gone')");
begin_ask($waiter, "select count(*) from tq_claim('also gone', wait => '1 h')");
until_true($node, "select waiting = 1 from tq_queues where queue = 'also gone'");
$node->safe_psql('postgres', "select tq_drop_queue('also gone')");
like(end_ask($waiter), qr/TQ002/, 'so does a claim that waits');

# a session that is terminated right after its wakeup ends at once
{
	my $ended = session($node);
	my $pid = ask($ended, 'select pg_backend_pid()');
	arm($node, 'woken-before-claim', 'wait', pid => $pid);
	begin_ask($ended, $call);
	until_true($node, "select waiting = 1 from tq_queues where queue = 'q'");
	$node->reload;
	standing($node, 'woken-before-claim');
	$node->safe_psql('postgres', "select pg_terminate_backend($pid)");
	release($node, 'woken-before-claim');
	until_true($node, "select count(*) = 0 from pg_stat_activity where pid = $pid");
	eval { end_ask($ended) };
}

#
# Many queues, kinds, or all queues
#
$node->safe_psql('postgres', q{select tq_create_queue('wide ' || n) from generate_series(1, 200) n});
# CALL takes no subquery
$node->safe_psql('postgres', <<'SQL');
create function wide() returns text[] language sql as $$ select array_agg('wide ' || n) from generate_series(1, 200) n $$;
create function mixed() returns text[] language sql as
	$$ select array_agg(case when n > 100 then 'q' else 'wide ' || n end) from generate_series(1, 150) n $$;
create function kinds() returns text[] language sql as
	$$ select array_agg(case when n > 100 then 'k' || n when n = 1 then 'none' end) from generate_series(1, 150) n $$;
create function many() returns text[] language sql as $$ select array_agg('k' || n) from generate_series(1, 521) n $$;
create function eight() returns text[] language sql as
	$$ select array_agg('wide ' || n) from generate_series(1, 8) n, generate_series(1, 64) $$;
create function each_kind() returns text[] language sql as
	$$ select array_agg('k' || k) from generate_series(1, 8), generate_series(1, 64) k $$;
SQL
my $wide = 'wide()';
my $ready = "select string_agg(queue || ':' || coalesce(kind, '-') || ':' || jobs, ' ' order by queue, kind) from tq_ready";

# Waits until so many sessions wait for this queue.
sub waiting_for
{
	my ($queue, $n) = @_;
	return until_true($node, "select waiting = $n from tq_queues where queue = '$queue'", "$n waiters of $queue");
}

for my $form ([ 'two hundred queues', "call tq_wait($wide, '1 h')" ], [ 'all queues', "call tq_wait(timeout => '1 h')" ])
{
	my ($what, $sql) = @$form;
	begin_ask($waiter, $sql);
	waiting_for('wide 177', 1);
	is(held("coalesce(backend_xmin::text, 'no') || ' ' || coalesce(backend_xid::text, 'no')"), 'no no', "H20: a wait for $what holds no snapshot");
	$node->safe_psql('postgres', q{select tq_enqueue('wide 177', kind => 'k')});
	is(end_ask($waiter), '', "a job of one of $what wakes");
	waiting_for('wide 177', 0);
	is(ask($waiter, "$ready()"), 'wide 177:k:1', 'tq_ready() says which');
	is(ask($waiter, $sql), '', 'what is there already is not waited for');
	is(scalar(take($node, 'wide 177', 1)), 1, 'the job is there');
}
begin_ask($waiter, "call tq_wait(timeout => '1 h')");
waiting_for('wide 1', 1);
$node->safe_psql('postgres', q{select tq_enqueue('made while it waits')});
is(end_ask($waiter), '', 'a queue that is made while a session waits for all wakes it');
is(scalar(take($node, 'made while it waits', 1)), 1, 'the job is there');

# kinds, each of its queue
my $pairs = "array['q', 'q', 'wide 2'], '1 h', array['x', 'y', null]";
begin_ask($waiter, "call tq_wait($pairs)");
waiting(1);
$node->safe_psql('postgres', q{select tq_enqueue('q', kind => 'z')});
$node->safe_psql('postgres', q{select tq_enqueue('q')});
$node->safe_psql('postgres', q{select tq_enqueue('wide 1', kind => 'x')});
waiting(1);
$node->safe_psql('postgres', q{select tq_enqueue('wide 2', kind => 'z')});
is(end_ask($waiter), '', 'a job of any kind of a queue without a kind wakes');
is(ask($waiter, "$ready(array['q', 'q', 'wide 2'], array['x', 'y', null])"), 'wide 2:z:1', 'tq_ready() takes the same pairs');
is(ask($waiter, "$ready()"), 'q:z:1 q:-:1 wide 1:x:1 wide 2:z:1', 'and knows of all');
is(scalar(take($node, 'wide 2', 1)), 1, 'the job is there');
begin_ask($waiter, q{call tq_wait(mixed(), '1 h', kinds())});
waiting_for('wide 100', 1);
$node->safe_psql('postgres', q{select tq_enqueue('wide 1', kind => 'other')});
$node->safe_psql('postgres', q{select tq_enqueue('q', kind => 'k100')});
waiting_for('wide 100', 1);
$node->safe_psql('postgres', q{select tq_enqueue('q', kind => 'k123')});
is(end_ask($waiter), '', 'fifty kinds of one queue among a hundred queues: one of them wakes');
begin_ask($waiter, q{call tq_wait(eight(), '1 h', each_kind())});
waiting_for('wide 8', 1);
$node->safe_psql('postgres', q{select tq_enqueue('wide 8', kind => 'k65')});
waiting_for('wide 8', 1);
$node->safe_psql('postgres', q{select tq_enqueue('wide 8', kind => 'k64')});
is(end_ask($waiter), '', 'all queues and kinds that one claim takes: one of them wakes');
like(ask($waiter, "call tq_wait(array_fill('q'::text, array[521]), '1 h', many())"),
	qr/54000/, 'too many kinds of one queue are refused');
like(ask($waiter, "call tq_wait($wide, '1 h', array_fill('k'::text, array[200]))"),
	qr/54000/, 'as are those of many queues');
like(ask($waiter, q{call tq_wait(kinds => '{x}')}), qr/22023/, 'kinds without queues are refused');
like(ask($waiter, q{call tq_wait('{q,q}', '1 h', '{x}')}), qr/22023/, 'and another number of kinds');
take($node, $_, 100) for 'q', 'wide 1', 'wide 8';

# one of many that wait is woken, and passes its token on if it gives up (H19)
{
	my $other = session($node);
	begin_ask($waiter, "call tq_wait($wide, '1 h')");
	begin_ask($other, "call tq_wait(timeout => '1 h')");
	waiting_for('wide 5', 2);
	my $claim = session($node);
	begin_ask($claim, q{select queue from tq_claim('wide 5', wait => '1 h')});
	waiting_for('wide 5', 3);
	$node->safe_psql('postgres', q{select tq_enqueue('wide 5')});
	is(end_ask($claim), 'wide 5', 'a claim that waits comes before sessions that wait for many queues');
	waiting_for('wide 5', 2);
	$node->safe_psql('postgres', q{select tq_complete(id, lease) from tq_running where queue = 'wide 5'});
	arm($node, 'woken-before-claim', 'wait', pid => $pid);
	$node->safe_psql('postgres', "select pg_reload_conf()");    # wakes both, for nothing
	standing($node, 'woken-before-claim');
	$node->safe_psql('postgres', q{select tq_enqueue_many('wide 5', array_fill('{}'::jsonb, array[2]))});
	is(end_ask($other), '', 'two jobs wake both');
	is(scalar(take($node, 'wide 5', 1)), 1, 'one job is taken');
	begin_ask($other, q{select queue from tq_claim('wide 5', kinds => '{x}', wait => '1 h')});
	waiting_for('wide 5', 2);
	$node->safe_psql('postgres', "select pg_cancel_backend($pid)");
	release($node, 'woken-before-claim');
	like(end_ask($waiter), qr/57014/, 'a wait for many queues can be cancelled');
	waiting_for('wide 5', 1);
	begin_ask($waiter, "call tq_wait(timeout => '1 h')");
	is(end_ask($waiter), '', 'the job of the token that it had is there for others');
	$node->safe_psql('postgres', q{select tq_enqueue('wide 5', kind => 'x')});
	is(end_ask($other), 'wide 5', 'a waiting claim gets its own');
	$node->safe_psql('postgres', q{select tq_complete(id, lease) from tq_running where queue = 'wide 5'});
	take($node, 'wide 5', 100);
	leave($other, $claim);
}

# rights: all queues are those that the role may consume
$node->safe_psql('postgres', q{create role waits_for_7 login; create role no_rights login; select tq_grant('wide 7', 'waits_for_7', 'consume')});
ask($waiter, 'set role waits_for_7');
begin_ask($waiter, "call tq_wait(timeout => '1 h')");
waiting_for('wide 7', 1);
$node->safe_psql('postgres', q{select tq_enqueue('wide 8')});
is($node->safe_psql('postgres', q{select sum(waiting) from tq_queues}), '1', 'a role waits for the queues that it may consume');
$node->safe_psql('postgres', q{select tq_enqueue('wide 7')});
is(end_ask($waiter), '', 'and is woken for these');
is(ask($waiter, "$ready()"), 'wide 7:-:1', 'tq_ready() shows it no others');
like(ask($waiter, "$ready(array['wide 8'])"), qr/42501/, 'nor if they are named');
like(ask($waiter, "$ready(array['never made'])"), qr/42501/, 'and it does not tell which exist');
like(ask($waiter, "call tq_wait($wide, '1 h')"), qr/42501/, 'a wait for others is refused');
ask($waiter, 'set role no_rights');
is(ask($waiter, "$ready()"), '', 'a role without rights sees none');
is(ask($waiter, "call tq_wait(timeout => '10 ms')"), '', 'and waits for none');    # limit: it runs out
ask($waiter, 'reset role');
is(ask($waiter, "select count(*) from tq_ready(array['never made'])"), '0', 'tq_ready() makes no queue');
is($node->safe_psql('postgres', q{select count(*) from tq_queues where queue = 'never made'}), '0', 'none at all');
take($node, $_, 100) for 'wide 7', 'wide 8';

# dropped queues
begin_ask($waiter, "call tq_wait($wide, '1 h')");
waiting_for('wide 9', 1);
$node->safe_psql('postgres', q{select tq_drop_queue('wide 9')});
like(end_ask($waiter), qr/TQ002/, 'a session that waits for many queues is told that one was dropped');
begin_ask($waiter, "call tq_wait(timeout => '1 h')");
waiting_for('wide 10', 1);
$node->safe_psql('postgres', q{select tq_drop_queue('wide 10')});
$node->safe_psql('postgres', q{select tq_enqueue('wide 11')});
is(end_ask($waiter), '', 'one that waits for all goes on with the others');
take($node, 'wide 11', 100);

#
# tq_wait_jobs: the end of jobs
#
sub listening
{
	return until_true($node, "select count(*) = 1 from pg_stat_activity where pid = $pid and state = 'active' and query ~ 'tq_wait_jobs' and wait_event_type = 'Extension'");
}
sub enqueue { return $node->safe_psql('postgres', "select tq_enqueue('ends'" . (@_ ? ", $_[0]" : '') . ')') }
my %ends = (
	'completed' => q{select tq_complete(id, lease) from tq_claim('ends')},
	'buried' => q{select tq_bury(id, lease, 'why') from tq_claim('ends')},
	'dead' => q{select tq_fail(id, lease, 'why', fatal => true) from tq_claim('ends')},
	'cancelled' => q{select tq_cancel(JOB)},
	'purged' => q{select tq_purge('ends', 'ready')},
	'finished by tq_claim_next' => q{select * from tq_claim_next('ends', array[JOB], (select array_agg(lease) from tq_claim('ends')))});
for my $how (sort keys %ends)
{
	my $job = enqueue();
	begin_ask($waiter, "call tq_wait_jobs(array[$job], '1 h')");
	listening();
	is(held("coalesce(backend_xmin::text, 'no') || ' ' || coalesce(backend_xid::text, 'no')"), 'no no', 'H20: a wait for the end of a job holds no snapshot');
	$node->safe_psql('postgres', $ends{$how} =~ s/JOB/$job/r);
	is(end_ask($waiter), '', "a job that is $how ends the wait");
	is(ask($waiter, "call tq_wait_jobs(array[$job], '1 h')"), '', 'what has ended is not waited for');
}
{
	# several, with one on the way between the look and the sleep; a retry is no end; one expires
	my @jobs = (enqueue(), enqueue(), enqueue("expires_at => clock_timestamp() + interval '1 s', delay => '0.1 s'"));
	arm($node, 'waiter-after-register', 'wait', pid => $pid);
	begin_ask($waiter, 'call tq_wait_jobs(array[' . join(',', @jobs) . "], '1 h')");
	standing($node, 'waiter-after-register');
	$node->safe_psql('postgres', q{select tq_complete(id, lease) from tq_claim('ends')});
	release($node, 'waiter-after-register');
	$node->safe_psql('postgres', q{select tq_fail(id, lease, 'again', retry_in => '0') from tq_claim('ends')});
	until_true($node, "select state = 'expired' from tq_get($jobs[2])");
	listening();
	is($node->safe_psql('postgres', "select state from tq_get($jobs[1])"), 'ready', 'a failed attempt is no end');
	is(scalar(take($node, 'ends', 1, undef, '3 min')), 1, 'the last one ends');
	is(end_ask($waiter), '', 'and with it the wait for all of them');

	# the first of several
	@jobs = (enqueue(), enqueue(), enqueue());
	my $list = 'array[' . join(',', @jobs) . ']';
	is(ask($waiter, "select tq_ended($list)"), '{}', 'none has ended');
	begin_ask($waiter, "call tq_wait_jobs($list, '1 h', first => true)");
	listening();
	$node->safe_psql('postgres', "select tq_cancel($jobs[1])");
	is(end_ask($waiter), '', 'the first end ends the wait');
	is(ask($waiter, "select tq_ended($list)"), "{$jobs[1]}", 'tq_ended tells which it was');
	is(ask($waiter, "call tq_wait_jobs($list, '1 h', first => true)"), '', 'one that has ended is not waited for');
	like(ask($waiter, "select tq_ended(array[$jobs[2], null])"), qr/22004: ids must not contain nulls/, 'no nulls');
	is(ask($waiter, "select tq_ended(array[$jobs[2], 9007199254740993, $jobs[1], $jobs[1]])"), "{9007199254740993,$jobs[1],$jobs[1]}", 'in the order given');
	is(ask($waiter, "select tq_ended(array[tq_enqueue('ends')])"), '{}', 'a job of this transaction has not ended');
	is(scalar(take_all($node, 'ends', 3)), 3, 'the others run');

	# jobs that are only on disk: more than memory holds
	$node->safe_psql('postgres', q{select count(tq_enqueue_many('ends', array_fill('{}'::jsonb, array[600])))});
	my $last = $node->safe_psql('postgres', q{select max(id) from tq_jobs where queue = 'ends'});
	begin_ask($waiter, "call tq_wait_jobs(array[$last], '1 h')");
	listening();
	$node->safe_psql('postgres', "select tq_cancel($last)");
	is(end_ask($waiter), '', 'a job that memory did not hold');
	is(scalar(take_all($node, 'ends', 599)), 599, 'the others are there');

	my $job = enqueue();
	$began = time;
	is(ask($waiter, "call tq_wait_jobs(array[$job], '300 ms')"), '', 'the time is over');    # limit: it runs out
	ok(time - $began >= 0.3, 'when it should be');
	is(ask($waiter, "call tq_wait_jobs('{}', '1 h')"), '', 'no jobs, no wait');
	is(ask($waiter, "call tq_wait_jobs('{}', '1 h', first => true)"), '', '... nor for the first of none');
	is(ask($waiter, "call tq_wait_jobs('{9007199254740993}', '1 h')"), '', 'nor for one that does not exist');
	like(ask($waiter, "do \$\$ begin call tq_wait_jobs(array[tq_enqueue('ends')], '1 h'); end \$\$"), qr/TQ005/, 'a job of this transaction cannot be waited for');
	ask($waiter, 'set role no_rights');
	is(ask($waiter, "call tq_wait_jobs(array[$job], '1 h')"), '', 'a job that the role may not see is none');
	ask($waiter, 'reset role');
	begin_ask($waiter, "call tq_wait_jobs(array[$job], '1 h')");
	listening();
	$node->safe_psql('postgres', "select pg_cancel_backend($pid)");
	like(end_ask($waiter), qr/57014/, 'a wait for jobs can be cancelled');
	is(scalar(take($node, 'ends', 1, undef, '3 min')), 1, 'the job is there');
}

# a procedure keeps the changes of its transaction, also if it waits for a queue that was never used
ask($waiter, "set tq.max_pinned_wait = '100 ms'");
for my $queue (map { "nobody has used $_" } 1 .. 40)    # an id for each of them is a write
{
	my $kept = ask($waiter, "do \$\$ declare kept text; begin perform pg_advisory_xact_lock(7); call tq_wait(array['$queue'], '10 ms');"    # limit: it runs out
		  . ' select count(*) into kept from pg_locks where locktype = $l$advisory$l$ and pid = pg_backend_pid();'
		  . ' if kept <> $l$1$l$ then raise exception $l$the lock is gone$l$; end if; end $$');
	next if $kept eq '';
	is($kept, '', 'a lock of the transaction outlives the wait');
	last;
}
ask($waiter, 'reset tq.max_pinned_wait');

is($node->safe_psql('postgres', 'select count(*) from tq_check() where found <> expected'), '0', 'nothing is left behind');
check_journal($node);
leave($waiter, $idler);
$node->stop;
done_testing();
