# Jobs that wait for others: freed when the last parent has ended, whoever ends it and whatever happens between (H17); batches.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('dependencies', conf => <<CONF);
tq.segment_rows = 150
tq.segment_interval = '20d'
tq.lease = '1h'
max_connections = 30
CONF
scheduler_of($node);
my $one = session($node);
my $other = session($node);

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub crash
{
	$node->stop('immediate');
	$node->start;
	loaded($node);
	scheduler_of($node);
	return;
}

sub enqueue { my ($queue, $args) = @_; return sql("select tq_enqueue('$queue'" . ($args ? ", $args" : '') . ')'); }

# A job that waits for others.
sub child { my ($queue, $parents, $args) = @_; return enqueue($queue, "depends_on => '{$parents}'" . ($args ? ", $args" : '')); }

sub state_of { return sql("select state from tq_get($_[0])"); }

sub becomes { my ($job, $state) = @_; return until_true($node, "select state = '$state' from tq_get($job)", "$job $state"); }

# Nobody waits for anything any more, and the resolver knows.
sub settled
{
	return until_true($node, 'select count(*) = 0 from tq.dependency', 'no dependencies');
}

#
# one parent
#
my $p = enqueue('p');
my $c = child('c', $p);
is(state_of($c), 'blocked', 'a job that depends on another is blocked');
is(sql("select ready || ' ' || live from tq_stats() where queue = 'c'"), '0 1', 'and not among the ready ones');
is(sql(q{select count(*) from tq_claim('c')}), '0', 'nobody can claim it');
sql(q{select tq_complete(id, lease, '{"answer": 42}') from tq_claim('p')});
ok(becomes($c, 'ready'), 'when its parent has succeeded it is ready');
is(sql(q{select parents from tq_claim('c')}), qq({"$p": {"state": "succeeded", "result": {"answer": 42}}}),
	'and is given the result');
is(sql("select string_agg(event, ' ' order by step) from tq_history($c)"), 'enqueued freed claimed', 'its history says so');
ok(settled(), 'the registry is empty');

# across a restart
$p = enqueue('p');
$c = child('c', $p);
crash();
is(state_of($c), 'blocked', 'after a crash it is blocked as before');
sql(q{select tq_complete(id, lease) from tq_claim('p')});
ok(becomes($c, 'ready'), 'and is freed');
crash();
is(state_of($c), 'ready', 'after another one it is ready');
is(sql("select count(*) from tq_claim('c', 10) where id = $c"), '1', 'and can be claimed');

check_journal($node);
leave($one, $other);
$node->stop;
done_testing();
