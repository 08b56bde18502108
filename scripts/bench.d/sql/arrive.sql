SELECT tq_enqueue_many('bench', array_fill('{"user_id": 8675309}'::jsonb, ARRAY[:jobs::int]));
