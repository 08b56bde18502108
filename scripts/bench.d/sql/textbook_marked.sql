UPDATE textbook SET state = 'running', started_at = now() WHERE id = (SELECT id FROM textbook WHERE state = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, payload \gset
UPDATE textbook SET state = 'done', finished_at = now() WHERE id = :id;
