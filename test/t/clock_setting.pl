# tq.fake_now sets the clock of tq for workers and functions. Scenarios: wrong values are refused; in the future timers,
# leases, limits, expiry, unique keys and retention run out and waiting claims wake up; in the past nothing runs out;
# back to the server's time, after a restart too; the clock of one database (tq_set_now), and the retention of tq_audit
# by it; on a standby; without tq in shared_preload_libraries.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('clock', init => { allows_streaming => 1 }, conf => <<CONF);
timezone = 'Europe/Berlin'
tq.claim_log_delay = 10ms
tq.segment_rows = 10
CONF
scheduler_of($node);
loaded($node);

sub query { return $node->safe_psql('postgres', $_[0]) }
sub comes { return ok(until_true($node, @_), $_[1]) }

# Moves tq's clock by so much from its own time.
sub step
{
	my ($interval) = @_;
	return fake_now($node, query("select to_char((tq_now() + interval '$interval') at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US+00')"));
}

sub state { return query("select state from tq_get($_[0])") }
sub has_event { return comes("select exists (select from tq.event where job_id = $_[0] and type = '$_[1]')", $_[2]) }
sub claim { return query("select id || ', ' || lease from tq_claim('$_[0]'" . ($_[1] ? ", $_[1]" : '') . ')') }
sub clock_item { return query("select status || ': ' || value from tq_health() where item = 'clock'") }
sub enqueue { return query('select tq_enqueue(' . $_[0] . ')') }
sub in_log { my $n = () = slurp_file($node->logfile) =~ /$_[0]/g; return $n }

# One test: the clock shows a time, or up to an hour later.
sub shows
{
	my ($time, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $now = query('select tq_now()');
	return ok(query("select '$now' >= timestamptz '$time' and timestamptz '$now' - '$time' < '1 h'") eq 't', $name) || diag("$now instead of $time");
}

#
# off, and invalid values
#
is(clock_item(), 'ok: the server\'s', 'off by default');
sub metric { return query(q{select split_part(line, ' ', 2) from regexp_split_to_table(tq_metrics(), '\n') line where line ~ '^tq_clock_offset_seconds '}) }
cmp_ok(metric(), '==', 0, '... also for tq_metrics');
is(query('select abs(extract(epoch from tq_now() - clock_timestamp())) < 3600'), 't', 'tq_now is the server\'s time');
for my $bad ('soon', 'now', 'tomorrow', 'yesterday 12:00', '12:00', 'infinity', 'epoch', '2026-02-30', '2026-01-01 25:00', '2026-01-01 12:00 Mars/Base',
	'2000-12-31 23:59+00', '9999-01-01 00:00+00', '100000-01-01', '1 h', '{}', 'x' x 1000)
{
	my ($rc, $out, $err) = $node->psql('postgres', "alter system set tq.fake_now = '$bad'");
	like($err, qr/invalid value for parameter "tq.fake_now".*\n.*DETAIL:  It must (be a date and time|lie in the years)/s, 'refused: ' . substr $bad, 0, 30);
}
for my $how ('set', 'set local', 'alter role current_user set', 'alter database postgres set')
{
	my ($rc, $out, $err) = $node->psql('postgres', "begin; $how tq.fake_now = '2027-01-01'");
	like($err, qr/parameter "tq.fake_now" cannot be changed now/, "no session has a clock of its own: $how");
}
for my $bad ('tomorrow', '2026-01-01 12:00 Mars/Base')
{
	$node->append_conf('postgresql.conf', "tq.fake_now = '$bad'");
	$node->reload;
	comes(q{select bool_or(error is not null) from pg_file_settings where name = 'tq.fake_now'}, "a wrong value in the file is found: $bad");
}
is(query('show tq.fake_now') . clock_item(), 'ok: the server\'s', '... the server goes on, and so does the clock');
$node->append_conf('postgresql.conf', "tq.fake_now = ''");

#
# the future: timers, leases, limits, expiry, unique keys
#
query(q{select tq_create_queue('q', '{"retry": {"delay": "3 h", "jitter": 0}, "on_lost": "bury"}')});
my $delayed = enqueue(q{'q', delay => '1 day'});
my $at = enqueue(q{'q', run_at => '2031-05-01 12:00+00'});
my $lost = enqueue(q{'lost'});
claim('lost', q{lease_for => '20 h'});
my $kept = enqueue(q{'kept'});
my $kept_lease = claim('kept', q{lease_for => '3 days'});
my $limited = enqueue(q{'limited', timeout => '1 h'});
claim('limited', q{lease_for => '3 days'});
my $expired = enqueue(q{'expiring', expires_at => tq_now() + interval '2 h'});
query(q{select tq_pause('expiring')});
my $keyed = enqueue(q{'keyed', unique_key => 'k', options => '{"unique_for": "10 h"}'});
query(q{select tq_complete(id, lease) from tq_claim('keyed')});
is(enqueue(q{'keyed', unique_key => 'k'}), $keyed, 'a key is taken for ten hours');
query(q{select tq_create_queue('paused'), tq_pause('paused', until => tq_now() + interval '1 h')});

# a session waits for a job; setting the clock does not end the wait
my $waiter = session($node);
begin_ask($waiter, q{select id from tq_claim('q', wait => '3 min')});
comes(q{select count(*) = 1 from pg_stat_activity where query ~ 'wait => .3 min' and wait_event_type = 'Extension'}, 'a worker waits');
my $lines = in_log('WARNING:.*tq: the clock was set to');
step('1 day');
is(end_ask($waiter), $delayed, 'a delayed job has come, to a worker that waited');
has_event($lost, 'l', 'a lease has run out');
has_event($limited, 'l', 'the time of an attempt is over');
has_event($expired, 'e', 'a job has expired');
is(state($kept), 'running', 'a longer lease has not');
like(query("select lease_expires_at - tq_now() from tq_get($kept)"), qr/^1 day 2\d:/, 'and has a day less');
like(query("select action || (lease_expires_at - tq_now()) from tq_heartbeat($kept_lease, '1 h')"), qr/^run1 day 2\d:/, '... which a heartbeat says, too');
comes(q{select paused_until is null from tq_queues where queue = 'paused'}, 'a pause is over');
isnt(enqueue(q{'keyed', unique_key => 'k'}), $keyed, 'a unique key is free again');
is(state($at), 'delayed', 'what is later stays');
is(query(q{select abs(extract(epoch from tq_now() - interval '1 day' - clock_timestamp())) < 3600}), 't', 'tq_now is a day ahead');
like(clock_item(), qr/^warn: \S+ \S+, \d d \d\d:\d\d:\d\d ahead of the server's$/, 'tq_health warns');
cmp_ok(metric(), '>', 0, '... and tq_metrics says how far it is');
is(in_log('WARNING:.*tq: the clock was set to') - $lines, 1, 'and so does the log, once');

# rows have that time
is(query("select tq_now() - enqueued_at < '1 h' from tq_get(" . enqueue(q{'q'}) . ')'), 't', 'jobs are enqueued by that clock');
is(query("select tq_now() - at < '1 h' from tq_history($lost) where event = 'lost'"), 't', 'and their events are written by it');
query(q{select tq_create_queue('new')});
is(query(q{select tq_now() - created_at < '1 h' from tq.queue where name = 'new'}), 't', 'and their queues');

#
# a given time, in the server's time zone; the clock runs on; a reload does not set it again
#
fake_now($node, '2031-05-01 13:59:58');
comes("select state = 'ready' from tq_get($at)", 'to a given time: two seconds later its job is due');
shows('2031-05-01 11:59:58+00', 'a time without a zone is in the server\'s');
is(query(q{select tq_schedule_next('0 12 * * *', 'UTC', 1) = timestamptz '2031-05-02 12:00+00'}), 't', 'tq_schedule_next starts there');
$lines = in_log('WARNING:.*tq: the clock was set to');
my $before = query('select tq_now()');
$node->append_conf('postgresql.conf', "log_min_error_statement = panic");
$node->reload;
until_true($node, "select current_setting('log_min_error_statement') = 'panic'");
is(query("select tq_now() >= '$before'"), 't', 'another reload does not set the clock again');
is(in_log('WARNING:.*tq: the clock was set to') - $lines, 0, '... and logs nothing');

#
# retention: segments are dropped, dead letters outlive them
#
query(q{select tq_complete(id, lease) from tq_claim('q', max_jobs => 100)});
my ($dead) = (enqueue(q{'dying', max_attempts => 1}));
query(q{select tq_fail(id, lease, 'no') from tq_claim('dying')});
# the ended jobs have a segment of their own, because a live job would delay its end
sub sealed { return comes("select sealed_at is not null from tq.segment where number = $_[0]", "segment $_[0] is full") }
my $newest = q{select max(number) from tq.segment};
my $fill = q{select tq_enqueue('q') from generate_series(1, 10)};
my $first = query($newest);
query($fill);
sealed($first);
my $done = query($fill) =~ s/\n.*//sr;
my ($its) = query("select substr(tableoid::regclass::text, 8) from tq.job where id = $done");
query(q{select tq_complete(id, lease) from tq_claim('q', max_jobs => 100)});
sealed($its);
step('2 h');
enqueue(q{'q', delay => '20 days'}) for 1 .. 2;
# that is six hours after the janitor found the segment finished
comes("select finished_at is not null from tq.segment where number = $its", 'a segment is finished');
step('8 h');
comes("select not exists (select from tq.job where id = $done)", 'retention: finished jobs are gone after six hours');
is(state($dead), 'dead', '... but not those that died');
step('7 days');
comes("select not exists (select from tq.job where id = $dead)", 'after a week these are gone as well');

#
# the past: nothing runs out, and nothing starts that is due later
#
my $soon = enqueue(q{'past', delay => '1 h'});
my $held = enqueue(q{'held'});
my $held_lease = claim('held', q{lease_for => '2 h'});
step('-2 days');
like(clock_item(), qr/^warn: /, 'back by two days');
is(query("select action from tq_heartbeat($held_lease)"), 'run', 'a lease does not run out when the clock is set back');
is(query("select action || (lease_expires_at - tq_now() > '1 h') from tq_heartbeat($held_lease)"), 'runtrue', '... and is as long as before');
my $now = enqueue(q{'past'});
is(query(q{select string_agg(id::text, ' ') from tq_claim('past', max_jobs => 10)}), $now, 'a job that is due runs, one that was due in an hour waits longer');
step('2 days 1 h');
comes("select state = 'ready' from tq_get($soon)", 'until its time comes');
has_event($held, 'l', 'forward again: the lease has run out');

#
# back from far ahead: segments that were created there are sealed and dropped as if they were created now
#
step('30 days');
$first = query($newest);
query($fill);
sealed($first);
query($fill);
sealed($first + 1);
query(q{select tq_complete(id, lease) from tq_claim('q', max_jobs => 100)});
comes("select finished_at is not null from tq.segment where number = $first + 1", 'a segment is finished ahead of time');
my $opened = query($newest);
my $lone = enqueue(q{'lone', delay => '100 days'});
step('-30 days');
is(query("select opened_at > tq_now() + interval '20 days' from tq.segment where number = $opened"), 't', 'back: its segments are of the future');
# the round of the second one comes after the look at segments that follows the first one
for my $nth (1, 2)
{
	my $next = enqueue(q{'past', delay => '500 ms'});
	comes("select state = 'ready' from tq_get($next)", "the scheduler has seen that: $nth");
}
step('2 h');
sealed($opened);
is(query("select to_regclass('tq.job_' || $first + 1) is not null"), 't', 'what ended there is kept');
step('5 h');
comes("select to_regclass('tq.job_' || $first + 1) is null", '... for six hours from now');

fake_now($node, '2010-03-28 01:59:59+01');
like(clock_item(), qr/^warn: 2010-03-28 .*, \d+ d \d\d:\d\d:\d\d behind the server's$/, 'long ago');
cmp_ok(metric(), '<', 0, '... which tq_metrics says with its sign');
my $old = enqueue(q{'past', delay => '1 s'});
comes("select state = 'ready' from tq_get($old)", 'timers work there');

#
# a server that starts with the setting; then the server's time again
#
$node->stop('immediate');
$node->start;
loaded($node);
shows('2010-03-28 00:59:59+00', 'a restart begins at that time again');
comes("select state = 'ready' from tq_get($old)", '... and from there its job is due once more');
is(state($soon), 'delayed', 'one of a later time is not');
my $end_of_log = -s $node->logfile;
kill 'KILL', scheduler_of($node);
$node->wait_for_log(qr/WARNING:.*tq: the clock was set to/, $end_of_log);
loaded($node);
shows('2010-03-28 00:59:59+00', 'so does a server that has crashed');
is(query('select count(*) from tq_check() where found <> expected'), '0', 'nothing is left behind');
fake_now($node);
comes(q{select abs(extract(epoch from tq_now() - clock_timestamp())) < 3600}, 'cleared: the server\'s time');
is(clock_item(), 'ok: the server\'s', 'and tq_health is content');
is(in_log('LOG: .*tq: the clock shows the server\'s time again'), 1, '... as the log says');
check_journal($node);

#
# a repeated definition
#
query(q{select tq_create_queue('work')});
my $definition = q{select tq_schedule('ends', 'work', every => '1 h', options => jsonb_build_object('end', timestamptz '2040-01-01 02:30+00'%s))};
fake_now($node, '2040-01-01 00:00+00');
query(sprintf $definition, '');
for my $time ('2040-01-01 01:50+00', '2040-01-02 00:00+00')
{
	fake_now($node, $time);
	is(query(sprintf $definition, ''), '', "a schedule can be defined again as it is, though a new one would never fire: $time");
}
my (undef, undef, $why) = $node->psql('postgres', sprintf $definition, q{, 'start', timestamptz '2039-12-31 02:31+00'});
like($why, qr/would never fire/, '... but not otherwise');
query(q{select tq_unschedule('ends')});
fake_now($node);
comes(q{select abs(extract(epoch from tq_now() - clock_timestamp())) < 3600}, 'the server\'s time again');

#
# the clock of one database (tq_set_now)
#
$node->safe_psql('postgres', 'create database apart');
$node->safe_psql('apart', 'create extension tq');
$node->safe_psql('postgres', 'alter database apart set tq.testing = on');
scheduler_of($node, 'apart');
loaded($node, 'apart');
sub apart { return $node->safe_psql('apart', $_[0]) }
my $here = enqueue(q{'apart', delay => '1 day'});
my $apart = apart(q{select tq_create_queue('q'); select tq_enqueue('q', delay => '1 day')});
my $leased = apart(q{select tq_enqueue('leased') from tq_create_queue('leased')});
apart(q{select count(*) from tq_claim('leased', lease_for => '20 h')});
my $waits = session($node, 'apart');
begin_ask($waits, q{select id from tq_claim('q', wait => '3 min')});
until_true($node, q{select count(*) = 1 from pg_stat_activity where datname = 'apart' and query ~ 'wait => .3 min' and wait_event_type = 'Extension'},
	'a worker of the database waits');
is(apart(q{select tq_set_now(tq_now() + interval '1 day') - clock_timestamp() > '23 h'}), 't', 'the clock of one database is set');
is(end_ask($waits), $apart =~ s/\n//r, 'what is due by it starts there');
ok(until_true($node, "select exists (select from tq.event where job_id = $leased and type = 'l')", 'lost', 'apart'), 'leases end there');
is(apart(q{select tq_now() - clock_timestamp() > '23 h'}), 't', 'other sessions of the database see it');
is(query('select abs(extract(epoch from tq_now() - clock_timestamp())) < 3600'), 't', 'other databases keep their time');
is(state($here), 'delayed', '... and their jobs wait');
is(apart(q{select status from tq_health() where item = 'clock'}) . clock_item(), q{warnok: the server's}, 'tq_health says which');
is(apart(q{select count(*) from tq_audit where action = 'create_queue'}), 2, 'actions are recorded');
apart(q{select tq_set_now(tq_now() + interval '91 days')});
ok(until_true($node, q{select count(*) = 0 from tq_audit where action = 'create_queue'}, 'old actions are deleted', 'apart'),
	'... and deleted after tq.audit_retention');
is(apart(q{select count(*) from tq_audit where action = 'set_now'}), 1, '... newer ones are kept');
apart('select tq_set_now()');
is(apart(q{select abs(extract(epoch from tq_now() - clock_timestamp())) < 3600}), 't', 'back to the server\'s time');
is(apart('select count(*) from tq_check() where found <> expected'), '0', 'nothing is left behind there');
leave($waits);

#
# on a standby, and without the library in shared_preload_libraries
#
$node->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'b', has_streaming => 1);
$standby->append_conf('postgresql.conf', "tq.fake_now = '2040-01-01 00:00+00'");
$standby->start;
is($standby->safe_psql('postgres', q{select tq_now() - timestamptz '2040-01-01 00:00+00' < '1 h'}), 't', 'a standby has a clock of its own');
$standby->promote;
my $there = $standby->safe_psql('postgres', q{select tq_enqueue('there')});
is($standby->safe_psql('postgres', "select to_char(enqueued_at at time zone 'UTC', 'YYYY-MM-DD') from tq_get($there)"), '2040-01-01', '... which it keeps when it is promoted');
$standby->stop;
leave($waiter);
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
is(query('select abs(extract(epoch from tq_now() - clock_timestamp())) < 3600'), 't', 'tq_now without shared_preload_libraries');
$node->stop;
done_testing();
