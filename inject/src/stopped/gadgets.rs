//! Instructions in the target's own code with which its threads make system calls for prof.

use crate::process::code::linker;
use crate::stopped::memory::WORD;
use crate::{RemoteAddr, RemoteMemory, Result};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_arch::native::jump::code_at;
use prof_arch::native::syscall;
use prof_os::maps::Map;
use prof_os::{Pid, process};

/// Instructions that stand in the target's code.
#[derive(Clone, Copy, Debug)]
pub struct Gadgets {
    /// A system call instruction followed by a return.
    pub syscall: RemoteAddr,
    /// Another such instruction, for threads that stand on the first.
    other: Option<RemoteAddr>,
    /// Number of words that the code behind either instruction takes off the stack.
    popped: usize,
    /// The way to `rt_sigreturn`.
    pub sigreturn: Sigreturn,
}

/// Ways to call `rt_sigreturn`.
#[derive(Clone, Copy, Debug)]
pub enum Sigreturn {
    /// libc's restorer.
    Restorer(RemoteAddr),
    /// Code that takes the number of the system call off the stack, and returns to the system call instruction. It
    /// serves in static programs that handle no signals, and so have no restorer.
    PopNumber(RemoteAddr),
}

impl Sigreturn {
    /// Returns the address that the signal frame returns to.
    pub(super) fn frame_returns_to(self, syscall: RemoteAddr) -> u64 {
        match self {
            Self::Restorer(at) => at.0,
            Self::PopNumber(_) => syscall.0,
        }
    }
}

impl Gadgets {
    /// Returns the bytes below the signal frame, where the stack pointer is at the call.
    pub(super) fn below_frame(self) -> Vec<u8> {
        match self.sigreturn {
            Sigreturn::Restorer(_) => vec![0; self.popped * WORD],
            Sigreturn::PopNumber(at) => {
                [at.0, syscall::nr::RT_SIGRETURN].into_iter().flat_map(u64::to_ne_bytes).collect()
            }
        }
    }

    /// Searches the executable mappings, first through those that are never unmapped. A library that dlclose
    /// unmaps between two stops, such as the copy of libc in a namespace of dlmopen, would take the code away under
    /// a thread that makes a call for prof.
    ///
    /// # Errors
    /// If there are none.
    pub fn find(pid: Pid, mem: &RemoteMemory, maps: &[Map]) -> Result<Self> {
        let (mut calls, mut restorer, mut pop) = (Vec::new(), None, None);
        let mut popped = 0;
        // Only code of files: what a JIT has made may go at any time, and prof's own is about to.
        let kernels = |m: &Map| m.name == b"[vdso]" || m.name == b"[sigpage]";
        let lasting = |m: &&Map| m.exec && m.read && (m.inode != 0 || kernels(m));
        let mut code: Vec<&Map> = maps.iter().filter(lasting).collect();
        let linker = linker(pid, maps);
        code.sort_by_cached_key(|m| {
            let is_linkers = linker.is_some_and(|l| l.inode == m.inode && l.name == m.name);
            let distance = linker.map_or(0, |l| l.start.0.abs_diff(m.start.0));
            (rank(m, kernels(m) || is_linkers), distance)
        });
        for m in code {
            let bytes = mem.read_some(m.start, m.len().min(64 << 20) as usize);
            let at = |o: usize| m.start.plus(o as u64);
            let mut from = 0;
            while calls.len() < 2
                && let Some(n) = syscall::find_syscall_ret_gadget(&bytes[from..])
            {
                // The code behind both has to take the same number of words off the stack.
                let words = syscall::popped(&bytes[from + code_at(n as u64) as usize..]);
                if calls.is_empty() || words == popped {
                    calls.push(at(from + n));
                    popped = words;
                }
                let next = from + code_at(n as u64) as usize + syscall::SYSCALL_RET.len();
                from = next.next_multiple_of(4).min(bytes.len());
            }
            restorer = restorer.or_else(|| syscall::find_restorer(&bytes).map(at));
            if calls.len() == 2 && restorer.is_some() {
                break;
            }
            pop = pop.or_else(|| syscall::find_pop_number_gadget(&bytes).map(at));
        }
        let sigreturn = restorer.map(Sigreturn::Restorer).or(pop.map(Sigreturn::PopNumber));
        if let (Some(&syscall), Some(sigreturn)) = (calls.first(), sigreturn) {
            return Ok(Self { syscall, other: calls.get(1).copied(), popped, sigreturn });
        }
        Err(crate::Refusal::NoSigreturn(pid, process::comm(pid)).into())
    }
}

/// Orders mappings by how certain it is that they stay: the dynamic linker's (`stays`), libc's, others. Of several copies
/// of libc the program's own is next to the linker.
fn rank(m: &Map, stays: bool) -> u8 {
    let name = m.name.rsplit(|b| *b == b'/').next().unwrap_or_default();
    match name {
        _ if stays => 0,
        _ if [&b"libc.so"[..], b"libc-", b"libc.musl", b"ld-", b"ld.so"]
            .iter()
            .any(|p| name.starts_with(p)) =>
        {
            1
        }
        _ => 2,
    }
}

impl Gadgets {
    /// Returns a copy with a system call instruction that may serve a thread with these registers.
    pub(super) fn for_thread(self, regs: &UserRegs) -> Option<Self> {
        let syscall = self.calls().find(|a| !regs.stands_on(a.0))?;
        Some(Self { syscall, ..self })
    }

    /// Returns all places of system calls that the thread makes for prof, including those after prof's death.
    pub(crate) fn code(self) -> impl Iterator<Item = RemoteAddr> {
        let (Sigreturn::Restorer(back) | Sigreturn::PopNumber(back)) = self.sigreturn;
        self.calls().chain([back]).map(|a| RemoteAddr(code_at(a.0)))
    }

    /// Returns the system call instructions that threads are sent to.
    pub(crate) fn calls(self) -> impl Iterator<Item = RemoteAddr> {
        [Some(self.syscall), self.other].into_iter().flatten()
    }
}
