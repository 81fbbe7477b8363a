//! The text of the report.

mod common;

use common::{Maker, alloc, free, realloc};
use prof_analyze::Analysis;
use prof_analyze::report::{Report, ReportOptions, SortKey, Style};
use prof_trace::records::{Counters, Module};

/// Analyses a server with a cache, and a stack that grew by realloc.
fn analysis() -> Analysis {
    let mut m = Maker::new();
    m.hooks(&["malloc", "free", "realloc"], &[("calloc", "the function is too short")]);
    m.module(&Module {
        number: 1,
        start: 0x40_0000,
        end: 0x50_0000,
        bias: 0x40_0000,
        path: "/nonexistent/opt/demo/server".into(),
        ..Module::default()
    });
    m.symbols(
        1,
        &[
            (0x1000, 0x100, "main"),
            (0x1100, 0x100, "_ZN5cache6insertEPKci"),
            (0x1200, 0x100, "grow"),
        ],
    );
    m.pcs(&[[1, 0x40_1020, 1], [2, 0x40_1110, 1], [3, 0x40_1240, 1], [4, 0x9_9999, 0]]);
    m.nodes(&[[1, 0, 1], [2, 1, 2], [3, 1, 3], [4, 1, 4]]);
    m.toggle(1000, 1).pass(1001);
    m.events(
        1,
        &[
            alloc(2_001_000, 0x10, 20_000, 2),
            alloc(3_001_000, 0x1000_0010, 10_000, 2),
            alloc(4_001_000, 0x2000_0010, 3_000, 4),
            free(4_501_000, 0x1000_0010),
            free(4_601_000, 0x5550),
        ],
    );
    m.toggle(5_001_000, 0).toggle(6_001_000, 1);
    m.events(
        1,
        &[
            realloc(6_101_000, 6_201_000, 0x2000_0010, 0x3000_0010, 500, 3),
            alloc(7_001_000, 0x40, 1, 0),
        ],
    );
    m.pages(8_001_000, 4000, 90_000);
    let calls = vec![4, 2, 1];
    m.counters(&Counters { events: 7, lost: 2, truncated: 1, calls, ..Counters::default() });
    m.end(8_201_000);
    m.analysis()
}

fn text(options: &ReportOptions, style: Style) -> String {
    let a = analysis();
    let path = a.path().to_string_lossy().into_owned();
    Report::new(&a, options).text(style).replace(&path, "demo.prof")
}

#[test]
fn the_report_in_full() {
    let expected = "\
program    server, pid 4000001: /opt/demo/server
recording  demo.prof: 2 parts, 8.2 ms (7.2 ms of it on), complete: detached
calls      4 allocations, 2 frees, 1 reallocation, 0 temporary, 2 events lost
live       20.0 KiB in 3 blocks
peak       32.2 KiB at 4.0 ms
allocated  32.7 KiB ever
coverage   3 functions hooked (3 in libc.so.6), 1 not hooked
           not hooked: calloc in libc.so.6: the function is too short
unknown    1 free of blocks from before the attach or from a pause, or whose allocations were lost
stacks     1 stack cut short

=== backtrace #1 === [count/peak: 1/2] [size/peak: 19.5 KiB/29.3 KiB] [age: 6.2 ms]
cache::insert(char const*, int) (server)
  0 0x0000000000401110 cache::insert(char const*, int)+0x10 (server+0x1110)
  1 0x0000000000401020 main+0x20 (server+0x1020)

=== backtrace #2 === [count/peak: 1/1] [size/peak: 500 B/500 B] [age: 2.0 ms]
grow (server)
  0 0x0000000000401240 grow+0x40 (server+0x1240)
  1 0x0000000000401020 main+0x20 (server+0x1020)

rest       2 other stacks: 1 B live in 1 block (--top 0 shows all)
traced     20.0 KiB live in 3 blocks
kernel     VSS 351.6 MiB, RSS 15.6 MiB, at 8.0 ms
";
    let options = ReportOptions { top: 2, ..ReportOptions::default() };
    assert_eq!(text(&options, Style::default()), expected);
}

#[test]
fn frames_without_names_show_their_addresses() {
    let t = text(&ReportOptions { top: 0, empty: true, ..Default::default() }, Style::default());
    assert!(t.contains("=== backtrace #3 === [count/peak: 1/1] [size/peak: 1 B/1 B]"), "{t}");
    assert!(t.contains("\n  (no stack)\n"), "{t}");
    assert!(t.contains("[count/peak: 0/1] [size/peak: 0 B/2.9 KiB] [age: -]"), "{t}");
    assert!(t.contains("\n  0 0x0000000000099999 ??\n"), "{t}");
    assert!(!t.contains("rest "), "{t}");
}

#[test]
fn sort_keys_show_what_they_sort_by() {
    let first = |sort| {
        let t = text(&ReportOptions { top: 1, sort, ..ReportOptions::default() }, Style::default());
        let line = t.lines().find(|l| l.starts_with("===")).unwrap_or("nothing").to_owned();
        (line, t)
    };
    assert!(first(SortKey::Allocated).0.ends_with("[allocated: 29.3 KiB]"));
    assert!(first(SortKey::Allocations).0.ends_with("[allocations: 2]"));
    let (line, t) = first(SortKey::Temporary);
    assert_eq!(line, "nothing");
    assert!(t.contains("\nno temporary allocations were recorded\n"), "{t}");
}

#[test]
fn json_has_the_numbers_of_the_text() {
    let a = analysis();
    let json = Report::new(&a, &ReportOptions { top: 1, ..Default::default() }).json();
    let v: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let number = |p: &str| v.pointer(p).and_then(serde_json::Value::as_u64);
    for (pointer, value) in [
        ("/version", 1),
        ("/target/pid", 4_000_001),
        ("/recording/duration_ns", 8_200_000),
        ("/recording/parts/0/start_ns", 0),
        ("/recording/parts/0/end_ns", 5_000_000),
        ("/recording/parts/1/start_ns", 6_000_000),
        ("/recording/events", 7),
        ("/recording/lost_events", 2),
        ("/recording/truncated_stacks", 1),
        ("/recording/unknown_frees", 1),
        ("/recording/hooks/0/calls", 4),
        ("/totals/allocations", 4),
        ("/totals/frees", 2),
        ("/totals/reallocations", 1),
        ("/totals/live_count", 3),
        ("/totals/live_bytes", 20_501),
        ("/totals/peak_bytes", 33_000),
        ("/totals/peak_at_ns", 4_000_000),
        ("/groups/0/live_bytes", 20_000),
        ("/groups/0/oldest_live_age_ns", 6_200_000),
        ("/kernel/rss_bytes", 4000 * 4096),
        ("/rest/groups", 3),
        ("/rest/live_bytes", 501),
    ] {
        assert_eq!(number(pointer), Some(value), "{pointer} in {json}");
    }
    assert_eq!(v["recording"]["complete"], true);
    assert_eq!(v["recording"]["not_hooked"][0]["reason"], "the function is too short");
    assert_eq!(v["groups"][0]["frames"][0]["function"], "cache::insert(char const*, int)");
    assert_eq!(v["groups"][0]["frames"][0]["offset"], "0x1110");
    assert_eq!(v["groups"][0]["frames"][0]["line"], serde_json::Value::Null);
}

#[test]
fn terminals_get_colour_and_no_line_is_longer_than_they_are() {
    let options = ReportOptions::default();
    let plain = text(&options, Style { color: false, width: Some(60), ..Style::default() });
    for l in plain.lines().filter(|l| l.contains(" 0x0000")) {
        assert!(l.chars().count() <= 60, "{l}");
    }
    assert!(plain.contains("cach...t)+0x10 (server+0x1110)") || plain.contains("..."), "{plain}");
    let color = text(&options, Style { color: true, width: None, ..Style::default() });
    assert!(color.contains("\x1b[36mcache::insert(char const*, int)\x1b[0m+0x10"), "{color}");
    assert!(!text(&options, Style::default()).contains('\x1b'));
}

#[test]
fn names_from_the_target_do_not_reach_the_terminal_raw() {
    let mut t = common::target();
    t.comm = "evil\x1b]0;x\x07".into();
    let mut m = Maker::of(&t);
    m.pass(1100).end(1200);
    let text = Report::new(&m.analysis(), &ReportOptions::default()).text(Style::default());
    assert!(!text.contains('\x1b') && text.contains("evil\\u{1b}"), "{text}");
    assert!(text.contains("nothing that was allocated while recording is live"), "{text}");
}

#[test]
fn cut_off_and_growing_recordings_say_so() {
    let mut m = Maker::new();
    m.pass(1100).events(1, &[alloc(1050, 0x10, 7, 1)]);
    let note = |m: &Maker| {
        let r = Report::new(&m.analysis(), &ReportOptions::default());
        assert!(!r.head.recording.complete);
        r.text(Style::default())
    };
    assert!(note(&m).contains("note       the recording has no end: prof is finishing it"));
    m.bytes.truncate(m.bytes.len() - 1);
    assert!(note(&m).contains("note       recording cut off: reported up to its last whole chunk"));
    let mut own = common::target();
    own.pid = std::process::id();
    own.exe = std::fs::read_link("/proc/self/exe").expect("exe").to_string_lossy().into();
    let mut m = Maker::of(&own);
    m.pass(1100);
    assert!(note(&m).contains("note       still recording"));
}

/// Chunks of three passes, the second's events damaged at one byte, in the header or in the payload.
#[test]
fn what_follows_damage_is_read() {
    let mut m = Maker::new();
    m.pass(1100).events(1, &[alloc(1050, 0x10, 7, 0)]);
    m.pass(1200);
    let from = m.bytes.len();
    // What looks like a chunk within a payload is none.
    let mut nested = Vec::new();
    prof_trace::chunk::put(&mut nested, 2, b"no pass");
    m.put(999, &nested);
    let to = m.bytes.len();
    m.events(1, &[alloc(1250, 0x20, 100, 0)]);
    m.pass(1300).events(1, &[alloc(1260, 0x30, 1000, 0)]).pass(1400).end(1500);
    assert!(m.analysis().complete());
    for at in from..to {
        let mut damaged = Maker::new();
        damaged.bytes = m.bytes.clone();
        damaged.bytes[at] ^= 0x55;
        let a = damaged.analysis();
        let figures = a.totals().figures;
        assert_eq!((figures.live_count, figures.live_bytes), (3, 1107), "byte {}", at - from);
        assert!(!a.complete());
        // A header that is damaged may leave the chunk within it.
        let skipped: u64 = match at - from {
            4..8 => 16,
            _ => (to - from) as u64,
        };
        let text = Report::new(&a, &ReportOptions::default()).text(Style::default());
        let note = format!("note       {skipped} bytes are damaged and were passed over");
        assert!(text.contains(&note), "byte {}: {text}", at - from);
    }
    // Nothing follows.
    let mut last = Maker::new();
    last.bytes = m.bytes.clone();
    let end = last.bytes.len() - 1;
    last.bytes[end] ^= 1;
    let text = Report::new(&last.analysis(), &ReportOptions::default()).text(Style::default());
    assert!(text.contains("note       recording damaged at byte"), "{text}");
}
