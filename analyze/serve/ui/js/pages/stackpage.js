// One call stack: frames, figures, its memory over time, sizes, lifetimes, verdict, and where its blocks are freed.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { bytes, count, duration, percent, plural, signed } from "../core/format.js";
import { put, toQuery } from "../core/filters.js";
import { to } from "../core/app.js";
import { palette } from "../charts/canvas.js";
import { SERIES } from "../charts/color.js";
import { timeChart, timeModel } from "../charts/series.js";
import { histogram } from "../charts/histogram.js";
import { spark } from "../charts/spark.js";
import { askedBy, frameList } from "../widgets/stack.js";
import { load, empty } from "../widgets/states.js";
import { dataTable, rowKeys } from "../widgets/table.js";
import { onTheme } from "../core/theme.js";
import { CLASSES } from "./overview.js";

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function stackPage(root, url, signal) {
  const place = h("div.page"), query = toQuery(url.filter);
  fill(root, place);
  load(place, get(encodeURIComponent(url.id) + "/stacks/" + encodeURIComponent(url.item), query, signal), (d) => stackOf(d, url, signal), { lines: 16, signal });
  rowKeys(root, signal);
}

/**
 * @param {any} d
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
function stackOf(d, url, signal) {
  const only = put(url.filter, "stacks", String(d.id)), m = d.matched || d, all = d.all || m, filtered = url.filter.length > 0;
  const figure = (/** @type {string} */ name, /** @type {string} */ k, /** @type {any} */ f) =>
    h("div.figure", null, h("div.name", null, name), h("div.value", null, f(m[k])), h("div.sub", null, filtered && all[k] !== m[k] ? "of " + f(all[k]) : ""));
  return [
    h("div.page-head", null, h("h1", null, "Stack " + d.id), askedBy(d.asked_by, d.frames), h("span.grow"),
      h("a.button", { href: to({ page: "allocations", filter: only, view: { by: "none" } }, url) }, "Single blocks"),
      h("a.button", { href: to({ page: "overview", item: "", filter: only, view: {} }, url) }, "Timeline of it")),
    h("div.figures-row", null, figure("Live at the end", "live_bytes", bytes), figure("Live blocks", "live_count", count), figure("Peak", "peak_bytes", bytes),
      figure("Allocated", "allocated_bytes", bytes), figure("Allocations", "allocations", count), figure("Temporary", "temporary", count),
      h("div.figure", null, h("div.name", null, "First to last"), h("div.value", null, duration(d.last_ns - d.first_ns)), h("div.sub", null, `from ${duration(d.first_ns)} to ${duration(d.last_ns)}`))),
    d.timeline ? timelineOf(d, signal) : null,
    h("div.two", null,
      h("section.card", null, h("header", null, h("h2", null, "Frames"), h("span.note", null, "innermost first")), h("div.body", null, frameList(d.frames, { full: true, truncated: d.truncated, source: true }))),
      h("div.page", null, verdictOf(d), sizesOf(d), lifetimesOf(d))),
    freedOf(d, url),
  ];
}

/**
 * @param {any} d
 * @param {AbortSignal} signal
 */
function timelineOf(d, signal) {
  const t = d.timeline, end = t.from_ns + t.step_ns * t.max.length, model = timeModel([t.from_ns, end], null, null);
  const chart = timeChart({ model, unit: "bytes", height: 150, signal, label: "Live bytes of this stack over time" });
  const draw = () => chart.set({ from: t.from_ns, step: t.step_ns, lines: [{ name: "Live", unit: "bytes", color: SERIES[palette().dark ? "dark" : "light"][0], max: t.max, min: t.min }], marks: d.peak_at_ns ? [{ at: d.peak_at_ns, label: "peak", kind: "peak" }] : [] });
  queueMicrotask(draw);
  onTheme(draw, signal);
  return h("section.card", null, h("header", null, h("h2", null, "Live bytes over time")), h("div.lanes", null, chart.root));
}

/** @param {any} d */
function verdictOf(d) {
  const l = d.leak;
  if (!l) return h("section.card.padded", null, h("h2", null, "Leak verdict"), h("p.note", null, "Nothing of it is live at the end, so there is nothing to judge."));
  const [words, kind] = CLASSES[l.class] || [l.class, ""];
  return h("section.card.padded", null, h("div.page-head", null, h("h2", null, "Leak verdict"), h("span.badge", { class: kind }, l.class.replaceAll("-", " ")), h("span.note", null, "confidence: " + l.confidence)),
    h("p", null, words[0].toUpperCase() + words.slice(1) + "."), l.growth_per_hour ? h("p", null, "Grows by ", h("b.figures", null, signed(l.growth_per_hour)), " an hour.") : null,
    l.held && l.held.length ? spark(l.held, { width: 260, height: 44, label: "Bytes held over the recording" }) : null);
}

/** @param {any} d */
function sizesOf(d) {
  const rows = (d.sizes || []).filter((/** @type {any} */ s) => s.allocations);
  return h("section.card.padded", null, h("h2", null, "Sizes"), rows.length ? histogram(rows.map(sizeBar), { caption: "Allocations by size", heads: ["Size", "Allocations"] }) : h("p.note", null, "none"));
}

/** @param {any} s */
export function sizeBar(s) {
  return {
    label: s.min_size === s.max_size ? bytes(s.min_size) : s.max_size === null ? "≥ " + bytes(s.min_size) : `${bytes(s.min_size)} – ${bytes(s.max_size)}`,
    value: s.allocations, part: s.live_count, text: count(s.allocations), title: `${plural(s.allocations, "allocation")}, ${bytes(s.allocated_bytes)}; ${plural(s.live_count, "block")} live, ${bytes(s.live_bytes)}`,
  };
}

/** @param {any} s */
export function lifetimeBar(s) {
  const below = s.below_ns ?? s.max_ns;
  return { label: s.min_ns === null ? "live at the end" : below ? "< " + duration(below) : "≥ " + duration(s.min_ns), value: s.count, text: count(s.count), title: `${plural(s.count, "block")}, ${bytes(s.bytes)}` };
}

/** @param {any} d */
function lifetimesOf(d) {
  const rows = (d.lifetimes || []).filter((/** @type {any} */ s) => s.count);
  return h("section.card.padded", null, h("h2", null, "Lifetimes"), rows.length ? histogram(rows.map(lifetimeBar), { caption: "Blocks by lifetime", heads: ["Lived", "Blocks"] }) : h("p.note", null, "none"));
}

/**
 * @param {any} d
 * @param {import("../core/url.js").View} url
 */
function freedOf(d, url) {
  if (!d.freed_at) return h("section.card.padded", null, h("h2", null, "Where its blocks are freed"), h("p.note", null, "Not recorded. ", h("kbd", null, "prof attach --free-stacks"), " records the stacks of frees."));
  if (!d.freed_at.length) return h("section.card", null, h("header", null, h("h2", null, "Where its blocks are freed")), empty("None of its blocks was freed"));
  const total = d.freed_at.reduce((/** @type {any} */ s, /** @type {any} */ r) => s + r.count, 0);
  return h("section.card", null, h("header", null, h("h2", null, "Where its blocks are freed")), dataTable({
    caption: "Stacks of frees", rows: d.freed_at, keyOf: (r) => r.stack, href: (r) => to({ page: "allocations", filter: put(put(url.filter, "stacks", String(d.id)), "free-stacks", String(r.stack)), view: { by: "none" } }, url),
    columns: [
      { key: "count", label: "Blocks", num: true, cell: (r) => count(r.count) },
      { key: "share", label: "", num: true, cell: (r) => percent(r.count, total) },
      { key: "bytes", label: "Bytes", num: true, cell: (r) => bytes(r.bytes) },
      { key: "stack", label: "Freed at", wide: true, cell: (r) => frameList(r.frames || [], { most: 3 }) },
    ],
  }));
}
