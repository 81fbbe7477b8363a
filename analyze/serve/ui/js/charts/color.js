// Colours of charts. Nothing here touches the document.

/** Categorical colours, for light and for dark; told apart also without red and green. */
export const SERIES = {
  light: ["#2563eb", "#d9730d", "#0f8a7e", "#b4308b", "#7355d8", "#8a6d00", "#c2334d", "#4b7a1d", "#6b7280"],
  dark: ["#6ea2ff", "#f2a14b", "#3fc4b4", "#ea7fc5", "#a993ff", "#d9b63b", "#ff8296", "#93c95a", "#9aa3b2"],
};

/**
 * Returns a number from 0 to 359 that a text always has.
 * @param {string} text
 */
export function hueOf(text) {
  let n = 2166136261;
  for (let i = 0; i < text.length; i++) n = Math.imul(n ^ text.charCodeAt(i), 16777619);
  return ((n >>> 0) * 0.618033988749895 * 360) % 360 | 0;
}

/**
 * Returns the colour of a box by the hash of a text; `light` varies with another text.
 * @param {string} text
 * @param {string} other
 * @param {boolean} dark
 */
export function boxColor(text, other, dark) {
  const hue = hueOf(text), vary = hueOf(other) % 9;
  return dark ? `hsl(${hue} 34% ${31 + vary}%)` : `hsl(${hue} 62% ${74 + vary}%)`;
}

/**
 * Returns the colour of a change between -1 (all gone) and 1 (all new).
 * @param {number} change
 * @param {boolean} dark
 */
export function diffColor(change, dark) {
  const c = Math.max(-1, Math.min(1, change)), size = Math.sqrt(Math.abs(c));
  if (size < 0.02) return dark ? "hsl(220 8% 32%)" : "hsl(220 10% 86%)";
  const hue = c > 0 ? 8 : 214;
  return dark ? `hsl(${hue} ${14 + 44 * size}% ${33 + 7 * size}%)` : `hsl(${hue} ${30 + 55 * size}% ${88 - 20 * size}%)`;
}

/**
 * Returns the change between two values as a part of the larger: -1 to 1.
 * @param {number} before
 * @param {number} after
 */
export function change(before, after) {
  const most = Math.max(before, after);
  return most > 0 ? (after - before) / most : 0;
}

/**
 * Returns the colour of a share from 0 to 1: a scale of one hue.
 * @param {number} share
 * @param {boolean} dark
 */
export function heatColor(share, dark) {
  if (!(share > 0)) return dark ? "hsl(220 12% 16%)" : "hsl(220 20% 95%)";
  const s = Math.min(1, share) ** 0.6;
  return dark ? `hsl(${216 + 8 * s} ${38 + 45 * s}% ${24 + 44 * s}%)` : `hsl(${214 + 12 * s} ${60 + 18 * s}% ${88 - 50 * s}%)`;
}
