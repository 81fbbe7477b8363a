// The address of a view: `#/PAGE/RECORDING/ITEM?filters&view`. Nothing here touches the document.

/**
 * @typedef {import("./filters.js").Filter} Filter
 * @typedef {{page: string, id: string, item: string, filter: Filter, view: Record<string, string>}} View
 */

/** Parameters of views. All others are filters. */
const VIEW = new Set(["sort", "reverse", "skip", "count", "after", "by", "metric", "dir", "q", "z", "t", "start", "end",
  "series", "cols", "full", "spark", "at", "base", "other", "mode", "fn", "open", "tab", "color", "order", "bf", "bt", "af", "at2", "lo", "hi", "peak", "own", "sort2", "reverse2", "code", "r", "rn", "scan", "against"]);

/**
 * Reads the part of an address after `#`.
 * @param {string} hash
 * @returns {View}
 */
export function parse(hash) {
  const text = hash.replace(/^#?\/?/, ""), at = text.indexOf("?");
  const path = (at < 0 ? text : text.slice(0, at)).split("/").map(decode);
  /** @type {View} */
  const view = { page: path[0] || "recordings", id: path[1] || "", item: path[2] || "", filter: [], view: {} };
  for (const [name, value] of new URLSearchParams(at < 0 ? "" : text.slice(at + 1))) {
    if (VIEW.has(name)) view.view[name] = value;
    else view.filter.push([name.replaceAll("_", "-"), value]);
  }
  return view;
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * Writes an address: the inverse of `parse`. Empty parameters of the view are left out.
 * @param {{page: string, id?: string, item?: string | number, filter?: Filter, view?: Record<string, string | number | null | undefined | boolean>}} view
 */
export function format({ page, id, item, filter, view }) {
  const query = new URLSearchParams(filter || []);
  for (const name of Object.keys(view || {}).sort()) {
    const value = /** @type {any} */ (view)[name];
    if (value !== null && value !== undefined && value !== "" && value !== false) query.append(name, String(value));
  }
  const path = [page, id, item].filter((p) => p !== undefined && p !== "").map((p) => encodeURIComponent(String(p)));
  const text = query.toString().replaceAll("%2F", "/").replaceAll("%2C", ",").replaceAll("%3A", ":");
  return "#/" + path.join("/") + (text ? "?" + text : "");
}
