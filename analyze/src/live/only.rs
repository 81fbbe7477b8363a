//! The filters that can be answered of blocks while they are live, without the index.

use super::NamedStack;
use crate::load::Meta;
use crate::query::Filter;
use crate::report::FrameData;
use std::collections::HashSet;

/// Fields of the filter that a live look takes.
const TAKEN: [&str; 12] = [
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
    "ignore",
    "suppressions",
];

/// Selects live blocks.
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
        self.filter.has_patterns() || self.filter.suppresses()
    }

    /// Returns whether the blocks of a stack are wanted.
    pub fn has_stack(&self, stack: &NamedStack) -> bool {
        let frames = || stack.frames.iter().map(frame);
        self.filter.admits(frames()) && !self.is_suppressed(stack)
    }

    /// Returns whether a list of suppressions names a frame of the stack.
    pub fn is_suppressed(&self, stack: &NamedStack) -> bool {
        self.filter.suppresses()
            && stack.frames.iter().any(|f| self.filter.suppresses_frame(frame(f)))
    }

    /// Returns whether threads matter.
    pub fn asks_for_threads(&self) -> bool {
        self.filter.named_threads().next().is_some()
    }

    /// Returns which of the threads that are known by now are wanted. An id, or a name that is the name of a thread,
    /// selects those threads alone; another text all those that have it in their name.
    pub fn threads(&self, meta: &Meta) -> Threads {
        let mut all = Threads::default();
        for text in self.filter.named_threads() {
            let id = text.parse::<u32>().ok();
            let is = |exact: bool| {
                let threads = meta.threads.iter();
                let wanted = threads.filter(move |(_, t)| {
                    id == Some(t.tid) || if exact { t.name == text } else { t.name.contains(text) }
                });
                wanted.map(|(number, _)| *number).collect::<HashSet<u32>>()
            };
            let mut found = is(true);
            if found.is_empty() {
                found = is(false);
            }
            if found.is_empty() {
                all.unknown.push(text.to_owned());
            }
            all.wanted = Some(match all.wanted.take() {
                Some(before) => &before & &found,
                None => found,
            });
        }
        all
    }
}

/// The threads that a filter selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// Numbers in the recording; `None`: all threads.
    wanted: Option<HashSet<u32>>,
    /// The ids and names that no thread has by now.
    pub unknown: Vec<String>,
}

impl Threads {
    /// Returns whether a thread, given its number in the recording, is selected.
    pub fn has(&self, number: Option<u32>) -> bool {
        self.wanted.as_ref().is_none_or(|all| number.is_some_and(|n| all.contains(&n)))
    }
}

/// Returns function, source file and module of a frame.
fn frame(f: &FrameData) -> (Option<&str>, Option<&str>, Option<&str>) {
    (f.function.as_deref(), f.file.as_deref(), f.module.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_trace::records::Thread;

    #[test]
    fn a_name_that_is_a_threads_selects_that_one() {
        let mut meta = Meta::default();
        for (number, tid, name) in [(1, 70, "worker"), (2, 71, "worker-2"), (3, 72, "main")] {
            meta.threads.insert(number, Thread { number, tid, name: name.into() });
        }
        let chosen = |text: &[&str]| {
            let mut filter = Filter::default();
            text.iter().for_each(|t| filter.set("thread", t).expect("a thread"));
            let threads = Only::new(&filter).expect("a filter").threads(&meta);
            let all: Vec<u32> = (1..=3).filter(|n| threads.has(Some(*n))).collect();
            (all, threads.unknown)
        };
        assert_eq!(chosen(&[]), (vec![1, 2, 3], vec![]));
        assert_eq!(chosen(&["worker"]), (vec![1], vec![]));
        assert_eq!(chosen(&["work"]), (vec![1, 2], vec![]));
        assert_eq!(chosen(&["71"]), (vec![2], vec![]));
        assert_eq!(chosen(&["work", "72"]), (vec![], vec![]));
        assert_eq!(chosen(&["nobody"]), (vec![], vec!["nobody".to_owned()]));
    }
}
