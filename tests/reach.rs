//! `prof reach`: blocks that are held in every way there is, and others that nothing holds, in a process that runs.

use common::build::program_with;
use common::{Scene, Target};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// Returns the blocks that are said to be unreachable, direct and indirect, by the function that allocated them.
fn lost(report: &Value) -> BTreeMap<String, (u64, u64)> {
    let mut all = BTreeMap::new();
    for s in report["top"].as_array().expect("stacks") {
        let frames = s["frames"].as_array().expect("frames");
        let names = frames.iter().filter_map(|f| f["function"].as_str());
        let mut kinds = names.filter(|n| n.starts_with("held_") || n.starts_with("lost_"));
        let kind = kinds.next().unwrap_or("another").to_owned();
        let sum: &mut (u64, u64) = all.entry(kind).or_default();
        sum.0 += s["direct"]["blocks"].as_u64().expect("direct");
        sum.1 += s["indirect"]["blocks"].as_u64().expect("indirect");
    }
    all
}

#[test]
fn each_kind_of_block_gets_its_verdict_while_the_process_runs() {
    let scene = Scene::new("reach");
    let mut target = Target::start(&program_with("reach.c", &["-O1", "-pthread"]), &[]);
    let pid = target.pid.to_string();
    let refused = scene.prof(&["reach", &pid]);
    assert!(refused.code == 3 && refused.stderr.contains("prof attach"), "{refused:?}");
    scene.attach(&target);
    target.ask("begin");
    for how in ["none", "stop", "fork"] {
        let args = ["reach", &pid, "--top", "0", "--format", "json", "--snapshot", how];
        let out = scene.prof(&args).ok("prof reach").stdout;
        let report: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(report["scan"]["settled"], true, "{out}");
        assert_eq!(report["scan"]["stop_ns"].is_u64(), how != "none", "{out}");
        let mut lost = lost(&report);
        // A freed block may have been given to somebody else, or be part of a larger one.
        let by_freed = lost.remove("lost_by_freed").unwrap_or_default();
        assert!(by_freed.0 <= 20 && by_freed.1 == 0, "{by_freed:?}");
        let of_thread = lost.remove("lost_thread_local").unwrap_or_default();
        if cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
            assert!(by_freed.0 >= 10, "{by_freed:?}");
            assert_eq!(of_thread, (20, 0));
        }
        let expected = [
            ("lost_cycle", (0, 3)),
            ("lost_inside", (1, 1)),
            ("lost_list", (1, 19)),
            ("lost_plain", (20, 0)),
            ("lost_self", (20, 0)),
            ("lost_tree", (1, 30)),
            ("lost_xored", (20, 0)),
        ];
        let expected: BTreeMap<String, (u64, u64)> =
            expected.into_iter().map(|(name, sum)| (name.to_owned(), sum)).collect();
        assert_eq!(lost, expected, "--snapshot {how}");
    }
    let text = scene.prof(&["reach", &pid, "--fail-if", "unreachable > 0", "--show-blocks"]);
    assert!(text.code == 1 && text.stderr.contains("more than 0 B"), "{text:?}");
    assert!(text.stdout.contains("=== unreachable #0 ==="), "{text:?}");
    let list = scene.path("list");
    std::fs::write(&list, "leak:lost_\n").expect("a list");
    let list = list.to_str().expect("a path");
    let args = ["reach", &pid, "--suppressions", list, "--fail-if", "unreachable > 0"];
    let none = scene.prof(&args).ok("prof reach");
    assert!(none.stdout.contains("suppressed: "), "{none:?}");
    // The same blocks get the verdict of `prof leaks`, however young they are.
    let (leaks, out) = proved(&scene, &["leaks", &pid, "--prove=stop", "--top", "0"]);
    let sum = |kind: &str| leaks.get(kind).copied().unwrap_or_default();
    let each = [("lost_plain", 20, 0), ("lost_list", 20, 19), ("lost_cycle", 3, 3)];
    for (kind, all, indirect) in each {
        assert_eq!(sum(kind), (all, indirect), "{kind}: {out}");
    }
    let held: Vec<_> = leaks.keys().filter(|k| !k.starts_with("lost_")).collect();
    assert!(held.is_empty(), "{held:?}");
    // The filters of the index choose among them.
    let (few, _) = proved(&scene, &["leaks", &pid, "--prove", "--function", "lost_list"]);
    assert_eq!(few.into_iter().collect::<Vec<_>>(), [("lost_list".to_owned(), (20, 19))]);
    let limit = ["leaks", &pid, "--prove", "--fail-if", "proved > 1KiB", "--pointer-mask", "-1"];
    assert_eq!(scene.prof(&limit).code, 2, "a mask that is none");
    let over = scene.prof(&limit[..5]);
    assert!(over.code == 1 && over.stderr.contains("proved: "), "{over:?}");
    assert!(over.stdout.contains("=== proved #1 === [unreachable: "), "{over:?}");
    assert!(over.stdout.contains("the scan for unreachable blocks:"), "{over:?}");
    let late = scene.prof(&["leaks", &pid, "--prove", "--timeout", "1ms", "--fail-if", "proved"]);
    assert!(late.code == 1 && late.stderr.contains("proved: not decided"), "{late:?}");
    for (wrong, says) in [
        (vec!["--fail-if", "proved"], "--prove"),
        (vec!["--max-cpu", "5"], "--prove"),
        (vec!["--prove", "--by-process"], "cannot be used"),
    ] {
        let refused = scene.prof(&[vec!["leaks", &pid], wrong].concat());
        assert!(refused.code == 2 && refused.stderr.contains(says), "{refused:?}");
    }
    target.ask("end");
    scene.detach(&target);
    target.quit();
    let gone = scene.prof(&["leaks", &pid, "--prove"]);
    assert!(gone.code != 0 && gone.stdout.is_empty(), "{gone:?}");
    let file = scene.prof(&["leaks", "--prove"]);
    assert!(file.code == 2 && file.stderr.contains("running process"), "{file:?}");
}

/// Returns the blocks that `prof leaks --prove` proves, by the function that allocated them: all, and the indirect ones.
fn proved(scene: &Scene, args: &[&str]) -> (BTreeMap<String, (u64, u64)>, String) {
    let out = scene.prof(&[args, &["--format", "json"]].concat()).ok("prof leaks").stdout;
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["scan_settled"], true, "{out}");
    assert_eq!(report["scan"]["settled"], true, "{out}");
    let mut all = BTreeMap::new();
    let (mut bytes, mut stacks) = (0, 0);
    for s in report["stacks"].as_array().expect("stacks").iter().filter(|s| s["class"] == "proved")
    {
        assert!(s["trend"].is_string(), "{s}");
        let frames = s["frames"].as_array().expect("frames");
        let names = frames.iter().filter_map(|f| f["function"].as_str());
        let mut kinds = names.filter(|n| n.starts_with("held_") || n.starts_with("lost_"));
        let sum: &mut (u64, u64) = all.entry(kinds.next().unwrap_or("other").into()).or_default();
        sum.0 += s["unreachable_count"].as_u64().expect("a number");
        sum.1 += s["indirect_count"].as_u64().expect("a number");
        bytes += s["unreachable_bytes"].as_u64().expect("a number");
        stacks += 1;
    }
    let classes = report["classes"].as_array().expect("classes");
    assert_eq!((&classes[0]["class"], &classes[0]["bytes"]), (&"proved".into(), &bytes.into()));
    assert_eq!(classes[0]["stacks"], stacks);
    (all, out)
}

#[test]
fn blocks_whose_only_pointer_is_hard_to_find_are_held() {
    let scene = Scene::new("reach_hidden");
    let mut target = Target::start(&program_with("hide.c", &["-O1", "-pthread", "-lrt"]), &[]);
    let pid = target.pid.to_string();
    scene.attach(&target);
    target.ask("begin");
    let look = |more: &[&str]| {
        let args = [&["reach", &pid, "--top", "0", "--format", "json"], more].concat();
        let out = scene.prof(&args);
        let report: Value =
            serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        (report, out)
    };
    let (report, out) = look(&["--snapshot", "stop"]);
    assert_eq!(report["scan"]["settled"], true, "{out:?}");
    let found = lost(&report);
    let held: Vec<_> = found.keys().filter(|k| !k.starts_with("lost_")).collect();
    assert!(held.is_empty(), "{held:?}");
    if cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        let all: Vec<_> = found.iter().map(|(k, v)| (k.as_str(), v.0 + v.1)).collect();
        let below = ("lost_below_stack", 1);
        assert_eq!(all, [below, ("lost_fiber", 1), ("lost_on_fiber", 1), ("lost_plain", 20)]);
    }
    // Time that is up proves nothing.
    let (report, out) = look(&["--timeout", "1ms", "--fail-if", "unreachable > 0"]);
    assert_eq!(
        (&report["scan"]["settled"], &report["scan"]["late"]),
        (&false.into(), &true.into())
    );
    assert!(out.code == 1 && out.stderr.contains("not decided"), "{out:?}");
    // Nor does a flood of events make it endless, or prove what is not so.
    target.ask("flood");
    let (report, out) = look(&["--timeout", "6s"]);
    let settled = report["scan"]["settled"] == true;
    assert!(settled || report["scan"]["late"] == true, "{out:?}");
    let mistaken = lost(&report).into_keys().filter(|k| !k.starts_with("lost_")).count();
    assert!(!settled || mistaken == 0, "{out:?}");
    target.ask("end");
    scene.detach(&target);
    target.quit();
}

/// glibc 2.42 makes guards that are no mappings where the kernel can; the program makes such ones of those of any version.
#[test]
fn stacks_with_guards_that_are_no_mappings_hold_nothing_below_their_pointers() {
    let scene = Scene::new("reach_guards");
    let mut target = Target::spawn(Command::new(program_with("guards.c", &["-O1", "-pthread"])));
    if target.line().contains("no guards") {
        return common::skip(
            "stacks_with_guards",
            "the kernel has no MADV_GUARD_INSTALL, or does not tell of it (Linux 6.15)",
        );
    }
    let pid = target.pid.to_string();
    scene.attach(&target);
    target.ask("begin");
    for how in ["none", "stop", "fork"] {
        let args = ["reach", &pid, "--top", "0", "--format", "json", "--snapshot", how];
        let out = scene.prof(&args).ok("prof reach").stdout;
        let report: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(report["scan"]["settled"], true, "{out}");
        assert_eq!(report["scan"]["unreadable_bytes"], 0, "{out}");
        let found = lost(&report);
        // One or two pointers may stand somewhere else, too.
        let all = |kind: &str| found.get(kind).map_or(0, |n| n.0);
        assert!(all("lost_below") >= 57 && all("lost_thread_local") >= 18, "{how}: {found:?}");
        assert_eq!(found.keys().filter(|k| k.starts_with("held_")).count(), 0, "{found:?}");
    }
    // The stacks of threads have their names.
    let holds = scene.prof(&["holds", &pid, "--top", "0"]).ok("prof holds").stdout;
    assert_eq!(holds.matches("stack and registers of thread").count(), 2, "{holds}");
    scene.detach(&target);
    let maps = scene.prof(&["maps", &pid]).ok("prof maps").stdout;
    let stacks = maps.lines().find(|l| l.contains("[stack:")).expect("stacks of threads");
    assert!(stacks.trim_end().ends_with(" more]"), "{maps}");
    target.quit();
}

#[test]
fn a_watch_says_between_which_looks_the_last_pointer_went() {
    let scene = Scene::new("reach_watch");
    let mut target = Target::start(&program_with("reach.c", &["-O1", "-pthread"]), &[]);
    let pid = target.pid.to_string();
    scene.attach(&target);
    // The first look is at a process that has lost nothing yet; the next ones see what it loses meanwhile.
    let args = ["reach", &pid, "--watch", "100ms", "--fail-if", "unreachable > 0"];
    let mut command = Command::new(Scene::binary());
    command.args(args).args(["--format", "json", "--top", "0"]);
    let mut watch = Target::spawn(command);
    let mut next = || -> Value { serde_json::from_str(&watch.line()).expect("JSON") };
    let first = next();
    assert_eq!((&first["look"], &first["unreachable"]["blocks"]), (&1.into(), &0.into()));
    target.ask("begin");
    let last = std::iter::repeat_with(&mut next)
        .find(|l| l["scan"]["settled"] == true && l["unreachable"]["blocks"] != 0);
    let last = last.expect("a look");
    assert!(last["look"].as_u64() > Some(1) && last["new_blocks"].as_u64() > Some(0), "{last}");
    for s in last["top"].as_array().expect("stacks") {
        let (after, before) = (s["went_after_ns"].as_u64(), s["went_before_ns"].as_u64());
        assert!(after.is_some() && after < before && before <= last["at_ns"].as_u64(), "{s}");
    }
    assert_eq!(watch.wait(), 1);
    target.ask("end");
    scene.detach(&target);
    target.quit();
}

/// Returns the classes of a stack's unreachable blocks, each with its bytes and blocks.
fn classes(stack: &Value) -> Vec<(&str, u64, u64)> {
    let class =
        |c: &'_ Value| (c["bytes"].as_u64().unwrap_or(0), c["blocks"].as_u64().unwrap_or(0));
    let all = stack["classes"].as_array().map_or(&[][..], Vec::as_slice).iter();
    all.map(|c| (c["class"].as_str().expect("a name"), class(c).0, class(c).1)).collect()
}

/// The class of an object is known by its table of virtual functions, also if nobody saw it being allocated.
#[test]
fn lost_objects_have_the_names_of_their_classes() {
    let scene = Scene::new("reach_classes");
    let program = program_with("holds.cpp", &["-O1", "-pthread"]);
    for is_seen in [false, true] {
        let mut target = Target::start(&program, &[]);
        if !is_seen {
            target.ask("begin");
        }
        scene.attach(&target);
        if is_seen {
            target.ask("begin");
        }
        target.ask("lose");
        let pid = target.pid.to_string();
        let reach = ["reach", &pid, "--top", "0", "--snapshot", "stop", "--show-blocks"];
        let census: &[&str] = if is_seen { &[] } else { &["--census"] };
        let args = [&reach[..], census, &["--format", "json"]].concat();
        let out = scene.prof(&args).ok("prof reach").stdout;
        let report: Value = serde_json::from_str(&out).expect("JSON");
        let stacks = report["top"].as_array().expect("stacks");
        // Of the ring's 40 sessions none can be reached, unless something has left a pointer to one.
        let word = size_of::<usize>() as u64;
        let (session, cart) = (3 * word, 3 * word + 64.max(8 * size_of::<libc::c_long>() as u64));
        let mut found: Vec<(&str, u64, u64)> = stacks.iter().flat_map(classes).collect();
        found.sort_unstable();
        assert_eq!(found.len(), 2, "{report:#}");
        assert_eq!((found[0].0, found[0].2), ("Session", 40), "{report:#}");
        assert_eq!((found[1].0, found[1].2), ("shop::Cart", 1), "{report:#}");
        assert!(found[0].1 >= 40 * session && found[1].1 >= cart, "{report:#}");
        let listed = stacks.iter().flat_map(|s| s["blocks_listed"].as_array().expect("blocks"));
        let of_class = |name: &str| listed.clone().filter(|b| b["class"] == name).count();
        assert_eq!((of_class("Session"), of_class("shop::Cart")), (40, 1), "{report:#}");
        let text = scene.prof(&[&reach[..], census].concat()).ok("prof reach").stdout;
        for part in [" in 40 blocks of Session", " in 1 block of shop::Cart", " Session, "] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert_eq!(text.contains("(before the attach)"), !is_seen, "{text}");
        if is_seen {
            let leaks = ["leaks", &pid, "--prove=stop", "--top", "0"];
            let json = scene.prof(&[&leaks[..], &["--format", "json"]].concat()).ok("leaks").stdout;
            let report: Value = serde_json::from_str(&json).expect("JSON");
            let stacks = report["stacks"].as_array().expect("stacks");
            let mut proved: Vec<(&str, u64, u64)> = stacks.iter().flat_map(classes).collect();
            proved.sort_unstable();
            assert_eq!(proved, found, "{report:#}");
            let text = scene.prof(&leaks).ok("prof leaks").stdout;
            for part in [" in 40 blocks of Session", " in 1 block of shop::Cart"] {
                assert!(text.contains(part), "no {part:?} in {text}");
            }
        }
        target.ask("end");
        scene.detach(&target);
        target.quit();
    }
}
