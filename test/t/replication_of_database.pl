# Logical replication of tq's tables from an active database into another server: the copy is inactive while rows come
# in, also those of segments that are opened meanwhile; rows are refused while it is active; when the subscription is
# dropped, tq_activate() finds it whole, and jobs, keys, dependencies, schedules, handlers, rights and numbers go on.
# Hazards: H6, H33.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $origin = tq_node('origin', init => { allows_streaming => 'logical' }, conf => "tq.segment_rows = 20\ntq.retention = '1 h'");
my $target = tq_node('target', conf => "tq.segment_rows = 20\nwal_retrieve_retry_interval = 100ms\nmax_worker_processes = 20\nmax_logical_replication_workers = 6");
my $moved = 'moved';
my $dir = PostgreSQL::Test::Utils::tempdir;
scheduler_of($origin);
$target->safe_psql('postgres', "create database $moved");
$_->safe_psql('postgres', 'create role app') for $origin, $target;

sub here { return $origin->safe_psql('postgres', $_[0]); }
sub there { return $target->safe_psql($moved, $_[0]); }
sub activation { return there(q{select value from tq_health() where item = 'activation'}); }

# Copies definitions, of all or of some tables.
sub copy_schema
{
	my @tables = map { ('-t', "tq.$_") } @_;
	program($origin, 'pg_dump', 'pg_dump', '-d', 'postgres', '--schema-only', '--no-publications', @tables, '-f', "$dir/schema");
	program($target, 'psql', 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $moved, '-f', "$dir/schema", '-o', '/dev/null');
	return;
}

sub fill
{
	my $before = here('select coalesce(max(number), 0) from tq.segment');
	here(q{select tq_enqueue_many('work', array_agg(jsonb_build_object('n', i))) from generate_series(1, 25) i});
	segment_after($origin, $before);
	return here('select max(number) from tq.segment');
}

#
# An active database with work of every kind
#
fill();
take_all($origin, 'work', 25);
here(q{create function run(job tq_job) returns jsonb language sql as $$select null::jsonb$$});
here(q{select tq_create_queue('handled'), tq_create_queue('ticks')});
here(q{select tq_pause('handled'), tq_handle('handled', null, 'run(tq_job)'), tq_schedule('daily', 'ticks', every => '1 day')});
here(q{select tq_grant('work', 'app', 'consume'), tq_limit_group('work', 'g', 2)});
my $handled = here(q{select tq_enqueue('handled')});
my $parent = here(q{select tq_enqueue('parent')});
my $child = here("select tq_enqueue('child', depends_on => '{$parent}')");
my $key = here(q{select tq_enqueue('keys', unique_key => 'k')});
here(q{select tq_enqueue('later', delay => '1 h')});
my $dead = here(q{select tq_enqueue('bad'); select tq_fail(id, lease, 'no', fatal => true) from tq_claim('bad')}) =~ s/\D.*//sr;

#
# The copy
#
copy_schema();
here(q{do $$ begin execute (select 'create publication everything for table only ' || string_agg(oid::regclass::text, ', only ' order by oid)
	from pg_class where relnamespace = 'tq'::regnamespace and relkind = 'r' and relname !~ '^(help|change.*)$'); end $$});
there(sprintf(q{create subscription everything connection '%s dbname=postgres' publication everything}, $origin->connstr));
$target->wait_for_subscription_sync($origin, 'everything', $moved);
is(activation(), 'inactive', 'H33: a database into which rows are replicated is inactive');
my ($rc, $out, $err) = $target->psql($moved, q{select tq_enqueue('work')}, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($err, qr/TQ009: tq is inactive in this database/, '... and takes no jobs');

# Changes of every kind, while the janitor opens a segment
here(q{select tq_enqueue('work', '{"n": 100}')});
here(q{select tq_enqueue('keys', unique_key => 'other'); select tq_cancel(id) from tq_jobs where unique_key = 'other'});
here(q{select tq_create_queue('gone')});
here(q{select tq_alter_queue('work', '{"priority": 7}'), tq_drop_queue('gone'), tq_schedule('hourly', 'ticks', every => '1 h')});
here(q{select tq_schedule_pause('hourly')});
here(q{select tq_revoke('work', 'app', 'consume'), tq_grant('work', 'app', 'produce')});
my $new = fill();
here(q{select tq_enqueue('work', '{"n": 101}')});
ok($target->wait_for_log(qr/logical replication target relation "tq.(job|event)_$new" does not exist/), 'a new segment is waited for');
copy_schema("job_$new", "event_$new");
there('alter subscription everything refresh publication');
$target->wait_for_subscription_sync($origin, 'everything', $moved);
$origin->wait_for_catchup('everything');
is(there('select count(*) from tq.job'), here('select count(*) from tq.job'), 'all jobs are there');
is(activation(), 'inactive', 'it is inactive');

#
# The move
#
here('select tq_deactivate()');
$origin->wait_for_catchup('everything');
my $jobs = here('select count(*) from tq.job');
my $last = here('select max(id) from tq.job');
my $actions = here('select max(id) from tq.audit');
there('drop subscription everything');
is(activation(), 'inactive', 'without the subscription, too');
is(there('select * from tq_activate()'), '', 'H6: tq_activate() finds it whole');
is(activation(), 'active', 'it is active');
scheduler_of($target, $moved);
is(there('select count(*) from tq.job'), $jobs, 'with all jobs');
is(there("select action from tq_audit where id > $actions"), 'activate', 'the numbers of the audit go on');
is(join(',', sort { $a <=> $b } map { there("select payload->>'n' from tq_get($_)") } take_all($target, 'work', 27, $moved)), join(',', 1 .. 25, 100, 101), 'jobs run');
cmp_ok(there(q{select tq_enqueue('work')}), '>', $last, 'ids go on');
is(there(q{select priority from tq_claim('work')}), 7, 'queues have their settings');
is(there(q{select tq_enqueue('keys', unique_key => 'k')}), $key, 'keys are taken');
cmp_ok(there(q{select tq_enqueue('keys', unique_key => 'other')}), '>', $last, '... and free');
is(there("select state from tq_get($child)"), 'blocked', 'a child waits');
take_all($target, 'parent', 1, $moved);
ok(until_true($target, "select state = 'ready' from tq_get($child)", 'ready', $moved), '... for its parent');
is(there("select state from tq_get($dead)"), 'dead', 'dead letters are there');
is(there(q{select string_agg(name || ' ' || state, ', ' order by name) from tq_schedules}), 'daily active, hourly paused', 'schedules are there');
is(there(q{select string_agg(role || ' ' || privilege, ', ') from tq_grants where queue = 'work' and role = 'app'::regrole}), 'app produce', 'rights are there');
is(there(q{select groups from tq_queues where queue = 'work'}), '{"g": {"max_running": 2}}', 'limits of groups are there');
there(q{select tq_resume('handled')});
ok(until_true($target, "select state = 'succeeded' from tq_get($handled)", 'an executor', $moved), 'handlers run');
is(there(q{select count(*) from tq_check() where expected <> found}), 0, 'memory agrees with the journal');
check_journal($target, 'the journal is whole', $moved);

#
# An active database takes no rows from elsewhere
#
my $log = -s $target->logfile;
here('select from tq_activate()');
here('create publication rights for table tq.acl');
there(sprintf(q{create subscription rights connection '%s dbname=postgres' publication rights with (copy_data = false)}, $origin->connstr));
here(q{select tq_grant('work', 'app', 'manage')});
ok($target->wait_for_log(qr/ERROR:  tq is active in this database\s.*DETAIL:  Table "acl" can be written only while it is not/s, $log), 'H6: while it is active, rows are refused');
is(there(q{select string_agg(role || ' ' || privilege, ', ') from tq_grants where queue = 'work' and role = 'app'::regrole}), 'app produce', '... and change nothing');
there($_) for 'alter subscription rights disable', 'alter subscription rights set (slot_name = none)', 'drop subscription rights';

unlike(slurp_file($_->logfile), qr/PANIC|TRAP|\(PID \d+\) was terminated by signal/, 'nothing alarming in the log') for $origin, $target;
$target->stop;
$origin->stop;
done_testing();
