// Series over time on a canvas: bands, lines, stacked areas, marks, pauses, and a brush. Several charts share one model.

import { h } from "../core/dom.js";
import { amount, duration, brief } from "../core/format.js";
import { greatest, roof, tickStep, ticks, timeTick } from "./scale.js";
import { framed, onResize, palette, sized } from "./canvas.js";
import { brushOn } from "./brush.js";
import { showTip } from "../widgets/tip.js";

/**
 * @typedef {{name: string, color: string, unit: string, max: (number | null)[], min?: (number | null)[], last?: (number | null)[], fill?: boolean}} Line
 * @typedef {{from: number, step: number, lines: Line[], stacked?: {name: string, color: string, max: (number | null)[]}[],
 *   marks?: {at: number, label: string, kind: string}[], pauses?: {from: number, to: number}[]}} SeriesData times in nanoseconds
 * @typedef {{bounds: [number, number], window: [number, number], brush: [number, number] | null, cursor: number | null,
 *   changed: (what: "cursor" | "brush" | "window") => void, listeners: Set<(what: string) => void>}} TimeModel
 */

/**
 * Makes what charts of the same time share: its bounds, what is shown, what is selected, and the cursor.
 * @param {[number, number]} bounds
 * @param {[number, number] | null} window
 * @param {[number, number] | null} brush
 * @returns {TimeModel}
 */
export function timeModel(bounds, window, brush) {
  /** @type {Set<(what: string) => void>} */
  const listeners = new Set();
  return {
    bounds, window: window || [bounds[0], Math.max(bounds[1], bounds[0] + 1)], brush, cursor: null, listeners,
    changed: (what) => listeners.forEach((l) => l(what)),
  };
}

export const LEFT = 64, RIGHT = 10;

/**
 * Makes a chart.
 * @param {{model: TimeModel, height: number, label: string, unit: string, signal: AbortSignal, axis?: boolean, quiet?: boolean,
 *   onBrush?: (brush: [number, number] | null) => void, onWindow?: (window: [number, number]) => void,
 *   onMenu?: (at: number, x: number, y: number) => void}} options
 */
export function timeChart(options) {
  const { model, height, label, unit, signal, axis = true, quiet = false } = options;
  const canvas = h("canvas", { "aria-hidden": true }), over = h("canvas.over", { tabindex: 0, role: "img", "aria-label": label, "aria-roledescription": "chart over time" });
  const root = h("div.series", { style: { height: height + "px" } }, canvas, over);
  /** @type {SeriesData} */
  let data = { from: 0, step: 1, lines: [] };
  let width = 0, top = 1, low = 0;
  const foot = axis ? 20 : 4, head = 10;

  const x = (/** @type {number} */ ns) => LEFT + (ns - model.window[0]) / (model.window[1] - model.window[0]) * (width - LEFT - RIGHT);
  const time = (/** @type {number} */ px) => model.window[0] + Math.min(1, Math.max(0, (px - LEFT) / (width - LEFT - RIGHT))) * (model.window[1] - model.window[0]);
  const y = (/** @type {number} */ v) => height - foot - (v - low) / (top - low) * (height - foot - head);

  function draw() {
    const g = sized(canvas, width, height);
    if (!g) return;
    if (!data.lines.length && !(data.stacked || []).length) return;
    const p = palette(), plot = width - LEFT - RIGHT, wanted = Math.max(2, Math.floor((height - foot - head) / 42));
    const sums = stackedSums(data);
    top = roof(greatest([...data.lines.map((l) => l.max), sums], unit.startsWith("bytes") ? 16 : 1), wanted, unit);
    // Growth may be below nothing: the axis then goes as far down as it must.
    const least = -greatest(data.lines.map((l) => l.max.map((v) => -(v ?? 0))), 0);
    low = least < 0 ? -roof(-least, Math.max(1, wanted * -least / (top - least)), unit) : 0;
    g.strokeStyle = p.grid;
    g.fillStyle = p.muted;
    g.lineWidth = 1;
    g.textAlign = "right";
    for (const v of ticks(low, top, wanted, unit)) {
      const at = Math.round(y(v)) + 0.5;
      g.beginPath();
      g.moveTo(LEFT, at);
      g.lineTo(width - RIGHT, at);
      g.stroke();
      g.fillText(axisText(v, unit), LEFT - 6, at);
    }
    if (axis) {
      g.textAlign = "center";
      const count = Math.max(2, Math.floor(plot / 92)), step = tickStep(model.window[1] - model.window[0], count, "ns");
      for (const t of ticks(model.window[0], model.window[1], count, "ns")) {
        const at = x(t);
        if (at > LEFT + 8 || t === 0) g.fillText(timeTick(t, step), Math.min(at, width - RIGHT - 18), height - foot / 2 + 2);
      }
    }
    g.save();
    g.beginPath();
    g.rect(LEFT, 0, plot, height);
    g.clip();
    for (const pause of data.pauses || []) hatch(g, x(pause.from), x(pause.to), head, height - foot, p.muted);
    if (data.stacked && data.stacked.length) drawStacked(g, data, x, y);
    for (const line of data.lines) drawLine(g, line, data, x, y);
    let labelled = -100;
    for (const mark of data.marks || []) {
      const at = Math.round(x(mark.at)) + 0.5;
      if (at < LEFT || at > width) continue;
      g.strokeStyle = mark.kind === "peak" ? p.danger : p.muted;
      g.setLineDash(mark.kind === "peak" ? [] : [3, 3]);
      g.beginPath();
      g.moveTo(at, head - 4);
      g.lineTo(at, height - foot);
      g.stroke();
      g.setLineDash([]);
      const wide = g.measureText(mark.label).width + 8;
      if (quiet || Math.abs(at - labelled) < wide) continue;
      labelled = at;
      g.fillStyle = mark.kind === "peak" ? p.danger : p.muted;
      const left = at + wide > width - RIGHT;
      g.textAlign = left ? "right" : "left";
      g.fillText(mark.label, at + (left ? -4 : 4), head + 2);
    }
    g.restore();
    drawOver();
  }

  function drawOver() {
    const g = sized(over, width, height);
    if (!g) return;
    const p = palette();
    if (model.brush) {
      const a = Math.max(LEFT, x(model.brush[0])), b = Math.min(width - RIGHT, x(model.brush[1]));
      if (b >= a) {
        g.fillStyle = p.band;
        g.fillRect(a, head - 4, Math.max(1, b - a), height - foot - head + 4);
        g.fillStyle = p.accent;
        g.fillRect(a - 0.5, head - 4, 1.5, height - foot - head + 4);
        g.fillRect(b - 0.5, head - 4, 1.5, height - foot - head + 4);
      }
    }
    if (model.cursor !== null) {
      const at = Math.round(x(model.cursor)) + 0.5;
      if (at >= LEFT && at <= width - RIGHT) {
        g.strokeStyle = p.muted;
        g.beginPath();
        g.moveTo(at, head - 4);
        g.lineTo(at, height - foot);
        g.stroke();
        const i = indexAt(model.cursor);
        for (const line of data.lines) {
          const v = line.max[i];
          if (v === null || v === undefined) continue;
          g.fillStyle = line.color;
          g.beginPath();
          g.arc(at, y(v), 3, 0, 7);
          g.fill();
        }
      }
    }
    if (document.activeElement === over) {
      g.strokeStyle = p.accent;
      g.lineWidth = 2;
      g.strokeRect(LEFT - 1, 1, width - LEFT - RIGHT + 2, height - foot);
    }
  }

  const indexAt = (/** @type {number} */ ns) => Math.max(0, Math.min((data.lines[0] || (data.stacked || [])[0] || { max: [0] }).max.length - 1, Math.floor((ns - data.from) / data.step)));

  /** Returns what the chart shows at a moment. */
  function readout(/** @type {number} */ ns) {
    const i = indexAt(ns), lines = ["at " + duration(ns)];
    for (const line of data.lines) {
      const lo = line.min ? line.min[i] : null, hi = line.max[i];
      const band = lo !== null && lo !== undefined && hi !== null && lo !== hi ? `${amount(lo, line.unit)} to ${amount(hi, line.unit)}` : amount(hi, line.unit);
      lines.push(line.name + ": " + band);
    }
    // A chart of a few series names them all; among many only those with a value are of interest.
    const stacked = data.stacked || [], few = stacked.length <= 8;
    for (const s of stacked) if (s.max[i] || few) lines.push(s.name + ": " + amount(s.max[i] ?? 0, unit));
    const paused = (data.pauses || []).some((q) => ns >= q.from && ns <= q.to);
    if (paused) lines.push("recording was paused");
    return lines;
  }

  const redraw = framed(draw), redrawOver = framed(drawOver);
  const listener = (/** @type {string} */ what) => (what === "window" ? redraw() : redrawOver());
  model.listeners.add(listener);
  signal.addEventListener("abort", () => model.listeners.delete(listener));
  over.addEventListener("focus", drawOver);
  over.addEventListener("blur", () => {
    showTip(null);
    drawOver();
  });
  brushOn(over, { ...options, model, time, x, readout });
  onResize(root, (w) => {
    width = w;
    draw();
  }, signal);
  return {
    root,
    /** Shows other data. */
    set(/** @type {any} */ next) {
      data = next;
      draw();
    },
    redraw: draw,
  };
}

/**
 * @param {number} v
 * @param {string} unit
 */
function axisText(v, unit) {
  if (!unit.startsWith("bytes")) return brief(v) + (unit === "/s" ? "/s" : "");
  const text = amount(v, "bytes").replace(".0 ", " ");
  return unit === "bytes/s" ? text + "/s" : text;
}

/**
 * @param {SeriesData} data
 * @returns {number[]}
 */
function stackedSums(data) {
  const layers = data.stacked || [];
  return layers.length ? layers[0].max.map((_, i) => layers.reduce((sum, l) => sum + (l.max[i] || 0), 0)) : [];
}

/**
 * @param {CanvasRenderingContext2D} g
 * @param {Line} line
 * @param {SeriesData} data
 * @param {(ns: number) => number} x
 * @param {(v: number) => number} y
 */
function drawLine(g, line, data, x, y) {
  const n = line.max.length, at = (/** @type {number} */ i) => x(data.from + i * data.step), floor = y(0);
  g.fillStyle = line.color;
  // The band from the least to the greatest of each step; below it, faintly, down to nothing.
  for (const [bottom, alpha] of /** @type {[((i: number) => number), number][]} */ ([[() => floor, line.fill === false ? 0 : 0.13], [(i) => y((line.min && line.min[i]) ?? line.max[i] ?? 0), line.min ? 0.3 : 0]])) {
    if (!alpha) continue;
    g.globalAlpha = alpha;
    for (let i = 0; i < n;) {
      if (line.max[i] === null || line.max[i] === undefined) {
        i++;
        continue;
      }
      const start = i;
      g.beginPath();
      for (; i < n && line.max[i] !== null && line.max[i] !== undefined; i++) {
        g.lineTo(at(i), y(/** @type {number} */ (line.max[i])));
        g.lineTo(at(i + 1), y(/** @type {number} */ (line.max[i])));
      }
      for (let k = i - 1; k >= start; k--) {
        g.lineTo(at(k + 1), bottom(k));
        g.lineTo(at(k), bottom(k));
      }
      g.fill();
    }
  }
  g.globalAlpha = 1;
  g.strokeStyle = line.color;
  g.lineWidth = 1.5;
  g.lineJoin = "round";
  const values = line.max;
  let down = false;
  g.beginPath();
  for (let i = 0; i < n; i++) {
    const v = values[i];
    if (v === null || v === undefined) {
      down = false;
      continue;
    }
    g[down ? "lineTo" : "moveTo"](at(i), y(v));
    g.lineTo(at(i + 1), y(v));
    down = true;
  }
  g.stroke();
}

/**
 * @param {CanvasRenderingContext2D} g
 * @param {SeriesData} data
 * @param {(ns: number) => number} x
 * @param {(v: number) => number} y
 */
function drawStacked(g, data, x, y) {
  const layers = data.stacked || [], n = layers[0].max.length, below = new Float64Array(n);
  for (const layer of layers) {
    g.fillStyle = layer.color;
    g.globalAlpha = 0.72;
    g.beginPath();
    for (let i = 0; i < n; i++) {
      const v = y(below[i] + (layer.max[i] || 0));
      g.lineTo(x(data.from + i * data.step), v);
      g.lineTo(x(data.from + (i + 1) * data.step), v);
    }
    for (let i = n - 1; i >= 0; i--) {
      g.lineTo(x(data.from + (i + 1) * data.step), y(below[i]));
      g.lineTo(x(data.from + i * data.step), y(below[i]));
    }
    g.fill();
    for (let i = 0; i < n; i++) below[i] += layer.max[i] || 0;
  }
  g.globalAlpha = 1;
}

/**
 * Hatches a range: nothing was recorded there.
 * @param {CanvasRenderingContext2D} g
 * @param {number} from
 * @param {number} to
 * @param {number} top
 * @param {number} bottom
 * @param {string} color
 */
function hatch(g, from, to, top, bottom, color) {
  g.save();
  g.beginPath();
  g.rect(from, top, Math.max(1, to - from), bottom - top);
  g.clip();
  g.strokeStyle = color;
  g.globalAlpha = 0.35;
  g.beginPath();
  for (let x = from - (bottom - top); x < to; x += 7) {
    g.moveTo(x, bottom);
    g.lineTo(x + bottom - top, top);
  }
  g.stroke();
  g.restore();
}
