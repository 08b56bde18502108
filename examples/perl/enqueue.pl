#!/usr/bin/perl
# Enqueues with DBD::Pg.   usage: enqueue.pl QUEUE NAME COUNT   (and the usual PG* variables)
# Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
# so no worker ever sees its job.
use v5.32;
use warnings;

use DBI;
use JSON::PP qw(encode_json);

my ($queue, $name, $count) = @ARGV;
my $dbh = DBI->connect('dbi:Pg:', '', '', { RaiseError => 1, PrintError => 0, AutoCommit => 1 });
foreach my $i (1 .. $count)
{
	my ($transfer, $amount) = ("$name-$i", $i % 10 == 9 ? 0 : $i);
	my $payload = encode_json(
		{ transfer => $transfer, amount => $amount, seconds => $i % 4 / 20, failures => $i % 5 == 0 ? 1 : 0 });
	$dbh->begin_work;
	$dbh->do('INSERT INTO transfer VALUES (?, ?)', undef, $transfer, $amount);
	my ($id) = $dbh->selectrow_array("SELECT tq_enqueue(?, ?, kind => 'transfer', delay => ?)",
		undef, $queue, $payload, $i % 4 == 0 ? '300 ms' : undef);
	if ($i % 7 == 0)
	{
		$dbh->rollback;
	}
	else
	{
		$dbh->commit;
		say "$transfer $id";
	}
}
$dbh->disconnect;
