-- Functions as an application might write them around tq.

CREATE FUNCTION enqueue_pair(queue text, one text, two text) RETURNS SETOF bigint LANGUAGE sql AS $$
	SELECT tq_enqueue(queue, jsonb_build_object('transfer', one))
	UNION ALL
	SELECT tq_enqueue(queue, jsonb_build_object('transfer', two))
$$;

CREATE FUNCTION next_jobs(queue text, n int, who text) RETURNS SETOF tq_job LANGUAGE sql AS $$
	SELECT * FROM tq_claim(queue, n, worker => who)
$$;

-- The work and the end of the job in one statement.
CREATE FUNCTION finish(job bigint, lease bigint, who text) RETURNS text LANGUAGE sql AS $$
	INSERT INTO booking SELECT id, payload ->> 'transfer', 1, who FROM tq_get(job);
	SELECT tq_complete(job, lease)
$$;

CREATE FUNCTION try_finish(job bigint, lease bigint, who text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN finish(job, lease, who);
EXCEPTION
	WHEN SQLSTATE 'TQ001' THEN
		RETURN 'lost';
END
$$;

-- Enqueues and claims in nested blocks, each of which may fail; returns the surviving jobs.
CREATE FUNCTION nested(queue text, tokens text[], fails boolean[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
	deeper text[];
BEGIN
	IF cardinality(tokens) = 0 THEN
		RETURN '{}';
	END IF;
	PERFORM tq_enqueue(queue, jsonb_build_object('transfer', tokens[1]));
	deeper := nested(queue, tokens[2:], fails[2:]);
	IF fails[1] THEN
		RAISE EXCEPTION 'undone';
	END IF;
	RETURN tokens[1] || deeper;
EXCEPTION
	WHEN raise_exception THEN
		RETURN '{}';
END
$$;

-- A job for each row, at once or at the end of the transaction.
CREATE FUNCTION enqueue_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM tq_enqueue(NEW.queue, jsonb_build_object('transfer', NEW.name));
	RETURN NULL;
END
$$;
CREATE TABLE order_now (queue text, name text);
CREATE TRIGGER enqueue AFTER INSERT ON order_now FOR EACH ROW EXECUTE FUNCTION enqueue_row();
CREATE TABLE order_late (queue text, name text);
CREATE CONSTRAINT TRIGGER enqueue AFTER INSERT ON order_late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION enqueue_row();

-- A worker inside the server: each job is a transaction, and every third transaction rolls back.
CREATE PROCEDURE work_off(queue text, who text) LANGUAGE plpgsql AS $$
DECLARE
	job tq_job;
	n int := 0;
BEGIN
	LOOP
		SELECT * INTO job FROM tq_claim(queue, worker => who);
		EXIT WHEN NOT FOUND;
		n := n + 1;
		PERFORM finish(job.id, job.lease, who);
		IF n % 3 = 0 THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
	END LOOP;
END
$$;
