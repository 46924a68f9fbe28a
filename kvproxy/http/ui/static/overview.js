// What the proxy does, at a glance.

import { advice } from "./advice.js";
import { TimeChart } from "./chart.js";
import { csvButton } from "./csv.js";
import { button, fill, h, section, table, tabs } from "./dom.js";
import { firstRequest } from "./first_request.js";
import { clock, count, duration, money, ms, percent, short, signedDuration } from "./format.js";
import { CACHED, GROUPS, grouped, mark } from "./layers.js";
import { priceNote, savings, spentNote, tokensNote } from "./savings.js";

const DEFAULT_SPAN = "3600";
const SPANS = [["300", "5 min"], ["3600", "1 h"], ["86400", "24 h"], ["604800", "7 d"]];
const BARS = 60; // At most.
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400]; // Seconds of a bar.
const MOST_REASONS = 12;
const TILES = [
  ["requests", "Requests"], ["failed", "Failed", "The upstream or the proxy failed: the reasons error-..., with any status"], ["cached", "From a cache"], ["reused", "Prefix reuse", "Prompt tokens that the backend found in its prefix cache, of all prompt tokens of requests that it answered and reported"],
  ["tokens", "Tokens saved", "Tokens of prompts and answers that hits kept from the backend"], ["prefix", "Tokens reused", "Prompt tokens that the backend's own prefix cache reused. kvproxy did not save them, except by routing and breakpoints"],
  ["seconds", "Time saved", "By hits: the duration of the original responses, minus that of the hits"], ["spent", "Money spent"], ["money", "Money saved", "By hits, at the prices of kvproxy.toml, else at list prices"],
  ["entries", "Stored responses"], ["pool", "Pool in use"],
];
const TILE = 166; // Least pixels of a tile and the gap beside it.
const sum = (values) => values.reduce((all, value) => all + value, 0);

/** The view. `params` give the time range: its length `since`, and its end `until`, now without one. */
export function overview(root, params, { api, signal, remember }) {
  const range = { since: Number(params.get("since")) || Number(DEFAULT_SPAN), until: Number(params.get("until")) || null };
  let preset = SPANS.some(([value]) => value === String(range.since)) ? String(range.since) : DEFAULT_SPAN;
  const tiles = h("div", { class: "tiles" });
  const values = new Map(TILES.map(([name, title, meaning]) => {
    const [value, note] = [h("strong", { "data-figure": name }), h("small")];
    const tile = h("div", { class: "tile", hidden: true }, h("span", { "data-tip": meaning, tabindex: meaning ? 0 : null }, title), value, note);
    tiles.append(tile);
    return [name, { tile, value, note }];
  }));
  /** Rows of equally many tiles, so that the last one has no hole. */
  const arrange = () => {
    const shown = [...values.values()].filter(({ tile }) => !tile.hidden).length;
    const rows = Math.ceil(shown / Math.max(1, Math.floor((tiles.clientWidth + 10) / TILE)));
    tiles.style.setProperty("--tiles", Math.ceil(shown / Math.max(1, rows)));
  };
  new ResizeObserver(arrange).observe(tiles);
  /** A tile without a value is not shown. */
  const put = (name, value, note) => {
    const shown = values.get(name);
    shown.tile.hidden = value === null;
    shown.value.textContent = value ?? "";
    shown.note.textContent = note;
    arrange();
  };

  const onZoom = (from, to) => (from === undefined ? go(Number(preset), null) : go(Math.max(BARS / 4, Math.round(to - from)), Math.round(to)));
  const chart = (label, kind, series, stacked = false) => new TimeChart({ label, kind, series, stacked, onZoom, signal });
  const requests = chart("Requests over time by layer", "count", GROUPS.map(([name]) => ({ name, group: name, colour: `layer-${name}` })), true);
  const rates = chart("Hit rates over time", "share", [
    { name: "requests from a cache", group: "exact", colour: "layer-exact" }, { name: "prompt tokens reused", group: "prefix", colour: "layer-prefix" },
  ]);
  const times = chart("Time to first byte over time", "ms", [
    { name: "cache, median", group: "exact", colour: "layer-exact" }, { name: "cache, 95%", group: "exact", colour: "layer-exact", dash: true },
    { name: "backend, median", group: "prefix", colour: "layer-prefix" }, { name: "backend, 95%", group: "prefix", colour: "layer-prefix", dash: true },
  ]);
  const layersTable = h("div");
  const reasons = h("div");
  const zoomed = h("span", { class: "actions" });
  let rows = [];

  async function load() {
    const asked = { ...range };
    const query = seriesOf(asked.since, asked.until);
    const { step } = query;
    // The same spans, so that both show the same time.
    const [layers, why] = await Promise.all([api.get("log/series", query, signal), api.get("log/series", { ...query, by: "reason" }, signal)]);
    if (asked.since !== range.since || asked.until !== range.until) return;
    const groups = grouped(layers.counts, layers.prompt_tokens.length);
    const total = groups[0][1].map((_, place) => sum(groups.map(([, counts]) => counts[place])));
    const cached = groups[0][1].map((_, place) => sum(groups.filter(([name]) => CACHED.includes(name)).map(([, counts]) => counts[place])));
    const share = (parts, wholes) => parts.map((part, place) => (wholes[place] ? part / wholes[place] : null));
    const column = (pairs, place) => pairs.map((pair) => pair?.[place] ?? null);
    requests.show(layers.start, step, groups.map(([, counts]) => counts));
    rates.show(layers.start, step, [share(cached, total), share(layers.reused_tokens, layers.prompt_tokens)]);
    times.show(layers.start, step, [column(layers.cached_ms, 0), column(layers.cached_ms, 1), column(layers.backend_ms, 0), column(layers.backend_ms, 1)]);
    rows = total.map((_, place) => ({
      time: new Date(1000 * (layers.start + place * step)).toISOString(), ...Object.fromEntries(groups.map(([name, counts]) => [name, counts[place]])),
      prompt_tokens: layers.prompt_tokens[place], reused_tokens: layers.reused_tokens[place],
      cached_median_ms: layers.cached_ms[place]?.[0], cached_95_ms: layers.cached_ms[place]?.[1],
      backend_median_ms: layers.backend_ms[place]?.[0], backend_95_ms: layers.backend_ms[place]?.[1],
    }));
    const all = sum(total);
    const when = asked.until ? `in ${duration(asked.since)}` : `in the last ${SPANS.find(([value]) => Number(value) === asked.since)?.[1] ?? duration(asked.since)}`;
    put("requests", short(all), when);
    const failed = sum(Object.entries(why.counts).filter(([name]) => name.startsWith("error-")).flatMap(([, counts]) => counts));
    put("failed", failed ? percent(failed / all) : null, `${count(failed)} of ${count(all)} requests`);
    put("cached", all ? percent(sum(cached) / all) : null, `${count(sum(cached))} of ${count(all)} requests`);
    const prompt = sum(layers.prompt_tokens);
    put("reused", prompt ? percent(sum(layers.reused_tokens) / prompt) : null, `of ${short(prompt)} prompt tokens`);
    fill(layersTable, layerRows(groups, all, layers.first_ms));
    fill(reasons, reasonRows(why, asked.until ? `&since=${asked.since}&until=${asked.until}` : ""));
  }

  async function pool() {
    const [blocks, entries] = await Promise.all([api.find("blocks/stats", {}, signal), api.get("cache/stats", {}, signal)]);
    put("entries", short(entries.entries), `${count(entries.hits)} hits`);
    const known = (blocks?.num_blocks ?? null) !== null && blocks.used !== null;
    put("pool", known ? percent(blocks.usage) : null, known ? `${count(blocks.used)} used of ${count(blocks.num_blocks)} blocks${blocks.pinned ? `, ${count(blocks.pinned)} pinned` : ""}${blocks.cached === null ? "" : `, ${count(blocks.cached)} cached`}` : "");
  }

  const onTotal = (total, currency) => {
    const tokens = total.prompt_tokens + total.completion_tokens;
    put("tokens", tokens ? short(tokens) : null, tokensNote(total));
    put("prefix", total.reused_tokens ? short(total.reused_tokens) : null, "by the backend's prefix cache");
    const prefill = (total.seconds ?? 0) - (total.hit_seconds ?? 0);
    put("seconds", total.hit_seconds ? signedDuration(total.hit_seconds) : null, `by hits${prefill > 0 ? `; ${duration(prefill)} by the backend's reuse` : ""}`);
    put("spent", total.spent === null ? null : `${money(total.spent)} ${currency}`, spentNote(total));
    const reuse = total.money - total.hit_money;
    put("money", total.hit_money ? `${money(total.hit_money)} ${currency}` : null, `${priceNote(total)}${reuse ? `; ${money(reuse)} by the backend's reuse` : ""}`);
  };

  /** Choose the smallest time that has a request; the default if none has. */
  async function choose() {
    for (const [value] of SPANS) {
      const { counts } = await api.get("log/series", seriesOf(Number(value), null), signal);
      if (!Object.values(counts).some((each) => sum(each))) continue;
      if (isChosen) return;
      preset = value;
      range.since = Number(value);
      span.press(value);
      isChosen = true;
      return;
    }
  }

  const span = tabs("Time", SPANS, preset, (value) => { preset = value; isChosen = true; go(Number(value), null); });
  let isChosen = params.has("since") || params.has("until");
  function go(since, until) {
    Object.assign(range, { since, until });
    remember({ since, until: until ?? "" });
    showRange();
    load().catch(() => {});
  }
  function showRange() {
    if (range.until === null) return fill(zoomed);
    const text = `${clock(range.until - range.since)} to ${clock(range.until)}`;
    return fill(zoomed, h("a", { href: `#journal?since=${range.since}&until=${range.until}` }, "Its requests"), button(`${text} ✕`, () => onZoom(), { "aria-label": `Leave ${text}` }));
  }

  const empty = h("div");
  root.append(
    h("h1", { class: "unseen" }, "Overview"), empty, tiles,
    h("div", { class: "columns" },
      section("Requests", h("div", { class: "actions" }, span, zoomed, h("span", { class: "grow" }), csvButton("series", () => rows)), requests.node, layersTable),
      section("Reasons", reasons)),
    h("div", { class: "columns even" }, section("Hit rate", rates.node), section("Time to first byte", times.node)),
    savings(api, signal, onTotal), advice(api, signal));
  showRange();
  firstRequest(empty, api, signal);
  api.poll(async () => {
    if (!isChosen) await choose();
    if (range.until === null || !rows.length) await load();
  }, 2, signal);
  api.poll(pool, 3, signal);
  return { escape: () => { if (range.until !== null) onZoom(); } };
}

/** The query of a time that ends at `until`, or now, in at most `BARS` spans. */
function seriesOf(since, until) {
  const step = STEPS.find((each) => since / each <= BARS) ?? STEPS.at(-1);
  return { since, step, until };
}

function layerRows(groups, all, times) {
  const rows = GROUPS.map(([name, meaning, layers], place) => [
    h("span", { class: "layer", "data-tip": meaning }, mark(name), name), h("span", { "data-layer": name }, count(sum(groups[place][1]))),
    all ? percent(sum(groups[place][1]) / all) : "–", layers.map((layer) => times[layer]).filter((each) => each !== undefined).map(ms).join(", ") || "–",
  ]);
  return table("Requests by layer", [["layer", ""], ["requests", "number"], ["share", "number"], ["first byte, median", "number"]], rows);
}

function reasonRows(reasons, range) {
  const rows = Object.entries(reasons.counts).map(([name, counts]) => [name, sum(counts)]).sort((a, b) => b[1] - a[1]);
  const all = sum(rows.map(([, value]) => value));
  if (!rows.length) return h("p", { class: "note" }, "No request in this time.");
  return [
    h("ul", { class: "bars" }, rows.slice(0, MOST_REASONS).map(([name, value]) => {
      const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span"));
      bar.firstChild.style.width = `${(100 * value) / rows[0][1]}%`;
      return h("li", {}, h("a", { href: `#journal?reason=${encodeURIComponent(name)}${range}`, "data-reason": name }, name),
        bar, h("span", { class: "number" }, count(value)), h("span", { class: "number" }, percent(value / all)));
    })),
    rows.length > MOST_REASONS ? h("p", { class: "note" }, `and ${rows.length - MOST_REASONS} more reasons`) : null,
  ];
}
