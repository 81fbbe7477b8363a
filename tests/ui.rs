//! The page of `prof serve`: its modules in node, its types, and the page itself in a browser.

#[path = "common/browser.rs"]
mod browser;
mod common;

use browser::Browser;
use common::build::program;
use common::{Scene, Target, installed, skip, until};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The pages of a recording, as in an address.
const PAGES: [&str; 12] = [
    "overview",
    "allocations",
    "allocations?by=none&full=true",
    "flame",
    "flame?dir=up&full=true&color=value",
    "tree",
    "leaks",
    "diff",
    "threads",
    "sizes",
    "space",
    "info",
];

/// Returns the folder of the page's files.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("analyze/serve/ui")
}

/// Runs a command in the folder of the page.
fn here(program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder());
    command.output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// Panics with what a command wrote if it failed.
fn passed(what: &str, out: &Output) {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    assert!(out.status.success(), "{what}:\n{}{}", text(&out.stdout), text(&out.stderr));
}

#[test]
fn the_modules_pass_their_tests() {
    if !installed("node") {
        return skip("the_modules_pass_their_tests", "node is not installed");
    }
    let out = here("node", &["--test", "test/"]);
    passed("node --test", &out);
    let text = String::from_utf8_lossy(&out.stdout);
    let count =
        text.lines().find_map(|l| l.trim_start_matches(['#', 'ℹ', ' ']).strip_prefix("pass "));
    let count = count.and_then(|n| n.trim().parse::<u32>().ok()).unwrap_or(0);
    assert!(count >= 25, "only {count} tests ran:\n{text}");
}

/// Checks the types by the compiler that package.json names. It comes from npm, so this runs where that was fetched:
/// `npm ci` in the page's folder.
#[test]
fn the_types_are_right() {
    if !folder().join("node_modules/.bin/tsc").exists() {
        // No package of Debian has this version: without it, nothing is wrong with the machine.
        eprintln!("the_types_are_right is skipped: npm ci was not run in {}", folder().display());
        return;
    }
    passed("tsc", &here("node_modules/.bin/tsc", &["-p", "jsconfig.json"]));
}

/// A server, which ends with it.
struct Served {
    child: Child,
    /// The address that it printed, with the token.
    address: String,
}

impl Served {
    fn start(scene: &Scene, args: &[&str]) -> Self {
        let mut child = Command::new(Scene::binary())
            .arg("serve")
            .args(args)
            .args(["--listen", "127.0.0.1:0"])
            .current_dir(scene.path(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("prof serve");
        let mut address = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut address).expect("an address");
        Self { child, address: address.trim().to_owned() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether there is a browser; says so if there is none.
fn is_browser(test: &str) -> bool {
    let there = installed("chromium") && installed("chromedriver");
    if !there {
        skip(test, "chromium or chromedriver is not installed");
    }
    there
}

/// Records a program of known behaviour; returns the name of the recording.
fn record(scene: &Scene) -> &'static str {
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "r.prof", "--free-stacks", "--"]).arg(program("figures.c"));
    scene.run(c).ok("prof run");
    "r.prof"
}

/// Opens the page and returns the id of its recording.
fn opened(browser: &Browser, served: &Served) -> String {
    browser.open(&served.address);
    browser.until("the recording was read", "!document.querySelector('progress')");
    let hash = browser.run("location.hash");
    let id = hash.as_str().and_then(|h| h.split('/').nth(2)).expect("an id in the address");
    id.split('?').next().expect("an id").to_owned()
}

fn pictures() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/ui");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Returns what the report says about totals.
fn total(scene: &Scene, filter: &[&str], name: &str) -> u64 {
    let args = [&["report", "--format", "json", "r.prof"], filter].concat();
    let report: Value =
        serde_json::from_str(&scene.prof(&args).ok("prof report").stdout).expect("JSON");
    report["totals"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn every_page_draws_in_a_browser() {
    if !is_browser("every_page_draws_in_a_browser") {
        return;
    }
    let scene = Scene::new("ui-pages");
    let served = Served::start(&scene, &[record(&scene)]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    for (width, height, scheme) in [(1400, 900, "light"), (1400, 900, "dark"), (360, 780, "light")]
    {
        browser.looks(width, height, scheme);
        for page in PAGES.iter().chain(&["recordings", "stack/{id}", "block/{id}"]) {
            let (name, query) = page.split_once('?').map_or((*page, ""), |(n, q)| (n, q));
            let hash = match name {
                "recordings" => "#/recordings".to_owned(),
                "stack/{id}" | "block/{id}" => {
                    let list = if name.starts_with("stack") { "" } else { "?by=none" };
                    browser.hash(&format!("#/allocations/{id}{list}"));
                    browser
                        .run("document.querySelector('tr[data-href]').dataset.href")
                        .as_str()
                        .expect("a link")
                        .to_owned()
                }
                _ => format!("#/{name}/{id}{}{query}", if query.is_empty() { "" } else { "?" }),
            };
            browser.hash(&hash);
            let failed = browser
                .run("[...document.querySelectorAll('.failed')].map((e) => e.innerText).join()");
            assert_eq!(failed, "", "{hash}");
            let beyond =
                browser.run("Math.max(0, document.documentElement.scrollWidth - innerWidth)");
            assert_eq!(beyond, 0, "{hash} is wider than {width} pixels");
            let file = page.replace(['?', '=', '&', '/', '{', '}'], "-");
            browser.picture(&pictures().join(format!("{file}-{width}-{scheme}.png")));
            assert_eq!(browser.complaints(), Vec::<String>::new(), "{hash}");
        }
    }
}

#[test]
fn figures_and_steps_are_right_in_a_browser() {
    if !is_browser("figures_and_steps_are_right_in_a_browser") {
        return;
    }
    let scene = Scene::new("ui-steps");
    let served = Served::start(&scene, &[record(&scene)]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    browser.looks(1400, 900, "light");
    a_brush_is_a_filter(&browser, &scene, &id);
    a_table_sorts_and_filters(&browser, &id);
    a_flame_graph_zooms_and_finds(&browser, &id);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Waits for a request of the page and returns a figure of it: what the overview was made of.
fn head(browser: &Browser, id: &str, name: &str) -> Value {
    browser.run(&format!(
        "const r = new XMLHttpRequest(); r.open('GET', '/api/v1/{id}/head' + location.hash.replace(/^[^?]*/, ''), false); r.send(); return JSON.parse(r.responseText).totals.{name}"
    ))
}

fn a_brush_is_a_filter(browser: &Browser, scene: &Scene, id: &str) {
    browser.hash(&format!("#/overview/{id}"));
    assert_eq!(head(browser, id, "allocations"), total(scene, &[], "allocations"));
    browser.drag(".series .over", 0.2, 0.7);
    let range = browser.run("[...new URLSearchParams(location.hash.split('?')[1])].filter(([n]) => n === 'from' || n === 'to').map(([, v]) => v)");
    let (from, to) = (range[0].as_str().expect("from"), range[1].as_str().expect("to"));
    let filter = ["--from", from, "--to", to];
    for name in ["allocations", "allocated_bytes", "live_bytes"] {
        assert_eq!(head(browser, id, name), total(scene, &filter, name), "{name} of {filter:?}");
    }
    let allocated = browser.text(".figures-row > :nth-child(4) .sub");
    let sum = total(scene, &filter, "allocations") + total(scene, &filter, "reallocations");
    assert!(allocated.replace(',', "").starts_with(&format!("{sum} ")), "{allocated}, not {sum}");
    assert_eq!(browser.run("document.querySelectorAll('.chip').length"), 2);
    browser.run("history.back()");
    browser.until("the filter is gone", "document.querySelectorAll('.chip').length === 0");
    browser.settled();
}

fn a_table_sorts_and_filters(browser: &Browser, id: &str) {
    browser.hash(&format!("#/allocations/{id}"));
    browser.click("[data-key=sort-allocations]");
    let sorted = browser.run("[...document.querySelectorAll('table.data tbody tr')].map((r) => Number(r.children[4].firstChild.textContent.replaceAll(',', '')))");
    let values: Vec<u64> =
        sorted.as_array().expect("rows").iter().filter_map(Value::as_u64).collect();
    assert!(values.len() > 3 && values.is_sorted_by(|a, b| a >= b), "{values:?}");
    let digest = "document.querySelector('main').innerText";
    let before = browser.run(digest);
    let address = browser.run("location.href");
    browser.leave();
    browser.open(address.as_str().expect("an address"));
    assert_eq!(browser.run(digest), before, "the address does not lead to the same page");
    // By the keyboard alone: a row, its stack, and a filter by it.
    browser.keys(&["j", "Enter"]);
    browser.until("the stack is open", "location.hash.startsWith('#/stack/')");
    browser.settled();
    assert!(browser.text("ol.frames").contains("main"));
    browser.keys(&["g", "a"]);
    browser.until("the list is back", "location.hash.startsWith('#/allocations/')");
    browser.settled();
    browser.keys(&["j", "x"]);
    browser.until("a chip is there", "document.querySelectorAll('.chip').length === 1");
    browser.settled();
    assert_eq!(browser.run("document.querySelectorAll('table.data tbody tr').length"), 1);
    browser.click(".chip-close");
    browser.keys(&["?"]);
    assert!(browser.text("dialog.help").contains("next row"));
    browser.keys(&["Escape"]);
    browser.run("document.querySelector('dialog') && document.querySelector('dialog').close()");
}

fn a_flame_graph_zooms_and_finds(browser: &Browser, id: &str) {
    browser.hash(&format!("#/flame/{id}?metric=allocated"));
    browser.run("document.querySelector('.flame-canvas').focus()");
    browser.keys(&["ArrowDown", "ArrowDown", "Enter"]);
    let crumbs = "document.querySelectorAll('.crumbs button').length";
    assert_eq!(browser.run(crumbs), 3, "the root, and two below it");
    let zoomed = browser.run("location.hash.includes('z=')");
    assert_eq!(zoomed, true);
    browser.run("history.back()");
    browser.until("the zoom is undone", "!location.hash.includes('z=')");
    browser.settled();
    assert_eq!(browser.run(crumbs), 1);
    browser.run("const i = document.querySelector('.page-flame input[type=search]'); i.value = 'large'; i.dispatchEvent(new Event('input'));");
    let found = browser.text(".page-flame [role=status].figures");
    // Ten blocks of 5,000 bytes.
    assert!(found.contains("48.8 KiB"), "{found}");
    browser.keys(&["Escape"]);
}

/// A page follows a recording, and ends it.
#[test]
fn a_live_page_grows_in_a_browser() {
    if !is_browser("a_live_page_grows_in_a_browser") {
        return;
    }
    let scene = Scene::new("ui-live");
    let mut command = Command::new("/usr/bin/python3");
    command.args([
        "-c",
        "import time\nkeep = []\nwhile True:\n keep.append(bytearray(40000)); time.sleep(0.02)",
    ]);
    let target = Target::spawn(command);
    scene.attach(&target);
    let served = Served::start(&scene, &[&target.pid.to_string(), "--control"]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    browser.hash(&format!("#/live/{id}"));
    let live = "document.querySelector('.figures-row .sub').innerText";
    let before = browser.run(live);
    browser.until("the figures grow", &format!("{live} !== {before} && {live} !== ''"));
    browser.click("[data-key=live-detach]");
    browser.until(
        "the recording has ended",
        "document.querySelector('.page-live [role=status]').innerText.includes('ended')",
    );
    until("prof has left the process", || !target.has_ring());
}

/// Checks that axe-core finds nothing serious, where npm has fetched it.
#[test]
fn nothing_serious_bars_anybody() {
    let axe = folder().join("node_modules/axe-core/axe.min.js");
    if !is_browser("nothing_serious_bars_anybody") {
        return;
    }
    let Ok(axe) = std::fs::read_to_string(&axe) else {
        return eprintln!("nothing_serious_bars_anybody is skipped: npm ci was not run");
    };
    let scene = Scene::new("ui-axe");
    let served = Served::start(&scene, &[record(&scene)]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    for scheme in ["light", "dark"] {
        browser.looks(1400, 900, scheme);
        for page in PAGES {
            let (name, query) = page.split_once('?').unwrap_or((page, ""));
            browser.hash(&format!("#/{name}/{id}?{query}"));
            browser.devtools("Runtime.evaluate", serde_json::json!({ "expression": axe }));
            browser.devtools(
                "Runtime.evaluate",
                serde_json::json!({ "awaitPromise": true, "expression":
                    "axe.run(document, { resultTypes: ['violations'] }).then((r) => { window.found = r.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical').map((v) => v.id + ': ' + v.nodes.map((n) => n.html.slice(0, 160)).slice(0, 3).join(' | ')).join('\\n') })" }),
            );
            assert_eq!(browser.run("window.found"), "", "{page}, {scheme}");
        }
    }
}
