//! Fuzzes the readers of the memory that a target shares with prof.

use super::{Input, memory_file, recordings};
use prof_collect::{Collector, Peek, write_prologue};
use prof_inject::Recorded;
use prof_os::Pid;
use prof_trace::chunk::{self, FILE_HEADER, Next};
use prof_trace::records::{Hooks, Target};
use prof_trace::shared::{
    Control, Geometry, LAYOUT, MAGIC, Module, SegmentHead, Shared, Slot, clock, state,
};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock};

/// A child process that has a ring mapped and does nothing: the target.
struct Fixture {
    ring: File,
    shared: Shared<'static>,
    pid: Pid,
    /// Address of the ring in the child.
    at: u64,
    /// Address of 4 writable bytes in the child, for the flag.
    flag: u64,
}

fn fixture() -> &'static Mutex<Fixture> {
    static ONE: OnceLock<Mutex<Fixture>> = OnceLock::new();
    ONE.get_or_init(|| {
        let (ring, _) = memory_file(c"prof-ring");
        let size = Geometry::for_ring(0).size();
        ring.set_len(size as u64).expect("size");
        head(&ring);
        let fd = ring.try_clone().expect("descriptor");
        let shared = prof_collect::map_ring(fd.into()).expect("ring");
        // SAFETY: the kernel chooses the address of the new page, so no existing memory is affected.
        let flag = unsafe {
            let (rw, how) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), 4096, rw, how, -1, 0)
        };
        // SAFETY: the child makes only system calls.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: the calls take no pointers.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
        }
        assert!(pid > 0);
        let at = shared.base() as u64;
        Mutex::new(Fixture { ring, shared, pid: Pid::from_raw(pid), at, flag: flag as u64 })
    })
}

/// Writes the fields that readers check before they accept a ring.
fn head(ring: &File) {
    let mut head = MAGIC.to_ne_bytes().to_vec();
    head.extend(LAYOUT.to_ne_bytes());
    head.extend((Geometry::for_ring(0).segments() as u32).to_ne_bytes());
    ring.write_all_at(&head, 0).expect("head");
}

impl Fixture {
    /// Clears the ring and fills it in as prof does.
    fn reset(&self) {
        let size = self.shared.geometry().size() as libc::off_t;
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the call takes no pointers.
        let r = unsafe { libc::fallocate(self.ring.as_raw_fd(), how, 0, size) };
        assert_eq!(r, 0);
        head(&self.ring);
        // SAFETY: no collector runs, and the child does not access the ring.
        let c = unsafe { self.shared.control_mut() };
        c.clock.store(clock::COUNTER, Relaxed);
        c.ticks_per_sec.store(2_000_000_000, Relaxed);
        c.ring_addr.store(self.at, Relaxed);
        c.ring_len.store(size as u64, Relaxed);
        c.pid = self.pid.as_u32();
        c.begin(Geometry::for_ring(0).segments(), "fuzz", b"/fuzz");
        c.flag_addr.store(self.flag, Relaxed);
        c.states_count = 1024;
        c.state = state::ATTACHED.into();
        prof_trace::ring::fill(&self.shared);
    }

    /// Writes bytes of the input to places that the input chooses, as a hostile target does.
    fn scribble(&self, input: &mut Input<'_>) {
        let s = &self.shared;
        let offset = |p: *const u8| (p as usize).wrapping_sub(s.base() as usize);
        let index = input.int(1);
        let (i, len) = (index as usize, input.int(1) as usize);
        fn at<T>(entry: Option<&T>) -> Option<*const u8> {
            entry.map(|e| std::ptr::from_ref(e).cast())
        }
        let place = match input.int(1) % 10 {
            0 => Some(s.base().cast_const().wrapping_add(input.int(2) as usize)),
            1 => at::<SegmentHead>(s.head(i % 64)),
            2 => s.data(i % 64).map(|d| d.cast_const().wrapping_add(input.int(2) as usize)),
            3 => at::<Slot>(s.slot(i)),
            4 => at::<Module>(s.module(i % 8)),
            5 => at(s.stack(input.int(2) as usize)),
            6 => at(s.pc(input.int(3) as usize)),
            7 => at(s.free_word(0)),
            8 => Some(s.base().cast_const().wrapping_add(Shared::function_offset(i % 100))),
            _ => Some(s.base().cast_const().wrapping_add(input.int(4) as usize)),
        };
        let Some(at) = place.map(offset) else { return };
        let bytes = input.bytes(len);
        let end = s.geometry().size().min(at + bytes.len());
        if at < end {
            self.ring.write_all_at(&bytes[..end - at], at as u64).expect("write");
        }
    }
}

/// Runs a collector over a ring that changes between its passes. The result must be a recording that is whole.
pub fn ring(bytes: &[u8]) {
    let Ok(f) = fixture().lock() else { return };
    f.reset();
    let (mut file, path) = memory_file(c"recording");
    let target = Target { arch: "x86_64".into(), ..Target::default() };
    write_prologue(&mut file, &target, &Hooks::default()).expect("prologue");
    let out = file.try_clone().expect("descriptor");
    let Ok(mut collector) = Collector::new(f.pid, f.shared, out) else { return };
    let mut input = Input(bytes);
    let mut steps = 0;
    while !input.is_empty() && steps < 64 {
        steps += 1;
        match input.int(1) % 8 {
            0 => {
                collector.pass(false);
            }
            1 => {
                collector.every_second();
            }
            _ => f.scribble(&mut input),
        }
    }
    let ended = collector.finish("fuzzed");
    drop(collector);
    assert!(ended.failure.is_none());
    whole(&file);
    assert_eq!(recordings::report(&path), Some(ended.events), "events written and read");
}

/// Checks that the file consists of whole chunks.
fn whole(file: &File) {
    let mut bytes = vec![0; file.metadata().expect("stat").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    let mut at = FILE_HEADER;
    while let Next::Chunk(_, _, n) = chunk::next(&bytes[at..]) {
        at += n;
    }
    assert_eq!(at, bytes.len(), "the file ends with a whole chunk");
}

/// Runs the readers of a recorded process: status, detach, and the next attach, which takes over what a dead collector
/// has left.
pub fn control(bytes: &[u8]) {
    let Ok(f) = fixture().lock() else { return };
    f.reset();
    let mut input = Input(bytes);
    let drain = input.int(1) % 2 == 1;
    while !input.is_empty() {
        f.scribble(&mut input);
    }
    // SAFETY: nothing else accesses the control page.
    let c = unsafe { f.shared.control_mut() };
    // The flag is written to at the address that the target names, in its own memory. Set a valid one, so that this
    // child survives.
    c.flag_addr.store(f.flag, Relaxed);
    if let Ok(r) = Recorded::open(f.pid) {
        let _ = (r.path(), r.collector_lives(), r.is_on(), r.now(), r.geometry());
        assert!(r.functions().len() <= prof_trace::shared::FUNCTIONS);
        assert!(r.slots().len() <= prof_trace::shared::SLOTS);
        let _ = r.switch(true);
        let _ = r.switch(false);
    }
    if let Ok(Some(p)) = Peek::of(f.pid) {
        let _ = (p.is_attached(), p.path.display().to_string());
    }
    if drain {
        let (mut file, path) = memory_file(c"recording");
        write_prologue(&mut file, &Target::default(), &Hooks::default()).expect("prologue");
        let path =
            format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).parse().unwrap_or(path);
        if prof_collect::drain_orphan(f.pid, &path).is_ok() {
            whole(&file);
        }
    }
}

const _: () = assert!(size_of::<Control>() < 1 << 16);
