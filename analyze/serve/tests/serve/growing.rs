//! Answers on recordings that grow.

use crate::client::{Served, last, sum};
use crate::common::{Maker, alloc, free};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_growing_recording_is_answered_in_place() {
    let mut m = Maker::new();
    m.thread(1, 101, "main");
    m.pcs(&[[1, 0x1100, 0], [2, 0x1200, 0]]).nodes(&[[1, 0, 1], [2, 1, 2]]);
    m.events(1, &[alloc(1100, 0x100, 10, 1), alloc(1200, 0x200, 20, 2)]).pass(1500).pass(1600);
    let file = m.file();
    let s = Served::growing(file.0.clone());
    let of = |path: &str| s.own(path);
    let sum_of = |line: &Value, name: &str| sum(&line["series"][name]["sum"]);
    assert_eq!(of("flame")["total"], 30);
    assert_eq!(of("timeline?width=10")["duration_ns"], of("head")["recording"]["duration_ns"]);
    let first = of("head");
    // The figures without a filter are there at once, and those of filters after two seconds at most.
    let before = m.bytes.len();
    m.nodes(&[[3, 0, 2]]).events(1, &[alloc(1700, 0x300, 500, 3), free(1800, 0x100)]);
    m.pass(1900).pass(2000);
    append(&file.0, &m.bytes[before..]);
    let grown = Instant::now();
    while of("flame")["total"] == 30 {
        assert!(grown.elapsed() < Duration::from_secs(60), "it is not read");
        std::thread::sleep(Duration::from_millis(50));
    }
    let flame = of("flame");
    assert_eq!(flame["total"], 520);
    assert_eq!(flame["nodes"]["parent"].as_array().map(Vec::len), Some(4), "{flame}");
    assert_eq!(of("flame?dir=up&metric=allocated")["total"], 530);
    let tree = of("tree");
    assert_eq!((&tree["node"]["live_bytes"], &tree["totals"]["frees"]), (&520.into(), &1.into()));
    assert_eq!(tree["children"].as_array().map(Vec::len), Some(2), "{tree}");
    let head = of("head");
    assert_eq!(
        (&head["totals"]["live_bytes"], &head["totals"]["live_count"]),
        (&520.into(), &2.into())
    );
    let line = of("timeline?width=10");
    assert_eq!((sum_of(&line, "allocations"), sum_of(&line, "frees")), (3, 1));
    assert_eq!(last(&line["series"]["live_bytes"]["last"]), 520);
    assert!(line["duration_ns"].as_u64() > first["recording"]["duration_ns"].as_u64());
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(path).expect("the recording");
    file.write_all(bytes).expect("written");
}

#[test]
fn filters_of_a_growing_recording_read_only_what_was_added() {
    let mut m = Maker::new();
    m.thread(1, 101, "main");
    m.pcs(&[[1, 0x1100, 0], [2, 0x1200, 0]]).nodes(&[[1, 0, 1], [2, 1, 2]]);
    m.events(1, &[alloc(1100, 0x100, 10, 1), alloc(1200, 0x200, 20, 2)]).pass(1500).pass(1600);
    let file = m.file();
    let anew = Arc::new(AtomicU32::new(0));
    let counted = anew.clone();
    let s = Served::growing_with(file.0.clone(), move |options| {
        let open = options.open;
        let open = Box::new(move |path: &Path| {
            counted.fetch_add(1, Ordering::Relaxed);
            open(path)
        });
        prof_serve::Options { open, ..options }
    });
    let large = || s.own("groups?min-size=15")["totals"].clone();
    let names = ["live_bytes", "live_count", "allocations", "temporary"];
    let figures = |t: &Value| names.map(|n| t[n].as_u64().expect("a figure"));
    assert_eq!(figures(&large()), [20, 1, 1, 0]);
    for step in 1..=3 {
        let before = m.bytes.len();
        let at = 1600 + step * 400;
        // Of each step one large block stays.
        let [small, stays, goes] = [1, 2, 3].map(|n| 0x1000 * step + 16 * n);
        m.events(1, &[alloc(at + 10, small, 8, 1), alloc(at + 20, stays, 100, 2)]);
        m.events(1, &[alloc(at + 30, goes, 50, 2), free(at + 40, goes)]);
        m.pass(at + 100).pass(at + 200);
        append(&file.0, &m.bytes[before..]);
        let wanted = [20 + 100 * step, 1 + step, 1 + 2 * step, step];
        let grown = Instant::now();
        while figures(&large()) != wanted {
            assert!(grown.elapsed() < Duration::from_secs(60), "{} is not {wanted:?}", large());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert_eq!(anew.load(Ordering::Relaxed), 0, "it was read anew");
}
