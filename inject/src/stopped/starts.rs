//! The places in which threads begin, where unwind tables do not tell them from functions that they leave out.
//!
//! On some machines a stack may seem to end at any function that can't throw, with the dynamic linker among the callers that
//! are not seen. musl has no tables on any machine.

use crate::process::c_library::CLibrary;
use crate::process::elf::Module;
use crate::stopped::walk::Frame;
use crate::{RemoteAddr, RemoteMemory};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_arch::native::jump::code_at;
use prof_os::stat::Stat;
use std::ops::Range;

/// Functions of libc's that make threads. The code that a new thread runs first is at their end.
pub(crate) const MAKERS: [&str; 4] = ["clone", "__clone", "clone3", "__clone3"];
/// Length of a program's first function, `_start` of the C library, at most.
const FIRST: u64 = 128;
/// Bytes behind [`MAKERS`] that the new thread runs.
const BEHIND: u64 = 16;

/// Greatest distance between the first stack pointer of a program and that of musl's function that calls `main`.
const MUSL: u64 = 512;

/// Places in which threads begin.
#[derive(Debug)]
pub(crate) struct Starts {
    /// Ranges of code; `None` where the tables tell.
    code: Option<Vec<Range<u64>>>,
    /// Index of musl, and the stack pointers with which it may call `main`.
    musl: Option<(usize, Range<u64>)>,
}

impl Starts {
    /// Finds the code in which threads of a process with these modules begin.
    pub(crate) fn of(mem: &RemoteMemory, modules: &[Module], library: &CLibrary) -> Self {
        let code = || {
            let entry = modules.first().and_then(|m| m.entry(mem));
            let makers = library.functions(&MAKERS);
            let makers = makers.map(|s| (s.addr, s.size.saturating_add(BEHIND)));
            entry.map(|at| (at, FIRST)).into_iter().chain(makers).map(range).collect()
        };
        let musl = || {
            let (libc, _) = library.among(modules)?;
            let first = Stat::of(mem.pid())?.start_stack()?;
            Some((libc, first.saturating_sub(MUSL)..first.saturating_add(MUSL)))
        };
        Self {
            code: UserRegs::COARSE_TABLES.then(code),
            musl: library.is_musl().then(musl).flatten(),
        }
    }

    /// Returns whether a stack may end with this frame, its last one.
    pub(crate) fn has(&self, last: &Frame) -> bool {
        let Some(ranges) = &self.code else { return true };
        ranges.iter().any(|r| r.contains(&last.at.0))
    }

    /// Returns whether code has to be followed where there are no tables, as musl has none.
    pub(crate) fn by_code(&self) -> bool {
        self.musl.is_some()
    }

    /// Returns whether a frame with this stack pointer, which has called code of another module, is that of musl's function
    /// that calls `main`.
    pub(crate) fn calls_main(&self, frame: &Frame, sp: u64) -> bool {
        self.musl.as_ref().is_some_and(|(libc, sps)| frame.module == *libc && sps.contains(&sp))
    }

    #[cfg(test)]
    pub(crate) fn unknown() -> Self {
        Self { code: None, musl: None }
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
        let code = Some(vec![range((RemoteAddr(0x1000), FIRST))]);
        let starts = Starts { code, musl: None };
        assert!(starts.has(&at(0x1040)) && !starts.has(&at(0x1080)));
        assert!(Starts::unknown().has(&at(0x1080)));
    }

    #[test]
    fn the_caller_of_main_in_musl_is_at_the_end_of_the_stack() {
        let starts = Starts { code: None, musl: Some((1, 0x7000..0x7400)) };
        let frame = |module| Frame { at: RemoteAddr(0x1040), module, is_signal: false };
        assert!(starts.calls_main(&frame(1), 0x7040) && starts.by_code());
        assert!(!starts.calls_main(&frame(1), 0x6ff8) && !starts.calls_main(&frame(0), 0x7040));
        assert!(!Starts::unknown().calls_main(&frame(1), 0x7040));
    }
}
