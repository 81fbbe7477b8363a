//! Compiles a filter for an index.

use super::chains::Chains;
use super::filter::{Filter, Headers, Lifetime, Range};
use super::rowset::RowSet;
use super::stacks::Verdict;
use super::{chains, stacks};
use crate::analysis::Rule;
use crate::index::{Block, Column, Index, ScanError, flags};
use crate::load::Clock;
use crate::maps::{MappedRanges, Maps};
use crate::symbols::embedded_suppressions;
use prof_trace::size::GlibcChunks;
use prof_trace::ticks::Ticks;
use prof_trace::values::parse::Time;
use std::collections::HashSet;
use std::sync::Arc;

/// Why a filter can't be used on a recording.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The filter names something that the recording doesn't have.
    #[error("{0}")]
    Missing(String),
    /// The index could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
}

/// A filter compiled for an index.
#[derive(Clone)]
pub struct Query<'a> {
    pub(crate) index: &'a Index,
    /// For each group whether its blocks can be selected; `None`: all can.
    groups: Option<Vec<bool>>,
    /// Ranges of column values, both ends included.
    ranges: Vec<(Column, u64, u64)>,
    /// Flags that must be set, and flags that must not.
    set: u64,
    unset: u64,
    threads: Option<Vec<bool>>,
    end_nodes: Option<HashSet<u64>>,
    lifetime: Range<u64>,
    chains: Option<Arc<Chains>>,
    headers: Headers,
    /// The rows that can be selected; `None`: all can.
    pub(super) set_of_rows: Option<Arc<RowSet>>,
    /// Address ranges in which blocks must lie, for each condition on mappings.
    mapped: Vec<Arc<MappedRanges>>,
    /// The groups that suppression rules exclude.
    pub(super) suppressed: Option<Arc<Suppressed>>,
}

/// The groups that suppression rules exclude.
pub(super) struct Suppressed {
    pub rules: Vec<Rule>,
    /// For each group the index of its rule; `u32::MAX`: none.
    pub by_group: Vec<u32>,
    /// Modules whose suppressions could not be read.
    pub unread: Vec<String>,
}

/// The selected rows of a block of rows, and buffers for finding them.
#[derive(Default)]
pub struct Selection {
    /// Indices in the block of rows, ascending.
    pub rows: Vec<u32>,
    a: Vec<u64>,
    b: Vec<u64>,
}

/// Returns the first tick that is not before `ns` nanoseconds since the start.
pub(super) fn tick_from(clock: &Clock, ns: u64) -> Ticks {
    clock.first_at(ns)
}

/// Returns the last tick that is not after `ns` nanoseconds since the start.
pub(crate) fn tick_to(clock: &Clock, ns: u64) -> Ticks {
    clock.last_at(ns)
}

fn missing(option: &str, why: &str) -> QueryError {
    QueryError::Missing(format!("{option}: {why}"))
}

/// Returns which groups the filter's stacks and suppressions select, `None` if all, and what was suppressed, `None` if there
/// are no suppressions.
fn select_groups(index: &Index, filter: &Filter) -> (Option<Vec<bool>>, Option<Arc<Suppressed>>) {
    let mut suppressions = filter.suppressions.clone();
    let mut unread = Vec::new();
    if filter.embedded {
        for (path, text) in embedded_suppressions(index.analysis()) {
            let added = text.map(|text| suppressions.add_templates(&text, &path));
            if !matches!(added, Some(Ok(()))) {
                unread.push(path);
            }
        }
    }
    let verdicts = stacks::groups(index, filter, &suppressions);
    let rule = |s: &Verdict| if let Verdict::Suppressed(rule) = s { *rule } else { u32::MAX };
    let suppressed = filter.embedded || !suppressions.is_empty();
    let suppressed = suppressed.then(|| {
        let by_group = verdicts.iter().flatten().map(rule).collect();
        Arc::new(Suppressed { rules: suppressions.rules().to_vec(), by_group, unread })
    });
    (verdicts.map(|all| all.iter().map(|s| *s == Verdict::Yes).collect()), suppressed)
}

impl<'a> Query<'a> {
    /// Compiles a filter.
    ///
    /// # Errors
    /// If the filter names a thread or a part that the recording doesn't have, or the index can't be read.
    pub fn new(index: &'a Index, filter: &Filter) -> Result<Self, QueryError> {
        let (groups, suppressed) = select_groups(index, filter);
        let mut q = Self {
            index,
            groups,
            suppressed,
            ranges: Vec::new(),
            set: 0,
            unset: 0,
            threads: None,
            end_nodes: None,
            lifetime: filter.lifetime,
            chains: None,
            headers: filter.headers,
            set_of_rows: filter.rows.clone(),
            mapped: Vec::new(),
        };
        if !filter.from_maps.is_empty() {
            let maps = Maps::of(index.analysis())
                .map_err(|e| QueryError::Missing(format!("--from-map: {e}")))?;
            for ids in &filter.from_maps {
                let mapped = MappedRanges::of(&maps, ids).map_err(QueryError::Missing)?;
                q.mapped.push(Arc::new(mapped));
            }
        }
        if !q.headers.is_all() && !has_headers(index)? {
            return Err(QueryError::Missing(NO_HEADERS.into()));
        }
        q.times(filter)?;
        q.parts(filter)?;
        q.threads = threads(index, &filter.threads)?;
        for l in &filter.lifetimes {
            match l {
                Lifetime::Leaked => q.set |= flags::LIVE,
                Lifetime::Freed => q.unset |= flags::LIVE,
                Lifetime::Temporary => q.set |= flags::TEMPORARY,
                Lifetime::ChainLeaked | Lifetime::WholeGroupLeaked => {}
            }
        }
        if q.set & q.unset != 0 {
            // No block is freed and never freed.
            q.ranges.push((Column::Begin, u64::MAX, 0));
        }
        let position = (Column::Position, &filter.chain_position);
        for (column, r) in [(Column::Size, &filter.size), (Column::Addr, &filter.address), position]
        {
            if !r.is_all() {
                q.ranges.push((column, r.min.unwrap_or(0), r.max.unwrap_or(u64::MAX)));
            }
        }
        for ids in &filter.free_stacks {
            let ids: HashSet<u64> = ids.iter().map(|n| u64::from(*n)).collect();
            q.end_nodes = Some(match q.end_nodes.take() {
                Some(others) => &others & &ids,
                None => ids,
            });
        }
        if q.is_aggregated() && (!q.is_of_stacks() || filter.asks_for_chains()) {
            let given: Vec<String> = filter.given().iter().map(|(n, _)| format!("--{n}")).collect();
            return Err(QueryError::Missing(format!(
                "{}: {}; filters of stacks alone can be used",
                given.join(" "),
                ScanError::NoBlocks
            )));
        }
        if filter.asks_for_chains() {
            q.chains = Some(Arc::new(chains::find(index, filter)?));
        }
        Ok(q)
    }

    fn times(&mut self, filter: &Filter) -> Result<(), QueryError> {
        let analysis = self.index.analysis();
        let (clock, runtime) = (&analysis.meta().clock, analysis.duration_ns());
        let ns = |t: &Time| t.ns(runtime);
        let within = |t: &Time, option| t.within(runtime, option).map_err(QueryError::Missing);
        for t in &filter.from {
            let from = within(t, "--from")?;
            if filter.to.iter().any(|to| ns(to) < from) {
                let text = "--from is later than --to: no block can be allocated in between";
                return Err(QueryError::Missing(text.into()));
            }
            self.ranges.push((Column::Begin, tick_from(clock, from).0, u64::MAX));
        }
        for t in &filter.to {
            self.ranges.push((Column::Begin, 0, tick_to(clock, ns(t)).0));
        }
        for name in &filter.since {
            let from = analysis.meta().mark(name).map_err(|e| missing("--since", &e))?;
            self.ranges.push((Column::Begin, from.0, u64::MAX));
        }
        for pair in &filter.between {
            let (from, to) =
                analysis.meta().marks_of(pair).map_err(|e| missing("--between", &e))?;
            match to.0.checked_sub(1).filter(|to| from.0 <= *to) {
                Some(to) => self.ranges.push((Column::Begin, from.0, to)),
                None => self.ranges.push((Column::Begin, u64::MAX, 0)),
            }
        }
        for number in &filter.markers {
            let (from, to) =
                analysis.meta().after_mark(*number).map_err(|e| missing("--marker", &e))?;
            self.ranges.push((Column::Begin, from.0, to.0));
        }
        // A live block's end is `u64::MAX`.
        const FREED: u64 = u64::MAX - 1;
        for t in &filter.freed_from {
            self.ranges.push((Column::End, tick_from(clock, ns(t)).0, FREED));
        }
        for t in &filter.freed_to {
            self.ranges.push((Column::End, 0, tick_to(clock, ns(t)).min(Ticks(FREED)).0));
        }
        for t in &filter.held_until {
            self.ranges.push((Column::End, tick_from(clock, ns(t)).0, u64::MAX));
        }
        for t in &filter.alive_at {
            let at = tick_to(clock, within(t, "--alive-at")?);
            self.ranges.push((Column::Begin, 0, at.0));
            self.ranges.push((Column::End, at.saturating_add(1).0, u64::MAX));
        }
        for t in &filter.older {
            // The age is that at the end. No block is older than the recording.
            match runtime.checked_sub(ns(t)) {
                Some(at) => self.ranges.push((Column::Begin, 0, tick_to(clock, at).0)),
                None => self.ranges.push((Column::Begin, u64::MAX, 0)),
            }
        }
        Ok(())
    }

    fn parts(&mut self, filter: &Filter) -> Result<(), QueryError> {
        let parts = self.index.analysis().parts();
        for &n in &filter.parts {
            let Some(at) = usize::try_from(n).ok().and_then(|n| n.checked_sub(1)) else {
                return Err(QueryError::Missing("--part: parts are numbered from 1".into()));
            };
            if at >= parts.len() {
                let has = parts.len();
                let text = format!("--part {n}: the recording has {has}; `prof report` lists them");
                return Err(QueryError::Missing(text));
            }
            // An event that was under way when recording was switched off belongs to the part before.
            let from = if at == 0 { 0 } else { parts[at].start.0 };
            let to = parts.get(at + 1).map_or(u64::MAX, |p| p.start.saturating_sub(1).0);
            self.ranges.push((Column::Begin, from, to));
        }
        Ok(())
    }

    /// Returns whether all blocks are selected.
    pub fn is_all(&self) -> bool {
        self.groups.is_none()
            && self.ranges.is_empty()
            && self.set | self.unset == 0
            && self.threads.is_none()
            && self.end_nodes.is_none()
            && self.lifetime.is_all()
            && self.chains.is_none()
            && self.headers.is_all()
            && self.set_of_rows.is_none()
            && self.mapped.is_empty()
            && self.suppressed.is_none()
    }

    /// Returns whether blocks are selected by their stacks alone, if at all.
    pub(crate) fn is_of_stacks(&self) -> bool {
        Self { groups: None, suppressed: None, ..self.clone() }.is_all()
    }

    /// Returns whether blocks of a group can be selected.
    pub(crate) fn has_group(&self, group: usize) -> bool {
        self.groups.as_ref().is_none_or(|g| g.get(group) == Some(&true))
    }

    /// Returns the query for the blocks that rules exclude, of those selected otherwise.
    pub(super) fn left_out(&self, by_group: &[u32]) -> Self {
        let groups = by_group.iter().map(|rule| *rule != u32::MAX).collect();
        Self { groups: Some(groups), suppressed: None, ..self.clone() }
    }

    /// Finds the selected rows of a block of rows. Returns `None` if it can't be read.
    #[must_use]
    pub fn select(&self, block: &mut Block<'_>, s: &mut Selection) -> Option<()> {
        s.rows.clear();
        let outside = |&(column, from, to): &(Column, u64, u64)| {
            let (min, max) = block.range(column);
            from > max || to < min || from > to
        };
        if self.ranges.iter().any(outside) {
            return Some(());
        }
        let Selection { rows, a, b } = s;
        let first = block.first_row();
        match &self.set_of_rows {
            None => rows.extend(0..block.rows() as u32),
            Some(set) if !set.has_any(first, block.rows()) => return Some(()),
            Some(set) => {
                let all = 0..block.rows() as u32;
                rows.extend(all.filter(|i| set.contains(first + u64::from(*i))));
            }
        }
        for &(column, from, to) in &self.ranges {
            let (min, max) = block.range(column);
            if min < from || max > to {
                keep(block, column, rows, a, |v| (from..=to).contains(&v))?;
            }
        }
        if let Some(groups) = &self.groups {
            keep(block, Column::Group, rows, a, |g| groups.get(g as usize) == Some(&true))?;
        }
        if self.set | self.unset != 0 {
            let (set, mask) = (self.set, self.set | self.unset);
            keep(block, Column::Flags, rows, a, |f| f & mask == set)?;
        }
        if let Some(threads) = &self.threads {
            keep(block, Column::ThreadIndex, rows, a, |t| threads.get(t as usize) == Some(&true))?;
        }
        if let Some(nodes) = &self.end_nodes {
            keep(block, Column::EndNode, rows, a, |n| nodes.contains(&n))?;
        }
        if !self.lifetime.is_all() && !rows.is_empty() {
            block.read(Column::Begin, a)?;
            block.read(Column::End, b)?;
            let analysis = self.index.analysis();
            let (clock, end) = (&analysis.meta().clock, analysis.end_ticks());
            rows.retain(|&i| {
                let (from, to) = (a[i as usize], b[i as usize]);
                self.lifetime.has(clock.between(Ticks(from), Ticks(to).min(end.max(Ticks(from)))))
            });
        }
        if !self.headers.is_all() && !rows.is_empty() {
            block.read(Column::Size, a)?;
            block.read(Column::Header, b)?;
            let chunks = GlibcChunks::of(self.index.analysis().meta().target.pointer_size);
            rows.retain(|&i| self.headers.has(chunks, a[i as usize], b[i as usize]));
        }
        for mapped in &self.mapped {
            if rows.is_empty() {
                return Some(());
            }
            block.read(Column::Addr, a)?;
            block.read(Column::Begin, b)?;
            rows.retain(|&i| mapped.has(a[i as usize], Ticks(b[i as usize])));
        }
        if let Some(chains) = &self.chains
            && !rows.is_empty()
        {
            chains.keep(block, rows, a)?;
        }
        Some(())
    }
}

const NO_HEADERS: &str = "--mmapped, --arena and --min- and --max-usable-size ask for glibc's headers, and \
     there is none of any block in the recording: the program has another allocator, or the recording \
     is older than they are";

/// Returns whether glibc's chunk header is known of any block.
fn has_headers(index: &Index) -> Result<bool, ScanError> {
    let mut known = false;
    index.each(|block| {
        known |= block.range(Column::Header).1 != 0;
        Some(())
    })?;
    Ok(known)
}

/// Keeps the rows whose value in a column satisfies `right`.
fn keep(
    block: &mut Block<'_>,
    column: Column,
    rows: &mut Vec<u32>,
    values: &mut Vec<u64>,
    right: impl Fn(u64) -> bool,
) -> Option<()> {
    if rows.is_empty() {
        return Some(());
    }
    let (min, max) = block.range(column);
    if min == max {
        if !right(min) {
            rows.clear();
        }
        return Some(());
    }
    block.read(column, values)?;
    rows.retain(|&i| right(values[i as usize]));
    Some(())
}

/// Returns for each thread index whether the thread is selected, by ID or name.
fn threads(index: &Index, named: &[String]) -> Result<Option<Vec<bool>>, QueryError> {
    if named.is_empty() {
        return Ok(None);
    }
    let meta = index.analysis().meta();
    let mut selected = vec![true; index.thread_numbers().len()];
    for name in named {
        let id = name.parse::<u32>().ok();
        let is = |exact: bool| {
            index.thread_numbers().iter().map(move |number| {
                let Some(t) = meta.threads.get(number) else { return false };
                id == Some(t.tid) || if exact { t.name == *name } else { t.name.contains(name) }
            })
        };
        let mut found: Vec<bool> = is(true).collect();
        if !found.contains(&true) {
            found = is(false).collect();
        }
        if !found.contains(&true) {
            return Err(QueryError::Missing(format!(
                "--thread {name}: no thread of that id or name allocated anything; \
                 `prof report --threads` lists them"
            )));
        }
        for (all, is) in selected.iter_mut().zip(found) {
            *all &= is;
        }
    }
    Ok(Some(selected))
}
