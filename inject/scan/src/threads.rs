//! The threads' registers and stacks: roots, and the memory below stack pointers that is none.

use crate::locals::border;
use crate::memory::ScannedMemory;
use prof_arch::generic::stopped::RED_ZONE;
use prof_arch::native::rule::is_sigreturn_code;
use prof_inject::stopped::state::ThreadState;
use prof_inject::stopped::tracee::Tracee;
use prof_inject::{Error, Result, isolated};
use prof_os::maps::Map;
use prof_os::memory::Reader;
use prof_os::sharers::Sharers;
use prof_os::{Pid, process};
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Time that a thread gets to stop for a look at its registers.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a stack that are read while its thread is stopped, so that they fit its registers.
const STACK: u64 = 256 << 10;
/// Bytes of a stack that are searched for the frame of a signal handler.
const SEARCH: usize = 64 << 10;
/// Bytes at the end of a stack's mapping in which libc keeps the thread's descriptor.
const DESCRIPTOR: u64 = 16 << 10;
/// Rounds in which threads are looked for that others have made meanwhile.
const ROUNDS: usize = 8;
/// Bytes before and behind the border of a thread's variables in which libc's thread descriptor says where the stack is.
const AROUND: u64 = 4096;
/// Words behind a thread pointer among which some are that pointer itself.
const SELVES: u64 = 8;
const WORD: u64 = size_of::<usize>() as u64;

/// A thread as it was at a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadLook {
    /// The thread's registers.
    pub state: ThreadState,
    /// The end of its stack that is in use: an address, and bytes.
    pub stack: (u64, Vec<u8>),
}

/// The threads of a process, each as it was at some moment.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// The threads.
    pub all: Vec<ThreadLook>,
    /// Threads whose registers could not be read.
    pub unread: Vec<Pid>,
    /// The longest time for which one was stopped.
    pub longest: Duration,
}

impl Threads {
    /// Stops each thread of a process for a moment, by itself, and reads its registers and the end of its stack.
    ///
    /// # Errors
    /// If the process is gone or may not be traced.
    pub(crate) fn look(
        reader: &Reader,
        memory: &ScannedMemory,
        sharers: &mut Sharers,
    ) -> Result<Self> {
        isolated(|| {
            let mut found = Self::default();
            let mut seen = Vec::new();
            sharers.look_again();
            for _ in 0..ROUNDS {
                let before = seen.len();
                for pid in std::iter::once(reader.pid()).chain(sharers.others().iter().copied()) {
                    for tid in process::threads(pid).unwrap_or_default() {
                        if !seen.contains(&tid) {
                            seen.push(tid);
                            found.one(reader, memory, pid, tid)?;
                        }
                    }
                }
                if seen.len() == before {
                    break;
                }
            }
            if seen.is_empty() { Err(Error::Gone(reader.pid())) } else { Ok(found) }
        })
    }

    fn one(&mut self, reader: &Reader, memory: &ScannedMemory, pid: Pid, tid: Pid) -> Result<()> {
        let Some(mut t) = Tracee::seize(pid, tid)? else { return Ok(()) };
        let since = Instant::now();
        t.interrupt();
        match t.wait_stopped(since + PATIENCE) {
            Ok(true) => match t.state() {
                Ok(state) => {
                    let stack = stack_of(reader, memory, state.sp);
                    t.detach();
                    self.longest = self.longest.max(since.elapsed());
                    self.all.push(ThreadLook { state, stack });
                }
                Err(_) if t.is_gone() => {}
                Err(_) => self.unread.push(tid),
            },
            Ok(false) => {}
            Err(_) => self.unread.push(tid),
        }
        Ok(())
    }

    /// Takes threads that are all stopped.
    #[must_use]
    pub(crate) fn of_stopped(
        reader: &Reader,
        memory: &ScannedMemory,
        stopped: &mut [Tracee],
    ) -> Self {
        let mut found = Self::default();
        for t in stopped.iter_mut().filter(|t| !t.is_gone()) {
            match t.state() {
                Ok(state) => {
                    let stack = stack_of(reader, memory, state.sp);
                    found.all.push(ThreadLook { state, stack });
                }
                Err(_) if t.is_gone() => {}
                Err(_) => found.unread.push(t.tid),
            }
        }
        found
    }

    /// Returns the memory that is known not to count: what lies below the stack pointers, and the stacks of threads that
    /// have ended, with their thread-local variables. Where a stack is not certain to reach as far, nothing is.
    #[must_use]
    pub(crate) fn dead(&self, reader: &Reader, memory: &ScannedMemory) -> Vec<Range<u64>> {
        let mut known = HashMap::new();
        let mut dead = Vec::new();
        let selves = self.self_pointers(reader);
        for (i, m) in memory.maps.iter().enumerate() {
            let on: Vec<&ThreadLook> = self
                .all
                .iter()
                .filter(|t| m.start.0 <= t.state.sp && t.state.sp < m.end.0)
                .collect();
            let range = match on.as_slice() {
                [t] if is_stack_of(reader, memory, i, &t.state)
                    && !in_handler(reader, memory, t, &mut known) =>
                {
                    let free = t.state.sp.saturating_sub(RED_ZONE) / WORD * WORD;
                    Some(m.start.0..free.max(m.start.0))
                }
                [] if self.unread.is_empty() => self.left(reader, memory, i, &selves),
                _ => None,
            };
            dead.extend(range.filter(|r| !r.is_empty()));
        }
        dead
    }

    /// Returns the stack and the thread-local variables of a thread that has ended, which libc keeps for the next one:
    /// the mapping ends with a thread's descriptor that is no living thread's. The descriptor itself is left: it holds
    /// what the thread has returned until somebody joins it.
    fn left(
        &self,
        reader: &Reader,
        memory: &ScannedMemory,
        i: usize,
        selves: &[u64],
    ) -> Option<Range<u64>> {
        let m = &memory.maps[i];
        if selves.is_empty() || !has_guard(memory, i) {
            return None;
        }
        let from = m.end.0.saturating_sub(DESCRIPTOR).max(m.start.0);
        let part =
            memory.parts.iter().find(|p| p.start <= from.max(p.start) && p.end == m.end.0)?;
        let from = from.max(part.start);
        let mut bytes = vec![0; (m.end.0 - from) as usize];
        let n = reader.read(from, &mut bytes);
        let at = |a: u64| {
            let i = usize::try_from(a.checked_sub(from)?).ok()?;
            let w = bytes[..n].get(i..i + WORD as usize)?;
            Some(usize::from_ne_bytes(w.try_into().ok()?) as u64)
        };
        let is_own = |a: &u64| selves.iter().all(|o| at(a + o) == Some(*a));
        let mut found = (from..m.end.0).step_by(WORD as usize).filter(is_own);
        let descriptor = found.next()?;
        // A thread that lives may be in a handler on another stack; its descriptor is still its own.
        let mut borders = self.all.iter().map(|t| border(t.state.thread_pointer));
        let lives = borders.any(|at| m.start.0 <= at && at < m.end.0);
        let is_alone = found.next().is_none() && !lives;
        (is_alone && is_named(reader, memory, i, descriptor)).then_some(m.start.0..descriptor)
    }

    /// Returns the distances from the thread pointer at which each living thread has that pointer itself, by which its
    /// libc's descriptors are known. Nothing if there are not two of them, as one may be chance.
    fn self_pointers(&self, reader: &Reader) -> Vec<u64> {
        let tps = || self.all.iter().map(|t| t.state.thread_pointer);
        let is_self = |o: &u64| tps().all(|tp| word_at(reader, tp.wrapping_add(*o)) == Some(tp));
        let found: Vec<u64> = (0..SELVES).map(|k| k * WORD).filter(is_self).collect();
        if found.len() < 2 || self.all.is_empty() { Vec::new() } else { found }
    }
}

/// Returns the bytes of a stack from the stack pointer (or the red zone below it) on.
fn stack_of(reader: &Reader, memory: &ScannedMemory, sp: u64) -> (u64, Vec<u8>) {
    let from = sp.saturating_sub(RED_ZONE) / WORD * WORD;
    let Some(m) = memory.map_of(sp).filter(|m| m.start.0 <= from && m.write) else {
        return (from, Vec::new());
    };
    let mut bytes = vec![0; (m.end.0 - from).min(STACK) as usize];
    let n = reader.read(from, &mut bytes);
    bytes.truncate(n / WORD as usize * WORD as usize);
    (from, bytes)
}

/// Returns whether the mapping is a thread's stack from its start on: the kernel's own for the first thread, or one with
/// a guard below it and with the thread's descriptor at its end.
fn is_stack_of(reader: &Reader, memory: &ScannedMemory, i: usize, state: &ThreadState) -> bool {
    let m = &memory.maps[i];
    let at = border(state.thread_pointer);
    m.name == b"[stack]"
        || has_guard(memory, i) && state.sp < at && at < m.end.0 && is_named(reader, memory, i, at)
}

/// Returns whether libc's descriptor of a thread names the mapping as the thread's stack. `border`: see [`border`].
fn is_named(reader: &Reader, memory: &ScannedMemory, i: usize, border: u64) -> bool {
    named_end(reader, memory, i, border).is_some()
}

/// Returns the end of the stack that libc's descriptor of a thread names, if that lies in a mapping right above a guard: it has
/// address and length side by side. The stack begins in the guard, so that it is libc's own, and no memory that the program
/// has lent it; and nothing else lies between the guard and the descriptor. What lies behind the end is other memory: the
/// kernel may have joined both.
pub(crate) fn named_end(
    reader: &Reader,
    memory: &ScannedMemory,
    i: usize,
    border: u64,
) -> Option<u64> {
    let guard = i.checked_sub(1).map(|k| &memory.maps[k])?;
    let m = &memory.maps[i];
    let from = border.saturating_sub(AROUND).max(m.start.0).checked_next_multiple_of(WORD)?;
    let to = border.saturating_add(AROUND).min(m.end.0);
    let mut bytes = vec![0; to.saturating_sub(from) as usize];
    let n = reader.read(from, &mut bytes);
    let words = bytes[..n].as_chunks::<{ WORD as usize }>().0;
    let words: Vec<u64> = words.iter().map(|w| usize::from_ne_bytes(*w) as u64).collect();
    words.windows(2).find_map(|w| {
        let end = w[0].checked_add(w[1])?;
        let begins = guard.start.0 <= w[0] && w[0] < m.start.0;
        (begins && border < end && end <= m.end.0).then_some(end)
    })
}

fn word_at(reader: &Reader, at: u64) -> Option<u64> {
    let mut bytes = [0; WORD as usize];
    (reader.read(at, &mut bytes) == bytes.len()).then(|| usize::from_ne_bytes(bytes) as u64)
}

/// Returns whether a mapping lies right above a guard, as libc makes stacks.
pub(crate) fn has_guard(memory: &ScannedMemory, i: usize) -> bool {
    let m = &memory.maps[i];
    let is_guard = |g: &Map| g.end == m.start && !g.read && !g.write && !g.exec;
    let below = i.checked_sub(1).map(|k| &memory.maps[k]);
    m.is_anonymous() && m.write && !m.shared && below.is_some_and(is_guard)
}

/// Returns whether a signal handler may be running: it may be on a signal stack that lies within the thread's own, so
/// that what lies below its stack pointer is the rest of that.
fn in_handler(
    reader: &Reader,
    memory: &ScannedMemory,
    t: &ThreadLook,
    known: &mut HashMap<u64, bool>,
) -> bool {
    let words = t.stack.1.as_chunks::<{ WORD as usize }>().0.iter();
    let words = words.take(SEARCH / WORD as usize).map(|w| usize::from_ne_bytes(*w) as u64);
    let mut is_restorer = |word: u64| {
        *known.entry(word).or_insert_with(|| {
            let mut code = [0; 16];
            let n = reader.read(word, &mut code);
            is_sigreturn_code(&code[..n])
        })
    };
    words.into_iter().any(|w| memory.map_of(w).is_some_and(|m| m.exec) && is_restorer(w))
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;
    use prof_os::page_size;

    /// Returns the end of the calling thread's stack, as libc tells it.
    fn own_end() -> u64 {
        // SAFETY: the attributes are written before they are read, and given back once.
        unsafe {
            let mut attributes = std::mem::zeroed();
            assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &mut attributes), 0);
            let (mut at, mut len) = (std::ptr::null_mut(), 0);
            assert_eq!(libc::pthread_attr_getstack(&attributes, &mut at, &mut len), 0);
            libc::pthread_attr_destroy(&mut attributes);
            at as u64 + len as u64
        }
    }

    #[test]
    fn a_stack_ends_where_libc_says_though_its_mapping_goes_on() {
        let own = || {
            let end = own_end();
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let (access, page) = (libc::PROT_READ | libc::PROT_WRITE, page_size() as usize);
            // SAFETY: nothing that exists is replaced. If there is something, the stack may be joined with that.
            let at = unsafe { libc::mmap(end as *mut _, page, access, flags, -1, 0) };
            let reader = Reader::open(Pid::this()).expect("memory");
            let memory = ScannedMemory::of(&reader).expect("maps");
            let here = std::ptr::from_ref(&end) as u64;
            let i = memory.maps.partition_point(|m| m.start.0 <= here) - 1;
            if !has_guard(&memory, i) {
                eprintln!("skipped: libc makes guards that are no mappings of their own");
                return;
            }
            let border = border(prof_arch::native::capture::thread_pointer());
            assert_eq!(named_end(&reader, &memory, i, border), Some(end));
            if at as u64 == end {
                // SAFETY: it was mapped above, and nobody has learnt of it.
                unsafe { libc::munmap(at, page) };
            }
        };
        std::thread::spawn(own).join().expect("a thread");
    }
}
