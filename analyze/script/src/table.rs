//! Tables of text: the columns of lists, groups and objects, one below the other.

use crate::askers::Askers;
use crate::error::{Fault, fault, type_name};
use crate::group::AllocationGroupList;
use crate::list::AllocationList;
use crate::maplist::MapList;
use crate::print::to_text;
use crate::recording::Shared;
use crate::registry::Registry;
use prof_analyze::report::units;
use rhai::{Array, Dynamic};
use std::rc::Rc;

/// Greatest number of rows of a list that a table shows.
const MOST_ROWS: usize = 1000;

/// The cells of a table: a text, and whether it is a number.
type Row = Vec<(String, bool)>;

fn number(n: u64) -> (String, bool) {
    (units::number(n), true)
}

fn text(t: impl Into<String>) -> (String, bool) {
    (t.into(), false)
}

fn unknown(name: &str, known: &[&str]) -> Fault {
    fault(format!("table: there is no column {name:?} here; there are {}", known.join(", ")))
}

const OF_BLOCKS: [&str; 8] = [
    "allocated_at",
    "deallocated_at",
    "lifetime",
    "size",
    "address",
    "thread",
    "function",
    "stack",
];
const OF_GROUPS: [&str; 6] = ["size", "count", "leaked_size", "leaked_count", "stack", "function"];
const OF_MAPS: [&str; 8] =
    ["id", "allocated_at", "address", "size", "rss", "peak_rss", "kind", "name"];

fn of_blocks(list: &AllocationList, columns: &[String]) -> Result<Vec<Row>, Fault> {
    let mut rows = Vec::new();
    let askers = Askers::new(&list.of);
    for block in list.clone().into_iter().take(MOST_ROWS) {
        let b = block?;
        let cell = |name: &String| {
            Ok(match name.as_str() {
                "allocated_at" => text(b.allocated_at().to_string()),
                "deallocated_at" => {
                    text(b.deallocated_at().0.map_or("never".into(), |d| d.to_string()))
                }
                "lifetime" => text(crate::duration::Duration::of_ns(b.row.lifetime_ns).to_string()),
                "size" => number(b.row.size),
                "address" => text(format!("{:#x}", b.row.address)),
                "thread" => text(b.thread()),
                "function" => text(askers.function(b.row.stack)),
                "stack" => number(b.row.stack.into()),
                other => return Err(unknown(other, &OF_BLOCKS)),
            })
        };
        rows.push(columns.iter().map(cell).collect::<Result<Row, Fault>>()?);
    }
    Ok(rows)
}

fn of_groups(groups: &AllocationGroupList, columns: &[String]) -> Result<Vec<Row>, Fault> {
    let askers = Askers::new(&groups.list.of);
    let row = |one: &crate::group::One| {
        let cell = |name: &String| {
            Ok(match name.as_str() {
                "size" => number(one.bytes),
                "count" => number(one.count),
                "leaked_size" => number(one.live_bytes),
                "leaked_count" => number(one.live_count),
                "stack" => number(one.node.into()),
                "function" => text(askers.function(one.node)),
                other => return Err(unknown(other, &OF_GROUPS)),
            })
        };
        columns.iter().map(cell).collect()
    };
    groups.groups.iter().take(MOST_ROWS).map(row).collect()
}

fn of_maps(list: &MapList, columns: &[String]) -> Result<Vec<Row>, Fault> {
    let clock = &list.of.analysis().meta().clock;
    let maps = list.maps()?;
    let row = |m: &prof_analyze::maps::Map| {
        let cell = |name: &String| {
            Ok(match name.as_str() {
                "id" => number(m.id.into()),
                "allocated_at" => {
                    text(crate::duration::Duration::of_ns(clock.ns(m.begun)).to_string())
                }
                "address" => text(format!("{:#x}", m.address)),
                "size" => number(m.size),
                "rss" => number(m.last_usage().rss),
                "peak_rss" => number(m.peak_rss),
                "kind" => text(m.kind.name()),
                "name" => text(m.name.to_string()),
                other => return Err(unknown(other, &OF_MAPS)),
            })
        };
        columns.iter().map(cell).collect()
    };
    maps.iter().take(MOST_ROWS).map(row).collect()
}

fn of_objects(objects: &Array, columns: &[String]) -> Vec<Row> {
    let row = |object: &Dynamic| {
        let map = object.read_lock::<rhai::Map>();
        let cell = |name: &String| match map.as_ref().and_then(|m| m.get(name.as_str())) {
            Some(value) if value.is_unit() => text(""),
            Some(value) => (to_text(value), value.is_int() || value.is_float()),
            None => text(""),
        };
        columns.iter().map(cell).collect()
    };
    objects.iter().take(MOST_ROWS).map(row).collect()
}

/// Writes the rows below their titles; numbers end at the same column, and texts begin there.
fn print(shared: &Shared, columns: &[String], rows: &[Row], all: u64) -> Result<(), Fault> {
    let length = |s: &str| s.chars().count();
    let width = |i: usize| {
        let cells = rows.iter().map(|r| length(&r[i].0));
        cells.max().unwrap_or(0).max(length(&columns[i]))
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let right: Vec<bool> =
        (0..columns.len()).map(|i| rows.first().is_some_and(|r| r[i].1)).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).zip(&right).map(|((cell, width), right)| {
            let fill = " ".repeat(width - length(cell));
            if *right { format!("{fill}{cell}") } else { format!("{cell}{fill}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut host = shared.host.borrow_mut();
    host.line(&line(columns.iter().map(String::as_str).collect())).map_err(fault)?;
    for row in rows {
        host.line(&line(row.iter().map(|c| c.0.as_str()).collect())).map_err(fault)?;
    }
    if all > rows.len() as u64 {
        let more = units::number(all - rows.len() as u64);
        host.line(&format!("… and {more} more")).map_err(fault)?;
    }
    Ok(())
}

fn table(shared: &Shared, value: &Dynamic, columns: Option<&Array>) -> Result<(), Fault> {
    let given = columns.map(|c| c.iter().map(to_text).collect::<Vec<String>>());
    if given.as_ref().is_some_and(Vec::is_empty) {
        return Err(fault(
            "table: the list of columns is empty; leave it out to have those that fit",
        ));
    }
    let or = |default: &[&str]| {
        given.clone().unwrap_or_else(|| default.iter().map(|c| (*c).into()).collect())
    };
    if let Some(list) = value.read_lock::<AllocationList>() {
        let columns = or(&["allocated_at", "lifetime", "size", "thread", "function"]);
        return print(shared, &columns, &of_blocks(&list, &columns)?, list.count()?);
    }
    if let Some(groups) = value.read_lock::<AllocationGroupList>() {
        let columns = or(&["size", "count", "leaked_size", "leaked_count", "function"]);
        return print(shared, &columns, &of_groups(&groups, &columns)?, groups.groups.len() as u64);
    }
    if let Some(list) = value.read_lock::<MapList>() {
        let columns = or(&["id", "allocated_at", "size", "rss", "peak_rss", "kind", "name"]);
        return print(shared, &columns, &of_maps(&list, &columns)?, list.ids.len() as u64);
    }
    if let Some(objects) = value.read_lock::<Array>() {
        if let Some(other) = objects.iter().find(|o| !o.is_map()) {
            let kind = type_name(other);
            return Err(fault(format!(
                "table takes an array of objects, and one of it is of the type {kind}"
            )));
        }
        let first = objects.first().and_then(|o| o.read_lock::<rhai::Map>());
        let is_plain = |v: &Dynamic| !v.is_array() && !v.is_map();
        let keys: Vec<String> = first
            .map(|m| m.iter().filter(|(_, v)| is_plain(v)).map(|(k, _)| k.to_string()).collect())
            .unwrap_or_default();
        let columns = given.unwrap_or(keys);
        return print(shared, &columns, &of_objects(&objects, &columns), objects.len() as u64);
    }
    Err(fault(format!(
        "table takes a list, groups, or an array of objects, and not {}",
        type_name(value)
    )))
}

/// Registers `table`.
pub(crate) fn register(r: &mut Registry, shared: &Rc<Shared>) {
    let (all, some) = (shared.clone(), shared.clone());
    r.of("")
        .def(
            "table",
            "(rows: AllocationList|AllocationGroupList|MapList|[Object], columns: [String])",
            "Prints a table of a list, of groups, or of objects; the columns can be chosen.",
            "table(allocations().group_by_backtrace().sort_by_size().take(3));\n\
             table(allocations().by_thread(), [\"name\", \"allocated_bytes\"]);",
            move |value: Dynamic| table(&all, &value, None),
        )
        .note("New in prof.")
        .also(move |value: Dynamic, columns: Array| table(&some, &value, Some(&columns)));
}
