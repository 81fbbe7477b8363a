// The states of a part of a page: it loads, it has failed, it is empty.

import { fill, h } from "../core/dom.js";
import { icon } from "../core/icon.js";
import { ApiError } from "../core/api.js";
import { app, go, here, to } from "../core/app.js";
import { put } from "../core/filters.js";

/**
 * Makes a place holder that is as high as what comes.
 * @param {number} [lines]
 */
export function loading(lines = 6) {
  return h("div.skeleton", { role: "status", "aria-label": "Loading" },
    Array.from({ length: lines }, (_, i) => h("span", { style: { "--wide": 92 - (i * 37) % 45 + "%" } })));
}

/**
 * Makes a message about nothing to show.
 * @param {string} title
 * @param {...any} more
 */
export function empty(title, ...more) {
  return h("div.empty", null, h("p.empty-title", null, title), more.length ? h("p", null, more) : null);
}

/**
 * Makes a message about an error, with what can be done.
 * @param {unknown} error
 */
export function failed(error) {
  const e = /** @type {any} */ (error), indexing = e instanceof ApiError && e.progress !== null;
  if (indexing) {
    return h("div.empty", { role: "status" }, h("p.empty-title", null, "The recording is being indexed"),
      h("progress", { max: 1, value: e.progress < 0 ? undefined : e.progress, "aria-label": "Progress" }), h("p", null, e.message));
  }
  return h("div.failed", { role: "alert" }, icon("warn"), h("div", null,
    h("p.empty-title", null, e instanceof ApiError && e.status === 400 ? "This can't be asked" : e instanceof ApiError && e.status === 404 ? "Not found" : "That did not work"),
    h("p", null, e.message || String(e)), h("p.toolbar", null,
      here().filter.some(([n]) => n === e.field) ? h("button.primary", { type: "button", onclick: () => go(to({ filter: put(here().filter, e.field, null) })) }, "Remove the filter " + e.field) : null,
      here().page !== "recordings" && !(e instanceof ApiError) ? h("a.button", { href: "#/recordings" }, "All recordings") : null,
      h("button", { type: "button", onclick: () => app.render() }, "Try again"))));
}

/**
 * Fills a place with what a promise yields, a place holder before and a message if it fails. What was aborted stays as it is.
 * @template T
 * @param {Element} place
 * @param {Promise<T>} promise
 * @param {(value: T) => any} make
 * @param {{lines?: number, signal?: AbortSignal}} [options]
 */
export async function load(place, promise, make, { lines, signal } = {}) {
  if (!place.firstChild) fill(place, loading(lines));
  place.setAttribute("aria-busy", "true");
  try {
    const value = await promise;
    if (signal && signal.aborted) return;
    const made = make(value);
    if (made !== undefined) fill(place, made);
    place.removeAttribute("data-said");
  } catch (e) {
    if (/** @type {any} */ (e).name === "AbortError" || (signal && signal.aborted)) return;
    const said = /** @type {any} */ (e).message || String(e), page = place.closest("main > .page");
    // Parts that fail for one reason say it once.
    if (page && [...page.querySelectorAll("[data-said]")].some((p) => p !== place && /** @type {HTMLElement} */ (p).dataset.said === said)) fill(place);
    else fill(place, failed(e));
    place.setAttribute("data-said", said);
    if (!(e instanceof ApiError)) console.error(e);
    else if (e.progress !== null) setTimeout(() => !(signal && signal.aborted) && app.render(), 1000);
  } finally {
    place.removeAttribute("aria-busy");
  }
}
