// Scales and ticks of axes. Nothing here touches the document.

/**
 * Returns the step of an axis with about `wanted` ticks: powers of two for bytes, 1, 2 or 5 times a power of ten for
 * counts, round times for nanoseconds.
 * @param {number} span
 * @param {number} wanted
 * @param {string} unit
 */
export function tickStep(span, wanted, unit) {
  const least = span / Math.max(1, wanted);
  if (!(least > 0)) return 1;
  if (unit.startsWith("bytes")) {
    const unitSize = 1024 ** Math.max(0, Math.floor(Math.log(least) / Math.log(1024) + 1e-9));
    for (const m of [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]) if (m * unitSize >= least) return m * unitSize;
  }
  if (unit === "ns" && least >= 1e9) {
    for (const s of TIMES_S) if (s * 1e9 >= least) return s * 1e9;
    return Math.ceil(least / 86400e9) * 86400e9;
  }
  const ten = 10 ** Math.floor(Math.log10(least) + 1e-9);
  for (const m of [1, 2, 5, 10]) if (m * ten >= least * (1 - 1e-9)) return unit === "count" ? Math.max(1, m * ten) : m * ten;
  return 10 * ten;
}

const TIMES_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

/**
 * Returns the ticks between two values.
 * @param {number} from
 * @param {number} to
 * @param {number} wanted
 * @param {string} unit
 */
export function ticks(from, to, wanted, unit) {
  const step = tickStep(to - from, wanted, unit), out = [];
  for (let i = Math.ceil(from / step - 1e-9) || 0; i * step <= to + step * 1e-9 && out.length < 200; i++) out.push(i * step);
  return out;
}

/**
 * Returns the text of a tick on an axis of time. All ticks of an axis are in the same unit.
 * @param {number} ns
 * @param {number} step
 */
export function timeTick(ns, step) {
  const digits = (/** @type {number} */ unit) => Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  if (ns === 0) return "0";
  if (step < 1e6) return (ns / 1e6).toFixed(Math.min(6, digits(1e6))) + " ms";
  if (ns < 60e9 && step < 60e9) return (ns / 1e9).toFixed(digits(1e9)) + " s";
  const s = ns / 1e9, two = (/** @type {any} */ v) => String(Math.floor(v)).padStart(2, "0");
  if (step >= 86400e9) return Math.round(s / 86400) + "d";
  if (s >= 3600) return Math.floor(s / 3600) + "h " + two(s / 60 % 60) + "m";
  const rest = s % 60;
  return Math.floor(s / 60) + "m" + (step < 60e9 ? " " + (step < 1e9 ? rest.toFixed(digits(1e9)) : two(Math.round(rest))) + "s" : "");
}

/**
 * Returns the greatest value of several series, and at least `least`.
 * @param {(ArrayLike<number | null> | undefined)[]} all
 * @param {number} least
 */
export function greatest(all, least) {
  let most = least;
  for (const a of all) for (let i = 0; a && i < a.length; i++) if (/** @type {number} */ (a[i]) > most) most = /** @type {number} */ (a[i]);
  return most;
}

/**
 * Returns the top of an axis that shows values up to `most`: the next tick above.
 * @param {number} most
 * @param {number} wanted
 * @param {string} unit
 */
export function roof(most, wanted, unit) {
  const step = tickStep(most, wanted, unit);
  return Math.max(step, Math.ceil(most / step - 1e-9) * step);
}

/**
 * Reduces a band of values to a width: the least and the greatest of each column. Values that are not known are null.
 * @param {ArrayLike<number | null>} min
 * @param {ArrayLike<number | null>} max
 * @param {number} width
 * @returns {{min: (number | null)[], max: (number | null)[]}}
 */
export function reduceBand(min, max, width) {
  const n = max.length, out = { min: /** @type {(number | null)[]} */ ([]), max: /** @type {(number | null)[]} */ ([]) };
  width = Math.max(1, Math.min(width, n));
  for (let c = 0; c < width; c++) {
    const a = Math.floor(c * n / width), b = Math.max(a + 1, Math.floor((c + 1) * n / width));
    /** @type {number | null} */
    let lo = null;
    /** @type {number | null} */
    let hi = null;
    for (let i = a; i < b; i++) {
      const l = min[i], u = max[i];
      if (l !== null && l !== undefined && (lo === null || l < lo)) lo = l;
      if (u !== null && u !== undefined && (hi === null || u > hi)) hi = u;
    }
    out.min.push(lo);
    out.max.push(hi);
  }
  return out;
}

/**
 * Zooms a window about a place in it, within bounds and not below a least width.
 * @param {[number, number]} window
 * @param {[number, number]} bounds
 * @param {number} factor below 1 zooms in
 * @param {number} at what stays in its place
 * @param {number} [least]
 * @returns {[number, number]}
 */
export function zoomWindow(window, bounds, factor, at, least = 1000) {
  const whole = bounds[1] - bounds[0], width = Math.min(whole, Math.max(Math.min(least, whole), (window[1] - window[0]) * factor));
  const part = (at - window[0]) / Math.max(1e-9, window[1] - window[0]);
  const from = Math.min(Math.max(bounds[0], at - part * width), bounds[1] - width);
  return [from, from + width];
}

/**
 * Moves a window by a part of its width, within bounds.
 * @param {[number, number]} window
 * @param {[number, number]} bounds
 * @param {number} part
 * @returns {[number, number]}
 */
export function panWindow(window, bounds, part) {
  const width = window[1] - window[0];
  const from = Math.min(Math.max(bounds[0], window[0] + part * width), bounds[1] - width);
  return [from, from + width];
}
