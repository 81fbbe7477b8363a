"""Measures the page of `prof serve` in Debian's chromium: how long until it shows something, and how long a redraw takes."""
import os, shutil, subprocess, sys

import analysis, harness
from harness import median

sys.path.insert(0, os.path.join(harness.ROOT, "tests", "pictures"))
import chromium

EVENTS = 20_000_000
ROUNDS = 9
NODES = 20_000
# Says when the page has shown something, and when all of it was there.
WATCH = """
window.drawn = 0;
new MutationObserver(() => {
  if (!window.drawn && document.querySelector('main > .page[data-ready]') && !document.querySelector('[aria-busy], .page.coming, progress'))
    requestAnimationFrame(() => window.drawn ||= performance.now());
}).observe(document, { childList: true, subtree: true, attributes: true });
"""
# Makes a tree of so many boxes, all of them wide enough to be drawn, and draws it again and again.
FLAME = """
const base = document.querySelector('script[type=module]').src.replace(/main\\.js$/, '');
const [{ flameChart }, { buildTree, searchFrames }] = await Promise.all([import(base + 'charts/flame.js'), import(base + 'charts/layout.js')]);
const columns = { parent: [-1], frame: [-1], value: [0], self: [0] }, frames = [];
for (let i = 0; i < 2000; i++) frames.push({ name: 'function_' + i, module: '/usr/lib/lib' + i % 17 + '.so', file: null, line: null, inlined: false });
let row = [0];
while (columns.parent.length < @nodes@) {
  const next = [];
  for (const p of row) for (let c = 0; c < (row.length < 400 ? 2 : 1) && columns.parent.length < @nodes@; c++) {
    next.push(columns.parent.length);
    columns.parent.push(p); columns.frame.push(columns.parent.length * 7 % 2000); columns.value.push(0); columns.self.push(0);
  }
  row = next;
}
const leaf = new Uint8Array(columns.parent.length).fill(1);
for (const p of columns.parent) if (p >= 0) leaf[p] = 0;
for (let i = columns.parent.length - 1; i >= 0; i--) {
  if (leaf[i]) columns.self[i] = columns.value[i] = 1000;
  if (i) columns.value[columns.parent[i]] += columns.value[i];
}
const place = document.createElement('div');
document.querySelector('main').replaceChildren(place);
const tree = buildTree(columns, frames, 'value');
const chart = flameChart({ tree, frames, unit: 'bytes', metric: 'live', up: false, color: 'module', zoom: 0, hits: null }, { signal: new AbortController().signal });
place.append(chart.root);
const frame = () => new Promise((r) => requestAnimationFrame(r));
await frame(); await frame();
const times = [];
for (let i = 0; i < 60; i++) {
  times.push(chart.set(i % 3 === 0 ? { hits: searchFrames(frames, 'function_1' + i) } : i % 3 === 1 ? { hits: null } : { zoom: tree.first[0] * (i % 2) }));
  await frame();
}
return times;
"""
# Drags over the timeline: a move of the pointer, and all that is drawn for it before the next frame.
DRAG = """
const canvas = document.querySelector('.series .over'), r = canvas.getBoundingClientRect(), times = [];
const send = (kind, x) => canvas.dispatchEvent(new PointerEvent(kind, { clientX: x, clientY: r.top + 40, button: 0, buttons: 1, pointerId: 1, bubbles: true }));
canvas.setPointerCapture = () => {};
send('pointerdown', r.left + r.width * 0.2);
for (let i = 0; i < 60; i++) {
  const from = performance.now();
  send('pointermove', r.left + r.width * (0.2 + 0.01 * i));
  const handled = performance.now() - from;
  // What the move asked for is drawn at the next frame.
  const drawn = await new Promise((done) => {
    let start = 0;
    requestAnimationFrame(() => { start = performance.now(); });
    const channel = new MessageChannel();
    requestAnimationFrame(() => { channel.port2.postMessage(0); });
    channel.port1.onmessage = () => done(performance.now() - start);
  });
  times.push(handled + drawn);
}
return times;
"""
# The same by zooming, which draws the lines anew.
ZOOM = """
const canvas = document.querySelector('.series .over'), times = [];
for (let i = 0; i < 40; i++) {
  const from = performance.now();
  canvas.dispatchEvent(new KeyboardEvent('keydown', { key: i % 2 ? 's' : 'w', bubbles: true }));
  const handled = performance.now() - from;
  const drawn = await new Promise((done) => {
    const before = performance.now();
    requestAnimationFrame((now) => { const start = performance.now(); setTimeout(() => done(performance.now() - start)); });
  });
  times.push(handled + drawn);
}
return times;
"""


def section(only=()):
    events = int(only[0]) if only else EVENTS
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        print("\npage not measured: chromium or chromedriver is not installed")
        return
    analysis.examples()
    made = os.path.join(harness.SCRATCH, "generated.prof")
    subprocess.run([analysis.example("generate"), made, str(events)], check=True)
    harness.prof("report", made, "--index", "-n", "1")
    try:
        with chromium.served(harness.PROF, made) as (address, id):
            print(f"\nthe page, of {events // 1_000_000} million generated events, in chromium without a window, 1400 by 900:\n"
                  f"  medians and the most, in ms", flush=True)
            shown(address, f"#/overview/{id}", "overview")
            shown(address, f"#/flame/{id}?metric=allocated", "flame graph")
            shown(address, f"#/allocations/{id}", "allocations")
            redrawn(address, id)
    finally:
        harness.remove_all("generated.")


def shown(address, hash, name):
    """Prints how long the page takes from its address to the first paint, and to all of it."""
    first, whole, again = [], [], []
    for _ in range(ROUNDS):
        with chromium.browser() as browser:
            browser.looks(1400, 900, "light")
            browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
            for n in range(2):
                browser.open(address + hash)
                paint = browser.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
                drawn = browser.run("return window.drawn")
                (again if n else first).append(paint)
                if not n:
                    whole.append(drawn)
    row(f"{name}: first paint, nothing kept", first)
    row(f"{name}: first paint, files kept", again)
    row(f"{name}: all parts are there", whole)


def redrawn(address, id):
    """Prints how long redraws take."""
    with chromium.browser() as browser:
        browser.looks(1400, 900, "light")
        run = lambda script: browser.devtools("Runtime.evaluate", expression="(async () => {" + script + "})()",
                                              awaitPromise=True, returnByValue=True)["result"]["value"]
        browser.open(address + f"#/overview/{id}?series=live_bytes,rss,allocations,frees&by=function")
        row("timeline: a move of a drag", run(DRAG))
        browser.open(address + f"#/overview/{id}?series=live_bytes,rss,allocations,frees&by=function")
        row("timeline: a step of a zoom", run(ZOOM))
        row(f"flame graph: a redraw of {NODES:,} boxes", run(FLAME.replace("@nodes@", str(NODES))))


def row(name, values):
    values = [v for v in values if v]
    print(f"  {name:46}{median(values):9.1f}{max(values):9.1f}", flush=True)
