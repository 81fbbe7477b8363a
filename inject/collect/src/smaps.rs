//! Reads the target's memory as the kernel counts it, mapping by mapping.

use crate::allocators::{Finder, Target};
use crate::cgroup;
use crate::clock::Clock;
use crate::heaps::{Candidate, apart};
use crate::mappings::Used;
use crate::maps::MAX_TEXT as MAX_MAPS;
use crate::pages::{Counted, Pages, worked};
use crate::stacks::{parts, pointers, stacks};
use prof_os::maps::{self, Map};
use prof_os::page_size;
use prof_os::process::folder;
use prof_os::status::Status;
use prof_os::{Pid, RemoteAddr};
use prof_trace::records::{Allocators, Arena, MappingUse, Memory, map_kind};
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
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
/// Greatest depth at which a sleeping thread shows that it has its stack at the end of a mapping.
const DEPTH: u64 = 1 << 20;
/// Time between two looks: at first, and at most.
const GAP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Time that the last look may take, for which a detach waits.
pub(crate) const LAST: Duration = Duration::from_secs(2);
/// A change by so many resident pages is of no interest.
const FEW: u64 = 256;
/// A look may take one of this many parts of a processor's time.
const PART: u32 = 200;
/// `smaps` is read only if the lock of the target's mappings would be held for at most this long, in nanoseconds, even
/// if all memory were in one mapping; and the cost of a resident page and of a page table entry there.
const HOLD_NS: u64 = 3_000_000;
const PAGE_NS: u64 = 170;
const ENTRY_NS: u64 = 8;
/// Greatest lag of the kernel's count of resident memory, in bytes.
const LAG: u64 = 16 << 20;

/// Time that a look took: until it ended, and of a processor.
type Took = (Duration, Duration);

/// `/proc/PID/smaps`, `statm` and others, held open as in [`Maps`](crate::maps::Maps). For `smaps` the kernel walks the
/// page tables and lets no thread map memory meanwhile, so it is read only for a small process. For others the page
/// tables are read in small steps ([`Pages`]). Both are done rarely, on a separate thread, while the collector drains
/// the ring.
#[derive(Debug)]
pub(crate) struct Smaps {
    files: Option<Arc<Files>>,
    next: Instant,
    gap: Duration,
    looking: Option<JoinHandle<(Option<Looked>, Took)>>,
    /// Number of a look that a detach asks for, and whether it has begun.
    asked: Option<(u64, bool)>,
    /// Time that the last look took.
    took: Duration,
    /// Earliest time of the next look, as the last one took long.
    rest: Instant,
    /// Resident pages when the last look began, and the most so far; 0: unknown.
    resident: (u64, u64),
}

#[derive(Debug)]
struct Files {
    smaps: File,
    statm: File,
    status: File,
    maps: File,
    pages: Option<Pages>,
    mem: Option<File>,
    pid: Pid,
    cgroup: PathBuf,
    allocators: Finder,
    /// Number of looks.
    looks: AtomicU32,
}

/// Facts about the target's memory that are known in advance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Address ranges of prof's own mappings.
    pub ours: Vec<(u64, u64)>,
    /// Thread pointers and thread ids: most thread libraries keep a thread's descriptor at the end of its stack.
    pub threads: Vec<(u64, u64)>,
    /// Whether allocators other than glibc's are recorded.
    pub others: bool,
}

/// The result of a look.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Looked {
    /// Sums by kind, and the mappings that allocators may use.
    pub memory: Memory,
    /// The use of each mapping.
    pub used: Vec<Used>,
    /// Stacks of threads: start, end, thread id.
    pub stacks: Vec<(u64, u64, u64)>,
    /// The allocators.
    pub allocators: Allocators,
    /// Ticks when the look began.
    pub begun: Ticks,
}

/// Sizes of a mapping, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    pss: u64,
    of: MappingUse,
}

impl Smaps {
    /// Opens the files of process `pid`.
    pub(crate) fn open(pid: Pid) -> Self {
        let folder = folder(pid);
        let open = |name: &str| File::open(format!("{folder}/{name}")).ok();
        let files = || {
            let (smaps, statm) = (open("smaps")?, open("statm")?);
            let (status, maps) = (open("status")?, open("maps")?);
            let (pages, mem) = (open("pagemap").map(Pages::new), open("mem"));
            let cgroup = PathBuf::from(format!("{folder}/cgroup"));
            let (allocators, looks) = (Finder::new(pid), AtomicU32::new(0));
            Some(Arc::new(Files {
                smaps,
                statm,
                status,
                maps,
                pages,
                mem,
                pid,
                cgroup,
                allocators,
                looks,
            }))
        };
        let (looking, asked) = (None, None);
        let (next, gap, took) = (Instant::now(), GAP.0, Duration::ZERO);
        let (rest, resident) = (next, (0, 0));
        Self { files: files(), next, gap, looking, asked, took, rest, resident }
    }

    /// Notes the target's resident pages, which cost little to read: after a new peak, or a change by an eighth, the
    /// next look is due soon.
    pub(crate) fn note_resident(&mut self, pages: u64) {
        let (last, peak) = self.resident;
        self.resident.1 = peak.max(pages);
        if last == 0 {
            self.resident.0 = pages;
        }
        let is_peak = peak != 0 && pages > peak + peak / 20 + FEW;
        let is_other = last != 0 && pages.abs_diff(last) > last / 8 + FEW;
        if is_peak || is_other {
            self.gap = GAP.0;
            self.next = self.next.min(self.rest.max(Instant::now()));
            self.resident.0 = pages;
        }
    }

    /// Requests a look, which gets this number and begins as soon as a running one has ended; returns false if it would
    /// take too long.
    pub(crate) fn ask(&mut self, number: u64) -> bool {
        if self.took > LAST / 2 || self.files.is_none() {
            return false;
        }
        self.asked = Some((number, false));
        true
    }

    /// Returns the number of a look that was asked for and is not made.
    pub(crate) fn asked(&self) -> Option<u64> {
        self.asked.map(|a| a.0)
    }

    /// Returns the number of the look that was asked for, once it has ended.
    pub(crate) fn answered(&mut self) -> Option<u64> {
        let ended = |a: &mut (u64, bool)| a.1 && self.looking.is_none();
        self.asked.take_if(ended).map(|a| a.0)
    }

    /// Starts a look if one is due; returns the result of the last one, if it is new.
    pub(crate) fn poll(&mut self, known: impl FnOnce() -> Known, clock: Clock) -> Option<Looked> {
        let done = self.looking.take_if(|l| l.is_finished());
        let done = done.and_then(|l| l.join().ok());
        let seen = done.and_then(|(seen, took)| {
            let (took, worked) = took;
            self.rest = Instant::now() + worked * PART;
            self.next = self.next.max(self.rest);
            self.took = took;
            seen
        });
        // A look that was begun for a request is the answer when it ends.
        if self.asked.is_some_and(|a| a.1) {
            return seen;
        }
        let due = self.asked.is_some() || Instant::now() >= self.next;
        if self.looking.is_none() && due {
            self.asked.iter_mut().for_each(|a| a.1 = true);
            let files = self.files.clone()?;
            let known = known();
            let began = Instant::now();
            // A look that takes long has not finished when the next is due.
            self.next = began + self.gap;
            self.gap = (self.gap * 2).min(GAP.1);
            let look = move || {
                let seen = files.look(&known, clock);
                (seen, (began.elapsed(), Duration::from_nanos(worked())))
            };
            self.looking = std::thread::Builder::new().name("prof-smaps".into()).spawn(look).ok();
        }
        seen
    }

    /// Waits for the running look, but no longer than `most`.
    pub(crate) fn wait(&self, most: Duration) {
        let deadline = Instant::now() + most;
        let under_way = || self.looking.as_ref().is_some_and(|l| !l.is_finished());
        while under_way() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Looks now, on this thread, as the last look. One that is running is given up.
    pub(crate) fn now(&mut self, known: &Known, clock: Clock) -> Option<Looked> {
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

    fn look(&self, known: &Known, clock: Clock) -> Option<Looked> {
        let begun = clock.now();
        let before = self.rss();
        let stacks = self.mem.as_ref().map(|m| stacks(m, &known.threads)).unwrap_or_default();
        let mut at = pointers(self.pid);
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
        let Sum { all: mut memory, candidates, writable, used, threads, .. } = sum;
        let (mem, pages) = (self.mem.as_ref(), self.pages.as_ref());
        let walk = apart(&candidates, mem, pages, &writable, known.others, clock, &mut memory);
        // Take the reading that is closer to the text: a detach may have unmapped the ring since, or during the read.
        let mapped =
            memory.maps.as_chunks::<3>().0.iter().map(|k| k[2]).fold(0, u64::saturating_add);
        let after = self.rss();
        if after == 0 || pages.is_some_and(Pages::is_over) {
            return None; // the process ended during the look, which may have missed any of its mappings
        }
        memory.rss =
            [before, after].into_iter().min_by_key(|n| n.abs_diff(mapped)).unwrap_or(after);
        memory.page_tables = self.field("VmPTE").unwrap_or(0);
        memory.cgroup = cgroup::memory_stats(&self.cgroup);
        let arenas = walk.as_ref().map(|w| w.arenas.each.as_slice());
        let allocators = Allocators { ticks: memory.ticks, ..self.allocators(arenas) };
        Some(Looked { memory, used, stacks: threads, allocators, begun })
    }

    /// Returns what is known of the allocators. At first nobody may wait for a large program to be searched.
    fn allocators(&self, arenas: Option<&[Arena]>) -> Allocators {
        let mut text = Vec::new();
        let read = (&self.maps).seek(SeekFrom::Start(0));
        let read = read.and_then(|_| (&self.maps).take(MAX_MAPS).read_to_end(&mut text));
        let maps = read.map(|_| maps::parse(&text)).unwrap_or_default();
        let target = Target { maps: &maps, mem: self.mem.as_ref(), arenas };
        self.allocators.look(target, self.looks.fetch_add(1, Relaxed) > 0)
    }

    /// Returns a field of `/proc/PID/status` in bytes.
    fn field(&self, name: &str) -> Option<u64> {
        let mut b = [0u8; 4096];
        let n = self.status.read_at(&mut b, 0).unwrap_or(0);
        Status::parse(&b[..n]).bytes(name)
    }

    /// Returns whether `smaps` can be read without blocking the target.
    fn is_small(&self, page: u64) -> bool {
        let Some((rss, swap)) = self.field("VmRSS").zip(self.field("VmSwap")) else { return false };
        let entries = self.field("VmPTE").unwrap_or(u64::MAX) / size_of::<usize>() as u64;
        let pages = rss.saturating_add(swap) / page;
        pages.saturating_mul(PAGE_NS).saturating_add(entries.saturating_mul(ENTRY_NS)) <= HOLD_NS
    }

    /// Counts as [`sum_up`] does, without proportional sizes, but from the page tables in small steps.
    fn ask<'a>(&self, pages: &Pages, mut sum: Sum<'a>) -> Option<Sum<'a>> {
        let mut text = Vec::new();
        (&self.maps).seek(SeekFrom::Start(0)).ok()?;
        (&self.maps).take(MAX_MAPS).read_to_end(&mut text).ok()?;
        let all = maps::parse(&text).into_iter().map(|m| {
            let files = m.inode != 0 || m.shared;
            let counted = match has_huge_pages(&m) {
                true => Counted::default(),
                false => pages.count_as(m.start.0, m.end.0, files),
            };
            (m, counted)
        });
        let mut all: Vec<(Map, Counted)> = all.collect();
        without_zeroes(&mut all, self.rss());
        for (m, c) in all {
            sum.begin(m.clone());
            // Shared mappings of devices have pages that are not memory.
            let rss = if m.shared { c.file } else { c.resident };
            sum.sizes = Sizes { pss: 0, of: use_of(&m, rss, &c) };
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
        pages.saturating_mul(page_size())
    }
}

/// Returns the use of a mapping, as far as the page tables show it. They do not say which pages are dirty: anonymous
/// ones are, and those of shared memory that the process may write to; pages of files are taken for clean.
fn use_of(m: &Map, rss: u64, c: &Counted) -> MappingUse {
    let file = c.file.min(rss);
    let alone = c.file_alone.min(file);
    let memory = ["/dev/zero", "/memfd:", "/SYSV", "/dev/shm/", "/run/shm/", "/drm"];
    let names_memory = memory.iter().any(|p| m.name.starts_with(p.as_bytes()));
    let dirty = m.write && !m.exec && m.shared && names_memory;
    let anonymous = rss - file;
    let of = MappingUse { rss, anonymous, swap: c.swap, huge: c.huge, ..MappingUse::default() };
    match dirty {
        true => MappingUse { private_dirty: anonymous + alone, shared_dirty: file - alone, ..of },
        false => MappingUse {
            private_dirty: anonymous,
            private_clean: alone,
            shared_clean: file - alone,
            ..of
        },
    }
}

/// Returns whether a mapping consists of huge pages from their pool, which the kernel does not count as resident.
fn has_huge_pages(m: &Map) -> bool {
    ["/anon_hugepage", "/dev/hugepages/"].iter().any(|p| m.name.starts_with(p.as_bytes()))
}

/// Subtracts the zero page where the kernel does not tell it from others: bytes in excess of `rss`, in which it is not
/// counted.
fn without_zeroes(all: &mut [(Map, Counted)], rss: u64) {
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
        sum.line(&line);
        line.clear();
    }
    sum.end();
    sum.any.then_some(sum)
}

#[derive(Default)]
struct Sum<'a> {
    ours: &'a [(u64, u64)],
    /// Stacks of threads, from libc's descriptors, with thread ids; ascending.
    stacks: &'a [(u64, u64, u64)],
    /// Stack pointers, with thread ids; ascending.
    pointers: &'a [(u64, u64)],
    pages: Option<&'a Pages>,
    all: Memory,
    any: bool,
    /// The mapping that is being read.
    now: Option<Map>,
    /// Whether the mapping follows the writable data of the program's file.
    bss: bool,
    sizes: Sizes,
    /// Mappings that allocators may use.
    candidates: Vec<Candidate>,
    /// The first mapping, and writable mappings of files.
    writable: Vec<Map>,
    /// The use of each mapping.
    used: Vec<Used>,
    /// Stacks of threads that were found, with thread ids.
    threads: Vec<(u64, u64, u64)>,
}

impl Sum<'_> {
    fn line(&mut self, line: &[u8]) {
        if let Some(m) = Map::parse(line) {
            self.begin(m);
            return;
        }
        let line = String::from_utf8_lossy(line);
        let Some((name, rest)) = line.split_once(':') else { return };
        let kilobytes = rest.split_whitespace().next().and_then(|w| w.parse::<u64>().ok());
        let bytes = kilobytes.unwrap_or(0).saturating_mul(1024);
        let of = &mut self.sizes.of;
        match name {
            "Rss" => of.rss = bytes,
            "Pss" => self.sizes.pss = bytes,
            "Anonymous" => of.anonymous = bytes,
            "Swap" => of.swap = bytes,
            "Shared_Clean" => of.shared_clean = bytes,
            "Shared_Dirty" => of.shared_dirty = bytes,
            "Private_Clean" => of.private_clean = bytes,
            "Private_Dirty" => of.private_dirty = bytes,
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" | "Shared_Hugetlb"
            | "Private_Hugetlb" => of.huge = of.huge.saturating_add(bytes),
            _ => {}
        }
    }

    /// Begins another mapping.
    fn begin(&mut self, m: Map) {
        // The program's zero-initialised variables follow its data segment.
        let bss = self.now.as_ref().is_some_and(|b| {
            let program = self.writable.first().unwrap_or(b);
            b.end == m.start && b.write && b.inode != 0 && b.inode == program.inode
        });
        self.end();
        self.now = Some(m);
        self.bss = bss;
    }

    /// Counts the mapping that was read completely.
    fn end(&mut self) {
        let s = std::mem::take(&mut self.sizes);
        let Some(m) = self.now.take() else { return };
        if !self.any || (m.inode != 0 && m.write) {
            self.writable.push(m.clone());
        }
        if !self.any {
            self.all.maps = (0..map_kind::NAMES.len() as u64).flat_map(|k| [k, 0, 0]).collect();
            self.any = true;
        }
        let kind = self.kind(&m);
        let all = &mut self.all;
        all.pss = all.pss.saturating_add(s.pss);
        all.anonymous = all.anonymous.saturating_add(s.of.anonymous);
        all.swap = all.swap.saturating_add(s.of.swap);
        let (start, end) = (m.start.0, m.end.0);
        self.used.push(Used { start, end, of: s.of });
        let rss = s.of.rss;
        let stacks = if kind == map_kind::ANONYMOUS { self.stacks_in(&m) } else { Vec::new() };
        self.threads.extend(&stacks);
        let mut left = rss;
        let parts = parts((start, end), &stacks);
        for (i, (from, to, is_stack)) in parts.iter().copied().enumerate() {
            let counted = self.pages.filter(|_| i + 1 < parts.len());
            let counted = counted.map(|p| p.count_as(from, to, false).resident);
            // Where nobody counts, all is a stack's.
            let of_it = match counted {
                Some(n) => n.min(left),
                None if is_stack || i + 1 == parts.len() => left,
                None => 0,
            };
            left -= of_it;
            let kind = if is_stack { map_kind::STACK } else { kind };
            let piece = Map { start: RemoteAddr(from), end: RemoteAddr(to), ..m.clone() };
            self.book(piece, kind, of_it);
        }
    }

    /// Adds a mapping, or a part of one, to its kind.
    fn book(&mut self, m: Map, kind: u64, of_it: u64) {
        let all = &mut self.all;
        if kind == map_kind::PROF {
            all.prof = all.prof.saturating_add(of_it);
        }
        if let Some([_, size, rss]) = all.maps.as_chunks_mut::<3>().0.get_mut(kind as usize) {
            *size = size.saturating_add(m.len());
            *rss = rss.saturating_add(of_it);
        }
        let heap = kind == map_kind::HEAP || (kind == map_kind::ANONYMOUS && m.write);
        if !heap {
            return;
        }
        let room = all.heaps.len() < 3 * MAX_HEAPS;
        match all.heaps.as_chunks_mut::<3>().0.last_mut().filter(|h| h[1] == m.start.0) {
            Some(h) => (h[1], h[2]) = (m.end.0, h[2].saturating_add(of_it)),
            None if room => all.heaps.extend([m.start.0, m.end.0, of_it]),
            None => {}
        }
        if self.candidates.len() < MAX_HEAPS {
            self.candidates.push(Candidate { map: m, brk: kind == map_kind::HEAP, rss: of_it });
        }
    }

    /// Returns the parts of a mapping that are threads' stacks, with the ids of these. A guard page below does not prove that,
    /// as allocators have them, too.
    fn stacks_in(&self, m: &Map) -> Vec<(u64, u64, u64)> {
        let (start, end) = (m.start.0, m.end.0);
        let i = self.stacks.partition_point(|s| s.1 <= start);
        let named = self.stacks[i..].iter().take_while(|s| s.0 < end);
        // Descriptors may say anything.
        let named = named.map(|s| (s.0.max(start), s.1.min(end), s.2)).filter(|s| s.0 < s.1);
        let named: Vec<_> = named.collect();
        if named.is_empty() { self.sleeper_in(m).into_iter().collect() } else { named }
    }

    /// Returns the end of a mapping as a stack, where libc's descriptor of the thread is not known, if one thread alone sleeps in
    /// the mapping, and near its end. Go's threads have their stacks anywhere in its heap, mostly several in one mapping.
    fn sleeper_in(&self, m: &Map) -> Option<(u64, u64, u64)> {
        let (start, end) = (m.start.0, m.end.0);
        let i = self.pointers.partition_point(|p| p.0 < start);
        let mut within = self.pointers.get(i..)?.iter().take_while(|p| p.0 < end);
        let (at, tid) = within.next()?;
        let is_stack = m.write && within.next().is_none() && end - at <= DEPTH;
        is_stack.then(|| (start.max(end.saturating_sub(STACK)), end, *tid))
    }

    fn kind(&self, m: &Map) -> u64 {
        let anonymous = m.is_anonymous();
        if self.ours.iter().any(|(from, to)| *from < m.end.0 && m.start.0 < *to) {
            map_kind::PROF
        } else if m.name.starts_with(b"[heap") {
            map_kind::HEAP
        } else if m.name.starts_with(b"[stack") {
            map_kind::STACK
        } else if anonymous && self.bss && m.name.is_empty() {
            map_kind::FILE
        } else if anonymous && !m.shared {
            map_kind::ANONYMOUS
        } else if m.inode != 0 {
            map_kind::FILE
        } else {
            map_kind::OTHER
        }
    }
}

#[cfg(test)]
mod tests;
