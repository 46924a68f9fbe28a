// Charts over time. uPlot draws them; this file adds the page's colours, a reading of the values, keys, and zoom.

import { h } from "./dom.js";
import { clock, count, ms, percent, short } from "./format.js";
import { colour, mark } from "./layers.js";

const HEIGHT = 190; // Pixels.
const SYNC = { key: "time", filters: { pub: (type) => type.startsWith("mousemove") || type === "mouseleave" } };
const COUNTS = [1, 2, 5].flatMap((step) => Array.from({ length: 12 }, (_, power) => step * 10 ** power)).sort((a, b) => a - b);

/** By kind of value: how it is written, and its scale and axis. */
const KINDS = {
  count: { write: count, scale: { range: (plot, least, most) => [0, 1.05 * Math.max(1, most)] }, axis: { incrs: COUNTS, values: (plot, marks) => marks.map(short) } },
  share: { write: percent, scale: { range: [0, 1] }, axis: { splits: () => [0, 0.5, 1], values: () => ["0%", "50%", "100%"] } },
  ms: { write: ms, lines: (plot, marks) => marks.map((mark) => (Math.log10(mark) % 1 ? null : mark)), scale: { distr: 3 }, axis: { values: (plot, marks) => marks.map((mark) => (mark === null ? "" : ms(mark).replace(/\.0+ /, " "))) } },
};

/** Times of an axis: seconds only where marks are less than a minute apart, and the date at midnight. */
function times(plot, marks, axis, space, apart) {
  return marks.map((mark) => {
    const date = new Date(1000 * mark);
    const midnight = date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0;
    if (midnight) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: apart < 60 ? "2-digit" : undefined });
  });
}

/**
 * A chart with lines, or with bars on top of each other.
 *
 * `series` are `{name, colour, group, dash}`. The arrow keys move the cursor, which all charts share; with Shift they select, and Enter zooms into the selection, as
 * dragging does. `onZoom(from, to)` gets the selected time in seconds; a double click calls it without one.
 */
export class TimeChart {
  static #all = new Set();
  #plot = null;
  #columns = [];
  #start = 0;
  #step = 1;
  #anchor = -1;
  #place = -1;

  constructor({ label, kind, series, stacked = false, onZoom, signal }) {
    Object.assign(this, { kind: KINDS[kind], series, stacked, onZoom });
    this.box = h("div", { class: "chart", tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 1, "aria-valuemax": 1, "aria-valuenow": 1 });
    this.hint = h("p", { class: "hint", "aria-hidden": "true" });
    const legend = h("ul", { class: "legend" }, series.map((each) => h("li", {}, mark(each.group, each.dash), each.name)));
    this.node = h("div", {}, stacked ? null : legend, this.box, this.hint);
    this.box.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#plot?.setSize({ width: this.box.clientWidth, height: HEIGHT })).observe(this.box);
    window.addEventListener("theme", () => this.#plot?.redraw(), { signal });
    TimeChart.#all.add(this);
    signal.addEventListener("abort", () => TimeChart.#all.delete(this));
  }

  /** Show values for consecutive spans of time: a column for each series, null without a value. */
  show(start, step, columns) {
    Object.assign(this, { spans: columns[0].length });
    this.#columns = columns;
    [this.#start, this.#step] = [start, step];
    this.box.setAttribute("aria-valuemax", this.spans);
    const middles = columns[0].map((_, place) => start + (place + 0.5) * step);
    // The highest bar is drawn first, and the lower ones over it.
    const drawn = this.stacked ? columns.map((_, last) => middles.map((__, place) => columns.slice(0, last + 1).reduce((sum, each) => sum + each[place], 0))).reverse() : columns;
    if (this.#plot === null) this.#plot = this.#make([middles, ...drawn]);
    else this.#plot.setData([middles, ...drawn]);
    this.#tell();
  }

  #make(data) {
    const line = (each) => ({
      label: each.name, stroke: () => colour(each.colour), width: 2, dash: each.dash ? [5, 4] : undefined, spanGaps: false,
      points: { size: 5, show: (plot, index, first, last) => last - first < 80 },
    });
    const bar = (each) => ({
      label: each.name, fill: () => colour(each.colour), stroke: () => colour(each.colour), width: 0, paths: uPlot.paths.bars({ size: [0.8] }), points: { show: false },
    });
    const axis = { stroke: () => colour("quiet"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot({
      width: this.box.clientWidth || 300, height: HEIGHT, legend: { show: false }, padding: [8, 18, 0, 0],
      series: [{}, ...(this.stacked ? this.series.map(bar).reverse() : this.series.map(line))],
      scales: { x: { range: () => [this.#start, this.#start + this.spans * this.#step] }, y: this.kind.scale },
      axes: [{ ...axis, values: times, space: 70, size: 28 }, { ...axis, size: 56, space: 36, ...this.kind.axis, grid: { ...axis.grid, filter: this.kind.lines ?? ((plot, marks) => marks) } }],
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, sync: SYNC, bind: { dblclick: () => () => this.onZoom() } },
      hooks: { setCursor: [(each) => this.#point(each.cursor.idx ?? -1)], setSelect: [(each) => this.#selected(each)] },
    }, data, this.box);
    return plot;
  }

  #selected(plot) {
    const { left, width } = plot.select;
    if (width < 5) return;
    // Whole bars, so that the numbers of the zoomed time are those of its requests.
    const bar = (place) => (plot.posToVal(place, "x") - this.#start) / this.#step;
    const [from, to] = [Math.floor(bar(left) + 0.01), Math.ceil(bar(left + width) - 0.01)].map((place) => this.#start + place * this.#step);
    plot.setSelect({ left: 0, width: 0 }, false);
    this.onZoom(from, to);
  }

  #point(place) {
    if (place === this.#place) return;
    this.#place = place;
    this.#tell();
  }

  /** Write the values under the cursor, or the last known ones. */
  #tell() {
    const known = (place) => this.series.map((each, index) => [each.name, this.#columns[index][place]]).filter(([, value]) => value !== null && (value || !this.stacked));
    const last = Array.from({ length: this.spans }, (_, each) => known(each).length > 0).lastIndexOf(true);
    const place = this.#place >= 0 && this.#place < this.spans ? this.#place : last < 0 ? this.spans - 1 : last;
    const when = clock(this.#start + place * this.#step, this.#step < 60);
    const text = `${when}: ${known(place).map(([name, value]) => `${name} ${this.kind.write(value)}`).join(", ") || "no requests"}`;
    this.hint.textContent = text;
    this.box.setAttribute("aria-valuenow", place + 1);
    this.box.setAttribute("aria-valuetext", text);
  }

  #key(event) {
    const last = this.spans - 1;
    const from = this.#place < 0 ? last + (event.key === "ArrowLeft" ? 1 : 0) : this.#place;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key];
    if (event.key === "Enter" && this.#plot.select.width) this.#selected(this.#plot);
    else if (to === undefined) return;
    else {
      this.#anchor = !event.shiftKey ? -1 : this.#anchor < 0 ? from : this.#anchor;
      for (const chart of TimeChart.#all) chart.#move(Math.max(0, Math.min(last, to)), this.#anchor);
    }
    event.preventDefault();
  }

  #move(place, anchor) {
    const at = (time) => this.#plot.valToPos(time, "x");
    const edge = (place) => at(this.#start + place * this.#step);
    this.#plot.setCursor({ left: at(this.#plot.data[0][place]), top: 0 });
    const [first, end] = [Math.min(place, anchor), Math.max(place, anchor) + 1];
    this.#plot.setSelect(anchor < 0 ? { left: 0, width: 0 } : { left: edge(first), width: edge(end) - edge(first), top: 0, height: this.#plot.over.clientHeight }, false);
  }
}
