// Scripts as the editor sees them.
import assert from "node:assert/strict";
import { test } from "node:test";
import { completions, pieces, placeOf, toScript } from "../js/core/rhai.js";

const kinds = (code) => pieces(code).filter((p) => p.text.trim()).map((p) => [p.kind, p.text]);

test("code is split into pieces that are the code", () => {
  assert.deepEqual(kinds("let a = kib(4); // four"), [["word", "let"], ["name", "a"], ["", " = "], ["call", "kib"], ["", "("], ["number", "4"], ["", "); "], ["comment", "// four"]]);
  assert.deepEqual(kinds("x.y(\"a \\\" // b\", 'c', 1.5e3)").map(([k]) => k), ["name", "", "call", "", "string", "", "string", "", "number", ""]);
  assert.deepEqual(kinds("if true { 0xff }").map(([k]) => k), ["word", "word", "", "number", ""]);
  for (const code of ["", "\"never ended", "\x60text ${a + \"b\"} more\x60; /* and", "a\nb\n\n", "</script><img src=x>", "λ.only(é)", "\"\\"]) {
    assert.equal(pieces(code).map((p) => p.text).join(""), code, JSON.stringify(code));
  }
});

test("names are completed where they can stand", () => {
  const names = [
    { of: "", name: "graph", signature: "() -> Graph", doc: "" }, { of: "Graph", name: "add", signature: "(list: AllocationList) -> Graph", doc: "" },
    { of: "AllocationList", name: "group_by_backtrace", signature: "() -> AllocationGroupList", doc: "" }, { of: "AllocationGroupList", name: "take", signature: "(n: Integer) -> AllocationGroupList", doc: "" },
    { of: "", name: "allocations", signature: "() -> AllocationList", doc: "" }, { of: "", name: "maps", signature: "() -> MapList", doc: "" },
    { of: "AllocationList", name: "only_leaked", signature: "() -> AllocationList", doc: "" }, { of: "MapList", name: "only_leaked", signature: "()", doc: "" },
    { of: "AllocationList", name: "only_larger", signature: "(size)", doc: "" }, { of: "Graph", name: "save", signature: "(path)", doc: "" }, { of: "Duration", name: "==", signature: "", doc: "" },
    { of: "", name: "scans", signature: "() -> [Scan]", doc: "" }, { of: "Scan", name: "roots", signature: "() -> [Object]", doc: "" }, { of: "Array", name: "save_as_csv", signature: "(path: String) -> Array", doc: "" },
  ];
  const of = (code) => completions(code, code.length, names).found.map((n) => n.name);
  assert.deepEqual(of("al"), ["allocations"]);
  assert.deepEqual(of("let x = allocations().only_l"), ["only_larger", "only_leaked"]);
  assert.deepEqual(of("allocations().LEAK"), ["only_leaked"], "anywhere in the name, in either case");
  assert.deepEqual(of("allocations()."), ["group_by_backtrace", "only_larger", "only_leaked"]);
  // Of the type before the dot, where that is known.
  assert.deepEqual(of("maps()."), ["only_leaked"]);
  assert.deepEqual(of("graph()\n    .add(\"a) .\", allocations().only_leaked()) // (\n    ."), ["add", "save"]);
  assert.deepEqual(of("let g = allocations().group_by_backtrace();\ng."), ["take"]);
  assert.deepEqual(of("let g = allocations().group_by_backtrace();\ng[0]."), ["group_by_backtrace", "only_larger", "only_leaked"]);
  assert.deepEqual(of("for l in allocations().group_by_backtrace().take(2) {\n  l."), ["group_by_backtrace", "only_larger", "only_leaked"]);
  assert.deepEqual(of("(allocations())."), ["group_by_backtrace", "only_larger", "only_leaked"]);
  for (const scan of ["for s in scans() { s.", "for (s, i) in scans() {\n  s.", "scans()[0].", "let all = scans();\nfor s in all { s."]) assert.deepEqual(of(scan), ["roots"], scan);
  for (const array of ["scans().", "for s in scans() { s.roots()."]) assert.deepEqual(of(array), ["save_as_csv"], array);
  assert.deepEqual(of("for s in scans() { for r in s.roots() { r."), [], "an object has no methods");
  for (const open of ["x.", "fn f(l) { l.", "].", ").", "let a = a; a.", "f(1)."]) assert.deepEqual(of(open), ["add", "group_by_backtrace", "only_larger", "only_leaked", "only_leaked", "roots", "save", "save_as_csv", "take"], open);
  assert.deepEqual(of("save"), [], "a method is no function");
  assert.deepEqual(of("// al"), []);
  assert.deepEqual(of("\"al"), []);
  assert.deepEqual(of("maps"), [], "it is there already");
  assert.equal(completions("a.on", 4, names).from, 2);
});

test("a line and a column are a place", () => {
  const code = "let a;\n  b(;\n";
  assert.equal(code[placeOf(code, 2, 3)], "b");
  assert.equal(placeOf(code, 1, 1), 0);
  assert.equal(placeOf(code, 1, 99), 6, "not beyond the line");
  assert.equal(placeOf(code, 9, 1), code.length);
  assert.equal(placeOf("", 1, 1), 0);
});

test("a filter becomes a script, and its values stay texts", () => {
  assert.equal(toScript([]), "let list = allocations();\nprintln(list.report());\n");
  assert.equal(toScript([["min-size", "1k"], ["function", "a\"b\\c\n"]]), "let list = allocations()\n    .only(\"min-size\", \"1k\")\n    .only(\"function\", \"a\\\"b\\\\c\\n\");\nprintln(list.report());\n");
  assert.equal(toScript([["name", "libc"]], true), "let list = maps()\n    .only(\"name\", \"libc\");\ntable(list);\n");
  // prof's own mappings are left out as on the page, unless they are shown or asked for.
  const without = "let list = maps()\n    .only(\"min-size\", \"1k\")\n    .only_not_bytehound();\ntable(list);\n";
  assert.equal(toScript([["min-size", "1k"]], true), without);
  assert.match(toScript([["kind", "heap"], ["name", "x"], ["kind", "code"]], true), /"name", "x"\)\n    \.only\("kind", "heap,code"\);/);
  assert.equal(toScript([["min-size", "1k"]], true, true), without.replace("\n    .only_not_bytehound()", ""));
});
