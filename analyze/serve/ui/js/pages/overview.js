// The overview: what the recording is, its figures, the memory over time, and who holds it.

import { fill, h } from "../core/dom.js";
import { icon } from "../core/icon.js";
import { get } from "../core/api.js";
import { bytes, count, duration, percent, plural, signed, when, base } from "../core/format.js";
import { put, toQuery } from "../core/filters.js";
import { to } from "../core/app.js";
import { bind } from "../core/keys.js";
import { load, empty } from "../widgets/states.js";
import { dataTable, rowKeys } from "../widgets/table.js";
import { askedBy, calledFrom } from "../widgets/stack.js";
import { timelineCard } from "./timeline.js";

/** @typedef {import("../core/url.js").View} View */

/**
 * Returns whether a recording, or one that it was joined from, is still being made.
 * @param {any} r
 */
function grows(r) {
  return r.joined?.growing || (r.notes || []).some((/** @type {string} */ n) => n.startsWith("still recording"));
}

/**
 * Returns the notes on what a recording lacks, so that nothing is left out silently.
 * @param {any} head
 */
export function notesOf(head) {
  const r = head.recording, notes = [...(r.notes || [])];
  if (!r.complete && !r.joined && !grows(r)) notes.push("The recording is not complete" + (r.end_reason ? ": " + r.end_reason : "") + ".");
  if (r.lost_events) notes.push(plural(r.lost_events, "event") + " were lost: the figures are too low.");
  if (r.truncated_stacks) notes.push(plural(r.truncated_stacks, "stack") + " were cut short.");
  if (r.mismatched_stacks) notes.push(plural(r.mismatched_stacks, "stack") + " may be wrong.");
  if ((r.not_hooked || []).length) notes.push("Not recorded: " + r.not_hooked.map((/** @type {any} */ n) => n.function || n.module || n).join(", ") + ".");
  const c = r.capture;
  if (c && (c.sample_bytes || c.sample_every > 1)) notes.push("A sample was recorded: all figures are estimates.");
  if (c && (c.min_size || (c.max_size !== null && c.max_size !== undefined))) notes.push("Blocks of some sizes were not recorded.");
  return notes;
}

/**
 * @param {Element} root
 * @param {View} url
 * @param {AbortSignal} signal
 */
export function overview(root, url, signal) {
  const id = encodeURIComponent(url.id), query = toQuery(url.filter);
  const about = h("section.about", { "aria-label": "Recording" }), figures = h("div"), chart = h("div"), tops = h("div.card"), leaks = h("div.card");
  fill(root, about, figures, chart, h("div.two.first-wide", null, tops, leaks));
  const head = get(id + "/head", query, signal);
  load(about, head, aboutOf, { lines: 3, signal });
  load(figures, head, (d) => figureRow(d, url), { lines: 3, signal });
  load(chart, head, (d) => {
    const card = timelineCard(url, d, signal);
    bind("Timeline", [[".", "go to the peak", () => card.focusPeak(d.totals.peak_at_ns)]], signal);
    return card.root;
  }, { lines: 12, signal });
  load(tops, head.then(async (d) => [d.totals, await get(id + "/groups", groupQuery(query, sortOf(d.totals)), signal)]), ([totals, d]) => topStacks(d, totals, url), { lines: 10, signal });
  load(leaks, get(id + "/leaks", query, signal), (d) => verdicts(d, url), { lines: 6, signal });
  rowKeys(root, signal);
}

/**
 * Returns what the stacks are sorted by: what is live at the end or, where nearly all was freed, the peak.
 * @param {any} totals
 */
function sortOf(totals) {
  return totals.live_bytes * 8 < totals.peak_bytes ? "peak-size" : "size";
}

/**
 * @param {URLSearchParams} query
 * @param {string} sort
 */
function groupQuery(query, sort) {
  const q = new URLSearchParams(query);
  q.set("group-by", "stack");
  q.set("sort", sort);
  q.set("count", "10");
  return q;
}

/** @param {any} r */
function stateOf(r) {
  if (r.complete) return h("span.badge.good", null, "complete");
  return grows(r) ? h("span.badge.growing", null, "recording") : h("span.badge.warn", null, "not complete");
}

/** @param {any} d */
function aboutOf(d) {
  const t = d.target, r = d.recording, command = (t.cmdline || []).filter(Boolean).join(" ") || t.exe;
  const fact = (/** @type {any} */ value, /** @type {string} */ what) => h("span", null, h("b", null, value), " " + what);
  const notes = notesOf(d);
  return [
    h("div.page-head", null, h("h1", null, (t.comm || base(t.exe)) + ", pid " + t.pid), stateOf(r)),
    h("div.command", null, command),
    h("div.facts", null, fact(when(r.started_unix_ns), ""), fact(duration(r.duration_ns), "recorded"), fact(count(r.events), "events"),
      fact(count(d.totals.groups), "call stacks"), d.max_depth ? fact(count(d.max_depth), "frames at most") : null, fact(count(r.threads), r.threads === 1 ? "thread" : "threads"), fact(t.arch || "", ""),
      r.parts && r.parts.length > 1 ? fact(r.parts.length, "parts") : null,
      r.hooks ? fact(count(r.hooks.length), "functions hooked") : null, r.unknown_frees ? fact(count(r.unknown_frees), "frees of older blocks") : null,
      h("a", { href: to({ page: "info", view: {} }) }, "everything about the recording")),
    notes.length ? h("ul.notes", null, notes.map((n) => h("li", null, icon("warn"), h("span", null, n)))) : null,
  ];
}

/**
 * @param {any} d
 * @param {View} url
 */
function figureRow(d, url) {
  const t = d.totals, rss = d.kernel && d.kernel.rss_bytes;
  const one = (/** @type {string} */ name, /** @type {any} */ value, /** @type {string} */ sub, /** @type {any} */ href) =>
    h(href ? "a.figure" : "div.figure", { href }, h("div.name", null, name), h("div.value", null, value), h("div.sub", null, sub));
  const list = (/** @type {Record<string, any>} */ view, /** @type {import("../core/filters.js").Filter} */ filter = []) => to({ page: "allocations", filter: filter.reduce((f, [n, v]) => put(f, n, v), url.filter), view });
  return h("div.figures-row", null,
    one("Live at the end", bytes(t.live_bytes), plural(t.live_count, "block"), list({ sort: "size" }, [["lifetime", "leaked"]])),
    one("Peak", bytes(t.peak_bytes), "at " + duration(t.peak_at_ns), to({ page: "flame", view: { metric: "peak" } })),
    one("Frees", count(t.frees), t.frees ? percent(t.frees, t.allocations) + " of allocations" : "nothing was freed", to({ page: "leaks", view: {} })),
    one("Allocated", bytes(t.allocated_bytes), h("span", { title: t.reallocations ? plural(t.reallocations, "reallocation") + " besides" : null }, plural(t.allocations, "allocation")), list({ sort: "allocated" })),
    one("Temporary", t.temporary === null ? "–" : count(t.temporary), t.temporary === null ? "not known" : percent(t.temporary, t.allocations) + " of allocations", list({ sort: "temporary" }, [["lifetime", "temporary"]])),
    one("Resident − live", rss ? signed(rss - t.live_bytes).replace("+", "") : "–", rss ? "of " + bytes(rss) + " resident" : "not recorded", to({ page: "space", view: {} })));
}

/**
 * @param {any} d
 * @param {any} totals
 * @param {View} url
 */
function topStacks(d, totals, url) {
  const sort = sortOf(totals), [key, name] = sort === "size" ? ["live_bytes", "Live"] : ["peak_bytes", "Peak"], total = totals[key];
  if (!d.rows.length) return [h("header", null, h("h2", null, "Who holds the memory")), empty("No block is live at the end", "The filter selects none, or all were freed.")];
  return [
    h("header", null, h("h2", null, sort === "size" ? "Who holds the memory" : "Who held the most at a time"), h("span.grow"), h("a", { href: to({ page: "allocations", view: { sort } }) }, `all ${count(d.total_count)} stacks`)),
    dataTable({
      caption: "The call stacks that hold the most at the end", rows: d.rows, keyOf: (r) => r.id, href: (r) => to({ page: "stack", item: r.id, view: {} }, url),
      columns: [
        { key: "size", label: name, num: true, cell: (r) => bytes(r[key]) },
        { key: "share", label: "Share", num: true, cell: (r) => h("span.share", { style: { "--share": 100 * r[key] / (total || 1) + "%" } }, h("span", null, percent(r[key], total))) },
        { key: "count", label: "Blocks", num: true, cell: (r) => count(sort === "size" ? r.live_count : r.peak_count) },
        { key: "by", label: "Asked for by", wide: true, cell: (r) => [askedBy(r.asked_by, r.frames), calledFrom(r.asked_by, r.frames)] },
      ],
    }),
  ];
}

/** The meaning of each class of leaks. @type {Record<string, [string, string]>} */
export const CLASSES = {
  "growing": ["grows in every interval", "bad"], "freed-at-the-end": ["grew, and was freed only as the program ended", "bad"],
  "turnover": ["new blocks replace older ones", "warn"], "saturating": ["bounded: has stopped growing, or rises and falls", "good"],
  "static": ["allocated early, unchanged since", "good"], "too-young": ["too little, or too new, to judge", ""],
};

/**
 * @param {any} d
 * @param {View} url
 */
function verdicts(d, url) {
  const rows = (d.classes || []).filter((/** @type {any} */ c) => c.stacks > 0);
  return [
    h("header", null, h("h2", null, "Leak verdicts"), h("span.grow"), h("a", { href: to({ page: "leaks", view: {} }, url) }, "all verdicts")),
    rows.length ? dataTable({
      caption: "Stacks by verdict", rows, href: (r) => to({ page: "leaks", view: { tab: r.class } }, url), keyOf: (r) => r.class,
      columns: [
        { key: "class", label: "Verdict", wide: true, cell: (r) => h("span.badge", { class: (CLASSES[r.class] || ["", ""])[1] }, r.class.replaceAll("-", " ")) },
        { key: "stacks", label: "Stacks", num: true, cell: (r) => count(r.stacks) },
        { key: "bytes", label: "Bytes", num: true, cell: (r) => bytes(r.bytes) },
        { key: "growth", label: "Growth an hour", num: true, cell: (r) => (r.growth_per_hour ? signed(r.growth_per_hour) : "–") },
      ],
    }) : empty("No stack holds enough to be judged"),
  ];
}
