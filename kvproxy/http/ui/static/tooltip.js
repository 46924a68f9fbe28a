// Explanations of nodes with `data-tip`, and of reasons (`data-reason`), while they are pointed at or have the focus.

import { fill, h, sentenceNodes } from "./dom.js";
import { reasonSentences } from "./layers.js";

/** Show them on the whole page. */
export function tooltips(api) {
  const tip = document.body.appendChild(h("div", { role: "tooltip", id: "tip", hidden: true }));
  let shown = null;

  const hide = () => {
    shown?.removeAttribute("aria-describedby");
    shown = null;
    tip.hidden = true;
  };

  async function sentence(reason) {
    const known = await reasonSentences(api);
    return known?.[reason] ?? (reason.startsWith("prefix-") ? known?.["prefix-N%"].replace("N percent", reason.slice(7)) : null);
  }

  async function show({ target }) {
    const node = target.closest?.("[data-tip], [data-reason]");
    if (node === shown) return;
    hide();
    if (!node) return;
    shown = node;
    const text = node.dataset.tip ?? await sentence(node.dataset.reason);
    if (shown !== node || !node.isConnected || !text) return;
    fill(tip, sentenceNodes(text));
    tip.hidden = false;
    node.setAttribute("aria-describedby", "tip");
    const [at, size] = [node.getBoundingClientRect(), tip.getBoundingClientRect()];
    const above = at.bottom + size.height + 8 > innerHeight;
    tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - size.width - 8))}px`;
    tip.style.top = `${above ? at.top - size.height - 6 : at.bottom + 6}px`;
  }

  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape") hide(); });
}
