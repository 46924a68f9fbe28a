// The clients with their usage, budgets, and limits. Nothing here knows a key: the proxy stores digests only.

import { csvButton } from "./csv.js";
import { fill, h, section, sentenceNodes, table } from "./dom.js";
import { amount, bytes, clock, count, money } from "./format.js";

const LOOK = 5; // Seconds.
const MOST = 500;

/** The view. */
export function clientKeys(root, params, { api, signal }) {
  const body = h("div", { class: "stack" });
  root.append(h("h1", { class: "unseen" }, "Keys"), body);
  let drawn = "";
  const load = async () => {
    const found = await api.get("keys", {}, signal);
    // New nodes would take the focus from the old ones.
    const state = JSON.stringify(found);
    if (state === drawn) return;
    drawn = state;
    fill(body, found.clients.length ? listOf(found) : h("p", { class: "note" }, ...sentenceNodes(withoutClients(found))),
      found.problem ? h("p", { class: "note" }, `The usage is unknown: ${found.problem}`) : null);
  };
  api.poll(load, LOOK, signal);
}

function withoutClients({ closed }) {
  if (closed) return `${closed[0].toUpperCase()}${closed.slice(1)}.`;
  return "There is no client, so the proxy accepts requests without a key. Create the first one with `kvproxy keys add NAME`.";
}

function listOf({ clients, currency }) {
  const hasTeams = clients.some((each) => each.team !== null);
  const rows = clients.slice(0, MOST).map((each) => [
    nameOf(each), ...(hasTeams ? [each.team] : []), count(each.requests), count(each.tokens), money(each.spent), usedOf(each.spent_today, each.budget_per_day),
    usedOf(each.spent_this_month, each.budget_per_month), limitsOf(each), each.models?.split(",").join(", ") ?? "all", expiryOf(each.expires),
    each.last_used === null ? null : clock(each.last_used, false),
  ]);
  return section("Clients", h("p", { class: "note" }, ...sentenceNodes("Usage of the last 30 UTC days; budgets count the UTC day and month. `kvproxy keys set` changes limits, `kvproxy keys rotate` replaces a key, `kvproxy keys disable` rejects requests.")),
    h("div", { class: "actions" }, h("span", { class: "grow" }), csvButton("keys", () => clients)),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Usage of clients" }, table("Clients", [
      ["client", ""], ...(hasTeams ? [["team", ""]] : []), ["requests", "number"], ["tokens", "number"], [`spent ${currency}`, "number"], ["today", "number"], ["this month", "number"],
      ["limits", ""], ["models", ""], ["expires", ""], ["last used", ""],
    ], rows)),
    clients.length > MOST ? h("p", { class: "note" }, `The first ${MOST} of ${count(clients.length)}.`) : null);
}

function nameOf({ name, disabled }) {
  return disabled ? h("span", {}, `${name} `, h("span", { class: "state", "data-state": "spent", "data-tip": `Its requests get 403: kvproxy keys enable ${name}` }, "disabled")) : name;
}

/** What a client used of a budget; marked if nothing is left. */
function usedOf(spent, budget) {
  if (budget === null) return null;
  return h("span", spent >= budget ? { class: "state", "data-state": "spent", "data-tip": "The budget is spent: only hits are served" } : {}, `${money(spent)} of ${amount(budget)}`);
}

function limitsOf(each) {
  const limits = [
    each.requests_per_minute && `${count(each.requests_per_minute)} requests/min`, each.tokens_per_minute && `${count(each.tokens_per_minute)} tokens/min`,
    each.concurrent_requests && `${count(each.concurrent_requests)} in flight`, each.stored_bytes !== null && `${bytes(each.stored_bytes)} stored`,
  ].filter(Boolean);
  return limits.join(", ") || null;
}

function expiryOf(expires) {
  if (expires === null) return "never";
  return 1000 * expires <= Date.now() ? h("span", { class: "state", "data-state": "spent" }, "expired") : clock(expires, false);
}
