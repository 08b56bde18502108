INSERT INTO base_pk (queue_id, priority, payload) SELECT 1, 0, '{"user_id": 8675309, "template": "welcome", "to": "somebody@example.com", "tries": 3, "urgent": false}' FROM generate_series(1, 1000);
