// What to do with a proxy that has answered no request yet.

import { button, fill, h, section } from "./dom.js";

const LOOK = 3000; // Milliseconds.

/** Show a request to copy, until the journal has one. */
export async function firstRequest(node, api, signal) {
  const newest = () => api.get("log", { limit: 1 }, signal).then((rows) => rows.length > 0);
  if (await newest().catch(() => true)) return;
  const [model, key] = await firstModel();
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "What is a block?" }] });
  const command = `curl -i ${new URL("../v1/chat/completions", document.baseURI)}${key} -d '${body}'`;
  const said = h("span", { class: "note", role: "status" });
  const copy = button("Copy", () => navigator.clipboard.writeText(command).then(() => { said.textContent = "Copied."; }, () => { said.textContent = "Select the text to copy it."; }), { class: "main" });
  fill(node, section("No request yet", h("p", {}, "Send one twice: the second response comes from the cache, and this page shows both."),
    h("pre", { tabindex: 0, "data-figure": "curl" }, command), h("div", { class: "actions" }, copy, said)));
  while (!signal.aborted && !(await newest().catch(() => false))) await new Promise((done) => setTimeout(done, LOOK));
  fill(node);
}

/** The first model that the proxy lists, and the header that clients need. */
async function firstModel() {
  const response = await fetch(new URL("../v1/models", document.baseURI)).catch(() => null);
  const models = response?.ok ? await response.json().catch(() => null) : null;
  return [models?.data?.[0]?.id ?? "MODEL", response?.status === 401 ? ' -H "Authorization: Bearer $KEY"' : ""];
}
