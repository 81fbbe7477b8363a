//! Blocks from before the recording, as a census has found them: what counts them, what does not, and what keeps them.

mod common;

use common::remade::open;
use common::{Maker, START, Temp, alloc, free, realloc};
use prof_analyze::export::{Cost, Format, Source};
use prof_analyze::heap::BlockStats;
use prof_analyze::index::{Column, flags};
use prof_analyze::leaks::{Class, LeakOptions, Leaks};
use prof_analyze::load::{BEFORE, LABEL};
use prof_analyze::query::{Filter, Query, Span};
use prof_analyze::report::{Report, ReportOptions, Style};
use prof_analyze::rewrite::{Anonymize, JoinOptions, PackOptions, join, pack, strip};
use prof_analyze::symbols::Symbolizer;
use prof_analyze::{Analysis, Index};
use prof_trace::derived::Zipped;
use prof_trace::records::{Census, CensusAt, CensusBlock, CensusClasses, Target, kind};
use prof_trace::size::Header;
use prof_trace::ticks::Ticks;

/// Addresses and sizes of the blocks that were there: 600 of 56 bytes, and one of a mapping.
fn found() -> Vec<(u64, u64)> {
    (0..600).map(|i| (0x10010 + i * 64, 56)).chain([(0x7f00_0000_0010, 1 << 20)]).collect()
}

fn census(blocks: &[(u64, u64)]) -> Census {
    let mut c = Census { ticks: Ticks(START + 50), stop_ns: 7_000_000, ..Census::default() };
    let mut at = CensusAt::default();
    for (address, size) in blocks {
        let mapped = *address > 1 << 40;
        let header = Header { arena: u8::from(!mapped), mapped, extra: 0 };
        c.put(&mut at, &CensusBlock { address: *address, size: *size, header, class: 0 });
    }
    c
}

/// A recording in which of the blocks from before one is freed, one is reallocated twice, one is freed at once and its
/// address is used again, and others stay.
fn recording() -> Maker {
    let (all, mut m) = (found(), Maker::new());
    m.nodes(&[[1, 0, 1]]).pcs(&[[1, 0x500, 0]]).thread(1, 1, "main").toggle(START + 50, 1);
    // Two parts, one of which is compressed.
    m.put(kind::CENSUS, &census(&all[..100]).encode());
    let zipped = Zipped::encode(kind::CENSUS, &census(&all[100..]).encode()).expect("shorter");
    m.put(kind::ZIPPED, &zipped).pass(START + 60);
    m.events(
        1,
        &[
            free(START + 100, all[0].0),
            realloc(START + 110, START + 120, all[1].0, 0x900000, 300, 1),
            realloc(START + 130, START + 140, 0x900000, 0x901000, 400, 1),
            free(START + 150, all[2].0),
            alloc(START + 160, all[2].0, 40, 1),
            alloc(START + 170, 0x902000, 1000, 1),
            free(START + 180, 0x902000),
        ],
    );
    m.pass(START + 10_000).end(START + 20_000);
    m
}

/// Checks that all figures count the blocks of the census as live, and not as allocations.
fn check(analysis: &Analysis) {
    let all = found();
    let t = analysis.totals();
    let f = t.figures;
    let bytes: u64 = all.iter().map(|b| b.1).sum();
    assert_eq!((f.found, f.found_bytes), (601, bytes));
    assert_eq!((f.allocations, f.reallocations, f.allocated_bytes), (2, 2, 40 + 1000 + 700));
    assert_eq!((t.frees, t.unknown_frees, t.implied_frees), (3, 0, 0));
    assert_eq!(f.live_count, 601 - 3 + 2);
    assert_eq!(f.live_bytes, bytes - 3 * 56 + 400 + 40);
    assert_eq!(f.peak_bytes, bytes - 3 * 56 + 400 + 40 + 1000);
    let group = analysis.groups().iter().find(|g| g.node == BEFORE).expect("their group");
    let expected = BlockStats {
        live_count: 598,
        live_bytes: bytes - 3 * 56,
        peak_count: 601,
        peak_bytes: bytes,
        found: 601,
        found_bytes: bytes,
        ..BlockStats::default()
    };
    assert_eq!(group.figures, expected);
    assert_eq!(group.oldest, Some(Ticks(START + 50)));
    assert_eq!(analysis.meta().census.map(|c| (c.blocks, c.stop_ns)), Some((601, 7_000_000)));
    assert_eq!(analysis.meta().thread_count(), 1);
}

#[test]
fn they_count_as_blocks_and_not_as_allocations() {
    let m = recording();
    check(&m.analysis());
    let file = m.file();
    let index = open(&file);
    check(index.analysis());
    // The frees of blocks that were there are what a growing stack is set off against.
    let before: Vec<u64> = index.before().frees().iter().map(|f| f.1).collect();
    assert_eq!(before.len(), 3);
    let mut kinds = (0, 0);
    let scanned = index.scan(Vec::new, |columns: &mut Vec<u64>, block| {
        block.read(Column::Flags, columns)?;
        Some(())
    });
    for flag in scanned.expect("rows").into_iter().flatten() {
        match flag & flags::FOUND {
            0 => kinds.1 += 1,
            _ => kinds.0 += 1,
        }
    }
    assert_eq!(kinds, (601, 4));
    // By a pass over the rows as by the replay.
    let large = filtered(&index, "min-size", "50");
    assert_eq!((large.found, large.allocations, large.reallocations), (601, 1, 2));
    assert_eq!(large.live_count, 598 + 1);
    let old = filtered(&index, "thread", LABEL);
    assert_eq!((old.found, old.begun()), (601, 601));
    let spans = Span::whole(&index, 8);
    let mut some = Filter::default();
    some.set("min-size", "1").expect("a filter");
    for (filter, exact) in [(Filter::default(), false), (some.clone(), false), (some, true)] {
        let query = Query::new(&index, &filter).expect("a query");
        let t = query.timeline(&spans, exact).expect("a timeline");
        assert_eq!(t.live_blocks.last.last(), Some(&600), "{exact}");
        assert_eq!(t.allocations.iter().sum::<u64>(), 2, "{exact}");
        assert_eq!(t.ends.iter().sum::<u64>(), 5, "{exact}");
    }
}

fn filtered(index: &Index, name: &'static str, value: &str) -> BlockStats {
    let mut filter = Filter::default();
    filter.set(name, value).expect("a filter");
    let query = Query::new(index, &filter).expect("a query");
    query.analysis(None).expect("figures").totals().figures
}

#[test]
fn they_have_a_name_wherever_stacks_are_shown() {
    let file = recording().file();
    let index = open(&file);
    let text = Report::new(index.analysis(), &ReportOptions::default()).text(Style::default());
    assert!(text.contains(LABEL) && text.contains("601 blocks from before the attach"), "{text}");
    assert!(text.contains("[age: more than "), "{text}");
    let query = Query::new(&index, &Filter::default()).expect("no filter");
    for format in [Format::Folded, Format::Html, Format::Speedscope, Format::Json] {
        let (cost, filter, mut out) = (Cost::Live, Vec::new(), Vec::new());
        let source = Source { index: &index, query: &query, at: None, cost, filter, held: None };
        source.write(format, &mut out).expect("written");
        assert!(String::from_utf8_lossy(&out).contains(LABEL), "{format:?}");
    }
}

#[test]
fn they_are_static_even_if_they_are_freed_one_by_one() {
    const SECOND: u64 = 1_000_000_000;
    let (all, mut m) = (found(), Maker::new());
    m.nodes(&[[1, 0, 1]]).pcs(&[[1, 0x500, 0]]).thread(1, 1, "main").toggle(START + 50, 1);
    m.put(kind::CENSUS, &census(&all).encode()).pass(START + 60);
    let times = (1..500).map(|i| START + i * SECOND / 10);
    let frees: Vec<_> = times.zip(&all).map(|(at, block)| free(at, block.0)).collect();
    m.events(1, &frees).pass(START + 50 * SECOND).end(START + 60 * SECOND);
    let file = m.file();
    let index = open(&file);
    let query = Query::new(&index, &Filter::default()).expect("no filter");
    let options = LeakOptions { top: 0, classes: Class::ALL.to_vec(), ..LeakOptions::default() };
    let leaks = Leaks::new(&index, &query, &options).expect("verdicts");
    let found: Vec<_> = leaks.stacks.iter().map(|s| (s.class, s.live_count)).collect();
    assert_eq!(found, [(Class::Static, 102)]);
}

#[test]
fn recordings_made_of_a_recording_have_them() {
    let file = recording().file();
    let index = open(&file);
    for threshold in [0, 35, 1 << 40] {
        let mut out = Vec::new();
        strip(&index, threshold, &mut out).expect("stripped");
        let stripped = Temp::new(&out);
        let stripped = open(&stripped);
        check(stripped.analysis());
        // Blocks that are live at the end are in the events of the copy, and not only in the figures that it keeps.
        let live = filtered(&stripped, "lifetime", "leaked");
        assert_eq!((live.live_count, live.live_bytes), {
            let f = index.analysis().totals().figures;
            (f.live_count, f.live_bytes)
        });
    }
    let mut out = Vec::new();
    let options = PackOptions { anonymize: Anonymize::Full, ..PackOptions::default() };
    pack(index.analysis(), &options, &mut out).expect("packed");
    let packed = Temp::new(&out);
    check(open(&packed).analysis());
    let mut out = Vec::new();
    let options = JoinOptions {
        name: "two".into(),
        path: "/two".into(),
        symbols: prof_analyze::symbols::SymbolOptions::default(),
        lost: 0,
        missed: 0,
        more: false,
    };
    let other = recording().file();
    join(&[file.0.clone(), other.0.clone()], &options, &mut out).expect("joined");
    let joined = Temp::new(&out);
    let both = open(&joined);
    let both = both.analysis();
    let (f, one) = (both.totals().figures, index.analysis().totals().figures);
    assert_eq!(
        (f.found, f.live_count, f.live_bytes),
        (1202, 2 * one.live_count, 2 * one.live_bytes)
    );
    assert_eq!((f.allocations, both.totals().unknown_frees), (4, 0));
}

/// A recording with blocks of three classes, of which two have one name, and others; of each class one is freed.
fn with_classes() -> Maker {
    let (all, mut m) = (found(), Maker::new());
    m.nodes(&[[1, 0, 1]]).pcs(&[[1, 0x500, 0]]).thread(1, 1, "main").toggle(START + 50, 1);
    let names = |first, names: &[&str]| CensusClasses {
        first,
        names: names.iter().map(|n| (*n).to_owned()).collect(),
    };
    m.put(kind::CENSUS_CLASSES, &names(1, &["7Session", "N4shop4CartE"]).encode());
    m.put(kind::CENSUS_CLASSES, &names(3, &["7Session"]).encode());
    let mut c = Census { ticks: Ticks(START + 50), ..Census::default() };
    let mut at = CensusAt::default();
    for (i, (address, size)) in (0..).zip(&all[..12]) {
        // The number 4 has no name.
        let (class, header) = (i % 5, Header::default());
        c.put(&mut at, &CensusBlock { address: *address, size: *size, header, class });
    }
    m.put(kind::CENSUS, &c.encode()).pass(START + 60);
    let frees: Vec<_> = all[..5].iter().map(|b| free(START + 100, b.0)).collect();
    m.events(1, &frees).pass(START + 10_000).end(START + 20_000);
    m
}

/// Returns the frames of all stacks that hold blocks, innermost first, each with the numbers of blocks that were found and
/// are live, in order.
fn stacks(analysis: &Analysis) -> Vec<(String, u64, u64)> {
    let mut symbols = Symbolizer::new(analysis);
    let mut all: Vec<_> = analysis
        .groups()
        .iter()
        .map(|g| {
            let name = |pc| symbols.frames(pc)[0].function.as_deref().unwrap_or("?").to_owned();
            let frames: Vec<String> = analysis.meta().stack(g.node).into_iter().map(name).collect();
            (frames.join(" < "), g.figures.found, g.figures.live_count)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn they_are_told_by_class() {
    let file = with_classes().file();
    let index = open(&file);
    let row = |frames: &str, found, live| (frames.to_owned(), found, live);
    // Blocks of no class, and of one without a name, have the same name, but not the same stack.
    let expected = [
        row(LABEL, 2, 1),
        row(LABEL, 3, 2),
        row(&format!("class Session < {LABEL}"), 5, 3),
        row(&format!("class shop::Cart < {LABEL}"), 2, 1),
    ];
    assert_eq!(stacks(index.analysis()), expected);
    assert_eq!(stacks(&with_classes().analysis()), expected);
    let report = Report::new(index.analysis(), &ReportOptions::default()).text(Style::default());
    assert!(report.contains("12 blocks from before the attach"), "{report}");
    assert!(report.contains("in 7 blocks are live"), "{report}");
    let carts = filtered(&index, "function", "class shop::Cart");
    assert_eq!((carts.found, carts.live_count), (2, 1));
    let mut out = Vec::new();
    let other = with_classes().file();
    let options = JoinOptions {
        name: "two".into(),
        path: "/two".into(),
        symbols: prof_analyze::symbols::SymbolOptions::default(),
        lost: 0,
        missed: 0,
        more: false,
    };
    join(&[file.0.clone(), other.0.clone()], &options, &mut out).expect("joined");
    let both = Temp::new(&out);
    let classes = |file: &Temp| {
        let all = stacks(open(file).analysis()).into_iter();
        all.filter(|(frames, ..)| frames.starts_with("class ")).collect::<Vec<_>>()
    };
    let double = expected[2..].iter().map(|(f, found, live)| (f.clone(), 2 * found, 2 * live));
    let double: Vec<_> = double.collect();
    assert_eq!(classes(&both), double);
    // They are the same stacks in figures of blocks that are not in the recordings.
    let stripped = [&file, &other].map(|f| {
        let mut out = Vec::new();
        strip(&open(f), 10, &mut out).expect("stripped");
        Temp::new(&out)
    });
    let mut out = Vec::new();
    join(&stripped.each_ref().map(|f| f.0.clone()), &options, &mut out).expect("joined");
    assert_eq!(classes(&Temp::new(&out)), double);
    let mut out = Vec::new();
    let options = PackOptions { anonymize: Anonymize::Full, ..PackOptions::default() };
    pack(index.analysis(), &options, &mut out).expect("packed");
    let packed = Temp::new(&out);
    let names = format!("{:?}", stacks(open(&packed).analysis()));
    assert!(names.contains("class class_") && !names.contains("Cart"), "{names}");
}

/// The census has the whole place of a block whose allocator does not note where in the place it begins.
#[test]
fn a_free_inside_of_a_place_ends_it() {
    let places = [(0x10000, 256), (0x10100, 256), (0x10200, 256), (0x20000, 64)];
    let mut m = Maker::new();
    m.nodes(&[[1, 0, 1]]).pcs(&[[1, 0x500, 0]]).thread(1, 1, "main").toggle(START + 50, 1);
    let mut c = Census { ticks: Ticks(START + 50), ..Census::default() };
    let mut at = CensusAt::default();
    for (address, size) in places {
        c.put(&mut at, &CensusBlock { address, size, ..CensusBlock::default() });
    }
    m.put(kind::CENSUS, &c.encode()).pass(START + 60);
    m.events(
        1,
        &[
            // A block that is recorded lies in a place that was freed: its own free is none of the place.
            free(START + 100, 0x10040),
            alloc(START + 110, 0x10080, 128, 1),
            free(START + 120, 0x10080),
            free(START + 130, 0x10080),
            realloc(START + 140, START + 150, 0x10140, 0x30000, 300, 1),
            // Behind the end of a place, and in front of all.
            free(START + 160, 0x20040),
            free(START + 170, 0x8000),
            free(START + 180, 0x20000),
        ],
    );
    m.pass(START + 10_000).end(START + 20_000);
    let check = |a: &Analysis| {
        let (t, f) = (a.totals(), a.totals().figures);
        assert_eq!((t.frees, t.unknown_frees, t.implied_frees), (6, 3, 0));
        assert_eq!((f.found, f.live_count, f.live_bytes), (4, 2, 256 + 300));
    };
    check(&m.analysis());
    let file = m.file();
    let index = open(&file);
    check(index.analysis());
    let kept = filtered(&index, "lifetime", "leaked");
    assert_eq!((kept.live_count, kept.live_bytes), (2, 256 + 300));
}

#[test]
fn a_hostile_census_does_no_harm() {
    let mut m = Maker::of(&Target { sample_bytes: 512, ..common::target() });
    m.put(kind::CENSUS, &census(&found()).encode()).pass(START + 60);
    m.events(1, &[free(START + 100, found()[0].0)]).end(START + 200);
    let sampled = m.analysis();
    // Of a sample nobody knows which of them are freed, so they do not count.
    assert_eq!((sampled.totals().figures.found, sampled.totals().figures.live_count), (0, 0));
    let mut m = Maker::new();
    let twice = [(0x1000, 8), (0x1000, 16), (0, 5), (0x2000, u64::MAX >> 2)];
    let mut bad = census(&twice);
    bad.count = u64::MAX;
    m.pass(START).events(u32::MAX, &[alloc(START + 10, 0x2000, 16, BEFORE), free(START + 90, 1)]);
    m.put(kind::CENSUS, &bad.encode()).put(kind::CENSUS, &[0xff; 40]);
    m.pass(START + 100).pass(START + 200).end(START + 300);
    let a = m.analysis();
    let f = a.totals().figures;
    assert_eq!((f.found, f.allocations, f.live_count, a.totals().nonsense), (1, 1, 2, 1));
    assert!(a.notes().iter().any(|n| n.to_string().contains("damaged")), "{:?}", a.notes());
    let file = m.file();
    assert_eq!(open(&file).analysis().totals().figures, f);
    // Classes without blocks, names without numbers, and numbers that no class can have.
    let mut m = Maker::new();
    for first in [0, 1, u64::from(u16::MAX), u64::MAX] {
        let names = vec!["\u{1b}[2J".to_owned(), String::new(), "3Foo".to_owned()];
        m.put(kind::CENSUS_CLASSES, &CensusClasses { first, names }.encode());
    }
    let mut c = census(&found());
    c.classes = vec![0, u64::MAX, 0, u64::from(u32::MAX), 0, 1 << 17, 0, 1, u64::MAX, 1];
    m.put(kind::CENSUS, &c.encode()).pass(START + 60).pass(START + 70).end(START + 200);
    let a = m.analysis();
    assert_eq!(a.totals().figures.found, 601);
    assert!(stacks(&a).iter().all(|s| !s.0.contains('\u{1b}')), "{:?}", stacks(&a));
}
