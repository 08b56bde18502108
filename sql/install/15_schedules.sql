-- Schedules, and their times that the scheduler has processed. tq_schedule and related functions change a row of
-- tq.schedule, and so do a new last_error and the pruning of tq.schedule_fire.

CREATE TABLE tq.schedule (
	name        text COLLATE "C" PRIMARY KEY,
	queue       text NOT NULL,
	payload     jsonb NOT NULL,
	kind        text,
	cron        text,
	every       interval,
	timezone    text NOT NULL,
	catch_up    text NOT NULL,
	overlap     text NOT NULL,
	options     jsonb NOT NULL,            -- as given; start and end of it are the next two
	starts_at   timestamptz,               -- no time before it
	ends_at     timestamptz,               -- no time after it
	owner       tq.role NOT NULL,          -- its jobs are enqueued with the rights of this role
	anchor      timestamptz NOT NULL,      -- `every` counts from here
	fired_until timestamptz NOT NULL,      -- times at or before it do not fire (again)
	defined_at  timestamptz NOT NULL,
	revision    bigint NOT NULL,           -- grows with each change by tq_schedule, tq_schedule_pause, tq_schedule_resume
	paused      boolean NOT NULL,
	missed      bigint NOT NULL DEFAULT 0, -- of rows of schedule_fire that were pruned
	last_error  text,                      -- why the last time failed; null once one succeeded
	CONSTRAINT schedule_cron_or_every CHECK ((cron IS NULL) <> (every IS NULL)),
	CONSTRAINT schedule_catch_up_known CHECK (catch_up IN ('none', 'latest', 'all')),
	CONSTRAINT schedule_overlap_known CHECK (overlap IN ('allow', 'skip', 'cancel'))
);

-- For the limits of a queue and of a role.
CREATE INDEX schedule_queue ON tq.schedule (queue);
CREATE INDEX schedule_owner ON tq.schedule ((owner::oid));

-- One row per schedule and time. The transaction that enqueues the job writes the row, so there is exactly one job. At
-- least the last hundred rows are kept.
CREATE TABLE tq.schedule_fire (
	schedule   text COLLATE "C" NOT NULL,
	fire_at    timestamptz NOT NULL,
	job_id     bigint,                     -- null: none; of a duplicate: the job that has its unique key
	at         timestamptz NOT NULL,       -- when that was
	kept_until timestamptz,                -- not used; dumps of 0.1.0 have it
	missed     bigint NOT NULL DEFAULT 0,  -- times between the row before and this one for which there is no job
	outcome    text NOT NULL
		CONSTRAINT schedule_fire_outcome_known CHECK (outcome IN ('fired', 'skipped', 'missed', 'duplicate', 'denied', 'manual')),
	PRIMARY KEY (schedule, fire_at)
);

-- The scheduler learns of changes, also of those by hand, by a restore and by logical replication.
CREATE FUNCTION tq.schedule_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_schedule_changed';
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE ON tq.schedule
	FOR EACH ROW EXECUTE FUNCTION tq.schedule_changed();
CREATE TRIGGER tq_truncated AFTER TRUNCATE ON tq.schedule
	FOR EACH STATEMENT EXECUTE FUNCTION tq.schedule_changed();
ALTER TABLE tq.schedule ENABLE ALWAYS TRIGGER tq_changed, ENABLE ALWAYS TRIGGER tq_truncated;

REVOKE ALL ON TABLE tq.schedule, tq.schedule_fire FROM PUBLIC;

SELECT pg_catalog.pg_extension_config_dump('tq.schedule', 'WHERE schedule.owner::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = schedule.owner::oid)');
SELECT pg_catalog.pg_extension_config_dump('tq.schedule_fire', '');
