// A recording that grows: figures and timeline follow it, and it can be paused and ended.

import { fill, h } from "../core/dom.js";
import { forget, get, post } from "../core/api.js";
import { bytes, count, duration, plural, brief } from "../core/format.js";
import { toQuery } from "../core/filters.js";
import { app, recording, to } from "../core/app.js";
import { palette } from "../charts/canvas.js";
import { SERIES } from "../charts/color.js";
import { timeChart, timeModel } from "../charts/series.js";
import { dataTable, rowKeys } from "../widgets/table.js";
import { askedBy, calledFrom } from "../widgets/stack.js";
import { empty, load } from "../widgets/states.js";
import { toast } from "../widgets/menu.js";
import { onTheme } from "../core/theme.js";

const KEPT = 1800;

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function livePage(root, url, signal) {
  const id = encodeURIComponent(url.id), now = recording(url.id) || {}, target = now.head ? now.head.target : null;
  /** @type {any[]} */
  const points = [];
  let totals = now.head ? now.head.totals : null, runtime = now.head ? now.head.recording.duration_ns : 0, told = now.state;
  const figures = h("div.figures-row"), status = h("span", { role: "status" }), controls = h("span.toolbar"), top = h("div.card");
  const model = timeModel([0, Math.max(1e9, runtime)], null, null), lanes = h("div.lanes"), keys = h("div.lane-name"), rateKeys = h("div.lane-name");
  const memory = timeChart({ model, unit: "bytes", height: 220, axis: false, signal, label: "Live and resident bytes, as they grow" });
  const rates = timeChart({ model, unit: "/s", height: 110, signal, label: "Allocations and frees a second, as they come" });
  lanes.append(keys, memory.root, rateKeys, rates.root);
  fill(root, h("div.page-head", null, h("h1", null, target ? (target.comm || target.exe) + ", pid " + target.pid : "Live"), status, h("span.grow"), controls, h("a.button", { href: to({ page: "overview", view: {} }) }, "Overview")),
    figures, h("section.card", { "aria-label": "Live timeline" }, lanes), top);

  function drawFigures() {
    const last = points[points.length - 1], before = points[points.length - 2], span = last && before ? (last.at_ns - before.at_ns) / 1e9 : 0;
    const rate = (/** @type {string} */ k) => (span > 0 && last[k] !== undefined ? (last[k] - before[k]) / span : null);
    const one = (/** @type {string} */ name, /** @type {any} */ value, sub = "") => h("div.figure", null, h("div.name", null, name), h("div.value", null, value), h("div.sub", null, sub));
    const t = totals || {}, r = rate("allocations"), b = rate("allocated_bytes");
    fill(figures, one("Live", bytes(t.live_bytes), t.live_count === undefined ? "" : plural(t.live_count, "block")), one("Peak", bytes(t.peak_bytes), t.peak_at_ns === undefined ? "" : "at " + duration(t.peak_at_ns)),
      one("Resident", last && last.rss ? bytes(last.rss) : "–"), one("Allocations", r === null ? "–" : brief(r) + "/s", b === null ? "" : bytes(b) + "/s"), one("Allocated", bytes(t.allocated_bytes), t.allocations === undefined ? "" : plural(t.allocations, "allocation")), one("Recorded", duration(runtime)));
  }
  function drawStatus(/** @type {any} */ state) {
    told = state;
    const growing = state === "growing" || state === "recording", paused = state === "paused";
    fill(status, h("span.badge", { class: growing ? "growing" : paused ? "paused" : "" }, growing ? "recording" : paused ? "paused" : "recording has ended"));
    const pid = now.pid ?? (target && target.pid);
    const button = (/** @type {string} */ what, /** @type {string} */ text, /** @type {string} */ kind) => h("button", {
      type: "button", class: kind, "data-key": "live-" + what,
      onclick: async (e) => {
        e.target.disabled = true;
        try {
          const answer = await post("live/" + pid + "/" + what, signal);
          toast((answer && answer.status) || text + ": done");
        } catch (error) {
          toast(/** @type {any} */ (error).message);
        } finally {
          e.target.disabled = false;
        }
      },
    }, text);
    fill(controls, app.control && (growing || paused) ? [growing ? button("pause", "Pause", "") : button("resume", "Resume", ""), button("detach", "Detach", "danger")]
      : growing || paused ? h("span.note", { title: "Start the server with --control" }, "read only: pause and detach need --control") : null);
  }
  function drawCharts() {
    const c = SERIES[palette().dark ? "dark" : "light"], end = Math.max(1e9, runtime), n = 500, step = end / n;
    model.bounds = model.window = [0, end];
    /** @type {(key: string, rate: boolean) => (number | null)[]} */
    const column = (key, rate) => {
      const out = /** @type {(number | null)[]} */ (Array(n).fill(null));
      let at = 0;
      for (let i = 0; i < n; i++) {
        const until = (i + 1) * step;
        while (at + 1 < points.length && points[at + 1].at_ns <= until) at++;
        const p = points[at];
        if (!p || p.at_ns > until + step) continue;
        const v = p[key];
        // A rate is that of the last second: shorter steps would show how the points lie, not how the program works.
        let before = at - 1;
        while (rate && before > 0 && p.at_ns - points[before].at_ns < 1e9) before--;
        const q = points[before];
        out[i] = v === undefined || v === null ? null : rate ? (q && p.at_ns > q.at_ns ? (v - q[key]) / (p.at_ns - q.at_ns) * 1e9 : null) : v;
      }
      return out;
    };
    memory.set({ from: 0, step, lines: [{ name: "Live", unit: "bytes", color: c[0], max: column("live_bytes", false) }, { name: "Resident", unit: "bytes", color: c[1], max: column("rss", false), fill: false }] });
    rates.set({ from: 0, step, lines: [{ name: "Allocations", unit: "/s", color: c[2], max: column("allocations", true) }, { name: "Frees", unit: "/s", color: c[4], max: column("frees", true), fill: false }] });
    const key = (/** @type {any} */ t, /** @type {string} */ color) => h("span.key", { style: { "--color": color } }, t);
    fill(keys, key("Live", c[0]), key("Resident", c[1]));
    fill(rateKeys, key("Allocations a second", c[2]), key("Frees a second", c[4]));
  }
  function stacks() {
    const query = toQuery(url.filter);
    query.set("group-by", "stack");
    query.set("sort", "size");
    query.set("count", "10");
    query.set("spark", "40");
    load(top, get(id + "/groups", query, signal), (d) => [h("header", null, h("h2", null, "Who holds the memory"), h("span.note", null, "read anew every ten seconds")), d.rows.length ? dataTable({
      caption: "The stacks that hold the most", rows: d.rows, keyOf: (r) => r.id, href: (r) => to({ page: "stack", item: r.id, view: {} }, url),
      columns: [{ key: "live", label: "Live", num: true, cell: (r) => bytes(r.live_bytes) }, { key: "blocks", label: "Blocks", num: true, cell: (r) => count(r.live_count) }, { key: "allocations", label: "Allocations", num: true, cell: (r) => count(r.allocations) }, { key: "by", label: "Asked for by", wide: true, cell: (r) => [askedBy(r.asked_by, r.frames), calledFrom(r.asked_by, r.frames)] }],
    }) : empty("Nothing is live yet")], { lines: 8, signal });
  }
  drawFigures();
  drawStatus(now.state);
  drawCharts();
  stacks();
  const past = new URLSearchParams({ series: "live_bytes,rss,allocations,frees,allocated_bytes", width: "500" });
  get(id + "/timeline", past, signal).then((d) => {
    const n = d.series.live_bytes.max.length, of = (/** @type {string} */ k, /** @type {any} */ f, /** @type {number} */ i) => (d.series[k] ? d.series[k][f][i] : null);
    // Counts of points are since the start, as those of ticks.
    /** @type {Record<string, number>} */
    const sums = {};
    const sum = (/** @type {string} */ k, /** @type {number} */ i) => (sums[k] = (sums[k] || 0) + (of(k, "sum", i) || 0));
    const old = Array.from({ length: n }, (_, i) => ({ at_ns: d.from_ns + (i + 1) * d.step_ns, live_bytes: of("live_bytes", "last", i) ?? of("live_bytes", "max", i), rss: of("rss", "last", i), allocations: sum("allocations", i), frees: sum("frees", i), allocated_bytes: sum("allocated_bytes", i) }));
    points.unshift(...old.filter((p) => !points.length || p.at_ns < points[0].at_ns));
    runtime = Math.max(runtime, d.to_ns);
    drawCharts();
    drawFigures();
  }, () => {});
  document.addEventListener("prof-tick", (e) => {
    const tick = /** @type {CustomEvent} */ (e).detail;
    if (tick.id !== url.id) return;
    totals = tick.totals || totals;
    runtime = tick.duration_ns || runtime;
    if (tick.point) points.push(tick.point);
    // Old points are thinned out, so that hours fit.
    if (points.length > KEPT) for (let i = points.length / 2 | 0; i > 0; i -= 2) points.splice(i, 1);
    if (tick.state !== told) drawStatus(tick.state);
    drawFigures();
    drawCharts();
  }, { signal });
  const timer = setInterval(() => {
    if (document.hidden || !/^(growing|recording|paused)$/.test(told || "")) return;
    forget();
    stacks();
  }, 10000);
  onTheme(drawCharts, signal);
  rowKeys(root, signal);
  return () => clearInterval(timer);
}
