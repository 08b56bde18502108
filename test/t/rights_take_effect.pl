# Rights across sessions (P8): open and waiting sessions see a grant or a revoke. Scenarios: claims that wait, a storm
# of grants, COPY, a crash, dump and restore, dropped roles, an extension owner without superuser, no workers.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('rights');
scheduler_of($node);
$node->safe_psql('postgres', <<'SQL');
create role worker login;
create role maker login;
create role gone;
select tq_create_queue('q');
select tq_grant('*', 'maker', 'create');
SQL
my $worker = session($node);
my $admin = session($node);
ask($worker, 'set role worker');
my $claim = q{select count(*) from tq_claim('q')};
my $denied = qr/42501: permission denied for queue "q"/;

#
# Open sessions
#
like(ask($worker, $claim), $denied, 'nothing without a grant');
ask($admin, 'begin');
ask($admin, q{select tq_grant('q', 'worker', 'consume')});
like(ask($worker, $claim), $denied, 'a grant that is not committed is none');
ask($admin, 'commit');
is(ask($worker, $claim), 0, 'an open session hears of a grant');
ask($admin, 'begin');
ask($admin, q{select tq_revoke('q', 'worker', 'consume')});
is(ask($worker, $claim), 0, 'a revocation that is not committed is none');
ask($admin, 'commit');
like(ask($worker, $claim), $denied, 'an open session hears of a revocation');
ask($admin, q{select tq_grant('q', 'worker', 'consume')});
ask($worker, 'begin isolation level repeatable read');
is(ask($worker, 'select 1'), 1, 'a transaction with one snapshot');
ask($admin, q{select tq_revoke('q', 'worker', 'consume')});
like(ask($worker, $claim), $denied, '... uses no right that was revoked after it');
ask($worker, 'rollback');
ask($admin, 'begin isolation level repeatable read; select 1');
$node->safe_psql('postgres', q{select tq_grant('q', 'worker', 'consume')});
ask($admin, q{select tq_revoke('q', 'worker', 'consume'); commit});
like(ask($worker, $claim), $denied, '... and revokes what was granted after it');

#
# A claim that waits
#
ask($admin, q{select tq_grant('q', 'worker', 'consume')});
begin_ask($worker, q{select id from tq_claim('q', wait => '3 min')});
until_true($node, q{select waiting = 1 from tq_stats() where queue = 'q'}, 'the claim waits');
ask($admin, q{select tq_revoke('q', 'worker', 'consume')});
my $id = ask($admin, q{select tq_enqueue('q')});
like(end_ask($worker), $denied, 'a waiting claim gets nothing after a revocation');
is(ask($admin, q{select id from tq_claim('q', wait => '3 min')}), $id, '... and leaves the job to others');

# a worker that holds a job
ask($admin, q{select tq_grant('q', 'worker', 'consume')});
$id = ask($admin, q{select tq_enqueue('q')});
is(ask($worker, q{select id from tq_claim('q')}), $id, 'a job is claimed');
my $lease = $node->safe_psql('postgres', "select lease from tq_running where id = $id");
ask($admin, q{select tq_revoke('q', 'worker', 'consume')});
like(ask($worker, "select tq_complete($id, $lease)"), qr/TQ004/, 'it cannot be completed after a revocation');
is(ask($worker, "select action from tq_heartbeat($id, $lease)"), 'lost', '... a heartbeat answers that it is lost');
ask($admin, q{select tq_grant('q', 'worker', 'produce')});
like(ask($worker, "select tq_complete($id, $lease)"), qr/42501: permission denied for job $id/, '... not with another right either');
ask($admin, q{select tq_grant('q', 'worker', 'consume')});
is(ask($worker, "select tq_complete($id, $lease)"), 'succeeded', '... but after a new grant');

#
# Grants on one queue do not make sessions read their rights on others again; otherwise many grants would slow down all
# sessions
#
ask($admin, q{select tq_create_queue('other')});
is(ask($worker, $claim), 0, 'rights are read');
ask($admin, q{select tq_grant('other', 'gone', 'consume')});
ask($admin, q{begin; lock table tq.acl in access exclusive mode});
ask($worker, q{set lock_timeout = '3 min'});
is(ask($worker, $claim), 0, '... and not again after a grant on another queue');
ask($admin, 'rollback');
ask($admin, q{begin; select tq_revoke('other', 'gone', 'consume'); savepoint s; select tq_revoke('q', 'worker', 'consume'); rollback to s; commit});
is(ask($worker, $claim), 0, '... it is not lost by a rolled-back revocation');
ask($admin, q{select tq_revoke('q', 'worker', 'consume')});
like(ask($worker, $claim), $denied, '... but lost by one that is not');
ask($admin, q{select tq_grant('q', 'worker', 'consume')});

# COPY
my $copy = "copy tq_inbox (queue, kind) from stdin;\nq\tcopied\n\\.\n";
is($node->safe_psql('postgres', "set role worker;\n${copy}reset role;\nselect count(*) from tq_jobs where kind = 'copied'"), 1, 'COPY with the right to produce');
$node->psql('postgres', "\\set VERBOSITY verbose\nset role maker;\n$copy", stderr => \my $err);
like($err, $denied, '... and without');

#
# A queue created by its first use, by a session that crashes the server: its rights come with its row
#
is($node->safe_psql('postgres', q{set role maker; select tq_enqueue('made') > 0}), 't', 'a queue is made');
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', q{set role maker; select tq_enqueue('made') > 0}), 't', 'it is its maker\'s after a crash');

#
# Dump and restore
#
$node->safe_psql('postgres', q{select tq_grant('q', 'gone', 'manage')});
my $before = $node->safe_psql('postgres', q{select string_agg(concat_ws(' ', queue, role, privilege), ', ' order by queue, role::text, privilege)
	from tq_grants where role <> 'gone'::regrole});
$node->safe_psql('postgres', 'drop role gone');
is($node->safe_psql('postgres', 'select count(*) from tq.acl where role not in (select oid from pg_roles)'), 1, 'a row of a dropped role');
my $target = tq_node('rights_target');
$target->safe_psql('postgres', 'create role worker; create role maker; create database restored; create database data');
my $dir = PostgreSQL::Test::Utils::tempdir;
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", '-d', $node->connstr('postgres') ], 'pg_dump');
$target->command_ok([ 'pg_restore', '-d', $target->connstr('restored'), "$dir/dump" ], 'pg_restore');
my $after = q{select string_agg(concat_ws(' ', queue, role, privilege), ', ' order by queue, role::text, privilege) from tq_grants};
is($target->safe_psql('restored', $after), $before, 'the grants come along');
is($target->safe_psql('restored', 'select count(*) from tq.acl where role not in (select oid from pg_roles)'), 0, '... except those of a dropped role');
$target->command_ok([ 'pg_restore', '--schema-only', '-d', $target->connstr('data'), "$dir/dump" ], 'pg_restore, schema');
my $open = session($target, 'data');
ask($open, 'set role worker');
like(ask($open, $claim), qr/TQ009/, 'a session before the data');
$target->command_ok([ 'pg_restore', '--data-only', '--disable-triggers', '-d', $target->connstr('data'), "$dir/dump" ], 'pg_restore, data');
$target->safe_psql('data', 'select tq_activate()');
like(ask($open, $claim), qr/^\d$/, '... hears of grants that are restored without triggers');
leave($open, $worker, $admin);

#
# The owner of the extension is no superuser: workers do not run that owner's triggers on tq's tables as another role
#
$node->safe_psql('postgres', 'create role boss superuser; create role keeper; create database owned');
$node->safe_psql('owned', <<'SQL');
set role boss;
create extension tq;
reset role;
reassign owned by boss to keeper;
grant create on schema public to keeper;
create table caught (who text, pid int);
grant insert on caught to public;
set role keeper;
create function catch() returns void language sql set search_path = pg_catalog as 'insert into public.caught select current_user, pg_backend_pid()';
create function trap(bigint) returns bigint immutable language plpgsql as 'begin perform public.catch(); return $1; end';
create index on tq.event_0 (public.trap(job_id));
SQL
scheduler_of($node, 'owned');
$node->safe_psql('owned', q{select tq_enqueue('q'); select count(*) from tq_claim('q', lease_for => '50 ms')});
until_true($node, q{select count(*) > 0 from tq.event where type = 'l'}, 'a lease is lost', 'owned');
is($node->safe_psql('owned', q{select string_agg(distinct who, ', ') from caught where pid <> pg_backend_pid()}), 'keeper',
	'an index of the extension\'s owner is evaluated as he');
like($node->safe_psql('owned', 'select tq_metrics()'), qr/^tq_shared_memory_bytes [1-9]/m, 'tq_metrics of such an extension');
like($node->safe_psql('owned', q{select value from tq_health() where item = 'shared memory per live job'}), qr/^\d+\.\d bytes/, 'and tq_health');

#
# The owner of a database is a member of a role
#
$target->safe_psql('postgres', 'create database owned_db owner maker');
tq_setup($target, 'owned_db');
$target->safe_psql('owned_db', q{select tq_enqueue('q'); select tq_grant('q', 'pg_database_owner', 'produce'); grant usage on schema tq to public});
my $owner = session($target, 'owned_db');
like(ask($owner, q{set role maker; select tq_enqueue('q')}), qr/^\d+$/, 'what pg_database_owner may, the owner may');
$target->safe_psql('postgres', 'alter database owned_db owner to worker');
like(ask($owner, q{select tq_enqueue('q')}), qr/42501/, '... until the database has another one');
leave($owner);

#
# Roles without other rights wait for a queue that is dropped: its rights go first, and the wait ends in between
#
$target->safe_psql('postgres', q{select tq_create_queue('short'), tq_create_queue('long')});
$target->safe_psql('postgres', qq{select tq_grant('$_', 'worker', 'consume')}) foreach qw(short long);
my ($waiter, $claimer) = (session($target), session($target));
ask($_, 'set role worker') foreach $waiter, $claimer;
begin_ask($waiter, q{call tq_wait('{short,long}', '1 h')});
begin_ask($claimer, q{select id from tq_claim_any('{short,long}', wait => '1 h')});
until_true($target, q{select waiting = 2 from tq_stats() where queue = 'short'}, 'two roles wait');
arm($target, 'drop-queue-after-row', 'wait');
$target->safe_psql('postgres', q{select tq_drop_queue('short')});
standing($target, 'drop-queue-after-row');
$target->safe_psql('postgres', q{select tq_enqueue('long') from generate_series(1, 2)});
like(end_ask($_), qr/TQ002/, '... and learn that it was dropped') foreach $waiter, $claimer;
release($target, 'drop-queue-after-row');
leave($waiter, $claimer);

#
# Without workers the transaction that creates the queue writes the row and the rights
#
$target->append_conf('postgresql.conf', 'tq.workers = off');
$target->restart;
$target->safe_psql('postgres', q{select tq_grant('*', 'maker', 'create')});
is($target->safe_psql('postgres', <<'SQL'), "t\nt\n4", 'made in a transaction that is rolled back, and again');
set role maker;
begin;
select tq_enqueue('made') > 0;
rollback;
select tq_enqueue('made') > 0;
reset role;
select count(*) from tq_grants where queue = 'made' and role = 'maker'::regrole;
SQL
is($target->safe_psql('postgres', q{set role maker; select count(*) from tq_claim('made')}), 1, '... and its maker\'s in another session');
is($target->psql('postgres', q{set role worker; select tq_enqueue('made')}), 3, '... and no other role\'s');

done_testing();
