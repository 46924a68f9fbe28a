// The servers behind the proxy: whether they are up, what they reuse, their mirrors and slots.

import { fill, h, section, table } from "./dom.js";
import { count, percent } from "./format.js";

const LOOK = 2; // Seconds.
const MOST = 200; // Slots and files that are shown.

/** The view. */
export function upstreams(root, params, { api, signal }) {
  const body = h("div", { class: "stack" });
  root.append(h("h1", { class: "unseen" }, "Upstreams"), body);
  const load = async () => {
    const [engines, stats] = await Promise.all([api.find("upstreams", {}, signal), api.find("blocks/stats", {}, signal)]);
    if (engines === null) {
      fill(body, h("p", { class: "note" }, "The embedded engine answers here: ", h("a", { href: "#pool" }, "Pool"), " shows its blocks."));
      return;
    }
    // A slot has a number, and a file lies on disk; a mirrored block has neither.
    const slots = stats?.slots ? (await api.get("blocks", {}, signal)).filter((block) => block.id !== null || block.medium === "disk") : [];
    const chains = stats?.slots ? await api.get("blocks/chains", {}, signal) : [];
    fill(body, serversOf(engines), notesOf(engines), adviceOf(engines), reuseOf(engines), mediaOf(engines), mirrorsOf(engines), slotsOf(slots, chains));
  };
  api.poll(load, LOOK, signal);
}

const rate = (figures) => (figures?.queries && figures.hits !== null ? percent(figures.hits / figures.queries) : "–");

function serversOf(engines) {
  const rows = engines.map((each) => [
    each.url, h("span", { class: "state", "data-state": each.state }, each.state), count(each.requests), count(each.load), count(each.sent), count(each.ejections),
    percent(each.metrics?.usage), count(each.metrics?.waiting), rate(each.metrics),
  ]);
  return section("Servers", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Servers" }, table("Servers", [
    ["upstream", ""], ["state", ""], ["running", "number"], ["tokens to do", "number"], ["sent", "number"], ["ejected", "number"],
    ["pool used", "number"], ["waiting", "number"], ["reused", "number"],
  ], rows)));
}

function mediaOf(engines) {
  const rows = engines.flatMap((each) => Object.entries(each.offloaded ?? {}).map(([medium, blocks]) => [
    each.url, medium, count(blocks), count(each.loaded?.[medium] ?? 0), each.load_costs?.[medium]?.toFixed(2) ?? "–",
  ]));
  return rows.length ? section("Blocks outside of the GPU", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Media" }, table("Media", [
    ["upstream", ""], ["medium", ""], ["blocks", "number"], ["tokens loaded", "number"], ["load time / prefill time", "number"],
  ], rows))) : null;
}

function notesOf(engines) {
  const notes = engines.flatMap((each) => [each.error, ...each.notes].filter(Boolean).map((note) => `${each.url}: ${note}`));
  return notes.length ? section("Problems", h("ul", {}, notes.map((note) => h("li", {}, note)))) : null;
}

function adviceOf(engines) {
  const advice = engines.flatMap((each) => each.advice.map((line) => `${each.url}: ${line}`));
  return advice.length ? section("Advice", h("ul", {}, advice.map((line) => h("li", {}, line)))) : null;
}

function reuseOf(engines) {
  const rows = engines.flatMap((each) => Object.entries(each.reuse).map(([model, reuse]) => [
    each.url, model, count(reuse.prompt_tokens), count(reuse.cached_tokens), reuse.prompt_tokens ? percent(reuse.cached_tokens / reuse.prompt_tokens) : "–",
    count(reuse.predictions), count(reuse.exact), count(reuse.too_high), count(reuse.too_low),
  ]));
  return rows.length ? section("Reuse, as the servers report it", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Reuse" }, table("Reuse", [
    ["upstream", ""], ["model", ""], ["prompt tokens", "number"], ["reused", "number"], ["share", "number"], ["predicted", "number"],
    ["exact", "number"], ["too high", "number"], ["too low", "number"],
  ], rows))) : null;
}

function mirrorsOf(engines) {
  const rows = engines.flatMap((each) => each.streams.map((stream) => [
    each.url, stream.endpoint, stream.connected ? "following" : "not connected", stream.complete ? "complete" : "incomplete",
    count(stream.batches), count(each.cached_blocks),
  ]));
  return rows.length ? section("Mirrors", table("Mirrors", [
    ["upstream", ""], ["events", ""], ["stream", ""], ["known", ""], ["batches", "number"], ["cached blocks", "number"],
  ], rows)) : null;
}

function slotsOf(slots, chains) {
  if (!slots.length) return null;
  const begins = new Map(chains.map((chain) => [chain.leaf, chain.first_text]));
  const rows = slots.slice(0, MOST).map((slot) => [
    slot.medium, slot.state, count(slot.num_tokens), slot.hash?.slice(0, 12), slot.engine, h("span", { class: "clip" }, begins.get(slot.hash) ?? "–"),
  ]);
  return section("Slots and files", table("Slots and files",
    [["in", ""], ["state", ""], ["tokens", "number"], ["hash", "code"], ["engine", ""], ["begins", ""]], rows),
  slots.length > MOST ? h("p", { class: "note" }, `The first ${MOST} of ${count(slots.length)}.`) : null);
}
