// Mappings over time, and one mapping.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { bytes, count, duration, plural } from "../core/format.js";
import { put, toQuery } from "../core/filters.js";
import { ABOUT_OWN } from "../core/rhai.js";
import { go, to } from "../core/app.js";
import { columnChoice, dataTable, pager, rowKeys } from "../widgets/table.js";
import { askedBy, frameList } from "../widgets/stack.js";
import { empty, load } from "../widgets/states.js";
import { menu } from "../widgets/menu.js";
import { palette } from "../charts/canvas.js";
import { SERIES } from "../charts/color.js";
import { timeChart, timeModel } from "../charts/series.js";
import { onTheme } from "../core/theme.js";

/**
 * @param {any} d
 */
function notRecorded(d) {
  return empty("This recording holds no mappings", d.why || "They are recorded by newer versions of prof. The address space can still be seen as blocks.");
}

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function mapsPage(root, url, signal) {
  const size = Math.min(500, Math.max(1, Number(url.view.count) || 50)), skip = Math.max(0, Number(url.view.skip) || 0);
  const query = toQuery(url.filter), sort = url.view.sort || "address", place = h("div.card"), note = h("span.note");
  query.set("sort", sort);
  if (url.view.reverse) query.set("reverse", "true");
  query.set("count", String(size));
  if (skip) query.set("skip", String(skip));
  // prof's own mappings are nobody's question, unless asked for.
  const full = Boolean(url.view.full), own = Boolean(url.view.own), asked = url.filter.some(([n]) => ABOUT_OWN.test(n));
  if (!own && !asked) query.set("bytehound", "no");
  const choice = columnChoice(columns(), url.view.cols);
  fill(root, h("div.page-head", null, h("h1", null, "Mappings"), note, h("span.grow"),
    asked ? null : h("label.inline", null, h("input", { type: "checkbox", checked: own, "data-key": "check-own", onchange: (e) => go(to({ view: { own: e.target.checked || null, skip: null } })) }), "prof's own"),
    h("label.inline", null, h("input", { type: "checkbox", checked: full, "data-key": "check-full", onchange: (e) => go(to({ view: { full: e.target.checked || null } })) }), "Full stacks"), choice.button), place);
  load(place, get(encodeURIComponent(url.id) + "/maps", query, signal), (d) => {
    if (d.recorded === false && !d.rows.length) return notRecorded(d);
    fill(note, plural(d.total_count, "mapping"));
    if (!d.rows.length) return empty("Nothing matches", "No mapping fits all of the filters.");
    const rows = d.rows.map((/** @type {any} */ r) => ({ ...r, place: (d.stacks || {})[r.stack] }));
    return [h("header", null, pager({ skip, size, total: d.total_count, shown: rows.length })), dataTable({
      caption: "Mappings", columns: choice.columns, rows, sort, reverse: Boolean(url.view.reverse), keyOf: (r) => r.id, href: (r) => to({ page: "map", item: r.id, view: {} }, url),
      detail: full ? (r) => (r.place ? frameList(r.place.frames, { full: true, truncated: r.place.truncated, source: true }) : null) : undefined,
      menu: (r, x, y) => menu([
        { text: "More about it", href: to({ page: "map", item: r.id, view: {} }, url) },
        { text: "Allocations in it", href: to({ page: "allocations", filter: [["from-map", String(r.id)]], view: {} }, url) },
        r.stack !== null && r.stack !== undefined && { text: "Only those of this stack", run: () => go(to({ filter: put(url.filter, "stacks", String(r.stack)), view: { skip: null } }, url)) },
      ], x, y, "What to do with this mapping"),
    })];
  }, { lines: 16, signal });
  rowKeys(root, signal);
}

/** @returns {import("../widgets/table.js").Column[]} */
function columns() {
  return [
    { key: "address", label: "Address", sort: "address", asc: true, cell: (r) => h("span.mono", null, r.address) },
    { key: "size", label: "Size", sort: "size", num: true, cell: (r) => bytes(r.size) },
    { key: "pages", label: "Pages", num: true, off: true, cell: (r) => count(r.size / 4096) },
    { key: "rss", label: "Resident", sort: "rss", num: true, cell: (r) => bytes(r.rss) },
    { key: "peak", label: "Peak resident", sort: "peak-rss", num: true, cell: (r) => bytes(r.peak_rss) },
    { key: "perms", label: "Access", cell: (r) => h("span.mono", null, r.perms || "–") },
    { key: "mapped", label: "Mapped", sort: "time", asc: true, num: true, cell: (r) => (r.before ? "before" : duration(r.mapped_ns)) },
    { key: "life", label: "Lifetime", num: true, cell: (r) => (r.unmapped_ns === null || r.unmapped_ns === undefined ? "∞" : (r.before ? "≥ " : "") + duration(r.unmapped_ns - (r.mapped_ns || 0))) },
    { key: "thread", label: "Thread", off: true, cell: (r) => (r.thread ? (r.thread.name || "") + " " + (r.thread.tid ?? "") : "–") },
    { key: "name", label: "Name", wide: true, cell: (r) => [h("span", { class: r.name ? "" : "kind" }, r.name || r.kind || "anonymous"), r.place ? h("div", null, askedBy(r.place.asked_by, r.place.frames)) : null] },
  ];
}

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function mapPage(root, url, signal) {
  const place = h("div.page");
  fill(root, place);
  load(place, get(encodeURIComponent(url.id) + "/maps/" + encodeURIComponent(url.item), null, signal), (d) => {
    const m = d.map, stack = (d.stacks || {})[m.stack];
    const fact = (/** @type {string} */ name, /** @type {any} */ value) => [h("dt", null, name), h("dd", null, value)];
    return [
      h("div.page-head", null, h("h1", null, m.name || m.kind || "Anonymous mapping"), h("span.note.mono", null, `${m.address} – ${m.end}`), h("span.grow"),
        h("a.button", { href: to({ page: "allocations", filter: [["from-map", String(m.id)]], view: {} }, url) }, "Allocations in it"),
        h("a.button", { href: to({ page: "space", item: "", filter: [], view: { lo: m.address, hi: m.end } }, url) }, "As address space")),
      (d.usage || []).length > 1 ? usageChart(d.usage, signal) : null,
      h("div.two", null, h("section.card.padded", null, h("h2", null, "Mapping"), h("dl.kv", null, fact("Size", bytes(m.size)), fact("Resident", bytes(m.rss)), fact("Peak resident", bytes(m.peak_rss)), fact("Access", m.perms || "–"),
        fact("Mapped", m.before ? "before the recording" : duration(m.mapped_ns)), fact("Unmapped", m.unmapped_ns === null || m.unmapped_ns === undefined ? "never" : duration(m.unmapped_ns)))),
      h("section.card.padded", null, h("h2", null, "Mapped by"), stack ? frameList(stack.frames, { full: true, source: true }) : h("p.note", null, m.before ? "Not known: it was there before the recording." : m.caught ? "No stack was recorded." : "Not known: it was seen in /proc, and no recorded call made it."))),
      h("section.card", null, h("header", null, h("h2", null, "Regions")), (d.regions || []).length ? dataTable({ caption: "Regions", rows: d.regions, columns: [
        { key: "address", label: "Address", cell: (r) => h("span.mono", null, r.address) }, { key: "size", label: "Size", num: true, cell: (r) => bytes(r.size) },
        { key: "perms", label: "Access", cell: (r) => h("span.mono", null, permsOf(r)) }, { key: "from", label: "From", num: true, cell: (r) => duration(r.from_ns) },
        { key: "life", label: "Lifetime", num: true, cell: (r) => (r.to_ns === null || r.to_ns === undefined ? "∞" : duration(r.to_ns - r.from_ns)) }, { key: "name", label: "Name", wide: true, cell: (r) => r.name || "–" }] }) : empty("None known")),
      h("section.card", null, h("header", null, h("h2", null, "Use over time"), h("span.note", null, "what changed is in bold")), usageTable(d.usage || [])),
    ];
  }, { lines: 14, signal });
}

/**
 * @param {any[]} usage
 * @param {AbortSignal} signal
 */
function usageChart(usage, signal) {
  const end = usage[usage.length - 1].at_ns || 1, n = 400, step = end / n, model = timeModel([0, end], null, null);
  const chart = timeChart({ model, unit: "bytes", height: 150, signal, label: "Use of the mapping over time" });
  const at = (/** @type {string} */ key) => Array.from({ length: n }, (_, i) => {
    const u = usage.filter((x) => x.at_ns <= (i + 1) * step).pop();
    return u ? u[key] ?? null : null;
  });
  const draw = () => {
    const c = SERIES[palette().dark ? "dark" : "light"];
    chart.set({ from: 0, step, lines: [{ name: "Size", unit: "bytes", color: c[5], max: at("size"), fill: false }, { name: "Resident", unit: "bytes", color: c[1], max: at("rss") }] });
  };
  queueMicrotask(draw);
  onTheme(draw, signal);
  return h("section.card", null, h("header", null, h("h2", null, "Size and resident part")), h("div.lanes", null, chart.root));
}

/** @param {any} r */
function permsOf(r) {
  return r.perms || (r.is_readable ? "r" : "-") + (r.is_writable ? "w" : "-") + (r.is_executable ? "x" : "-") + (r.is_shared ? "s" : "p");
}

/** @param {any[]} usage */
function usageTable(usage) {
  if (!usage.length) return empty("No reading was taken while it was there");
  const keys = ["size", "rss", "anonymous", "dirty", "clean", "swap"].filter((k) => usage.some((u) => u[k] !== undefined && u[k] !== null));
  const rows = usage.map((u, i) => ({ ...u, before: usage[i - 1] }));
  return dataTable({
    caption: "Use over time", rows, columns: [{ key: "at", label: "Time", num: true, cell: (r) => duration(r.at_ns) },
      ...keys.map((k) => ({ key: k, label: k === "rss" ? "Resident" : k[0].toUpperCase() + k.slice(1), num: true, cell: (/** @type {any} */ r) => (r.before && r.before[k] !== r[k] ? h("b", null, bytes(r[k])) : bytes(r[k])) }))],
  });
}
