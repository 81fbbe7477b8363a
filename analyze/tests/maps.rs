//! The mappings of a process, from made-up looks and calls.

mod common;

use common::{Maker, START, Temp, alloc};
use prof_analyze::maps::{Kind, Map, MapFilter, MapSort, Maps, MapsOptions, MapsReport};
use prof_analyze::query::{Filter, Query};
use prof_analyze::{Analysis, Index, IndexOptions, LoadOptions};
use prof_trace::records::{
    Hook, Hooks, MAPPINGS_ANEW, MappingLine, MappingUse, Mappings, USAGE_ANEW, kind, perms,
};
use prof_trace::ticks::Ticks;

const RW: u64 = perms::READ | perms::WRITE;

fn line(start: u64, end: u64, perms: u64, name: u64) -> MappingLine {
    MappingLine { start, end, perms, name, ..MappingLine::default() }
}

fn look(at: u64, names: &[&str], gone: &[u64], new: &[MappingLine]) -> Mappings {
    let mut m =
        Mappings { begun: Ticks(START + at - 1), ticks: Ticks(START + at), ..Mappings::default() };
    m.names = names.iter().map(|n| (*n).into()).collect();
    let mut last = 0;
    m.gone = gone.iter().map(|g| g - std::mem::replace(&mut last, *g)).collect();
    let mut last = 0;
    new.iter().for_each(|l| m.put(l, &mut last));
    m
}

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

fn analysis(looks: &[Mappings]) -> (Analysis, Temp) {
    let mut m = Maker::new();
    m.pass(START);
    looks.iter().for_each(|l| _ = m.put(kind::MAPPINGS, &l.encode()));
    m.pass(START + 1000).end(START + 1000);
    let file = m.file();
    (Analysis::from_file(&file.0, &LoadOptions::default()).expect("a recording"), file)
}

fn maps(looks: &[Mappings]) -> Maps {
    let (a, _file) = analysis(looks);
    Maps::of(&a).expect("mappings")
}

fn first(names: &[&str], lines: &[MappingLine]) -> Mappings {
    Mappings { flags: MAPPINGS_ANEW, ..look(10, names, &[], lines) }
}

/// Returns all mappings, in the order of their numbers.
fn all(maps: &Maps) -> Vec<Map> {
    maps.some(&(0..maps.count()).collect::<Vec<_>>())
}

/// Returns id, address, size, and whether it has ended, of all mappings.
fn list(maps: &Maps) -> Vec<(u32, u64, u64, bool)> {
    all(maps).iter().map(|m| (m.id, m.address, m.size, m.end.is_some())).collect()
}

#[test]
fn a_recording_without_looks_says_so() {
    let (a, _file) = analysis(&[]);
    let maps = Maps::of(&a).expect("none");
    assert!(!maps.is_recorded() && maps.count() == 0);
    let report = MapsReport::new(&a, &maps, &MapFilter::default(), &MapsOptions::default());
    assert!(
        report
            .text(prof_analyze::report::Style {
                color: false,
                width: Some(100),
                ..prof_analyze::report::Style::default()
            })
            .contains("does not tell")
    );
}

#[test]
fn a_recording_of_the_kernel_says_why_it_has_no_mappings() {
    let mut m = Maker::new();
    let hook =
        Hook { function: "kmem:kmalloc".into(), method: "tracepoint".into(), ..Hook::default() };
    m.put(kind::HOOKS, &Hooks { hooked: vec![hook], not_hooked: Vec::new() }.encode());
    let a = m.pass(START).end(START + 10).analysis();
    let maps = Maps::of(&a).expect("none");
    let report = MapsReport::new(&a, &maps, &MapFilter::default(), &MapsOptions::default());
    let text = report.text(prof_analyze::report::Style {
        color: false,
        width: Some(100),
        ..prof_analyze::report::Style::default()
    });
    assert!(text.contains("of the kernel's own memory, which has no mappings"), "{text}");
}

#[test]
fn looks_show_what_is_cut_grown_replaced_and_gone() {
    let file = MappingLine { inode: 7, offset: 0x4000, ..line(0x10_000, 0x20_000, perms::READ, 2) };
    let start = [line(0x1000, 0x5000, RW, 1), line(0x8000, 0xc000, RW, 0), file];
    let looks = [
        first(&["[heap]", "/lib/a.so"], &start),
        // The heap has grown; the middle of the second is gone; the file has been deleted.
        look(
            20,
            &["/lib/a.so (deleted)"],
            &[0x1000, 0x8000, 0x10_000],
            &[
                line(0x1000, 0x7000, RW, 1),
                line(0x8000, 0x9000, RW, 0),
                line(0xb000, 0xc000, RW, 0),
                MappingLine { name: 3, ..file },
            ],
        ),
        // Another file over a part of it, and other permissions behind that; the heap is gone.
        look(
            30,
            &["/b"],
            &[0x1000, 0x10_000],
            &[
                MappingLine { end: 0x12_000, name: 3, ..file },
                MappingLine { inode: 9, offset: 0, ..line(0x12_000, 0x14_000, perms::READ, 4) },
                MappingLine { offset: 0x8000, inode: 7, ..line(0x14_000, 0x20_000, 0, 3) },
            ],
        ),
    ];
    let maps = maps(&looks);
    let expected = [
        (0, 0x1000, 0x6000, true),
        (1, 0x8000, 0x2000, false),
        (2, 0x10_000, 0xe000, false),
        (3, 0x12_000, 0x2000, false),
    ];
    assert_eq!(list(&maps), expected);
    let [heap, cut, a, b] = &all(&maps)[..] else { panic!("four") };
    assert_eq!((heap.kind, heap.before, heap.is_caught()), (Kind::Heap, true, false));
    assert_eq!(heap.end.map(|e| (e.ticks, e.source)), Some((Ticks(START + 30), None)));
    let ranges: Vec<_> = cut.regions.iter().map(|r| (r.address, r.size, r.end.is_some())).collect();
    assert_eq!(ranges, [(0x8000, 0x4000, true), (0x8000, 0x1000, false), (0xb000, 0x1000, false)]);
    let sources = &cut.regions[0].end.as_ref().expect("cut").sources;
    assert_eq!((sources[0].address, sources[0].length, sources[0].source), (0x9000, 0x2000, None));
    assert_eq!(&*a.name, "/lib/a.so (deleted)");
    let live = a.regions.iter().filter(|r| r.end.is_none());
    let live: Vec<_> = live.map(|r| (r.address, r.size, r.offset, r.perms.read)).collect();
    assert_eq!(live, [(0x10_000, 0x2000, 0x4000, true), (0x14_000, 0xc000, 0x8000, false)]);
    assert_eq!((&*b.name, b.before, b.begun), ("/b", false, Ticks(START + 30)));
    let spaces: Vec<_> = maps.totals().iter().map(|t| t.address_space).collect();
    assert_eq!(spaces, [0x18_000, 0x18_000, 0x12_000]);
}

#[test]
fn what_the_kernel_merges_with_a_mapping_is_that_mapping_grown() {
    const MS: u64 = 1_000_000;
    let grown = |caught: bool, above: bool| {
        let mut m = Maker::new();
        m.pass(START);
        let other = line(0x90_000, 0x91_000, perms::READ, 0);
        let old = line(0x20_000, 0x22_000, RW, 0);
        let new =
            if above { line(0x20_000, 0x25_000, RW, 0) } else { line(0x1d_000, 0x22_000, RW, 0) };
        let mut first = first(&[], &[other]);
        if !caught {
            first = self::first(&[], &[old, other]);
        }
        m.put(kind::MAPPINGS, &first.encode());
        if caught {
            m.calls(&[(1, common::mmap(START + 100, START + 110, 0x20_000, 0x2000, 0))]);
            m.put(kind::MAPPINGS, &look(100 * MS, &[], &[], &[old]).encode());
        }
        m.put(kind::MAPPINGS, &look(200 * MS, &[], &[0x20_000], &[new]).encode());
        m.pass(START + 300 * MS).end(START + 300 * MS);
        let maps = Maps::of(&m.analysis()).expect("mappings");
        let mut found = all(&maps);
        found.retain(|m| m.kind == Kind::Anonymous && m.perms.write);
        found.iter().map(|m| (m.size, m.is_caught(), m.regions.len())).collect::<Vec<_>>()
    };
    for caught in [false, true] {
        assert_eq!(grown(caught, true), [(0x5000, caught, 2)]);
        assert_eq!(grown(caught, false), [(0x5000, caught, 2)]);
    }
}

#[test]
fn memory_of_another_name_is_another_mapping_unless_it_is_named() {
    let looks = [
        first(
            &["[anon:a]", "[anon:b]"],
            &[line(0x1000, 0x2000, RW, 0), line(0x4000, 0x5000, RW, 1)],
        ),
        look(
            20,
            &[],
            &[0x1000, 0x4000],
            &[line(0x1000, 0x2000, RW, 2), line(0x4000, 0x5000, RW, 2)],
        ),
    ];
    let maps = maps(&looks);
    let names: Vec<_> = all(&maps).into_iter().map(|m| m.name.to_string()).collect();
    assert_eq!(names, ["[anon:b]", "[anon:b]"]);
}

#[test]
fn use_is_of_the_mapping_and_summed_up() {
    let ours = Mappings {
        ours: vec![0x9000, 0xa000],
        ..first(&[], &[line(0x1000, 0x3000, RW, 0), line(0x9000, 0xa000, RW, 0)])
    };
    let looks = [
        ours,
        using(11, USAGE_ANEW, &[(0x1000, 0x3000, 0x1000), (0x9000, 0xa000, 0x1000)]),
        // It is cut, and what is left is counted anew.
        look(20, &[], &[0x1000], &[line(0x1000, 0x2000, RW, 0)]),
        using(21, 0, &[(0x1000, 0x2000, 0x800)]),
        using(22, 0, &[(0x1000, 0x2000, 0)]),
    ];
    let maps = maps(&looks);
    let usage: Vec<_> =
        all(&maps)[0].usage.iter().map(|u| (u.ticks.0 - START, u.address_space, u.rss)).collect();
    assert_eq!(usage, [(11, 0x2000, 0x1000), (21, 0x1000, 0x800), (22, 0x1000, 0)]);
    assert_eq!((all(&maps)[0].peak_rss, all(&maps)[1].kind), (0x1000, Kind::Prof));
    let totals: Vec<_> = maps.totals().iter().map(|t| (t.address_space, t.rss, t.dirty)).collect();
    // The sums begin when use is known.
    let expected = [
        (0x2000, 0x1000, 0x1000),
        (0x1000, 0x1000, 0x1000),
        (0x1000, 0x800, 0x800),
        (0x1000, 0, 0),
    ];
    assert_eq!(totals, expected);
}

#[test]
fn use_that_is_counted_before_the_list_shows_the_mapping_is_kept() {
    let first = first(&[], &[line(0x1000, 0x3000, RW, 0)]);
    let both = &[(0x1000, 0x3000, 0x1000), (0x8000, 0xa000, 0x2000)];
    let early = using(20, USAGE_ANEW, both);
    let listed = look(30, &[], &[], &[line(0x8000, 0xa000, RW, 0)]);
    let usage = |maps: &Maps, i: usize| -> Vec<_> {
        all(maps)[i].usage.iter().map(|u| (u.ticks.0 - START, u.rss)).collect()
    };
    let kept = maps(&[first.clone(), early.clone(), listed.clone()]);
    assert_eq!(usage(&kept, 1), [(30, 0x2000)]);
    // The collector writes it again, as it can't know whether its reader has kept it.
    let again = using(31, 0, &both[1..]);
    let again = maps(&[first.clone(), early.clone(), listed, again]);
    assert_eq!(usage(&again, 1), [(30, 0x2000)]);
    // The mapping has gone before any list showed it.
    let gone = maps(&[first.clone(), early.clone(), using(40, 0, &[(0x1000, 0x3000, 0x800)])]);
    assert_eq!(gone.totals().last().map(|t| t.rss), Some(0x800));
    // The list was read after the use was counted, though it was written before.
    let later = look(50, &[], &[0x1000], &[]);
    let stale = maps(&[first, later, Mappings { begun: Ticks(START + 30), ..early }]);
    assert_eq!(stale.totals().last().map(|t| t.rss), Some(0));
}

#[test]
fn filters_select_mappings() {
    let exec = perms::READ | perms::EXECUTE;
    let code = MappingLine { inode: 3, ..line(0x1000, 0x9000, exec, 2) };
    let looks = [
        first(
            &["[heap]", "/bin/x"],
            &[code, line(0x10_000, 0x11_000, RW, 1), line(0x20_000, 0x24_000, RW, 0)],
        ),
        using(11, USAGE_ANEW, &[(0x1000, 0x9000, 0x3000), (0x20_000, 0x24_000, 0x1000)]),
        look(500, &[], &[0x20_000], &[line(0x30_000, 0x32_000, RW, 0)]),
    ];
    let (a, _file) = analysis(&looks);
    let maps = Maps::of(&a).expect("mappings");
    let select = |fields: &[(&str, &str)]| {
        let mut f = MapFilter::default();
        fields.iter().for_each(|(n, v)| f.set(n, v).expect("a filter"));
        f.select(&a, &maps)
    };
    assert_eq!(select(&[]), [0, 1, 2, 3]);
    for (field, value, expected) in [
        ("size_min", "8KiB", vec![0, 2, 3]),
        ("from", "30%", vec![3]),
        ("to", "30%", vec![0, 1, 2]),
        ("alive_at", "30%", vec![0, 1, 2]),
        ("alive-at-2", "90%", vec![0, 1, 3]),
        ("lifetime", "only_leaked", vec![0, 1, 3]),
        ("lifetime", "freed", vec![2]),
        ("lifetime_max", "1us", vec![0, 1, 2, 3]),
        ("lifetime_min", "1us", vec![]),
        ("address_min", "0x20000", vec![2, 3]),
        ("max-address", "0x10000", vec![0, 1]),
        ("executable", "only_true", vec![0]),
        ("writable", "no", vec![0]),
        ("readable", "yes", vec![0, 1, 2, 3]),
        ("jemalloc", "only_true", vec![]),
        ("bytehound", "only_false", vec![0, 1, 2, 3]),
        ("caught", "yes", vec![]),
        ("kind", "heap", vec![1]),
        ("name", "bin", vec![0]),
        ("peak_rss_min", "4096", vec![0, 2]),
        ("peak_rss_max", "4096", vec![1, 2, 3]),
        ("backtrace_depth_min", "1", vec![]),
        ("function_regex", "x", vec![]),
        ("negative_function_regex", "x", vec![0, 1, 2, 3]),
        ("source", "x", vec![]),
        ("not-source", "x", vec![0, 1, 2, 3]),
        ("backtraces", "1", vec![]),
    ] {
        assert_eq!(select(&[(field, value)]), expected, "{field}={value}");
    }
    let options = MapsOptions { sort: MapSort::PeakRss, live: true, ..MapsOptions::default() };
    let report = MapsReport::new(&a, &maps, &MapFilter::default(), &options);
    let ids: Vec<_> = report.maps.iter().map(|m| m.id).collect();
    assert_eq!((ids, report.ended_count), (vec![0, 1, 3], 1));
    let json: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
    assert_eq!(json["maps"][0]["address_s"], "0000000000001000");
    assert_eq!(json["maps"][0]["timestamp"]["secs"], 1_700_000_000);
}

#[test]
fn damaged_looks_do_no_harm() {
    let mut random = common::Random(7);
    for _ in 0..200 {
        let mut looks = Vec::new();
        for at in 1..20 {
            let mut m = Mappings {
                begun: Ticks(random.below(2000)),
                ticks: Ticks(random.below(2000)),
                flags: random.below(4),
                ..Mappings::default()
            };
            let big = |r: &mut common::Random| match r.below(4) {
                0 => u64::MAX - r.below(9),
                1 => r.below(1 << 20),
                _ => r.below(64),
            };
            m.gone = (0..random.below(4)).map(|_| big(&mut random)).collect();
            m.new = (0..7 * random.below(4)).map(|_| big(&mut random)).collect();
            m.usage_ticks = Ticks(random.below(2) * at);
            m.usage = (0..10 * random.below(4)).map(|_| big(&mut random)).collect();
            m.ours = (0..random.below(4)).map(|_| big(&mut random)).collect();
            m.stacks = (0..random.below(6)).map(|_| big(&mut random)).collect();
            looks.push(m);
        }
        let (a, _file) = analysis(&looks);
        let maps = Maps::of(&a).expect("mappings");
        let all = MapsOptions { details: true, over_time: true, ..MapsOptions::default() };
        let report = MapsReport::new(&a, &maps, &MapFilter::default(), &all);
        assert!(report.json().contains("maps_recorded"));
    }
}

#[test]
fn blocks_are_selected_by_their_mapping() {
    let mut m = Maker::new();
    let looks = [
        first(&[], &[line(0x1000, 0x3000, RW, 0), line(0x9000, 0xa000, RW, 0)]),
        look(500, &[], &[0x1000], &[line(0x1000, 0x2000, RW, 0)]),
    ];
    m.pass(START);
    looks.iter().for_each(|l| _ = m.put(kind::MAPPINGS, &l.encode()));
    m.nodes(&[[1, 0, 1]]).pcs(&[[1, 0x77, 0]]);
    let blocks = [
        alloc(START + 100, 0x1010, 16, 1),
        alloc(START + 110, 0x2010, 32, 1),
        alloc(START + 120, 0x9010, 64, 1),
        // The mapping has been cut there before.
        alloc(START + 600, 0x2800, 128, 1),
    ];
    m.events(1, &blocks).pass(START + 1000).end(START + 1000);
    let file = m.file();
    let index = Index::open(&file.0, &IndexOptions::default()).expect("an index");
    let bytes = |ids: &str| {
        let mut f = Filter::default();
        f.set("from_map", ids).expect("a filter");
        let query = Query::new(&index, &f).map_err(|e| e.to_string())?;
        let analysis = query.analysis(None).expect("figures");
        Ok::<u64, String>(analysis.totals().figures.live_bytes)
    };
    assert_eq!((bytes("0"), bytes("1"), bytes("0,1")), (Ok(48), Ok(64), Ok(112)));
    assert!(bytes("2").expect_err("no such mapping").contains("numbered from 0"));
}
