// The filters of a view: in the address, as words, and as a command line. Nothing here touches the document.

/**
 * A field of the grammar, as /api/v1/fields describes it.
 * @typedef {{name: string, aliases: string[], value: string, help: string, refused: string | null}} Field
 * @typedef {[string, string][]} Filter the fields that are set, in order
 */

/** The tabs of the filter editor; what a tab does not name is under "Other". @type {[string, RegExp][]} */
export const TABS = [
  ["Time", /^(from|to|alive-at|alive-at-2|part|thread)$/],
  ["Size", /^(min|max)-(first-|last-|usable-)?size$/],
  ["Lifetime", /^(lifetime|older|(min|max)-(chain-)?lifetime)$/],
  ["Call stack", /^(not-)?(function|source|module)$|^(min|max)-depth$|^(free-)?stacks$/],
  ["Group", /^(min|max)-group-/],
  ["Reallocations", /^(min|max)-chain-(length|position)$/],
  ["Address", /^(min|max)-address$|^mmapped$|^arena$|^jemalloc$|^from-map$|^marker$/],
  ["Mapping", /^(kind|name|id|readable|writable|executable|shared|caught|bytehound)$|^(min|max)-(peak-)?rss$/],
];

/** The values that a field with a closed set takes. @type {Record<string, string[]>} */
export const CHOICES = {
  "lifetime": ["leaked", "freed", "temporary", "chain-leaked", "whole-group-leaked", "all"],
  "yes|no": ["yes", "no"],
  "main|non-main": ["main", "non-main"],
  "kind": ["heap", "anonymous", "stack", "code", "data", "file", "shared", "reserved", "kernel", "prof"],
};

/**
 * Returns whether a filter counts on pages with these fields. One that is of the other kind of pages alone, such as the
 * use of mappings where blocks are shown, does not; an unknown one does, so that the server says so.
 * @param {string} name
 * @param {Field[]} own
 * @param {Field[]} other
 */
export function counts(name, own, other) {
  const has = (/** @type {Field[]} */ fields) => fields.some((f) => !f.refused && (f.name === name || f.aliases.includes(name)));
  return has(own) || !has(other);
}

/**
 * Returns the tab of a field.
 * @param {string} name
 */
export function tabOf(name) {
  return (TABS.find(([, has]) => has.test(name)) || ["Other"])[0];
}

/**
 * Returns the filter as the query of a request.
 * @param {Filter} filter
 */
export function toQuery(filter) {
  const query = new URLSearchParams();
  for (const [name, value] of filter) query.append(name, value);
  return query;
}

/**
 * Returns the filter with a field set to a value, or without it if the value is null. Fields that may be given
 * again, such as regular expressions, are added.
 * @param {Filter} filter
 * @param {string} name
 * @param {string | null} value
 * @returns {Filter}
 */
export function put(filter, name, value) {
  if (value === null) return filter.filter(([n]) => n !== name);
  if (MANY.test(name)) {
    return filter.some(([n, v]) => n === name && v === value) ? filter : [...filter, [name, value]];
  }
  const at = filter.findIndex(([n]) => n === name);
  return at < 0 ? [...filter, [name, value]] : filter.map((f, i) => i === at ? [name, value] : f);
}

const MANY = /^(not-)?(function|source|module)$|^(free-)?stacks$|^thread$/;

/**
 * Returns the filter without the one at an index.
 * @param {Filter} filter
 * @param {number} index
 * @returns {Filter}
 */
export function without(filter, index) {
  return filter.filter((_, i) => i !== index);
}

/** @type {Record<string, string>} */
const WORDS = {
  "from": "allocated from", "to": "allocated until", "alive-at": "live at", "alive-at-2": "and live at",
  "lifetime": "lifetime", "older": "older than", "thread": "thread", "part": "part",
  "function": "function", "not-function": "no function", "source": "source", "not-source": "no source",
  "module": "module", "not-module": "no module", "stacks": "stack", "free-stacks": "freed at stack",
  "mmapped": "mapped on its own", "arena": "arena", "from-map": "in mapping",
};

/**
 * Returns a filter in words: name and value of a chip.
 * @param {string} name
 * @param {string} value
 * @returns {[string, string]}
 */
export function words(name, value) {
  if (WORDS[name]) return [WORDS[name], REGEX.test(name) ? "/" + value + "/" : value];
  const m = /^(min|max)-(.+)$/.exec(name);
  return m ? [m[2].replaceAll("-", " "), (m[1] === "min" ? "≥ " : "≤ ") + value] : [name.replaceAll("-", " "), value];
}

const REGEX = /^(not-)?(function|source|module)$/;

/**
 * Quotes a word for a shell, if it needs it.
 * @param {string} word
 */
export function quote(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'";
}

/**
 * Returns the command line that prints the figures of a view.
 * @param {string[]} command for example ["report", "--group-by", "function"]
 * @param {Filter} filter
 * @param {string} file
 */
export function toCommand(command, filter, file) {
  const words = ["prof", ...command];
  for (const [name, value] of filter) words.push("--" + name, value);
  words.push(file);
  return words.map(quote).join(" ");
}

/**
 * Escapes a text, so that a regular expression matches just that.
 * @param {string} text
 */
export function literal(text) {
  return text.replace(/[\\^$.*+?()[\]{}|#&~-]/g, "\\$&");
}

/**
 * Splits a function's name for a filter that matches this function alone.
 * @param {string} name
 */
export function exactly(name) {
  return "^" + literal(name) + "$";
}
