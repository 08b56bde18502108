# ALTER EXTENSION tq UPDATE from every released version, with work under way. The result has the same objects as CREATE
# EXTENSION, and sessions go on. Objects that another role has created in the extension's schema are not called. A
# library and SQL of versions that do not match raise an error that says what to do. Hazard: H34.

use strict;
use warnings;

use File::Basename qw(dirname);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TqTest;

my $node = tq_node('update', conf => <<CONF);
tq.max_databases = 20
tq.segment_rows = 50
tq.claim_log_delay = 20ms
max_worker_processes = 40
CONF
my $in_place = dirname(__FILE__) . '/../upgrade/in_place.py';

# Members of the extension, everything in its schema, and their dependent objects: one line for each fact. Only the
# first numbered segment counts, which every database has.
my $catalog = <<'SQL';
set search_path = pg_catalog;
with ext as (select oid, extconfig, extcondition from pg_extension where extname = 'tq'),
	member as (select d.classid, d.objid from pg_depend d, ext where d.refclassid = 'pg_extension'::regclass and d.refobjid = ext.oid
		and d.deptype = 'e'),
	rel as (select c.* from pg_class c where (c.relnamespace = 'tq'::regnamespace
			or exists (select from member m where m.classid = 'pg_class'::regclass and m.objid = c.oid))
		and (c.relname !~ '^(job|event)_[0-9]+' or c.relname ~ '^(job|event)_[01](_|$)')),
	func as (select p.* from pg_proc p where p.pronamespace = 'tq'::regnamespace
		or exists (select from member m where m.classid = 'pg_proc'::regclass and m.objid = p.oid)),
	object as (select classid, objid from member
		union select 'pg_class'::regclass, oid from rel
		union select 'pg_constraint'::regclass, k.oid from pg_constraint k join rel r on r.oid = k.conrelid
		union select 'pg_trigger'::regclass, t.oid from pg_trigger t join rel r on r.oid = t.tgrelid
		union select 'pg_attrdef'::regclass, a.oid from pg_attrdef a join rel r on r.oid = a.adrelid
		union select 'pg_rewrite'::regclass, w.oid from pg_rewrite w join rel r on r.oid = w.ev_class)
select format('member %s', pg_describe_object(classid, objid, 0)) from member
union all select format('config %s: %s', c.rel::oid::regclass, c.condition) from ext, unnest(ext.extconfig, ext.extcondition) c (rel, condition)
union all select format('function of %s, for %s: %s', pg_get_userbyid(proowner), proacl::text, pg_get_functiondef(oid)) from func
union all select format('schema %s of %s, for %s', nspname, pg_get_userbyid(nspowner), nspacl::text) from pg_namespace where nspname = 'tq'
union all select format('relation %s', concat_ws(', ', r.oid::regclass, r.relkind, a.amname, r.relpersistence, r.reloptions::text, r.relacl::text,
		r.relreplident, r.relrowsecurity, pg_get_userbyid(r.relowner), r.relhastriggers, r.relispartition)) from rel r left join pg_am a on a.oid = r.relam
union all select format('column %s of %s: %s', row_number() over (partition by attrelid order by attnum), attrelid::regclass, concat_ws(', ',
		attname, format_type(atttypid, atttypmod), attcollation::regcollation, attnotnull, attstorage, attcompression, attidentity, attgenerated,
		attislocal, attinhcount, attacl::text, (select array_agg(o) from unnest(attoptions) o where o !~ '^pg_'), (select pg_get_expr(adbin, adrelid) from pg_attrdef d
			where d.adrelid = a.attrelid and d.adnum = a.attnum)))
	from pg_attribute a where attnum > 0 and not attisdropped and attrelid in (select oid from rel)
union all select format('constraint %s of %s: %s', conname, coalesce(nullif(conrelid, 0)::regclass::text, contypid::regtype::text), pg_get_constraintdef(oid))
	from pg_constraint where conrelid in (select oid from rel) or contypid in (select objid from member where classid = 'pg_type'::regclass)
union all select format('index %s', pg_get_indexdef(indexrelid)) from pg_index where indrelid in (select oid from rel)
union all select format('trigger %s, %s', tgenabled, pg_get_triggerdef(oid)) from pg_trigger where tgrelid in (select oid from rel) and not tgisinternal
union all select format('view %s: %s', oid::regclass, pg_get_viewdef(oid)) from rel where relkind = 'v'
union all select format('child %s of %s', inhrelid::regclass, inhparent::regclass) from pg_inherits where inhrelid in (select oid from rel)
union all select format('sequence %s', concat_ws(', ', seqrelid::regclass, seqtypid::regtype, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle))
	from pg_sequence where seqrelid in (select oid from rel)
union all select format('type %s', concat_ws(', ', oid::regtype, typtype, pg_get_userbyid(typowner), typacl::text, typnotnull, typdefault))
	from pg_type where oid in (select objid from member where classid = 'pg_type'::regclass)
union all select format('comment of %s: %s', pg_describe_object(classoid, objoid, objsubid), description) from pg_description
	where (classoid, objoid) in (select classid, objid from object)
union all select format('help on %s: %s', name, concat_ws(E'\n', position, topic, summary, details)) from tq.help
union all select format('first rights of %s: %s', pg_describe_object(classoid, objoid, objsubid), initprivs::text) from pg_init_privs
	where (classoid, objoid) in (select classid, objid from object)
union all select format('%s depends on %s: %s', pg_describe_object(classid, objid, objsubid), pg_describe_object(refclassid, refobjid, refobjsubid), deptype)
	from pg_depend where (classid, objid) in (select classid, objid from object)
		and pg_describe_object(classid, objid, objsubid) !~ 'toast' and pg_describe_object(refclassid, refobjid, refobjsubid) !~ 'toast'
order by 1
SQL

# One test: the extension has the same objects in two databases.
sub same_catalog
{
	my ($one, $two, $name) = @_;
	my ($got, $expected) = map { my %lines = map { $_ => 1 } split /\n(?=[a-z])/, in_db($_, $catalog); \%lines } $one, $two;
	my @more = sort grep { !$expected->{$_} } keys %$got;
	my @less = sort grep { !$got->{$_} } keys %$expected;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok(scalar(keys %$expected), '>', 500, "$name: there is something to compare");
	is(join("\n", (map { "only updated: $_" } @more), (map { "only fresh: $_" } @less)), '', $name);
	return;
}

sub in_db
{
	my ($database, $sql) = @_;
	return $node->safe_psql($database, $sql);
}

# The error of a statement in a session of its own.
sub refusal
{
	my ($database, $sql) = @_;
	my ($out, $err);
	$node->psql($database, "\\set VERBOSITY verbose\n$sql", stdout => \$out, stderr => \$err, on_error_stop => 0);
	return $err;
}

# A database in which administrators have changed what they may change, then the extension, in some version, with a
# numbered segment.
sub database
{
	my ($name, $version) = @_;
	in_db('postgres', "create database $name");
	in_db($name, 'alter default privileges grant all on functions to nosy; alter default privileges grant all on tables to nosy;
		alter default privileges grant all on sequences to nosy; alter default privileges grant all on types to nosy;
		alter default privileges revoke execute on functions from public');
	in_db($name, 'create extension tq' . (defined $version ? " version '$version'" : ''));
	in_db($name, 'revoke execute on function tq_metrics() from public; grant select on tq.segment to nosy');
	in_db($name, 'revoke execute on routine tq_wait, tq_heartbeat, tq_retry, tq_grant, tq_revoke from public; grant execute on routine tq_wait, tq_heartbeat, tq_grant to nosy');
	return;
}

# Makes the janitor open the first numbered segment.
sub open_segment
{
	my ($name) = @_;
	in_db($name, q{select tq_enqueue_many('filler', array_fill('{}'::jsonb, array[60]))});
	return segment_after($node, 0, $name);
}

my ($current) = in_db('postgres', q{select default_version from pg_available_extensions where name = 'tq'});
my @released = split /\n/, in_db('postgres', qq{select source from pg_extension_update_paths('tq')
	where target = '$current' and path is not null order by string_to_array(source, '.')::int[]});
note("$current, after @released");
cmp_ok(scalar(@released), '>', 0, 'there are released versions');
is(in_db('postgres', q{select count(*) from pg_available_extension_versions v where name = 'tq' and not exists (
	select from pg_extension_update_paths('tq') where source = v.version and target = (select default_version from pg_available_extensions
		where name = 'tq') and path is not null) and version <> (select default_version from pg_available_extensions where name = 'tq')}), 0,
	'each of them can be updated');

# objects in both databases
in_db('postgres', 'create role nosy');
database('fresh');
open_segment('fresh');

#
# Updates
#
for my $version (@released)
{
	my $database = 'from_' . ($version =~ tr/./_/r);
	database($database, $version);
	my $health = in_db($database, q{select status || ': ' || value || '. ' || hint from tq_health() where item = 'version'});
	like($health, qr/library \Q$current\E, extension \Q$version\E\. Run ALTER EXTENSION tq UPDATE/, "$version: tq_health says what to do");
	if ($health =~ /^error/)
	{
		like(refusal($database, q{select tq_enqueue('work')}), qr/TQ007.*HINT:  Run ALTER EXTENSION tq UPDATE/s, "$version: it is too old to be served");
		in_db($database, 'alter extension tq update');
		open_segment($database);
		same_catalog($database, 'fresh', "$version: the update makes what an installation makes");
		next;
	}
	open_segment($database);
	scheduler_of($node, $database);
	in_db($database, q{create view depends as select queue, ready from tq_queues;
		create function atomic() returns bigint begin atomic; select tq_enqueue('work', '{"by": "atomic"}'); end});

	in_db($database, q{select tq_grant('*', 'nosy', 'create'); set role nosy; select tq_create_queue('own'); reset role;
		select tq_revoke('*', 'nosy', 'create')});
	in_db($database, q{create role gone; select tq_create_queue('ruled'); select tq_grant('ruled', 'nosy', 'consume'); select tq_grant('ruled', 'gone', 'consume');
		select tq_schedule('of gone', 'ruled', every => '1000 d'); select tq_schedule('of nosy', 'ruled', every => '1000 d');
		update tq.schedule set owner = regexp_replace(name, 'of ', '')::regrole where queue = 'ruled'; drop role gone});

	# open sessions in the middle of transactions
	my ($held, $open, $new, $bound, $waiting) = map { session($node, $database) } 1 .. 5;
	in_db($database, q{select tq_enqueue_many('work', array_agg(jsonb_build_object('n', i))) from generate_series(1, 10) i});
	ask($held, q{create temp table mine as select id, lease from tq_claim('work', max_jobs => 3)});
	ask($open, q{begin; create temp table mine as select id, lease from tq_claim('work', max_jobs => 2)});
	ask($new, q{prepare more as select tq_enqueue('work', '{"by": "prepared"}') > 0});
	is(ask($new, q{begin; execute more}), 't', "$version: an enqueue in an open transaction");
	is(ask($bound, q{select count(*) from tq_claim('work', bind_session => true)}), 1, "$version: a claim that is bound to its session");
	in_db($database, q{select tq_create_queue('later')});
	begin_ask($waiting, q{select count(*) from tq_claim('later', wait => '1 h')});
	until_true($node, q{select waiting = 1 from tq_stats() where queue = 'later'}, 'a claim that waits', $database);

	in_db($database, "create access method other type table handler heap_tableam_handler; alter database $database set default_table_access_method = other");
	# jobs in every state, which are unchanged, and continue
	my ($out, $err) = ('', '');
	IPC::Run::run([ '/usr/bin/python3', $in_place, $node->connstr($database), 'alter extension tq update' ], '>', \$out, '2>', \$err);
	is($err, '', "$version: jobs in every state") or next;
	ok(/^ok - /, "$version: " . s/^(not )?ok - //r) for split /\n/, $out;

	is(in_db($database, q{select extversion from pg_extension where extname = 'tq'}), $current, "$version: updated to $current");
	same_catalog($database, 'fresh', "$version: the update makes what an installation makes");

	is(in_db($database, q{select q.name, c.role from tq.creator c left join tq.queue q on q.id = c.queue_id}), 'own|nosy',
		"$version: the creators of queues are known");
	is(in_db($database, q{select string_agg(role || ' ' || privilege, ', ') from tq_grants where queue = 'ruled'}), 'nosy consume', "$version: roles keep their grants");
	is(in_db($database, q{select string_agg(regexp_replace(owner::text, '^\d+$', 'N'), ' ' order by name) from tq.schedule where queue = 'ruled'}), 'N nosy',
		"$version: and their schedules; a dropped role is a number");

	is(ask($held, 'select count(tq_complete(id, lease)) from mine'), 3, "$version: leases from before are good");
	is(ask($open, 'select count(tq_complete(id, lease)) from mine; commit'), 2, "$version: in the transaction of their claim, too");
	is(ask($new, 'execute more; commit'), 't', "$version: prepared statements go on");
	in_db($database, q{select tq_enqueue('later')});
	is(end_ask($waiting), 1, "$version: the claim that waited gets its job");
	leave($bound);
	is(in_db($database, q{select tq_enqueue('new', group_key => 'g', unique_key => 'u', options => '{"tags": ["t"]}', timeout => '1 h') is null;
		select group_key, unique_key, tags, deadline > now() from tq_claim('new')}), "f\ng|u|{t}|t", "$version: claims return what is new");
	is(in_db($database, q{select atomic() > 0}), 't', "$version: functions of users go on");
	is(scalar(take_all($node, 'work', 7, $database)), 7, "$version: everything else runs, with what the bound session left");
	is(in_db($database, q{select count(*) from depends where queue = 'work'}), 1, "$version: views of users go on");
	leave($held, $open, $new, $waiting);

	# an old segment has the same objects as one that is opened now
	my $last = in_db($database, 'select max(number) from tq.segment');
	in_db($database, q{select tq_enqueue_many('filler', array_fill('{}'::jsonb, array[60]))});
	segment_after($node, $last, $database);
	my $columns = q{select string_agg(concat_ws(' ', attname, atttypid::regtype, attnotnull, attislocal, attinhcount), ',' order by attname) from pg_attribute
		where attnum > 0 and not attisdropped and attrelid = 'tq.%s'::regclass};
	my $rest = q{select string_agg(regexp_replace(d, '(job|event)_%2$s', '\1_N', 'g'), ',' order by d) from (select pg_get_indexdef(indexrelid) from pg_index where indrelid = 'tq.%1$s'::regclass
		union all select tgenabled::text || pg_get_triggerdef(oid) from pg_trigger where tgrelid = 'tq.%1$s'::regclass
		union all select pg_get_constraintdef(oid) from pg_constraint where conrelid = 'tq.%1$s'::regclass) x (d)};
	for my $kind ('job', 'event')
	{
		my @one = map { in_db($database, sprintf($columns, "${kind}_$_")) } 1, $last + 1;
		is($one[0], $one[1], "$version: tables $kind of segments before and after it have the same columns");
		@one = map { in_db($database, sprintf($rest, "${kind}_$_", $_)) } 1, $last + 1;
		is($one[0], $one[1], "$version: and the same indexes, triggers and constraints");
	}
	work_off($node, 'filler', $database);
	check_journal($node, "$version: the journal is consistent", $database);
	is(in_db($database, q{select value from tq_health() where item = 'version' and status = 'ok'}), "library $current, extension $current",
		"$version: tq_health is content");
	is(in_db($database, 'drop extension tq cascade; select count(*) from pg_namespace where nspname = \'tq\''), 0, "$version: it can be dropped");
}

#
# A copy stays inactive
#
for my $version (@released)
{
	in_db('postgres', 'create database original');
	in_db('original', "create extension tq version '$version'");
	in_db('original', q{select tq_enqueue('work')});
	in_db('postgres', 'create database copy template original');
	in_db('copy', 'alter extension tq update');
	is(in_db('copy', q{select value from tq_health() where item = 'activation'}), 'inactive', "$version: a copy is inactive after the update, too");
	in_db('original', 'alter extension tq update');
	is(in_db('original', q{select value from tq_health() where item = 'activation'}), 'active', "$version: ... and the original is active");
	in_db('postgres', "drop database $_ with (force)") for 'copy', 'original';
}

#
# Functions of other roles in the extension's schema are not called by CREATE or ALTER EXTENSION, although they match
# better
#
in_db('postgres', 'create role planter');
for my $version (undef, @released)
{
	my $name = defined $version ? 'planted_' . ($version =~ tr/./_/r) : 'planted';
	in_db('postgres', "create database $name");
	in_db($name, "create extension tq version '$version'") if defined $version;
	in_db($name, 'grant create on schema public to planter');
	my @types = qw(regclass regprocedure regtype regrole regnamespace);
	my @formats = map { join(', ', @$_) } ['text'], ['text', 'text'], ['text', 'text', 'text'], map { ([$_], ['text', $_], [$_, 'text']) } @types;
	in_db($name, join(";\n", 'set role planter',
		(map { my $type = $_;
			"create function public.trap(oid, $type) returns boolean language plpgsql as \$\$begin raise 'sprung by %', current_user; end\$\$",
			map { "create operator public.$_ (leftarg = oid, rightarg = $type, function = public.trap)" } '=', '<>' } @types),
		(map { "create function public.format(text, $_) returns text language plpgsql as \$\$begin raise 'sprung by %', current_user; end\$\$" } @formats)));
	my $how = defined $version ? "an update from $version" : 'CREATE EXTENSION';
	is(refusal($name, defined $version ? 'alter extension tq update' : 'create extension tq'), '', "$how runs nothing of others");
	is(in_db($name, q{select current_setting('search_path')}), '"$user", public', '... and leaves the search path');
	in_db($name, q{select tq_create_queue('q'); select tq_grant('q', 'nosy', 'consume')});
	is(in_db($name, q{select role from tq_grants}), 'nosy', '... its views run nothing of others either');
	in_db('postgres', "drop database $name with (force)");
}

#
# A library that is older than the SQL: tq's files were replaced, and the server was not restarted
#
my $before = $released[-1];
in_db('postgres', "create database $_") for 'old', 'none';
in_db('old', "create extension tq version '$before'");
$node->append_conf('postgresql.conf', "tq.test_version = '$before'");
$node->reload;
until_true($node, "select current_setting('tq.test_version') = '$before'", 'another version');
my $log = -s $node->logfile;
like(refusal('postgres', q{select tq_enqueue('work')}), qr/TQ007.*HINT:  Install the library of that version.* and restart the server/s,
	'H34: SQL that is newer than the library: calls say what to do');
is(in_db('postgres', q{select item || ': ' || status from tq_health()}), "shared_preload_libraries: ok\nversion: error", 'tq_health, too');
in_db('postgres', q{select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'tq scheduler' and datname = 'postgres'});
until_true($node, q{select count(*) = 0 from pg_stat_activity where backend_type = 'tq scheduler' and datname = 'postgres'}, 'no scheduler');
my $says_so = qr/ tq scheduler [^\n]*LOG:  tq runs no workers in database "postgres"/;    # so does a janitor that was wanted just then
ok($node->wait_for_log($says_so, $log), 'workers say so');
is(scalar(() = slurp_file($node->logfile, $log) =~ /$says_so/g), 1, 'once');
like(refusal('old', 'alter extension tq update'), qr/TQ007.*HINT:  Install the library of that version.* and restart the server/s,
	'ALTER EXTENSION UPDATE is refused before it changes anything');
is(in_db('old', q{select extversion, tq_enqueue('work') from pg_extension where extname = 'tq'}), "$before|1", 'and the old version goes on');
like(refusal('none', 'create extension tq'), qr/TQ007.*restart the server/s, 'so is CREATE EXTENSION');
like(refusal('old', q{create function missing() returns int language c as '$libdir/tq', 'tq_not_there_yet'}),
	qr/42883.*could not find function "tq_not_there_yet"/s, 'a function that the library does not have cannot be declared');
$log = -s $node->logfile;
$node->restart;
ok($node->wait_for_log(qr/tq runs no workers in database "postgres"/, $log), 'a restart with the old library says it again');

# and the reverse
$node->append_conf('postgresql.conf', "tq.test_version = '9.10.0'");
$node->restart;
like(refusal('postgres', q{select tq_enqueue('work')}), qr/TQ007.*of version 9\.10\.0.*HINT:  Run ALTER EXTENSION tq UPDATE/s,
	'H34: SQL that is too old for the library: calls say what to do');

$node->append_conf('postgresql.conf', "tq.test_version = ''");
$node->restart;
scheduler_of($node);
is(in_db('postgres', q{select tq_enqueue('work') > 0}), 't', 'the right library, and all is well');
is(in_db('old', q{select count(*) from tq_claim('work', wait => '3 min')}), 1, 'with the version before, as well');
in_db('old', 'alter extension tq update');
is(in_db('old', q{select tq_enqueue('work') > 0}), 't', 'which can be updated now');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal 11|signal 6/, 'nothing alarming in the log');
$node->stop;
done_testing();
