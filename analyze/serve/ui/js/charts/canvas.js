// Canvases in the resolution of the screen, and colours of the style sheet.

/**
 * Sizes a canvas to its box and returns its context, with the text style set. Returns null if it has no size.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @returns {CanvasRenderingContext2D | null}
 */
export function sized(canvas, width, height) {
  const scale = window.devicePixelRatio || 1, w = Math.round(width * scale), h = Math.round(height * scale);
  if (!w || !h) return null;
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  canvas.style.setProperty("height", height + "px");
  const g = canvas.getContext("2d");
  if (!g) return null;
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = FONT;
  g.textBaseline = "middle";
  return g;
}

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

/** Returns the colours that the style sheet has now. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const of = (/** @type {string} */ name) => style.getPropertyValue("--" + name).trim();
  return {
    text: of("text"), muted: of("muted"), grid: of("grid"), line: of("border"), surface: of("surface"), accent: of("accent"),
    band: of("brush"), hit: of("hit"), danger: of("danger"), dark: of("scheme") === "dark",
  };
}

/**
 * Draws when the size of an element changes, until the signal. The first drawing is at once.
 * @param {Element} element
 * @param {(width: number) => void} draw
 * @param {AbortSignal} signal
 */
export function onResize(element, draw, signal) {
  let last = -1;
  const observer = new ResizeObserver((entries) => {
    const width = Math.floor(entries[0].contentRect.width);
    if (width !== last && width > 0) {
      last = width;
      draw(width);
    }
  });
  observer.observe(element);
  signal.addEventListener("abort", () => observer.disconnect());
}

/**
 * Draws at most once a frame.
 * @param {() => void} draw
 */
export function framed(draw) {
  let asked = 0;
  return () => {
    if (!asked) {
      asked = requestAnimationFrame(() => {
        asked = 0;
        draw();
      });
    }
  };
}

/**
 * Shortens a text to a width.
 * @param {CanvasRenderingContext2D} g
 * @param {string} text
 * @param {number} width
 */
export function clipped(g, text, width) {
  // An average character is 6 pixels wide: what is far too long is cut before it is measured.
  if (text.length * 3 > width) text = text.slice(0, Math.ceil(width / 3));
  if (g.measureText(text).width <= width) return text;
  let lo = 0, hi = text.length;
  while (lo < hi) {
    const mid = (lo + hi + 1) >> 1;
    if (g.measureText(text.slice(0, mid) + "…").width <= width) lo = mid;
    else hi = mid - 1;
  }
  return lo > 0 ? text.slice(0, lo) + "…" : "";
}
