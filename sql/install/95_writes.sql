-- While the database is active, only tq writes its tables. Those of jobs and events have these triggers from the start.
-- tq.help has no state, so it has none.
DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY ARRAY['acl', 'audit', 'batch', 'change', 'change_log', 'change_mark', 'creator', 'dependency', 'edge',
		'group_setting', 'handler', 'meta', 'queue', 'requester', 'schedule', 'schedule_fire', 'segment', 'subscription', 'unique_key']
	LOOP
		EXECUTE format('CREATE TRIGGER tq_reload AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.%I
			FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger()', name);
		EXECUTE format('CREATE TRIGGER tq_reload_row AFTER INSERT OR UPDATE OR DELETE ON tq.%I
			FOR EACH ROW EXECUTE FUNCTION tq.reload_trigger()', name);
		EXECUTE format('ALTER TABLE tq.%I ENABLE ALWAYS TRIGGER tq_reload, ENABLE REPLICA TRIGGER tq_reload_row', name);
	END LOOP;
END
$$;
