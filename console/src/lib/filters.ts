// The conditions by which jobs are found, as GET /v1/jobs and those that change many jobs take them.
export const STATES = ["ready", "delayed", "blocked", "running", "succeeded", "dead", "buried", "cancelled", "expired"];
export const TEXTS = ["kind", "tag", "worker", "group_key", "unique_key", "error"] as const;

export interface Action {
  name: "cancel" | "retry" | "reschedule" | "purge";
  title: string;
  done: string;
  states: string[];
}

export const ACTIONS: Action[] = [
  { name: "cancel", title: "Cancel", done: "cancelled", states: ["ready", "delayed", "blocked", "running"] },
  { name: "retry", title: "Retry", done: "retried", states: ["dead", "buried", "cancelled", "expired", "delayed"] },
  { name: "reschedule", title: "Reschedule", done: "rescheduled", states: ["ready", "delayed", "blocked"] },
  { name: "purge", title: "Purge", done: "purged", states: ["ready", "delayed", "blocked", "succeeded", "dead", "buried", "cancelled", "expired"] },
];
