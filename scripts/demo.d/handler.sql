-- examples/sha256_worker.py as a handler: the digest and the completion of the job are one transaction, and no
-- heartbeats are needed.
CREATE FUNCTION digest_file(job tq_job) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	sha256 text;
BEGIN
	IF (job.payload->>'fail_once')::boolean AND job.attempt = 1 THEN
		RAISE EXCEPTION 'fails once, as the payload asks';
	END IF;
	sha256 := encode(sha256(pg_read_binary_file(job.payload->>'path')), 'hex');
	INSERT INTO digest (job_id, sha256, worker, attempt, claimed_at)
		VALUES (job.id, sha256, 'executor ' || pg_backend_pid(), job.attempt, transaction_timestamp());
	RETURN to_jsonb(sha256);
END
$$;

SELECT tq_alter_queue('files', '{"retry": {"policy": "fixed", "delay": "200 ms", "jitter": 0}}');

-- a retry will not find a file that is missing, or closed to the server
SELECT tq_handle('files', NULL, 'digest_file(tq_job)', '{"fatal": ["58P01", "42501"]}');
