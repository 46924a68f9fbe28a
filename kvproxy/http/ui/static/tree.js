// The cached chains as a tree: each line is a run of blocks, and unfolds into the ways on from there.

import { button, h } from "./dom.js";
import { count, line } from "./format.js";

const PAGE = 50;

/** A tree whose branches are fetched when they are unfolded. `onChoose(branch)` is called with a chosen one. */
export class ChainTree {
  #current = null;

  constructor(api, signal, onChoose) {
    Object.assign(this, { api, signal, onChoose });
    this.node = h("div", { class: "tree", role: "tree", "aria-label": "Cached chains", tabindex: 0 });
    this.node.addEventListener("keydown", (event) => this.#key(event));
    this.node.addEventListener("focus", () => { if (this.#current === null) this.#move(this.#items()[0]); });
  }

  /** Fetch the beginnings of all chains anew. */
  async load() {
    const group = h("div", { role: "none" });
    await this.#fetch(group, null, 1, 0);
    this.node.replaceChildren(group);
    this.#current = null;
    if (!group.children.length) this.node.append(h("div", { role: "treeitem", class: "note" }, "No chain is cached."));
  }

  async #fetch(group, parent, level, offset) {
    const { rows, total } = await this.api.page("blocks/tree", { parent, offset, limit: PAGE }, this.signal);
    for (const branch of rows) group.append(this.#item(branch, level));
    const left = total - offset - rows.length;
    if (left > 0 && rows.length) {
      const more = button(`${count(left)} more`, async () => {
        await this.#fetch(group, parent, level, offset + rows.length);
        more.parentNode.remove();
      }, { tabindex: -1 });
      group.append(h("div", { role: "treeitem", "aria-level": level, "aria-selected": "false" }, more));
    }
  }

  #item(branch, level) {
    const label = h("div", { class: "branch" },
      h("span", { class: "fold", "aria-hidden": "true" }, branch.below ? "▸" : "•"),
      h("span", { class: "text" }, branch.text === null ? "unknown text" : line(branch.text) || "…"),
      h("span", { class: "number" }, `${count(branch.blocks)} ${branch.blocks === 1 ? "block" : "blocks"}`),
      h("span", { class: "number quiet" }, branch.below ? `${count(branch.below)} more on ${count(branch.leaves)} ways` : ""),
      h("span", { class: "number quiet" }, branch.in_use ? `${count(branch.in_use)} in use` : ""));
    label.style.setProperty("--level", level - 1);
    const item = h("div", {
      role: "treeitem", "aria-level": level, "aria-selected": "false", "aria-expanded": branch.below ? "false" : null,
    }, label);
    item.branch = branch;
    item.level = level;
    label.addEventListener("click", () => { this.#move(item); this.#choose(item); this.#fold(item); });
    return item;
  }

  #items() {
    return [...this.node.querySelectorAll("[role=treeitem]")].filter((item) => item.offsetParent !== null);
  }

  #move(item) {
    if (!item) return;
    this.#current?.setAttribute("aria-selected", "false");
    this.#current = item;
    item.setAttribute("aria-selected", "true");
    item.id ||= `branch-${Math.random().toString(36).slice(2)}`;
    this.node.setAttribute("aria-activedescendant", item.id);
    (item.firstChild ?? item).scrollIntoView?.({ block: "nearest" });
  }

  #choose(item) {
    if (item.branch) this.onChoose(item.branch);
  }

  async #fold(item, open = item.getAttribute("aria-expanded") === "false") {
    if (!item.branch?.below) return;
    item.setAttribute("aria-expanded", String(open));
    item.querySelector(".fold").textContent = open ? "▾" : "▸";
    let group = item.querySelector(":scope > [role=group]");
    if (open && group === null) {
      group = item.appendChild(h("div", { role: "group" }));
      await this.#fetch(group, item.branch.end, item.level + 1, 0).catch(() => group.remove());
    }
    if (group) group.hidden = !open;
  }

  #key(event) {
    const items = this.#items();
    const place = items.indexOf(this.#current);
    const item = this.#current;
    const expanded = item?.getAttribute("aria-expanded");
    if (event.key === "ArrowDown") this.#move(items[place + 1]);
    else if (event.key === "ArrowUp") this.#move(items[place - 1]);
    else if (event.key === "Home") this.#move(items[0]);
    else if (event.key === "End") this.#move(items.at(-1));
    else if (event.key === "ArrowRight" && expanded === "false") this.#fold(item, true);
    else if (event.key === "ArrowRight" && expanded === "true") this.#move(items[place + 1]);
    else if (event.key === "ArrowLeft" && expanded === "true") this.#fold(item, false);
    else if (event.key === "ArrowLeft") this.#move(item?.parentNode.closest("[role=treeitem]"));
    else if (event.key === "Enter" && item?.branch) this.#choose(item);
    else if (event.key === "Enter") item?.querySelector("button")?.click();
    else return;
    event.preventDefault();
  }
}
