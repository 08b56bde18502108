-- The tables of the example workers; needs the extension tq.
CREATE TABLE transfer (     -- producers write a row together with a job
	name   text PRIMARY KEY,
	amount int NOT NULL
);
CREATE TABLE booking (      -- workers write a row together with the job's end
	job_id   bigint NOT NULL,
	transfer text NOT NULL,
	amount   int NOT NULL,
	worker   text NOT NULL
);
