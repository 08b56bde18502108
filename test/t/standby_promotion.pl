# A synchronous standby is promoted under load, and the clients connect to it. All committed changes are there, no lease
# number repeats, and before the promotion the standby reports that it is one (P1, P2, R17). Hazard: H10.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqLoad;
use TqTest;

my $primary = tq_node('primary', init => { allows_streaming => 1 }, conf => <<CONF);
shared_buffers = 64MB
tq.max_live_jobs = 2000
tq.segment_rows = 1000
hot_standby_feedback = on
CONF
scheduler_of($primary);
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$primary->reload;
until_true($primary, "select count(*) = 1 from pg_stat_replication where sync_state = 'sync'", 'a synchronous standby');

# The clients connect to the server that accepts writes.
my $dsn = sprintf('host=%s,%s port=%d,%d dbname=postgres target_session_attrs=read-write',
	$primary->host, $standby->host, $primary->port, $standby->port);
my $load = TqLoad->new('standby', $dsn);
$load->start('producer', 2, 0.01);
$load->start('worker', 3);
ok($load->progress(200_000), 'the clients are at work');

# What the standby answers
my $session = session($standby);
for my $call (
	q{tq_enqueue('load')}, q{tq_enqueue_many('load', '{"{}"}')}, q{tq_claim('load')}, 'tq_complete(1, 1)', q{tq_fail(1, 1, '')},
	'tq_release(1, 1)', q{tq_bury(1, 1, '')}, 'tq_heartbeat(1, 1)', 'tq_cancel(1)', 'tq_retry(1)', 'tq_get(1)', 'tq_stats()', 'tq_check()',
	q{tq_create_queue('other')}, q{tq_pause('load')}, q{tq_drain('w')}, q{tq_undrain('w')})
{
	like(ask($session, "select from $call"), qr/ERROR:  25006/, "$call on a standby: 25006");
}
like(ask($session, q{call tq_wait('{load}', '1 h')}), qr/ERROR:  25006/, 'tq_wait on a standby: 25006');
ok(until_true($standby, 'select count(*) > 0 from tq.job'), 'the journal can be read');
is(ask($session, "select count(*) from pg_stat_activity where backend_type ~ '^tq (scheduler|janitor)'"), 0, 'no worker of ours');

my $highest;
$load->crash(sub {
	$highest = $primary->safe_psql('postgres', 'select max(lease) from tq.event');
	$primary->stop('immediate');
	$standby->promote;
});
ok($load->progress(200_000), 'the clients go on at the promoted one');
scheduler_of($standby);
until_true($standby, "select max(lease) > $highest from tq.event", 'new leases');

$load->drain($standby);
$load->check($standby);
check_journal($standby);

# An enqueue after the drain
my $id = $standby->safe_psql('postgres', "select tq_enqueue('load')");
is($standby->safe_psql('postgres', "select max(id) from tq.job"), $id, 'ids go on');

unlike(slurp_file($standby->logfile), qr/PANIC|TRAP|signal 11|signal 6|a recount found/, 'nothing alarming in the log');
$standby->stop;

done_testing();
