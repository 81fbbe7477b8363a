const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const ROW = 18, LIMIT = 200;
const state = { cost: data.cost, inverted: false, hits: null, path: [], boxes: [], sort: data.cost, up: false, limit: LIMIT, open: new Set() };

// All text gets into the document this way, never as HTML.
function element(name, text, parent) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  if (parent) parent.append(e);
  return e;
}

function color(name) {
  return getComputedStyle(document.body).getPropertyValue(name);
}

function canvas(id, height) {
  const c = $(id), scale = window.devicePixelRatio || 1;
  c.style.height = height + "px";
  const width = c.clientWidth;
  c.width = Math.round(width * scale);
  c.height = Math.round(height * scale);
  const g = c.getContext("2d");
  g.scale(scale, scale);
  g.font = "12px system-ui, sans-serif";
  g.textBaseline = "middle";
  return [g, width];
}

function header() {
  const { target, recording, totals, filter } = data.head;
  document.title = target.comm + ": memory, by prof";
  $("title").textContent = target.comm + ", pid " + target.pid;
  const at = new Date(recording.started_unix_ns / 1e6).toISOString().replace("T", " ").slice(0, 19) + " UTC";
  const command = target.cmdline.length ? target.cmdline.join(" ") : target.exe;
  $("about").textContent = command + " — recorded " + at + " for " + duration(recording.duration_ns) +
    (recording.complete ? "" : ", not complete");
  const notes = [...recording.notes];
  if (recording.lost_events) notes.push(recording.lost_events + " events were lost: the figures are too low");
  if (recording.truncated_stacks) notes.push(recording.truncated_stacks + " stacks were cut short");
  const c = recording.capture;
  if (c && (c.sample_bytes || c.sample_every > 1)) notes.push("a sample was recorded: all figures are estimates");
  if (c && (c.min_size || c.max_size !== null)) notes.push("blocks of some sizes were not recorded");
  if (filter.length) notes.push("only blocks of the filter " + filter.map((f) => "--" + f.name + " " + f.value).join(" "));
  if (data.head.at_ns !== null) notes.push("as it was at " + duration(data.head.at_ns));
  notes.forEach((n) => element("li", n, $("notes")));
  const figures = [
    ["live", bytes(totals.live_bytes) + " in " + amount(totals.live_count)],
    ["peak", bytes(totals.peak_bytes) + " at " + duration(totals.peak_at_ns)],
    ["allocated", bytes(totals.allocated_bytes)],
    ["allocations", amount(totals.allocations + totals.reallocations)],
    ["temporary", totals.temporary === null ? "not known" : amount(totals.temporary)],
    ["call stacks", amount(totals.groups)],
  ];
  for (const [name, value] of figures) {
    const d = element("div", undefined, $("figures"));
    element("dt", name, d);
    element("dd", value, d);
  }
}

function timeline() {
  const height = 160, [g, width] = canvas("timeline", height);
  const { most, end_ns } = data.timeline, top = Math.max(1, ...most);
  const y = (v) => height - v / top * (height - 22);
  g.beginPath();
  g.moveTo(0, height);
  most.forEach((v, i) => {
    g.lineTo(i / most.length * width, y(v));
    g.lineTo((i + 1) / most.length * width, y(v));
  });
  g.lineTo(width, height);
  g.fillStyle = "#2563eb66";
  g.fill();
  g.strokeStyle = "#2563eb";
  g.stroke();
  g.fillStyle = getComputedStyle(document.body).color;
  g.fillText(bytes(top), 4, 8);
  const end = duration(end_ns);
  g.fillText(end, width - g.measureText(end).width - 4, 8);
  const x = Math.min(data.peak_at_ns / end_ns, 1) * width;
  g.strokeStyle = "#dc2626";
  g.beginPath();
  g.moveTo(x, 14);
  g.lineTo(x, height);
  g.stroke();
  const label = "peak", wide = g.measureText(label).width + 4;
  g.fillText(label, x > wide + 80 ? x - wide : x + 4, 20);
}

function hue(frame) {
  let h = 0;
  for (const c of frame.module || frame.name) h = (h * 31 + c.codePointAt(0)) % 360;
  return h;
}

function label(node) {
  return node.frame < 0 ? "all" : data.frames[node.frame].name;
}

function graph() {
  const root = state.path[0];
  const [, width] = canvas("graph", ROW);
  state.boxes = layout(state.path, 1 / Math.max(width, 1));
  const depth = state.boxes.reduce((d, b) => Math.max(d, b.depth), 0) + 1;
  const [g] = canvas("graph", depth * ROW + 2);
  if (!root.value) g.fillText("nothing " + data.costs[state.cost].name, 4, ROW / 2);
  for (const b of root.value ? state.boxes : []) {
    const x = b.x * width, w = b.width * width, y = b.depth * ROW;
    const hit = state.hits && b.node.frame >= 0 && state.hits[b.node.frame];
    const frame = b.node.frame < 0 ? null : data.frames[b.node.frame];
    g.fillStyle = hit ? color("--hit") : frame ? `hsl(${hue(frame)} 55% ${b.above ? 84 : 72}%)` : "#9994";
    g.fillRect(x, y, Math.max(w - 0.6, 0.6), ROW - 1);
    if (w > 26) {
      g.save();
      g.beginPath();
      g.rect(x, y, w - 4, ROW);
      g.clip();
      g.fillStyle = hit ? "#fff" : frame ? "#111" : getComputedStyle(document.body).color;
      const part = b.node.depth ? "" : " — " + amount(root.value, data.costs[state.cost].unit);
      g.fillText(label(b.node) + part, x + 4, y + ROW / 2);
      g.restore();
    }
  }
  const { stacks, costs } = data.rest;
  $("hint").textContent = "A click zooms in." + (stacks
    ? ` ${amount(stacks)} other stacks with ${amount(costs[state.cost], data.costs[state.cost].unit)} are not in this page.` : "");
}

function box(event) {
  const r = $("graph").getBoundingClientRect();
  const x = (event.clientX - r.left) / r.width, depth = Math.floor((event.clientY - r.top) / ROW);
  return state.boxes.find((b) => b.depth === depth && x >= b.x && x < b.x + b.width);
}

function tip(event, text) {
  const t = $("tip");
  t.hidden = !text;
  if (!text) return;
  t.textContent = text;
  t.style.left = Math.min(event.clientX + 12, window.innerWidth - t.offsetWidth - 8) + "px";
  t.style.top = Math.min(event.clientY + 14, window.innerHeight - t.offsetHeight - 8) + "px";
}

function describe(b) {
  const unit = data.costs[state.cost].unit, total = state.path[0].value;
  const part = (100 * b.node.value / (total || 1)).toFixed(1) + "%";
  const f = data.frames[b.node.frame];
  const place = f ? "\n" + [f.module, f.place, f.inlined ? "inlined" : ""].filter(Boolean).join(" ") : "";
  return label(b.node) + place + "\n" + amount(b.node.value, unit) + ", " + part;
}

function zoom(b) {
  if (b.above || b.depth < state.path.length) {
    state.path = state.path.slice(0, b.depth + 1);
    return;
  }
  // The path from the present top node to the clicked one.
  const way = [];
  let depth = b.depth, node = b;
  while (depth >= state.path.length) {
    way.unshift(node.node);
    depth--;
    const child = node;
    node = state.boxes.find((p) => p.depth === depth && child.x >= p.x - 1e-9 && child.x + child.width <= p.x + p.width + 1e-9);
    if (!node) return;
  }
  state.path = state.path.concat(way);
}

// Returns a line that names the frame that asked for a stack's blocks.
function asked(stack) {
  const [asker, through] = stack.asked.map((i) => i === null ? null : data.frames[stack.frames[i]]);
  if (!asker) return "(no stack)";
  const line = asker.place.startsWith("+") ? "" : asker.place;
  const where = line || (asker.module ? "(" + asker.module + ")" : "");
  return asker.name + " " + where + (through ? ", by " + through.name : "");
}

function rows() {
  const order = data.stacks.filter((s) => !state.hits || s.frames.some((f) => state.hits[f]));
  const value = (s) => state.sort < data.costs.length ? s.costs[state.sort] : s.live;
  order.sort((a, b) => (state.up ? value(a) - value(b) : value(b) - value(a)) || a.id - b.id);
  $("head").replaceChildren();
  [...data.costs.map((c) => c.name), "live blocks", "asked for by"].forEach((name, i) => {
    const th = element("th", undefined, $("head"));
    if (i > data.costs.length) { th.textContent = name; return; }
    if (i === state.sort) th.ariaSort = state.up ? "ascending" : "descending";
    const button = element("button", name, th);
    button.type = "button";
    button.onclick = () => {
      state.up = state.sort === i && !state.up;
      state.sort = i;
      rows();
    };
  });
  $("rows").replaceChildren();
  for (const s of order.slice(0, state.limit)) {
    const tr = element("tr", undefined, $("rows"));
    tr.className = "stack";
    s.costs.forEach((c, i) => element("td", amount(c, data.costs[i].unit), tr));
    element("td", amount(s.live), tr);
    const last = element("td", undefined, tr);
    element("span", asked(s), last);
    if (state.open.has(s.id)) frames(s, last);
    tr.onclick = () => {
      if (!state.open.delete(s.id)) state.open.add(s.id);
      rows();
    };
  }
  const left = order.length - state.limit;
  $("more").replaceChildren();
  if (left > 0) {
    const button = element("button", `${amount(left)} more`, $("more"));
    button.type = "button";
    button.onclick = () => { state.limit += LIMIT; rows(); };
  }
}

function frames(stack, parent) {
  const list = element("ol", undefined, parent);
  list.start = 0;
  for (const f of stack.frames.map((f) => data.frames[f])) {
    const li = element("li", f.name + " ", list);
    element("small", [f.module, f.place, f.inlined ? "inlined" : ""].filter(Boolean).join(" "), li);
  }
  if (stack.cut) element("li", "cut short: the outer frames are not known", list);
}

function search() {
  state.hits = found(data, $("search").value);
  const { name, unit } = data.costs[state.cost];
  const total = state.path[0].value;
  const sum = state.hits ? matched(data, state.cost, state.hits) : 0;
  $("match").textContent = state.hits
    ? `${amount(sum, unit)} ${name}, ${(100 * sum / (total || 1)).toFixed(1)}%` : "";
}

function all() {
  state.path = [tree(data, state.cost, state.inverted)];
  search();
  graph();
  rows();
}

header();
data.costs.forEach((c, i) => {
  const o = element("option", c.name + (c.unit === "bytes" ? " bytes" : ""), $("cost"));
  o.value = String(i);
});
$("cost").value = String(state.cost);
$("cost").onchange = () => { state.cost = state.sort = Number($("cost").value); state.up = false; all(); };
$("inverted").onchange = () => { state.inverted = $("inverted").checked; all(); };
$("search").oninput = () => { search(); graph(); rows(); };
$("reset").onclick = () => { state.path = state.path.slice(0, 1); graph(); };
$("graph").onclick = (e) => { const b = box(e); if (b) { zoom(b); graph(); } };
$("graph").onmousemove = (e) => { const b = box(e); tip(e, b && describe(b)); };
$("graph").onmouseleave = (e) => tip(e, "");
$("timeline").onmousemove = (e) => {
  const r = $("timeline").getBoundingClientRect(), { most, end_ns } = data.timeline;
  const part = Math.min(Math.max((e.clientX - r.left) / r.width, 0), 1);
  const i = Math.min(Math.floor(part * most.length), most.length - 1);
  tip(e, duration(part * end_ns) + ": " + bytes(most[i]));
};
$("timeline").onmouseleave = (e) => tip(e, "");
window.addEventListener("resize", () => { timeline(); graph(); });
timeline();
all();
