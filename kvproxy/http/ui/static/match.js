// One similar match: both questions side by side, how near they are, what was decided, and what a person can say of it.

import { button, h } from "./dom.js";
import { decimal } from "./format.js";

const SERVED = "hit-semantic";

/** A match of a record with both its questions. */
export function match(record, api) {
  const said = h("span", { class: "note", role: "status" });
  const path = `cache/${encodeURIComponent(record.near)}`;
  const ask = async (work, sentence) => {
    said.textContent = "…";
    try {
      await work();
      said.textContent = sentence;
    } catch (error) {
      said.textContent = error.message;
    }
  };
  const judge = (right) => () => ask(
    () => api.post(`${path}/feedback`, record.question ? { right, question: record.question } : { right }),
    right ? "Approved." : "Rejected: it is served for equal requests only.");
  let sure = false;
  const drop = button("Drop", () => {
    if (!sure) {
      sure = true;
      drop.textContent = "Really drop?";
      setTimeout(() => { sure = false; drop.textContent = "Drop"; }, 4000);
      return;
    }
    ask(() => api.delete(path), "Dropped: the stored response is gone.");
  });
  return h("div", { class: "match", "data-number": String(record.number) },
    h("div", { class: "pair" },
      question("Asked", record.question, "Its text was not kept: set journal.text in kvproxy.toml."),
      question("Stored", record.stored_question, "It is no longer stored.")),
    h("div", { class: "foot" }, h("dl", { class: "scores" },
      figure("similarity", decimal(record.similarity)), figure("score", decimal(record.score)),
      figure("expected error", decimal(record.error)), figure("guard", record.guard ?? "–"),
      figure("decision", record.reason === SERVED ? "served" : record.reason)),
    h("div", { class: "actions", role: "group", "aria-label": "The stored response" },
      button("Reject", judge(false), { title: "Serve it for no similar question any more" }),
      button("Approve", judge(true), { title: "Undo a rejection; the policy learns that it was right" }),
      button("Pin", () => ask(() => api.post(`${path}/pin`), "Pinned: others make room before it."), { title: "Keep it when the store is full" }),
      drop, said)));
}

function question(title, text, otherwise) {
  return h("div", {}, h("p", { class: "label" }, title), text ? h("p", { class: "said" }, text) : h("p", { class: "note" }, otherwise));
}

function figure(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}
