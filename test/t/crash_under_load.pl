# Crashes and restarts under load. Clients enqueue, claim and finish in every way, and record each request and answer.
# Meanwhile the test stops the server in immediate mode or kills one of its processes, several times. At the end all
# jobs are finished, and the records agree with the journal (P1, P2, P3, P5, P9). Hazards: H4, H10, H11, H15.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqLoad;
use TqTest;

my $node = PostgreSQL::Test::Cluster->new('crash');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
shared_preload_libraries = 'tq'
restart_after_crash = on
shared_buffers = 64MB
tq.max_live_jobs = 2000
tq.segment_rows = 3000
tq.audit_interval = 2s
CONF
$node->start;
$node->safe_psql('postgres', 'create extension tq; create extension pageinspect');

my $load = TqLoad->new('crash', $node->connstr('postgres'));
$load->start('producer', 3);
$load->start('worker', 4);
ok($load->progress(100_000), 'the clients are at work');

my $client = q{select pid from pg_stat_activity where application_name ~ '^(producer|worker)' order by random() limit 1};
my $scheduler = q{select pid from pg_stat_activity where backend_type = 'tq scheduler'};
for my $victim ($client, $scheduler, $client, $client, $scheduler)
{
	ok($load->progress(60_000 + int(rand(120_000))), 'the clients go on');
	my $pid = '';
	until_so(sub { return ($pid = $node->safe_psql('postgres', $victim)) =~ /^\d+$/ }, 'a process to kill');
	my $log = -s $node->logfile;
	$load->crash(sub {
		kill 'KILL', $pid;
		$node->wait_for_log(qr/database system is ready to accept connections/, $log);
	});

	ok($load->progress(60_000 + int(rand(120_000))), 'the clients go on');
	$load->crash(sub {
		$node->stop('immediate');
		$node->start;
	});
}
ok($load->progress(100_000), 'the clients go on');
ok(until_true($node, 'select count(*) >= 2 from tq.segment'), 'the load goes over several segments');

$load->drain($node);
$load->check($node);

# P5: no row of a segment was ever updated, deleted or locked; dead rows come from rollbacks.
is($node->safe_psql('postgres', <<'SQL'), 0, 'P5: no row of a segment has an xmax');
select count(*) from pg_class c
	cross join generate_series(0, pg_relation_size(c.oid) / 8192 - 1) b
	cross join lateral heap_page_items(get_raw_page(c.oid::regclass::text, b::int)) i
where c.relnamespace = 'tq'::regnamespace and c.relname ~ '^(job|event)_[0-9]+$' and c.relkind = 'r' and i.t_xmax <> '0'
SQL
is($node->safe_psql('postgres', "select count(*) from tq_claim('load', 1000)"), 0, 'nothing is left in memory');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6|a recount found|is gone; the job is dropped/,
	'nothing alarming in the log');
$node->stop;

done_testing();
