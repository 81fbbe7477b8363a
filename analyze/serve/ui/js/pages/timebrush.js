// A small timeline with a brush, for pages that show a range of time.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { toQuery } from "../core/filters.js";
import { duration } from "../core/format.js";
import { rangeOf, withRange } from "../core/range.js";
import { go, here, quietly, to } from "../core/app.js";
import { palette } from "../charts/canvas.js";
import { SERIES } from "../charts/color.js";
import { timeChart, timeModel } from "../charts/series.js";
import { overviewStrip } from "../charts/strip.js";
import { load } from "../widgets/states.js";
import { onTheme } from "../core/theme.js";

/**
 * Fills a place with the timeline of live bytes, whose brush filters the page.
 * @param {Element} place
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function timeBrush(place, url, signal) {
  const id = encodeURIComponent(url.id), query = toQuery(url.filter.filter(([n]) => !/^(from|to)$/.test(n)));
  query.set("series", "live_bytes");
  query.set("width", "600");
  const box = h("div.lanes", { style: { "min-height": "92px" } });
  fill(place, box);
  load(box, get(id + "/timeline", query, signal), (whole) => {
    const end = Math.max(1, whole.to_ns), v = url.view, start = Number(v.start), stop = Number(v.end);
    const model = timeModel([0, end], stop > start ? [start, Math.min(stop, end)] : null, rangeOf(url.filter, end));
    const strip = h("div"), color = () => SERIES[palette().dark ? "dark" : "light"][0];
    let d = whole;
    const chart = timeChart({
      model, unit: "bytes", height: 88, signal, label: "Live bytes over time. Shift and arrow keys select a range, W and S zoom, A and D move.",
      onBrush: (range) => go(to({ filter: withRange(here().filter, range), view: { z: null, skip: null } })), onWindow,
    });
    function onWindow(/** @type {[number, number]} */ window) {
      const all = window[1] - window[0] >= end * 0.999;
      quietly(to({ view: { start: all ? null : Math.round(window[0]), end: all ? null : Math.round(window[1]) } }));
      zoom();
    }
    /** Shows what the window holds, in its own resolution, and the whole below it. */
    async function zoom() {
      const [a, b] = model.window, all = a <= 0 && b >= end;
      if (all) fill(strip);
      else if (!strip.firstChild) fill(strip, overviewStrip({ model, max: whole.series.live_bytes.max, color: color(), signal, onWindow }).root);
      try {
        d = all ? whole : await get(id + "/timeline", new URLSearchParams([...query, ["start", String(Math.round(a))], ["end", String(Math.round(b))]]), signal);
      } catch {
        return; // What is there stays.
      }
      draw();
    }
    const draw = () => chart.set({
      from: d.from_ns, step: d.step_ns, pauses: (d.pauses || []).map((/** @type {any} */ p) => ({ from: p.start_ns, to: p.end_ns })),
      marks: (d.marks || []).filter((/** @type {any} */ m) => m.kind === "peak").map((/** @type {any} */ m) => ({ at: m.at_ns, label: "peak", kind: "peak" })),
      lines: [{ name: "Live", unit: "bytes", color: color(), min: d.series.live_bytes.min, max: d.series.live_bytes.max }],
    });
    draw();
    if (stop > start) zoom();
    onTheme(draw, signal);
    const range = model.brush;
    return [chart.root, strip, range ? h("div.lane-name", null, `Allocated from ${duration(range[0])} to ${duration(range[1])}`) : null];
  }, { lines: 3, signal });
}
