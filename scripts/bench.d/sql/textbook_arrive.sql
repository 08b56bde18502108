INSERT INTO textbook (payload) SELECT '{"user_id": 8675309}' FROM generate_series(1, :jobs);
