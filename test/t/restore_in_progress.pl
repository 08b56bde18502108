# Restores that have not finished, also if the workers start in the middle. References to jobs that are still to come
# stay (H6). Parents, queues and jobs that are missing after the restore are found to be missing. H33: a copy that
# cannot be told from its original at once.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('half', conf => <<CONF);
tq.segment_rows = 20
max_worker_processes = 40
tq.max_databases = 20
CONF
scheduler_of($node);

sub sql { my ($sql, $database) = @_; return $node->safe_psql($database // 'postgres', $sql); }

sub workers
{
	my ($switch) = @_;
	$node->append_conf('postgresql.conf', "tq.workers = $switch");
	$node->reload;
	until_true($node, q{select count(*) = 0 from pg_stat_activity where backend_type ~ '^tq (scheduler|janitor)'}, 'no worker') if $switch eq 'off';
	return;
}

# Without naming a queue, which would take the number of a queue that is restored later.
sub has_loaded
{
	my ($database) = @_;
	return until_true($node, 'select count(*) >= 0 from tq_stats()', 'loaded', $database);
}

sub restore
{
	my ($database, @options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->command_ok([ 'pg_restore', @options, '-p', $node->port, '-h', $node->host, '-d', $database, $node->basedir . '/dump' ],
		"$database: pg_restore @options");
	return;
}

# The scheduler of a database has processed everything before this call: it has freed a job since.
sub has_looked
{
	my ($database) = @_;
	scheduler_of($node, $database);
	for my $turn (1, 2)
	{
		my $parent = sql("select tq_enqueue('turn')", $database);
		my $child = sql("select tq_enqueue('turn', depends_on => '{$parent}')", $database);
		sql("select tq_cancel($parent)", $database);
		until_true($node, "select state = 'cancelled' from tq_get($child)", 'a turn of the resolver', $database);
	}
	return;
}

# The same for its janitor and unique keys.
sub has_cleaned
{
	my ($database) = @_;
	sql(q{select tq_cancel(tq_enqueue('turn', unique_key => 'turn'))}, $database);
	until_true($node, q{select count(*) = 0 from tq.unique_key where key = 'turn'}, 'a turn of the janitor', $database);
	return;
}

#
# A database with references to jobs of a numbered segment
#
sql(q{select tq_enqueue_many('work', array_fill('{}'::jsonb, array[25]))});
until_true($node, q{select max(number) > 0 from tq.segment}, 'a numbered segment');
my $ended = sql(q{select tq_enqueue('ended')});
my $child = sql("select tq_enqueue('child', depends_on => '{$ended}')");
my $parent = sql(q{select tq_enqueue('parent')});
my $waiting = sql("select tq_enqueue('waiting', depends_on => '{$parent}')");
my $unique = sql(q{select tq_enqueue('unique', unique_key => 'key')});
my $batch = sql(q{select tq_batch_open('callback')});
sql("select tq_enqueue('member', options => '{\"batch\": $batch}'), tq_batch_close($batch)");
is(sql("select count(*) from tq.job where id >= $ended and tableoid <> 'tq.job_0'::regclass"), 7, 'jobs of a numbered segment');

# the parent has ended, and nothing has followed from it yet
workers('off');
is(sql(q{select count(tq_complete(id, lease)) from tq_claim('ended')}), 1, 'a parent ends');
my $registries = q{select (select count(*) filter (where state is null) from tq.dependency), (select count(*) from tq.unique_key), (select count(*) from tq.batch)};
my $before = sql($registries);
is($before, '3|1|1', 'that it has ended is not recorded yet');
$node->command_ok([ 'pg_dump', '--no-sync', '-p', $node->port, '-h', $node->host, '-Fc', '-f', $node->basedir . '/dump', 'postgres' ], 'pg_dump');
workers('on');
scheduler_of($node);

# After the restore all references resolve.
sub goes_on
{
	my ($database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(until_true($node, "select state = 'ready' from tq_get($child)", 'freed', $database),
		"H6: $database: a child whose parent had ended without being recorded is freed");
	is(sql("select state from tq_get($waiting)", $database), 'blocked', "H6: $database: one whose parent lives waits");
	sql(qq{select tq_complete(id, lease) from tq_claim('$_')}, $database) for qw(parent member);
	ok(until_true($node, "select state = 'ready' from tq_get($waiting)", 'freed', $database), "H6: $database: ... until it ends");
	ok(until_true($node, "select state = 'ready' from tq_get($batch)", 'freed', $database), "H6: $database: a batch comes to its end");
	is(sql(q{select tq_enqueue('unique', unique_key => 'key')}, $database), $unique, "H6: $database: a unique key is still taken");
	check_journal($node, "H6: $database: the journal is consistent", $database);
	is(sql(q{select value from tq_health() where item = 'jobs found again by audits'}, $database), 0, "H6: $database: an audit found nothing of tq's own making");
	return;
}

sql("create database $_") for qw(seen unseen again);

restore('seen', '--section=pre-data');
scheduler_of($node, 'seen');
has_loaded('seen');
restore('seen', '--section=data');
restore('seen', '--section=post-data');
goes_on('seen');
cmp_ok(sql(q{select value from tq_health() where item = 'jobs written from outside'}, 'seen'), '>=', 4, 'H6: seen: the jobs came from outside');

# the workers start when there are rows without indexes
workers('off');
restore('unseen', '--section=pre-data');
restore('unseen', '--section=data');
workers('on');
has_looked('unseen');
has_cleaned('unseen');
is(sql($registries, 'unseen'), $before, 'H6: unseen: nothing is gone that is yet to come');
is(sql(q{select tq_enqueue('unique', unique_key => 'key')}, 'unseen'), $unique, 'H6: unseen: a key is not free while its job cannot be looked up');
restore('unseen', '--section=post-data');
goes_on('unseen');

# and start again there
restore('again', '--section=pre-data');
scheduler_of($node, 'again');
has_loaded('again');
restore('again', '--section=data');
has_looked('again');
has_cleaned('again');
janitor_away($node);
my $scheduler = scheduler_of($node, 'again');
sql("select pg_terminate_backend($scheduler)");
until_true($node, "select count(*) = 0 from pg_stat_activity where pid = $scheduler", 'the scheduler gone');
has_looked('again');
has_cleaned('again');
is(sql($registries, 'again'), $before, 'H6: again: nothing is gone that is yet to come');
restore('again', '--section=post-data');
goes_on('again');

# a queue that was being dropped, and waits for jobs that are not counted yet
sql('create database closing');
restore('closing', '--section=pre-data');
scheduler_of($node, 'closing');
has_loaded('closing');
restore('closing', '--section=data');
sql(q{update tq.queue set closing = true where name = 'unique'}, 'closing');
sql('select tq_reload()', 'closing');
until_true($node, q{select state = 'closing' from tq_stats() where queue = 'unique'}, 'a closing queue', 'closing');
has_looked('closing');
is(sql(q{select count(*) from tq.queue where name = 'unique'}, 'closing'), 1, 'H6: closing: a queue stays whose jobs are yet to come');
workers('off');
restore('closing', '--section=post-data');
arm($node, 'count-before-snapshot');
workers('on');
until_true($node, q{select count(*) = 1 from pg_stat_activity where backend_type = 'tq janitor' and datname = 'closing' and query = 'tq: counting the journal'},
	'a count');
has_looked('closing');
is(sql(q{select count(*) from tq.queue where name = 'unique'}, 'closing'), 1, 'H6: closing: ... also until they are counted');
release($node, 'count-before-snapshot');
ok(until_true($node, q{select count(tq_complete(id, lease)) = 1 from tq_claim('unique')}, 'its job', 'closing'), 'H6: closing: its job comes');
is(sql(q{select count(*) from tq.queue where name = 'unique'}, 'closing'), 1, 'H6: closing: it stays as long as more may come');
clock($node, 700, 0);
ok(until_true($node, q{select count(*) = 0 from tq.queue where name = 'unique'}, 'no queue', 'closing'), 'H6: closing: and then it goes');
clock($node, 0, 0);

# a claim takes no number and no name of a queue that is restored later
sql('create database claimed');
workers('off');
restore('claimed', '--section=pre-data');
is(sql(q{select count(*) from tq_claim('unique')}, 'claimed'), 0, 'nothing to claim before there is a scheduler');
workers('on');
scheduler_of($node, 'claimed');
has_loaded('claimed');
is(sql(qq{select count(*) from tq_claim('$_', wait => '200 ms')}, 'claimed'), 0, "nothing to claim in $_") for qw(unique new other);    # limit: nothing comes
restore('claimed', "--section=$_") for qw(data post-data);
goes_on('claimed');
is(sql(qq{select count(*) from tq_claim('$_')}, 'claimed'), 0, "H6: claimed: no jobs of other queues are in $_") for qw(new other);
is(sql(qq{select state from tq_get(tq_enqueue('$_'))}, 'claimed'), 'ready', "H6: claimed: $_ is a queue like others") for qw(new other);
is(sql(q{select count(distinct id) = count(*) and count(*) filter (where name in ('new', 'other')) = 2 from tq.queue}, 'claimed'), 't',
	'H6: claimed: with numbers of their own');

#
# The same with segment 0 only, which is complete from the beginning
#
workers('off');
sql('create database small');
sql('create extension tq', 'small');
$parent = sql(q{select tq_enqueue('parent')}, 'small');
$waiting = sql("select tq_enqueue('waiting', depends_on => '{$parent}')", 'small');
sql('create database zero');
sql('create extension tq', 'zero');
sub bring
{
	my ($from, $to, @tables) = @_;
	for my $table (@tables)
	{
		my $rows = sql("copy tq.$table to stdout", $from);
		sql("copy tq.$table from stdin;\n$rows\n\\.\n", $to);
	}
	return;
}
bring('small', 'zero', 'dependency');
workers('on');
scheduler_of($node, 'zero');
has_loaded('zero');
bring('small', 'zero', 'queue');
janitor_away($node);
is(sql('select count(*) from tq.dependency where state is null', 'zero'), 1, 'H6: a row that comes before the jobs of segment 0 stays as it is');
bring('small', 'zero', 'job_0');
ok(until_true($node, q{select count(tq_complete(id, lease)) = 1 from tq_claim('parent')}, 'the parent', 'zero'), 'H6: the parent comes');
ok(until_true($node, "select state = 'ready' from tq_get($waiting)", 'freed', 'zero'), 'H6: and its child is freed');

# a dead letter older than the retention of an unknown queue is kept
workers('off');
sql('create database letters');
sql('create extension tq', 'letters');
sql(q{select tq_create_queue('mail', '{"dead_retention": "30 d"}')}, 'letters');
my $letter = sql(q{select tq_enqueue('mail')}, 'letters');
sql(q{select tq_fail(id, lease, 'x', fatal => true) from tq_claim('mail')}, 'letters');
sql('create database copied');
sql('create extension tq', 'copied');
workers('on');
scheduler_of($node, 'copied');
has_loaded('copied');
clock($node, 8 * 86400, 0);
bring('letters', 'copied', 'event_0', 'job_0');
until_true($node, 'select max(number) > 0 from tq.segment', 'segment 0 is full', 'copied');
janitor_away($node);
bring('letters', 'copied', 'queue');
ok(until_true($node, "select state = 'dead' from tq_get($letter)", 'a dead letter', 'copied'), 'H6: a dead letter that comes before its queue is kept');
clock($node, 0, 0);

# jobs that are restored before the events that ended them do not expire
sql('create database ends');
sql('create extension tq', 'ends');
my $over = sql(q{select tq_enqueue('brief', expires_at => now() + interval '10 s')}, 'ends');
is(sql(q{select count(tq_complete(id, lease)) from tq_claim('brief')}, 'ends'), 1, 'a job that would have expired has succeeded');
sql('create database events');
sql('create extension tq', 'events');
scheduler_of($node, 'events');
has_loaded('events');
clock($node, 100, 0);
bring('ends', 'events', 'job_0', 'queue');
until_true($node, q{select live = 1 from tq_stats() where queue = 'brief'}, 'a job without its end', 'events');
is(sql(q{select count(*) from tq_claim('other', wait => '300 ms')}, 'events'), 0, 'time passes');    # limit: nothing comes
bring('ends', 'events', 'event_0');
ok(until_true($node, "select state = 'succeeded' from tq_get($over)", 'its end', 'events'), 'H6: a job that comes before its end has it');
is(sql('select count(*) from tq.event', 'events'), 1, '... and has not expired');
clock($node, 0, 0);

# rows from INSERT also show that a restore is under way, however long ago the last one was
sql('create database rows');
sql('create extension tq', 'rows');
my $first = scheduler_of($node, 'rows');
has_loaded('rows');
clock($node, 700, 0);
arm($node, 'resolve-after-commit', 'wait', pid => $first);
for my $table (qw(dependency queue job_0))
{
	my $rows = sql("select string_agg(format('insert into tq.$table select (jsonb_populate_record(null::tq.$table, %L)).*', to_jsonb(t)), ';') from tq.$table t", 'small');
	sql($rows, 'rows');
	next unless $table eq 'dependency';
	standing($node, 'resolve-after-commit');
	release($node, 'resolve-after-commit');
	is(sql('select count(*) from tq.dependency where state is null', 'rows'), 1, 'H6: rows: it stays as it is');
}
ok(until_true($node, q{select count(tq_complete(id, lease)) = 1 from tq_claim('parent')}, 'the parent', 'rows'), 'H6: rows: the parent comes');
ok(until_true($node, "select state = 'ready' from tq_get($waiting)", 'freed', 'rows'), 'H6: rows: and its child is freed');
clock($node, 0, 0);

#
# A parent that is not restored
#
$parent = sql(q{select tq_enqueue('parent')});
$waiting = sql("select tq_enqueue('waiting', depends_on => '{$parent}')");
sql("delete from tq.job where id = $parent");
has_looked('postgres');
is(sql("select state from tq_get($waiting)"), 'blocked', 'a job whose parent is not there waits for a while');
clock($node, 700, 0);
ok(until_true($node, "select state = 'cancelled' from tq_get($waiting)", 'cancelled'), 'then the parent is taken to be gone');
like(sql("select reason from tq_history($waiting) where event = 'cancelled'"), qr/is gone/, '... which is said');
clock($node, 0, 0);

#
# H33: tq.meta cannot be read when a scheduler starts
#
sub fires { my ($database) = @_; return sql(q{select count(*) from tq.schedule_fire where outcome = 'fired'}, $database); }

sub some_fires
{
	my ($database, $what) = @_;
	my $n = fires($database) + 3;
	return until_true($node, "select count(*) >= $n from tq.schedule_fire where outcome = 'fired'", $what, $database);
}

sub lock_meta
{
	my ($database) = @_;
	my $session = session($node, $database);
	ask($session, 'begin; lock tq.meta in access exclusive mode');
	return $session;
}

sql(q{select tq_create_queue('clock'), tq_schedule('clock', 'clock', every => '1 s')});
until_true($node, q{select count(*) > 0 from tq.schedule_fire where outcome = 'fired'}, 'the schedule fires');
workers('off');
sql('create database copy template postgres', 'template1');
my $locked = lock_meta('copy');
my $fires = fires('copy');
workers('on');
has_looked('copy');
some_fires('postgres', 'the original fires');
is(fires('copy'), $fires, 'H33: a copy that cannot be told from its original fires nothing');
ask($locked, 'commit');
some_fires('postgres', 'the original fires');
is(fires('copy'), $fires, 'H33: not when it can either');
is(sql(q{select value from tq_health() where item = 'activation'}, 'copy'), 'dormant', 'H33: which it knows then');
leave($locked);

# tq_activate() runs while the scheduler finds out that the database is a copy
my $copying = scheduler_of($node, 'copy');
my $activator = session($node, 'copy');
ask($activator, 'select 1');
arm($node, 'identity-after-read');
sql("select pg_terminate_backend($copying)");
standing($node, 'identity-after-read');
ask($activator, 'select tq_activate()');
release($node, 'identity-after-read');
ok(some_fires('copy', 'the copy fires'), 'H33: a copy that is activated while its scheduler starts is active');
leave($activator);

# the original continues by itself
$scheduler = scheduler_of($node);
$locked = lock_meta('postgres');
sql("select pg_terminate_backend($scheduler)");
until_true($node, "select count(*) = 0 from pg_stat_activity where pid = $scheduler", 'the scheduler gone');
has_looked('postgres');
ask($locked, 'commit');
ok(some_fires('postgres', 'goes on'), 'H33: a database that is no copy fires again as soon as that is known, after its scheduler has restarted');
leave($locked);
$node->append_conf('postgresql.conf', 'tq.workers = off');
$node->restart;
$locked = lock_meta('postgres');
$node->append_conf('postgresql.conf', 'tq.workers = on');
$node->reload;
has_looked('postgres');
ask($locked, 'commit');
ok(some_fires('postgres', 'fires again'), 'H33: so it does after a restart');
leave($locked);

# a restore in place restores the row that shows that the database is no copy; schedules wait until their progress is
# restored, too
sql('create database inplace');
sql(q{create extension tq; select tq_activate(); select tq_create_queue('clock'), tq_schedule('clock', 'clock', every => '1 s')}, 'inplace');
ok(some_fires('inplace', 'the schedule of an active database fires'), 'H33: a database that lives by its schedules');
$node->command_ok([ 'pg_dump', '--no-sync', '-p', $node->port, '-h', $node->host, '-Fc', '-f', $node->basedir . '/dump', 'inplace' ], 'pg_dump');
restore('inplace', qw(--clean --if-exists --section=pre-data));
scheduler_of($node, 'inplace');
has_loaded('inplace');
restore('inplace', '--section=data');
$fires = fires('inplace');
$scheduler = scheduler_of($node, 'inplace');
sql("select pg_terminate_backend($scheduler)");
until_true($node, "select count(*) = 0 from pg_stat_activity where pid = $scheduler", 'the scheduler gone');
scheduler_of($node, 'inplace');
restore('inplace', '--section=post-data');
ok(until_true($node, q{select value = 'held' from tq_health() where item = 'activation'}, 'held', 'inplace'), 'H33: ... is held after a restore in place');
some_fires('postgres', 'others fire');
is(fires('inplace'), $fires, 'H33: and fires nothing yet');
clock($node, 700, 0);
ok(some_fires('inplace', 'fires again'), 'H33: but goes on later');
is(sql(q{select value from tq_health() where item = 'activation'}, 'inplace'), 'active', 'H33: being no copy');
clock($node, 0, 0);

# the end of a queue deletes no rights or handlers of queues that are restored later
my $rights = q{select count(*) from tq.acl where queue_id = 12345};
sql(q{insert into tq.acl (queue_id, role, privilege) select 12345, oid, 'produce' from pg_roles where rolname = current_user});
sql(q{select tq_create_queue('brief')});
sql(q{select tq_drop_queue('brief')});
ok(until_true($node, q{select count(*) = 0 from tq.queue where name = 'brief'}, 'no queue'), 'a queue is dropped');
is(sql($rights), 1, 'H6: rights that came before their queue stay');

my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|TRAP:|terminated by signal/, 'nothing alarming in the log');
my $said = () = $log =~ /cannot tell whether this database is a copy/g;
cmp_ok($said, '<=', 4, "the log says once that it cannot be told ($said)");
$node->stop;
done_testing();
