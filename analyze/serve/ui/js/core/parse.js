// Reads times, sizes and counts as the filters of the command line do. Nothing here touches the document.

/** @type {Record<string, number>} */
const TIMES = { ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9, m: 60e9, min: 60e9, h: 3600e9, d: 86400e9 };

/**
 * Returns a text without the commas between its digits: 1,234 is 1234, while 1,23 stays.
 * @param {string} text
 */
const plain = (text) => text.trim().replace(/(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])/g, (n) => n.replaceAll(",", ""));

/**
 * Returns nanoseconds, or null if the text is no time. A number without a unit is in seconds.
 * @param {string} text
 * @param {number} [runtime] what percentages are of, in nanoseconds
 * @returns {number | null}
 */
export function time(text, runtime = 0) {
  text = plain(text);
  const percent = /^(\d+(?:\.\d*)?|\.\d+)\s*%$/.exec(text);
  if (percent) return Math.round(runtime * Number(percent[1]) / 100);
  if (/^(\d+(\.\d*)?|\.\d+)$/.test(text)) return Math.round(Number(text) * 1e9);
  let sum = 0, rest = text;
  if (!rest) return null;
  while (rest) {
    const part = /^(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|µs|ms|min|s|m|h|d)(?![a-zµ])\s*/.exec(rest);
    if (!part) return null;
    sum += Number(part[1]) * TIMES[part[2]];
    rest = rest.slice(part[0].length);
  }
  return Math.round(sum);
}

/**
 * Returns bytes, or null if the text is no size. All units are binary.
 * @param {string} text
 * @returns {number | null}
 */
export function size(text) {
  const m = /^(\d+(?:\.\d*)?|\.\d+)\s*(?:b|([kmgtpe])(?:i?b)?)?$/i.exec(plain(text));
  return m ? Math.round(Number(m[1]) * 1024 ** " kmgtpe".indexOf((m[2] ?? " ").toLowerCase())) : null;
}

/**
 * Returns whether a value fits a field of the grammar. Regular expressions are left to the server, which has another
 * dialect.
 * @param {string} kind the field's kind of value, as in /api/v1/fields
 * @param {string} text
 */
export function fits(kind, text) {
  text = text.trim();
  if (!text) return false;
  switch (kind) {
    case "TIME": return time(text, 1) !== null;
    case "SIZE": return size(text) !== null;
    case "ADDR": return /^(0x[0-9a-f]+|\d+)$/i.test(text);
    case "N": return /^\d+$/.test(plain(text));
    case "N|N%": return /^\d+$|^\d+(\.\d+)?\s*%$/.test(plain(text));
    case "ID,...": return /^\d+(\s*,\s*\d+)*$/.test(text);
    case "yes|no": return /^(yes|no)$/.test(text);
    case "main|non-main": return /^(main|non[-_]main)$/.test(text);
    default: return true;
  }
}
