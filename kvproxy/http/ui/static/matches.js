// Similar questions that were judged, as they come.

import { button, choice, fill, h } from "./dom.js";
import { csvButton } from "./csv.js";
import { Feed, all } from "./feed.js";
import { clock, digest, tenantName } from "./format.js";
import { layerName, reason as reasonName } from "./layers.js";
import { match } from "./match.js";

const STEP = 25; // Matches that one page shows.
const DECISIONS = [["", "all"], ["hit-semantic", "served"], ["veto", "vetoed by a guard"], ["below", "not alike enough"], ["uncertain", "uncertain"], ["rejected", "rejected by a person"], ["refusal-limit", "refused too often"], ["shadow", "shadow"]];

/** The view. */
export function matches(root, params, { api, signal, remember }) {
  let reason = params.get("reason") ?? "";
  let shown = STEP;
  let feed = null;
  let following = null;
  const list = h("ol", { class: "matches" });
  const cards = new Map();
  const status = h("span", { class: "note grow", role: "status" });
  const fresh = button("", () => feed.pause(false), { hidden: true });
  const older = button("Older", () => {
    shown += STEP;
    draw();
    feed.older();
  });

  function draw() {
    const rows = feed.rows.slice(0, shown);
    const wanted = new Set(rows.map((row) => row.number));
    for (const number of cards.keys()) if (!wanted.has(number)) cards.delete(number);
    // A card stays the same node, so that what was said of it, and the focus in it, stay.
    for (const row of rows) if (!cards.has(row.number)) cards.set(row.number, card(row, api));
    const nodes = rows.map((row) => cards.get(row.number));
    for (const node of [...list.children]) if (!nodes.includes(node)) node.remove();
    nodes.forEach((node, place) => {
      if (list.children[place] !== node) list.insertBefore(node, list.children[place] ?? null);
    });
    status.textContent = feed.refused ? feed.refused : rows.length ? "" : "No similar question was compared yet. Send a stored question in other words: it appears here with the decision.";
    older.hidden = rows.length < shown;
    fresh.hidden = !feed.held.length;
    fresh.textContent = `Show ${feed.held.length} new`;
  }

  function follow() {
    following?.abort();
    following = new AbortController();
    const stop = following.signal;
    const own = new Feed(api, { judged: "true", reason }, AbortSignal.any([signal, stop]), (added) => {
      if (stop.aborted) return;
      draw();
      // Cards that move away under the pointer would be pressed by mistake.
      if (added === null) own.pause(true);
    });
    feed = own;
    fill(list);
    cards.clear();
  }

  root.append(
    h("h1", { class: "unseen" }, "Matches"),
    h("div", { class: "filters" },
      choice("Decision", DECISIONS, reason, (value) => {
        reason = value;
        shown = STEP;
        remember({ reason });
        follow();
      }), status, csvButton("matches", () => all(api, { judged: "true", reason }, signal)), fresh),
    list, older);
  follow();
  return {};
}

function card(row, api) {
  return h("li", { class: "panel" },
    h("p", { class: "lead" }, layerName(row.layer), " ", reasonName(row.reason), " ",
      h("a", { href: `#journal?request=${row.number}` }, `${clock(row.time)}, request ${digest(row.request_id, 8)}`),
      h("span", { class: "note" }, ` ${row.model}, ${digest(tenantName(row.tenant), 16)}`)),
    match(row, api));
}
