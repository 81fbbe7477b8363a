// Figures as text, and text as figures: as the command line writes and reads them.
import assert from "node:assert/strict";
import { test } from "node:test";
import { amount, base, brief, bytes, count, duration, frameName, framePlace, moment, ordinal, percent, plural, signed, when } from "../js/core/format.js";
import { fits, size, time } from "../js/core/parse.js";

test("bytes are in binary units, as in reports", () => {
  for (const [n, text] of [[0, "0 B"], [1023, "1023 B"], [1024, "1.0 KiB"], [23245, "22.7 KiB"], [1048524, "1023.9 KiB"], [1048525, "1.0 MiB"], [3 * 2 ** 40, "3.0 TiB"], [-2048, "-2.0 KiB"]]) {
    assert.equal(bytes(n), text);
  }
  assert.equal(bytes(null), "–");
  assert.equal(bytes(NaN), "–");
});

test("durations are as in reports", () => {
  for (const [ns, text] of [[0, "0 ns"], [850, "850 ns"], [1000, "1.0 us"], [999949, "999.9 us"], [999950, "1.0 ms"], [6.2e6, "6.2 ms"], [999949999, "999.9 ms"], [999950000, "1.0 s"], [12.3e9, "12.3 s"], [59949999999, "59.9 s"], [59950000000, "1m 00s"],
    [245e9, "4m 05s"], [3 * 3600e9 + 7 * 60e9, "3h 07m"], [2 * 86400e9 + 4 * 3600e9, "2d 04h"]]) assert.equal(duration(ns), text);
});

test("a moment reads back as itself, to the microsecond", () => {
  for (const ns of [0, 1000, 1234567000, 5e9, 3723.25e9, 86400e9 * 3]) assert.equal(time(moment(ns)), ns);
  assert.equal(moment(1500e6), "1500ms");
  assert.equal(moment(2e9), "2s");
});

test("times are read as the filters read them", () => {
  for (const [text, ns] of [["30", 30e9], ["2.5", 2.5e9], ["1,500", 1500e9], ["100ms", 1e8], ["6.2 ms", 6.2e6], ["3 min", 180e9], ["4m 05s", 245e9], ["4h3m2s", 14582e9], ["2.5s", 2.5e9], ["20us", 20000], ["3min", 180e9], ["1d 2h", 93600e9], ["5µs", 5000]]) assert.equal(time(text), ns, text);
  assert.equal(time("10%", 2e9), 2e8);
  for (const text of ["", "x", "1.2.3", "4h5", "-1", "5 s x", "ms", "1,5s"]) assert.equal(time(text), null, text);
});

test("sizes are read as the filters read them", () => {
  for (const [text, n] of [["4096", 4096], ["64KiB", 65536], ["64k", 65536], ["1.5M", 1572864], ["2GB", 2147483648], ["1,024 B", 1024], ["1P", 1024 ** 5]]) assert.equal(size(text), n, text);
  for (const text of ["", "k", "1x", "0x10", "-1", "1,02", "1 ib"]) assert.equal(size(text), null, text);
});

test("values are checked by the kind of their field", () => {
  for (const [kind, good, bad] of [["TIME", "10%", "soon"], ["SIZE", "1k", "big"], ["ADDR", "0x7f00", "7g"], ["N", "12", "1.5"], ["N|N%", "5%", "5p"], ["ID,...", "1,2", "1,b"], ["yes|no", "yes", "maybe"], ["main|non-main", "non-main", "other"]]) {
    assert.ok(fits(kind, good), kind);
    assert.ok(!fits(kind, bad), kind);
    assert.ok(!fits(kind, " "), kind);
  }
  assert.ok(fits("REGEX", "(?i)x"));
});

test("the rest", () => {
  assert.equal(count(1234567), "1,234,567");
  assert.equal(brief(1234567), "1.2 M");
  assert.equal(brief(45000), "45 k");
  assert.equal(amount(2048, "bytes/s"), "2.0 KiB/s");
  assert.equal(amount(1500, "/s"), "1.5 k/s");
  assert.equal(signed(2048), "+2.0 KiB");
  assert.equal(signed(-3, "count"), "-3");
  assert.equal(percent(1, 3), "33.3%");
  assert.equal(percent(1, 0), "–");
  assert.equal(plural(1, "block"), "1 block");
  assert.equal(plural(2, "block"), "2 blocks");
  assert.equal(when(1795560369967813190), "2026-11-24 22:46:09 UTC");
  assert.deepEqual([0, 1, 2, 3, 10, 11, 12, 20, 21, 22, 100, 110].map(ordinal), ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "101st", "111th"]);
  assert.equal(base("/usr/lib/libc.so.6"), "libc.so.6");
  assert.equal(frameName({ function: null, module: "/bin/x", offset: "0x12" }), "x+0x12");
  assert.equal(framePlace({ file: "src/a.c", line: 7 }), "a.c:7");
});
