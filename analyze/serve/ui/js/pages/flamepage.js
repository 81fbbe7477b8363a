// Flame graphs: top-down, bottom-up and sandwich, with search, zoom, transforms and a brush of time.

import { fill, h, later } from "../core/dom.js";
import { icon } from "../core/icon.js";
import { get } from "../core/api.js";
import { amount, count, percent } from "../core/format.js";
import { exactly, put, toQuery } from "../core/filters.js";
import { go, here, quietly, to } from "../core/app.js";
import { bind } from "../core/keys.js";
import { onTheme } from "../core/theme.js";
import { flameChart } from "../charts/flame.js";
import { buildTree, byFunction, matchedValue, pathOf, searchFrames, smallBelow, transformTree } from "../charts/layout.js";
import { empty, load } from "../widgets/states.js";
import { copy, menu } from "../widgets/menu.js";
import { dataTable } from "../widgets/table.js";
import { timeBrush } from "./timebrush.js";

/** @type {[string, string, string][]} */
export const METRICS = [["live", "Live", "live"], ["peak", "Peak", "at the peak"], ["allocated", "Allocated", "allocated"], ["allocations", "Allocations", "allocations"], ["temporary", "Temporary", "temporary"], ["leaked", "Leaked", "leaked"]];

/**
 * Reads the list of transforms of an address: `focus:main~merge:f`.
 * @param {string | undefined} text
 * @returns {[string, string][]}
 */
export function transformsOf(text) {
  return (text || "").split("~").filter(Boolean).map((t) => {
    const at = t.indexOf(":");
    return [t.slice(0, at), decodeURIComponent(t.slice(at + 1))];
  });
}

/** @param {[string, string][]} list */
function transformText(list) {
  return list.map(([kind, name]) => kind + ":" + encodeURIComponent(name)).join("~") || null;
}

/**
 * Returns the node that a path of names leads to from the root, or as far as it goes.
 * @param {import("../charts/layout.js").FlameTree} tree
 * @param {import("../charts/layout.js").FlameFrame[]} frames
 * @param {string} path names with "~" between
 */
export function nodeOfPath(tree, frames, path) {
  let node = 0;
  for (const name of path.split("~").filter(Boolean).map(decodeURIComponent)) {
    let child = tree.first[node];
    while (child >= 0 && (tree.frame[child] < 0 || frames[tree.frame[child]].name !== name)) child = tree.next[child];
    if (child < 0) break;
    node = child;
  }
  return node;
}

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function flamePage(root, url, signal) {
  const v = url.view, metric = METRICS.some(([k]) => k === v.metric) ? v.metric : "live", mode = v.mode === "sandwich" && v.fn ? "sandwich" : v.dir === "up" ? "up" : "down";
  const id = encodeURIComponent(url.id), query = toQuery(url.filter);
  // Where nothing is live and nothing is chosen, the server shows what was.
  if (v.metric || v.at) query.set("metric", metric);
  if (v.at) query.set("at", v.at);
  if (v.r && mode !== "sandwich") query.set("root", v.r);
  if (v.base) query.set("base", v.base);
  if (v.bf || v.bt) {
    query.set("base-start", v.bf || "0");
    query.set("base-end", v.bt || "100%");
  }
  const place = h("div.card"), brush = h("div.card"), tabs = h("span", null, metricTabs(metric)), why = h("span.note");
  const chosen = (/** @type {any} */ d) => {
    const own = d.metric || metric;
    if (own !== metric) fill(tabs, metricTabs(own));
    fill(why, d.why || null);
    return own;
  };
  fill(root, h("div.page-head", null, h("h1", null, "Flame graph"), tabs, why, h("span.grow"), modeTabs(mode, v)), brush, place);
  timeBrush(brush, url, signal);
  if (mode === "sandwich") {
    query.set("function", v.fn);
    load(place, get(id + "/sandwich", query, signal), (d) => sandwich(d, v.fn, chosen(d.callees ? { ...d, metric: d.metric || d.callees.metric } : d), url, signal), { lines: 14, signal });
  } else {
    query.set("dir", mode);
    load(place, get(id + "/flame", query, signal), (d) => graph(d, chosen(d), mode, url, signal), { lines: 14, signal });
  }
  bind("Flame graph", [
    ["i", "turn round: callers or callees", () => go(to({ view: { dir: mode === "up" ? null : "up", mode: null, fn: null, z: null, r: null, rn: null } }))],
    ...METRICS.map(([k, name], i) => /** @type {[string, string, () => void]} */ ([String(i + 1), "metric: " + name.toLowerCase(), () => go(to({ view: { metric: k } }))])),
  ], signal);
}

/** @param {string} metric */
function metricTabs(metric) {
  return h("div.segments", { role: "group", "aria-label": "Metric" }, METRICS.map(([k, text]) => h("button", { type: "button", "data-key": "metric-" + k, "aria-pressed": String(k === metric), onclick: () => go(to({ view: { metric: k } })) }, text)));
}

/**
 * @param {string} mode
 * @param {Record<string, string>} v
 */
function modeTabs(mode, v) {
  const one = (/** @type {string} */ k, /** @type {string} */ text, /** @type {any} */ view) => h("button", { type: "button", "data-key": "mode-" + k, "aria-pressed": String(k === mode), onclick: () => go(to({ view })) }, text);
  return h("div.segments", { role: "group", "aria-label": "Direction" }, one("down", "Top down", { dir: null, mode: null, fn: null, z: null, r: null, rn: null }), one("up", "Bottom up", { dir: "up", mode: null, fn: null, z: null, r: null, rn: null }),
    mode === "sandwich" ? one("sandwich", "Sandwich: " + v.fn, {}) : null);
}

/**
 * @param {any} d
 * @param {string} metric
 * @param {string} mode
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
function graph(d, metric, mode, url, signal) {
  if (!d.total && !d.base_total) return empty("Nothing is " + (METRICS.find(([k]) => k === metric) || ["", "", metric])[2], "Choose another metric, or remove a filter.");
  const v = url.view, transforms = transformsOf(v.t), changed = transformTree(d.nodes, d.frames, transforms), frames = changed.frames;
  let order = /** @type {"value" | "name"} */ (v.order === "name" ? "name" : "value");
  let tree = buildTree(changed.columns, frames, order), hitAt = -1;
  const words = (METRICS.find(([k]) => k === metric) || ["", "", metric])[2];
  const state = {
    tree, frames, unit: d.unit || "bytes", metric: words, up: Boolean(v.tab === "flame"), zoom: nodeOfPath(tree, frames, v.z || ""),
    color: v.color || (tree.base ? "diff" : "module"), hits: /** @type {Uint8Array | null} */ (null), rootName: v.rn || "all",
  };
  const crumbs = h("nav.crumbs", { "aria-label": "Zoomed to" }), found = h("span.note.figures", { role: "status" }), table = h("div");
  const chart = flameChart(state, { signal, onZoom: zoomed, onMenu: frameMenu });

  function zoomed(/** @type {number} */ node, push = true) {
    drawCrumbs();
    const path = pathOf(tree, node).slice(1).map((n) => encodeURIComponent(chart.nameOf(n))).join("~");
    quietly(to({ view: { z: path || null } }), push);
  }
  function drawCrumbs() {
    const path = pathOf(tree, state.zoom), ids = path.slice(1).map((n) => (frames[tree.frame[n]] || {}).id), small = smallBelow(tree, state.zoom);
    fill(crumbs, v.r ? [h("button.quiet", { type: "button", "data-key": "flame-all", onclick: () => go(to({ view: { r: null, rn: null, z: null } })) }, "all"), icon("right")] : null, path.map((n, i) => [i ? icon("right") : null, h("button.quiet", { type: "button", title: chart.describe(n).join("\n"), onclick: () => { chart.set({ zoom: n }); zoomed(n); } }, chart.nameOf(n))]),
      transforms.map(([kind, name], i) => h("span.chip", null, h("span.chip-text", null, `${kind} ${name}`), h("button.chip-close", { type: "button", "aria-label": "Undo " + kind + " " + name, onclick: () => go(to({ view: { t: transformText(transforms.filter((_, k) => k !== i)), z: null } })) }, icon("close")))),
      // The server leaves out what is too small for the whole; below a node it is not.
      state.zoom && small && ids.every((i) => typeof i === "number") ? h("button", {
        type: "button", "data-key": "flame-small", onclick: () => go(to({ view: { r: [...(v.r ? [v.r] : []), ...ids].join("."), rn: chart.nameOf(state.zoom), z: null } })),
      }, "Show the small ones, " + amount(small, state.unit)) : null);
  }
  function search(/** @type {string} */ text) {
    state.hits = searchFrames(frames, text);
    hitAt = -1;
    chart.set({ hits: state.hits });
    if (!state.hits) fill(found);
    else {
      const m = matchedValue(tree, state.hits);
      fill(found, `${count(m.count)} ${m.count === 1 ? "box" : "boxes"}, ${amount(m.value, state.unit)}, ${percent(m.value, tree.value[0])}`);
    }
  }
  function nextHit(/** @type {number} */ by) {
    if (!state.hits) return;
    for (let n = 0, i = hitAt; n < tree.count; n++) {
      i = (i + by + tree.count) % tree.count;
      if (tree.frame[i] >= 0 && state.hits[tree.frame[i]]) {
        hitAt = i;
        chart.set({ zoom: i });
        zoomed(i, false);
        return;
      }
    }
  }
  function frameMenu(/** @type {number} */ node, /** @type {number} */ x, /** @type {number} */ y) {
    const f = frames[tree.frame[node]], name = chart.nameOf(node), { filter } = here();
    const change = (/** @type {string} */ kind, /** @type {string} */ what) => go(to({ view: { t: transformText([...transforms, [kind, what]]), z: null } }));
    const module = f && f.module ? f.module.slice(f.module.lastIndexOf("/") + 1) : "";
    menu([
      { text: "Zoom here", run: () => { chart.set({ zoom: node }); zoomed(node); }, hint: "Enter" },
      f && { text: "Sandwich: callers and callees", href: to({ view: { mode: "sandwich", fn: name, z: null } }) },
      f && { text: "Focus: only what it calls", run: () => change("focus", name), separator: true },
      f && { text: "Drop the stacks through it", run: () => change("drop", name) },
      f && { text: "Merge it into its callers", run: () => change("merge", name) },
      f && { text: "Collapse its recursion", run: () => change("recursion", name) },
      Boolean(module) && { text: "Collapse " + module, run: () => change("module", module) },
      f && { text: "Filter: only stacks through it", run: () => go(to({ filter: put(filter, "function", exactly(name)), view: { z: null } })), separator: true },
      f && { text: "Filter: no stacks through it", run: () => go(to({ filter: put(filter, "not-function", exactly(name)), view: { z: null } })) },
      f && { text: "Its allocations", href: to({ page: "allocations", filter: put(filter, "function", exactly(name)), view: {} }) },
      { text: "Copy name", run: () => copy(name, "Name"), separator: true },
      { text: "Copy stack", run: () => copy(pathOf(tree, node).slice(1).map(chart.nameOf).join("\n"), "Stack") },
    ], x, y, name);
  }

  const input = h("input", { type: "search", placeholder: "Search: name, module, /regex/", "aria-label": "Search in the flame graph", value: v.q || "", autocomplete: "off", spellcheck: "false", "data-key": "flame-search" });
  const kept = later((q) => !signal.aborted && quietly(to({ view: { q: q || null } })), 250);
  input.addEventListener("input", () => {
    search(input.value);
    kept(input.value);
  });
  input.addEventListener("keydown", (/** @type {any} */ e) => {
    if (e.key === "Enter") nextHit(e.shiftKey ? -1 : 1);
  });
  const pick = (/** @type {string} */ label, /** @type {string} */ key, /** @type {any} */ now, /** @type {any} */ options, /** @type {any} */ set) =>
    h("label.inline", null, label, h("select", { "data-key": "pick-" + key, onchange: (e) => { set(e.target.value); quietly(to({ view: { [key]: e.target.value } })); } }, options.map((/** @type {[string, string]} */ [o, text]) => h("option", { value: o, selected: o === now }, text))));
  const scale = h("span");
  const scaled = () => fill(scale, state.color === "diff" ? h("span.scale.diff", null, "less", h("span"), "more") : state.color === "value" ? h("span.scale.value", null, "0%", h("span"), "100%") : null);
  const bar = h("header", null, input, found, h("span.grow"), scale,
    pick("colour", "color", state.color, [["module", "by module"], ["hash", "by function"], ["value", "by share"], .../** @type {[string, string][]} */ (tree.base ? [["diff", "by difference"]] : [])], (/** @type {any} */ c) => { chart.set({ color: c }); scaled(); }),
    pick("order", "order", order, [["value", "largest first"], ["name", "by name"]], (/** @type {any} */ o) => {
      const zoom = pathOf(tree, state.zoom).slice(1).map((n) => encodeURIComponent(chart.nameOf(n))).join("~");
      order = /** @type {any} */ (o);
      tree = buildTree(changed.columns, frames, order);
      chart.set({ tree, zoom: nodeOfPath(tree, frames, zoom) });
    }),
    pick("as", "tab", state.up ? "flame" : "icicle", [["icicle", "icicle"], ["flame", "flame"]], (/** @type {any} */ o) => chart.set({ up: o === "flame" })),
    h("label.inline", null, h("input", { type: "checkbox", checked: Boolean(v.full), "data-key": "beside", onchange: (e) => go(to({ view: { full: e.target.checked || null } })) }), "table"));
  onTheme(() => chart.redraw(), signal);
  queueMicrotask(() => {
    chart.set({});
    drawCrumbs();
    scaled();
    if (v.q) search(v.q);
  });
  if (v.full) fill(table, functionTable(tree, frames, state.unit, url, mode === "up"));
  const others = d.others ? h("p.note", null, stacks(d.others), " too small to be drawn are added up as “… others”.") : null;
  return [bar, h("div.beside", { class: v.full ? "both" : "" }, h("div.flame-frame", null, crumbs, chart.root, others), v.full ? table : null)];
}

/** @param {number} n */
function stacks(n) {
  return count(n) + (n === 1 ? " stack" : " stacks");
}

/**
 * The table twin of a flame graph: functions by what they and their callees hold.
 * @param {import("../charts/layout.js").FlameTree} tree
 * @param {import("../charts/layout.js").FlameFrame[]} frames
 * @param {string} unit
 * @param {import("../core/url.js").View} url
 * @param {boolean} up
 */
export function functionTable(tree, frames, unit, url, up) {
  const all = byFunction(tree, up), rows = all.slice(0, 100), total = tree.value[0];
  return dataTable({
    caption: "Functions by what they hold", rows, keyOf: (r) => r.frame, href: (r) => to({ page: "flame", view: { mode: "sandwich", fn: frames[r.frame].name } }, url),
    columns: [
      { key: "total", label: "Total", num: true, cell: (r) => amount(r.total, unit) },
      { key: "share", label: "", num: true, cell: (r) => h("span.share", { style: { "--share": 100 * r.total / (total || 1) + "%" } }, h("span", null, percent(r.total, total))) },
      { key: "self", label: "Self", num: true, cell: (r) => amount(r.self, unit) },
      { key: "fn", label: "Function", wide: true, cell: (r) => h("span.asked", null, h("span.fn", null, frames[r.frame].name)) },
    ],
    foot: all.length > rows.length ? [["", "", "", count(all.length - rows.length) + " more functions"]] : undefined,
  });
}

/**
 * @param {any} d
 * @param {string} name
 * @param {string} metric
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
function sandwich(d, name, metric, url, signal) {
  const words = (METRICS.find(([k]) => k === metric) || ["", "", metric])[2];
  const half = (/** @type {any} */ part, /** @type {boolean} */ up) => {
    if (!part || !part.total) return empty(up ? "Nothing calls it" : "It holds nothing by this metric");
    const tree = buildTree(part.nodes, part.frames, "value");
    const chart = flameChart({ tree, frames: part.frames, unit: part.unit || "bytes", metric: words, up, color: url.view.color || "module", zoom: 0, hits: null, rootName: "all" }, {
      signal, onMenu: (node, x, y) => {
        const f = part.frames[tree.frame[node]];
        menu([f && { text: "Sandwich of " + f.name, href: to({ view: { mode: "sandwich", fn: f.name } }) }, { text: "Copy name", run: () => copy(chart.nameOf(node), "Name") }], x, y, chart.nameOf(node));
      },
    });
    queueMicrotask(() => chart.set({}));
    onTheme(() => chart.redraw(), signal);
    return chart.root;
  };
  return [h("header", null, h("h2", null, name), h("span.note", null, d.callees ? amount(d.callees.total, d.callees.unit || "bytes") + " " + words + " through it" : "")),
    h("div.flame-frame", null, h("p.note", null, "Callers: who asks through it, the direct caller next to the line"), half(d.callers, true)),
    h("div.flame-frame", null, h("p.note", null, "Callees: where what it asks for goes"), half(d.callees, false))];
}
