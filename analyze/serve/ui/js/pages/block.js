// One block: its figures, its chain of reallocations, its neighbours in memory, its stacks.

import { fill, h } from "../core/dom.js";
import { get } from "../core/api.js";
import { bytes, clock, duration, moment, ordinal } from "../core/format.js";
import { to } from "../core/app.js";
import { askedBy, frameList } from "../widgets/stack.js";
import { load } from "../widgets/states.js";
import { dataTable, rowKeys } from "../widgets/table.js";

/**
 * @param {Element} root
 * @param {import("../core/url.js").View} url
 * @param {AbortSignal} signal
 */
export function blockPage(root, url, signal) {
  const place = h("div.page");
  fill(root, place);
  load(place, get(encodeURIComponent(url.id) + "/blocks/" + encodeURIComponent(url.item), null, signal), (d) => blockOf(d, url), { lines: 14, signal });
  rowKeys(root, signal);
}

/**
 * @param {any} d
 * @param {import("../core/url.js").View} url
 */
function blockOf(d, url) {
  const b = d.block, stacks = d.stacks || {}, own = stacks[b.stack], freed = stacks[b.free_stack];
  const fact = (/** @type {string} */ name, /** @type {any} */ value) => [h("dt", null, name), h("dd", null, value)];
  const chain = (d.chain || []).length > 1;
  return [
    h("div.page-head", null, h("h1", null, bytes(b.size) + " at ", h("span.mono", null, b.address)), h("span.badge", { class: b.freed_ns === null ? "warn" : "" }, b.freed_ns === null ? "never freed" : "freed"), h("span.grow"),
      h("a.button", { href: to({ page: "stack", item: b.stack, view: {} }, url) }, "Its stack"),
      h("a.button", { href: to({ page: "space", item: "", view: { at: moment(b.allocated_ns) } }, url) }, "Memory then")),
    h("div.two", null,
      h("section.card.padded", null, h("h2", null, "Block"), h("dl.kv", null,
        fact("Size", bytes(b.size)), fact("Usable", b.usable === null || b.usable === undefined ? "not known" : `${bytes(b.usable)} (${bytes(b.usable - b.size)} more than asked for)`),
        fact("Address", h("span.mono", null, b.address)), fact("Allocated", clock(b.allocated_ns)), fact("Freed", b.freed_ns === null ? "never" : clock(b.freed_ns)),
        fact("Lifetime", b.freed_ns === null ? "∞" : duration(b.lifetime_ns ?? b.freed_ns - b.allocated_ns)), fact("Thread", b.thread ? `${b.thread.name || ""} ${b.thread.tid}` : "–"),
        fact("Place in its chain", b.chain && b.chain.length > 1 ? `${ordinal(b.chain.position)} of ${b.chain.length}` : "not reallocated"),
        fact("Allocator's header", b.mmapped ? "mapped on its own" : b.arena ? b.arena + " arena" : "not known"))),
      h("section.card.padded", null, h("h2", null, "Allocated at"), own ? frameList(own.frames, { full: true, truncated: own.truncated, source: true }) : h("p.note", null, "no stack was recorded"))),
    chain ? h("section.card", null, h("header", null, h("h2", null, "Chain of reallocations")), chainTable(d, url)) : null,
    h("div.two", null,
      h("section.card", null, h("header", null, h("h2", null, "What lay beside it when it was allocated")), neighbours(d, url)),
      h("section.card.padded", null, h("h2", null, b.freed_ns === null ? "Freed at" : chain && b.chain.position + 1 < b.chain.length ? "Reallocated at" : "Freed at"),
        b.freed_ns === null ? h("p.note", null, "It was live at the end.") : freed ? frameList(freed.frames, { full: true, source: true }) : h("p.note", null, "Not recorded. ", h("kbd", null, "prof attach --free-stacks"), " records it."))),
  ];
}

/**
 * @param {any} d
 * @param {import("../core/url.js").View} url
 */
function chainTable(d, url) {
  return dataTable({
    caption: "Chain of reallocations", rows: d.chain, keyOf: (r) => r.id, href: (r) => to({ page: "block", item: r.id, view: {} }, url),
    columns: [
      { key: "n", label: "", cell: (r) => [ordinal(r.chain ? r.chain.position : 0), r.id === d.block.id ? [" ", h("span.badge", null, "this")] : null] },
      { key: "time", label: "Allocated", num: true, cell: (r) => duration(r.allocated_ns) },
      { key: "size", label: "Size", num: true, cell: (r) => bytes(r.size) },
      { key: "life", label: "Lived", num: true, cell: (r) => (r.freed_ns === null ? "∞" : duration(r.freed_ns - r.allocated_ns)) },
      { key: "address", label: "Address", cell: (r) => h("span.mono", null, r.address) },
      { key: "by", label: "Asked for by", wide: true, cell: (r) => { const s = (d.stacks || {})[r.stack]; return s ? askedBy(s.asked_by, s.frames) : "stack " + r.stack; } },
    ],
  });
}

/**
 * @param {any} d
 * @param {import("../core/url.js").View} url
 */
function neighbours(d, url) {
  let end = 0n;
  const rows = (d.neighbours || []).map((/** @type {any} */ r) => {
    const at = BigInt(r.address), gap = end ? at - end : null;
    end = at + BigInt(r.usable ?? r.size);
    return { ...r, gap };
  });
  return dataTable({
    caption: "Neighbours by address", rows, keyOf: (r) => r.id, href: (r) => (r.id === d.block.id ? null : to({ page: "block", item: r.id, view: {} }, url)),
    columns: [
      { key: "address", label: "Address", cell: (r) => [h("span.mono", null, r.address), r.id === d.block.id ? [" ", h("span.badge", null, "this")] : null] },
      { key: "gap", label: "After a gap of", num: true, cell: (r) => (r.gap === null ? "" : bytes(Number(r.gap))) },
      { key: "size", label: "Size", num: true, cell: (r) => bytes(r.size) },
      { key: "by", label: "Asked for by", wide: true, cell: (r) => { const s = (d.stacks || {})[r.stack]; return s ? askedBy(s.asked_by, s.frames) : h("a", { href: to({ page: "stack", item: r.stack, view: {} }, url) }, "stack " + r.stack); } },
    ],
  });
}
