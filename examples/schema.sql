-- What the workers in this folder work on; the extension tq must be there.
CREATE TABLE transfer (     -- what producers write, together with a job
	name   text PRIMARY KEY,
	amount int NOT NULL
);
CREATE TABLE booking (      -- what workers write, together with the job's end
	job_id   bigint NOT NULL,
	transfer text NOT NULL,
	amount   int NOT NULL,
	worker   text NOT NULL
);
