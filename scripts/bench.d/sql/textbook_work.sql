BEGIN;
SELECT count(*) AS jobs, max(id) AS id FROM (SELECT id FROM textbook WHERE state = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) j \gset
\if :jobs
\sleep 2 ms
UPDATE textbook SET state = 'done', finished_at = clock_timestamp() WHERE id = :id;
\endif
COMMIT;
\if :jobs = 0
\sleep 10 ms
\endif
