SELECT tq_enqueue('limited', '{"user_id": 8675309, "template": "welcome", "to": "somebody@example.com", "tries": 3, "urgent": false}');
SELECT id, lease, payload FROM tq_claim('limited') \gset
SELECT tq_complete(:id, :lease);
