# A job whose transaction always fails takes no other along: after two rollbacks it is handed out alone.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('bad_jobs');
scheduler_of($node);
sub sql { return $node->safe_psql('postgres', $_[0]); }
my $session = session($node);
sub says { return ask($session, $_[0]); }

# --- ten jobs, claimed and done in one transaction; one always fails -------------------------------------------------

sql(q{select tq_create_queue('q', '{"max_attempts": 3}')});
my @ids = split /\n/, sql(q{select unnest(tq_enqueue_many('q', array(select jsonb_build_object('n', g) from generate_series(1, 10) g)))});
my $bad = $ids[3];
my $work = q{select count(a) + count(b) from (select 1 / ((payload->>'n')::int - 4) a, tq_complete(id, lease) b from tq_claim('q', 10)) x};
like(says($work), qr/22012/, 'the first batch fails as a whole') for 1 .. 2;
is(says("select string_agg(distinct event || ' ' || (lease is null) || ' ' || attempt, ',') from unnest(array[@{[join ',', @ids]}]) i, tq_history(i) where event <> 'enqueued'"),
	'rolled back true 1', 'the history of each shows it');
is(says("select string_agg(reason, ',') from tq_history($bad) where event = 'rolled back'"), '2 transactions that had claimed the job were rolled back, one after the other', '... with a number');
my $gone = "select not exists (select from tq_jobs where queue = 'q' and state not in ('succeeded', 'dead'))";
my $worked_off = sub {
	my $done = says($gone) eq 't';
	says($work) unless $done;
	return $done;
};
until_so($worked_off, 'all have ended');
is(says(q{select string_agg(state || ' ' || n, ', ' order by state) from (select state, count(*) n from tq_jobs where queue = 'q' group by 1) x}), 'dead 1, succeeded 9',
	'only the culprit dies');
is(says("select state || ' ' || error from tq_get($bad)"), 'dead the transaction of its claim was rolled back too often', '... by its own rollbacks');
is(says("select count(*) from unnest(array[@{[join ',', grep { $_ != $bad } @ids]}]) i, tq_history(i) where event = 'rolled back'"), 0, 'those that succeed forget theirs');

# --- several claims in one transaction -------------------------------------------------------------------------------

@ids = split /\n/, sql(q{select unnest(tq_enqueue_many('several', array_fill('{}'::jsonb, array[3])))});
is(says("begin; select count(*) from tq_claim('several', 10); rollback"), 3, "rollback $_: all come together") for 1 .. 2;
says('begin');
is(says(q{select id from tq_claim('several', 10)}), $ids[0], 'then a claim of ten gets one');
is(says(q{select id from tq_claim('several', 10, wait => '1 h')}), '', '... the next of the transaction none, and does not wait');
is(says(qq{select id from tq_claim_any(array['several', 'q'], wait => '1 h')}), '', '... nor of another queue');
says('commit');
my $new = sql(q{select tq_enqueue('several', priority => 1)});
is(says(qq{begin; select id from tq_claim('several', 10)}), $new, 'a job without rollbacks does not come with one that has some');
is(says(q{select id from tq_claim('several', 10, wait => '1 h')}), '', '... not in the same transaction either');
says('commit');
says('begin; savepoint s');
is(says(q{select id from tq_claim('several', 10)}), $ids[1], 'in a savepoint');
says('rollback to s');
is(says(q{select id from tq_claim('several', 10)}), $ids[2], '... that is rolled back: the next may be claimed');
says('commit');
leave($session);
$node->stop;
done_testing();
