// Addresses, filters and command lines.
import assert from "node:assert/strict";
import { test } from "node:test";
import { counts, exactly, literal, put, quote, tabOf, toCommand, toQuery, without, words } from "../js/core/filters.js";
import { rangeOf, withRange } from "../js/core/range.js";
import { format, parse } from "../js/core/url.js";

test("an address is read back as it was written", () => {
  const names = ["a b", "x&y=z", "</script>", "ünï", "100%", "/[a-z]+\\(/", "#", "?", "~"];
  for (const page of ["overview", "flame"]) {
    for (const a of names) {
      const view = { page, id: "0123abcd", item: page === "flame" ? "" : "92", filter: [["function", a], ["function", a + "2"], ["min-size", "1k"]], view: { q: a, sort: "size" } };
      assert.deepEqual(parse(format(view)), view);
    }
  }
});

test("what an address lacks has defaults, and broken ones do no harm", () => {
  assert.deepEqual(parse(""), { page: "recordings", id: "", item: "", filter: [], view: {} });
  assert.equal(parse("#/flame/%E0%A4%A/x").id, "%E0%A4%A");
  assert.deepEqual(parse("#/a/b?min_size=4").filter, [["min-size", "4"]]);
  assert.equal(format({ page: "flame", id: "x", view: { q: "", z: null, skip: 0 } }), "#/flame/x?skip=0");
});

test("a field is set, set again, added and removed", () => {
  let f = put([], "min-size", "1k");
  f = put(f, "min-size", "2k");
  assert.deepEqual(f, [["min-size", "2k"]]);
  f = put(put(put(f, "function", "a"), "function", "b"), "function", "a");
  assert.deepEqual(f, [["min-size", "2k"], ["function", "a"], ["function", "b"]]);
  assert.deepEqual(without(f, 1), [["min-size", "2k"], ["function", "b"]]);
  assert.deepEqual(put(f, "function", null), [["min-size", "2k"]]);
  assert.equal(toQuery(f).toString(), "min-size=2k&function=a&function=b");
});

test("a range of time becomes from and to, and comes back", () => {
  const f = withRange([["min-size", "1"], ["from", "3s"]], [1.5e9, 2e9]);
  assert.deepEqual(f, [["min-size", "1"], ["from", "1500ms"], ["to", "2s"]]);
  assert.deepEqual(rangeOf(f, 9e9), [1.5e9, 2e9]);
  assert.deepEqual(rangeOf([["from", "50%"]], 8e9), [4e9, 8e9]);
  assert.equal(rangeOf([["min-size", "1"]], 8e9), null);
  assert.deepEqual(withRange(f, null), [["min-size", "1"]]);
});

test("the command line is safe to paste", () => {
  assert.equal(quote("a'b"), "'a'\\''b'");
  assert.equal(quote("--min-size"), "--min-size");
  assert.equal(toCommand(["report", "--group-by", "function"], [["function", "^f (x)$"], ["from", "1s"]], "a b.prof"), "prof report --group-by function --function '^f (x)$' --from 1s 'a b.prof'");
  assert.equal(toCommand(["report"], [["function", "$(rm -rf /)"]], "x"), "prof report --function '$(rm -rf /)' x");
});

test("a name in a filter matches itself alone", () => {
  for (const name of ["operator+", "f(int*, char[2])", "a.b|c", "std::vector<int>::~vector()"]) {
    const r = new RegExp(exactly(name));
    assert.ok(r.test(name), name);
    assert.ok(!r.test("x" + name) && !r.test(name + "x"), name);
  }
  assert.equal(literal("a-b"), "a\\-b");
});

test("filters are said in words", () => {
  assert.deepEqual(words("min-size", "1k"), ["size", "≥ 1k"]);
  assert.deepEqual(words("max-chain-length", "3"), ["chain length", "≤ 3"]);
  assert.deepEqual(words("not-function", "x"), ["no function", "/x/"]);
  assert.equal(tabOf("min-usable-size"), "Size");
  assert.equal(tabOf("readable"), "Mapping");
  assert.equal(tabOf("new-field"), "Other");
});

test("a filter counts where it is known, or is known nowhere", () => {
  const field = (name, aliases = [], refused = null) => ({ name, aliases, refused, value: "N", help: "" });
  const blocks = [field("part"), field("readable", [], "mappings only")], mappings = [field("readable"), field("id", ["map"])];
  assert.equal(counts("part", blocks, mappings), true);
  assert.equal(counts("part", mappings, blocks), false);
  assert.equal(counts("readable", blocks, mappings), false, "refused here, known there");
  assert.equal(counts("map", blocks, mappings), false, "by its other name");
  assert.equal(counts("nonsense", blocks, mappings), true, "the server names what nobody knows");
});
