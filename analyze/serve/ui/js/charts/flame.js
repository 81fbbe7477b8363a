// A flame graph on a canvas.

import { h } from "../core/dom.js";
import { amount, base, percent, signed } from "../core/format.js";
import { boxAt, layoutFlame, pathOf } from "./layout.js";
import { boxColor, change, diffColor, heatColor } from "./color.js";
import { clipped, framed, onResize, palette, sized } from "./canvas.js";
import { showTip } from "../widgets/tip.js";

const BOX = 19;

/**
 * @typedef {import("./layout.js").FlameTree} FlameTree
 * @typedef {import("./layout.js").FlameFrame} FlameFrame
 * @typedef {{tree: FlameTree, frames: FlameFrame[], unit: string, metric: string, up: boolean, color: string, zoom: number,
 *   hits: Uint8Array | null, rootName?: string}} FlameState `up`: the root is at the bottom
 */

/**
 * Returns the name of a frame: one without a function is shown by its module and the offset in it.
 * @param {FlameFrame} frame
 */
export function shownName(frame) {
  return /^0x[\da-f]+$/.test(frame.name) && frame.module ? base(frame.module) + "+" + frame.name : frame.name;
}

/**
 * Makes a flame graph. `onZoom` is told the node that was clicked, `onMenu` the node and where.
 * @param {FlameState} state
 * @param {{onZoom?: (node: number) => void, onMenu?: (node: number, x: number, y: number) => void, signal: AbortSignal}} options
 */
export function flameChart(state, { onZoom, onMenu, signal }) {
  const canvas = h("canvas.flame-canvas", { tabindex: 0, role: "img", "aria-roledescription": "flame graph" });
  const said = h("div.sr-only", { "aria-live": "polite" });
  const root = h("div.flame", null, canvas, said);
  let width = 0, boxes = layoutFlame(state.tree, 0, 0, 1), hover = -1, current = state.zoom, pinned = false;
  /** @type {string[]} */
  let colors = [];
  let colorKey = "";

  function nameOf(/** @type {number} */ node) {
    const f = state.tree.frame[node];
    if (f >= 0) return shownName(state.frames[f]);
    return node === 0 ? state.rootName || "all" : "… others";
  }

  function colorOf(/** @type {number} */ node, /** @type {boolean} */ dark) {
    const { tree, frames, color } = state, f = tree.frame[node];
    if (f < 0) return dark ? "hsl(220 8% 27%)" : "hsl(220 12% 88%)";
    if (color === "diff" && tree.base) return diffColor(change(tree.base[node], tree.value[node]), dark);
    if (color === "value") return heatColor(tree.value[node] / (tree.value[0] || 1), dark);
    const frame = frames[f];
    // The colour depends on the frame alone, so it is computed once for a frame.
    return colors[f] || (colors[f] = color === "hash" ? boxColor(frame.name, frame.name, dark) : boxColor(base(frame.module) || "?", frame.name, dark));
  }

  function draw() {
    if (!width) return;
    const p = palette(), { tree, hits } = state;
    boxes = layoutFlame(tree, state.zoom, width, 0.4);
    const rows = boxes.deepest + 1, height = Math.max(rows, 3) * BOX + 1;
    const g = sized(canvas, width, height);
    if (!g) return;
    const key = state.color + p.dark;
    if (key !== colorKey) {
      colors = [];
      colorKey = key;
    }
    // Boxes of a colour are drawn together: to change the colour costs more than to draw a box.
    const above = tree.depth[state.zoom], top = (/** @type {number} */ i) => (state.up ? height - (boxes.depth[i] + 1) * BOX : boxes.depth[i] * BOX);
    const box = (/** @type {number} */ i) => {
      const w = boxes.width[i];
      g.fillRect(boxes.x[i], top(i), Math.max(w - (w > 3 ? 1 : 0.2), 0.4), BOX - 1);
    };
    /** @type {Map<string, number[]>} */
    const paints = new Map();
    for (let i = 0; i < boxes.count; i++) {
      const node = boxes.node[i], color = hits && tree.frame[node] >= 0 && hits[tree.frame[node]] ? p.hit : colorOf(node, p.dark), same = paints.get(color);
      if (same) same.push(i);
      else paints.set(color, [i]);
    }
    for (const [color, same] of paints) {
      g.fillStyle = color;
      const alpha = hits && color !== p.hit ? 0.35 : 1;
      g.globalAlpha = alpha;
      for (const i of same) {
        if (boxes.depth[i] < above) g.globalAlpha = 0.55 * alpha;
        box(i);
        if (boxes.depth[i] < above) g.globalAlpha = alpha;
      }
    }
    g.globalAlpha = 1;
    for (let i = 0; i < boxes.count; i++) {
      const w = boxes.width[i];
      if (w < 24) continue;
      const node = boxes.node[i], y = top(i);
      const hit = hits && tree.frame[node] >= 0 && hits[tree.frame[node]];
      g.fillStyle = hit ? "#1a1300" : hits ? p.muted : p.dark ? "#e9ecf2" : "#1b2130";
      const part = node === 0 || w > 260 ? "  " + amount(tree.value[node], state.unit) + (tree.base ? " (" + signed(tree.value[node] - tree.base[node], state.unit) + ")" : "") : "";
      const text = clipped(g, nameOf(node) + part, w - 9);
      if (text) g.fillText(text, boxes.x[i] + 4, y + BOX / 2);
    }
    if (document.activeElement === canvas) frame(g, height, current, p.accent);
    if (hover >= 0) frame(g, height, hover, p.text);
  }

  function frame(/** @type {CanvasRenderingContext2D} */ g, /** @type {number} */ height, /** @type {number} */ node, /** @type {string} */ color) {
    for (let i = 0; i < boxes.count; i++) {
      if (boxes.node[i] !== node) continue;
      g.strokeStyle = color;
      g.lineWidth = 1.5;
      g.strokeRect(boxes.x[i] + 0.75, (state.up ? height - (boxes.depth[i] + 1) * BOX : boxes.depth[i] * BOX) + 0.75, Math.max(boxes.width[i] - 2, 1), BOX - 2.5);
    }
  }

  function at(/** @type {any} */ e) {
    const r = canvas.getBoundingClientRect(), row = Math.floor((e.clientY - r.top) / BOX);
    const depth = state.up ? Math.floor((r.height - (e.clientY - r.top)) / BOX) : row;
    const i = boxAt(boxes, e.clientX - r.left, depth);
    return i < 0 ? -1 : boxes.node[i];
  }

  /** Returns what a box says. */
  function describe(/** @type {number} */ node) {
    const { tree, frames, unit } = state, f = frames[tree.frame[node]], total = tree.value[0];
    const lines = [nameOf(node)];
    if (f) lines.push([base(f.module), f.file ? f.file + (f.line ? ":" + f.line : "") : "", f.inlined ? "inlined" : ""].filter(Boolean).join("  "));
    lines.push(`${amount(tree.value[node], unit)} ${state.metric}, ${percent(tree.value[node], total)} of all` +
      (state.zoom && tree.value[state.zoom] ? `, ${percent(tree.value[node], tree.value[state.zoom])} of what is shown` : ""));
    if (tree.self[node] > 0) lines.push(`${amount(tree.self[node], unit)} by itself`);
    if (tree.base) lines.push(`${amount(tree.base[node], unit)} before: ${tree.value[node] >= tree.base[node] ? "+" : ""}${amount(tree.value[node] - tree.base[node], unit)}`);
    return lines.filter(Boolean);
  }

  const redraw = framed(draw);
  canvas.addEventListener("pointermove", (/** @type {any} */ e) => {
    if (pinned) return;
    const node = at(e);
    if (node !== hover) {
      hover = node;
      redraw();
    }
    showTip(node < 0 ? null : describe(node), e.clientX, e.clientY);
  });
  canvas.addEventListener("pointerleave", () => {
    if (pinned) return;
    hover = -1;
    showTip(null);
    redraw();
  });
  canvas.addEventListener("click", (/** @type {any} */ e) => {
    const node = at(e);
    pinned = false;
    if (node >= 0) go(node);
  });
  canvas.addEventListener("contextmenu", (/** @type {any} */ e) => {
    const node = at(e);
    if (node < 0 || !onMenu) return;
    e.preventDefault();
    showTip(null);
    onMenu(node, e.clientX, e.clientY);
  });
  canvas.addEventListener("focus", draw);
  canvas.addEventListener("blur", draw);

  function go(/** @type {number} */ node) {
    state.zoom = current = node;
    hover = -1;
    showTip(null);
    draw();
    if (onZoom) onZoom(node);
  }

  function move(/** @type {number} */ node) {
    if (node < 0) return;
    current = node;
    said.textContent = describe(node).join(", ");
    draw();
    const i = boxes.node.indexOf(node), r = canvas.getBoundingClientRect();
    if (i >= 0 && i < boxes.count) {
      const y = r.top + (state.up ? r.height - (boxes.depth[i] + 1) * BOX : boxes.depth[i] * BOX);
      showTip(describe(node), r.left + boxes.x[i] + Math.min(boxes.width[i] / 2, 60), y + BOX);
      if (y < 60 || y > innerHeight - 60) window.scrollBy({ top: y < 60 ? y - 120 : y - innerHeight + 120 });
    }
  }

  canvas.addEventListener("keydown", (/** @type {any} */ e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const { tree } = state;
    const outward = state.up ? "ArrowDown" : "ArrowUp", inward = state.up ? "ArrowUp" : "ArrowDown";
    if (e.key === outward) move(tree.parent[current]);
    else if (e.key === inward) move(tree.first[current]);
    else if (e.key === "ArrowRight") move(tree.next[current]);
    else if (e.key === "ArrowLeft") {
      const p = tree.parent[current];
      let c = p < 0 ? -1 : tree.first[p];
      while (c >= 0 && tree.next[c] !== current) c = tree.next[c];
      move(c);
    } else if (e.key === "Enter" || e.key === " ") go(current);
    else if (e.key === "Backspace" || e.key === "0") go(e.key === "0" ? 0 : Math.max(0, tree.parent[state.zoom]));
    else if (e.key === "p") pinned = !pinned;
    else if (e.key === "ContextMenu" || (e.key === "F10" && e.shiftKey) || e.key === "m") {
      const r = canvas.getBoundingClientRect();
      if (onMenu) onMenu(current, r.left + 40, Math.max(r.top, 80) + 30);
    } else if (e.key === "Escape") {
      pinned = false;
      showTip(null);
      return;
    } else return;
    e.preventDefault();
    e.stopPropagation();
  });

  onResize(root, (w) => {
    width = w;
    draw();
  }, signal);

  return {
    root,
    /** Draws with changed state; returns how long it took, in milliseconds. */
    set(/** @type {any} */ changed) {
      Object.assign(state, changed);
      if (changed.tree) current = state.zoom;
      const from = performance.now();
      draw();
      canvas.setAttribute("aria-label", `${state.metric}: ${amount(state.tree.value[0], state.unit)}, ${state.tree.count} boxes; arrow keys move, Enter zooms`);
      return performance.now() - from;
    },
    nameOf,
    describe,
    path: () => pathOf(state.tree, state.zoom),
    redraw: draw,
  };
}
