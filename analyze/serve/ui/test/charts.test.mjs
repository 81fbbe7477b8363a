// Scales, reduction and colours.
import assert from "node:assert/strict";
import { test } from "node:test";
import { boxColor, change, diffColor, heatColor, hueOf } from "../js/charts/color.js";
import { greatest, panWindow, reduceBand, roof, tickStep, ticks, timeTick, zoomWindow } from "../js/charts/scale.js";

test("ticks of bytes are powers of two in their unit", () => {
  assert.deepEqual(ticks(0, 4096, 4, "bytes"), [0, 1024, 2048, 3072, 4096]);
  for (const span of [1, 100, 5000, 3e6, 7e9, 2e13]) {
    const step = tickStep(span, 5, "bytes");
    assert.equal(Math.log2(step) % 1, 0, String(span));
    assert.ok(span / step <= 5);
    assert.ok(roof(span, 5, "bytes") >= span);
  }
});

test("ticks of counts are whole, of times round", () => {
  assert.ok(ticks(0, 3, 8, "count").every((v) => Number.isInteger(v)));
  assert.equal(tickStep(3600e9, 6, "ns"), 600e9);
  assert.equal(tickStep(3.7e9, 3, "ns"), 2e9);
  assert.equal(tickStep(3.7e9, 12, "ns"), 0.5e9);
  assert.deepEqual([0, 0.5e9, 3e9].map((t) => timeTick(t, 0.5e9)), ["0", "0.5 s", "3.0 s"]);
  assert.equal(timeTick(65e9, 5e9), "1m 05s");
  assert.equal(timeTick(3 * 3600e9, 3600e9), "3h 00m");
  assert.equal(timeTick(0.2e6, 0.2e6), "0.2 ms");
  for (const [a, b] of [[0, 0], [5, 5], [1e18, 1e18 + 1]]) assert.ok(ticks(a, b, 5, "ns").length <= 200);
});

test("a reduced band keeps every peak and every low", () => {
  const n = 10007, max = Array.from({ length: n }, (_, i) => (i * 7919) % 1000), min = max.map((v) => v - 3);
  for (const width of [1, 7, 100, 999, n, 2 * n]) {
    const r = reduceBand(min, max, width);
    assert.equal(r.max.length, Math.min(width, n));
    assert.equal(greatest([r.max], 0), greatest([max], 0));
    assert.equal(Math.min(...r.min), Math.min(...min));
  }
  assert.deepEqual(reduceBand([null, null, 1], [null, null, 2], 3).max, [null, null, 2]);
});

test("zooming keeps the place and the bounds", () => {
  const w = zoomWindow([0, 1000000], [0, 1000000], 0.5, 250000);
  assert.deepEqual(w, [125000, 625000]);
  assert.deepEqual(zoomWindow(w, [0, 1000000], 100, 1), [0, 1000000]);
  const narrow = zoomWindow([0, 1000000], [0, 1000000], 1e-9, 999999, 1000);
  assert.ok(narrow[1] <= 1000000 && Math.abs(narrow[1] - narrow[0] - 1000) < 1);
  assert.deepEqual(panWindow([100, 200], [0, 1000], -5), [0, 100]);
  assert.deepEqual(panWindow([100, 200], [0, 1000], 50), [900, 1000]);
});

test("colours are steady, and differences have a sign", () => {
  assert.equal(hueOf("libc.so.6"), hueOf("libc.so.6"));
  assert.notEqual(boxColor("a", "x", false), boxColor("b", "x", false));
  assert.equal(change(0, 10), 1);
  assert.equal(change(10, 0), -1);
  assert.equal(change(0, 0), 0);
  assert.notEqual(diffColor(0.5, true), diffColor(-0.5, true));
  assert.notEqual(heatColor(0, false), heatColor(0.01, false));
});
