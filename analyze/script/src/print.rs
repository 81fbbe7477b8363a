//! Printing: the text of values, and `println` with its placeholders.

use crate::backtrace::Backtrace;
use crate::block::Allocation;
use crate::code::quoted;
use crate::duration::{Duration, Moment};
use crate::error::{Failed, Fault, fault};
use crate::group::AllocationGroupList;
use crate::list::AllocationList;
use crate::maplist::{Map, MapList};
use crate::recording::Shared;
use crate::registry::Registry;
use prof_analyze::report::units;
use rhai::{Dynamic, EvalAltResult, Position};
use std::rc::Rc;

/// Deepest array or map whose content is printed; deeper ones are `[…]`.
const DEEPEST: usize = 64;

/// Returns a value as `println` prints it, in one line.
pub(crate) fn to_text(value: &Dynamic) -> String {
    text_at(value, 0)
}

fn text_at(value: &Dynamic, depth: usize) -> String {
    macro_rules! display {
        ($($kind:ty),*) => { $(if let Some(v) = value.read_lock::<$kind>() { return v.to_string(); })* };
    }
    macro_rules! named {
        ($($kind:ty => $name:literal),*) => { $(if value.is::<$kind>() { return $name.into(); })* };
    }
    display!(Duration, Moment, Backtrace, Failed);
    named!(
        AllocationList => "AllocationList",
        AllocationGroupList => "AllocationGroupList",
        MapList => "MapList",
        Allocation => "Allocation",
        Map => "Map",
        crate::graph::Graph => "Graph",
        crate::scans::Scan => "Scan",
        crate::api::Data => "Data"
    );
    if depth >= DEEPEST && (value.is_array() || value.is_map()) {
        return if value.is_map() { "#{…}".into() } else { "[…]".into() };
    }
    if let Some(array) = value.read_lock::<rhai::Array>() {
        let all: Vec<String> = array.iter().map(|v| quoted_text(v, depth + 1)).collect();
        return format!("[{}]", all.join(", "));
    }
    if let Some(map) = value.read_lock::<rhai::Map>() {
        let all = map.iter().map(|(k, v)| format!("{}: {}", quoted(k), quoted_text(v, depth + 1)));
        return format!("#{{{}}}", all.collect::<Vec<_>>().join(", "));
    }
    // The language prints it as nothing, as if the value were an empty text.
    if value.is_unit() { "()".into() } else { value.to_string() }
}

/// Longest array or map that is printed in one line.
const WIDE: usize = 100;

/// Returns a value in lines: an array or a map that is too long for one line has one for each of its parts.
fn laid_out(value: &Dynamic, indent: usize) -> String {
    if indent >= WIDE / 2 {
        return quoted_text(value, indent / 2);
    }
    // The text of each part is made once, and not for all that it is a part of.
    if !is_longer(value, &mut WIDE.saturating_sub(indent)) {
        let text = quoted_text(value, indent / 2);
        if indent + text.chars().count() <= WIDE {
            return text;
        }
    }
    let inner = indent + 2;
    let is_small = |v: &Dynamic| !v.is_array() && !v.is_map();
    let lines: Vec<String> = if let Some(array) = value.read_lock::<rhai::Array>() {
        // Numbers and the like share lines.
        if array.iter().all(is_small) {
            filled(
                array.iter().map(|v| quoted_text(v, indent)),
                WIDE.saturating_sub(inner + 1).max(40),
            )
        } else {
            array.iter().map(|v| laid_out(v, inner)).collect()
        }
    } else if let Some(map) = value.read_lock::<rhai::Map>() {
        map.iter().map(|(k, v)| format!("{}: {}", quoted(k), laid_out(v, inner))).collect()
    } else {
        return quoted_text(value, indent / 2);
    };
    let (open, close) = if value.is_array() { ("[", "]") } else { ("#{", "}") };
    let pad = " ".repeat(inner);
    let body = lines.join(&format!(",\n{pad}"));
    format!("{open}\n{pad}{body}\n{}{close}", " ".repeat(indent))
}

/// Returns whether the text of a value surely has more characters than there is room for.
fn is_longer(value: &Dynamic, room: &mut usize) -> bool {
    let mut take = |n: usize| {
        let fits = n <= *room;
        *room = room.saturating_sub(n);
        !fits
    };
    if let Some(text) = value.read_lock::<rhai::ImmutableString>() {
        return take(text.chars().count());
    }
    if let Some(array) = value.read_lock::<rhai::Array>() {
        return take(1) || array.iter().any(|v| is_longer(v, room));
    }
    if let Some(map) = value.read_lock::<rhai::Map>() {
        return take(1)
            || map.iter().any(|(k, v)| {
                let key = k.chars().count();
                let fits = key <= *room;
                *room = room.saturating_sub(key);
                !fits || is_longer(v, room)
            });
    }
    take(1)
}

/// Puts texts into lines of at most `width` characters.
fn filled(texts: impl Iterator<Item = String>, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for text in texts {
        match lines.last_mut() {
            Some(last) if last.len() + text.len() + 2 <= width => {
                last.push_str(", ");
                last.push_str(&text);
            }
            _ => lines.push(text),
        }
    }
    lines
}

/// Returns a value as `println` prints it on its own: lists with the number of what they have, which takes a pass over
/// the index if it is not known yet. Lists within arrays and maps are only named, as there may be thousands.
///
/// # Errors
/// If the list can't be computed.
pub(crate) fn shown(value: &Dynamic) -> Result<String, Fault> {
    let counted = |name: &str, n: u64, one: &str| {
        let s = if n == 1 || one == "series" { "" } else { "s" };
        Ok(format!("{name} ({} {one}{s})", units::number(n)))
    };
    if let Some(list) = value.read_lock::<AllocationList>() {
        return counted("AllocationList", list.count()?, "allocation");
    }
    if let Some(groups) = value.read_lock::<AllocationGroupList>() {
        return counted("AllocationGroupList", groups.groups.len() as u64, "group");
    }
    if let Some(list) = value.read_lock::<MapList>() {
        return counted("MapList", list.ids.len() as u64, "map");
    }
    if let Some(graph) = value.read_lock::<crate::graph::Graph>() {
        return counted("Graph", graph.series.len() as u64, "series");
    }
    if let Some(a) = value.read_lock::<Allocation>() {
        let (size, address) = (units::bytes(a.row.size), a.row.address);
        let end = a.deallocated_at().0.map_or("the end".into(), Duration::spelled);
        let begin = a.allocated_at().spelled();
        return Ok(format!("Allocation ({size} at {address:#x}, {begin} to {end})"));
    }
    if let Some(map) = value.read_lock::<Map>() {
        let (size, address) = (map.read(|m| m.size)?, map.read(|m| m.address)?);
        let name = map.read(|m| m.name.to_string())?;
        return Ok(format!("Map ({} at {address:#x}, {name:?})", units::bytes(size)));
    }
    if let Some(scan) = value.read_lock::<crate::scans::Scan>() {
        return Ok(scan.described());
    }
    if let Some(data) = value.read_lock::<crate::api::Data>() {
        return Ok(format!("Data ({})", data.of.analysis().shown_path().display()));
    }
    if value.is_array() || value.is_map() {
        return Ok(laid_out(value, 0));
    }
    Ok(to_text(value))
}

/// Returns a value as it is printed within an array or a map.
fn quoted_text(value: &Dynamic, depth: usize) -> String {
    match value.read_lock::<rhai::ImmutableString>() {
        Some(text) => quoted(text.as_str()),
        None if value.is_char() => format!("{:?}", value.as_char().unwrap_or_default()),
        None => text_at(value, depth),
    }
}

/// Returns a value as `println` prints it: numbers as bytehound does, which prints 2.0 as 2.
fn printed(value: &Dynamic) -> Result<String, Fault> {
    match value.as_float() {
        Ok(number) => Ok(number.to_string()),
        Err(_) => shown(value),
    }
}

/// Replaces the placeholders of a format: `{}` by the next argument, `{N}` by one of them. `{{` is a bracket, and `}` is
/// one wherever it ends no placeholder, as in bytehound: `}}` are two.
pub(crate) fn formatted(format: &str, args: &[String], most: usize) -> Result<String, String> {
    let (mut out, mut next) = (String::new(), 0);
    let mut rest = format;
    while let Some(at) = rest.find('{') {
        if out.len() > most {
            return Err(format!("the text is longer than {} MiB", most >> 20));
        }
        let (before, behind) = rest.split_at(at);
        out.push_str(before);
        if let Some(more) = behind.strip_prefix("{{") {
            out.push('{');
            rest = more;
            continue;
        }
        let Some(end) = behind.find('}') else {
            return Err(format!("the format {format:?} has a {{ without a }}"));
        };
        let index = match behind[1..end].trim() {
            "" => {
                next += 1;
                next - 1
            }
            number => number.parse::<usize>().map_err(|_| {
                format!("the format {format:?} has {:?}; write {{}} or {{0}}", &behind[..=end])
            })?,
        };
        let few =
            || format!("the format {format:?} needs more arguments than the {} given", args.len());
        out.push_str(args.get(index).ok_or_else(few)?);
        rest = &behind[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

fn print(shared: &Shared, values: &[Dynamic]) -> Result<(), Fault> {
    values.iter().try_for_each(|v| shared.check_text(v))?;
    let texts: Vec<String> = values.iter().map(printed).collect::<Result<_, Fault>>()?;
    let text = match texts.split_first() {
        None => String::new(),
        Some((one, [])) => one.clone(),
        Some((format, args)) => formatted(format, args, shared.longest).map_err(fault)?,
    };
    shared.host.borrow_mut().line(&text).map_err(fault)
}

/// Registers the functions that print.
pub(crate) fn register(r: &mut Registry, shared: &Rc<Shared>) {
    let own = [(); 7].map(|()| shared.clone());
    let [s0, s1, s2, s3, s4, s5, s6] = own;
    r.of("")
        .def(
            "println",
            "(format: Any, a: Any, b: Any, c: Any)",
            "Prints a line: nothing, a value, or a format whose {} and {0} are replaced by up to three values.",
            "println(\"{} blocks in {}\", allocations().len(), data().runtime());",
            move || print(&s0, &[]),
        )
        .also(move |a: Dynamic| print(&s1, &[a]))
        .also(move |f: Dynamic, a: Dynamic| print(&s2, &[f, a]))
        .also(move |f: Dynamic, a: Dynamic, b: Dynamic| print(&s3, &[f, a, b]))
        .also(move |f: Dynamic, a: Dynamic, b: Dynamic, c: Dynamic| print(&s4, &[f, a, b, c]))
        .def(
            "info",
            "(message: String)",
            "Prints a message to standard error.",
            "info(\"looking for leaks\");",
            move |text: &str| s5.host.borrow_mut().note(text),
        )
        .def(
            "assert",
            "(condition: Boolean, message: String)",
            "Ends the script if a condition does not hold; `prof script` then ends with exit code 1.",
            "assert(allocations().len() > 0, \"nothing was recorded\");",
            |holds: bool, message: &str| check(holds, message),
        )
        .note("New in prof.")
        .also(|holds: bool| check(holds, "assert: the condition does not hold"));
    r.engine
        .register_type_with_name::<Failed>("Failure")
        .register_fn("to_string", |e: &mut Failed| e.to_string())
        .register_fn("to_debug", |e: &mut Failed| e.to_string());
    r.def(
        "format",
        "(format: String, values: Array) -> String",
        "Returns a text whose {} and {0} are replaced by values.",
        "println(format(\"{} of {}\", [1, 2]));",
        move |format: &str, values: rhai::Array| {
            values.iter().try_for_each(|v| s6.check_text(v))?;
            let texts: Vec<String> = values.iter().map(printed).collect::<Result<_, Fault>>()?;
            formatted(format, &texts, s6.longest).map_err(fault)
        },
    )
    .note("New in prof.")
    .def(
        "bytes",
        "(n: Integer) -> String",
        "Returns a number of bytes in a unit that people read: 1.5 MiB.",
        "println(bytes(1572864));",
        |n: i64| match u64::try_from(n) {
            Ok(n) => units::bytes(n),
            Err(_) => units::signed_bytes(n),
        },
    )
    .note("New in prof.");
}

fn check(holds: bool, message: &str) -> Result<(), Fault> {
    match holds {
        true => Ok(()),
        false => Err(Box::new(EvalAltResult::ErrorRuntime(
            Dynamic::from(Failed(message.to_owned())),
            Position::NONE,
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced() {
        let args = ["a".to_owned(), "b".to_owned()];
        for (format, text) in [
            ("{} and {}", "a and b"),
            ("{1}{0}{1}", "bab"),
            ("{{}} {}", "{}} a"),
            ("a}b {}}", "a}b a}"),
            ("none", "none"),
            ("é{}é", "éaé"),
        ] {
            assert_eq!(formatted(format, &args, usize::MAX).as_deref(), Ok(text));
        }
        for wrong in ["{} {} {}", "{2}", "{x}", "{"] {
            assert!(formatted(wrong, &args, usize::MAX).is_err(), "{wrong}");
        }
    }
}
