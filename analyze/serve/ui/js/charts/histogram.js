// Bars with labels: elements, so that they can be read and selected without a table twin.

import { h } from "../core/dom.js";

/**
 * @typedef {{label: string, value: number, text: string, title?: string, part?: number, href?: string}} Bar
 */

/**
 * Makes a histogram of horizontal bars.
 * @param {Bar[]} bars `part` is a second, darker portion of the value
 * @param {{caption: string, heads: [string, string]}} options
 */
export function histogram(bars, { caption, heads }) {
  const most = Math.max(1, ...bars.map((b) => b.value));
  return h("table.histogram", null,
    h("caption.sr-only", null, caption),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, heads[0]), h("th", { scope: "col", "aria-hidden": true }), h("th.num", { scope: "col" }, heads[1]))),
    h("tbody", null, bars.map((b) => h("tr", { title: b.title },
      h("th", { scope: "row" }, b.href ? h("a", { href: b.href }, b.label) : b.label),
      h("td.bar-cell", { "aria-hidden": true }, h("span.bar", { style: { "--share": (100 * b.value / most).toFixed(2) + "%" } },
        b.part ? h("span.bar-part", { style: { "--share": Math.min(100, 100 * b.part / (b.value || 1)).toFixed(2) + "%" } }) : null)),
      h("td.num", null, b.text)))));
}
