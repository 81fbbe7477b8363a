//! The `only_…` methods: one table, whose conditions are the fields of the command line's filters.

mod table;

pub(crate) use table::{ALL, Arg, On, Only};

use crate::backtrace::Backtrace;
use crate::code::quoted;
use crate::duration::Duration;
use crate::error::{Fault, fault, type_name};
use crate::group::AllocationGroupList;
use crate::list::AllocationList;
use crate::maplist::{Map, MapList};
use crate::recording::Shared;
use crate::registry::Registry;
use crate::words::of_methods;
use Arg::{Address, Amount, Flag, Maps as OfMaps, Number, Stacks, Text, Time, Times};
use On::{Blocks, Maps};
use rhai::{Array, Dynamic, EvalAltResult};
use std::rc::Rc;
use table::{NEW, OLD};

/// A list that can be filtered.
pub(crate) trait Filtered: Clone + Sized {
    /// Returns those that meet a condition.
    fn only(&self, field: &str, text: &str) -> Result<Self, Fault>;
    /// Returns those of this list that are not in another.
    fn without(&self, other: &Self) -> Result<Self, Fault>;
    /// Returns the list with nothing in it.
    fn nothing(&self) -> Result<Self, Fault>;
    /// Returns nanoseconds from the start to the end of the recording.
    fn runtime_ns(&self) -> u64;
}

impl Filtered for AllocationList {
    fn only(&self, field: &str, text: &str) -> Result<Self, Fault> {
        self.filtered(field, text)
    }

    fn without(&self, other: &Self) -> Result<Self, Fault> {
        self.clone().minus(other.clone())
    }

    fn nothing(&self) -> Result<Self, Fault> {
        self.none()
    }

    fn runtime_ns(&self) -> u64 {
        self.of.runtime_ns()
    }
}

/// Returns the field's text for a fraction of 1, so that the same number is parsed from it.
pub(crate) fn percent(part: f64) -> String {
    let near = part * 100.0;
    let candidates = [near, near.next_up(), near.next_down()];
    let exact = candidates.into_iter().find(|p| p / 100.0 == part).unwrap_or(near);
    // Not in the form 1e-7, which the grammar of percentages has as well, but people don't.
    format!("{exact}%")
}

/// Returns the part of a list that meets a condition, which the script asks for as `by`.
fn asked<L: Filtered>(list: &L, field: &str, text: &str, by: &str) -> Result<L, Fault> {
    // The conditions are the command line's, and so are their messages.
    list.only(field, text).map_err(|e| match *e {
        EvalAltResult::ErrorRuntime(value, at) => {
            let text = value.to_string();
            let text = match text.strip_prefix(&format!("--{field}")) {
                Some(rest) => of_methods(&format!("{by}{rest}")),
                None => text,
            };
            Box::new(EvalAltResult::ErrorRuntime(text.into(), at))
        }
        e => Box::new(e),
    })
}

impl Only {
    /// Returns the part of a list that meets the condition.
    fn apply<L: Filtered>(&self, list: &L, text: &str) -> Result<L, Fault> {
        let found = asked(list, self.field, text, self.name)?;
        if self.not { list.without(&found) } else { Ok(found) }
    }

    /// Tells an older script that the name is kept for its sake, once.
    fn tell(&self, shared: &Shared) {
        if OLD.contains(&self.note) {
            shared.tell(&format!("{}: {}", self.name, self.note.trim_end_matches('.')));
        }
    }

    fn flag<L: Filtered>(&self, list: &L) -> Result<L, Fault> {
        match self.arg {
            Flag(value) => self.apply(list, value),
            _ => Err(fault(format!("{} needs an argument", self.name))),
        }
    }

    fn number<L: Filtered>(&self, list: &L, n: i64) -> Result<L, Fault> {
        let add = if let Number(add) = self.arg { add } else { 0 };
        let least = self.field.starts_with("min-");
        match (n.checked_add(add), self.arg) {
            // Negative addresses are those of the upper half.
            (_, Address) => self.apply(list, &(n as u64).to_string()),
            (None, _) if add < 0 => list.nothing(),
            (Some(n @ 0..), _) => self.apply(list, &n.to_string()),
            (Some(_), _) if least => Ok(list.clone()),
            _ => list.nothing(),
        }
    }

    fn float<L: Filtered>(&self, list: &L, part: f64) -> Result<L, Fault> {
        if !part.is_finite() {
            return Err(fault(format!("{}: {part} is no part", self.name)));
        }
        match part {
            0.0.. => self.apply(list, &percent(part)),
            _ if self.field.starts_with("min-") => Ok(list.clone()),
            _ => list.nothing(),
        }
    }

    fn time<L: Filtered>(&self, list: &L, time: Duration) -> Result<L, Fault> {
        let most = self.name.ends_with("_at_most");
        if time.0 < 0 {
            // Nothing happens before the start.
            return if most != self.not { list.nothing() } else { Ok(list.clone()) };
        }
        self.apply(list, &spelled(time.ns()))
    }

    fn times<L: Filtered>(&self, list: &L, times: &Array) -> Result<L, Fault> {
        let mut list = list.clone();
        for time in times {
            let Some(time) = time.clone().try_cast::<Duration>() else {
                return Err(fault(format!("{} takes an array of durations", self.name)));
            };
            if time.0 < 0 {
                return list.nothing();
            }
            // After the end everything is as at the end.
            let ns = time.ns().min(list.runtime_ns());
            list = self.apply(&list, &spelled(ns))?;
        }
        Ok(list)
    }

    fn ids<L: Filtered>(&self, list: &L, ids: &[u32]) -> Result<L, Fault> {
        if ids.is_empty() {
            return if self.not { Ok(list.clone()) } else { list.nothing() };
        }
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        self.apply(list, &ids.join(","))
    }
}

/// Returns a time in the largest unit of which it is a whole number, as people give it: the report names it.
fn spelled(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")];
    let unit = units.into_iter().find(|(unit, _)| ns.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "ns"));
    format!("{}{name}", ns / unit)
}

fn id_of(name: &str, id: i64) -> Result<u32, Fault> {
    u32::try_from(id).map_err(|_| fault(format!("{name}: {id} is no id")))
}

/// Collects the stacks that an argument names.
fn stacks(name: &str, value: &Dynamic, ids: &mut Vec<u32>) -> Result<(), Fault> {
    if let Ok(id) = value.as_int() {
        ids.push(id_of(name, id)?);
    } else if let Some(b) = value.read_lock::<Backtrace>() {
        ids.push(b.node);
    } else if let Some(list) = value.read_lock::<AllocationList>() {
        ids.extend(list.group_by_backtrace()?.groups.iter().map(|g| g.node));
    } else if let Some(groups) = value.read_lock::<AllocationGroupList>() {
        ids.extend(groups.groups.iter().map(|g| g.node));
    } else if let Some(maps) = value.read_lock::<MapList>() {
        ids.extend(maps.stacks()?);
    } else if let Some(array) = value.read_lock::<Array>() {
        for value in array.iter() {
            stacks(name, value, ids)?;
        }
    } else {
        return Err(fault(format!(
            "{name} takes ids, backtraces, lists, groups, or arrays of these, and not {}",
            type_name(value)
        )));
    }
    Ok(())
}

/// Collects the mappings that an argument names.
fn maps(name: &str, value: &Dynamic, ids: &mut Vec<u32>) -> Result<(), Fault> {
    if let Ok(id) = value.as_int() {
        ids.push(id_of(name, id)?);
    } else if let Some(map) = value.read_lock::<Map>() {
        ids.push(map.id);
    } else if let Some(list) = value.read_lock::<MapList>() {
        ids.extend(list.ids.iter());
    } else if let Some(array) = value.read_lock::<Array>() {
        for value in array.iter() {
            maps(name, value, ids)?;
        }
    } else {
        return Err(fault(format!(
            "{name} takes ids of mappings, mappings, lists of them, or arrays of these, and not {}",
            type_name(value)
        )));
    }
    Ok(())
}

fn sorted(mut ids: Vec<u32>) -> Vec<u32> {
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Makes the signature of a method that returns a list of mappings, or one of allocations.
macro_rules! signature_of {
    ($of_maps:expr, $args:literal) => {
        if $of_maps { concat!($args, " -> MapList") } else { concat!($args, " -> AllocationList") }
    };
}

/// Registers a method for a type of lists.
fn register<L: Filtered + 'static>(
    r: &mut Registry,
    o: &'static Only,
    list: &'static str,
    shared: &Rc<Shared>,
) {
    let shared = shared.clone();
    let make = if list == "maps" { "maps()" } else { "allocations()" };
    let example = |arg: &str| format!("println({make}.{}({arg}).len());", o.name);
    let doc = format!("Keeps those {}.", o.doc);
    let of_maps = list == "maps";
    macro_rules! signature {
        ($args:literal) => {
            signature_of!(of_maps, $args)
        };
    }
    match o.arg {
        Flag(_) => {
            let flag = move |l: &mut L| {
                o.tell(&shared);
                o.flag(l)
            };
            r.def(o.name, signature!("()"), doc, example(""), flag);
        }
        Number(_) | Address => {
            let number = |l: &mut L, n: i64| o.number(l, n);
            let arg = if o.field == "part" { "1" } else { "64" };
            r.def(o.name, signature!("(n: Integer)"), doc, example(arg), number);
        }
        Amount => {
            let signature = signature!("(n: Integer|Float)");
            r.def(o.name, signature, doc, example("0.5"), |l: &mut L, n: i64| o.number(l, n))
                .also(|l: &mut L, part: f64| o.float(l, part));
        }
        Time => {
            let time = move |l: &mut L, time: Duration| {
                o.tell(&shared);
                o.time(l, time)
            };
            let signature = signature!("(time: Duration)");
            r.def(o.name, signature, doc, example("data().runtime() * 0.5"), time);
        }
        Text if o.field == "thread" => {
            return register_thread(r, o, signature!("(thread: String|Integer)"), &doc);
        }
        Text => {
            let (signature, arg) = match o.field {
                "since" => (signature!("(mark: String)"), "\"deployed\""),
                "between" => (signature!("(marks: String)"), "\"deployed,warm\""),
                "kind" => (signature!("(kinds: String)"), "\"heap\""),
                _ => (signature!("(regex: String)"), "\"main\""),
            };
            let text = move |l: &mut L, text: &str| {
                shared.check_source(text)?;
                o.apply(l, text)
            };
            r.def(o.name, signature, doc, example(arg), text);
        }
        Times => {
            let signature = signature!("(times: [Duration])");
            r.def(
                o.name,
                signature,
                doc,
                example("[data().runtime() * 0.5]"),
                |l: &mut L, times: Array| o.times(l, &times),
            )
            .also(|l: &mut L, time: Duration| o.times(l, &vec![Dynamic::from(time)]));
        }
        Stacks | OfMaps => register_ids::<L>(r, o, of_maps, doc, &example),
    }
    if !o.note.is_empty() {
        r.note(o.note);
    }
}

/// Registers a method that takes ids of stacks or of mappings, or values that have such ids.
fn register_ids<L: Filtered + 'static>(
    r: &mut Registry,
    o: &'static Only,
    of_maps: bool,
    doc: String,
    example: &dyn Fn(&str) -> String,
) {
    if let Stacks = o.arg {
        let by = move |l: &mut L, value: Dynamic| {
            let mut ids = Vec::new();
            stacks(o.name, &value, &mut ids)?;
            o.ids(l, &sorted(ids))
        };
        let signature = signature_of!(
            of_maps,
            "(stacks: Integer|Backtrace|AllocationList|MapList|AllocationGroupList|Array)"
        );
        r.def(o.name, signature, doc, example("allocations()[0].backtrace()"), by);
    } else {
        let by = move |l: &mut L, value: Dynamic| {
            let mut ids = Vec::new();
            maps(o.name, &value, &mut ids)?;
            o.ids(l, &sorted(ids))
        };
        let signature = signature_of!(of_maps, "(maps: Integer|Map|MapList|Array)");
        r.def(o.name, signature, doc, example("maps()"), by);
    }
}

/// Registers `only_thread`, which takes names and ids.
fn register_thread(r: &mut Registry, o: &'static Only, signature: &'static str, doc: &str) {
    let example = "println(allocations().only_thread(allocations()[0].thread_name()).len());";
    let name = |l: &mut AllocationList, name: &str| o.apply(l, name);
    r.def(o.name, signature, doc, example, name)
        .note(o.note)
        .also(|l: &mut AllocationList, id: i64| o.apply(l, &id.to_string()));
}

/// Registers all methods.
pub(crate) fn register_all(r: &mut Registry, shared: &Rc<Shared>) {
    for (list, of, skip) in [("allocations", "AllocationList", Maps), ("maps", "MapList", Blocks)] {
        r.of(of);
        for o in ALL.iter().filter(|o| o.on != skip) {
            match list {
                "maps" => register::<MapList>(r, o, list, shared),
                _ => register::<AllocationList>(r, o, list, shared),
            }
        }
    }
    register_unrecorded(r, shared);
}

/// Returns the part of a list that a filter of the command line selects.
fn plainly<L: Filtered>(list: &L, field: &str, text: &str) -> Result<L, Fault> {
    let field = field.trim_start_matches("--");
    asked(list, field, text, &format!("only({})", quoted(field)))
}

const NO_JEMALLOC: &str = "recordings do not say which allocator a block is of: only_jemalloc decides by its stack, \
     and keeps blocks that a function of jemalloc made";
const NO_MARKERS: &str = "the recording has no marks, which `prof mark PID` sets: each block has the marker 0, as in \
     bytehound until a program sets one";

/// Registers the methods on blocks whose conditions bytehound decides by what recordings don't hold.
fn register_unrecorded(r: &mut Registry, shared: &Rc<Shared>) {
    r.of("AllocationList");
    let own = shared.clone();
    r.def(
        "only_jemalloc",
        "() -> AllocationList",
        "Keeps those that a function of jemalloc made, as their stacks say.",
        "println(allocations().only_jemalloc().len());",
        move |l: &mut AllocationList| {
            own.tell(NO_JEMALLOC);
            l.filtered("jemalloc", "yes")
        },
    )
    .note("bytehound knows jemalloc's blocks by the hook that caught them.");
    let own = shared.clone();
    r.def(
        "only_not_jemalloc",
        "() -> AllocationList",
        "Keeps those that no function of jemalloc made, as their stacks say.",
        "println(allocations().only_not_jemalloc().len());",
        move |l: &mut AllocationList| {
            own.tell(NO_JEMALLOC);
            l.filtered("jemalloc", "no")
        },
    )
    .note("bytehound knows jemalloc's blocks by the hook that caught them.");
    let own = shared.clone();
    r.def(
        "only_with_marker",
        "(marker: Integer) -> AllocationList",
        "Keeps those made after the mark of this number, and before the next one; 0: before the first mark.",
        "println(allocations().only_with_marker(0).len());",
        move |l: &mut AllocationList, marker: i64| {
            let marks = l.marks();
            if marks == 0 {
                own.tell(NO_MARKERS);
            }
            match usize::try_from(marker) {
                Ok(number) if number <= marks => l.filtered("marker", &number.to_string()),
                _ => l.none(),
            }
        },
    )
    .note("bytehound's markers are numbers that the program sets; prof's are the marks that `prof mark` sets.");
    let [own, of_maps] = [(); 2].map(|()| shared.clone());
    r.def(
        "only",
        "(field: String, value: String) -> AllocationList",
        "Keeps those that a filter of the command line selects: the option's name and its value.",
        "println(allocations().only(\"min-size\", \"1KiB\").len());",
        move |l: &mut AllocationList, field: &str, text: &str| {
            own.check_source(text)?;
            plainly(l, field, text)
        },
    )
    .note(NEW);
    r.of("MapList")
        .def(
            "only",
            "(field: String, value: String) -> MapList",
            "Keeps those that a filter of `prof maps` selects: the option's name and its value.",
            "println(maps().only(\"min-size\", \"1KiB\").len());",
            move |l: &mut MapList, field: &str, text: &str| {
                of_maps.check_source(text)?;
                plainly(l, field, text)
            },
        )
        .note(NEW);
}
