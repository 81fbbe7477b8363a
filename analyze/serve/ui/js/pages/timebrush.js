// A small timeline with a brush, for pages that show a range of time.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { toQuery } from "../core/filters.js";
import { duration } from "../core/format.js";
import { rangeOf, withRange } from "../core/range.js";
import { go, here, to } from "../core/app.js";
import { palette } from "../charts/canvas.js";
import { SERIES } from "../charts/color.js";
import { timeChart, timeModel } from "../charts/series.js";
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
  load(box, get(id + "/timeline", query, signal), (d) => {
    const model = timeModel([0, Math.max(1, d.to_ns)], null, rangeOf(url.filter, d.to_ns));
    const chart = timeChart({
      model, unit: "bytes", height: 88, signal, label: "Live bytes over time. Shift and arrow keys select a range.",
      onBrush: (range) => go(to({ filter: withRange(here().filter, range), view: { z: null, skip: null } })),
    });
    const draw = () => chart.set({
      from: d.from_ns, step: d.step_ns, pauses: (d.pauses || []).map((p) => ({ from: p.start_ns, to: p.end_ns })),
      marks: (d.marks || []).filter((m) => m.kind === "peak").map((m) => ({ at: m.at_ns, label: "peak", kind: "peak" })),
      lines: [{ name: "Live", unit: "bytes", color: SERIES[palette().dark ? "dark" : "light"][0], min: d.series.live_bytes.min, max: d.series.live_bytes.max }],
    });
    draw();
    onTheme(draw, signal);
    const range = model.brush;
    return [chart.root, range ? h("div.lane-name", null, `Allocated from ${duration(range[0])} to ${duration(range[1])}`) : null];
  }, { lines: 3, signal });
}
