SELECT id, lease, payload FROM tq_claim('bench') \gset
