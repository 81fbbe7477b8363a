//! The page of `prof serve`: its modules in node, its types, and the page itself in a browser. On one architecture only:
//! the page is the same on all.
#![cfg(target_arch = "x86_64")]

#[path = "ui/browser.rs"]
mod browser;
#[path = "ui/console.rs"]
mod console;
#[path = "ui/holders.rs"]
mod holders;
#[path = "ui/hostile.rs"]
mod hostile;
#[path = "ui/pages.rs"]
mod pages;
#[path = "ui/steps.rs"]
mod steps;

use browser::Browser;
use common::build::program;
use common::{Scene, Target, installed, skip, until};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

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
