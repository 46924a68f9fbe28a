// Conversations: the tokens of each, where it lost its cache, and its tree of turns.

import { csvButton } from "./csv.js";
import { button, choice, facts, field, fill, h, section, table } from "./dom.js";
import { clock, count, digest, duration, money, percent, tenantName } from "./format.js";

const LOOK = 3; // Seconds.
const MOST = 100; // Sessions that are listed.
const TURNS = [["2", "2 or more"], ["5", "5 or more"], ["20", "20 or more"], ["1", "any number"]];

const scroll = (label, ...children) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, ...children);

const lost = (found) => Object.entries(found).map(([cause, tokens]) => `${cause} ${count(tokens)}`).join(", ") || "–";

const priced = (amount, leavesOut) => money(amount) + (amount !== null && leavesOut ? " (priced)" : "");

/** The view. */
export function sessions(root, params, { api, signal, remember }) {
  let chosen = params.get("session") ?? "";
  let rows = [];
  let drawn = "";
  const filters = { turns: params.get("turns") ?? TURNS[0][0], tenant: params.get("tenant") ?? "" };
  const keep = () => remember({ session: chosen, tenant: filters.tenant, turns: filters.turns === TURNS[0][0] ? "" : filters.turns });
  const set = (name) => (value) => {
    filters[name] = value;
    keep();
    load().catch(() => {});
  };
  const list = scroll("List of sessions");
  list.classList.add("cards");
  const detail = h("div", { class: "stack" });
  const choose = (id) => {
    chosen = String(id);
    keep();
    load().catch(() => {});
  };

  const load = async () => {
    const [wanted, asked] = [chosen, JSON.stringify(filters)];
    const [found, turns] = await Promise.all([
      api.get("sessions", { limit: MOST, ...filters }, signal),
      wanted ? api.find(`sessions/${encodeURIComponent(wanted)}`, {}, signal) : null,
    ]);
    if (wanted !== chosen || asked !== JSON.stringify(filters)) return;
    rows = found;
    // New nodes would take the focus from the old ones.
    const state = JSON.stringify([wanted, found, turns]);
    if (state === drawn) return;
    drawn = state;
    fill(list, found.length ? listOf(found, choose, chosen) : h("p", {}, noSession(filters)));
    fill(detail, wanted ? (turns === null ? h("p", { class: "note" }, `There is no session ${wanted}.`) : treeOf(turns)) : null);
  };

  root.append(h("h1", { class: "unseen" }, "Sessions"),
    section("Sessions", h("div", { class: "filters", role: "search", "aria-label": "Filter sessions" },
      choice("Turns", TURNS, filters.turns, set("turns")), field("Client", filters.tenant, set("tenant"), { class: "first", "data-tip": "Name of a client, or a tenant" }),
      h("span", { class: "grow" }), csvButton("sessions", () => rows.map(flat))), list), detail);
  api.poll(load, LOOK, signal);
  return {};
}

function noSession({ tenant, turns }) {
  if (!tenant && Number(turns) <= 1) return "No session yet. A request that reaches the backend begins one.";
  return `No session${tenant ? " of this client" : ""}${Number(turns) > 1 ? ` has ${turns} or more turns` : ""}.`;
}

const flat = ({ lost: causes, models, upstreams, ...row }) => ({ ...row, models: models.join(" "), upstreams: upstreams.join(" "), ...causes });

function listOf(found, choose, chosen) {
  const shown = found.map((each) => [
    button(each.name ? digest(each.name, 16) : String(each.id), () => choose(each.id), { "aria-pressed": String(String(each.id) === chosen) }),
    digest(tenantName(each.tenant), 16), each.models.join(", "), count(each.turns), count(each.prompt_tokens), each.reused_tokens === null ? "–" : percent(each.reused_tokens / Math.max(1, each.prompt_tokens)),
    lost(each.lost), priced(each.lost_cost, each.unpriced_turns), duration(each.longest_pause), priced(each.cost, each.unpriced_turns || each.incomplete_turns), each.upstreams.join(", ") || "–", clock(each.last),
  ]);
  return table("Sessions", [
    ["session", ""], ["tenant", ""], ["model", ""], ["turns", "number"], ["input", "number"], ["reused", "number"], ["lost", ""],
    ["lost cost", "number"], ["longest pause", "number"], ["cost", "number"], ["upstream", ""], ["last", ""],
  ], shown);
}

function treeOf(turns) {
  const first = turns[0].turn;
  const shown = turns.map(({ depth, turn }) => [
    `${"·".repeat(depth)}${turn.is_warming ? "warming" : turn.turn}`, clock(turn.time), duration(turn.pause), count(turn.prompt_tokens), count(turn.reused_tokens), lost(turn.lost), money(turn.lost_cost),
    turn.region === null ? "–" : `${turn.region}${turn.place === null ? "" : `, character ${count(turn.place)}`}`, money(turn.cost),
    h("a", { href: `#journal?request=${turn.number}` }, digest(turn.request_id, 8)),
  ]);
  return section(`Session ${first.session}`, facts([["name", first.name], ["tenant", tenantName(first.tenant)], ["turns", count(turns.length)]]),
    scroll("Turns", table("Turns", [
      ["turn", ""], ["time", ""], ["pause", "number"], ["input", "number"], ["reused", "number"], ["lost", ""], ["lost cost", "number"], ["first change", ""], ["cost", "number"],
      ["request", ""],
    ], shown)));
}
