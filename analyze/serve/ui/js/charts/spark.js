// A small line without axes.

import { h } from "../core/dom.js";
import { palette, sized } from "./canvas.js";

/**
 * Makes a sparkline of values from 0 up to their greatest.
 * @param {number[]} values
 * @param {{width?: number, height?: number, label: string, color?: string}} options
 */
export function spark(values, { width = 96, height = 22, label, color }) {
  const canvas = h("canvas.spark", { role: "img", "aria-label": label, style: { width: width + "px", height: height + "px" } });
  requestAnimationFrame(() => {
    const g = sized(canvas, width, height), p = palette();
    if (!g || !values.length) return;
    const top = Math.max(1, ...values.map((v) => v || 0)), step = width / values.length;
    const y = (/** @type {any} */ v) => height - 1 - (v || 0) / top * (height - 3);
    g.beginPath();
    g.moveTo(0, height);
    values.forEach((v, i) => {
      g.lineTo(i * step, y(v));
      g.lineTo((i + 1) * step, y(v));
    });
    g.lineTo(width, height);
    g.globalAlpha = 0.2;
    g.fillStyle = color || p.accent;
    g.fill();
    g.globalAlpha = 1;
    g.beginPath();
    values.forEach((v, i) => {
      g[i ? "lineTo" : "moveTo"](i * step, y(v));
      g.lineTo((i + 1) * step, y(v));
    });
    g.strokeStyle = color || p.accent;
    g.stroke();
  });
  return canvas;
}
