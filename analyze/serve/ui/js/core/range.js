// Ranges of time as filters. Nothing here touches the document.

import { moment } from "./format.js";
import { time as parseTime } from "./parse.js";
import { put } from "./filters.js";

/**
 * Returns the range of time that a filter selects, in nanoseconds.
 * @param {import("./filters.js").Filter} filter
 * @param {number} runtime
 * @returns {[number, number] | null}
 */
export function rangeOf(filter, runtime) {
  const of = (/** @type {string} */ name) => {
    const all = filter.filter(([n]) => n === name);
    return all.length ? parseTime(all[all.length - 1][1], runtime) : null;
  };
  const from = of("from"), until = of("to");
  return from === null && until === null ? null : [from ?? 0, Math.min(until ?? runtime, runtime)];
}

/**
 * Returns a filter with a range of time, or without.
 * @param {import("./filters.js").Filter} filter
 * @param {[number, number] | null} range
 */
export function withRange(filter, range) {
  const rest = put(put(filter, "from", null), "to", null);
  return range ? [...rest, /** @type {[string, string]} */ (["from", moment(range[0])]), /** @type {[string, string]} */ (["to", moment(range[1])])] : rest;
}
