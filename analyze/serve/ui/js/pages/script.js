// The console: a script, its output as it comes, and its graphs, which answer to the pointer.

import { fill, h, later } from "../core/dom.js";
import { icon } from "../core/icon.js";
import { ApiError, get, stream } from "../core/api.js";
import { duration, plural } from "../core/format.js";
import { toScript } from "../core/rhai.js";
import { app, quietly, to } from "../core/app.js";
import { bind } from "../core/keys.js";
import { palette } from "../charts/canvas.js";
import { SERIES } from "../charts/color.js";
import { timeChart, timeModel } from "../charts/series.js";
import { codeEditor } from "../widgets/editor.js";
import { copy, menuBelow } from "../widgets/menu.js";
import { empty } from "../widgets/states.js";
import { onTheme } from "../core/theme.js";

/** Scripts that run on any recording. @type {[string, string][]} */
const EXAMPLES = [
  ["What is never freed, over time", "// What is never freed, and the rest.\ngraph()\n    .add(\"Never freed\", allocations().only_leaked())\n    .add(\"Freed at some time\", allocations())\n    .save(\"memory.svg\");\n"],
  ["The stacks that hold the most", "let groups = allocations().only_leaked().group_by_backtrace().sort_by_size();\ntable(groups.take(5));\ngraph().add(groups.take(5)).save(\"stacks.svg\");\n"],
  ["What was freed only at the end", "let runtime = data().runtime();\nlet late = allocations()\n    .only_leaked_or_deallocated_after(runtime * 0.98)\n    .only_alive_for_at_least(runtime * 0.02);\ntable(late.group_by_backtrace().sort_by_size().take(5));\n"],
  ["prof's verdicts", "for leak in allocations().leaks() {\n    println(`${leak.class}: ${bytes(leak.bytes)}`);\n}\n"],
  ["Large and short-lived blocks", "let brief = allocations()\n    .only_larger_or_equal(kib(4))\n    .only_alive_for_at_most(ms(10));\nprintln(`${brief.len()} blocks of 4 KiB and more lived 10 ms at most`);\ntable(brief.group_by_backtrace().sort_by_count().take(5));\n"],
];
const HISTORY = "prof-scripts", KEPT = 40;
/** What the last script has put out: it is still there when one comes back from the blocks of a series. */
const last = { id: "", lines: /** @type {any[]} */ ([]) };

/** Returns the scripts that were run before, the newest first. @returns {string[]} */
function history_() {
  try {
    const kept = JSON.parse(localStorage.getItem(HISTORY) || "[]");
    return Array.isArray(kept) ? kept.filter((s) => typeof s === "string") : [];
  } catch {
    return [];
  }
}

/** @param {string} code */
function remember(code) {
  try {
    localStorage.setItem(HISTORY, JSON.stringify([code, ...history_().filter((c) => c !== code)].slice(0, KEPT)));
  } catch {
    // Without storage there is no history.
  }
}

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function scriptPage(root, url, signal) {
  if (!app.scripts) {
    fill(root, empty("There is no console here", "This prof was built without scripts."));
    return;
  }
  const id = encodeURIComponent(url.id), out = h("div.console-out", { role: "log", "aria-label": "Output", tabindex: 0 }), status = h("span.note", { role: "status" });
  /** @type {import("../core/rhai.js").Name[]} */
  let names = [];
  /** @type {AbortController | null} */
  let running = null;
  const keep = later((/** @type {string} */ code) => !signal.aborted && quietly(to({ view: { code: code.length < 4000 ? code : null } })), 300);
  const editor = codeEditor({ value: url.view.code || (url.filter.length ? toScript(url.filter) : EXAMPLES[0][1]), label: "Script", names: () => names, onRun: run, onInput: keep });
  const start = h("button.primary", { type: "button", "data-key": "script-run", title: "Run (Ctrl-Enter)", onclick: run }, "Run");
  const stop = h("button", { type: "button", "data-key": "script-stop", disabled: true, onclick: () => running && running.abort() }, "Stop");
  const examples = h("button.quiet", { type: "button", "data-key": "script-examples", "aria-haspopup": "menu", onclick: () => menuBelow(examples, EXAMPLES.map(([text, code]) => ({ text, run: () => editor.set(code) }))) }, "Examples");
  const past = h("button.quiet", {
    type: "button", "data-key": "script-history", "aria-haspopup": "menu",
    onclick: () => {
      const all = history_();
      menuBelow(past, all.length ? all.slice(0, 15).map((code) => ({ text: brief(code), run: () => editor.set(code) })) : [{ text: "No script was run yet" }]);
    },
  }, "History");
  fill(root, h("div.page-head", null, h("h1", null, "Console"), h("span.note", null, "Scripts in Rhai, with the lists, filters and graphs of ", h("kbd", null, "prof script"))),
    h("section.card", { "aria-label": "Script" }, editor.root, h("div.console-bar", null, start, stop, status, h("span.grow"), examples, past,
      url.filter.length ? h("button.quiet", { type: "button", onclick: () => editor.set(toScript(url.filter)) }, "From the filter") : null,
      h("button.quiet", { type: "button", onclick: () => copy(editor.value, "Script") }, "Copy"))),
    h("section.card", { "aria-label": "Result" }, out));
  if (last.id === url.id) last.lines.forEach(show);
  else fill(out, h("p.note", null, "Run the script: its output comes here. Ctrl-Enter runs, Ctrl-Space completes a name."));
  get("script-names", null, signal).then((d) => (names = d.names || []), () => {});
  bind("Console", [["Enter", "to the script", () => root.querySelector("textarea")?.focus()]], signal);
  signal.addEventListener("abort", () => running && running.abort());

  async function run() {
    if (running) running.abort();
    const mine = running = new AbortController(), code = editor.value;
    let began = performance.now();
    remember(code);
    editor.mark(null);
    fill(out);
    Object.assign(last, { id: url.id, lines: [] });
    start.disabled = true;
    stop.disabled = false;
    let ended = false, waits = "";
    const tick = () => fill(status, (waits ? waits + " for " : "running for ") + duration((performance.now() - began) * 1e6));
    fill(status, "running…");
    const timer = setInterval(tick, 500);
    try {
      await stream(id + "/script", code, (line) => {
        if (line.kind === "waiting" || line.kind === "running") {
          waits = line.kind === "waiting" ? place(line) : "";
          began = waits ? began : performance.now();
          tick();
          return;
        }
        ended = ended || line.kind === "done" || line.kind === "error";
        last.lines.push(line);
        show(line);
      }, mine.signal);
      if (!ended) show({ kind: "error", message: "The server ended the answer before the script had ended." });
    } catch (e) {
      const error = /** @type {any} */ (e);
      if (mine.signal.aborted) show({ kind: "stopped" });
      else show({ kind: "error", message: error instanceof ApiError ? error.message : String(error) });
    } finally {
      clearInterval(timer);
      if (running === mine) {
        running = null;
        start.disabled = false;
        stop.disabled = true;
      }
    }
  }

  /** Shows a piece of output. @param {any} line */
  function show(line) {
    if (line.kind === "println") {
      const before = out.lastElementChild;
      // Lines that follow each other are one element, so that ten thousand of them are none too many.
      if (before && before.matches("pre.console-text")) before.append(line.value + "\n");
      else out.append(h("pre.console-text", null, line.value + "\n"));
    } else if (line.kind === "image") out.append(line.data ? graph(line, url, signal) : picture(line));
    else if (line.kind === "done") fill(status, "done in " + duration((line.elapsed || 0) * 1e9) + (line.exit ? `, exit code ${line.exit}` : ""));
    else if (line.kind === "stopped") fill(status, "stopped");
    else {
      const at = line.line ? { line: line.line, column: line.column || 1 } : null;
      editor.mark(at);
      fill(status, at ? `failed in line ${at.line}` : "failed");
      out.append(h("div.failed", { role: "alert" }, icon("warn"), h("div", null, h("p.empty-title", null, at ? `Line ${at.line}, column ${at.column}` : "The script failed"), h("pre.console-text", null, line.message),
        at ? h("button", { type: "button", "data-key": "script-jump", onclick: () => editor.jump(at.line, at.column) }, "Go there") : null)));
    }
    if (line.kind === "done" && !out.firstChild) fill(out, h("p.note", null, "The script has printed nothing. ", h("kbd", null, "println(…)"), ", ", h("kbd", null, "table(…)"), " and ", h("kbd", null, "graph()….save(…)"), " do."));
  }
}

/** Says how many scripts run before one that waits. @param {any} line */
function place(line) {
  const before = line.before ? plural(line.before, "other script") + " before it, " : "";
  return `waiting for its turn (${before}${line.at_once} run at a time)`;
}

/** @param {string} code */
function brief(code) {
  const line = code.split("\n").find((l) => l.trim() && !l.trim().startsWith("//")) || code;
  return line.trim().slice(0, 70) + (code.trim().includes("\n") ? ` … (${plural(code.trim().split("\n").length, "line")})` : "");
}

/** @param {any} line */
function picture(line) {
  if (!/\.(svg|png)$/.test(line.basename)) return h("p", null, h("a", { href: line.url, download: line.basename }, line.basename));
  return h("figure.console-graph", null, h("a", { href: line.url, target: "_blank" }, h("img", { src: line.url, alt: line.basename })), h("figcaption.note", null, line.basename));
}

/**
 * Makes a graph out of its data: it can be hovered and zoomed, and a click on a series shows its blocks.
 * @param {any} line
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
function graph(line, url, signal) {
  const d = line.data, count = Math.max(1, ...d.series.map((/** @type {any} */ s) => s.values.length)), keys = h("div.lane-name");
  const model = timeModel([d.from_ns, Math.max(d.to_ns, d.from_ns + 1)], null, null);
  const chart = timeChart({
    model, unit: d.unit === "bytes" ? "bytes" : "count", height: 240, signal, label: "Graph " + line.basename + ". Arrow keys move, W and S zoom, A and D move.",
    onWindow: () => {},
  });
  const draw = () => {
    const c = SERIES[palette().dark ? "dark" : "light"];
    const stacked = d.series.map((/** @type {any} */ s, /** @type {number} */ i) => ({ name: s.label || "series " + (i + 1), color: c[i % c.length], max: s.values, filter: s.filter }));
    chart.set({ from: d.from_ns, step: (d.to_ns - d.from_ns) / count, lines: [], stacked });
    fill(keys, stacked.map((/** @type {any} */ s) => (s.filter && s.filter.length
      ? h("a.key", { href: to({ page: "allocations", filter: s.filter, view: {} }, url), style: { "--color": s.color }, title: "Show the blocks of this series" }, s.name)
      : h("span.key", { style: { "--color": s.color } }, s.name))));
  };
  queueMicrotask(draw);
  onTheme(draw, signal);
  return h("figure.console-graph", null, h("div.lanes", null, keys, chart.root), h("figcaption.note", null, line.basename, " · ", h("a", { href: line.url, target: "_blank" }, "as a file")));
}
