# A weekend of a shop that keeps its orders as jobs, in a few seconds: tq.fake_now moves the clock. Uses retries, unique
# keys, groups, dependencies, schedules, handlers, notifications and roles of its own. The clocks change in the night;
# the server crashes once and is down until noon.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('app', conf => <<CONF);
timezone = 'Europe/Berlin'
max_worker_processes = 16
tq.segment_rows = 20
tq.max_queues = 32
CONF
scheduler_of($node);
loaded($node);

sub query { return $node->safe_psql('postgres', $_[0]) }
sub comes { return ok(until_true($node, $_[0], $_[1]), $_[1]) }
sub at { return fake_now($node, $_[0]) }
sub state { return query("select state from tq_get($_[0])") }
sub reaches { return comes("select state = '$_[1]' from tq_get($_[0])", $_[2]) }

# A statement by one of the shop's roles.
sub as
{
	my ($role, $sql) = @_;
	return $node->safe_psql('postgres', "set session authorization $role;\n$sql");
}

# The shop's worker waits for a job of a kind and calls a finish verb for it. Returns its id, the verb's answer and the
# requested columns.
sub work
{
	my ($queue, $kind, $end, $more) = @_;
	return as('shop_worker', "with c as materialized (select * from tq_claim('$queue', kinds => array['$kind'], worker => 'w1', wait => '3 min'))"
		  . " select c.id, (select $end offset 0)" . ($more ? ", $more" : '') . ' from c');
}

# The job of a schedule's last time, when that time has come.
sub fired
{
	my ($name, $time) = @_;
	comes("select last_at = '$time' and last_outcome = 'fired' from tq_schedules where name = '$name'", "the schedule $name fires at $time");
	return query("select last_job_id from tq_schedules where name = '$name'");
}

#
# Saturday evening: roles, queues, rights, tables, handlers
#
at('2027-03-27 20:00:00+01');
query(<<SQL);
create role shop_web login;
create role shop_worker login;
create role shop_app login;
create role shop_ops login;
create schema shop authorization shop_app;
grant usage on schema shop to shop_web;
select tq_create_queue('alerts');
select tq_create_queue('orders', '{"retry": {"policy": "fixed", "delay": "1 h", "jitter": 0}, "max_attempts": 3, "retention": "2 days",
	"notify": "shop", "follow_up": {"queue": "alerts", "kind": "order", "on": ["dead"]}}');
select tq_create_queue('mail', '{"lease": "10 min", "retention": "2 days"}');
select tq_grant('orders', 'shop_web', 'produce'), tq_grant('mail', 'shop_web', 'produce'), tq_grant('mail', 'shop_app', 'produce');
select tq_grant('alerts', 'shop_worker', 'consume'), tq_grant('orders', 'shop_worker', 'consume'), tq_grant('mail', 'shop_worker', 'consume');
select tq_grant('*', 'shop_app', 'create');
select tq_grant('*', 'shop_ops', 'manage'), tq_grant('*', 'shop_ops', 'monitor');
SQL
as('shop_app', <<'SQL');
create table shop.orders (id int primary key, charge bigint);
create table shop.session (id int, seen timestamptz);
create table shop.book (day date primary key, open boolean);
create table shop.closing (day date, orders bigint);
grant select, insert on shop.orders to shop_web;
select tq_create_queue('house', '{"retry": {"policy": "fixed", "delay": "10 min", "jitter": 0}, "timeout": "1 min"}');
create function shop.sweep(job tq_job) returns jsonb language plpgsql as $$
declare n int;
begin
	delete from shop.session where seen < tq_now() - interval '1 h';
	get diagnostics n = row_count;
	return jsonb_build_object('swept', n);
end $$;
create function shop.close_day(job tq_job) returns jsonb language plpgsql as $$
declare today date = ((job.headers->'schedule'->>'fire_at')::timestamptz at time zone 'Europe/Berlin')::date;
begin
	insert into shop.closing select today, count(*) from shop.orders;
	if (select open from shop.book where day = today) then
		raise exception 'the book is open' using errcode = 'P0042', detail = today::text;
	end if;
	return jsonb_build_object('closed', today);
end $$;
select tq_handle('house', 'sweep', 'shop.sweep(tq_job)'), tq_handle('house', 'close', 'shop.close_day(tq_job)');
select tq_schedule('sweep', 'house', kind => 'sweep', cron => '30 2 * * *', timezone => 'Europe/Berlin'),
	tq_schedule('close', 'house', kind => 'close', cron => '0 4 * * *', timezone => 'Europe/Berlin', catch_up => 'all');
insert into shop.session values (1, tq_now()), (2, tq_now() + interval '8 h');
insert into shop.book values ('2027-03-28', true);
SQL

# roles that monitor the queues, every hour at half past
as('shop_app', q{select tq_schedule('pulse', 'mail', kind => 'pulse', every => '1 h', options => '{"start": "2027-03-27 20:30+01"}')});
is(query(q{select string_agg(t::text, ', ') from tq_schedule_next('30 2 * * *', 'Europe/Berlin', 2) t}),
	'2027-03-28 03:00:00+02, 2027-03-29 02:30:00+02', 'half past two does not exist tonight');
is(query('select string_agg(name || next_at, $$, $$ order by name) from tq_schedules'),
	'close2027-03-28 04:00:00+02, pulse2027-03-27 20:30:00+01, sweep2027-03-28 03:00:00+02', 'schedules know that');

#
# orders, in the transaction that writes the shop's own row
#
my (%charge, %ship, %tell);
for my $order ([ 1, 'ada' ], [ 2, 'bob' ], [ 3, 'ada' ])
{
	my ($n, $customer) = @$order;
	($charge{$n}, $ship{$n}, $tell{$n}) = split /\|/, as('shop_web', <<SQL);
with charge as (insert into shop.orders values ($n, tq_enqueue('orders', '{"order": $n}', kind => 'charge', unique_key => 'order-$n', group_key => '$customer'))
		returning charge as id),
	ship as (select tq_enqueue('orders', '{"order": $n}', kind => 'ship', depends_on => array[id]) as id from charge)
select charge.id, ship.id, tq_enqueue('mail', '{"to": "$customer"}', kind => 'shipped', depends_on => array[ship.id]) from charge, ship
SQL
}
as('shop_web', q{begin; insert into shop.orders values (4, tq_enqueue('orders', '{"order": 4}', kind => 'charge')); rollback});
is(as('shop_web', q{select tq_enqueue('orders', '{"order": 1}', kind => 'charge', unique_key => 'order-1')}), $charge{1}, 'an order is charged once');
is(query('select string_agg(state || n, $$ $$ order by state desc) from (select state, count(*) n from tq_jobs where queue = $$orders$$ group by 1) s'),
	'ready3 blocked3', 'and one that was rolled back never');
my ($rc, $out, $err) = $node->psql('postgres', "set session authorization shop_web;\nselect tq_claim('orders')");
like($err, qr/permission denied for queue "orders"/, 'the web server may not take them');

my $listener = session($node);
ask($listener, 'listen shop');
my $worker = session($node);
ask($worker, 'set session authorization shop_worker');
my $held = ask($worker, q{select id || ', ' || lease from tq_claim('orders', worker => 'w2')});
is($held =~ s/,.*//r, $charge{1}, 'a worker has the first');
is(work('orders', 'charge', q{tq_fail(c.id, c.lease, 'card declined')}, 'c.attempt'), "$charge{2}|delayed|1", 'the next is not the same customer\'s, and fails');
ask($worker, "select tq_complete($held, '{\"paid\": 10}')");
is(work('orders', 'charge', q{tq_complete(c.id, c.lease, '{"paid": 30}')}), "$charge{3}|succeeded", 'then comes the customer\'s second');
until_true($node, "select bool_and(state = 'ready') from unnest(array[$ship{1}, $ship{3}]) j, tq_get(j)", 'both can be shipped');    # not one after the other
my $paid = q{(select v->'result'->'paid' from jsonb_each(c.parents) p (k, v))};
is(work('orders', 'ship', q{tq_complete(c.id, c.lease)}, $paid), "$ship{$_->[0]}|succeeded|$_->[1]", 'what is paid is shipped') for [ 1, 10 ], [ 3, 30 ];
until_true($node, "select bool_and(state = 'ready') from unnest(array[$tell{1}, $tell{3}]) j, tq_get(j)", 'both can be told');
is(work('mail', 'shipped', q{tq_complete(c.id, c.lease)}), "$tell{$_}|succeeded", 'the customer is told') for 1, 3;
is(state($ship{2}) . state($tell{2}), 'blockedblocked', 'the order that is not paid waits');
my $unpaid = $charge{2};
like(as('shop_ops', "select tq_explain($ship{2})"), qr/\b$unpaid\b/, '... for its charge');

# a newsletter, and a summary when it is sent
my $summary = as('shop_web', q{select tq_batch_open('mail', kind => 'summary')});
my $letters = as('shop_web', q{select array_length(tq_enqueue_many('mail', array_fill('{}'::jsonb, array[4]), kind => 'letter', max_attempts => 1, }
	  . "options => '{\"batch\": $summary}'), 1); select tq_batch_close($summary)");
work('mail', 'letter', q{tq_complete(c.id, c.lease)}) for 1 .. 3;
is(state($summary), 'blocked', 'three of four letters are sent');
work('mail', 'letter', q{tq_fail(c.id, c.lease, 'no such address')});
is(work('mail', 'summary', q{tq_complete(c.id, c.lease)}, q{(select string_agg(v->>'state', ' ' order by k::bigint) from jsonb_each(c.parents) p (k, v))}),
	"$summary|succeeded|succeeded succeeded succeeded dead", 'and then the last');
is(query("select open, total, done, succeeded, failed from tq_batch($summary)"), 'f|4|4|3|1', 'as its figures say');

#
# an hour later, and one more hour later
#
is(as('shop_worker', q{select count(*) from tq_claim('orders')}), '0', 'a failed charge waits');
like(as('shop_ops', "select tq_explain($charge{2})"), qr/2027-03-27 21:0\d/, 'until nine');
at('2027-03-27 21:10:00+01');
is(work('orders', 'charge', q{tq_fail(c.id, c.lease, 'card declined')}, 'c.attempt'), "$charge{2}|delayed|2", 'an hour later it is tried again');
at('2027-03-27 22:20:00+01');
is(work('orders', 'charge', q{tq_fail(c.id, c.lease, 'card declined')}, 'c.attempt'), "$charge{2}|dead|3", 'and is dead at ten');
is(as('shop_ops', q{select id || reason from tq_dead where queue = 'orders'}), "$charge{2}card declined", 'as the operators see');
reaches($_, 'cancelled', 'nothing is shipped') for $ship{2}, $tell{2};
is(work('alerts', 'order', q{tq_complete(c.id, c.lease)}, q{c.payload->>'job', c.payload->>'error'}) =~ s/^\d+//r, "|succeeded|$charge{2}|card declined",
	'... but it needs attention');
my $dead = 0;
for (1 .. 50 * $PostgreSQL::Test::Utils::timeout_default)
{
	$dead += $_ for ask($listener, 'select pg_sleep(0.02)') =~ /^Asynchronous notification "shop" .*"dead":(\d+)/mg;    # poll
	last if $dead > 0;
}
is($dead, 1, 'and listeners are notified');

#
# the night: no client is active
#
at('2027-03-28 01:50+01');
is(as('shop_app', q{select last_at from tq_schedules where name = 'sweep'}), '', 'ten minutes before the clocks change');
at('2027-03-28 01:59:58+01');
my $sweep = fired('sweep', '2027-03-28 03:00+02');
reaches($sweep, 'succeeded', 'a handler has run in the next hour');
is(query("select result, headers->'schedule'->>'fire_at' from tq_get($sweep)"), '{"swept": 1}|2027-03-28T01:00:00+00:00', '... which came two seconds later');
is(query('select count(*) from shop.session'), '1', 'what it did is done');
at('2027-03-28 04:00:01+02');
my $close = fired('close', '2027-03-28 04:00+02');
reaches($close, 'delayed', 'another one fails');
is(query("select reason, detail->>'sqlstate', detail->>'detail' from tq_history($close) where event = 'failed'"), 'the book is open|P0042|2027-03-28', '... and its error is kept');
is(query('select count(*) from shop.closing'), '0', 'what it did is not');
as('shop_app', q{update shop.book set open = false});
at('2027-03-28 04:10:02+02');
reaches($close, 'succeeded', 'ten minutes later it succeeds');
is(query('select * from shop.closing'), '2027-03-28|3', '... and has done its work once');

#
# five o'clock: the server crashes while a mail is sent, and is down until noon
#
my $mail = as('shop_web', q{select tq_enqueue('mail', '{"to": "ada"}', kind => 'bill')});
at('2027-03-28 05:00:00+02');
like(ask($worker, q{select id from tq_claim('mail', kinds => '{bill}', worker => 'w2')}), qr/^$mail$/, 'a mail is about to be sent');
comes("select exists (select from tq.event where job_id = $mail and type = 'c')", 'which the journal knows');
my $later = as('shop_web', q{select tq_enqueue('mail', '{"to": "bob"}', kind => 'bill', run_at => '2027-03-28 07:00+02')});
$node->safe_psql('postgres', "alter system set tq.fake_now = '2027-03-28 12:00:00+02'");
$node->stop('immediate');
leave($worker, $listener);
$node->start;
scheduler_of($node);
loaded($node);
is(work('mail', 'bill', q{tq_complete(c.id, c.lease)}), "$later|succeeded", 'after the downtime a mail that was due meanwhile is sent');
is(state($mail), 'running', '... and the other one is still leased to a worker that is gone');
at('2027-03-28 12:10:00+02');
is(work('mail', 'bill', q{tq_complete(c.id, c.lease)}, 'c.attempt'), "$mail|succeeded|2", '... so another worker gets it in time');
fired('pulse', '2027-03-28 11:30+02');
is(query(q{select last_at, extract(epoch from next_at - last_at) from tq_schedules where name = 'pulse'}), '2027-03-28 11:30:00+02|3600.000000', 'a schedule goes on');
is(query(q{select count(*) + max(s.missed) from tq.schedule_fire f join tq_schedules s on s.name = f.schedule where name = 'pulse' and f.outcome = 'fired'}), '15',
	'with each hour, also of the downtime, fired or noted as missed');
my $fires = query(q{select count(*) from tq.schedule_fire where schedule = 'pulse'});
is(as('shop_worker', q{select count(*)
	from tq_claim('mail', kinds => '{pulse}', max_jobs => 100) c, tq_complete(c.id, c.lease)}), $fires, 'and a job for each that fired');
is(as('shop_ops', "select tq_retry($charge{2})"), 'ready', 'the customer has a new card: the operators try the charge again');
is(work('orders', 'charge', q{tq_complete(c.id, c.lease, '{"paid": 20}')}), "$charge{2}|succeeded", 'which succeeds');
as('shop_ops', "select tq_retry($ship{2}), tq_retry($tell{2})");
is(work('orders', 'ship', q{tq_complete(c.id, c.lease)}), "$ship{2}|succeeded", 'the order is shipped');
is(work('mail', 'shipped', q{tq_complete(c.id, c.lease)}), "$tell{2}|succeeded", '... as the customer is told');
is(query(q{select sum((g.result->>'paid')::int) from shop.orders o, tq_get(o.charge) g}), '60', 'all orders are paid');

#
# the end of the day, and of the week
#
is(query('select count(*) from tq_jobs where state in ($$ready$$, $$delayed$$, $$running$$, $$blocked$$)'), '0', 'all is done');
my $unwell = q{select string_agg(item, ', ') from tq_health() where status <> 'ok'};
until_true($node, "select ($unwell) = 'clock'", 'only the clock is odd');    # the janitor opens the segment that is due
is(as('shop_ops', $unwell), 'clock', 'and well');
is(query('select count(*) from tq_check() where found <> expected'), '0', 'nothing is left behind');
check_journal($node);
# the retention counts from the moment at which the janitor saw that they were finished
comes('select not exists (select from tq.job j join tq.segment s on j.tableoid = ($$tq.job_$$ || s.number)::regclass where j.id <= ' . $later
	  . ' and s.finished_at is null)', 'the segments of the first day are finished');
at('2027-04-05 08:00:00+02');
as('shop_web', q{select tq_enqueue('mail', '{"to": "eve"}')});
comes('select not exists (select from tq.job where id <= ' . $later . ')', 'a week later their rows are gone');
comes(q{select count(*) = 9 from shop.closing}, 'and a day is closed for each of the week');
$node->stop;
done_testing();
