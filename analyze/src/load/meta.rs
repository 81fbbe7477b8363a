//! What a recording says beside its events.

use super::process::ProcessSeen;
use super::{Clock, IdMap};
use prof_trace::derived::{Frames, Zipped};
use prof_trace::pcs::CUT;
use prof_trace::records::{
    Counters, End, Epoch, Hooks, Memory, Module, NodeRun, Nodes, PC_IS_TRAMPOLINE, Pass, Pcs,
    Process, Runtimes, Stripped, Symbols, Target, Thread, Toggle, kind,
};
use prof_trace::runtimes::Runtime;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// No stack is followed further than this, so that nodes that name each other do no harm.
const DEEPEST: usize = 4096;

/// No more bytes are taken out of compressed chunks, so that a small file can't be made to fill the memory.
const UNZIPPED: u64 = 1 << 30;
/// Beside those that a compressed chunk usually holds for each of its own: recordings grow without bounds.
const USUAL: usize = 16;

/// A time in which recording was on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Ticks when it was switched on.
    pub start: u64,
    /// Ticks when it was switched off, or when the recording ended.
    pub end: u64,
}

/// A code address of the target: a return address, or the interrupted instruction where a signal
/// handler was entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pc {
    /// The address.
    pub address: u64,
    /// Number of the module; 0: none.
    pub module: u32,
    /// The address is that of an instruction that a signal interrupted, not one behind a call.
    pub exact: bool,
}

/// What the kernel said of the target's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Bytes of the resident set.
    pub rss_bytes: u64,
    /// Bytes of the address space.
    pub vss_bytes: u64,
    /// When.
    pub ticks: u64,
}

/// The resident set over time: at evenly thinned moments, as a recording may have any number of passes.
#[derive(Clone, Debug, Default)]
pub struct Resident {
    /// Ticks and bytes.
    at: Vec<(u64, u64)>,
    /// Each so many passes one is kept, as a power of two.
    every: u32,
    seen: u64,
}

/// So many moments of the resident set are kept.
const RESIDENT: usize = 2048;

impl Resident {
    fn push(&mut self, ticks: u64, bytes: u64) {
        let due = self.seen.trailing_zeros() >= self.every || self.seen == 0;
        self.seen += 1;
        if !due {
            return;
        }
        self.at.push((ticks, bytes));
        if self.at.len() >= RESIDENT {
            let mut i = 0;
            self.at.retain(|_| {
                i += 1;
                i % 2 == 1
            });
            self.every += 1;
        }
    }

    /// The least that was resident between two moments.
    #[must_use]
    pub fn least(&self, from: u64, to: u64) -> Option<u64> {
        self.at.iter().filter(|(t, _)| (from..=to).contains(t)).map(|(_, bytes)| *bytes).min()
    }
}

/// Where a recording keeps symbols of a module, or names of code addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolsAt {
    /// Position of the payload in the file.
    pub at: u64,
    /// Its length.
    pub len: usize,
    /// It is compressed, see [`Zipped`].
    pub zipped: bool,
}

/// What the kernel said of the target's mappings.
#[derive(Clone, Debug, Default)]
pub struct Memories {
    /// At first.
    pub first: Option<Memory>,
    /// At last.
    pub last: Option<Memory>,
}

impl Memories {
    fn take(&mut self, m: Memory) {
        if self.first.is_none() {
            self.first = Some(m.clone());
        }
        self.last = Some(m);
    }
}

/// Everything but events.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Whose recording it is.
    pub target: Target,
    /// Ticks to nanoseconds.
    pub clock: Clock,
    /// The threads, by number.
    pub threads: BTreeMap<u32, Thread>,
    /// The modules, by number.
    pub modules: BTreeMap<u32, Module>,
    /// Symbols in the recording, by module.
    pub symbols: BTreeMap<u32, SymbolsAt>,
    /// Code addresses that were looked up when the recording was packed.
    pub frames: Vec<SymbolsAt>,
    /// What was left out by `prof strip`.
    pub stripped: Option<Stripped>,
    /// What the kernel said of the target's mappings.
    pub memory: Memories,
    /// What was hooked and what was not.
    pub hooks: Hooks,
    /// The hook's own counts.
    pub counters: Counters,
    /// Why the recording ended; `None` if its end is missing.
    pub end: Option<End>,
    /// The kernel's last word on the target's memory.
    pub kernel: Option<Kernel>,
    /// The resident set over time.
    pub resident: Resident,
    /// Private memory, processor time and workers over time.
    pub process: ProcessSeen,
    /// What takes memory from the kernel itself in the target.
    pub runtimes: Vec<Runtime>,
    /// Passes seen.
    pub passes: u64,
    /// How often the machine's counter went back, and times go on as if it had not.
    pub epochs: Vec<Epoch>,
    /// How often times go back in the recording itself: builds of prof without epochs did not notice.
    pub went_back: u64,
    /// Chunks of a known kind that made no sense.
    pub bad_chunks: u64,
    toggles: Vec<Toggle>,
    /// Bytes that came out of compressed chunks.
    unzipped: u64,
    /// By id: parent (which goes by one id only) and code address id.
    nodes: IdMap<(u32, u32)>,
    /// By parent and code address id: the id that the node goes by, which is its first.
    first: HashMap<(u32, u32), u32>,
    /// The other ids of nodes: the one that it goes by.
    others: IdMap<u32>,
    pcs: IdMap<Pc>,
    trampolines: HashSet<u32>,
    last_pass: Option<u64>,
    /// Ticks of the pass that was read last.
    newest_pass: u64,
}

impl Meta {
    /// Takes a chunk of any kind but events. Returns the ticks of a pass that begins.
    pub(crate) fn take(&mut self, kind: u16, payload: &[u8], at: u64) -> Option<u64> {
        if kind != kind::ZIPPED {
            return self.plain(kind, payload, SymbolsAt { at, len: payload.len(), zipped: false });
        }
        let place = SymbolsAt { at, len: payload.len(), zipped: true };
        let zipped = Zipped::decode(payload);
        if zipped.is_some_and(|z| z.kind == kind::FILE) {
            return None; // nothing that is said of events
        }
        // What a file of that size may well hold does not count.
        let cost = |z: &Zipped<'_>| z.len().saturating_sub(USUAL * z.frame_len()) as u64;
        let fits = |z: &Zipped<'_>| self.unzipped + cost(z) <= UNZIPPED;
        match zipped.filter(fits).and_then(|z| Some((z.kind, cost(&z), z.unzip()?))) {
            Some((kind, cost, payload)) => {
                self.unzipped += cost;
                self.plain(kind, &payload, place)
            }
            None => {
                self.bad_chunks += 1;
                None
            }
        }
    }

    /// The same of a chunk that is not compressed (any more), and where it stands.
    fn plain(&mut self, kind: u16, payload: &[u8], place: SymbolsAt) -> Option<u64> {
        let mut began = None;
        let good = match kind {
            kind::TARGET => Target::decode(payload).map(|t| {
                self.clock = Clock::new(&t);
                self.target = t;
            }),
            kind::PASS => Pass::decode(payload).map(|p| {
                self.pass(&p);
                began = Some(p.ticks);
            }),
            kind::THREAD => Thread::decode(payload).map(|t| {
                self.threads.insert(t.number, t);
            }),
            kind::NODES => Nodes::decode(payload).map(|n| self.add_nodes(&n)),
            kind::NODE_RUN => {
                NodeRun::decode(payload).and_then(|r| r.nodes()).map(|n| self.add_nodes(&n))
            }
            kind::PCS => Pcs::decode(payload).map(|p| self.add_pcs(&p)),
            kind::MODULE => Module::decode(payload).map(|m| {
                self.modules.insert(m.number, m);
            }),
            kind::TOGGLE => Toggle::decode(payload).map(|t| self.toggles.push(t)),
            kind::HOOKS => Hooks::decode(payload).map(|h| self.hooks = h),
            kind::COUNTERS => Counters::decode(payload).map(|c| self.counters = c),
            kind::END => End::decode(payload).map(|e| self.end = Some(e)),
            // Only where it is: the names are read when a stack of that module is shown.
            kind::SYMBOLS => Symbols::decode(payload).map(|s| {
                self.symbols.insert(s.module, place);
            }),
            kind::FRAMES => Frames::decode(payload).map(|_| self.frames.push(place)),
            kind::STRIPPED => Stripped::decode(payload).map(|s| match &mut self.stripped {
                Some(all) => all.groups.extend(s.groups),
                None => self.stripped = Some(s),
            }),
            kind::MEMORY => Memory::decode(payload).map(|m| self.memory.take(m)),
            kind::RUNTIMES => Runtimes::decode(payload).map(|r| {
                self.runtimes = r.names.iter().filter_map(|n| Runtime::from_name(n)).collect();
            }),
            kind::PROCESS => Process::decode(payload).map(|p| self.process.take(&p)),
            kind::EPOCH => Epoch::decode(payload).map(|e| self.epochs.push(e)),
            _ => Some(()),
        };
        self.bad_chunks += good.is_none() as u64;
        began
    }

    fn pass(&mut self, p: &Pass) {
        self.end = None; // somebody took the recording up again
        self.passes += 1;
        // Passes of one collector are at most some seconds apart, and its clock is one.
        self.went_back += u64::from(p.ticks < self.newest_pass);
        self.newest_pass = p.ticks;
        self.last_pass = Some(self.last_pass.unwrap_or(0).max(p.ticks));
        self.clock.sample(p);
        if p.rss_pages != 0 {
            let page = self.target.page_size as u64;
            self.kernel = Some(Kernel {
                rss_bytes: p.rss_pages.saturating_mul(page),
                vss_bytes: p.vss_pages.saturating_mul(page),
                ticks: p.ticks,
            });
            self.resident.push(p.ticks, p.rss_pages.saturating_mul(page));
        }
    }

    fn add_nodes(&mut self, nodes: &Nodes) {
        for t in nodes.triples.as_chunks::<3>().0 {
            let [Ok(id), Ok(parent), Ok(pc)] = t.map(u32::try_from) else {
                self.bad_chunks += 1;
                return;
            };
            // 0 is the root. An id means what it meant first, as events may have been given out.
            if id == 0 || self.nodes.get(id).is_some() {
                continue;
            }
            let node = (self.one_id(parent), pc);
            self.nodes.set(id, node);
            let first = *self.first.entry(node).or_insert(id);
            if first != id {
                self.others.set(id, first);
            }
        }
    }

    /// The id that a stack node goes by: it may have several.
    #[inline]
    pub(crate) fn one_id(&self, node: u32) -> u32 {
        self.others.get(node).unwrap_or(node)
    }

    /// Whether any node has several ids.
    pub(crate) fn has_other_ids(&self) -> bool {
        !self.others.is_empty()
    }

    fn add_pcs(&mut self, pcs: &Pcs) {
        for t in pcs.triples.as_chunks::<3>().0 {
            let module = t[2] & !PC_IS_TRAMPOLINE;
            let (Ok(id), Ok(module)) = (u32::try_from(t[0]), u32::try_from(module)) else {
                self.bad_chunks += 1;
                return;
            };
            self.pcs.set(id, Pc { address: t[1], module, exact: false });
            if t[2] & PC_IS_TRAMPOLINE != 0 {
                self.trampolines.insert(id);
            }
        }
    }

    /// All code addresses that stacks have.
    pub(crate) fn code_addresses(&self) -> BTreeSet<Pc> {
        let mut all = BTreeSet::new();
        for (parent, pc) in self.nodes.values() {
            let address = self.pcs.get(pc).unwrap_or_default();
            all.insert(address);
            let outer = self.nodes.get(parent).filter(|_| self.trampolines.contains(&pc));
            if let Some(outer) = outer.and_then(|(_, pc)| self.pcs.get(pc)) {
                let address = outer.address.wrapping_sub(1);
                all.insert(Pc { address, exact: true, ..outer });
            }
        }
        all.retain(|pc| pc.address != CUT || pc.module != 0);
        all
    }

    /// Whether a stack was cut short.
    pub fn is_cut(&self, node: u32) -> bool {
        let mut at = node;
        for _ in 0..=DEEPEST {
            let Some((parent, pc)) = self.nodes.get(at).filter(|_| at != 0) else { return false };
            if parent == 0 {
                return self.pcs.get(pc).is_some_and(|p| p.address == CUT && p.module == 0);
            }
            at = parent;
        }
        true
    }

    /// The code addresses of a stack, innermost first. Empty for node 0, and where the recording
    /// lost the node.
    pub fn stack(&self, node: u32) -> Vec<Pc> {
        let mut out = Vec::new();
        let (mut at, mut interrupted) = (node, false);
        while let Some((parent, pc)) = self.nodes.get(at)
            && at != 0
            && out.len() < DEEPEST
        {
            let mut frame = self.pcs.get(pc).unwrap_or_default();
            if interrupted {
                frame.address = frame.address.wrapping_sub(1);
                frame.exact = true;
            }
            interrupted = self.trampolines.contains(&pc);
            if parent == 0 && frame.address == CUT && frame.module == 0 {
                break; // a mark, and no frame
            }
            out.push(frame);
            at = parent;
        }
        out
    }

    /// The last moment that the recording knows of, given the time of its last event.
    pub fn end_ticks(&self, last_event: u64) -> u64 {
        let end = match &self.end {
            Some(e) => e.ticks,
            None => self.last_pass.unwrap_or(0).max(last_event),
        };
        end.max(self.target.start_ticks)
    }

    /// The times in which recording was on, up to `end`. Without a word on it, it was on.
    pub fn parts(&self, end: u64) -> Vec<Part> {
        let mut toggles = self.toggles.clone();
        toggles.sort_by_key(|t| t.ticks);
        let start = self.target.start_ticks;
        let mut parts = Vec::new();
        let mut on = toggles.first().is_none_or(|t| t.on == 0).then_some(start);
        for t in &toggles {
            match (on, t.on != 0) {
                (None, true) => on = Some(t.ticks.max(start)),
                (Some(s), false) => {
                    if t.ticks > s {
                        parts.push(Part { start: s, end: t.ticks });
                    }
                    on = None;
                }
                _ => {}
            }
        }
        if let Some(s) = on {
            parts.push(Part { start: s, end: end.max(s) });
        }
        parts
    }

    /// Whether recording is on at the end of what was read, and since which ticks.
    pub fn state(&self) -> (bool, u64) {
        let last = self.toggles.iter().max_by_key(|t| t.ticks);
        last.map_or((true, self.target.start_ticks), |t| (t.on != 0, t.ticks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(toggles: &[(u64, u32)]) -> Meta {
        let mut m = Meta::default();
        m.target.start_ticks = 10;
        m.toggles = toggles.iter().map(|&(ticks, on)| Toggle { ticks, on }).collect();
        m
    }

    fn parts(toggles: &[(u64, u32)]) -> Vec<(u64, u64)> {
        meta(toggles).parts(100).iter().map(|p| (p.start, p.end)).collect()
    }

    #[test]
    fn parts_follow_the_toggles() {
        assert_eq!(parts(&[]), [(10, 100)]);
        assert_eq!(parts(&[(10, 1), (20, 0), (30, 1)]), [(10, 20), (30, 100)]);
        assert_eq!(parts(&[(20, 0), (30, 1), (40, 0)]), [(10, 20), (30, 40)]);
        assert_eq!(parts(&[(10, 0), (50, 1)]), [(50, 100)]);
        assert_eq!(parts(&[(10, 0)]), []);
        assert_eq!(parts(&[(12, 1), (13, 1), (20, 0), (21, 0)]), [(12, 20)]);
        assert_eq!(meta(&[(12, 1), (20, 0)]).state(), (false, 20));
    }

    #[test]
    fn nodes_in_a_circle_end() {
        let mut m = Meta::default();
        m.add_nodes(&Nodes { triples: vec![1, 2, 1, 2, 1, 1, 3, 3, 9, 4, 0, 1, 5] });
        m.add_pcs(&Pcs { triples: vec![1, 0x1000, 4] });
        assert_eq!(m.stack(1).len(), DEEPEST);
        assert_eq!(m.stack(3).len(), DEEPEST);
        assert_eq!(m.stack(4), [Pc { address: 0x1000, module: 4, exact: false }]);
        assert_eq!((m.stack(0), m.stack(77)), (vec![], vec![]));
    }

    #[test]
    fn ids_of_one_node_are_taken_as_one() {
        let mut m = Meta::default();
        m.add_nodes(&Nodes { triples: vec![1, 0, 5, 2, 1, 6] });
        assert!(!m.has_other_ids());
        // The same two again, a third below the second 2, and nonsense: the root, and another 2.
        m.add_nodes(&Nodes { triples: vec![3, 0, 5, 4, 3, 6, 7, 4, 8, 0, 0, 5, 2, 1, 9] });
        m.add_nodes(&Nodes { triples: vec![8, 2, 8, 9, 9, 9, 10, 9, 9, 11, 77, 1, 77, 11, 1] });
        let one: Vec<_> = (0..12).map(|id| m.one_id(id)).collect();
        assert_eq!(one, [0, 1, 2, 1, 2, 5, 6, 7, 7, 9, 9, 11]);
        m.add_pcs(&Pcs { triples: vec![5, 0x5000, 0, 6, 0x6000, 0, 8, 0x8000, 0] });
        let at = |id| m.stack(id).iter().map(|p| p.address).collect::<Vec<_>>();
        assert_eq!(at(8), [0x8000, 0x6000, 0x5000]);
        assert_eq!((at(8), at(4)), (at(7), at(2)));
    }
}
