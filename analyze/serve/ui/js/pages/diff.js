// Differences: of two ranges of a recording, or of two recordings.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { bytes, count, duration, moment, plural, signed } from "../core/format.js";
import { time as parseTime } from "../core/parse.js";
import { toQuery } from "../core/filters.js";
import { app, go, here, recording, to } from "../core/app.js";
import { dataTable, rowKeys } from "../widgets/table.js";
import { askedBy, brief, calledFrom } from "../widgets/stack.js";
import { empty, load } from "../widgets/states.js";
import { palette } from "../charts/canvas.js";
import { SERIES } from "../charts/color.js";
import { timeChart, timeModel } from "../charts/series.js";
import { onTheme } from "../core/theme.js";

/** @type {[string, string, string][]} */
const KEYS = [["live_bytes", "Live", "bytes"], ["live_count", "Blocks", "count"], ["allocated_bytes", "Allocated", "bytes"], ["allocations", "Allocations", "count"], ["temporary", "Temporary", "count"]];

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function diffPage(root, url, signal) {
  const v = url.view, other = v.other ? recording(v.other) : null, place = h("div.card"), choose = h("div.card"), id = encodeURIComponent(url.id);
  const select = h("select", { "data-key": "diff-other", "aria-label": "Compare", onchange: (e) => go(to({ view: { other: e.target.value || null, sort: null } })) },
    h("option", { value: "" }, "two ranges of this recording"), app.recordings.filter((r) => r.id !== url.id).map((r) => h("option", { value: r.id, selected: r.id === v.other }, "before: " + (r.head ? r.head.target.comm + ", pid " + r.head.target.pid + ", " : "") + r.name)));
  fill(root, h("div.page-head", null, h("h1", null, "Difference"), h("label.inline", null, "of", select), h("span.grow"), v.other ? h("a.button", { href: to({ page: "flame", view: { base: v.other } }) }, "As a flame graph") : v.bt ? h("a.button", { href: to({ page: "flame", view: { bf: v.bf, bt: v.bt, metric: "allocated" }, filter: [...url.filter.filter(([n]) => n !== "from" && n !== "to"), ["from", v.af || "0"], ["to", v.at2 || "100%"]] }) }, "As a flame graph") : null),
  v.other ? null : choose, place);
  if (v.other && !other) {
    fill(place, empty("The other recording is not here", "Choose one above."));
    return;
  }
  if (v.other) {
    const query = toQuery(url.filter);
    query.set("before", v.other);
    query.set("after", url.id);
    load(place, get("diff", query, signal), (d) => diffOf(d, url), { lines: 14, signal });
  } else {
    ranges(choose, url, signal);
    if (!v.bt && !v.at2) {
      fill(place, empty("Choose two ranges", "Drag over the first chart for the range before, over the second for the range after. Or compare with another recording, above."));
    } else {
      const query = toQuery(url.filter);
      query.set("before-from", v.bf || "0");
      query.set("before-to", v.bt || "50%");
      query.set("after-from", v.af || v.bt || "50%");
      query.set("after-to", v.at2 || "100%");
      load(place, get(id + "/diff", query, signal), (d) => diffOf(d, url), { lines: 14, signal });
    }
  }
  rowKeys(root, signal);
}

/**
 * Two charts with a brush each.
 * @param {Element} place
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
function ranges(place, url, signal) {
  const query = toQuery(url.filter), v = url.view;
  query.set("series", "live_bytes");
  query.set("width", "600");
  load(place, get(encodeURIComponent(url.id) + "/timeline", query, signal), (d) => {
    const one = (/** @type {string} */ name, /** @type {any} */ from, /** @type {string} */ to_, /** @type {number} */ color) => {
      const a = v[from] ? parseTime(v[from], d.to_ns) : null, b = v[to_] ? parseTime(v[to_], d.to_ns) : null;
      const model = timeModel([0, d.to_ns], null, a === null && b === null ? null : [a ?? 0, b ?? d.to_ns]);
      const chart = timeChart({
        model, unit: "bytes", height: 84, signal, label: name + ": live bytes over time. Shift and arrow keys select a range.",
        onBrush: (r) => go(to({ filter: here().filter, view: { [from]: r ? moment(r[0]) : null, [to_]: r ? moment(r[1]) : null } })),
      });
      const draw = () => chart.set({ from: d.from_ns, step: d.step_ns, lines: [{ name: "Live", unit: "bytes", color: SERIES[palette().dark ? "dark" : "light"][color], max: d.series.live_bytes.max, min: d.series.live_bytes.min }] });
      queueMicrotask(draw);
      onTheme(draw, signal);
      return [h("div.lane-name", null, h("b", null, name), model.brush ? `${duration(model.brush[0])} – ${duration(model.brush[1])}` : "drag to choose"), chart.root];
    };
    return h("div.lanes", null, one("Before", "bf", "bt", 0), one("After", "af", "at2", 1));
  }, { lines: 6, signal });
}

/**
 * @param {any} d
 * @param {import("../core/url.js").View} url
 */
function diffOf(d, url) {
  const sort = KEYS.find(([k]) => k === url.view.sort) || KEYS[url.view.other ? 0 : 2], rows = [...d.stacks].sort((a, b) => (Math.abs(b.change[sort[0]]) - Math.abs(a.change[sort[0]])) * (url.view.reverse ? -1 : 1)).slice(0, Number(url.view.count) || 100);
  const change = (/** @type {any} */ s, /** @type {[string, string, string]} */ [k, , unit]) => h("span", { class: s[k] > 0 ? "up" : s[k] < 0 ? "down" : "" }, s[k] ? signed(s[k], unit) : "–");
  const figure = (/** @type {[string, string, string]} */ key) => h("div.figure", null, h("div.name", null, key[1]), h("div.value", null, change(d.total, key)));
  return [
    h("div.figures-row", { style: { border: "0", "border-radius": "8px 8px 0 0" } }, KEYS.map(figure)),
    rows.length ? dataTable({
      caption: "Stacks that differ", rows, sort: sort[0], reverse: Boolean(url.view.reverse), keyOf: (r) => r.id ?? JSON.stringify(r.frames[0] && r.frames[0].address),
      columns: [
        ...KEYS.map((k) => ({ key: k[0], label: k[1], sort: k[0], num: true, cell: (/** @type {any} */ r) => [change(r.change, k), r.before[k[0]] || r.after[k[0]] ? h("div.sub-line", null, `${k[2] === "bytes" ? bytes(r.before[k[0]]) : count(r.before[k[0]])} → ${k[2] === "bytes" ? bytes(r.after[k[0]]) : count(r.after[k[0]])}`) : null] })),
        { key: "stack", label: "Call stack", wide: true, cell: (r) => { const asked = r.frames[brief(r.frames, 3)[0]]; return [askedBy(asked, r.frames), calledFrom(asked, r.frames)]; } },
      ],
      foot: d.rest_stacks ? [[...KEYS.map((k) => change(d.rest, k)), plural(d.rest_stacks, "other stack")]] : undefined,
    }) : empty("No stack differs", plural(d.same_stacks || 0, "stack") + (d.same_stacks === 1 ? " is" : " are") + " the same in both."),
    d.rebuilt && d.rebuilt.length ? h("p.note", { style: { padding: "8px 14px" } }, "Rebuilt between the two, so matched by function alone: " + d.rebuilt.map((/** @type {any} */ r) => r.module || r).join(", ")) : null,
  ];
}

