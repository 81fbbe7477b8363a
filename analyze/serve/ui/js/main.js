// Starts the page: the frame around all pages, the routes, and the keyboard.

import { fill, h, reveal } from "./core/dom.js";
import { icon } from "./core/icon.js";
import { app, fieldsOf, go, here, recording, to } from "./core/app.js";
import { counts } from "./core/filters.js";
import { parse } from "./core/url.js";
import { fresh, get, follow, forget } from "./core/api.js";
import { bind, listen } from "./core/keys.js";
import { applyTheme, nextTheme, theme } from "./core/theme.js";
import { commandOf, filterBar } from "./widgets/filterbar.js";
import { failed } from "./widgets/states.js";
import { showTip } from "./widgets/tip.js";
import { copy, toast } from "./widgets/menu.js";
import { base } from "./core/format.js";
import { PAGES, openHelp } from "./pages/pages.js";

const main = h("main", { id: "main", tabindex: -1 }), nav = h("nav.side", { "aria-label": "Pages" }), top = h("header.top"), filters = h("div.filter-place");
/** @type {AbortController | null} */
let running = null;
let rendering = 0;

function drawTop() {
  const view = here(), now = recording(view.id);
  const switcher = app.recordings.length > 1 && now
    ? h("select.switch", { "aria-label": "Recording", "data-key": "switch", onchange: (e) => go(to({ id: e.target.value, item: "", view: {} , page: PAGES[view.page]?.item ? "overview" : view.page })) },
      app.recordings.map((r) => h("option", { value: r.id, selected: r.id === view.id }, titleOf(r))))
    : now ? h("strong.switch", null, titleOf(now)) : null;
  const themeButton = h("button.quiet", {
    type: "button", "data-key": "theme", "aria-label": "Colours: " + theme(), title: "Colours: " + theme(),
    onclick: () => {
      nextTheme();
      drawTop();
      app.render();
    },
  }, icon({ auto: "auto", light: "sun", dark: "moon" }[theme()]));
  fill(top, h("a.brand", { href: "#/recordings", "aria-label": "prof: all recordings" }, h("span.logo", { "aria-hidden": true }), "prof"),
    switcher, now ? stateBadge(now) : null, h("span.grow"),
    h("button.quiet", { type: "button", "data-key": "link", "aria-label": "Copy a link to this view", title: "Copy a link to this view (y)", onclick: () => copy(location.href, "Link") }, icon("link")),
    h("button.quiet", { type: "button", "data-key": "command", "aria-label": "Copy as command line", title: "Copy as command line (Y)", onclick: () => copy(commandOf(), "Command line") }, icon("terminal")),
    themeButton,
    h("button.quiet", { type: "button", "data-key": "help", "aria-label": "Help and keys", title: "Help and keys (?)", onclick: openHelp }, icon("help")));
}

/** @param {any} r */
function titleOf(r) {
  const t = r.head && r.head.target;
  return t ? `${t.comm || base(t.exe)} · ${t.pid}` : r.name;
}

/** @param {any} r */
function stateBadge(r) {
  /** @type {Record<string, string>} */
  const words = { growing: "recording", paused: "paused", indexing: "being indexed", damaged: "damaged" };
  return words[r.state] ? h("span.badge", { class: r.state, title: r.why || null }, words[r.state]) : null;
}

function drawNav() {
  const view = here();
  fill(nav, h("ul", null, Object.entries(PAGES).filter(([, p]) => p.icon && (view.id || p.global) && (!p.when || p.when(recording(view.id)))).map(([name, p]) =>
    h("li", null, h("a", {
      href: p.global ? "#/" + name : to({ page: name, item: "", view: {} }), "data-key": "nav-" + name,
      "aria-current": name === view.page || p.has === view.page || (p.hasAll || []).includes(view.page) ? "page" : null, title: p.keys ? p.title + " (" + p.keys + ")" : p.title,
    }, icon(/** @type {string} */ (p.icon)), h("span", null, p.title))))));
  // On a narrow window the pages are a strip that is scrolled.
  const current = nav.querySelector("[aria-current]");
  for (let e = current?.parentElement; current && e && e !== nav.parentElement; e = e.parentElement) reveal(current, e);
}

/** Draws the page of the address. The one before stays until the new one has something to show. */
async function render() {
  const view = here(), page = PAGES[view.page], mine = ++rendering;
  const samePage = parse(app.shown).page === view.page && parse(app.shown).id === view.id;
  app.shown = location.hash;
  if (running) running.abort();
  const controller = running = new AbortController();
  showTip(null);
  drawTop();
  drawNav();
  const key = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.key;
  fill(filters, page && page.filtered && view.id ? filterBar() : null);
  const root = h("div.page", { class: "page-" + view.page });
  const before = [...main.children];
  root.classList.add("coming");
  main.append(root);
  document.title = (page ? page.title : "Not found") + " – " + (recording(view.id) ? titleOf(recording(view.id)) + " – " : "") + "prof";
  try {
    if (!page) throw new Error("There is no page " + JSON.stringify(view.page) + ".");
    if (!page.global && !recording(view.id)) throw new Error("There is no recording " + JSON.stringify(view.id) + " here. The list has those that there are.");
    const fields = fieldsOf(view.page);
    const dispose = page.run(root, { ...view, filter: view.filter.filter(([n]) => counts(n, ...fields)) }, controller.signal);
    if (typeof dispose === "function") controller.signal.addEventListener("abort", dispose);
    // Parts that come at once are shown at once; parts that take longer get place holders after a moment.
    if (before.length) await settled(root, controller.signal);
  } catch (e) {
    fill(root, failed(e));
  }
  if (mine !== rendering) return;
  before.forEach((b) => b.remove());
  root.classList.remove("coming");
  root.setAttribute("data-ready", "");
  if (!samePage) scrollTo(0, (history.state && history.state.scroll) || 0);
  const again = key ? /** @type {HTMLElement | null} */ (document.querySelector(`[data-key="${CSS.escape(key)}"]`)) : null;
  if (again) again.focus({ preventScroll: true });
  else if (!samePage && before.length && document.activeElement === document.body) main.focus({ preventScroll: true });
}

/**
 * Waits until nothing in a page is busy, at most 160 ms.
 * @param {Element} root
 * @param {AbortSignal} signal
 */
async function settled(root, signal) {
  for (const until = performance.now() + 160; performance.now() < until && !signal.aborted;) {
    await new Promise((r) => setTimeout(r, 8));
    if (!root.querySelector("[aria-busy]")) return;
  }
}

function bindKeys() {
  /** @type {[string, string, () => void][]} */
  const pages = Object.entries(PAGES).filter(([, p]) => p.keys).map(([name, p]) => [/** @type {string} */ (p.keys), p.title,
    () => (p.global ? go("#/" + name) : here().id && go(to({ page: name, item: "", view: {} })))]);
  bind("Go to", pages);
  bind("Everywhere", [
    ["?", "this help", openHelp],
    ["/", "search in the page", () => /** @type {any} */ (main.querySelector("input[type=search]") || document.querySelector(".add-filter"))?.focus()],
    ["u", "back: undo the last step", () => history.back()],
    ["y", "copy a link to this view", () => copy(location.href, "Link")],
    ["Y", "copy this view as a command line", () => copy(commandOf(), "Command line")],
    ["Escape", "close what is open", () => {
      showTip(null);
      /** @type {any} */ (document.activeElement)?.blur?.();
    }],
  ]);
}

/** Keeps the list of recordings as the server has it. */
function followServer() {
  follow({
    recordings: (list) => {
      const old = app.recordings, next = Array.isArray(list) ? list : list.recordings;
      app.recordings = next;
      const view = here(), was = old.find((r) => r.id === view.id)?.state, is = recording(view.id)?.state;
      if (view.page === "recordings" || (was !== is && is !== "growing")) {
        forget();
        render();
      } else drawTop();
    },
    tick: (tick) => document.dispatchEvent(new CustomEvent("prof-tick", { detail: tick })),
    progress: (p) => {
      const r = recording(p.id);
      if (r) r.progress = p.progress;
      document.dispatchEvent(new CustomEvent("prof-progress", { detail: p }));
    },
  }, new AbortController().signal);
}

async function start() {
  applyTheme();
  history.scrollRestoration = "manual";
  document.body.replaceChildren(h("a.skip", { href: "#main", onclick: (e) => {
    e.preventDefault();
    main.focus();
  } }, "Skip to the content"), top, h("div.shell", null, nav, h("div.column", null, filters, main)));
  app.render = render;
  try {
    const [list, fields] = await Promise.all([fresh("recordings"), get("fields", null)]);
    Object.assign(app, { recordings: list.recordings, control: Boolean(list.control), sources: Boolean(list.sources), scripts: Boolean(list.scripts), version: list.version || "" });
    Object.assign(app, { fields: fields.fields, mapFields: fields.map_fields || [], sorts: fields.sort || [] });
  } catch (e) {
    fill(main, failed(e));
    return;
  }
  if (!location.hash || location.hash === "#/") {
    history.replaceState(null, "", app.recordings.length === 1 ? "#/overview/" + encodeURIComponent(app.recordings[0].id) : "#/recordings");
  }
  const moved = () => {
    if (location.hash !== app.shown) render();
  };
  addEventListener("popstate", moved);
  addEventListener("hashchange", moved);
  addEventListener("unhandledrejection", (e) => {
    if (e.reason && e.reason.name === "AbortError") e.preventDefault();
    else toast("Something failed: " + (e.reason && e.reason.message));
  });
  bindKeys();
  listen();
  await render();
  followServer();
}

start();
