//! `prof holds`: who holds blocks whose holders are known, and how much would go with whom.

mod common;

use common::build::program_with;
use common::{Scene, Target};
use serde_json::Value;

/// Returns the roots or stacks of a report whose name, or place, contains a text.
fn find<'a>(list: &'a Value, key: &str, text: &str) -> Vec<&'a Value> {
    let all = list.as_array().expect("a list").iter();
    all.filter(|r| r[key].as_str().is_some_and(|t| t.contains(text))).collect()
}

fn sum(of: &Value) -> (u64, u64) {
    (of["bytes"].as_u64().expect("bytes"), of["blocks"].as_u64().expect("blocks"))
}

/// Returns what the variable with a name retains, and what it holds.
fn variable<'a>(report: &'a Value, name: &str) -> ((u64, u64), &'a Value) {
    let all = report["top_roots"].as_array().expect("roots");
    let root = all.iter().find(|r| r["variable"] == name);
    let root = root.unwrap_or_else(|| panic!("no {name} in {report:#}"));
    (sum(&root["retained"]), &root["holds"])
}

#[test]
fn each_holder_is_named_with_all_that_only_it_holds() {
    let scene = Scene::new("holds");
    let mut target = Target::start(&program_with("holds.cpp", &["-O1", "-pthread"]), &[]);
    let pid = target.pid.to_string();
    let refused = scene.prof(&["holds", &pid]);
    assert!(refused.code == 3 && refused.stderr.contains("prof attach"), "{refused:?}");
    scene.attach(&target);
    target.ask("begin");
    let word = size_of::<usize>() as u64;
    for how in ["stop", "none"] {
        let args =
            ["holds", &pid, "--top", "0", "--depth", "0", "--format", "json", "--snapshot", how];
        let out = scene.prof(&args).ok("prof holds").stdout;
        let report: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(report["scan"]["stop_ns"].is_u64(), how == "stop", "{out}");
        let node = 4 * word;
        // Sessions hold each other in a ring, but the array holds each of them.
        let (retained, holds) = variable(&report, "sessions");
        assert_eq!(retained, (40 * (3 * word + 1000), 80), "{holds:#}");
        assert_eq!(
            (&holds[0]["class"], &holds[0]["class_blocks"]),
            (&"Session".into(), &40.into())
        );
        assert_eq!(sum(&holds[0]["own"]), (40 * 3 * word, 40));
        assert_eq!(sum(&holds[0]["holds"][0]["own"]), (40_000, 40));
        // A list is one node, however long.
        let (retained, holds) = variable(&report, "list_head");
        assert_eq!((retained, holds.as_array().map(Vec::len)), ((1000 * node, 1000), Some(1)));
        assert_eq!(holds[0]["holds"], serde_json::json!([]));
        assert_eq!(variable(&report, "cycle").0, (3 * node, 3));
        let (retained, holds) = variable(&report, "cart");
        assert_eq!(retained.1, 2);
        assert_eq!(holds[0]["class"], "shop::Cart");
        // Two kinds of blocks that hold each other in turn are two nodes, not a hundred.
        let (retained, holds) = variable(&report, "outer");
        assert_eq!(retained, (100 * node, 100));
        assert_eq!((sum(&holds[0]["own"]).1, sum(&holds[0]["holds"][0]["own"]).1), (50, 50));
        // Nobody retains alone what two variables hold.
        assert!(find(&report["top_roots"], "name", "shared_").is_empty(), "{out}");
        let shared = find(&report["shared"]["holds"], "from", "make_shared");
        assert_eq!(shared.iter().map(|s| sum(&s["own"])).collect::<Vec<_>>(), [(700, 1)]);
        // Memory from before is known by its mapping, a stack by its thread.
        let from = |root: &Value, text| !find(&root["holds"], "from", text).is_empty();
        let heap = find(&report["top_roots"], "name", "from before the attach");
        assert!(heap.iter().any(|r| from(r, "make_for_before")), "{out}");
        let stacks = find(&report["top_roots"], "kind", "stack");
        let of_thread = stacks.iter().find(|r| from(r, "make_for_stack"));
        let thread = of_thread.unwrap_or_else(|| panic!("no stack in {out}"));
        assert!(thread["thread"].as_i64().is_some_and(|t| t != i64::from(target.pid)));
        // Lost blocks are nobody's.
        assert!(sum(&report["unreachable"]).1 >= 7, "{out}");
        let lists = report["top_stacks"].as_array().expect("stacks");
        let named = |s: &&Value| s["asked_by"]["function"].as_str() == Some("open_session()");
        let session = lists.iter().find(named).unwrap_or_else(|| panic!("no sessions in {out}"));
        assert_eq!(sum(&session["retained"]), (40 * (3 * word + 1000), 80));
        assert_eq!(session["at_least"], false);
    }
    chains(&scene, &pid);
    target.ask("end");
    scene.detach(&target);
    target.quit();
}

/// A chain leads from the variable through each block to the one that was asked for.
fn chains(scene: &Scene, pid: &str) {
    let json = ["--format", "json", "--top", "0", "--depth", "0"];
    let out = scene.prof(&[&["holds", pid][..], &json].concat()).ok("prof holds").stdout;
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let buffers = &variable(&report, "cart").1[0]["holds"][0]["stack"];
    let stack = buffers.as_u64().expect("a stack").to_string();
    let chain = |to: &str| -> Value {
        let out = scene.prof(&[&["holds", pid, "--path", to][..], &json].concat()).ok("--path");
        let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
        report["paths"][0].clone()
    };
    let path = chain(&stack);
    assert_eq!(path["root"]["variable"], "cart", "{path:#}");
    let blocks = path["blocks"].as_array().expect("blocks");
    assert_eq!(blocks.len(), 2, "{path:#}");
    assert_eq!(
        (&blocks[0]["class"], blocks[0]["offset"].as_u64()),
        (&Value::from("shop::Cart"), Some(size_of::<usize>() as u64))
    );
    // The same block by an address in it.
    let address = blocks[1]["address"].as_str().expect("an address");
    let inside = u64::from_str_radix(&address[2..], 16).expect("a number") + 500;
    assert_eq!(chain(&format!("{inside:#x}"))["blocks"], path["blocks"]);
    let text = scene.prof(&["holds", pid, "--path", &stack, "--by", "root"]).ok("prof holds");
    assert!(text.stdout.contains("cart in "), "{text:?}");
    assert!(text.stdout.contains(&format!("-> {address}: ")), "{text:?}");
    for (bad, reason) in [("0x1", "no block"), ("999999", "no live block"), ("x", "neither")] {
        let out = scene.prof(&["holds", pid, "--path", bad]);
        assert!(out.code == 2 && out.stderr.contains(reason), "{out:?}");
    }
}
