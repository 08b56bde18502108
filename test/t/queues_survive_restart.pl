# Queues after a restart or crash: settings, pauses, a drop that was under way, a queue being created. Also: copies of a
# database (H33); tq.retry in the configuration; concurrent changes of settings; a dropped database gives back its
# memory; a standby, and a server that does not preload tq.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('queues', init => { allows_streaming => 1 });
scheduler_of($node);

sub sql { return $node->safe_psql('postgres', @_); }

sub health
{
	my ($item, $database) = @_;
	return $node->safe_psql($database // 'postgres', "select status || ': ' || value from tq_health() where item = '$item'");
}

#
# a restart, clean or not: settings, pauses of queues and kinds, a drop under way
#
sql("select tq_create_queue('kept', '{\"priority\": 7, \"max_attempts\": 3}')");
sql("select tq_create_queue('paused'), tq_create_queue('closing')");
sql("select tq_enqueue('paused', kind => k) from unnest(array['a', 'b', 'c', null]) k");
sql("select tq_pause('paused', 'a'), tq_pause('paused', 'b', clock_timestamp() + interval '1 h'), tq_pause('paused')");
sql("select tq_pause('paused', 'c', clock_timestamp() + interval '2 s')");
sql("select tq_create_queue('tenants'), tq_pause('tenants', group_key => 'held')");
sql("select tq_limit_group('tenants', 'wide', 2), tq_limit_group('tenants', 'slow', rate => '1/d')");
sql("select tq_enqueue('tenants', group_key => g) from unnest(array['held', 'other', 'wide', 'wide', 'wide', 'slow']) g");
my $open = session($node);
ask($open, "begin; select tq_enqueue('closing')");
sql("select tq_drop_queue('closing')");
ask($open, 'commit');
for my $mode (qw(fast immediate))
{
	$node->stop($mode);
	$node->start;
	loaded($node);
	is(sql("select settings from tq_queues where queue = 'kept'"), '{"priority": 7, "max_attempts": 3}', "$mode: settings");
	my $job = sql("select tq_enqueue('kept')");
	is(sql("select priority, max_attempts, tq_complete(id, lease) from tq_claim('kept')"), '7|3|succeeded', "$mode: they count");
	is(sql("select paused_until, kinds->'a'->>'paused_until', (kinds->'b'->>'paused_until')::timestamptz > clock_timestamp() from tq_queues where queue = 'paused'"),
		'infinity|infinity|t', "$mode: pauses");
	is(sql("select count(*) from tq_claim('paused', 10)"), '0', "$mode: they count");
	is(sql("begin; select string_agg(group_key, ' ' order by group_key) from tq_claim('tenants', 10); rollback"), 'other wide wide',
		"$mode: a paused group is held, one has a limit, and one a rate that may have been used before");
	is(sql("select state, ready from tq_queues where queue = 'closing'"), 'closing|1', "$mode: a drop under way");
	is(($node->psql('postgres', "select tq_enqueue('closing')"))[0], 3, "$mode: takes no more jobs");
}
until_true($node, "select not kinds->'c' ? 'paused_until' from tq_queues where queue = 'paused'");
sql("select tq_resume('paused')");
is(sql("select string_agg(coalesce(kind, '-'), ',' order by id) from tq_claim('paused', 10)"), 'c,-', 'what is over, or resumed, runs');
is(sql("select tq_complete(id, lease) from tq_claim('closing')"), 'succeeded', 'the last job of a closing queue');
ok(until_true($node, "select not exists (select from tq.queue where name = 'closing')"), 'ends it');
is(sql("select count(tq_complete(id, lease)) from tq_running"), '2', 'the others end too');

#
# a queue that is created while the server crashes is missing or complete
#
ask($open = session($node), "begin; select tq_create_queue('half', '{\"priority\": 1}'); select tq_enqueue('half')");
$node->stop('immediate');
$node->start;
loaded($node);
is(sql("select count(*) from tq_queues where queue = 'half'"), '0', 'a crash before the commit leaves no queue');
sql("select tq_create_queue('half')");

#
# H33: a copy is inactive until tq_activate()
#
is(health('activation'), 'ok: active', 'H33: where the queues were first used, they are active');
sql('create database copied template postgres');
is(health('activation', 'copied'), 'error: inactive', 'H33: a copy is inactive');
$node->safe_psql('copied', 'select tq_activate()');
is(health('activation', 'copied'), 'ok: active', 'H33: until it is activated');
sql('create database fresh');
$node->safe_psql('fresh', 'create extension tq');
is(health('activation', 'fresh'), 'ok: unused: active at the first use', 'H33: a new extension waits for its first use');

# a dump restored elsewhere is a copy too
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr('postgres') ], 'H33: dump');
sql('create database restored');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, $node->connstr('restored') ], 'H33: restore');
is(health('activation', 'restored'), 'error: inactive', 'H33: a restored dump is inactive');
$node->safe_psql('restored', 'select tq_activate()');
ok(until_true($node, "select live = 6 from tq_stats() where queue = 'tenants'", 'restored', 'restored'), 'a restored queue');
is($node->safe_psql('restored', "select string_agg(group_key, ' ' order by group_key) from tq_claim('tenants', 10)"), 'other wide wide',
	'... has its paused and limited groups');
sql("drop database $_") for qw(copied fresh restored);

#
# tq.retry
#
is(sql("select tq_enqueue('kept') is not null"), 't', 'the queue takes a job before tq.retry is configured');
$node->append_conf('postgresql.conf', q(tq.retry = '{"policy": "fixed", "delay": "1 h", "jitter": 0}'));
$node->reload;
until_true($node, q(select current_setting('tq.retry') ~ 'fixed'));
is(sql("select tq_fail(id, lease, 'x') from tq_claim('kept')"), 'delayed', 'a failed job');
is(sql("select extract(epoch from run_at - at)::int from tq_jobs j, tq_history(j.id) where state = 'delayed' and event = 'failed'"), 3600, 'waits as tq.retry says');
$node->append_conf('postgresql.conf', q(tq.retry = '{"policy": "fixed", "delay": "tomorrow"}'));
$node->reload;
until_true($node, q(select count(*) > 0 from pg_file_settings where name = 'tq.retry' and error is not null));
like(sql('show tq.retry'), qr/1 h/, 'a wrong value is refused and the server goes on');
sub refusal { my $err = ""; $node->psql('postgres', "alter system set tq.retry = '$_[0]'", stderr => \$err); return $err }
like(refusal('{"delay": "tomorrow"}'), qr/DETAIL:  Setting "retry.delay" has a wrong value: "tomorrow". It must be a string with an interval/, 'and said what is wrong with it');
like(refusal('{"colour": 1}'), qr/DETAIL:  Unknown key "colour" in retry.\nHINT:  Known keys are policy, delay, /, 'what is known is listed');
like(refusal('{"delay"'), qr/DETAIL:  It must be a JSON object such as /, 'and so is what is no JSON');
$node->append_conf('postgresql.conf', q(tq.retry = '{}'));
$node->reload;

#
# a change commits while a process reads the rows of the queues: the outdated rows are not used, not even for a moment
#
sql("select tq_create_queue('watched'), tq_enqueue('watched')");
my $reader = session($node);
my $reader_pid = ask($reader, 'select pg_backend_pid()');
arm($node, 'queues-after-read', 'wait', pid => $reader_pid);
begin_ask($reader, 'select count(*) from tq_check()');
standing($node, 'queues-after-read');
sql("select tq_pause('watched')");
arm($node, 'queues-read-again', 'wait', pid => $reader_pid);
release($node, 'queues-after-read');
standing($node, 'queues-read-again');
is(sql("select count(*) from tq_claim('watched')"), '0', 'a pause holds although a process has read the rows before it');
release($node, 'queues-read-again');
end_ask($reader);
is(sql("select paused_until, ready from tq_queues where queue = 'watched'"), 'infinity|1', 'and afterwards');
leave($reader);
sql("select tq_resume('watched')");

#
# a dropped database frees its slot in memory
#
until_true($node, q{select value ~ '^1 of' from tq_health() where item = 'databases'}, 'the databases before have given back theirs');
my $full = health('jobs in memory');
$node->safe_psql('postgres', 'create database dropped');
tq_setup($node, 'dropped');
is($node->safe_psql('dropped', "select array_length(tq_enqueue_many('q', array_fill('{}'::jsonb, array[50])), 1)"), '50', 'jobs');
until_true($node, "select value <> '$full' from (select status || ': ' || value as value from tq_health() where item = 'jobs in memory') h");
sql('drop database dropped with (force)');
ok(until_true($node, "select value = '$full' from (select status || ': ' || value as value from tq_health() where item = 'jobs in memory') h"),
	'a dropped database gives back its place in memory');

# settings of a queue that was already used are rolled back; no scheduler writes its row
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->reload;
until_true($node, q{select count(*) = 0 from pg_stat_activity where backend_type = 'tq scheduler'}, 'no scheduler');
sql(q{begin; select tq_enqueue('named'); savepoint s; select tq_create_queue('named', '{"max_depth": 1, "priority": 7}'); rollback to s; commit});
sql(q{select tq_enqueue('named')});
is(sql(q{select settings::text || ' ' || (select string_agg(priority::text, ',') from tq_jobs where queue = 'named') from tq_queues where queue = 'named'}),
	'{} 100,100', 'settings that were rolled back do not count');
sql(q{select tq_cancel(id) from tq_jobs where queue = 'named'});
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
scheduler_of($node);

is(sql('select count(*) from tq_check() where found <> expected'), '0', 'nothing is left behind');
check_journal($node);

#
# a standby, and a server that does not preload tq
#
$node->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'b', has_streaming => 1);
$standby->start;
is($standby->safe_psql('postgres', "select status, value from tq_health() where item = 'recovery'"), 'warn|this server is a standby', 'tq_health on a standby');
my ($rc, $out, $err) = $standby->psql('postgres', '\set VERBOSITY verbose
	call tq_wait(array[$$kept$$], $$1 s$$)');
like($err, qr/25006/, 'tq_wait on a standby');
is($standby->safe_psql('postgres', "select count(*) from tq_schedule_next('\@daily')"), '5', '... but tq_schedule_next works there');
$standby->stop;
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
is(sql('select status, value from tq_health()'), 'error|tq is missing', 'tq_health without shared_preload_libraries');
for my $call ("call tq_wait(array['kept'], '1 h')", "select tq_create_queue('x')", "select tq_pause('kept')", 'select * from tq_queues',
	'select * from tq_jobs', 'select * from tq_running', "insert into tq_inbox (queue) values ('x')", 'select * from tq_check()')
{
	($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$call");
	like($err, qr/TQ006/, "$call without shared_preload_libraries");
}
is(sql("select count(*) from tq_schedule_next('\@daily')"), '5', '... but tq_schedule_next works there');
$node->stop;
done_testing();
