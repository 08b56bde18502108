INSERT INTO textbook (payload) VALUES ('{"user_id": 8675309, "template": "welcome", "to": "somebody@example.com", "tries": 3, "urgent": false}');
BEGIN;
SELECT coalesce(max(id), 0) AS id FROM (SELECT id FROM textbook WHERE state = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) j \gset
UPDATE textbook SET state = 'done', finished_at = now() WHERE id = :id;
COMMIT;
