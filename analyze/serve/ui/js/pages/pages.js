// All pages: their names in addresses, their titles, icons and keys; and the help.

import { h } from "../core/dom.js";
import { bound } from "../core/keys.js";
import { app } from "../core/app.js";
import { recordings } from "./recordings.js";
import { overview } from "./overview.js";
import { allocations } from "./allocations.js";
import { flamePage } from "./flamepage.js";
import { treePage } from "./tree.js";
import { stackPage } from "./stackpage.js";
import { blockPage } from "./block.js";
import { mapPage, mapsPage } from "./maps.js";
import { spacePage } from "./space.js";
import { holdsPage } from "./holds.js";
import { leaksPage } from "./leaks.js";
import { diffPage } from "./diff.js";
import { sizesPage, threadsPage } from "./threads.js";
import { livePage } from "./live.js";
import { infoPage } from "./info.js";
import { scriptPage } from "./script.js";

/**
 * A page: `global` ones need no recording, `filtered` ones have the filter above them, `item` ones show one thing, `hasAll`
 * names the pages that belong to it.
 * @typedef {{title: string, run: (root: Element, url: import("../core/url.js").View, signal: AbortSignal) => any, icon?: string, keys?: string,
 *   global?: boolean, filtered?: boolean, item?: boolean, has?: string, hasAll?: string[], when?: (recording: any) => boolean}} Page
 */

/** @type {Record<string, Page>} */
export const PAGES = {
  recordings: { title: "Recordings", run: recordings, icon: "list", keys: "g r", global: true },
  overview: { title: "Overview", run: overview, icon: "chart", keys: "g o", filtered: true, hasAll: ["info"] },
  allocations: { title: "Allocations", run: allocations, icon: "grid", keys: "g a", filtered: true, hasAll: ["stack", "block"] },
  flame: { title: "Flame graph", run: flamePage, icon: "flame", keys: "g f", filtered: true },
  tree: { title: "Call tree", run: treePage, icon: "tree", keys: "g t", filtered: true },
  leaks: { title: "Leaks", run: leaksPage, icon: "drop", keys: "g l", filtered: true },
  holds: { title: "Holders", run: holdsPage, icon: "hold", keys: "g w" },
  diff: { title: "Difference", run: diffPage, icon: "diff", keys: "g d", filtered: true },
  threads: { title: "Threads", run: threadsPage, icon: "threads", keys: "g h", filtered: true },
  sizes: { title: "Sizes", run: sizesPage, icon: "bars", keys: "g z", filtered: true },
  maps: { title: "Mappings", run: mapsPage, icon: "map", keys: "g m", filtered: true, hasAll: ["map"] },
  space: { title: "Address space", run: spacePage, icon: "space", keys: "g s", filtered: true },
  script: { title: "Console", run: scriptPage, icon: "terminal", keys: "g c", filtered: true, when: () => app.scripts },
  live: { title: "Live", run: livePage, icon: "live", keys: "g v", when: (r) => r && (r.state === "growing" || r.state === "paused") },
  stack: { title: "Stack", run: stackPage, filtered: true, item: true },
  block: { title: "Block", run: blockPage, item: true },
  map: { title: "Mapping", run: mapPage, item: true },
  info: { title: "About the recording", run: infoPage },
};

/** Opens the help: all keys that are bound now. */
export function openHelp() {
  /** @type {Map<string, [string, string][]>} */
  const groups = new Map();
  for (const b of bound()) groups.set(b.group, [...(groups.get(b.group) || []), [b.keys, b.help]]);
  groups.set("Charts over time", [["← →", "move the cursor"], ["Shift ← →", "select"], ["Enter", "apply the selection"], ["w s", "zoom in, out"], ["a d", "move"], ["0", "show everything"], ["m", "menu of the place"]]);
  groups.set("Boxes of flame graphs", [["← → ↑ ↓", "move"], ["Enter", "zoom to the box"], ["Backspace", "zoom out"], ["0", "show everything"], ["p", "keep the tooltip"], ["m", "menu of the box"]]);
  const dialog = h("dialog.sheet.help", { "aria-label": "Help", onclose: () => dialog.remove() },
    h("header", null, h("h2", null, "Keys and help"), h("span.note", null, app.version ? "prof " + app.version : ""), h("form", { method: "dialog" }, h("button", null, "Close"))),
    h("div.help-body", { tabindex: 0, role: "region", "aria-label": "Keys" }, [...groups].map(([name, rows]) => h("section", null, h("h3", null, name), h("dl", null, rows.map(([keys, help]) => [h("dt", null, h("kbd", null, keys)), h("dd", null, help)])))),
      h("section", null, h("h3", null, "How it works"), h("p.note", null, "A drag over a timeline selects a range of time: the filter above then holds on all pages. Everything that you see is in the address, so a copied link shows the same, and the back button undoes each step. Sizes are in units of 1024. A block is live from its allocation to its free; what is never freed is live at the end."))));
  document.body.append(dialog);
  dialog.showModal();
}
