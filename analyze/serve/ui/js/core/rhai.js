// Reads scripts as far as an editor must: pieces to colour, names to complete, filters as code. Nothing here touches the document.

/**
 * @typedef {{kind: "" | "comment" | "string" | "number" | "word" | "name" | "call", text: string}} Piece
 * @typedef {{of: string, name: string, signature: string, doc: string}} Name a name that scripts can use; `of`: its type
 */

const WORDS = /^(let|const|if|else|for|in|while|loop|do|until|break|continue|return|throw|try|catch|fn|private|import|export|as|switch|true|false|this|is)$/;
const PIECE = /(\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|("(?:\\[\s\S]|[^"\\])*"?|\x60(?:\\[\s\S]|[^\x60\\])*\x60?|'(?:\\.|[^'\\\n])'?)|(0x[\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)/g;

/**
 * Splits code into pieces of a kind; together they are the code.
 * @param {string} code
 * @returns {Piece[]}
 */
export function pieces(code) {
  /** @type {Piece[]} */
  const out = [];
  let end = 0;
  for (const m of code.matchAll(PIECE)) {
    if (m.index > end) out.push({ kind: "", text: code.slice(end, m.index) });
    end = m.index + m[0].length;
    const kind = m[1] !== undefined ? "comment" : m[2] !== undefined ? "string" : m[3] !== undefined ? "number" : WORDS.test(m[4]) ? "word" : /^\s*\(/.test(code.slice(end, end + 8)) ? "call" : "name";
    out.push({ kind, text: m[0] });
  }
  if (end < code.length) out.push({ kind: "", text: code.slice(end) });
  return out;
}

/** Returns what `for` and an index get out of a list: of groups lists, of a list of something that, of "[Scan" "Scan". */
const element = (/** @type {string} */ of) => of.replace("Group", "List").replace(/^\[|List$/, "");

/**
 * Returns the type of the expression that ends at a place, by the results of the calls in it: "Scan", "[Scan" for an array of them; "" if it is not known.
 * @param {string} code without texts and comments
 * @param {number} end
 * @param {Name[]} names
 * @param {number} [deep] variables are followed so many times
 * @returns {string}
 */
function typeAt(code, end, names, deep = 9) {
  const text = code.slice(0, end).trimEnd(), last = text.at(-1) || "";
  if (last !== ")" && last !== "]") {
    const name = /[A-Za-z_]\w*$/.exec(text)?.[0];
    if (!name || !deep || text.at(-name.length - 1) === ".") return "";
    const made = [...text.matchAll(new RegExp(`\\blet\\s+${name}\\s*=([^;]*);|\\bfor\\s+\\(?${name}\\b[^{]*?\\sin\\s([^{]*){`, "g"))].at(-1);
    if (!made) return "";
    const of = typeAt(code, made.index + made[0].length - 1, names, deep - 1);
    return made[1] === undefined ? element(of) : of;
  }
  let open = text.length - 1;
  for (let depth = 0; open >= 0; open--) {
    if (")]}".includes(text[open])) depth++;
    else if ("([{".includes(text[open]) && --depth === 0) break;
  }
  if (open < 0) return "";
  const before = text.slice(0, open).trimEnd();
  if (last === "]") return element(typeAt(code, before.length, names, deep));
  const name = /\w+$/.exec(before)?.[0];
  // Brackets around an expression have its type; of those with an operator in them only the last part is looked at.
  if (!name) return typeAt(code, text.length - 1, names, deep);
  const at = before.slice(0, -name.length).trimEnd(), method = at.endsWith(".");
  const of = method ? typeAt(code, at.length - 1, names, deep) : "";
  if (method && !of) return "";
  return /-> (\[?[\w<>]+)]?$/.exec(names.find((n) => n.of === of && n.name === name)?.signature || "")?.[1] || "";
}

/**
 * Returns the names that the word before a place may become: methods behind a dot, those of the type before it if that is
 * known, and all others elsewhere.
 * @param {string} code
 * @param {number} at
 * @param {Name[]} names
 * @param {number} [most]
 * @returns {{from: number, found: Name[]}} `from`: where the word begins
 */
export function completions(code, at, names, most = 12) {
  const word = /\w*$/.exec(code.slice(0, at))?.[0] || "", from = at - word.length, method = code[from - 1] === ".";
  const last = pieces(code.slice(0, at)).at(-1);
  if (/comment|string|number/.test(last?.kind || "") || (!word && !method)) return { from, found: [] };
  const plain = method ? pieces(code.slice(0, from)).map((p) => (/comment|string/.test(p.kind) ? " ".repeat(p.text.length) : p.text)).join("") : "";
  const type = (method ? typeAt(plain, from - 1, names) : "").replace(/^\[.*/, "Array");
  const lower = word.toLowerCase(), seen = new Set(), found = [];
  const rank = (/** @type {Name} */ n) => (n.name.startsWith(word) ? 0 : n.name.toLowerCase().startsWith(lower) ? 1 : 2);
  for (const n of names) {
    const key = n.name + n.signature;
    if ((type ? n.of === type : Boolean(n.of) === method) && /^\w+$/.test(n.name) && n.name.toLowerCase().includes(lower) && n.name !== word && !seen.has(key)) {
      seen.add(key);
      found.push(n);
    }
  }
  found.sort((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  return { from, found: found.slice(0, most) };
}

/**
 * Returns the place of a line and a column, which both count from 1.
 * @param {string} code
 * @param {number} line
 * @param {number} column
 */
export function placeOf(code, line, column) {
  let at = 0;
  for (let i = 1; i < line; i++) {
    const next = code.indexOf("\n", at);
    if (next < 0) return code.length;
    at = next + 1;
  }
  const end = code.indexOf("\n", at);
  return Math.min(at + Math.max(0, column - 1), end < 0 ? code.length : end);
}

/** Conditions that say which of prof's own mappings are meant: without one, they are left out. */
export const ABOUT_OWN = /^(bytehound|prof|id|map|kind|name)$/;

/**
 * Returns a filter as a script that prints the report of the selected blocks, or the table of the selected mappings.
 * @param {import("./filters.js").Filter} filter
 * @param {boolean} [maps] the filter is of mappings
 * @param {boolean} [own] prof's own mappings are shown, too
 */
export function toScript(filter, maps = false, own = false) {
  const kinds = filter.filter(([name]) => name === "kind").map(([, value]) => value);
  // A mapping has one of the kinds, and meets all other conditions.
  const all = maps && kinds.length > 1 ? [...filter.filter(([name]) => name !== "kind"), ["kind", kinds.join(",")]] : filter;
  const calls = all.map(([name, value]) => `\n    .only(${JSON.stringify(name)}, ${JSON.stringify(value)})`);
  // As the page shows them.
  if (maps && !own && !filter.some(([name]) => ABOUT_OWN.test(name))) calls.push("\n    .only_not_bytehound()");
  return `let list = ${maps ? "maps" : "allocations"}()${calls.join("")};\n` + (maps ? "table(list);\n" : "println(list.report());\n");
}
