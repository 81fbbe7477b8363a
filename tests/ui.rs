//! The page of `prof serve`: its modules in node, its types, and the page itself in a browser.

mod common;

use common::{installed, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
