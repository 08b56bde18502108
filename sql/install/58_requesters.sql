-- The roles that requested follow-ups (docs/guides/notifications.md). The key "by" of follow_up holds such an id. A
-- role may have several.

CREATE TABLE tq.requester (
	id   text COLLATE "C" PRIMARY KEY,
	role tq.role NOT NULL                  -- its right to produce counts when a follow-up is enqueued
);
CREATE INDEX requester_role ON tq.requester ((role::oid));
REVOKE ALL ON TABLE tq.requester FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('tq.requester', 'WHERE requester.role::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = requester.role::oid)');
