// What to change first, so that backends reuse more of the prompts.

import { csvButton } from "./csv.js";
import { fill, h, section, table } from "./dom.js";
import { count, money } from "./format.js";

const DAYS = 7;
const MOST = 5;
const SECONDS = 60; // Between two calls: the server reads each turn of the period.

/** A section that is kept up to date, and is hidden while no request lost reuse. */
export function advice(api, signal) {
  const place = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "What to change first" });
  let rows = [];

  const load = async () => {
    const found = await api.get("savings/advice", { since: 86_400 * DAYS }, signal);
    rows = found.rows;
    panel.hidden = !rows.length;
    const columns = [["lost to", ""], ["reuse", ""], ["first change", ""], ["model", ""], ["turns", "number"], ["lost tokens", "number"], [`saves at most ${found.currency}`, "number"], ["remedy", ""]];
    fill(place, table("What to change first", columns, rows.slice(0, MOST).map((row) => [
      row.cause, row.reuse, row.place ?? "–", row.model, count(row.turns), count(row.tokens), money(row.saved), row.remedy,
    ])));
  };

  const panel = section(`What to change first, in the last ${DAYS} days`, h("div", { class: "actions" },
    h("a", { href: "#sessions" }, "Sessions"), h("span", { class: "grow" }), csvButton("advice", () => rows)), place);
  panel.hidden = true;
  api.poll(load, SECONDS, signal);
  return panel;
}
