// What the proxy does, at a glance.

import { Chart, grouped } from "./chart.js";
import { fill, h, section, table, tabs } from "./dom.js";
import { count, duration, money, ms, percent, short } from "./format.js";
import { CACHED, GROUPS, mark } from "./layers.js";
import { savings } from "./savings.js";

const SPANS = [["300", "5 min"], ["3600", "1 h"], ["86400", "24 h"], ["604800", "7 d"]];
const BARS = 60;
const MOST_REASONS = 12;

/** The view. */
export function overview(root, params, { api, signal }) {
  let since = sessionStorage.getItem("kvproxy-since") ?? "3600";
  const tiles = h("div", { class: "tiles" });
  const values = {};
  const tile = (name, title, note = "") => {
    values[name] = h("strong", { "data-figure": name }, "–");
    values[`${name}-note`] = h("small", {}, note);
    tiles.append(h("div", { class: "tile" }, h("span", {}, title), values[name], values[`${name}-note`]));
  };
  tile("requests", "Requests");
  tile("cached", "From a cache");
  tile("reused", "Prefix reuse", "of prompt tokens looked up");
  tile("tokens", "Tokens saved", "in all");
  tile("seconds", "Time saved", "in all");
  tile("money", "Money saved", "at your prices");
  tile("entries", "Stored responses");
  tile("pool", "Pool in use");
  const put = (name, value, note) => {
    values[name].textContent = value;
    if (note !== undefined) values[`${name}-note`].textContent = note;
  };

  const chart = new Chart();
  const who = h("div");
  const why = h("div");
  const load = async () => {
    const asked = since;
    const query = { since: asked, step: asked / BARS };
    const [layers, reasons] = await Promise.all([
      api.get("log/series", query, signal),
      // The same steps, so that both tell of the same time.
      api.get("log/series", { ...query, by: "reason" }, signal),
    ]);
    if (asked !== since) return;
    chart.show(layers, BARS);
    const sums = grouped(layers, BARS).map(([name, counts]) => [name, counts.reduce((sum, value) => sum + value, 0)]);
    const all = sums.reduce((sum, [, value]) => sum + value, 0);
    const cached = sums.filter(([name]) => CACHED.includes(name)).reduce((sum, [, value]) => sum + value, 0);
    const title = SPANS.find(([value]) => value === asked)[1];
    put("requests", short(all), `in the last ${title}`);
    put("cached", all ? percent(cached / all) : "–", `${count(cached)} in the last ${title}`);
    fill(who, answered(sums, all, layers.first_ms));
    fill(why, reasonsOf(reasons));
  };

  const pool = async () => {
    const [blocks, entries] = await Promise.all([api.find("blocks/stats", {}, signal), api.get("cache/stats", {}, signal)]);
    put("entries", short(entries.entries), `${count(entries.hits)} hits`);
    if (blocks === null) put("pool", "–", "the upstream keeps its own");
    else if (blocks.num_blocks === null) put("pool", "–", `${count(blocks.cached)} cached blocks or slots known`);
    else if (blocks.used === null) put("pool", "–", `of ${count(blocks.num_blocks)} blocks`);
    else put("pool", percent(blocks.used / (blocks.num_blocks - 1)), `${count(blocks.cached)} of ${count(blocks.num_blocks - 1)} cached`);
    put("reused", blocks === null ? "–" : percent(blocks.hit_rate));
  };

  const span = tabs("Time", SPANS, since, (value) => {
    since = value;
    sessionStorage.setItem("kvproxy-since", value);
    load().catch(() => {});
  });
  const saved = savings(api, signal, (total, currency) => {
    put("tokens", short(total.prompt_tokens + total.completion_tokens + total.reused_tokens));
    const unknown = total.unmeasured_tokens > 0 && !total.seconds;
    put("seconds", unknown ? "–" : duration(total.seconds), unknown ? "not known yet" : undefined);
    put("money", total.money === null ? money(null) : `${money(total.money)} ${currency}`, total.money === null ? "no price is known" : undefined);
  });
  root.append(
    h("h1", { class: "unseen" }, "Overview"), tiles,
    h("div", { class: "columns" },
      section("Who answers", span, chart.node, who),
      section("Why", h("p", { class: "note" }, "The reason of each request in this time; choose one to see its requests."), why)),
    saved,
  );
  const redraw = () => chart.draw();
  window.addEventListener("theme", redraw, { signal });
  api.poll(load, 2, signal);
  api.poll(pool, 3, signal);
}

function answered(sums, all, times) {
  const meanings = new Map(GROUPS.map(([name, meaning]) => [name, meaning]));
  const layersOf = new Map(GROUPS.map(([name, , layers]) => [name, layers]));
  const rows = sums.map(([name, value]) => [
    h("span", { class: "layer", title: meanings.get(name) }, mark(name), name),
    h("span", { "data-layer": name }, count(value)), all ? percent(value / all) : "–",
    layersOf.get(name).map((layer) => times[layer]).filter((each) => each !== undefined).map(ms).join(", ") || "–",
  ]);
  return table("Requests by who answered",
    [["answered by", ""], ["requests", "number"], ["share", "number"], ["first byte, median", "number"]], rows);
}

function reasonsOf(reasons) {
  const rows = Object.entries(reasons.counts).map(([name, counts]) => [name, counts.reduce((sum, value) => sum + value, 0)]).sort((a, b) => b[1] - a[1]);
  const all = rows.reduce((sum, [, value]) => sum + value, 0);
  if (!rows.length) return h("p", {}, "No request came in this time.");
  const shown = rows.slice(0, MOST_REASONS);
  return [
    h("ul", { class: "bars" }, shown.map(([name, value]) => {
      const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span"));
      bar.firstChild.style.width = `${(100 * value) / rows[0][1]}%`;
      return h("li", {}, h("a", { href: `#journal?reason=${encodeURIComponent(name)}` }, name),
        bar, h("span", { class: "number" }, count(value)), h("span", { class: "number" }, percent(value / all)));
    })),
    rows.length > MOST_REASONS ? h("p", { class: "note" }, `and ${rows.length - MOST_REASONS} more reasons`) : null,
  ];
}
