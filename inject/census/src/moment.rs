//! A walk of the heap in one moment: what takes long and need not be of that moment is done before.

use crate::arena::Arenas;
use crate::cached::{mark_cached, mark_fast};
use crate::census::{Lost, Raw, taken};
use crate::chunk::{HEADER, State};
use crate::error::Error;
use crate::jemalloc::{self, Heap, Tree};
use crate::mapped::{self, Own};
use crate::mimalloc;
use crate::musl;
use crate::pieces;
use crate::tcmalloc;
use crate::view::View;
use crate::walk::Walked;
use prof_os::Pid;
use prof_os::maps::{self, Map};
use prof_os::memory::Reader;
use prof_os::stat::Stat;
use std::collections::HashSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bytes of a heap that are walked in a second at least, to tell beforehand how long a stop would be.
const RATE: u64 = 512 << 20;
/// A second walk of a heap may take this many times as long as the first: other processes may need the
/// processor.
const MARGIN: u32 = 2;

/// A walk that is prepared: memory to which no list of glibc leads, so that all mappings have to be searched for it, is
/// found while the process runs.
pub struct Walk {
    pub(crate) pid: Pid,
    pub(crate) reader: Reader,
    pub(crate) until: Instant,
    /// Bytes that were read so far.
    pub(crate) bytes: u64,
    /// Time was up before all was searched.
    pub(crate) late: bool,
    /// Mappings in which blocks with mappings of their own may lie, in order.
    searched: Vec<Range<u64>>,
    /// Blocks with mappings of their own, in order.
    own: Vec<Own>,
    /// Memory of the main arena.
    pieces: Vec<Range<u64>>,
    arenas: usize,
    /// Bytes that all arenas have from the kernel.
    system: u64,
    /// What leads to the heaps of other allocators, and how long it took to walk them while the process ran.
    leads: Leads,
    walking: Duration,
    /// Bytes of pages with blocks of others, and of musl's groups.
    active: u64,
}

/// The blocks of a moment.
pub struct Taken {
    raw: Raw,
}

/// A block, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    /// The address that the program has, or where the place of an aligned block of mimalloc's begins.
    pub address: u64,
    /// Bytes that the program can use.
    pub size: u64,
    /// Whether it lies in glibc's main arena.
    pub main: bool,
    /// Whether it has a mapping of its own.
    pub mapped: bool,
    /// Whether it has a header, as glibc's blocks have.
    pub headed: bool,
}

/// Returns the words of jemalloc's own data that are addresses of blocks and hold none of them: where each stands and the
/// address, in order. The process runs meanwhile. There are none in a process without a jemalloc that can be walked.
///
/// # Errors
/// If the process has ended or can't be read.
pub fn own_words(pid: Pid, timeout: Duration) -> Result<Vec<(u64, u64)>, Error> {
    let (reader, maps) = open(pid)?;
    let mut view = View::new(&reader, Instant::now() + timeout);
    let trees = jemalloc::find(&mut view, &maps);
    let heaps = walk(&mut view, &maps, &trees);
    let mut all: Vec<(u64, u64)> = heaps.iter().flat_map(Heap::words).collect();
    all.sort_unstable();
    Ok(all)
}

/// Opens the memory of a process, and reads its mappings.
fn open(pid: Pid) -> Result<(Reader, Vec<Map>), Error> {
    let gone = |e| match prof_os::process::has_ended(pid) {
        true => Error::Ended(pid),
        false => Error::Memory(pid, e),
    };
    let reader = Reader::open(pid).map_err(gone)?;
    let maps = maps::of(pid).map_err(|_| Error::Ended(pid))?;
    if maps.is_empty() {
        return Err(Error::Ended(pid));
    }
    Ok((reader, maps))
}

fn start_brk(pid: Pid) -> u64 {
    Stat::of(pid).and_then(|s| s.start_brk()).unwrap_or(0)
}

/// Walks the heaps of jemallocs.
fn walk(view: &mut View<'_>, maps: &[Map], trees: &[Tree]) -> Vec<Heap> {
    trees.iter().map(|t| Heap::walk(view, maps, t)).collect()
}

/// What leads to the heaps of allocators other than glibc's: the maps of jemallocs, and the data of others.
struct Leads {
    trees: Vec<Tree>,
    musl: Vec<musl::Context>,
    mimalloc: Vec<mimalloc::Context>,
    tcmalloc: Vec<tcmalloc::Context>,
}

/// The heaps of allocators other than glibc's.
struct Others {
    heaps: Vec<Heap>,
    musl: Vec<musl::Heap>,
    mimalloc: Vec<mimalloc::Heap>,
    tcmalloc: Vec<tcmalloc::Heap>,
}

impl Leads {
    fn find(view: &mut View<'_>, maps: &[Map]) -> Self {
        Self {
            trees: jemalloc::find(view, maps),
            musl: musl::find(view, maps),
            mimalloc: mimalloc::find(view, maps),
            tcmalloc: tcmalloc::find(view, maps),
        }
    }

    fn is_empty(&self) -> bool {
        let first = self.trees.is_empty() && self.musl.is_empty();
        first && self.mimalloc.is_empty() && self.tcmalloc.is_empty()
    }

    fn walk(&self, view: &mut View<'_>, maps: &[Map]) -> Others {
        Others {
            heaps: walk(view, maps, &self.trees),
            musl: self.musl.iter().map(|c| musl::Heap::walk(view, maps, c)).collect(),
            mimalloc: self.mimalloc.iter().map(|c| mimalloc::Heap::walk(view, maps, c)).collect(),
            tcmalloc: self.tcmalloc.iter().map(|c| tcmalloc::Heap::walk(view, maps, c)).collect(),
        }
    }
}

impl Others {
    /// Returns the bytes of pages with blocks, and of musl's groups.
    fn active(&self) -> u64 {
        let all = self.heaps.iter().map(Heap::active);
        let all = all.chain(self.musl.iter().map(musl::Heap::system));
        let all = all.chain(self.mimalloc.iter().map(mimalloc::Heap::active));
        let all = all.chain(self.tcmalloc.iter().map(tcmalloc::Heap::active));
        all.fold(0, u64::saturating_add)
    }

    /// Returns the memory that the allocators have.
    fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let all = self.heaps.iter().flat_map(Heap::ranges);
        let all = all.chain(self.musl.iter().flat_map(musl::Heap::ranges));
        let all = all.chain(self.mimalloc.iter().flat_map(mimalloc::Heap::ranges));
        all.chain(self.tcmalloc.iter().flat_map(tcmalloc::Heap::ranges))
    }
}

impl Walk {
    /// Calls `read` with this walk on a copy of the process.
    ///
    /// # Errors
    /// If the copy can't be read, or `read` fails.
    pub(crate) fn of_copy<T>(
        &mut self,
        copy: Pid,
        read: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let reader = Reader::open(copy).map_err(|e| Error::Memory(copy, e))?;
        let original = (self.pid, std::mem::replace(&mut self.reader, reader));
        self.pid = copy;
        let done = read(self);
        (self.pid, self.reader) = original;
        done
    }

    /// Searches the memory of a process. `timeout` is for this and for the walk together.
    ///
    /// # Errors
    /// If the process has ended or can't be read.
    pub fn prepare(pid: Pid, timeout: Duration) -> Result<Self, Error> {
        let until = Instant::now() + timeout;
        let (reader, maps) = open(pid)?;
        let mut view = View::new(&reader, until);
        let mut arenas = Arenas::find(&mut view, &maps, start_brk(pid));
        let pieces = pieces::find(&mut view, &arenas, &maps);
        arenas.add_pieces(&mut view, &pieces);
        let leads = Leads::find(&mut view, &maps);
        let began = Instant::now();
        let others = leads.walk(&mut view, &maps);
        let (walking, active) = (began.elapsed(), others.active());
        let searched: Vec<&Map> = maps.iter().filter(|m| mapped::may_have(m)).collect();
        let mut own = Vec::new();
        // A process that has no arena has another allocator, whose memory may look like anything.
        if !arenas.all.is_empty() {
            let taken = taken(&arenas, &maps, others.ranges());
            own.extend(searched.iter().flat_map(|m| mapped::find(&mut view, m, &taken)));
        }
        let (bytes, late) = (view.bytes, view.is_late());
        let system = arenas.all.iter().fold(0u64, |sum, a| sum.saturating_add(a.system));
        let searched = searched.iter().map(|m| m.start.0..m.end.0).collect();
        let arenas = arenas.all.len();
        Ok(Self {
            pid,
            reader,
            until,
            bytes,
            late,
            searched,
            own,
            pieces,
            arenas,
            system,
            leads,
            walking,
            active,
        })
    }

    /// Returns whether there is a heap that can be walked.
    #[must_use]
    pub fn has_heap(&self) -> bool {
        self.arenas > 0 || !self.leads.is_empty()
    }

    /// Returns whether there is a jemalloc.
    #[must_use]
    pub fn has_jemalloc(&self) -> bool {
        !self.leads.trees.is_empty()
    }

    /// Returns whether there is an allocator of musl's.
    #[must_use]
    pub fn has_musl(&self) -> bool {
        !self.leads.musl.is_empty()
    }

    /// Returns whether there is a mimalloc.
    #[must_use]
    pub fn has_mimalloc(&self) -> bool {
        !self.leads.mimalloc.is_empty()
    }

    /// Returns whether there is a tcmalloc.
    #[must_use]
    pub fn has_tcmalloc(&self) -> bool {
        !self.leads.tcmalloc.is_empty()
    }

    /// Returns how long the walk takes at most, as far as the size of glibc's heap and a first walk of the others tell.
    #[must_use]
    pub fn estimate(&self) -> Duration {
        Duration::from_secs_f64(self.system as f64 / RATE as f64) + self.walking * MARGIN
    }

    /// Returns the bytes that glibc's heap has from the kernel, and those of pages with blocks of others.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        self.system.saturating_add(self.active)
    }

    /// Walks the heap, for at most this time. If no thread runs meanwhile, the blocks are exactly those of the moment.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn read(&self, limit: Duration) -> Result<Taken, Error> {
        let raw = self.raw(self.until.min(Instant::now() + limit))?;
        Ok(Taken { raw: Raw { late: raw.late || self.late, ..raw } })
    }

    pub(crate) fn raw(&self, until: Instant) -> Result<Raw, Error> {
        let maps = maps::of(self.pid).map_err(|_| Error::Ended(self.pid))?;
        let mut view = View::new(&self.reader, until);
        let mut arenas = Arenas::find(&mut view, &maps, start_brk(self.pid));
        arenas.add_pieces(&mut view, &self.pieces);
        let mut walked = Walked::of(&mut view, &arenas.regions);
        let mut caches = Vec::new();
        let mut links = mark_cached(&mut view, &mut walked, &mut caches);
        for a in &arenas.all {
            links += mark_fast(&mut view, &mut walked, &a.fast);
        }
        let others = self.leads.walk(&mut view, &maps);
        let taken = taken(&arenas, &maps, others.ranges());
        let own = match arenas.all.is_empty() {
            true => Vec::new(),
            false => self.own(&mut view, &maps, &taken),
        };
        if prof_os::process::has_ended(self.pid) {
            return Err(Error::Ended(self.pid));
        }
        let (bytes, late) = (view.bytes, view.is_late());
        let (stop, Others { heaps, musl, mimalloc, tcmalloc }) = (None, others);
        Ok(Raw {
            maps,
            arenas,
            walked,
            caches,
            links,
            own,
            heaps,
            musl,
            mimalloc,
            tcmalloc,
            taken,
            bytes,
            late,
            stop,
        })
    }

    /// Returns the blocks that have mappings of their own: those that were found before, and what is in mappings that
    /// have changed since.
    fn own(&self, view: &mut View<'_>, maps: &[Map], taken: &[Range<u64>]) -> Vec<Own> {
        let mut all = Vec::new();
        for m in maps.iter().filter(|m| mapped::may_have(m)) {
            let range = m.start.0..m.end.0;
            let from = self.own.partition_point(|o| o.start < range.start);
            let known = self.own[from..].iter().take_while(|o| o.start < range.end);
            let at = self.searched.partition_point(|s| s.start < range.start);
            let is_same = self.searched.get(at) == Some(&range);
            if is_same && known.clone().all(|o| mapped::is_there(view, o)) {
                all.extend(known);
            } else {
                all.extend(mapped::find(view, m, taken));
            }
        }
        all
    }
}

impl Taken {
    /// Returns what could not be followed.
    #[must_use]
    pub fn lost(&self) -> Lost {
        self.raw.lost()
    }

    /// Returns the blocks that the program has, in the order of their addresses. The caches of threads, which allocators
    /// make and free without a call of `malloc` or `free`, are none of them.
    #[must_use]
    pub fn blocks(&self) -> Vec<Placed> {
        let Raw { arenas, walked, caches, own, heaps, musl, mimalloc, tcmalloc, .. } = &self.raw;
        let caches: HashSet<u64> = caches.iter().copied().collect();
        let mut all = Vec::new();
        for (arena, chunks) in &walked.regions {
            let main = *arena == 0;
            let in_use = walked.chunks[chunks.clone()].iter().filter(|c| c.state() == State::InUse);
            let placed = in_use.map(|c| Placed {
                address: c.user(),
                size: c.usable(),
                main,
                mapped: false,
                headed: true,
            });
            all.extend(placed.filter(|p| !caches.contains(&p.address)));
        }
        debug_assert!(!arenas.all.is_empty() || all.is_empty());
        all.extend(own.iter().map(|o| o.chunk).map(|c| Placed {
            address: c.user(),
            size: c.size() - HEADER,
            main: false,
            mapped: true,
            headed: true,
        }));
        let others = heaps.iter().flat_map(Heap::blocks).map(|p| (p.address, p.size));
        let more = musl.iter().flat_map(musl::Heap::blocks);
        let more = more.chain(mimalloc.iter().flat_map(mimalloc::Heap::blocks));
        let more = more.chain(tcmalloc.iter().flat_map(tcmalloc::Heap::blocks));
        let others = others.chain(more.map(|b| (b.address, b.size)));
        all.extend(others.map(|(address, size)| Placed {
            address,
            size,
            main: false,
            mapped: false,
            headed: false,
        }));
        all.sort_unstable();
        all
    }
}
