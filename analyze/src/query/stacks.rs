//! Applies filters to whole stacks.

use super::filter::{Filter, Lifetime};
use super::suppress::Suppressions;
use crate::analysis::Analysis;
use crate::heap::Group;
use crate::index::Index;
use crate::load::Pc;
use crate::symbols::Symbolizer;
use prof_trace::values::parse::{Amount, Time};
use regex::Regex;
use std::collections::HashMap;

/// Decides for each group; `None` if the filter has no conditions on stacks.
pub(super) fn groups(
    index: &Index,
    filter: &Filter,
    suppressions: &Suppressions,
) -> Option<Vec<Verdict>> {
    let analysis = index.analysis();
    let figures = asks_for_figures(filter);
    let frames = filter.asks_for_names()
        || asks_for_modules(filter)
        || !filter.depth.is_all()
        || !suppressions.is_empty();
    if !figures && !frames && filter.stacks.is_empty() {
        return None;
    }
    let symbols = Symbolizer::new(analysis);
    let mut names = Names { symbols, filter, suppressions, known: HashMap::new() };
    let verdicts = analysis.groups().iter().map(|g| {
        if !filter.stacks.iter().all(|ids| ids.binary_search(&g.node).is_ok())
            || figures && !by_figures(analysis, filter, g)
        {
            return Verdict::No;
        }
        if frames { names.verdict(&analysis.meta().stack(g.node)) } else { Verdict::Yes }
    });
    Some(verdicts.collect())
}

/// The decision on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The stack's blocks can be selected.
    Yes,
    /// The stack's blocks are not selected.
    No,
    /// The stack's blocks would be selected, but the rule of this index excludes them.
    Suppressed(u32),
}

fn asks_for_figures(f: &Filter) -> bool {
    !f.group_allocations.is_all()
        || !f.group_leaked.is_empty()
        || !f.group_interval.is_empty()
        || !f.group_peak_at.is_empty()
        || f.lifetimes.contains(&Lifetime::WholeGroupLeaked)
}

fn asks_for_modules(f: &Filter) -> bool {
    !f.modules.is_empty() || !f.not_modules.is_empty()
}

fn within<T: PartialOrd>(value: T, limit: T, least: bool) -> bool {
    if least { value >= limit } else { value <= limit }
}

fn by_figures(analysis: &Analysis, filter: &Filter, g: &Group) -> bool {
    let (clock, runtime) = (&analysis.meta().clock, analysis.duration_ns());
    let f = &g.figures;
    let all = f.allocations + f.reallocations;
    let leaked = |(amount, least): &(Amount, bool)| match amount {
        Amount::Count(n) => within(f.live_count, *n, *least),
        Amount::Part(p) => within(f.live_count as f64, *p * all as f64, *least),
    };
    let time = |ns: u64, (t, least): &(Time, bool)| within(ns, t.ns(runtime), *least);
    filter.group_allocations.has(all)
        && filter.group_leaked.iter().all(leaked)
        && filter.group_interval.iter().all(|t| time(clock.between(g.first, g.last), t))
        && filter.group_peak_at.iter().all(|t| time(clock.ns(g.peak_ticks), t))
        && (!filter.lifetimes.contains(&Lifetime::WholeGroupLeaked) || f.live_count == all)
}

/// The conditions that a code address meets: a bit for each, in their order.
#[derive(Clone, Copy, Default)]
struct Hits {
    wanted: u64,
    unwanted: bool,
    /// Index of the first rule that excludes the stack.
    suppressed: Option<u32>,
}

fn first(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    a.into_iter().chain(b).min()
}

/// Matches the names of frames, once for each address.
struct Names<'a> {
    symbols: Symbolizer<'a>,
    filter: &'a Filter,
    suppressions: &'a Suppressions,
    known: HashMap<Pc, (Hits, u64)>,
}

impl Names<'_> {
    fn verdict(&mut self, stack: &[Pc]) -> Verdict {
        let f = self.filter;
        let wanted = f.functions.len() + f.sources.len() + f.modules.len();
        let all = if wanted >= 64 { u64::MAX } else { (1 << wanted) - 1 };
        let (mut hits, mut frames) = (Hits::default(), 0);
        for &pc in stack {
            let (h, n) = match self.known.get(&pc) {
                Some(known) => *known,
                None => {
                    let found = self.look(pc);
                    self.known.insert(pc, found);
                    found
                }
            };
            frames += n;
            hits.wanted |= h.wanted;
            hits.unwanted |= h.unwanted;
            hits.suppressed = first(hits.suppressed, h.suppressed);
        }
        match hits.suppressed {
            _ if hits.unwanted || hits.wanted != all || !f.depth.has(frames) => Verdict::No,
            Some(rule) => Verdict::Suppressed(rule),
            None => Verdict::Yes,
        }
    }

    /// Returns the conditions that an address meets, and its number of frames.
    fn look(&mut self, pc: Pc) -> (Hits, u64) {
        let f = self.filter;
        let frames = self.symbols.frames(pc);
        let mut hits = Hits::default();
        for frame in frames.iter() {
            let function = frame.function.as_deref();
            let source = frame.file.as_deref();
            let module = frame.module.as_deref();
            let wanted = f.functions.iter().map(|r| (r, function));
            let wanted = wanted.chain(f.sources.iter().map(|r| (r, source)));
            let wanted = wanted.chain(f.modules.iter().map(|r| (r, module)));
            let matches = |(r, text): (&Regex, Option<&str>)| text.is_some_and(|t| r.is_match(t));
            for (bit, pair) in wanted.enumerate().take(64) {
                hits.wanted |= u64::from(matches(pair)) << bit;
            }
            let unwanted = f.not_functions.iter().map(|r| (r, function));
            let unwanted = unwanted.chain(f.not_sources.iter().map(|r| (r, source)));
            let mut unwanted = unwanted.chain(f.not_modules.iter().map(|r| (r, module)));
            hits.unwanted |= unwanted.any(matches);
            hits.suppressed = first(hits.suppressed, self.suppressions.rule_of(frame));
        }
        (hits, frames.len() as u64)
    }
}
