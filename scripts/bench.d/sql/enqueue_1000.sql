SELECT tq_enqueue_many('bench', array_fill('{"user_id": 8675309, "template": "welcome", "to": "somebody@example.com", "tries": 3, "urgent": false}'::jsonb, ARRAY[1000]));
