// The state that all pages share: the recordings, the fields of filters, and the way through addresses.

import { format, parse } from "./url.js";

/** @typedef {import("./url.js").View} View */

export const app = {
  /** @type {any[]} */
  recordings: [],
  /** @type {import("./filters.js").Field[]} */
  fields: [],
  /** The fields of filters of mappings. @type {import("./filters.js").Field[]} */
  mapFields: [],
  /** @type {{name: string, help?: string}[]} */
  sorts: [],
  control: false,
  sources: false,
  scripts: false,
  version: "",
  /** Draws the page of the present address. Set by main. @type {() => void} */
  render: () => {},
  /** The address that is shown. */
  shown: "",
};

/**
 * Returns the fields of filters that count on a page, and those that count on the others.
 * @param {string} page
 * @returns {[import("./filters.js").Field[], import("./filters.js").Field[]]}
 */
export function fieldsOf(page) {
  return page === "maps" ? [app.mapFields, app.fields] : [app.fields, app.mapFields];
}

/** Returns the present view. */
export function here() {
  return parse(location.hash);
}

/**
 * Returns the address of the present view with changes. A parameter that is null is left out; another page starts with the
 * filter alone.
 * @param {{page?: string, id?: string, item?: string | number, filter?: import("./filters.js").Filter, view?: Record<string, any>}} changes
 * @param {View} [from]
 */
export function to(changes, from = here()) {
  const page = changes.page ?? from.page, same = page === from.page && changes.item === undefined;
  return format({
    page, id: changes.id ?? from.id, item: changes.item ?? (same ? from.item : ""),
    filter: changes.filter ?? from.filter,
    view: { ...(same ? from.view : {}), ...changes.view },
  });
}

/**
 * Goes to an address: the back button returns from there.
 * @param {string} address
 */
export function go(address) {
  if (address === location.hash) return;
  remember();
  history.pushState(null, "", address);
  app.render();
}

/**
 * Changes the address without drawing anew, since the page has drawn it already.
 * @param {string} address
 * @param {boolean} [push] the back button returns to the address before
 */
export function quietly(address, push = false) {
  if (address === location.hash) return;
  if (push) remember();
  history[push ? "pushState" : "replaceState"](push ? null : history.state, "", address);
  app.shown = location.hash;
}

/** Keeps how far the page is scrolled. */
function remember() {
  history.replaceState({ scroll: scrollY }, "", location.hash || "#/recordings");
}

/**
 * Returns a recording by its id.
 * @param {string} id
 */
export function recording(id) {
  return app.recordings.find((r) => r.id === id) || null;
}
