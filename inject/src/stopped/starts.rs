//! Code in which threads begin, on machines where unwind tables do not tell it from functions that they leave out.
//!
//! There a stack may seem to end at any function that can't throw, with the dynamic linker among the callers that are not
//! seen.

use crate::process::elf::Module;
use crate::process::glibc::Glibc;
use crate::stopped::walk::Frame;
use crate::{RemoteAddr, RemoteMemory};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_arch::native::jump::code_at;
use std::ops::Range;

/// Functions of libc's that make threads. The code that a new thread runs first is at their end.
pub(crate) const MAKERS: [&str; 4] = ["clone", "__clone", "clone3", "__clone3"];
/// Length of a program's first function, `_start` of the C library, at most.
const FIRST: u64 = 128;
/// Bytes behind [`MAKERS`] that the new thread runs.
const BEHIND: u64 = 16;

/// Ranges of code; `None` where the tables tell.
#[derive(Debug)]
pub(crate) struct Starts(Option<Vec<Range<u64>>>);

impl Starts {
    /// Finds the code in which threads of a process with these modules begin.
    pub(crate) fn of(mem: &RemoteMemory, modules: &[Module], glibc: &Glibc) -> Self {
        Self(UserRegs::COARSE_TABLES.then(|| {
            let entry = modules.first().and_then(|m| m.entry(mem));
            let makers = glibc.functions(&MAKERS);
            let makers = makers.map(|s| (s.addr, s.size.saturating_add(BEHIND)));
            entry.map(|at| (at, FIRST)).into_iter().chain(makers).map(range).collect()
        }))
    }

    /// Returns whether a stack may end with this frame, its last one.
    pub(crate) fn has(&self, last: &Frame) -> bool {
        let Some(ranges) = &self.0 else { return true };
        ranges.iter().any(|r| r.contains(&last.at.0))
    }

    #[cfg(test)]
    pub(crate) fn unknown() -> Self {
        Self(None)
    }
}

fn range((at, len): (RemoteAddr, u64)) -> Range<u64> {
    let start = code_at(at.0);
    start..start.saturating_add(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_ends_where_threads_begin() {
        let at = |at| Frame { at: RemoteAddr(at), module: 0, is_signal: false };
        let starts = Starts(Some(vec![range((RemoteAddr(0x1000), FIRST))]));
        assert!(starts.has(&at(0x1040)) && !starts.has(&at(0x1080)));
        assert!(Starts::unknown().has(&at(0x1080)));
    }
}
