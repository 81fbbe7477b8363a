// The page that `prof export html` writes: the components of the page of `prof serve`, over embedded data. The build puts
// their modules above this script, without imports and exports.

const data = JSON.parse(document.getElementById("data").textContent);
const LIMIT = 200;
const SAID = { live: "live", peak: "at the peak", allocated: "allocated", allocations: "allocations", temporary: "temporary", leaked: "leaked" };
const frames = data.frames.map((f) => ({ name: f.name, module: f.module, file: f.place, line: null, inlined: f.inlined }));
const state = { cost: data.cost, inverted: false, hits: null, sort: data.cost, up: false, limit: LIMIT, open: new Set() };
const forever = new AbortController().signal;
const dark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = () => document.documentElement.setAttribute("data-theme", dark.matches ? "dark" : "light");
setTheme();

function notesOf({ recording, filter, at_ns: at }) {
  const notes = [...recording.notes], c = recording.capture;
  if (!recording.complete && !recording.joined) notes.push("The recording is not complete.");
  if (recording.lost_events) notes.push(recording.lost_events + " events were lost: the figures are too low.");
  if (recording.truncated_stacks) notes.push(recording.truncated_stacks + " stacks were cut short.");
  if (c && (c.sample_bytes || c.sample_every > 1)) notes.push("A sample was recorded: all figures are estimates.");
  if (c && (c.min_size || c.max_size !== null)) notes.push("Blocks of some sizes were not recorded.");
  if (filter.length) notes.push("Only blocks of the filter " + filter.map((f) => "--" + f.name + " " + f.value).join(" ") + ".");
  if (at !== null) notes.push("As it was at " + duration(at) + ".");
  if (data.maps && !data.maps.recorded) notes.push("The recording does not tell of mappings.");
  if (data.maps && data.maps.recorded) notes.push(data.maps.what === "all" ? "Stacks of mappings stand beside those of blocks, with what is resident of them; an allocator's mappings are left out, as its blocks are in them." : "The stacks are those of mappings, with what is resident of them.");
  return notes;
}

function header() {
  const { target, recording, totals } = data.head, notes = notesOf(data.head);
  const command = target.cmdline.filter(Boolean).join(" ") || target.exe;
  document.title = target.comm + ": memory, by prof";
  const one = (name, value, sub) => h("div.figure", null, h("div.name", null, name), h("div.value", null, value), h("div.sub", null, sub || ""));
  return [
    h("header.about", null, h("h1", null, target.comm + (target.pid ? ", pid " + target.pid : "")), h("div.command", null, command),
      h("div.facts", null, h("span", null, h("b", null, when(recording.started_unix_ns))), h("span", null, h("b", null, duration(recording.duration_ns)), " recorded"), h("span", null, h("b", null, count(recording.events)), " events"), h("span", null, "by prof export html")),
      notes.length ? h("ul.notes", null, notes.map((n) => h("li", null, n))) : null),
    h("div.figures-row", null, one("Live", bytes(totals.live_bytes), plural(totals.live_count, "block")), one("Peak", bytes(totals.peak_bytes), "at " + duration(totals.peak_at_ns)), one("Allocated", bytes(totals.allocated_bytes)),
      one("Allocations", count(totals.allocations + totals.reallocations)), one("Temporary", totals.temporary === null ? "not known" : count(totals.temporary)), one("Call stacks", count(totals.groups)),
      data.maps ? one("Mappings", bytes(data.maps.rss), `resident of ${bytes(data.maps.size)} in ${plural(data.maps.count, "mapping")}`) : null),
  ];
}

function timeline() {
  const { most, end_ns: end } = data.timeline, model = timeModel([0, Math.max(1, end)], null, null);
  const chart = timeChart({ model, unit: "bytes", height: 190, signal: forever, label: "Live bytes over time", onWindow: () => {} });
  const draw = () => chart.set({
    from: 0, step: end / most.length, marks: [{ at: Math.min(data.peak_at_ns, end), label: "peak", kind: "peak" }],
    lines: [{ name: "Live, at most", unit: "bytes", color: SERIES[dark.matches ? "dark" : "light"][0], max: most }],
  });
  draw();
  dark.addEventListener("change", draw);
  return h("section.card", null, h("header", null, h("h2", null, "Live bytes over time"), h("span.grow"), h("span.note", null, "Ctrl and wheel zoom, a double click shows all")), h("div.lanes", null, chart.root));
}

const treeOf = () => buildTree(fromStacks(data.stacks.map((s) => ({ frames: s.frames, value: s.costs[state.cost] })), state.inverted), frames, "value");

function graph() {
  const cost = () => data.costs[state.cost];
  const crumbs = h("nav.crumbs", { "aria-label": "Zoomed to" }), found = h("span.note.figures", { role: "status" }), hint = h("p.note");
  const chart = flameChart({ tree: treeOf(), frames, unit: cost().unit, metric: SAID[cost().name], up: false, color: "module", zoom: 0, hits: null, rootName: "all" }, { signal: forever, onZoom: where });
  let tree = treeOf();
  function where(node) {
    fill(crumbs, pathOf(tree, node).map((n) => h("button.quiet", { type: "button", onclick: () => { chart.set({ zoom: n }); where(n); } }, chart.nameOf(n))));
  }
  function search() {
    state.hits = searchFrames(frames, input.value);
    chart.set({ hits: state.hits });
    if (!state.hits) fill(found);
    else {
      const m = matchedValue(tree, state.hits);
      fill(found, `${amount(m.value, cost().unit)} ${SAID[cost().name]}, ${percent(m.value, tree.value[0])}`);
    }
    rows();
  }
  function all() {
    tree = treeOf();
    chart.set({ tree, zoom: 0, unit: cost().unit, metric: SAID[cost().name] });
    where(0);
    const left = data.rest;
    fill(hint, tree.value[0] ? "A click zooms in. " : "Nothing is " + SAID[cost().name] + ". ", left.stacks ? `${plural(left.stacks, "other stack")} with ${amount(left.costs[state.cost], cost().unit)} are not in this page.` : "");
    search();
  }
  const input = h("input", { id: "search", type: "search", placeholder: "Search: name, module or file", "aria-label": "Search", autocomplete: "off", spellcheck: "false", oninput: search });
  const pick = h("div.segments", { role: "group", "aria-label": "Cost" }, data.costs.map((c, i) => h("button", {
    type: "button", "aria-pressed": String(i === state.cost),
    onclick: (e) => {
      state.cost = state.sort = i;
      state.up = false;
      for (const b of pick.children) b.setAttribute("aria-pressed", String(b === e.currentTarget));
      all();
    },
  }, c.name)));
  const turn = h("label.inline", null, h("input", { type: "checkbox", onchange: (e) => { state.inverted = e.target.checked; all(); } }), "bottom up");
  dark.addEventListener("change", () => { setTheme(); chart.redraw(); });
  queueMicrotask(all);
  return h("section.card", null, h("header", null, h("h2", null, "Call stacks"), pick, input, found, h("span.grow"), turn), h("div.flame-frame", null, crumbs, chart.root, hint));
}

const tableHead = h("tr"), tableBody = h("tbody"), more = h("p.note");

function rows() {
  const value = (s) => (state.sort < data.costs.length ? s.costs[state.sort] : s.live);
  const order = data.stacks.filter((s) => !state.hits || s.frames.some((f) => state.hits[f]));
  order.sort((a, b) => (state.up ? value(a) - value(b) : value(b) - value(a)) || a.id - b.id);
  fill(tableHead, [...data.costs.map((c) => c.name), data.maps ? "blocks or mappings" : "live blocks", "asked for by"].map((name, i) => (i > data.costs.length ? h("th", { scope: "col" }, name)
    : h("th.num", { scope: "col", "aria-sort": i === state.sort ? (state.up ? "ascending" : "descending") : null }, h("button.sort", {
      type: "button",
      onclick: () => {
        state.up = state.sort === i && !state.up;
        state.sort = i;
        rows();
      },
    }, name, i === state.sort ? h("span.sort-mark", null, state.up ? "▲" : "▼") : null)))));
  fill(tableBody, order.slice(0, state.limit).map((s) => h("tr.stack", {
    tabindex: 0, "aria-expanded": String(state.open.has(s.id)), onkeydown: (e) => e.key === "Enter" && e.target === e.currentTarget && toggle(s.id), onclick: () => String(getSelection()) || toggle(s.id),
  }, s.costs.map((c, i) => h("td.num", null, amount(c, data.costs[i].unit))), h("td.num", null, count(s.live)), h("td.wide", null, asked(s), state.open.has(s.id) ? list(s) : null))));
  const left = order.length - state.limit;
  fill(more, left > 0 ? h("button", { type: "button", onclick: () => { state.limit += LIMIT; rows(); } }, `${count(left)} more`) : null);
}

function toggle(id) {
  if (!state.open.delete(id)) state.open.add(id);
  rows();
}

// Returns a line that names the frame that asked for a stack's blocks.
function asked(stack) {
  const [asker, through] = stack.asked.map((i) => (i === null ? null : data.frames[stack.frames[i]]));
  if (!asker) return h("span.asked", null, "(no stack)");
  return h("span.asked", null, h("span.fn", null, asker.name), " ", h("span.place", null, asker.place.startsWith("+") || !asker.place ? asker.module : asker.place), through ? h("span.through", null, ", by " + through.name) : null);
}

function list(stack) {
  return h("ol.frames", null, stack.frames.map((f, i) => h("li", null, h("span.no", null, "#" + i), h("span.fn", null, data.frames[f].name), " ", h("span.place", null, [data.frames[f].module, data.frames[f].place, data.frames[f].inlined ? "inlined" : ""].filter(Boolean).join("  ")))),
    stack.cut ? h("li.gap", null, "cut short: the outer frames are not known") : null);
}

fill(document.getElementById("page"), header(), timeline(), graph(),
  h("section.card", null, h("div.table-wrap", { tabindex: 0, role: "region", "aria-label": "Call stacks" }, h("table.data", { id: "stacks" }, h("thead", null, tableHead), tableBody)), more));
