// The whole time at a glance, with the part that the charts above show: drag to move or choose it.

import { h } from "../core/dom.js";
import { duration } from "../core/format.js";
import { reduceBand, greatest } from "./scale.js";
import { framed, onResize, palette, sized } from "./canvas.js";
import { LEFT, RIGHT } from "./series.js";

/**
 * Makes the strip.
 * @param {{model: import("./series.js").TimeModel, max: (number | null)[], color: string, signal: AbortSignal,
 *   onWindow: (window: [number, number]) => void}} options `max` covers the model's bounds
 */
export function overviewStrip({ model, max, color, signal, onWindow }) {
  const canvas = h("canvas.strip", { "aria-hidden": true });
  const root = h("div.strip-box", { title: "Drag to choose what the charts show; double click for all" }, canvas);
  const height = 40;
  let width = 0;
  /** @type {{from: number, kind: "new" | "move", window: [number, number]} | null} */
  let drag = null;
  const whole = model.bounds[1] - model.bounds[0];
  const x = (/** @type {number} */ ns) => LEFT + (ns - model.bounds[0]) / whole * (width - LEFT - RIGHT);
  const time = (/** @type {any} */ e) => model.bounds[0] + Math.min(1, Math.max(0, (e.clientX - canvas.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT))) * whole;

  function draw() {
    const g = sized(canvas, width, height);
    if (!g) return;
    const p = palette(), plot = Math.max(1, width - LEFT - RIGHT), band = reduceBand(max, max, plot), top = greatest([band.max], 1);
    g.fillStyle = p.grid;
    g.fillRect(LEFT, 0, plot, height);
    g.fillStyle = color;
    g.globalAlpha = 0.45;
    const step = plot / band.max.length;
    band.max.forEach((v, i) => g.fillRect(LEFT + i * step, height - (v || 0) / top * (height - 6), step + 0.5, (v || 0) / top * (height - 6)));
    const [a, b] = model.window.map(x);
    g.globalAlpha = 0.7;
    g.fillStyle = p.surface;
    g.fillRect(LEFT, 0, a - LEFT, height);
    g.fillRect(b, 0, width - RIGHT - b, height);
    g.globalAlpha = 1;
    if (model.brush) {
      g.fillStyle = p.band;
      g.fillRect(x(model.brush[0]), 0, Math.max(2, x(model.brush[1]) - x(model.brush[0])), height);
    }
    g.strokeStyle = p.accent;
    g.lineWidth = 1.5;
    g.strokeRect(a + 0.75, 0.75, Math.max(3, b - a - 1.5), height - 1.5);
    g.fillStyle = p.muted;
    g.textAlign = "right";
    g.fillText(duration(whole), LEFT - 6, height / 2);
  }
  const redraw = framed(draw);
  model.listeners.add(redraw);
  signal.addEventListener("abort", () => model.listeners.delete(redraw));
  canvas.addEventListener("pointerdown", (/** @type {any} */ e) => {
    if (e.button) return;
    canvas.setPointerCapture(e.pointerId);
    const t = time(e), zoomed = model.window[1] - model.window[0] < whole * 0.999;
    drag = { from: t, kind: zoomed && t >= model.window[0] && t <= model.window[1] ? "move" : "new", window: [...model.window] };
  });
  canvas.addEventListener("pointermove", (/** @type {any} */ e) => {
    if (!drag) return;
    const t = time(e);
    if (drag.kind === "new") {
      if (Math.abs(t - drag.from) < whole / 400) return;
      model.window = [Math.min(drag.from, t), Math.max(drag.from, t)];
    } else {
      const size = drag.window[1] - drag.window[0];
      const from = Math.min(Math.max(model.bounds[0], drag.window[0] + t - drag.from), model.bounds[1] - size);
      model.window = [from, from + size];
    }
    model.changed("window");
  });
  canvas.addEventListener("pointerup", () => {
    if (!drag) return;
    drag = null;
    onWindow(model.window);
  });
  canvas.addEventListener("dblclick", () => {
    model.window = [...model.bounds];
    model.changed("window");
    onWindow(model.window);
  });
  onResize(root, (w) => {
    width = w;
    draw();
  }, signal);
  return { root };
}
