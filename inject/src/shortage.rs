//! Shortages of prof itself. The allocator notes a shortage of memory, and prof heeds it between two steps of an
//! attach, when it can still undo everything. Descriptors are checked beforehand, since the undo needs those of
//! `/proc/PID`, too.

use crate::{Error, Result};
use prof_os::Pid;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Upper bound on the descriptors that an attach with its collector, or a detach, has open at a time.
const DESCRIPTORS: usize = 24;

static SHORT: AtomicBool = AtomicBool::new(false);

/// Notes that an allocation has used the memory that is reserved for the undo. The allocator calls this.
pub fn note_shortage() {
    SHORT.store(true, Relaxed);
}

/// Fails if memory is short. Called before each step that adds something to the target.
pub(crate) fn check(pid: Pid) -> Result<()> {
    if SHORT.load(Relaxed) { Err(Error::NoMemory(pid)) } else { Ok(()) }
}

/// Fails if there are too few free descriptors. Called before anything is done to the target.
pub(crate) fn check_descriptors(pid: Pid) -> Result<()> {
    let any = || File::open("/proc/self/stat");
    let all: std::io::Result<Vec<File>> = (0..DESCRIPTORS).map(|_| any()).collect();
    all.map(drop).map_err(|_| Error::NoDescriptors(pid, DESCRIPTORS))
}
