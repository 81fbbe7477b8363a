//! What prof itself may run out of. Memory: noted by the allocator, and heeded between two steps of an
//! attach, when everything can still be taken back. Descriptors: asked for beforehand, as those of
//! `/proc/PID` are needed for taking back, too.

use crate::{Error, Result};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// More than an attach with its collector, or a detach, has open at a time.
const DESCRIPTORS: usize = 24;

static SHORT: AtomicBool = AtomicBool::new(false);

/// To be called when an allocation could only be made from what was put by for taking back.
pub fn note_shortage() {
    SHORT.store(true, Relaxed);
}

/// Before a step that adds something to the target.
pub(crate) fn check(pid: i32) -> Result<()> {
    if SHORT.load(Relaxed) { Err(Error::NoMemory(pid)) } else { Ok(()) }
}

/// Before anything is done to the target: whether there are enough descriptors.
pub(crate) fn check_descriptors(pid: i32) -> Result<()> {
    let any = || File::open("/proc/self/stat");
    let all: std::io::Result<Vec<File>> = (0..DESCRIPTORS).map(|_| any()).collect();
    all.map(drop).map_err(|_| Error::NoDescriptors(pid, DESCRIPTORS))
}
