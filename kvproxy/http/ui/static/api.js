// The admin routes: requests them in the operator's session, and knows whether the proxy answers.

const BASE = new URL("../admin/", document.baseURI);
const KEPT = "kvproxy-session";
const ABSENT = 60_000; // Milliseconds until a resource that this kind of proxy lacks is looked for again.
const AGAIN = 1000; // Milliseconds until a proxy that did not answer is asked again.

export const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** What the proxy refused, in its own words. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The proxy's admin routes. It sends `state` events: `ok`, `lost` (nobody answers) or `closed` (the token is missing or wrong). */
export class Api extends EventTarget {
  state = "ok";
  reason = "";
  // Half of the session. The other half is a cookie that no script can read.
  #absent = new Map();
  #session = sessionStorage.getItem(KEPT) ?? "";

  /** Exchange the admin token for a session of this tab; an empty token ends the session. Raises Refused. */
  async signIn(token) {
    if (token) {
      const headers = { authorization: `Bearer ${token}` };
      this.#session = (await (await this.#fetch("session", { method: "POST", headers })).json()).session;
      sessionStorage.setItem(KEPT, this.#session);
    } else {
      if (this.#session) await this.#fetch("session", { method: "DELETE" }).catch(() => {});
      this.#session = "";
      sessionStorage.removeItem(KEPT);
    }
    this.#tell("ok");
  }

  #tell(state, reason = "") {
    if (state === this.state && reason === this.reason) return;
    const before = this.state;
    this.state = state;
    this.reason = reason;
    this.dispatchEvent(new CustomEvent("state", { detail: { before } }));
  }

  async #fetch(path, { method = "GET", query = {}, body = null, signal = null, headers = null } = {}) {
    const url = new URL(path, BASE);
    for (const [name, value] of Object.entries(query)) {
      if (value !== "" && value !== null && value !== undefined) url.searchParams.set(name, value);
    }
    headers ??= this.#session ? { "x-kvproxy-session": this.#session } : {};
    let response;
    try {
      response = await fetch(url, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
    } catch (error) {
      if (!signal?.aborted) this.#tell("lost");
      throw error;
    }
    if (response.ok) {
      this.#tell("ok");
      return response;
    }
    const message = await response.json().then((body) => body.error.message, () => response.statusText);
    if (response.status === 401 || response.status === 403) this.#tell("closed", message);
    else if (response.status === 502 || response.status === 504) this.#tell("lost");
    else this.#tell("ok");
    throw new Refused(response.status, message);
  }

  /** What a route says; raises Refused, or a TypeError where nobody answers. */
  async get(path, query = {}, signal = null) {
    return (await this.#fetch(path, { query, signal })).json();
  }

  /** The state of the proxy; also that of a failed one, whose status is 503. */
  async health() {
    const headers = this.#session ? { "x-kvproxy-session": this.#session } : {};
    return (await fetch(new URL("health", BASE), { headers, cache: "no-store" })).json();
  }

  /** A page of rows, and how many there are in all. */
  async page(path, query = {}, signal = null) {
    const response = await this.#fetch(path, { query, signal });
    return { rows: await response.json(), total: Number(response.headers.get("x-total-count")) };
  }

  /** The response of a route, or null if this proxy does not have the resource. A failure of the proxy is an error. */
  async find(path, query = {}, signal = null) {
    if (this.#absent.get(path) > Date.now()) return null;
    try {
      return await this.get(path, query, signal);
    } catch (error) {
      if (!(error instanceof Refused) || (error.status !== 404 && error.status !== 409)) throw error;
      // The browser logs each refused request.
      if (error.status === 409 || path === "upstreams") this.#absent.set(path, Date.now() + ABSENT);
      return null;
    }
  }

  async post(path, body = null) {
    return (await this.#fetch(path, { method: "POST", body })).json();
  }

  async delete(path) {
    return (await this.#fetch(path, { method: "DELETE" })).json();
  }

  /** The events of a stream until it ends: `{type, data}`. EventSource would send no header. */
  async *events(path, query, signal) {
    const response = await this.#fetch(path, { query, signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const parts = text.split("\n\n");
        text = parts.pop();
        for (const part of parts) {
          const event = parse(part);
          if (event !== null) yield event;
        }
      }
    } finally {
      // It has no end of its own: the proxy stops, or is gone.
      if (!signal.aborted) this.#tell("lost");
    }
  }

  /** Do some work again and again, until the signal; sooner where the proxy did not answer, and not while nobody looks. */
  async poll(work, seconds, signal) {
    while (!signal.aborted) {
      let pause = 1000 * seconds;
      try {
        if (!document.hidden) await work();
      } catch (error) {
        if (signal.aborted) return;
        if (this.state === "ok") console.error(error);
        pause = this.state === "ok" ? pause : AGAIN;
      }
      await sleep(pause);
    }
  }
}

function parse(part) {
  const lines = part.split("\n");
  const of = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
  const data = of("data");
  return data === undefined ? null : { type: of("event"), data: JSON.parse(data) };
}
