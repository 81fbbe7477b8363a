// The tree of a flame graph in columns: built, changed, searched and laid out. Nothing here touches the document.

/**
 * @typedef {{name: string, module?: string | null, file?: string | null, line?: number | null, inlined?: boolean, id?: number | null}} FlameFrame
 * @typedef {{parent: ArrayLike<number>, frame: ArrayLike<number>, value: ArrayLike<number>, self: ArrayLike<number>,
 *   base?: ArrayLike<number> | null}} Columns parents come before their children; node 0 is the root
 * @typedef {{count: number, parent: Int32Array, frame: Int32Array, value: Float64Array, self: Float64Array,
 *   base: Float64Array | null, first: Int32Array, next: Int32Array, depth: Int32Array}} FlameTree
 * @typedef {{count: number, node: Int32Array, x: Float64Array, width: Float64Array, depth: Int32Array, deepest: number}} Boxes
 */

/**
 * Makes a tree whose children are in order: by value, the largest first, or by name.
 * @param {Columns} columns
 * @param {FlameFrame[]} frames
 * @param {"value" | "name"} order
 * @returns {FlameTree}
 */
export function buildTree(columns, frames, order) {
  const n = columns.parent.length;
  const tree = {
    count: n, parent: Int32Array.from(columns.parent), frame: Int32Array.from(columns.frame),
    value: Float64Array.from(columns.value), self: Float64Array.from(columns.self),
    base: columns.base ? Float64Array.from(columns.base) : null,
    first: new Int32Array(n).fill(-1), next: new Int32Array(n).fill(-1), depth: new Int32Array(n),
  };
  for (let i = 1; i < n; i++) tree.depth[i] = tree.depth[tree.parent[i]] + 1;
  const size = (/** @type {number} */ i) => Math.max(tree.value[i], tree.base ? tree.base[i] : 0);
  const name = (/** @type {number} */ i) => (frames[tree.frame[i]] || { name: "\uffff" }).name;
  const sorted = Array.from({ length: Math.max(0, n - 1) }, (_, i) => i + 1);
  // Each is put before what its parent has, so the last of the order comes first.
  if (order === "name") sorted.sort((a, b) => (name(a) < name(b) ? 1 : name(a) > name(b) ? -1 : a - b));
  else sorted.sort((a, b) => size(a) - size(b) || b - a);
  for (const i of sorted) {
    const p = tree.parent[i];
    tree.next[i] = tree.first[p];
    tree.first[p] = i;
  }
  return tree;
}

/**
 * Lays out what is below a node over a width; the nodes above it are at full width. Boxes narrower than `least` are left
 * out. In a difference, a box is as wide as the larger of both values.
 * @param {FlameTree} tree
 * @param {number} root
 * @param {number} width
 * @param {number} least
 * @returns {Boxes}
 */
export function layoutFlame(tree, root, width, least) {
  const node = new Int32Array(tree.count), x = new Float64Array(tree.count), w = new Float64Array(tree.count), depth = new Int32Array(tree.count);
  let count = 0, deepest = tree.depth[root];
  for (let i = tree.parent[root], n = 0; i >= 0 && n <= tree.count; i = tree.parent[i], n++) {
    node[count] = i;
    w[count] = width;
    depth[count++] = tree.depth[i];
  }
  const size = (/** @type {number} */ i) => Math.max(tree.value[i], tree.base ? tree.base[i] : 0);
  let at = count;
  node[count] = root;
  w[count] = width;
  depth[count++] = tree.depth[root];
  for (; at < count; at++) {
    const parent = node[at];
    let sum = 0;
    for (let c = tree.first[parent]; c >= 0; c = tree.next[c]) sum += size(c);
    // Children that shrank and grew may together be larger than their parent: they share its width.
    const whole = Math.max(size(parent), sum);
    if (!(whole > 0)) continue;
    const scale = w[at] / whole;
    let left = x[at];
    for (let c = tree.first[parent]; c >= 0; c = tree.next[c]) {
      const wide = size(c) * scale;
      if (wide >= least) {
        node[count] = c;
        x[count] = left;
        w[count] = wide;
        depth[count] = tree.depth[c];
        if (depth[count] > deepest) deepest = depth[count];
        count++;
      }
      left += wide;
    }
  }
  return { count, node, x, width: w, depth, deepest };
}

/**
 * Returns the index of the box at a place, or -1.
 * @param {Boxes} boxes
 * @param {number} x
 * @param {number} depth
 */
export function boxAt(boxes, x, depth) {
  for (let i = boxes.count - 1; i >= 0; i--) {
    if (boxes.depth[i] === depth && x >= boxes.x[i] && x < boxes.x[i] + boxes.width[i]) return i;
  }
  return -1;
}

/**
 * Returns the nodes from the root to a node, both included.
 * @param {FlameTree} tree
 * @param {number} node
 */
export function pathOf(tree, node) {
  const path = [];
  for (let i = node; i >= 0 && path.length <= tree.count; i = tree.parent[i]) path.push(i);
  return path.reverse();
}

/**
 * Returns what was put together below a node as it is too small to be drawn: the sum of those nodes.
 * @param {FlameTree} tree
 * @param {number} node
 */
export function smallBelow(tree, node) {
  const inside = new Uint8Array(tree.count);
  let sum = 0;
  inside[node] = 1;
  for (let i = node + 1; i < tree.count; i++) {
    inside[i] = inside[tree.parent[i]];
    if (inside[i] && tree.frame[i] < 0) sum += tree.value[i];
  }
  return sum;
}

/**
 * Returns for each frame whether it matches a search: a text regardless of case, or /a regular expression/. Null: nothing is
 * searched for, or the expression is not complete.
 * @param {FlameFrame[]} frames
 * @param {string} text
 * @returns {Uint8Array | null}
 */
export function searchFrames(frames, text) {
  text = text.trim();
  if (!text) return null;
  /** @type {(f: FlameFrame) => boolean} */
  let matches;
  const expression = /^\/(.+)\/$/.exec(text);
  if (expression) {
    let regex;
    try {
      regex = new RegExp(expression[1], "i");
    } catch {
      return null;
    }
    const r = regex;
    matches = (f) => r.test(f.name);
  } else {
    const wanted = text.toLowerCase();
    matches = (f) => (f.name + "\n" + (f.module || "") + "\n" + (f.file || "")).toLowerCase().includes(wanted);
  }
  return Uint8Array.from(frames, (f) => (matches(f) ? 1 : 0));
}

/**
 * Returns what the boxes of a search hold together, each byte once, and the number of nodes that match.
 * @param {FlameTree} tree
 * @param {Uint8Array} hits
 * @param {number} [root]
 */
export function matchedValue(tree, hits, root = 0) {
  let value = 0, count = 0;
  const stack = [[root, 0]];
  while (stack.length) {
    const [i, inside] = /** @type {[number, number]} */ (stack.pop());
    const hit = tree.frame[i] >= 0 && hits[tree.frame[i]];
    if (hit) {
      count++;
      if (!inside) value += tree.value[i];
    }
    for (let c = tree.first[i]; c >= 0; c = tree.next[c]) stack.push([c, hit || inside ? 1 : 0]);
  }
  return { value, count };
}

/**
 * Changes a tree as a list of transforms says: `focus` (only what is below a function), `drop` (without the stacks
 * through it), `merge` (its calls belong to its caller), `module` (a module's frames become one), `recursion` (calls
 * of a function by itself become one). Returns columns, and the frames, to which one per merged module is added.
 * @param {Columns} columns
 * @param {FlameFrame[]} frames
 * @param {[string, string][]} transforms
 * @returns {{columns: Columns, frames: FlameFrame[]}}
 */
export function transformTree(columns, frames, transforms) {
  let now = { columns, frames };
  for (const [kind, name] of transforms) now = transformOnce(now.columns, now.frames, kind, name);
  return now;
}

/**
 * @param {Columns} columns
 * @param {FlameFrame[]} frames
 * @param {string} kind
 * @param {string} name
 * @returns {{columns: Columns, frames: FlameFrame[]}}
 */
function transformOnce(columns, frames, kind, name) {
  const n = columns.parent.length, to = new Int32Array(n).fill(-1);
  const out = { parent: [-1], frame: [-1], value: [0], self: [0], base: columns.base ? [0] : null };
  /** @type {Map<string, number>} */
  const known = new Map();
  const all = kind === "module" ? [...frames, { name: "[" + name + "]", module: name }] : frames;
  const inModule = (/** @type {any} */ f) => f >= 0 && f < frames.length && tail(frames[f].module) === name;
  const named = (/** @type {any} */ f) => f >= 0 && frames[f].name === name;
  const selfOf = (/** @type {number} */ i) => columns.self[i];
  const node = (/** @type {number} */ parent, /** @type {number} */ frame) => {
    const key = parent + ":" + frame;
    let i = known.get(key);
    if (i === undefined) {
      i = out.parent.length;
      known.set(key, i);
      out.parent.push(parent);
      out.frame.push(frame);
      out.value.push(0);
      out.self.push(0);
      if (out.base) out.base.push(0);
    }
    return i;
  };
  // A base has no own values by node: what a node has beyond its children.
  const ownBase = columns.base ? Float64Array.from(columns.base) : null;
  if (ownBase) for (let i = 1; i < n; i++) ownBase[columns.parent[i]] -= /** @type {any} */ (columns.base)[i];
  if (kind !== "focus") to[0] = 0;
  for (let i = 0; i < n; i++) {
    if (i > 0) {
      const parent = to[columns.parent[i]], frame = columns.frame[i];
      if (kind === "focus" && parent < 0) to[i] = named(frame) ? node(0, frame) : -1;
      else if (parent < 0 || (kind === "drop" && named(frame))) to[i] = -1;
      else if (kind === "merge" && named(frame)) to[i] = parent;
      else if (kind === "module" && inModule(frame)) to[i] = out.frame[parent] === frames.length ? parent : node(parent, frames.length);
      else if (kind === "recursion" && frame >= 0 && out.frame[parent] === frame) to[i] = parent;
      else to[i] = node(parent, frame);
    }
    if (to[i] < 0) continue;
    out.self[to[i]] += selfOf(i);
    if (out.base && ownBase) out.base[to[i]] += ownBase[i];
  }
  for (let i = out.parent.length - 1; i >= 0; i--) {
    out.value[i] += out.self[i];
    if (i > 0) {
      out.value[out.parent[i]] += out.value[i];
      if (out.base) out.base[out.parent[i]] += out.base[i];
    }
  }
  return { columns: out, frames: all };
}

/** @param {string | null | undefined} path */
function tail(path) {
  return path ? path.slice(path.lastIndexOf("/") + 1) : "";
}

/**
 * Returns the figures of each function: what its own frames hold, and with all they call (each stack once).
 * @param {FlameTree} tree
 * @param {boolean} [up] the tree is bottom-up: the innermost frames are next to the root
 * @returns {{frame: number, self: number, total: number}[]} the largest total first
 */
export function byFunction(tree, up = false) {
  /** @type {Map<number, {frame: number, self: number, total: number}>} */
  const all = new Map();
  /** @type {Int32Array} */
  const open = new Int32Array(tree.count);
  for (let i = 1; i < tree.count; i++) {
    const f = tree.frame[i];
    if (f < 0) continue;
    const row = all.get(f) || { frame: f, self: 0, total: 0 };
    all.set(f, row);
    row.self += up ? (tree.parent[i] === 0 ? tree.value[i] : 0) : tree.self[i];
    let outer = tree.parent[i];
    while (outer > 0 && tree.frame[outer] !== f) outer = tree.parent[outer];
    open[i] = outer > 0 ? 1 : 0;
    if (!open[i]) row.total += tree.value[i];
  }
  return [...all.values()].sort((a, b) => b.total - a.total || a.frame - b.frame);
}

/**
 * Makes columns from stacks, for a page without a server.
 * @param {{frames: number[], value: number}[]} stacks frames are innermost first
 * @param {boolean} inverted
 * @returns {Columns}
 */
export function fromStacks(stacks, inverted) {
  const out = { parent: [-1], frame: [-1], value: [0], self: [0] };
  /** @type {Map<number, number>[]} */
  const children = [new Map()];
  for (const { frames, value } of stacks) {
    if (!(value > 0)) continue;
    let at = 0;
    out.value[0] += value;
    for (let i = 0; i < frames.length; i++) {
      const frame = frames[inverted ? i : frames.length - 1 - i];
      let child = children[at].get(frame);
      if (child === undefined) {
        child = out.parent.length;
        children[at].set(frame, child);
        children.push(new Map());
        out.parent.push(at);
        out.frame.push(frame);
        out.value.push(0);
        out.self.push(0);
      }
      out.value[child] += value;
      at = child;
    }
    out.self[at] += value;
  }
  return out;
}
