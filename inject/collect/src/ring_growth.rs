//! Lengthens the file of the ring, once, for the thread states of its second part. A thread that finds no slot waits for that,
//! so it does not wait for the collector, which may be busy.

#[allow(unused_imports)] // for the documentation
use prof_trace::shared::Control;
use prof_trace::shared::{MORE_NUDGE, MORE_WANTED, Shared};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

/// Part of the first slots that may be in use before there are to be more: threads may begin faster than the collector looks.
const PART: usize = 4;

/// Asks for the second part if it is wanted, or may be soon: `open` threads hold a segment each.
pub(crate) fn ask_early(shared: &Shared<'_>, open: usize) {
    let c = shared.control();
    let is_missing = c.more_offered.load(Relaxed) != 0 && c.more_count.load(Relaxed) == 0;
    // A thread that may not make system calls has asked without waking anybody.
    let is_asked = || is_wanted(c.more_asked.load(Relaxed));
    if is_missing && (open > c.states_count as usize / PART || is_asked()) {
        c.more_asked.fetch_or(MORE_WANTED, Release);
        wake(&c.more_asked);
    }
}

/// Returns whether a word [`Control::more_asked`] says that the second part is wanted.
pub(crate) fn is_wanted(word: u32) -> bool {
    word & MORE_WANTED != 0
}

/// Has a thread of this process return from [`await_change`].
pub(crate) fn nudge(shared: &Shared<'_>) {
    let word = &shared.control().more_asked;
    word.fetch_add(MORE_NUDGE, Release);
    wake(word);
}

/// Waits until the second part is wanted, [`nudge`] is called, or the time is over; not at all if the word
/// [`Control::more_asked`] is not as it was `seen`. It may return early.
pub(crate) fn await_change(shared: &Shared<'_>, seen: u32, time: Duration) {
    let word = &shared.control().more_asked;
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word is mapped for as long as `shared`, and the kernel reads the time during the call.
    unsafe {
        let at = std::ptr::from_ref(word);
        libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAIT, seen, &raw const time);
    }
}

/// Wakes whoever waits for a change of the word (futex(2)).
fn wake(word: &AtomicU32) {
    // SAFETY: the kernel neither reads nor writes the word.
    unsafe {
        libc::syscall(libc::SYS_futex, std::ptr::from_ref(word), libc::FUTEX_WAKE, i32::MAX);
    }
}

/// The file of a ring whose second part does not exist yet.
#[derive(Debug)]
pub(crate) struct Growth {
    file: File,
    /// Length that the file is to get, in bytes.
    len: u64,
    /// Numbers of thread states of both parts.
    states: (usize, usize),
}

impl Growth {
    /// Looks at what the second part may have. The control page is the target's to change, so only sizes that prof makes are
    /// believed. Returns `None` if there is no second part, or there is one already.
    pub(crate) fn of(file: OwnedFd, shared: &Shared<'_>) -> Option<Self> {
        let c = shared.control();
        let offered = c.more_offered.load(Relaxed);
        if offered == 0 || c.more_count.load(Relaxed) != 0 {
            return None;
        }
        let geometry = shared.geometry().with_states(c.states_count, offered)?;
        let states = (geometry.states(), geometry.more_states());
        Some(Self { file: file.into(), len: geometry.size() as u64, states })
    }

    /// Lengthens the file, and has threads take slots of the second part from now on.
    ///
    /// # Errors
    /// If the file can't get longer. No thread waits for that any more.
    pub(crate) fn make(self, shared: &Shared<'_>) -> io::Result<()> {
        let c = shared.control();
        let (fd, len) = (self.file.as_raw_fd(), self.len as i64);
        // SAFETY: the descriptor is ours, and the other argument is an integer.
        if unsafe { libc::ftruncate64(fd, len) } != 0 {
            c.more_offered.store(0, Relaxed);
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above. Where it can't be sealed, the process can make it longer, which harms nobody.
        _ = unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_GROW) };
        // A thread that sees this number finds the states.
        c.more_count.store(self.states.1 as u64, Release);
        // Threads that had found no slot look again.
        c.slots_freed.fetch_add(1, Release);
        Ok(())
    }
}
