//! The filters that can be answered of blocks while they are live, without the index.

use super::NamedStack;
use crate::model::Follower;
use crate::query::Filter;

/// Fields of the filter that a live look takes.
const TAKEN: [&str; 10] = [
    "older",
    "min-size",
    "max-size",
    "thread",
    "function",
    "not-function",
    "source",
    "not-source",
    "module",
    "not-module",
];

/// Which live blocks are wanted.
#[derive(Clone, Debug, Default)]
pub struct Only {
    filter: Filter,
}

impl Only {
    /// Takes a filter over.
    ///
    /// # Errors
    /// A message if it has a condition that needs a recording's index.
    pub fn new(filter: &Filter) -> Result<Self, String> {
        match filter.given().iter().find(|(name, _)| !TAKEN.contains(name)) {
            Some((name, _)) => Err(format!(
                "--{name} needs the whole recording, and can't be asked of one as it grows; there are {}",
                TAKEN.map(|n| format!("--{n}")).join(", ")
            )),
            None => Ok(Self { filter: filter.clone() }),
        }
    }

    /// Returns whether blocks of a size are wanted.
    pub fn has_size(&self, size: u64) -> bool {
        self.filter.sizes().has(size)
    }

    /// Returns whether some sizes are not wanted.
    pub fn asks_for_sizes(&self) -> bool {
        !self.filter.sizes().is_all()
    }

    /// Returns the least age in nanoseconds of the blocks that are wanted; `None` if no age was given.
    pub fn older_ns(&self, runtime: u64) -> Option<u64> {
        self.filter.least_ages().map(|t| t.ns(runtime)).max()
    }

    /// Returns whether the names of stacks matter.
    pub fn asks_for_stacks(&self) -> bool {
        self.filter.has_patterns()
    }

    /// Returns whether the blocks of a stack are wanted.
    pub fn has_stack(&self, stack: &NamedStack) -> bool {
        let frames = stack.frames.iter();
        self.filter
            .admits(frames.map(|f| (f.function.as_deref(), f.file.as_deref(), f.module.as_deref())))
    }

    /// Returns whether threads matter.
    pub fn asks_for_threads(&self) -> bool {
        self.filter.named_threads().next().is_some()
    }

    /// Returns whether the blocks of a thread, given its number in the recording, are wanted.
    pub fn has_thread(&self, follower: &Follower, number: Option<u32>) -> bool {
        let thread = number.and_then(|n| follower.meta().threads.get(&n));
        let is =
            |text: &str| thread.is_some_and(|t| t.tid.to_string() == text || t.name.contains(text));
        self.filter.named_threads().all(is)
    }
}
