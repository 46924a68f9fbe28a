// How large the store is, and whose responses fill it.

import { choice, fill, h, table } from "./dom.js";
import { bytes, count, tenantName } from "./format.js";

const BY = [["tenant", "tenant"], ["model", "model"], ["endpoint", "API"], ["tag", "tag"]];
const LOOK = 5; // Seconds.
const MOST = 100;

const of = (value, most) => (most === null ? "" : ` of ${value(most)}`);

/** The store's figures, and a table of whose its responses are; both are kept up to date. */
export function usage(api, signal) {
  let by = "tenant";
  const figures = h("div", { class: "figures" });
  const place = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Whose the responses are" });
  const load = async () => {
    const asked = by;
    const [stats, rows] = await Promise.all([api.get("cache/stats", {}, signal), api.get("cache/usage", { by: asked }, signal)]);
    if (asked !== by) return;
    fill(figures, figuresOf(stats));
    const shown = rows.slice(0, MOST).map((row) => [asked === "tenant" ? tenantName(row.name) : row.name, count(row.entries), bytes(row.bytes), count(row.hits)]);
    const title = BY.find(([value]) => value === asked)[1];
    fill(place, shown.length
      ? table("Whose the responses are", [[title, ""], ["responses", "number"], ["size", "number"], ["hits", "number"]], shown)
      : h("p", {}, "No response is stored, or none has a tag."),
    rows.length > MOST ? h("p", { class: "note" }, `The first ${MOST} of ${count(rows.length)}.`) : null);
  };
  const pick = choice("by", BY, by, (value) => {
    by = value;
    load().catch(() => {});
  });
  api.poll(load, LOOK, signal);
  const node = h("div", { class: "panel", hidden: true }, pick, place);
  return { figures, node };
}

function figuresOf(stats) {
  const known = [
    ["responses", `${count(stats.entries)}${of(count, stats.max_entries)}`], ["size", `${bytes(stats.entry_bytes)}${of(bytes, stats.max_bytes)}`],
    ["on disk", bytes(stats.bytes)], ["namespaces", count(stats.namespaces)], ["models", count(stats.models)], ["hits", count(stats.hits)],
    ["expired", count(stats.expired)], ["given as stale", count(stats.stale)],
  ];
  return known.map(([name, value]) => h("div", {}, h("span", {}, name), h("strong", { "data-figure": name }, value)));
}
