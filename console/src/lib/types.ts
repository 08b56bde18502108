// What the gateway answers, as openapi.json describes it.

export interface Figures {
  queue: string;
  state: string;
  paused_until: string | null;
  ready: number;
  delayed: number;
  blocked: number;
  running: number;
  waiting: number;
  enqueued: number;
  claimed: number;
  succeeded: number;
  failed: number;
  lost: number;
  dead: number;
}

export interface Queue extends Omit<Figures, "enqueued" | "claimed" | "succeeded" | "failed" | "lost" | "dead"> {
  live: number;
  in_memory: number;
  on_disk: number;
  kinds: Record<string, Record<string, unknown>> | null;
  settings: Record<string, unknown>;
  created_at: string;
  groups: Record<string, { paused_until?: string | null; max_running?: number | null; rate?: string | null }> | null;
}

export interface Listed {
  id: number;
  queue: string;
  kind: string | null;
  state: string;
  priority: number;
  attempt: number;
  max_attempts: number | null;
  run_at: string | null;
  enqueued_at: string;
  expires_at: string | null;
  worker: string | null;
  group_key: string | null;
  unique_key: string | null;
  tags: string[] | null;
  payload: string | null;
}

export interface Job extends Omit<Listed, "payload"> {
  claimed_at: string | null;
  finished_at: string | null;
  error: string | null;
  lease_expires_at: string | null;
  origin: number | null;
  policies: Record<string, { from: string; value: unknown }> | null;
}

export interface Happened {
  step: number;
  at: string;
  event: string;
  attempt: number | null;
  worker: string | null;
  claimed_at: string | null;
  retry_at: string | null;
  reason: string | null;
}

export interface Related {
  level: number;
  id: number;
  parents: number[] | null;
  queue: string;
  kind: string | null;
  state: string;
  on_parent_failure: string | null;
}

export interface Running {
  id: number;
  queue: string;
  kind: string | null;
  worker: string | null;
  attempt: number;
  priority: number;
  claimed_at: string;
  lease_expires_at: string;
  cancel_asked: boolean;
  progress: unknown;
}

export interface DeadGroup {
  kind: string | null;
  error: string | null;
  jobs: number;
  first_at: string;
  last_at: string;
  example: number;
  complete: boolean;
}

export interface Schedule {
  name: string;
  queue: string;
  kind: string | null;
  cron: string | null;
  every: string | null;
  timezone: string | null;
  catch_up: string;
  overlap: string;
  options: Record<string, unknown> | null;
  owner: string;
  state: string;
  next_at: string | null;
  last_at: string | null;
  last_job_id: number | null;
  last_outcome: string | null;
  missed: number;
  last_error: string | null;
}

export interface Worker {
  worker: string;
  running: number;
  claimed: number;
  seen_at: string | null;
  draining: boolean;
}

export interface Span {
  at: string;
  span: string;
  enqueued: number;
  claimed: number;
  succeeded: number;
  failed: number;
  lost: number;
  dead: number;
  wait_p50: string | null;
  wait_p99: string | null;
  run_p50: string | null;
  run_p99: string | null;
}

export interface Health {
  item: string;
  value: string | null;
  status: string;
  hint: string | null;
}

export interface Handler {
  queue: string;
  kind: string | null; // null: every kind without a handler of its own
  function: string;
  role: string;
  options: unknown;
  search_path: string;
  defined_at: string;
  problem: string | null;
  problem_at: string | null;
  retry_at: string | null;
}

export interface Subscription {
  queue: string;
  url: string;
  options: unknown;
  role: string;
  defined_at: string;
  active: boolean;
}

export interface Grant {
  queue: string;
  role: string;
  privilege: string;
}

export interface Audited {
  id: number;
  at: string;
  role: string;
  session_role: string;
  action: string;
  queue: string | null;
  job_id: number | null;
  detail: unknown;
}

export interface Me {
  role: string;
  database: string;
  version: string;
  now: string;
  rights: Record<string, string[]>;
}

export interface Setting {
  name: string;
  value: string;
  source: string;
  help: string;
  for_queues: boolean; // a queue may set it for itself
}
