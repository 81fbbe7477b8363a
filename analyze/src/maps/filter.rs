//! Selects mappings. Names and values are those of the filters of blocks, as far as both have them.

use super::{Kind, Map, Maps};
use crate::Analysis;
use crate::load::Meta;
use crate::query::value::{self, Time};
use crate::query::{Field, FilterError, Range};
use crate::report::{FrameData, frames_of};
use crate::symbols::Symbolizer;
use regex::Regex;
use std::collections::HashMap;

const fn field(
    name: &'static str,
    aliases: &'static [&'static str],
    value: &'static str,
    help: &'static str,
) -> Field {
    Field { name, aliases, value, help, refused: None }
}

/// All fields, in the order of the help text.
pub const FIELDS: &[Field] = &[
    field(
        "from",
        &[],
        "TIME",
        "Made at or after this time since the start (30 or 30s, 4h3m2s, N%)",
    ),
    field("to", &[], "TIME", "Made at or before this time"),
    field("since", &[], "MARK", "Made at or after this mark (its name, or its number as #3)"),
    field("between", &[], "MARK,MARK", "Made at or after the first mark, and before the second"),
    field("freed-from", &[], "TIME", "Unmapped at or after this time"),
    field("freed-to", &[], "TIME", "Unmapped at or before this time"),
    field("held-until", &[], "TIME", "Unmapped at or after this time, or never"),
    field("alive-at", &[], "TIME", "There at this time"),
    field("alive-at-2", &[], "TIME", "There at this time as well"),
    field("lifetime", &[], "KIND", "leaked (there at the end), freed, or all"),
    field("older", &[], "TIME", "Made at least this long before the end"),
    field("min-lifetime", &["lifetime-min"], "TIME", "Lived at least this long"),
    field("max-lifetime", &["lifetime-max"], "TIME", "Lived at most this long"),
    field("min-size", &["size-min"], "SIZE", "Of at least this size"),
    field("max-size", &["size-max"], "SIZE", "Of at most this size"),
    field("min-address", &["address-min"], "ADDR", "At this address or above"),
    field("max-address", &["address-max"], "ADDR", "At this address or below"),
    field("min-rss", &["rss-min"], "SIZE", "With at least so much resident, when seen last"),
    field("max-rss", &["rss-max"], "SIZE", "With at most so much resident, when seen last"),
    field("min-peak-rss", &["peak-rss-min"], "SIZE", "Once resident with at least so much"),
    field("max-peak-rss", &["peak-rss-max"], "SIZE", "Never resident with more"),
    field("readable", &[], "yes|no", "Readable"),
    field("writable", &["writeable"], "yes|no", "Writable"),
    field("executable", &[], "yes|no", "Executable"),
    field("shared", &[], "yes|no", "Shared with other processes or its file"),
    field("jemalloc", &[], "yes|no", "Made by jemalloc, as its stack says"),
    field("bytehound", &["prof"], "yes|no", "prof's own"),
    field("caught", &[], "yes|no", "Made by a call that was recorded, so that its stack is known"),
    field(
        "kind",
        &[],
        "KIND,...",
        "heap, anonymous, stack, code, data, file, shared, reserved, kernel or prof; one of several",
    ),
    field("name", &[], "REGEX", "Its path or name matches"),
    field("function", &["function-regex"], "REGEX", "A function of its stack matches"),
    field(
        "not-function",
        &["negative-function-regex"],
        "REGEX",
        "No function of its stack matches",
    ),
    field("source", &["source-regex"], "REGEX", "A source file of its stack matches"),
    field("not-source", &["negative-source-regex"], "REGEX", "No source file of its stack matches"),
    field("min-depth", &["backtrace-depth-min"], "N", "Its stack has at least so many frames"),
    field("max-depth", &["backtrace-depth-max"], "N", "Its stack has at most so many frames"),
    field("stacks", &["backtraces"], "ID,...", "Made at one of these stacks"),
    field("free-stacks", &["deallocation-backtraces"], "ID,...", "Ended at one of these stacks"),
    field("id", &["map"], "ID,...", "One of these mappings"),
];

/// The conditions that a mapping must meet, all of them.
#[derive(Clone, Debug, Default)]
pub struct MapFilter {
    given: Vec<(&'static str, String)>,
    from: Vec<Time>,
    to: Vec<Time>,
    since: Vec<String>,
    between: Vec<String>,
    freed_from: Vec<Time>,
    freed_to: Vec<Time>,
    held_until: Vec<Time>,
    alive_at: Vec<Time>,
    leaked: Vec<bool>,
    older: Vec<Time>,
    /// Sizes and times, by the second half of the field's name.
    ranges: HashMap<&'static str, Range<u64>>,
    /// Properties that a mapping has or not, by the field's name.
    flags: Vec<(&'static str, bool)>,
    kinds: Vec<Kind>,
    names: Vec<Regex>,
    /// Regular expressions on stacks: of functions, and whether one must match.
    frames: Vec<(Regex, bool, bool)>,
    stacks: Vec<Vec<u32>>,
    free_stacks: Vec<Vec<u32>>,
    ids: Vec<Vec<u32>>,
}

/// Returns the field with that name or alias.
#[must_use]
pub fn find(name: &str) -> Option<&'static Field> {
    let name = name.replace('_', "-");
    FIELDS.iter().find(|f| f.name == name || f.aliases.contains(&name.as_str()))
}

fn yes(text: &str) -> Result<bool, String> {
    match text.replace('_', "-").as_str() {
        "yes" | "true" | "only-true" => Ok(true),
        "no" | "false" | "only-false" => Ok(false),
        _ => Err(format!("{text:?} is neither yes nor no")),
    }
}

fn ids(text: &str) -> Result<Vec<u32>, String> {
    let id = |t: &str| t.trim().parse().map_err(|_| format!("{t:?} is no id"));
    let mut ids: Vec<u32> = text.split(',').map(id).collect::<Result<_, _>>()?;
    ids.sort_unstable();
    Ok(ids)
}

fn regex(text: &str) -> Result<Regex, String> {
    let made = regex::RegexBuilder::new(text).size_limit(1 << 20).build();
    made.map_err(|e| e.to_string().lines().last().unwrap_or("no regular expression").to_owned())
}

impl MapFilter {
    /// Sets a field.
    ///
    /// # Errors
    /// If there is no such field, or its value is not valid.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), FilterError> {
        let f = find(name).ok_or_else(|| FilterError::Unknown(name.to_owned()))?;
        self.put(f.name, text).map_err(|why| FilterError::Value { name: f.name, why })?;
        self.given.push((f.name, text.to_owned()));
        Ok(())
    }

    fn put(&mut self, name: &'static str, text: &str) -> Result<(), String> {
        match name {
            "from" => self.from.push(value::time(text)?),
            "to" => self.to.push(value::time(text)?),
            "since" => self.since.push(text.to_owned()),
            "between" => self.between.push(value::marks(text)?),
            "freed-from" => self.freed_from.push(value::time(text)?),
            "freed-to" => self.freed_to.push(value::time(text)?),
            "held-until" => self.held_until.push(value::time(text)?),
            "alive-at" | "alive-at-2" => self.alive_at.push(value::time(text)?),
            "older" => self.older.push(value::time(text)?),
            "lifetime" => self.leaked.extend(lifetime(text)?),
            "kind" => self.kinds.extend(kinds(text)?),
            "name" => self.names.push(regex(text)?),
            "function" => self.frames.push((regex(text)?, true, true)),
            "not-function" => self.frames.push((regex(text)?, true, false)),
            "source" => self.frames.push((regex(text)?, false, true)),
            "not-source" => self.frames.push((regex(text)?, false, false)),
            "stacks" => self.stacks.push(ids(text)?),
            "free-stacks" => self.free_stacks.push(ids(text)?),
            "id" => self.ids.push(ids(text)?),
            _ if name.starts_with("min-") || name.starts_with("max-") => {
                let (least, of) = (name.starts_with("min-"), &name[4..]);
                let v = match of {
                    "lifetime" => value::duration(text)?,
                    "address" => value::address(text)?,
                    "depth" => value::number(text)?,
                    _ => value::size(text)?,
                };
                let r = self.ranges.entry(of).or_default();
                match least {
                    true => r.min = Some(r.min.map_or(v, |m| m.max(v))),
                    false => r.max = Some(r.max.map_or(v, |m| m.min(v))),
                }
            }
            _ => self.flags.push((name, yes(text)?)),
        }
        Ok(())
    }

    /// Returns the filter that selects these mappings.
    #[must_use]
    pub fn of_ids(mut ids: Vec<u32>) -> Self {
        ids.sort_unstable();
        Self { ids: vec![ids], ..Self::default() }
    }

    /// Returns name and text of each field that was set.
    #[must_use]
    pub fn given(&self) -> &[(&'static str, String)] {
        &self.given
    }

    /// Checks that the recording has the marks that the filter names.
    ///
    /// # Errors
    /// A message that names the option, and the marks that there are.
    pub fn check(&self, meta: &Meta) -> Result<(), String> {
        for name in &self.since {
            meta.mark(name).map_err(|e| format!("--since: {e}"))?;
        }
        for pair in &self.between {
            meta.marks_of(pair).map_err(|e| format!("--between: {e}"))?;
        }
        Ok(())
    }

    /// Returns whether the filter says at what time mappings are to be there, or how long they live.
    #[must_use]
    pub fn is_about_time(&self) -> bool {
        let names = [
            "from",
            "to",
            "since",
            "between",
            "freed-from",
            "freed-to",
            "held-until",
            "alive-at",
            "alive-at-2",
            "lifetime",
            "id",
        ];
        self.given.iter().any(|g| names.contains(&g.0) || g.0.ends_with("-lifetime"))
    }

    /// Returns whether the filter says which of prof's own mappings are selected.
    #[must_use]
    pub fn is_about_ours(&self) -> bool {
        let is_ours = |text: &str| text.split(',').any(|part| part.trim() == Kind::Prof.name());
        self.given.iter().any(|g| ["bytehound", "id"].contains(&g.0) || is_ours(&g.1))
    }

    /// Returns the numbers of the mappings that meet all conditions, ascending.
    #[must_use]
    pub fn select(&self, analysis: &Analysis, maps: &Maps) -> Vec<u32> {
        let mut has = self.test(analysis);
        let mut ids = Vec::new();
        maps.each(|m| ids.extend(has(m).then_some(m.id)));
        ids.sort_unstable();
        ids
    }

    /// Returns a function that says whether a mapping meets all conditions.
    pub fn test<'a>(&'a self, analysis: &'a Analysis) -> impl FnMut(&Map) -> bool + 'a {
        let mut symbols = Symbolizer::new(analysis);
        let mut stacks = HashMap::new();
        let mut frames = move |node: u32| -> Vec<FrameData> {
            let new = || frames_of(analysis, node, &mut symbols);
            stacks.entry(node).or_insert_with(new).clone()
        };
        move |m: &Map| self.has(analysis, m) && self.has_frames(m, &mut frames)
    }

    fn has(&self, analysis: &Analysis, m: &Map) -> bool {
        let (clock, runtime) = (&analysis.meta().clock, analysis.duration_ns());
        let end = analysis.end_ticks();
        let (begun, ended) = (clock.ns(m.begun), m.end.map(|e| clock.ns(e.ticks)));
        let alive = |t: &Time| {
            let t = t.ns(runtime);
            begun <= t && ended.is_none_or(|e| e > t)
        };
        let lived = clock.between(m.begun, m.end.map_or(end, |e| e.ticks));
        let range = |name: &str, v: u64| self.ranges.get(name).is_none_or(|r| r.has(v));
        let depth = || m.source.map_or(0, |s| analysis.meta().stack(s.node).len() as u64);
        let of =
            |ids: &Vec<u32>, node: Option<u32>| node.is_some_and(|n| ids.binary_search(&n).is_ok());
        let freed = m.end.and_then(|e| e.source).map(|s| s.node);
        let marks = analysis.meta();
        let after = |name: &String| marks.mark(name).is_ok_and(|at| m.begun >= at);
        let within =
            |pair: &String| marks.marks_of(pair).is_ok_and(|(a, b)| (a..b).contains(&m.begun));
        self.since.iter().all(after)
            && self.between.iter().all(within)
            && self.from.iter().all(|t| begun >= t.ns(runtime))
            && self.to.iter().all(|t| begun <= t.ns(runtime))
            && self.freed_from.iter().all(|t| ended.is_some_and(|e| e >= t.ns(runtime)))
            && self.freed_to.iter().all(|t| ended.is_some_and(|e| e <= t.ns(runtime)))
            && self.held_until.iter().all(|t| ended.is_none_or(|e| e >= t.ns(runtime)))
            && self.alive_at.iter().all(alive)
            && self.leaked.iter().all(|l| *l == m.end.is_none())
            && self.older.iter().all(|t| clock.between(m.begun, end) >= t.ns(runtime))
            && range("lifetime", lived)
            && range("size", m.size)
            && range("address", m.address)
            && range("rss", m.last_usage().rss)
            && range("peak-rss", m.peak_rss)
            && self.ranges.get("depth").is_none_or(|r| r.has(depth()))
            && (self.kinds.is_empty() || self.kinds.contains(&m.kind))
            && self.names.iter().all(|r| r.is_match(&m.name))
            && self.stacks.iter().all(|ids| of(ids, m.source.map(|s| s.node)))
            && self.free_stacks.iter().all(|ids| of(ids, freed))
            && self.ids.iter().all(|ids| ids.binary_search(&m.id).is_ok())
    }

    fn has_frames(&self, m: &Map, frames: &mut impl FnMut(u32) -> Vec<FrameData>) -> bool {
        let node = m.source.map_or(0, |s| s.node);
        let flag = |(name, wanted): &(&str, bool),
                    frames: &mut dyn FnMut(u32) -> Vec<FrameData>| {
            let is = match *name {
                "readable" => m.perms.read,
                "writable" => m.perms.write,
                "executable" => m.perms.execute,
                "shared" => m.perms.shared,
                "bytehound" => m.ours,
                "caught" => m.source.is_some(),
                _ => frames(node).iter().any(is_jemalloc),
            };
            is == *wanted
        };
        if !self.flags.iter().all(|f| flag(f, frames)) {
            return false;
        }
        if self.frames.is_empty() {
            return true;
        }
        let all = frames(node);
        self.frames.iter().all(|(regex, of_functions, must)| {
            let text = |f: &FrameData| match of_functions {
                true => f.function.as_deref().is_some_and(|t| regex.is_match(t)),
                false => f.file.as_deref().is_some_and(|t| regex.is_match(t)),
            };
            all.iter().any(text) == *must
        })
    }
}

/// Returns whether a frame is jemalloc's.
fn is_jemalloc(f: &FrameData) -> bool {
    let function = f.function.as_deref().unwrap_or_default();
    let module = f.module.as_deref().unwrap_or_default();
    ["je_", "_rjem_", "jemalloc"].iter().any(|p| function.starts_with(p))
        || module.contains("jemalloc")
}

fn lifetime(text: &str) -> Result<Option<bool>, String> {
    let text = text.replace('_', "-");
    Ok(match text.strip_prefix("only-").unwrap_or(&text) {
        "all" => None,
        "leaked" | "live" => Some(true),
        "freed" | "temporary" => Some(false),
        _ => {
            return Err(format!(
                "{text:?} is no kind of lifetime of a mapping; give leaked, freed or all"
            ));
        }
    })
}

fn kinds(text: &str) -> Result<Vec<Kind>, String> {
    let kind = |name: &str| {
        Kind::from_name(name.trim()).ok_or_else(|| {
            let names = Kind::ALL.map(Kind::name).join(", ");
            format!("{name:?} is no kind of mapping; give one of {names}")
        })
    };
    text.split(',').map(kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_set_by_all_its_names() {
        for f in FIELDS {
            let sample = match f.value {
                "TIME" | "SIZE" | "N" => "12",
                "ADDR" => "0x10",
                "REGEX" => "a.*b",
                "KIND,..." => "heap, code",
                "KIND" => "leaked",
                "ID,..." => "1,2",
                "MARK" => "deployed",
                "MARK,MARK" => "deployed,warm",
                _ => "only_true",
            };
            for name in f.aliases.iter().chain([&f.name]) {
                let mut filter = MapFilter::default();
                filter.set(&name.replace('-', "_"), sample).expect(name);
                assert_eq!(filter.given(), [(f.name, sample.to_owned())]);
            }
        }
        let mut f = MapFilter::default();
        for (name, value) in [("lifetime", "chain_leaked"), ("kind", "x"), ("readable", "maybe")] {
            let e = f.set(name, value).expect_err("nonsense").to_string();
            assert!(e.starts_with(&format!("--{name}: ")), "{e}");
        }
        assert!(f.set("arena", "main").is_err());
    }
}
