#!/usr/bin/perl
# A tq worker with DBD::Pg.   usage: worker.pl QUEUE NAME   (and the usual PG* variables)
use v5.32;
use warnings;

use DBI;
use IO::Handle;
use JSON::PP qw(decode_json);
use Time::HiRes qw(sleep time);

my ($queue, $name) = @ARGV;
my $lease = 3;    # seconds; renewed after a third of it
my $stopping = 0;
local $SIG{TERM} = sub { $stopping = 1 };

# Errors: a hash is raised by this program, anything else by DBI; $dbh->state has its SQLSTATE.
sub stop_work { die { error => $_[0], fatal => $_[1] // 0 } }

sub note
{
	my ($event, $job, $word) = @_;
	return unless $ENV{WORK_LOG};
	open my $log, '>>', $ENV{WORK_LOG} or die "$ENV{WORK_LOG}: $!";
	syswrite $log, sprintf("%.6f %s %s %s %s %s %s\n", time, $name, $event, @$job{qw(id lease attempt)}, $word);
	return;
}

sub claim
{
	my ($dbh) = @_;
	return $dbh->selectrow_hashref(<<'SQL', undef, $queue, $name, "$lease s");
SELECT id, lease, attempt, payload, extract(epoch FROM lease_expires_at) AS until
FROM tq_claim(?, worker => ?, lease_for => ?, wait => '2 s')
SQL
}

# The slow work, outside any transaction; checks the lease now and then.
sub work
{
	my ($dbh, $job) = @_;
	my $payload = $job->{payload};
	stop_work('the bank does not answer') if $job->{attempt} <= ($payload->{failures} // 0);
	stop_work('nothing to book', 1) if $payload->{amount} <= 0;
	my $renewed = time;
	my $end = $renewed + ($payload->{seconds} // 0);
	while ((my $left = $end - time) > 0)
	{
		sleep($left < 0.05 ? $left : 0.05);
		next if time - $renewed < $lease / 3;
		$renewed = time;
		my ($action) = $dbh->selectrow_array('SELECT action FROM tq_heartbeat(?, ?)', undef, @$job{qw(id lease)});
		stop_work('stopped as asked') if $action eq 'lost' || $action eq 'cancel';
		$stopping = 1 if $action eq 'quiet';
	}
	return;
}

sub complete
{
	my ($dbh, $job) = @_;
	note('end', $job, 'complete');
	$dbh->begin_work;    # both or neither
	$dbh->do('INSERT INTO booking VALUES (?, ?, ?, ?)', undef, $job->{id}, @{ $job->{payload} }{qw(transfer amount)}, $name);
	my ($answer) = $dbh->selectrow_array('SELECT tq_complete(?, ?)', undef, @$job{qw(id lease)});
	$dbh->commit;
	return $answer;
}

sub fail
{
	my ($dbh, $job, $error, $fatal) = @_;
	note('end', $job, $fatal ? 'kill' : 'fail');
	my ($answer) =
	  $dbh->selectrow_array('SELECT tq_fail(?, ?, ?, fatal => ?)', undef, @$job{qw(id lease)}, $error, $fatal ? 't' : 'f');
	return $answer;
}

sub process
{
	my ($dbh, $job) = @_;
	note('start', $job, $job->{until});
	$job->{payload} = decode_json($job->{payload});
	my $answer = eval { work($dbh, $job); complete($dbh, $job) };
	if (my $error = $@)
	{
		my $state = ref $error ? '' : $dbh->state;
		die $error unless $dbh->ping;
		$dbh->rollback unless $dbh->{AutoCommit};
		$answer = $state eq 'TQ001' ? 'lost' : eval {
			ref $error ? fail($dbh, $job, @$error{qw(error fatal)}) : fail($dbh, $job, $error, 0);
		};
		die $@ if !$answer && $dbh->state ne 'TQ001';
	}
	note('told', $job, $answer // 'lost');    # lost: another worker has the job by now
	return;
}

until ($stopping)
{
	eval {
		my $dbh = DBI->connect('dbi:Pg:', '', '', { RaiseError => 1, PrintError => 0, AutoCommit => 1 });
		until ($stopping)
		{
			my $job = claim($dbh);
			process($dbh, $job) if $job;
		}
		1;
	} or do {
		# the server restarts: jobs in hand run again after their leases expire
		warn $@;
		sleep 0.2;
	};
}
