// The tree of calls as a table: each node's children are loaded when it is opened.

import { fill, h } from "../core/dom.js";
import { icon } from "../core/icon.js";
import { get } from "../core/api.js";
import { base, bytes, count, frameName, framePlace, percent } from "../core/format.js";
import { toQuery } from "../core/filters.js";
import { go, to } from "../core/app.js";
import { bind } from "../core/keys.js";
import { failed, load, loading, empty } from "../widgets/states.js";
import { frameActions } from "../widgets/stack.js";
import { menu } from "../widgets/menu.js";

/** The figures that a tree can be sorted by: key of the server, words, field, how it is written. @type {[string, string, string, (v: any) => string][]} */
const SORTS = [["size", "Live", "live_bytes", bytes], ["allocated", "Allocated", "allocated_bytes", bytes], ["allocations", "Allocations", "allocations", count], ["temporary", "Temporary", "temporary", count]];

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function treePage(root, url, signal) {
  const up = url.view.dir === "up", given = SORTS.find(([k]) => k === url.view.sort), id = encodeURIComponent(url.id);
  const place = h("div.card");
  let sort = given || SORTS[0];
  const segment = (/** @type {string} */ key, /** @type {string} */ text, /** @type {any} */ on, /** @type {any} */ view) => h("button", { type: "button", "data-key": key, "aria-pressed": String(on), onclick: () => go(to({ view })) }, text);
  const sorts = h("span"), why = h("span.note");
  const drawSorts = () => fill(sorts, h("div.segments", { role: "group", "aria-label": "Sort by" }, SORTS.map((s) => segment("sort-" + s[0], s[1], s === sort, { sort: s[0] }))));
  drawSorts();
  fill(root, h("div.page-head", null, h("h1", null, "Call tree"), sorts, why, h("span.grow"),
    h("div.segments", { role: "group", "aria-label": "Direction" }, segment("down", "Top down", !up, { dir: null }), segment("up", "Bottom up", up, { dir: "up" }))), place);
  const ask = (/** @type {any} */ node) => {
    const query = toQuery(url.filter);
    // Where nothing is live and nothing is chosen, the server shows what was.
    if (given || node !== null) query.set("sort", sort[0]);
    if (up) query.set("bottom-up", "true");
    if (node !== null) query.set("node", String(node));
    return get(id + "/tree", query, signal);
  };
  load(place, ask(null), (d) => {
    if (!d.children.length) return empty("Nothing matches", "No block fits all of the filters.");
    const own = SORTS.find(([k]) => k === d.sort);
    if (own && !given) {
      sort = own;
      drawSorts();
      fill(why, d.why || null);
    }
    const total = (d.node || d.totals)[sort[2]];
    const list = h("ul.tree", { role: "tree", "aria-label": "Call tree" });
    fill(list, d.children.map((/** @type {any} */ c) => node(c, 0, total, sort, ask)));
    openAlone(list);
    treeKeys(list);
    return [h("div.tree-row.tree-head", { "aria-hidden": true }, h("span", null, up ? "Function, with its callers below" : "Function"), h("span.num", null, sort[1]), h("span.num.opt", null, "Self"), h("span.num.opt", null, "Blocks"), h("span.num", null, "Share")), list];
  }, { lines: 14, signal });
  bind("Tree", [["i", "turn round: callers or callees", () => go(to({ view: { dir: up ? null : "up" } }))]], signal);
}

/**
 * Makes a node; its children come when it is opened.
 * @param {any} d
 * @param {number} depth
 * @param {number} total
 * @param {[string, string, string, (v: any) => string]} sort
 * @param {(node: any) => Promise<any>} ask
 */
function node(d, depth, total, sort, ask) {
  const [, , field, text] = sort, has = d.deeper !== false && d.node !== undefined && d.node !== null;
  const own = d.own ? d.own[field] : has ? 0 : d[field], place = d.place || {};
  return treeItem({
    depth, value: d[field],
    name: [h("span.fn", { title: frameName(place) + (place.file ? "\n" + place.file : "") }, frameName(place)), h("span.place", null, framePlace(place) || base(place.module))],
    cells: [h("span.num", null, text(d[field])), h("span.num.opt", null, own ? text(own) : ""), h("span.num.opt", null, count(d.live_count)),
      h("span.num", null, h("span.share", { style: { "--share": 100 * d[field] / (total || 1) + "%" } }, h("span", null, percent(d[field], total))))],
    more: has ? async () => (await ask(d.node)).children.map((/** @type {any} */ c) => node(c, depth + 1, total, sort, ask)) : null,
    actions: () => [frameActions(place), frameName(place)],
  });
}

/**
 * Makes a row with a place for what is below it.
 * @param {{depth: number, value: number, name: any, cells: any[], more: null | (() => Promise<any>), actions?: () => [any[], string]}} row
 *   `value`: what decides which row of a list is opened by itself; `more`: returns what is below; `actions`: its menu, and the
 *   menu's title
 */
export function treeItem({ depth, value, name, cells, more, actions }) {
  const below = h("ul", { role: "group", hidden: true });
  let loaded = false;
  const toggle = async () => {
    if (!more) return;
    const open = row.getAttribute("aria-expanded") !== "true";
    row.setAttribute("aria-expanded", String(open));
    below.hidden = !open;
    if (!open || loaded) return;
    loaded = true;
    // A tree may hold nothing but its items.
    const wait = loading(2);
    wait.removeAttribute("role");
    wait.removeAttribute("aria-label");
    fill(below, h("li", { role: "none", "aria-hidden": true }, wait));
    below.setAttribute("aria-busy", "true");
    try {
      fill(below, await more());
      openAlone(below);
    } catch (e) {
      loaded = false;
      if (/** @type {any} */ (e).name !== "AbortError") fill(below, failed(e));
    } finally {
      below.removeAttribute("aria-busy");
    }
  };
  const row = h("div.tree-row", { role: "treeitem", "aria-level": depth + 1, "aria-expanded": more ? "false" : null, tabindex: -1, style: { "--depth": depth } },
    h("span.tree-name", null, h("button.twist", { type: "button", tabindex: -1, "aria-label": "Open", disabled: !more, onclick: toggle }, more ? icon("right") : null), name), cells);
  row.addEventListener("dblclick", toggle);
  if (actions) {
    row.addEventListener("contextmenu", (/** @type {any} */ e) => {
      e.preventDefault();
      const [items, title] = actions();
      menu(items, e.clientX, e.clientY, title);
    });
  }
  row.toggle = toggle;
  row.value = value;
  return h("li", { role: "none" }, row, below);
}

/**
 * Opens the largest node of a list if it has nearly all: the way that one would go.
 * @param {HTMLElement} list
 */
export function openAlone(list) {
  const rows = /** @type {any[]} */ ([...list.querySelectorAll(":scope > li > .tree-row")]);
  if (rows.length && rows[0].value >= 0.8 * rows.reduce((sum, r) => sum + r.value, 0)) rows[0].toggle();
}

/**
 * Binds the keys that move through a tree.
 * @param {HTMLElement} list
 */
export function treeKeys(list) {
  const rows = () => /** @type {any[]} */ ([...list.querySelectorAll(".tree-row")].filter((r) => /** @type {HTMLElement} */ (r).offsetParent));
  // The list is not in the document yet. Tab leads to the row that had the focus last.
  let last = /** @type {HTMLElement | null} */ (list.querySelector(".tree-row"));
  if (last) last.tabIndex = 0;
  list.addEventListener("focusin", (e) => {
    const row = /** @type {HTMLElement | null} */ (/** @type {Element} */ (e.target).closest(".tree-row"));
    if (last) last.tabIndex = -1;
    if (row) row.tabIndex = 0;
    last = row;
  });
  list.addEventListener("keydown", (e) => {
    const all = rows(), at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const row = all[at], open = row.getAttribute("aria-expanded");
    const focus = (/** @type {any} */ r) => r && r.focus();
    if (e.key === "ArrowDown" || e.key === "j") focus(all[at + 1]);
    else if (e.key === "ArrowUp" || e.key === "k") focus(all[at - 1]);
    else if (e.key === "ArrowRight") open === "false" ? row.toggle() : focus(all[at + 1]);
    else if (e.key === "ArrowLeft") open === "true" ? row.toggle() : focus(row.closest("ul").parentElement.querySelector(":scope > .tree-row"));
    else if (e.key === "Enter" || e.key === " ") row.toggle();
    else return;
    e.preventDefault();
    e.stopPropagation();
  });
}
