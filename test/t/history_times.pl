# Loading the jobs of a large transaction does not read the rows of jobs that have ended, however many there are. The
# test counts the rows that are read in a session that loads jobs itself, since no scheduler runs. Jobs with and without
# groups.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $history = 20_000;
my $node = tq_node('history', conf => <<CONF);
tq.workers = off
tq.max_live_jobs = 100000
tq.publish_limit = 10
CONF
my $session = session($node);
$node->safe_psql('postgres', <<'SQL');
SELECT tq_create_queue('q');
-- index entries of lanes and groups that have been read so far
CREATE FUNCTION read_so_far() RETURNS bigint LANGUAGE sql VOLATILE AS $$
	SELECT pg_stat_clear_snapshot(), pg_stat_force_next_flush();
	SELECT sum(idx_tup_read)::bigint FROM pg_stat_all_indexes WHERE schemaname = 'tq' AND relname ~ '^job_\d+$' AND indexrelname ~ 'lane|group' $$;
CREATE PROCEDURE work_off(q text, n int, INOUT priorities text DEFAULT '') LANGUAGE plpgsql AS $$
DECLARE one text; got int := 0; batch int;
BEGIN
	WHILE got < n LOOP
		WITH c AS MATERIALIZED (SELECT id, lease, priority FROM tq_claim(q, least(1000, n - got), wait => '3 min')),
			f AS MATERIALIZED (SELECT tq_complete(id, lease) FROM c)
		SELECT (SELECT count(*) FROM f), (SELECT string_agg(DISTINCT priority::text, ' ') FROM c) INTO batch, one;
		got := got + batch;
		priorities := trim(priorities || ' ' || one);
		COMMIT;
		EXIT WHEN batch = 0;
	END LOOP;
END $$;
SQL
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_indexes WHERE schemaname = 'tq' AND tablename = 'job_0' AND indexname ~ 'lane|group'"), 2,
	'the indexes of lanes and groups are those that are looked at');

# Enqueues a number of jobs in one transaction.
sub enqueue
{
	my ($n, $priority) = @_;
	return ask($session, "SELECT count(*) FROM tq_enqueue_many('q', array_fill('{}'::jsonb, array[$n]), priority => $priority)");
}

# The number of index entries that are read to deliver jobs; their priorities in order.
sub reads_of
{
	my ($n, $queue) = (@_, 'q');
	my $before = ask($session, 'SELECT read_so_far()');
	my $priorities = ask($session, "CALL work_off('$queue', $n)");
	my $after = '';
	# the server counts the reads of this session when it is idle
	for (1 .. 100)
	{
		my $now = ask($session, 'SELECT read_so_far()');
		last if $now eq $after;
		$after = $now;
	}
	return ($after - $before, $priorities);
}

enqueue($history, 100);
reads_of($history);
enqueue(50, 100);
enqueue(50, 50);
my ($reads, $priorities) = reads_of(100);
like($priorities, qr/^50/, 'the jobs of the earlier priority come first');
cmp_ok($reads, '<', $history / 10, 'a transaction of an earlier priority is read back without the history');

my @rounds;
for (1 .. 5)
{
	enqueue(300, 100);
	my ($r) = reads_of(300);
	push @rounds, $r;
}
note "rounds: @rounds";
cmp_ok($rounds[4], '<', 2000, 'rounds of large transactions read what they bring');

#
# groups, beside groups whose jobs have all ended
#
sub enqueue_groups
{
	my ($n, $groups, $priority) = @_;
	return ask($session, "SELECT count(*) FROM tq_enqueue_many('groups', array_fill('{}'::jsonb, array[$n]), priority => $priority,"
			. " group_keys => (SELECT array_agg('g' || i % $groups) FROM generate_series(1, $n) i))");
}

ask($session, q{SELECT tq_create_queue('groups', '{"group_max_running": 0}')});
enqueue_groups(200, 200, 100), reads_of(200, 'groups') for 1 .. $history / 200;
enqueue_groups(50, 10, 50);
($reads) = reads_of(50, 'groups');
note "groups: $reads";
cmp_ok($reads, '<', 500, 'a transaction of jobs of groups is read back without what is over of these groups and others');

check_journal($node, 'the journal is consistent');
leave($session);
$node->stop;
done_testing();
