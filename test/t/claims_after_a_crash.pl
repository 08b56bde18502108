# A job that crashes the server uses up its attempts. After a crash claims are journalled before their jobs are handed
# out, also those of a transaction that never ends, until an attempt has ended.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('after_crash', conf => <<CONF);
tq.claim_log_delay = 1min
CONF
scheduler_of($node);
sub sql { return $node->safe_psql('postgres', $_[0]); }
sub events { return sql("select string_agg(event || ' ' || coalesce(attempt, 0), ', ' order by step) from tq_history($_[0]) where event <> 'enqueued'"); }
sub crash
{
	$node->stop('immediate');
	$node->start;
	loaded($node);
	until_true($node, q{select value ~ '^process' from tq_health() where item = 'scheduler'}, 'a scheduler');    # else claims are not journalled
	return;
}

sql(q{select tq_create_queue('q', '{"retry": {"delay": "0 s", "on_lost": "0 s"}}')});
my $bad = sql(q{select tq_enqueue('q', max_attempts => 3)});

# Ends all leases.
sub pass_time
{
	clock($node, 0, 7200);
	return;
}

# --- the crash comes in the transaction of the claim ------------------------------------------------------------------

my $session = session($node);
is(ask($session, q{begin; select id from tq_claim('q', lease_for => '1 h')}), $bad, 'a claim in a transaction');
crash();
is(events($bad), '', 'nobody knew that the job would crash the server');
for my $n (1 .. 3)
{
	$session = session($node);
	is(ask($session, q{begin; select id from tq_claim('q', lease_for => '1 h', wait => '1 h')}), $bad, "it is claimed again: $n");
	crash();
	is(sql("select state || ' ' || attempt from tq_jobs where id = $bad"), "running $n", '... and the attempt counts');
	pass_time();
	ok(until_true($node, "select state = '@{[$n < 3 ? 'ready' : 'dead']}' from tq_jobs where id = $bad"), '... when the lease is over');
}
is(events($bad), 'claimed 1, lost 1, claimed 2, lost 2, claimed 3, dead 3', 'it dies when its attempts are used up');

# --- the claim is committed -------------------------------------------------------------------------------------------

my $next = sql(q{select tq_enqueue('q')});
is(sql(q{select id from tq_claim('q', lease_for => '1 h')}), $next, 'a claim that is committed');
crash();
is(sql("select state || ' ' || attempt from tq_jobs where id = $next"), 'running 1', '... is known after a crash, too');
pass_time();

# --- a rollback takes no attempt away ---------------------------------------------------------------------------------

$session = session($node);
ask($session, q{begin; savepoint s});
is(ask($session, q{select attempt from tq_claim('q', wait => '1 h')}), 2, 'a claim in a savepoint');
ask($session, 'rollback to s');
ok(until_true($node, "select state = 'ready' and attempt = 1 from tq_jobs where id = $next"), '... which is rolled back');
is(events($next), 'claimed 1, lost 1, claimed 2, released 2, rolled back 2', 'the history says so');
is(sql("select reason from tq_history($next) where event = 'released'"), 'the transaction of its claim was rolled back', '... with the reason');
is(ask($session, q{select attempt from tq_claim('q', wait => '1 h')}), 2, 'the same attempt again');
ask($session, 'rollback');
ok(until_true($node, "select state = 'ready' and attempt = 1 from tq_jobs where id = $next"), '... and again');

my $asked = sql(q{select tq_enqueue('q', priority => 1)});
is(ask($session, q{begin; select id from tq_claim('q', wait => '1 h')}), $asked, 'a claim in a transaction');
is(sql("select tq_cancel($asked)"), 'asked', '... whose job is asked to stop');
ask($session, 'rollback');
ok(until_true($node, "select state = 'cancelled' from tq_get($asked)"), '... is rolled back');
is(sql("select attempt from tq_get($asked)"), 0, '... and counts as no attempt');
my $old = sql(q{select tq_enqueue('q', priority => 1, unique_key => 'k', unique_mode => 'skip_waiting')});
is(ask($session, q{begin; select id from tq_claim('q', wait => '1 h')}), $old, 'a claim in a transaction');
my $new = sql(q{select tq_enqueue('q', unique_key => 'k', unique_mode => 'skip_waiting')});
ask($session, 'rollback');
ok(until_true($node, "select state = 'cancelled' from tq_get($old)"), '... whose job is superseded, is rolled back');
is(sql("select attempt from tq_get($old)"), 0, '... and counts as no attempt, either');
sql("select tq_cancel($new)");

# A claim that does not wait for the journal until the end: its session is cancelled.
arm($node, 'claimlog-before-insert');
my $pid = ask($session, 'select pg_backend_pid()');
begin_ask($session, q{select id from tq_claim('q', wait => '1 h')});
standing($node, 'claimlog-before-insert');
sql("select pg_cancel_backend($pid)");
like(end_ask($session), qr/canceling statement/, 'a claim that waits for the journal can be cancelled');
release($node, 'claimlog-before-insert');
ok(until_true($node, "select state in ('ready', 'delayed') and attempt = 1 from tq_jobs where id = $next"), '... and its job is given back');

# --- until an attempt has ended ---------------------------------------------------------------------------------------

my $logged = q{select substring(tq_metrics() from 'tq_claims_logged_total (\d+)')};
is(sql(q{select tq_complete(id, lease) from tq_claim('q', wait => '1 h')}), 'succeeded', 'an attempt ends');
my $before = sql($logged);
sql(q{select tq_enqueue('q')});
is(sql(q{select count(*) from tq_claim('q')}), 1, 'the next claim');
is(sql($logged), $before, '... is not journalled before its time');

# a database that is new has no job that was there at the crash
sql('create database new');
$node->safe_psql('new', 'create extension tq');
arm($node, 'load-between-segments');
$node->safe_psql('new', 'select tq_activate()');
standing($node, 'load-between-segments');
$node->safe_psql('new', q{select tq_create_queue('q')});
release($node, 'load-between-segments');
loaded($node, 'new');
$node->safe_psql('new', q{select tq_enqueue('q')});
is($node->safe_psql('new', q{select count(*) from tq_claim('q')}), 1, 'a claim in a new database');
is($node->safe_psql('new', $logged), 0, '... is not journalled before its time');
$node->stop;
$node->start;
loaded($node);
sql(q{select tq_enqueue('other')});
is(sql(q{select count(*) from tq_claim('other')}), 1, 'after a shutdown');
is(sql($logged), 0, '... neither');
$node->stop;
done_testing();
