// Formats figures as the command line does. Nothing here touches the document.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/**
 * Formats bytes in binary units: `512 B`, `22.7 KiB`.
 * @param {number | null | undefined} n
 * @returns {string}
 */
export function bytes(n) {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  if (n < 0) return "-" + bytes(-n);
  if (n < 1024) return Math.round(n) + " B";
  let unit = 1;
  n /= 1024;
  while (n >= 1023.95 && unit + 1 < UNITS.length) { n /= 1024; unit++; }
  return n.toFixed(1) + " " + UNITS[unit];
}

/**
 * Formats a count with separators: `1,234,567`.
 * @param {number | null | undefined} n
 */
export function count(n) {
  return n === null || n === undefined || !Number.isFinite(n) ? "–" : GROUPED.format(n);
}

/**
 * Formats a number briefly, for axes and narrow places: `1.2 M`.
 * @param {number} n
 */
export function brief(n) {
  const size = Math.abs(n);
  for (const [least, unit] of /** @type {[number, string][]} */ ([[1e9, " G"], [1e6, " M"], [1e3, " k"]])) {
    if (size >= least) return trim((n / least).toFixed(size < 10 * least ? 1 : 0)) + unit;
  }
  return size < 10 && n % 1 ? trim(n.toFixed(1)) : String(Math.round(n));
}

/** @param {string} text */
function trim(text) {
  return text.endsWith(".0") ? text.slice(0, -2) : text;
}

/**
 * Formats a value in its unit.
 * @param {number | null | undefined} n
 * @param {string} unit
 */
export function amount(n, unit) {
  if (unit === "bytes") return bytes(n);
  if (unit === "bytes/s") return bytes(n) + "/s";
  if (unit === "ns") return duration(n);
  if (unit === "/s") return n === null || n === undefined ? "–" : brief(n) + "/s";
  return count(n);
}

/**
 * Formats a difference with its sign.
 * @param {number} n
 * @param {string} [unit]
 */
export function signed(n, unit = "bytes") {
  return (n > 0 ? "+" : "") + amount(n, unit);
}

/**
 * Formats a duration: `850 ns`, `6.2 ms`, `12.3 s`, `4m 05s`, `3h 07m`, `2d 04h`.
 * @param {number | null | undefined} ns
 * @returns {string}
 */
export function duration(ns) {
  if (ns === null || ns === undefined || !Number.isFinite(ns)) return "–";
  if (ns < 0) return "-" + duration(-ns);
  if (ns < 1e3) return Math.round(ns) + " ns";
  if (ns < 999950) return (ns / 1e3).toFixed(1) + " us";
  if (ns < 999950000) return (ns / 1e6).toFixed(1) + " ms";
  if (ns < 59950000000) return (ns / 1e9).toFixed(1) + " s";
  const s = Math.max(60, Math.floor(ns / 1e9));
  const two = (/** @type {any} */ v) => String(Math.floor(v)).padStart(2, "0");
  if (s < 3600) return Math.floor(s / 60) + "m " + two(s % 60) + "s";
  if (s < 86400) return Math.floor(s / 3600) + "h " + two(s / 60 % 60) + "m";
  return Math.floor(s / 86400) + "d " + two(s / 3600 % 24) + "h";
}

/**
 * Formats a moment to the microsecond, so that neighbours can be told apart: `1.102345 s`, `2h 03m 04.567 s`.
 * @param {number | null | undefined} ns
 */
export function clock(ns) {
  if (ns === null || ns === undefined || !Number.isFinite(ns)) return "–";
  if (ns < 60e9) return (ns / 1e9).toFixed(6) + " s";
  const s = ns / 1e9, two = (/** @type {number} */ v) => String(Math.floor(v)).padStart(2, "0");
  const rest = (Math.floor(s * 1e3) % 60e3 / 1e3).toFixed(3).padStart(6, "0") + " s";
  return (s < 3600 ? "" : Math.floor(s / 3600) + "h ") + two(s / 60 % 60) + "m " + rest;
}

/**
 * Writes a moment as the filters read it back: whole microseconds, in the largest unit that stays exact.
 * @param {number} ns
 */
export function moment(ns) {
  const us = Math.max(0, Math.round(ns / 1e3));
  if (us % 1e6 === 0) return us / 1e6 + "s";
  return us % 1e3 === 0 ? us / 1e3 + "ms" : us + "us";
}

/**
 * Formats a part of a whole: `12.3%`.
 * @param {number} part
 * @param {number} whole
 */
export function percent(part, whole) {
  if (!whole) return "–";
  const p = 100 * part / whole;
  return (Math.abs(p) >= 99.95 ? p.toFixed(0) : p.toFixed(1)) + "%";
}

/**
 * Formats a Unix time in nanoseconds: `2026-11-24 22:46:09 UTC`.
 * @param {number | null | undefined} ns
 */
export function when(ns) {
  if (!ns || !Number.isFinite(ns)) return "–";
  return new Date(ns / 1e6).toISOString().replace("T", " ").slice(0, 19) + " UTC";
}

/**
 * Returns the last component of a path.
 * @param {string | null | undefined} path
 */
export function base(path) {
  return path ? path.slice(path.lastIndexOf("/") + 1) : "";
}

/**
 * Returns the name of a frame: the function, or module and offset, or the address.
 * @param {any} frame
 */
export function frameName(frame) {
  if (!frame) return "(no stack)";
  if (frame.function || frame.name) return frame.function || frame.name;
  if (frame.module) return base(frame.module) + (frame.offset ? "+" + frame.offset : "");
  return frame.address || "(unknown)";
}

/**
 * Returns file and line of a frame, or its module.
 * @param {any} frame
 */
export function framePlace(frame) {
  if (!frame) return "";
  if (frame.file) return frame.line ? base(frame.file) + ":" + frame.line : base(frame.file);
  return base(frame.module);
}

/**
 * Returns the ordinal of a position that counts from 0: `1st`, `2nd`, `3rd`, `11th`.
 * @param {number} position
 */
export function ordinal(position) {
  const n = position + 1, tens = n % 100;
  const end = tens >= 11 && tens <= 13 ? "th" : ["th", "st", "nd", "rd"][n % 10] || "th";
  return n + end;
}

/**
 * Returns "1 block", "2 blocks".
 * @param {number | null | undefined} n
 * @param {string} one
 * @param {string} [many]
 */
export function plural(n, one, many = one + "s") {
  return count(n) + " " + (n === 1 ? one : many);
}
