-- The roles that requested follow-ups (docs/guides/notifications.md). The key "by" of follow_up holds such an id. A
-- role may have several.

CREATE TABLE tq.requester (
	id   text COLLATE "C" PRIMARY KEY,
	role regrole NOT NULL                  -- its right to produce counts when a follow-up is enqueued
);
CREATE INDEX requester_role ON tq.requester (role);
REVOKE ALL ON TABLE tq.requester FROM PUBLIC;
-- A dropped role would be restored as a number, which may then be the oid of another role.
SELECT pg_catalog.pg_extension_config_dump('tq.requester', 'WHERE EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = requester.role)');
