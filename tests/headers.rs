//! The figures from glibc's chunk headers compared with the program's own `malloc_usable_size`.

use common::build::{has_compiler, program};
use common::{Scene, skip};
use serde_json::Value;
use std::collections::HashMap;
use std::process::Command;

const WORD: u64 = size_of::<usize>() as u64;
/// The size that the program asks for, and gets for a smaller request where only a chunk of it is free.
const HOLE: &str = if WORD == 8 { "3016" } else { "3012" };

/// Usable bytes and kind of the blocks, by address and size.
type Blocks = HashMap<(u64, u64), (u64, String)>;

fn answer_of(text: &str) -> Blocks {
    let mut blocks = Blocks::new();
    for line in text.lines().filter(|l| l.starts_with("0x")) {
        let f: Vec<&str> = line.split(' ').collect();
        let address = u64::from_str_radix(&f[0][2..], 16).expect("an address");
        let number = |n: usize| f[n].parse().expect("a number");
        blocks.insert((address, number(1)), (number(2), f[3].to_owned()));
    }
    blocks
}

#[test]
fn usable_sizes_arenas_and_mappings_are_what_the_program_sees() {
    let scene = Scene::new("headers");
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "r.prof", "--"]).arg(program("headers.c"));
    let out = scene.run(c).ok("prof run");
    let blocks = answer_of(&out.stdout);
    assert!(blocks.len() > 450, "{}", blocks.len());
    let json = scene.prof(&["export", "json", "--json-version", "1", "r.prof"]).ok("an export");
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    let (mut found, mut larger) = (HashMap::<&str, u64>::new(), 0);
    for row in json["allocations"].as_array().expect("rows") {
        let n = |name: &str| row[name].as_u64().expect(name);
        let Some((usable, kind)) = blocks.get(&(n("address"), n("size"))) else { continue };
        let Some(seen) = row["usable_size"].as_u64() else {
            // The word in front of it lies on another page, which is not read.
            assert_eq!(n("address") % 4096, 0, "{row}");
            *found.entry("unknown").or_default() += 1;
            continue;
        };
        assert_eq!(seen, *usable, "{row}");
        larger += u64::from(n("size") > 100 && usable - n("size") >= 2 * WORD);
        let is = match (row["mmapped"].as_bool(), row["main_arena"].as_bool()) {
            (Some(true), None) => "mmapped",
            (Some(false), Some(true)) => "main",
            (Some(false), Some(false)) => "other",
            other => panic!("{other:?}: {row}"),
        };
        assert_eq!(is, kind, "{row}");
        *found.entry(is).or_default() += 1;
    }
    let all: u64 = found.values().sum();
    assert_eq!(all, blocks.len() as u64);
    assert_eq!((found["mmapped"], found["other"]), (5, 50), "{found:?}");
    assert!(found["main"] >= 390 && larger > 0, "{found:?}, {larger}");
    // The filters agree.
    let calls = |filter: &[&str]| {
        let report = scene.prof(&[&["report", "r.prof", "--format", "json"], filter].concat());
        let json: Value = serde_json::from_str(&report.ok("a report").stdout).expect("JSON");
        let n = |name: &str| json["totals"][name].as_u64().expect(name);
        n("allocations") + n("reallocations")
    };
    let other = ["--arena", "non-main", "--function", "^thread$"];
    assert_eq!(calls(&other), 50);
    assert_eq!(calls(&["--mmapped", "yes", "--min-size", "300000"]), 6);
    assert_eq!(calls(&["--min-usable-size", HOLE, "--max-usable-size", HOLE]), 100);
}

#[test]
fn other_allocators_blocks_have_no_header() {
    if !has_compiler("musl-gcc") {
        return skip("other_allocators_blocks_have_no_header", "no musl-gcc");
    }
    let scene = Scene::new("no-headers");
    let demo = common::build::compile("musl-gcc", "figures.c", &["-static"]);
    let Ok(demo) = demo else {
        return skip("other_allocators_blocks_have_no_header", "musl-gcc can't build it");
    };
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "r.prof", "--"]).arg(demo);
    scene.run(c).ok("prof run");
    let out = scene.prof(&["report", "r.prof", "--arena", "main"]);
    assert!(out.stderr.contains("glibc's headers"), "{out:?}");
}
