// Asks the server. Replies are kept, so that going back shows at once what was there.

/** The server refused, or could not be reached. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status 0 if there was no reply
   * @param {any} [body]
   */
  constructor(message, status, body) {
    super(message);
    this.status = status;
    this.field = (body && body.field) || null;
    /** The part of the index that is made, from 0 to 1; -1 if it is not known; null if the answer is not about that. */
    this.progress = status !== 503 ? null : body && typeof body.progress === "number" ? body.progress : -1;
  }
}

const KEPT = 60;
/** Names this tab to the server, which shares its time between those who ask. */
const CLIENT = Math.random().toString(36).slice(2);
/** @type {Map<string, any>} */
const replies = new Map();

/** Forgets all replies, since a recording has grown. */
export function forget() {
  replies.clear();
}

/**
 * Gets JSON. The path is below /api/v1/.
 * @param {string} path
 * @param {URLSearchParams | Record<string, any> | null} query
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(path, query, signal) {
  const all = new URLSearchParams();
  const pairs = query instanceof URLSearchParams ? [...query] : Object.entries(query || {});
  for (const [name, value] of pairs) if (value !== null && value !== undefined && value !== "") all.append(name, String(value));
  const text = all.toString(), url = "/api/v1/" + path + (text ? "?" + text : "");
  const kept = replies.get(url);
  if (kept) {
    replies.delete(url);
    replies.set(url, kept);
    return kept;
  }
  const body = await ask(url, { signal, headers: { Accept: "application/json" } });
  replies.set(url, body);
  for (const old of replies.keys()) {
    if (replies.size <= KEPT) break;
    replies.delete(old);
  }
  return body;
}

/**
 * Gets JSON that changes by itself: never from what is kept.
 * @param {string} path
 * @param {AbortSignal} [signal]
 */
export function fresh(path, signal) {
  return ask("/api/v1/" + path, { signal, headers: { Accept: "application/json" } });
}

/**
 * Makes a request that changes something.
 * @param {string} path
 * @param {AbortSignal} [signal]
 */
export function post(path, signal) {
  return ask("/api/v1/" + path, { signal, method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
}

/**
 * Sends a text and tells of each line of JSON of the answer as it comes.
 * @param {string} path
 * @param {string} text
 * @param {(line: any) => void} onLine
 * @param {AbortSignal} signal ends the answer, and what the server does for it
 */
export async function stream(path, text, onLine, signal) {
  let reply;
  try {
    reply = await fetch("/api/v1/" + path, { credentials: "same-origin", method: "POST", headers: { "Content-Type": "text/plain", "X-Prof-Client": CLIENT }, body: text, signal });
  } catch (e) {
    if (signal.aborted) throw e;
    throw new ApiError("The server can't be reached. Is prof serve still running?", 0);
  }
  if (!reply.ok || !reply.body) {
    const said = await reply.text();
    let message = said.trim();
    try {
      message = JSON.parse(said).error || message;
    } catch {
      // The text itself says it.
    }
    throw new ApiError(message || "The server answered " + reply.status + ".", reply.status);
  }
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    const { done, value } = await reader.read();
    const lines = (rest + (value || "")).split("\n");
    rest = done ? "" : /** @type {string} */ (lines.pop());
    for (const line of lines) if (line.trim()) onLine(JSON.parse(line));
    if (done) return;
  }
}

/**
 * @param {string} url
 * @param {RequestInit} options
 * @returns {Promise<any>}
 */
async function ask(url, options) {
  let reply;
  try {
    reply = await fetch(url, { credentials: "same-origin", ...options, headers: { ...options.headers, "X-Prof-Client": CLIENT } });
  } catch (e) {
    if (/** @type {any} */ (e).name === "AbortError") throw e;
    throw new ApiError("The server can't be reached. Is prof serve still running?", 0);
  }
  const text = await reply.text();
  /** @type {any} */
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    if (reply.ok) throw new ApiError("The server's reply is no JSON.", reply.status);
  }
  if (reply.ok) return body;
  throw new ApiError((body && body.error) || text.trim() || "The server answered " + reply.status + ".", reply.status, body);
}

/**
 * Returns the address of an export.
 * @param {string} id
 * @param {string} format
 * @param {URLSearchParams} query
 */
export function exportUrl(id, format, query) {
  const text = query.toString();
  return "/api/v1/" + encodeURIComponent(id) + "/export/" + format + (text ? "?" + text : "");
}

/**
 * Follows the server's events until the signal. Returns nothing; errors end in a new attempt by the browser.
 * @param {Record<string, (data: any) => void>} listeners
 * @param {AbortSignal} signal
 * @param {(open: boolean) => void} [state]
 */
export function follow(listeners, signal, state) {
  const source = new EventSource("/api/v1/events");
  for (const [name, listener] of Object.entries(listeners)) {
    source.addEventListener(name, (e) => listener(JSON.parse(/** @type {any} */ (e).data)));
  }
  source.onopen = () => state && state(true);
  source.onerror = () => state && state(false);
  signal.addEventListener("abort", () => source.close());
}
