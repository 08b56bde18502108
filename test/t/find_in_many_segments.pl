# tq_list, tq_jobs and tq_dead over many segments: what a call reads is bounded, whatever there is; segments that cannot have such jobs are
# skipped, also after a restart; segment 0 and ranges of ids that overlap keep the order; locks are given back.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $segments = 30;
my $node = tq_node('many', conf => <<CONF);
tq.segment_rows = 200
tq.segment_interval = 20d
tq.retention = 10d
tq.max_live_jobs = 2000
tq.audit_interval = 0
CONF
scheduler_of($node);

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Pages that a statement reads, hit or not. The catalogs are warm.
sub pages_read
{
	my ($statement) = @_;
	my $buffers = q{select (p -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::int + (p -> 0 -> 'Plan' ->> 'Shared Read Blocks')::int};
	$node->safe_psql('postgres', <<SQL);
create or replace function pg_temp.pages(statement text) returns int language plpgsql as \$\$
declare
	p jsonb;
begin
	execute 'explain (analyze, buffers, format json) ' || statement into p;
	return ($buffers);
end
\$\$;
select min(pg_temp.pages(\$q\$$statement\$q\$)) from generate_series(1, 3)
SQL
}

# All ids of tq_list, page by page.
sub listed
{
	my ($arguments, $max) = @_;
	my (@ids, $after);
	while (1)
	{
		my @rows = map { [ split /\|/, $_, -1 ] } split /\n/,
		  sql("select id, next_after from tq_list($arguments" . ($arguments ? ', ' : '') . "max => $max, after => " . ($after // 'null') . ')');
		last unless @rows;
		push @ids, map { $_->[0] } grep { $_->[0] ne '' } @rows;
		$after = $rows[-1][1];
	}
	return join(' ', @ids);
}

sub wanted { return sql("select string_agg(id::text, ' ' order by id $_[1]) from tq_jobs where $_[0]"); }

# Segments of 200 jobs: all succeed but one in "rare", which is cancelled, and in one of ten segments a dead one; the last has jobs that wait.
sql(q{select tq_create_queue(q) from unnest('{mail,rare,none}'::text[]) q});
for my $i (1 .. $segments)
{
	sql(q{select tq_enqueue_many('mail', array_fill('{}'::jsonb, array[199])) is null; select tq_enqueue('rare', kind => 'k') > 0});
	sql(q{select count(tq_fail(id, lease, 'x', fatal => true)) from tq_claim('mail')}) if $i % 10 == 0;
	sql(q{select count(tq_complete(id, lease)) from tq_claim('mail', 200)});
	sql(q{select count(tq_cancel(id)) from tq_jobs where queue = 'rare' and state = 'ready'});
	segment_after($node, $i - 1);
}
sql(q{select tq_enqueue_many('mail', array_fill('{}'::jsonb, array[50])) is null; select count(*) from tq_claim('mail', 5, 'w', lease_for => '1 d')});
until_true($node, "select count(*) >= $segments - 1 from tq.segment where finished_at is not null", 'finished segments');
is(sql('select count(*) from tq_jobs'), 200 * $segments + 50, 'there are many jobs');
cmp_ok(sql('select count(*) from tq.job_0'), '>', 0, 'some of them in segment 0');
my $all = pages_read('select * from tq_jobs');

# --- order

for my $round ('at first', 'after a restart')
{
	is(listed('', 997), wanted('true', 'desc'), "$round: all jobs, newest first");
	is(listed('newest => false', 1000), wanted('true', 'asc'), "$round: oldest first");
	is(listed(qq{'rare'}, 7), wanted(q{queue = 'rare'}, 'desc'), "$round: a queue");
	is(listed(qq{'mail', '$_'}, 100), wanted(qq{queue = 'mail' and state = '$_'}, 'desc'), "$round: its jobs that are $_") for qw(ready running dead);
	is(listed(qq{state => 'dead', newest => false}, 2), wanted(q{state = 'dead'}, 'asc'), "$round: dead jobs");
	is(listed(qq{state => 'cancelled'}, 10), wanted(q{state = 'cancelled'}, 'desc'), "$round: cancelled jobs");
	is(sql('select count(*) from tq_dead'), $segments / 10, "$round: tq_dead has them all");

	# --- bounds

	cmp_ok(pages_read($_->[0]), '<', $all / $_->[1], "$round: $_->[0] reads little")
	  for [ 'select * from tq_list()', 20 ], [ q{select * from tq_list('rare', max => 5)}, 20 ], [ q{select * from tq_list('mail', 'running')}, 20 ],
	  [ q{select * from tq_list(state => 'ready')}, 10 ], [ q{select * from tq_list(created_to => now() - interval '1 d', max => 5)}, 3 ],
	  [ 'select * from tq_jobs limit 10', 50 ], [ 'select * from tq_dead limit 1', 5 ];
	my ($limit) = map { pages_read($_) } q{select * from tq_list(search => '{"no": 1}')};
	cmp_ok($limit, '<', $all / 2, "$round: a search reads a part");
	cmp_ok(pages_read($_), '<', $all / 20, "$round: $_ skips finished segments")
	  for q{select * from tq_list('mail', 'expired')}, q{select * from tq_list('rare', 'buried', newest => false)};
	my ($cursor) = sql(q{select next_after from tq_list('none', 'succeeded')});
	cmp_ok(sql('select count(distinct tableoid) from tq.job where id > ' . ($cursor || 0)), '<=', 16, "$round: the first call of a session opens few segments");
	is(sql(qq{select next_after < $cursor from tq_list('none', 'succeeded', after => $cursor)}), 't', "$round: the next call goes on");
	my @calls = split /\n/, sql(q{select count(*) from tq_list('none', 'succeeded');} x 5);
	is("$calls[0] $calls[-1]", '1 0', "$round: one call is enough when the session knows the segments");
	$node->restart;
	loaded($node);
}

# --- ends of statements

is(sql(q{begin; declare c cursor for select * from tq_dead; fetch 1 from c; declare d cursor for select * from tq_jobs; fetch 1 from d;
	select count(*) from pg_locks l join pg_class k on k.oid = l.relation where k.relname ~ '^(job|event)_[0-9]' and l.pid = pg_backend_pid()}) =~ s/.*\n//sr,
	0, 'open cursors hold no lock on a segment');
is(sql(q{set client_min_messages = warning; begin; select 1 from tq_list() limit 1; select 1 from (select * from tq_jobs limit 1) x;
	select count(*) from pg_locks l join pg_class k on k.oid = l.relation where k.relname ~ '^(job|event)_[0-9]' and l.pid = pg_backend_pid()}) =~ s/.*\n//sr,
	0, 'nor does a statement that has ended');

# --- many at a time

is(sql(q{select changed, next_after is null from tq_retry_where(null, dry_run => true)}), $segments / 10 . '|t', 'a dry run finds all dead jobs');
is(sql(q{select changed from tq_cancel_many('mail', 'ready', max => 20)}), 20, 'some are cancelled');
is(sql(q{select ready from tq_stats() where queue = 'mail'}), 25, 'the others wait');
is(sql(q{select changed from tq_retry_where('mail')}), $segments / 10, 'dead jobs of finished segments are retried');
is(sql(q{select count(id) from tq_list('mail', 'dead')}) . sql('select count(*) from tq_dead'), '00', 'none is left');
is(sql(q{select count(tq_bury(id, lease, 'again')) from tq_claim('mail', 100)}), 25 + $segments / 10, 'all that is ready is buried');
is(listed(qq{'mail', 'buried'}, 10), wanted(q{queue = 'mail' and state = 'buried'}, 'desc'), 'and listed');
until_true($node, 'select count(*) <= 1 from tq.segment where finished_at is null', 'the segments are finished again');
is(listed(qq{'mail', 'buried'}, 10), wanted(q{queue = 'mail' and state = 'buried'}, 'desc'), '... and listed once more');
is(sql(q{select count(*) from tq.segment s where finished_at is not null and (ended ~ 'b') is distinct from
	exists (select from tq.event e where e.tableoid = format('tq.event_%s', s.number)::regclass and e.type = 'b')}), 0, 'the ends of jobs are recorded by segment');
is(sql(q{select changed from tq_purge_many(null, 'cancelled', max => 15)}), 15, 'records of some are purged');
is(listed(qq{state => 'cancelled'}, 10), wanted(q{state = 'cancelled'}, 'desc'), '... and not listed');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6|leak/, 'nothing alarming in the log');
$node->stop;
done_testing();
