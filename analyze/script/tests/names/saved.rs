//! The files of `save_as_csv`, `save_as_json`, `save_as_html` and `save_as_parquet`, read back and compared with a naive
//! evaluation, value by value.

use super::maps::{Made, RUNTIME, mapped};
use super::*;
use prof_trace::records::perms;
use prof_trace::size::GlibcChunks;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A row of a table: values by the names of their columns. Flags are 0 and 1.
pub(crate) type Row = BTreeMap<String, Value>;

/// Runs code that writes one file, and returns it.
#[track_caller]
fn file(b: &mut Bench, code: &str) -> (FileKind, Vec<u8>) {
    b.out.borrow_mut().clear();
    b.script.run(code).unwrap_or_else(|e| panic!("{code}: {e}"));
    let mut out = b.out.take();
    match out.pop() {
        Some(Output::File { kind, bytes, .. }) if out.is_empty() => (kind, bytes),
        other => panic!("{code}: {out:?} {other:?}"),
    }
}

fn text(b: &mut Bench, code: &str) -> String {
    String::from_utf8(file(b, code).1).expect("UTF-8")
}

/// Reads a value of CSV.
fn value(cell: &str) -> Value {
    match (cell.strip_prefix("0x").map(|h| u64::from_str_radix(h, 16)), cell.parse::<u64>()) {
        _ if cell.is_empty() => Value::Null,
        (Some(Ok(n)), _) | (_, Ok(n)) => n.into(),
        _ => cell.into(),
    }
}

/// Splits a line of CSV.
fn cells(line: &str) -> Vec<String> {
    let (mut out, mut inside) = (vec![String::new()], false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if inside && chars.peek() == Some(&'"') => {
                chars.next();
                out.last_mut().expect("a cell").push('"');
            }
            '"' => inside = !inside,
            ',' if !inside => out.push(String::new()),
            c => out.last_mut().expect("a cell").push(c),
        }
    }
    out
}

fn of_csv(text: &str) -> Vec<Row> {
    let mut lines = text.lines().map(cells);
    let head = lines.next().expect("a head");
    let row = |line: Vec<String>| {
        assert_eq!(line.len(), head.len(), "{line:?}");
        head.iter().cloned().zip(line.iter().map(|c| value(c))).collect()
    };
    lines.map(row).collect()
}

fn flags_as_numbers(value: &Value) -> Value {
    value.as_bool().map_or_else(|| value.clone(), |b| u64::from(b).into())
}

fn object(value: &Value) -> Row {
    let fields = value.as_object().expect("an object").iter();
    fields.map(|(k, v)| (k.clone(), flags_as_numbers(v))).collect()
}

#[cfg(feature = "parquet")]
pub(crate) fn of_parquet(bytes: &[u8]) -> Vec<Row> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    let temp = common::Temp::new(bytes);
    let file = std::fs::File::open(&temp.0).expect("a file");
    let reader = SerializedFileReader::new(file).expect("Parquet");
    let value = |f: &Field| match f {
        Field::Null => Value::Null,
        Field::ULong(n) => (*n).into(),
        Field::Long(n) => (*n).into(),
        Field::UInt(n) => (*n).into(),
        Field::Bool(b) => u64::from(*b).into(),
        Field::Double(x) if x.fract() == 0.0 => (*x as i64).into(),
        Field::Double(x) => (*x).into(),
        Field::Str(s) => s.clone().into(),
        other => panic!("{other:?}"),
    };
    let row = |r: parquet::record::Row| {
        r.get_column_iter().map(|(name, f)| (name.clone(), value(f))).collect()
    };
    reader.get_row_iter(None).expect("rows").map(|r| row(r.expect("a row"))).collect()
}

/// Returns the data of a page.
fn page(text: &str) -> Value {
    let data = text.split("id=\"data\">").nth(1).and_then(|t| t.split("</script>").next());
    serde_json::from_str(data.expect("data")).expect("JSON")
}

/// Removes the number of the chain, as it is not ours to know; returns which blocks of the list are of one chain.
fn chains(rows: &mut [Row]) -> Vec<Vec<usize>> {
    let mut all: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (i, row) in rows.iter_mut().enumerate() {
        if let Some(n) = row.remove("chain").expect("a chain").as_u64() {
            all.entry(n).or_default().push(i);
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort();
    all
}

fn by_time(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_key(|r| (r["allocated_at_ns"].as_u64(), r["address"].as_u64()));
    rows
}

/// Returns the rows of blocks.
fn rows_of(b: &Bench, allows: impl Fn(&Block) -> bool) -> Vec<Row> {
    let t = Truth::of(&b.w);
    let row = |b: &Block| {
        let end = b.end.map(|e| ns(e.0));
        let freed_by = b.end.filter(|_| b.continued).and_then(|e| t.frees.get(&e));
        let h = b.header;
        let row = json!({
            "address": b.addr,
            "size": b.size,
            "allocated_at_ns": ns(b.begin),
            "freed_at_ns": end,
            "stack": b.node,
            "thread": 100 + b.thread,
            "free_stack": freed_by,
            "free_thread": b.end.map(|e| 100 + e.1),
            "temporary": u64::from(b.temporary),
            "by_realloc": u64::from(b.position > 0),
            "to_realloc": u64::from(b.continued),
            "implied_free": 0,
            "chain": (b.chain != 0).then_some(b.chain),
            "chain_position": b.position,
            "usable_size": GlibcChunks::of(8).usable(b.size, h),
            "mmapped": h.is_known().then_some(u64::from(h.mapped)),
            "main_arena": (h.arena != 0).then_some(u64::from(h.arena == 1)),
            "weight": 1,
        });
        object(&row)
    };
    by_time(b.w.blocks.iter().filter(|b| allows(b)).map(row).collect())
}

/// Lists whose files are read back: a filter, a set, and nothing.
const LISTS: [&str; 3] = [
    "allocations().only_larger(1000)",
    "(allocations() - allocations().only_smaller_or_equal(1000))",
    "allocations().only_larger(999999)",
];

#[test]
fn blocks_come_back_as_they_are() {
    let mut b = bench(71, 900);
    for (list, least) in LISTS.into_iter().zip([1001, 1001, 1_000_000]) {
        let mut expected = rows_of(&b, |b| b.size >= least);
        assert_eq!(expected.len() > 300, least < 5000);
        let expected_chains = chains(&mut expected);
        let same = |found: Vec<Row>, what: &str| {
            let mut found = by_time(found);
            assert_eq!(chains(&mut found), expected_chains, "{list} {what}");
            assert_eq!(found, expected, "{list} {what}");
        };
        same(of_csv(&text(&mut b, &format!("{list}.save_as_csv(\"x.csv\");"))), "csv");
        let all = text(&mut b, &format!("{list}.save_as_json(\"x.json\");"));
        let all: Value = serde_json::from_str(&all).expect("JSON");
        let columns = all["columns"].as_array().expect("columns");
        let row = |r: &Value| {
            let values = r.as_array().expect("an array");
            assert_eq!(values.len(), columns.len());
            let pairs = columns.iter().zip(values);
            pairs.map(|(c, v)| (c.as_str().expect("a name").into(), flags_as_numbers(v))).collect()
        };
        same(all["allocations"].as_array().expect("blocks").iter().map(row).collect(), "json");
        // Each stack has its frames, innermost first.
        let frames = all["frames"].as_array().expect("frames");
        for stack in all["stacks"].as_array().expect("stacks") {
            let of = stack["frames"].as_array().expect("frames").iter();
            let names =
                of.map(|i| frames[i.as_u64().expect("an index") as usize]["function"].clone());
            let node = stack["id"].as_u64().expect("a number") as u32;
            assert_eq!(names.collect::<Vec<_>>(), names_of(node), "{stack}");
        }
        #[cfg(feature = "parquet")]
        {
            let (kind, bytes) = file(&mut b, &format!("{list}.save_as_parquet(\"x.parquet\");"));
            assert_eq!(kind, FileKind::Parquet);
            same(of_parquet(&bytes), "parquet");
        }
        let page = page(&text(&mut b, &format!("{list}.save_as_html(\"x.html\");")));
        is_page_of(&page, &b, |b| b.size >= least);
    }
}

/// Returns the names of a stack's functions, innermost first.
fn names_of(node: u32) -> Vec<String> {
    functions(node).iter().map(|n| format!("f{n}_")).collect()
}

/// Checks the figures of a page: those of each stack, and the live bytes over time.
#[track_caller]
fn is_page_of(page: &Value, b: &Bench, allows: impl Fn(&Block) -> bool) {
    let blocks: Vec<&Block> = b.w.blocks.iter().filter(|b| allows(b)).collect();
    let mut steps: Vec<(u64, bool, u64)> = Vec::new();
    for b in &blocks {
        steps.push((ns(b.begin), true, b.size));
        steps.extend(b.end.map(|e| (ns(e.0), false, b.size)));
    }
    steps.sort_unstable();
    let end = page["timeline"]["end_ns"].as_u64().expect("a time");
    let (mut live, mut peak, mut most, mut part) = (0u64, (0, 0), vec![0u64; 800], 0);
    for (time, begins, size) in steps {
        let at = (time * 800 / end).min(799) as usize;
        while part < at {
            part += 1;
            most[part] = live;
        }
        live = if begins { live + size } else { live - size };
        most[at] = most[at].max(live);
        if live > peak.0 {
            peak = (live, time);
        }
    }
    most[part..].iter_mut().for_each(|m| *m = (*m).max(live));
    assert_eq!(page["timeline"]["most"], json!(most));
    assert_eq!(page["peak_at_ns"], peak.1);
    let costs: Vec<&str> = page["costs"]
        .as_array()
        .expect("costs")
        .iter()
        .filter_map(|c| c["name"].as_str())
        .collect();
    assert_eq!(costs, ["live", "peak", "allocated", "allocations", "temporary"]);
    let mut expected: BTreeMap<u64, (u64, [u64; 5], Vec<String>)> = BTreeMap::new();
    for b in blocks {
        let of = expected.entry(b.node.into()).or_default();
        let at_peak = ns(b.begin) <= peak.1 && b.end.is_none_or(|e| ns(e.0) > peak.1);
        of.0 += u64::from(b.end.is_none());
        of.1[0] += if b.end.is_none() { b.size } else { 0 };
        of.1[1] += if at_peak { b.size } else { 0 };
        of.1[2] += b.size;
        of.1[3] += 1;
        of.1[4] += u64::from(b.temporary);
        of.2 = names_of(b.node);
    }
    let frames = &page["frames"];
    let mut found = BTreeMap::new();
    for s in page["stacks"].as_array().expect("stacks") {
        let of = s["frames"].as_array().expect("frames").iter();
        let names = of.map(|i| frames[i.as_u64().expect("an index") as usize]["name"].clone());
        let names = names.map(|n| n.as_str().expect("a name").to_owned()).collect();
        let costs: [u64; 5] = serde_json::from_value(s["costs"].clone()).expect("five numbers");
        let live = s["live"].as_u64().expect("a number");
        found.insert(s["id"].as_u64().expect("a number"), (live, costs, names));
    }
    assert_eq!(found, expected);
    assert_eq!(page["rest"]["stacks"], 0);
}

/// Returns the rows of the groups with the most bytes.
fn groups_of(b: &Bench, count: usize) -> Vec<Row> {
    let mut nodes: BTreeMap<u32, Vec<&Block>> = BTreeMap::new();
    for block in b.w.blocks.iter().filter(|b| b.size > 1000) {
        nodes.entry(block.node).or_default().push(block);
    }
    let mut rows: Vec<Row> = nodes
        .into_iter()
        .map(|(node, blocks)| {
            let leaked = || blocks.iter().filter(|b| b.end.is_none());
            let names = names_of(node);
            let reversed: Vec<&str> = names.iter().rev().map(String::as_str).collect();
            object(&json!({
                "size": blocks.iter().map(|b| b.size).sum::<u64>(),
                "count": blocks.len(),
                "leaked_size": leaked().map(|b| b.size).sum::<u64>(),
                "leaked_count": leaked().count(),
                "first_allocated_at_ns": blocks.iter().map(|b| ns(b.begin)).min(),
                "stack": node,
                "function": names[0],
                "backtrace": reversed.join(";"),
            }))
        })
        .collect();
    rows.sort_by_key(|r| std::cmp::Reverse(r["size"].as_u64()));
    rows.truncate(count);
    rows
}

#[test]
fn groups_come_back_as_they_are() {
    let mut b = bench(72, 900);
    for count in [7, 0, 1000] {
        let expected = groups_of(&b, count);
        let groups = format!(
            "allocations().only_larger(1000).group_by_backtrace().sort_by_size().take({count})"
        );
        let csv = of_csv(&text(&mut b, &format!("{groups}.save_as_csv(\"x.csv\");")));
        assert_eq!(csv, expected);
        let all = text(&mut b, &format!("{groups}.save_as_json(\"x.json\");"));
        let all: Value = serde_json::from_str(&all).expect("JSON");
        for (row, found) in expected.iter().zip(all["groups"].as_array().expect("groups")) {
            let mut found = object(found);
            let frames = found.remove("frames").expect("frames");
            let names = frames.as_array().expect("frames").iter().map(|f| f["function"].clone());
            let names: Vec<Value> = names.collect();
            assert_eq!(names, names_of(row["stack"].as_u64().expect("a stack") as u32));
            let trace = row["backtrace"].clone();
            found.insert("backtrace".into(), trace);
            assert_eq!(&found, row);
        }
        assert_eq!(all["groups"].as_array().map(Vec::len), Some(expected.len()));
        #[cfg(feature = "parquet")]
        {
            let (_, bytes) = file(&mut b, &format!("{groups}.save_as_parquet(\"x.parquet\");"));
            assert_eq!(of_parquet(&bytes), expected);
        }
        let page = page(&text(&mut b, &format!("{groups}.save_as_html(\"x.html\");")));
        let nodes: Vec<u64> = expected.iter().filter_map(|r| r["stack"].as_u64()).collect();
        is_page_of(&page, &b, |b| b.size > 1000 && nodes.contains(&b.node.into()));
    }
    // The groups themselves are the result.
    let chained =
        b.lines("println(allocations().group_by_backtrace().save_as_csv(\"x.csv\").len());");
    let groups = b.lines("println(allocations().group_by_backtrace().len());");
    assert_eq!(chained, groups);
}

fn row_of_map((id, m): (usize, &Made)) -> Row {
    let bit = |bit: u64, c: char| if m.perms & bit == 0 { '-' } else { c };
    let letters = [bit(perms::READ, 'r'), bit(perms::WRITE, 'w'), bit(perms::EXECUTE, 'x'), 'p'];
    let ended_by = m.end.map_or(0, |_| m.nodes.1);
    let rss = if m.end.is_some() { 0 } else { m.last() };
    object(&json!({
        "id": id,
        "address": m.address,
        "size": m.size,
        "peak_size": m.size,
        "mapped_at_ns": m.begun,
        "unmapped_at_ns": m.end,
        "stack": (m.nodes.0 != 0).then_some(m.nodes.0),
        "thread": (m.nodes.0 != 0).then_some(101),
        "unmap_stack": (ended_by != 0).then_some(ended_by),
        "unmap_thread": (ended_by != 0).then_some(101),
        "kind": m.kind,
        "permissions": letters.iter().collect::<String>(),
        "name": if m.name.is_empty() { Value::Null } else { m.name.into() },
        "before": u64::from(m.begun == 0),
        "rss": rss,
        "peak_rss": m.peak(),
        "anonymous": 0,
        "dirty": 0,
        "clean": 0,
        "swap": 0,
        "huge": 0,
        "allocator_rss": if m.kind == "heap" { rss } else { 0 },
    }))
}

#[test]
fn mappings_come_back_as_they_are() {
    let (mut b, all) = mapped(73);
    let sorted = |mut rows: Vec<Row>| {
        for row in &mut rows {
            // CSV has no form for a text without characters.
            row.entry("name".into())
                .and_modify(|n| *n = if *n == "" { Value::Null } else { n.take() });
        }
        rows.sort_by_key(|r| r["id"].as_u64());
        rows
    };
    for (list, least) in [
        ("maps()", 0),
        ("maps().only_larger(16384)", 16385),
        ("maps().only_larger(gb(1))", u64::MAX),
    ] {
        let some: Vec<(usize, &Made)> =
            all.iter().enumerate().filter(|(_, m)| m.size >= least).collect();
        let expected: Vec<Row> = some.iter().copied().map(row_of_map).collect();
        assert_eq!(expected.len() > 20, least < u64::MAX);
        let csv = text(&mut b, &format!("{list}.save_as_csv(\"x.csv\");"));
        assert_eq!(sorted(of_csv(&csv)), expected, "{list}");
        let json = text(&mut b, &format!("{list}.save_as_json(\"x.json\");"));
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let rows = json["mappings"].as_array().expect("mappings").iter().map(object);
        assert_eq!(sorted(rows.collect()), expected, "{list}");
        assert_eq!(json["allocations"], json!([]), "{list}");
        #[cfg(feature = "parquet")]
        {
            let (_, bytes) = file(&mut b, &format!("{list}.save_as_parquet(\"x.parquet\");"));
            assert_eq!(sorted(of_parquet(&bytes)), expected, "{list}");
        }
        let page = page(&text(&mut b, &format!("{list}.save_as_html(\"x.html\");")));
        let of = |f: fn(&Made) -> u64| some.iter().map(|(_, m)| f(m)).sum::<u64>();
        let there = some.iter().filter(|(_, m)| m.end.is_none()).count();
        let rss = of(|m| if m.end.is_none() { m.last() } else { 0 });
        let size = of(|m| if m.end.is_none() { m.size } else { 0 });
        let maps = &page["maps"];
        assert_eq!(
            (&maps["count"], &maps["rss"], &maps["size"]),
            (&json!(there), &json!(rss), &json!(size)),
            "{list}"
        );
        let live = page["stacks"].as_array().expect("stacks").iter();
        let live = live.filter_map(|s| s["costs"][0].as_u64()).sum::<u64>();
        assert_eq!(live + page["rest"]["costs"][0].as_u64().expect("a number"), rss, "{list}");
    }
    assert!(all.iter().any(|m| m.end.is_some_and(|e| e < RUNTIME)));
    let chained = b.lines("println(maps().save_as_csv(\"x.csv\").len() == maps().len());");
    assert_eq!(chained, ["true"]);
}

#[test]
fn objects_come_back_as_they_are() {
    let mut b = bench(74, 300);
    const OBJECTS: &str = r#"[#{ a: 1, b: "x,\"y\"\nz", c: () }, #{ a: -2.5, d: [1, #{ e: true }] }, #{ c: 'ü', f: ms(5) }]"#;
    let csv = text(&mut b, &format!("{OBJECTS}.save_as_csv(\"x.csv\");"));
    assert_eq!(
        csv,
        "a,b,c,d,f\n1,\"x,\"\"y\"\"\nz\",,,\n-2.5,,,\"[1,{\"\"e\"\":true}]\",\n,,ü,,5ms\n"
    );
    let json = text(&mut b, &format!("{OBJECTS}.save_as_json(\"x.json\");"));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let expected = json!([
        { "a": 1, "b": "x,\"y\"\nz", "c": null },
        { "a": -2.5, "d": [1, { "e": true }] },
        { "c": "ü", "f": "5ms" },
    ]);
    assert_eq!(json, expected);
    assert_eq!(text(&mut b, "[].save_as_csv(\"x.csv\");"), "");
    let html = text(&mut b, &format!("{OBJECTS}.save_as_html(\"x.html\");"));
    assert!(html.contains("<title>3 rows</title>"), "{html}");
    let row =
        "<tr><td class=\"n\">1</td><td>x,&quot;y&quot;\nz</td><td></td><td></td><td></td></tr>";
    assert!(html.contains(row), "{html}");
    #[cfg(feature = "parquet")]
    {
        let mut parquet = |code: &str| of_parquet(&file(&mut b, code).1);
        let found = parquet(&format!("{OBJECTS}.save_as_parquet(\"x.parquet\");"));
        let expected = [
            json!({ "a": 1, "b": "x,\"y\"\nz", "c": null, "d": null, "f": null }),
            json!({ "a": -2.5, "b": null, "c": null, "d": "[1,{\"e\":true}]", "f": null }),
            json!({ "a": null, "b": null, "c": "ü", "d": null, "f": "5ms" }),
        ];
        assert_eq!(found, expected.map(|e| object(&e)));
        // Types are those of all values of a field; a field without a value is there, too.
        let kinds =
            "[#{ n: 1, x: 1, t: 1, b: true, u: () }, #{ n: -2, x: 0.5, t: \"2\", b: false }]";
        let found = parquet(&format!("{kinds}.save_as_parquet(\"x.parquet\");"));
        let expected = [
            json!({ "n": 1, "x": 1, "t": "1", "b": 1, "u": null }),
            json!({ "n": -2, "x": 0.5, "t": "2", "b": 0, "u": null }),
        ];
        assert_eq!(found, expected.map(|e| object(&e)));
        assert_eq!(parquet("[].save_as_parquet(\"x.parquet\");"), Vec::<Row>::new());
        let many = "let all = []; for i in 0..140000 { all.push(#{ i: i }); } all.save_as_parquet(\"x.parquet\");";
        let found = parquet(many);
        assert!(
            found.iter().enumerate().all(|(i, r)| r["i"] == i as u64) && found.len() == 140_000
        );
    }
    // The threads' figures are those of the blocks.
    let csv = text(&mut b, "allocations().by_thread().save_as_csv(\"x.csv\");");
    let rows = of_csv(&csv);
    let sum = rows.iter().filter_map(|r| r["allocated_bytes"].as_u64()).sum::<u64>();
    assert_eq!(sum, b.w.blocks.iter().map(|b| b.size).sum::<u64>());
    assert_eq!(rows.len(), 7);
    for (code, why) in [
        ("[1].save_as_csv(\"x.csv\")", "one of the array is of the type Integer"),
        (
            "[#{}, \"a\"].save_as_html(\"x.html\")",
            "save_as_html takes objects, and one of the array",
        ),
        ("let a = []; for i in 0..100 { a = [a]; } a.save_as_json(\"x.json\")", "64 deep"),
    ] {
        let e = b.script.run(code).expect_err("refused");
        assert!(e.message.contains(why), "{code}: {e}");
    }
}
