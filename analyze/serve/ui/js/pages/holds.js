// Who holds the live blocks: the roots and what hangs on them, stacks by what they retain, and what has changed between scans.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { bytes, count, duration, percent, plural, signed } from "../core/format.js";
import { go, to } from "../core/app.js";
import { dataTable, rowKeys } from "../widgets/table.js";
import { askedBy, calledFrom, frameList } from "../widgets/stack.js";
import { empty, load } from "../widgets/states.js";
import { openAlone, treeItem, treeKeys } from "./tree.js";

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function holdsPage(root, url, signal) {
  const id = encodeURIComponent(url.id), head = h("div.page-head", null, h("h1", null, "Holders")), figures = h("div"), main = h("div.card"), more = h("div.card");
  fill(root, head, figures, main, more);
  load(figures, get(id + "/scans", {}, signal), (d) => {
    if (!d.rows.length) {
      more.remove();
      fill(figures);
      fill(main, empty("The recording has no scan", "While the process is recorded, ", h("code", null, "prof holds " + d.pid + " --save"), " adds one."));
      return;
    }
    const chosen = url.view.scan || String(d.rows.length), since = url.view.against || "";
    fill(head, h("h1", null, "Holders"), picker("scan", "Scan", d.rows, chosen, null), d.rows.length > 1 ? picker("against", "against", d.rows.filter((/** @type {any} */ s) => String(s.number) !== chosen), since, "nothing") : null);
    const query = { scan: chosen };
    if (since) {
      more.remove();
      load(main, get(id + "/holds", { ...query, since, top: 200 }, signal), (c) => changes(c, figures), { lines: 14, signal });
    } else {
      const all = get(id + "/holds", { ...query, by: "stack", top: 50 }, signal);
      load(figures, all, figureRow, { lines: 3, signal });
      load(main, get(id + "/holders", query, signal), (t) => roots(t, (node) => get(id + "/holders", { ...query, node }, signal)), { lines: 12, signal });
      load(more, all, (r) => stacks(r, url, id, query, signal), { lines: 10, signal });
    }
  }, { lines: 3, signal });
  rowKeys(root, signal);
}

/**
 * Makes the choice of a scan.
 * @param {string} key
 * @param {string} label
 * @param {any[]} scans
 * @param {string} chosen
 * @param {string | null} none words for no scan, if that can be chosen
 */
function picker(key, label, scans, chosen, none) {
  const words = (/** @type {any} */ s) => "#" + s.number + (s.name ? " " + s.name : "") + ", " + duration(s.at_ns) + ", " + plural(s.blocks, "block");
  return h("label.inline", null, h("span", null, label), h("select", { "data-key": "pick-" + key, onchange: (e) => go(to({ view: { [key]: e.target.value || null } })) },
    none ? h("option", { value: "", selected: !chosen }, none) : null, scans.map((s) => h("option", { value: s.number, selected: String(s.number) === chosen }, words(s)))));
}

/**
 * @param {string} name
 * @param {any} value
 * @param {string} [sub]
 */
const figure = (name, value, sub = "") => h("div.figure", null, h("div.name", null, name), h("div.value", null, value), h("div.sub", null, sub));

/**
 * @param {any} d
 * @param {number} all
 */
const share = (d, all) => h("span.share", { style: { "--share": 100 * d.retained.bytes / (all || 1) + "%" } }, h("span", null, percent(d.retained.bytes, all)));

/** @param {any} r */
function figureRow(r) {
  const s = r.scan;
  return [h("div.figures-row", null,
    figure("Live", bytes(r.live.bytes), plural(r.live.blocks, "block")),
    figure("Held by", count(r.roots), r.roots === 1 ? "root" : "roots"),
    figure("No root leads to", bytes(r.unreachable.bytes), plural(r.unreachable.blocks, "block")),
    figure("Moment", duration(r.at_ns), "after the start"),
    figure("Read", bytes(s.scanned_bytes), s.stop_ns === null ? "while the process ran" : "threads stopped for " + duration(s.stop_ns))),
  r.pointers_left_out ? h("p.note", null, plural(r.pointers_left_out, "pointer") + " had no room.") : null];
}

/** @param {any} d */
function nameOf(d) {
  if (d.kind) return [d.node === d.kind ? null : h("span.badge", null, d.kind), h("span.fn", { title: d.name }, d.function ? d.function + " #" + d.frame : d.name), d.file ? h("span.place", null, d.file + (d.line ? ":" + d.line : "")) : null];
  const cls = d.class ? h("span.fn", { title: d.class }, (d.class_blocks < d.own.blocks ? "mostly " : "") + d.class) : null;
  return [cls, h("span" + (cls ? ".place" : ".fn"), { title: d.from }, d.from)];
}

/**
 * The roots as a tree: what hangs on one is loaded when it is opened.
 * @param {any} t
 * @param {(node: any) => Promise<any>} ask
 */
function roots(t, ask) {
  if (!t.children.length) return empty("No root leads to a block", "Nothing points to a block of the recording.");
  const total = t.live.bytes;
  const item = (/** @type {any} */ d, /** @type {number} */ depth) => treeItem({
    depth, value: d.retained.bytes, name: nameOf(d),
    cells: [h("span.num", null, bytes(d.retained.bytes)), h("span.num.opt", null, d.own ? bytes(d.own.bytes) : ""), h("span.num.opt", null, count(d.retained.blocks)),
      h("span.num", null, share(d, total))],
    more: d.deeper ? async () => list((await ask(d.node)), depth + 1) : null,
  });
  const list = (/** @type {any} */ got, /** @type {number} */ depth) => [got.children.map((/** @type {any} */ c) => item(c, depth)),
    got.more ? treeItem({ depth, value: 0, name: [h("span.place", null, plural(got.more.count, "more holder"))], cells: [h("span.num", null, bytes(got.more.retained.bytes)), h("span.num.opt"), h("span.num.opt", null, count(got.more.retained.blocks)), h("span.num")], more: null }) : null];
  const tree = h("ul.tree", { role: "tree", "aria-label": "Roots" });
  fill(tree, list(t, 0));
  openAlone(tree);
  treeKeys(tree);
  return [h("header", null, h("h2", null, "Roots"), h("span.note", null, "What each retains would be unreachable without it.")),
    h("div.tree-row.tree-head", { "aria-hidden": true }, h("span", null, "Root, and who allocated what it holds"), h("span.num", null, "Retains"), h("span.num.opt", null, "Own"), h("span.num.opt", null, "Blocks"), h("span.num", null, "Share")), tree];
}

/**
 * Stacks by what all their blocks retain, each with the shortest way to one of them.
 * @param {any} r
 * @param {import("../core/url.js").View} url
 * @param {string} id
 * @param {any} query
 * @param {AbortSignal} signal
 */
function stacks(r, url, id, query, signal) {
  if (!r.top_stacks.length) return empty("No stack's blocks are held");
  const way = (/** @type {any} */ s) => {
    const place = h("div"), more = h("details", null, h("summary.note", null, "Stack, and the shortest way to it"), frameList(s.frames, { truncated: s.truncated }), place);
    more.addEventListener("toggle", () => {
      if (/** @type {any} */ (more).open && !place.firstChild) load(place, get(id + "/holds", { ...query, by: "none", path: s.stack }, signal), (d) => chain(d.paths[0]), { lines: 3, signal });
    });
    return more;
  };
  const known = (/** @type {any} */ s) => s.frames.length > 0;
  return [h("header", null, h("h2", null, "Call stacks"), h("span.note", null, "What would be unreachable without a stack's blocks.")), dataTable({
    caption: "Call stacks", rows: r.top_stacks, keyOf: (s) => s.stack, href: (s) => (known(s) ? to({ page: "stack", item: s.stack, view: {} }, url) : null), detail: way,
    columns: [
      { key: "retained", label: "Retains", num: true, cell: (s) => [s.at_least ? h("span", { title: "Several of its blocks may hold more together" }, "≥ ") : null, bytes(s.retained.bytes), h("div.sub-line", null, plural(s.retained.blocks, "block"))] },
      { key: "share", label: "Share", num: true, cell: (s) => share(s, r.live.bytes) },
      { key: "own", label: "Own", num: true, cell: (s) => [bytes(s.own.bytes), h("div.sub-line", null, plural(s.own.blocks, "block"))] },
      { key: "by", label: "Asked for by", wide: true, cell: (s) => [s.class ? h("span.badge", null, s.class) : null, " ", known(s) ? askedBy(s.asked_by, s.frames) : "before the attach", calledFrom(s.asked_by, s.frames)] },
    ],
  })];
}

/** @param {any} p */
function chain(p) {
  if (!p || !p.root) return h("p.note", null, "No root leads there.");
  return h("ol.chain", null, h("li", null, h("b", null, p.root.name + (p.root_offset ? "+0x" + p.root_offset.toString(16) : ""))),
    p.blocks.map((/** @type {any} */ b) => h("li", null, h("code", null, b.address), " ", b.class ? b.class + ", " : "", bytes(b.size), ", ", b.from)));
}

/**
 * Shows which roots came to hold more or less between two scans.
 * @param {any} c
 * @param {Element} figures
 */
function changes(c, figures) {
  const change = (/** @type {any} */ of) => signed(of.after.bytes - of.before.bytes), blocks = (/** @type {any} */ of) => of.after.blocks - of.before.blocks;
  const plus = (/** @type {number} */ n) => (n < 0 ? "-" : "+") + plural(Math.abs(n), "block");
  const one = (/** @type {string} */ name, /** @type {any} */ of) => figure(name, change(of), bytes(of.before.bytes) + " → " + bytes(of.after.bytes));
  fill(figures, h("div.figures-row", null, one("Live", c.live), one("No root leads to", c.unreachable), one("Held by several roots", c.shared), figure("Roots that changed", count(c.changed_roots)), figure("Time between", duration(Math.abs(c.after.at_ns - c.before.at_ns)))));
  if (!c.roots.length) return empty("No root retains more or less than before");
  return [h("header", null, h("h2", null, "What came to be held by whom"), h("span.note", null, "#" + c.before.number + " → #" + c.after.number)), dataTable({
    caption: "What came to be held by whom", rows: c.roots, keyOf: (r) => r.kind + r.name,
    columns: [
      { key: "change", label: "Change", num: true, cell: (r) => [change(r), h("div.sub-line", null, plus(blocks(r)))] },
      { key: "before", label: "Before", num: true, cell: (r) => bytes(r.before.bytes) },
      { key: "after", label: "After", num: true, cell: (r) => bytes(r.after.bytes) },
      { key: "root", label: "Root, and stacks below it", wide: true, cell: (r) => [h("span.badge", { class: r.was ? (r.is ? "" : "good") : "warn" }, r.was ? (r.is ? r.kind : "holds nothing any more") : "new"), " ", h("span.fn", null, r.name),
        r.stacks.map((/** @type {any} */ s) => h("div.sub-line", null, change(s) + " " + plus(blocks(s)) + ": " + s.from))] },
    ],
  })];
}
