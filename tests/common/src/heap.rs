//! What the tests of heaps share: answers of prof as JSON, and blocks beside those that a program lists.

use super::{Scene, Target};
use prof_census::{Census, Options, Snapshot, take};
use prof_os::Pid;
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;

/// Runs prof, which must succeed, and returns what it prints.
#[track_caller]
pub fn json(scene: &Scene, args: &[&str]) -> Value {
    let out = scene.prof(args).ok("prof");
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
}

/// Returns a number of such an answer.
#[track_caller]
pub fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("{v} is no number"))
}

/// Returns what `prof heap` says of a process that is stopped for it.
#[track_caller]
pub fn heap(scene: &Scene, target: &Target) -> Value {
    let pid = target.pid.to_string();
    json(scene, &["heap", &pid, "--snapshot", "stop", "--format", "json"])
}

/// Takes the census of a process that is stopped for it. Nothing may be lost.
#[track_caller]
pub fn census(target: &Target) -> Census {
    let time = Duration::from_secs(60);
    let options = Options { snapshot: Snapshot::Always, patience: time, timeout: time };
    let census = take(Pid::from_raw(target.pid), &options).expect("a census");
    assert!(census.lost.is_nothing(), "{:?}", census.lost);
    census
}

/// Checks that a census has each block that tests/programs/variety.c lists, by address and size, and at most `most` others.
#[track_caller]
pub fn assert_listed(target: &mut Target, most: usize, which: &str) {
    let listed = target.listed();
    assert!(listed.len() > 15_000, "{which}: {} blocks", listed.len());
    let found: HashMap<u64, u64> = census(target).blocks().map(|b| (b.address, b.size)).collect();
    let missing = listed.iter().filter(|(at, size)| found.get(at) != Some(size)).count();
    assert_eq!(missing, 0, "{which}: of {} blocks", listed.len());
    let more = found.len() - listed.len();
    assert!(more <= most, "{which}: {more} blocks too many");
}
