// The page: its views, how one gets from one to another, and whether the proxy answers.

import { Api, sleep } from "./api.js";
import { askToken, showShortcuts } from "./dialogs.js";
import { fill, h, sentenceNodes } from "./dom.js";
import { journal } from "./journal.js";
import { clientKeys } from "./keys.js";
import { matches } from "./matches.js";
import { overview } from "./overview.js";
import { pool } from "./pool.js";
import { sessions } from "./sessions.js";
import { stored } from "./stored.js";
import { themeSwitch } from "./theme.js";
import { tooltips } from "./tooltip.js";
import { upstreams } from "./upstreams.js";

const VIEWS = [
  ["overview", "Overview", overview], ["journal", "Journal", journal], ["pool", "Pool", pool],
  ["matches", "Matches", matches], ["stored", "Stored", stored], ["upstreams", "Upstreams", upstreams],
  ["sessions", "Sessions", sessions], ["keys", "Keys", clientKeys],
];
const BACK = 4000; // Milliseconds that the page says that the proxy is back.

const HEALTH = 2000; // Milliseconds between two looks at the proxy's health.

const api = new Api();
const main = document.getElementById("main");
const nav = document.getElementById("nav");
const banner = document.getElementById("banner");
const connection = document.getElementById("connection");
let leaving = null;
let shown = null;
let keys = {};
let hash = null;
let outage = null;

for (const [name, title] of VIEWS) nav.append(h("a", { href: `#${name}`, "data-view": name }, title));

/** Show the view that the address names. */
function show(focus = false) {
  if (location.hash === hash) return;
  hash = location.hash;
  const [name, query] = hash.slice(1).split("?");
  const [found, title, view] = VIEWS.find(([each]) => each === name) ?? VIEWS[0];
  leaving?.abort();
  leaving = new AbortController();
  shown = found;
  main.replaceChildren();
  main.dataset.view = found;
  for (const link of nav.children) {
    if (link.dataset.view === found) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} – kvproxy`;
  keys = view(main, new URLSearchParams(query ?? ""), { api, signal: leaving.signal, remember }) ?? {};
  if (focus) main.focus({ preventScroll: true });
}

/** Keep in the address what a view shows, so that it can be opened again. */
function remember(params) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value)).toString();
  hash = query ? `#${shown}?${query}` : `#${shown}`;
  history.replaceState(null, "", hash);
}

function again() {
  hash = null;
  show();
}

function tellState(before) {
  const down = api.state === "ok" && outage !== null;
  connection.dataset.state = down ? "down" : api.state;
  connection.textContent = down ? "Degraded" : { ok: "Connected", lost: "Not connected", closed: "Token needed" }[api.state];
  if (down) {
    fill(banner, sentenceNodes(outage));
    banner.dataset.state = "down";
    banner.hidden = false;
    return;
  }
  if (api.state === "lost") banner.textContent = "The proxy does not answer. This page tries again every second.";
  else if (api.state === "closed") banner.textContent = api.reason;
  else if (before === "lost") banner.textContent = "The proxy answers again.";
  banner.dataset.state = api.state;
  banner.hidden = api.state === "ok" && before !== "lost";
  if (api.state === "ok" && before === "lost") setTimeout(() => { if (api.state === "ok") banner.hidden = true; }, BACK);
  if (api.state === "closed") askToken(api, api.reason, again);
}

/** A sentence about what fails now; null if all works. */
function problem(health, engines) {
  if (health.error) return `The engine failed: ${health.error}`;
  const broken = (engines ?? []).filter((each) => each.error !== null);
  const why = broken.map((each) => (each.error.includes(each.url) ? each.error : `${each.url}: ${each.error}`)).join("; ");
  if (broken.length && broken.length === engines.length) return `No upstream answers, so only stored responses are served: ${why}`;
  if (broken.length) return `${broken.length} of ${engines.length} upstreams fail: ${why}`;
  if (health.store) return `The store fails, so nothing is cached: ${health.store}`;
  if (health.journal_error) return `The journal fails, so this page misses requests: ${health.journal_error}`;
  const tier = Object.entries(health.tiers ?? {})[0];
  return tier ? `The tier ${tier[0]} fails, so it keeps no chunks: ${tier[1]}` : null;
}

/** Follow the health of the proxy and its upstreams, and hide views without content, whatever view is open. */
async function watchHealth() {
  let pool = null;
  for (;;) {
    try {
      const [health, engines] = await Promise.all([api.health(), api.find("upstreams")]);
      pool ??= await api.find("blocks/stats");
      const empty = { pool: pool === null, upstreams: engines === null, matches: health.semantic === false };
      for (const link of nav.children) link.hidden = Boolean(empty[link.dataset.view]) && link.dataset.view !== shown;
      const found = problem(health, engines);
      if (found !== outage) {
        outage = found;
        tellState(api.state);
      }
    } catch {
      // The state of the connection is shown already.
    }
    await sleep(HEALTH);
  }
}

const typing = (target) => target.matches("input, select, textarea");

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
  if (event.key === "Escape" && !typing(event.target)) keys.escape?.();
  if (typing(event.target)) return;
  const number = Number(event.key) - 1;
  if (VIEWS[number]) location.hash = `#${VIEWS[number][0]}`;
  else if (event.key === "/") (main.querySelector(".first") ?? main.querySelector("select"))?.focus();
  else if (event.key === "p" && keys.pause) keys.pause();
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") showShortcuts();
  else return;
  event.preventDefault();
}

const nextTheme = themeSwitch(document.getElementById("theme"));
document.getElementById("help").addEventListener("click", showShortcuts);
document.getElementById("token").addEventListener("click", () => askToken(api, "", again));
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("keydown", key);
tooltips(api);
addEventListener("hashchange", () => show(true));
api.addEventListener("state", (event) => tellState(event.detail.before));
tellState("ok");
show();
watchHealth();
