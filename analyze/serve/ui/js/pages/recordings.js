// The list of recordings.

import { fill, h } from "../core/dom.js";
import { fresh } from "../core/api.js";
import { base, bytes, count, duration, plural, when } from "../core/format.js";
import { app } from "../core/app.js";
import { dataTable, rowKeys } from "../widgets/table.js";
import { empty, load } from "../widgets/states.js";

/** The meaning of each state. @type {Record<string, [string, string]>} */
const STATES = {
  ready: ["ready", "good"], growing: ["recording", "growing"], paused: ["paused", "paused"], indexing: ["being indexed", "indexing"],
  damaged: ["damaged", "damaged"], unread: ["not read yet", ""],
};

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function recordings(root, url, signal) {
  const list = h("div.card");
  fill(root, h("div.page-head", null, h("h1", null, "Recordings"), h("span.grow"), h("span.note", null, app.version ? "prof " + app.version : "")), list);
  load(list, app.recordings.length ? Promise.resolve({ recordings: app.recordings }) : fresh("recordings", signal), (d) => {
    app.recordings = d.recordings;
    if (!d.recordings.length) return empty("There is no recording here yet", "Record a process with ", h("kbd", null, "prof attach PID"), ", or see how it works with ", h("kbd", null, "prof demo"), ". It appears here by itself.");
    return table(d.recordings, url.view);
  }, { signal });
  rowKeys(root, signal);
}

/**
 * @param {any[]} rows
 * @param {Record<string, string>} view
 */
function table(rows, view) {
  /** @type {Record<string, (r: any) => any>} */
  const keys = {
    start: (r) => r.head?.recording.started_unix_ns || 0, program: (r) => r.head?.target.comm || r.name, duration: (r) => r.head?.recording.duration_ns || 0,
    events: (r) => r.head?.recording.events || 0, allocated: (r) => r.head?.totals?.allocated_bytes || 0, live: (r) => r.head?.totals?.live_bytes || 0, peak: (r) => r.head?.totals?.peak_bytes || 0, bytes: (r) => r.bytes,
  };
  const sort = keys[view.sort] ? view.sort : "start", of = keys[sort], up = Boolean(view.reverse);
  const sorted = [...rows].sort((a, b) => (of(a) < of(b) ? 1 : of(a) > of(b) ? -1 : 0) * (up ? -1 : 1));
  const total = (/** @type {string} */ k) => (/** @type {any} */ r) => (r.head && r.head.totals ? bytes(r.head.totals[k]) : "–");
  return dataTable({
    caption: "Recordings", rows: sorted, sort, reverse: up, keyOf: (r) => r.id, href: (r) => "#/" + (r.state === "growing" || r.state === "paused" ? "live" : "overview") + "/" + encodeURIComponent(r.id),
    columns: [
      { key: "program", label: "Program", sort: "program", wide: true, cell: (r) => [h("strong", null, r.head ? r.head.target.comm || base(r.head.target.exe) : r.name), r.head ? " pid " + r.head.target.pid : "",
        h("div.sub-line.command-line", { title: r.head ? (r.head.target.cmdline || []).filter(Boolean).join(" ") : null }, r.head ? (r.head.target.cmdline || []).filter(Boolean).join(" ") || r.head.target.exe : r.why || ""), r.head ? h("div.sub-line", null, r.name) : null] },
      { key: "state", label: "State", cell: (r) => {
        const [text, kind] = STATES[r.state] || [r.state, ""];
        const partial = r.head && !r.head.recording.complete && r.state === "ready";
        return [h("span.badge", { class: partial ? "warn" : kind, title: r.why || (partial ? r.head.recording.end_reason : null) }, partial ? "not complete" : text),
          r.state === "indexing" && r.progress !== null ? h("div", null, h("progress", { max: 1, value: r.progress, "aria-label": "Progress" })) : null,
          r.why && r.state === "damaged" ? h("div.sub-line", null, r.why) : null];
      } },
      { key: "start", label: "Started", sort: "start", cell: (r) => (r.head ? when(r.head.recording.started_unix_ns) : "–") },
      { key: "duration", label: "Duration", sort: "duration", num: true, cell: (r) => (r.head ? duration(r.head.recording.duration_ns) : "–") },
      { key: "events", label: "Events", sort: "events", num: true, cell: (r) => (r.head ? count(r.head.recording.events) : "–") },
      { key: "allocated", label: "Allocated", sort: "allocated", num: true, cell: (r) => (r.head && r.head.totals ? [bytes(r.head.totals.allocated_bytes), h("div.sub-line", null, plural(r.head.totals.allocations, "allocation"))] : "–") },
      { key: "live", label: "Live", sort: "live", num: true, cell: total("live_bytes") },
      { key: "peak", label: "Peak", sort: "peak", num: true, cell: total("peak_bytes") },
      { key: "arch", label: "Machine", cell: (r) => (r.head ? r.head.target.arch : "–") },
      { key: "bytes", label: "File", sort: "bytes", num: true, cell: (r) => bytes(r.bytes) },
    ],
    foot: [[plural(rows.length, "recording")]],
  });
}
