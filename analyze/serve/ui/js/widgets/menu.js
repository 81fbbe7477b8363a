// Menus at a place, and small messages.

import { h } from "../core/dom.js";

/** @typedef {{text: string, href?: string, run?: () => void, hint?: string, separator?: boolean, checked?: boolean}} Item */

/** @type {(() => void) | null} */
let close = null;

/**
 * Opens a menu. Arrow keys move, Enter chooses, Escape closes.
 * @param {(Item | null | false)[]} items
 * @param {number} x
 * @param {number} y
 * @param {string} label
 */
export function menu(items, x, y, label) {
  if (close) close();
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  const controller = new AbortController();
  const shut = (focus = true) => {
    controller.abort();
    box.remove();
    close = null;
    if (focus && before && before.isConnected) before.focus({ preventScroll: true });
  };
  const entries = items.filter(Boolean).map((i) => {
    const item = /** @type {Item} */ (i), role = item.checked === undefined ? "menuitem" : "menuitemcheckbox";
    const attributes = {
      role, tabindex: -1, class: item.separator ? "parted" : "", "aria-checked": item.checked === undefined ? null : String(item.checked),
      onclick: () => {
        shut();
        if (item.run) item.run();
      },
    };
    const inner = [h("span", null, item.text), item.hint ? h("kbd", null, item.hint) : null];
    return item.href ? h("a", { ...attributes, href: item.href }, inner) : h("button", { ...attributes, type: "button" }, inner);
  });
  const box = h("div.menu", { role: "menu", "aria-label": label }, entries);
  document.body.append(box);
  box.style.setProperty("left", Math.max(4, Math.min(x, innerWidth - box.offsetWidth - 8)) + "px");
  box.style.setProperty("top", Math.max(4, Math.min(y, innerHeight - box.offsetHeight - 8)) + "px");
  box.addEventListener("keydown", (/** @type {any} */ e) => {
    const at = entries.indexOf(document.activeElement);
    const next = /** @type {Record<string, number>} */ ({ ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: entries.length - 1 })[e.key];
    if (next !== undefined) entries[(next + entries.length) % entries.length].focus();
    else if (e.key === "Escape" || e.key === "Tab") shut();
    else return;
    e.preventDefault();
    e.stopPropagation();
  });
  setTimeout(() => {
    document.addEventListener("pointerdown", (e) => !box.contains(/** @type {Node} */ (e.target)) && shut(false), { signal: controller.signal, capture: true });
    // The row whose menu it is may just have been scrolled into view.
    setTimeout(() => window.addEventListener("scroll", () => shut(false), { signal: controller.signal }), 150);
    window.addEventListener("hashchange", () => shut(false), { signal: controller.signal });
  });
  close = shut;
  if (entries.length) entries[0].focus({ preventScroll: true });
}

/**
 * Opens a menu below a button.
 * @param {HTMLElement} button
 * @param {(Item | null | false)[]} items
 */
export function menuBelow(button, items) {
  const r = button.getBoundingClientRect();
  menu(items, r.left, r.bottom + 4, button.getAttribute("aria-label") || button.textContent || "Menu");
}

/** @type {HTMLElement | null} */
let toasts = null;

/**
 * Says something for a moment.
 * @param {string} text
 */
export function toast(text) {
  if (!toasts) {
    toasts = h("div.toasts", { role: "status", "aria-live": "polite" });
    document.body.append(/** @type {HTMLElement} */ (toasts));
  }
  const one = h("div.toast", null, text);
  /** @type {HTMLElement} */ (toasts).append(one);
  setTimeout(() => one.remove(), 3200);
}

/**
 * Copies a text and says so.
 * @param {string} text
 * @param {string} what
 */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(what + " copied");
  } catch {
    // Without the right to write to the clipboard, the text is shown to be copied by hand.
    const area = h("textarea.copy", { readonly: true, rows: 3, "aria-label": what }, text);
    const dialog = h("dialog.sheet", { onclose: () => dialog.remove() }, h("h2", null, what),
      area, h("form", { method: "dialog" }, h("button.primary", null, "Close")));
    document.body.append(dialog);
    dialog.showModal();
    area.select();
  }
}
