// A list of any length: only the rows that can be seen are in the page.

import { h } from "./dom.js";

const HEIGHT = 30; // Pixels of a row, and of the head.
const TALL = 52; // Pixels of a row with two lines.
const PHONE = 600; // Pixels of width below which a row has two lines, if the grid has such rows.
const NARROW = 900; // Pixels of width below which columns that can be spared are left out.
const BEYOND = 4; // Rows kept above and below those that can be seen.
let grids = 0;

/**
 * A grid of rows, moved through with the arrow keys.
 *
 * Columns are `{title, kind, width, spare, cell}`: `cell(row)` gives a text or a node; spare ones go where there is little room. On a phone, `lines(row)` gives the two lines
 * of a row. `rowAt(place)` gives a row, or null while it is fetched. `onChoose(row, place)` is called when a row is opened by Enter or a click, `onEnd()` when the end comes in sight.
 * `placeOf(key)` gives the place of a row in a list whose rows move, so that the current row stays the same; -1 if it is gone.
 */
export class Grid {
  #given;
  #columns = [];
  #rowAt;
  #onChoose;
  #onEnd;
  #rows = [];
  #count = 0;
  #current = -1;
  #opened = null;
  #fixed = 0;
  #keyOf;
  #placeOf;
  #currentKey = null;
  #lines;
  #height = HEIGHT;
  #id = `grid${(grids += 1)}`;

  constructor({ label, columns, rowAt, onChoose = () => {}, onEnd = () => {}, keyOf = (row) => row, placeOf = null, lines = null }) {
    this.#given = columns;
    this.#rowAt = rowAt;
    this.#onChoose = onChoose;
    this.#onEnd = onEnd;
    this.#keyOf = keyOf;
    this.#placeOf = placeOf;
    this.#lines = lines && [{ title: "", kind: "lines", width: "minmax(0, 1fr)", cell: lines }];
    this.head = h("div", { class: "row head", role: "row", "aria-rowindex": 1 });
    this.space = h("div", { class: "space", role: "presentation" });
    this.body = h("div", { class: "rows", role: "rowgroup" }, this.space);
    this.node = h("div", { class: "grid", role: "grid", tabindex: 0, "aria-label": label, id: this.#id },
      h("div", { role: "rowgroup", class: "top" }, this.head), this.body);
    this.node.addEventListener("scroll", () => this.#soon(), { passive: true });
    this.node.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#fit()).observe(this.node);
    this.#fit();
  }

  /** Take the columns for which there is room. */
  #fit() {
    const narrow = this.node.clientWidth < NARROW;
    const phone = this.#lines !== null && innerWidth < PHONE;
    const columns = phone ? this.#lines : this.#given.filter((each) => !narrow || !each.spare);
    if (columns.length !== this.#columns.length) {
      this.#height = phone ? TALL : HEIGHT;
      this.node.classList.toggle("phone", phone);
      this.space.style.height = `${this.#count * this.#height}px`;
      this.#columns = columns;
      this.node.style.setProperty("--columns", columns.map((each) => each.width).join(" "));
      this.head.replaceChildren(...columns.map((each) => h("span", { role: "columnheader", class: each.kind ?? null }, each.title)));
      for (const row of this.#rows) row.remove();
      this.#rows = [];
    }
    this.#soon();
  }

  /** Show other columns. */
  take(columns) {
    this.#given = columns;
    this.#columns = [];
    this.#fit();
  }

  get atTop() {
    return this.node.scrollTop < this.#height;
  }

  /** Show so many rows. `added` of them came at the top: who has scrolled down keeps the same rows before the eyes. */
  show(count, added = 0) {
    // Rows that are given anew may say something else under the same names.
    if (!added) this.#fixed += 1;
    const top = this.node.scrollTop; // Before the height changes, which may change it.
    if (added && this.#current >= 0) this.#current += added;
    const moved = this.#placeOf && this.#current >= 0 ? this.#placeOf(this.#currentKey) : -1;
    const shift = moved >= 0 ? moved - this.#current : added;
    if (moved >= 0) this.#current = moved;
    this.#count = count;
    this.#current = Math.min(this.#current, count - 1);
    this.node.setAttribute("aria-rowcount", count + 1);
    this.space.style.height = `${count * this.#height}px`;
    if (shift && top >= this.#height) this.node.scrollTop = top + shift * this.#height;
    this.#soon();
  }

  /** Mark the row that is open beside the list. */
  open(key) {
    this.#opened = key;
    this.#soon();
  }

  #soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.#draw();
    });
  }

  #draw() {
    const seen = Math.ceil(this.node.clientHeight / this.#height);
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.#height) - BEYOND);
    const last = Math.min(this.#count, first + seen + 2 * BEYOND);
    const most = seen + 2 * BEYOND;
    while (this.#rows.length < Math.min(most, this.#count)) this.#rows.push(this.#make());
    // A row that stays in sight stays the same node, so that a step of the wheel changes no more than the rows that come.
    const nodes = this.#rows.length;
    this.#rows.forEach((node, index) => {
      const place = first + ((((index - first) % nodes) + nodes) % nodes);
      this.#put(node, place, place < last);
    });
    if (this.#current >= 0) this.node.setAttribute("aria-activedescendant", `${this.#id}-${this.#current}`);
    else this.node.removeAttribute("aria-activedescendant");
    if (last === this.#count) this.#onEnd();
  }

  #make() {
    const cells = this.#columns.map((each) => h("span", { role: "gridcell", class: each.kind ?? null }));
    const node = h("div", { class: "row", role: "row" }, cells);
    node.addEventListener("click", () => this.#choose(node.place));
    // Text that does not fit is in the title.
    node.addEventListener("pointerover", ({ target }) => { if (target.classList.contains("long")) target.title = target.textContent; });
    this.body.append(node);
    return node;
  }

  #put(node, place, wanted) {
    node.hidden = !wanted;
    node.classList.toggle("current", wanted && place === this.#current);
    if (!wanted) {
      node.removeAttribute("id");
      node.place = -1;
      return;
    }
    const row = this.#rowAt(place);
    node.setAttribute("aria-selected", String(row !== null && this.#keyOf(row) === this.#opened));
    if (node.place === place && node.row === row && node.fixed === this.#fixed) return;
    Object.assign(node, { place, row, fixed: this.#fixed });
    node.id = `${this.#id}-${place}`;
    node.setAttribute("aria-rowindex", place + 2);
    node.style.transform = `translateY(${place * this.#height}px)`;
    this.#columns.forEach((column, index) => {
      const cell = node.children[index];
      const value = row === null ? "…" : column.cell(row);
      if (value instanceof Node) cell.replaceChildren(value);
      else if (cell.firstChild?.nodeType === Node.TEXT_NODE) cell.firstChild.data = value;
      else cell.textContent = value;
    });
  }

  #choose(place) {
    const row = this.#rowAt(place);
    this.#setCurrent(place);
    if (row !== null) this.#onChoose(row, place);
    this.#draw();
  }

  #setCurrent(place) {
    this.#current = place;
    const row = this.#placeOf && this.#rowAt(place);
    this.#currentKey = row && this.#keyOf(row);
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.node.clientHeight / this.#height) - 2);
    const to = {
      ArrowDown: this.#current + 1, ArrowUp: this.#current - 1, PageDown: this.#current + page,
      PageUp: this.#current - page, Home: 0, End: this.#count - 1,
    }[event.key];
    if (event.key === "Enter" && this.#current >= 0) this.#choose(this.#current);
    else if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    else this.#move(to);
    event.preventDefault();
  }

  #move(to) {
    if (!this.#count) return;
    this.#setCurrent(Math.max(0, Math.min(this.#count - 1, to)));
    const top = this.#current * this.#height;
    const bottom = top + this.#height + HEIGHT - this.node.clientHeight; // The head covers one row.
    if (this.node.scrollTop > top) this.node.scrollTop = top;
    else if (this.node.scrollTop < bottom) this.node.scrollTop = bottom;
    this.#draw();
  }
}
