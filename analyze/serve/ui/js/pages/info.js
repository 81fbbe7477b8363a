// Everything that a recording says about itself.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { base, bytes, count, duration, when } from "../core/format.js";
import { empty, load } from "../widgets/states.js";
import { dataTable } from "../widgets/table.js";
import { notesOf } from "./overview.js";

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function infoPage(root, url, signal) {
  const place = h("div.page");
  fill(root, h("div.page-head", null, h("h1", null, "About the recording")), place);
  load(place, get(encodeURIComponent(url.id) + "/info", null, signal), (d) => infoOf(d, url.id), { lines: 16, signal });
}

/**
 * @param {any} d
 * @param {string} id
 */
function infoOf(d, id) {
  const r = d.recording || {}, t = d.target || {}, f = d.file || {};
  const fact = (/** @type {string} */ name, /** @type {any} */ value) => (value === null || value === undefined || value === "" ? null : [h("dt", null, name), h("dd", null, value)]);
  const notes = notesOf({ recording: r });
  const card = (/** @type {string} */ title, /** @type {any} */ body) => h("section.card", null, h("header", null, h("h2", null, title)), body);
  return [
    notes.length ? h("ul.notes", null, notes.map((n) => h("li", null, n))) : null,
    h("div.two", null,
      h("section.card.padded", null, h("h2", null, "Process"), h("dl.kv", null, fact("Program", t.exe), fact("Arguments", (t.cmdline || []).filter(Boolean).join(" ")), fact("Name", t.comm), fact("Process id", t.pid), fact("Machine", t.arch), fact("Threads", r.threads))),
      h("section.card.padded", null, h("h2", null, "Recording"), h("dl.kv", null, fact("Id", h("span.mono", null, id)), fact("Started", when(r.started_unix_ns)), fact("Duration", duration(r.duration_ns)), fact("Ended by", r.end_reason), fact("Events", count(r.events)), fact("Lost events", count(r.lost_events)),
        fact("File", bytes(f.bytes)), fact("Format", f.format), fact("Recorded by", f.recorded_by ? "prof " + f.recorded_by : null), fact("Call stacks", count(f.stacks)), fact("Frees of unknown blocks", count(r.unknown_frees)), fact("Stacks cut short", count(r.truncated_stacks)),
        fact("Index", f.index ? bytes(f.index.bytes ?? f.index) : "none")))),
    r.parts && r.parts.length ? card("Parts", dataTable({ caption: "Parts", rows: r.parts.map((/** @type {any} */ p, /** @type {number} */ i) => ({ ...p, n: i + 1 })), columns: [
      { key: "n", label: "Part", num: true, cell: (p) => p.n }, { key: "from", label: "From", num: true, cell: (p) => duration(p.start_ns) }, { key: "to", label: "To", num: true, cell: (p) => duration(p.end_ns) }, { key: "long", label: "Length", num: true, wide: true, cell: (p) => duration(p.end_ns - p.start_ns) }] })) : null,
    h("div.two", null,
      card("Events", dataTable({ caption: "Events by kind", rows: d.events || [], columns: [{ key: "kind", label: "Kind", cell: (e) => e.kind }, { key: "count", label: "Number", num: true, cell: (e) => count(e.count) }, { key: "bytes", label: "Bytes in the file", num: true, cell: (e) => bytes(e.bytes) }] })),
      card("Chunks of the file", dataTable({ caption: "Chunks", rows: d.chunks || [], columns: [{ key: "name", label: "Chunk", cell: (c) => c.name || c.kind }, { key: "count", label: "Number", num: true, cell: (c) => count(c.count) }, { key: "bytes", label: "Bytes", num: true, cell: (c) => bytes(c.bytes) }] }))),
    (r.hooks || []).length ? card("Hooked functions", dataTable({ caption: "Hooked functions", rows: [...r.hooks].sort((a, b) => b.calls - a.calls), columns: [{ key: "fn", label: "Function", cell: (k) => h("span.mono", null, k.function) }, { key: "calls", label: "Calls", num: true, cell: (k) => count(k.calls) }, { key: "how", label: "How", cell: (k) => k.method + (k.alias_of ? ", alias of " + k.alias_of : "") }, { key: "module", label: "Module", wide: true, cell: (k) => base(k.module) }] })) : null,
    (d.modules || []).length ? card("Modules", dataTable({ caption: "Modules", rows: d.modules, columns: [{ key: "path", label: "Path", wide: true, cell: (m) => m.path }, { key: "start", label: "Start", cell: (m) => h("span.mono", null, m.start) }, { key: "build", label: "Build id", cell: (m) => h("span.mono", null, (m.build_id || "–").slice(0, 16)) }, { key: "loaded", label: "Loaded", num: true, cell: (m) => duration(m.loaded_ns) }] })) : empty("No modules"),
  ];
}
