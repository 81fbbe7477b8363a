//! Filters compared with a naive evaluation, on random programs.

mod common;

use common::world::{Block, World, describe, functions, make, write};
use common::{Maker, Random, START};
use prof_analyze::heap::BlockStats;
use prof_analyze::index::{IndexOptions, Keep};
use prof_analyze::query::{FIELDS, Field, Filter, Query, QueryError};
use prof_analyze::{Analysis, Index};
use prof_trace::pack::Compress;
use prof_trace::size::GlibcChunks;
use prof_trace::ticks::Ticks;
use std::collections::{BTreeMap, HashMap};

const NEVER: IndexOptions = IndexOptions {
    keep: Keep::Never,
    load: prof_analyze::LoadOptions { pending_bytes: 64 << 20 },
    dir: None,
};

/// The data of the naive evaluation.
struct Truth<'a> {
    w: &'a World,
    /// All blocks, by stack.
    groups: HashMap<u32, Vec<Block>>,
    chains: HashMap<u32, Vec<Block>>,
    nodes_of_reallocs: HashMap<(u64, u32), u32>,
    runtime: u64,
    middle: u64,
    end: u64,
}

/// Returns nanoseconds since the start, as the recordings' ticks are nanoseconds.
fn ns(ticks: u64) -> u64 {
    ticks - START
}

impl<'a> Truth<'a> {
    fn new(w: &'a World, end: u64, middle: u64) -> Self {
        let (mut groups, mut chains) =
            (HashMap::<_, Vec<Block>>::new(), HashMap::<_, Vec<_>>::new());
        for b in &w.blocks {
            groups.entry(b.node).or_default().push(*b);
            if b.chain != 0 {
                chains.entry(b.chain).or_default().push(*b);
            }
        }
        chains.values_mut().for_each(|c| c.sort_by_key(|b| b.position));
        let reallocs = w.steps.iter().filter_map(|(t, e)| match e {
            prof_trace::event::Event::Realloc { time_before, node, .. } => {
                Some(((time_before.0, *t), *node))
            }
            _ => None,
        });
        let nodes_of_reallocs = reallocs.collect();
        Self { w, groups, chains, nodes_of_reallocs, runtime: ns(end), middle, end }
    }

    fn time(&self, text: &str) -> u64 {
        match text.strip_suffix('%') {
            Some(p) => (self.runtime as f64 * (p.parse::<f64>().unwrap() / 100.0)).round() as u64,
            None => text.strip_suffix("ns").unwrap().parse().unwrap(),
        }
    }

    fn mark(&self, name: &str) -> u64 {
        let all = common::world::marks(self.middle);
        match name.strip_prefix('#') {
            Some(number) => all[number.parse::<usize>().unwrap() - 1].0,
            None => all.iter().rev().find(|m| m.1 == name).unwrap().0,
        }
    }

    fn lifetime(&self, begin: u64, end: Option<(u64, u32)>) -> u64 {
        end.map_or(self.end, |e| e.0) - begin
    }

    fn group(&self, b: &Block, name: &str, text: &str) -> Option<bool> {
        let g = &self.groups[&b.node];
        let leaked = g.iter().filter(|b| b.end.is_none()).count() as f64;
        let least = name.starts_with("min-");
        let within = |v: f64, limit: f64| if least { v >= limit } else { v <= limit };
        let begins = g.iter().map(|b| b.begin);
        Some(match &name[4..] {
            "group-allocations" => within(g.len() as f64, text.parse().unwrap()),
            "group-leaked" => match text.strip_suffix('%') {
                Some(p) => within(leaked, p.parse::<f64>().unwrap() / 100.0 * g.len() as f64),
                None => within(leaked, text.parse().unwrap()),
            },
            "group-interval" => {
                let interval = begins.clone().max()? - begins.min()?;
                within(interval as f64, self.time(text) as f64)
            }
            "group-peak-at" => within(ns(peak(g).2) as f64, self.time(text) as f64),
            _ => return None,
        })
    }

    fn chain(&self, b: &Block, name: &str, text: &str) -> Option<bool> {
        let alone = vec![*b];
        let c = self.chains.get(&b.chain).unwrap_or(&alone);
        let (first, last) = (c.first()?, c.last()?);
        let value = match &name[4..] {
            "chain-length" => c.len() as u64,
            "chain-position" => b.position.into(),
            "chain-lifetime" => self.lifetime(first.begin, last.end),
            "first-size" => first.size,
            "last-size" => last.size,
            _ => return None,
        };
        let limit =
            if name.ends_with("lifetime") { self.time(text) } else { text.parse().unwrap() };
        Some(if name.starts_with("min-") { value >= limit } else { value <= limit })
    }

    fn lifetime_is(&self, b: &Block, text: &str) -> bool {
        match text {
            "all" => true,
            "leaked" => b.end.is_none(),
            "freed" => b.end.is_some(),
            "temporary" => b.temporary,
            "whole-group-leaked" => self.groups[&b.node].iter().all(|b| b.end.is_none()),
            "chain-leaked" => match self.chains.get(&b.chain) {
                Some(c) => c.last().unwrap().end.is_none(),
                None => b.end.is_none(),
            },
            _ => panic!("{text}"),
        }
    }

    /// Returns whether a block meets the condition of a field.
    fn allows(&self, b: &Block, name: &str, text: &str) -> bool {
        let number = || text.parse::<u64>().unwrap();
        let frames = functions(b.node);
        let matches = |what: &dyn Fn(u32) -> String| {
            let r = regex::Regex::new(text).unwrap();
            frames.iter().any(|f| r.is_match(&what(*f)))
        };
        let function = |f: u32| format!("f{f}_");
        let module = |f: u32| ["/lib/one.so", "/lib/two.so"][f as usize % 2].to_owned();
        let ids = || text.split(',').map(|t| t.parse::<u32>().unwrap()).collect::<Vec<_>>();
        match name {
            "from" => ns(b.begin) >= self.time(text),
            "to" => ns(b.begin) <= self.time(text),
            "since" => b.begin >= self.mark(text),
            "between" => {
                let (from, to) = text.split_once(',').unwrap();
                (self.mark(from)..self.mark(to)).contains(&b.begin)
            }
            "marker" => {
                let passed =
                    common::world::marks(self.middle).iter().filter(|m| m.0 <= b.begin).count();
                passed as u64 == number()
            }
            "jemalloc" => text == "no",
            "freed-from" => b.end.is_some_and(|e| ns(e.0) >= self.time(text)),
            "freed-to" => b.end.is_some_and(|e| ns(e.0) <= self.time(text)),
            "held-until" => b.end.is_none_or(|e| ns(e.0) >= self.time(text)),
            "alive-at" | "alive-at-2" => {
                let t = self.time(text);
                ns(b.begin) <= t && b.end.is_none_or(|e| ns(e.0) > t)
            }
            "lifetime" => self.lifetime_is(b, text),
            "older" => ns(b.begin) + self.time(text) <= self.runtime,
            "min-lifetime" => self.lifetime(b.begin, b.end) >= self.time(text),
            "max-lifetime" => self.lifetime(b.begin, b.end) <= self.time(text),
            "min-size" => b.size >= number(),
            "max-size" => b.size <= number(),
            "min-address" => b.addr >= number(),
            "max-address" => b.addr <= number(),
            "thread" => {
                let name = if b.thread.is_multiple_of(2) { "even" } else { "odd-one" };
                name.contains(text) || (100 + b.thread).to_string() == text
            }
            "part" => (b.begin > self.middle) == (text == "2"),
            "function" => matches(&function),
            "not-function" => !matches(&function),
            "module" => matches(&module),
            "not-module" => !matches(&module),
            "source" => false, // no module has files
            "not-source" => true,
            "min-depth" => frames.len() as u64 >= number(),
            "max-depth" => frames.len() as u64 <= number(),
            "stacks" => ids().contains(&b.node),
            "mmapped" => b.header.is_known() && b.header.mapped == (text == "yes"),
            "arena" => b.header.arena == if text == "main" { 1 } else { 2 },
            "min-usable-size" => {
                GlibcChunks::of(8).usable(b.size, b.header).is_some_and(|u| u >= number())
            }
            "max-usable-size" => {
                GlibcChunks::of(8).usable(b.size, b.header).is_some_and(|u| u <= number())
            }
            "free-stacks" => {
                let at = b.end.filter(|_| b.continued).and_then(|e| self.nodes_of_reallocs.get(&e));
                at.is_some_and(|n| ids().contains(n))
            }
            _ => self.group(b, name, text).or_else(|| self.chain(b, name, text)).expect(name),
        }
    }
}

/// Returns the greatest number of blocks and of bytes that were live at any time, and the time when the latter was
/// reached.
fn peak(blocks: &[Block]) -> (u64, u64, u64) {
    let begins = blocks.iter().map(|b| (b.begin, 1, b.size));
    let mut steps: Vec<_> =
        begins.chain(blocks.iter().filter_map(|b| Some((b.end?.0, 0, b.size)))).collect();
    steps.sort();
    let (mut count, mut bytes, mut most) = (0u64, 0u64, (0, 0, 0));
    for (time, begins, size) in steps {
        if begins == 0 {
            (count, bytes) = (count - 1, bytes - size);
            continue;
        }
        (count, bytes) = (count + 1, bytes + size);
        most.0 = most.0.max(count);
        if bytes > most.1 {
            (most.1, most.2) = (bytes, time);
        }
    }
    most
}

/// Returns the figures of some blocks at a moment.
fn figures(blocks: &[Block], at: u64) -> BlockStats {
    let until: Vec<Block> = blocks
        .iter()
        .filter(|b| b.begin <= at)
        .map(|b| Block { end: b.end.filter(|e| e.0 <= at), ..*b })
        .collect();
    let live: Vec<_> = until.iter().filter(|b| b.end.is_none()).collect();
    let (peak_count, peak_bytes, _) = peak(&until);
    let again = until.iter().filter(|b| b.position > 0).count() as u64;
    BlockStats {
        live_count: live.len() as u64,
        live_bytes: live.iter().map(|b| b.size).sum(),
        peak_count,
        peak_bytes,
        allocations: until.len() as u64 - again,
        reallocations: again,
        allocated_bytes: until.iter().map(|b| b.size).sum(),
        temporary: until.iter().filter(|b| b.temporary && b.end.is_some()).count() as u64,
        ..BlockStats::default()
    }
}

/// Returns a value for a field that mostly selects some blocks, but not all.
fn value(r: &mut Random, w: &World, name: &str, kind: &str, runtime: u64) -> String {
    let small = |r: &mut Random| r.below(200);
    match (name, kind) {
        ("thread", _) => ["even", "odd", "e", "101"][r.below(4) as usize].into(),
        ("part", _) => (1 + r.below(2)).to_string(),
        ("lifetime", _) => {
            ["all", "leaked", "freed", "temporary", "chain-leaked", "whole-group-leaked"]
                [r.below(6) as usize]
                .into()
        }
        ("marker", _) => r.below(4).to_string(),
        ("mmapped" | "jemalloc", _) => ["yes", "no"][r.below(2) as usize].into(),
        ("arena", _) => ["main", "non-main"][r.below(2) as usize].into(),
        ("module" | "not-module", _) => ["one", "two", "^/lib/", "x"][r.below(4) as usize].into(),
        (_, "MARK") => ["#1", "deployed", "warm"][r.below(3) as usize].into(),
        (_, "MARK,MARK") => {
            ["#1,deployed", "deployed,warm", "#1,#3", "warm,warm"][r.below(4) as usize].into()
        }
        (_, "REGEX") => format!("^f{}_$", 1 + r.below(20)),
        (_, "ID,...") => format!("{},{},{}", 1 + r.below(20), 1 + r.below(20), 77),
        ("min-lifetime" | "max-lifetime" | "min-chain-lifetime" | "max-chain-lifetime", _) => {
            format!("{}ns", small(r) * small(r) / 10)
        }
        // What is after the end is wrong usage.
        (_, "TIME") if r.below(2) == 0 => format!("{}%", r.below(101)),
        (_, "TIME") => format!("{}ns", r.below(runtime)),
        (_, "ADDR") => (16 * r.below(400)).to_string(),
        (_, "SIZE") => r.below(5000).to_string(),
        ("min-depth" | "max-depth", _) => r.below(6).to_string(),
        ("min-chain-length" | "max-chain-length", _) => (1 + r.below(6)).to_string(),
        ("min-chain-position" | "max-chain-position", _) => r.below(4).to_string(),
        ("min-group-allocations" | "max-group-allocations", _) => {
            (w.blocks.len() as u64 / 25 + small(r) / 8).to_string()
        }
        (_, "N|N%") if r.below(2) == 0 => format!("{}%", r.below(40)),
        _ => r.below(40).to_string(),
    }
}

fn by_node(a: &Analysis) -> BTreeMap<u32, BlockStats> {
    a.groups().iter().map(|g| (g.node, g.figures)).collect()
}

fn check(index: &Index, truth: &Truth<'_>, given: &[(&str, String)], at: Option<Ticks>) -> usize {
    let mut filter = Filter::default();
    for (name, text) in given {
        filter.set(name, text).unwrap_or_else(|e| panic!("{e}: {text}"));
    }
    let allows = |b: &&Block| given.iter().all(|(name, text)| truth.allows(b, name, text));
    let selected: Vec<Block> = truth.w.blocks.iter().filter(allows).copied().collect();
    let until = at.map_or(u64::MAX - 1, |at| at.0);
    let query = match Query::new(index, &filter) {
        Ok(query) => query,
        Err(QueryError::Missing(why)) if why.contains("later than --to") => {
            assert!(selected.is_empty(), "{given:?}: {why}");
            return 0;
        }
        Err(e) => panic!("{given:?}: {e}"),
    };
    let got = query.analysis(at).expect("readable");
    let mut expected: BTreeMap<u32, Vec<Block>> = BTreeMap::new();
    for b in selected.iter().filter(|b| b.begin <= until) {
        expected.entry(b.node).or_default().push(*b);
    }
    let expected: BTreeMap<u32, BlockStats> =
        expected.into_iter().map(|(n, blocks)| (n, figures(&blocks, until))).collect();
    assert_eq!(by_node(&got), expected, "{given:?} at {at:?}");
    assert_eq!(got.totals().figures, figures(&selected, until), "{given:?} at {at:?}");
    if !given.is_empty() && !selected.is_empty() {
        assert_eq!(
            ns(got.totals().peak_ticks.max(Ticks(START)).0),
            ns(peak_at(&selected, until)),
            "{given:?}"
        );
    }
    selected.len()
}

fn peak_at(blocks: &[Block], until: u64) -> u64 {
    let until: Vec<Block> = blocks.iter().filter(|b| b.begin <= until).copied().collect();
    peak(&until).2.max(START)
}

#[test]
fn filters_let_through_what_a_naive_evaluation_does() {
    // `from-map` needs mappings, which these recordings do not have: see maps.rs.
    let usable = |f: &&Field| f.refused.is_none() && f.name != "from-map";
    let fields: Vec<_> = FIELDS.iter().filter(usable).collect();
    let (mut some, mut tried) = (0, 0);
    for seed in 1..=3u64 {
        let mut r = Random(seed * 0x9e37_79b9);
        let w = make(&mut r, 900, 7);
        let mut m = write(&mut r, &w, 7, Compress::None);
        let end = w.steps.last().unwrap().1.time() + 1;
        let middle = START + ns(end.0) / 2;
        describe(&mut m, middle);
        let file = m.file();
        let index = Index::open(&file.0, &NEVER).expect("an index");
        let truth = Truth::new(&w, end.0, middle);
        assert_eq!(index.analysis().duration_ns(), truth.runtime);
        for f in &fields {
            for _ in 0..3 {
                let given = [(f.name, value(&mut r, &w, f.name, f.value, truth.runtime))];
                let n = check(&index, &truth, &given, None);
                tried += 1;
                some += usize::from(n > 0 && n < w.blocks.len());
            }
        }
        for _ in 0..120 {
            let given: Vec<_> = (0..r.below(4))
                .map(|_| {
                    let f = fields[r.below(fields.len() as u64) as usize];
                    (f.name, value(&mut r, &w, f.name, f.value, truth.runtime))
                })
                .collect();
            let at = (r.below(3) == 0).then(|| Ticks(START + r.below(truth.runtime)));
            // Without filter and moment it is the plain replay, whose peaks include the order of events within a tick.
            if !given.is_empty() || at.is_some() {
                check(&index, &truth, &given, at);
            }
        }
    }
    assert!(some * 2 > tried, "most filters must divide: {some} of {tried}");
}

#[test]
fn what_is_not_there_is_named() {
    let mut r = Random(5);
    let w = make(&mut r, 300, 3);
    let mut m = write(&mut r, &w, 3, Compress::None);
    describe(&mut m, START + 100);
    let file = m.file();
    let index = Index::open(&file.0, &NEVER).expect("an index");
    for (name, text, say) in [
        ("thread", "nobody", "prof report --threads"),
        ("part", "3", "the recording has 2"),
        ("part", "0", "numbered from 1"),
    ] {
        let mut f = Filter::default();
        f.set(name, text).expect("a filter");
        let e = Query::new(&index, &f).map(|_| ()).expect_err("not there").to_string();
        assert!(e.contains(say), "{e}");
    }
}

#[test]
fn events_come_in_order_over_many_windows() {
    let mut r = Random(9);
    let w = make(&mut r, 4000, 3);
    let file = write(&mut r, &w, 3, Compress::None).file();
    let index = Index::open(&file.0, &NEVER).expect("an index");
    let query = Query::new(&index, &Filter::default()).expect("a query");
    for most in [50, 1000, 1 << 20] {
        let (mut last, mut live, mut n) = (Ticks::ZERO, HashMap::new(), 0);
        query
            .in_order_of(Ticks::MAX, most, |e| {
                assert!(e.time() >= last);
                last = e.time();
                n += 1;
                match e.begins() {
                    true => assert_eq!(live.insert(e.addr, e.size), None),
                    false => assert_eq!(live.remove(&e.addr), Some(e.size)),
                }
            })
            .expect("readable");
        let ends = w.blocks.iter().filter(|b| b.end.is_some()).count();
        assert_eq!(n, w.blocks.len() + ends);
        assert_eq!(live.values().sum::<u64>(), w.live);
    }
}

#[test]
fn filtered_samples_are_estimated_as_whole_ones_are() {
    let mut r = Random(11);
    let w = make(&mut r, 2000, 3);
    let mut m = write(&mut r, &w, 3, Compress::None);
    let plain = prof_trace::records::Target { sample_bytes: 4096, ..common::target() };
    let mut head = Maker::of(&plain).bytes;
    let first = Maker::new().bytes.len();
    head.extend_from_slice(&m.bytes[first..]);
    m.bytes = head;
    let file = m.file();
    let index = Index::open(&file.0, &NEVER).expect("an index");
    let whole = index.analysis();
    assert!(whole.totals().errors.live_bytes > 0, "it is a sample");
    let mut all = Filter::default();
    all.set("min-size", "0").expect("a filter");
    let got = Query::new(&index, &all).and_then(|q| Ok(q.analysis(None)?)).expect("figures");
    assert_eq!(got.totals().figures, whole.totals().figures);
    assert_eq!(got.totals().errors, whole.totals().errors);
    assert_eq!(got.totals().peak_ticks, whole.totals().peak_ticks);
    for (a, b) in got.groups().iter().zip(whole.groups()) {
        assert_eq!((a.node, a.figures, a.errors), (b.node, b.figures, b.errors));
    }
    // The index keeps the estimates as well.
    let always = IndexOptions { keep: Keep::Always, ..NEVER };
    for _ in 0..2 {
        let again = Index::open(&file.0, &always).expect("an index");
        assert_eq!(again.analysis().totals(), whole.totals());
        assert_eq!(again.analysis().groups(), whole.groups());
    }
    std::fs::remove_file(prof_analyze::index::path_of(&file.0)).expect("an index");
}
