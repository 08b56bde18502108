# Logical replication of events to a reader of the stream (pgoutput) and to a subscriber. New segments join the
# publication before they have rows, so no event is lost. Hazard: H26.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('publisher', init => { allows_streaming => 'logical' }, conf => <<CONF);
tq.segment_rows = 20
tq.retention = 1h
CONF
loaded($node);
scheduler_of($node);

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub newest { return sql('select coalesce(max(number), 0) from tq.segment'); }

# Enqueues and finishes so many jobs; the last one fails.
sub finish
{
	my ($n) = @_;
	sql("select tq_enqueue('mail') from generate_series(1, $n)");
	take_all($node, 'mail', $n - 1);
	sql(q{select tq_fail(id, lease, 'no', fatal => true) from tq_claim('mail')});
	return;
}

# Finishes jobs until another segment is open.
sub next_segment
{
	my $before = newest();
	finish(20);
	segment_after($node, $before);
	return newest();
}

# The example of the guide: all ended jobs, as they end.
sql(q{create publication news for table tq.event where (type in ('s', 'd')) with (publish = 'insert')});
sql(q{create role keeper; create publication narrow for table tq.event (job_id, step, type, at), tq.job (id, queue_id, payload) with (publish = 'insert')});
sql('grant create on database postgres to keeper; alter publication narrow owner to keeper');
sql('create publication whole for table tq.job, tq.event');
sql('create publication other for table tq.queue');
sql(q{select pg_create_logical_replication_slot('reader', 'pgoutput')});

# A reader that is connected while segments are created
my $file = $node->basedir . '/stream';
my $reader = IPC::Run::start(
	[
		'pg_recvlogical', '-d', $node->connstr('postgres'), '-S', 'reader', '--start', '-f', $file, '-F', '0', '-s', '1', '-o', 'proto_version=1',
		'-o', 'publication_names=news'
	]);
until_true($node, q{select active from pg_replication_slots where slot_name = 'reader'}, 'a reader');

my $first = next_segment();
# a dump and restore keeps only the segments that are not members of the extension
sql(q{create publication restored for table tq.event where (type = 'd') with (publish = 'insert')});
sql('alter publication restored drop table only tq.event, only tq.event_0');
is(sql(q{select string_agg(tablename, ', ') from pg_publication_tables where pubname = 'restored'}), "event_$first", 'a publication after a restore');
my $second = next_segment();
finish(5);
my $members = sub {
	return sql("select coalesce(string_agg(tablename || coalesce(' where ' || rowfilter, ''), ', ' order by tablename), '')
		from pg_publication_tables where pubname = '$_[0]' and tablename ~ '_($first|$second)\$'");
};
my $filter = q{(type = ANY (ARRAY['s'::"char", 'd'::"char"]))};
is($members->('news'), "event_$first where $filter, event_$second where $filter", 'new segments are published, with the same rows');
is($members->('narrow'), "event_$first, event_$second, job_$first, job_$second", '... of the owner of the publication');
is(sql("select string_agg(attnames::text, ' ' order by tablename) from pg_publication_tables where pubname = 'narrow' and tablename ~ '_$second\$'"),
	'{job_id,at,step,type} {id,queue_id,payload}', '... with the same columns');
is($members->('whole'), "event_$first, event_$second, job_$first, job_$second", '... both tables, if both are');
is($members->('restored'), join(', ', map { "event_$_ where (type = 'd'::\"char\")" } $first, $second), '... also of one that has numbered segments only');
is($members->('other'), '', '... and no others');

# The events that the reader has received
my $ended = q{select string_agg(job_id || type::text, ',' order by job_id) from (select distinct job_id, type from tq.event where type in ('s', 'd')) e};
my $wanted = sql($ended);
my @got;
my $received = sub {
	my $stream = slurp_file($file);
	my %names;
	@got = ();
	while ($stream =~ /R(.{4})tq\0(event_\d+)\0/sg) { $names{$1} = $2; }
	while ($stream =~ /I(.{4})N\0(.)t\0\0\0.(\d+)t/sg) { push @got, $3 if $names{$1}; }
	return @got >= 45;
};
until_so($received, 'all have been received');
is(join(',', sort { $a <=> $b } @got), join(',', map { /(\d+)/ } split /,/, $wanted), 'the stream has every job that has ended, once');
$reader->kill_kill;
$reader->finish;

# --- a subscriber ----------------------------------------------------------------------------------------------------

my $subscriber = PostgreSQL::Test::Cluster->new('subscriber');
$subscriber->init;
$subscriber->append_conf('postgresql.conf', "wal_retrieve_retry_interval = 100ms\nmax_logical_replication_workers = 6");
$subscriber->start;
$subscriber->safe_psql('postgres', <<'SQL');
create schema tq;
create table tq.event (job_id bigint, at timestamptz, lease bigint, claimed_at timestamptz, retry_at timestamptz,
	lease_until timestamptz, step int, attempt int, priority int, type "char", bound boolean, worker text, reason text, detail jsonb);
create procedure tq.make_segments(upto int) language plpgsql as $$
begin
	for i in 0 .. upto loop
		execute format('create table if not exists tq.event_%s (primary key (job_id, step)) inherits (tq.event)', i);
	end loop;
end $$;
SQL
$subscriber->safe_psql('postgres', "call tq.make_segments($second)");
$subscriber->safe_psql('postgres', sprintf(q{create subscription news connection '%s' publication news}, $node->connstr . ' dbname=postgres'));

sub caught_up
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $all = sql($ended);
	my $ok = $subscriber->poll_query_until('postgres', "select ($ended) = '$all'");
	ok($ok, $what) or diag($subscriber->safe_psql('postgres', $ended) . "\n$all");
	is($subscriber->safe_psql('postgres', q{select count(*) - count(distinct (job_id, step)) from tq.event}), 0, '... once');
	return;
}
caught_up('a subscriber has every job that has ended');
finish(3);
caught_up('... and those that end now');

# A segment that the subscriber does not know: it stops, and continues when it has the table.
my $third = next_segment();
finish(4);
ok($subscriber->wait_for_log(qr/logical replication target relation "tq.event_$third" does not exist/), 'a subscriber without the table stops');
$subscriber->safe_psql('postgres', 'call tq.make_segments(100)');
$subscriber->safe_psql('postgres', 'alter subscription news refresh publication');
caught_up('with the table it goes on, and has missed nothing');

# With tables that exist already it does not stop. It skips the rows of a new segment until a refresh, which copies
# them.
my $fourth = next_segment();
finish(4);
$node->wait_for_catchup('news');
$subscriber->safe_psql('postgres', 'alter subscription news refresh publication');
caught_up('a segment that it was told of afterwards');

# Segments are dropped: the subscriber keeps its rows.
my $kept = $subscriber->safe_psql('postgres', $ended);
$node->append_conf('postgresql.conf', "tq.retention = 0\ntq.dead_retention = 0");
$node->reload;
finish(1);
until_true($node, "select to_regclass('tq.event_$first') is null", 'a segment is dropped though it is published');
is($members->('news') =~ /event_$first/ ? 1 : 0, 0, '... and is no longer published');
$subscriber->safe_psql('postgres', 'alter subscription news refresh publication');
finish(2);
like($subscriber->safe_psql('postgres', $ended), qr/^\Q$kept\E/, 'what the subscriber has stays');
$subscriber->safe_psql('postgres', 'drop subscription news');

# If deletes are published, rows can be deleted, and their keys are published.
for my $table (map { ("job_$_", "event_$_") } 0, newest())
{
	is((ask(my $s = session($node), "begin; alter table tq.$table disable trigger all; delete from tq.$table; rollback")), '', "rows of tq.$table can be deleted though it is published");
	leave($s);
}

# A transaction that changes the publication delays the next segment only (H16, H21).
my $holder = session($node);
ask($holder, 'begin');
ask($holder, 'create table others (n int)');
ask($holder, 'alter publication news add table others');
my $last = newest();
my $so_far = -s $node->logfile;
finish(25);
ok($node->wait_for_log(qr/canceling statement due to lock timeout/, $so_far), 'the janitor gives up soon');
finish(2);
is(newest(), $last, 'no segment while a publication is locked');
ask($holder, 'commit');
segment_after($node, $last);
is(sql('select count(*) from pg_publication_tables where pubname = $$news$$ and tablename = $$event_' . newest() . '$$'), 1, '... it is published');

is(sql(q{select value, status from tq_health() where item = 'publications of tq''s tables'}), 'none|ok', 'tq_health: nothing to say');
sql('create publication everything for all tables');
is(sql(q{select value, status from tq_health() where item = 'publications of tq''s tables'}), 'everything|warn', '... but of all tables');

leave($holder);
check_journal($node);
$subscriber->stop;
$node->stop;

done_testing();
