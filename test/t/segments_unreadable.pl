# A segment locked in ACCESS EXCLUSIVE mode blocks its own jobs only. Lanes and timers load the jobs of other segments,
# and the skipped jobs come in order when the lock is released. A segment with a damaged page is left out until it is
# repaired.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('unreadable_segment', conf => <<CONF);
tq.segment_rows = 600
tq.retention = '1h'
CONF
scheduler_of($node);
my $locker = session($node);

sub many
{
	my ($queue, $n) = @_;
	return split /\n/, $node->safe_psql('postgres', "select unnest(tq_enqueue_many('$queue', array_fill('{}'::jsonb, array[$n])))");
}

sub segment_of
{
	my ($id) = @_;
	my ($n) = $node->safe_psql('postgres', "select tableoid::regclass from tq.job where id = $id") =~ /job_(\d+)/;
	return $n;
}

sub sealed
{
	my ($n) = @_;
	segment_after($node, $n);
	return janitor_away($node);
}

$node->safe_psql('postgres', q{select tq_enqueue('first')});
segment_after($node, 0);
janitor_away($node);

my $later = $node->safe_psql('postgres', q{select tq_enqueue('later', delay => '1 day')});
my @a = many('a', 600);
my $locked = segment_of($a[0]);
sealed($locked);
my $other = $node->safe_psql('postgres', q{select tq_enqueue('other', delay => '1 day')});
my @b = many('b', 600);
isnt(segment_of($b[0]), $locked, 'two queues with more jobs than memory holds, in two segments');
sealed(segment_of($b[0]));

for my $table ('job', 'event')
{
	ask($locker, "begin; lock table tq.${table}_$locked");
	my @half = splice @b, 0, 300;
	is_deeply([ take_all($node, 'b', 300) ], \@half, "jobs are read from disk while a segment's table of ${table}s is locked, in order");
	ask($locker, 'commit');
}
my @some = splice @a, 0, 100;
is_deeply([ take_all($node, 'a', 100) ], \@some, 'the others come when the lock is gone, in order');

# a lane with jobs in both: unlocked jobs continue, and the locked ones keep their order
my @more = many('a', 100);
ask($locker, "begin; lock table tq.event_$locked");
clock($node, 86500, 86500);
is($node->safe_psql('postgres', q{select id from tq_claim('other', wait => '3 min')}), $other, 'a delayed job is read in while another segment is locked');
is($node->safe_psql('postgres', q{select count(*) from tq_claim('later')}), 0, 'one in the locked segment is not');
ask($locker, 'commit');
is($node->safe_psql('postgres', q{select id from tq_claim('later', wait => '3 min')}), $later, 'but when the lock is gone');
is_deeply([ take_all($node, 'a', 600) ], [ @a, @more ], 'all that is left comes in order');
check_journal($node);
like($node->safe_psql('postgres', 'select tq_metrics()'), qr/^tq_audit_findings_total\{[^}]*missing_job[^}]*\} 0$/m, 'nothing was taken for lost');
leave($locker);

# --- a damaged page: one in the middle, and the first one ---

my $blcksz = $node->safe_psql('postgres', 'show block_size');

# Replaces a page of a file, and returns its former contents.
sub replace_page
{
	my ($file, $page, $with) = @_;
	open my $handle, '+<:raw', $file or die "$file: $!";
	seek $handle, $page * $blcksz, 0;
	read $handle, my $before, $blcksz;
	seek $handle, $page * $blcksz, 0;
	print $handle $with;
	close $handle or die "$file: $!";
	return $before;
}

my $unreadable = q{from tq_health() where item = 'segments that cannot be read'};
for my $page (2, 0)
{
	my @damaged = many("damaged$page", 600);
	my $n = segment_of($damaged[0]);
	sealed($n);
	my @whole = many("whole$page", 100);
	isnt(segment_of($whole[0]), $n, 'jobs of two queues, in two segments');
	my $file = $node->data_dir . '/' . $node->safe_psql('postgres', "select pg_relation_filepath('tq.job_$n')");
	$node->stop;
	my $from = -s $node->logfile;
	my $before = replace_page($file, $page, 'no page' x ($blcksz / 7));
	$node->start;
	loaded($node);
	is_deeply([ take_all($node, "whole$page", 100) ], \@whole, "with page $page damaged, jobs of other segments are claimed");
	ok($node->safe_psql('postgres', "select tq_enqueue('whole$page')") > 0, '... and enqueued');
	is($node->safe_psql('postgres', "select status, value $unreadable"), "error|$n", 'tq_health names the segment');
	$node->safe_psql('postgres', 'select tq_reload()');    # reads it again up to the page, which is no finding
	my $log = slurp_file($node->logfile, $from);
	my @said = $log =~ /segment $n cannot be read and is left out/g;
	is(scalar(@said), 1, 'the log says so once');
	unlike($log, qr/ERROR:  invalid page/, '... and has no other error');
	replace_page($file, $page, $before);
	$node->safe_psql('postgres', 'select tq_reload()');
	ok(until_true($node, "select status = 'ok' $unreadable", 'a whole segment'), 'it is read again after a repair');
	is_deeply([ take_all($node, "damaged$page", 600) ], \@damaged, '... and its jobs come in order');
}
check_journal($node);
like($node->safe_psql('postgres', 'select tq_metrics()'), qr/^tq_audit_findings_total\{[^}]*missing_job[^}]*\} 0$/m, 'no job was taken for lost');
$node->stop;
done_testing();
