// The conditions by which jobs are found, as GET /v1/jobs and those that change many jobs take them.
import { get, type Parameters } from "./api";
import type { Listed } from "./types";

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

export interface Page {
  jobs: Listed[];
  next_after: number | null; // null: there are no more
}
export const PAGE = 50;

export async function pageOf(conditions: Parameters, signal?: AbortSignal): Promise<Page> {
  const { jobs, next_after } = await get<Page>("/v1/jobs", { ...conditions, limit: PAGE }, signal);
  // a short page that was not cut off is the last one
  return { jobs, next_after: jobs.length > 0 && jobs.length < PAGE && next_after === jobs.at(-1)?.id ? null : next_after };
}
