//! bytehound's shapes.

use crate::names::Names;
use prof_analyze::Index;
use prof_analyze::symbols::Frame;
use prof_trace::ticks::Ticks;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Returns a moment or a duration.
pub(super) fn timeval(ns: u64) -> Value {
    json!({ "secs": ns / 1_000_000_000, "fract_nsecs": ns % 1_000_000_000 })
}

/// The time of a recording.
#[derive(Clone, Copy)]
pub(super) struct Clock<'a> {
    clock: &'a prof_analyze::load::Clock,
    start: u64,
    duration: u64,
}

impl<'a> Clock<'a> {
    pub(super) fn of(index: &'a Index) -> Self {
        let analysis = index.analysis();
        let meta = analysis.meta();
        Self { clock: &meta.clock, start: meta.target.wall_ns, duration: analysis.duration_ns() }
    }

    pub(super) fn ns(&self, ticks: Ticks) -> u64 {
        self.clock.ns(ticks)
    }

    pub(super) fn between(&self, begin: Ticks, end: Ticks) -> u64 {
        self.clock.between(begin, end)
    }

    /// Returns a moment as Unix time.
    pub(super) fn absolute(&self, ns: u64) -> Value {
        timeval(self.start.saturating_add(ns))
    }

    /// Returns a moment as Unix milliseconds.
    pub(super) fn unix_ms(&self, ns: u64) -> u64 {
        self.start.saturating_add(ns) / 1_000_000
    }

    /// Adds a moment in its three forms.
    pub(super) fn put(&self, to: &mut Map<String, Value>, name: &str, ns: u64) {
        to.insert(name.to_owned(), self.absolute(ns));
        to.insert(format!("{name}_relative"), timeval(ns));
        let part = if self.duration == 0 { 0.0 } else { ns as f64 / self.duration as f64 };
        to.insert(format!("{name}_relative_p"), part.into());
    }
}

/// Returns a function's name without template arguments.
fn stripped(name: &str) -> String {
    let (mut out, mut depth) = (String::with_capacity(name.len()), 0usize);
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        // Operators have these letters in their names.
        if depth == 0 && rest.starts_with("operator") {
            let signs =
                rest["operator".len()..].bytes().take_while(|b| b"<>=-".contains(b)).count();
            let len = "operator".len() + signs;
            out.push_str(&rest[..len]);
            rest = &rest[len..];
            continue;
        }
        match c {
            '<' => {
                if depth == 0 {
                    out.push_str("<…>");
                }
                depth += 1;
            }
            '>' if depth > 0 => depth -= 1,
            c if depth == 0 => out.push(c),
            _ => {}
        }
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// Returns frames in bytehound's shape.
pub(super) struct Frames<'a> {
    names: &'a Names,
    index: &'a Index,
    strip: bool,
    /// In how many stacks each place is.
    counts: HashMap<(Option<String>, u64), u64>,
}

impl<'a> Frames<'a> {
    pub(super) fn new(names: &'a Names, index: &'a Index, strip: bool) -> Self {
        let mut counts: HashMap<(Option<String>, u64), u64> = HashMap::new();
        for stack in &names.profile.stacks {
            let mut seen: Vec<_> = names.profile.frames(stack).map(key).collect();
            seen.sort();
            seen.dedup();
            for key in seen {
                *counts.entry(key).or_default() += 1;
            }
        }
        Self { names, index, strip, counts }
    }

    pub(super) fn frame(&self, f: &Frame) -> Value {
        let data = prof_analyze::report::FrameData::new(f);
        let mut v = Map::new();
        let mut put = |name: &str, value: Value| {
            if !value.is_null() {
                v.insert(name.to_owned(), value);
            }
        };
        put("address", f.address.into());
        put("address_s", format!("{:016X}", f.address).into());
        put("count", self.counts.get(&key(f)).copied().unwrap_or(1).into());
        let library = data.module.as_deref().map(|m| m.rsplit('/').next().unwrap_or(m).to_owned());
        put("library", library.into());
        let function = data.function.as_deref();
        put(
            "function",
            function.map(|n| if self.strip { stripped(n) } else { n.to_owned() }).into(),
        );
        put("raw_function", function.into());
        put("source", data.file.into());
        put("line", data.line.into());
        put("is_inline", f.inlined.into());
        v.into()
    }

    /// Returns a stack, the outermost frame first.
    pub(super) fn stack(&self, node: u32) -> Value {
        let mut frames: Vec<Value> = self.names.frames(node).rev().map(|f| self.frame(f)).collect();
        if frames.is_empty() {
            // Stacks of frees are not among those that allocate.
            let analysis = self.index.analysis();
            let mut symbols = prof_analyze::symbols::Symbolizer::new(analysis);
            let pcs = analysis.meta().stack(node);
            let inner = pcs.into_iter().flat_map(|pc| symbols.frames(pc).to_vec());
            frames = inner.map(|f| self.frame(&f)).collect();
            frames.reverse();
        }
        frames.into()
    }
}

/// Returns what tells frames apart: the function that it is in, and its address.
fn key(f: &Frame) -> (Option<String>, u64) {
    (f.function.as_deref().map(str::to_owned), f.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_arguments_are_left_out() {
        for (name, short) in [
            (
                "std::vector<int, std::allocator<int> >::push_back(int)",
                "std::vector<…>::push_back(int)",
            ),
            ("plain", "plain"),
            ("a::operator<<(b<c>)", "a::operator<<(b<…>)"),
            ("operator->", "operator->"),
        ] {
            assert_eq!(stripped(name), short);
        }
    }
}
