# Load from several processes (test/clients/load.py), and the comparison of their answers with the journal
# (test/chaos/checker.py).

package TqLoad;

use strict;
use warnings;

use File::Basename qw(dirname);
use IPC::Run ();
use List::Util qw(sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $clients = dirname(__FILE__) . '/../clients';
my $checker = dirname(__FILE__) . '/../chaos/checker.py';

# else pg_ctl gives up after a minute
$ENV{PGCTLTIMEOUT} //= $PostgreSQL::Test::Utils::timeout_default;

# $dsn: where the clients connect, during their whole life; $database: its name there, if not postgres. TQ_SEED=...
# repeats a run.
sub new
{
	my ($class, $name, $dsn, $database) = @_;
	my $seed = $ENV{TQ_SEED} || int(time);
	srand($seed);
	note("TQ_SEED=$seed");
	return bless {
		name => $name,
		dsn => $dsn,
		database => $database // 'postgres',
		seed => $seed,
		dir => PostgreSQL::Test::Utils::tempdir,
		ledgers => [],
		crashes => [],
		running => {}
	}, $class;
}

# Starts more clients: producer, worker or drain. Producers may pause between two transactions.
sub start
{
	my ($self, $role, $n, $pace) = @_;
	for (1 .. $n)
	{
		my $name = $role . @{ $self->{ledgers} };
		my $ledger = "$self->{dir}/$name.ledger";
		push @{ $self->{ledgers} }, $ledger;
		push @{ $self->{running}{$role} }, IPC::Run::start(
			[
				'/usr/bin/python3', "$clients/load.py", $role, $self->{dsn}, $ledger, "$self->{dir}/stop_$role",
				"$self->{seed}.$name", 'load', $pace // 0
			],
			'<', \undef, '>', $self->log($name), '2>&1');
	}
	return;
}

sub log
{
	my ($self, $name) = @_;
	return "$PostgreSQL::Test::Utils::log_path/$self->{name}_$name.log";
}

# One test: all clients of a role end, without an error.
sub stop
{
	my ($self, $role) = @_;
	append_to_file("$self->{dir}/stop_$role", '');
	my @failed = grep { !$_->finish } @{ $self->{running}{$role} };
	delete $self->{running}{$role};
	unlink "$self->{dir}/stop_$role";
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar(@failed), 0, "every $role ended well") or diag(map { slurp_file($_) } glob($self->log("$role*")));
	return;
}

# Waits until the clients have written so many bytes more; gives up if they write none for long.
sub progress
{
	my ($self, $bytes) = @_;
	my $size = sub { sum0(map { -s $_ // 0 } @{ $self->{ledgers} }) };
	my $until = $size->() + $bytes;
	my ($last, $end) = (-1, 0);
	while ((my $now = $size->()) < $until)
	{
		($last, $end) = ($now, time + $PostgreSQL::Test::Utils::timeout_default) if $now > $last;
		return 0 if time > $end;
		usleep(100_000);    # poll
	}
	return 1;
}

# Takes the server down and brings it back by calling $sub; the ledgers record it.
sub crash
{
	my ($self, $sub) = @_;
	push @{ $self->{crashes} }, [ 'crash', time ];
	$sub->();
	push @{ $self->{crashes} }, [ 'down', time ];
	return;
}

# Stops producers and workers; then claims and completes all remaining jobs. Gives up if none ends for long. Three tests or more.
sub drain
{
	my ($self, $node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$self->stop($_) for sort keys %{ $self->{running} };
	my $left = <<'SQL';
select count(*) from (select distinct id from tq.job) j
where not exists (select from tq.event e where e.job_id = j.id and e.type in ('s', 'd', 'b', 'x', 'e', 'p'))
SQL
	note($node->safe_psql($self->{database}, $left) . ' jobs left to drain');
	$self->start('drain', 2);
	my ($last, $end) = ('', time + $PostgreSQL::Test::Utils::timeout_default);
	until ($last eq '0' || time > $end)
	{
		usleep(100_000);    # poll
		my ($code, $now) = $node->psql($self->{database}, $left);
		($last, $end) = ($now, time + $PostgreSQL::Test::Utils::timeout_default) if $code == 0 && $now ne $last;
	}
	is($last, '0', 'everything could be drained');
	$self->stop('drain');
	return;
}

# One test for each promise, skipped if there is nothing to judge.
sub check
{
	my ($self, $node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	append_to_file("$self->{dir}/driver.ledger", join('', map { sprintf("%.6f server %s\n", $_->[1], $_->[0]) } @{ $self->{crashes} }));
	$node->safe_psql($self->{database}, 'create extension if not exists pageinspect');    # the checker uses it
	my ($out, $err);
	IPC::Run::run(
		[
			'/usr/bin/python3', $checker, $node->connstr($self->{database}),
			"$self->{dir}/driver.ledger", @{ $self->{ledgers} }
		],
		'>', \$out, '2>', \$err);
	is($err, '', 'the ledgers could be read');
	foreach my $line (split /\n/, $out)
	{
		if ($line =~ /^# (.*)/) { note($1) }
		elsif ($line =~ /^ok - (.*) # SKIP (.*)/)
		{
		  SKIP: { skip("$2: $1", 1) }
		}
		else { ok($line =~ /^ok - /, $line =~ s/^(not )?ok - //r) }
	}
	return;
}

1;
