//! Each name of mappings, against a naive evaluation on made-up ones: seen by looks, made and ended by calls.

use super::*;
use common::{Maker, mmap, munmap};
use prof_trace::records::{
    MAPPINGS_ANEW, MappingLine, MappingUse, Mappings, USAGE_ANEW, kind, perms,
};
use prof_trace::ticks::Ticks;
use serde_json::Value;

/// A mapping as it was made; times since the start.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub begun: u64,
    pub end: Option<u64>,
    pub address: u64,
    pub size: u64,
    pub perms: u64,
    pub name: &'static str,
    pub kind: &'static str,
    /// The stacks that made and ended it; 0: not known.
    pub nodes: (u32, u32),
    /// Resident bytes at looks.
    pub rss: Vec<(u64, u64)>,
}

/// Time between two looks.
const LOOK: u64 = 1000;
pub(super) const RUNTIME: u64 = 20_000;
const PAGE: u64 = 4096;

impl Made {
    pub(super) fn peak(&self) -> u64 {
        self.rss.iter().map(|r| r.1).max().unwrap_or(0)
    }

    pub(super) fn last(&self) -> u64 {
        self.rss.last().map_or(0, |r| r.1)
    }

    fn is_alive(&self, at: u64) -> bool {
        self.begun <= at && self.end.is_none_or(|e| e > at)
    }

    fn lived(&self) -> u64 {
        self.end.unwrap_or(RUNTIME) - self.begun
    }

    fn frames(&self) -> Vec<u32> {
        if self.nodes.0 == 0 { Vec::new() } else { functions(self.nodes.0) }
    }
}

/// Returns the ticks of the marks.
fn marks() -> [u64; 3] {
    common::world::marks(START + RUNTIME / 2).map(|m| m.0)
}

/// Makes mappings that never touch each other, so that none is taken for another's growth.
fn made(r: &mut Random) -> Vec<Made> {
    let kinds = [("", "anonymous"), ("[heap]", "heap"), ("/bin/x", "code"), ("/data/y", "file")];
    let mut all: Vec<Made> = (0..60)
        .map(|i| {
            let (name, kind) = kinds[r.below(4) as usize];
            let mut perms = if r.below(4) == 0 { 0 } else { perms::READ };
            perms |= if r.below(2) == 0 { perms::WRITE } else { 0 };
            perms |= if kind == "code" { perms::EXECUTE } else { 0 };
            let kind = if (kind, perms) == ("anonymous", 0) { "reserved" } else { kind };
            // Half of them by calls, which are of anonymous memory that can be read and written.
            let (by_call, caught_end) = (i % 2 == 0, r.below(2) == 0);
            let begun = if by_call { 1 + r.below(17_000) } else { LOOK * r.below(17) };
            // Each is there at a look at least.
            let mut end = begun + 2500 + r.below(9000);
            end -= if caught_end { 0 } else { end % LOOK };
            Made {
                begun,
                end: (end < 19_000).then_some(end),
                address: 0x100_0000 * (1 + i),
                size: PAGE * (1 + r.below(9)),
                perms: if by_call { perms::READ | perms::WRITE } else { perms },
                name: if by_call { "" } else { name },
                kind: if by_call { "anonymous" } else { kind },
                nodes: (
                    if by_call { 1 + r.below(20) as u32 } else { 0 },
                    if caught_end { 1 + r.below(20) as u32 } else { 0 },
                ),
                rss: Vec::new(),
            }
        })
        .collect();
    for m in &mut all {
        let looks = (m.begun.div_ceil(LOOK)..20).map(|n| n * LOOK);
        let looks: Vec<u64> = looks.filter(|at| m.is_alive(*at)).collect();
        m.rss = looks.iter().map(|at| (*at, PAGE * r.below(1 + m.size / PAGE))).collect();
    }
    all
}

/// Writes a recording of them, with blocks in some of them.
fn written(all: &[Made]) -> Maker {
    let mut m = Maker::new();
    let names = ["[heap]", "/bin/x", "/data/y"];
    m.pass(START);
    common::world::describe(&mut m, START + RUNTIME / 2);
    for n in 0..20 {
        let (at, ticks) = (n * LOOK, START + n * LOOK);
        let before = at.checked_sub(LOOK);
        let calls = all.iter().flat_map(|x| {
            let within = |t: u64| t <= at && before.is_some_and(|b| t > b);
            let (begun, end) = (START + x.begun, START + x.end.unwrap_or(0));
            let made = (x.nodes.0 != 0 && within(x.begun))
                .then(|| mmap(begun - 1, begun, x.address, x.size, x.nodes.0));
            let ended = (x.nodes.1 != 0 && x.end.is_some_and(within))
                .then(|| munmap(end, end + 1, x.address, x.size, x.nodes.1));
            made.into_iter().chain(ended).map(|c| (1, c))
        });
        let mut calls: Vec<_> = calls.collect();
        calls.sort_by_key(|c| c.1.at());
        m.calls(&calls).pass(ticks);
        let flags = if n == 0 { MAPPINGS_ANEW | USAGE_ANEW } else { USAGE_ANEW };
        let mut look = Mappings {
            begun: Ticks(ticks),
            ticks: Ticks(ticks),
            usage_ticks: Ticks(ticks),
            flags,
            names: if n == 0 { names.map(Into::into).to_vec() } else { Vec::new() },
            ..Mappings::default()
        };
        let there = |x: &Made, at: Option<u64>| at.is_some_and(|at| x.is_alive(at));
        let (mut gone, mut new, mut used) = (0, 0, 0);
        for x in all {
            match (there(x, before), there(x, Some(at))) {
                (true, false) => {
                    look.gone.push(x.address - std::mem::replace(&mut gone, x.address))
                }
                (false, true) => {
                    let name = names.iter().position(|n| *n == x.name).map_or(0, |i| i as u64 + 1);
                    let line = MappingLine {
                        start: x.address,
                        end: x.address + x.size,
                        perms: x.perms,
                        inode: if x.name.starts_with('/') { name } else { 0 },
                        name,
                        ..MappingLine::default()
                    };
                    look.put(&line, &mut new);
                }
                _ => {}
            }
            if let Some((_, rss)) = x.rss.iter().find(|r| r.0 == at) {
                let of = MappingUse { rss: *rss, ..MappingUse::default() };
                look.put_usage(x.address, x.address + x.size, &of, &mut used);
            }
        }
        m.put(kind::MAPPINGS, &look.encode());
    }
    m.end(START + RUNTIME);
    m
}

/// A recording with mappings, and what they are in the order of their numbers.
pub(super) fn mapped(seed: u64) -> (Bench, Vec<Made>) {
    let mut r = Random(seed * 0x9e37_79b9);
    let mut all = made(&mut r);
    let m = written(&all);
    let file = m.file();
    let data = Recording::open(&file.0, &NEVER).expect("a recording");
    let (script, out) = engine(std::slice::from_ref(&data), None);
    let w = make(&mut r, 1, 1);
    let mut b =
        Bench { _file: file, w, end: START + RUNTIME, data, script, out, graphs: Vec::new() };
    // Numbers are given in the order in which mappings are seen: the order of those of one look is not ours to know.
    let addresses = b.lines("for m in maps() { println(m.address()); }");
    assert_eq!(addresses.len(), all.len());
    let place = |x: &Made| addresses.iter().position(|a| *a == x.address.to_string());
    all.sort_by_key(|x| place(x).expect("it is there"));
    (b, all)
}

/// The argument of a filter, and which mappings it keeps.
type Case = (String, Box<dyn Fn(&Made) -> bool>);

/// Returns the argument of a filter, and which mappings it keeps; `None` if the test does not know it.
fn case(r: &mut Random, name: &str) -> Option<Case> {
    let base = name.strip_prefix("only_")?;
    let least = base.ends_with("_at_least");
    let within = move |v: u64, limit: u64| if least { v >= limit } else { v <= limit };
    let (time, size, node) = (r.below(RUNTIME), PAGE * r.below(10), 1 + r.below(20) as u32);
    let at = format!("ns({time})");
    let address = 0x100_0000 * r.below(60);
    let flag = |bit: u64, set: bool| -> Option<Case> {
        Some((String::new(), Box::new(move |m| (m.perms & bit != 0) == set)))
    };
    let function = format!("\"^f{node}_$\"");
    Some(match base {
        "passing_through_function" => (function, Box::new(move |m| m.frames().contains(&node))),
        "not_passing_through_function" => {
            (function, Box::new(move |m| !m.frames().contains(&node)))
        }
        "passing_through_source" => ("\".\"".into(), Box::new(|_| false)),
        "not_passing_through_source" => ("\".\"".into(), Box::new(|_| true)),
        "matching_backtraces" => (format!("[{node}]"), Box::new(move |m| m.nodes.0 == node)),
        "not_matching_backtraces" => (format!("[{node}]"), Box::new(move |m| m.nodes.0 != node)),
        "matching_deallocation_backtraces" => {
            (node.to_string(), Box::new(move |m| m.end.is_some() && m.nodes.1 == node))
        }
        "not_matching_deallocation_backtraces" => {
            (node.to_string(), Box::new(move |m| m.end.is_none() || m.nodes.1 != node))
        }
        "backtrace_length_at_least" | "backtrace_length_at_most" => {
            let few = 1 + r.below(4);
            (few.to_string(), Box::new(move |m| within(m.frames().len() as u64, few)))
        }
        "larger" => (size.to_string(), Box::new(move |m| m.size > size)),
        "larger_or_equal" => (size.to_string(), Box::new(move |m| m.size >= size)),
        "smaller" => (size.to_string(), Box::new(move |m| m.size < size)),
        "smaller_or_equal" => (size.to_string(), Box::new(move |m| m.size <= size)),
        "address_at_least" | "address_at_most" => {
            (address.to_string(), Box::new(move |m| within(m.address, address)))
        }
        "allocated_after_at_least" | "allocated_until_at_most" => {
            (at, Box::new(move |m| within(m.begun, time)))
        }
        "deallocated_after_at_least" | "deallocated_until_at_most" => {
            (at, Box::new(move |m| m.end.is_some_and(|e| within(e, time))))
        }
        "not_deallocated_after_at_least" | "not_deallocated_until_at_most" => {
            (at, Box::new(move |m| !m.end.is_some_and(|e| within(e, time))))
        }
        "alive_for_at_least" | "alive_for_at_most" => {
            (at, Box::new(move |m| within(m.lived(), time)))
        }
        "alive_at" => {
            let later = (time + 2000).min(RUNTIME);
            let both = move |m: &Made| m.is_alive(time) && m.is_alive(later);
            (format!("[ns({time}), ns({later})]"), Box::new(both))
        }
        "leaked_or_deallocated_after" => (at, Box::new(move |m| m.end.is_none_or(|e| e >= time))),
        "leaked" => (String::new(), Box::new(|m| m.end.is_none())),
        "temporary" => (String::new(), Box::new(|m| m.end.is_some())),
        "peak_rss_at_least" | "peak_rss_at_most" => {
            (size.to_string(), Box::new(move |m| within(m.peak(), size)))
        }
        "since" => {
            let from = marks()[1];
            ("\"deployed\"".into(), Box::new(move |m| START + m.begun >= from))
        }
        "between" => {
            let [_, deployed, warm] = marks();
            let within = move |m: &Made| (deployed..warm).contains(&(START + m.begun));
            ("\"deployed, #3\"".into(), Box::new(within))
        }
        // None is jemalloc's or prof's.
        "jemalloc" | "bytehound" => (String::new(), Box::new(|_| false)),
        "not_jemalloc" | "not_bytehound" => (String::new(), Box::new(|_| true)),
        "readable" => flag(perms::READ, true)?,
        "not_readable" => flag(perms::READ, false)?,
        "writable" => flag(perms::WRITE, true)?,
        "not_writable" => flag(perms::WRITE, false)?,
        "executable" => flag(perms::EXECUTE, true)?,
        "not_executable" => flag(perms::EXECUTE, false)?,
        "kind" => ("\"heap\"".into(), Box::new(|m| m.kind == "heap")),
        "name" => ("\"bin\"".into(), Box::new(|m| m.name.contains("bin"))),
        _ => return None,
    })
}

/// Filters that follow each other must all hold.
#[test]
fn any_two_filters_of_mappings_select_what_both_do() {
    let ((mut b, all), mut r) = (mapped(9), Random(9 * 77));
    let names = names();
    let filters = names.iter().filter(|n| n.of == "MapList" && n.name.starts_with("only_"));
    let cases: Vec<(String, Case)> =
        filters.filter_map(|n| Some((n.name.clone(), case(&mut r, &n.name)?))).collect();
    let mut some = 0;
    for (first, (of_first, is_first)) in &cases {
        for (second, (of_second, is_second)) in &cases {
            let both = addresses(all.iter().filter(|m| is_first(m) && is_second(m)));
            let list = format!("maps().{first}({of_first}).{second}({of_second})");
            let code = format!(
                "let all = \":\"; for m in {list} {{ all += m.address() + \":\"; }} println(all);"
            );
            let both: String = both.iter().map(|address| format!("{address}:")).collect();
            assert_eq!(b.lines(&code), [format!(":{both}")], "{list}");
            some += usize::from(!both.is_empty());
        }
    }
    assert!(some > 500, "{some} pairs have mappings in common");
}

fn addresses<'a>(of: impl Iterator<Item = &'a Made>) -> Vec<String> {
    of.map(|m| m.address.to_string()).collect()
}

const PRINT: &str = "for m in list { println(m.address()); }";

#[test]
fn filters_of_mappings_keep_what_a_naive_evaluation_keeps() {
    let (mut kept, mut left) = (0, 0);
    for seed in 1..3 {
        let ((mut b, all), mut r) = (mapped(seed), Random(seed * 77));
        for n in names().iter().filter(|n| n.of == "MapList" && n.name.starts_with("only_")) {
            for _ in 0..4 {
                let (arg, allows) =
                    case(&mut r, &n.name).unwrap_or_else(|| panic!("{} is not tested", n.title()));
                let selected = addresses(all.iter().filter(|m| allows(m)));
                let code = format!("let list = maps().{}({arg}); {PRINT}", n.name);
                assert_eq!(b.lines(&code), selected, "{code}");
                kept += selected.len();
                left += all.len() - selected.len();
            }
        }
    }
    assert!(kept > 1000 && left > 1000, "{kept} kept, {left} left out");
}

#[test]
fn lists_of_mappings_are_sets_in_the_order_of_their_numbers() {
    let (mut b, all) = mapped(5);
    let (large, late) = (|m: &&Made| m.size > 4 * PAGE, |m: &&Made| m.begun >= 8000);
    const TWO: &str = "let a = maps().only_larger(16384); let b = maps().only_allocated_after_at_least(ns(8000));\n";
    for (code, selected) in [
        ("a + b", addresses(all.iter().filter(|m| large(m) || late(m)))),
        ("a - b", addresses(all.iter().filter(|m| large(m) && !late(m)))),
        ("a & b", addresses(all.iter().filter(|m| large(m) && late(m)))),
        ("b + a", addresses(all.iter().filter(|m| large(m) || late(m)))),
        ("maps().only(\"min-size\", \"16385\")", addresses(all.iter().filter(large))),
    ] {
        assert!(!selected.is_empty(), "{code}");
        assert_eq!(b.lines(&format!("{TWO}let list = {code};\n{PRINT}")), selected, "{code}");
        let len = format!("{TWO}let list = {code}; println(list.len());");
        assert_eq!(b.lines(&len), [selected.len().to_string()], "{code}");
        let by_index = format!(
            "{TWO}let list = {code}; for i in 0..list.len() {{ println(list[i].address()); }}"
        );
        assert_eq!(b.lines(&by_index), selected, "{code}");
    }
}

#[test]
fn mappings_have_the_properties_of_a_naive_evaluation() {
    let (mut b, all) = mapped(6);
    let mut tested = 0;
    for n in names().iter().filter(|n| n.of == "Map") {
        let (show, of): (&str, fn(usize, &Made) -> String) = match n.name.as_str() {
            "id" => ("m.id()", |i, _| i.to_string()),
            "address" => ("m.address()", |_, m| m.address.to_string()),
            "size" => ("m.size()", |_, m| m.size.to_string()),
            "rss" => ("m.rss()", |_, m| m.last().to_string()),
            "peak_rss" => ("m.peak_rss()", |_, m| m.peak().to_string()),
            "name" => ("m.name()", |_, m| m.name.to_owned()),
            "kind" => ("m.kind()", |_, m| m.kind.to_owned()),
            "backtrace" => ("m.backtrace().id()", |_, m| m.nodes.0.to_string()),
            "allocated_at" => ("m.allocated_at() / ns(1)", |_, m| m.begun.to_string()),
            "deallocated_at" => ("m.deallocated_at().unwrap_or(ns(0)) / ns(1)", |_, m| {
                m.end.unwrap_or(0).to_string()
            }),
            _ => panic!("{} is not tested", n.title()),
        };
        let selected: Vec<String> = all.iter().enumerate().map(|(i, m)| of(i, m)).collect();
        assert_eq!(b.lines(&format!("for m in maps() {{ println({show}); }}")), selected, "{show}");
        tested += 1;
    }
    assert_eq!(tested, 10);
    let table = b.lines("table(maps(), [\"id\", \"size\", \"peak_rss\", \"kind\"]);");
    let words =
        |line: &String| line.split_whitespace().map(|w| w.replace(',', "")).collect::<Vec<_>>();
    let selected = |(i, m): (usize, &Made)| {
        [i.to_string(), m.size.to_string(), m.peak().to_string(), m.kind.to_owned()].to_vec()
    };
    let selected: Vec<Vec<String>> = all.iter().enumerate().map(selected).collect();
    assert_eq!(table[1..].iter().map(words).collect::<Vec<_>>(), selected);
}

/// Returns the most of a sum at any moment of each column.
fn columns(all: &[Made], value: impl Fn(&Made, u64) -> u64) -> Vec<u64> {
    let edge = |i: u64| RUNTIME * i / 1000;
    (0..1000)
        .map(|i| {
            let last = i == 999;
            let moments = edge(i)..edge(i + 1) + u64::from(last);
            moments.map(|t| all.iter().map(|m| value(m, t)).sum()).max().unwrap_or(0)
        })
        .collect()
}

#[test]
fn graphs_of_mappings_have_the_values_of_a_naive_evaluation() {
    let (mut b, all) = mapped(8);
    let mut values = |call: &str| -> (Vec<u64>, Vec<u64>) {
        b.lines(&format!(
            "graph().add(maps().only_larger(16384)).add(\"Others\", maps()){call}.save();"
        ));
        let out = b.out.borrow();
        let Some(Output::File { data: Some(data), .. }) = out.first() else { panic!("{out:?}") };
        let of = |i: usize| -> Vec<u64> {
            serde_json::from_value(Value::clone(&data["series"][i]["values"])).expect("numbers")
        };
        (of(0), of(1))
    };
    let (large, small): (Vec<Made>, Vec<Made>) = all.into_iter().partition(|m| m.size > 4 * PAGE);
    let space = |m: &Made, t: u64| if m.is_alive(t) { m.size } else { 0 };
    let rss = |m: &Made, t: u64| {
        let seen = m.rss.iter().rev().find(|r| r.0 <= t).map_or(0, |r| r.1);
        if m.is_alive(t) { seen } else { 0 }
    };
    let selected = (columns(&large, rss), columns(&small, rss));
    assert!(selected.0.iter().any(|v| *v > 0) && selected.1.iter().any(|v| *v > 0));
    assert_eq!(values(".show_rss()"), selected);
    assert_eq!(values(""), selected, "what is shown by default");
    let selected = (columns(&large, space), columns(&small, space));
    assert_eq!(values(".show_address_space()"), selected);
}
