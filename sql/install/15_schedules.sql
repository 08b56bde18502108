-- Schedules, and which of their times have been dealt with. Rows of the first change only by tq_schedule and its like, and when rows of the
-- second are pruned.

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
	owner       regrole NOT NULL,          -- with whose rights its jobs are enqueued
	anchor      timestamptz NOT NULL,      -- `every` counts from here
	fired_until timestamptz NOT NULL,      -- nothing at or before it ever fires (again)
	defined_at  timestamptz NOT NULL,
	revision    bigint NOT NULL,           -- grows with each change by tq_schedule, tq_schedule_pause, tq_schedule_resume
	paused      boolean NOT NULL,
	missed      bigint NOT NULL DEFAULT 0, -- of rows of schedule_fire that were pruned
	last_error  text,                      -- why a time could not be dealt with; null once one was
	CONSTRAINT schedule_cron_or_every CHECK ((cron IS NULL) <> (every IS NULL)),
	CONSTRAINT schedule_catch_up_known CHECK (catch_up IN ('none', 'latest', 'all')),
	CONSTRAINT schedule_overlap_known CHECK (overlap IN ('allow', 'skip', 'cancel'))
);

-- One row per schedule and time, written by the transaction that enqueues the job: so there is exactly one job. The last hundred are kept.
CREATE TABLE tq.schedule_fire (
	schedule   text COLLATE "C" NOT NULL,
	fire_at    timestamptz NOT NULL,
	job_id     bigint,                     -- null: none; of a duplicate: who has its unique key
	at         timestamptz NOT NULL,       -- when that was
	kept_until timestamptz,                -- till then the journal has the job, whatever becomes of it
	missed     bigint NOT NULL DEFAULT 0,  -- times between the row before and this one for which there is no job
	outcome    text NOT NULL
		CONSTRAINT schedule_fire_outcome_known CHECK (outcome IN ('fired', 'skipped', 'missed', 'duplicate', 'denied', 'manual')),
	PRIMARY KEY (schedule, fire_at)
);

-- The scheduler hears of changes, also of those by hand, by a restore and by logical replication.
CREATE FUNCTION tq.schedule_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_schedule_changed';
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE ON tq.schedule
	FOR EACH ROW EXECUTE FUNCTION tq.schedule_changed();
CREATE TRIGGER tq_truncated AFTER TRUNCATE ON tq.schedule
	FOR EACH STATEMENT EXECUTE FUNCTION tq.schedule_changed();
ALTER TABLE tq.schedule ENABLE ALWAYS TRIGGER tq_changed, ENABLE ALWAYS TRIGGER tq_truncated;

REVOKE ALL ON TABLE tq.schedule, tq.schedule_fire FROM PUBLIC;

-- A role that was dropped would come back as a number, which may be another role's.
SELECT pg_catalog.pg_extension_config_dump('tq.schedule', 'WHERE EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = schedule.owner)');
SELECT pg_catalog.pg_extension_config_dump('tq.schedule_fire', '');
