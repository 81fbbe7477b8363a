//! Every name against a naive evaluation, on recordings of random programs.

mod as_script;
#[path = "../../../tests/common/mod.rs"]
mod common;
mod each;
mod graphs;
mod maps;
mod objects;
mod odd;
mod running;
mod saved;
mod scans;

use common::world::{Block, World, describe, functions, make, write};
use common::{Random, START};
use prof_analyze::IndexOptions;
use prof_analyze::index::Keep;
use prof_analyze::query::RowSet;
use prof_script::{
    ErrorKind, FileKind, Limits, Output, OutputLimits, Ran, Recording, Script, ScriptError,
    ScriptOptions, Virtual, help, names, reference,
};
use prof_trace::pack::Compress;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

const NEVER: IndexOptions = IndexOptions {
    keep: Keep::Never,
    load: prof_analyze::LoadOptions { pending_bytes: 64 << 20 },
    dir: None,
};

/// A random program, its recording, and a script's engine on it.
struct Bench {
    _file: common::Temp,
    w: World,
    end: u64,
    data: Arc<Recording>,
    script: Script,
    out: Rc<RefCell<Vec<Output>>>,
    /// The scans in it.
    graphs: Vec<scans::Graph>,
}

fn ns(ticks: u64) -> u64 {
    ticks - START
}

fn engine(data: &[Arc<Recording>], limits: Option<Limits>) -> (Script, Rc<RefCell<Vec<Output>>>) {
    let out: Rc<RefCell<Vec<Output>>> = Rc::default();
    let own = out.clone();
    let sink = move |output| {
        own.borrow_mut().push(output);
        Ok(())
    };
    let host = Virtual::new(OutputLimits::default(), Box::new(sink));
    let mut options = ScriptOptions::new(Box::new(host));
    options.data = data.to_vec();
    options.argv = vec!["one".into(), "two words".into()];
    options.limits = limits;
    (Script::new(options), out)
}

fn bench(seed: u64, steps: usize) -> Bench {
    let mut r = Random(seed * 0x9e37_79b9);
    let w = make(&mut r, steps, 7);
    let middle = w.steps[w.steps.len() / 2].1.time();
    let mut m = write(&mut r, &w, 7, Compress::None);
    describe(&mut m, middle.0);
    let graphs = scans::graphs(&mut r, &w);
    scans::write_all(&graphs, &mut m);
    let file = m.file();
    let data = Recording::open(&file.0, &NEVER).expect("a recording");
    let end = w.steps.last().map_or(2000, |s| s.1.time().0) + 1;
    let (script, out) = engine(std::slice::from_ref(&data), None);
    Bench { _file: file, w, end, data, script, out, graphs }
}

impl Bench {
    /// Returns the ticks of the marks.
    fn marks(&self) -> [u64; 3] {
        let middle = self.w.steps[self.w.steps.len() / 2].1.time();
        common::world::marks(middle.0).map(|m| m.0)
    }

    /// Runs code, and returns the lines that it prints.
    #[track_caller]
    fn lines(&mut self, code: &str) -> Vec<String> {
        self.out.borrow_mut().clear();
        self.script.run(code).unwrap_or_else(|e| panic!("{code}: {e}"));
        let out = self.out.borrow();
        let line = |o: &Output| match o {
            Output::Line(text) => Some(text.clone()),
            Output::File { .. } => None,
        };
        out.iter().filter_map(line).filter(|l| !l.starts_with("note: ")).collect()
    }

    /// Returns the blocks of the list that code has as its value, in their order.
    #[track_caller]
    fn blocks(&mut self, code: &str) -> Vec<(u64, u64)> {
        let rows: Arc<RowSet> = self.script.rows(code).unwrap_or_else(|e| panic!("{code}: {e}"));
        let rows: Vec<u64> = rows.iter().collect();
        let rows = self.data.index().block_rows(&rows).expect("rows");
        let mut found: Vec<_> = rows.iter().map(|b| (b.begin_ns, b.address)).collect();
        found.sort_unstable();
        found
    }

    fn selected(&self, allows: impl Fn(&Block) -> bool) -> Vec<(u64, u64)> {
        let blocks = self.w.blocks.iter().filter(|b| allows(b));
        let mut found: Vec<_> = blocks.map(|b| (ns(b.begin), b.addr)).collect();
        found.sort_unstable();
        found
    }

    fn lived(&self, begin: u64, end: Option<(u64, u32)>) -> u64 {
        end.map_or(self.end, |e| e.0) - begin
    }
}

/// Figures of all blocks by the naive evaluation.
struct Truth {
    groups: HashMap<u32, Vec<Block>>,
    chains: HashMap<u32, Vec<Block>>,
    frees: HashMap<(u64, u32), u32>,
}

impl Truth {
    fn of(w: &World) -> Self {
        let (mut groups, mut chains) = (HashMap::new(), HashMap::new());
        for b in &w.blocks {
            groups.entry(b.node).or_insert_with(Vec::new).push(*b);
            if b.chain != 0 {
                chains.entry(b.chain).or_insert_with(Vec::new).push(*b);
            }
        }
        chains.values_mut().for_each(|c: &mut Vec<Block>| c.sort_by_key(|b| b.position));
        let of = |(t, e): &(u32, prof_trace::event::Event)| match e {
            prof_trace::event::Event::Realloc { time_before, node, .. } => {
                Some(((time_before.0, *t), *node))
            }
            _ => None,
        };
        Self { groups, chains, frees: w.steps.iter().filter_map(of).collect() }
    }

    fn chain(&self, b: &Block) -> Vec<Block> {
        self.chains.get(&b.chain).cloned().unwrap_or_else(|| vec![*b])
    }

    /// Returns when the blocks of a stack first held the most bytes.
    fn peak_at(&self, node: u32) -> u64 {
        let mut steps = Vec::new();
        for b in &self.groups[&node] {
            steps.push((b.begin, 1, b.size));
            steps.extend(b.end.map(|e| (e.0, 0, b.size)));
        }
        steps.sort_unstable();
        let (mut live, mut most, mut at) = (0u64, 0, steps[0].0);
        for (time, begins, size) in steps {
            live = if begins == 1 { live + size } else { live - size };
            if live > most {
                (most, at) = (live, time);
            }
        }
        at
    }
}

/// Returns the argument of a method as code, and the blocks that it must keep.
fn case(b: &Bench, t: &Truth, r: &mut Random, name: &str) -> Option<(String, Vec<(u64, u64)>)> {
    let runtime = ns(b.end);
    let base = name.strip_prefix("only_")?;
    let least = base.ends_with("_at_least");
    let (number, time) = (r.below(4000), r.below(runtime));
    let node = 1 + r.below(20) as u32;
    let within = |v: u64, limit: u64| if least { v >= limit } else { v <= limit };
    let compare = |v: u64, limit: u64| match base {
        _ if base.ends_with("larger_or_equal") => v >= limit,
        _ if base.ends_with("larger") => v > limit,
        _ if base.ends_with("smaller_or_equal") => v <= limit,
        _ => v < limit,
    };
    let has = |b: &Block, re: &str| {
        let re = regex::Regex::new(re).expect("a regex");
        functions(b.node).iter().any(|f| re.is_match(&format!("f{f}_")))
    };
    let module = |b: &Block| functions(b.node).iter().any(|f| f.is_multiple_of(2));
    let duration = format!("ns({time})");
    let group = |of: &Block| t.groups[&of.node].clone();
    let leaked = |of: &Block| group(of).iter().filter(|b| b.end.is_none()).count() as u64;
    let freed_at = |b: &Block| b.end.filter(|_| b.continued).and_then(|e| t.frees.get(&e)).copied();
    let text = format!("\"^f{node}_$\"");
    let few = 1 + r.below(4);
    Some(match base {
        "passing_through_function" => (text, b.selected(|b| has(b, &format!("^f{node}_$")))),
        "not_passing_through_function" => (text, b.selected(|b| !has(b, &format!("^f{node}_$")))),
        // No module has source files.
        "passing_through_source" => ("\".\"".into(), Vec::new()),
        "not_passing_through_source" => ("\".\"".into(), b.selected(|_| true)),
        "passing_through_module" => ("\"one\"".into(), b.selected(module)),
        "not_passing_through_module" => ("\"one\"".into(), b.selected(|b| !module(b))),
        "matching_backtraces" => (format!("[{node}, 77]"), b.selected(|b| b.node == node)),
        "not_matching_backtraces" => (format!("[[{node}], 77]"), b.selected(|b| b.node != node)),
        "matching_deallocation_backtraces" => {
            (node.to_string(), b.selected(|b| freed_at(b) == Some(node)))
        }
        "not_matching_deallocation_backtraces" => {
            (node.to_string(), b.selected(|b| freed_at(b) != Some(node)))
        }
        "backtrace_length_at_least" | "backtrace_length_at_most" => {
            (few.to_string(), b.selected(|b| within(functions(b.node).len() as u64, few)))
        }
        "larger" | "larger_or_equal" | "smaller" | "smaller_or_equal" => {
            let exact = b.w.blocks[r.below(b.w.blocks.len() as u64) as usize].size;
            (exact.to_string(), b.selected(|b| compare(b.size, exact)))
        }
        _ if base.starts_with("first_size") => {
            (number.to_string(), b.selected(|b| compare(t.chain(b)[0].size, number)))
        }
        _ if base.starts_with("last_size") => {
            let last = |b: &Block| t.chain(b).last().map_or(0, |b| b.size);
            (number.to_string(), b.selected(|b| compare(last(b), number)))
        }
        "address_at_least" | "address_at_most" => {
            (number.to_string(), b.selected(|b| within(b.addr, number)))
        }
        "allocated_after_at_least" => (duration, b.selected(|b| ns(b.begin) >= time)),
        "allocated_until_at_most" => (duration, b.selected(|b| ns(b.begin) <= time)),
        "deallocated_after_at_least" => {
            (duration, b.selected(|b| b.end.is_some_and(|e| ns(e.0) >= time)))
        }
        "deallocated_until_at_most" => {
            (duration, b.selected(|b| b.end.is_some_and(|e| ns(e.0) <= time)))
        }
        "not_deallocated_after_at_least" => {
            (duration, b.selected(|b| b.end.is_none_or(|e| ns(e.0) < time)))
        }
        "not_deallocated_until_at_most" => {
            (duration, b.selected(|b| b.end.is_none_or(|e| ns(e.0) > time)))
        }
        "leaked_or_deallocated_after" => {
            (duration, b.selected(|b| b.end.is_none_or(|e| ns(e.0) >= time)))
        }
        "alive_for_at_least" | "alive_for_at_most" => {
            let time = time / 8;
            (format!("ns({time})"), b.selected(|x| within(b.lived(x.begin, x.end), time)))
        }
        "alive_at" => {
            let later = time + r.below(40);
            let alive = |b: &Block, t: u64| ns(b.begin) <= t && b.end.is_none_or(|e| ns(e.0) > t);
            let both = b.selected(|b| alive(b, time) && alive(b, later.min(runtime)));
            (format!("[ns({time}), ns({later})]"), both)
        }
        "older" => (duration, b.selected(|b| ns(b.begin) + time <= runtime)),
        "leaked" => (String::new(), b.selected(|b| b.end.is_none())),
        "temporary" => (String::new(), b.selected(|b| b.end.is_some())),
        "temporary_of_thread" => (String::new(), b.selected(|b| b.temporary)),
        "chain_leaked" => {
            (String::new(), b.selected(|b| t.chain(b).last().is_some_and(|b| b.end.is_none())))
        }
        "whole_group_leaked" => {
            (String::new(), b.selected(|b| group(b).iter().all(|b| b.end.is_none())))
        }
        "chain_length_at_least" | "chain_length_at_most" => {
            (few.to_string(), b.selected(|b| within(t.chain(b).len() as u64, few)))
        }
        "chain_alive_for_at_least" | "chain_alive_for_at_most" => {
            let long = |x: &Block| {
                let c = t.chain(x);
                b.lived(c[0].begin, c[c.len() - 1].end)
            };
            (duration, b.selected(|x| within(long(x), time)))
        }
        "position_in_chain_at_least" | "position_in_chain_at_most" => {
            (few.to_string(), b.selected(|b| within(b.position.into(), few)))
        }
        "group_allocations_at_least" | "group_allocations_at_most" => {
            let many = b.w.blocks.len() as u64 / 20;
            (many.to_string(), b.selected(|b| within(group(b).len() as u64, many)))
        }
        "group_interval_at_least" | "group_interval_at_most" => {
            let long = |b: &Block| {
                let begins = || t.groups[&b.node].iter().map(|b| b.begin);
                begins().max().unwrap_or(0) - begins().min().unwrap_or(0)
            };
            let time = runtime - r.below(runtime / 10);
            (format!("ns({time})"), b.selected(|b| within(long(b), time)))
        }
        _ if base.starts_with("group_max_total_usage_first_seen") => {
            (duration, b.selected(|b| within(ns(t.peak_at(b.node)), time)))
        }
        _ if base.starts_with("group_leaked_allocations") && r.below(2) == 0 => {
            let part = r.below(10) as f64 / 100.0;
            let of = |b: &Block| {
                let (some, limit) = (leaked(b) as f64, part * group(b).len() as f64);
                if least { some >= limit } else { some <= limit }
            };
            (format!("{part:?}"), b.selected(of))
        }
        _ if base.starts_with("group_leaked_allocations") => {
            (few.to_string(), b.selected(|b| within(leaked(b), few)))
        }
        "ptmalloc_mmaped" | "mmaped" => {
            (String::new(), b.selected(|b| b.header.is_known() && b.header.mapped))
        }
        "ptmalloc_not_mmaped" | "not_mmaped" => {
            (String::new(), b.selected(|b| b.header.is_known() && !b.header.mapped))
        }
        "ptmalloc_from_main_arena" | "from_main_arena" => {
            (String::new(), b.selected(|b| b.header.arena == 1))
        }
        "ptmalloc_not_from_main_arena" | "from_not_main_arena" => {
            (String::new(), b.selected(|b| b.header.arena == 2))
        }
        "usable_size_at_least" | "usable_size_at_most" => {
            let usable = |b: &Block| prof_trace::size::GlibcChunks::of(8).usable(b.size, b.header);
            (number.to_string(), b.selected(|b| usable(b).is_some_and(|u| within(u, number))))
        }
        "thread" => ("\"even\"".into(), b.selected(|b| b.thread.is_multiple_of(2))),
        "part" => {
            let middle = b.w.steps[b.w.steps.len() / 2].1.time();
            ("2".into(), b.selected(|b| b.begin > middle.0))
        }
        "since" => {
            let [first, deployed, warm] = b.marks();
            let (name, from) =
                [("#1", first), ("deployed", deployed), ("warm", warm)][r.below(3) as usize];
            (format!("{name:?}"), b.selected(|b| b.begin >= from))
        }
        "between" => {
            let [first, deployed, warm] = b.marks();
            let all = [("#1,deployed", first..deployed), ("deployed, #3", deployed..warm)];
            let (pair, times) = &all[r.below(2) as usize];
            (format!("{pair:?}"), b.selected(|b| times.contains(&b.begin)))
        }
        "jemalloc" => (String::new(), Vec::new()),
        "not_jemalloc" => (String::new(), b.selected(|_| true)),
        "with_marker" => {
            let [first, second, third] = b.marks();
            let times = [0..first, first..second, second..third, third..u64::MAX, 0..0];
            let number = r.below(times.len() as u64);
            (number.to_string(), b.selected(|b| times[number as usize].contains(&b.begin)))
        }
        _ => return None,
    })
}

#[test]
fn filters_keep_what_a_naive_evaluation_keeps() {
    let mut all = 0;
    for seed in 1..3 {
        let mut b = bench(seed, 1000);
        let (truth, mut r) = (Truth::of(&b.w), Random(seed * 77));
        for n in names().iter().filter(|n| n.of == "AllocationList") {
            // It needs mappings, which only recordings of processes have.
            if !n.name.starts_with("only_") || n.name == "only_from_maps" {
                continue;
            }
            for _ in 0..2 {
                let Some((arg, selected)) = case(&b, &truth, &mut r, &n.name) else {
                    panic!("{} is not tested", n.name);
                };
                let code = format!("allocations().{}({arg})", n.name);
                assert_eq!(b.blocks(&code), selected, "{code}");
                // On top of another filter, whether that is computed yet or not.
                let small = b.selected(|b| b.size <= 2500);
                let both: Vec<_> = selected.iter().filter(|m| small.contains(m)).copied().collect();
                let call = &code["allocations()".len()..];
                let first = format!("let l = allocations().only_smaller_or_equal(2500);\n l{call}");
                assert_eq!(b.blocks(&first), both, "{first}");
                let known = format!("let l = allocations().only_smaller(2501); l.len();\n l{call}");
                assert_eq!(b.blocks(&known), both, "{known}");
                all += selected.len();
            }
        }
    }
    assert!(all > 5000, "{all}");
}

#[test]
fn lists_are_sets_in_the_order_of_time() {
    let mut b = bench(7, 2000);
    let (large, early) = (|b: &Block| b.size > 3000, |b: &Block| ns(b.begin) <= 700);
    const TWO: &str = "let a = allocations().only_larger(3000);\n\
                       let b = allocations().only_allocated_until_at_most(ns(700));\n";
    for (code, selected) in [
        ("a + b", b.selected(|b| large(b) || early(b))),
        ("a - b", b.selected(|b| large(b) && !early(b))),
        ("a & b", b.selected(|b| large(b) && early(b))),
        ("allocations() - a", b.selected(|b| !large(b))),
        ("allocations() & a", b.selected(large)),
        ("a + allocations()", b.selected(|_| true)),
        ("(a - b) + (b - a) + (a & b)", b.selected(|b| large(b) || early(b))),
        ("a - allocations()", Vec::new()),
    ] {
        assert_eq!(b.blocks(&format!("{TWO}{code}")), selected, "{code}");
    }
    // By index and by iteration: in the order of time, and of the index where times are equal.
    let selected = b.selected(large);
    let printed = b.lines(&format!(
        "{TWO}for i in 0..a.len() {{ println(\"{{}} {{}}\", a[i].allocated_at() / ns(1), a[i].address()); }}"
    ));
    let text =
        |m: &[(u64, u64)]| -> Vec<String> { m.iter().map(|(t, a)| format!("{t} {a}")).collect() };
    assert_eq!(printed, text(&selected));
    let each = format!(
        "{TWO}for x in a {{ println(\"{{}} {{}}\", x.allocated_at() / ns(1), x.address()); }}"
    );
    assert_eq!(b.lines(&each), printed);
    for wrong in
        ["allocations()[-1]", "allocations()[99999999]", "allocations().only_larger(9999)[0]"]
    {
        let e = b.script.run(wrong).expect_err("out of range");
        assert!(e.message.contains("out of range"), "{e}");
    }
}

#[test]
fn groups_are_sorted_and_selected() {
    let mut b = bench(9, 2500);
    let t = Truth::of(&b.w);
    let mut groups: Vec<(u32, u64, u64, u64, bool)> = t
        .groups
        .iter()
        .map(|(node, blocks)| {
            let first = blocks.iter().map(|b| b.begin).min().unwrap_or(0);
            let all = blocks.iter().all(|b| b.end.is_none());
            (*node, blocks.len() as u64, blocks.iter().map(|b| b.size).sum(), first, all)
        })
        .collect();
    groups.sort_by_key(|g| g.3);
    let nodes = |g: &[(u32, u64, u64, u64, bool)]| -> Vec<String> {
        g.iter().map(|g| format!("{} {} {}", g.0, g.1, g.2)).collect()
    };
    let print = |call: &str| {
        format!(
            "for g in allocations().group_by_backtrace(){call} {{ println(\"{{}} {{}} {{}}\", g[0].backtrace().id(), g.len(), g.size()); }}"
        )
    };
    assert_eq!(b.lines(&print("")), nodes(&groups));
    let sorted = |key: fn(&(u32, u64, u64, u64, bool)) -> i128| {
        let mut all = groups.clone();
        all.sort_by_key(key);
        nodes(&all)
    };
    assert_eq!(b.lines(&print(".sort_by_size()")), sorted(|g| -i128::from(g.2)));
    assert_eq!(b.lines(&print(".sort_by_size_descending()")), sorted(|g| -i128::from(g.2)));
    assert_eq!(b.lines(&print(".sort_by_size_ascending()")), sorted(|g| i128::from(g.2)));
    assert_eq!(b.lines(&print(".sort_by_count()")), sorted(|g| -i128::from(g.1)));
    assert_eq!(b.lines(&print(".sort_by_count_descending()")), sorted(|g| -i128::from(g.1)));
    assert_eq!(b.lines(&print(".sort_by_count_ascending()")), sorted(|g| i128::from(g.1)));
    assert_eq!(b.lines(&print(".take(3)")), nodes(&groups[..3]));
    assert_eq!(b.lines(&print(".take(-1)")), Vec::<String>::new());
    let many = groups[0].1;
    let often: Vec<_> = groups.iter().filter(|g| g.1 >= many).copied().collect();
    assert_eq!(b.lines(&print(&format!(".only_count_at_least({many})"))), nodes(&often));
    let three: Vec<u32> = groups[..3].iter().map(|g| g.0).collect();
    let taken = b.blocks("allocations().group_by_backtrace().take(3).ungroup()");
    assert_eq!(taken, b.selected(|b| three.contains(&b.node)));
    let leaked = b.lines(&print(".only_all_leaked()"));
    let whole: Vec<_> = groups.iter().filter(|g| g.4).copied().collect();
    assert_eq!(leaked, nodes(&whole));
    // Of blocks that are never freed all groups are leaked as a whole.
    let counts = "let g = allocations().only_leaked().group_by_backtrace(); println(g.len() == g.only_all_leaked().len());";
    assert_eq!(b.lines(counts), ["true"]);
    let sums = b.lines("println(allocations().size()); println(allocations().leaked_size());");
    let live = b.w.blocks.iter().filter(|b| b.end.is_none()).map(|b| b.size).sum::<u64>();
    let all = b.w.blocks.iter().map(|b| b.size).sum::<u64>();
    assert_eq!(sums, [all.to_string(), live.to_string()]);
}

#[test]
fn every_example_runs() {
    let mut b = bench(11, 1500);
    let names = names();
    for n in &names {
        let (mut script, out) = engine(std::slice::from_ref(&b.data), None);
        let ran = script.run(&n.example);
        assert_eq!(ran, Ok(Ran::Whole), "{}: {}", n.title(), n.example);
        let quiet = ["load", "exit", "assert", "chdir", "mkdir_p"].contains(&n.name.as_str())
            || n.of == "Map"
            || n.example.contains("maps()[0]");
        assert!(quiet || !out.borrow().is_empty(), "{} shows nothing: {}", n.title(), n.example);
    }
    // What the page shows is what was registered.
    assert!(names.len() > 190, "{}", names.len());
    assert_eq!(b.lines("println(argv());"), ["[\"one\", \"two words\"]"]);
}

/// To write it anew: `PROF_WRITE_REFERENCE=1 cargo test -p prof-script --test names reference`.
#[test]
fn the_reference_is_that_of_the_registrations() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/src/scripts-reference.md");
    let (names, made) = (names(), reference(&names()));
    if std::env::var_os("PROF_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    let there = std::fs::read_to_string(&path).expect("docs/src/scripts-reference.md");
    assert!(there == made, "docs/src/scripts-reference.md is old: set PROF_WRITE_REFERENCE=1");
    let mut seen = std::collections::HashSet::new();
    for n in &names {
        assert!(seen.insert((n.of, n.name.clone())), "{} is described twice", n.title());
        assert!(n.doc.ends_with('.') && !n.example.is_empty(), "{}", n.title());
        assert!(made.contains(&n.title()), "{} is of no type of the reference", n.title());
    }
    assert!(help(&names, "only_la*").contains("AllocationList.only_larger(n: Integer)"));
    assert!(!help(&names, "only_la*").contains("only_smaller"));
    assert!(help(&names, "").lines().count() >= 2 * names.len());
}
