SELECT tq_enqueue('bench', '{"user_id": 8675309, "template": "welcome", "to": "somebody@example.com", "tries": 3, "urgent": false}');
