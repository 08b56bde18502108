# H6: a restored database is inactive, in whatever order and by whatever tool its tables come; after tq_activate() it has
# all jobs. H33: so is a copy of a database. H23: DROP EXTENSION needs no CASCADE, and a new extension starts without
# old state.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('restore', conf => <<CONF);
tq.segment_rows = 20
max_worker_processes = 40
tq.max_databases = 20
CONF
scheduler_of($node);
my $session = session($node);

sub in_db
{
	my ($database, $sql) = @_;
	return $node->safe_psql($database, $sql);
}

#
# A database with objects of every kind
#
for my $round (1 .. 4)
{
	my $before = in_db('postgres', 'select coalesce(max(number), 0) from tq.segment');
	in_db('postgres', qq{select tq_enqueue_many('work', array_agg(jsonb_build_object('n', i)), priorities => array_agg(i % 3))
		from generate_series(1, 25) i});
	segment_after($node, $before);
}
is(scalar(take_all($node, 'work', 30)), 30, 'some jobs are done');
in_db('postgres', q{select tq_enqueue_many('work', array_fill('{}'::jsonb, array[3]), delay => '100 s')});
in_db('postgres', q{select tq_fail(id, lease, 'x', fatal => true) from tq_claim('work', max_jobs => 2)});
in_db('postgres', q{select tq_fail(id, lease, 'x', retry_in => '50 s') from tq_claim('work', max_jobs => 2)});
ask($session, q{select count(*) from tq_claim('work', max_jobs => 4, lease_for => '10 min')});
until_true($node, q{select count(*) = 4 from tq_running r join tq.event e on e.job_id = r.id and e.lease = r.lease and e.type = 'c'},
	'claims are journalled');
in_db('postgres', q{select tq_reschedule(id, priority => -7) from (select max(id) as id from tq.job where run_at is null) j});
my $left = unfinished($node, 'work');
is($left, 71, 'jobs that are left');
my $last = in_db('postgres', 'select max(id) from tq.job');
my $top = in_db('postgres', 'select id from tq.job j where id in (select job_id from tq.event where priority = -7)');
my $dead = in_db('postgres', q{select string_agg(job_id::text, ',' order by job_id) from tq.event where type = 'd'});
my $modes = q{select string_agg(distinct concat_ws(' ', regexp_replace(relname, '_\d+$', ''), tgname, tgenabled), ', ')
	from pg_trigger join pg_class c on c.oid = tgrelid where relnamespace = 'tq'::regnamespace and not tgisinternal};

my $dir = PostgreSQL::Test::Utils::tempdir();
my @dump = ('pg_dump', '--no-sync', '-p', $node->port, '-h', $node->host, 'postgres');
# the test functions of this database need the library only
$node->command_ok([ @dump, '-f', "$dir/plain.sql" ], 'pg_dump, plain');
$node->command_ok([ @dump, '-Fc', '-f', "$dir/custom" ], 'pg_dump, custom');

sub restore
{
	my ($database, @options) = @_;
	$node->command_ok([ 'pg_restore', @options, '-p', $node->port, '-h', $node->host, '-d', $database, "$dir/custom" ], "pg_restore @options into $database");
	return;
}

# The database is inactive, and has all objects of the original after tq_activate().
sub whole
{
	my ($database, $how) = @_;
	is(in_db($database, 'select item, value, status from tq_health() limit 1'), 'activation|inactive|error', "$how: the database is inactive");
	my (undef, undef, $refused) = $node->psql($database, q{select tq_enqueue('work')}, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($refused, qr/TQ009: tq is inactive.*HINT: .*SELECT tq_activate\(\)/s, "$how: it takes no jobs");
	is(in_db($database, 'select * from tq_activate()'), '', "$how: tq_activate() finds it whole");
	scheduler_of($node, $database);
	is(unfinished($node, 'work', $database), $left, "$how: the journal has every job");
	ok(until_true($node, qq{select ready + delayed + running = $left from tq_stats() where queue = 'work'}, 'all jobs are live', $database),
		"$how: all of them are live");
	is(in_db($database, 'select tq_reload()'), 0, "$how: an audit finds nothing that the restore explains");
	my ($first) = take_all($node, 'work', 1, $database);
	is($first, $top, "$how: overrides count");
	is(in_db($database, "select state from tq_get((string_to_array('$dead', ','))[1]::bigint)"), 'dead', "$how: dead letters are there");
	my $new = in_db($database, q{select tq_enqueue('work')});
	cmp_ok($new, '>', $last, "$how: ids go on");
	clock($node, 1000, 1000);
	my @ids = work_off($node, 'work', $database);
	clock($node, 0, 0);
	is(scalar(@ids), $left, "$how: they all run");
	is(in_db($database, q{select count(*) from tq.job j join tq.queue q on q.id = queue_id where name = 'work'}), 104, "$how: not a row too many");
	is(in_db($database, $modes), in_db('postgres', $modes), "$how: triggers have their modes");
	check_journal($node, "$how: each of them once", $database);
	return;
}

in_db('postgres', "create database $_") for qw(plain parallel late parts data untold single);
my @psql = ('psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-p', $node->port, '-h', $node->host);
$node->command_ok([ @psql, '-d', 'plain', '-f', "$dir/plain.sql" ], 'H6: psql reads the dump');
whole('plain', 'H6: plain');

restore('parallel', '-j', 2);
in_db('postgres', 'create database cleaned template parallel');
whole('parallel', 'H6: parallel');

# the rows of the queues come last, as can happen in a parallel restore
my $plain = slurp_file("$dir/plain.sql");
$plain =~ s/(^COPY tq\.queue .*?^\\\.\n)//ms or die 'no queues in the dump';
append_to_file("$dir/queues.sql", $1);
append_to_file("$dir/late.sql", $plain);
$node->command_ok([ @psql, '-d', 'late', '-f', "$dir/late.sql" ], 'H6: a restore without the queues');
my (undef, undef, $missing) = $node->psql('late', 'select tq_activate()');
like($missing, qr/rows of tq are missing: $left others.*job_\d, job \d+: its queue is missing/s, 'H6: which tq_activate() refuses');
is(in_db('late', q{select count(*) || ' ' || min(problem) from tq_activate(dry_run => true)}), "$left its queue is missing", '... and lists');
$node->command_ok([ @psql, '-d', 'late', '-f', "$dir/queues.sql" ], 'H6: and then the queues');
whole('late', 'H6: queues last');

restore('parts', "--section=$_") for qw(pre-data data);
(undef, undef, $missing) = $node->psql('parts', 'select tq_activate()');
like($missing, qr/the restore is not complete.*are missing on segments: 1, 2, 3, 4/s, 'H6: without its indexes and triggers it is not whole');
restore('parts', '--section=post-data');
whole('parts', 'H6: by sections');

# a day passes between tables and rows
restore('data', '--schema-only');
clock($node, 100000, 0);
restore('data', '--data-only');
clock($node, 0, 0);
whole('data', 'H6: data only');

# triggers that pg_restore disables and enables get the ordinary mode
restore('untold', '--schema-only');
restore('untold', '--data-only', '--disable-triggers');
whole('untold', 'H6: triggers disabled');

restore('single', '--single-transaction');
whole('single', 'H6: in one transaction');

# over another database
in_db('cleaned', 'select tq_activate()');
in_db('cleaned', q{select tq_enqueue('other')});
restore('cleaned', '--clean', '--if-exists');
whole('cleaned', 'H6: clean');

# without workers
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->restart;
in_db('postgres', 'create database unseen');
restore('unseen');
is(in_db('unseen', 'select tq_activate()'), '', 'H6: tq_activate() without workers');
is(in_db('unseen', q{select live from tq_stats() where queue = 'work'}), $left, '... all jobs are there');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
in_db('unseen', 'drop extension tq');
is(in_db('unseen', q{select count(*) from pg_namespace where nspname = 'tq'}), 0, 'H23: restored segments belong to the extension');

#
# H33: a copy
#
leave($session);
in_db('template1', 'create database copy template postgres');
whole('copy', 'H33: a copy of the database');
is(in_db('postgres', q{select value from tq_health() where item = 'activation'}), 'active', 'H33: the original is active');
scheduler_of($node);
is(unfinished($node, 'work'), $left, 'H33: which the original does not notice');

#
# H23
#
is(in_db('postgres', q{select count(*) > 0 from pg_inherits where inhrelid::regclass::text ~ '^tq.job_[1-9]'}), 't', 'H23: there are numbered segments');
# without those on catalogs: statistics that autovacuum has gathered lock the table that has their long values
my $drop = q{begin; select count(*) from tq.segment; drop extension tq;
	select count(*) from pg_locks where pid = pg_backend_pid() and (relation is null or relation >= 16384)};
my ($segments, $locks) = split /\n/, in_db('postgres', qq{$drop; create extension tq; select tq_enqueue('work'); commit});
is(in_db('postgres', q{select count(*) from tq.job}), 1, 'H23: DROP EXTENSION takes the segments along without CASCADE');
is(scalar(work_off($node, 'work')), 1, 'H23: the new extension has its own jobs only');
my (undef, undef, $both) = $node->psql('postgres', q{begin; set local tq.publish_limit = 0; select tq_enqueue('work');
	drop extension tq; create extension tq; select tq_enqueue('work'); commit});
like($both, qr/cannot use tq before and after re-creating the extension/, 'H23: many jobs cannot be enqueued on both sides');
segment_after($node, 0);
my $each = in_db('postgres', q{select 25 + count(*) from pg_constraint where contype = 'n' and conrelid::regclass::text ~ '^tq.(job|event)_1$'});
my ($fewer_segments, $fewer_locks) = split /\n/, in_db('postgres', "$drop; commit");
is($locks - $fewer_locks, $each * ($segments - $fewer_segments), "H23: it takes $each locks for each of $segments segments");
is(in_db('postgres', q{select count(*) from pg_namespace where nspname = 'tq'}), 0, 'H23: nothing remains');
in_db('postgres', 'create extension tq');
until_true($node, q{select count(*) = 0 from tq_claim('work')});
is(in_db('postgres', q{select tq_enqueue('work') > 0}), 't', 'H23: a new one works');
is(scalar(take_all($node, 'work', 1)), 1, 'H23: from end to end');

ok(slurp_file($node->logfile) !~ /PANIC|TRAP:|\(PID \d+\) was terminated by signal/, 'nothing alarming in the log');
$node->stop;
done_testing();
