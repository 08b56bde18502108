-- Views. What a view calls is checked against the rights of whoever queries it; the tables are read with the owner's.

CREATE VIEW tq_queues AS
	SELECT s.queue, s.state, s.ready, s.delayed, s.running, s.live, s.in_memory, s.on_disk, s.waiting, s.paused_until, s.kinds,
		q.settings, q.created_at
	FROM tq_stats() s LEFT JOIN tq.queue q ON q.name = s.queue;
