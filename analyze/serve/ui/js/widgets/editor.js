// An editor of code: a text area over its own text in colours, with completion and a mark at an error.

import { fill, h } from "../core/dom.js";
import { completions, pieces, placeOf } from "../core/rhai.js";

/**
 * Makes an editor.
 * @param {{value: string, label: string, names: () => import("../core/rhai.js").Name[], onRun: () => void, onInput: (code: string) => void}} options
 */
export function codeEditor({ value, label, names, onRun, onInput }) {
  const colors = h("pre.code-colors", { "aria-hidden": true }), gutter = h("pre.code-gutter", { "aria-hidden": true });
  const area = h("textarea.code-area", {
    value, "aria-label": label, spellcheck: "false", autocomplete: "off", autocapitalize: "off", wrap: "off", "aria-autocomplete": "list", "aria-controls": "code-names", "data-key": "code",
  });
  const list = h("ul.code-names", { id: "code-names", role: "listbox", "aria-label": "Names", hidden: true });
  const root = h("div.code", null, gutter, h("div.code-text", null, colors, area, list));
  /** @type {{line: number, column: number} | null} */
  let wrong = null;
  /** @type {import("../core/rhai.js").Name[]} */
  let found = [];
  let chosen = 0, from = 0;

  function draw() {
    const code = area.value, bad = wrong ? placeOf(code, wrong.line, wrong.column) : -1, lines = code.split("\n").length;
    let at = 0;
    fill(colors, pieces(code).map((p) => {
      const start = at, hit = bad >= start && bad < start + p.text.length;
      at += p.text.length;
      return h("span", { class: [p.kind && "code-" + p.kind, hit && "code-wrong"].filter(Boolean).join(" ") }, p.text);
    }), bad >= code.length ? h("span.code-wrong", null, " ") : null, "\n");
    fill(gutter, Array.from({ length: lines }, (_, i) => h("span", { class: wrong && wrong.line === i + 1 ? "code-wrong-line" : "" }, i + 1 + "\n")));
    const rows = Math.max(9, Math.min(28, lines + 1));
    root.style.setProperty("--rows", String(rows));
    scroll();
  }
  function scroll() {
    colors.scrollLeft = area.scrollLeft;
    colors.scrollTop = gutter.scrollTop = area.scrollTop;
  }
  function shut() {
    list.hidden = true;
    found = [];
    area.removeAttribute("aria-activedescendant");
  }
  /** @param {boolean} asked also where nothing is typed yet */
  function complete(asked) {
    const at = area.selectionStart;
    if (at !== area.selectionEnd) return shut();
    const got = completions(area.value, at, names());
    if (!got.found.length || (!asked && at - got.from < 2 && area.value[got.from - 1] !== ".")) return shut();
    ({ from, found } = got);
    chosen = 0;
    const before = area.value.slice(0, from).split("\n"), line = before.length - 1, column = before[line].length;
    list.style.setProperty("--line", String(line + 1));
    list.style.setProperty("--column", String(column));
    list.style.setProperty("--scroll-y", area.scrollTop + "px");
    list.style.setProperty("--scroll-x", area.scrollLeft + "px");
    list.hidden = false;
    choose(0);
    return undefined;
  }
  function choose(/** @type {number} */ n) {
    chosen = (n + found.length) % found.length;
    fill(list, found.map((f, i) => h("li", {
      id: "code-name-" + i, role: "option", "aria-selected": String(i === chosen), title: f.doc,
      onmousedown: (e) => {
        e.preventDefault();
        chosen = i;
        accept();
      },
    }, h("span.code-call", null, f.name), h("span.note", null, f.signature))));
    area.setAttribute("aria-activedescendant", "code-name-" + chosen);
    list.children[chosen]?.scrollIntoView({ block: "nearest" });
  }
  function accept() {
    const f = found[chosen], call = f.signature.startsWith("(");
    area.setRangeText(f.name + (call ? "()" : ""), from, area.selectionStart, "end");
    if (call && f.signature[1] !== ")") area.selectionStart = --area.selectionEnd;
    shut();
    changed();
  }
  function changed() {
    wrong = null;
    draw();
    onInput(area.value);
  }

  area.addEventListener("input", () => {
    changed();
    complete(false);
  });
  area.addEventListener("scroll", scroll);
  area.addEventListener("blur", shut);
  area.addEventListener("click", shut);
  area.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => {
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) onRun();
    else if (e.key === " " && e.ctrlKey) complete(true);
    else if (!list.hidden && e.key === "ArrowDown") choose(chosen + 1);
    else if (!list.hidden && e.key === "ArrowUp") choose(chosen - 1);
    else if (!list.hidden && (e.key === "Enter" || e.key === "Tab") && !e.shiftKey) accept();
    else if (!list.hidden && e.key === "Escape") shut();
    else if (e.key === "Enter" && !e.altKey) {
      // A new line begins where the one before it does, and further in behind a brace.
      const line = area.value.slice(0, area.selectionStart).split("\n").pop() || "";
      area.setRangeText("\n" + /^\s*/.exec(line)?.[0] + (/[{(\[]\s*$/.test(line) ? "    " : ""), area.selectionStart, area.selectionEnd, "end");
      changed();
    } else return;
    e.preventDefault();
    e.stopPropagation();
  });
  draw();
  return {
    root,
    get value() {
      return area.value;
    },
    /** Replaces the code; the browser's undo brings the old one back. */
    set(/** @type {string} */ code) {
      area.focus();
      area.select();
      if (!document.execCommand || !document.execCommand("insertText", false, code)) area.value = code;
      area.selectionStart = area.selectionEnd = 0;
      changed();
    },
    /** Marks a place, which counts from 1, or none. */
    mark(/** @type {{line: number, column: number} | null} */ place) {
      wrong = place;
      draw();
    },
    /** Puts the cursor at a place. */
    jump(/** @type {number} */ line, /** @type {number} */ column) {
      area.focus();
      area.selectionStart = area.selectionEnd = placeOf(area.value, line, column);
    },
  };
}
