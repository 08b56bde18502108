// Calls of the gateway. Its address is that of the page.

/** A refusal, as application/problem+json says it. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint = "",
    readonly code = "",
  ) {
    super(message);
  }
}

const TOKEN = "tq.token";
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value: string) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

/** The address of a call, also where the page is below a path. */
export function address(path: string): string {
  return new URL("." + path, document.baseURI.replace(/[?#].*$/, "")).href;
}

export type Parameters = Record<string, string | number | boolean | null | undefined>;

export function query(parameters: Parameters): string {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? "?" + new URLSearchParams(given.map(([name, value]) => [name, String(value)])) : "";
}

/** A part of a path. */
export function part(text: string | number): string {
  return encodeURIComponent(String(text));
}

export async function request(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = {};
  if (token.get()) headers.Authorization = "Bearer " + token.get();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(address(path), {
      method,
      headers,
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Refused(0, "The gateway does not answer.", "Check that tq-gateway runs; the console goes on as soon as it does.");
  }
  if (answer.ok) return answer;
  let said: { title?: string; detail?: string; hint?: string; code?: string } = {};
  try {
    said = await answer.json();
  } catch {
    // a proxy may answer otherwise
  }
  throw new Refused(answer.status, said.detail ?? said.title ?? `The gateway answered ${answer.status}.`, said.hint, said.code);
}

export async function get<T>(path: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<T> {
  return (await request("GET", path + query(parameters), undefined, signal)).json();
}

export async function text(path: string): Promise<string> {
  return (await request("GET", path)).text();
}

export async function send<T>(method: string, path: string, body?: unknown): Promise<T> {
  const said = await (await request(method, path, body)).text();
  return said ? JSON.parse(said) : (undefined as T);
}
