// Call stacks: who asked, and the frames.

import { h } from "../core/dom.js";
import { icon } from "../core/icon.js";
import { base, frameName, framePlace } from "../core/format.js";
import { exactly, put } from "../core/filters.js";
import { app, go, here, to } from "../core/app.js";
import { get } from "../core/api.js";
import { copy, menu } from "./menu.js";

/**
 * Returns in a line who asked for the blocks of a stack.
 * @param {any} asked
 * @param {any[]} [frames]
 */
export function askedBy(asked, frames) {
  const f = asked || (frames && frames[0]);
  if (!f) return h("span.asked", null, h("span.fn", null, "(no stack)"));
  return h("span.asked", { title: (f.function || "") + (f.file ? "\n" + f.file + (f.line ? ":" + f.line : "") : "") + (f.module ? "\n" + f.module : "") },
    h("span.fn", null, frameName(f)), " ", h("span.place", null, framePlace(f)), f.through ? h("span.through", null, ", by " + f.through) : null);
}

/**
 * Returns the callers of who asked, as far as a line goes: what tells apart stacks that ask at one place.
 * @param {any} asked
 * @param {any[]} frames
 */
export function calledFrom(asked, frames) {
  const at = frames.findIndex((f) => asked && f.function === asked.function && f.line === asked.line);
  const outer = frames.slice(Math.max(0, at) + 1).filter((f) => f.function);
  return outer.length ? h("div.sub-line.callers", { title: outer.map(frameName).join("\n") }, outer.slice(0, 4).map((f) => "← " + frameName(f)).join(" ")) : null;
}

/** Frames at the inner end that say little: allocators and the standard libraries' machinery. */
const INNER = /^(__gnu_cxx::|std::(allocator|__detail|_?_?1?::?allocat|vector<.*>::_M_|_Vector_base|__cxx11::basic_string<.*>::_M_)|operator new|_*([a-z]{1,2}_?)?(m|c|re)alloc|alloc::(alloc|raw_vec)|__rust_alloc|__rdl_|core::ops::function)/;

/**
 * Returns which frames of a long stack are shown in brief: the innermost two that say something, and the outermost, with
 * what lies between in the order of how telling it is. Indices, in order.
 * @param {any[]} frames
 * @param {number} most
 */
export function brief(frames, most) {
  if (frames.length <= most) return frames.map((_, i) => i);
  let inner = 0;
  while (inner < frames.length - 2 && INNER.test(frameName(frames[inner]))) inner++;
  const chosen = new Set([inner, Math.min(inner + 1, frames.length - 1), frames.length - 1]);
  const rest = frames.map((_, i) => i).filter((i) => i > inner + 1 && i < frames.length - 1);
  const weight = (/** @type {number} */ i) => {
    const f = frames[i], name = frameName(f);
    return (f.file ? 4 : 0) + (f.function ? 2 : 0) - (/^(std|core|boost|alloc)::|^_*(libc_|start|clone|Unwind)/i.test(name) ? 5 : 0) - name.length / 80 - i / 1000;
  };
  rest.sort((a, b) => weight(b) - weight(a));
  for (const i of rest) {
    if (chosen.size >= most) break;
    chosen.add(i);
  }
  return [...chosen].sort((a, b) => a - b);
}

/**
 * Makes a list of frames, innermost first.
 * @param {any[]} frames
 * @param {{full?: boolean, truncated?: boolean, most?: number, source?: boolean}} [options]
 */
export function frameList(frames, { full = false, truncated = false, most = 6, source = false } = {}) {
  const shown = full ? frames.map((_, i) => i) : brief(frames, most);
  let last = -1;
  return h("ol.frames", null, shown.map((i) => {
    const gap = i - last - 1;
    last = i;
    return [gap > 0 ? h("li.gap", null, `${gap} more`) : null, frameItem(frames[i], i, source)];
  }), truncated ? h("li.gap", null, "cut short: outer frames are not known") : null,
  !frames.length ? h("li.gap", null, "no stack was recorded") : null);
}

/**
 * @param {any} f
 * @param {number} index
 * @param {boolean} source
 */
function frameItem(f, index, source) {
  const name = frameName(f), code = h("div.code-place");
  const place = f.file ? f.file + (f.line ? ":" + f.line : "") : f.offset ? "+" + f.offset : "";
  const button = h("button.fn", {
    type: "button", title: "What to do with this function", "aria-haspopup": "menu",
    onclick: (e) => {
      const r = /** @type {Element} */ (e.currentTarget).getBoundingClientRect();
      menu(frameActions(f), r.left, r.bottom + 3, name);
    },
  }, name);
  const show = source && app.sources && f.file && f.line
    ? h("button.quiet.tiny", { type: "button", onclick: () => showSource(f, code) }, "source") : null;
  return h("li", null, h("span.no", null, "#" + index), button, h("span.place", { title: f.file || f.module || "" }, base(f.module), f.inlined ? " inlined" : "", place ? "  " + place : ""), show, code);
}

/**
 * Returns what can be done with a function.
 * @param {any} f
 */
export function frameActions(f) {
  const { filter } = here(), name = frameName(f), named = Boolean(f.function || f.name);
  return [
    named && { text: "Only stacks through it", run: () => go(to({ filter: put(filter, "function", exactly(name)), view: { skip: null } })) },
    named && { text: "No stacks through it", run: () => go(to({ filter: put(filter, "not-function", exactly(name)), view: { skip: null } })) },
    f.module && { text: "Only stacks through " + base(f.module), run: () => go(to({ filter: put(filter, "module", base(f.module).replace(/[.+]/g, "\\$&")), view: { skip: null } })) },
    f.file && { text: "Only stacks through this file", run: () => go(to({ filter: put(filter, "source", base(f.file).replace(/[.+]/g, "\\$&")), view: { skip: null } })) },
    named && { text: "Sandwich: callers and callees", href: to({ page: "flame", view: { mode: "sandwich", fn: name } }), separator: true },
    { text: "Copy name", run: () => copy(name, "Name"), separator: !named },
  ];
}

/**
 * Shows the lines about a frame's.
 * @param {any} f
 * @param {HTMLElement} place
 */
async function showSource(f, place) {
  if (place.firstChild) {
    place.replaceChildren();
    return;
  }
  try {
    const got = await get(encodeURIComponent(here().id) + "/source", { file: f.file, line: f.line });
    place.append(h("pre.source", { tabindex: 0, "aria-label": "Source of " + f.file }, got.lines.map((/** @type {string} */ text, /** @type {number} */ i) =>
      h("span", { class: got.first_line + i === f.line ? "at" : "" }, String(got.first_line + i).padStart(5) + "  " + text + "\n"))));
  } catch (e) {
    place.append(h("p.note", null, icon("warn"), " " + /** @type {any} */ (e).message));
  }
}
