//! Arrays of objects as files.

use crate::error::{Fault, fault, type_name};
use crate::host::FileKind;
use crate::print::to_text;
use crate::recording::Shared;
use crate::registry::Registry;
use crate::save::{Done, write};
#[cfg(feature = "parquet")]
use prof_analyze::export::parquet_table;
use prof_analyze::export::{TableColumn, Values, html_table};
use rhai::{Array, Dynamic};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io;
use std::ops::Deref;
use std::rc::Rc;

/// Deepest object that is saved.
const DEEPEST: usize = 64;

/// Returns a value as JSON. What JSON has no form for is written as it prints.
fn json(value: &Dynamic, depth: usize) -> Result<Value, Fault> {
    if depth > DEEPEST {
        return Err(fault(format!("objects that are more than {DEEPEST} deep can't be saved")));
    }
    if let Some(array) = value.read_lock::<Array>() {
        return array
            .iter()
            .map(|v| json(v, depth + 1))
            .collect::<Result<_, _>>()
            .map(Value::Array);
    }
    if let Some(map) = value.read_lock::<rhai::Map>() {
        let of = |(k, v): (&_, &Dynamic)| Ok((ToString::to_string(k), json(v, depth + 1)?));
        return map.iter().map(of).collect::<Result<_, Fault>>().map(Value::Object);
    }
    Ok(match (value.as_int(), value.as_float(), value.as_bool()) {
        (Ok(n), ..) => n.into(),
        (_, Ok(x), _) => x.into(),
        (.., Ok(is)) => is.into(),
        _ if value.is_unit() => Value::Null,
        _ => to_text(value).into(),
    })
}

/// Returns a value as a text: arrays and objects as JSON.
fn text(value: &Dynamic) -> Result<String, Fault> {
    Ok(match () {
        () if value.is_unit() => String::new(),
        () if value.is_array() || value.is_map() => json(value, 0)?.to_string(),
        () => to_text(value),
    })
}

/// Returns a value as a cell of CSV.
fn cell(value: &Dynamic) -> Result<String, Fault> {
    let text = text(value)?;
    Ok(match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    })
}

/// Returns the objects of an array that the method `by` saves.
fn rows<'a>(
    objects: &'a Array,
    by: &str,
) -> Result<Vec<impl Deref<Target = rhai::Map> + 'a>, Fault> {
    let row = |object: &'a Dynamic| {
        object.read_lock::<rhai::Map>().ok_or_else(|| {
            let kind = type_name(object);
            fault(format!("{by} takes objects, and one of the array is of the type {kind}"))
        })
    };
    objects.iter().map(row).collect()
}

/// Writes objects as CSV: a column for each field that any of them has.
fn save_objects_as_csv(shared: &Shared, objects: &Array, path: &str) -> Done {
    let rows = rows(objects, "save_as_csv")?;
    let fields: BTreeSet<&str> = rows.iter().flat_map(|r| r.keys().map(|k| k.as_str())).collect();
    if fields.is_empty() {
        return write(shared, path, FileKind::Csv, |_| Ok(()));
    }
    let titles = fields.iter().map(|f| cell(&Dynamic::from((*f).to_owned())));
    let mut lines = vec![titles.collect::<Result<Vec<_>, _>>()?.join(",")];
    for row in &rows {
        let cells = fields.iter().map(|f| row.get(*f).map_or(Ok(String::new()), cell));
        lines.push(cells.collect::<Result<Vec<_>, _>>()?.join(","));
    }
    write(shared, path, FileKind::Csv, |out| {
        Ok(lines.iter().try_for_each(|line| writeln!(out, "{line}"))?)
    })
}

/// Returns the objects as columns, one for each field that any of them has. Its type is that which all of its values
/// have; texts, if they differ.
fn columns(objects: &Array, by: &str) -> Result<Vec<TableColumn>, Fault> {
    let rows = rows(objects, by)?;
    let fields: BTreeSet<&str> = rows.iter().flat_map(|r| r.keys().map(|k| k.as_str())).collect();
    let column = |name: &str| {
        let all: Vec<Option<&Dynamic>> =
            rows.iter().map(|r| r.get(name).filter(|v| !v.is_unit())).collect();
        let every = |is: fn(&Dynamic) -> bool| all.iter().flatten().all(|v| is(v));
        let values = if every(Dynamic::is_int) {
            Values::Integers(all.iter().map(|v| v.and_then(|v| v.as_int().ok())).collect())
        } else if every(|v| v.is_int() || v.is_float()) {
            let float = |v: &Dynamic| v.as_float().or_else(|_| v.as_int().map(|n| n as f64)).ok();
            Values::Floats(all.iter().map(|v| v.and_then(float)).collect())
        } else if every(Dynamic::is_bool) {
            Values::Flags(all.iter().map(|v| v.and_then(|v| v.as_bool().ok())).collect())
        } else {
            let text = |v: &Option<&Dynamic>| v.map(text).transpose();
            Values::Texts(all.iter().map(text).collect::<Result<_, Fault>>()?)
        };
        Ok(TableColumn { name: name.to_owned(), values })
    };
    fields.into_iter().map(column).collect()
}

fn save_objects_as_html(shared: &Shared, objects: &Array, path: &str) -> Done {
    let columns = columns(objects, "save_as_html")?;
    let rows = objects.len();
    write(shared, path, FileKind::Html, |out| Ok(html_table(&columns, rows, out)?))
}

#[cfg(feature = "parquet")]
fn save_objects_as_parquet(shared: &Shared, objects: &Array, path: &str) -> Done {
    let columns = columns(objects, "save_as_parquet")?;
    write(shared, path, FileKind::Parquet, |out| parquet_table(&columns, out))
}

fn save_objects_as_json(shared: &Shared, objects: &Array, path: &str) -> Done {
    let all = objects.iter().map(|o| json(o, 0)).collect::<Result<Vec<_>, _>>()?;
    write(shared, path, FileKind::Json, |out| {
        serde_json::to_writer(&mut *out, &all).map_err(io::Error::from)?;
        Ok(writeln!(out)?)
    })
}

/// Registers the methods.
pub(crate) fn register(r: &mut Registry, shared: &Rc<Shared>) {
    let (csv, json, html) = (shared.clone(), shared.clone(), shared.clone());
    r.of("Array")
        .def(
            "save_as_csv",
            "(path: String) -> Array",
            "Writes objects, a line each, with a column for each field.",
            "allocations().by_thread().save_as_csv(\"threads.csv\");",
            move |all: &mut Array, path: &str| {
                save_objects_as_csv(&csv, all, path).map(|()| all.clone())
            },
        )
        .note("New in prof.")
        .def(
            "save_as_json",
            "(path: String) -> Array",
            "Writes an array as JSON.",
            "allocations().by_thread().save_as_json(\"threads.json\");",
            move |all: &mut Array, path: &str| {
                save_objects_as_json(&json, all, path).map(|()| all.clone())
            },
        )
        .note("New in prof.")
        .def(
            "save_as_html",
            "(path: String) -> Array",
            "Writes objects as a page for browsers: a table with a column for each field.",
            "allocations().by_thread().save_as_html(\"threads.html\");",
            move |all: &mut Array, path: &str| {
                save_objects_as_html(&html, all, path).map(|()| all.clone())
            },
        )
        .note("New in prof.");
    #[cfg(feature = "parquet")]
    register_parquet(r, shared);
}

#[cfg(feature = "parquet")]
fn register_parquet(r: &mut Registry, shared: &Rc<Shared>) {
    let parquet = shared.clone();
    r.def(
        "save_as_parquet",
        "(path: String) -> Array",
        "Writes objects, a row each, with a column for each field: numbers, flags, or texts (of arrays and objects as JSON).",
        "allocations().by_thread().save_as_parquet(\"threads.parquet\");",
        move |all: &mut Array, path: &str| {
            save_objects_as_parquet(&parquet, all, path).map(|()| all.clone())
        },
    )
    .note("New in prof.");
}
