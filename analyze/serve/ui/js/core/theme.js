// Light, dark, or as the system says.

/** @type {("auto" | "light" | "dark")[]} */
const THEMES = ["auto", "light", "dark"];
/** @type {Set<() => void>} */
const listeners = new Set();

const system = matchMedia("(prefers-color-scheme: dark)");

/** Returns the chosen theme. */
export function theme() {
  /** @type {string | null} */
  let kept = null;
  try {
    kept = localStorage.getItem("prof.theme");
  } catch {
    // Storage may be forbidden; then the system decides.
  }
  return THEMES.find((t) => t === kept) || "auto";
}

/** Applies the chosen theme, and the system's whenever it changes. */
export function applyTheme() {
  system.onchange = applyTheme;
  const chosen = theme();
  document.documentElement.setAttribute("data-theme", chosen !== "auto" ? chosen : system.matches ? "dark" : "light");
  listeners.forEach((l) => l());
}

/** Goes on to the next theme and returns it. */
export function nextTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  try {
    localStorage.setItem("prof.theme", next);
  } catch {
    // Not kept, but shown.
  }
  applyTheme();
  return next;
}

/**
 * Calls a listener when colours change.
 * @param {() => void} listener
 * @param {AbortSignal} signal
 */
export function onTheme(listener, signal) {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
}
