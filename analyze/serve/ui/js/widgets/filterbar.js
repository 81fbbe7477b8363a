// The filter of all pages: chips, the editor, and the ways to hand a view on.

import { add, fill, h } from "../core/dom.js";
import { icon } from "../core/icon.js";
import { CHOICES, TABS, counts, put, quote, tabOf, toCommand, words, without } from "../core/filters.js";
import { toScript } from "../core/rhai.js";
import { fits } from "../core/parse.js";
import { app, fieldsOf, go, here, recording, to } from "../core/app.js";
import { copy, menuBelow } from "./menu.js";

/** The command that prints what a page shows. @type {Record<string, (v: Record<string, string>) => string[]>} */
const COMMANDS = {
  overview: () => ["report"],
  allocations: (v) => ["report", ...(v.by && v.by !== "stack" ? ["--group-by", v.by] : []), ...(v.sort ? ["--sort", v.sort] : []), ...(v.reverse ? ["--reverse"] : [])],
  flame: (v) => ["export", "flamegraph", ...(v.metric ? ["--cost", v.metric] : [])],
  tree: (v) => ["report", "--tree", ...(v.dir === "up" ? ["--bottom-up"] : [])],
  leaks: () => ["leaks"], threads: () => ["report", "--threads"], sizes: () => ["report", "--stats"],
  space: (v) => ["fragmentation", ...(v.at ? ["--at", v.at] : [])], maps: (v) => ["maps", ...(v.sort ? ["--sort", v.sort] : []), ...(v.reverse ? ["--reverse"] : [])],
  holds: (v) => ["holds", ...(v.scan ? ["--scan", v.scan] : []), ...(v.against ? ["--since-scan", v.against] : [])],
  info: () => ["info"],
};

/** Returns the command line that prints what the present view shows. */
export function commandOf() {
  const view = here(), { item } = view, v = view.view, file = recording(view.id)?.name || "FILE", fields = fieldsOf(view.page);
  /** @type {import("../core/filters.js").Filter} */
  const filter = view.filter.filter(([n]) => counts(n, ...fields));
  if (view.page === "recordings") return "prof serve";
  if (view.page === "map") return toCommand(["maps", "--map", item], [], file);
  if (view.page === "stack") return toCommand(["report"], put(filter, "stacks", item), file);
  if (view.page === "live") return toCommand(["report"], filter, String(recording(view.id)?.pid ?? file));
  if (view.page === "diff" && v.other) return toCommand(["diff"], filter, recording(v.other)?.name || "FILE") + " " + quote(file);
  if (view.page === "diff" && v.bt) return toCommand(["report", "--base", v.bt, "--at", v.at2 || "100%"], filter, file);
  // prof maps leaves out what has ended, unless it is asked about a time.
  const ended = view.page === "maps" && !filter.some(([n]) => /^(from|to|alive-at|alive-at-2|lifetime|older|(min|max)-lifetime)$/.test(n));
  return toCommand((COMMANDS[view.page] || COMMANDS.overview)(v), ended ? put(filter, "lifetime", "all") : filter, file);
}

/** Makes the bar for the present view. */
export function filterBar() {
  const view = here(), { filter } = view, fields = fieldsOf(view.page), bar = h("div.filterbar", { role: "group", "aria-label": "Filter" });
  filter.forEach(([name, value], i) => {
    const [what, text] = words(name, value), off = !counts(name, ...fields);
    bar.append(h("span.chip", { class: off ? "off" : "", title: off ? (view.page === "maps" ? "Counts for blocks, not for mappings" : "Counts for mappings, not for blocks") : null },
      h("button.chip-text", { type: "button", "data-key": "chip-" + i, title: off ? null : "--" + name + " " + value + ": change", onclick: () => openEditor(name) },
        h("span.chip-name", null, what), " ", h("span.chip-value", null, text)),
      h("button.chip-close", { type: "button", "aria-label": "Remove the filter " + what + " " + text, onclick: () => go(to({ filter: without(filter, i), view: { skip: null, after: null } })) }, icon("close"))));
  });
  add(bar, [
    h("button.quiet.add-filter", { type: "button", "data-key": "add-filter", onclick: () => openEditor() }, icon(filter.length ? "plus" : "filter"), filter.length ? "Filter" : "Add filter"),
    filter.length > 1 ? h("button.quiet", { type: "button", onclick: () => go(to({ filter: [], view: { skip: null, after: null } })) }, "Clear") : null,
    h("span.grow"),
  ]);
  const share = h("button.quiet", {
    type: "button", "data-key": "share", "aria-haspopup": "menu", "aria-label": "Share this view",
    onclick: () => menuBelow(share, [
      { text: "Copy link", run: () => copy(location.href, "Link"), hint: "y" },
      app.scripts && { text: "Copy as script", run: () => copy(toScript(filter.filter(([n]) => counts(n, ...fields)), view.page === "maps", Boolean(view.view.own)), "Script") },
      app.scripts && { text: "Open in the console", href: to({ page: "script", item: "", view: {} }) },
      { text: "Copy as command line", run: () => copy(commandOf(), "Command line"), hint: "Y" },
      ...["html", "csv", "json", "heaptrack", "pprof", "speedscope", "flamegraph"].map((format, i) => ({
        text: "Download as " + format, separator: i === 0,
        href: "/api/v1/" + encodeURIComponent(view.id) + "/export/" + format + "?" + new URLSearchParams(filter),
      })),
      ...[["Download as a tree of text", "allocation_ascii_tree"], ["Constants that start-up code makes (JSON)", "dynamic_constants"], ["Variables that start-up code makes (JSON)", "dynamic_statics"]].map(([text, route], i) => ({
        text, separator: i === 0, href: "/data/" + encodeURIComponent(view.id) + "/" + route,
      })),
    ]),
  }, icon("link"), h("span.wide-only", null, "Share"));
  bar.append(share);
  return bar;
}

/**
 * Opens the editor of filters.
 * @param {string} [focus] the field that is changed
 */
export function openEditor(focus) {
  const view = here(), [own] = fieldsOf(view.page), set = new Map(view.filter), tabs = h("div.editor-tabs", { role: "tablist", "aria-label": "Kinds of filters" });
  const fields = h("div.editor-fields", { role: "tabpanel", tabindex: 0 }), search = h("input", { type: "search", placeholder: "Find a filter", "aria-label": "Find a filter", autocomplete: "off" });
  /** @type {Map<string, string>} */
  const changed = new Map();
  const names = [...TABS.map(([name]) => name), "Other"].filter((t) => own.some((f) => tabOf(f.name) === t));
  let tab = focus ? tabOf(focus) : names[0];
  const apply = h("button.primary", { type: "submit" }, "Apply");

  function draw() {
    const wanted = search.value.trim().toLowerCase();
    fill(tabs, names.map((t) => h("button", {
      type: "button", role: "tab", "aria-selected": String(!wanted && t === tab), tabIndex: t === tab ? 0 : -1,
      onclick: () => {
        tab = t;
        search.value = "";
        draw();
      },
    }, t, own.some((f) => tabOf(f.name) === t && (set.has(f.name) || changed.has(f.name))) ? h("span.dot", { role: "img", "aria-label": "(set)" }) : null)));
    const shown = own.filter((f) => (wanted ? (f.name + " " + f.help).toLowerCase().includes(wanted) : tabOf(f.name) === tab));
    fill(fields, shown.map(fieldRow), shown.length ? null : h("p.note", null, "No filter has this in its name or help."));
  }

  function fieldRow(/** @type {any} */ f) {
    const id = "field-" + f.name, value = changed.get(f.name) ?? set.get(f.name) ?? "";
    const choices = CHOICES[f.name] || CHOICES[f.value];
    const check = () => {
      const bad = input.value.trim() !== "" && !fits(f.value, input.value);
      input.setAttribute("aria-invalid", String(bad));
      apply.disabled = Boolean(dialog.querySelector("[aria-invalid=true]"));
    };
    const input = choices && !f.refused
      ? h("select", { id, "aria-describedby": id + "-help" }, h("option", { value: "" }, "any"), choices.map((c) => h("option", { value: c, selected: c === value }, c)))
      : h("input", { id, value, placeholder: f.value, disabled: Boolean(f.refused), "aria-describedby": id + "-help", autocomplete: "off", spellcheck: "false" });
    input.addEventListener("input", () => {
      changed.set(f.name, input.value);
      check();
    });
    return h("div.field", null, h("label", { for: id }, f.name), input, h("p.note", { id: id + "-help" }, f.refused ? "Not available: " + f.refused : f.help));
  }

  const dialog = h("dialog.sheet.editor", { "aria-label": "Filters", onclose: () => dialog.remove() },
    h("form", {
      method: "dialog",
      onsubmit: () => {
        let filter = view.filter;
        for (const [name, value] of changed) {
          if (set.has(name) || !value.trim()) filter = put(filter, name, null);
          if (value.trim()) filter = put(filter, name, value.trim());
        }
        go(to({ filter, view: { skip: null, after: null } }));
      },
    }, h("header", null, h("h2", null, "Filters"), search), h("div.editor-body", null, tabs, fields),
    h("footer", null, h("span.note.grow", null, "All filters that are set must hold. They are those of the command line."),
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), apply)));
  search.addEventListener("input", draw);
  tabs.addEventListener("keydown", (/** @type {any} */ e) => {
    const by = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 })[e.key];
    if (!by) return;
    tab = names[(names.indexOf(tab) + by + names.length) % names.length];
    draw();
    /** @type {any} */ (tabs.querySelector("[aria-selected=true]"))?.focus();
    e.preventDefault();
  });
  document.body.append(dialog);
  draw();
  dialog.showModal();
  const first = focus ? document.getElementById("field-" + focus) : search;
  if (first) first.focus();
}
