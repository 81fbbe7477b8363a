//! Tracks the target's threads: their numbers, names, and whether they are alive.

use crate::census::Census;
use crate::output::Output;
use prof_os::sharers::Sharers;
use prof_os::status::Status;
use prof_os::{Pid, process};
use prof_trace::records::{Thread, ThreadsLeft, kind};
use prof_trace::shared::{MEMFD_NAME, SLOTS, Shared};
use prof_trace::slots;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::atomic::Ordering::Relaxed;

/// Number of names that are read again per second.
const RENAMES: usize = 256;
/// Number of known threads above which ended ones are forgotten at once.
const MANY: usize = 4 * SLOTS;

/// Number of ended threads that are written at a time.
const GONE: usize = 64;

/// Facts about one thread.
#[derive(Debug)]
pub(crate) struct Known {
    /// Sequence number of the segment that is read now, or comes next.
    pub next: u64,
    /// The last pass in which a segment was missing, and its number.
    pub gap: (u64, u64),
    tid: u32,
    name: String,
    written: bool,
    /// The thread has ended, and all its events were read.
    left: bool,
}

/// All threads that have events.
#[derive(Debug)]
pub(crate) struct Threads {
    sharers: Sharers,
    known: HashMap<u32, Known>,
    fresh: Vec<u32>,
    left: Vec<u32>,
    /// Threads in the recording that were forgotten, as they have ended.
    gone: Vec<u64>,
    nested: bool,
    /// Ids of threads as this process sees them, by their ids in the target's pid namespace.
    outer: HashMap<u32, Pid>,
    /// A thread may have started since `outer` was read.
    outer_is_old: bool,
    rename_at: u32,
    born: usize,
}

impl Threads {
    /// Creates an empty list for process `pid`.
    pub(crate) fn new(pid: Pid) -> Self {
        let status = Status::of(pid).unwrap_or_default();
        let nested = ns_pids(&status).is_some_and(|n| n.0 != n.1);
        let (known, fresh, left, gone, outer) = Default::default();
        let sharers = Sharers::of(pid, MEMFD_NAME);
        Self {
            sharers,
            known,
            fresh,
            left,
            gone,
            nested,
            outer,
            outer_is_old: true,
            rename_at: 0,
            born: 0,
        }
    }

    /// Returns the entry of a thread that has a segment in use; adds it if it is new.
    pub(crate) fn seen(&mut self, serial: u32, tid: u32) -> &mut Known {
        self.known.entry(serial).or_insert_with(|| {
            self.fresh.push(serial);
            self.born += 1;
            Known { next: 1, gap: (0, 0), tid, name: String::new(), written: false, left: false }
        })
    }

    /// Notes that a thread has ended, and its last segment has been read.
    pub(crate) fn left(&mut self, serial: u32) {
        let Some(k) = self.known.get_mut(&serial) else { return };
        k.left = true;
        self.left.push(serial);
        // The look for ended threads need not find this one.
        if !k.written {
            self.born = self.born.saturating_sub(1);
        }
    }

    /// Returns the number of threads that were first seen since the last call, without those that have ended.
    pub(crate) fn born(&mut self) -> usize {
        std::mem::take(&mut self.born)
    }

    /// Returns whether there are more threads than a genuine target would have.
    pub(crate) fn are_many(&self) -> bool {
        self.known.len() > MANY
    }

    /// Writes the names of new threads, and forgets those that have ended.
    pub(crate) fn write(&mut self, out: &mut Output) {
        self.outer_is_old = true;
        for serial in std::mem::take(&mut self.fresh) {
            self.write_name(serial, out);
        }
        for serial in self.left.drain(..) {
            let known = self.known.remove(&serial);
            self.gone.extend(known.filter(|k| k.written).map(|_| u64::from(serial)));
        }
    }

    /// Writes which threads have ended, if there are many by now. All that was read of their events has to be in front of it.
    pub(crate) fn write_gone(&mut self, out: &mut Output) {
        if self.gone.len() >= GONE {
            let numbers = std::mem::take(&mut self.gone);
            out.put(kind::THREADS_LEFT, &ThreadsLeft { numbers }.encode());
        }
    }

    fn write_name(&mut self, serial: u32, out: &mut Output) {
        let Some((tid, left)) = self.known.get(&serial).map(|k| (k.tid, k.left)) else { return };
        // If the thread has ended, another thread may have its ID now.
        let name = if left { String::new() } else { self.name_of(tid) };
        let Some(k) = self.known.get_mut(&serial) else { return };
        if k.written && (name.is_empty() || name == k.name) {
            return;
        }
        k.written = true;
        k.name.clone_from(&name);
        out.put(kind::THREAD, &Thread { number: serial, tid, name }.encode());
    }

    fn name_of(&mut self, tid: u32) -> String {
        let Some(outer) = self.outer_tid(tid) else { return String::new() };
        let process = self.processes().find(|pid| has_thread(*pid, outer));
        let name = process.and_then(|pid| fs::read(format!("/proc/{pid}/task/{outer}/comm")).ok());
        let name = name.unwrap_or_default();
        String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
    }

    /// Converts a thread ID of the target's PID namespace to prof's.
    fn outer_tid(&mut self, tid: u32) -> Option<Pid> {
        if !self.nested {
            return Some(Pid::from_u32(tid));
        }
        // Read all IDs once per pass over the names, and not again for each thread that has ended.
        if !self.outer.contains_key(&tid) && std::mem::take(&mut self.outer_is_old) {
            self.read_outer();
        }
        self.outer.get(&tid).copied()
    }

    fn read_outer(&mut self) {
        self.outer.clear();
        let pids: Vec<Pid> = self.processes().collect();
        for pid in pids {
            for tid in process::threads(pid).unwrap_or_default() {
                let status = Status::of_thread(pid, tid).unwrap_or_default();
                if let Some((outer, inner)) = ns_pids(&status) {
                    self.outer.insert(inner.as_u32(), outer);
                }
            }
        }
    }

    /// Reads some names again, as threads are named after they have started.
    pub(crate) fn rename(&mut self, out: &mut Output) {
        self.outer_is_old = true;
        let mut serials: Vec<u32> = self.known.keys().copied().collect();
        serials.sort_unstable();
        let from = serials.partition_point(|s| *s < self.rename_at);
        let some: Vec<u32> = serials[from..].iter().take(RENAMES).copied().collect();
        self.rename_at = some.last().filter(|_| some.len() == RENAMES).map_or(0, |s| s + 1);
        for serial in some {
            self.write_name(serial, out);
        }
    }

    /// Forgets threads whose serials are not among `used`, and that have no slot marked as live.
    pub(crate) fn forget(&mut self, shared: &Shared, used: impl Iterator<Item = u32>) {
        let mut keep: HashSet<u32> = used.collect();
        for s in shared.used_slots() {
            if slots::is_live(s.state.load(Relaxed)) {
                keep.insert(s.serial.load(Relaxed));
            }
        }
        let gone = &mut self.gone;
        self.known.retain(|serial, k| {
            let stays = keep.contains(serial);
            if !stays && k.written {
                gone.push(u64::from(*serial));
            }
            stays
        });
    }

    /// Returns the processes that share the target's memory, the target first.
    pub(crate) fn processes(&self) -> impl Iterator<Item = Pid> + '_ {
        std::iter::once(self.sharers.pid()).chain(self.sharers.others().iter().copied())
    }

    /// Finds out which threads are alive.
    pub(crate) fn census(&mut self, shared: &Shared) -> Census {
        self.sharers.look_again();
        if self.nested {
            self.read_outer();
        }
        Census::take(shared, |tid| self.is_alive(tid))
    }

    /// Asks for this very thread: a listing of `/proc/PID/task` may skip some while others end.
    fn is_alive(&self, tid: u32) -> bool {
        let outer =
            if self.nested { self.outer.get(&tid).copied() } else { Some(Pid::from_u32(tid)) };
        outer.is_some_and(|t| self.processes().any(|pid| has_thread(pid, t)))
    }

    /// Returns whether the thread with this ID and serial has ended.
    pub(crate) fn has_ended(&self, census: &Census, tid: u32, serial: u32) -> bool {
        census.has_ended(tid, serial, |tid| self.is_alive(tid))
    }
}

/// Returns whether a process has a thread with this ID. This is much faster than a look into `/proc`.
fn has_thread(pid: Pid, tid: Pid) -> bool {
    // SAFETY: the call takes no pointers, and signal 0 only checks whether the thread exists.
    let r = unsafe { libc::syscall(libc::SYS_tgkill, pid.as_raw(), tid.as_raw(), 0) };
    r == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Returns the id of a thread in prof's pid namespace and in the innermost one.
fn ns_pids(status: &Status) -> Option<(Pid, Pid)> {
    let ids = status.pids();
    Some((*ids.first()?, *ids.last()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::drain::Drain;
    use crate::epochs::Epochs;
    use crate::output::create_recording;
    use crate::tree::Tree;
    use prof_trace::chunk::{Next, next};
    use prof_trace::event::Codec;
    use prof_trace::ring;
    use prof_trace::shared::clock::COUNTER;
    use prof_trace::ticks::Ticks;
    use std::sync::atomic::Ordering::{Acquire, Release};

    /// Writes the events of one thread into its segment.
    struct Writer {
        index: usize,
        codec: Codec,
        at: usize,
    }

    impl Writer {
        fn open(shared: &Shared, slot: u32, serial: u32) -> Self {
            shared.slot(slot as usize).expect("a slot").serial.store(serial, Release);
            let index = ring::take(shared, 0).expect("a segment");
            ring::open(shared, index, slot, serial, serial, 1);
            Self { index, codec: Codec::default(), at: 0 }
        }

        /// Opens the thread's next segment.
        fn next(&self, shared: &Shared, slot: u32, serial: u32) -> Self {
            let index = ring::take(shared, 0).expect("a segment");
            let seq = shared.head(self.index).expect("a head").seq.load(Acquire) + 1;
            ring::open(shared, index, slot, serial, serial, seq);
            Self { index, codec: Codec::default(), at: 0 }
        }

        fn put(&mut self, shared: &Shared, time: Ticks) {
            let data = shared.data(self.index).expect("data");
            // SAFETY: the segment has room for the few events of this test, and only this writer has taken it.
            self.at +=
                unsafe { self.codec.put_alloc(data.add(self.at), time, 0x1000, 8.into(), 0) };
            ring::commit(shared.head(self.index).expect("a head"), self.at);
        }
    }

    #[test]
    fn a_segment_is_free_at_once_when_its_threads_slot_has_another_owner() {
        let shared = crate::ring_copy::empty_with(8 << 20);
        ring::fill(&shared);
        let all = ring::free_count(&shared);
        let path = std::env::temp_dir().join(format!("prof-left-slot-{}", std::process::id()));
        let mut out = Output::new(create_recording(&path).expect("a file")).expect("its size");
        let (mut drain, mut threads) = (Drain::new(&shared), Threads::new(Pid::this()));
        let (mut tree, mut epochs) = (Tree::new(), Epochs::new(Clock::new(COUNTER, 1 << 30)));
        let mut pass = |drain: &mut Drain, threads: &mut Threads| {
            let describe = |t: &mut Threads, _: &mut Tree, out: &mut Output| t.write(out);
            drain.pass(&shared, threads, &mut tree, &mut out, &mut epochs, describe);
            threads.write(&mut out);
            drain.flush(&shared, &mut out);
            (drain.events, drain.open, ring::free_count(&shared))
        };
        let (mut first, mut other) = (Writer::open(&shared, 3, 1), Writer::open(&shared, 4, 2));
        first.put(&shared, Ticks(10));
        other.put(&shared, Ticks(11));
        assert_eq!(pass(&mut drain, &mut threads), (2, 2, all - 2), "both may go on");
        assert_eq!(threads.born(), 2);
        first.put(&shared, Ticks(12));
        // The next owners of its slot end as well, before the collector looks.
        for serial in 3..80 {
            Writer::open(&shared, 3, serial).put(&shared, Ticks(u64::from(serial) * 10));
        }
        let seen = pass(&mut drain, &mut threads);
        assert_eq!(seen, (2 + 1 + 77, 2, all - 2), "those of the last owners alone are held");
        assert_eq!(threads.born(), 1, "the others need not be looked for");
        assert_eq!(drain.ended, 77);
        threads.write_gone(&mut out);
        threads.write_gone(&mut out);
        out.flush();
        drop(out);
        let bytes = std::fs::read(&path).expect("the recording");
        std::fs::remove_file(&path).expect("remove");
        let (mut at, mut numbers, mut left) = (0, Vec::new(), Vec::new());
        while let Next::Chunk(k, payload, n) = next(&bytes[at..]) {
            at += n;
            if k == kind::THREAD {
                numbers.push(Thread::decode(payload).expect("a thread").number);
            }
            if k == kind::THREADS_LEFT {
                left.push((at, ThreadsLeft::decode(payload).expect("threads").numbers));
            }
        }
        assert_eq!(numbers, (1..80).collect::<Vec<_>>(), "each is named, once");
        let [(place, left)] = &mut left[..] else { panic!("{left:?}") };
        left.sort_unstable();
        assert_eq!((*place, &left[..]), (at, &(1..=1).chain(3..79).collect::<Vec<u64>>()[..]));
    }

    #[test]
    fn the_last_segment_of_an_ended_thread_waits_for_no_further_pass() {
        let shared = crate::ring_copy::empty_with(8 << 20);
        ring::fill(&shared);
        let path = std::env::temp_dir().join(format!("prof-last-{}", std::process::id()));
        let mut out = Output::new(create_recording(&path).expect("a file")).expect("its size");
        let (mut drain, mut threads) = (Drain::new(&shared), Threads::new(Pid::this()));
        let (mut tree, mut epochs) = (Tree::new(), Epochs::new(Clock::new(COUNTER, 1 << 30)));
        // So many segments are read first that some are given back in the middle of the pass.
        let mut busy = Writer::open(&shared, 4, 1);
        while ring::free_count(&shared) > 64 {
            ring::close(&shared, busy.index);
            busy = busy.next(&shared, 4, 1);
        }
        let mut first = Writer::open(&shared, 3, 2);
        first.put(&shared, Ticks(10));
        let mut late = Some(first);
        drain.pass(&shared, &mut threads, &mut tree, &mut out, &mut epochs, |_, _, _| {
            // The pass has looked at the segments. Now the thread goes on to another segment and ends.
            let Some(first) = late.take() else { return };
            ring::close(&shared, first.index);
            first.next(&shared, 3, 2).put(&shared, Ticks(20));
            Writer::open(&shared, 3, 3).put(&shared, Ticks(30));
        });
        drain.flush(&shared, &mut out);
        assert!(late.is_none(), "nothing was given back within the pass");
        assert_eq!(drain.events, 1);
        // The order of events is final after this pass.
        drain.pass(&shared, &mut threads, &mut tree, &mut out, &mut epochs, |_, _, _| {});
        assert_eq!(drain.events, 3);
        std::fs::remove_file(&path).expect("remove");
    }

    #[test]
    fn namespaces_are_told_apart() {
        assert_eq!(
            ns_pids(&Status::parse(b"Name:\tx\nNSpid:\t12\n")),
            Some((Pid::from_raw(12), Pid::from_raw(12)))
        );
        assert_eq!(
            ns_pids(&Status::parse(b"NSpid:\t120\t7\t1\n")),
            Some((Pid::from_raw(120), Pid::from_raw(1)))
        );
        assert_eq!(ns_pids(&Status::parse(b"Name:\tx\n")), None);
    }

    #[test]
    fn a_thread_is_there_until_it_has_ended() {
        let (pid, init) = (Pid::this(), Pid::from_raw(1));
        let (told, tid) = std::sync::mpsc::channel();
        // SAFETY: the call takes no arguments.
        let own = || Pid::from_raw(unsafe { libc::gettid() });
        let thread = std::thread::spawn(move || told.send(own()).expect("a reader"));
        let ended = tid.recv().expect("its id");
        thread.join().expect("thread");
        // The kernel wakes the joining thread before it removes the ended one.
        while has_thread(pid, ended) {
            std::thread::yield_now();
        }
        assert!(has_thread(pid, own()) && has_thread(init, init));
        assert!(!has_thread(pid, init), "of another process");
    }
}
