//! Lengthens the file of the ring, once, for the thread states of its second part. A thread that finds no slot waits for that,
//! so it does not wait for the collector, which may be busy.

use nix::errno::Errno;
#[allow(unused_imports)] // for the documentation
use prof_trace::shared::Control;
use prof_trace::shared::{MORE_IN_VAIN, MORE_NUDGE, MORE_WANTED, Shared};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

/// The second part is asked for when more than one of this many parts of the first slots is in use: threads may begin faster
/// than the collector looks.
const PART: usize = 4;

/// Pause after a wait that has ended early: the process may change the word as often as it likes.
const PAUSE: Duration = Duration::from_millis(1);

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
/// [`Control::more_asked`] is not as it was `seen`.
pub(crate) fn await_change(shared: &Shared<'_>, seen: u32, time: Duration) {
    let word = &shared.control().more_asked;
    let limit = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word is mapped for as long as `shared`, and the kernel reads the time during the call.
    let waited = unsafe {
        let at = std::ptr::from_ref(word);
        libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAIT, seen, &raw const limit)
    };
    let errno = (waited != 0).then(Errno::last);
    std::thread::sleep(match errno {
        Some(Errno::ETIMEDOUT) => Duration::ZERO,
        _ if is_wanted(word.load(Relaxed)) => Duration::ZERO,
        None | Some(Errno::EAGAIN | Errno::EINTR) => PAUSE,
        // A kernel without this call.
        Some(_) => time,
    });
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
    /// Number of thread states of the second part.
    more: u64,
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
        let (file, len) = (File::from(file), geometry.size() as u64);
        let has = file.metadata().ok()?.len();
        (has <= len).then_some(Self { file, len, more: offered })
    }

    /// Lengthens the file as [`Growth::make`] does, or logs why that is not possible.
    pub(crate) fn make_or_say(self, shared: &Shared<'_>) {
        if let Err(e) = self.make(shared) {
            log::warn!("there is no room for more threads, whose events are lost: {e}");
        }
    }

    /// Lengthens the file, and has threads take slots of the second part from now on.
    ///
    /// # Errors
    /// If the file can't get longer. Threads do not wait for that any more.
    fn make(self, shared: &Shared<'_>) -> io::Result<()> {
        let c = shared.control();
        let (fd, len) = (self.file.as_raw_fd(), self.len as i64);
        // SAFETY: the descriptor is ours, and the other argument is an integer.
        if unsafe { libc::ftruncate64(fd, len) } != 0 {
            let e = io::Error::last_os_error();
            c.more_asked.fetch_or(MORE_IN_VAIN, Relaxed);
            return Err(e);
        }
        // SAFETY: as above. Where it can't be sealed, the process can make it longer, which harms nobody.
        _ = unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_GROW) };
        // A thread that sees this number finds the states.
        c.more_count.store(self.more, Release);
        // Threads that had found no slot look again.
        c.slots_freed.fetch_add(1, Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use prof_trace::shared::Geometry;

    const STATES: u64 = 1024;
    const MORE: u64 = 2048;

    /// Returns a ring whose second part does not exist, and its file.
    fn ring() -> (File, Shared<'static>, Geometry) {
        let all = Geometry::for_ring(0).with_threads(STATES as usize);
        let all = all.with_more_threads(MORE as usize);
        let fd = memfd_create(c"ring", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING);
        let file = File::from(fd.expect("a memfd"));
        file.set_len(all.first_size() as u64).expect("its length");
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file of the test's disturbs nobody.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), all.size(), access, flags, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        let segments = Geometry::from_segments(all.segments() as u32).expect("segments");
        // SAFETY: it has that size, and stays mapped.
        let shared = unsafe { Shared::new(at.cast(), segments) };
        // SAFETY: nobody else has the memory yet.
        let c = unsafe { shared.control_mut() };
        c.states_count = STATES;
        c.more_offered.store(MORE, Relaxed);
        (file, shared, all)
    }

    fn growth(file: &File, shared: &Shared<'_>) -> Option<Growth> {
        Growth::of(file.try_clone().expect("a descriptor").into(), shared)
    }

    #[test]
    fn the_file_is_lengthened_before_threads_take_the_second_part() {
        let (file, shared, all) = ring();
        let c = shared.control();
        growth(&file, &shared).expect("a second part").make(&shared).expect("room");
        assert_eq!(file.metadata().expect("its length").len(), all.size() as u64);
        assert_eq!((c.more_count.load(Relaxed), c.slots_freed.load(Relaxed)), (MORE, 1));
        // SAFETY: the descriptor is the test's.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        assert_eq!(seals, libc::F_SEAL_GROW);
        assert!(growth(&file, &shared).is_none(), "it is there already");
    }

    #[test]
    fn a_file_that_can_not_become_longer_has_threads_wait_no_more() {
        let (file, shared, all) = ring();
        let c = shared.control();
        let growth = growth(&file, &shared).expect("a second part");
        // SAFETY: the descriptor is the test's.
        let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_GROW) };
        assert_eq!(sealed, 0);
        assert!(growth.make(&shared).is_err());
        assert_eq!(file.metadata().expect("its length").len(), all.first_size() as u64);
        assert_eq!((c.more_count.load(Relaxed), c.slots_freed.load(Relaxed)), (0, 0));
        assert_eq!(c.more_asked.load(Relaxed), MORE_IN_VAIN);
    }

    #[test]
    fn sizes_that_prof_does_not_make_are_not_believed() {
        let (file, shared, all) = ring();
        let c = shared.control();
        for offered in [0, 3, u64::MAX] {
            c.more_offered.store(offered, Relaxed);
            assert!(growth(&file, &shared).is_none(), "{offered}");
        }
        c.more_offered.store(MORE, Relaxed);
        file.set_len(all.size() as u64 + 1).expect("its length");
        assert!(growth(&file, &shared).is_none(), "it would become shorter");
    }

    #[test]
    fn threads_are_waited_for_until_one_asks() {
        let (_file, shared, _) = ring();
        let c = shared.control();
        ask_early(&shared, STATES as usize / PART);
        assert_eq!(c.more_asked.load(Relaxed), 0);
        std::thread::scope(|s| {
            s.spawn(|| ask_early(&shared, STATES as usize / PART + 1));
            while !is_wanted(c.more_asked.load(Relaxed)) {
                await_change(&shared, 0, Duration::from_secs(60));
            }
        });
        nudge(&shared);
        assert_eq!(c.more_asked.load(Relaxed), MORE_WANTED | MORE_NUDGE);
    }
}
