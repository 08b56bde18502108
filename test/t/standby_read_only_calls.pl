# Every function and view of tq on a hot standby, called by each kind of role. Calls return an error for the caller, and
# no process crashes. No role sees more than on the primary. Open sessions work after the promotion.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $primary = tq_node('primary', init => { allows_streaming => 1 });
scheduler_of($primary);
$primary->safe_psql('postgres', <<'SQL');
create role nobody;
create role consumer;
create role maker;
create role manager;
create role watcher;
select tq_create_queue('work'), tq_create_queue('secret');
select tq_grant('work', 'consumer', 'consume'), tq_grant('work', 'maker', 'produce'), tq_grant('work', 'manager', 'manage'), tq_grant('work', 'watcher', 'monitor');
create function handled(job tq_job) returns void language sql as '';
select tq_handle('work', 'none', 'handled(tq_job)');
select tq_schedule('daily', 'work', every => '1 day');
select tq_enqueue('secret', '{"hidden": "pearl"}');
select tq_enqueue_many('work', array_fill('{}'::jsonb, array[20]));
SQL
is($primary->safe_psql('postgres', q{select count(tq_fail(id, lease, 'no', fatal => true)) from tq_claim('work', 3)}), 3, 'dead jobs');
$primary->safe_psql('postgres', q{select id from tq_claim('work', 2, lease_for => '1 hour')});
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby);

# Arguments by type: null, a plausible value, an extreme value.
my %values = (
	'text' => [q{'work'}, q{repeat('x', 100000)}], 'bigint' => ['1', '9223372036854775807'], 'integer' => ['1', '-2147483648'],
	'jsonb' => [q{'{}'}, q{'[[[[{"a": null}]]]]'}], 'interval' => [q{'10 ms'}, q{'-178000000 years'}], 'boolean' => ['true', 'false'],
	'timestamp with time zone' => ['now()', q{'-infinity'}], 'text[]' => [q{'{work}'}, q{'[5:6]={a,NULL}'}], 'bigint[]' => [q{'{1}'}, q{'{{1,2},{3,4}}'}],
	'integer[]' => [q{'{1}'}, q{'{}'}], 'jsonb[]' => [q{'{"{}"}'}, q{'{NULL}'}], 'regrole' => [q{'maker'}, q{'4294967295'}], 'name' => [q{'work'}, q{''}],
	'real' => ['1', q{'NaN'}], 'double precision' => ['1', q{'-Infinity'}], 'regprocedure' => [q{'handled(tq_job)'}, '0'], '"char"' => [q{'c'}, q{''}],
	'timestamp with time zone[]' => ['array[now()]', q{'{NULL}'}], 'oid' => ['1', '4294967295'],
	'tq_job' => ['row(1)', 'null'], 'tq.role' => [q{'maker'}, q{'1'}], 'cstring' => [q{'maker'}, q{'"'}], 'uuid' => [q{gen_random_uuid()}, 'null']);
my @functions = split /\n/, $primary->safe_psql('postgres', <<'SQL');
select p.oid::regproc || '|' || p.prokind::text || '|' || coalesce((select string_agg(format_type(t, null), ',' order by i)
		from unnest(p.proargtypes::oid[]) with ordinality a (t, i)), '')
	from pg_depend d join pg_proc p on d.classid = 'pg_proc'::regclass and p.oid = d.objid
	where d.refclassid = 'pg_extension'::regclass and d.refobjid = (select oid from pg_extension where extname = 'tq') and d.deptype = 'e'
		and p.prokind in ('f', 'p') and p.prorettype not in ('trigger'::regtype, 'event_trigger'::regtype) order by 1
SQL
my @views = split /\n/, $primary->safe_psql('postgres', q{select c.oid::regclass from pg_class c where c.relkind = 'v' and c.relname ~ '^tq_' order by 1});
cmp_ok(@functions, '>', 50, 'functions to call');
cmp_ok(@views, '>', 6, 'views to query');
my @calls = map { "select * from $_" } @views;
for my $function (@functions)
{
	my ($name, $kind, $types) = split /\|/, $function, -1;
	my @types = split /,/, $types;
	my @unknown = grep { !$values{$_} } @types;
	is("@unknown", '', "$name: there are values for its arguments");
	next if @unknown;
	for my $which (-1, 0, 1)
	{
		my $arguments = join(', ', map { $which < 0 ? "null::$_" : "$values{$_}[$which]::$_" } @types);
		push @calls, ($kind eq 'p' ? 'call ' : 'select * from ') . "$name($arguments)";
		last unless @types;
	}
}

my $started = $standby->safe_psql('postgres', 'select pg_postmaster_start_time()');
my %sessions;
for my $role (qw(postgres nobody maker consumer manager watcher))
{
	my $session = $sessions{$role} = session($standby);
	ask($session, "set role $role") unless $role eq 'postgres';
	ask($session, q{set statement_timeout = '3 min'});
	my (@wrong, %codes);
	for my $call (@calls)
	{
		my $answer = ask($session, $call);
		my ($code) = $answer =~ /(?:ERROR|FATAL):  ([0-9A-Z]{5})/;
		$codes{ $code // 'answered' }++;
		push @wrong, "$call: $answer" if defined $code ? $code =~ /^(XX|57|58|08)/ : $answer =~ /server closed/;
		push @wrong, "$call shows $answer" if $role ne 'postgres' && $answer =~ /pearl|secret/;
	}
	is(join("\n", @wrong), '', "$role: " . join(', ', map { "$_ $codes{$_}" } sort keys %codes));
	cmp_ok($codes{25006} // 0, '>', 20, "... mostly that it is a standby");
}

# Objects that the primary drops are gone on the standby, and sessions that have used them continue.
$primary->safe_psql('postgres', 'drop extension tq cascade; create extension tq');
$primary->wait_for_catchup($standby);
for my $role (qw(postgres consumer))
{
	my @wrong = grep { ask($sessions{$role}, $_) =~ /ERROR:  (XX|57|58)|server closed/ } @calls;
	is("@wrong", '', "$role: the extension was made once more meanwhile");
}
$primary->safe_psql('postgres', q{select tq_create_queue('work'), tq_grant('work', 'maker', 'produce'), tq_grant('work', 'consumer', 'consume');
	select tq_enqueue_many('work', array_fill('{}'::jsonb, array[5]))});
$primary->wait_for_catchup($standby);

$primary->stop;
$standby->promote;
scheduler_of($standby);
is($standby->safe_psql('postgres', 'select pg_postmaster_start_time()'), $started, 'the standby went on through all of it');
like(ask($sessions{maker}, q{select tq_enqueue('work')}), qr/^\d+$/, 'a session from before the promotion enqueues');
like(ask($sessions{maker}, q{select * from tq_claim('work')}), qr/42501/, '... and has no more rights than before');
my ($done, $answer) = (0, 0);
until_so(sub {
	$answer = ask($sessions{consumer}, q{select count(tq_complete(id, lease)) from tq_claim('work', 10, wait => '1 s')});    # poll
	return 1 if $answer !~ /^\d+$/;
	$done += $answer;
	return $done >= 6;
}, 'six jobs');
is($answer =~ /^\d+$/ ? $done : $answer, 6, 'another one claims and completes');
like(ask($sessions{nobody}, q{select tq_enqueue('work')}), qr/42501/, 'a role without rights can do nothing');
check_journal($standby);
unlike(slurp_file($standby->logfile), qr/PANIC|TRAP|signal \d+|exited with exit code [2-9]|a recount found/, 'nothing alarming in the log');
leave(values %sessions);
$standby->stop;

done_testing();
