// Pointer and keyboard of charts over time: a drag selects, Ctrl and wheel or two fingers zoom.

import { panWindow, zoomWindow } from "./scale.js";
import { showTip } from "../widgets/tip.js";

/**
 * @typedef {import("./series.js").TimeModel} TimeModel
 */

/**
 * Listens on a chart's upper canvas.
 * @param {HTMLCanvasElement} canvas
 * @param {{model: TimeModel, time: (px: number) => number, x: (ns: number) => number, readout: (ns: number) => string[],
 *   onBrush?: (brush: [number, number] | null) => void, onWindow?: (window: [number, number]) => void,
 *   onMenu?: (at: number, x: number, y: number) => void}} options
 */
export function brushOn(canvas, { model, time, x, readout, onBrush, onWindow, onMenu }) {
  /** @type {{at: number, px: number, moved: boolean, edge: number | null} | null} */
  let drag = null;
  /** @type {Map<number, number>} */
  const fingers = new Map();
  let pinch = 0, settle = 0;
  const local = (/** @type {any} */ e) => e.clientX - canvas.getBoundingClientRect().left;

  function setWindow(/** @type {any} */ window) {
    model.window = window;
    model.changed("window");
    clearTimeout(settle);
    settle = setTimeout(() => onWindow && onWindow(model.window), 140);
  }

  canvas.addEventListener("pointerdown", (e) => {
    if (e.button) return;
    fingers.set(e.pointerId, local(e));
    if (fingers.size === 2) {
      const [a, b] = [...fingers.values()];
      pinch = Math.abs(a - b);
      drag = null;
      return;
    }
    if (!onBrush) return;
    canvas.setPointerCapture(e.pointerId);
    const px = local(e);
    // An edge of the present selection is taken hold of.
    /** @type {number | null} */
    let edge = null;
    if (model.brush) {
      const [a, b] = model.brush.map(x);
      if (Math.abs(px - a) < 5) edge = model.brush[1];
      else if (Math.abs(px - b) < 5) edge = model.brush[0];
    }
    drag = { at: edge ?? time(px), px, moved: edge !== null, edge };
  });
  canvas.addEventListener("pointermove", (e) => {
    const px = local(e), t = time(px);
    if (fingers.has(e.pointerId)) fingers.set(e.pointerId, px);
    if (fingers.size === 2 && pinch) {
      const [a, b] = [...fingers.values()], now = Math.max(12, Math.abs(a - b));
      setWindow(zoomWindow(model.window, model.bounds, pinch / now, time((a + b) / 2)));
      pinch = now;
      return;
    }
    if (drag) {
      if (Math.abs(px - drag.px) > 3) drag.moved = true;
      if (drag.moved) {
        model.brush = [Math.min(drag.at, t), Math.max(drag.at, t)];
        model.changed("brush");
      }
    }
    model.cursor = t;
    model.changed("cursor");
    showTip(readout(t), e.clientX, e.clientY);
  });
  const up = (/** @type {any} */ e) => {
    fingers.delete(e.pointerId);
    if (fingers.size < 2) pinch = 0;
    if (!drag) return;
    const moved = drag.moved;
    drag = null;
    if (!onBrush) return;
    if (moved && model.brush && model.brush[1] > model.brush[0]) onBrush(model.brush);
    else if (model.brush) {
      model.brush = null;
      model.changed("brush");
      onBrush(null);
    }
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => {
    model.cursor = null;
    model.changed("cursor");
    showTip(null);
  });
  canvas.addEventListener("wheel", (e) => {
    if (!(e.ctrlKey || e.metaKey || e.shiftKey) || !onWindow) return;
    e.preventDefault();
    if (e.shiftKey) setWindow(panWindow(model.window, model.bounds, (e.deltaX || e.deltaY) / 800));
    else setWindow(zoomWindow(model.window, model.bounds, Math.exp(e.deltaY / 300), time(local(e))));
  }, { passive: false });
  canvas.addEventListener("dblclick", () => onWindow && setWindow([...model.bounds]));
  canvas.addEventListener("contextmenu", (e) => {
    if (!onMenu) return;
    e.preventDefault();
    showTip(null);
    onMenu(time(local(e)), e.clientX, e.clientY);
  });
  canvas.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const width = model.window[1] - model.window[0], middle = (model.window[0] + model.window[1]) / 2;
    const at = model.cursor ?? middle, step = width / 100;
    const key = e.key.length === 1 ? e.key.toLowerCase() : e.key;
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const to = Math.min(model.bounds[1], Math.max(model.bounds[0], at + (key === "ArrowLeft" ? -step : step)));
      if (e.shiftKey && onBrush) {
        const fixed = model.brush ? (Math.abs(model.brush[0] - at) < Math.abs(model.brush[1] - at) ? model.brush[1] : model.brush[0]) : at;
        model.brush = [Math.min(fixed, to), Math.max(fixed, to)];
        model.changed("brush");
      }
      model.cursor = to;
      model.changed("cursor");
      const r = canvas.getBoundingClientRect();
      showTip(readout(to), r.left + x(to), r.top + 20);
    } else if (key === "Enter" && onBrush && model.brush) onBrush(model.brush);
    else if (key === "Escape" && onBrush && model.brush) {
      model.brush = null;
      model.changed("brush");
      onBrush(null);
    } else if (key === "w" && onWindow) setWindow(zoomWindow(model.window, model.bounds, 0.7, at));
    else if (key === "s" && onWindow) setWindow(zoomWindow(model.window, model.bounds, 1 / 0.7, at));
    else if ((key === "a" || key === "d") && onWindow) setWindow(panWindow(model.window, model.bounds, key === "a" ? -0.2 : 0.2));
    else if (key === "0" && onWindow) setWindow([...model.bounds]);
    else if (key === "ContextMenu" || key === "m") {
      const r = canvas.getBoundingClientRect();
      if (onMenu) onMenu(at, r.left + x(at), r.top + 30);
    } else return;
    e.preventDefault();
    e.stopPropagation();
  });
}
