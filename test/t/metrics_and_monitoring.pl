# tq_metrics and docs/monitoring.md. promtool checks the text and tests the alerts; the dashboard uses existing metrics
# only; the endpoint and the exporter serve the text. Scenarios: backends that hold back vacuum, a standby, a server
# without workers, a crash. tq_series over a restart.

use strict;
use warnings;

use FindBin;
use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $docs = "$FindBin::RealBin/../../docs/monitoring";

# Whether a program can be run; scripts/test installs it if possible.
sub have { my ($program) = @_; return scalar grep { -x "$_/$program" } split /:/, $ENV{PATH}; }

# Runs promtool. Returns its output if it fails.
sub promtool
{
	my ($input, @arguments) = @_;
	my $said = '';
	my $ok = IPC::Run::run([ 'promtool', @arguments ], '<', \$input, '>', \$said, '2>&1');
	return $ok ? '' : $said || 'failed';
}

# The names of the samples of a text, and one sample.
sub names_of { my ($text) = @_; return +{ map { ($_ => 1) } $text =~ /^(tq_[a-z_]+)/mg }; }

sub value_of
{
	my ($text, $sample) = @_;
	return $text =~ /^\Q$sample\E (\S+)$/m ? $1 + 0 : undef;
}

my $node = tq_node('metrics', init => { allows_streaming => 1 }, conf => <<CONF);
max_prepared_transactions = 5
tq.max_live_jobs = 100000
CONF
scheduler_of($node);
loaded($node);
sub metrics { my ($of, $database) = @_; return ($of // $node)->safe_psql($database // 'postgres', 'select tq_metrics()') . "\n"; }

#
# The text
#
my $new = metrics();
$node->safe_psql('postgres', <<'SQL');
select tq_create_queue(q) from unnest(array['plain', 'with "quotes"', 'with \ and {braces}', 'a=b,c="d"', '\']) q;
select count(tq_enqueue('plain')) from generate_series(1, 20);
select count(tq_complete(id, lease)) from tq_claim('plain', 9);
select count(tq_fail(id, lease, 'x', fatal => true)) from tq_claim('plain', 2);
select count(*) from tq_claim('plain', 3, worker => 'w "1"', lease_for => '1 h');
SQL
my $text = metrics();
SKIP:
{
	skip 'no promtool', 3 unless have('promtool');
	is(promtool($new, 'check', 'metrics'), '', 'promtool: a new database');
	is(promtool($text, 'check', 'metrics'), '', 'promtool: queues with odd names');
	isnt(promtool("tq_x{queue=\"a} 1\n", 'check', 'metrics'), '', 'promtool complains of what is wrong');
}
is(value_of($text, 'tq_jobs{queue="plain",state="ready"}'), 6, 'jobs that are ready');
is(value_of($text, 'tq_jobs_enqueued_total{queue="with \\\\ and {braces}"}'), 0, 'a name that is escaped');
like($text, qr/^tq_info\{version="[0-9.]+",database="postgres"\} 1$/m, 'what these are of');
my $series = $node->safe_psql('postgres', q{select allocated_size from pg_shmem_allocations where name = 'tq series'});
my $per_job = (value_of($text, 'tq_shared_memory_bytes') - $series) / 100000;
cmp_ok($per_job, '<', 163, "memory: $per_job bytes per job, with all that does not grow with them");

#
# The alerts and the dashboard
#
SKIP:
{
	skip 'no promtool', 3 unless have('promtool');
	is(promtool('', 'check', 'rules', "$docs/alerts.yml"), '', 'promtool: the rules');
	is(promtool('', 'test', 'rules', "$docs/alerts_test.yml"), '', 'promtool: their tests');
	is(promtool('', 'check', 'config', '--syntax-only', "$docs/prometheus.yml"), '', 'promtool: the configuration');
}
my $there = names_of($text);
my $alerts = slurp_file("$docs/alerts.yml");
my $alert_tests = slurp_file("$docs/alerts_test.yml");
my @expressions = $alerts =~ /^ +expr: (.*?)(?=^ +(?:for|labels):)/msg;
my @alerts = $alerts =~ /- alert: (\w+)/g;
is(scalar @expressions, scalar @alerts, 'every alert has an expression');
is(join(' ', grep { !$there->{$_} } map { /\b(tq_[a-z_]+)/g } @expressions), '', 'alerts use what is there');
is(join(' ', grep { $alert_tests !~ /alertname: $_\s+exp_alerts:/ } @alerts), '', 'every alert has a test in which it fires');
is(join(' ', grep { $alert_tests !~ /alertname: $_\}/ } @alerts), '', '... and one in which it does not');

my $dashboard = eval { decode_json(slurp_file("$docs/dashboard.json")) };
is($@, '', 'the dashboard is JSON');
my %used;
my @nodes = ($dashboard);
while (@nodes)
{
	my $n = shift @nodes;
	if (ref $n eq 'HASH')
	{
		$used{$_} = 1 for map { /\b(tq_[a-z_]+)/g } grep { defined $_ && !ref $_ } @{$n}{qw(expr query)};
		push @nodes, values %$n;
	}
	elsif (ref $n eq 'ARRAY')
	{
		push @nodes, @$n;
	}
}
cmp_ok(scalar keys %used, '>', 20, 'it uses metrics');
is(join(' ', sort grep { !$there->{$_} } keys %used), '', '... that are there');
my %ids;
$ids{ $_->{id} }++ for @{ $dashboard->{panels} };
is(join(' ', grep { $ids{$_} > 1 } keys %ids), '', 'its panels have numbers of their own');

#
# The endpoint, as a role with only monitor
#
$node->safe_psql('postgres', q{create role prometheus login; select tq_grant('*', 'prometheus', 'metrics')});
my $conninfo = sprintf('host=%s port=%s dbname=postgres user=prometheus', $node->host, $node->port);
my $log = "$PostgreSQL::Test::Utils::tmp_check/endpoint.log";
my $said = '';
my $endpoint = IPC::Run::start([ 'python3', "$docs/tq_endpoint.py", '--listen', '127.0.0.1:0', $conninfo ],
	'>', \$said, '2>', $log, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
$endpoint->pump while $said !~ /port \d+\n/ && $endpoint->pumpable;
my ($port) = $said =~ /port (\d+)/;
delete @ENV{qw(http_proxy all_proxy)};
my $http = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default);
sub get { my ($path) = @_; return $http->get("http://127.0.0.1:$port$path"); }
my $answer;
# The endpoint answers 503 if the server needs more than nine seconds.
sub answers { my ($status) = @_; return until_so(sub { ($answer = get('/metrics'))->{status} == $status }, "status $status"); }
ok(answers(200), 'the endpoint answers');
like($answer->{headers}{'content-type'}, qr{^text/plain; version=0\.0\.4}, '... in the format of Prometheus');
is_deeply(names_of($answer->{content}), $there, '... with everything');
is(get('/')->{status}, 404, '... at one place only');
SKIP:
{
	skip 'no promtool', 1 unless have('promtool');
	is(promtool($answer->{content}, 'check', 'metrics'), '', 'promtool: what the endpoint serves');
}
$node->safe_psql('postgres', 'alter role prometheus nologin');
ok(answers(503), 'the server refuses: the endpoint has nothing');
ok(until_so(sub { get('/metrics'); slurp_file($log) =~ /not permitted to log in/ }, 'the reason'), '... and says why');
$node->safe_psql('postgres', 'alter role prometheus login');
ok(answers(200), 'and when it does not any more');
$endpoint->signal('TERM');
eval { $endpoint->finish };

#
# The exporter
#
SKIP:
{
	skip 'no prometheus-postgres-exporter', 4 unless have('prometheus-postgres-exporter');
	$port = PostgreSQL::Test::Cluster::get_free_port();
	$log = "$PostgreSQL::Test::Utils::tmp_check/exporter.log";
	local $ENV{DATA_SOURCE_NAME} = "$conninfo sslmode=disable";
	my $exporter = IPC::Run::start([ 'prometheus-postgres-exporter', '--disable-default-metrics', '--disable-settings-metrics',
		"--web.listen-address=127.0.0.1:$port", "--extend.query-path=$docs/postgres-exporter.yml" ], '>', $log, '2>&1');
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$answer = get('/metrics');
		last if $answer->{status} == 200 && $answer->{content} =~ /^tq_/m;
		select undef, undef, undef, 0.1;    # poll
	}
	my $served = $answer->{content} // '';
	is(join(' ', grep { !$there->{$_} } sort keys %{ names_of($served) }), '', 'the exporter: the names of tq_metrics');
	like($served, qr/^tq_jobs\{queue="plain",server="[^"]*",state="ready"\} 6$/m, '... and its figures');
	cmp_ok(scalar keys %{ names_of($served) }, '>=', 15, '... all that the file has');
	unlike(slurp_file($log), qr/Error running query/, '... without an error');
	$exporter->signal('TERM');
	eval { $exporter->finish };
}

#
# Backends that hold back vacuum
#
my $old = session($node);
ask($old, 'begin isolation level repeatable read');
ask($old, 'select 1');
$node->safe_psql('postgres', q{begin; create table t (); prepare transaction 'forgotten'});
$node->safe_psql('postgres', q{select pg_create_physical_replication_slot('unused', true); create table u (); create table v ()});
$text = metrics();
cmp_ok(value_of($text, 'tq_xmin_age_transactions{holder="session"}'), '>', 0, 'a session');
cmp_ok(value_of($text, 'tq_xmin_age_seconds{holder="session"}'), '>', 0, '... and its time');
cmp_ok(value_of($text, 'tq_xmin_age_transactions{holder="prepared_transaction"}'), '>', 0, 'a prepared transaction');
cmp_ok(value_of($text, 'tq_xmin_age_seconds{holder="prepared_transaction"}'), '>', 0, '... and its time');
is(value_of($text, 'tq_xmin_age_transactions{holder="replication_slot"}'), 0, 'a slot that holds nothing');
leave($old);
$node->safe_psql('postgres', q{rollback prepared 'forgotten'});
is(value_of(metrics(), 'tq_xmin_age_transactions{holder="prepared_transaction"}'), 0, 'until it is gone');
my $writer = session($node);
ask($writer, 'begin');
ask($writer, 'select pg_current_xact_id() is not null');
my $writes = ask($writer, 'select pg_backend_pid()');
$node->safe_psql('postgres', 'create table w ()');
# the session before may still be exiting, with its snapshot
ok(until_true($node, "select value ~ '^backend $writes, ' from tq_health() where item = 'oldest snapshot'"),
	'an idle transaction that has written holds back vacuum, too');
leave($writer);

#
# Waiting calls, deleted rows
#
my $waiter = session($node);
$node->safe_psql('postgres', q{select tq_create_queue('nothing')});
begin_ask($waiter, q{select count(*) from tq_claim('nothing', wait => '3 min')});
until_true($node, q{select tq_metrics() ~ 'tq_waiting_sessions\{queue="nothing"\} 1'}, 'a call that waits');
$node->safe_psql('postgres', q{select tq_enqueue('nothing')});
is(end_ask($waiter), 1, 'it gets a job');
is(value_of(metrics(), 'tq_waiting_sessions{queue="nothing"}'), 0, 'and waits no more');
leave($waiter);

#
# tq_series over a clean restart
#
my $enqueued = q{select sum(enqueued) from tq_series('plain')};
my $before = $node->safe_psql('postgres', $enqueued);
cmp_ok($before, '>=', 20, 'tq_series counts the jobs of the queue');
clock($node, 3600, 0);
until_true($node, q{select count(*) = 0 from tq_series('plain', since => '30 min') where enqueued > 0}, 'the scheduler records what came until now');
$node->restart;
loaded($node);
until_true($node, "select ($enqueued) >= $before", 'the counts of a clean shutdown come back');
is($node->safe_psql('postgres', $enqueued), $before, 'a clean restart keeps the counts');

#
# A standby, a server without workers, a crash
#
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('metrics_standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$text = metrics($standby);
is(value_of($text, 'tq_primary'), 0, 'a standby');
is(join(' ', sort keys %{ names_of($text) }), 'tq_info tq_primary', '... has nothing else to say');
$standby->stop;

$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->stop('immediate');
$node->start;
$text = metrics();
is(value_of($text, 'tq_primary'), 1, 'after a crash, without workers: a primary');
is(value_of($text, 'tq_loaded'), 0, '... that has not read its journal');
is(value_of($text, 'tq_scheduler_up'), 0, '... and has no scheduler');
unlike($text, qr/^tq_jobs\{/m, '... and says nothing of jobs that it does not know yet');
SKIP:
{
	skip 'no promtool', 1 unless have('promtool');
	is(promtool($text, 'check', 'metrics'), '', 'promtool: not loaded');
}
$node->safe_psql('postgres', q{select count(*) from tq_claim('nowhere')});
$text = metrics();
is(value_of($text, 'tq_loaded'), 1, 'the first claim loads it');
is(value_of($text, 'tq_loads_total'), 1, '... once');
is(value_of($text, 'tq_jobs_enqueued_total{queue="plain"}'), 0, 'totals start at zero again');
is($node->safe_psql('postgres', $enqueued), 0, '... and a crash loses the counts of tq_series');
is(value_of($text, 'tq_jobs{queue="plain",state="ready"}') + value_of($text, 'tq_jobs{queue="plain",state="running"}'), 9, '... and jobs are all there');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6/, 'nothing alarming in the log');
$node->stop;

done_testing();
