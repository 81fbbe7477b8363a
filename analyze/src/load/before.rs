//! Blocks from before the recording: who has allocated them nobody saw, so they have a number, a frame and a thread of
//! their own.

use super::pc::Pc;
use prof_trace::records::CensusClasses;
use prof_trace::ticks::Ticks;
use std::collections::HashMap;

/// Number of the stack of blocks from before the attach. No recording gives it to a stack.
pub const BEFORE: u32 = u32::MAX - 1;
/// Greatest number of a class whose blocks have a stack of their own: its number is [`BEFORE`] less that of the class.
const CLASSES: u32 = 1 << 20;
/// Greatest length of all names of classes, in bytes.
const NAMES: usize = 16 << 20;

/// Returns the number of the stack of blocks from before the attach that begin with an object of a class; 0: not known.
pub(crate) fn stack_of(class: u32) -> u32 {
    if class <= CLASSES { BEFORE - class } else { BEFORE }
}

/// Returns the class of the blocks of such a stack; 0: it is not known, or the stack is another one.
pub(crate) fn class_of(node: u32) -> u32 {
    if is_before(node) { BEFORE - node } else { 0 }
}

/// Returns whether the number of a stack is one of those of blocks from before the attach.
#[must_use]
pub fn is_before(node: u32) -> bool {
    (BEFORE - CLASSES..=BEFORE).contains(&node)
}

/// The only frame of the stack of blocks from before the recording, unless their class is known. No code lies there: it is
/// next to the mark of a stack that was cut.
pub(crate) const BEFORE_PC: Pc = Pc { address: 2, module: 0, exact: false };

/// The C++ classes of the blocks from before the recording, mangled.
#[derive(Clone, Debug, Default)]
pub(crate) struct BeforeClasses {
    names: HashMap<u32, String>,
    /// Number of the first class with a name: that of a recording of several processes may have the name several times.
    first: HashMap<String, u32>,
    bytes: usize,
}

impl BeforeClasses {
    /// Takes names from a recording. Returns the stacks that are of a class which has a stack already, each with that.
    pub(super) fn add(&mut self, c: CensusClasses) -> Vec<[u32; 2]> {
        let mut others = Vec::new();
        let numbers = c.first..=u64::from(CLASSES);
        for (number, name) in numbers.zip(c.names).filter(|(number, _)| *number > 0) {
            let number = number as u32;
            self.bytes = self.bytes.saturating_add(name.len());
            if self.bytes > NAMES || self.names.contains_key(&number) {
                continue;
            }
            let first = *self.first.entry(name.clone()).or_insert(number);
            if first != number {
                others.push([stack_of(number), stack_of(first)]);
            }
            self.names.insert(number, name);
        }
        others
    }

    /// Returns the names by number, in the order of numbers.
    pub(crate) fn in_order(&self) -> Vec<(u32, &str)> {
        let mut all: Vec<_> = self.names.iter().map(|(n, name)| (*n, &**name)).collect();
        all.sort_unstable();
        all
    }

    /// Returns the code addresses of a stack of blocks from before the recording, innermost first.
    pub(super) fn frames(&self, node: u32) -> Vec<Pc> {
        let class = Some(BEFORE - node).filter(|class| self.names.contains_key(class));
        // No program has code at the end of the address space.
        let class = class.map(|n| Pc { address: u64::MAX - u64::from(n), ..BEFORE_PC });
        class.into_iter().chain([BEFORE_PC]).collect()
    }

    /// Returns the mangled name of the class that such a code address stands for, if it is one of a class.
    pub(crate) fn name(&self, pc: Pc) -> Option<&str> {
        let class = u32::try_from(u64::MAX - pc.address).ok().filter(|_| pc.module == 0)?;
        self.names.get(&class).map(|name| &**name)
    }
}

/// Text that stands for the stack and the thread of blocks from before the attach.
pub const LABEL: &str = "(before the attach)";

/// Number of the thread of blocks from before the attach.
pub(crate) const BEFORE_THREAD: u32 = u32::MAX;

/// A census, as far as its chunks were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CensusSeen {
    /// Ticks of its moment.
    pub ticks: Ticks,
    /// Time for which the process was stopped for it, in nanoseconds.
    pub stop_ns: u64,
    /// Number of its blocks.
    pub blocks: u64,
}
