//! Reads the target's memory as the kernel counts it, mapping by mapping.

use crate::clock::Clock;
use crate::heaps::{Candidate, apart};
use crate::maps::{MAX_TEXT as MAX_MAPS, Mapping, parse_line};
use crate::pages::{Counted, Pages};
use crate::stacks::{pointers, stacks};
use crate::target::proc_dir;
use prof_trace::records::{Memory, map_kind};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Greatest length of a text that is read.
const MAX_TEXT: u64 = 256 << 20;
/// Greatest length of a line that is parsed.
const MAX_LINE: usize = 8 << 10;
/// Greatest number of heaps that are listed.
const MAX_HEAPS: usize = 1 << 16;
/// Usual length of a thread's stack.
const STACK: u64 = 8 << 20;
/// Time between two looks: at first, and at most.
const GAP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Time that the last look may take, for which a detach waits.
const LAST: Duration = Duration::from_secs(2);
/// A look may take one of this many parts of the time.
const PART: u32 = 20;
/// `smaps` is read only if the lock of the target's mappings would be held for at most this long, in nanoseconds, even
/// if all memory were in one mapping; and the cost of a resident page and of a page table entry there.
const HOLD_NS: u64 = 3_000_000;
const PAGE_NS: u64 = 170;
const ENTRY_NS: u64 = 8;
/// Greatest lag of the kernel's count of resident memory, in bytes.
const LAG: u64 = 16 << 20;

/// `/proc/PID/smaps`, `statm` and others, held open as in [`Maps`](crate::maps::Maps). For `smaps` the kernel walks the
/// page tables and lets no thread map memory meanwhile, so it is read only for a small process. For others the page
/// tables are read in small steps ([`Pages`]). Both are done rarely, on a separate thread, while the collector drains
/// the ring.
#[derive(Debug)]
pub struct Smaps {
    files: Option<Arc<Files>>,
    next: Instant,
    gap: Duration,
    looking: Option<JoinHandle<(Option<Memory>, Duration)>>,
}

#[derive(Debug)]
struct Files {
    smaps: File,
    statm: File,
    status: File,
    maps: File,
    pages: Option<Pages>,
    mem: Option<File>,
    tasks: PathBuf,
}

/// Facts about the target's memory that are known in advance.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Address ranges of prof's own mappings.
    pub ours: Vec<(u64, u64)>,
    /// Thread pointers: most thread libraries keep a thread's descriptor at the end of its stack.
    pub threads: Vec<u64>,
    /// Allocators other than glibc's are recorded.
    pub others: bool,
}

/// Sizes of a mapping, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    rss: u64,
    pss: u64,
    anonymous: u64,
    swap: u64,
}

impl Smaps {
    /// Opens the files of process `pid`.
    pub fn open(pid: u32) -> Self {
        let open = |name: &str| File::open(format!("{}/{name}", proc_dir(pid))).ok();
        let files = || {
            let (smaps, statm) = (open("smaps")?, open("statm")?);
            let (status, maps) = (open("status")?, open("maps")?);
            let (pages, mem) = (open("pagemap").map(Pages::new), open("mem"));
            let tasks = PathBuf::from(format!("/proc/{pid}/task"));
            Some(Arc::new(Files { smaps, statm, status, maps, pages, mem, tasks }))
        };
        Self { files: files(), next: Instant::now(), gap: GAP.0, looking: None }
    }

    /// Starts a look if one is due; returns the result of the last one, if it is new.
    pub fn poll(&mut self, known: impl FnOnce() -> Known, clock: Clock) -> Option<Memory> {
        let done = self.looking.take_if(|l| l.is_finished());
        let done = done.and_then(|l| l.join().ok());
        let seen = done.and_then(|(seen, took)| {
            self.next = self.next.max(Instant::now() + took * PART);
            seen
        });
        if self.looking.is_none() && Instant::now() >= self.next {
            let files = self.files.clone()?;
            let known = known();
            let began = Instant::now();
            // A look that takes long has not finished when the next is due.
            self.next = began + self.gap;
            self.gap = (self.gap * 2).min(GAP.1);
            let look = move || (files.look(&known, clock), began.elapsed());
            self.looking = std::thread::Builder::new().name("prof-smaps".into()).spawn(look).ok();
        }
        seen
    }

    /// Waits for the running look, but no longer than `most`.
    pub fn wait(&self, most: Duration) {
        let deadline = Instant::now() + most;
        let under_way = || self.looking.as_ref().is_some_and(|l| !l.is_finished());
        while under_way() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Looks now, on this thread, as the last look. One that is running is given up.
    pub fn now(&mut self, known: &Known, clock: Clock) -> Option<Memory> {
        let files = self.files.clone()?;
        if let Some(l) = self.looking.take() {
            files.end_after(Duration::ZERO);
            let _ = l.join();
        }
        files.end_after(LAST);
        files.look(known, clock)
    }
}

impl Files {
    fn end_after(&self, time: Duration) {
        if let Some(pages) = &self.pages {
            pages.end_after(time);
        }
    }

    fn look(&self, known: &Known, clock: Clock) -> Option<Memory> {
        let before = self.rss();
        let stacks = self.mem.as_ref().map(|m| stacks(m, &known.threads)).unwrap_or_default();
        let mut at = pointers(&self.tasks);
        at.sort_unstable();
        let sum = Sum {
            ours: &known.ours,
            stacks: &stacks,
            pointers: &at,
            pages: self.pages.as_ref(),
            ..Sum::default()
        };
        let sum = match &self.pages {
            Some(pages) if !self.is_small(pages.page()) => self.ask(pages, sum)?,
            _ => {
                (&self.smaps).seek(SeekFrom::Start(0)).ok()?;
                sum_up(BufReader::new((&self.smaps).take(MAX_TEXT)), sum)?
            }
        };
        let Sum { all: mut memory, candidates, writable, .. } = sum;
        let (mem, pages) = (self.mem.as_ref(), self.pages.as_ref());
        apart(&candidates, mem, pages, &writable, known.others, &mut memory);
        memory.ticks = clock.now();
        // Take the reading that is closer to the text: a detach may have unmapped the ring since, or during the read.
        let mapped =
            memory.maps.as_chunks::<3>().0.iter().map(|k| k[2]).fold(0, u64::saturating_add);
        let after = self.rss();
        if after == 0 || pages.is_some_and(Pages::is_over) {
            return None; // the process ended during the look, which may have missed any of its mappings
        }
        memory.rss =
            [before, after].into_iter().min_by_key(|n| n.abs_diff(mapped)).unwrap_or(after);
        Some(memory)
    }

    /// Returns whether `smaps` can be read without blocking the target.
    fn is_small(&self, page: u64) -> bool {
        let mut b = [0u8; 4096];
        let n = self.status.read_at(&mut b, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&b[..n]);
        let field = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kb| kb.saturating_mul(1024))
        };
        let Some((rss, swap)) = field("VmRSS").zip(field("VmSwap")) else { return false };
        let entries = field("VmPTE").unwrap_or(u64::MAX) / size_of::<usize>() as u64;
        let pages = rss.saturating_add(swap) / page;
        pages.saturating_mul(PAGE_NS).saturating_add(entries.saturating_mul(ENTRY_NS)) <= HOLD_NS
    }

    /// Counts as [`sum_up`] does, without proportional sizes, but from the page tables in small steps.
    fn ask<'a>(&self, pages: &Pages, mut sum: Sum<'a>) -> Option<Sum<'a>> {
        let mut text = Vec::new();
        (&self.maps).seek(SeekFrom::Start(0)).ok()?;
        (&self.maps).take(MAX_MAPS).read_to_end(&mut text).ok()?;
        let text = String::from_utf8_lossy(&text);
        let all = text.lines().filter_map(parse_line).map(|m| {
            let files = m.inode != 0 || m.perms[3] != b'p';
            let counted = match has_huge_pages(&m) {
                true => Counted::default(),
                false => pages.count_as(m.start, m.end, files),
            };
            (m, counted)
        });
        let mut all: Vec<(Mapping, Counted)> = all.collect();
        without_zeroes(&mut all, self.rss());
        for (m, c) in all {
            sum.begin(m.clone());
            // Shared mappings of devices have pages that are not memory.
            let rss = if m.perms[3] == b's' { c.file } else { c.resident };
            let anonymous = rss.saturating_sub(c.file);
            sum.sizes = Sizes { rss, pss: 0, anonymous, swap: c.swap };
        }
        sum.end();
        sum.any.then_some(sum)
    }

    /// Returns the resident bytes.
    fn rss(&self) -> u64 {
        let mut b = [0u8; 128];
        let n = self.statm.read_at(&mut b, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&b[..n]);
        let pages = text.split(' ').nth(1).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
        // SAFETY: `sysconf` takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
        pages.saturating_mul(page)
    }
}

/// Returns whether a mapping consists of huge pages from their pool, which the kernel does not count as resident.
fn has_huge_pages(m: &Mapping) -> bool {
    ["/anon_hugepage", "/dev/hugepages/"].iter().any(|p| m.path.starts_with(p))
}

/// Subtracts the zero page where the kernel does not tell it from others: bytes in excess of `rss`, in which it is not
/// counted.
fn without_zeroes(all: &mut [(Mapping, Counted)], rss: u64) {
    let sum =
        |part: fn(&Counted) -> u64| all.iter().fold(0u64, |s, a| s.saturating_add(part(&a.1)));
    let (counted, doubtful) = (sum(|c| c.resident), sum(|c| c.doubtful));
    let more = counted.saturating_sub(rss).min(doubtful);
    if more <= LAG {
        return;
    }
    for (_, c) in all {
        let part = u128::from(c.doubtful) * u128::from(more) / u128::from(doubtful);
        c.resident -= part as u64;
    }
}

/// Sums up the mappings of a text; `None` if it has none.
fn sum_up<'a>(mut text: impl BufRead, mut sum: Sum<'a>) -> Option<Sum<'a>> {
    let mut line = Vec::new();
    while text.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        sum.line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    sum.end();
    sum.any.then_some(sum)
}

#[derive(Default)]
struct Sum<'a> {
    ours: &'a [(u64, u64)],
    /// Stacks of threads, from libc's descriptors; ascending.
    stacks: &'a [(u64, u64)],
    /// Stack pointers; ascending.
    pointers: &'a [u64],
    pages: Option<&'a Pages>,
    all: Memory,
    any: bool,
    /// The mapping that is being read.
    now: Option<Mapping>,
    /// The mapping follows the writable data of the program's file.
    bss: bool,
    sizes: Sizes,
    /// Mappings that allocators may use.
    candidates: Vec<Candidate>,
    /// The first mapping, and writable mappings of files.
    writable: Vec<Mapping>,
}

impl Sum<'_> {
    fn line(&mut self, line: &str) {
        let line = line.trim_end_matches('\n');
        if let Some(m) = parse_line(line) {
            self.begin(m);
            return;
        }
        let Some((name, rest)) = line.split_once(':') else { return };
        let kilobytes = rest.split_whitespace().next().and_then(|w| w.parse::<u64>().ok());
        let bytes = kilobytes.unwrap_or(0).saturating_mul(1024);
        match name {
            "Rss" => self.sizes.rss = bytes,
            "Pss" => self.sizes.pss = bytes,
            "Anonymous" => self.sizes.anonymous = bytes,
            "Swap" => self.sizes.swap = bytes,
            _ => {}
        }
    }

    /// Begins another mapping.
    fn begin(&mut self, m: Mapping) {
        // The program's zero-initialised variables follow its data segment.
        let bss = self.now.as_ref().is_some_and(|b| {
            let program = self.writable.first().unwrap_or(b);
            b.end == m.start && b.perms[1] == b'w' && b.inode != 0 && b.inode == program.inode
        });
        self.end();
        self.now = Some(m);
        self.bss = bss;
    }

    /// Counts the mapping that was read completely.
    fn end(&mut self) {
        let s = std::mem::take(&mut self.sizes);
        let Some(m) = self.now.take() else { return };
        if !self.any || (m.inode != 0 && m.perms[1] == b'w') {
            self.writable.push(m.clone());
        }
        if !self.any {
            self.all.maps = (0..map_kind::NAMES.len() as u64).flat_map(|k| [k, 0, 0]).collect();
            self.any = true;
        }
        let kind = self.kind(&m);
        let all = &mut self.all;
        all.pss = all.pss.saturating_add(s.pss);
        all.anonymous = all.anonymous.saturating_add(s.anonymous);
        all.swap = all.swap.saturating_add(s.swap);
        let stack = self.stack_in(&m).filter(|_| kind == map_kind::ANONYMOUS);
        let Some((from, to)) = stack else {
            return self.book(m, kind, s.rss);
        };
        // The kernel merges adjacent mappings: a stack, and other memory around it.
        let whole = (from, to) == (m.start, m.end);
        let counted = self.pages.filter(|_| !whole).map(|p| p.count_as(from, to, false).resident);
        let of_stack = counted.unwrap_or(s.rss).min(s.rss);
        let piece = |start: u64, end: u64| Mapping { start, end, ..m.clone() };
        let below = self.pages.filter(|_| m.start < from);
        let below = below.map_or(0, |p| p.count_as(m.start, from, false).resident);
        let below = below.min(s.rss - of_stack);
        let parts = [
            (m.start, from, below, map_kind::ANONYMOUS),
            (from, to, of_stack, map_kind::STACK),
            (to, m.end, s.rss - of_stack - below, map_kind::ANONYMOUS),
        ];
        for (start, end, rss, kind) in parts {
            if start < end {
                self.book(piece(start, end), kind, rss);
            }
        }
    }

    /// Adds a mapping, or a part of one, to its kind.
    fn book(&mut self, m: Mapping, kind: u64, of_it: u64) {
        let all = &mut self.all;
        if kind == map_kind::PROF {
            all.prof = all.prof.saturating_add(of_it);
        }
        if let Some([_, size, rss]) = all.maps.as_chunks_mut::<3>().0.get_mut(kind as usize) {
            *size = size.saturating_add(m.end - m.start);
            *rss = rss.saturating_add(of_it);
        }
        let heap = kind == map_kind::HEAP || (kind == map_kind::ANONYMOUS && m.perms[1] == b'w');
        if !heap {
            return;
        }
        let room = all.heaps.len() < 3 * MAX_HEAPS;
        match all.heaps.as_chunks_mut::<3>().0.last_mut().filter(|h| h[1] == m.start) {
            Some(h) => (h[1], h[2]) = (m.end, h[2].saturating_add(of_it)),
            None if room => all.heaps.extend([m.start, m.end, of_it]),
            None => {}
        }
        if self.candidates.len() < MAX_HEAPS {
            self.candidates.push(Candidate { map: m, brk: kind == map_kind::HEAP, rss: of_it });
        }
    }

    /// Returns the part of a mapping that is a thread's stack. A guard page below does not prove that, as allocators
    /// have them, too.
    fn stack_in(&self, m: &Mapping) -> Option<(u64, u64)> {
        let i = self.stacks.partition_point(|s| s.1 <= m.start);
        if let Some(s) = self.stacks.get(i).filter(|s| s.0 < m.end) {
            return Some((s.0.max(m.start), s.1.min(m.end)));
        }
        // If libc's descriptor is not known, the thread's stack begins with the mapping.
        let i = self.pointers.partition_point(|p| *p < m.start);
        let end = self.pointers.get(i).filter(|p| **p < m.end)?;
        Some((m.start, m.end.min((end + 1).max(m.start.saturating_add(STACK)))))
    }

    fn kind(&self, m: &Mapping) -> u64 {
        let anonymous = m.inode == 0 && (m.path.is_empty() || m.path.starts_with("[anon"));
        if self.ours.iter().any(|(from, to)| *from < m.end && m.start < *to) {
            map_kind::PROF
        } else if m.path.starts_with("[heap") {
            map_kind::HEAP
        } else if m.path.starts_with("[stack") {
            map_kind::STACK
        } else if anonymous && self.bss && m.path.is_empty() {
            map_kind::FILE
        } else if anonymous && m.perms[3] == b'p' {
            map_kind::ANONYMOUS
        } else if m.inode != 0 {
            map_kind::FILE
        } else {
            map_kind::OTHER
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

    /// Locked by tests that allocate much memory, or compare all of it.
    static MEMORY: Mutex<()> = Mutex::new(());

    #[test]
    fn mappings_are_added_up_by_kind() {
        let text = "\
5000-6000 r-xp 00000000 08:01 77 /bin/x\nSize: 4 kB\nRss:  4 kB\nPss: 2 kB\n\
7000-9000 rw-p 00000000 00:00 0 [heap]\nRss: 8 kB\nAnonymous: 8 kB\n\
9000-a000 rw-p 00000000 00:00 0 \nRss: 4 kB\nSwap: 12 kB\n\
b000-c000 ---p 00000000 00:00 0 \nRss: 0 kB\n\
c000-e000 rw-p 00000000 00:00 0 \nRss: 4 kB\n\
10000-18000 rw-s 00000000 00:05 9 /memfd:prof-ring (deleted)\nRss: 16 kB\n\
7fff0000-7fff2000 rw-p 00000000 00:00 0 [stack]\nRss: 8 kB\n\
7fff4000-7fff5000 r-xp 00000000 00:00 0 [vdso]\nRss: nonsense kB\nRss\n";
        let known =
            Sum { ours: &[(0x10000, 0x18000)], stacks: &[(0xc000, 0xe000)], ..Sum::default() };
        let m = sum_up(text.as_bytes(), known).expect("mappings").all;
        let kinds: Vec<[u64; 3]> = m.maps.as_chunks::<3>().0.to_vec();
        let kb = 1024;
        assert_eq!(
            kinds,
            [
                [map_kind::HEAP, 0x2000, 8 * kb],
                [map_kind::ANONYMOUS, 0x2000, 4 * kb],
                [map_kind::STACK, 0x4000, 12 * kb],
                [map_kind::FILE, 0x1000, 4 * kb],
                [map_kind::PROF, 0x8000, 16 * kb],
                [map_kind::OTHER, 0x1000, 0],
            ]
        );
        assert_eq!(m.heaps, [0x7000, 0xa000, 12 * kb]);
        assert_eq!((m.pss, m.anonymous, m.swap, m.prof), (2 * kb, 8 * kb, 12 * kb, 16 * kb));
        // Without a thread in it, a mapping is not a stack, even with a guard page below.
        let m = sum_up(text.as_bytes(), Sum::default()).expect("mappings").all;
        assert_eq!(m.maps.as_chunks::<3>().0[2], [map_kind::STACK, 0x2000, 8 * kb]);
        assert!(sum_up(&b""[..], Sum::default()).is_none());
        assert!(sum_up(&b"Rss: 4 kB\n"[..], Sum::default()).is_none());
    }

    #[test]
    fn our_own_memory_is_there() {
        let clock = Clock::monotonic();
        let mut s = Smaps::open(std::process::id());
        let check = |m: &Memory| {
            let rss: u64 = m.maps.as_chunks::<3>().0.iter().map(|k| k[2]).sum();
            assert!(rss > 100 << 10 && m.rss > 100 << 10 && !m.heaps.is_empty(), "{m:?}");
        };
        check(&s.now(&Known::default(), clock).expect("mappings"));
        assert_eq!(s.poll(Known::default, clock), None);
        let seen = loop {
            match s.poll(Known::default, clock) {
                Some(m) => break m,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        check(&seen);
        assert!(s.next > Instant::now() && s.gap > GAP.0);
    }

    /// Returns fully resident memory for which `smaps` would hold the lock for long. 256 MiB represent larger sizes, as
    /// the time grows with the mapping.
    fn large() -> &'static mut [u8] {
        let len = 256 << 20;
        let at = crate::pages::tests::map(len, libc::MAP_PRIVATE);
        // SAFETY: the memory is new and has this length.
        let all = unsafe { std::slice::from_raw_parts_mut(at, len) };
        all.iter_mut().step_by(4096).for_each(|b| *b = 1);
        all
    }

    /// Maps and unmaps memory until `stop` is set. Counts the rounds, and notes the longest wait other than for a
    /// processor, of which a busy machine has too few.
    fn wait_for_lock(stop: &AtomicBool, [rounds, longest]: &[AtomicU64; 2]) {
        let schedstat = File::open("/proc/thread-self/schedstat").expect("schedstat");
        let queued = || {
            let mut b = [0; 64];
            let n = schedstat.read_at(&mut b, 0).expect("schedstat");
            let text = String::from_utf8_lossy(&b[..n]).into_owned();
            text.split_whitespace().nth(1).and_then(|w| w.parse::<u64>().ok()).expect("a time")
        };
        while !stop.load(Relaxed) {
            let (waited, began) = (queued(), Instant::now());
            let at = crate::pages::tests::map(1 << 16, libc::MAP_PRIVATE);
            // SAFETY: the memory was just mapped, and no other code uses it.
            unsafe { libc::munmap(at.cast(), 1 << 16) };
            let took = began.elapsed().as_nanos() as u64;
            longest.fetch_max(took.saturating_sub(queued() - waited), Relaxed);
            rounds.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn large_mappings_hold_nobody_up() {
        let _alone = MEMORY.lock();
        let all = large();
        let s = Smaps::open(std::process::id());
        let files = s.files.as_ref().expect("files");
        assert!(!files.is_small(4096));
        let (stop, waits) = (AtomicBool::new(false), <[AtomicU64; 2]>::default());
        let wait_for_rounds = || {
            let began = waits[0].load(Relaxed);
            while waits[0].load(Relaxed) < began + 2 {
                std::thread::sleep(Duration::from_micros(100));
            }
        };
        // Each of the threads may wait for a processor meanwhile, but not every time.
        let stall = |look: &dyn Fn()| {
            wait_for_rounds();
            waits[1].store(0, Relaxed);
            look();
            wait_for_rounds();
            waits[1].load(Relaxed)
        };
        let (before, now) = std::thread::scope(|scope| {
            scope.spawn(|| wait_for_lock(&stop, &waits));
            let read = || {
                (&files.smaps).seek(SeekFrom::Start(0)).expect("from the start");
                sum_up(BufReader::new(&files.smaps), Sum::default()).expect("mappings");
            };
            let look =
                || drop(files.look(&Known::default(), Clock::monotonic()).expect("mappings"));
            let before = (0..8).map(|_| stall(&read)).max().expect("some");
            let now = (0..20).map(|_| stall(&look)).min().expect("some");
            stop.store(true, Relaxed);
            (before, now)
        });
        assert!(now < before / 4, "ns waited: {before} for smaps, {now} for pieces");
        assert_eq!(all[4096], 1);
        // SAFETY: the mapping has this length, and is not used any more.
        unsafe { libc::munmap(all.as_mut_ptr().cast(), all.len()) };
    }

    #[test]
    fn pieces_add_up_to_what_smaps_says() {
        let _alone = MEMORY.lock();
        let page = Pages::new(File::open("/proc/self/pagemap").expect("pagemap")).page() as usize;
        let private = crate::pages::tests::map(5000 * page, libc::MAP_PRIVATE);
        // SAFETY: the pages lie inside of the mapping.
        unsafe {
            (0..3000).for_each(|n| private.add(n * page).write_volatile(1));
            (3000..4000).for_each(|n| _ = private.add(n * page).read_volatile());
        }
        let s = Smaps::open(std::process::id());
        let files = s.files.as_ref().expect("files");
        let asked = files
            .ask(files.pages.as_ref().expect("pagemap"), Sum::default())
            .expect("mappings")
            .all;
        (&files.smaps).seek(SeekFrom::Start(0)).expect("from the start");
        let read = sum_up(BufReader::new(&files.smaps), Sum::default()).expect("mappings").all;
        let of = |m: &Memory| {
            let heaps = m.heaps.as_chunks::<3>().0.to_vec();
            let mine = heaps.iter().find(|h| (h[0]..h[1]).contains(&(private as u64)));
            let kinds: Vec<u64> = m.maps.as_chunks::<3>().0.iter().map(|k| k[2]).collect();
            (*mine.expect("the mapping"), kinds, m.anonymous, m.swap)
        };
        let ((mine, kinds, anonymous, swap), read) = (of(&asked), of(&read));
        // Other tests of this process may allocate memory meanwhile.
        let near = |a: u64, b: u64| a.abs_diff(b) < 3 << 20;
        assert!(near(mine[2], read.0[2]) && mine[2] >= 3000 * page as u64, "{asked:?}");
        assert!(kinds.iter().zip(&read.1).all(|(a, b)| near(*a, *b)), "{kinds:?} {:?}", read.1);
        assert!(near(anonymous, read.2) && near(swap, read.3), "{asked:?}");
    }

    #[test]
    fn the_page_of_zeroes_is_taken_out_where_it_may_be() {
        let map =
            |at: u64| parse_line(&format!("{at:x}-{:x} rw-p 0 00:00 0", at + 1)).expect("line");
        let counted = |resident, doubtful| Counted { resident, doubtful, ..Counted::default() };
        let mut all = vec![(map(1), counted(100 << 20, 80 << 20)), (map(2), counted(60 << 20, 0))];
        without_zeroes(&mut all, 150 << 20);
        assert_eq!(all[0].1.resident, 100 << 20, "the kernel's count lags behind");
        without_zeroes(&mut all, 120 << 20);
        assert_eq!((all[0].1.resident, all[1].1.resident), (60 << 20, 60 << 20));
    }
}
