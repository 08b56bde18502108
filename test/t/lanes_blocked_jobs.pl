# H13: jobs that cannot start do not keep others out of memory. H15: a job whose transaction always rolls back is not
# claimed again at once, and an unreadable row blocks no other job. H12: a queue is dropped while a transaction enqueues
# into it. H16: workers do not wait for the transaction of a user.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('lanes', conf => <<CONF);
tq.max_live_jobs = 64
tq.max_attempts = 5
CONF
my $scheduler = scheduler_of($node);
my $one = session($node);
my $two = session($node);

sub enqueue
{
	my ($session, $queue, $args) = @_;
	return ask($session, "select tq_enqueue('$queue'" . ($args ? ", $args" : '') . ')');
}

# Enqueues n jobs with one call.
sub many
{
	my ($queue, $n, $args) = @_;
	$node->safe_psql('postgres',
		"select tq_enqueue_many('$queue', array_fill('{}'::jsonb, array[$n])" . ($args ? ", $args" : '') . ')');
	return;
}

#
# H13
#
many('mix', 500, q{kind => 'a'});
my $late = enqueue($one, 'mix', q{kind => 'b', priority => 500});
ok(until_true($node, q{select exists (select from tq_claim('mix', kinds => '{b}') c, tq_complete(c.id, c.lease))}),
	'H13: a kind behind 500 jobs of another kind is found by a claim that wants it');
$late = enqueue($one, 'mix', q{kind => 'b', priority => 500});
ask($one, q{select tq_pause('mix', 'a')});
is(join(',', take_all($node, 'mix', 1)), $late, 'H13: a paused kind delays no other');
is(scalar(take($node, 'mix', 10)), 0, 'H13: and does not run');
many('small', 20);
is(scalar(take_all($node, 'small', 20)), 20, 'H13: it does not delay another queue');
ask($one, q{select tq_resume('mix', 'a')});
is(scalar(work_off($node, 'mix')), 500, 'H13: all of it runs when it may');

many('later', 300, q{delay => '9 min'});
$late = enqueue($one, 'later');
is(join(',', take_all($node, 'later', 1)), $late, 'H13: more delayed jobs than memory do not keep a ready one out');
many('small', 100);
is(scalar(take_all($node, 'small', 100)), 100, 'H13: another queue is not delayed');
clock($node, 541, 0);
is(scalar(work_off($node, 'later')), 300, 'H13: they run when they are due');
clock($node, 0, 0);

many('mix', 45, q{kind => 'a'});
# what did not stay in memory when it was enqueued is read first
ask($one, 'begin');
my ($running, $more) = (0, 1);
$running += $more = ask($one, q{select count(*) from tq_claim('mix', max_jobs => 45, wait => '180 s')}) while $running < 33 && $more;
is($running, 33, 'H13: a queue\'s share of memory is running jobs');
is(ask($one, q{select count(*) from tq_claim('mix', max_jobs => 45)}), 0, 'H13: and no more of it');
many('small', 100);
is(scalar(take_all($node, 'small', 100)), 100, 'H13: the rest is enough for the others');
ask($one, 'rollback');
is(scalar(work_off($node, 'mix')), 45, 'H13: a rollback gives the jobs back');

#
# H15
#
my $poison = enqueue($one, 'poison');
my $good = enqueue($one, 'poison', 'priority => 200');

# Claims in a transaction that is rolled back; returns the id.
sub spoil { return ask($one, q{begin; select id from tq_claim('poison'); rollback}); }

is(spoil(), $poison, 'H15: a job whose transaction is rolled back comes again') for 1 .. 2;
is($node->safe_psql('postgres', "select attempt from tq_get($poison)"), 0, 'H15: and no attempt was counted');
# the pause is short: what must happen before its end is sent with what begins it, in one message
is(ask($one, q{begin\; select id from tq_claim('poison')\; rollback\; select id, tq_complete(id, lease) from tq_claim('poison')}),
	"$poison\n$good|succeeded", 'H15: for the third time, and now the next job has its turn');
clock($node, 2, 0);
ok(until_true($node, "select state = 'ready' from tq_get($poison)"), 'H15: it is back after a pause');
$good = enqueue($one, 'poison', 'priority => 200');
my $now = ask($one, 'select tq_now()');
is(ask($one, qq{begin\\; select id from tq_claim('poison')\\; rollback\\; select run_at >= timestamptz '$now' + interval '2 s' from tq_get($poison)}),
	"$poison\nt", 'H15: rolled back again, the pause grows');
clock($node, 6, 0);
ok(until_true($node, "select state = 'ready' from tq_get($poison)"), 'H15: but ends');
is(spoil(), $poison, 'H15: the fifth time is the last');
clock($node, 60, 0);
ok(until_true($node, "select state = 'dead' from tq_get($poison)"), 'H15: it is dead');
is(join(',', work_off($node, 'poison')), $good, 'H15: and the queue goes on');
clock($node, 0, 0);

# an unreadable row is charged to its own job only
my $bad = ask($one, q{select tq_enqueue('toast', jsonb_build_object('x', (select string_agg(md5(i::text), '') from generate_series(1, 1000) i)))});
my @others = map { enqueue($one, 'toast') } 1 .. 2;
my $toast = $node->safe_psql('postgres', "select reltoastrelid::regclass from pg_class where oid = (select tableoid from tq.job where id = $bad)");
$node->safe_psql('postgres', "create extension pg_surgery; select heap_force_kill('$toast', array_agg(ctid)) from $toast");
like(ask($one, q{select count(*) from tq_claim('toast', max_jobs => 3)}), qr/missing chunk/, 'H15: a batch fails for one unreadable row');
# its pause is short: when it is over, a batch fails again
my @ran;
until_so(sub { push @ran, eval { take($node, 'toast', 2) }; @ran >= 2 }, 'the other jobs run');
is(join(',', sort { $a <=> $b } @ran), join(',', @others), 'H15: the other jobs of the batch run');
$node->safe_psql('postgres', "select tq_cancel($bad)");

#
# H12
#
is(scalar(take_all($node, 'gone', enqueue($one, 'gone') ? 1 : 0)), 1, 'H12: a queue in use');
my $open = ask($one, q{begin; select tq_enqueue('gone')});
like(ask($two, q{select tq_drop_queue('gone')}), qr/^$/, 'H12: it is dropped while an open transaction has enqueued to it');
like(enqueue($two, 'gone'), qr/TQ002/, 'H12: no session can enqueue into it');
like(ask($two, q{select tq_create_queue('gone')}), qr/ERROR/, 'H12: another queue of the same name cannot be created yet');
ask($one, 'commit');
is(join(',', take_all($node, 'gone', 1)), $open, 'H12: the job that was on its way runs');
ok(until_true($node, q{select not exists (select from tq.queue where name = 'gone')}), 'H12: then the queue goes');
is(sql_value(q{select count(*) from tq.job j where not exists (select from tq.queue q where q.id = j.queue_id)
	and not exists (select from tq.event e where e.job_id = j.id and type = 's')}), 0, 'H12: and no job is left without a queue');

sub sql_value { return $node->safe_psql('postgres', $_[0]); }

#
# H16
#
ask($two, q{set statement_timeout = '3min'});
like(ask($one, q{begin; select tq_enqueue('brand new')}), qr/^\d+$/, 'H16: an open transaction has enqueued to a new queue');
my $second = enqueue($two, 'brand new');
like($second, qr/^\d+$/, 'H16: no process waits for the user');
is(join(',', take_all($node, 'brand new', 1)), $second, 'H16: and its queue works');
ask($one, 'rollback');
is(scalar(take($node, 'brand new', 1)), 0, 'H16: a rollback takes its job back');
like(enqueue($two, 'brand new'), qr/^\d+$/, 'H16: and not the queue');
is(scalar(work_off($node, 'brand new')), 1, 'H16: which goes on');

# a user locks the table of queues
ask($one, 'begin; lock table tq.queue in exclusive mode');
begin_ask($two, q{select tq_enqueue('another new')});
my $due = ask(session($node), q{select tq_enqueue('small', delay => '10 ms')});
is(join(',', take_all($node, 'small', 1)), $due, 'H16: timers go on while a new queue waits for a user');
ask(session($node), q{select tq_enqueue('small')});
ask(session($node), q{select count(*) from tq_claim('small', lease_for => '1 s')});
clock($node, 10, 10);
is(scalar(take_all($node, 'small', 1)), 1, 'H16: so does the reaper');
ask($one, 'commit');
like(end_ask($two), qr/^\d+$/, 'H16: then it gets its queue');
is($node->safe_psql('postgres', q{select count(*) from pg_stat_activity where backend_type = 'tq scheduler' and pid = } . $scheduler),
	1, 'H16: the scheduler has gone through all of that');

check_journal($node);
leave($one, $two);
$node->stop;

# all jobs in memory of the largest kind must stay there; the next kind has to give up jobs
$node = tq_node('stay', conf => 'tq.max_live_jobs = 64');
scheduler_of($node);
$node->safe_psql('postgres', q{select count(tq_reschedule(tq_enqueue('stay'), priority => 200)) from generate_series(1, 28)});
# a few at a time: a job that is being committed must stay in memory
for my $queue ('much', 'more')
{
	$node->safe_psql('postgres', "select count(tq_enqueue('$queue')) from generate_series(1, 5)") for 1 .. 4;
}
$node->safe_psql('postgres', q{select tq_pause('stay'), tq_pause('much'), tq_pause('more')});
many('small', 100);
ok(until_true($node, q{select (regexp_match(tq_metrics(), '\ntq_evicted_jobs_total (\d+)'))[1]::int > 0}),
	'H13: of the queues that fill memory a smaller one makes room, since the largest one cannot');
is(scalar(work_off($node, 'small')), 100, 'H13: the third one goes on');
$node->stop;

# memory is full of jobs of another database, which can go back to disk
$node = tq_node('two', conf => 'tq.max_live_jobs = 64');
$node->safe_psql('postgres', 'create database other');
tq_setup($node, 'other');
scheduler_of($node, 'other');
my $later = $node->safe_psql('other', q{select tq_enqueue('later', run_at => now() + '1 day'::interval)});
scheduler_of($node);
many($_, 100) for 'much', 'more';
ok(until_true($node, q{select sum(in_memory) > 50 from tq_stats()}), 'memory is full');
is($node->safe_psql('other', "select tq_reschedule($later, run_at => now())"), 'ready', 'H13: what another database has there makes room, too');
$node->stop;

# without a scheduler a claim loads the jobs on disk, also if the last attempt found no free memory
$node = tq_node('alone', conf => "tq.max_live_jobs = 64\ntq.workers = off");
many('q', 100);
my $held = 0;
while (my $n = $node->safe_psql('postgres', q{select count(*) from tq_claim('q', 100, lease_for => '1 h')})) { $held += $n; }
cmp_ok($held, '<', 100, 'running jobs fill memory');
$node->safe_psql('postgres', 'select tq_complete(id, lease) from tq_running');
is(scalar(take_all($node, 'q', 100 - $held)), 100 - $held, 'when they have ended, the others are claimed');
$node->stop;
done_testing();
