# A job that is enqueued while a new database is loaded makes the janitor open segment 1, as a later job does.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('first_segment');
scheduler_of($node);
loaded($node);

arm($node, 'load-between-segments');
$node->safe_psql('postgres', 'create database other');
$node->safe_psql('other', 'create extension tq');
$node->safe_psql('other', q{select tq_create_queue('q')});    # an unused database is not loaded
standing($node, 'load-between-segments');
my $job = $node->safe_psql('other', q{select tq_enqueue('q')});
release($node, 'load-between-segments');
loaded($node, 'other');
ok(segment_after($node, 0, 'other'), 'segment 1 is opened');
is($node->safe_psql('other', q{select id from tq_claim('q', wait => '3 min')}), $job, 'the job is there');

check_journal($node, undef, 'other');
$node->stop;
done_testing();
