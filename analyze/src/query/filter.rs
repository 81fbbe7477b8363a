//! The filters that select blocks. One grammar serves the command line and other callers: names and values are text.

use super::fields::find;
use super::rowset::RowSet;
use super::suppress::Suppressions;
use prof_trace::size::{GlibcChunks, Header};
use prof_trace::values::parse::{self as value, Amount, Time};
use regex::Regex;
use std::sync::Arc;

/// Matches the functions of jemalloc: those of the Rust crate, and those of builds with a prefix.
const JEMALLOC: &str = "^(_rjem_|je_|jemalloc)";

/// A kind of lifetime that blocks are selected by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Live at the end of the recording.
    Leaked,
    /// Not live at the end.
    Freed,
    /// Freed by the next event of the thread that allocated it.
    Temporary,
    /// The last block of its chain is live at the end.
    ChainLeaked,
    /// Every block of its stack is live at the end.
    WholeGroupLeaked,
}

/// A range that includes both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range<T> {
    /// The least value.
    pub min: Option<T>,
    /// The greatest value.
    pub max: Option<T>,
}

impl<T> Default for Range<T> {
    fn default() -> Self {
        Self { min: None, max: None }
    }
}

impl Range<u64> {
    /// Returns whether the range contains a value.
    pub fn has(&self, v: u64) -> bool {
        self.min.is_none_or(|m| v >= m) && self.max.is_none_or(|m| v <= m)
    }

    /// Returns whether the range contains everything.
    pub fn is_all(&self) -> bool {
        self.min.is_none() && self.max.is_none()
    }

    fn least(&mut self, v: u64) {
        self.min = Some(self.min.map_or(v, |m| m.max(v)));
    }

    fn most(&mut self, v: u64) {
        self.max = Some(self.max.map_or(v, |m| m.min(v)));
    }
}

/// The conditions that a block must meet, all of them, to be selected. A field that is set again narrows its condition.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Name and text of each field that was set.
    given: Vec<(&'static str, String)>,
    pub(super) from: Vec<Time>,
    pub(super) to: Vec<Time>,
    pub(super) since: Vec<String>,
    pub(super) between: Vec<String>,
    pub(super) markers: Vec<u64>,
    pub(super) freed_from: Vec<Time>,
    pub(super) freed_to: Vec<Time>,
    pub(super) held_until: Vec<Time>,
    pub(super) alive_at: Vec<Time>,
    pub(super) lifetimes: Vec<Lifetime>,
    pub(super) older: Vec<Time>,
    pub(super) lifetime: Range<u64>,
    pub(super) size: Range<u64>,
    pub(super) address: Range<u64>,
    pub(super) threads: Vec<String>,
    pub(super) parts: Vec<u64>,
    pub(super) functions: Vec<Regex>,
    pub(super) not_functions: Vec<Regex>,
    pub(super) sources: Vec<Regex>,
    pub(super) not_sources: Vec<Regex>,
    pub(super) modules: Vec<Regex>,
    pub(super) not_modules: Vec<Regex>,
    pub(super) depth: Range<u64>,
    pub(super) stacks: Vec<Vec<u32>>,
    pub(super) free_stacks: Vec<Vec<u32>>,
    pub(super) from_maps: Vec<Vec<u32>>,
    pub(super) group_allocations: Range<u64>,
    pub(super) group_leaked: Vec<(Amount, bool)>,
    pub(super) group_interval: Vec<(Time, bool)>,
    pub(super) group_peak_at: Vec<(Time, bool)>,
    pub(super) chain_length: Range<u64>,
    pub(super) chain_position: Range<u64>,
    pub(super) chain_lifetime: Range<u64>,
    pub(super) first_size: Range<u64>,
    pub(super) last_size: Range<u64>,
    pub(super) headers: Headers,
    pub(super) suppressions: Suppressions,
    pub(super) embedded: bool,
    pub(super) rows: Option<Arc<RowSet>>,
}

/// Conditions on glibc's chunk headers. Blocks of other allocators meet none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Headers {
    pub(super) mapped: Option<bool>,
    pub(super) main_arena: Option<bool>,
    pub(super) usable: Range<u64>,
}

impl Headers {
    pub(super) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Contradictory values select nothing.
    fn differs(&mut self, before: Option<bool>, now: Option<bool>) {
        if before.is_some() && before != now {
            self.usable = Range { min: Some(u64::MAX), max: Some(0) };
        }
    }

    /// Returns whether a block of that size and header meets the conditions, given the layout of the program's chunks.
    pub(super) fn has(&self, chunks: GlibcChunks, size: u64, code: u64) -> bool {
        let header = Header::from_code(code as u16);
        let arena = self.main_arena.is_none_or(|main| header.arena == if main { 1 } else { 2 });
        header.is_known()
            && arena
            && self.mapped.is_none_or(|m| m == header.mapped)
            && chunks.usable(size, header).is_some_and(|u| self.usable.has(u))
    }
}

/// Why a filter was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// No field has this name.
    #[error("there is no filter {0:?}")]
    Unknown(String),
    /// The value is not valid.
    #[error("--{name}: {why}")]
    Value {
        /// The field.
        name: &'static str,
        /// Defect of the value.
        why: String,
    },
    /// Recordings do not contain the data that the field needs.
    #[error("--{name} can't be used: {why}")]
    Refused {
        /// The field.
        name: &'static str,
        /// The reason.
        why: &'static str,
    },
}

/// Function, source file and module of a frame.
pub(crate) type NamedFrame<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a str>);

/// Limit on the size of a compiled regular expression.
const REGEX_SIZE: usize = 1 << 20;

fn regex(text: &str) -> Result<Regex, String> {
    let made = regex::RegexBuilder::new(text).size_limit(REGEX_SIZE).build();
    made.map_err(|e| e.to_string().lines().last().unwrap_or("no regular expression").to_owned())
}

fn ids(text: &str) -> Result<Vec<u32>, String> {
    let id = |t: &str| t.trim().parse().map_err(|_| format!("{t:?} is no id of a stack"));
    let mut ids: Vec<u32> = text.split(',').map(id).collect::<Result<_, _>>()?;
    // Scripts name as many stacks as a recording has, so that they are looked up by binary search.
    ids.sort_unstable();
    Ok(ids)
}

/// Returns whether the text is the first of two words; any third word is an error.
fn one_of(text: &str, yes: &str, no: &str) -> Result<bool, String> {
    match text.replace('_', "-") {
        t if t == yes => Ok(true),
        t if t == no => Ok(false),
        t => Err(format!("{t:?} is neither {yes} nor {no}")),
    }
}

fn lifetime(text: &str) -> Result<Option<Lifetime>, String> {
    let text = text.replace('_', "-");
    Ok(Some(match text.strip_prefix("only-").unwrap_or(&text) {
        "all" => return Ok(None),
        "leaked" | "live" => Lifetime::Leaked,
        // bytehound's `temporary` selects all freed blocks.
        "freed" => Lifetime::Freed,
        "temporary" if text.starts_with("only-") => Lifetime::Freed,
        "temporary" => Lifetime::Temporary,
        "chain-leaked" => Lifetime::ChainLeaked,
        "whole-group-leaked" => Lifetime::WholeGroupLeaked,
        _ => {
            return Err(format!(
                "{text:?} is no kind of lifetime; give leaked, freed, temporary, chain-leaked, \
                 whole-group-leaked or all"
            ));
        }
    }))
}

impl Filter {
    /// Sets a field.
    ///
    /// # Errors
    /// If there is no such field, its value is not valid, or recordings don't contain the data it needs.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), FilterError> {
        let f = find(name).ok_or_else(|| FilterError::Unknown(name.to_owned()))?;
        if let Some(why) = f.refused {
            return Err(FilterError::Refused { name: f.name, why });
        }
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
            "marker" => self.markers.push(value::number(text)?),
            "freed-from" => self.freed_from.push(value::time(text)?),
            "freed-to" => self.freed_to.push(value::time(text)?),
            "held-until" => self.held_until.push(value::time(text)?),
            "alive-at" | "alive-at-2" => self.alive_at.push(value::time(text)?),
            "lifetime" => self.lifetimes.extend(lifetime(text)?),
            "older" => self.older.push(value::time(text)?),
            "min-lifetime" => self.lifetime.least(value::duration(text)?),
            "max-lifetime" => self.lifetime.most(value::duration(text)?),
            "min-size" => self.size.least(value::size(text)?),
            "max-size" => self.size.most(value::size(text)?),
            "min-address" => self.address.least(value::address(text)?),
            "max-address" => self.address.most(value::address(text)?),
            "thread" => self.threads.push(text.to_owned()),
            "part" => self.parts.push(value::number(text)?),
            "function" => self.functions.push(regex(text)?),
            "not-function" => self.not_functions.push(regex(text)?),
            "jemalloc" if one_of(text, "yes", "no")? => self.functions.push(regex(JEMALLOC)?),
            "jemalloc" => self.not_functions.push(regex(JEMALLOC)?),
            "source" => self.sources.push(regex(text)?),
            "not-source" => self.not_sources.push(regex(text)?),
            "module" => self.modules.push(regex(text)?),
            "not-module" => self.not_modules.push(regex(text)?),
            "stacks" => self.stacks.push(ids(text)?),
            "free-stacks" => self.free_stacks.push(ids(text)?),
            "from-map" => self.from_maps.push(ids(text)?),
            "mmapped" => {
                let other = self.headers.mapped.replace(one_of(text, "yes", "no")?);
                self.headers.differs(other, self.headers.mapped);
            }
            "arena" => {
                let other = self.headers.main_arena.replace(one_of(text, "main", "non-main")?);
                self.headers.differs(other, self.headers.main_arena);
            }
            _ => return self.put_group(name, text),
        }
        Ok(())
    }

    /// Sets a field that applies to a whole stack or chain.
    fn put_group(&mut self, name: &'static str, text: &str) -> Result<(), String> {
        let least = name.starts_with("min-");
        let number = |r: &mut Range<u64>, v: u64| if least { r.least(v) } else { r.most(v) };
        match name.get(4..).unwrap_or_default() {
            "depth" => number(&mut self.depth, value::number(text)?),
            "group-allocations" => number(&mut self.group_allocations, value::number(text)?),
            "group-leaked" => self.group_leaked.push((value::amount(text)?, least)),
            "group-interval" => self.group_interval.push((value::time(text)?, least)),
            "group-peak-at" => self.group_peak_at.push((value::time(text)?, least)),
            "chain-length" => number(&mut self.chain_length, value::number(text)?),
            "chain-position" => number(&mut self.chain_position, value::number(text)?),
            "chain-lifetime" => number(&mut self.chain_lifetime, value::duration(text)?),
            "first-size" => number(&mut self.first_size, value::size(text)?),
            "usable-size" => number(&mut self.headers.usable, value::size(text)?),
            "last-size" => number(&mut self.last_size, value::size(text)?),
            _ => return Err("this filter is not known here".into()),
        }
        Ok(())
    }

    /// Excludes the stacks that match a list of regular expressions, one per line.
    ///
    /// # Errors
    /// A message that says what is wrong with the list.
    pub fn ignore(&mut self, text: &str, from: &str) -> Result<(), String> {
        self.suppressions.add_expressions(text, from)?;
        self.given.push(("ignore", from.to_owned()));
        Ok(())
    }

    /// Excludes the stacks that match a list of LeakSanitizer's suppressions.
    ///
    /// # Errors
    /// A message that says what is wrong with the list.
    pub fn suppress(&mut self, text: &str, from: &str) -> Result<(), String> {
        self.suppressions.add_templates(text, from)?;
        self.given.push(("suppressions", from.to_owned()));
        Ok(())
    }

    /// Excludes the stacks that match the program's embedded suppressions.
    pub fn suppress_embedded(&mut self) {
        self.embedded = true;
        self.given.push(("embedded-suppressions", "yes".to_owned()));
    }

    /// Selects only blocks whose rows are in a set, which must be of the index that the filter is used on; `from` names
    /// the origin of the set.
    pub fn within(&mut self, rows: Arc<RowSet>, from: &str) {
        self.rows = Some(match self.rows.take() {
            Some(other) => Arc::new(other.and(&rows)),
            None => rows,
        });
        self.given.push(("custom-filter", from.to_owned()));
    }

    /// Returns whether the filter selects everything.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Returns name and text of each field that was set.
    pub fn given(&self) -> &[(&'static str, String)] {
        &self.given
    }

    /// Returns whether any condition applies to whole chains.
    pub(super) fn asks_for_chains(&self) -> bool {
        let ranges = [&self.chain_length, &self.chain_lifetime, &self.first_size, &self.last_size];
        ranges.iter().any(|r| !r.is_all()) || self.lifetimes.contains(&Lifetime::ChainLeaked)
    }

    /// Returns whether any condition applies to names of functions or files.
    pub(super) fn asks_for_names(&self) -> bool {
        let named = [&self.functions, &self.not_functions, &self.sources, &self.not_sources];
        named.iter().any(|r| !r.is_empty())
    }

    /// Returns the sizes that are wanted.
    pub(crate) fn sizes(&self) -> &Range<u64> {
        &self.size
    }

    /// Returns the ages that blocks must have reached.
    pub(crate) fn least_ages(&self) -> impl Iterator<Item = Time> + '_ {
        self.older.iter().copied()
    }

    /// Returns the threads that were named; each must match.
    pub(crate) fn named_threads(&self) -> impl Iterator<Item = &str> {
        self.threads.iter().map(String::as_str)
    }

    /// Returns whether there are patterns of functions, source files or modules.
    pub(crate) fn has_patterns(&self) -> bool {
        let all = [&self.functions, &self.sources, &self.modules];
        let none = [&self.not_functions, &self.not_sources, &self.not_modules];
        all.into_iter().chain(none).any(|patterns| !patterns.is_empty())
    }

    /// Returns whether there are lists of suppressions.
    pub(crate) fn suppresses(&self) -> bool {
        !self.suppressions.is_empty()
    }

    /// Returns whether a list of suppressions names a frame, given its function, source file and module.
    pub(crate) fn suppresses_frame(&self, frame: NamedFrame<'_>) -> bool {
        self.suppressions.matches([frame.0, frame.1, frame.2]).is_some()
    }

    /// Returns whether the patterns admit a stack, given function, source file and module of its frames.
    pub(crate) fn admits<'a>(&self, frames: impl Iterator<Item = NamedFrame<'a>> + Clone) -> bool {
        let some = |regex: &Regex, part: fn(NamedFrame<'a>) -> Option<&'a str>| {
            frames.clone().map(part).any(|t| t.is_some_and(|t| regex.is_match(t)))
        };
        self.functions.iter().all(|r| some(r, |f| f.0))
            && self.sources.iter().all(|r| some(r, |f| f.1))
            && self.modules.iter().all(|r| some(r, |f| f.2))
            && !self.not_functions.iter().any(|r| some(r, |f| f.0))
            && !self.not_sources.iter().any(|r| some(r, |f| f.1))
            && !self.not_modules.iter().any(|r| some(r, |f| f.2))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::FIELDS;
    use super::*;

    #[test]
    fn every_field_is_set_or_refused_by_all_its_names() {
        for f in FIELDS {
            let sample = match f.value {
                "TIME" | "SIZE" | "N" | "N|N%" | "TID|NAME" => "12",
                "ADDR" => "0x10",
                "REGEX" => "a.*b",
                "KIND" => "leaked",
                "ID,..." => "1,2",
                "MARK,MARK" => "a,b",
                "main|non-main" => "non-main",
                _ => "yes",
            };
            for name in f.aliases.iter().chain([&f.name]) {
                let mut filter = Filter::default();
                match (filter.set(&name.replace('-', "_"), sample), f.refused) {
                    (Ok(()), None) => assert_eq!(filter.given(), [(f.name, sample.to_owned())]),
                    (Err(FilterError::Refused { .. }), Some(_)) => assert!(filter.is_empty()),
                    (other, _) => panic!("{name}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn nonsense_is_named() {
        let mut f = Filter::default();
        for (name, value) in [
            ("from", "soon"),
            ("min-size", "big"),
            ("function", "("),
            ("lifetime", "long"),
            ("stacks", "1,x"),
            ("part", "-1"),
            ("min-group-leaked", "x%"),
            ("max-address", "here"),
            ("mmapped", "maybe"),
            ("arena", "3"),
            ("marker", "deployed"),
            ("jemalloc", "maybe"),
        ] {
            let e = f.set(name, value).expect_err("nonsense").to_string();
            assert!(e.starts_with(&format!("--{name}: ")) && !e.contains('\n'), "{e}");
        }
        let e = f.set("colour", "red").expect_err("unknown").to_string();
        assert!(e.contains("colour"), "{e}");
        assert!(f.is_empty());
    }

    #[test]
    fn repeated_limits_tighten() {
        let mut f = Filter::default();
        for (name, v) in
            [("min-size", "10"), ("min-size", "5"), ("max_size", "20"), ("size-max", "30")]
        {
            f.set(name, v).expect("good");
        }
        assert_eq!(f.size, Range { min: Some(10), max: Some(20) });
        f.set("lifetime", "only_temporary").expect("good");
        assert_eq!(f.lifetimes, [Lifetime::Freed]);
    }
}
