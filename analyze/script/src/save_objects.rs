//! Arrays of objects as files.

use crate::error::{Fault, fault, type_name};
use crate::host::FileKind;
use crate::print::to_text;
use crate::recording::Shared;
use crate::registry::Registry;
use crate::save::{Done, write};
use rhai::{Array, Dynamic};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io;
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

/// Returns a value as a cell of CSV.
fn cell(value: &Dynamic) -> Result<String, Fault> {
    let text = match () {
        () if value.is_unit() => String::new(),
        () if value.is_array() || value.is_map() => json(value, 0)?.to_string(),
        () => to_text(value),
    };
    Ok(match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    })
}

/// Writes objects as CSV: a column for each field that any of them has.
fn save_objects_as_csv(shared: &Shared, objects: &Array, path: &str) -> Done {
    let mut rows = Vec::with_capacity(objects.len());
    for object in objects {
        let row = object.read_lock::<rhai::Map>();
        rows.push(row.ok_or_else(|| {
            let kind = type_name(object);
            fault(format!("save_as_csv takes objects, and one of the array is of the type {kind}"))
        })?);
    }
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

fn save_objects_as_json(shared: &Shared, objects: &Array, path: &str) -> Done {
    let all = objects.iter().map(|o| json(o, 0)).collect::<Result<Vec<_>, _>>()?;
    write(shared, path, FileKind::Json, |out| {
        serde_json::to_writer(&mut *out, &all).map_err(io::Error::from)?;
        Ok(writeln!(out)?)
    })
}

/// Registers the methods.
pub(crate) fn register(r: &mut Registry, shared: &Rc<Shared>) {
    let (csv, json) = (shared.clone(), shared.clone());
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
        .note("New in prof.");
}
