// The timeline: series to switch, lanes by unit, the strip below, and what the selection holds.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { amount, bytes, count, duration, moment, signed } from "../core/format.js";
import { put, toQuery } from "../core/filters.js";
import { go, here, quietly, to } from "../core/app.js";
import { palette } from "../charts/canvas.js";
import { SERIES } from "../charts/color.js";
import { timeChart, timeModel } from "../charts/series.js";
import { overviewStrip } from "../charts/strip.js";
import { menu, menuBelow } from "../widgets/menu.js";
import { load } from "../widgets/states.js";
import { onTheme } from "../core/theme.js";
import { rangeOf, withRange } from "../core/range.js";

/**
 * The series that can be shown: name for the server, words, unit, index of the colour, whether values are sums that are
 * shown as rates, and of which sums it is made: those added, and those taken away. Series after the sixth are in a menu.
 * @type {{key: string, name: string, unit: string, color: number, rate?: boolean, of?: [string[], string[]]}[]}
 */
export const CHOICE = [
  { key: "live_bytes", name: "Live", unit: "bytes", color: 0 },
  { key: "leaked_bytes", name: "Never freed", unit: "bytes", color: 6 },
  { key: "rss", name: "Resident", unit: "bytes", color: 1 },
  { key: "fragmentation", name: "Resident − live", unit: "bytes", color: 3 },
  { key: "allocations", name: "Allocations", unit: "/s", color: 2, rate: true },
  { key: "frees", name: "Frees", unit: "/s", color: 4, rate: true },
  { key: "vss", name: "Address space", unit: "bytes", color: 5 },
  { key: "anonymous", name: "Anonymous", unit: "bytes", color: 4 },
  { key: "dirty", name: "Dirty", unit: "bytes", color: 6 },
  { key: "clean", name: "Clean", unit: "bytes", color: 7 },
  { key: "swap", name: "Swapped out", unit: "bytes", color: 8 },
  { key: "allocated_bytes", name: "Allocated", unit: "bytes/s", color: 7, rate: true },
  { key: "live_blocks", name: "Live blocks", unit: "count", color: 2 },
  { key: "leaked_blocks", name: "Blocks never freed", unit: "count", color: 6 },
  { key: "growth", name: "Growth", unit: "bytes/s", color: 3, rate: true, of: [["allocated_bytes"], ["freed_bytes"]] },
  { key: "block_growth", name: "Growth of blocks", unit: "/s", color: 5, rate: true, of: [["allocations", "reallocations"], ["ends"]] },
  { key: "temporary", name: "Temporary", unit: "/s", color: 8, rate: true },
];
/** How many series have a button of their own. */
const COMMON = 6;
const DEFAULT = ["live_bytes", "rss", "allocations"];
const HEIGHTS = { "bytes": 232, "bytes/s": 104, "/s": 104, "count": 104 };

/**
 * Makes the card with the timeline of a recording.
 * @param {import("../core/url.js").View} url
 * @param {any} head
 * @param {AbortSignal} signal
 */
export function timelineCard(url, head, signal) {
  const id = encodeURIComponent(url.id), runtime = Math.max(1, head.recording.duration_ns);
  const chosen = (url.view.series || DEFAULT.join(",")).split(","), by = url.view.by || "";
  const start = Number(url.view.start), end = Number(url.view.end);
  const model = timeModel([0, runtime], end > start ? [start, Math.min(end, runtime)] : null, rangeOf(url.filter, runtime));
  const unfiltered = url.filter.filter(([n]) => !/^(from|to)$/.test(n));
  const series = CHOICE.filter((c) => chosen.includes(c.key)), units = [...new Set(series.map((s) => s.unit))];
  if (by && !units.includes("bytes")) units.unshift("bytes");
  const lanes = h("div.lanes"), strip = h("div"), selected = h("div.selection.none"), twin = h("div");
  const colors = () => SERIES[palette().dark ? "dark" : "light"];

  const charts = units.map((unit) => {
    const own = series.filter((s) => s.unit === unit), names = h("div.lane-name"), last = unit === units[units.length - 1];
    const chart = timeChart({
      model, unit, signal, axis: last, quiet: unit !== units[0], height: HEIGHTS[/** @type {"bytes"} */ (unit)] + (last ? 16 : 0),
      label: "Chart over time of " + own.map((s) => s.name).join(", ") + ". Arrow keys move, Shift and arrow keys select, W and S zoom, A and D move.",
      onBrush, onWindow, onMenu,
    });
    lanes.append(names, chart.root);
    return { unit, own, chart, names };
  });

  function onBrush(/** @type {any} */ range) {
    go(to({ filter: withRange(here().filter, range), view: { skip: null } }));
  }
  function onWindow(/** @type {any} */ window) {
    const all = window[1] - window[0] >= runtime * 0.999;
    quietly(to({ view: { start: all ? null : Math.round(window[0]), end: all ? null : Math.round(window[1]) } }));
    ask();
  }
  function onMenu(/** @type {number} */ at, /** @type {number} */ x, /** @type {number} */ y) {
    const f = here().filter, clean = withRange(f, null), [a, b] = model.brush || model.window;
    menu([
      { text: "Blocks live here, at " + duration(at), href: to({ page: "allocations", filter: put(clean, "alive-at", moment(at)) }) },
      { text: "Flame graph of what is live here", href: to({ page: "flame", filter: clean, view: { metric: "live", at: moment(at) } }) },
      { text: `Blocks live from ${duration(a)} to ${duration(b)}`, href: to({ page: "allocations", filter: put(put(clean, "alive-at", moment(a)), "alive-at-2", moment(b)) }), separator: true },
      { text: "Blocks allocated in this range", href: to({ page: "allocations", filter: withRange(f, [a, b]) }) },
      { text: "Select what is shown", run: () => onBrush(model.window) },
      { text: "Compare this range with what came before it", href: to({ page: "diff", filter: clean, view: { bf: "0", bt: moment(a), af: moment(a), at2: moment(b) } }) },
      { text: "Mappings here", href: to({ page: "maps", filter: [["alive-at", moment(at)]] }) },
    ], x, y, "At " + duration(at));
  }

  function ask() {
    const query = toQuery(unfiltered), wide = Math.max(200, Math.min(1600, lanes.clientWidth || 1000));
    query.set("series", [...new Set(["live_bytes", ...series.flatMap((s) => (s.of ? s.of.flat() : s.key))])].join(","));
    query.set("width", String(Math.ceil(wide / 2)));
    if (model.window[0] > 0 || model.window[1] < runtime) {
      query.set("start", String(Math.round(model.window[0])));
      query.set("end", String(Math.round(model.window[1])));
    }
    if (by) {
      query.set("by", by);
      query.set("top", "8");
    }
    return load(strip.firstChild ? h("div") : strip, get(id + "/timeline", query, signal), (d) => {
      show(d);
      if (!strip.firstChild || !strip.querySelector("canvas")) return whole(d);
      return undefined;
    }, { lines: 2, signal });
  }

  /** The strip shows the whole time, whatever is zoomed to. */
  function whole(/** @type {any} */ d) {
    const make = (/** @type {any} */ t) => overviewStrip({ model, max: t.series.live_bytes.max, color: colors()[0], signal, onWindow }).root;
    if (d.from_ns <= 0 && d.to_ns >= runtime * 0.99) return make(d);
    const query = toQuery(unfiltered);
    query.set("series", "live_bytes");
    query.set("width", "400");
    get(id + "/timeline", query, signal).then((t) => fill(strip, make(t)), () => {});
    return h("div.strip-box");
  }

  /** @type {any} */
  let shown = null;
  function show(/** @type {any} */ d) {
    shown = d;
    const c = colors(), marks = (d.marks || []).map((/** @type {any} */ m) => ({ at: m.at_ns, label: m.label || m.kind, kind: m.kind }));
    const pauses = (d.pauses || []).map((/** @type {any} */ p) => ({ from: p.start_ns, to: p.end_ns }));
    for (const { unit, own, chart, names } of charts) {
      const stacked = by && unit === "bytes" ? (d.stacked || []).map((/** @type {any} */ s, /** @type {number} */ i) => ({ ...s, color: c[i % c.length], max: s.max || s.last })) : [];
      chart.set({
        from: d.from_ns, step: d.step_ns, marks, pauses, stacked,
        lines: own.filter((s) => seriesOf(s, d)).map((s) => lineOf(s, d, c, stacked.length > 0)),
      });
      fill(names, stacked.map((/** @type {any} */ s) => key(s.name, s.color, s.id !== null && s.id !== undefined ? to({ filter: put(url.filter, "stacks", String(s.id)) }) : null)),
        own.map((s) => (seriesOf(s, d) ? key(s.name + (s.rate ? " a second" : ""), c[s.color], null) : h("span", null, s.name + ": not recorded"))));
    }
    if (details.open) fill(twin, tableOf(d));
  }

  const details = h("details.twin", { ontoggle: () => shown && fill(twin, tableOf(shown)) }, h("summary", null, "The timeline as a table"), twin);
  const tableOf = (/** @type {any} */ d) => twinTable(d, series);
  const root = h("section.card", { "aria-label": "Timeline" },
    h("header", null, h("h2", null, "Memory over time"), toggles(series, by, colors()), h("span.grow"),
      model.window[0] > 0 || model.window[1] < runtime ? h("button.quiet", { type: "button", onclick: () => go(to({ view: { start: null, end: null } })) }, "All of it") : null),
    lanes, strip, selected, details);
  selection(selected, url, model, id, unfiltered, signal);
  requestAnimationFrame(() => !signal.aborted && ask());
  onTheme(() => shown && show(shown), signal);
  return {
    root,
    focusPeak(/** @type {number} */ at) {
      model.cursor = at;
      if (at < model.window[0] || at > model.window[1]) model.window = [...model.bounds];
      model.changed("window");
      /** @type {any} */ (root.querySelector(".over"))?.focus();
    },
  };
}

/**
 * @param {string} name
 * @param {string} color
 * @param {string | null} href
 */
function key(name, color, href) {
  return h(href ? "a.key" : "span.key", { href, style: { "--color": color }, title: href ? "Filter by this" : null }, name);
}

/**
 * Returns what the server sent of a series, or what it is made of; null if that is not recorded.
 * @param {typeof CHOICE[number]} s
 * @param {any} d
 */
function seriesOf(s, d) {
  if (!s.of) return d.series[s.key] || null;
  const [plus, minus] = s.of.map((keys) => keys.map((k) => d.series[k] && d.series[k].sum));
  if ([...plus, ...minus].some((v) => !v)) return null;
  const sum = (/** @type {number[][]} */ all, /** @type {number} */ i) => all.reduce((n, v) => n + v[i], 0);
  return { sum: plus[0].map((/** @type {number} */ _, /** @type {number} */ i) => sum(plus, i) - sum(minus, i)) };
}

/**
 * @param {typeof CHOICE[number]} s
 * @param {any} d
 * @param {string[]} colors
 * @param {boolean} plain without filling
 */
export function lineOf(s, d, colors, plain = false) {
  const got = seriesOf(s, d), rate = (/** @type {any} */ v) => (v === null ? null : v / d.step_ns * 1e9);
  return s.rate
    ? { name: s.name, unit: s.unit, color: colors[s.color], max: got.sum.map(rate) }
    : { name: s.name, unit: s.unit, color: colors[s.color], max: got.max, min: got.min, last: got.last, fill: !plain && s.key !== "vss" && s.key !== "rss" };
}

/**
 * @param {typeof CHOICE} shown
 * @param {string} by
 * @param {string[]} colors
 */
function toggles(shown, by, colors) {
  const button = h("button", {
    type: "button", "data-key": "stacked", "aria-pressed": String(Boolean(by)), "aria-haspopup": "menu", style: { "--color": colors[4] },
    onclick: () => menuBelow(button, [["", "Not stacked"], ["stack", "By call stack"], ["function", "By function"], ["module", "By module"], ["thread", "By thread"]].map(([v, text]) => ({
      text, checked: v === by, run: () => go(to({ view: { by: v || null } })),
    }))),
  }, by ? "Stacked by " + by : "Stacked");
  const text = (/** @type {typeof CHOICE[number]} */ c) => c.name + (c.rate ? "/s" : "");
  const toggle = (/** @type {typeof CHOICE[number]} */ c) => {
    const next = CHOICE.filter((o) => (o === c) !== shown.includes(o)).map((o) => o.key);
    go(to({ view: { series: next.length ? next.join(",") : null } }));
  };
  const rare = CHOICE.slice(COMMON), more = h("button.more", {
    type: "button", "data-key": "series-more", "aria-haspopup": "menu",
    onclick: () => menuBelow(more, rare.map((c) => ({ text: text(c), checked: shown.includes(c), run: () => toggle(c) }))),
  }, "More series");
  return h("div.toggles", { role: "group", "aria-label": "Series" }, CHOICE.filter((c, i) => i < COMMON || shown.includes(c)).map((c) =>
    h("button", { type: "button", "data-key": "series-" + c.key, "aria-pressed": String(shown.includes(c)), style: { "--color": colors[c.color] }, onclick: () => toggle(c) }, text(c))), more, button);
}

/**
 * Shows what was allocated and freed in the selection.
 * @param {HTMLElement} place
 * @param {import("../core/url.js").View} url
 * @param {import("../charts/series.js").TimeModel} model
 * @param {string} id
 * @param {import("../core/filters.js").Filter} unfiltered
 * @param {AbortSignal} signal
 */
function selection(place, url, model, id, unfiltered, signal) {
  const range = model.brush;
  if (!range) {
    fill(place, h("span", null, "Drag over the chart to select a range: all figures and pages then show what was allocated in it. "), h("span.wide-only", null, "Ctrl and wheel zoom, a right click shows more."));
    return;
  }
  const [a, b] = range, clean = withRange(url.filter, null);
  place.classList.remove("none");
  const figures = h("span.toolbar", null, "…");
  fill(place, h("span", null, h("b", null, `${duration(a)} – ${duration(b)}`), ` (${duration(b - a)})`), figures,
    h("span.toolbar", null,
      h("a.button", { href: to({ page: "allocations", view: {} }, url) }, "Allocated in it"),
      h("a.button", { href: to({ page: "allocations", filter: put(put(clean, "alive-at", moment(a)), "alive-at-2", moment(b)), view: {} }, url) }, "Alive at both ends"),
      h("a.button", { href: to({ page: "flame", view: { metric: "allocated" } }, url) }, "Flame graph"),
      h("button.quiet", { type: "button", onclick: () => go(to({ filter: clean })) }, "Clear")));
  const query = toQuery(unfiltered);
  query.set("series", "allocated_bytes,freed_bytes,allocations,frees");
  query.set("start", String(Math.round(a)));
  query.set("end", String(Math.round(b)));
  query.set("width", "1");
  get(id + "/timeline", query, signal).then((d) => {
    const sum = (/** @type {string} */ k) => (d.series[k] ? d.series[k].sum.reduce((/** @type {number} */ x, /** @type {number} */ y) => x + (y || 0), 0) : NaN);
    const [got, freed] = [sum("allocated_bytes"), sum("freed_bytes")];
    fill(figures, h("span", null, h("b", null, bytes(got)), " allocated by ", h("b", null, count(sum("allocations"))), " allocations"),
      h("span", null, h("b", null, bytes(freed)), " freed"), h("span", null, h("b", { class: got > freed ? "up" : "down" }, signed(got - freed)), " grown"));
  }, (e) => e.name !== "AbortError" && fill(figures, h("span.note", null, e.message)));
}

/**
 * Makes the table twin of the charts: at most 60 moments.
 * @param {any} d
 * @param {typeof CHOICE} series
 */
function twinTable(d, series) {
  const there = series.filter((s) => seriesOf(s, d)), n = d.count;
  const every = Math.max(1, Math.ceil(n / 60));
  return h("div.table-wrap", { tabindex: 0, role: "region", "aria-label": "The timeline as a table" }, h("table.data", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Time"), there.map((s) => h("th.num", { scope: "col" }, s.name + (s.rate ? " a second" : ", most"))))),
    h("tbody", null, Array.from({ length: Math.ceil(n / every) }, (_, row) => {
      const from = row * every, to = Math.min(n, from + every);
      return h("tr", null, h("td", null, duration(d.from_ns + from * d.step_ns)), there.map((s) => {
        const got = seriesOf(s, d), part = (s.rate ? got.sum : got.max).slice(from, to).filter((/** @type {any} */ v) => v !== null);
        const v = !part.length ? null : s.rate ? part.reduce((/** @type {number} */ x, /** @type {number} */ y) => x + y, 0) / ((to - from) * d.step_ns) * 1e9 : Math.max(...part);
        return h("td.num", null, amount(v, s.unit));
      }));
    }))));
}
