-- A table of jobs as textbooks have it.
DROP TABLE IF EXISTS textbook;
CREATE TABLE textbook (
	id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	state       text NOT NULL DEFAULT 'ready',
	payload     jsonb NOT NULL,
	created_at  timestamptz NOT NULL DEFAULT now(),
	started_at  timestamptz,
	finished_at timestamptz
);
CREATE INDEX ON textbook (id) WHERE state = 'ready';
