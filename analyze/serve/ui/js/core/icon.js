// The icons.

const SVG = "http://www.w3.org/2000/svg";

/** The icons, as paths of 16 by 16. @type {Record<string, string>} */
const ICONS = {
  grid: "M2.5 2.5h4.5v4.5h-4.5zM9 2.5h4.5v4.5h-4.5zM2.5 9h4.5v4.5h-4.5zM9 9h4.5v4.5h-4.5z",
  chart: "M2 13.5h12M3 11l3.2-4 2.6 2.2L13 3.5",
  list: "M2.5 4h11M2.5 8h11M2.5 12h11",
  flame: "M2 3h12v2.6H2zM2 6.7h8v2.6H2zM2 10.4h4.6V13H2zM11 6.7h3v2.6h-3z",
  tree: "M3 2.5v9.5h4M3 6h4M8.5 4.5h5v3h-5zM8.5 10.5h5v3h-5z",
  map: "M2.5 3h11v2.5h-11zM2.5 6.8h11v2.5h-11zM2.5 10.6h11v2.5h-11zM6 3v2.5M9 6.8v2.5",
  space: "M2 5.5h12v5H2zM5 5.5v5M7 5.5v5M11 5.5v5",
  drop: "M8 2c2.4 3 4 5 4 7.2a4 4 0 0 1-8 0C4 7 5.6 5 8 2z",
  hold: "M8 2.5v3M8 5.5L4 8.5M8 5.5l4 3M2.5 9h3v4h-3zM10.5 9h3v4h-3z",
  diff: "M5 3v7M2.5 6.5h5M9 12h5M2.5 12.5h5",
  threads: "M4 2c0 4 4 4 4 8v4M8 2c0 4-4 4-4 8v4M12 2v12",
  bars: "M3 13V8M6.4 13V4M9.7 13V6.5M13 13v-3",
  live: "M8 6.5a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3M4.5 4.5a5 5 0 0 0 0 7M11.5 4.5a5 5 0 0 1 0 7",
  help: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12M6.2 6.3a1.8 1.8 0 1 1 2.6 1.6c-.6.3-.8.7-.8 1.3M8 11.3v.2",
  link: "M6.7 9.3l2.6-2.6M7 4.8l1.5-1.5a2.7 2.7 0 0 1 3.9 3.9L11 8.7M9 11.2l-1.5 1.5a2.7 2.7 0 0 1-3.9-3.9L5 7.3",
  terminal: "M2 3h12v10H2zM4.5 6l2 2-2 2M8 10h3.5",
  sun: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6M8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5z",
  auto: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  close: "M4 4l8 8M12 4l-8 8",
  plus: "M8 3v10M3 8h10",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  undo: "M6 3.5L3 6.5l3 3M3 6.5h6.5a3.5 3.5 0 0 1 0 7H7",
  left: "M10 3L5 8l5 5",
  right: "M6 3l5 5-5 5",
  filter: "M2 3h12L9.5 8.5V13l-3-1.5v-3z",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9M10.3 10.3l3.5 3.5",
  warn: "M8 2.5l6.2 11H1.8zM8 6.5v3.2M8 11.5v.2",
};

/**
 * Makes an icon. It is decoration: what it stands for must be said in words beside it or in a label.
 * @param {string} name
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name] || "");
  svg.append(path);
  return svg;
}
