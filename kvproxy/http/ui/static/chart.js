// Who answers over time: a bar for each span, its layers above each other.

import { h } from "./dom.js";
import { clock, count } from "./format.js";
import { GROUPS, colour, groupOf } from "./layers.js";

const LEFT = 46;
const BOTTOM = 20;

/** The counts of a series by group, in the order of the groups: `[name, numbers]`. */
export function grouped(series, spans) {
  const sums = new Map(GROUPS.map(([name]) => [name, new Array(spans).fill(0)]));
  for (const [layer, counts] of Object.entries(series.counts)) {
    const sum = sums.get(groupOf(layer));
    counts.forEach((value, place) => { sum[place] += value; });
  }
  return [...sums];
}

/** The next round number, of which marks on an axis can be thirds or halves. */
function rounded(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, most)));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= most) ?? 10 * power;
}

/** A chart of a series. The arrow keys go from bar to bar, and a line below it tells what is in one. */
export class Chart {
  #series = null;
  #groups = [];
  #spans = 0;
  #current = -1;

  constructor() {
    this.canvas = h("canvas", {
      class: "chart", tabindex: 0, role: "slider", "aria-label": "Requests over time, a bar for each span", "aria-valuemin": 1,
    });
    this.hint = h("p", { class: "hint", "aria-hidden": "true" });
    this.node = h("div", { class: "chartbox" }, this.canvas, this.hint);
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.canvas.addEventListener("pointermove", (event) => this.#choose(this.#at(event)));
    this.canvas.addEventListener("pointerleave", () => this.#choose(-1));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  show(series, spans) {
    this.#series = series;
    this.#spans = spans;
    this.#groups = grouped(series, spans);
    this.canvas.setAttribute("aria-valuemax", spans);
    this.#tell();
    this.draw();
  }

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    return Math.floor(((event.clientX - box.left - LEFT) / (box.width - LEFT)) * this.#spans);
  }

  #key(event) {
    const last = this.#spans - 1;
    const from = this.#current < 0 ? last + 1 : this.#current;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#choose(Math.max(0, Math.min(last, to)));
  }

  #choose(place) {
    if (place === this.#current) return;
    this.#current = place >= 0 && place < this.#spans ? place : -1;
    this.#tell();
    this.draw();
  }

  #tell() {
    const place = this.#current < 0 ? this.#spans - 1 : this.#current;
    const parts = this.#groups.filter(([, values]) => values[place]).map(([name, values]) => `${name} ${count(values[place])}`);
    const when = clock(this.#series.start + place * this.#series.step, this.#series.step < 60);
    const text = `${this.#current < 0 ? "now" : when}: ${parts.join(", ") || "no requests"}`;
    this.hint.textContent = text;
    this.canvas.setAttribute("aria-valuenow", place + 1);
    this.canvas.setAttribute("aria-valuetext", text);
  }

  draw() {
    if (this.#series === null || !this.canvas.clientWidth) return;
    const scale = devicePixelRatio;
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const sums = Array.from({ length: this.#spans }, (_, place) => this.#groups.reduce((sum, [, values]) => sum + values[place], 0));
    const most = rounded(Math.max(...sums));
    const high = height - BOTTOM - 8;
    this.#axes(pen, width, high, most);
    const wide = (width - LEFT) / this.#spans;
    const bottoms = new Array(this.#spans).fill(8 + high);
    for (const [name, values] of this.#groups) {
      pen.fillStyle = colour(`layer-${name}`);
      values.forEach((value, place) => {
        if (!value) return;
        const tall = (value / most) * high;
        bottoms[place] -= tall;
        pen.fillRect(LEFT + place * wide + (wide > 4 ? 1 : 0), bottoms[place], Math.max(1, wide - (wide > 4 ? 2 : 0)), tall);
      });
    }
    if (this.#current >= 0) {
      pen.strokeStyle = colour("text");
      pen.strokeRect(LEFT + this.#current * wide + 0.5, 8, wide - 1, high);
    }
  }

  #axes(pen, width, high, most) {
    pen.strokeStyle = colour("line");
    pen.fillStyle = colour("quiet");
    pen.textAlign = "right";
    for (const share of most > 1 ? [0, 0.5, 1] : [0, 1]) {
      const y = Math.round(8 + high * (1 - share)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(width, y);
      pen.stroke();
      if (Number.isInteger(most * share)) pen.fillText(count(most * share), LEFT - 6, y + 4);
    }
    const marks = Math.max(2, Math.min(7, Math.floor((width - LEFT) / 110)));
    for (let mark = 0; mark < marks; mark += 1) {
      const place = Math.round((mark * (this.#spans - 1)) / (marks - 1));
      const time = this.#series.start + place * this.#series.step;
      pen.textAlign = mark === 0 ? "left" : mark === marks - 1 ? "right" : "center";
      pen.fillText(clock(time, this.#series.step < 60), LEFT + ((width - LEFT) * mark) / (marks - 1), high + 8 + BOTTOM - 4);
    }
  }
}
