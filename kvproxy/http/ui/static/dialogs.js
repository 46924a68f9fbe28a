// The two dialogs: the keyboard shortcuts, and the token.

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
  ["?", "these shortcuts"],
];

function dialog(title, ...children) {
  const node = h("dialog", { "aria-label": title }, h("h2", {}, title), ...children);
  node.addEventListener("close", () => node.remove());
  document.body.append(node);
  node.showModal();
  return node;
}

/** List the keyboard shortcuts. */
export function showShortcuts() {
  const rows = KEYS.map(([keys, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, what)));
  const node = dialog("Keyboard shortcuts", h("table", { class: "keys" }, h("tbody", {}, rows)), button("Close", () => node.close()));
}

/** Ask for the admin token, which begins a session of this tab. */
export function askToken(api, reason, done) {
  if (document.querySelector("dialog")) return;
  const input = h("input", { type: "password", autocomplete: "off", "aria-label": "Admin token" });
  const note = h("p", { class: "note", hidden: !reason }, reason);
  const take = async (event) => {
    event.preventDefault();
    try {
      await api.signIn(input.value.trim());
    } catch (error) {
      note.textContent = error.message;
      note.hidden = false;
      return;
    }
    node.close();
    done();
  };
  const node = dialog("Admin token",
    note,
    h("p", {}, "The setting admin_token of the proxy. The browser does not store it: a session of this tab replaces it, for 12 hours."),
    h("form", { onsubmit: take }, input, h("button", { type: "submit", class: "main" }, "Use"),
      button("Cancel", () => node.close())));
}
