# tq_wait and tq_ready for all roles that the login of a session may SET ROLE to: a gateway with one login and many tenants. Nobody
# gains more by it than SET ROLE gives.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('roles', conf => "max_connections = 50\ntq.max_queues = 100\n");
scheduler_of($node);
$node->safe_psql('postgres', <<'SQL');
create role gateway login noinherit;
create role ann; create role bob; create role group_of_bob; create role stranger login;
grant ann, bob to gateway;
grant group_of_bob to bob;
select tq_create_queue('of ann'), tq_create_queue('of bob'), tq_create_queue('of both'), tq_create_queue('foreign'), tq_create_queue('own');
select tq_grant('of ann', 'ann', 'consume'), tq_grant('of bob', 'group_of_bob', 'consume'), tq_grant('of both', 'bob', 'consume'),
	tq_grant('of both', 'ann', 'consume'), tq_grant('own', 'gateway', 'consume'), tq_grant('foreign', 'stranger', 'consume'), tq_grant('of ann', 'bob', 'produce');
select tq_enqueue(q, kind => 'k') from unnest('{of ann,of bob,of both,foreign,own}'::text[]) q;
SQL

# A session that logged in as this role.
sub login
{
	my ($role) = @_;
	my $session = session($node);
	ask($session, "set session authorization $role");
	return $session;
}

my $ready = q{select string_agg(distinct queue || ': ' || role, ', ') from tq_ready(all_roles => true)};
my $gateway = login('gateway');
is(ask($gateway, q{select string_agg(queue || ': ' || role, ', ') from tq_ready()}), 'own: gateway', 'without it, the queues of the role');
my $all = 'of ann: ann, of bob: group_of_bob, of both: ann, own: gateway';
is(ask($gateway, $ready), $all, 'the queues of all roles, each with one that may claim');
is(ask($gateway, q{set role ann; select string_agg(queue || ': ' || role, ', ' order by queue) from tq_ready('{of ann,of bob}', all_roles => true)}),
	'of ann: ann, of bob: group_of_bob', 'also after SET ROLE, and by name');
ask($gateway, 'reset role');
for my $row (split /, /, $all)
{
	my ($queue, $role) = split /: /, $row;
	is(ask($gateway, "set role $role; select queue from tq_claim('$queue'); reset role"), $queue, "$role claims from $queue");
}
is(ask($gateway, $ready), '', 'nothing is left');
like(ask($gateway, q{select * from tq_ready('{foreign}', all_roles => true)}), qr/42501/, 'a queue of another role');
like(ask($gateway, q{call tq_wait('{foreign}', '1 h', all_roles => true)}), qr/42501/, '... nor waits for it');
like(ask($gateway, q{call tq_wait('{of ann}', '1 h')}), qr/42501/, '... and without all_roles, its own queues only');
like(ask($gateway, q{call tq_wait('{no such}', '1 h', all_roles => true)}), qr/42501/, 'a queue that does not exist');

# waits
for my $call (q{call tq_wait(timeout => '1 h', all_roles => true)}, q{call tq_wait('{of bob,own}', '1 h', all_roles => true)})
{
	begin_ask($gateway, $call);
	until_true($node, q{select waiting = 1 from tq_queues where queue = 'of bob'}, 'it waits');
	$node->safe_psql('postgres', q{select tq_enqueue('foreign'), tq_enqueue('of bob')});
	is(end_ask($gateway), '', 'a job of a tenant ends the wait');
	is(ask($gateway, $ready), 'of bob: group_of_bob', 'and is there');
	ask($gateway, q{set role bob; select tq_complete(id, lease) from tq_claim('of bob'); reset role});
}

# memberships and grants
$node->safe_psql('postgres', q{select tq_enqueue(q) from unnest('{of ann,of bob,of both}'::text[]) q});
$node->safe_psql('postgres', 'revoke ann from gateway');
is(ask($gateway, $ready), 'of bob: group_of_bob, of both: bob', 'a membership that ends');
$node->safe_psql('postgres', q{select tq_revoke('of both', 'bob', 'consume')});
is(ask($gateway, $ready), 'of bob: group_of_bob', 'a grant that ends');
$node->safe_psql('postgres', q{grant ann to gateway; select tq_grant('*', 'ann', 'consume')});
is(ask($gateway, $ready), 'foreign: ann, of ann: ann, of bob: group_of_bob, of both: ann', 'a grant on all queues');
$node->safe_psql('postgres', q{select tq_revoke('*', 'ann', 'consume')});
SKIP:
{
	skip('memberships have the option SET since 16', 1) if $node->pg_version < 16;
	$node->safe_psql('postgres', 'revoke ann from gateway; grant ann to gateway with set false');
	is(ask($gateway, $ready), 'of bob: group_of_bob', 'a membership without SET');
	like(ask($gateway, q{set role ann}), qr/42501/, '... as SET ROLE says');
}

#
# hostile: code of a role that is run by a session with more rights
#
my $boss = session($node);
ask($boss, 'create schema traps; grant all on schema traps to stranger, public');
my $stranger = login('stranger');
is(ask($stranger, $ready), 'foreign: stranger', 'a login without members');
is(ask($stranger, 'set role ann') =~ /42501/ ? 1 : 0, 1, '... may not SET ROLE');
ask($stranger, <<'SQL');
create function traps.definer() returns text security definer language sql as $$ select string_agg(queue, ', ') from public.tq_ready(all_roles => true) $$;
create procedure traps.waits() security definer language plpgsql as $$ begin call public.tq_wait(timeout => '0', all_roles => true); end $$;
create function traps.indirect() returns text security definer language plpgsql as $$ begin perform set_config('role', 'postgres', false); return 'x'; end $$;
create function traps.inner_one() returns text language sql as $$ select string_agg(queue, ', ') from public.tq_ready(all_roles => true) $$;
create function traps.outer_one() returns text security definer language sql as $$ select traps.inner_one() $$;
create table traps.t (i int);
create function traps.of_index(int) returns int immutable language plpgsql as $$ begin perform public.tq_ready(all_roles => true); return $1; end $$;
insert into traps.t values (1);
SQL
my $refused = qr/42501: cannot use the roles of the login within a security-definer function/;
for my $statement ('select traps.definer()', 'call traps.waits()', 'select traps.outer_one()')
{
	like(ask($boss, $statement), $refused, "a superuser calls: $statement");
	like(ask($gateway, $statement), $refused, "the gateway calls: $statement");
}
like(ask($boss, 'select traps.indirect()'), qr/42501|22023|within security-definer/, 'as with SET ROLE');
like(ask($boss, 'create index on traps.t (traps.of_index(i))'), $refused, 'a superuser indexes the table of another role');
is(ask($boss, 'set role stranger; select count(*) > 1 from tq_ready(all_roles => true); reset role'), 't', 'a session that may RESET ROLE has its login\'s roles');

leave($gateway, $boss, $stranger);
$node->stop;
done_testing();
