//! Each name of numbers, durations, blocks and objects, against what it must be by a naive evaluation.

use super::*;

/// Returns code that uses a name, and what it must print; `None` if the name is not known here.
fn expected(b: &Bench, of: &str, name: &str) -> Option<(String, String)> {
    let mut all = b.w.blocks.clone();
    all.sort_by_key(|b| b.begin);
    let first = all[0];
    let at = |code: &str| format!("println(allocations()[0].{code});");
    let sum = |f: &dyn Fn(&&Block) -> bool| all.iter().filter(f).map(|b| b.size).sum::<u64>();
    let kept = |b: &&Block| b.end.is_none();
    // Sums of bytes by a key, as an object's field has it.
    let by = |field: &str, key: &dyn Fn(&Block) -> String| {
        let mut sums: std::collections::BTreeMap<String, (u64, u64)> = Default::default();
        for b in &all {
            let s = sums.entry(key(b)).or_default();
            *s = (s.0 + b.size, s.1 + 1);
        }
        let lines: Vec<String> = sums.iter().map(|(k, s)| format!("{k} {} {}", s.0, s.1)).collect();
        let code = format!(
            "let l = []; for x in allocations().{name}() {{ let n = x.allocations + x.reallocations; l.push(`${{x.{field}}} ${{x.allocated_bytes}} ${{n}}`); }} l.sort(); for x in l {{ println(x); }}"
        );
        let mut lines = lines;
        lines.sort();
        (code, lines.join("\n"))
    };
    let plain = |code: &str, text: &str| (code.to_owned(), text.to_owned());
    Some(match (of, name) {
        ("", "kb") => plain("println(kb(5))", "5000"),
        ("", "mb") => plain("println(mb(5))", "5000000"),
        ("", "gb") => plain("println(gb(5))", "5000000000"),
        ("", "kib") => plain("println(kib(5))", "5120"),
        ("", "mib") => plain("println(mib(5))", "5242880"),
        ("", "gib") => plain("println(gib(5))", "5368709120"),
        ("", "bytes") => plain("println(bytes(1536))", "1.5 KiB"),
        ("", "format") => plain("println(format(\"{1}{0}\", [1, 2]))", "21"),
        ("", "dirname") => plain("println(dirname(\"a/b/c\"))", "a/b"),
        ("", "h") => plain("println(h(1) == m(60) && h(0.5) == m(30))", "true"),
        ("", "m") => plain("println(m(1) == s(60) && m(0.5) == s(30))", "true"),
        ("", "s") => plain("println(s(1) == ms(1000) && s(0.5) == ms(500))", "true"),
        ("", "ms") => plain("println(ms(1) == us(1000) && ms(0.5) == us(500))", "true"),
        ("", "us") => plain("println(us(1) == ns(1000) && us(0.5) == ns(500))", "true"),
        ("", "ns") => plain("println(ns(2) * 3 == ns(6))", "true"),
        ("Duration", "+") => plain("println(s(1) + ms(5))", "1s 5ms"),
        ("Duration", "-") => plain("println(s(1) - ms(5))", "995ms"),
        ("Duration", "*") => plain("println(s(2) * 3 + 0.5 * s(1) + 2 * s(1) + s(1) * 0.5)", "9s"),
        ("Duration", "/") => plain("println(`${s(3) / s(2)} ${s(3) / 2}`)", "1.5 1s 500ms"),
        ("Duration", "==") => plain("println([s(1) == ms(1000), s(1) == s(2)])", "[true, false]"),
        ("Duration", "!=") => plain("println([s(1) != ms(1000), s(1) != s(2)])", "[false, true]"),
        ("Duration", "<") => plain("println([s(1) < s(1), s(1) < s(2)])", "[false, true]"),
        ("Duration", "<=") => plain("println([s(1) <= s(1), s(2) <= s(1)])", "[true, false]"),
        ("Duration", ">") => plain("println([s(1) > s(1), s(2) > s(1)])", "[false, true]"),
        ("Duration", ">=") => plain("println([s(1) >= s(1), s(1) >= s(2)])", "[true, false]"),
        ("Duration", "to_float") => plain("println(ms(1500).to_float())", "1.5"),
        ("Duration", "to_string") => plain("println(\"<\" + ms(1500).to_string())", "<1s 500ms"),
        ("Option<Duration>", _) => {
            let kept = "let e = allocations().only_leaked()[0].deallocated_at(); let f = allocations().only_temporary()[0].deallocated_at();";
            let ended = all.iter().find(|b| b.end.is_some()).and_then(|b| b.end).expect("one");
            let at = ns(ended.0);
            match name {
                "is_some" => (format!("{kept} println([e.is_some(), f.is_some()])"), "[false, true]".into()),
                "is_none" => (format!("{kept} println([e.is_none(), f.is_none()])"), "[true, false]".into()),
                "unwrap" => (format!("{kept} println(f.unwrap() == ns({at}))"), "true".into()),
                "unwrap_or" => (
                    format!("{kept} println([e.unwrap_or(s(1)) == s(1), f.unwrap_or(s(1)) == ns({at})])"),
                    "[true, true]".into(),
                ),
                _ => return None,
            }
        }
        ("Data", "allocations") => ("println(data().allocations().len())".into(), all.len().to_string()),
        ("Data", "maps") => plain("println(data().maps().len())", "0"),
        ("Data", "scans") => ("println(data().scans().len())".into(), b.graphs.len().to_string()),
        ("Data", "scan") => plain("println(data().scan(\"first\").number())", "1"),
        ("Data", "runtime") => (format!("println(data().runtime() == ns({}))", ns(b.end)), "true".into()),
        ("Data", "path") => ("println(data().path())".into(), b._file.0.display().to_string()),
        ("Allocation", "backtrace") => (at("backtrace().id()"), first.node.to_string()),
        ("Allocation", "allocated_at") => (at(&format!("allocated_at() == ns({})", ns(first.begin))), "true".into()),
        ("Allocation", "deallocated_at") => {
            let expected = first.end.map_or("is_none()".into(), |e| format!("unwrap() == ns({})", ns(e.0)));
            (at(&format!("deallocated_at().{expected}")), "true".into())
        }
        ("Allocation", "deallocation_backtrace") => {
            let t = Truth::of(&b.w);
            let (i, b) = all.iter().enumerate().find(|(_, b)| b.continued).expect("a realloc");
            let node = t.frees[&b.end.expect("an end")];
            (format!("println(allocations()[{i}].deallocation_backtrace().id())"), node.to_string())
        }
        ("Allocation", "size") => (at("size()"), first.size.to_string()),
        ("Allocation", "address") => (at("address()"), first.addr.to_string()),
        ("Allocation", "thread_name") => {
            (at("thread_name()"), if first.thread.is_multiple_of(2) { "even" } else { "odd-one" }.into())
        }
        ("Allocation", "lifetime") => {
            (at(&format!("lifetime() == ns({})", b.lived(first.begin, first.end))), "true".into())
        }
        ("Backtrace", "len") => (at("backtrace().len()"), functions(first.node).len().to_string()),
        ("Backtrace", "strip") => (at("backtrace().strip().len()"), functions(first.node).len().to_string()),
        ("Backtrace", "id") => (at("backtrace().id()"), first.node.to_string()),
        ("Backtrace", "is_none") => (at("backtrace().is_none()"), "false".into()),
        ("AllocationList", "by_function") => by("name", &|b| format!("f{}_", b.node)),
        ("AllocationList", "by_thread") => by("tid", &|b| (100 + b.thread).to_string()),
        ("AllocationList", "by_module") => {
            by("name", &|b| if b.node % 2 == 0 { "/lib/one.so" } else { "/lib/two.so" }.into())
        }
        ("AllocationList", "figures") => (
            "let f = allocations().figures(); println([f.live_bytes, f.live_count, f.allocated_bytes])".into(),
            format!("[{}, {}, {}]", sum(&kept), all.iter().filter(kept).count(), sum(&|_| true)),
        ),
        ("AllocationList", "sizes") => {
            let mut sizes: std::collections::BTreeMap<u64, u64> = Default::default();
            all.iter().for_each(|b| *sizes.entry(b.size).or_default() += 1);
            let lines: Vec<String> = sizes.iter().map(|s| format!("{} {} {}", s.0, s.1, s.0 * s.1)).collect();
            (
                "for x in allocations().sizes() { println(\"{} {} {}\", x.size, x.count, x.bytes); }".into(),
                lines.join("\n"),
            )
        }
        ("AllocationList", "lifetimes") => {
            let class = |b: &Block| match (b.end, b.end.map_or(0, |e| e.0 - b.begin)) {
                (None, _) => 2,
                (_, lived) if lived < 1000 => 0,
                _ => 1,
            };
            let count = |n| all.iter().filter(|b| class(b) == n).count();
            (
                "let l = allocations().lifetimes(); println([l[0].count, l[1].count, l[l.len() - 1].count])".into(),
                format!("[{}, {}, {}]", count(0), count(1), count(2)),
            )
        }
        _ => return None,
    })
}

#[test]
fn each_name_gives_what_a_naive_evaluation_gives() {
    let mut b = bench(51, 500);
    let whole = ["Data", "Duration", "Option<Duration>", "Allocation", "Backtrace"];
    let (mut wrong, mut tested) = (Vec::new(), 0);
    for n in names() {
        let Some((code, text)) = expected(&b, n.of, &n.name) else {
            if whole.contains(&n.of) {
                wrong.push(format!("{} is not tested", n.title()));
            }
            continue;
        };
        tested += 1;
        let printed = b.lines(&code).join("\n");
        if printed != text {
            wrong.push(format!(
                "{}: {code}\n  prints {printed:.300}\n  and not {text:.300}",
                n.title()
            ));
        }
    }
    assert!(wrong.is_empty() && tested > 50, "{tested} tested\n{}", wrong.join("\n"));
}
