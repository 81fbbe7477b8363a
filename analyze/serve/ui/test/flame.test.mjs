// The tree of a flame graph: built, laid out, searched, changed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { boxAt, buildTree, byFunction, fromStacks, layoutFlame, matchedValue, pathOf, searchFrames, smallBelow, transformTree } from "../js/charts/layout.js";

const FRAMES = ["main", "parse", "alloc", "eval", "free"].map((name, i) => ({ name, module: i < 3 ? "/bin/app" : "/lib/libx.so" }));
// main > parse > alloc 30, main > eval 50 (own), main > eval > parse > alloc 20; innermost first.
const STACKS = [{ frames: [2, 1, 0], value: 30 }, { frames: [3, 0], value: 50 }, { frames: [2, 1, 3, 0], value: 20 }];

/** Makes a random tree in columns. */
function random(n, seed) {
  let x = seed;
  const next = () => (x = (Math.imul(x, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  const c = { parent: [-1], frame: [-1], value: [0], self: [0] };
  for (let i = 1; i < n; i++) {
    c.parent.push(Math.floor(next() ** 2 * i));
    c.frame.push(Math.floor(next() * 2000));
    c.value.push(0);
    c.self.push(Math.floor(next() * 1000));
  }
  for (let i = n - 1; i >= 0; i--) {
    c.value[i] += c.self[i];
    if (i) c.value[c.parent[i]] += c.value[i];
  }
  return c;
}
const MANY = Array.from({ length: 2000 }, (_, i) => ({ name: "function_" + i, module: "/lib/lib" + (i % 17) + ".so" }));

test("children are in order and add up", () => {
  const tree = buildTree(random(5000, 7), MANY, "value");
  for (let i = 0; i < tree.count; i++) {
    let sum = tree.self[i], last = Infinity;
    for (let c = tree.first[i]; c >= 0; c = tree.next[c]) {
      sum += tree.value[c];
      assert.ok(tree.value[c] <= last);
      last = tree.value[c];
    }
    assert.equal(sum, tree.value[i]);
  }
  const named = buildTree(random(500, 7), MANY, "name");
  for (let c = named.first[0]; c >= 0 && named.next[c] >= 0; c = named.next[c]) assert.ok(MANY[named.frame[c]].name <= MANY[named.frame[named.next[c]]].name);
});

test("stacks make a tree, either way round", () => {
  const down = buildTree(fromStacks(STACKS, false), FRAMES, "value"), up = buildTree(fromStacks(STACKS, true), FRAMES, "value");
  assert.equal(down.value[0], 100);
  assert.equal(FRAMES[down.frame[down.first[0]]].name, "main");
  assert.equal(down.value[down.first[0]], 100);
  assert.equal(FRAMES[up.frame[up.first[0]]].name, "alloc");
  assert.equal(up.value[0], 100);
});

test("boxes lie within their parents and do not overlap", () => {
  const tree = buildTree(random(20000, 3), MANY, "value");
  for (const root of [0, tree.first[0]]) {
    const b = layoutFlame(tree, root, 1200, 0.5), at = new Map();
    for (let i = 0; i < b.count; i++) at.set(b.node[i], i);
    for (let i = 0; i < b.count; i++) {
      const p = at.get(tree.parent[b.node[i]]);
      if (p === undefined) continue;
      assert.ok(b.x[i] >= b.x[p] - 1e-6 && b.x[i] + b.width[i] <= b.x[p] + b.width[p] + 1e-6);
    }
    assert.equal(b.width[at.get(root)], 1200);
    const hit = boxAt(b, b.x[b.count - 1] + b.width[b.count - 1] / 2, b.depth[b.count - 1]);
    assert.equal(hit, b.count - 1);
  }
});

test("a difference is as wide as the larger of both", () => {
  const columns = { parent: [-1, 0, 0], frame: [-1, 0, 1], value: [10, 10, 0], self: [0, 10, 0], base: [30, 0, 30] };
  const b = layoutFlame(buildTree(columns, FRAMES, "value"), 0, 400, 0.1);
  assert.deepEqual([...b.width.slice(0, 3)], [400, 300, 100]);
});

test("the path leads from the root", () => {
  const tree = buildTree(fromStacks(STACKS, false), FRAMES, "value");
  let node = 0;
  while (tree.first[node] >= 0) node = tree.first[node];
  assert.equal(pathOf(tree, node)[0], 0);
  assert.equal(pathOf(tree, node).at(-1), node);
});

test("a search counts each byte once", () => {
  const tree = buildTree(fromStacks(STACKS, false), FRAMES, "value");
  assert.deepEqual(matchedValue(tree, searchFrames(FRAMES, "PARSE")), { value: 50, count: 2 });
  assert.deepEqual(matchedValue(tree, searchFrames(FRAMES, "/^(main|alloc)$/")), { value: 100, count: 3 });
  assert.equal(matchedValue(tree, searchFrames(FRAMES, "libx")).value, 70);
  assert.equal(searchFrames(FRAMES, "  "), null);
  assert.equal(searchFrames(FRAMES, "/(/"), null);
});

test("transforms keep what they keep", () => {
  const columns = fromStacks(STACKS, false);
  const total = (list) => {
    const t = transformTree(columns, FRAMES, list), tree = buildTree(t.columns, t.frames, "value");
    return [tree.value[0], new Set([...tree.frame].filter((f) => f >= 0).map((f) => t.frames[f].name))];
  };
  assert.deepEqual(total([["focus", "parse"]]), [50, new Set(["parse", "alloc"])]);
  assert.deepEqual(total([["drop", "parse"]]), [50, new Set(["main", "eval"])]);
  assert.deepEqual(total([["merge", "parse"]]), [100, new Set(["main", "alloc", "eval"])]);
  assert.deepEqual(total([["module", "app"]])[0], 100);
  assert.ok(total([["module", "app"]])[1].has("[app]"));
  const deep = fromStacks([{ frames: [1, 1, 1, 0], value: 5 }], false);
  assert.equal(transformTree(deep, FRAMES, [["recursion", ""]]).columns.parent.length, 3);
});

test("functions are added up, recursion once", () => {
  const tree = buildTree(fromStacks([{ frames: [1, 1, 0], value: 5 }, { frames: [2, 0], value: 7 }], false), FRAMES, "value");
  const rows = Object.fromEntries(byFunction(tree).map((r) => [FRAMES[r.frame].name, [r.self, r.total]]));
  assert.deepEqual(rows, { main: [0, 12], alloc: [7, 7], parse: [5, 5] });
  const up = buildTree(fromStacks([{ frames: [1, 1, 0], value: 5 }, { frames: [2, 0], value: 7 }], true), FRAMES, "value");
  assert.deepEqual(Object.fromEntries(byFunction(up, true).map((r) => [FRAMES[r.frame].name, [r.self, r.total]])), rows);
});

test("what is too small is added up below a node", () => {
  // all > main > (parse > others 3, others 2), eval 5
  const columns = { parent: [-1, 0, 1, 2, 1, 0], frame: [-1, 0, 1, -1, -1, 3], value: [20, 15, 10, 3, 2, 5], self: [0, 10, 7, 3, 2, 5] };
  const tree = buildTree(columns, FRAMES, "value");
  assert.deepEqual([0, 1, 2, 5].map((n) => smallBelow(tree, n)), [5, 5, 3, 0]);
});
