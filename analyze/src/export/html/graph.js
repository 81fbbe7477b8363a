// Prepares the data for display: numbers as text, and the tree of a flame graph. Nothing here touches the document.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytes(n) {
  let unit = 0;
  while (n >= 1023.95 && unit + 1 < UNITS.length) { n /= 1024; unit++; }
  return (unit ? n.toFixed(1) : String(n)) + " " + UNITS[unit];
}

function amount(n, unit) {
  return unit === "bytes" ? bytes(n) : n.toLocaleString("en-US");
}

function duration(ns) {
  const s = ns / 1e9;
  if (s < 1) return (ns / 1e6).toFixed(1) + " ms";
  if (s < 60) return s.toFixed(1) + " s";
  const pad = (v) => String(Math.floor(v)).padStart(2, "0");
  if (s < 3600) return Math.floor(s / 60) + "m " + pad(s % 60) + "s";
  return Math.floor(s / 3600) + "h " + pad(s / 60 % 60) + "m";
}

// Returns the tree of all stacks by one cost, from the outermost frame inwards or the other way round. A node is
// {frame, value, children, depth}; the root's frame is -1.
function tree(data, cost, inverted) {
  const root = { frame: -1, value: 0, children: new Map(), depth: 0 };
  for (const stack of data.stacks) {
    const value = stack.costs[cost];
    if (!(value > 0)) continue;
    root.value += value;
    let node = root;
    const last = stack.frames.length - 1;
    for (let i = 0; i <= last; i++) {
      const frame = stack.frames[inverted ? i : last - i];
      let child = node.children.get(frame);
      if (!child) {
        child = { frame, value: 0, children: new Map(), depth: node.depth + 1 };
        node.children.set(frame, child);
      }
      child.value += value;
      node = child;
    }
  }
  return root;
}

// Returns the rectangles of a tree below `top`, with those above it at full width: {node, x, width, depth}, x and
// width as parts of 1. Rectangles narrower than `least` are left out.
function layout(path, least) {
  const out = [];
  const top = path[path.length - 1];
  path.forEach((node, depth) => out.push({ node, x: 0, width: 1, depth, above: node !== top }));
  const stack = [{ node: top, x: 0, width: 1, depth: path.length - 1 }];
  while (stack.length) {
    const at = stack.pop();
    let x = at.x;
    const children = [...at.node.children.values()].sort((a, b) => b.value - a.value || a.frame - b.frame);
    for (const child of children) {
      const width = at.node.value ? at.width * child.value / at.node.value : 0;
      if (width >= least) {
        const box = { node: child, x, width, depth: at.depth + 1, above: false };
        out.push(box);
        stack.push(box);
      }
      x += width;
    }
  }
  return out;
}

// Returns the frames whose name, module or place contains the text, regardless of case.
function found(data, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const has = (f) => (f.name + "\n" + f.module + "\n" + f.place).toLowerCase().includes(wanted);
  return data.frames.map(has);
}

// Returns the sum of all stacks that contain a found frame.
function matched(data, cost, hits) {
  let sum = 0;
  for (const s of data.stacks) if (s.frames.some((f) => hits[f])) sum += s.costs[cost];
  return sum;
}
