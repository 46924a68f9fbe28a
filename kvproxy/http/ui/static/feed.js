// Records of the journal, the newest first: those of the past a page at a time, and new ones as they come.

import { Refused, sleep } from "./api.js";

const PAGE = 200;
const MOST = 20_000; // Records that are held; older ones are fetched again.
const AGAIN = 1000; // Milliseconds.

/** All records that match filters, the newest first, for a file. */
export async function all(api, filters, signal) {
  const found = [];
  for (let before = ""; found.length < MOST;) {
    const rows = await api.get("log", { ...filters, limit: 1000, before }, signal);
    found.push(...rows.map(({ time, ...row }) => ({ time: new Date(1000 * time).toISOString(), ...row })));
    if (rows.length < 1000) break;
    before = rows.at(-1).number;
  }
  return found;
}

/** It calls `changed(added)` when there is something new to show; `added` records came at the top, all of them where it is null. */
export class Feed {
  rows = [];
  /** Whether more came at once than were sent. */
  gap = false;
  /** Records that came while the feed was paused. */
  held = [];
  paused = false;
  /** Why the proxy tells nothing. */
  refused = null;
  #end = false;
  #older = false;
  #newest = null;
  #completing = false;

  constructor(api, filters, signal, changed) {
    Object.assign(this, { api, filters, signal, changed });
    this.#run();
  }

  async #run() {
    while (!this.signal.aborted) {
      try {
        if (this.#newest === null) await this.#begin();
        for await (const { type, data } of this.api.events("log/live", { ...this.filters, after: this.#newest }, this.signal)) {
          if (type === "records") this.#add(data);
          // Another journal than before: its numbers began anew.
          else if (type === "hello" && data.newest < this.#newest) await this.#begin();
        }
      } catch (error) {
        if (this.signal.aborted) return;
        if (error instanceof Refused && this.api.state === "ok") {
          // No journal is kept, or a filter is impossible: asking again changes nothing.
          this.refused = error.message;
          this.changed(0);
          return;
        }
      }
      await sleep(AGAIN);
    }
  }

  async #begin() {
    const rows = await this.api.get("log", { ...this.filters, limit: PAGE }, this.signal);
    this.rows = rows;
    this.held = [];
    this.#end = rows.length < PAGE;
    this.#newest = rows[0]?.number ?? 0;
    this.changed(null);
  }

  #add({ records, more }) {
    const fresh = records.filter((record) => record.number > this.#newest);
    if (!fresh.length) return;
    this.#newest = fresh[0].number;
    this.gap ||= more;
    if (this.paused) this.held = [...fresh, ...this.held].slice(0, MOST);
    else this.#put(fresh);
    this.changed(this.paused ? 0 : fresh.length);
    if (fresh.some((record) => record.question === null)) this.#complete();
  }

  /** Fetch the newest records once more: a question is known when its response is committed, which may be after its request. */
  async #complete() {
    if (this.#completing) return;
    this.#completing = true;
    await sleep(2 * AGAIN);
    this.#completing = false;
    const rows = await this.api.get("log", { ...this.filters, limit: PAGE }, this.signal).catch(() => []);
    const later = new Map(rows.map((row) => [row.number, row]));
    for (const list of [this.rows, this.held]) list.forEach((row, place) => { list[place] = later.get(row.number) ?? row; });
    this.changed(0);
  }

  #put(fresh) {
    this.rows = [...fresh, ...this.rows];
    if (this.rows.length > MOST) {
      this.rows.length = MOST;
      this.#end = false;
    }
  }

  /** Stop showing new records, or go on with those that came meanwhile. */
  pause(paused) {
    this.paused = paused;
    const added = paused ? 0 : this.held.length;
    if (added) this.#put(this.held);
    if (!paused) this.held = [];
    this.changed(added);
  }

  /** Fetch those before the last. */
  async older() {
    if (this.#end || this.#older || !this.rows.length || this.rows.length >= MOST) return;
    this.#older = true;
    try {
      const before = this.rows.at(-1).number;
      const rows = await this.api.get("log", { ...this.filters, limit: PAGE, before }, this.signal);
      if (this.rows.at(-1)?.number !== before) return;
      this.rows = [...this.rows, ...rows];
      this.#end = rows.length < PAGE;
      this.changed(0);
    } catch {
      // The connection's state tells it, and a further look tries again.
    } finally {
      this.#older = false;
    }
  }
}
