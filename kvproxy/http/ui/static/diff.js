// The words in which two texts differ.

import { h } from "./dom.js";

const MOST = 400; // Words of a text; longer ones are not compared.
const words = (text) => text.match(/[\p{L}\p{N}]+|\s+|[^\p{L}\p{N}\s]/gu) ?? [];

/** Both texts as nodes, with a mark on each word that the other one lacks. */
export function marked(left, right) {
  const [a, b] = [words(left), words(right)];
  if (a.length > MOST || b.length > MOST) return [[left], [right]];
  const same = (i, j) => a[i].toLowerCase() === b[j].toLowerCase();
  // The length of the longest common subsequence of the rests that begin at i and j.
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) common[i][j] = same(i, j) ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  }
  const [inA, inB] = [new Set(), new Set()];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (same(i, j)) {
      inA.add(i);
      inB.add(j);
      i += 1;
      j += 1;
    } else if (common[i + 1][j] >= common[i][j + 1]) i += 1;
    else j += 1;
  }
  const nodes = (all, known) => all.map((word, place) => (known.has(place) || !word.trim() ? word : h("mark", {}, word)));
  return [nodes(a, inA), nodes(b, inB)];
}
