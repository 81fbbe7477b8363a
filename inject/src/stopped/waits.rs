//! Computes how much of a wait is left when a stop interrupts it.
//!
//! The kernel ends some calls with EINTR at a stop (`epoll_wait`, `semtimedop`, `sigtimedwait`), and tells nowhere
//! how long they would still have waited. Issued again unchanged, they would wait their whole time anew. So prof
//! looks at a thread before stopping it: `/proc/PID/task/TID/sched` tells when the thread went to sleep, by the clock
//! of the processor on which it ran.
//!
//! The computed time is never more than the thread has slept. Between the look and the stop, the thread may have
//! returned and made the same call again, which the stop ends before it sleeps. Nothing counts the calls of a thread, so
//! a thread that may have done so waits its whole time: a wait may end late, but not early.

use crate::RemoteAddr;
use crate::stopped::memory::RemoteMemory;
use prof_arch::blocked::{Blocked, Timeout};
use prof_arch::generic::stopped::{RED_ZONE, StoppedRegs};
use prof_arch::native::{UserRegs, call, insn};
use prof_os::stat::Stat;
use prof_os::status::Status;
use prof_os::{Pid, maps, task};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Bytes below the stack pointer, next to [`RED_ZONE`], that may hold a shorter time if the call has a pointer to its
/// time.
pub(crate) const ROOM: u64 = 80;
/// Upper bound on the bytes that the frame of a signal and its handler take.
const DEEP: u64 = 32 << 10;
/// Maximum wait for a processor, which a thread that never sleeps may occupy.
const PATIENCE: Duration = Duration::from_millis(200);
/// The processor's clock and that of the timers differ by at most one part in so many.
const DRIFT: u32 = 1000;
/// Upper bound on the time that a thread runs from being woken by a stop until it has stopped. It is some 10 us on a
/// current machine.
const TO_STOP: Duration = Duration::from_micros(200);
/// Flags of `io_uring_enter`: the fifth argument points to `struct io_uring_getevents_arg`; its time is absolute; the
/// argument is no pointer.
const EXT_ARG: u64 = 1 << 3;
const ABS_TIMER: u64 = 1 << 5;
const EXT_ARG_REG: u64 = 1 << 6;
/// Bytes of that structure: a signal mask with its length, a shorter time for more than one result, and a pointer to
/// the time.
const RING_ARG: usize = 24;
/// Bytes that are read behind a system call instruction.
const CODE: usize = 512;

/// A call with a timeout in which a thread was seen asleep.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    call: Blocked,
    timeout: Timeout,
    /// Counters of the thread at `noted`.
    done: Done,
    /// Lower bound on the time that the thread had slept by `noted`.
    slept: Duration,
    /// Time of the look.
    noted: Instant,
}

/// Counters of a thread since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Done {
    /// Number of times that it went to sleep.
    slept: u64,
    /// Number of times that another thread took its processor.
    preempted: u64,
    /// Time for which it has had a processor, if the kernel tells.
    ran: Option<Duration>,
}

impl Done {
    fn of(pid: Pid, tid: Pid) -> Option<Self> {
        let status = Status::of_thread(pid, tid).ok()?;
        let number = |name: &str| status.number(name).and_then(|n| u64::try_from(n).ok());
        Some(Self {
            slept: number("voluntary_ctxt_switches")?,
            preempted: number("nonvoluntary_ctxt_switches")?,
            ran: task::ran(pid, tid),
        })
    }

    /// Returns whether a thread that was asleep then, and is stopped now, can only have been woken by the stop.
    fn only_stopped_since(&self, now: &Self) -> bool {
        let ran = now.ran.zip(self.ran).map(|(now, then)| now.saturating_sub(then));
        // The stop counts as a sleep.
        now.slept <= self.slept + 1
            && now.preempted == self.preempted
            && ran.is_none_or(|ran| ran <= TO_STOP)
    }
}

/// A sleep, with the time when it was first seen.
#[derive(Clone, Copy)]
struct Seen {
    call: Blocked,
    slept: u64,
    at: Instant,
}

/// Results of earlier looks at threads, processors and code.
#[derive(Default)]
struct Memory {
    sleeps: HashMap<Pid, Seen>,
    /// A processor's clock in nanoseconds, with the time of its reading.
    clocks: HashMap<usize, (u64, Instant)>,
    /// Whether the code behind a call does not use a certain argument any more.
    code: HashMap<(Pid, u64, usize), bool>,
}

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

fn with_memory<T>(f: impl FnOnce(&mut Memory) -> T) -> T {
    let mut m: MutexGuard<'_, _> = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    f(m.get_or_insert_with(Memory::default))
}

impl Wait {
    /// Looks at a thread. Returns `None` if the thread is not asleep in such a call, or waits without an end.
    pub(crate) fn of(pid: Pid, tid: Pid) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
        let call = Blocked::parse(&text)?;
        let timeout = call::timeout(call.number)?;
        let value = call.args.get(timeout.argument()).copied()?;
        let endless = match timeout {
            Timeout::Milliseconds(_) => value as i32 <= 0,
            Timeout::Narrow(_) | Timeout::Wide(_) => value == 0,
            Timeout::Ring(k) => {
                let flags = call.args.get(k.wrapping_sub(1)).copied().unwrap_or_default();
                flags & (EXT_ARG | ABS_TIMER | EXT_ARG_REG) != EXT_ARG || value == 0
            }
        };
        if endless || !is_forgotten(pid, call.pc, timeout) {
            return None;
        }
        let done = Done::of(pid, tid)?;
        let began = with_memory(|m| {
            let now = Seen { call, slept: done.slept, at: Instant::now() };
            let seen = m.sleeps.entry(tid).or_insert(now);
            if (seen.call, seen.slept) != (call, done.slept) {
                *seen = now;
            }
            seen.at
        });
        let by_clock = slept(pid, tid).unwrap_or_default();
        let noted = Instant::now();
        // The thread may have woken up during the look.
        let same = Done::of(pid, tid) == Some(done);
        let slept = by_clock.max(noted - began);
        log::debug!("thread {tid} has slept for {} ms in call {}", slept.as_millis(), call.number);
        same.then_some(Self { call, timeout, done, slept, noted })
    }

    /// Returns the registers that issue the call again for the rest of its time; `again` are those for the whole
    /// time. Returns `None` if the rest is not known, or if the thread is not in that call any more.
    ///
    /// The thread is stopped.
    pub(crate) fn shorter(&self, pid: Pid, tid: Pid, again: &UserRegs) -> Option<UserRegs> {
        let args = self.call.args.iter().enumerate();
        let same = again.sp() == self.call.sp
            && args.clone().all(|(k, a)| again.argument(k) == *a as usize as u64);
        if !same || !self.done.only_stopped_since(&Done::of(pid, tid)?) {
            return None;
        }
        let mut regs = *again;
        let value = regs.argument(self.timeout.argument());
        if let Timeout::Milliseconds(k) = self.timeout {
            let left = self.left(Duration::from_millis(value))?;
            // The rest is rounded up, so that the wait is not too short.
            let ms = left.as_nanos().div_ceil(1_000_000) as u64;
            regs.set_argument(k, ms.min(value));
            return Some(regs);
        }
        let mem = RemoteMemory::open(pid).ok()?;
        let at = room(pid, tid, again);
        // The structure to which the argument points, if it does not point to the time itself.
        let (mut structure, mut time) = (Vec::new(), RemoteAddr(value));
        if matches!(self.timeout, Timeout::Ring(_)) {
            structure = mem.read_some(time, RING_ARG);
            time = time_of_ring(&structure)?;
            let behind = at.0 + RING_ARG as u64;
            structure.splice(RING_ARG - 8.., behind.to_ne_bytes());
        }
        let wide = !matches!(self.timeout, Timeout::Narrow(_));
        let bytes = mem.read_some(time, if wide { 16 } else { 8 });
        structure.extend(encode(self.left(decode(&bytes)?)?, wide)?);
        mem.write_data(at, &structure).ok()?;
        regs.set_argument(self.timeout.argument(), at.0);
        Some(regs)
    }

    /// Returns the rest of a wait of a given time. `None` if that time was over at the look: something has kept the
    /// thread from running, and the call that the stop ended may be the next one.
    fn left(&self, whole: Duration) -> Option<Duration> {
        let slept = self.slept + self.noted.elapsed();
        let slept = slept - slept / DRIFT;
        (self.slept < whole).then(|| whole.saturating_sub(slept))
    }
}

/// Returns the place for the shorter time of a call that has a pointer to its time. A signal that comes before the
/// call puts its frame below the stack pointer, so the place is further down if the stack reaches so far.
fn room(pid: Pid, tid: Pid, regs: &UserRegs) -> RemoteAddr {
    let (sp, tp) = (regs.sp(), regs.thread_pointer());
    let near = (sp - RED_ZONE - ROOM / 2) & !15;
    let maps = maps::of(pid).unwrap_or_default();
    let deep = near.saturating_sub(DEEP);
    let own = maps.iter().find(|m| m.holds(RemoteAddr(sp)) && m.holds(RemoteAddr(deep)));
    let is_stack = own.is_some_and(|m| {
        let first = tid == pid && m.name == b"[stack]";
        first || (sp < tp && m.holds(RemoteAddr(tp - 1)))
    });
    RemoteAddr(if is_stack { deep } else { near })
}

/// Returns the address of the time in `struct io_uring_getevents_arg`, if it is the only time there.
fn time_of_ring(structure: &[u8]) -> Option<RemoteAddr> {
    let (front, time) = structure.first_chunk::<RING_ARG>()?.split_at(RING_ARG - 8);
    let time = u64::from_ne_bytes(*time.first_chunk()?);
    (front.ends_with(&[0; 4]) && time != 0).then_some(RemoteAddr(time))
}

/// Decodes the kernel's `struct timespec`, which consists of two equal halves.
fn decode(bytes: &[u8]) -> Option<Duration> {
    if !matches!(bytes.len(), 8 | 16) {
        return None;
    }
    let (s, ns) = bytes.split_at(bytes.len() / 2);
    let number = |b: &[u8]| match b.len() {
        8 => b.first_chunk().map(|b| i64::from_ne_bytes(*b)),
        _ => b.first_chunk().map(|b| i64::from(i32::from_ne_bytes(*b))),
    };
    let (s, ns) = (u64::try_from(number(s)?).ok()?, u32::try_from(number(ns)?).ok()?);
    (ns < 1_000_000_000).then(|| Duration::new(s, ns))
}

fn encode(d: Duration, wide: bool) -> Option<Vec<u8>> {
    let (s, ns) = (d.as_secs(), d.subsec_nanos());
    if wide {
        return Some([s, u64::from(ns)].into_iter().flat_map(u64::to_ne_bytes).collect());
    }
    Some([u32::try_from(s).ok()?, ns].into_iter().flat_map(u32::to_ne_bytes).collect())
}

/// Returns a lower bound on the time that a sleeping thread has slept. The clock stands still while the processor
/// serves interrupts or another virtual machine.
fn slept(pid: Pid, tid: Pid) -> Option<Duration> {
    let began = task::last_ran(pid, tid)?;
    let processor = Stat::of_thread(pid, tid)?.processor()?;
    let known = with_memory(|m| m.clocks.get(&processor).copied()).filter(|c| c.0 >= began);
    let (clock, at) = match known {
        Some(known) => known,
        None => {
            let now = read_clock(processor)?;
            with_memory(|m| m.clocks.insert(processor, now));
            now
        }
    };
    Some(Duration::from_nanos(clock.checked_sub(began)?) + at.elapsed())
}

/// Returns a processor's clock, and a time at or after its reading. A thread on that processor reads it. Returns
/// `None` if the processor does not become free soon.
fn read_clock(processor: usize) -> Option<(u64, Instant)> {
    let (to, from) = mpsc::channel();
    let read = move || {
        // SAFETY: a set of processors consists of bits, and the calls affect this thread only.
        let there = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if processor >= libc::CPU_SETSIZE as usize {
                return;
            }
            libc::CPU_SET(processor, &mut set);
            let there = libc::sched_setaffinity(0, size_of_val(&set), &set) == 0;
            // After this, the kernel has updated when this thread ran last.
            libc::sched_yield();
            there
        };
        if let Some(clock) = task::own_last_ran().filter(|_| there) {
            let _ = to.send((clock, Instant::now()));
        }
    };
    std::thread::Builder::new().spawn(read).ok()?;
    from.recv_timeout(PATIENCE).ok()
}

/// Returns whether the argument is unused after the call has returned. libc's own functions make each such call once
/// and return; elsewhere the code behind the call shows it.
fn is_forgotten(pid: Pid, pc: u64, timeout: Timeout) -> bool {
    let key = (pid, pc, timeout.argument());
    if let Some(known) = with_memory(|m| m.code.get(&key).copied()) {
        return known;
    }
    let maps = maps::of(pid).unwrap_or_default();
    let libc = maps.iter().find(|m| m.holds(RemoteAddr(pc))).is_some_and(|m| {
        let name = m.name.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let is = |start: &[u8]| name.starts_with(start);
        is(b"libc.so") || is(b"libc-2.") || is(b"libpthread") || is(b"ld-musl-")
    });
    let shown = || {
        let Ok(mem) = RemoteMemory::open(pid) else { return false };
        let code = mem.read_some(RemoteAddr(pc), CODE);
        matches!(timeout, Timeout::Milliseconds(_))
            && insn::argument_is_forgotten(&code, timeout.argument())
    };
    let forgotten = libc || shown();
    with_memory(|m| m.code.insert(key, forgotten));
    forgotten
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_the_kernel_has_them() {
        let d = Duration::new(3, 7);
        for wide in [false, true] {
            assert_eq!(decode(&encode(d, wide).unwrap()), Some(d));
        }
        assert_eq!(encode(Duration::from_secs(1 << 40), false), None);
        assert_eq!(decode(&[0xff; 16]), None);
    }

    #[test]
    fn the_time_of_a_ring() {
        let of = |min_wait: u32, time: u64| {
            let front = [7u64.to_ne_bytes(), [0; 8]].concat();
            let mut structure = [front, time.to_ne_bytes().to_vec()].concat();
            structure.splice(12..16, min_wait.to_ne_bytes());
            time_of_ring(&structure).map(|at| at.0)
        };
        assert_eq!(of(0, 0x1000), Some(0x1000));
        assert_eq!((of(0, 0), of(5, 0x1000)), (None, None));
        assert_eq!(time_of_ring(&[1; RING_ARG - 1]), None);
    }

    #[test]
    fn what_is_left() {
        let done = Done { slept: 5, preempted: 3, ran: None };
        let call = "230 0x0 0x0 0x7ffd0000 0x0 0x0 0x0 0x7ffd1000 0x7f0000001000";
        let call = Blocked::parse(call).expect("a call");
        let (timeout, hours) = (Timeout::Wide(2), |n: u64| Duration::from_secs(3600 * n));
        let wait = Wait { call, timeout, done, slept: hours(2), noted: Instant::now() };
        let left = wait.left(hours(6)).expect("a rest");
        // The clocks differ by at most 7.2 s in two hours.
        assert!(left <= hours(4) + Duration::from_secs(8) && left > hours(3), "{left:?}");
        assert_eq!((wait.left(hours(2)), wait.left(hours(1))), (None, None));
        let over = wait.left(hours(2) + Duration::from_nanos(1));
        assert!(over.is_some_and(|left| left <= Duration::from_secs(8)), "{over:?}");
    }

    #[test]
    fn a_thread_that_may_have_made_another_call_is_told() {
        let us = |n| Some(Duration::from_micros(n));
        let then = Done { slept: 5, preempted: 3, ran: us(1000) };
        let now = Done { slept: 6, preempted: 3, ran: us(1012) };
        assert!(then.only_stopped_since(&now));
        assert!(then.only_stopped_since(&Done { ran: None, ..now }));
        for other in
            [Done { slept: 7, ..now }, Done { preempted: 4, ..now }, Done { ran: us(1300), ..now }]
        {
            assert!(!then.only_stopped_since(&other), "{other:?}");
        }
    }

    /// Returns the computed time of a thread that has slept for 200 ms, and the longest time that it can have slept.
    fn asleep() -> (Option<Duration>, Duration) {
        let (to, tid) = mpsc::channel();
        let began = Instant::now();
        let sleeper = std::thread::spawn(move || {
            // SAFETY: the call only asks for a number.
            to.send(Pid::from_raw(unsafe { libc::gettid() })).unwrap();
            std::thread::sleep(Duration::from_millis(400));
        });
        let tid = tid.recv().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let slept = slept(Pid::this(), tid);
        let at_most = began.elapsed();
        sleeper.join().unwrap();
        (slept, at_most)
    }

    #[test]
    fn a_sleeping_thread_has_slept_as_long_as_it_has() {
        let known = std::path::Path::new("/proc/self/sched").exists();
        let enough = |d: Duration| d >= Duration::from_millis(20);
        let told = (0..if known { 40 } else { 1 }).any(|_| {
            let (slept, at_most) = asleep();
            assert!(slept.is_none_or(|d| d <= at_most), "{slept:?} of {at_most:?}");
            slept.is_some_and(enough)
        });
        // On a shared machine, not every attempt succeeds.
        assert!(told || !known || cfg!(not(target_arch = "x86_64")));
    }
}
