// Stored responses: the newest, those that go next if the store is full, or whose they are; one of them beside the list.

import { button, facts, field, fill, h, tabs } from "./dom.js";
import { bytes, clock, count, decimal, digest, duration, line, tenantName } from "./format.js";
import { Grid } from "./grid.js";
import { Pages } from "./pages.js";
import { usage } from "./usage.js";

const NEWEST = "cache";
const NEXT = "cache/queue";
const ORDERS = [[NEWEST, "Newest"], [NEXT, "Next to go"], ["cache/usage", "Whose"]];
const LOOK = 3; // Seconds between two looks at what is new.
const now = () => Date.now() / 1000;

const COLUMN = {
  id: { title: "id", width: "13ch", kind: "code", cell: (row) => digest(row.id) },
  reason: { title: "reason", width: "12ch", cell: (row) => row.reason },
  worth: { title: "worth", width: "9ch", kind: "number", cell: (row) => decimal(row.priority) },
  age: { title: "age", width: "9ch", kind: "number", cell: (row) => duration(now() - row.created) },
  left: { title: "expires in", width: "10ch", kind: "number", cell: (row) => (row.expires > now() ? duration(row.expires - now()) : "–") },
  hits: { title: "hits", width: "7ch", kind: "number", cell: (row) => count(row.hits) },
  tokens: { title: "tokens", width: "8ch", kind: "number", cell: (row) => count(row.prompt_tokens === null || row.completion_tokens === null ? null : row.prompt_tokens + row.completion_tokens) },
  size: { title: "size", width: "10ch", kind: "number", cell: (row) => bytes(row.bytes) },
  kept: { title: "kept", width: "8ch", cell: (row) => (row.pinned ? "pinned" : "–") },
  model: { title: "model", spare: true, width: "minmax(6ch, 14ch)", kind: "long", cell: (row) => row.model },
  tenant: { title: "tenant", spare: true, width: "minmax(6ch, 16ch)", kind: "long", cell: (row) => tenantName(row.tenant) },
  question: { title: "question", width: "minmax(8ch, 1fr)", kind: "long", cell: (row) => line(row.prompt) },
};
/** A row on a phone: the question, and below it the rest. */
const lines = (row) => h("span", {}, h("span", { class: "question" }, line(row.prompt)),
  h("span", { class: "below" }, `${duration(now() - row.created)} old, ${count(row.hits)} hits, ${row.model}${row.pinned ? ", pinned" : ""}`));
const columns = (...names) => names.map((name) => COLUMN[name]);
const spare = (columns) => columns.map((column) => ({ ...column, spare: true }));
const COLUMNS = {
  [NEWEST]: columns("id", "age", "hits", "tokens", "kept", "model", "tenant", "question"),
  [NEXT]: [...columns("id", "reason", "worth", "left"), ...spare(columns("age", "hits", "tokens", "size", "model", "tenant")), COLUMN.question],
};

/** The view. `params` may name an `id` that is open, and the text that is searched. */
export function stored(root, params, { api, signal, remember }) {
  let order = NEWEST;
  let search = params.get("search") ?? "";
  let opened = params.get("id");
  let pages = null;
  let top = 0;
  const status = h("span", { class: "note grow", role: "status" });
  const beside = h("aside", { class: "beside", "aria-label": "One stored response", hidden: true });
  const grid = new Grid({
    label: "Stored responses", columns: COLUMNS[order], lines, keyOf: (row) => row.id,
    rowAt: (place) => {
      top = place;
      return pages?.at(place) ?? null;
    },
    onChoose: (row) => open(row.id),
  });

  function show() {
    const query = order === NEWEST ? { search } : {};
    const own = new Pages(api, order, query, signal, () => {
      if (own !== pages) return;
      grid.show(own.total);
      status.textContent = `${count(own.total)} responses${search && order === NEWEST ? " with this text" : ""}`;
    });
    pages = own;
    grid.show(0);
    return own.refresh();
  }

  async function open(id) {
    opened = id;
    grid.open(id);
    beside.hidden = false;
    remember({ id, search });
    try {
      const entry = await api.get(`cache/${encodeURIComponent(id)}`, {}, signal);
      if (opened === id) details(beside, entry, { api, close, changed: () => pages.refresh(top) });
    } catch (error) {
      fill(beside, h("p", { class: "note" }, error.message), button("Close", close));
    }
  }

  function close() {
    opened = null;
    beside.hidden = true;
    grid.open(null);
    remember({ search });
    grid.node.focus();
  }

  const searching = field("Question contains", search, (value) => {
    search = value;
    remember({ search });
    show().catch(() => {});
  }, { class: "first" });
  const whose = usage(api, signal);
  const listed = h("div", { class: "split" }, grid.node, beside);
  root.append(
    h("h1", { class: "unseen" }, "Stored responses"),
    whose.figures,
    h("div", { class: "filters" }, tabs("Order", ORDERS, order, (value) => {
      order = value;
      searching.hidden = value !== NEWEST;
      listed.hidden = status.hidden = !(value in COLUMNS);
      whose.node.hidden = !listed.hidden;
      if (listed.hidden) return;
      grid.take(COLUMNS[value]);
      show().catch(() => {});
    }), searching, status),
    listed, whose.node);
  show().catch(() => {});
  if (opened) open(opened);
  // At the top of the list new ones are seen at once; who has scrolled is left alone.
  api.poll(() => (grid.atTop && !listed.hidden ? pages.refresh() : null), LOOK, signal);
  return { escape: close };
}

function details(node, entry, { api, close, changed }) {
  const said = h("p", { class: "note", role: "status" });
  const ask = async (work, sentence) => {
    try {
      await work();
      said.textContent = sentence;
      await changed();
    } catch (error) {
      said.textContent = error.message;
    }
  };
  const path = `cache/${encodeURIComponent(entry.id)}`;
  const kept = h("span", { "data-figure": "kept" });
  const keep = (pinned) => { kept.textContent = pinned ? "pinned: all others go before it, while it is within its time" : "as long as it saves more than others"; };
  const pin = async (pinned) => {
    await (pinned ? api.post(`${path}/pin`) : api.delete(`${path}/pin`));
    keep(pinned);
  };
  keep(entry.pinned);
  const act = (text, work, sentence) => button(text, () => ask(work, sentence));
  fill(node,
    h("div", { class: "head" }, h("h2", {}, "Stored response"), h("span", { class: "grow" }), button("Close", close, { "aria-keyshortcuts": "Escape" })),
    h("blockquote", {}, entry.prompt),
    h("div", { class: "actions", role: "group", "aria-label": "The stored response" },
      act("Pin", () => pin(true), "Pinned: others make room before it."),
      act("Unpin", () => pin(false), "No longer pinned."),
      act("Reject", () => api.post(`${path}/feedback`, { right: false }), "Rejected: it is served for equal requests only."),
      act("Approve", () => api.post(`${path}/feedback`, { right: true }), "Approved."),
      act("Remove", () => api.delete(path), "Removed."), said),
    h("h3", {}, "Answer"), h("pre", {}, answerOf(entry.response)),
    facts([
      ["id", entry.id], ["stored", clock(entry.created)], ["expires", clock(entry.expires)], ["kept", kept],
      ["given while it is computed anew", seconds(entry.stale_while_revalidate)], ["given if the backend fails", seconds(entry.stale_if_error)], ["hits", count(entry.hits)],
      ["last hit", entry.last_hit === null ? null : clock(entry.last_hit)], ["tenant", tenantName(entry.tenant)], ["model", entry.model],
      ["API", entry.endpoint], ["for similar questions", entry.semantic ? "yes" : "no"], ["prompt tokens", count(entry.prompt_tokens)],
      ["answer tokens", count(entry.completion_tokens)], ["tags", entry.tags.join(", ")], ["backend", entry.backend],
      ["request", entry.request_id], ["size", bytes(JSON.stringify(entry.request).length + JSON.stringify(entry.response).length)],
      ["key", entry.key], ["namespace", entry.namespace_name || entry.namespace],
    ]),
    h("details", {}, h("summary", {}, "Request"), h("pre", {}, JSON.stringify(entry.request, null, 2))),
    h("details", {}, h("summary", {}, "Response"), h("pre", {}, JSON.stringify(entry.response, null, 2))));
}

const seconds = (value) => (value ? `for ${duration(value)} more` : null);

/** What an answer says, where it is one text; else the whole of it. */
function answerOf(response) {
  const choice = response.choices?.[0];
  const said = choice?.message?.content ?? choice?.text ?? response.content?.[0]?.text;
  return typeof said === "string" ? said : JSON.stringify(response, null, 2);
}
