// Allocations: single blocks, or grouped by what asked for them.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { base, bytes, clock, count, duration, frameName, ordinal, percent, plural, when } from "../core/format.js";
import { put, toQuery } from "../core/filters.js";
import { go, here, recording, to } from "../core/app.js";
import { columnChoice, dataTable, pager, rowKeys } from "../widgets/table.js";
import { askedBy, calledFrom, frameList } from "../widgets/stack.js";
import { empty, load } from "../widgets/states.js";
import { copy, menu } from "../widgets/menu.js";
import { spark } from "../charts/spark.js";

/** @type {[string, string][]} */
const GROUPS = [["stack", "Stack"], ["function", "Function"], ["file", "File"], ["module", "Module"], ["thread", "Thread"], ["size", "Size"], ["none", "Single"]];

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function allocations(root, url, signal) {
  const by = GROUPS.some(([k]) => k === url.view.by) ? url.view.by : "stack", single = by === "none", full = Boolean(url.view.full), graphs = Boolean(url.view.spark);
  const size = Math.min(500, Math.max(1, Number(url.view.count) || 50)), skip = Math.max(0, Number(url.view.skip) || 0);
  const query = toQuery(url.filter);
  const sort = url.view.sort || (single ? "time" : "size");
  query.set("sort", single ? ({ time: 1, address: 1, size: 1, lifetime: 1 }[sort] ? sort : "time") : sort);
  // The server begins with the least of single blocks; the largest and longest are wanted first.
  if (Boolean(url.view.reverse) !== (single && /^(size|lifetime)$/.test(query.get("sort") || ""))) query.set("reverse", "true");
  query.set("count", String(size));
  if (single && skip && url.view.after) query.set("after", url.view.after);
  if (!single) {
    if (skip) query.set("skip", String(skip));
    query.set("group-by", by);
    if (graphs) query.set("spark", "60");
  }
  // Single blocks and groups each keep their order when one looks at the other.
  const turned = (/** @type {string} */ k) => {
    const { sort, reverse, sort2, reverse2 } = url.view, other = (k === "none") !== single;
    return { by: k, skip: null, after: null, cols: null, ...(other ? { sort: sort2, reverse: reverse2, sort2: sort, reverse2: reverse } : { sort, reverse }) };
  };
  const choice = columnChoice(single ? blockColumns() : groupColumns(by, graphs), url.view.cols);
  const bar = h("div.toolbar", null,
    h("div.segments", { role: "group", "aria-label": "Group by" }, GROUPS.map(([k, text]) => h("button", { type: "button", "data-key": "by-" + k, "aria-pressed": String(k === by), onclick: () => go(to({ view: turned(k) })) }, text))),
    h("span.grow"),
    by === "stack" || single ? check("Full stacks", "full", full) : null,
    single ? null : check("Graphs", "spark", graphs), choice.button);
  const place = h("div.card"), head = h("div.page-head", null, h("h1", null, "Allocations"), h("span.note"));
  fill(root, head, bar, place);
  const path = encodeURIComponent(url.id) + (single ? "/blocks" : "/groups");
  const show = (/** @type {any} */ d) => {
    const t = d.totals;
    fill(/** @type {Element} */ (head.lastChild), t ? `${bytes(t.live_bytes)} live in ${plural(t.live_count, "block")}, ${bytes(t.allocated_bytes)} allocated by ${plural(t.allocations, "allocation")}` : plural(d.total_count, "block"),
      d.peaks === "pending" && d.rows.length ? " · peaks are being computed" : "");
    if (!d.rows.length) return empty("Nothing matches", skip ? "This page is beyond the last row." : "No block fits all of the filters. Remove one above.");
    const rows = single ? singleTable(d, choice.columns, query.get("sort") || "", Boolean(url.view.reverse), full, url) : groupTable(d, choice.columns, by, sort, Boolean(url.view.reverse), full, url);
    return [h("header", null, pager({ skip, size, total: d.total_count, shown: d.rows.length, cursor: single ? cursorOf(url, skip + size, d.next) : undefined })), rows];
  };
  load(place, get(path, query, signal), (d) => {
    // Peaks of a filter's groups need the order of time: they come later, and fill their column in.
    if (d.peaks === "pending" && d.rows.length) {
      const note = /** @type {Element} */ (head.lastChild);
      query.set("peaks", "true");
      note.setAttribute("aria-busy", "true");
      get(path, query, signal).then((whole) => {
        if (signal.aborted) return;
        const key = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.key;
        fill(place, show(whole));
        if (key) /** @type {HTMLElement | null} */ (place.querySelector(`[data-key="${CSS.escape(key)}"]`))?.focus({ preventScroll: true });
      }, () => {}).finally(() => note.removeAttribute("aria-busy"));
    }
    return show(d);
  }, { lines: 16, signal });
  rowKeys(root, signal, (href) => {
    const stack = /stack\/[^/]+\/(\d+)/.exec(href);
    if (stack) go(to({ filter: put(here().filter, "stacks", stack[1]), view: { skip: null } }));
  });
}

/**
 * @param {string} text
 * @param {string} key
 * @param {boolean} on
 */
function check(text, key, on) {
  return h("label.inline", null, h("input", { type: "checkbox", checked: on, "data-key": "check-" + key, onchange: (e) => go(to({ view: { [key]: e.target.checked || null } })) }), text);
}

/**
 * @param {string} by
 * @param {boolean} graphs
 * @returns {import("../widgets/table.js").Column[]}
 */
function groupColumns(by, graphs) {
  const name = { stack: "Asked for by", function: "Function", file: "File", module: "Module", thread: "Thread", size: "Size" }[by] || "Name";
  /** @type {(k: string, f: (v: any) => string) => (r: any) => any} */
  const both = (k, f) => (r) => [f(r[k]), r.all && r.all[k] !== undefined && r.all[k] !== r[k] ? h("div.sub-line", null, "of " + f(r.all[k])) : null];
  return [
    { key: "live", label: "Live", sort: "size", num: true, help: "Bytes live at the end", cell: both("live_bytes", bytes) },
    { key: "blocks", label: "Blocks", sort: "count", num: true, help: "Blocks live at the end", cell: both("live_count", count) },
    { key: "peak", label: "Peak", sort: "peak-size", num: true, help: "Greatest number of bytes live at a time", cell: (r) => (pending(r) ? "…" : bytes(r.peak_bytes)) },
    { key: "peakat", label: "Peak at", sort: "peak-at", num: true, off: true, cell: (r) => (pending(r) ? "…" : duration(r.peak_at_ns)) },
    { key: "allocated", label: "Allocated", sort: "allocated", num: true, help: "Bytes ever allocated", cell: both("allocated_bytes", bytes) },
    { key: "allocations", label: "Allocations", sort: "allocations", num: true, cell: both("allocations", count) },
    { key: "leaked", label: "Never freed", num: true, off: true, help: "Part of the allocations that is live at the end", cell: (r) => percent(r.live_count, r.allocations) },
    { key: "temporary", label: "Temporary", sort: "temporary", num: true, help: "Freed by the next event of their thread", cell: (r) => count(r.temporary) },
    { key: "first", label: "First", sort: "first", num: true, off: true, help: "Time of the first allocation", cell: (r) => duration(r.first_ns) },
    { key: "last", label: "Last", sort: "last", num: true, off: true, help: "Time of the last allocation", cell: (r) => duration(r.last_ns) },
    { key: "interval", label: "Interval", sort: "interval", num: true, off: true, help: "From the first allocation to the last", cell: (r) => duration(r.last_ns - r.first_ns) },
    { key: "age", label: "Oldest", sort: "age", num: true, off: true, help: "Age of the oldest live block", cell: (r) => duration(r.oldest_live_age_ns) },
    ...(graphs ? [{ key: "graph", label: "Live over time", cell: (/** @type {any} */ r) => (r.spark ? spark(r.spark, { label: "Live bytes over time" }) : "–") }] : []),
    ...(by === "function" || by === "file" ? [{ key: "total", label: "With callees", sort: "total", num: true, help: "Live bytes with those of all called functions", cell: (/** @type {any} */ r) => (r.total ? bytes(r.total.live_bytes) : "–") }] : []),
    { key: "name", label: name, wide: true, cell: (r) => (by === "stack" ? [askedBy(r.asked_by, r.frames), calledFrom(r.asked_by, r.frames)] : by === "size" ? sizeName(r) : h("span.asked", null, h("span.fn", null, r.name || "(no stack)"), " ",
      h("span.place", null, r.tid ? "tid " + r.tid : base(r.module), r.stacks ? " · " + plural(r.stacks, "stack") : ""))) },
  ];
}

/** The cursors of pages that were seen: by the address of the first page, and the number of rows before. @type {Map<string, string>} */
const cursors = new Map();

/**
 * Keeps the cursor of the next page; returns what finds those of pages that were seen. The others are reached from the first.
 * @param {import("../core/url.js").View} url
 * @param {number} skip
 * @param {string | null} next
 */
function cursorOf(url, skip, next) {
  const key = to({ view: { skip: null, after: null } }, url) + " ";
  if (next) cursors.set(key + skip, next);
  return (/** @type {number} */ at) => cursors.get(key + at) || null;
}

/** Returns whether a row's peak is still being computed: what has allocated held something. @param {any} r */
const pending = (r) => !r.peak_bytes && r.allocated_bytes > 0;

/** @param {any} r */
function sizeName(r) {
  return r.name || (r.min_size === r.max_size ? bytes(r.min_size) : `${bytes(r.min_size)} to ${bytes(r.max_size)}`);
}

/**
 * @param {any} d
 * @param {import("../widgets/table.js").Column[]} columns
 * @param {string} by
 * @param {string} sort
 * @param {boolean} reverse
 * @param {boolean} full
 * @param {import("../core/url.js").View} url
 */
function groupTable(d, columns, by, sort, reverse, full, url) {
  /** @type {Record<string, (r: any) => [string, string][]>} */
  const narrow = {
    function: (r) => [["function", "^" + r.name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&") + "$"]],
    file: (r) => [["source", r.name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&") + "$"]],
    module: (r) => [["module", r.name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&") + "$"]],
    thread: (r) => [["thread", String(r.tid ?? r.name)]],
    size: (r) => [["min-size", String(r.min_size)], ["max-size", String(r.max_size)]],
  };
  const href = (/** @type {any} */ r) => (by === "stack" ? to({ page: "stack", item: r.id, view: {} }, url)
    : r.name === null && by !== "size" && by !== "thread" ? null : to({ filter: narrow[by](r).reduce((f, [n, v]) => put(f, n, v), url.filter), view: { by: "stack", skip: null, sort: null, cols: null } }, url));
  const rest = d.rest, foot = [];
  const sums = (/** @type {any} */ f) => columns.map((c) => ({ live: bytes(f.live_bytes), blocks: count(f.live_count), allocated: bytes(f.allocated_bytes), allocations: count(f.allocations), temporary: count(f.temporary) }[c.key] ?? ""));
  if (rest && (rest.groups || rest.rows)) {
    const cells = sums(rest);
    cells[cells.length - 1] = plural(rest.groups ?? rest.rows, "other row");
    foot.push(cells);
  }
  return dataTable({
    caption: "Allocations by " + by, columns, rows: d.rows, sort, reverse, href, foot, keyOf: (r) => r.id ?? r.name ?? r.min_size,
    detail: by === "stack" && full ? (r) => frameList(r.frames, { full: true, truncated: r.truncated, source: true }) : undefined,
    menu: (r, x, y) => menu([
      { text: "Open", href: href(r) || to({}, url) },
      by === "stack" && { text: "Only blocks of this stack", run: () => go(to({ filter: put(url.filter, "stacks", String(r.id)), view: { skip: null } }, url)) },
      by === "stack" && { text: "Its single blocks", href: to({ filter: put(url.filter, "stacks", String(r.id)), view: { by: "none", sort: null, skip: null, cols: null } }, url) },
      by === "stack" && { text: "Only blocks freed at this stack", href: to({ filter: put(url.filter, "free-stacks", String(r.id)), view: { skip: null } }, url) },
      Boolean(href(r)) && { text: "Flame graph of it", href: to({ page: "flame", filter: by === "stack" ? put(url.filter, "stacks", String(r.id)) : narrow[by](r).reduce((f, [n, v]) => put(f, n, v), url.filter), view: {} }, url) },
      { text: "Copy as text", run: () => copy(by === "stack" ? r.frames.map(frameName).join("\n") : r.name || "", "Text"), separator: true },
    ], x, y, "What to do with this row"),
  });
}

/** @returns {import("../widgets/table.js").Column[]} */
export function blockColumns() {
  return [
    { key: "time", label: "Allocated", sort: "time", asc: true, num: true, help: "Time since the start", cell: (r) => h("span", { title: r.when }, clock(r.allocated_ns)) },
    { key: "lifetime", label: "Lifetime", sort: "lifetime", num: true, cell: (r) => (r.freed_ns === null ? h("span", { title: "Never freed" }, "∞") : duration(r.lifetime_ns ?? r.freed_ns - r.allocated_ns)) },
    { key: "chainlife", label: "Lifetime with reallocations", num: true, off: true, cell: (r) => (r.chain ? (r.chain.lifetime_ns === null ? "∞" : duration(r.chain.lifetime_ns)) : "–") },
    { key: "size", label: "Size", sort: "size", num: true, help: "Size asked for, and what the allocator made usable", cell: (r) => [bytes(r.size), r.usable !== null && r.usable !== undefined && r.usable !== r.size ? h("span.sub-line", null, ` (${bytes(r.usable)})`) : null] },
    { key: "address", label: "Address", sort: "address", asc: true, cell: (r) => h("span.mono", null, r.address) },
    { key: "thread", label: "Thread", cell: (r) => (r.thread ? (r.thread.name ? r.thread.name + " " : "") + r.thread.tid : "–") },
    { key: "chain", label: "Realloc.", help: "Place in its chain of reallocations", cell: (r) => (r.chain && r.chain.length > 1 ? `${ordinal(r.chain.position)} of ${r.chain.length}` : "–") },
    { key: "allocator", label: "Arena", help: "What glibc's header says", cell: (r) => (r.mmapped ? "mapped on its own" : r.arena || "–") },
    { key: "by", label: "Asked for by", wide: true, cell: (r) => (r.place ? askedBy(r.place.asked_by, r.place.frames) : "–") },
  ];
}

/**
 * @param {any} d
 * @param {import("../widgets/table.js").Column[]} columns
 * @param {string} sort
 * @param {boolean} reverse
 * @param {boolean} full
 * @param {import("../core/url.js").View} url
 */
function singleTable(d, columns, sort, reverse, full, url) {
  const about = recording(url.id)?.head?.recording, rows = d.rows.map((/** @type {any} */ r) => ({ ...r, when: about ? `${when(about.started_unix_ns + r.allocated_ns)}, ${percent(r.allocated_ns, about.duration_ns)} of the recording` : null, place: (d.stacks || {})[r.stack], freed: (d.stacks || {})[r.free_stack] }));
  const with_ = (/** @type {string} */ n, /** @type {any} */ v) => to({ filter: put(url.filter, n, String(v)), view: { skip: null } }, url);
  return dataTable({
    caption: "Single allocations", columns, rows, sort, reverse, keyOf: (r) => r.id, href: (r) => to({ page: "block", item: r.id, view: {} }, url),
    detail: full ? (r) => [r.place ? frameList(r.place.frames, { full: true, truncated: r.place.truncated, source: true }) : null,
      r.freed ? [h("h3", null, r.chain && r.chain.position + 1 < r.chain.length ? "Reallocated at" : "Freed at"), frameList(r.freed.frames, { full: true })] : null] : undefined,
    menu: (r, x, y) => menu([
      { text: "Open", href: to({ page: "block", item: r.id, view: {} }, url) },
      { text: "Only blocks of this stack", href: with_("stacks", r.stack) },
      r.free_stack !== null && r.free_stack !== undefined && { text: "Only blocks freed at the same stack", href: with_("free-stacks", r.free_stack) },
      { text: "The stack", href: to({ page: "stack", item: r.stack, view: {} }, url) },
      { text: "Copy address", run: () => copy(r.address, "Address"), separator: true },
    ], x, y, "What to do with this block"),
  });
}
