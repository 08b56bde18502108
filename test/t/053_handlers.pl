# Handlers: jobs that executors inside the server run. Hazard: H9.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('handlers', conf => <<CONF);
max_worker_processes = 12
tq.executor_idle = '1 s'
CONF
scheduler_of($node);

sub sql
{
	my ($text) = @_;
	return $node->safe_psql('postgres', $text);
}

# The state of a job, once it is so.
sub becomes
{
	my ($job, $state) = @_;
	until_true($node, "select state = '$state' from tq_get($job)", "job $job is $state");
	return sql("select state from tq_get($job)");
}

#
# End to end
#
sql(<<'SQL');
create table done (job bigint, payload jsonb, who text, session text, path text);
create function work(job tq_job) returns jsonb language plpgsql as $$
begin
	insert into done values (job.id, job.payload, current_user, session_user, current_setting('search_path'));
	return jsonb_build_object('got', job.payload);
end $$;
select tq_create_queue('mail');
select tq_handle('mail', 'send', 'work(tq_job)'::regprocedure);
SQL
my $job = sql(q{select tq_enqueue('mail', '{"to": 1}', kind => 'send')});
is(becomes($job, 'succeeded'), 'succeeded', 'a handler runs a job');
is(sql("select result from tq_get($job)"), '{"got": {"to": 1}}', 'what it returns is the result');
is(sql("select payload from done where job = $job"), '{"to": 1}', 'what it did is there');
is(sql("select string_agg(type::text, ' ' order by step) from tq.event where job_id = $job"), 'c s', 'its claim was journalled');
sql(q{select tq_enqueue('mail', kind => 'send') from generate_series(1, 500)});
until_true($node, q{select count(*) = 501 from done});
is(sql(q{select count(distinct job) from done}), '501', 'each job is run once');
until_true($node, q{select count(*) = 0 from pg_stat_activity where backend_type = 'tq executor'}, 'idle executors leave');
check_journal($node);
$node->stop;
done_testing();
