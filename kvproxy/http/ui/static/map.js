// The pool as a picture: a cell for each block.

import { h } from "./dom.js";
import { colour } from "./layers.js";

const LARGEST = 18; // Pixels of a cell.
const HIGH = 460; // Pixels that the whole map should not exceed while a cell has three or more.
const STATES = { 0: "null", u: "used", p: "pinned", c: "cached", f: "free" };
export const STATE_NAMES = Object.values(STATES);
const AGES = 6;
const TENANTS = 8;

export const stateOf = (pool, place) => STATES[pool.states[place]];

/** What the colours mean: `[colour, text]`, and the colour of each block as a place in that list. */
export function painting(pool, by) {
  if (by === "age" && pool.used !== null) return byAge(pool);
  if (by === "tenant" && pool.tenant !== null) return byTenant(pool);
  const places = Object.keys(STATES);
  const counts = new Array(places.length).fill(0);
  const of = Uint8Array.from(pool.states, (letter) => {
    const place = places.indexOf(letter);
    counts[place] += 1;
    return place;
  });
  return { of, legend: places.map((letter, place) => [`block-${STATES[letter]}`, STATES[letter], counts[place]]) };
}

function byAge(pool) {
  // Equal shares of the blocks that were ever used, the last used first.
  const order = pool.used.filter((used) => used > 0).sort((a, b) => b - a);
  const bounds = Array.from({ length: AGES - 1 }, (_, part) => order[Math.floor((order.length * (part + 1)) / AGES)] ?? 0);
  const counts = new Array(AGES + 1).fill(0);
  const of = Uint8Array.from(pool.used, (used) => {
    const place = used === 0 ? AGES : bounds.filter((bound) => used <= bound && bound > 0).length;
    counts[place] += 1;
    return place;
  });
  const names = Array.from({ length: AGES }, (_, part) => (part === 0 ? "used last" : part === AGES - 1 ? "used longest ago" : ""));
  return { of, legend: [...names.map((name, part) => [`age-${part}`, name, counts[part]]), ["block-free", "never used", counts[AGES]]] };
}

function byTenant(pool) {
  const sums = new Map();
  for (const tenant of pool.tenant) if (tenant >= 0) sums.set(tenant, (sums.get(tenant) ?? 0) + 1);
  const largest = [...sums].sort((a, b) => b[1] - a[1]);
  const place = new Map(largest.slice(0, TENANTS).map(([tenant], rank) => [tenant, rank]));
  const others = largest.slice(TENANTS).reduce((sum, [, value]) => sum + value, 0);
  const of = Uint8Array.from(pool.tenant, (tenant) => (tenant < 0 ? TENANTS + 1 : place.get(tenant) ?? TENANTS));
  const none = pool.tenant.filter((tenant) => tenant < 0).length;
  const legend = Array.from({ length: TENANTS }, (_, rank) => [`tenant-${rank}`, largest[rank] ? pool.tenants[largest[rank][0]] : "", largest[rank]?.[1] ?? 0]);
  return { of, legend: [...legend, ["quiet", others ? "others" : "", others], ["block-free", "none", none]] };
}

/** The picture. `onPoint(place)` is called with the block under the pointer or the keys, -1 for none; `onChoose(place)` with a chosen one. */
export class PoolMap {
  #count = 0;
  #image = null;
  #cell = 1;
  #wide = 1;
  #pointed = -1;
  #chosen = -1;

  constructor({ onPoint, onChoose }) {
    this.onPoint = onPoint;
    this.onChoose = onChoose;
    this.canvas = h("canvas", { class: "map" });
    this.frame = h("span", { class: "frame", hidden: true });
    this.chosenFrame = h("span", { class: "frame chosen", hidden: true });
    this.node = h("div", {
      class: "mapbox", tabindex: 0, role: "application", "aria-roledescription": "map of blocks",
      "aria-label": "Blocks of the pool; the arrow keys go from block to block, Enter chooses one",
    }, this.canvas, this.frame, this.chosenFrame);
    this.node.addEventListener("pointermove", (event) => this.#point(this.#at(event)));
    this.node.addEventListener("pointerleave", () => this.#point(-1));
    this.node.addEventListener("click", (event) => this.choose(this.#at(event)));
    this.node.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#lay()).observe(this.node);
  }

  /** Show blocks, each in one of some colours. */
  show({ of, legend }) {
    const colours = legend.map(([name]) => colour(name).match(/[\d.]+/g).slice(0, 3).map(Number));
    this.#count = of.length;
    this.#image = { of, colours };
    this.#lay();
  }

  choose(place) {
    if (place < 0) return;
    this.#chosen = place;
    this.#mark(this.chosenFrame, place);
    this.onChoose(place);
  }

  #lay() {
    const width = this.node.clientWidth;
    if (!width || this.#image === null) return;
    const high = Math.min(HIGH, Math.max(200, innerHeight - 330));
    const fits = Math.floor(Math.sqrt((width * high) / this.#count) - 0.2);
    this.#cell = Math.max(2, Math.min(LARGEST, fits));
    this.#wide = Math.max(1, Math.floor(width / this.#cell));
    const rows = Math.ceil(this.#count / this.#wide);
    this.canvas.width = this.#wide * this.#cell;
    this.canvas.height = rows * this.#cell;
    const small = new ImageData(this.#wide, rows);
    const { of, colours } = this.#image;
    for (let place = 0; place < this.#count; place += 1) {
      small.data.set(colours[of[place]], 4 * place);
      small.data[4 * place + 3] = 255;
    }
    const source = new OffscreenCanvas(this.#wide, rows);
    source.getContext("2d").putImageData(small, 0, 0);
    const pen = this.canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(source, 0, 0, this.canvas.width, this.canvas.height);
    if (this.#cell >= 4) this.#gaps(pen, rows);
    this.#mark(this.frame, this.#pointed);
    this.#mark(this.chosenFrame, this.#chosen);
  }

  #gaps(pen, rows) {
    pen.fillStyle = colour("panel");
    for (let column = 0; column < this.#wide; column += 1) pen.fillRect((column + 1) * this.#cell - 1, 0, 1, this.canvas.height);
    for (let row = 0; row < rows; row += 1) pen.fillRect(0, (row + 1) * this.#cell - 1, this.canvas.width, 1);
  }

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.#cell);
    const row = Math.floor((event.clientY - box.top) / this.#cell);
    const place = row * this.#wide + column;
    return column >= 0 && column < this.#wide && row >= 0 && place < this.#count ? place : -1;
  }

  #mark(frame, place) {
    frame.hidden = place < 0 || place >= this.#count;
    if (frame.hidden) return;
    frame.style.width = frame.style.height = `${this.#cell}px`;
    frame.style.transform = `translate(${(place % this.#wide) * this.#cell}px, ${Math.floor(place / this.#wide) * this.#cell}px)`;
  }

  #point(place) {
    if (place === this.#pointed) return;
    this.#pointed = place;
    this.#mark(this.frame, place);
    this.onPoint(place);
  }

  #key(event) {
    const from = this.#pointed < 0 ? Math.max(0, this.#chosen) : this.#pointed;
    const to = {
      ArrowLeft: from - 1, ArrowRight: from + 1, ArrowUp: from - this.#wide, ArrowDown: from + this.#wide, Home: 0, End: this.#count - 1,
    }[event.key];
    if (event.key === "Enter") this.choose(this.#pointed);
    else if (to === undefined) return;
    else if (to >= 0 && to < this.#count) this.#point(to);
    event.preventDefault();
  }
}
