# Segments whose id ranges overlap, because rows with younger ids were added by hand. Every id is found, and what memory
# keeps for the jobs of a segment is freed with the segment.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('wide', conf => "tq.segment_rows = 10\ntq.segment_interval = 10h\ntq.retention = 1h\ntq.dead_retention = 1d\n");
scheduler_of($node);
my $session = session($node);

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub fill
{
	my ($queue) = @_;
	my $before = sql('select max(number) from tq.segment');
	my $id = sql("select ids[1] from tq_enqueue_many('$queue', array_fill('{}'::jsonb, array[10])) ids");
	until_true($node, "select max(number) > $before from tq.segment", 'a full segment');
	return sql("select tableoid::regclass from tq.job where id = $id") =~ s/.*job_//r;
}

sub gone { return "select to_regclass('tq.job_$_[0]') is null"; }

sql(q{select tq_enqueue('first')});
until_true($node, 'select max(number) = 1 from tq.segment', 'segment 1');
my @wide = map { fill("queue $_") } 1 .. 4;
# memory keeps data for jobs of a segment in the middle
my $batch = sql(q{select tq_batch_open('callback')});
sql("select tq_enqueue('member', options => '{\"batch\": $batch}'), tq_batch_close($batch)");
work_off($node, 'member');
is(join(',', take_all($node, 'callback', 1)), $batch, 'a batch is over');
my $fired = sql(q{select tq_enqueue('fired')});
is(scalar(take_all($node, 'fired', 1)), 1, 'a job of a schedule, too');
sql(q{select tq_schedule('rarely', 'fired', every => '1000 d')});
sql("insert into tq.schedule_fire values ('rarely', now(), $fired, now(), now() + interval '5 d', 0, 'fired')");
my $middle = fill('middle');
is(sql("select count(*) from tq.job_$middle where id in ($batch, $fired)"), 2, 'both are in one segment');
push @wide, $middle, map { fill("queue $_") } 5 .. 9;

my $young = sql(q{select tq_enqueue('young', delay => '1 day', unique_key => 'key')});
my $old = sql("select min(id) from tq.job_$wide[0]");
sql("begin; insert into tq.job_$_ (id, enqueued_at, queue_id, priority, payload)"
	  . " select nextval('tq.job_id_seq'), now(), id, 0, '{}' from tq.queue where name = 'first'; rollback")
  foreach @wide;
sql('select tq_reload()');
janitor_away($node);
is(sql("select state from tq_get($young)"), 'delayed', 'a job of the open segment is found');
is(sql("select state from tq_get($old)"), 'ready', '... and one of the oldest');
my $child = sql("select tq_enqueue('child', depends_on => array[$young])");
is(sql("select state from tq_get($child)"), 'blocked', 'others can wait for it');
is(sql(q{select tq_enqueue('young', unique_key => 'key')}), $young, 'its key is taken');

# the oldest segment cannot be dropped, so its range stays around all the others
ask($session, "begin; select count(*) from tq.job_$wide[0]");
work_off($node, $_) foreach 'first', 'middle', map { "queue $_" } 1 .. 9;
until_true($node, "select count(*) = 0 from tq.segment where finished_at is null and number <= $wide[-1]", 'all are finished');
clock($node, 7200, 0);
ok(until_true($node, gone($middle)), 'the segment in the middle is dropped');
is(sql("select to_regclass('tq.job_$wide[0]') is null"), 'f', 'the oldest is not');
ok(until_true($node, "select count(*) = 0 from tq.batch where id = $batch"), 'the record of the batch goes with it');
is(sql("select kept_until = '-infinity' from tq.schedule_fire where job_id = $fired"), 't', '... and so does what says that its job is there');
is(sql("select state from tq_get($young)"), 'delayed', 'the young one is there');
ask($session, 'commit');
leave($session);
ok(until_true($node, gone($wide[0])), 'the oldest is dropped, although a job waits for one whose id lies in its range');
is(sql("select tq_cancel($young)"), 'cancelled', 'the young one ends');
ok(until_true($node, "select state = 'cancelled' from tq_get($child)"), 'the waiting job is freed');

is(sql('select count(*) from tq_check() where expected <> found'), 0, 'counters');
check_journal($node);
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6/, 'nothing alarming in the log');
$node->stop;

done_testing();
