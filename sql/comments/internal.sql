
-- Comments. The install script and the newest update script end with this file and with what reference.awk makes.

COMMENT ON SCHEMA tq IS $tq$The journal and registries of the task queue; read them through the functions and views.$tq$;

COMMENT ON TABLE tq.job IS $tq$One row for each enqueued job; parent of the segments tq.job_N.$tq$;
COMMENT ON TABLE tq.event IS $tq$One row for each durable change of a job; parent of the segments tq.event_N.$tq$;
COMMENT ON TABLE tq.job_0 IS $tq$The jobs of segment 0, which always exists.$tq$;
COMMENT ON TABLE tq.event_0 IS $tq$The events of the jobs of segment 0.$tq$;
COMMENT ON TABLE tq.queue IS $tq$Queues, with their settings and pauses.$tq$;
COMMENT ON TABLE tq.acl IS $tq$Privileges of roles on queues, as tq_grant grants them.$tq$;
COMMENT ON TABLE tq.segment IS $tq$Numbered segments: when each was opened, sealed and finished.$tq$;
COMMENT ON TABLE tq.unique_key IS $tq$The job that last took each unique key.$tq$;
COMMENT ON TABLE tq.dependency IS $tq$Jobs that wait for other jobs, and the outcomes that they are given.$tq$;
COMMENT ON TABLE tq.edge IS $tq$Which job has waited for which, as tq_graph shows.$tq$;
COMMENT ON TABLE tq.batch IS $tq$Batches and their progress.$tq$;
COMMENT ON TABLE tq.meta IS $tq$Servers and databases in which the queues were in use; a copy of a database is in none of them.$tq$;
COMMENT ON TABLE tq.schedule IS $tq$Schedules, as tq_schedule defines them.$tq$;
COMMENT ON TABLE tq.schedule_fire IS $tq$The times of each schedule that the scheduler has dealt with.$tq$;
COMMENT ON TABLE tq.handler IS $tq$Functions that run jobs, as tq_handle names them.$tq$;
COMMENT ON TABLE tq.requester IS $tq$Roles that have asked for follow-ups.$tq$;
COMMENT ON TABLE tq.audit IS $tq$Calls that administered queues or jobs: rows of the view tq_audit.$tq$;
COMMENT ON TABLE tq.subscription IS $tq$Targets of deliveries by HTTP, as tq_subscribe adds them.$tq$;
COMMENT ON TABLE tq.creator IS $tq$Roles that created queues, for their limits.$tq$;
COMMENT ON TABLE tq.group_setting IS $tq$Pauses and limits of single groups, as tq_pause and tq_limit_group set them.$tq$;
COMMENT ON TABLE tq.change IS $tq$Committed changes of jobs, as tq_changes returns them.$tq$;
COMMENT ON TABLE tq.change_log IS $tq$Which rows of tq.change were deleted, so that tq_changes refuses cursors that missed some.$tq$;
COMMENT ON TABLE tq.change_mark IS $tq$Which transactions had ended at a time, which tells the age of rows of tq.change.$tq$;
COMMENT ON TABLE tq.help IS $tq$What tq_help prints.$tq$;
COMMENT ON SEQUENCE tq.queue_id_seq IS $tq$Numbers of queues.$tq$;
COMMENT ON SEQUENCE tq.job_id_seq IS $tq$Ids of jobs, drawn in blocks.$tq$;
COMMENT ON SEQUENCE tq.audit_id_seq IS $tq$Numbers of the rows of tq.audit.$tq$;
COMMENT ON SEQUENCE tq.lease_seq IS $tq$Numbers of leases, drawn in blocks.$tq$;

COMMENT ON DOMAIN tq.inbox_queue IS $tq$The column queue of the view tq_inbox.$tq$;
COMMENT ON TYPE tq.role IS $tq$A role in a table that is dumped: its oid, or a name that no role had.$tq$;
COMMENT ON TYPE tq.job_line IS $tq$A row of the view tq_jobs.$tq$;

COMMENT ON FUNCTION tq.require_library() IS $tq$Raises an error if the server still runs the library of an older version.$tq$;
COMMENT ON FUNCTION tq.role_in(cstring) IS $tq$Input of the type tq.role.$tq$;
COMMENT ON FUNCTION tq.role_out(tq.role) IS $tq$Output of the type tq.role.$tq$;
COMMENT ON FUNCTION tq.role_oid(tq.role) IS $tq$The oid of the role; 0: it was missing when its name was read.$tq$;
COMMENT ON FUNCTION tq.running() IS $tq$Rows of the view tq_running.$tq$;
COMMENT ON FUNCTION tq.workers() IS $tq$Rows of the view tq_workers.$tq$;
COMMENT ON FUNCTION tq.jobs() IS $tq$Rows of the view tq_jobs.$tq$;
COMMENT ON FUNCTION tq.dead() IS $tq$Rows of the view tq_dead.$tq$;
COMMENT ON FUNCTION tq.schedules() IS $tq$Rows of the view tq_schedules.$tq$;
COMMENT ON FUNCTION tq.subscriptions() IS $tq$Rows of the view tq_subscriptions.$tq$;
COMMENT ON FUNCTION tq.may_list(int, oid) IS $tq$Whether the caller may see a grant, a handler or a row of tq_audit of a role on a queue.$tq$;
COMMENT ON FUNCTION tq.rights_on(int) IS $tq$The privileges of the caller on a queue; 0: on all queues.$tq$;
COMMENT ON FUNCTION tq.may_list_groups(int) IS $tq$Whether the caller may see which groups of a queue are paused or limited.$tq$;
COMMENT ON FUNCTION tq.inbox_guard(text) IS $tq$Condition of the view tq_inbox, which shows no rows.$tq$;
COMMENT ON FUNCTION tq.inbox_insert() IS $tq$Trigger: enqueues what is inserted into tq_inbox.$tq$;
COMMENT ON FUNCTION tq.reload_trigger() IS $tq$Trigger: refuses writes that bypass tq while the database is active.$tq$;
COMMENT ON FUNCTION tq.acl_changed() IS $tq$Trigger: tells sessions that privileges have changed.$tq$;
COMMENT ON FUNCTION tq.dependencies_changed() IS $tq$Trigger: tells the scheduler that dependencies or batches have changed.$tq$;
COMMENT ON FUNCTION tq.schedule_changed() IS $tq$Trigger: tells the scheduler that schedules have changed.$tq$;
COMMENT ON FUNCTION tq.handler_changed() IS $tq$Trigger: tells schedulers and executors that handlers have changed.$tq$;

