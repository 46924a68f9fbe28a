// Who answers: the journal's layers in the order in which they are asked, with the colours that the page gives them.

import { h } from "./dom.js";

/** Groups of layers: `[name, what it means, its layers]`. */
export const GROUPS = [
  ["exact", "An equal request was stored.", ["exact"]],
  ["semantic", "The answer to a similar question was stored.", ["semantic"]],
  ["shared", "An identical request was under way.", ["shared"]],
  ["prefix", "The backend computed the answer, and reused a part of the prompt.", ["prefix"]],
  ["plugin", "A layer of a plugin answered.", ["plugin"]],
  ["forward", "The backend computed all of it.", ["forward", "bypass"]],
  ["refused", "Refused, or left by the client.", ["refused", "disconnected"]],
  ["error", "The proxy or the upstream failed.", ["error"]],
];
const GROUP_OF = new Map(GROUPS.flatMap(([name, , layers]) => layers.map((layer) => [layer, name])));

/** The group of a layer; one that this page does not know counts as computed by the backend. */
export const groupOf = (layer) => GROUP_OF.get(layer) ?? "forward";

// Revalidations and warming are in the journal, and are not requests of clients.
export const LAYERS = [...GROUP_OF.keys(), "revalidated", "warming"];

/** Layers that a cache answered. */
export const CACHED = ["exact", "semantic", "shared"];

/** The counts of a series by group, in the order of the groups: `[name, numbers]`. */
export function grouped(counts, spans) {
  const sums = new Map(GROUPS.map(([name]) => [name, new Array(spans).fill(0)]));
  for (const [layer, values] of Object.entries(counts)) {
    const sum = sums.get(groupOf(layer));
    values.forEach((value, place) => { sum[place] += value; });
  }
  return [...sums];
}

/** A mark in a group's colour, beside its name: colour alone says nothing to many. */
export function mark(group, dashed = false) {
  return h("span", { class: `mark of-${group}${dashed ? " dashed" : ""}`, "aria-hidden": "true" });
}

/** A reason; a tooltip explains it. */
export const reason = (token) => h("code", { "data-reason": token }, token);

let sentences = null;

/** The sentence of each reason. They come from the proxy, once. */
export function reasonSentences(api) {
  sentences ??= api.get("log/reasons").catch(() => { sentences = null; });
  return sentences;
}

/** A layer by its name, with its mark. */
export function layerName(layer) {
  return h("span", { class: "layer" }, mark(groupOf(layer)), layer);
}

let probe = null;

/** A colour of the style sheet as a canvas takes it, in the theme that holds now. */
export function colour(name) {
  probe ??= document.body.appendChild(h("span", { hidden: true }));
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
