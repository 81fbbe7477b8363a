//! Mappings in exports, in comparisons, and over time: each byte once, and to the byte.

mod common;

use common::{Maker, START, Temp, alloc, mmap, munmap};
use prof_analyze::diff::{Diff, DiffOptions, MapsDiff, MapsSide};
use prof_analyze::export::{Cost, ExportError, Format, Source};
use prof_analyze::maps::{Beside, Held, MapFilter, Maps, MapsTimeline, What, map_filter};
use prof_analyze::query::{Filter, Query, Span};
use prof_analyze::report::{Ask, OverTime, Style, ViewOptions};
use prof_analyze::{Index, IndexOptions};
use prof_trace::records::{
    MAPPINGS_ANEW, MappingLine, MappingUse, Mappings, Module, USAGE_ANEW, kind, perms,
};
use prof_trace::ticks::Ticks;
use std::collections::BTreeMap;

const RW: u64 = perms::READ | perms::WRITE;
const PLAIN: Style = Style { color: false, width: Some(100), of_script: false };

fn using(at: u64, flags: u64, used: &[(u64, u64, u64)]) -> Mappings {
    let ticks = START + at;
    let mut m = Mappings {
        begun: Ticks(ticks - 1),
        ticks: Ticks(ticks),
        usage_ticks: Ticks(ticks),
        flags,
        ..Mappings::default()
    };
    let mut last = 0;
    for (start, end, rss) in used {
        let of =
            MappingUse { rss: *rss, anonymous: *rss, private_dirty: *rss, ..MappingUse::default() };
        m.put_usage(*start, *end, &of, &mut last);
    }
    m
}

/// A program with a heap that was there before, code, a cache that it maps and that grows, a mapping that it takes away
/// again, a mapping of malloc's, and one block.
fn recording() -> Temp {
    let mut m = Maker::new();
    let module = Module { number: 1, end: 0x9000, path: "/lib/one.so".into(), ..Module::default() };
    m.module(&module).symbols(
        1,
        &[
            (0x100, 0x100, "main"),
            (0x200, 0x100, "cache"),
            (0x300, 0x100, "mmap"),
            (0x400, 0x100, "malloc"),
        ],
    );
    m.pcs(&[[1, 0x108, 1], [2, 0x208, 1], [3, 0x308, 1], [4, 0x408, 1]]);
    m.nodes(&[[1, 0, 1], [2, 1, 2], [3, 2, 3], [4, 1, 4], [5, 4, 3]]);
    m.pass(START);
    let heap = MappingLine {
        start: 0x10_000,
        end: 0x30_000,
        perms: RW,
        name: 1,
        ..MappingLine::default()
    };
    let code = MappingLine {
        start: 0x100_000,
        end: 0x104_000,
        perms: perms::READ | perms::EXECUTE,
        inode: 7,
        name: 2,
        ..MappingLine::default()
    };
    let mut first = Mappings {
        begun: Ticks(START + 9),
        ticks: Ticks(START + 10),
        flags: MAPPINGS_ANEW,
        names: vec!["[heap]".into(), "/lib/a,b.so".into()],
        ..Mappings::default()
    };
    let mut last = 0;
    [heap, code].iter().for_each(|l| first.put(l, &mut last));
    m.put(kind::MAPPINGS, &first.encode());
    let t = |n: u64| START + n;
    m.calls(&[
        (1, mmap(t(100), t(110), 0x200_000, 0x10_000, 3)),
        (1, mmap(t(120), t(130), 0x300_000, 0x20_000, 5)),
        (1, mmap(t(140), t(150), 0x400_000, 0x1000, 3)),
        (1, munmap(t(160), t(170), 0x400_000, 0x1000, 2)),
    ]);
    m.events(1, &[alloc(t(105), 0x10_010, 100, 4)]);
    let mut second = Mappings { begun: Ticks(t(199)), ticks: Ticks(t(200)), ..Mappings::default() };
    let mut last = 0;
    for (start, end) in [(0x200_000, 0x210_000), (0x300_000, 0x320_000)] {
        second.put(&MappingLine { start, end, perms: RW, ..MappingLine::default() }, &mut last);
    }
    m.put(kind::MAPPINGS, &second.encode());
    let all = [
        (0x10_000, 0x30_000, 0x8000),
        (0x100_000, 0x104_000, 0x2000),
        (0x200_000, 0x210_000, 0x4000),
        (0x300_000, 0x320_000, 0x10_000),
    ];
    m.put(kind::MAPPINGS, &using(300, USAGE_ANEW, &all).encode());
    m.put(kind::MAPPINGS, &using(600, 0, &[(0x200_000, 0x210_000, 0xc000)]).encode());
    m.put(kind::MAPPINGS, &using(700, 0, &[(0x200_000, 0x210_000, 0x9000)]).encode());
    m.thread(1, 77, "worker").pass(START + 1000).end(START + 1000);
    m.file()
}

struct World {
    index: Index,
    maps: Maps,
    _file: Temp,
}

impl World {
    fn new() -> Self {
        let file = recording();
        let index = Index::open(&file.0, &IndexOptions::default()).expect("an index");
        let maps = Maps::of(index.analysis()).expect("mappings");
        Self { index, maps, _file: file }
    }

    fn held(&self, what: What, filter: MapFilter) -> Held<'_> {
        Held::new(&self.index, &self.maps, what, filter).expect("read")
    }

    fn export(
        &self,
        format: Format,
        what: What,
        cost: Cost,
        at: Option<Ticks>,
    ) -> Result<Vec<u8>, ExportError> {
        let query = Query::new(&self.index, &Filter::default()).expect("no filter");
        let held = self.held(what, MapFilter::default());
        let held = (what != What::Heap).then_some(&held);
        let source =
            Source { index: &self.index, query: &query, at, cost, filter: Vec::new(), held };
        let mut out = Vec::new();
        source.write(format, &mut out).map(|()| out)
    }

    fn text(&self, format: Format, what: What, cost: Cost) -> String {
        String::from_utf8(self.export(format, what, cost, None).expect("written")).expect("UTF-8")
    }
}

const CACHE: &str = "main [one.so];cache [one.so];mmap [one.so]";
const MALLOCS: &str = "main [one.so];malloc [one.so];mmap [one.so]";
const BLOCK: &str = "main [one.so];malloc [one.so]";
const SEEN: &str = "[mapped: seen, not caught]";

#[test]
fn folded_stacks_count_each_byte_once() {
    let w = World::new();
    let lines = |what, cost| -> BTreeMap<String, u64> {
        let text = w.text(Format::Folded, what, cost);
        let pair =
            |l: &str| l.rsplit_once(' ').map(|(k, v)| (k.to_owned(), v.parse().expect("a number")));
        text.lines().filter_map(pair).collect()
    };
    let of = |all: &[(&str, u64)]| -> BTreeMap<String, u64> {
        all.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect()
    };
    let (heap, code) = (format!("{SEEN};[heap]"), format!("{SEEN};/lib/a,b.so"));
    assert_eq!(lines(What::Heap, Cost::Live), of(&[(BLOCK, 100)]));
    let maps = [(CACHE, 0x9000), (MALLOCS, 0x10_000), (&*heap, 0x8000), (&*code, 0x2000)];
    assert_eq!(lines(What::Maps, Cost::Live), of(&maps));
    // The heap, and what malloc has mapped, are where blocks lie.
    let all = [(BLOCK, 100), (CACHE, 0x9000), (&*code, 0x2000)];
    assert_eq!(lines(What::All, Cost::Live), of(&all));
    assert_eq!(lines(What::All, Cost::Leaked), of(&all));
    // What was made: also the mapping that is gone; not what was there before.
    let made = [(BLOCK, 100), (CACHE, 0x11_000)];
    assert_eq!(lines(What::All, Cost::Allocated), of(&made));
    assert_eq!(lines(What::All, Cost::Allocations), of(&[(BLOCK, 1), (CACHE, 2)]));
    assert_eq!(lines(What::Maps, Cost::Allocations), of(&[(MALLOCS, 1), (CACHE, 2)]));
    // The most bytes of blocks were live before use was looked at first.
    assert_eq!(lines(What::All, Cost::Peak), of(&[(BLOCK, 100)]));
    let at = w
        .export(Format::Folded, What::Maps, Cost::Live, Some(Ticks(START + 650)))
        .expect("written");
    assert!(String::from_utf8_lossy(&at).contains(&format!("{CACHE} {}", 0xc000)));
}

#[test]
fn heaptrack_sees_what_becomes_resident() {
    let w = World::new();
    let run = |what| {
        let text = w.text(Format::Heaptrack, what, Cost::Live);
        let (mut sizes, mut live, mut most) = (Vec::new(), 0u64, 0u64);
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let hex = |i: usize| u64::from_str_radix(words[i], 16).expect("hexadecimal");
            match words[0] {
                "a" => sizes.push((hex(1), hex(2))),
                "+" => live += sizes[hex(1) as usize].0,
                "-" => live -= sizes[hex(1) as usize].0,
                _ => {}
            }
            most = most.max(live);
        }
        let traces = text.lines().filter(|l| l.starts_with("t ")).count() as u64;
        assert!(sizes.iter().all(|s| s.1 <= traces), "{text}");
        (live, most)
    };
    assert_eq!(run(What::Heap), (100, 100));
    assert_eq!(run(What::Maps), (0x23_000, 0x26_000));
    assert_eq!(run(What::All), (100 + 0xb000, 100 + 0xe000));
}

#[test]
fn tables_have_a_row_for_each_mapping() {
    let w = World::new();
    let csv = w.text(Format::Csv, What::Maps, Cost::Live);
    let rows: Vec<&str> = csv.lines().collect();
    assert_eq!(rows.len(), 6, "{csv}");
    assert!(rows[0].starts_with("id,address,size,") && rows[0].ends_with(",name"), "{csv}");
    assert!(
        rows[3].ends_with(",\"/lib/a,b.so\"") && rows[3].contains(",code,r-xp,1,8192,"),
        "{csv}"
    );
    assert_eq!(
        rows[4],
        "2,0x200000,65536,65536,110,,3,77,,,anonymous,rw-p,0,36864,49152,36864,36864,0,0,0,0,"
    );
    assert_eq!(rows[1], "4,0x400000,4096,4096,150,160,3,77,2,77,anonymous,rw-p,0,0,0,0,0,0,0,0,0,");
    let json = |what, format| -> serde_json::Value {
        serde_json::from_str(&w.text(format, what, Cost::Live)).expect("JSON")
    };
    for (format, blocks) in [(Format::Json, 1), (Format::JsonObjects, 1)] {
        let all = json(What::All, format);
        let mapped = all["mappings"].as_array().expect("mappings");
        let rss: u64 = mapped.iter().filter_map(|m| m["rss"].as_u64()).sum();
        assert_eq!((mapped.len(), rss), (3, 0x9000 + 0x2000), "{all:#}");
        assert_eq!(all["allocations"].as_array().map(Vec::len), Some(blocks));
        let ids: Vec<_> =
            all["stacks"].as_array().expect("stacks").iter().map(|s| &s["id"]).collect();
        assert!(ids.contains(&&3.into()) && ids.contains(&&4.into()), "{all:#}");
        let maps = json(What::Maps, format);
        assert_eq!(maps["mappings"].as_array().map(Vec::len), Some(5));
        assert_eq!(maps["allocations"].as_array().map(Vec::len), Some(0));
        assert!(json(What::Heap, format).get("mappings").is_none());
    }
    let refused = |format, what| w.export(format, what, Cost::Live, None).expect_err("refused");
    assert!(matches!(refused(Format::Csv, What::All), ExportError::OneTable));
    assert!(matches!(refused(Format::Parquet, What::All), ExportError::OneTable));
    for format in [Format::Dhat, Format::Massif, Format::Replay] {
        assert!(matches!(refused(format, What::Maps), ExportError::NoMappings));
    }
    #[cfg(feature = "parquet")]
    for format in [Format::Parquet, Format::ParquetStacks] {
        use parquet::file::reader::{FileReader, SerializedFileReader};
        let bytes = w.export(format, What::Maps, Cost::Live, None).expect("written");
        let file = Temp::new(&bytes);
        let file = std::fs::File::open(&file.0).expect("a file");
        let file = SerializedFileReader::new(file).expect("Parquet");
        let rows = file.metadata().file_metadata().num_rows();
        // Stacks 3 and 5 have three frames each.
        assert_eq!(rows, if format == Format::Parquet { 5 } else { 6 });
    }
}

#[test]
fn pages_and_profiles_have_the_mappings() {
    let w = World::new();
    let html = w.text(Format::Html, What::All, Cost::Live);
    let data = html.split("id=\"data\">").nth(1).and_then(|t| t.split("</script>").next());
    let page: serde_json::Value = serde_json::from_str(data.expect("data")).expect("JSON");
    let maps = &page["maps"];
    assert_eq!((maps["rss"].as_u64(), maps["count"].as_u64()), (Some(0xb000), Some(2)), "{maps:#}");
    let live: u64 = page["stacks"]
        .as_array()
        .expect("stacks")
        .iter()
        .filter_map(|s| s["costs"][0].as_u64())
        .sum();
    assert_eq!(live, 100 + 0xb000);
    for format in [Format::Speedscope, Format::Firefox] {
        let text = w.text(format, What::All, Cost::Live);
        let v: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let weights = match format {
            Format::Speedscope => &v["profiles"][0]["weights"],
            _ => &v["threads"][0]["samples"]["weight"],
        };
        let sum: u64 = weights.as_array().expect("weights").iter().filter_map(|w| w.as_u64()).sum();
        assert_eq!(sum, 100 + 0xb000, "{format:?}");
    }
    assert!(w.text(Format::Flamegraph, What::Maps, Cost::Live).contains("seen, not caught"));
    assert!(!w.export(Format::Pprof, What::All, Cost::Live, None).expect("written").is_empty());
}

#[test]
fn filters_of_blocks_select_mappings() {
    let w = World::new();
    let lines = |fields: &[(&str, &str)]| {
        let mut f = Filter::default();
        fields.iter().for_each(|(n, v)| f.set(n, v).expect("a filter"));
        let held = w.held(What::Maps, map_filter(&f).map_err(|e| e.to_string())?);
        Ok::<u64, String>(held.at(None).groups.iter().map(|g| g.sums.rss).sum())
    };
    assert_eq!(lines(&[("function", "^cache$")]), Ok(0x9000));
    assert_eq!(
        lines(&[("min-size", "64KiB"), ("lifetime", "leaked")]),
        Ok(0x8000 + 0x9000 + 0x10_000)
    );
    assert_eq!(lines(&[("from-map", "1")]), Ok(0x2000));
    assert!(lines(&[("thread", "77")]).expect_err("refused").contains("--what heap"));
}

#[test]
fn two_moments_are_compared() {
    let w = World::new();
    let analysis = w.index.analysis();
    let compare = |what, from, to| {
        let side = |at| MapsSide {
            analysis,
            held: w.held(what, MapFilter::default()).at(Some(Ticks(START + at))),
            recorded: true,
        };
        MapsDiff::new(&side(from), &side(to), what, 0)
    };
    let d = compare(What::All, 350, 650);
    assert_eq!((d.change.rss, d.change.count, d.groups.len(), d.same_groups), (0x8000, 0, 1, 1));
    assert_eq!((d.groups[0].before.rss, d.groups[0].after.rss), (0x4000, 0xc000));
    assert!(d.groups[0].frames.iter().any(|f| f.function.as_deref() == Some("cache")));
    // Between the making of the cache and the end.
    let d = compare(What::Maps, 50, 155);
    assert_eq!((d.change.count, d.change.size, d.change.rss), (3, 0x31_000, 0));
    let mut whole = Diff::new(analysis, analysis, &DiffOptions::default());
    whole.maps = Some(compare(What::All, 650, 900));
    let text = whole.text(PLAIN);
    assert!(
        text.contains("=== shrunk mapping #1 === [resident: 48.0 KiB -> 36.0 KiB, -12.0 KiB]"),
        "{text}"
    );
    assert!(
        text.contains("mappings   -12.0 KiB resident, +0 B of address space in +0 mappings"),
        "{text}"
    );
}

#[test]
fn the_report_has_the_same_figures() {
    let w = World::new();
    let report = |what, at| {
        let held = w.held(what, MapFilter::default());
        Beside::new(w.index.analysis(), &held, at, 0)
    };
    let all = report(What::All, None);
    assert_eq!((all.total.rss, all.total.count, all.allocator.rss), (0xb000, 2, 0x18_000));
    let maps = report(What::Maps, None);
    assert_eq!((maps.total.rss, maps.total.count), (0x23_000, 4));
    assert_eq!(report(What::Maps, Some(Ticks(START + 155))).total.count, 5);
}

#[test]
fn sums_over_time_begin_when_use_is_known() {
    let w = World::new();
    let totals: Vec<_> = w.maps.totals().iter().map(|t| (t.ticks.0 - START, t.rss)).collect();
    assert_eq!(totals, [(300, 0x1e_000), (600, 0x26_000), (700, 0x23_000)]);
    let span = Span::whole(&w.index, 10);
    let analysis = w.index.analysis();
    let t = w.maps.timeline(&span, &analysis.meta().clock, analysis.end_ticks()).expect("sums");
    let last = [
        0x1e_000, 0x1e_000, 0x1e_000, 0x1e_000, 0x1e_000, 0x1e_000, 0x26_000, 0x23_000, 0x23_000,
        0x23_000,
    ];
    assert_eq!(t.rss.last, last);
    assert_eq!((t.rss.min[7], t.rss.max[7]), (0x23_000, 0x23_000));
    let bands = t.bands();
    let of = |name: &str| bands.iter().find(|b| b.0 == name).map(|b| b.1.last[9]);
    assert_eq!((of("maps_kind_heap"), of("maps_kind_code")), (Some(0x8000), Some(0x2000)));
    assert_eq!((of("maps_dirty"), of("maps_address_space")), (Some(0x23_000), Some(0x54_000)));
    assert!(
        bands.iter().all(|b| MapsTimeline::has_name(&b.0)) && !MapsTimeline::has_name("maps_x")
    );
    let query = Query::new(&w.index, &Filter::default()).expect("no filter");
    let options = ViewOptions {
        top: 0,
        sort: Default::default(),
        reverse: false,
        empty: false,
        at: None,
        base: None,
        paths: 0,
        depth: 0,
        bottom_up: false,
        filter: Vec::new(),
    };
    let ask = Ask::new(&w.index, &query, options).expect("figures");
    let report = OverTime::new(&ask, &w.maps, 4).expect("a report");
    assert_eq!(report.over_time.len(), 4);
    let row = &report.over_time[3];
    assert_eq!((row.live_bytes.last, row.maps["maps_rss"].last), (100, 0x23_000));
    let text = report.text(PLAIN);
    assert!(
        text.contains("[HEAP]") && text.contains("32.0 KiB") && !text.contains("SWAP"),
        "{text}"
    );
}
