# tq_retry with children: the jobs below a failed job wait for their parents again, with the results that they had. The
# resolver, other retries, other parents, rights, crashes and a dump come in between. tq_graph shows the jobs. Hazard: H36.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('graph', conf => <<CONF);
tq.lease = '1h'
tq.segment_rows = 400
tq.segment_interval = '20d'
max_connections = 30
CONF
scheduler_of($node);
loaded($node);
my ($one, $other);
$_ = session($node) for $one, $other;

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub says { my $s = session($node); my $answer = ask($s, $_[0]); leave($s); return $answer; }
sub enqueue { my ($queue, $args) = @_; return sql("select tq_enqueue('$queue'" . ($args ? ", $args" : '') . ')'); }
sub child { my ($queue, $parents, $args) = @_; return enqueue($queue, "depends_on => '{$parents}'" . ($args ? ", $args" : '')); }
sub state_of { return sql("select state from tq_get($_[0])"); }
sub states { return join ' ', map { state_of($_) } @_; }
sub becomes { my ($job, $state) = @_; return until_true($node, "select state = '$state' from tq_get($job)", "$job $state"); }
sub all_become { my ($state, @jobs) = @_; ok(becomes($_, $state), "... job $_ becomes $state") for @jobs; return; }
# Of a queue, whose only ready job is claimed.
sub fails { return sql("select tq_fail(id, lease, 'broken', fatal => true) from tq_claim('$_[0]')"); }
sub succeeds { my ($queue, $result) = @_; return sql("select tq_complete(id, lease, '" . ($result // 'null') . "') from tq_claim('$queue', wait => '3 min')"); }
sub graph { return sql("select string_agg(level || ' ' || id || ' ' || coalesce(state, '-'), ', ' order by level, id) from tq_graph($_[0])"); }
sub restored { my ($p) = @_; return ask($other, "select tq_retry($p, with_children => true)"); }
sub clear
{
	# a transaction purges as many as it can hold
	for my $queue (split /\n/, sql('select queue from tq_stats()')) { 1 while sql("select tq_purge('$queue', 'all')") > 0; }
	until_true($node, 'select count(*) = 0 from tq.dependency', 'no dependencies');
	return;
}

# --- a graph --------------------------------------------------------------------------------------------------------

#   p ─ c ─ d ─ e        q has succeeded; f was cancelled by a user
#   q ─ c       f ─ e
my $p = enqueue('p');
my $q = enqueue('q');
my $c = child('c', "$p,$q", q{priority => 3, unique_key => 'key'});
my $d = child('d', $c);
my $f = child('f', $c);
my $e = child('e', "$d,$f");
my $run = child('r', $p, q{options => '{"on_parent_failure": "run"}'});
succeeds('q', '{"q": 1}');
is(graph($c), "-1 $p ready, -1 $q succeeded, 0 $c blocked, 1 $d blocked, 1 $f blocked, 2 $e blocked", 'tq_graph shows parents and children');
sql("select tq_cancel($f, 'by a user')");
fails('p');
all_become('cancelled', $c, $d, $e);
all_become('ready', $run);
is(graph($p), "0 $p dead, 1 $c cancelled, 1 $run ready, 2 $d cancelled, 2 $f cancelled, 3 $e cancelled", '... also when they have ended');
is(graph($e), "-3 $p dead, -3 $q succeeded, -2 $c cancelled, -1 $d cancelled, -1 $f cancelled, 0 $e cancelled", '... from below');
is(sql("select string_agg(format('%s %s %s', kind is null, parents, on_parent_failure), ', ') from tq_graph($run) where level = 0"), "t {$p} run", '... and its columns');
like(ask($one, "set client_min_messages = warning; select count(*) from tq_graph($p, max_jobs => 2); reset client_min_messages"), qr/^2$/m, '... at most so many jobs');
like(says('select count(*) from tq_graph(1000000000)'), qr/TQ004/, '... of a job that there is');
like(says("select count(*) from tq_graph($p, max_jobs => 0)"), qr/22023/, '... and a sensible number');

# the other parent's record is gone, with its result
by_hand($node, "delete from tq.event where job_id = $q; delete from tq.job where id = $q");
sql(q{select tq_cancel(id) from tq_jobs where queue = 'r'});
is(restored($p), 'ready', 'a parent is retried with its children');
is(states($c, $d, $f, $run), 'blocked blocked cancelled cancelled', 'they wait again; what a user has cancelled stays');
is(sql(q{select string_agg(queue || blocked, ' ' order by queue) from tq_stats() where queue in ('c', 'd')}), 'c1 d1', '... and are counted');
is(sql("select string_agg(event, ' ' order by step) from tq_history($c)"), 'enqueued cancelled blocked', '... their history says so');
like(sql("select tq_explain($c)"), qr/waits for job $p\b/, '... and tq_explain');
is(sql("select run_at is null from tq_get($c)"), 't', '... without a time');
like(says(q{select tq_enqueue('c', unique_key => 'key', unique_mode => 'error')}), qr/TQ008/, '... with its key');
all_become('cancelled', $e);
is(sql("select string_agg(event, ' ' order by step) from tq_history($e)"), 'enqueued cancelled blocked cancelled', '... again, because its other parent was cancelled by the user');
check_journal($node, 'memory and journal agree');
succeeds('p', '{"p": 2}');
is(sql(q{select priority || ' ' || parents from tq_claim('c', wait => '3 min')}), qq(3 {"$p": {"state": "succeeded", "result": {"p": 2}}, "$q": {"state": "succeeded", "result": {"q": 1}}}),
	'a child gets the results, also of the parent that is gone');
is(state_of($d), 'blocked', '... before its own child');
sql('select tq_complete(id, lease) from tq_running');
is(sql(q{select count(*) from tq_claim('d', wait => '3 min')}), 1, '... which comes then');
sql('select tq_complete(id, lease) from tq_running');

# a child that is retried alone: after its parents have succeeded, and before
$p = enqueue('p');
my @c = map { child('c', $p) } 1 .. 3;
fails('p');
all_become('cancelled', @c);
is(sql("select tq_retry($c[0])"), 'blocked', 'a child alone');
is(sql("select parents from tq_claim('c', wait => '3 min')"), qq({"$p": {"error": "broken", "state": "dead"}}), '... starts although its parent has failed, and is told so');
is(restored($c[1]), 'blocked', 'with children it waits for its parent');
all_become('cancelled', $c[1]);
sql("select tq_retry($p)");
is(restored($c[1]), 'blocked', '... also for one that has begun again');
succeeds('p', '{"p": 3}');
all_become('ready', $c[1]);
is(sql("select tq_retry($c[2])"), 'blocked', 'a child alone, after its parent has succeeded');
all_become('ready', $c[2]);
is(sql(qq{select string_agg(distinct parents->'$p'->>'result', ' ') || count(*) from tq_claim('c', 2)}), '{"p": 3}2', '... gets its result');
clear();

# --- retries one by one ---------------------------------------------------------------------------------------------

# a chain, from the top and from the end
for my $upwards (0, 1)
{
	$p = enqueue('p');
	$q = enqueue('q');
	succeeds('q', '"q"');
	$c = child('c', "$p,$q");
	$d = child('d', $c);
	fails('p');
	all_become('cancelled', $c, $d);
	my @chain = $upwards ? ($d, $c, $p) : ($p, $c, $d);
	$upwards ? sql('begin; ' . join('; ', map { "select tq_retry($_)" } @chain) . '; commit') : sql("select tq_retry($_)") for $upwards ? 1 : @chain;
	is(states($p, $c, $d), 'ready blocked blocked', 'a chain that is retried job by job, ' . ($upwards ? 'from its end in one transaction' : 'from the top'));
	is(sql(q{select count(*) from tq_claim_any('{c,d}', 5)}), 0, '... starts with the first');
	succeeds('p', '"p"');
	is(sql(qq{select (parents->'$p'->>'result') || (parents->'$q'->>'result') from tq_claim('c', wait => '3 min')}), 'pq', '... each job has the results of its parents');
	sql('select tq_complete(id, lease) from tq_running');
	is(sql(q{select count(*) from tq_claim('d', wait => '3 min')}), 1, '... down to the last');
	sql('select tq_complete(id, lease) from tq_running');
}
clear();

# each retry commits by itself, from the end: a child that has not begun waits again when its parent is retried
for my $freed (0, 1)
{
	$p = enqueue('p');
	$q = enqueue('q');
	succeeds('q', '"q"');
	$c = child('c', "$p,$q");
	$d = child('d', $c);
	fails('p');
	all_become('cancelled', $c, $d);
	for ($d, $c)
	{
		is(sql("select tq_retry($_)"), 'blocked', 'a retry from the end');
		all_become('ready', $_) if $freed;
	}
	sql("select tq_retry($p)");
	is(states($p, $c, $d), 'ready blocked blocked', '... leads to the order of the chain, ' . ($freed ? 'also if the resolver comes in between' : 'at once'));
	is(sql(q{select count(*) from tq_claim_any('{c,d}', 5)}), 0, '... which starts with the first');
	succeeds('p', '"p"');
	is(sql(qq{select (parents->'$p'->>'result') || (parents->'$q'->>'result') from tq_claim('c', wait => '3 min')}), 'pq', '... the second has both results');
	sql('select tq_complete(id, lease) from tq_running');
	is(sql(q{select count(*) from tq_claim('d', wait => '3 min')}), 1, '... and the last follows');
	sql('select tq_complete(id, lease) from tq_running');
}
clear();

# a child that runs although its parent has failed: ready, begun, and waiting for another parent
sub told { my (undef, $out, $err) = $node->psql('postgres', "set client_min_messages = notice; $_[0]"); return "$out $err"; }
my $begun = qr/NOTICE: .*has begun/;
my $anyway = q{options => '{"on_parent_failure": "run"}'};
sql(q{select tq_create_queue('anyway', '{"expires_in": "1 h"}')});
$p = enqueue('p');
$q = enqueue('q');
$run = child('anyway', "$p,$q", $anyway);
fails('p');
until_true($node, "select state = 'dead' from tq.dependency where parent_id = $p", 'the end of one parent is known');
sql("select tq_retry($p)");
until_true($node, "select state is null from tq.dependency where parent_id = $p", 'and taken back');
succeeds('q', '"q"');
until_true($node, "select state = 'succeeded' from tq.dependency where parent_id = $q", 'the other has ended');
is(state_of($run), 'blocked', 'a blocked child waits for a parent that has begun again');
fails('p');
all_become('ready', $run);
unlike(told("select tq_retry($p)"), $begun, 'a child is ready, and its parent is retried');
is(state_of($run) . sql(q{select count(*) from tq_claim('anyway')}), 'blocked0', '... it waits again');
is(sql("select expires_at is null from tq_get($run)"), 't', '... and does not expire meanwhile');
succeeds('p', '"p"');
all_become('ready', $run);
is(sql("select expires_at > now() + interval '50 min' from tq_get($run)"), 't', '... its time to expire begins again');
is(sql(qq{select (parents->'$p'->>'result') || (parents->'$q'->>'result') from tq_claim('anyway')}), 'pq', '... with all results');
sql('select tq_complete(id, lease) from tq_running');
$p = enqueue('p');
$run = child('anyway', $p, $anyway);
$c = child('c', $p);
fails('p');
all_become('cancelled', $c);
is(sql(q{select count(*) from tq_claim('anyway', wait => '3 min')}), 1, 'a child has begun');
like(told("select tq_retry($p)"), $begun, '... a NOTICE says so when its parent is retried');
is(state_of($run) . state_of($c), 'runningcancelled', '... it goes on, and cancelled children stay cancelled');
fails('p');
like(told("select tq_retry($p, with_children => true)"), $begun, '... also with children');
is(state_of($run) . state_of($c), 'runningblocked', '... which are restored');
sql('select tq_complete(id, lease) from tq_running');
is(sql(qq{select tq_cancel($p)}), 'cancelled', 'the parent is cancelled');
all_become('cancelled', $c);

# with children, below a child that is restored; without a right on the queue of the waiter
$d = child('anyway', $c, $anyway);
all_become('ready', $d);
restored($p);
is(states($p, $c, $d), 'ready blocked blocked', 'a child of a restored child waits, too');
succeeds('p');
succeeds('c');
is(sql(q{select count(*) from tq_claim('anyway', wait => '3 min')}), 1, '... for both');
sql('select tq_complete(id, lease) from tq_running');
$p = enqueue('p');
$run = child('anyway', $p, $anyway);
fails('p');
all_become('ready', $run);
sql("select tq_retry($p)");
is(sql("select tq_retry($run)"), 'ready', 'a child that waits again is started');
is(sql(q{select parents is null from tq_claim('anyway')}), 't', '... and is not given an end that was taken back');
sql('select tq_complete(id, lease) from tq_running');
succeeds('p');
sql(q{create role clerk login; select tq_grant('p', 'clerk', 'operate')});
$p = enqueue('p');
$run = child('anyway', $p, $anyway);
fails('p');
all_become('ready', $run);
ask($other, 'set role clerk');
is(ask($other, "select tq_retry($p)"), 'ready', 'a role without a right on the queue of the child');
ask($other, 'reset role');
is(state_of($run), 'blocked', '... retries its parent, and the child waits');
clear();

# a parent that has begun again fails again
$p = enqueue('p');
$c = child('c', $p);
fails('p');
all_become('cancelled', $c);
sql("select tq_retry($p)");
is(sql("select tq_retry($c)"), 'blocked', 'a child after its parent');
fails('p');
all_become('cancelled', $c);

# a child that a user has cancelled, or that has run; a child that runs although its parent failed
sql("select tq_retry($p)");
$c = child('c', $p);
my $any = child('any', $p, q{max_attempts => 1, options => '{"on_parent_failure": "run"}'});
sql("select tq_cancel($c)");
is(sql("select tq_retry($c)"), 'blocked', 'a child that a user has cancelled waits again');
fails('p');
all_become('cancelled', $c);
all_become('ready', $any);
fails('any');
is(sql("select tq_retry($any)"), 'ready', 'a child that has failed itself keeps what it was given');
is(sql("select parents -> '$p' ->> 'error' from tq_claim('any')"), 'broken', '... as before');
sql(q{select tq_fail(id, lease, 'again') from tq_running});
sql("select tq_retry($p)");
is(sql("select tq_retry_many('any')"), 1, 'a child that has failed, of a parent that has begun again');
is(state_of($any), 'blocked', '... waits for it');
succeeds('p', '"late"');
is(sql("select parents -> '$p' ->> 'result' from tq_claim('any', wait => '3 min')"), 'late', '... and gets its result');

# a copy in another queue has what its origin was given
sql(q{select tq_fail(id, lease, 'again') from tq_running});
sql(q{select tq_create_queue('by hand', '{"expires_in": "1 h"}')});
is(sql(q{select tq_retry_many('any', to_queue => 'by hand')}), 1, 'a copy in another queue');
is(sql(q{select expires_at - enqueued_at > '59 min' from tq_jobs where queue = 'by hand'}), 't', '... expires as its queue says');
$node->stop('immediate');
$node->start;
loaded($node);
scheduler_of($node);
$_ = session($node) for $one, $other;
is(sql(qq{select parents -> '$p' ->> 'result' || (select string_agg(event, ' ' order by step) from tq_history(id)) from tq_claim('by hand')}), 'lateenqueued freed claimed',
	'... has the results, also after a crash');
sql('select tq_complete(id, lease) from tq_running');
clear();
$q = enqueue('q');
$p = enqueue('p');
succeeds('q', '"q"');
$c = child('c', "$p,$q");
fails('p');
all_become('cancelled', $c);
is(sql(q{select tq_retry_many('c', 'cancelled', to_queue => 'by hand', max_jobs => 1)}), 1, 'a copy of a job that was cancelled because of its parents');
is(sql(q{select parents from tq_claim('by hand')}), qq({"$q": {"state": "succeeded", "result": "q"}}), '... has the results of the others');
clear();
check_journal($node, 'the journal after retries one by one');

# --- others in between ------------------------------------------------------------------------------------------------

my $scheduler = scheduler_of($node);
my $late = 0;
# The resolver has marked the child, before it looks at the parent (first) and after it has.
for my $point ('resolve-before-cancel', 'resolve-before-append')
{
	for my $end ('commit', 'rollback')
	{
		$p = enqueue('p');
		$c = child('c', $p);
		arm($node, $point, 'wait', pid => $scheduler);
		fails('p');
		standing($node, $point);
		my $retrying = ask($one, 'begin; select pg_backend_pid()');
		begin_ask($one, "select tq_retry($p, with_children => true)");
		until_true($node, "select count(*) > 0 or exists (select from pg_stat_activity where pid = $retrying and state ~ 'aborted')
			from pg_locks l where l.relation = (select event from (select ('tq.event_' || n)::regclass as event from
			(select max(substr(relname, 7)::int) as n from pg_class where relname ~ '^event_[0-9]+\$' and relnamespace = 'tq'::regnamespace) x) y)
			and mode = 'RowExclusiveLock' and pid <> $scheduler", 'the parent is marked');
		release($node, $point);
		my $answer = end_ask($one);
		# it waits two seconds, in which a busy machine may not get as far as the release
		if ($answer =~ /55P03/ && $late++ < 10)
		{
			ask($one, 'rollback');
			becomes($c, 'cancelled');
			clear();
			redo;
		}
		is($answer, 'ready', "H36: $point: a retry waits for the resolver");
		is(state_of($c), $point eq 'resolve-before-append' ? 'cancelled' : 'blocked', '... which has decided or not');
		if ($point eq 'resolve-before-cancel' && $end eq 'commit')
		{
			arm($node, $point, 'wait', pid => $scheduler);
			standing($node, $point);
			release($node, $point);    # the resolver looks again while the retry is open
		}
		ask($one, $end);
		all_become($end eq 'commit' ? 'blocked' : 'cancelled', $c);
		if ($end eq 'commit')
		{
			succeeds('p', '1');
			is(sql(qq{select parents->'$p'->>'result' from tq_claim('c', wait => '3 min')}), '1', "H36: $point: ... and it gets the result");
			sql('select tq_complete(id, lease) from tq_running');
		}
		clear();
	}
}

# a retry of the parent alone, committed before the resolver decides
$p = enqueue('p');
$c = child('c', $p);
arm($node, 'resolve-before-cancel', 'wait', pid => $scheduler);
fails('p');
standing($node, 'resolve-before-cancel');
sql("select tq_retry($p)");
release($node, 'resolve-before-cancel');
succeeds('p', '2');
is(sql(qq{select parents->'$p'->>'result' from tq_claim('c', wait => '3 min')}), '2', 'H36: a parent that lives again cancels nothing');
sql('select tq_complete(id, lease) from tq_running');

# two parents have failed
my @p = map { enqueue("p$_") } 1, 2;
$c = child('c', join ',', @p);
fails("p$_") for 1, 2;
all_become('cancelled', $c);
ask($one, 'begin');
is(ask($one, "select tq_retry($p[0], with_children => true)"), 'ready', 'one of two parents');
like(restored($p[1]), qr/55P03/, 'H36: two retries at once: the second gets an error');
is(states($c, $p[1]), 'cancelled dead', '... and has changed nothing');
ask($one, 'commit');
until_true($node, "select count(*) = 4 from tq_history($c)", 'cancelled again');
is(sql("select state || ' ' || error from tq_get($c)"), "cancelled parent $p[1] is dead", '... the other parent cancels the child again');
is(restored($p[1]), 'ready', '... until it is retried too');
is(state_of($c), 'blocked', '... then the child waits for both');
succeeds("p$_", $_) for 1, 2;
is(sql(qq{select (parents->'$p[0]'->>'result') || (parents->'$p[1]'->>'result') from tq_claim('c', wait => '3 min')}), '12', '... and gets both results');
sql('select tq_complete(id, lease) from tq_running');
clear();

# many at once
@p = map { enqueue('p') } 1, 2;
$c = child('c', join ',', @p);
$d = child('d', $c);
fails('p') for @p;
all_become('cancelled', $d);
is(sql(q{select tq_retry_many('p', with_children => true)}), 2, 'tq_retry_many with children');
is(states($c, $d), 'blocked blocked', '... restores those that wait for several of the jobs');
like(says(q{select tq_retry_many('p', to_queue => 'c', with_children => true)}), qr/22023/, '... not into another queue');
fails('p') for @p;
all_become('cancelled', $d);
is(sql(q{select changed from tq_retry_where('p', with_children => true, dry_run => true)}) . ' ' . states($c, $d), '2 cancelled cancelled', 'tq_retry_where: a dry run restores nothing');
is(sql(q{select tq_retry_where('p', search => '{"none": 1}', with_children => true)}) . ' ' . states($c, $d), '(0,) cancelled cancelled', '... nor does a call without a match');
is(sql(q{select tq_retry_where('p', with_children => true)}) . ' ' . states($c, $d), '(2,) blocked blocked', '... restores as tq_retry_many does');
is(sql(q{select detail from tq_audit where action = 'retry_where' order by id desc limit 1}), '{"jobs": 2, "state": "dead", "with_children": true}', '... and says so in the audit');
fails('p') for @p;
all_become('cancelled', $d);
is(sql(q{select tq_retry_where('p')}) . ' ' . states($c, $d), '(2,) cancelled cancelled', '... only if asked to');
is(sql(q{select tq_retry_many('d', 'cancelled', with_children => true) || ' ' || tq_retry_many('c', 'cancelled', with_children => true)}), '1 1', '... also of cancelled jobs');
all_become('cancelled', $d) if state_of($d) eq 'cancelled';
is(state_of($c), 'blocked', '... which wait for their parents');
clear();

# another transaction retries the child; another parent succeeds meanwhile
$p = enqueue('p');
$q = enqueue('q');
$c = child('c', "$p,$q");
$d = child('d', $p);
fails('p');
all_become('cancelled', $c, $d);
ask($one, 'begin');
ask($one, "select tq_retry($d)");
like(restored($p), qr/55P03/, 'H36: a child that another transaction retries');
is(states($c, $p), 'cancelled dead', '... and nothing is changed');
ask($one, 'commit');
all_become('ready', $d);
ask($one, 'begin; savepoint s');
ask($one, "select tq_retry($p, with_children => true)");
ask($one, 'rollback to s');
is(ask($one, "select tq_retry($p, with_children => true)"), 'ready', 'again after a savepoint');
is(ask($one, "select tq_reschedule($c, priority => 9)"), 'blocked', '... a child can be changed at once');
succeeds('q', '"q"');
ask($one, 'commit');
is(states($c, $d), 'blocked blocked', 'H36: a child that was retried before waits, too, as it has not begun');
succeeds('p', '"p"');
is(sql(qq{select priority || (parents->'$p'->>'result') || (parents->'$q'->>'result') from tq_claim('c', wait => '3 min')}), '9pq', 'H36: a parent that succeeds meanwhile');
sql('select tq_complete(id, lease) from tq_running');
ask($one, 'begin');
$p = enqueue('p');
$c = child('c', $p);
fails('p');
all_become('cancelled', $c);
ask($one, "select tq_retry($p, with_children => true)");
is(ask($one, "select tq_cancel($c, 'no')"), 'cancelled', 'a child that is restored and cancelled in one transaction');
ask($one, 'commit');
is(state_of($c), 'cancelled', '... is cancelled');
clear();
check_journal($node, 'the journal after all of these');

# --- limits and rights --------------------------------------------------------------------------------------------------

$p = enqueue('p');
fails('p');
let_write($node, 'edge');
sql("insert into tq.edge select $p, 1000000000 + n from generate_series(1, 10000) n");
is(restored($p), 'ready', 'as many jobs below as one call looks at');
fails('p');
sql("insert into tq.edge values ($p, 1)");
like(restored($p), qr/54000.*up to 10000 jobs.*tq_retry_many/s, '... and one more');
is(state_of($p), 'dead', '... which changes nothing');
sql('truncate tq.edge');
$p = enqueue('p');
sql("select tq_enqueue_many('c', array_fill('{}'::jsonb, array[300]), depends_on => '{$p}')");
fails('p');
until_true($node, q{select count(*) = 300 from tq_jobs where queue = 'c' and state = 'cancelled'}, '300 cancelled');
like(restored($p), qr/53400/, 'more than there is room for');
is(state_of($p) . sql(q{select count(*) from tq_jobs where queue = 'c' and state = 'cancelled'}), 'dead300', '... changes nothing');
is(sql("select tq_retry($p)"), 'ready', '... the job alone');
for (1 .. 10)
{
	last if sql(q{select tq_retry_many('c', 'cancelled', max_jobs => 50, with_children => true)}) == 0;
}
is(sql(q{select blocked from tq_stats() where queue = 'c'}), 300, '... and then its children in parts');
succeeds('p');
is(scalar(take_all($node, 'c', 300)), 300, '... which all run');

sql(q{create role boss login; select tq_grant('p', 'boss', 'manage'); select tq_grant('c', 'boss', 'manage')});
$p = enqueue('p');
$c = child('c', $p);
$d = child('secret', $c);
fails('p');
all_become('cancelled', $d);
ask($other, 'set role boss');
my $denied = restored($p);
like($denied, qr/42501: .*a job that waits for job $c\b/, 'a role without a right on the queue of a job below');
unlike($denied, qr/secret|\b$d\b/, '... is told neither its queue nor its id');
is(sql("select count(*) from tq_jobs where id in ($p, $c, $d) and state in ('dead', 'cancelled')"), 3, '... and has changed nothing');
is(ask($other, "select string_agg(format('%s %s %s', level, id, coalesce(state, '-')), ', ') from tq_graph($p)"), "0 $p dead, 1 $c cancelled, 2 $d -", '... and sees only the id in tq_graph');
sql(q{select tq_grant('secret', 'boss', 'produce')});
like(restored($p), qr/42501: .*job $d\b.*manage/s, '... with another right the error names the job');
is(ask($other, "select string_agg(queue || ' ' || state, ', ' order by level) from tq_graph($d)"), 'p dead, c cancelled, secret cancelled', '... and tq_graph shows it');
sql(q{select tq_grant('secret', 'boss', 'manage')});
is(restored($p), 'ready', '... with manage it is restored');
ask($other, 'reset role');
is(states($c, $d), 'blocked blocked', '... with all below it');
clear();

# the results that a child was not to get stay hidden
sql(q{select tq_grant('c', 'boss', 'produce'); select tq_grant('c', 'boss', 'consume')});
$p = enqueue('p');
ask($other, 'set role boss');
$c = ask($other, "select tq_enqueue('c', depends_on => '{$p}')");
ask($other, 'reset role');
fails('p');
all_become('cancelled', $c);
is(restored($p), 'ready', 'a child that does not get the result');
succeeds('p', '"hidden"');
is(sql(q{select parents from tq_claim('c', wait => '3 min')}), qq({"$p": {"state": "succeeded"}}), '... does not get it after a retry by another role');
sql('select tq_complete(id, lease) from tq_running');
$p = enqueue('p');
ask($other, 'set role boss');
$c = ask($other, "select tq_enqueue('c', depends_on => '{$p}', $anyway)");
ask($other, 'reset role');
fails('p');
all_become('ready', $c);
is(sql("select tq_retry($p)") . state_of($c), 'readyblocked', '... nor does one that was free, when another role retries its parent');
succeeds('p', '"hidden"');
is(sql(q{select parents from tq_claim('c', wait => '3 min')}), qq({"$p": {"state": "succeeded"}}), '... it gets the state only');
sql('select tq_complete(id, lease) from tq_running');

# a parent that has begun again is replaced: the child gets the result of the new job if its enqueuer may read the queue,
# not if it has only enqueued both in one transaction
sql(q{create role maker login; select tq_grant(queue, 'maker', 'produce') from unnest('{p,q,anyway}'::text[]) queue});
for my $role ('none', 'maker')
{
	for my $freed (0, 1)
	{
		$q = enqueue('q');
		ask($other, "set role $role; begin");
		$p = ask($other, q{select tq_enqueue('p', unique_key => 'r')});
		$run = ask($other, "select tq_enqueue('anyway', depends_on => '{$p,$q}', $anyway)");
		ask($other, 'commit; reset role');
		succeeds('q') if $freed;
		fails('p');
		$freed ? all_become('ready', $run) : until_true($node, "select state = 'dead' from tq.dependency where parent_id = $p", 'an end is known');
		sql("select tq_retry($p)");
		until_true($node, "select state is null from tq.dependency where parent_id = $p", 'and taken back');
		$e = enqueue('p', q{unique_key => 'r', unique_mode => 'replace'});
		until_true($node, "select count(*) = 1 from tq.dependency where parent_id = $e", 'the child waits for the new job');
		succeeds('p', '"new"');
		succeeds('q') if !$freed;
		is(sql(qq{select parents -> '$e' from tq_claim('anyway', wait => '3 min')}), $role eq 'maker' ? '{"state": "succeeded"}' : '{"state": "succeeded", "result": "new"}',
			'a parent that was retried and replaced: ' . ($role eq 'maker' ? 'the state' : 'the result') . ($freed ? ', of a child that was free' : ''));
		sql('select tq_complete(id, lease) from tq_running');
	}
}
clear();

# --- crashes, a dump, retention ---------------------------------------------------------------------------------------------

for my $point ('retry-after-key', 'commit-before-publish')
{
	my $committed = $point eq 'commit-before-publish';
	$p = enqueue('p');
	$c = child('c', $p);
	$d = child('d', $c);
	fails('p');
	all_become('cancelled', $c, $d);
	my $log = -s $node->logfile;
	arm($node, $point, 'kill', pid => ask($other, 'select pg_backend_pid()'), skip => $committed ? 0 : 2);
	begin_ask($other, "select tq_retry($p, with_children => true)");
	$node->wait_for_log(qr/all server processes terminated; reinitializing.*ready to accept/s, $log);
	leave($one, $other);
	$_ = session($node) for $one, $other;
	loaded($node);
	$scheduler = scheduler_of($node);
	is(states($p, $c, $d), $committed ? 'ready blocked blocked' : 'dead cancelled cancelled', "H36: killed at $point: all or nothing");
	check_journal($node, '... and the journal agrees');
	is(restored($p), 'ready', '... it can be retried') unless $committed;
	$node->stop('immediate');
	$node->start;
	loaded($node);
	$scheduler = scheduler_of($node);
	$_ = session($node) for $one, $other;
	is(states($p, $c, $d), 'ready blocked blocked', '... and is as before after another crash');
	succeeds('p', '5');
	is(sql(qq{select parents->'$p'->>'result' from tq_claim('c', wait => '3 min')}), '5', '... a child gets the result');
	sql('select tq_complete(id, lease) from tq_running');
	is(sql(q{select count(*) from tq_claim('d', wait => '3 min')}), 1, '... and its child follows');
	sql('select tq_complete(id, lease) from tq_running');
}

# a dump of jobs that are cancelled, and of jobs that wait again
$p = enqueue('p');
$c = child('c', $p);
@p = (enqueue('q'));
@c = (child('e', $p[0]));
fails('p');
fails('q');
all_become('cancelled', $c, @c);
restored($p[0]);
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', $dump ], 'a dump');
sql('create database copy');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('copy'), '-f', $dump ], '... is restored');
$node->safe_psql('copy', 'select tq_activate()');
loaded($node, 'copy');
ok(until_true($node, "select state = 'blocked' from tq_get($c[0])", 'blocked', 'copy'), 'H36: a job that waits again is dumped as it is');
ok(until_true($node, "select tq_retry($p, with_children => true) = 'ready'", 'retried', 'copy'), '... and one that was cancelled');
is($node->safe_psql('copy', "select state from tq_get($c)"), 'blocked', '... waits again, too');
$node->safe_psql('copy', q{select tq_complete(id, lease) from tq_claim('q', wait => '3 min')});
ok(until_true($node, "select state = 'ready' from tq_get($c[0])", 'ready', 'copy'), '... and is freed');
sql('drop database copy with (force)');
clear();

# Fills the segment that takes jobs, so that the next one is opened.
sub fill
{
	my $n = sql('select coalesce(max(number), 0) from tq.segment');
	sql(q{select count(tq_enqueue('fill')) from generate_series(1, 400)});
	segment_after($node, $n);
	take_all($node, 'fill', 400);
	return;
}
cmp_ok(sql("select count(*) from tq.edge where parent_id <= $p"), '>', 0, 'edges stay');
sql("insert into tq.edge values (1, $p)");    # as of a child that was freed after the record of its parent had gone
$node->append_conf('postgresql.conf', "tq.retention = '1s'\ntq.dead_retention = '1s'");
$node->reload;
for my $turn (1 .. 3)
{
	fill();
	clock($node, 4000 * $turn);
}
ok(until_true($node, "select count(*) = 0 from tq.edge where parent_id <= $p", 'no edges'), '... until the records of the parents go');

leave($one, $other);
check_journal($node);
$node->stop;
done_testing();
