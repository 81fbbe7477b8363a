// Tables whose rows come from the server: sorted and paged there.

import { h } from "../core/dom.js";
import { icon } from "../core/icon.js";
import { count } from "../core/format.js";
import { bind } from "../core/keys.js";
import { app, go, to } from "../core/app.js";
import { menuBelow } from "./menu.js";

/**
 * @typedef {{key: string, label: string, help?: string, num?: boolean, sort?: string, wide?: boolean, off?: boolean, asc?: boolean,
 *   cell: (row: any) => any}} Column `sort`: the key that the server sorts by; `asc`: the least comes first; `off`: shown only if
 * asked for
 */

const NARROW = matchMedia("(max-width: 620px)");
NARROW.addEventListener("change", () => app.render());

/**
 * Makes a table.
 * @param {{caption: string, columns: Column[], rows: any[], sort?: string, reverse?: boolean, href?: (row: any) => string | null,
 *   detail?: (row: any) => any, menu?: (row: any, x: number, y: number) => void, foot?: any[], keyOf?: (row: any) => string | number,
 *   onSort?: (sort: string, reverse: boolean) => void}} options
 */
export function dataTable({ caption, columns, rows, sort, reverse, href, detail, menu, foot, keyOf, onSort }) {
  // Where there is little room, what a row is about comes first.
  const order = columns.map((_, i) => i).sort((a, b) => (NARROW.matches ? Number(columns[b].wide || 0) - Number(columns[a].wide || 0) : 0) || a - b);
  columns = order.map((i) => columns[i]);
  const choose = onSort || ((key, back) => go(to({ view: { sort: key, reverse: back ? "true" : null, skip: null, after: null } })));
  const head = h("tr", null, columns.map((c) => {
    const on = c.sort && c.sort === sort, up = Boolean(reverse) !== Boolean(c.asc), text = [c.label, on ? h("span.sort-mark", { "aria-hidden": true }, up ? "▲" : "▼") : null];
    return h("th", { scope: "col", class: (c.num ? "num" : "") + (c.wide ? " wide" : ""), title: c.help, "aria-sort": on ? (up ? "ascending" : "descending") : null },
      c.sort ? h("button.sort", { type: "button", "data-key": "sort-" + c.key, onclick: () => choose(/** @type {string} */ (c.sort), Boolean(on && !reverse)) }, text) : text);
  }));
  const body = h("tbody", null, rows.map((row, index) => {
    const link = href ? href(row) : null;
    const tr = h("tr", { tabindex: index ? -1 : 0, "data-href": link, class: link ? "opens" : "", "data-key": keyOf ? "row-" + keyOf(row) : "row-" + index },
      columns.map((c) => h("td", { class: (c.num ? "num" : "") + (c.wide ? " wide" : "") }, c.cell(row))));
    tr.addEventListener("click", (/** @type {any} */ e) => {
      if (/** @type {Element} */ (e.target).closest("a, button, input, summary") || String(getSelection())) return;
      if (link) go(link);
    });
    if (menu) {
      tr.addEventListener("contextmenu", (/** @type {any} */ e) => {
        e.preventDefault();
        menu(row, e.clientX, e.clientY);
      });
      tr.addEventListener("keydown", (/** @type {any} */ e) => {
        if (e.target !== tr || !(e.key === "ContextMenu" || e.key === "m" || (e.key === "F10" && e.shiftKey))) return;
        e.preventDefault();
        e.stopPropagation();
        const r = tr.getBoundingClientRect();
        menu(row, r.left + 60, r.bottom);
      });
    }
    const more = detail ? detail(row) : null;
    return more ? [tr, h("tr.detail", null, h("td", { colspan: columns.length }, more))] : tr;
  }));
  const table = h("table.data", null, h("caption.sr-only", null, caption), h("thead", null, head), body,
    foot ? h("tfoot", null, foot.map((cells) => h("tr", null, columns.map((c, i) => h("td", { class: c.num ? "num" : "" }, cells[order[i]]))))) : null);
  return h("div.table-wrap", { tabindex: 0, role: "region", "aria-label": caption }, table);
}

/**
 * Binds the keys that move through the rows of a page's first table.
 * @param {Element} root
 * @param {AbortSignal} signal
 * @param {(href: string) => void} [extra] what x does with a row
 */
export function rowKeys(root, signal, extra) {
  const rows = () => /** @type {HTMLElement[]} */ ([...root.querySelectorAll("table.data tbody > tr:not(.detail)")]);
  const move = (/** @type {number} */ by) => {
    const all = rows(), now = all.indexOf(/** @type {any} */ (document.activeElement));
    const next = all[Math.max(0, Math.min(all.length - 1, now < 0 ? (by > 0 ? 0 : all.length - 1) : now + by))];
    if (next) next.focus();
  };
  const focused = () => rows().find((r) => r === document.activeElement);
  /** @type {[string, string, (e: KeyboardEvent) => void][]} */
  const table = [
    ["j", "next row", () => move(1)],
    ["k", "previous row", () => move(-1)],
    ["Enter", "open the row", () => {
      const href = focused()?.dataset.href;
      if (href) go(href);
      else /** @type {any} */ (document.activeElement)?.click?.();
    }],
    ["[", "previous page", () => /** @type {any} */ (root.querySelector("[data-key=page-before]:not([disabled])"))?.click()],
    ["]", "next page", () => /** @type {any} */ (root.querySelector("[data-key=page-after]:not([disabled])"))?.click()],
  ];
  if (extra) {
    table.push(["x", "filter by the row's stack", () => {
      const href = focused()?.dataset.href;
      if (href) extra(href);
    }]);
  }
  bind("Tables", table, signal);
}

/**
 * Makes the controls for pages.
 * @param {{skip: number, size: number, total: number, shown: number, cursor?: (skip: number) => string | null}} at `cursor`: what
 *   the server calls the page that begins there, if it does not count rows
 */
export function pager({ skip, size, total, shown, cursor }) {
  const page = (/** @type {any} */ s) => {
    const after = cursor ? cursor(s) : null;
    go(to({ view: { skip: s > 0 && (after || !cursor) ? s : null, after } }));
  };
  const last = Math.max(0, Math.floor((total - 1) / size) * size);
  return h("nav.pager", { "aria-label": "Pages" },
    h("button.quiet", { type: "button", "data-key": "page-before", "aria-label": "Previous page", disabled: skip <= 0, onclick: () => page(Math.max(0, skip - size)) }, icon("left")),
    h("span.figures", null, total ? `${count(skip + 1)}–${count(skip + shown)} of ${count(total)}` : "none"),
    h("button.quiet", { type: "button", "data-key": "page-after", "aria-label": "Next page", disabled: skip + shown >= total, onclick: () => page(Math.min(last, skip + size)) }, icon("right")),
    h("label.inline", null, h("span", null, "rows"), h("select", {
      "data-key": "page-size", "aria-label": "Rows of a page",
      onchange: (e) => go(to({ view: { count: e.target.value, skip: null, after: null } })),
    }, [20, 50, 100, 200, 500].map((n) => h("option", { value: n, selected: n === size }, n)))));
}

/**
 * Makes the button that chooses columns, and returns those that are chosen.
 * @param {Column[]} all
 * @param {string | undefined} chosen the keys, with commas, or nothing
 */
export function columnChoice(all, chosen) {
  const keys = chosen ? chosen.split(",") : all.filter((c) => !c.off).map((c) => c.key);
  const columns = all.filter((c) => keys.includes(c.key));
  const button = h("button.quiet", {
    type: "button", "data-key": "columns", "aria-haspopup": "menu",
    onclick: () => menuBelow(button, all.map((c) => ({
      text: c.label, checked: keys.includes(c.key),
      run: () => {
        const next = all.filter((d) => (d === c ? !keys.includes(d.key) : keys.includes(d.key))).map((d) => d.key);
        if (next.length) go(to({ view: { cols: next.join(",") } }));
      },
    }))),
  }, "Columns");
  return { columns: columns.length ? columns : all, button };
}
