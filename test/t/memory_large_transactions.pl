# Counters after large transactions beside many groups: of several kinds, in subtransactions, with savepoints and
# cancels. scripts/bench measures what they cost.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('large_transactions', conf => <<CONF);
tq.max_live_jobs = 100000
tq.max_groups = 2000
tq.max_lanes = 64
tq.publish_limit = 20
CONF
sub counters_hold
{
	my ($after) = @_;
	is($node->safe_psql('postgres', "SELECT string_agg(c::text, ' ') FROM tq_check() c WHERE expected >= 0 AND expected <> found"), '',
		"counters are right after $after");
	return;
}

#
# COMMIT, beside many groups
#
$node->safe_psql('postgres', "SELECT tq_enqueue('groups', group_key => 'g' || g) FROM generate_series(1, 1800) g")
  for 1 .. 2;
$node->safe_psql('postgres',
	"SELECT count(tq_enqueue('groups', kind => 'k' || g % $_, group_key => 'g' || g % 1800)) FROM generate_series(1, 3000) g") for 1, 6;
$node->safe_psql('postgres', <<'SQL');
DO $$ BEGIN FOR g IN 1 .. 3000 LOOP
	BEGIN PERFORM tq_enqueue('groups', group_key => 'g' || g % 1800); EXCEPTION WHEN division_by_zero THEN END; END LOOP; END $$
SQL
counters_hold('large transactions beside groups');

#
# The sums themselves
#
my $left = $node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION pg_temp.some(n int) RETURNS bigint[] LANGUAGE sql AS $$
	SELECT array_agg(tq_enqueue('sums', kind => 'k' || g % 3, group_key => CASE WHEN g % 2 = 0 THEN 'g' || g % 5 END,
		delay => CASE WHEN g % 4 = 0 THEN interval '1 s' END)) FROM generate_series(1, n) g $$;
CREATE TEMP TABLE mine (savepoint text, ids bigint[]);
BEGIN;
INSERT INTO mine SELECT '', pg_temp.some(60);
SAVEPOINT a;
INSERT INTO mine SELECT 'a', pg_temp.some(48);
SAVEPOINT b;
INSERT INTO mine SELECT 'b', pg_temp.some(36);
SELECT tq_cancel(id) FROM mine, unnest(ids[1:6]) id WHERE savepoint = '' \g /dev/null
ROLLBACK TO b;
INSERT INTO mine SELECT 'b again', pg_temp.some(24);
SELECT tq_cancel(id) FROM mine, unnest(ids[1:12]) id WHERE savepoint = 'a' \g /dev/null
RELEASE b;
RELEASE a;
SAVEPOINT c;
SELECT tq_cancel(id) FROM mine, unnest(ids[13:24]) id WHERE savepoint = 'a' \g /dev/null
ROLLBACK TO c;
SELECT tq_cancel(id) FROM mine, unnest(ids[1:12]) id WHERE savepoint = 'b again' \g /dev/null
COMMIT;
SELECT live FROM tq_queues WHERE queue = 'sums';
SQL
is($left, 60 + 48 - 12 + 24 - 12, 'what savepoints leave of the sums is counted');
counters_hold('savepoints and cancels in large transactions');
is(scalar(work_off($node, 'sums')), 60 + 48 - 12 + 24 - 12, 'and delivered');

done_testing();
