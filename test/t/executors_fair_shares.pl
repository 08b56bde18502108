# A handler with long jobs does not take the last executor while another handler has jobs and no executor.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('executor_shares', conf => <<CONF);
max_worker_processes = 16
tq.max_executors = 4
CONF
scheduler_of($node);
sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(<<'SQL');
create function slow(job tq_job) returns void language sql as $$select pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1)$$;
create function quick(job tq_job) returns void language sql as $$select$$;
select tq_create_queue(q) from unnest('{slow,quick}'::text[]) q;
select tq_handle('slow', null, 'slow(tq_job)'::regprocedure);
select tq_handle('quick', null, 'quick(tq_job)'::regprocedure);
SQL
my $gate = session($node);
ask($gate, 'select pg_advisory_lock(1)');
sql(q{select tq_enqueue('slow') from generate_series(1, 8)});
my $waiting = q{from pg_stat_activity where backend_type = 'tq executor' and state = 'active' and query ~ 'public.slow'};
until_true($node, "select count(*) >= 3 $waiting");
for my $round (1 .. 3)
{
	my $job = sql(q{select tq_enqueue('quick')});
	ok(until_true($node, "select state = 'succeeded' from tq_get($job)"), 'the quick job has the executor that is left');
}
is(sql("select count(*) $waiting"), 3, 'while three run long jobs');
is(sql(q{select running from tq_stats() where queue = 'slow'}), 3, 'and no fourth is started');

# no other handler needs the last executor
sql(q{select tq_pause('quick')});
ok(until_true($node, "select count(*) = 4 $waiting"), 'the last executor runs the next long job if no other handler has jobs');
my $job = sql(q{select tq_resume('quick'), tq_enqueue('quick')}) =~ s/.*\|//r;
is(sql("select state from tq_get($job)"), 'ready', 'which keeps its executor to its end');
ask($gate, 'select pg_advisory_unlock(1)');
ok(until_true($node, "select state = 'succeeded' from tq_get($job)"), 'then all jobs are run');
ok(until_true($node, q{select live = 0 from tq_stats() where queue = 'slow'}), 'all');
check_journal($node);
leave($gate);
$node->stop;
done_testing();
