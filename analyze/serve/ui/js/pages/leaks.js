// Leak verdicts by stack.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { bytes, count, duration, plural, signed } from "../core/format.js";
import { toQuery, put } from "../core/filters.js";
import { go, to } from "../core/app.js";
import { dataTable, rowKeys } from "../widgets/table.js";
import { askedBy, calledFrom } from "../widgets/stack.js";
import { empty, load } from "../widgets/states.js";
import { spark } from "../charts/spark.js";
import { CLASSES } from "./overview.js";

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function leaksPage(root, url, signal) {
  const place = h("div.card"), tabs = h("div"), chosen = url.view.tab || "", note = h("span.note");
  fill(root, h("div.page-head", null, h("h1", null, "Leaks"), note), tabs, place);
  load(place, get(encodeURIComponent(url.id) + "/leaks", toQuery(url.filter), signal), (d) => {
    fill(note, d.young_ns ? `what is younger than ${duration(d.young_ns)} is not judged` : "");
    const all = d.classes || [], total = all.reduce((/** @type {any} */ s, /** @type {any} */ c) => s + c.stacks, 0);
    const tab = (/** @type {string} */ key, /** @type {string} */ text, /** @type {number} */ n) => h("button", { type: "button", "data-key": "tab-" + key, "aria-pressed": String(key === chosen), disabled: !n && key !== chosen, onclick: () => go(to({ view: { tab: key } })) }, text + " ", h("span.figures", null, count(n)));
    fill(tabs, h("div.segments", { role: "group", "aria-label": "Verdict" }, tab("", "all", total), all.map((/** @type {any} */ c) => tab(c.class, c.class.replaceAll("-", " "), c.stacks))));
    const rows = d.stacks.filter((/** @type {any} */ s) => !chosen || s.class === chosen);
    if (!rows.length) return empty(chosen ? "No stack has this verdict" : "Nothing that is live at the end could be judged", chosen ? CLASSES[chosen] && CLASSES[chosen][0] : "");
    return table(rows, url);
  }, { lines: 14, signal });
  rowKeys(root, signal, (href) => {
    const stack = /stack\/[^/]+\/(\d+)/.exec(href);
    if (stack) go(to({ page: "allocations", filter: put(url.filter, "stacks", stack[1]), view: {} }, url));
  });
}

/**
 * @param {any[]} rows
 * @param {import("../core/url.js").View} url
 */
function table(rows, url) {
  const limit = Number(url.view.count) || 100;
  return [dataTable({
    caption: "Stacks with verdicts", rows: rows.slice(0, limit), keyOf: (r) => r.id, href: (r) => to({ page: "stack", item: r.id, view: {} }, url),
    columns: [
      { key: "class", label: "Verdict", cell: (r) => [h("span.badge", { class: (CLASSES[r.class] || ["", ""])[1], title: (CLASSES[r.class] || [""])[0] }, r.class.replaceAll("-", " ")), h("div.sub-line", null, r.confidence + " confidence")] },
      { key: "bytes", label: "Bytes", num: true, cell: (r) => bytes(r.bytes) },
      { key: "live", label: "Live", num: true, cell: (r) => [bytes(r.live_bytes), h("div.sub-line", null, plural(r.live_count, "block"))] },
      { key: "growth", label: "Growth an hour", num: true, help: "The lowest that fits the series; below it, the mean", cell: (r) => [r.growth_per_hour ? signed(r.growth_per_hour) : "–", r.mean_growth_per_hour ? h("div.sub-line", null, signed(r.mean_growth_per_hour) + " mean") : null] },
      { key: "held", label: "Held over time", cell: (r) => (r.held && r.held.length ? spark(r.held, { width: 130, height: 26, label: "Bytes held over the recording" }) : "–") },
      { key: "by", label: "Asked for by", wide: true, cell: (r) => [askedBy(r.asked_by, r.frames), calledFrom(r.asked_by, r.frames)] },
    ],
  }), rows.length > limit ? h("p.note", { style: { padding: "8px 14px" } }, `${count(rows.length - limit)} more. `, h("a", { href: to({ view: { count: rows.length } }) }, "Show all")) : null];
}
