#!/usr/bin/perl
# The program of scripts/demo --programs, run by `tq work` for each job: prints the SHA-256 of the file that the payload
# names. Fails the first attempt of a job with "fail_once".
use strict;
use warnings;

local $/;
my $payload = <STDIN>;
my ($path) = $payload =~ /"path": "([^"]*)"/ or die "no path in $payload\n";
$path =~ s/%(..)/chr hex $1/ge;
if ($payload =~ /"fail_once": true/ && $ENV{TQ_ATTEMPT} == 1)
{
	open my $lines, '>&=', 3 or die;
	print $lines "TQ:retry 300ms\n";
	warn "as asked\n";
	exit 75;    # EX_TEMPFAIL: it is tried again
}
unless (open STDIN, '<', $path)
{
	warn "$path: $!\n";
	exit 65;    # EX_DATAERR: it is not
}
exec 'sha256sum' or die "sha256sum: $!\n";
