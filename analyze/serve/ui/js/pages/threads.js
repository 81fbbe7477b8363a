// Threads, and sizes with lifetimes.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { base, bytes, count, duration, percent, plural } from "../core/format.js";
import { put, toQuery } from "../core/filters.js";
import { to } from "../core/app.js";
import { dataTable, rowKeys } from "../widgets/table.js";
import { askedBy } from "../widgets/stack.js";
import { empty, load } from "../widgets/states.js";
import { histogram } from "../charts/histogram.js";
import { lifetimeBar, sizeBar } from "./stackpage.js";

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function threadsPage(root, url, signal) {
  const place = h("div.card"), sort = url.view.sort || "live_bytes";
  fill(root, h("div.page-head", null, h("h1", null, "Threads")), place);
  load(place, get(encodeURIComponent(url.id) + "/threads", toQuery(url.filter), signal), (d) => {
    if (!d.rows.length) return empty("No thread allocated anything", "Remove a filter.");
    const rows = [...d.rows].sort((a, b) => ((b[sort] ?? 0) - (a[sort] ?? 0)) * (url.view.reverse ? -1 : 1)), total = d.totals.live_bytes;
    return dataTable({
      caption: "Threads", rows, sort, reverse: Boolean(url.view.reverse), keyOf: (r) => r.tid ?? r.name, href: (r) => to({ page: "allocations", filter: put(url.filter, "thread", String(r.tid ?? r.name)), view: {} }, url),
      columns: [
        { key: "name", label: "Thread", wide: true, cell: (r) => [h("strong", null, r.name || "(no name)"), h("span.sub-line", null, r.tid ? " tid " + r.tid : "")] },
        { key: "live", label: "Live", sort: "live_bytes", num: true, cell: (r) => bytes(r.live_bytes) },
        { key: "share", label: "", num: true, cell: (r) => h("span.share", { style: { "--share": 100 * r.live_bytes / (total || 1) + "%" } }, h("span", null, percent(r.live_bytes, total))) },
        { key: "blocks", label: "Blocks", sort: "live_count", num: true, cell: (r) => count(r.live_count) },
        { key: "peak", label: "Peak", sort: "peak_bytes", num: true, cell: (r) => bytes(r.peak_bytes) },
        { key: "allocated", label: "Allocated", sort: "allocated_bytes", num: true, cell: (r) => bytes(r.allocated_bytes) },
        { key: "allocations", label: "Allocations", sort: "allocations", num: true, cell: (r) => count(r.allocations) },
        { key: "freed", label: "Freed by it", sort: "freed_bytes", num: true, help: "What the thread freed, whoever allocated it", cell: (r) => [bytes(r.freed_bytes), h("div.sub-line", null, plural(r.frees, "block"))] },
        { key: "temporary", label: "Temporary", sort: "temporary", num: true, cell: (r) => count(r.temporary) },
        { key: "last", label: "Last", sort: "last_ns", num: true, cell: (r) => duration(r.last_ns) },
      ],
    });
  }, { lines: 10, signal });
  rowKeys(root, signal);
}

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function sizesPage(root, url, signal) {
  const place = h("div.page");
  fill(root, h("div.page-head", null, h("h1", null, "Sizes and lifetimes")), place);
  load(place, get(encodeURIComponent(url.id) + "/stats", toQuery(url.filter), signal), (d) => {
    const sizes = (d.sizes || []).filter((/** @type {any} */ s) => s.allocations), lifetimes = (d.lifetimes || []).filter((/** @type {any} */ s) => s.count);
    if (!sizes.length) return empty("Nothing matches", "No block fits all of the filters.");
    const figure = (/** @type {string} */ name, /** @type {any} */ value, sub = "") => h("div.figure", null, h("div.name", null, name), h("div.value", null, value), h("div.sub", null, sub));
    return [
      h("div.figures-row", null, figure("Mean size", bytes(d.mean_size)), figure("Allocations a second", count(d.allocations_per_second)), figure("Allocated a second", bytes(d.bytes_per_second)),
        figure("Recorded", duration(d.recorded_ns)), figure("Allocations", count(d.totals.allocations)), figure("Temporary", d.totals.temporary === null ? "–" : percent(d.totals.temporary, d.totals.allocations), "of all allocations")),
      h("div.two", null,
        h("section.card.padded", null, h("h2", null, "Sizes"), h("p.note", null, "Darker: live at the end. A click shows them."), histogram(sizes.map((/** @type {any} */ s) => ({
          ...sizeBar(s), href: to({ page: "allocations", filter: put(s.max_size === null ? url.filter : put(url.filter, "max-size", String(s.max_size)), "min-size", String(s.min_size)), view: {} }, url),
        })), { caption: "Allocations by size", heads: ["Size", "Allocations"] })),
        h("section.card.padded", null, h("h2", null, "Lifetimes"), h("p.note", null, "From the allocation to the free."), histogram(lifetimes.map(lifetimeBar), { caption: "Blocks by lifetime", heads: ["Lived", "Blocks"] }))),
      h("div.two", null, common("Most common sizes", d.top_sizes_by_count, d, url, "count"), common("Sizes that took the most bytes", d.top_sizes_by_bytes, d, url, "bytes")),
      h("div.two", null, places("Places with the most allocations", d.top_places_by_count, url), places("Places that allocated the most bytes", d.top_places_by_bytes, url)),
    ];
  }, { lines: 16, signal });
  rowKeys(root, signal);
}

/**
 * @param {string} title
 * @param {any[]} rows
 * @param {any} d
 * @param {import("../core/url.js").View} url
 * @param {string} by
 */
function common(title, rows, d, url, by) {
  const total = by === "count" ? d.totals.allocations + (d.totals.reallocations || 0) : d.totals.allocated_bytes;
  return h("section.card", null, h("header", null, h("h2", null, title)), dataTable({
    caption: title, rows: rows || [], keyOf: (r) => by + r.size, href: (r) => to({ page: "allocations", filter: put(put(url.filter, "min-size", String(r.size)), "max-size", String(r.size)), view: {} }, url),
    columns: [
      { key: "size", label: "Size", num: true, cell: (r) => bytes(r.size) }, { key: "count", label: "Allocations", num: true, cell: (r) => count(r.count) }, { key: "bytes", label: "Bytes", num: true, cell: (r) => bytes(r.bytes) },
      { key: "share", label: "Share", num: true, cell: (r) => h("span.share", { style: { "--share": 100 * r[by] / (total || 1) + "%" } }, h("span", null, percent(r[by], total))) },
    ],
  }));
}

/**
 * @param {string} title
 * @param {any[]} rows
 * @param {import("../core/url.js").View} url
 */
function places(title, rows, url) {
  return h("section.card", null, h("header", null, h("h2", null, title)), dataTable({
    caption: title, rows: rows || [], keyOf: (r) => title + (r.place.function || base(r.place.module)), href: (r) => (r.place.function ? to({ page: "flame", view: { mode: "sandwich", fn: r.place.function, metric: "allocated" } }, url) : null),
    columns: [
      { key: "count", label: "Allocations", num: true, cell: (r) => count(r.allocations) }, { key: "bytes", label: "Allocated", num: true, cell: (r) => bytes(r.allocated_bytes) },
      { key: "live", label: "Live", num: true, cell: (r) => bytes(r.live_bytes) }, { key: "by", label: "Asked for by", wide: true, cell: (r) => askedBy(r.place) },
    ],
  }));
}
