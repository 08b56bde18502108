# Shared by the tests of hazards: a server with small sizes, wait points, sessions that stay in the middle of a
# statement, and a checker that reads the journal. No test sleeps: it polls for a condition.

package TqTest;

use strict;
use warnings;

use DBI;
use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  tq_node tq_setup session leave ask begin_ask end_ask until_true until_so arm standing release clock fake_now
  scheduler_of janitor_away loaded segment_after by_hand without_triggers let_write program take take_all work_off check_journal unfinished own_memory
);

# else pg_ctl gives up after a minute
$ENV{PGCTLTIMEOUT} //= $PostgreSQL::Test::Utils::timeout_default;

# A server that preloads tq, the extension in database postgres, which is active and so has workers, and the test
# functions of the wait points. Options:
# conf (lines for postgresql.conf), init (arguments of Cluster::init).
sub tq_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(%{ $options{init} // {} });
	$node->append_conf('postgresql.conf', <<CONF);
shared_preload_libraries = 'tq'
restart_after_crash = on
log_line_prefix = '%m [%p] %b %d '
tq.max_live_jobs = 256
tq.naptime = 100ms
tq.max_pinned_wait = 1h
tq.load_timeout = 3min
client_min_messages = warning
CONF
	$node->append_conf('postgresql.conf', $options{conf}) if defined $options{conf};
	$node->start;
	tq_setup($node, 'postgres');
	$node->safe_psql('postgres', 'select from tq_activate()');
	return $node;
}

# The extension and the test functions in a database.
sub tq_setup
{
	my ($node, $database) = @_;
	$node->safe_psql($database, <<'SQL');
CREATE EXTENSION IF NOT EXISTS tq;
CREATE OR REPLACE FUNCTION tq_test_arm(name text, action text, skip int, pid int) RETURNS void
	LANGUAGE c STRICT AS '$libdir/tq';
CREATE OR REPLACE FUNCTION tq_test_waiting(name text) RETURNS int LANGUAGE c STRICT AS '$libdir/tq';
CREATE OR REPLACE FUNCTION tq_test_passed(name text) RETURNS int LANGUAGE c STRICT AS '$libdir/tq';
CREATE OR REPLACE FUNCTION tq_test_clock(wall bigint, mono bigint) RETURNS void LANGUAGE c STRICT AS '$libdir/tq';
CREATE OR REPLACE FUNCTION tq_test_unpublished() RETURNS bigint LANGUAGE c STRICT AS '$libdir/tq';
SQL
	return;
}

# --- sessions -------------------------------------------------------------------------------------------------------

# A psql in the background that survives errors and shows their SQLSTATEs.
sub session
{
	my ($node, $database) = @_;
	my $session = $node->background_psql($database // 'postgres', on_error_stop => 0);
	$session->set_query_timer_restart;    # the limit is for one statement, not for the session
	$session->query_safe('\set VERBOSITY verbose');
	return $session;
}

# Ends sessions, even if they have been idle for long, or are dead.
sub leave
{
	for my $session (@_)
	{
		$session->{timeout}->start;
		eval { $session->quit };
	}
	return;
}

# The answer of a session, or its error ("ERROR:  TQ001: ...").
sub ask
{
	my ($session, $sql) = @_;
	$session->{stderr} = '';
	my $out = $session->query($sql);
	my $err = $session->{stderr};
	$session->{stderr} = '';
	return $err =~ /ERROR|FATAL/ ? $err : $out;
}

# Sends a statement and does not wait for its end; end_ask() does, and returns its answer.
sub begin_ask
{
	my ($session, $sql) = @_;
	$session->{stderr} = '';
	my $out = $session->query_until(qr/sent\n/, "\\echo sent\n$sql;\n");
	$session->{stdout} = $out =~ s/^.*?sent\n//sr;    # a fast statement may have answered
	return;
}

sub end_ask
{
	my ($session) = @_;
	my $out = $session->query('');
	my $err = $session->{stderr};
	$session->{stderr} = '';
	return $err =~ /ERROR|FATAL/ ? $err : $out;
}

sub connect_to
{
	my ($node, $database) = @_;
	return DBI->connect(sprintf('dbi:Pg:host=%s;port=%s;dbname=%s', $node->host, $node->port, $database), scalar(getpwuid($<)), '',
		{ PrintError => 0, PrintWarn => 0, pg_server_prepare => 0, pg_bool_tf => 1, pg_expand_array => 0, pg_enable_utf8 => 0 });
}

# safe_psql() of one statement needs no psql: it costs more than most of what tests ask. As psql it has a session of its own,
# and returns rows as lines, with | between their columns.
my $safe_psql = \&PostgreSQL::Test::Cluster::safe_psql;

sub statement
{
	my ($node, $database, $sql, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	(my $bare = $sql) =~ s/\s*;\s*$//;
	return $safe_psql->($node, $database, $sql, %options) if %options || $database !~ /^\w+$/ || $bare =~ /[;\\]|^\s*(copy\b|$)/i;
	my $dbh = connect_to($node, $database) or die "error connecting: $DBI::errstr";
	my $sth = $dbh->prepare($bare, { pg_direct => 1 });
	$sth->execute or die "error running SQL: '" . $sth->errstr . "'\nwhile running '$sql'";
	my $rows = $sth->{NUM_OF_FIELDS} ? $sth->fetchall_arrayref : [];
	$sth->finish;
	$dbh->disconnect;
	return join("\n", map { join('|', map { $_ // '' } @$_) } @$rows);
}

{
	no warnings 'redefine';
	*PostgreSQL::Test::Cluster::safe_psql = \&statement;
}

# What a transaction has done is visible before memory has it. Waits until no transaction is in between, but only for a while,
# because a load may never stop. Processes at wait points do not count.
sub await_publication
{
	my ($dbh) = @_;
	my $known = $dbh->selectrow_array(q{select to_regprocedure('tq_test_unpublished()') is not null}) // 'f';
	my $end = time + 10;
	while ($known eq 't' && time < $end)
	{
		last if ($dbh->selectrow_array('select tq_test_unpublished()') // 0) == 0;
		usleep(1_000);    # poll
	}
	return;
}

# As poll_query_until(), but in one connection: a psql for each look costs more than all else that a test does.
sub poll
{
	my ($node, $sql, $database) = @_;
	my ($last, $dbh) = '';
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	while (time < $end)
	{
		usleep(20_000);    # poll
		if (!$dbh || !$dbh->ping)
		{
			$dbh = connect_to($node, $database);
			$last = $DBI::errstr, next unless $dbh;
		}
		my $rows = $dbh->selectall_arrayref($dbh->prepare($sql, { pg_direct => 1 }));
		$last = $rows ? join("\n", map { $_->[0] // '' } @$rows) : $dbh->errstr;
		next unless $rows && $last eq 't';
		await_publication($dbh);
		return 1;
	}
	return (0, $last);
}

# Polls until a query of one row and column answers 't', and what made it true is published. The argument after it is for
# diagnostics. If the caller does not use the return value and that never happens, a test fails.
sub until_true
{
	my ($node, $sql, $what, $database) = @_;
	my ($ok, $last) = poll($node, $sql, $database // 'postgres');
	return $ok if $ok;
	diag("$sql\nlast answer: $last");
	my $why = 'never came true: ' . ($what // $sql);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	defined wantarray ? diag($why) : ok(0, $why);
	return $ok;
}

# As until_true(), with a function that is called until it returns true.
sub until_so
{
	my ($is_so, $what) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	until ($is_so->())
	{
		usleep(20_000), next if time < $end;    # poll
		my $why = "never came true: $what";
		local $Test::Builder::Level = $Test::Builder::Level + 1;
		defined wantarray ? diag($why) : ok(0, $why);
		return 0;
	}
	return 1;
}

# The largest private memory that a process has had, in MB. Shared memory that it has read does not count.
sub own_memory
{
	my ($pid) = @_;
	my $status = slurp_file("/proc/$pid/status");
	my ($anonymous) = $status =~ /^RssAnon:\s+(\d+)/m;
	my ($highest) = $status =~ /^VmHWM:\s+(\d+)/m;
	my ($shared) = $status =~ /^RssShmem:\s+(\d+)/m;
	my ($file) = $status =~ /^RssFile:\s+(\d+)/m;
	my $once = $highest - $shared - $file;
	return ($once > $anonymous ? $once : $anonymous) / 1024;
}

# --- wait points ----------------------------------------------------------------------------------------------------

# Sets the action at a wait point from now on: wait, error, kill. Options: skip (passes that do nothing first), pid.
sub arm
{
	my ($node, $point, $action, %options) = @_;
	my $arm = sprintf(q{select tq_test_arm('%s', '%s', %d, %d)}, $point, $action // 'wait', $options{skip} // 0, $options{pid} // 0);
	# a process at the wait point dies at once, and may take the server down before the answer
	$node->psql('postgres', $arm, on_error_die => ($action // '') ne 'kill');
	return;
}

# Waits until a process is at a wait point.
sub standing
{
	my ($node, $point) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_true($node, "select tq_test_waiting('$point') > 0", "a process at $point");
}

sub release
{
	my ($node, $point) = @_;
	$node->safe_psql('postgres', "select tq_test_arm('$point', 'none', 0, 0)");
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	until_true($node, "select tq_test_waiting('$point') = 0", "no process at $point");
	return;
}

# Moves the wall clock and the monotonic clock of every process to so many seconds ahead of the real ones.
sub clock
{
	my ($node, $wall, $mono) = @_;
	$node->safe_psql('postgres', sprintf('select tq_test_clock(%d, %d)', $wall * 1e6, ($mono // $wall) * 1e6));
	return;
}

# Sets tq.fake_now to a time, or removes it without an argument; tq's clock has changed when this returns.
sub fake_now
{
	my ($node, $time) = @_;
	$time //= '';
	$node->safe_psql('postgres', $time ? "alter system set tq.fake_now = '$time'" : 'alter system reset tq.fake_now');
	$node->reload;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_true($node, "select current_setting('tq.fake_now') = '$time'", "tq.fake_now = $time");
}

# --- workers --------------------------------------------------------------------------------------------------------

# Process id of a database's scheduler, once it has one. A database that is not used yet becomes active.
sub scheduler_of
{
	my ($node, $database) = @_;
	$database //= 'postgres';
	my $from = "from pg_stat_activity where backend_type = 'tq scheduler' and datname = '$database'"
	  . " and query <> 'tq: looking for the extension'";
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->safe_psql($database, q{select tq_activate() from tq_health() where value ~ '^unused'});
	my $pid = '';
	until_so(sub { return ($pid = $node->safe_psql($database, "select pid $from")) =~ /^\d+$/ }, 'a scheduler');
	return $pid;
}

# Whether no janitor is at work.
sub janitor_away
{
	my ($node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_true($node, "select count(*) = 0 from pg_stat_activity where backend_type = 'tq janitor'", 'no janitor');
}

# Waits until the database's live state is loaded.
sub loaded
{
	my ($node, $database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_true($node, "select count(*) >= 0 from tq_claim('nothing here')", 'loaded', $database);
}

# Waits until new jobs go to a segment after number $n: its row is there, and memory has it, too, which comes later.
sub segment_after
{
	my ($node, $n, $database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_true($node, <<SQL, "a segment after $n", $database);
select max(number) > $n and count(*) + 1 = (select substring(value from '^\\d+')::int from tq_health() where item = 'segments')
from tq.segment
SQL
}

# --- the journal ----------------------------------------------------------------------------------------------------

# Jobs of a queue that are neither finished nor moved in the journal.
sub unfinished
{
	my ($node, $queue, $database) = @_;
	return $node->safe_psql($database // 'postgres', <<SQL);
with e as (select distinct job_id, step, type from tq.event),
	last as (select distinct on (job_id) job_id, type from e where type not in ('o', 'k', 'a', 'm', 'u') order by job_id, step desc)
select count(distinct j.id) from tq.job j join tq.queue q on q.id = j.queue_id left join last l on l.job_id = j.id
where q.name = '$queue' and (l.type is null or l.type not in ('s', 'd', 'b', 'x', 'e', 'p'))
SQL
}

# Writes rows past tq, for which the database must be inactive.
sub by_hand
{
	my ($node, $sql, $database) = @_;
	$database //= 'postgres';
	$node->safe_psql($database, $_) for 'select tq_deactivate()', $sql, 'select from tq_activate(discard => true)';
	return;
}

# Writes rows although the database is active: an administrator can disable the triggers that refuse them.
sub without_triggers
{
	my ($node, $sql, @tables) = @_;
	$node->safe_psql('postgres', join '', (map { "alter table $_ disable trigger all;" } @tables), "$sql;",
		map { "alter table $_ enable always trigger tq_reload, enable replica trigger tq_reload_row;" } @tables);
	return;
}

# Lets a test write rows of these tables although the database is active. tq learns of them as of rows of its own.
sub let_write
{
	my ($node, @tables) = @_;
	$node->safe_psql('postgres', join '', map { "alter table tq.$_ disable trigger tq_reload;" } @tables);
	return;
}

# Runs a program on a server, which must say nothing, except that the database into which it restores is inactive.
sub program
{
	my ($node, $name, @command) = @_;
	my ($out, $err) = ('', '');
	local %ENV = $node->_get_env();
	my $ok = IPC::Run::run(\@command, '>', \$out, '2>', \$err);
	$err =~ s/^\S+ WARNING:  rows are written to tables of tq: it is inactive in this database\nHINT:  .* SELECT tq_activate\(\)\.\n//;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($ok && $err eq '', $name) or diag("@command: $err");
	return;
}

# Claims and completes at most so many jobs of a queue; returns their ids in the order of their claims. With a wait
# time, waits so long for the first of them.
sub take
{
	my ($node, $queue, $n, $database, $wait) = @_;
	$wait //= '0';
	my $got = $node->safe_psql($database // 'postgres', <<SQL);
with c as materialized (select id, lease from tq_claim('$queue', max_jobs => $n, wait => '$wait'))
select id, tq_complete(id, lease) from c
SQL
	return map { (split /\|/)[0] } split /\n/, $got;
}

# The same, but waits for the jobs; a test fails if none comes for long.
sub take_all
{
	my ($node, $queue, $n, $database) = @_;
	my @ids;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	while (@ids < $n && time < $end)
	{
		my @more = take($node, $queue, $n - @ids, $database, '1 s');    # poll
		push @ids, @more;
		$end = time + $PostgreSQL::Test::Utils::timeout_default if @more;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	fail("$n jobs come from queue $queue, not only " . scalar(@ids)) if @ids < $n;
	return @ids;
}

# Claims and completes jobs of a queue until the journal has no unfinished one; returns the ids in the order of their claims.
sub work_off
{
	my ($node, $queue, $database) = @_;
	my @ids;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	while (time < $end)
	{
		my @more = take($node, $queue, 50, $database, '100 ms');    # poll
		push @ids, @more;
		$end = time + $PostgreSQL::Test::Utils::timeout_default if @more;
		return @ids if !@more && unfinished($node, $queue, $database) == 0;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	fail("no jobs are left in queue $queue that nobody can claim");
	return @ids;
}

# Violations that no journal may contain, one on each line.
my $complaints = q{
	with e as (select distinct job_id, step, type::text, lease from tq.event where type <> 'm'),
		lives as (select *, sum((type in ('R', 'B'))::int) over (partition by job_id order by step) as life from e)
	select format('job %s has %s terminal events in life %s', job_id, count(*), life) from lives
		where type in ('s', 'd', 'b', 'x', 'e') group by job_id, life having count(*) > 1
	union all
	select format('job %s is purged in life %s, and goes on', job_id, life) from lives p where type = 'p'
		and exists (select from lives l where l.job_id = p.job_id and l.step > p.step)
	union all
	select format('job %s has different events of step %s', job_id, step) from e group by job_id, step having count(*) > 1
	union all
	select format('lease %s was given to %s jobs', lease, count(distinct job_id)) from e where lease is not null
		group by lease having count(distinct job_id) > 1
	union all
	select format('job %s has an event of lease %s after one of lease %s', job_id, lease, before) from (
			select job_id, lease, max(lease) over (partition by job_id order by step rows between unbounded preceding and 1 preceding)
				as before from e where lease is not null) x
		where lease < before
	union all
	select format('job %s is in the journal %s times', id, count(*)) from tq.job j where not exists (
			select from tq.event m where m.tableoid = replace(j.tableoid::regclass::text, 'job_', 'event_')::regclass
				and m.job_id = j.id and m.type = 'm') group by id having count(*) > 1
	order by 1};

# One test: the journal of a database keeps what tq promises, and memory agrees with it.
sub check_journal
{
	my ($node, $name, $database) = @_;
	$database //= 'postgres';
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# a process may be reading a job just now
	my ($agrees) = poll($node, 'select not exists (select from tq_check() where expected >= 0 and expected <> found)', $database);
	my $memory = $agrees ? q{} : $node->safe_psql($database,
		q{select format('memory: %s: %s instead of %s', item, found, expected) from tq_check() where expected >= 0 and expected <> found});
	is(join("\n", grep { $_ ne '' } $node->safe_psql($database, $complaints), $memory), '', $name // 'the journal is consistent');
	return;
}

1;
