# tq_changes while clients enqueue, claim and finish in every way, and the server crashes: a reader that resumes sees each committed
# event of the journal once, and nothing else.

use strict;
use warnings;

use List::Util qw(shuffle);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use TqLoad;

my $node = PostgreSQL::Test::Cluster->new('changes_load');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
shared_preload_libraries = 'tq'
restart_after_crash = on
tq.max_live_jobs = 2000
tq.segment_rows = 3000
CONF
$node->start;
$node->safe_psql('postgres', q{create extension tq; select tq_create_queue('load', '{"change_retention": "1 day"}')});

my $load = TqLoad->new('changes_load', $node->connstr('postgres'));
$load->start('producer', 3, 0.02);
$load->start('worker', 3);

my ($cursor, %seen, $again) = ('null');

# Reads for so many seconds, or until nothing is left.
sub read_changes
{
	my ($seconds) = @_;
	my $until = time + ($seconds // $PostgreSQL::Test::Utils::timeout_default);
	while (time < $until)
	{
		my $max = 1 + int(rand(2 + rand(6000)));
		my ($code, $out) = $node->psql('postgres', "select coalesce(id::text, ''), coalesce(step::text, ''), next_after from tq_changes($cursor, max => $max)");
		next if $code != 0;    # the server restarts
		my @rows = map { [ split /\|/, $_, -1 ] } split /\n/, $out;
		next unless @rows;
		# a reader that stops within a page goes on after that row
		@rows = @rows[ 0 .. int(rand(@rows)) ] if rand() < 0.3;
		for (@rows)
		{
			next if $_->[0] eq '';
			$again++ if $seen{"$_->[0].$_->[1]"}++;
		}
		$cursor = "'$rows[-1][2]'";
		last if !defined $seconds && $rows[-1][1] eq '';
	}
	return;
}

for my $round (1 .. 4)
{
	ok($load->progress(20_000), 'the clients are at work');
	read_changes(1 + rand(2));
	$load->crash(sub {
		$node->stop('immediate');
		$node->start;
	}) if $round < 4;
}
$node->poll_query_until('postgres', 'select count(*) > 2000 from tq.change where job_id > 0') or die 'the clients stand still';
$load->drain($node);
read_changes();

my %journal = map { $_ => 1 } split /\n/, $node->safe_psql('postgres', <<'SQL');
select distinct id || '.0' from tq.job union select job_id || '.' || step from tq.event where type <> 'm'
SQL
cmp_ok(scalar(keys %journal), '>', 2000, scalar(keys %journal) . ' changes');
is($again // 0, 0, 'none twice');
is(join(' ', grep { !$seen{$_} } sort keys %journal), '', 'none is missing');
is(join(' ', grep { !$journal{$_} } sort keys %seen), '', 'none that was not committed');
$load->check($node);
$node->stop;
done_testing();
