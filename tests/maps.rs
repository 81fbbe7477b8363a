//! `prof maps` on programs whose mappings no hook sees: they are found by looks.

mod common;

use common::build::program_with;
use common::{Scene, Target};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Longer than the time between two looks where nothing changes.
const LOOKED: Duration = Duration::from_millis(2500);

fn looked() -> Target {
    Target::start(&program_with("looked.c", &["-O1", "-pthread"]), &[])
}

/// Has the program do something; returns the addresses of its private and its shared mapping.
fn ask(target: &mut Target, command: &str) -> (u64, u64) {
    let line = target.ask(command);
    let words: Vec<u64> = line.split(' ').skip(1).map(|w| w.parse().expect("a number")).collect();
    (words[0], words[1])
}

fn maps(scene: &Scene, recording: &Path, options: &[&str]) -> Value {
    let file = recording.to_str().expect("a path");
    let out = scene.prof(&[&["maps", file, "-n", "0", "--format", "json"], options].concat());
    serde_json::from_str(&out.ok("prof maps").stdout).expect("JSON")
}

fn find(all: &Value, address: u64) -> &Value {
    let maps = all["maps"].as_array().expect("mappings");
    maps.iter().find(|m| m["address"] == address).unwrap_or_else(|| panic!("{address:#x}: {all:#}"))
}

#[test]
fn what_raw_system_calls_map_is_seen() {
    let scene = Scene::new("maps");
    let mut target = looked();
    let recording = scene.attach(&target);
    let (private, shared) = ask(&mut target, "map");
    std::thread::sleep(LOOKED);
    ask(&mut target, "cut");
    std::thread::sleep(LOOKED);
    ask(&mut target, "replace");
    std::thread::sleep(LOOKED);
    scene.detach(&target);
    target.quit();
    scene.finished(&recording);
    let all = maps(&scene, &recording, &[]);
    assert_eq!(all["maps_recorded"], true);
    let m = find(&all, private);
    let page = 4096;
    assert_eq!((&m["caught"], &m["before"]), (&false.into(), &false.into()), "{m:#}");
    assert_eq!(m["size"].as_u64(), Some(3 * MIB - page), "cut by 1 MiB and a page: {m:#}");
    assert_eq!(m["rss"].as_u64(), Some(MIB), "{m:#}");
    assert_eq!(m["usage"]["private_dirty"].as_u64(), Some(MIB), "{m:#}");
    let s = find(&all, shared);
    assert_eq!((s["size"].as_u64(), s["rss"].as_u64()), (Some(MIB), Some(MIB / 2)), "{s:#}");
    assert_eq!((&s["is_shared"], &s["kind"]), (&true.into(), &"shared".into()), "{s:#}");
    let file = find(&all, private + MIB);
    assert_eq!((file["size"].as_u64(), &file["is_writable"]), (Some(page), &false.into()));
    // Its regions and its history.
    let id = m["id"].to_string();
    let one = maps(&scene, &recording, &["--map", &id]);
    let m = find(&one, private);
    let regions = m["regions"].as_array().expect("regions");
    let ends = |r: &Value| r["deallocation"].is_null();
    let live: Vec<u64> =
        regions.iter().filter(|r| ends(r)).filter_map(|r| r["size"].as_u64()).collect();
    assert_eq!(live.iter().sum::<u64>(), 3 * MIB - page, "{m:#}");
    assert_eq!(regions[0]["size"].as_u64(), Some(4 * MIB), "{m:#}");
    let cut = &regions[0]["deallocation"]["sources"][0];
    assert_eq!(
        (cut["address"].as_u64(), cut["length"].as_u64()),
        (Some(private + 2 * MIB), Some(MIB))
    );
    let history = m["usage_history"].as_array().expect("history");
    assert!(history.iter().any(|u| u["rss"].as_u64() == Some(MIB)), "{m:#}");
    // Filters and groups.
    let kinds = maps(&scene, &recording, &["--group-by", "kind", "--kind", "shared"]);
    assert_eq!(kinds["groups"][0]["count"], 1, "{kinds:#}");
    let over_time = maps(&scene, &recording, &["--over-time"]);
    let last = over_time["over_time"].as_array().and_then(|t| t.last()).expect("sums");
    assert!(last["rss"].as_u64() > Some(MIB) && last["address_space"].as_u64() > Some(5 * MIB));
    let text = scene.prof(&["maps", recording.to_str().expect("a path")]).ok("maps").stdout;
    assert!(text.contains("/dev/zero (deleted)") && !text.contains("prof-ring"), "{text}");
    let text = scene.prof(&["report", recording.to_str().expect("a path"), "--what", "all"]);
    assert!(text.ok("report").stdout.contains("/dev/zero (deleted)"));
}

#[test]
fn many_mappings_and_threads_that_map_all_the_time_do_no_harm() {
    let scene = Scene::new("many-maps");
    let mut target = looked();
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
    let n = most.trim().parse::<u64>().expect("a number").saturating_sub(2000).min(100_000);
    ask(&mut target, &format!("many {n}"));
    let recording = scene.attach(&target);
    ask(&mut target, "churn 300");
    scene.detach(&target);
    assert!(target.alive());
    target.quit();
    scene.finished(&recording);
    let all = maps(&scene, &recording, &["--kind", "anonymous"]);
    let selected = all["selected"]["count"].as_u64().expect("a count");
    assert!((n..n + 500).contains(&selected), "{selected} of {n}");
}
