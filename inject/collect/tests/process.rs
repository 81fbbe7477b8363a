//! The collector and another process: the end of the process, its exec, and a collector that died.
//!
//! The targets are forked from the test and write to the ring; they do not allocate.

mod common;
use common::*;
use prof_collect::{Collector, drain_orphan};
use prof_os::Pid;
use prof_trace::pack::Compress;
use prof_trace::shared::Shared;
use prof_trace::ticks::Ticks;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Number of events after which children wait, for as long as [`gate`] is closed.
const PAUSE_AT: u64 = 60_000;

/// A child inherits all rings, and is found by its ring, so only one may exist at a time.
static ONE_RING: Mutex<()> = Mutex::new(());

/// Keeps the ring from children that are forked later.
fn retire(shared: Shared<'static>) {
    // SAFETY: the advice only affects later children, not the memory of this process.
    let r = unsafe {
        libc::madvise(shared.base().cast(), shared.geometry().size(), libc::MADV_DONTFORK)
    };
    assert_eq!(r, 0);
}

/// Returns a word that children share with this process, which alone writes it: a child waits at [`PAUSE_AT`] while it
/// is not 0.
fn gate() -> &'static AtomicU32 {
    static GATE: OnceLock<usize> = OnceLock::new();
    let at = GATE.get_or_init(|| {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses the address of the new page, which is never unmapped.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, kind, -1, 0) };
        assert_ne!(p, libc::MAP_FAILED);
        p as usize
    });
    // SAFETY: the page is never unmapped, is aligned, and is only used as an atomic.
    unsafe { &*(*at as *const AtomicU32) }
}

/// Forks a child that writes up to `n` events as fast as it can, then calls `then`, then sleeps.
fn child(shared: Shared<'static>, n: u64, node: u32, then: fn()) -> Pid {
    // Map it before there is a child.
    let gate = gate();
    // SAFETY: the child uses only system calls and atomics.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let mut w = Writer::new(shared, 0);
        for i in 0..n {
            w.put(&event(w.serial, i, node));
            while i == PAUSE_AT && gate.load(Acquire) != 0 {
                // SAFETY: `usleep` takes no pointers.
                unsafe { libc::usleep(1000) };
            }
        }
        then();
        // SAFETY: the calls take no pointers. The child ends when it is killed, or by itself after a minute.
        unsafe {
            libc::sleep(60);
            libc::_exit(1)
        }
    }
    Pid::from_raw(pid)
}

fn kill(pid: Pid) {
    // SAFETY: the call takes no pointers, and the child has not been waited for, so its PID is not reused.
    assert_eq!(unsafe { libc::kill(pid.as_raw(), libc::SIGKILL) }, 0);
}

fn reap(pid: Pid) {
    // SAFETY: the status pointer may be null, and the child has not been waited for yet.
    assert_eq!(unsafe { libc::waitpid(pid.as_raw(), std::ptr::null_mut(), 0) }, pid.as_raw());
}

fn written(shared: Shared<'static>) -> u64 {
    shared.slot(0).expect("slot").events.load(Acquire)
}

fn wait_for(mut what: impl FnMut() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn check(path: &Path, n: u64) -> Recording {
    let r = read(path);
    let events = &r.events[&1];
    for (i, e) in events.iter().enumerate() {
        assert!(is_event(e, 1, i as u64), "event {i}: {e:?}");
    }
    // The counter is stored after the event is published, so there may be one event more than counted.
    assert!((n..=n + 1).contains(&(events.len() as u64)), "{} of {n}", events.len());
    r
}

#[test]
fn all_that_a_killed_process_has_written_is_there() {
    let _one = ONE_RING.lock().unwrap_or_else(PoisonError::into_inner);
    for round in 0..10 {
        let shared = new_ring(1 << 20);
        let node = stack(&shared, 0x1000, 5);
        let pid = child(shared, u64::MAX, node, || ());
        let path = temp(&format!("kill-{round}"));
        let mut c = Collector::new(pid, shared, start_of(&path, pid)).expect("collector");
        c.set_compress(Compress::ALL[round as usize % 3].0);
        let never = AtomicBool::new(false);
        let ended = std::thread::scope(|s| {
            let h = s.spawn(|| c.run(&never));
            wait_for(|| written(shared) > 50_000 + round * 7777);
            kill(pid);
            h.join().expect("collector")
        });
        assert_eq!(ended.reason, "killed by signal 9");
        reap(pid);
        retire(shared);
        check(&path, written(shared));
        std::fs::remove_file(path).expect("remove");
    }
}

#[test]
fn an_exec_ends_the_recording() {
    let _one = ONE_RING.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = new_ring(1 << 20);
    let pid = child(shared, 1000, 0, || {
        let args = [c"sleep".as_ptr(), c"60".as_ptr(), std::ptr::null()];
        // SAFETY: the path is a valid C string, and the arguments are C strings in an array that ends with null.
        unsafe { libc::execv(c"/bin/sleep".as_ptr(), args.as_ptr()) };
    });
    let path = temp("exec");
    wait_for(|| written(shared) == 1000);
    let collector = Collector::new(pid, shared, start_of(&path, pid));
    let ended = collector.expect("collector").run(&AtomicBool::new(false));
    kill(pid);
    reap(pid);
    retire(shared);
    // The collector may have opened the mappings of either program.
    assert!(ended.reason == "exec" || ended.reason == "detached", "{}", ended.reason);
    assert_eq!(ended.events, 1000);
    std::fs::remove_file(path).expect("remove");
}

#[test]
fn the_ring_of_a_dead_collector_is_read_once() {
    let _one = ONE_RING.lock().unwrap_or_else(PoisonError::into_inner);
    for round in 0..8u64 {
        let shared = new_ring(1 << 20);
        let nodes = stack(&shared, 0x1000, 30);
        let flag = Box::leak(Box::new([1u32, 0]));
        // SAFETY: the ring is new, so nothing else refers to its control page yet.
        unsafe { shared.control_mut() }.flag_addr.store(flag.as_ptr() as u64, Relaxed);
        let n = 90_000 + round * 333;
        gate().store(1, Relaxed);
        let pid = child(shared, n, nodes, || ());
        let path = temp(&format!("orphan-{round}"));
        let file = start_of(&path, pid);
        let fd = file.try_clone().expect("clone");
        let mut c = Collector::new(pid, shared, file).expect("collector");
        c.set_compress(Compress::ALL[round as usize % 3].0);
        wait_for(|| {
            c.pass(false);
            written(shared) >= PAUSE_AT
        });
        // The collector dies without a final record, within a chunk; the rest of the events stays in the ring.
        drop(c);
        gate().store(0, Relaxed);
        wait_for(|| written(shared) == n);
        let len = fd.metadata().expect("len").len();
        // SAFETY: the call takes no pointers.
        unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_SET) };
        if round % 2 == 1 {
            fd.set_len(len - round).expect("cut");
        }
        let before = read_whole(&path);
        let d = drain_orphan(pid, &path).expect("drained");
        assert!(d.events > 0);
        let r = if round % 2 == 0 { check(&path, n) } else { read(&path) };
        let got = r.events[&1].len() as u64;
        assert_eq!(got, before + d.events);
        // The cut-off events are lost for good, but no others, and no event is recorded twice.
        let mut times: Vec<Ticks> =
            r.events[&1].iter().map(prof_trace::event::Event::time).collect();
        times.dedup();
        assert!(times.is_sorted());
        assert!(r.depths(1).all(|d| d == 30));
        assert!(r.end.expect("end").reason.starts_with("stopped"));
        let again = drain_orphan(pid, &path).expect("nothing to do");
        assert_eq!((again.events, again.bytes), (0, d.bytes));
        kill(pid);
        reap(pid);
        retire(shared);
        std::fs::remove_file(path).expect("remove");
    }
}

#[test]
fn calls_that_a_dead_collector_did_not_write_are_written_later() {
    use prof_trace::call::{CallKind, RawCall};
    use prof_trace::chunk::{self, Next};
    let _one = ONE_RING.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = new_ring(1 << 20);
    let node = stack(&shared, 0x1000, 5);
    let flag = Box::leak(Box::new([1u32, 0]));
    shared.control().flag_addr.store(flag.as_ptr() as u64, Relaxed);
    // SAFETY: the child only sleeps until it is killed.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the calls take no pointers.
        unsafe {
            libc::sleep(60);
            libc::_exit(1)
        }
    }
    let path = temp("calls-left");
    let pid = Pid::from_raw(pid);
    let file = start_of(&path, pid);
    let mut c = Collector::new(pid, shared, file).expect("collector");
    let mut w = Writer::new(shared, 0);
    let write = |w: &mut Writer, from: u64| {
        for i in from..from + 10 {
            w.put(&event(w.serial, i, node));
            let time = now();
            let call = RawCall {
                kind: CallKind::Mmap,
                time: Ticks(time),
                addr: i << 12,
                len: 4096,
                ..RawCall::default()
            };
            w.put_call(&RawCall { node, ..call });
        }
    };
    write(&mut w, 0);
    c.pass(true);
    write(&mut w, 10);
    w.put(&event(w.serial, 20, node));
    c.pass(true);
    drop(c);
    // The collector was killed between the events of its last pass and the calls.
    let bytes = std::fs::read(&path).expect("recording");
    let (mut at, mut last) = (chunk::FILE_HEADER, 0..0);
    while let Next::Chunk(k, _, len) = chunk::next(&bytes[at..]) {
        if k == prof_trace::records::kind::CALLS {
            last = at..at + len;
        }
        at += len;
    }
    assert!(!last.is_empty());
    let mut cut = bytes[..last.start].to_vec();
    cut.extend(&bytes[last.end..]);
    std::fs::write(&path, cut).expect("written");
    let before = read(&path);
    assert_eq!((before.calls.len(), before.events[&1].len()), (10, 21));
    let d = drain_orphan(pid, &path).expect("drained");
    let r = read(&path);
    let calls: Vec<u64> = r.calls.iter().map(|(_, call)| call.addr >> 12).collect();
    assert_eq!(calls, (0..20).collect::<Vec<u64>>());
    assert_eq!((r.events[&1].len(), d.events), (21, 10));
    assert!(r.calls.is_sorted_by_key(|(_, call)| call.end));
    assert!(r.calls.iter().all(|(_, call)| r.nodes.contains_key(&call.node)));
    kill(pid);
    reap(pid);
    retire(shared);
    std::fs::remove_file(path).expect("remove");
}

/// Returns the number of events up to the last whole chunk.
fn read_whole(path: &Path) -> u64 {
    use prof_trace::chunk::{self, Next};
    let bytes = std::fs::read(path).expect("recording");
    let (mut at, mut n) = (chunk::FILE_HEADER, 0);
    while let Next::Chunk(k, payload, len) = chunk::next(&bytes[at..]) {
        at += len;
        if k == prof_trace::records::kind::EVENTS {
            let e = prof_trace::records::Events::decode(payload).expect("events");
            n += u64::from(e.count);
        }
        if k == prof_trace::records::kind::PACKED {
            n += prof_trace::pack::Packed::read(payload).expect("packed").events() as u64;
        }
    }
    n
}

#[test]
fn without_a_disk_recording_is_switched_off_and_draining_goes_on() {
    let _one = ONE_RING.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = new_ring(0);
    let flag = Box::leak(Box::new(std::sync::atomic::AtomicU32::new(1)));
    // SAFETY: the ring is new, so nothing else refers to its control page yet.
    unsafe { shared.control_mut() }.flag_addr.store(std::ptr::from_ref(flag) as u64, Relaxed);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let mut c = Collector::new(Pid::this(), shared, full).expect("collector");
    let mut w = Writer::new(shared, 0);
    for i in 0..200_000 {
        w.put(&event(w.serial, i, 0));
        if i % 100 == 0 {
            c.pass(false);
        }
    }
    assert!(c.has_failed());
    assert_eq!(flag.load(Relaxed), 0);
    let ended = c.finish("detached");
    retire(shared);
    assert!(ended.failure.is_some() && ended.reason.starts_with("stopped: "));
    assert_eq!((ended.events, ended.bytes), (0, 0));
}
