# Roles in dumps (R8, docs/adr/0024-roles-in-dumped-tables.md). Rows of a role that is missing at a restore keep its
# name and have no effect, until the role exists and tq_activate() is called; those of other roles work at once. A
# renamed role keeps its rows. A new role with the name of a dropped one has none of them. Hazard: H6.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $conf = <<CONF;
tq.max_databases = 10
max_worker_processes = 24
tq.executor_idle = '300 ms'
CONF
my $source = tq_node('source', conf => $conf);
my $target = tq_node('target', conf => $conf);
my $dir = PostgreSQL::Test::Utils::tempdir;
my $odd = '"O\'Dd ""x""."';

sub on_source { return $source->safe_psql('postgres', $_[0]) }
sub on_target { return $target->safe_psql($_[1] // 'restored', $_[0]) }

# What a call of tq_activate() warns of.
sub activate
{
	my ($database) = @_;
	my ($out, $err);
	$target->psql($database // 'restored', 'select tq_activate()', stdout => \$out, stderr => \$err);
	return $err;
}

sub missing
{
	my ($database) = @_;
	return on_target(q{select concat_ws(': ', status, value) from tq_health() where item = 'missing roles'}, $database);
}

# Dumps a database and restores it into a new one of the target.
sub copied
{
	my ($from, $database, $to) = @_;
	my $file = "$dir/$to";
	on_target("create database $to", 'postgres');
	$from->command_ok([ 'pg_dump', '-Fc', '-f', $file, '-d', $from->connstr($database) ], "$to: pg_dump");
	$target->command_ok([ 'pg_restore', '--no-owner', '--no-privileges', '-e', '-d', $target->connstr($to), $file ], "$to: pg_restore has no error");
	return;
}

# The error code of a statement of a role, or its result.
sub as_role
{
	my ($node, $database, $role, $statement) = @_;
	my ($out, $err);
	$node->psql($database, "\\set VERBOSITY sqlstate\nset role $role;\n$statement", stdout => \$out, stderr => \$err);
	return $err =~ /ERROR:\s+(\w{5})/ ? $1 : $out;
}

my $enqueue = q{select tq_enqueue('work') > 0};
my $grants = q{select string_agg(concat_ws(' ', queue, role, privilege), ', ' order by role::text collate "C", privilege) from tq_grants};
my $last = q{select last_outcome = '%s' from tq_schedules where name = '%s'};

#
# A database with everything that names roles
#
scheduler_of($source);
on_source("create role ada login; create role ben login; create role $odd; create role former; create role again");
my $odd_text = $odd =~ s/'/''/gr;
on_source(qq{select tq_create_queue('work'); select tq_create_queue('after'); select tq_create_queue('handled');
	select tq_grant(q, 'ada', 'produce', 'consume', 'manage') from unnest('{work,after,handled}'::text[]) q;
	select tq_grant('work', 'ben', 'produce'); select tq_grant('work', '$odd_text', 'consume'); select tq_grant('work', 'former', 'produce');
	select tq_grant('work', 'again', 'produce'); select tq_grant('*', 'again', 'metrics')});
on_source(q{set role ben; select tq_schedule('by ben', 'work', every => '1 s')});
on_source(q{set role again; select tq_schedule('by again', 'work', every => '1 s')});
on_source(q{create schema shared; grant all on schema shared to ada; set role ada;
	create function shared.run(job tq_job) returns jsonb language sql as 'select to_jsonb(current_user::text)';
	select tq_handle('handled', null, 'shared.run(tq_job)');
	select tq_schedule('by ada', 'work', every => '1 s');
	select tq_alter_queue('handled', '{"follow_up": {"queue": "after"}}');
	select tq_subscribe('work', 'https://example.org/ada')});

#
# A renamed role, and a role that was dropped and created again
#
on_source('alter role former rename to renamed; create role former');
is(as_role($source, 'postgres', 'renamed', $enqueue), 't', 'a renamed role keeps its rights');
is(as_role($source, 'postgres', 'former', $enqueue), '42501', '... which a new role with its old name does not get');
is(as_role($source, 'postgres', 'again', $enqueue), 't', 'a role with rights');
on_source('drop role again; create role again');
is(as_role($source, 'postgres', 'again', $enqueue), '42501', '... a new one of its name has none of them');
until_true($source, sprintf($last, 'denied', 'by again'), 'nor its schedules');
is(on_source(q{select role::text ~ '^\d+$' from tq.acl where queue_id = 0}), 't', '... its rows show a number');

#
# A restore where one role is missing
#
on_target("create role ben login; create role $odd; create role renamed; create role former; create role again", 'postgres');
copied($source, 'postgres', 'restored');
my $counts = 'ada (follow-ups: 1, functions: 1, grants: 9, handlers: 1, schedules: 1, subscriptions: 1)';
is(missing(), "warn: $counts", 'tq_health names what is missing before the activation');
like(activate(), qr/WARNING: .*\Q$counts\E.*HINT: .*call tq_activate\(\) again/s, '... and so does tq_activate()');
is(missing(), "warn: $counts", '... and tq_health after it');
is(on_target($grants), qq{work $odd consume, work ben produce, work renamed produce}, 'the grants of all other roles are there, without those of dropped ones');
is(as_role($target, 'restored', 'ben', $enqueue), 't', '... and work');
is(as_role($target, 'restored', $_, $enqueue), '42501', "... $_ has none") for qw(former again);
until_true($target, sprintf($last, 'fired', 'by ben'), 'schedules of other roles fire', 'restored');
until_true($target, sprintf($last, 'denied', 'by ada'), 'those of the missing role do not', 'restored');
like(on_target(q{select last_error from tq_schedules where name = 'by ada'}), qr/does not exist/, '... and say why');
my $job = on_target(q{select tq_enqueue('handled')});
until_true($target, q{select problem ~ 'create it and call tq_activate' from tq_handlers}, 'its handlers wait', 'restored');

# a role of this name gets nothing by itself
on_target('create role ada login');
is(as_role($target, 'restored', 'ada', $enqueue), '42501', 'a new role of the missing name has no rights');
is(missing(), "warn: $counts", '... and is still missing');
on_target(q{select tq_drop_queue('after')});
until_true($target, q{select count(*) = 0 from tq.queue where name = 'after'}, 'a queue is dropped', 'restored');
is(missing(), 'warn: ' . ($counts =~ s/grants: 9/grants: 6/r), '... which keeps the rows of missing roles in other queues');

# a dump of this database keeps the names
copied($target, 'restored', 'second');
is(missing('second'), 'ok: none', 'a dump of it has the names, which are resolved where there are roles');

# the role comes to life by tq_activate() in an active database; one of the grants exists by now
on_target(q{alter function shared.run(tq_job) owner to ada; select tq_create_queue('after'); select tq_grant('work', 'ada', 'produce'); grant usage on schema shared to ada});
is(activate(), '', 'tq_activate() resolves the names');
is(missing(), 'ok: none', '... all of them');
is(as_role($target, 'restored', 'ada', $enqueue), 't', 'the role has its rights');
is(on_target(q{select count(*) from tq_grants where role = 'ada'::regrole}), 6, '... all that were dumped');
until_true($target, sprintf($last, 'fired', 'by ada'), 'its schedules fire', 'restored');
until_true($target, "select result = '\"ada\"' from tq_get($job)", 'its handlers run', 'restored');
is(on_target('select role from tq_subscriptions'), 'ada', 'its subscriptions are its own');
is(on_target('select count(*) from tq.requester where role::oid = 0'), 0, 'so are its follow-ups');
is(on_target(q{select count(*) from tq_audit where action = 'activate'}), 2, 'tq_audit shows both activations');

# another owner of the function than the recorded one
on_target('drop database second', 'postgres');
copied($target, 'restored', 'second');
is(activate('second'), '', 'a copy in which all roles exist');
like(on_target('select problem from tq_handlers', 'second'), qr/belongs to role "\w+" now, not to role "ada"; call tq_handle again/, 'a function of another owner is not called');

# rename, drop and create
on_target('alter role ada rename to eve');
is(as_role($target, 'restored', 'eve', $enqueue), 't', 'resolved names follow a rename');
is(on_target(q{select string_agg(distinct role::text, ' ') from tq.handler}), 'eve', '... so a dump has the new name');
is(activate(), '', 'and tq_activate()');
on_target('create role ada');
is(as_role($target, 'restored', 'ada', $enqueue), '42501', '... gives a new role with the old name nothing');

#
# A dump of the release before
#
my $before = on_source(q{select source from pg_extension_update_paths('tq') u join pg_available_extensions a on a.name = 'tq' and a.default_version = u.target
	where path is not null order by string_to_array(source, '.')::int[] desc limit 1});
on_source('create database old');
$source->safe_psql('old', qq{create extension tq version '$before'; select tq_create_queue('work');
	select tq_grant('work', 'ada', 'produce'); select tq_grant('work', 'ben', 'produce');
	set role ben; select tq_schedule('by ben', 'work', every => '1 s')});
on_target('drop role ada', 'postgres');
copied($source, 'old', 'older');
like(activate('older'), qr/roles that tq names do not exist here: ada \(grants: 1\)/, "$before: a dump");
is(as_role($target, 'older', 'ben', $enqueue), 't', "$before: other roles keep their rights");
until_true($target, sprintf($last, 'fired', 'by ben'), "$before: and schedules", 'older');

unlike(slurp_file($_->logfile), qr/PANIC|TRAP|signal 11|signal 6/, 'nothing alarming in the log') for $source, $target;
$_->stop for $source, $target;
done_testing();
