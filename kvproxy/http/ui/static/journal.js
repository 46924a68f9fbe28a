// The journal, live and with filters; one request's story beside it.

import { button, choice, field, fill, h } from "./dom.js";
import { csvButton } from "./csv.js";
import { Feed, all } from "./feed.js";
import { clock, count, digest, line, money, ms, tenantName } from "./format.js";
import { Grid } from "./grid.js";
import { LAYERS, layerName, reason } from "./layers.js";
import { story } from "./story.js";

const COLUMNS = [
  { title: "time", width: "8.5ch", cell: (row) => clock(row.time) },
  { title: "layer", width: "11ch", cell: (row) => layerName(row.layer) },
  { title: "reason", width: "minmax(8ch, 16ch)", kind: "long", cell: (row) => reason(row.reason) },
  { title: "model", spare: true, width: "minmax(6ch, 14ch)", kind: "long", cell: (row) => row.model || "–" },
  { title: "tenant", spare: true, width: "minmax(6ch, 16ch)", kind: "long", cell: (row) => digest(tenantName(row.tenant), 16) },
  { title: "tokens", width: "8ch", kind: "number", cell: (row) => count(tokens(row)) },
  { title: "reused", spare: true, width: "8ch", kind: "number", cell: (row) => count(row.reused_tokens) },
  { title: "cost", spare: true, width: "9ch", kind: "number", cell: (row) => money(row.cost) },
  { title: "time taken", width: "10ch", kind: "number", cell: (row) => ms(row.total_ms) },
  { title: "question", width: "minmax(8ch, 1fr)", kind: "long", cell: (row) => line(row.question) || "–" },
];

/** A row on a phone: the question, and below it the rest. */
const lines = (row) => h("span", {}, h("span", { class: "question" }, line(row.question) || row.reason),
  h("span", { class: "below" }, layerName(row.layer), ` ${clock(row.time)}, ${ms(row.total_ms)}, ${row.reason}`));

const tokens = (row) => (row.prompt_tokens === null ? null : row.prompt_tokens + (row.completion_tokens ?? 0));

/** The view. `params` are the filters, and the `request` whose story is open. */
export function journal(root, params, { api, signal, remember }) {
  const filters = { layer: "", reason: "", tenant: "", model: "", tag: "", since: "", until: "" };
  for (const name of Object.keys(filters)) filters[name] = params.get(name) ?? "";
  let feed = null;
  let following = null;
  let opened = params.get("request");

  const status = h("span", { class: "note grow", role: "status" });
  const pause = button("Pause", () => feed.pause(!feed.paused), { "aria-keyshortcuts": "p" });
  const beside = h("aside", { class: "beside", "aria-label": "One request", hidden: true });
  const names = { tenant: h("datalist", { id: "tenants" }), model: h("datalist", { id: "models" }), reason: h("datalist", { id: "reasons" }), tag: h("datalist", { id: "tags" }) };
  const grid = new Grid({
    label: "Requests, the newest first",
    columns: COLUMNS, lines,
    rowAt: (place) => feed?.rows[place] ?? null,
    keyOf: (row) => String(row.number),
    onChoose: (row) => open(String(row.number)),
    onEnd: () => feed?.older(),
  });

  const keep = () => remember({ ...filters, request: opened ?? "" });
  const set = (name) => (value) => {
    filters[name] = value;
    keep();
    follow();
  };

  function follow() {
    following?.abort();
    following = new AbortController();
    const stop = following.signal;
    const given = Object.fromEntries(Object.entries(filters).filter(([, value]) => value));
    const own = new Feed(api, given, AbortSignal.any([signal, stop]), (added) => {
      if (stop.aborted) return;
      if (added === null) grid.node.scrollTop = 0;
      grid.show(own.rows.length, added ?? 0);
      suggest(own.rows);
      say(own);
    });
    feed = own;
    grid.show(0);
    say(own);
  }

  function say(own) {
    pause.textContent = own.paused ? `Go on${own.held.length ? ` (${count(own.held.length)} new)` : ""}` : "Pause";
    pause.setAttribute("aria-pressed", String(own.paused));
    const gap = own.gap ? " More came at once than is shown here." : "";
    status.textContent = own.refused ? own.refused : own.rows.length ? `${own.paused ? "Paused." : "Live."}${gap}` : "No request fits.";
  }

  function suggest(rows) {
    const seen = rows.slice(0, 300);
    const values = {
      tenant: seen.map((row) => tenantName(row.tenant)), model: seen.map((row) => row.model), reason: seen.map((row) => row.reason),
      tag: seen.flatMap((row) => row.tags?.split(",") ?? []),
    };
    for (const [name, list] of Object.entries(names)) {
      const distinct = [...new Set(values[name])].sort();
      if (list.children.length !== distinct.length) fill(list, distinct.map((value) => h("option", { value })));
    }
  }

  function open(number) {
    opened = number;
    grid.open(number);
    keep();
    beside.hidden = false;
    story(beside, number, { api, signal, close });
  }

  function close() {
    opened = null;
    beside.hidden = true;
    beside.replaceChildren();
    grid.open(null);
    keep();
    grid.node.focus();
  }

  const range = filters.until && button(`${clock(filters.until - filters.since)} to ${clock(Number(filters.until))} ✕`, () => {
    range.remove();
    filters.since = "";
    set("until")("");
  }, { "aria-label": "Show requests of all times" });
  root.append(
    h("h1", { class: "unseen" }, "Journal"),
    h("div", { class: "filters", role: "search", "aria-label": "Filter requests" },
      choice("Layer", [["", "all"], ...LAYERS.map((layer) => [layer, layer])], filters.layer, set("layer")),
      field("Reason", filters.reason, set("reason"), { list: "reasons", class: "first" }),
      field("Client", filters.tenant, set("tenant"), { list: "tenants", "data-tip": "Name of a client, or a tenant" }),
      field("Model", filters.model, set("model"), { list: "models" }),
      field("Tag", filters.tag, set("tag"), { list: "tags" }),
      range, status, csvButton("requests", () => all(api, filters, signal)), pause, Object.values(names)),
    h("div", { class: "split" }, grid.node, beside));
  follow();
  if (opened) open(opened);
  return { pause: () => feed.pause(!feed.paused), escape: close };
}
