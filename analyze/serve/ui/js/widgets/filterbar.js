// The filter of all pages: chips, the editor, and the ways to hand a view on.

import { add, fill, h } from "../core/dom.js";
import { icon } from "../core/icon.js";
import { CHOICES, TABS, put, tabOf, toCommand, words, without } from "../core/filters.js";
import { fits } from "../core/parse.js";
import { app, go, here, recording, to } from "../core/app.js";
import { copy, menuBelow } from "./menu.js";

/** The command that prints what a page shows. @type {Record<string, (v: Record<string, string>) => string[]>} */
const COMMANDS = {
  overview: () => ["report"],
  allocations: (v) => ["report", ...(v.by && v.by !== "stack" ? ["--group-by", v.by] : []), ...(v.sort ? ["--sort", v.sort] : []), ...(v.reverse ? ["--reverse"] : [])],
  flame: (v) => ["export", "flamegraph", ...(v.metric ? ["--cost", v.metric] : [])],
  tree: (v) => ["report", "--tree", ...(v.dir === "up" ? ["--bottom-up"] : [])],
  leaks: () => ["leaks"], threads: () => ["report", "--threads"], sizes: () => ["report", "--stats"],
  space: () => ["fragmentation"], maps: () => ["maps"],
};

/** Makes the bar for the present view. */
export function filterBar() {
  const view = here(), { filter } = view, bar = h("div.filterbar", { role: "group", "aria-label": "Filter" });
  filter.forEach(([name, value], i) => {
    const [what, text] = words(name, value);
    bar.append(h("span.chip", null,
      h("button.chip-text", { type: "button", "data-key": "chip-" + i, title: "--" + name + " " + value + ": change", onclick: () => openEditor(name) },
        h("span.chip-name", null, what), " ", h("span.chip-value", null, text)),
      h("button.chip-close", { type: "button", "aria-label": "Remove the filter " + what + " " + text, onclick: () => go(to({ filter: without(filter, i), view: { skip: null, after: null } })) }, icon("close"))));
  });
  add(bar, [
    h("button.quiet.add-filter", { type: "button", "data-key": "add-filter", onclick: () => openEditor() }, icon(filter.length ? "plus" : "filter"), filter.length ? "Filter" : "Add filter"),
    filter.length > 1 ? h("button.quiet", { type: "button", onclick: () => go(to({ filter: [], view: { skip: null, after: null } })) }, "Clear") : null,
    h("span.grow"),
  ]);
  const file = recording(view.id)?.name || "FILE";
  const share = h("button.quiet", {
    type: "button", "data-key": "share", "aria-haspopup": "menu", "aria-label": "Share this view",
    onclick: () => menuBelow(share, [
      { text: "Copy link", run: () => copy(location.href, "Link") },
      { text: "Copy as command line", run: () => copy(toCommand((COMMANDS[view.page] || COMMANDS.overview)(view.view), filter, file), "Command line") },
      ...["html", "csv", "json", "heaptrack", "pprof", "speedscope", "flamegraph"].map((format, i) => ({
        text: "Download as " + format, separator: i === 0,
        href: "/api/v1/" + encodeURIComponent(view.id) + "/export/" + format + "?" + new URLSearchParams(filter),
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
  const view = here(), set = new Map(view.filter), tabs = h("div.editor-tabs", { role: "tablist", "aria-label": "Kinds of filters" });
  const fields = h("div.editor-fields", { role: "tabpanel", tabindex: 0 }), search = h("input", { type: "search", placeholder: "Find a filter", "aria-label": "Find a filter", autocomplete: "off" });
  /** @type {Map<string, string>} */
  const changed = new Map();
  const names = [...TABS.map(([name]) => name), "Other"].filter((t) => app.fields.some((f) => tabOf(f.name) === t));
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
    }, t, app.fields.some((f) => tabOf(f.name) === t && (set.has(f.name) || changed.has(f.name))) ? h("span.dot", { role: "img", "aria-label": "(set)" }) : null)));
    const shown = app.fields.filter((f) => (wanted ? (f.name + " " + f.help).toLowerCase().includes(wanted) : tabOf(f.name) === tab));
    fill(fields, shown.map(fieldRow), shown.length ? null : h("p.note", null, "No filter has this in its name or help."));
  }

  function fieldRow(f) {
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
  tabs.addEventListener("keydown", (e) => {
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[e.key];
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
