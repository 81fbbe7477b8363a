// The address space: stretches of memory as strips, and what takes the resident memory.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { bytes, count, duration, percent } from "../core/format.js";
import { put, toQuery } from "../core/filters.js";
import { go, to } from "../core/app.js";
import { heatStrip } from "../charts/heat.js";
import { histogram } from "../charts/histogram.js";
import { empty, load } from "../widgets/states.js";
import { onTheme } from "../core/theme.js";
import { menu } from "../widgets/menu.js";

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function spacePage(root, url, signal) {
  const v = url.view, mode = v.mode === "age" ? "age" : "live", id = encodeURIComponent(url.id), query = toQuery(url.filter), strips = h("div.card"), account = h("div.two");
  query.set("bins", "2048");
  if (v.at) query.set("at", v.at);
  if (v.lo) query.set("start", v.lo);
  if (v.hi) query.set("end", v.hi);
  const segment = (/** @type {string} */ k, /** @type {string} */ text) => h("button", { type: "button", "data-key": "mode-" + k, "aria-pressed": String(k === mode), onclick: () => go(to({ view: { mode: k === "live" ? null : k } })) }, text);
  fill(root, h("div.page-head", null, h("h1", null, "Address space"), v.at ? h("span.badge", null, "at " + v.at) : h("span.note", null, "at the end"), h("div.segments", { role: "group", "aria-label": "Colour by" }, segment("live", "Live bytes"), segment("age", "Age")), h("span.grow"),
    v.lo ? h("button", { type: "button", onclick: () => go(to({ view: { lo: null, hi: null } })) }, "Whole space") : null,
    h("span.note.wide-only", null, "drag: zoom or filter")), strips, account);
  load(strips, get(id + "/space", query, signal), (d) => {
    const there = (d.stretches || []).filter((/** @type {any} */ s) => s.live_bytes.some((/** @type {number} */ n) => n > 0));
    if (!there.length) return empty("No block is live", "Choose another moment, or remove a filter.");
    return there.map((/** @type {any} */ s) => stretch(s, d, mode, url, signal));
  }, { lines: 10, signal });
  load(account, get(id + "/fragmentation", toQuery(url.filter), signal), accountOf, { lines: 8, signal });
}

/**
 * @param {any} s
 * @param {any} d
 * @param {string} mode
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
function stretch(s, d, mode, url, signal) {
  const start = BigInt(s.start), bin = Number(s.bin_bytes), n = s.live_bytes.length;
  const address = (/** @type {number} */ i) => "0x" + (start + BigInt(Math.round(i * bin))).toString(16);
  const oldest = Math.max(1, d.at_ns || 1);
  const values = s.live_bytes.map((/** @type {any} */ v, /** @type {number} */ i) => (mode === "age" ? (v ? Math.max(0.04, (oldest - ((s.oldest_ns || [])[i] ?? oldest)) / oldest) : 0) : v / bin));
  const live = s.live_bytes.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0), whole = n * bin;
  const strip = heatStrip({
    values, signal, label: `Addresses ${s.start} to ${s.end}, ${bytes(live)} live. Arrow keys move, Enter zooms in.`,
    describe: (i) => [`${address(i)} – ${address(i + 1)}`, `${bytes(s.live_bytes[i])} live of ${bytes(bin)}, ${percent(s.live_bytes[i], bin)}`, `${count((s.blocks || [])[i])} blocks`,
      s.oldest_ns && s.live_bytes[i] ? "oldest allocated at " + duration(s.oldest_ns[i]) : ""].filter(Boolean),
    onSelect: (a, b) => {
      const r = strip.root.getBoundingClientRect(), lo = address(a), hi = "0x" + (BigInt(address(b)) - 1n).toString(16);
      menu([
        { text: `Zoom to ${bytes((b - a) * bin)}`, run: () => go(to({ view: { lo, hi } })) },
        { text: "Allocations in this range", href: to({ page: "allocations", filter: put(put(url.filter, "min-address", lo), "max-address", hi), view: { by: "none" } }, url) },
        { text: "Who asked for them", href: to({ page: "allocations", filter: put(put(url.filter, "min-address", lo), "max-address", hi), view: {} }, url) },
      ], r.left + (a + b) / 2 / n * r.width, r.bottom + 2, "Range");
    },
  });
  onTheme(strip.redraw, signal);
  return h("div.stretch", null, h("div.ends", null, h("span", null, s.start), h("span", null, `${bytes(whole)}, ${percent(live, whole)} live`), h("span", null, s.end)), strip.root);
}

/** The words for the parts of the resident memory. @type {[string, string][]} */
const PARTS = [["live_bytes", "Live blocks"], ["beside_bytes", "Beside live blocks, in their pages"], ["slack_bytes", "Slack"], ["free_bytes", "Free in the allocator"], ["before_bytes", "From before the recording"], ["elsewhere_bytes", "Elsewhere"], ["other_anonymous_bytes", "Other anonymous memory"]];

/** @param {any} d */
function accountOf(d) {
  const a = d.account, p = d.pages, out = [];
  if (a) {
    const rows = PARTS.filter(([k]) => a[k]).map(([k, text]) => ({ label: text, value: a[k], text: bytes(a[k]) }));
    // The heap and anonymous mappings are what the parts above are of.
    for (const m of a.maps || []) if (m.rss_bytes && !/^(heap|anonymous)$/.test(m.kind)) rows.push({ label: "Mapped: " + m.kind, value: m.rss_bytes, text: bytes(m.rss_bytes) });
    if (a.unexplained_bytes) rows.push({ label: "Not explained", value: Math.abs(a.unexplained_bytes), text: bytes(a.unexplained_bytes) });
    out.push(h("section.card.padded", null, h("div.page-head", null, h("h2", null, "What the resident memory is"), h("span.note.figures", null, bytes(a.rss_bytes) + " at " + duration(d.moment_ns))), histogram(rows, { caption: "Parts of the resident memory", heads: ["Part", "Bytes"] })));
  }
  if (p) {
    const n = (p.by_use || []).length;
    out.push(h("section.card.padded", null, h("div.page-head", null, h("h2", null, "Pages by use"), h("span.note.figures", null, `${count(p.count)} pages of ${bytes(p.size)}, ${bytes(p.unused_bytes)} of them unused`)),
      histogram((p.by_use || []).map((/** @type {any} */ c, /** @type {number} */ i) => ({ label: `${Math.round(100 * i / n)}–${Math.round(100 * (i + 1) / n)}%`, value: c, text: count(c) })), { caption: "Pages by the part that is live", heads: ["Live", "Pages"] }),
      h("p.note", null, `${count(p.sparse)} pages are nearly empty: they hold ${bytes(p.sparse_unused_bytes)} that nobody uses.`)));
  }
  return out.length ? out : empty("Not known", "The recording has no reading of the resident memory.");
}
