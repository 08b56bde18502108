\set g random(1, 1000)
SELECT tq_enqueue('grouped', '{"user_id": 8675309, "template": "welcome", "to": "somebody@example.com", "tries": 3, "urgent": false}', group_key => 'group ' || :g);
SELECT id, lease, payload FROM tq_claim('grouped') \gset
SELECT tq_complete(:id, :lease);
