// The keyboard: one table of what is bound, which the help shows as well.

/** @typedef {{keys: string, help: string, group: string, run: (e: KeyboardEvent) => void}} Binding */

/** @type {Binding[]} */
const bindings = [];
let prefix = "", prefixAt = 0;

/**
 * Binds keys until the signal. `keys` is one key, or two after each other ("g o"); several alternatives are parted by commas.
 * @param {string} group
 * @param {[string, string, (e: KeyboardEvent) => void][]} table keys, help, what they do
 * @param {AbortSignal} [signal]
 */
export function bind(group, table, signal) {
  const added = table.map(([keys, help, run]) => ({ keys, help, group, run }));
  bindings.push(...added);
  if (signal) {
    signal.addEventListener("abort", () => {
      for (const b of added) bindings.splice(bindings.indexOf(b), 1);
    });
  }
}

/** Returns what is bound now. */
export function bound() {
  return bindings;
}

/** @param {EventTarget | null} target */
function writes(target) {
  return target instanceof HTMLElement && target.matches("input, textarea, select, [contenteditable]");
}

/**
 * Whether a key acts on the element that has the focus: Enter follows a link, and presses a button as Space does.
 * @param {KeyboardEvent} e
 */
function activates(e) {
  return (e.key === "Enter" || e.key === " ") && e.target instanceof HTMLElement && e.target.matches("a[href], button, summary");
}

/** Starts to listen. */
export function listen() {
  document.addEventListener("keydown", (e) => {
    if (e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey) return;
    if (writes(e.target)) {
      if (e.key === "Escape") /** @type {HTMLElement} */ (e.target).blur();
      return;
    }
    if (activates(e)) return;
    if (document.querySelector("dialog[open]") && e.key !== "Escape") return;
    const both = prefix && performance.now() - prefixAt < 1500 ? prefix + " " + e.key : "";
    prefix = "";
    // Later bindings, those of the page, come before the general ones.
    for (const b of bindings.toReversed()) {
      const all = b.keys.split(", ");
      if ((both && all.includes(both)) || (!both && all.includes(e.key))) {
        e.preventDefault();
        b.run(e);
        return;
      }
    }
    if (bindings.some((b) => b.keys.startsWith(e.key + " "))) {
      prefix = e.key;
      prefixAt = performance.now();
    }
  });
}
