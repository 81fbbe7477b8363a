// One tooltip for all charts.

import { h } from "../core/dom.js";

/** @type {HTMLElement | null} */
let shown = null;

/**
 * Shows lines beside a place, or hides the tooltip.
 * @param {string[] | null} lines the first is the title
 * @param {number} [x]
 * @param {number} [y]
 */
export function showTip(lines, x = 0, y = 0) {
  if (!lines || !lines.length) {
    if (shown) shown.hidden = true;
    return;
  }
  if (!shown) {
    shown = h("div.tip", { role: "presentation" });
    document.body.append(/** @type {HTMLElement} */ (shown));
  }
  const tip = /** @type {HTMLElement} */ (shown);
  tip.replaceChildren(...lines.map((line, i) => h(i ? "div" : "strong", null, line)));
  tip.hidden = false;
  const w = tip.offsetWidth, t = tip.offsetHeight;
  tip.style.setProperty("left", Math.max(4, Math.min(x + 14, innerWidth - w - 8)) + "px");
  tip.style.setProperty("top", (y + 18 + t > innerHeight - 4 ? Math.max(4, y - t - 10) : y + 18) + "px");
}
