// One similar match: both questions side by side, how near they are, what was decided, and what a person can say of it.

import { button, fill, h, sentenceNodes } from "./dom.js";
import { marked } from "./diff.js";
import { decimal } from "./format.js";
import { reason, reasonSentences } from "./layers.js";

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
  const why = h("p", { class: "note why" });
  reasonSentences(api).then((known) => { fill(why, sentenceNodes(known?.[record.reason] ?? "")); });
  const [asked, stored] = record.question && record.stored_question ? marked(record.question, record.stored_question) : [record.question, record.stored_question];
  let sure = false;
  const remove = button("Remove", () => {
    if (!sure) {
      sure = true;
      remove.textContent = "Really remove?";
      setTimeout(() => { sure = false; remove.textContent = "Remove"; }, 4000);
      return;
    }
    ask(() => api.delete(path), "Removed: the stored response is gone.");
  });
  return h("div", { class: "match", "data-number": String(record.number) },
    h("div", { class: "pair" },
      question("Asked", asked, "Its text was not kept: set journal.text in kvproxy.toml."),
      question("Stored", stored, "It is no longer stored.")),
    why,
    h("div", { class: "foot" }, h("dl", { class: "scores" },
      figure("similarity", decimal(record.similarity), "Cosine of the two questions' embeddings"), figure("score", decimal(record.score), "The verifier's probability that one answer serves both"),
      figure("expected error", decimal(record.error), "The policy's estimate of the probability of a wrong answer"), figure("guard", record.guard ?? "–", "The rule that found a difference in meaning"),
      figure("changed", record.changed ?? "–", "Regions that differ from an earlier request with the same question"),
      figure("decision", record.reason === SERVED ? "served" : reason(record.reason))),
    h("div", { class: "actions", role: "group", "aria-label": "The stored response" },
      button("Reject", judge(false), { "data-tip": "Serve it for no similar question any more" }),
      button("Approve", judge(true), { "data-tip": "Undo a rejection; the policy learns that it was right" }),
      button("Pin", () => ask(() => api.post(`${path}/pin`), "Pinned: others make room before it."), { "data-tip": "Keep it when the store is full" }),
      remove, said)));
}

function question(title, text, otherwise) {
  return h("div", {}, h("p", { class: "label" }, title), text ? h("p", { class: "said" }, text) : h("p", { class: "note" }, otherwise));
}

function figure(name, value, tip = null) {
  return value === "–" ? null : h("div", {}, h("dt", { "data-tip": tip }, name), h("dd", {}, value));
}
