// The two dialogs: the keys, and the token.

import { button, h } from "./dom.js";

const KEYS = [
  ["1 … 7", "Overview, Journal, Pool, Matches, Stored, Upstreams, Sessions"],
  ["/", "go to the filter"],
  ["p", "pause or go on, in the journal"],
  ["↑ ↓ Page Home End", "move in a list, the tree or the map"],
  ["← →", "fold and unfold in the tree; move in the map and in charts"],
  ["Shift ← →, Enter", "select a time in a chart, and zoom into it"],
  ["Enter", "open what is chosen"],
  ["Esc", "close what is open beside the list; leave a zoomed time"],
  ["t", "change the theme"],
  ["?", "these keys"],
];

function dialog(title, ...children) {
  const node = h("dialog", { "aria-label": title }, h("h2", {}, title), ...children);
  node.addEventListener("close", () => node.remove());
  document.body.append(node);
  node.showModal();
  return node;
}

/** List the keys. */
export function showKeys() {
  const rows = KEYS.map(([keys, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, what)));
  const node = dialog("Keys", h("table", { class: "keys" }, h("tbody", {}, rows)), button("Close", () => node.close()));
}

/** Ask for the admin token; this tab alone keeps it, until it is closed. */
export function askToken(api, reason, done) {
  if (document.querySelector("dialog")) return;
  const input = h("input", { type: "password", autocomplete: "off", value: api.token, "aria-label": "Admin token" });
  const take = (event) => {
    event.preventDefault();
    api.token = input.value.trim();
    node.close();
    done();
  };
  const node = dialog("Admin token",
    reason ? h("p", { class: "note" }, reason) : null,
    h("p", {}, "The setting admin_token of the proxy. This tab keeps it until it is closed, and sends it to the admin routes only."),
    h("form", { onsubmit: take }, input, h("button", { type: "submit", class: "main" }, "Use"),
      button("Cancel", () => node.close())));
}
