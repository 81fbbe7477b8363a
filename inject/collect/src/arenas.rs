//! Reads the statistics of glibc's allocator, as `mallinfo2` would return them at the same moment: bytes taken from the
//! kernel, and bytes of these that are free.
//!
//! Nothing in the target is called, and no symbol is needed: `prof_glibc` finds the arenas. The target runs meanwhile, so
//! a list may change while it is followed: if it is inconsistent it is read again, and in the end given up.

use crate::pages::Pages;
use prof_glibc::{BINS, FIRST_BIN, Memory as _, NEXT, Totals, WORD, fast_bins, heaps, totals};
use prof_os::maps::Map;
use prof_trace::records::Arena;
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::time::{Duration, Instant};

/// Greatest length of a segment that is searched.
const SEGMENT: u64 = 16 << 20;
/// Limits on arenas, free chunks, and time.
const MOST_ARENAS: usize = 4096;
const MOST_CHUNKS: usize = 1 << 20;
const LONGEST: Duration = Duration::from_secs(3);
/// Number of pages that are searched for blocks in one mapping, and least length of such a block.
const MOST_PAGES: usize = 1 << 14;
const LEAST_BLOCK: u64 = 64 << 10;
/// Number of attempts to read a list that changes.
const TRIES: usize = 8;
/// Greatest number of readings of all arenas, and time after which no further one begins.
const MOST_WALKS: usize = 8;
const WALKS: Duration = Duration::from_millis(500);
/// Two readings that differ by no more than this, in bytes, need no third.
const ALIKE: u64 = 16 << 10;

/// An address range of anonymous memory that is glibc's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// First address.
    pub start: u64,
    /// First address behind its end.
    pub end: u64,
    /// The range is one block with a mapping of its own; otherwise it is a heap of an arena.
    pub block: bool,
}

/// Statistics of glibc's arenas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arenas {
    /// Bytes taken from the kernel, without blocks that have a mapping of their own.
    pub system: u64,
    /// Bytes of free chunks in `system`.
    pub free: u64,
    /// Resident bytes of these.
    pub free_resident: u64,
    /// Heaps of arenas other than the main one, ascending.
    pub heaps: Vec<Range>,
    /// The arenas, the main one first. Chunks that moved from one list to another meanwhile may count twice.
    pub each: Vec<Arena>,
}

/// One reading of the arenas, which the target may have changed from its begin to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Begin and end, in ticks of the recording.
    pub time: (Ticks, Ticks),
    /// Statistics that were read. Each byte counts once, and memory from the kernel by its greatest size.
    pub arenas: Arenas,
    /// Bytes that may be counted as in use though they were free all the time: other readings, begun just before or
    /// after, found them free, or the arena was smaller at the other end of this reading.
    pub unsure: u64,
}

/// Disjoint address ranges, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FreeChunks(Vec<(u64, u64)>);

impl FreeChunks {
    /// Joins ranges that overlap. Also returns the bytes that belonged to several: chunks are disjoint at each moment,
    /// so the allocator has moved these in between.
    fn of(mut all: Vec<(u64, u64)>) -> (Self, u64) {
        all.sort_unstable();
        let mut twice = 0u64;
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (start, end) in all {
            match joined.last_mut().filter(|l| start <= l.1) {
                Some(l) => {
                    twice = twice.saturating_add(end.min(l.1).saturating_sub(start));
                    l.1 = l.1.max(end);
                }
                None => joined.push((start, end)),
            }
        }
        (Self(joined), twice)
    }

    /// Returns the ranges of both.
    fn with(self, other: &Self) -> Self {
        Self::of([self.0, other.0.clone()].concat()).0
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).fold(0, u64::saturating_add)
    }
}

/// Reads the allocator's data in the memory of a target.
pub(crate) struct Look<'a> {
    /// The target's memory.
    pub mem: &'a File,
    /// The target's page tables; without them all memory counts as resident.
    pub pages: Option<&'a Pages>,
    deadline: Instant,
    chunks: usize,
    /// Distance of the field `top` from the beginning of an arena, in bytes.
    head: u64,
    /// Begin and end of each free chunk of the present reading.
    seen: Vec<(u64, u64)>,
}

impl<'a> Look<'a> {
    /// Creates a reader for the memory of a target.
    pub(crate) fn new(mem: &'a File, pages: Option<&'a Pages>) -> Self {
        Self {
            mem,
            pages,
            deadline: Instant::now() + LONGEST,
            chunks: 0,
            head: 0,
            seen: Vec::new(),
        }
    }

    fn words<const N: usize>(&self, at: u64) -> Option<[u64; N]> {
        let mut mem = self.mem;
        mem.words(at)
    }

    /// Restarts the time limit.
    pub(crate) fn again(&mut self) {
        self.deadline = Instant::now() + LONGEST;
    }

    /// Reads the arenas repeatedly, until two readings are alike or it takes too long: the target may allocate and free
    /// meanwhile, and this thread may wait for a processor in the middle of one. Returns the shortest reading, during
    /// which the target could change least; `None` if there are no arenas, or they could not be followed.
    pub(crate) fn walks(&mut self, maps: &[Map], now: impl Fn() -> Ticks) -> Option<Walk> {
        let main = self.main(maps)?;
        let end = Instant::now() + WALKS;
        let mut best: Option<(Walk, FreeChunks)> = None;
        let (mut free, mut last, mut good) = (FreeChunks::default(), None::<u64>, 0);
        for k in 0..MOST_WALKS {
            (self.chunks, self.seen) = (0, Vec::new());
            let from = now();
            if let Some((arenas, seen, unsure)) = self.walk(main) {
                let in_use = Some(arenas.system - arenas.free).filter(|_| unsure == 0);
                let alike = last.zip(in_use).is_some_and(|(a, b)| a.abs_diff(b) <= ALIKE);
                last = in_use;
                free = free.with(&seen);
                good += 1;
                let walk = Walk { time: (from, now().max(from)), arenas, unsure };
                let took = |w: &Walk| w.time.1 - w.time.0;
                if best.as_ref().is_none_or(|(b, _)| took(&walk) < took(b)) {
                    best = Some((walk, seen));
                }
                if alike {
                    break;
                }
            }
            // A single reading can't tell what it missed.
            let enough = good > 1 || k >= MOST_WALKS / 2;
            if enough && Instant::now() > end {
                break;
            }
        }
        self.seen = Vec::new();
        let (mut walk, seen) = best?;
        walk.unsure = walk.unsure.saturating_add(free.bytes().saturating_sub(seen.bytes()));
        Some(walk)
    }

    /// Returns the address of the main arena, and notes how far behind it the field `top` lies. Only libc and the program
    /// are searched, as this is done again and again.
    fn main(&mut self, maps: &[Map]) -> Option<u64> {
        let program = maps.first().map_or(&[][..], |m| &m.name);
        let is_libc = |m: &Map| {
            let name = m.name.rsplit(|b| *b == b'/').next().unwrap_or_default();
            let libc = name.starts_with(b"libc.so") || name.starts_with(b"libc-2.");
            (libc || m.name == program) && m.inode != 0 && m.len() <= SEGMENT
        };
        let mut mem = self.mem;
        let ring = prof_glibc::find(&mut mem, maps, is_libc)?;
        self.head = ring.head;
        ring.tops.first()?.checked_sub(ring.head)
    }

    /// Reads all arenas once. Returns their statistics, all free chunks, and the bytes that the arenas grew or shrank
    /// by, or moved, meanwhile.
    fn walk(&mut self, main: u64) -> Option<(Arenas, FreeChunks, u64)> {
        let (mut all, mut changed) = (Arenas::default(), 0u64);
        let mut at = main;
        for _ in 0..MOST_ARENAS {
            let before = self.totals(at)?.system;
            let so_far = (all.free, all.free_resident, all.heaps.len(), self.seen.len());
            let (top, fast) = self.add(at, main, &mut all)?;
            let totals = self.totals(at)?;
            let after = totals.system;
            let free = all.free.saturating_sub(so_far.0);
            all.each.push(Arena {
                address: at,
                heaps: (all.heaps.len() - so_far.2) as u64,
                mapped: before.max(after),
                most_mapped: totals.most_system.max(before),
                free: free.min(before.max(after)),
                dirty: all.free_resident.saturating_sub(so_far.1).min(free),
                top,
                fast,
                free_chunks: (self.seen.len() - so_far.3).saturating_sub(1) as u64,
                threads: totals.threads.unwrap_or(0),
            });
            all.system = all.system.saturating_add(before.max(after));
            changed = changed.saturating_add(before.abs_diff(after));
            [at] = self.words(at.checked_add(self.head + NEXT)?)?;
            if at == main {
                all.heaps.sort_by_key(|h| h.start);
                let (seen, twice) = FreeChunks::of(std::mem::take(&mut self.seen));
                all.free = all.free.saturating_sub(twice).min(all.system);
                all.free_resident = all.free_resident.saturating_sub(twice).min(all.free);
                return Some((all, seen, changed.saturating_add(twice)));
            }
        }
        None
    }

    fn totals(&self, arena: u64) -> Option<Totals> {
        let mut mem = self.mem;
        totals(&mut mem, arena.checked_add(self.head)?)
    }

    /// Adds the statistics of an arena. Returns the bytes of the chunk at its end, and of those in fast bins.
    fn add(&mut self, arena: u64, main: u64, all: &mut Arenas) -> Option<(u64, u64)> {
        let tries = |look: &mut Self, f: &dyn Fn(&mut Self) -> Option<(u64, u64)>| {
            let before = look.seen.len();
            (0..TRIES).find_map(|_| {
                look.seen.truncate(before);
                f(look)
            })
        };
        let top_at = arena.checked_add(self.head)?;
        let [top] = self.words(top_at)?;
        let system = self.totals(arena)?.system;
        if top == top_at {
            return Some((0, 0)); // nothing was asked for yet
        }
        let mut put = |(free, missing): (u64, u64)| {
            all.free = all.free.saturating_add(free);
            all.free_resident = all.free_resident.saturating_add(free.saturating_sub(missing));
        };
        let [size] = self.words(top.checked_add(WORD)?)?;
        let size = size & !7;
        self.seen.push((top, top.saturating_add(size)));
        put((size, self.missing(top, size)));
        let mut fast = 0u64;
        for bin in fast_bins(arena, self.head) {
            let found = tries(self, &|look| look.fast_list(bin, system))?;
            fast = fast.saturating_add(found.0);
            put(found);
        }
        for k in 0..BINS as u64 {
            put(tries(self, &|look| look.list(top_at + 2 * k * WORD, system))?);
        }
        if arena != main {
            self.heaps(arena, top, &mut all.heaps)?;
        }
        Some((size, fast))
    }

    /// Counts a free chunk and returns its size; `None` if the limit is reached, or the size is impossible.
    fn count(&mut self, at: u64, size: u64, system: u64) -> Option<u64> {
        self.chunks += 1;
        let late = self.chunks.is_multiple_of(256) && Instant::now() > self.deadline;
        let size = size & !7;
        let fits = self.chunks <= MOST_CHUNKS && !late && size >= 2 * WORD && size <= system;
        self.seen.push((at, at.saturating_add(size)));
        fits.then_some(size)
    }

    /// Returns the bytes of the chunks in a bin, and those that are not resident. The bin's head is linked like a
    /// chunk.
    fn list(&mut self, head: u64, system: u64) -> Option<(u64, u64)> {
        let (mut bytes, mut missing, mut last) = (0u64, 0u64, head);
        let [mut at] = self.words(head + FIRST_BIN)?;
        while at != head {
            let [_, size, next, before] = self.words(at)?;
            // The link is broken if the chunk was taken out of the list meanwhile.
            if before != last {
                return None;
            }
            let size = self.count(at, size, system)?;
            bytes = bytes.saturating_add(size);
            missing = missing.saturating_add(self.missing(at, size));
            (last, at) = (at, next);
        }
        Some((bytes, missing))
    }

    /// Returns the bytes of a fast bin's chunks, and those that are not resident. Links are plain pointers or, since
    /// glibc 2.32, combined with their own address.
    fn fast_list(&mut self, head: u64, system: u64) -> Option<(u64, u64)> {
        let (mut bytes, mut count) = (0u64, 0usize);
        let [mut at] = self.words(head)?;
        while at != 0 {
            let [_, size, next] = self.words(at)?;
            let link_at = at + 2 * WORD;
            bytes = bytes.saturating_add(self.count(at, size, system)?);
            count += 1;
            let mixed = next ^ (link_at >> 12);
            let fits =
                |p: u64| p == 0 || (p.is_multiple_of(2 * WORD) && self.words::<1>(p).is_some());
            at = [mixed, next].into_iter().find(|p| fits(*p))?;
            if count > MOST_CHUNKS {
                return None;
            }
        }
        Some((bytes, 0))
    }

    /// Returns the bytes of a free chunk that are not resident. Its first and last page have been written to.
    fn missing(&self, at: u64, size: u64) -> u64 {
        let Some(pages) = self.pages.filter(|p| size >= 2 * p.page()) else { return 0 };
        let page = pages.page();
        let (from, to) = (at.next_multiple_of(page), at.saturating_add(size) / page * page);
        to.saturating_sub(from).saturating_sub(pages.count_as(from, to, false).resident)
    }

    /// Adds the heaps of an arena; returns `None` if they could not be followed to the first one.
    fn heaps(&self, arena: u64, top: u64, all: &mut Vec<Range>) -> Option<()> {
        let mut mem = self.mem;
        let (heaps, whole) = heaps(&mut mem, arena, top);
        all.extend(heaps.iter().map(|h| Range { start: h.start, end: h.end, block: false }));
        whole.then_some(())
    }

    /// Finds blocks of glibc's that have a mapping of their own, within a mapping that may contain others' memory as
    /// well: a chunk header at the start of a page tells. Reading must not allocate pages, so only resident ones are
    /// read.
    pub(crate) fn blocks(&self, m: &Map) -> Vec<Range> {
        let mut found = Vec::new();
        let Some(pages) = self.pages else { return found };
        let (page, mut at, mut asked) = (pages.page(), m.start.0, 0);
        while at < m.end.0 && asked < MOST_PAGES && Instant::now() < self.deadline {
            let block = Some(at).filter(|at| pages.count_as(*at, at + page, false).resident != 0);
            asked += 1;
            let header = block.and_then(|at| self.words(at));
            let end = header.and_then(|[before, size]| {
                let end = at.checked_add(size & !7)?;
                let fits = end % page == 0 && end >= at + LEAST_BLOCK && end <= m.end.0;
                (before == 0 && size & 7 == 2 && fits).then_some(end)
            });
            if let Some(end) = end {
                found.push(Range { start: at, end, block: true });
            }
            at = end.unwrap_or(at + page);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::Maps;
    use prof_os::Pid;

    /// Returns glibc's own statistics: bytes from the kernel without mapped blocks, and free bytes of these.
    fn told() -> (u64, u64) {
        // SAFETY: `mallinfo2` takes no arguments and only reads the allocator's statistics.
        let m = unsafe { libc::mallinfo2() };
        (m.arena as u64, m.fordblks as u64)
    }

    #[test]
    #[cfg(all(target_env = "gnu", target_pointer_width = "64"))]
    fn the_arenas_of_this_process_have_what_glibc_says() {
        let mut maps = Maps::open(Pid::this()).expect("maps");
        assert!(maps.read());
        let mem = File::open("/proc/self/mem").expect("memory");
        let pages = Pages::new(File::open("/proc/self/pagemap").expect("pagemap"));
        // Make free chunks of many sizes, between used ones.
        let mut blocks: Vec<Vec<u8>> = (0..30_000).map(|i| vec![1; 40 + i % 2000]).collect();
        let mut k = 0;
        blocks.retain(|_| {
            k += 1;
            k % 3 == 0
        });
        // Other tests of this process allocate meanwhile.
        let near = (0..200).any(|_| {
            let found = Look::new(&mem, Some(&pages)).walks(&maps.all, || Ticks(0));
            let (system, free) = told();
            found.is_some_and(|Walk { arenas: a, .. }| {
                a.system.abs_diff(system) <= system / 50
                    && a.free.abs_diff(free) <= free / 50
                    && a.free_resident <= a.free
                    && a.each.iter().map(|e| e.mapped).sum::<u64>() == a.system
            })
        });
        let again = Look::new(&mem, Some(&pages)).walks(&maps.all, || Ticks(0));
        assert!(near, "{again:?} for {:?}", told());
        assert!(blocks.len() > 9000);
    }

    #[test]
    fn bytes_that_were_seen_in_two_places_count_once() {
        let all = vec![(300, 400), (100, 200), (150, 180), (190, 260), (100, 120), (500, 600)];
        let (chunks, twice) = FreeChunks::of(all);
        assert_eq!((chunks.0.as_slice(), twice), (&[(100, 260), (300, 400), (500, 600)][..], 60));
        let both = chunks.with(&FreeChunks(vec![(0, 50), (250, 310), (600, 700)]));
        assert_eq!(both.0, [(0, 50), (100, 400), (500, 700)]);
        assert_eq!(both.bytes(), 550);
    }
}
