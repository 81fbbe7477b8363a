//! Graphs against a naive evaluation: the most at any moment of each column, and what is drawn of it.

use super::*;
use serde_json::Value;

/// The quantity of a block that a graph adds up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Bytes,
    Live,
    New,
    Ended,
}

const COLUMNS: usize = 1000;

/// Returns the values of all columns of a span.
fn columns(blocks: &[Block], of: Of, (from, to): (u64, u64)) -> Vec<u64> {
    let edge = |i: usize| from + ((to - from) as u128 * i as u128 / COLUMNS as u128) as u64;
    let mut moments: Vec<u64> =
        blocks.iter().flat_map(|b| [Some(ns(b.begin)), b.end.map(|e| ns(e.0))]).flatten().collect();
    moments.sort_unstable();
    moments.dedup();
    let at = |time: u64| -> u64 {
        let live = |b: &&Block| ns(b.begin) <= time && b.end.is_none_or(|e| ns(e.0) > time);
        let live = blocks.iter().filter(live);
        if of == Of::Bytes { live.map(|b| b.size).sum() } else { live.count() as u64 }
    };
    let known: Vec<(u64, u64)> = moments.iter().map(|t| (*t, at(*t))).collect();
    (0..COLUMNS)
        .map(|i| {
            let (low, high) = (edge(i), edge(i + 1));
            let within = |t: u64| t >= low && (t < high || i + 1 == COLUMNS && t <= high);
            match of {
                Of::New => blocks.iter().filter(|b| within(ns(b.begin))).count() as u64,
                Of::Ended => {
                    blocks.iter().filter(|b| b.end.is_some_and(|e| within(ns(e.0)))).count() as u64
                }
                _ => {
                    let first = known.partition_point(|k| k.0 < low);
                    let begin = first.checked_sub(1).map_or(0, |k| known[k].1);
                    let inner = known[first..].iter().take_while(|k| within(k.0)).map(|k| k.1);
                    inner.max().unwrap_or(0).max(begin)
                }
            }
        })
        .collect()
}

/// Returns the files that a script writes: paths, contents, and data of graphs.
#[track_caller]
fn files(b: &mut Bench, code: &str) -> Vec<(String, String, Value)> {
    b.lines(code);
    let out = b.out.borrow();
    let file = |o: &Output| match o {
        Output::File { path, bytes, data, .. } => {
            let text = String::from_utf8_lossy(bytes).into_owned();
            Some((path.clone(), text, data.clone().unwrap_or_default()))
        }
        Output::Line(_) => None,
    };
    out.iter().filter_map(file).collect()
}

#[track_caller]
fn data(b: &mut Bench, calls: &str) -> Value {
    files(b, &format!("graph(){calls}.save();")).remove(0).2
}

fn values(data: &Value, series: usize) -> Vec<u64> {
    serde_json::from_value(data["series"][series]["values"].clone()).expect("numbers")
}

const MIDDLE: &str =
    "allocations().only_allocated_after_at_least(ns(300)).only_deallocated_until_at_most(ns(900))";

/// Checks a method of graphs; panics if the test does not know it.
fn check(b: &mut Bench, name: &str) {
    let all = b.w.blocks.clone();
    let runtime = ns(b.end);
    let middle: Vec<Block> = all
        .iter()
        .filter(|b| ns(b.begin) >= 300 && b.end.is_some_and(|e| ns(e.0) <= 900))
        .copied()
        .collect();
    let svg = |b: &mut Bench, calls: &str| {
        let two = ".add(\"Kept\", allocations().only_leaked()).add(\"Other\", allocations())";
        files(b, &format!("graph(){two}{calls}.save();")).remove(0).1
    };
    let count = |text: &str, part: &str| text.matches(part).count();
    match name {
        "add" => {
            let d = data(
                b,
                ".add(allocations().only_leaked()).add(allocations().group_by_backtrace()).add(\"x\", allocations())",
            );
            let kept: Vec<Block> = all.iter().filter(|b| b.end.is_none()).copied().collect();
            assert_eq!(values(&d, 0), columns(&kept, Of::Bytes, (0, runtime)));
            let mut order: Vec<(u64, u32)> = Vec::new();
            for block in &all {
                match order.iter_mut().find(|o| o.1 == block.node) {
                    Some(o) => o.0 = o.0.min(block.begin),
                    None => order.push((block.begin, block.node)),
                }
            }
            order.sort_unstable();
            for (i, (_, node)) in order.iter().enumerate() {
                let own: Vec<Block> =
                    all.iter().filter(|b| b.node == *node && b.end.is_some()).copied().collect();
                assert_eq!(values(&d, 1 + i), columns(&own, Of::Bytes, (0, runtime)), "group {i}");
            }
            assert_eq!(d["series"][1 + order.len()]["label"], "x");
            assert!(values(&d, 1 + order.len()).iter().all(|v| *v == 0), "nothing is left for it");
            let none = ".add(allocations().only_larger(99999).group_by_backtrace())";
            assert!(values(&data(b, none), 0).iter().all(|v| *v == 0), "no groups: an empty graph");
        }
        "show_memory_usage"
        | "show_live_allocations"
        | "show_new_allocations"
        | "show_deallocations" => {
            let of = match name {
                "show_memory_usage" => Of::Bytes,
                "show_live_allocations" => Of::Live,
                "show_new_allocations" => Of::New,
                _ => Of::Ended,
            };
            let d = data(b, &format!(".add(allocations()).{name}()"));
            assert_eq!(values(&d, 0), columns(&all, of, (0, runtime)), "{name}");
            assert_eq!(d["unit"], if of == Of::Bytes { "bytes" } else { "count" });
        }
        "trim" | "trim_left" | "trim_right" => {
            let whole = columns(&middle, Of::Bytes, (0, runtime));
            let edge = |i: usize| (u128::from(runtime) * i as u128 / COLUMNS as u128) as u64;
            let first = edge(whole.iter().position(|v| *v > 0).expect("blocks"));
            let last = edge(whole.iter().rposition(|v| *v > 0).expect("blocks") + 1);
            let span = (
                if name == "trim_right" { 0 } else { first },
                if name == "trim_left" { runtime } else { last },
            );
            let d = data(b, &format!(".add({MIDDLE}).{name}()"));
            assert_eq!((d["from_ns"].as_u64(), d["to_ns"].as_u64()), (Some(span.0), Some(span.1)));
            assert_eq!(values(&d, 0), columns(&middle, Of::Bytes, span), "{name}");
        }
        "start_at" | "end_at" | "extend_until" | "truncate_until" => {
            let span = if name == "start_at" { (400, runtime) } else { (0, 400) };
            let d = data(b, &format!(".add({MIDDLE}).{name}(ns(400))"));
            assert_eq!((d["from_ns"].as_u64(), d["to_ns"].as_u64()), (Some(span.0), Some(span.1)));
            assert_eq!(values(&d, 0), columns(&middle, Of::Bytes, span), "{name}");
            let d = data(b, &format!(".add({MIDDLE}).end_at(ns(500)).{name}(ns(600))"));
            let to = match name {
                "start_at" => 601,
                "truncate_until" => 500,
                _ => 600,
            };
            assert_eq!(d["to_ns"].as_u64(), Some(to), "{name}");
        }
        "only_non_empty_series" => {
            let calls = ".add(\"None\", allocations().only_larger(99999))";
            assert!(svg(b, calls).contains("None"));
            assert!(!svg(b, &format!("{calls}.only_non_empty_series()")).contains("None"));
        }
        "without_legend" => {
            assert!(svg(b, "").contains("Kept") && !svg(b, ".without_legend()").contains("Kept"));
        }
        "without_axes" => {
            let plain = count(&svg(b, ".without_legend()"), "<text");
            assert!(plain > 5 && count(&svg(b, ".without_legend().without_axes()"), "<text") == 0);
        }
        "without_grid" => {
            let grid = "stroke=\"#D6D6D6\"";
            assert!(count(&svg(b, ""), grid) > 3 && count(&svg(b, ".without_grid()"), grid) == 0);
        }
        "with_gradient_color_scheme" => {
            let text = svg(b, ".with_gradient_color_scheme(\"#010203\", \"rgb(250, 251, 252)\")");
            assert!(text.contains("#010203") && text.contains("#FAFBFC"), "the two colours");
        }
        "save" => {
            let made = files(
                b,
                "let g = graph().add(allocations()); g.save().save(); g.save(\"a/b.svg\");",
            );
            let paths: Vec<&str> = made.iter().map(|f| f.0.as_str()).collect();
            let number: u64 =
                paths[0].trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number");
            assert_eq!(paths[1], format!("/Graph #{}.svg", number + 1));
            assert_eq!(paths[2], "/a/b.svg");
            // No SVG under the name of another kind of picture.
            let e =
                b.script.run("graph().add(allocations()).save(\"a.JPG\");").expect_err("no JPEG");
            assert!(e.message.contains(".png"), "{e}");
        }
        "save_each_series_as_graph" | "save_each_series_as_flamegraph" => {
            let code = format!(
                "graph().add(\"a/b\", allocations().only_leaked()).add(allocations()).{name}(\"d\");"
            );
            let made = files(b, &code);
            assert_eq!((made.len(), made[0].0.starts_with("/d/a")), (2, true), "{}", made[0].0);
            assert_eq!(made[1].0, "/d/Series #1.svg");
            if name == "save_each_series_as_graph" {
                assert!(made.iter().all(|f| f.1.contains("<polygon")), "areas");
            } else {
                let ended: u64 = all.iter().filter(|b| b.end.is_some()).map(|b| b.size).sum();
                let text = made[1].1.replace(',', "");
                assert!(text.contains(&format!("{ended} bytes")), "{ended} bytes at the root");
            }
        }
        // On mappings, in maps.rs; here they are of blocks, which have neither.
        "show_rss" | "show_address_space" => {
            let e = b.script.run(&format!("graph().add(allocations()).{name}().save();"));
            let e = e.expect_err("no mappings");
            assert!(e.message.contains("add(maps())"), "{name}: {e}");
        }
        _ => panic!("Graph.{name} is not tested"),
    }
}

#[test]
fn graphs_have_the_values_of_a_naive_evaluation() {
    let mut b = bench(23, 600);
    for n in names().iter().filter(|n| n.of == "Graph") {
        check(&mut b, &n.name);
    }
}
