// The rules that hold for the files of the page, and how large they may be.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

const ROOT = new URL("../", import.meta.url);

/** Returns the paths of all files that are served, below a folder. */
function files(folder) {
  return readdirSync(new URL(folder, ROOT), { withFileTypes: true }).flatMap((e) => (e.isDirectory() ? files(folder + e.name + "/") : [folder + e.name]));
}
const ALL = [...files("js/"), ...files("css/")], SERVED = [...ALL, "index.html", "favicon.svg"];
/** Returns a file as the build packs it: without lines that are comments, types, and indentation. */
function bare(path) {
  const out = [];
  let inside = false;
  for (const line of text(path).split("\n").map((l) => l.trim())) {
    if (inside) inside = !line.includes("*/");
    else if (line.startsWith("/*") && !line.includes("*/")) inside = true;
    else if (line && !line.startsWith("//") && !(line.startsWith("/*") && line.endsWith("*/"))) out.push(line.replace(/\/\*\* @type .*?\*\/ /g, ""));
  }
  return out.join("\n") + "\n";
}
const text = (path) => readFileSync(new URL(path, ROOT), "utf8");

test("the page is small", () => {
  const raw = ALL.reduce((sum, f) => sum + Buffer.byteLength(text(f)), 0);
  const packed = ALL.reduce((sum, f) => sum + gzipSync(bare(f), { level: 9 }).length, 0);
  console.log(`${SERVED.length} files, ${raw} bytes, ${packed} packed`);
  assert.ok(SERVED.length <= 60, `${SERVED.length} files`);
  // 96 KiB are 80 ms at 10 Mbit/s, and come once: the browser keeps them. Types in comments are not sent.
  assert.ok(raw <= 360 * 1024, `${raw} bytes`);
  assert.ok(packed <= 96 * 1024, `${packed} bytes, each file packed by itself`);
  for (const f of ALL) assert.ok(Buffer.byteLength(text(f)) <= 40 * 1024, f);
});

test("modules are short, and make no HTML, code or styles out of text", () => {
  for (const f of files("js/")) {
    const source = text(f);
    assert.ok(source.split("\n").length <= 401, f + " is too long");
    // The build drops comments line by line, so no text may go over several lines.
    for (const line of source.split("\n")) assert.equal((line.match(/`/g) || []).length % 2, 0, `${f}: ${line}`);
    for (const word of ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "setAttribute(\"style\"", ".cssText", "javascript:", "http://", "https://"]) {
      const harmless = word === "http://" ? source.replaceAll("http://www.w3.org/2000/svg", "") : source;
      assert.ok(!harmless.includes(word), `${word} in ${f}`);
    }
  }
  assert.ok(!/\son\w+=|\sstyle=|<script(?! type="module" src=)/.test(text("index.html")));
});

test("pure modules touch no document", () => {
  for (const f of ["core/format.js", "core/parse.js", "core/filters.js", "core/url.js", "core/range.js", "core/rhai.js", "charts/scale.js", "charts/layout.js", "charts/color.js"]) {
    const code = text("js/" + f).replace(/\/\*[\s\S]*?\*\/|\/\/.*/g, "");
    assert.ok(!/\b(document|localStorage|location|fetch)\b/.test(code), f);
  }
});

test("imports lead to files, and every module is imported", () => {
  const used = new Set(["js/main.js"]);
  for (const f of files("js/")) {
    for (const [, path] of text(f).matchAll(/^import .* from "(.+)";$/gm)) {
      const to = new URL(path, new URL(f, ROOT)).href.slice(ROOT.href.length);
      assert.ok(ALL.includes(to), `${f} imports ${to}`);
      used.add(to);
    }
  }
  for (const f of files("js/")) assert.ok(used.has(f), f + " is imported by none");
});
