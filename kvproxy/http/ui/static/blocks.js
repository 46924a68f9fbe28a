// What single blocks hold: fetched when they are pointed at, and kept for a while.

import { facts, fill, h } from "./dom.js";
import { count, digest } from "./format.js";
import { stateOf } from "./map.js";

const MOST = 500;
const REST = 60; // Milliseconds that the pointer rests before a block is fetched.

/** The contents of blocks, by name. */
export class Blocks {
  #known = new Map();
  #timer = 0;

  constructor(api, signal) {
    this.api = api;
    this.signal = signal;
  }

  /** Forget them: the pool has changed. */
  forget() {
    this.#known.clear();
  }

  /** What is known of a block already. */
  at(name) {
    return this.#known.get(name) ?? null;
  }

  async get(name) {
    if (!this.#known.has(name)) {
      const found = await this.api.get(`blocks/${encodeURIComponent(name)}`, {}, this.signal);
      if (this.#known.size >= MOST) this.#known.clear();
      this.#known.set(name, found);
    }
    return this.#known.get(name);
  }

  /** Fetch a block once the pointer rests on it, and call `callback` then. */
  rest(name, callback) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.get(name).then(callback, () => {}), REST);
  }
}

/** The name of the block at a place of the map. */
export const nameOf = (pool, place) => (pool.names === null ? String(place) : pool.names[place]);

/** One line about a block: its state, who holds it, its hash and its text, as far as they are known. */
export function brief(pool, place, block) {
  const refs = pool.refs === null ? "" : `, ${count(pool.refs[place])} refs`;
  const tenant = pool.tenant !== null && pool.tenant[place] >= 0 ? `, ${pool.tenants[pool.tenant[place]]}` : "";
  const head = `block ${nameOf(pool, place)}: ${stateOf(pool, place)}${refs}${tenant}`;
  if (block === null) return head;
  return `${head}, hash ${digest(block.hash)}${block.text ? `, ${JSON.stringify(block.text)}` : ""}`;
}

/** Put all about a block into a node. `go(name)` shows another one. */
export function showBlock(node, pool, place, block) {
  const queued = pool.queue === null ? -1 : pool.queue.indexOf(place);
  fill(node,
    h("h2", {}, `Block ${nameOf(pool, place)}`),
    block.text ? h("blockquote", { class: "code" }, block.text) : h("p", { class: "note" }, block.text === null ? "Its text is unknown: the engine did not answer." : "It holds no text."),
    facts([
      ["state", block.state], ["references", block.ref_count === null ? null : count(block.ref_count)],
      ["requests", block.requests?.join(", ")], ["hash", block.hash], ["parent", block.parent],
      ["tokens", count(block.num_tokens)], ["group", block.group === null ? null : String(block.group)],
      ["last operation", block.last_accessed ? count(block.last_accessed) : null],
      ["priority", block.priority === null ? null : String(block.priority)],
      ["evicted", queued < 0 ? null : queued === 0 ? "next" : `after ${count(queued)} others`],
      ["tenant", pool.tenant !== null && pool.tenant[place] >= 0 ? pool.tenants[pool.tenant[place]] : null],
      ["copies", block.copies === null ? null : count(block.copies)], ["engine", block.engine], ["medium", block.medium],
      ["token ids", block.tokens?.join(" ")],
    ]));
}
