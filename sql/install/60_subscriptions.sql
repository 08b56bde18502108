-- Targets of deliveries by HTTP, for a gateway (docs/guides/subscriptions.md). tq itself calls no URL.

CREATE TABLE tq.subscription (
	queue_id   int NOT NULL,               -- tq.queue.id
	url        text COLLATE "C" NOT NULL,
	options    jsonb NOT NULL DEFAULT '{}', -- the gateway's; may hold secrets
	role       tq.role NOT NULL,           -- who subscribed
	defined_at timestamptz NOT NULL,
	PRIMARY KEY (queue_id, url)
);
REVOKE ALL ON TABLE tq.subscription FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('tq.subscription', 'WHERE subscription.role::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = subscription.role::oid)');

CREATE FUNCTION tq_subscribe(queue text, url text, options jsonb DEFAULT '{}')
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_unsubscribe(queue text, url text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq.subscriptions()
RETURNS TABLE (queue text, url text, options jsonb, role regrole, defined_at timestamptz, active boolean)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME', 'tq_list_subscriptions';
CREATE VIEW tq_subscriptions AS SELECT * FROM tq.subscriptions();
