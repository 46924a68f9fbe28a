// The servers behind the proxy: whether they are up, what they reuse, their mirrors and slots.

import { button, fill, h, section, sentenceNodes, table } from "./dom.js";
import { count, percent } from "./format.js";

const LOOK = 2; // Seconds.
const MOST = 200; // Slots and files that are shown.
const DRAINING = "draining";

/** The view. */
export function upstreams(root, params, { api, signal }) {
  const body = h("div", { class: "stack" });
  root.append(h("h1", { class: "unseen" }, "Upstreams"), body);
  const said = h("p", { class: "note", role: "status", hidden: true });
  let drawn = "";
  const drain = async (engine) => {
    const verb = engine.state === DRAINING ? "undrain" : "drain";
    said.hidden = false;
    try {
      await api.post(`upstreams/${verb}?name=${encodeURIComponent(engine.url)}`);
      said.textContent = verb === "drain" ? `${engine.url} finishes its requests, and gets no new ones.` : `${engine.url} gets requests again.`;
    } catch (error) {
      said.textContent = error.message;
    }
    await load().catch(() => {});
  };
  const load = async () => {
    const [engines, stats] = await Promise.all([api.find("upstreams", {}, signal), api.find("blocks/stats", {}, signal)]);
    if (engines === null) {
      fill(body, h("p", { class: "note" }, "The embedded engine answers here: ", h("a", { href: "#pool" }, "Pool"), " shows its blocks."));
      return;
    }
    // A slot has a number, and a file lies on disk; a mirrored block has neither.
    const slots = stats?.slots ? (await api.get("blocks", {}, signal)).filter((block) => block.id !== null || block.medium === "disk") : [];
    const chains = stats?.slots ? await api.get("blocks/chains", {}, signal) : [];
    // New nodes would take the focus from the old ones.
    const state = JSON.stringify([engines, slots, chains]);
    if (state === drawn) return;
    drawn = state;
    const focused = document.activeElement?.dataset.drain;
    fill(body, serversOf(engines, drain), said, notesOf(engines), adviceOf(engines), reuseOf(engines), mediaOf(engines), mirrorsOf(engines), slotsOf(slots, chains));
    if (focused) [...body.querySelectorAll("[data-drain]")].find((each) => each.dataset.drain === focused)?.focus();
  };
  api.poll(load, LOOK, signal);
}

function serversOf(engines, drain) {
  const any = (has) => engines.some(has);
  const columns = [
    any((each) => each.models.length) && ["models", "", (each) => each.models.join(", ") || "all others"],
    ["running", "number", (each) => count(each.requests)], ["tokens to do", "number", (each) => count(each.load)],
    ["sent", "number", (each) => count(each.sent)], ["failed", "number", failedOf], ["retried", "number", (each) => count(each.retried)],
    ["ejected", "number", (each) => count(each.ejections)],
    any((each) => each.metrics) && ["pool used", "number", (each) => percent(each.metrics?.usage)],
    any((each) => each.metrics) && ["waiting", "number", (each) => count(each.metrics?.waiting)],
  ].filter(Boolean);
  const rows = engines.map((each) => [
    each.url, h("span", { class: "state", "data-state": each.state }, each.state),
    button(each.state === DRAINING ? "Undrain" : "Drain", () => drain(each), {
      "data-drain": each.url, "aria-label": `${each.state === DRAINING ? "Undrain" : "Drain"} ${each.url}`,
      "data-tip": each.state === DRAINING ? "Send requests to it again" : "It finishes its requests, and gets no new ones",
    }),
    ...columns.map(([, , cell]) => cell(each)),
  ]);
  return section("Servers", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Servers" }, table("Servers", [
    ["upstream", ""], ["state", ""], ["drain", ""], ...columns.map(([title, kind]) => [title, kind]),
  ], rows)));
}

/** Requests that failed at an upstream; the journal has those that ended with an error, although another upstream was tried. */
function failedOf({ errors }) {
  return errors ? h("a", { href: "#journal?reason=error", "data-tip": "No connection or response, a status of 500 or above, or a broken response; the journal has the requests that ended so" }, count(errors)) : "0";
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
  return notes.length ? section("Problems", h("ul", {}, notes.map((note) => h("li", {}, sentenceNodes(note))))) : null;
}

function adviceOf(engines) {
  const advice = engines.flatMap((each) => each.advice.map((line) => `${each.url}: ${line}`));
  return advice.length ? section("Advice", h("ul", {}, advice.map((line) => h("li", {}, sentenceNodes(line))))) : null;
}

/** Reuse in the responses to this proxy; the server's own counter, which other clients share, only without them. */
function reuseOf(engines) {
  const rows = engines.flatMap((each) => reuseRows(each));
  const fromMedia = Object.entries(engines.reduce((sums, each) => {
    for (const [medium, tokens] of Object.entries(each.loaded ?? {})) sums[medium] = (sums[medium] ?? 0) + tokens;
    return sums;
  }, {})).map(([medium, tokens]) => `${count(tokens)} from ${medium}`).join(", ");
  return rows.length ? section("Prefix reuse", h("p", { class: "note" },
    "Reused: prompt tokens that the server found in its prefix cache, of all prompt tokens of this proxy's requests since its start, as the responses report them."
    + (fromMedia ? ` Of the predicted reuse, the servers loaded tokens from slower media: ${fromMedia}.` : "")),
  h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Reuse" }, table("Reuse", [
    ["upstream", ""], ["model", ""], ["prompt tokens", "number"], ["reused", "number"], ["share", "number"], ["predicted", "number"],
    ["exact", "number"], ["too high", "number"], ["too low", "number"],
  ], rows))) : null;
}

function reuseRows(each) {
  const reported = Object.entries(each.reuse).filter(([, reuse]) => reuse.prompt_tokens);
  if (!reported.length && each.metrics?.queries && each.metrics.hits !== null) {
    const { queries, hits } = each.metrics;
    return [[each.url, "all clients, since the server's start", count(queries), count(hits), percent(hits / queries), "–", "–", "–", "–"]];
  }
  return reported.map(([model, reuse]) => [
    each.url, model, count(reuse.prompt_tokens), count(reuse.cached_tokens), percent(reuse.cached_tokens / reuse.prompt_tokens),
    count(reuse.predictions), count(reuse.exact), count(reuse.too_high), count(reuse.too_low),
  ]);
}

function mirrorsOf(engines) {
  const rows = engines.flatMap((each) => each.streams.map((stream) => [
    each.url, stream.endpoint, stream.connected ? "following" : "not connected", !stream.connected ? "–" : stream.complete ? "complete" : "incomplete",
    count(stream.batches), count(each.cached_blocks),
  ]));
  return rows.length ? section("Mirrors", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Mirrors" }, table("Mirrors", [
    ["upstream", ""], ["events", ""], ["stream", ""], ["known", ""], ["batches", "number"], ["cached blocks", "number"],
  ], rows))) : null;
}

function slotsOf(slots, chains) {
  if (!slots.length) return null;
  const begins = new Map(chains.map((chain) => [chain.leaf, chain.first_text]));
  const rows = slots.slice(0, MOST).map((slot) => [
    slot.medium, slot.state, count(slot.num_tokens), slot.hash?.slice(0, 12), slot.engine, h("span", { class: "clip" }, begins.has(slot.hash) ? begins.get(slot.hash) ?? "unknown" : "–"),
  ]);
  return section("Slots and files", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Slots and files" }, table("Slots and files",
    [["in", ""], ["state", ""], ["tokens", "number"], ["hash", "code"], ["engine", ""], ["begins", ""]], rows)),
  slots.length > MOST ? h("p", { class: "note" }, `The first ${MOST} of ${count(slots.length)}.`) : null);
}
