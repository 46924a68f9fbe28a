// What the caches saved, by layer, client, team, project, tenant, model, tag or day.

import { csvButton } from "./csv.js";
import { choice, fill, h, section, table } from "./dom.js";
import { count, money, signedDuration, tenantName } from "./format.js";
import { mark, groupOf } from "./layers.js";

const BY = [["layer", "layer"], ["client", "client"], ["team", "team"], ["project", "project"], ["tenant", "tenant"], ["model", "model"], ["tag", "tag"], ["day", "day"]];
const COLUMNS = [
  ["requests", "number"], ["from a cache", "number"], ["prompt tokens", "number"], ["answer tokens", "number"],
  ["reused tokens", "number"], ["time", "number"],
];
const MOST = 30;

/** The tokens of hits; without a hit there are none to count. */
const ofHits = (row, tokens) => count(row.answered + row.partial_hits ? tokens : null);

const cells = (row) => [
  count(row.requests), count(row.answered), ofHits(row, row.prompt_tokens), ofHits(row, row.completion_tokens), count(row.reused_tokens),
  time(row), spent(row), price(row), money(row.least_money),
];

/** The time with its range, or that it is not known. */
function time(row) {
  if (row.seconds === null) return row.unmeasured_tokens ? "not known yet" : signedDuration(null);
  const [least, most] = [signedDuration(row.least_seconds), signedDuration(row.most_seconds)];
  return least === most ? signedDuration(row.seconds) : `${signedDuration(row.seconds)} (${least} to ${most})`;
}

/** What the provider charged; without models that have no price. */
function spent(row) {
  return money(row.spent) + (row.spent !== null && row.unpriced_requests ? " (priced)" : "");
}

/** What the sum of the provider's charges is, where the figure alone must be short. */
export const spentNote = (row) => (row.unpriced_requests ? "models with a price" : row.unreported_requests ? "of reported tokens" : row.estimated_requests ? "in part estimated" : "since the journal began");

/** The money; it may be a bound, or leave out models without a price. */
function price(row) {
  if (row.money === null) return money(null);
  return (row.uncertain_tokens && !row.unreported_hits ? "at most " : "") + money(row.money) + (hasUnpriced(row) ? " (priced)" : "");
}

/** What the money of a row is, where the figure alone must be short. */
export const priceNote = (row) => (row.unreported_hits ? "of reported tokens, " : "") + (row.uncertain_tokens && !row.unreported_hits ? "at most, " : "") + (hasUnpriced(row) ? "models with a price" : "at model prices");

/** Say which saved tokens are counted. */
export const tokensNote = (row) => (row.unreported_hits ? "by hits with reported tokens" : "by hits, since the journal began");

const hasUnpriced = (row) => row.unpriced_hits || row.unpriced_reused_tokens;

/** A section that is kept up to date; `onTotal` gets the sum. */
export function savings(api, signal, onTotal) {
  const place = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Savings" });
  const note = h("p", { class: "note" });
  let by = "layer";
  let rows = [];

  const load = async () => {
    const asked = by;
    const found = await api.get("savings", { by: asked }, signal);
    if (asked !== by) return;
    if (found.total !== null) onTotal(found.total, found.currency);
    const name = (row) => (by === "layer" ? h("span", { class: "layer" }, mark(groupOf(row.name)), row.name) : by === "tenant" ? tenantName(row.name) : row.name);
    rows = found.rows;
    const shown = rows.slice(0, MOST).map((row) => [name(row), ...cells(row)]);
    // A request with two tags is counted under both: there is no sum of tags.
    if (found.total !== null && shown.length > 1) shown.push(["all", ...cells(found.total)]);
    fill(place, shown.length ? table("What the caches saved", [[by, ""], ...COLUMNS, [`spent ${found.currency}`, "number"], [`saved ${found.currency}`, "number"], [`at least ${found.currency}`, "number"]], shown) : h("p", {}, "No request yet."));
    note.textContent = sentences(found).join(" ");
  };

  const pick = choice("by", BY, by, (value) => {
    by = value;
    load().catch(() => {});
  });
  api.poll(load, 5, signal);
  return section("Savings since the journal began", h("div", { class: "actions" }, pick, h("span", { class: "grow" }), csvButton("savings", () => rows)), place, note);
}

function sentences(found) {
  const said = [];
  if (found.rows.length > MOST) said.push(`The first ${MOST} of ${count(found.rows.length)} are shown.`);
  const isUnpriced = (row) => row.unpriced_requests || hasUnpriced(row);
  if (found.rows.every((row) => row.money === null) && found.rows.some(isUnpriced)) {
    said.push('No price is known: give some in kvproxy.toml, under [journal.prices."MODEL"].');
  } else if (found.rows.some(hasUnpriced)) {
    said.push("The money leaves out hits and reused tokens of models without a price.");
  }
  if (found.refused) said.push(`${count(found.refused)} refused requests are not counted.`);
  const unreported = found.rows.reduce((sum, row) => sum + row.unreported_hits, 0);
  if (unreported) said.push(`${count(unreported)} hits without reported tokens: tokens and money do not include them.`);
  if (found.rows.some((row) => row.uncertain_tokens && !row.unreported_hits)) {
    said.push("At most: the share of cached tokens is not reported, or the model has no price of cached tokens.");
  }
  if (found.semantic && found.wrong === null) said.push("No semantic hit was compared with a fresh response yet.");
  if (found.semantic && found.wrong !== null) said.push(found.wrong.sentence);
  return said;
}
