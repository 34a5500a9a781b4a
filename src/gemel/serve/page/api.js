// Requests to the server that this page came from, and the messages of its errors.

import { askForKey, storedKey } from "./key.js";

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const REASONS = {
  401: "The server needs an API key. Press “API key” to enter one.",
  403: "The server does not allow this.",
  404: "The server has no such route.",
  413: "This is more than the server accepts at once.",
  429: "The server is overloaded.",
  503: "The server is not ready yet.",
  504: "The answer took too long.",
};

/** The message of an error answer, in the form of any protocol. */
function reason(answer, body) {
  const error = body?.error ?? body?.detail ?? body;
  const given = typeof error === "string" ? error : (error?.message ?? error?.[0]?.msg);
  const message = typeof given === "string" && given ? given : (REASONS[answer.status] ?? `The server answered ${answer.status}.`);
  const wait = Number(answer.headers.get("retry-after"));
  return wait > 0 ? `${message} Try again in ${Math.ceil(wait)} s.` : message;
}

async function send(path, body, signal) {
  const headers = { accept: "application/json" };
  const key = storedKey();
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const request = { method: body === undefined ? "GET" : "POST", headers, signal, cache: "no-store" };
  if (body !== undefined) request.body = JSON.stringify(body);
  try {
    return await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer. Is it still running?", 0);
  }
}

/**
 * The answer of the server to GET, or to POST with a body. After a 401 the visitor is asked for a key;
 * with `quiet` it is an error like any other.
 */
export async function call(path, { body, signal, quiet = false } = {}) {
  let answer = await send(path, body, signal);
  while (answer.status === 401 && !quiet) {
    if (!(await askForKey())) throw new ServerError(REASONS[401], 401);
    answer = await send(path, body, signal);
  }
  const read = await answer.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (!answer.ok) throw new ServerError(reason(answer, read), answer.status);
  if (read === null) throw new ServerError("The server's answer could not be read.", answer.status);
  return read;
}

/** One request at a time: a new one cancels the previous one. `latest` gives null for a canceled one. */
export function single() {
  let running = null;
  return {
    cancel() {
      running?.abort();
      running = null;
    },
    async latest(path, body) {
      this.cancel();
      const mine = (running = new AbortController());
      try {
        const answer = await call(path, { body, signal: mine.signal });
        return mine === running ? answer : null;
      } catch (error) {
        if (error.name === "AbortError" || mine !== running) return null;
        throw error;
      }
    },
  };
}

/** Calls `act` after `wait` ms without another call; `now` skips the wait. */
export function debounced(act, wait = 180) {
  let timer = 0;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(act, wait);
  };
  later.now = () => {
    clearTimeout(timer);
    act();
  };
  return later;
}
