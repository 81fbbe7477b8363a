//! Finds the stacks of threads.

use prof_arch::native::capture::DESCRIPTOR;
use prof_os::task::asleep;
use prof_os::{Pid, process};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Greatest number of threads whose stacks are looked for.
const MAX_THREADS: usize = 1 << 16;
/// Number of bytes of a thread's descriptor that are read.
const DESCRIPTOR_LEN: usize = (DESCRIPTOR.end - DESCRIPTOR.start) as usize;
/// Greatest length of libc's data behind a thread's descriptor, at the end of its stack.
const MOST_TLS: u64 = 1 << 20;

/// Returns start, end and thread id of the stacks of the threads with these thread pointers and ids. A thread's
/// descriptor has address and length of its stack in adjacent words; that of the first thread does not.
pub(crate) fn stacks(mem: &File, threads: &[(u64, u64)]) -> Vec<(u64, u64, u64)> {
    let mut bytes = [0; DESCRIPTOR_LEN];
    let of = |(tp, tid): &(u64, u64)| {
        let at = |o: i32| tp.checked_add_signed(i64::from(o));
        let n = mem.read_at(&mut bytes, at(DESCRIPTOR.start)?).unwrap_or(0);
        let words = bytes[..n].as_chunks::<{ size_of::<usize>() }>().0;
        let words: Vec<u64> = words.iter().map(|w| usize::from_ne_bytes(*w) as u64).collect();
        words.windows(2).find_map(|w| {
            let top = w[0].checked_add(w[1])?;
            let aligned = w[0].is_multiple_of(4096) && w[0] != 0;
            let end = (*tp).min(at(DESCRIPTOR.end)?);
            let is_stack = aligned && w[0] < *tp && top >= end && top - top.min(*tp) < MOST_TLS;
            is_stack.then_some((w[0], top.checked_next_multiple_of(4096)?, *tid))
        })
    };
    let mut all: Vec<(u64, u64, u64)> = threads.iter().take(MAX_THREADS).filter_map(of).collect();
    all.sort_unstable();
    all
}

/// Returns the stack pointers, with the thread ids, of threads of a process that wait in the kernel.
pub(crate) fn pointers(pid: Pid) -> Vec<(u64, u64)> {
    let pointer = |tid: Pid| Some((asleep(pid, tid)?.sp.0, tid.as_u32().into()));
    let tids = process::threads(pid).unwrap_or_default();
    tids.into_iter().take(MAX_THREADS).filter_map(pointer).collect()
}

/// Returns the parts of a mapping, and whether they are stacks. The kernel joins mappings that adjoin each other: stacks, and
/// other memory around them. Stacks that adjoin each other are one part.
pub(crate) fn parts((start, end): (u64, u64), stacks: &[(u64, u64, u64)]) -> Vec<(u64, u64, bool)> {
    let (mut all, mut at) = (Vec::new(), start);
    for (from, to, _) in stacks {
        // Descriptors may say anything.
        let from = (*from).max(at);
        if from >= *to {
            continue;
        }
        match all.last_mut() {
            Some((_, last, true)) if *last == from => *last = *to,
            _ => {
                if at < from {
                    all.push((at, from, false));
                }
                all.push((from, *to, true));
            }
        }
        at = *to;
    }
    if at < end {
        all.push((at, end, false));
    }
    all
}
