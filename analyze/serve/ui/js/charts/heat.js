// A strip of bins, each coloured by a share: an address range, or pages by use.

import { h } from "../core/dom.js";
import { heatColor } from "./color.js";
import { framed, onResize, palette, sized } from "./canvas.js";
import { showTip } from "../widgets/tip.js";

/**
 * Makes a strip. A drag selects bins.
 * @param {{values: number[], label: string, height?: number, describe: (bin: number) => string[],
 *   onSelect?: (from: number, to: number) => void, signal: AbortSignal}} options values are shares from 0 to 1
 */
export function heatStrip({ values, label, height = 34, describe, onSelect, signal }) {
  const canvas = h("canvas.heat", { role: "img", "aria-label": label, tabindex: 0 });
  const root = h("div.heat-box", null, canvas);
  let width = 0, from = -1, to = -1, cursor = 0;
  const bin = (/** @type {any} */ e) => {
    const r = canvas.getBoundingClientRect();
    return Math.min(values.length - 1, Math.max(0, Math.floor((e.clientX - r.left) / r.width * values.length)));
  };
  function draw() {
    const g = sized(canvas, width, height), p = palette();
    if (!g || !values.length) return;
    const step = width / values.length;
    for (let x = 0; x < width; x++) {
      // A column shows the most of its bins, so that a single used bin does not vanish.
      let most = 0;
      const a = Math.floor(x / step), b = Math.max(a + 1, Math.ceil((x + 1) / step));
      for (let i = a; i < b && i < values.length; i++) if (values[i] > most) most = values[i];
      g.fillStyle = heatColor(most, p.dark);
      g.fillRect(x, 0, 1, height);
    }
    if (from >= 0) {
      const a = Math.min(from, to), b = Math.max(from, to) + 1;
      g.strokeStyle = p.text;
      g.lineWidth = 2;
      g.strokeRect(a * step + 1, 1, Math.max((b - a) * step - 2, 1), height - 2);
    }
    if (document.activeElement === canvas) {
      g.strokeStyle = p.accent;
      g.lineWidth = 2;
      g.strokeRect(cursor * step, 1, Math.max(step, 3), height - 2);
    }
  }
  const redraw = framed(draw);
  canvas.addEventListener("pointermove", (/** @type {any} */ e) => {
    const i = bin(e);
    if (from >= 0) {
      to = i;
      redraw();
    }
    showTip(describe(i), e.clientX, e.clientY);
  });
  canvas.addEventListener("pointerleave", () => showTip(null));
  canvas.addEventListener("pointerdown", (/** @type {any} */ e) => {
    if (e.button || !onSelect) return;
    canvas.setPointerCapture(e.pointerId);
    from = to = bin(e);
    redraw();
  });
  canvas.addEventListener("pointerup", () => {
    if (from < 0) return;
    const [a, b] = [Math.min(from, to), Math.max(from, to)];
    from = to = -1;
    draw();
    if (onSelect) onSelect(a, b + 1);
  });
  canvas.addEventListener("keydown", (/** @type {any} */ e) => {
    const step = e.shiftKey ? Math.ceil(values.length / 20) : 1;
    if (e.key === "ArrowRight") cursor = Math.min(values.length - 1, cursor + step);
    else if (e.key === "ArrowLeft") cursor = Math.max(0, cursor - step);
    else if (e.key === "Enter" && onSelect) onSelect(Math.max(0, cursor - 8), Math.min(values.length, cursor + 9));
    else return;
    e.preventDefault();
    e.stopPropagation();
    const r = canvas.getBoundingClientRect();
    showTip(describe(cursor), r.left + cursor * r.width / values.length, r.bottom);
    draw();
  });
  canvas.addEventListener("focus", draw);
  canvas.addEventListener("blur", () => {
    showTip(null);
    draw();
  });
  onResize(root, (w) => {
    width = w;
    draw();
  }, signal);
  return { root, redraw: draw };
}
