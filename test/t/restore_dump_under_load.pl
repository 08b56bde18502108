# A dump taken under load has what its snapshot saw: every row, the state of every job, every lease. It is restored to
# another server and to another database of the same one. Both work, and agree with the records of the clients at the
# moment of the snapshot (P9). restore_all_formats.pl and restore_complete.pl test the other ways to dump and restore.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use TqLoad;
use TqTest;

my $conf = <<CONF;
shared_buffers = 64MB
tq.max_live_jobs = 4000
tq.max_databases = 10
tq.segment_rows = 1000
tq.retention = 1d
tq.claim_log_delay = 20ms
max_worker_processes = 40
CONF
my $source = tq_node('dumped', conf => $conf);
my $target = tq_node('restored', conf => "$conf\ntq.workers = off");
my $dir = PostgreSQL::Test::Utils::tempdir;

my $load = TqLoad->new('source', $source->connstr('postgres'));
# more jobs are enqueued than finished, so there is always something to claim
$load->start('producer', 2, 0.02);
$load->start('worker', 1);
ok($load->progress(60_000), 'the clients are at work');

# The rows of a database as digests of its tables, except the row that identifies the database, and changes, which are
# not dumped.
my $tables = <<'SQL';
select relname || ' ' || (xpath('/row/x/text()', query_to_xml(format(
	'select count(*) || '' '' || coalesce(md5(string_agg(t::text, e''\n'' order by t::text collate "C")), '''') as x from only tq.%I t', relname), true, true, '')))[1]
from pg_class where relnamespace = 'tq'::regnamespace and relkind = 'r' and relname !~ '^(meta|change.*)$' order by 1
SQL
# The state of each job in the journal, with the lease of running ones. Whether a job is ready or delayed depends on the time.
my $journal = <<'SQL';
select id, coalesce((select case type when 's' then 'succeeded' when 'd' then 'dead' when 'b' then 'buried'
		when 'c' then 'running ' || lease else 'live' end
	from tq.event e where job_id = id and type <> 'm' order by step desc limit 1), 'live')
from (select distinct id from tq.job) j order by 1
SQL
my $states = <<'SQL';
select j.id, case when state in ('ready', 'delayed') then 'live' when state = 'running' then 'running ' || r.lease else state end
from tq_jobs j left join tq_running r on r.id = j.id order by 1
SQL

# Takes a dump, and records what its snapshot sees.
my $session = session($source);
sub dump_of
{
	my ($name, @options) = @_;
	my $seen = { name => $name, before => time };
	my $snapshot = ask($session, 'begin isolation level repeatable read; select pg_export_snapshot()');
	$seen->{after} = time;
	$seen->{tables} = ask($session, $tables);
	$seen->{journal} = ask($session, $journal);
	$seen->{id} = ask($session, 'select max(id) from tq.job');
	$seen->{lease} = ask($session, 'select max(lease) from tq.event');
	program($source, "pg_dump, $name", 'pg_dump', '-d', 'postgres', "--snapshot=$snapshot", '-f', "$dir/$name", @options);
	ask($session, 'commit');
	return $seen;
}

# The ledgers up to the snapshot: later answers of the server do not apply to the copy. Rolled-back work is in neither.
sub ledger_of
{
	my ($seen) = @_;
	my @lines;
	for my $file (@{ $load->{ledgers} })
	{
		for my $line (split /\n/, slurp_file($file))
		{
			my ($at, $who, $event) = split / /, $line;
			push @lines, $line
			  if $event eq 'rolledback' || $event eq 'undone' || $at < ($event =~ /^(committed|told)$/ ? $seen->{before} : $seen->{after});
		}
	}
	append_to_file("$dir/$seen->{name}.ledger", join('', map { "$_\n" } @lines));
	return "$dir/$seen->{name}.ledger";
}

# a lease that is in the first dump in any case
my $lease = $source->safe_psql('postgres', q{select lease from tq_claim('load', lease_for => '40 s', wait => '3 min')});
until_true($source, "select count(*) = 1 from tq.event where lease = $lease and type = 'c'", 'its claim is journalled');
my @seen = (
	dump_of('plain'),
	dump_of('custom', '-Fc'),
	dump_of('parallel', '-Fd', '-j', '2'));
cmp_ok(scalar(grep { /running/ } split /\n/, join("\n", map { $_->{journal} } @seen)), '>', 0, 'there are leases in them');

# beside the original, which continues
$source->safe_psql('postgres', 'create database beside');
program($source, 'psql, into another database', 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', 'beside', '-f', "$dir/plain", '-o', '/dev/null');
$source->safe_psql('beside', 'select tq_activate()');

$target->safe_psql('postgres', "create database $_") for qw(plain custom parallel);
program($target, 'psql', 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', 'plain', '-f', "$dir/plain", '-o', '/dev/null');
program($target, 'pg_restore', 'pg_restore', '-d', 'custom', "$dir/custom");
program($target, 'pg_restore, two jobs', 'pg_restore', '-j', '2', '-d', 'parallel', "$dir/parallel");

# nothing has changed there yet
for my $seen (@seen)
{
	my $name = $seen->{name};
	is($target->safe_psql($name, $tables), $seen->{tables}, "$name: the rows of the snapshot");
	is($target->safe_psql($name, 'select * from tq_activate()'), '', "$name: they are whole");
	is($target->safe_psql($name, $states), $seen->{journal}, "$name: the state of every job, and the leases");
	is($target->safe_psql($name, 'select * from tq_check() where expected <> found'), '', "$name: memory agrees with the journal");
	is($target->safe_psql($name, "begin; select min(lease) > $seen->{lease} from tq_claim('load', 10); rollback"), 't',
		"$name: lease numbers of the original are not given again");
	is($target->safe_psql($name, "begin; select tq_enqueue('load') > $seen->{id}; rollback"), 't', "$name: ids are not repeated");
}

# now both work at the same time
$target->append_conf('postgresql.conf', 'tq.workers = on');
$target->reload;
my @copies = map { [ $_, $target, $_->{name} ] } @seen;
push @copies, [ $seen[0], $source, 'beside' ];
for my $copy (@copies)
{
	my ($seen, $node, $database) = @$copy;
	tq_setup($node, $database);
	my $clients = TqLoad->new("copy_$database", $node->connstr($database), $database);
	push @{ $clients->{ledgers} }, $database eq 'beside' ? $copies[0][3]{ledgers}[0] : ledger_of($seen);
	$clients->{crashes} = [ [ sprintf('restored %.6f %.6f', $seen->{before}, $seen->{after}), $seen->{after} ] ];
	$clients->start('drain', 1);
	push @$copy, $clients;
}
for my $copy (@copies)
{
	my ($seen, $node, $database, $clients) = @$copy;
	note($database);
	$clients->drain($node);
	$clients->check($node);
}
$session->quit;
$load->drain($source);
$load->check($source);

unlike(slurp_file($_->logfile), qr/PANIC|TRAP|signal 11|signal 6/, 'nothing alarming in the log') for $source, $target;
$source->stop;
$target->stop;
done_testing();
