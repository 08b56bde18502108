# Costs in large transactions. COMMIT does not cost jobs times groups; a verb does not cost more after many operations;
# the sums that savepoints and cancels leave are right. The test compares times of the same run.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use List::Util qw(min);
use TqTest;

my $node = tq_node('large_transactions', conf => <<CONF);
tq.max_live_jobs = 100000
tq.max_groups = 2000
tq.max_lanes = 64
tq.publish_limit = 20
CONF
$node->safe_psql('postgres', <<'SQL');
-- milliseconds that COMMIT takes after a statement
CREATE PROCEDURE time_of_commit(statement text, INOUT took float8) LANGUAGE plpgsql AS $$
DECLARE began timestamptz;
BEGIN
	EXECUTE statement;
	began := clock_timestamp();
	COMMIT;
	took := 1000 * extract(epoch FROM clock_timestamp() - began);
END $$;
-- milliseconds that it takes to cancel jobs
CREATE FUNCTION time_of_cancel(ids bigint[]) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE began timestamptz := clock_timestamp();
BEGIN
	PERFORM tq_cancel(id) FROM unnest(ids) id;
	RETURN 1000 * extract(epoch FROM clock_timestamp() - began);
END $$;
CREATE FUNCTION claim_at_least(q text, n int) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE ids bigint[] := '{}';
BEGIN
	WHILE cardinality(ids) < n LOOP
		ids := ids || ARRAY(SELECT id FROM tq_claim(q, 1000, lease_for => '1 hour', wait => '60 s'));
	END LOOP;
	RETURN ids;
END $$;
SQL

# Measures both in turn, so that other load of the machine affects both; the minimum of each counts.
sub times_of
{
	my ($few, $many) = @_;
	my (@few, @many);
	for (1 .. 3)
	{
		push @few, $node->safe_psql('postgres', $few);
		push @many, $node->safe_psql('postgres', $many);
	}
	note "few: @few, many: @many";
	return min(@many) / min(@few);
}

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
my $commit = q{CALL time_of_commit($$ %s $$, NULL)};
my $jobs = "SELECT count(tq_enqueue('groups', kind => 'k' || g %% %d, group_key => 'g' || g %% 1800)) FROM generate_series(1, 3000) g";
cmp_ok(times_of(sprintf($commit, sprintf($jobs, 1)), sprintf($commit, sprintf($jobs, 6))),
	'<', 10, 'COMMIT of jobs of six kinds takes about as long as of jobs of one kind');

my $block = q{DO 'BEGIN FOR g IN 1 .. 3000 LOOP %s PERFORM tq_enqueue(''groups'', group_key => ''g'' || g %% 1800); %s END LOOP; END'};
cmp_ok(times_of(sprintf($commit, sprintf($block, '', '')), sprintf($commit, sprintf($block, 'BEGIN', 'EXCEPTION WHEN division_by_zero THEN END;'))),
	'<', 10, 'COMMIT of jobs of many subtransactions takes about as long as without these');
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

#
# Verbs, after many operations of the transaction
#
$node->safe_psql('postgres', <<'SQL');
SET tq.publish_limit = 100000;
SELECT count(tq_enqueue('running')) FROM generate_series(1, 42000);
CREATE TABLE held AS SELECT claim_at_least('running', 2000) AS ids;
SQL
my $cancel = <<'SQL';
BEGIN;
SELECT cardinality(claim_at_least('running', %d)) AS claimed \gset
SELECT time_of_cancel(ids) FROM held;
ROLLBACK;
SQL
note('to cancel running jobs after many claims takes ' . times_of(sprintf($cancel, 0), sprintf($cancel, 40000)) . ' times as long');

done_testing();
