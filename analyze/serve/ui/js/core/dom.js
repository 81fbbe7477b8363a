// Makes elements. All text gets into the document as text, never as HTML.

/**
 * @typedef {Node | string | number | null | undefined | false | Child[]} Child
 * @typedef {{[on: `on${string}`]: ((e: any) => any) | null | undefined, [name: string]: any}} Attributes
 */

/**
 * Makes an element: `h("button.primary", {onclick}, "Text")`. Attributes that are functions are listeners; null, false
 * and undefined leave an attribute out.
 * @param {string} name tag and classes
 * @param {Attributes | null} [attributes]
 * @param {...Child} children
 * @returns {any}
 */
export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  const e = document.createElement(tag);
  if (classes.length) e.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") e.addEventListener(key.slice(2), value);
    else if (key === "class") e.className = [e.className, value].filter(Boolean).join(" ");
    else if (key === "style") for (const [n, v] of Object.entries(value)) e.style.setProperty(n, String(v));
    else if (key in IDL) /** @type {any} */ (e)[key] = value;
    else e.setAttribute(key, value === true ? "" : String(value));
  }
  add(e, children);
  return e;
}

/** Attributes that are set as properties. @type {Record<string, 1>} */
const IDL = { value: 1, checked: 1, disabled: 1, hidden: 1, indeterminate: 1, selected: 1, tabIndex: 1 };

/**
 * Appends children, passing over what is empty.
 * @param {ParentNode & Node} parent
 * @param {Child} child
 */
export function add(parent, child) {
  if (child === null || child === undefined || child === false) return;
  if (Array.isArray(child)) child.forEach((c) => add(parent, c));
  else parent.append(child instanceof Node ? child : String(child));
}

/**
 * Replaces what is in an element.
 * @param {Element} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  const all = document.createDocumentFragment();
  add(all, children);
  parent.replaceChildren(all);
}

/**
 * Scrolls a box as little as shows an element in it. Chromium's `scrollIntoView` also moves the point from which Tab
 * starts to the element: whoever opens the page would not reach the link past the navigation.
 * @param {Element} element
 * @param {Element} box
 */
export function reveal(element, box) {
  const e = element.getBoundingClientRect(), b = box.getBoundingClientRect();
  box.scrollLeft += Math.min(0, e.left - b.left) || Math.max(0, e.right - b.right);
  box.scrollTop += Math.min(0, e.top - b.top) || Math.max(0, e.bottom - b.bottom);
}

/**
 * Waits until no call has come for a while, then makes the last one.
 * @template {any[]} A
 * @param {(...a: A) => void} call
 * @param {number} ms
 * @returns {(...a: A) => void}
 */
export function later(call, ms) {
  let timer = 0;
  return (...a) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...a), ms);
  };
}
