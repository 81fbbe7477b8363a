//! The other answers of prof as objects: verdicts on leaks, differences, lifetimes, sizes, threads, modules, pages.
//!
//! Objects have the fields of the command line's `--format json`.

use crate::error::{Fault, fault, of_scan};
use crate::list::AllocationList;
use crate::maplist::MapList;
use crate::recording::Shared;
use crate::registry::Registry;
use crate::save::filter_of;
use prof_analyze::Analysis;
use prof_analyze::answers::{GroupKey, GroupsAsk, groups};
use prof_analyze::diff::{Diff, DiffOptions};
use prof_analyze::fragmentation::{Fragmentation, FragmentationError, FragmentationOptions};
use prof_analyze::leaks::{Class, LeakOptions, Leaks};
use prof_analyze::maps::{MapFilter, MapSort, MapsOptions, MapsReport};
use prof_analyze::query::{LIFETIMES, Tally};
use prof_analyze::report::{Report, ReportOptions, SortKey, Style};
use rhai::{Array, Dynamic};
use serde::Serialize;
use std::rc::Rc;

pub(crate) fn object(value: &impl Serialize) -> Result<Dynamic, Fault> {
    rhai::serde::to_dynamic(value)
}

fn array(values: &[impl Serialize]) -> Result<Array, Fault> {
    values.iter().map(object).collect()
}

fn analysis(list: &AllocationList) -> Result<Analysis, Fault> {
    list.query()?.analysis(None).map_err(of_scan)
}

/// Adds the blocks of a stack to the object that describes it.
fn with_list(list: &AllocationList, value: Dynamic, id: u32) -> Result<Dynamic, Fault> {
    let mut value = value;
    if let Some(mut map) = value.write_lock::<rhai::Map>() {
        let blocks = list.filtered("stacks", &id.to_string())?;
        map.insert("allocations".into(), Dynamic::from(blocks));
    }
    Ok(value)
}

fn leaks(list: &AllocationList) -> Result<Array, Fault> {
    let options = LeakOptions { top: 0, classes: Class::ALL.to_vec(), ..LeakOptions::default() };
    let found = Leaks::new(list.of.index(), &list.query()?, &options).map_err(of_scan)?;
    found.stacks.iter().map(|s| with_list(list, object(s)?, s.id)).collect()
}

fn grouped(list: &AllocationList, by: GroupKey) -> Result<Array, Fault> {
    // A peak that is not computed would read as 0.
    let (sort, count, peaks) = (SortKey::Allocated, usize::MAX, true);
    let ask = GroupsAsk { by, sort, count, peaks, ..GroupsAsk::default() };
    let found = groups(list.of.index(), &list.query()?, &ask).map_err(of_scan)?;
    array(&found.rows)
}

fn tally(count: &Tally, extra: &[(&str, Dynamic)]) -> Dynamic {
    let mut map = rhai::Map::new();
    for (name, value) in extra {
        map.insert((*name).into(), value.clone());
    }
    map.insert("count".into(), crate::api::int(count.count).into());
    map.insert("bytes".into(), crate::api::int(count.bytes).into());
    Dynamic::from(map)
}

fn lifetimes(list: &AllocationList) -> Result<Array, Fault> {
    use crate::duration::Duration;
    let spread = list.query()?.spread(None).map_err(of_scan)?;
    let limit = |i: usize| LIFETIMES.get(i).map(|ns| Dynamic::from(Duration::of_ns(*ns)));
    let of = |(i, t): (usize, &Tally)| {
        let leaked = i == LIFETIMES.len() + 1;
        let from = if leaked { None } else { Some(i) };
        let least =
            from.map(|i| i.checked_sub(1).and_then(limit).unwrap_or(Dynamic::from(Duration(0))));
        let extra = [
            ("at_least", least.unwrap_or(Dynamic::UNIT)),
            ("below", from.and_then(limit).unwrap_or(Dynamic::UNIT)),
            ("leaked", leaked.into()),
        ];
        tally(t, &extra)
    };
    Ok(spread.lifetimes.iter().enumerate().map(of).collect())
}

fn sizes(list: &AllocationList) -> Result<Array, Fault> {
    let spread = list.query()?.spread(None).map_err(of_scan)?;
    let size = |(size, t): &(u64, Tally)| tally(t, &[("size", crate::api::int(*size).into())]);
    Ok(spread.sizes.iter().map(size).collect())
}

fn fragmentation(list: &AllocationList) -> Result<Dynamic, Fault> {
    let options = FragmentationOptions { top: 0, sparse: 0.25, at: None, filter: filter_of(list) };
    let found = Fragmentation::new(list.of.index(), &list.query()?, &options);
    object(&found.map_err(|e| match e {
        FragmentationError::Scan(e) => of_scan(e),
        e => fault(e.to_string()),
    })?)
}

fn diff(before: &AllocationList, after: &AllocationList) -> Result<Dynamic, Fault> {
    let options = DiffOptions { top: 0, filter: Vec::new() };
    object(&Diff::new(&analysis(before)?, &analysis(after)?, &options))
}

fn report(list: &AllocationList, top: Option<i64>, sort: &str) -> Result<String, Fault> {
    let found = SortKey::ALL.iter().find(|k| k.1 == sort && k.0 != SortKey::Total);
    let (sort, _) = found.ok_or_else(|| {
        let names: Vec<&str> = SortKey::ALL.iter().map(|k| k.1).filter(|n| *n != "total").collect();
        fault(format!("report: {sort:?} is no key to sort by; give one of {}", names.join(", ")))
    })?;
    let options = ReportOptions {
        top: usize::try_from(top.unwrap_or(10))
            .map_err(|_| fault("report: the number of stacks is negative"))?,
        sort: *sort,
        // As on the command line, stacks without the figure are only shown if so many were asked for.
        empty: top.is_some(),
        filter: filter_of(list),
        ..ReportOptions::default()
    };
    let text = Report::new(&analysis(list)?, &options).text(Style::of_script());
    Ok(text.trim_end().to_owned())
}

/// Number of mappings that `prof maps` shows.
const TOP_MAPS: i64 = 40;

fn maps_report(list: &MapList, top: i64, sort: &str) -> Result<String, Fault> {
    let found = MapSort::ALL.iter().find(|k| k.1 == sort);
    let (sort, _) = found.ok_or_else(|| {
        let names = MapSort::ALL.map(|k| k.1).join(", ");
        fault(format!("report: {sort:?} is no key to sort by; give one of {names}"))
    })?;
    let top = usize::try_from(top)
        .map_err(|_| fault("report: the number of mappings is negative; 0 shows all"))?;
    let options = MapsOptions { top, sort: *sort, ..MapsOptions::default() };
    let filter = MapFilter::of_ids(list.ids.to_vec());
    let report = MapsReport::new(list.of.analysis(), list.of.maps()?, &filter, &options);
    Ok(report.text(Style::of_script()).trim_end().to_owned())
}

fn figures(list: &AllocationList) -> Result<Dynamic, Fault> {
    let options = ReportOptions { top: 1, filter: filter_of(list), ..ReportOptions::default() };
    object(&Report::new(&analysis(list)?, &options).head.totals)
}

/// Registers the methods, and `diff`.
pub(crate) fn register(r: &mut Registry, _: &Rc<Shared>) {
    r.of("AllocationList");
    register_groupings(r);
    register_tables(r);
    register_reports(r);
}

fn register_groupings(r: &mut Registry) {
    type L = AllocationList;
    let kinds: [(&str, GroupKey, &str); 5] = [
        ("by_function", GroupKey::Function, "function that asked for them"),
        ("by_file", GroupKey::File, "source file of the function that asked for them"),
        ("by_module", GroupKey::Module, "module of the function that asked for them"),
        ("by_thread", GroupKey::Thread, "thread that made them"),
        ("by_size", GroupKey::Size, "size: up to 8 bytes, up to 16, and so on"),
    ];
    for (name, by, what) in kinds {
        let doc = format!(
            "Returns the figures of the blocks by the {what}, as `prof report --group-by`; most bytes first."
        );
        let example = format!("println(allocations().{name}().len());");
        r.def(name, "() -> [Object]", doc, example, move |l: &mut L| grouped(l, by))
            .note("New in prof.");
    }
}

fn register_tables(r: &mut Registry) {
    type L = AllocationList;
    let each =
        |what: &str, show: &str| format!("for x in allocations().{what}() {{ println({show}); }}");
    r.def(
        "leaks",
        "() -> [Object]",
        "Returns the verdicts on all stacks, as `prof leaks`, the worst first; `allocations` has the stack's blocks.",
        each("leaks", "`${x.class}: ${x.bytes}`"),
        |l: &mut L| leaks(l),
    )
    .note("New in prof.")
    .def(
        "lifetimes",
        "() -> [Object]",
        "Returns number and bytes of the blocks by how long they lived; the last is of those that never end.",
        each("lifetimes", "x.count"),
        |l: &mut L| lifetimes(l),
    )
    .note("New in prof.")
    .def(
        "sizes",
        "() -> [Object]",
        "Returns number and bytes of the blocks by their exact size.",
        "println(allocations().sizes().len());",
        |l: &mut L| sizes(l),
    )
    .note("New in prof.")
    .def(
        "fragmentation",
        "() -> Object",
        "Returns which stacks keep pages, as `prof fragmentation`.",
        "println(allocations().fragmentation().pages.keys().len() > 0);",
        |l: &mut L| fragmentation(l),
    )
    .note("New in prof.")
    .def(
        "figures",
        "() -> Object",
        "Returns the sums over the list, as the totals of `prof report --format json`.",
        "println(allocations().figures().live_bytes);",
        |l: &mut L| figures(l),
    )
    .note("New in prof.");
}

/// Registers the texts of a list of allocations and of a list of mappings, and `diff`.
fn register_reports(r: &mut Registry) {
    type L = AllocationList;
    r.def(
        "report",
        "(top: Integer, sort: String) -> String",
        "Returns the text of `prof report` on the list; the number of stacks and the key to sort by can be given.",
        "println(allocations().report(3, \"allocated\"));",
        |l: &mut L| report(l, None, "size"),
    )
    .note("New in prof.")
    .also(|l: &mut L, top: i64| report(l, Some(top), "size"))
    .also(|l: &mut L, sort: &str| report(l, None, sort))
    .also(|l: &mut L, top: i64, sort: &str| report(l, Some(top), sort));
    r.of("MapList")
        .def(
            "report",
            "(top: Integer, sort: String) -> String",
            "Returns the text of `prof maps` on the list; the number of mappings (40; 0: all) and the key to sort by can be given.",
            "println(maps().report(3, \"rss\"));",
            |l: &mut MapList| maps_report(l, TOP_MAPS, "size"),
        )
        .note("New in prof.")
        .also(|l: &mut MapList, top: i64| maps_report(l, top, "size"))
        .also(|l: &mut MapList, sort: &str| maps_report(l, TOP_MAPS, sort))
        .also(|l: &mut MapList, top: i64, sort: &str| maps_report(l, top, sort));
    r.of("").def(
        "diff",
        "(before: AllocationList, after: AllocationList) -> Object",
        "Compares two lists, of one recording or of two, as `prof diff`: by stacks, what grew and what shrank.",
        "let half = data().runtime() * 0.5;\n\
         let early = allocations().only_allocated_until_at_most(half);\n\
         println(diff(early, allocations()).total.live_bytes);",
        |before: L, after: L| diff(&before, &after),
    )
    .note("New in prof.");
}
