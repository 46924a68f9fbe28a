// The prefix cache: its pool as a map, its chains as a tree, its blocks in the order of their eviction.

import { Blocks, brief, nameOf, showBlock } from "./blocks.js";
import { facts, fill, h, section, svg, table, tabs } from "./dom.js";
import { bytes, count, duration, line, percent, short } from "./format.js";
import { Grid } from "./grid.js";
import { PoolMap, painting, stateOf } from "./map.js";
import { ChainTree } from "./tree.js";

const PARTS = [["map", "Map"], ["chains", "Chains"], ["queue", "Eviction order"]];
const COLOURS = [["state", "state"], ["age", "age"], ["tenant", "tenant"]];
const LOOK = 2; // Seconds between two looks at the pool.
const FORECAST = 30; // Seconds between two forecasts.

/** The view. */
export function pool(root, params, { api, signal, remember }) {
  let part = params.get("part") ?? "map";
  let by = "state";
  let now = null;
  let pointed = -1;
  let opened = null; // The place of the block in the details.
  let failed = false; // Whether its contents could not be fetched.
  const blocks = new Blocks(api, signal);
  const figures = h("div", { class: "figures" });
  const legend = h("ul", { class: "legend", "aria-label": "What the colours mean" });
  const hint = h("p", { class: "hint", role: "status" });
  const beside = h("aside", { class: "beside", "aria-label": "One block", hidden: true });

  const map = new PoolMap({
    onPoint: (place) => {
      pointed = place;
      say();
      if (place >= 0) blocks.rest(nameOf(now, place), say);
    },
    onChoose: open,
  });
  const tree = new ChainTree(api, signal, openChain);
  const queue = new Grid({
    label: "Idle blocks, the next to be evicted first",
    columns: [
      { title: "next", width: "9ch", kind: "number", cell: ({ place }) => count(place + 1) },
      { title: "block", width: "10ch", kind: "number", cell: ({ block }) => String(block) },
      { title: "state", width: "10ch", cell: ({ block }) => stateOf(now, block) },
      { title: "last operation", width: "14ch", kind: "number", cell: ({ block }) => count(now.used[block]) },
      { title: "tenant", width: "minmax(8ch, 1fr)", kind: "long", cell: ({ block }) => now.tenants[now.tenant[block]] ?? "–" },
    ],
    rowAt: (place) => (now?.queue ? { place, block: now.queue[place] } : null),
    onChoose: ({ block }) => open(block),
    keyOf: ({ block }) => block,
    placeOf: (block) => now.queue?.indexOf(block) ?? -1,
  });

  function say() {
    if (now === null || pointed < 0) hint.textContent = "Point at a block, or go there with the arrow keys.";
    else hint.textContent = line(brief(now, pointed, blocks.at(nameOf(now, pointed))));
  }

  async function open(place) {
    opened = place;
    beside.hidden = false;
    queue.open(place);
    let block = null;
    let message = "";
    try {
      block = await blocks.get(nameOf(now, place));
    } catch (error) {
      message = error.message;
    }
    if (opened !== place) return; // Another block was opened meanwhile.
    failed = block === null;
    if (failed) fill(beside, h("h2", {}, `Block ${nameOf(now, place)}`), h("p", { class: "note" }, message));
    else showBlock(beside, now, place, block);
  }

  function close() {
    opened = null;
    beside.hidden = true;
  }

  async function openChain(branch) {
    opened = null;
    beside.hidden = false;
    const text = h("blockquote", { class: "code" });
    fill(beside, h("h2", {}, "Chain"), facts([
      ["blocks", count(branch.blocks)], ["follow on all ways", count(branch.below)], ["chains from here", count(branch.leaves)],
      ["in use", count(branch.in_use)], ["last block", branch.end],
    ]), text, branch.names.length < branch.blocks ? h("p", { class: "note" }, `The first ${branch.names.length} blocks are shown.`) : null);
    for (const name of branch.names) {
      const block = await blocks.get(name).catch(() => null);
      if (!text.isConnected) return;
      text.append(h("span", {}, block?.text || "…"));
    }
  }

  function draw() {
    if (now === null) return;
    const painted = painting(now, by);
    map.show(painted);
    fill(legend, painted.legend.filter(([, name, value]) => name && value).map(([name, text, value]) => {
      const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = `var(--${name})`;
      return h("li", { "data-state": text }, swatch, text, h("span", { class: "number" }, count(value)));
    }));
    queue.show(now.queue?.length ?? 0);
    order.textContent = now.queue === null
      ? "Engines do not publish their order of eviction."
      : "The next to be evicted first. Blocks that requests or pins hold are not among them.";
    say();
  }

  async function load() {
    const [stats, found, tiers] = await Promise.all(["blocks/stats", "blocks/map", "blocks/tiers"].map((path) => api.find(path, {}, signal)));
    fill(beyond, tiersOf(tiers ?? []));
    fill(figures, stats === null ? h("p", {}, "The upstream keeps its prefix cache to itself: --kv-events shows that of vLLM and SGLang, and llama.cpp's slots are shown by themselves.") : figuresOf(stats));
    body.hidden = found === null;
    if (found === null) return;
    const same = now !== null && now.states === found.states && (now.used ?? []).every((used, place) => used === found.used[place]);
    now = found;
    if (!same) {
      blocks.forget();
      draw();
    }
    if (opened !== null && failed) open(opened);
  }

  async function forecast() {
    fill(outlook, ((await api.find("blocks/what-if", {}, signal)) ?? []).map(forecastOf));
  }

  const beyond = h("div");
  const outlook = h("div", { class: "stack" });
  const order = h("p", { class: "note" });
  const colours = tabs("Colour by", COLOURS, by, (value) => { by = value; draw(); });
  const panes = {
    map: h("div", {}, h("div", { class: "filters" }, colours), legend, map.node, hint),
    chains: h("div", {}, tree.node),
    queue: h("div", {}, order, queue.node),
  };
  function turn(to) {
    part = to;
    for (const [name, pane] of Object.entries(panes)) pane.hidden = name !== to;
    remember({ part });
    close();
    if (to === "chains") tree.load().catch((error) => fill(tree.node, h("div", { role: "treeitem" }, error.message)));
    draw();
  }
  const body = h("div", { class: "poolbody" }, h("div", { class: "filters" }, tabs("Parts", PARTS, part, turn)),
    h("div", { class: "split" }, h("div", { class: "panes" }, Object.values(panes)), beside));
  root.append(h("h1", { class: "unseen" }, "Pool"), figures, body, beyond, outlook);
  turn(part in panes ? part : "map");
  window.addEventListener("theme", draw, { signal });
  api.poll(load, LOOK, signal);
  api.poll(forecast, FORECAST, signal);
  return { escape: close };
}

function figuresOf(stats) {
  const known = [
    ["blocks", count(stats.num_blocks)], ["tokens a block", count(stats.block_size)], ["used", count(stats.used)], ["pinned", count(stats.pinned)],
    ["cached", count(stats.cached)], ["free", count(stats.free)], ["distinct", count(stats.distinct)], ["prompt tokens reused", percent(stats.hit_rate)], ["plus tokens from tiers", count(stats.tier_hits)], ["evictions", count(stats.evictions)],
    ["memory used", stats.used_bytes === null ? "–" : bytes(stats.used_bytes)],
    ["cached until evicted, median", duration(stats.residency?.lifetime)], ["unused until evicted, median", duration(stats.residency?.idle)],
    ["evicted and never reused", percent(stats.residency?.never_hit)],
  ].filter(([, value]) => value !== "–");
  return known.map(([name, value]) => h("div", {}, h("span", {}, name), h("strong", { "data-figure": name }, value)));
}

function tiersOf(tiers) {
  if (!tiers.length) return null;
  const numbers = Object.keys(tiers[0]).filter((name) => typeof tiers[0][name] === "number");
  const shown = (name, value) => (name.includes("bytes") ? bytes(value) : count(value));
  const state = (tier) => tier.failure ?? (tier.available ? "in use" : "paused");
  const rows = tiers.map((tier) => [tier.name, ...numbers.map((name) => shown(name, tier[name])), state(tier)]);
  return section("Tiers", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tiers" },
    table("Tiers", [["name", ""], ...numbers.map((name) => [name.replaceAll("_", " "), "number"]), ["state", ""]], rows)));
}

const HEIGHT = 210; // Pixels of a chart of hit rates.

/** The hit rate of other pools, as a chart and in words. */
function forecastOf({ engine, requests, measured_hit_rate: measured, reported_tokens: reported, pool_tokens: size, points, chart }) {
  const rate = points.find((point) => point.name === "current")?.hit_rate ?? null;
  const rows = points.map((point) => [point.name.replaceAll("_", " "), point.pool_tokens === null ? "–" : count(point.pool_tokens), percent(point.hit_rate),
    rate === null ? "–" : `${point.hit_rate < rate ? "−" : "+"}${Math.abs(100 * (point.hit_rate - rate)).toFixed(1)}`,
    point.ttft_ms === null ? "–" : `${point.ttft_ms < 0 ? "−" : "+"}${count(Math.round(Math.abs(point.ttft_ms)))} ms`]);
  const reused = measured === null ? "" : ` The engine reused ${percent(measured)} of the ${count(reported)} prompt tokens whose reuse it reported.`;
  const picture = h("div");
  // Drawn anew for each width, so that its letters keep their size.
  new ResizeObserver(() => fill(picture, curve(chart, size, Math.max(280, picture.clientWidth)))).observe(picture);
  return section(`What if ${engine || "the pool"} had another size, by ${count(requests)} requests since the start`,
    h("p", { class: "note" }, `Forecasts compare whole messages: equal beginnings of different messages count as new. Requests that ended before a response began do not count.${reused}`),
    picture,
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Forecasts" },
      table("Forecasts", [["pool", ""], ["tokens", "number"], ["hit rate", "number"], ["change, percentage points", "number"], ["change of TTFT", "number"]], rows)));
}

function curve(chart, size, width) {
  const [left, right] = [52, width - 24];
  const x = (tokens) => left + ((right - left) * Math.log2(tokens / chart[0][0])) / Math.log2(chart.at(-1)[0] / chart[0][0]);
  const y = (rate) => 22 + (HEIGHT - 70) * (1 - rate);
  const text = (at, words, anchor = "middle") => svg("text", { ...at, "text-anchor": anchor }, words);
  const path = chart.map(([tokens, rate], place) => `${place ? "L" : "M"}${x(tokens).toFixed(1)} ${y(rate).toFixed(1)}`).join("");
  const marks = [0, 0.5, 1].map((rate) => text({ x: left - 6, y: y(rate) + 4 }, `${100 * rate}%`, "end"));
  const every = Math.max(1, Math.ceil((chart.length * 60) / (right - left)));
  const sizes = chart.filter((_, place) => place % every === 0).map(([tokens]) => text({ x: x(tokens), y: HEIGHT - 30 }, short(tokens)));
  const now = size === null ? [] : [svg("line", { class: "now", x1: x(size), x2: x(size), y1: y(1), y2: y(0) }), text({ x: x(size) + 5, y: y(0) - 6 }, "today", "start")];
  return svg("svg", { class: "forecast", viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": "Hit rate by tokens in the pool" },
    svg("path", { d: path }), ...now, ...marks, ...sizes, text({ x: 4, y: 12 }, "hit rate", "start"), text({ x: right, y: HEIGHT - 10 }, "tokens in the pool", "end"));
}
