// One request's story: what became of it, why, how long each step took, and the similar question that was judged.

import { button, facts, fill, h, sentenceNodes } from "./dom.js";
import { clock, count, decimal, digest, money, ms, percent, tenantName } from "./format.js";
import { layerName, reason } from "./layers.js";
import { match } from "./match.js";

const STEPS = [
  ["exact lookup", "exact_ms"], ["similar questions", "semantic_ms"], ["backend began", "backend_ms"],
  ["answer began", "first_ms"], ["answer ended", "total_ms"],
];

/** Put the story of a request, by its number or id, into a node. */
export async function story(node, name, { api, signal, close }) {
  node.dataset.request = name;
  const head = h("div", { class: "head" }, h("h2", {}, "Request"), h("span", { class: "grow" }), button("Close", close, { "aria-keyshortcuts": "Escape" }));
  fill(node, head, h("p", {}, "…"));
  let details;
  try {
    details = await api.get(`log/${encodeURIComponent(name)}`, {}, signal);
  } catch (error) {
    if (node.dataset.request === name) fill(node, head, h("p", { class: "note" }, error.message));
    return;
  }
  if (node.dataset.request !== name) return;
  const record = details.explained.record;
  fill(node, head,
    h("p", { class: "lead" }, layerName(record.layer), " ", reason(record.reason)),
    details.question ? h("blockquote", {}, details.question) : null,
    h("ul", { class: "sentences" }, details.sentences.map((sentence) => h("li", {}, sentenceNodes(sentence)))),
    differences(details.explained),
    steps(record),
    record.near ? h("h3", {}, "The similar question") : null,
    record.near ? match({ ...record, question: details.question, stored_question: details.stored_question }, api) : null,
    h("h3", {}, "Record"),
    facts([
      ["time", clock(record.time)], ["request", record.request_id], ["number", count(record.number)],
      ["tenant", tenantName(record.tenant)], ["API", record.api], ["model", record.model], ["upstream", record.upstream],
      ["status", String(record.status)], ["prompt tokens", known(record.prompt_tokens)], ["answer tokens", known(record.completion_tokens)],
      ["reused tokens", reused(record)], ["predicted tokens", known(record.predicted_tokens)],
      ["lost tokens", lost(details)], ["first change", details.first_change],
      ["expected error", record.error === null ? null : decimal(record.error)], ["tags", record.tags], ["key", record.key],
      ["stored response", record.entry ? h("a", { href: `#stored?id=${encodeURIComponent(record.entry)}` }, digest(record.entry)) : null],
    ]));
}

const known = (value) => (value === null ? null : count(value));

function reused(record) {
  if (record.reused_tokens === null) return null;
  const share = record.prompt_tokens ? ` (${percent(record.reused_tokens / record.prompt_tokens)})` : "";
  return count(record.reused_tokens) + share;
}

function lost(details) {
  if (details.lost_tokens === null) return null;
  return count(details.lost_tokens) + (details.lost_cost === null ? "" : ` (${money(details.lost_cost)})`);
}

/** The words that became others since the earlier request most like it. */
function differences({ differences: found, earlier, record }) {
  const worded = found.filter((each) => each.before !== null || each.after !== null);
  if (!worded.length || earlier === null || record.reason.startsWith("hit-")) return null;
  return h("dl", { class: "diff" }, worded.slice(0, 8).map((each) => [
    h("dt", {}, each.region), h("dd", {}, h("del", {}, each.before ?? "–"), " ", h("ins", {}, each.after ?? "–")),
  ]));
}

function steps(record) {
  const all = Math.max(record.total_ms ?? 0, record.first_ms ?? 0, 1e-3);
  const rows = STEPS.filter(([, name]) => record[name] !== null).map(([title, name]) => {
    const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span"));
    bar.firstChild.style.width = `${Math.min(100, (100 * record[name]) / all)}%`;
    return h("li", {}, h("span", {}, title), bar, h("span", { class: "number" }, ms(record[name])));
  });
  return rows.length ? h("ul", { class: "bars steps", "aria-label": "How long each step took" }, rows) : null;
}
