//! Recognises wrappers of an allocator by their use: small functions that are called from many places, that make a good
//! part of their module's allocations, and whose block sizes depend on the caller.

use super::{Askers, Kind, Seen, names};
use crate::Analysis;
use crate::heap::Group;
use crate::load::Pc;
use crate::symbols::Symbolizer;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

/// A function: its name, and the path of its module.
type Function = (Arc<str>, Option<Arc<str>>);

/// Number of stacks that are examined: those with the most calls.
const STACKS: usize = 20_000;

/// Wrappers call wrappers: the number of levels that the search goes outwards.
const LEVELS: usize = 6;
/// Number of levels at which a function whose name does not say that it allocates can still be a wrapper.
const UNNAMED_LEVELS: usize = 2;
/// Least number of call sites that a wrapper is called from.
const CALLERS: usize = 3;
/// Greatest distance in bytes from a wrapper's start to its call of the allocator.
const SMALL: u64 = 512;
/// Least ratio of the largest mean block size of a caller to the smallest.
const SPREAD: f64 = 1.5;
/// Least part of its module's allocations that a function makes whose name does not say that it allocates.
const PART: f64 = 0.1;

/// The innermost frame of a stack that is not passed over.
#[derive(Clone, Copy)]
struct Innermost {
    /// Index of its code address in the stack, and of the frame among those of that address.
    at: (usize, usize),
    /// Whether all frames further in are allocators or wrappers.
    is_direct: bool,
}

/// A function's use of the allocator, summed over its stacks.
#[derive(Default)]
struct Use {
    calls: u64,
    /// Return addresses in its callers.
    callers: Vec<u64>,
    /// The smallest and the largest mean block size among its stacks.
    sizes: Option<(f64, f64)>,
    /// Bytes from the function's start to its farthest call of an allocator; 0 if not known.
    reach: u64,
    is_direct: bool,
}

impl Use {
    fn is_wrapper(&self, name: &str, level: usize, of_module: u64) -> bool {
        if !self.is_direct || self.reach > SMALL {
            return false;
        }
        let (least, most) = self.sizes.unwrap_or((0.0, 0.0));
        let is_shared = self.callers.len() >= CALLERS && most >= least * SPREAD;
        let is_large = level < UNNAMED_LEVELS && self.calls as f64 >= of_module as f64 * PART;
        names::is_variant(name) || (is_shared && (names::says_alloc(name) || is_large))
    }
}

/// Finds the wrappers of a recording, and adds them to the functions that are passed over.
pub(super) fn find(askers: &mut Askers, analysis: &Analysis, symbols: &mut Symbolizer<'_>) {
    let mut groups: Vec<&Group> = analysis.groups().iter().filter(|g| calls(g) > 0).collect();
    groups.sort_by_key(|g| (Reverse(calls(g)), g.node));
    groups.truncate(STACKS);
    let mut of_module: HashMap<Option<Arc<str>>, u64> = HashMap::new();
    for level in 0..LEVELS {
        let uses = uses(askers, &groups, analysis, symbols);
        if level == 0 {
            for ((_, module), u) in &uses {
                *of_module.entry(module.clone()).or_default() += u.calls;
            }
        }
        let is_wrapper = |((name, module), u): &(Function, Use)| {
            u.is_wrapper(name, level, of_module.get(module).copied().unwrap_or(0))
        };
        let found: Vec<_> = uses.into_iter().filter(is_wrapper).map(|(f, _)| f).collect();
        if found.is_empty() {
            break;
        }
        for (name, module) in found {
            let module = module.as_deref().unwrap_or("");
            askers.wrappers.entry(module.into()).or_default().insert((*name).into());
        }
    }
}

fn calls(g: &Group) -> u64 {
    g.figures.allocations + g.figures.reallocations
}

/// Computes the use of each function that asks, given the wrappers found so far.
fn uses(
    askers: &Askers,
    groups: &[&Group],
    analysis: &Analysis,
    symbols: &mut Symbolizer<'_>,
) -> HashMap<Function, Use> {
    let mut uses: HashMap<Function, Use> = HashMap::new();
    let mut known = HashMap::new();
    for g in groups {
        let stack = analysis.meta().stack(g.node);
        let Some(place) = follow(askers, &stack, symbols, &mut known) else { continue };
        let pc = stack[place.at.0];
        let frames = symbols.peek(pc);
        let f = &frames[place.at.1];
        let Some(name) = f.function.clone() else { continue };
        // The caller is the next frame of the same address, or the next address.
        let caller = match frames.get(place.at.1 + 1) {
            Some(_) => pc.address ^ ((place.at.1 as u64 + 1) << 56),
            None => stack.get(place.at.0 + 1).map_or(0, |p| p.address),
        };
        let u = uses.entry((name, f.module.clone())).or_default();
        u.add(place, caller, calls(g), g.figures.allocated_bytes, f.function_offset);
    }
    uses
}

impl Use {
    fn add(&mut self, place: Innermost, caller: u64, calls: u64, bytes: u64, offset: Option<u64>) {
        self.calls += calls;
        if self.callers.len() < CALLERS && !self.callers.contains(&caller) {
            self.callers.push(caller);
        }
        let mean = bytes as f64 / calls as f64;
        let (least, most) = self.sizes.unwrap_or((mean, mean));
        self.sizes = Some((least.min(mean), most.max(mean)));
        self.reach = self.reach.max(offset.unwrap_or(0));
        self.is_direct |= place.is_direct;
    }
}

/// For each code address: which of its frames asks, if one does, and whether those further in are all allocators or
/// wrappers.
type Known = HashMap<Pc, (Option<usize>, bool)>;

/// Returns the innermost frame of a stack that is not passed over.
fn follow(
    askers: &Askers,
    stack: &[Pc],
    symbols: &mut Symbolizer<'_>,
    known: &mut Known,
) -> Option<Innermost> {
    let mut is_direct = true;
    for (i, pc) in stack.iter().enumerate() {
        let (asks, direct) = *known.entry(*pc).or_insert_with(|| {
            let frames = symbols.peek(*pc);
            let kinds: Vec<Kind> = frames.iter().map(|f| askers.kind(Seen::of(f))).collect();
            let asks = kinds.iter().position(|k| *k == Kind::Asker);
            let further_in = &kinds[..asks.unwrap_or(kinds.len())];
            (asks, !further_in.contains(&Kind::Library))
        });
        is_direct &= direct;
        if let Some(j) = asks {
            return Some(Innermost { at: (i, j), is_direct });
        }
    }
    None
}
