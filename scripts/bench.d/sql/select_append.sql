SELECT 1 AS id, 2 AS lease \gset
INSERT INTO base_append (id, queue_id, priority, payload) VALUES (:client_id, 1, 0, '{"user_id": 8675309, "template": "welcome", "to": "somebody@example.com", "tries": 3, "urgent": false}');
