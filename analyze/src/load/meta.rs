//! Collects everything in a recording except its events.

use super::before::{BeforeClasses, CensusSeen, is_before};
use super::pc::Pc;
use super::process::ProcessSeen;
use super::resident::{Kernel, Resident};
use super::scans::{ScanAt, is_scan_part};
use super::stripped::StepAt;
use super::{Clock, IdMap};
use prof_trace::derived::{Frames, Zipped};
use prof_trace::pcs::CUT;
use prof_trace::records::{
    Allocators, Call, CallFile, Calls, Census, CensusClasses, Counters, Distance, End, Epoch,
    FoldFailed, Folded, Hooks, Joined, MARKS, Mappings, Mark, Memory, Module, NodeRun, Nodes,
    PC_IS_TRAMPOLINE, Pass, Pcs, Process, Runtimes, Scan, Step, Stripped, Symbols, Target, Thread,
    Toggle, WentOver, kind,
};
use prof_trace::runtimes::Runtime;
use prof_trace::ticks::Ticks;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Greatest depth of a stack that is followed, so that nodes that form a cycle do no harm.
const DEEPEST: usize = 4096;

/// Limit of the bytes decompressed in excess of the usual, so that a small file can't fill the memory.
const UNZIPPED: u64 = 1 << 30;
/// Usual ratio of compression: up to this, decompressed bytes do not count, as recordings grow without bounds.
const USUAL: usize = 16;

/// A period in which recording was on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Ticks when it was switched on.
    pub start: Ticks,
    /// Ticks when it was switched off, or when the recording ended.
    pub end: Ticks,
}

/// Location of a module's symbols, or of names of code addresses, in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymbolsAt {
    /// File offset of the payload.
    pub at: u64,
    /// Length of the payload.
    pub len: usize,
    /// The payload is compressed, see [`Zipped`].
    pub zipped: bool,
}

/// The first and the last record of the target's mappings.
#[derive(Clone, Debug, Default)]
pub struct Memories {
    /// The first record.
    pub first: Option<Memory>,
    /// The last record.
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

/// Everything in a recording except its events.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// The recorded process.
    pub target: Target,
    /// Converts ticks to nanoseconds.
    pub clock: Clock,
    /// The threads, by number.
    pub threads: BTreeMap<u32, Thread>,
    /// The modules, by number.
    pub modules: BTreeMap<u32, Module>,
    /// Location of the recorded symbols, by module.
    pub symbols: BTreeMap<u32, SymbolsAt>,
    /// Location of the code addresses that were symbolised when the recording was packed.
    pub frames: Vec<SymbolsAt>,
    /// The figures that `prof strip` saved when it removed blocks.
    pub stripped: Option<Stripped>,
    /// The figures of blocks that were left out when the oldest part was folded.
    pub folded: Option<Folded>,
    /// The last time that this could not be done.
    pub fold_failed: Option<FoldFailed>,
    /// The end of the events that became figures by stack at a bound.
    pub went_over: Option<WentOver>,
    /// Place of each stack's figures in those of [`Meta::stripped`], by node.
    pub(super) stripped_at: HashMap<u64, usize>,
    /// Location of the figures of a recording without events, in their order.
    pub(crate) steps: Vec<StepAt>,
    /// The target's mappings, at first and at last.
    pub memory: Memories,
    /// The scans of the target's memory, in the order in which they were made.
    pub scans: Vec<ScanAt>,
    /// Location of the looks at the target's mappings, see [`Maps`](crate::maps::Maps).
    pub mappings: Vec<SymbolsAt>,
    /// The latest record about the target's allocators.
    pub allocators: Option<Allocators>,
    /// Functions that were hooked or not.
    pub hooks: Hooks,
    /// The hook's counters.
    pub counters: Counters,
    /// Why the recording ended; `None` if its end is missing.
    pub end: Option<End>,
    /// Facts about the recordings that this one was joined from, if it was.
    pub joined: Option<Joined>,
    /// The last reading of the target's memory.
    pub kernel: Option<Kernel>,
    /// The resident set over time.
    pub resident: Resident,
    /// Private memory, processor time and worker processes over time.
    pub process: ProcessSeen,
    /// Runtimes in the target that take memory from the kernel themselves.
    pub runtimes: Vec<Runtime>,
    /// Number of passes read.
    pub passes: u64,
    /// Jumps backwards of the machine's counter, after which the recorded times continue.
    pub epochs: Vec<Epoch>,
    /// Changes of the sampling distance: ticks and bytes. The first distance is that of [`Meta::target`].
    pub distances: Vec<(Ticks, u64)>,
    /// Number of jumps backwards of the recorded times themselves; earlier versions of prof did not correct them.
    pub went_back: u64,
    /// Number of chunks of a known kind that could not be decoded.
    pub bad_chunks: u64,
    toggles: Vec<Toggle>,
    /// The marks, in the order in which they were set, up to [`MARKS`].
    pub marks: Vec<Mark>,
    /// Decompressed bytes, in excess of the usual.
    unzipped: u64,
    /// Parent (in its canonical ID) and code address ID, by node ID.
    nodes: IdMap<(u32, u32)>,
    /// Canonical ID of a node, its first, by parent and code address ID.
    first: HashMap<(u32, u32), u32>,
    /// Canonical ID of a node, by each of its other IDs.
    pub(super) others: IdMap<u32>,
    pcs: IdMap<Pc>,
    trampolines: HashSet<u32>,
    last_pass: Option<Ticks>,
    /// Ticks of the pass that was read last.
    newest_pass: Ticks,
    /// Files that calls have mapped, by number.
    pub call_files: HashMap<u32, Arc<CallFile>>,
    /// Location of the calls that change mappings.
    pub(crate) calls: Vec<CallsAt>,
    /// Calls that are older than others of earlier chunks may be, as they have taken long.
    pub(super) late_calls: Vec<(u32, Call)>,
    /// Somebody takes the calls from [`Meta::new_calls`].
    pub(super) passes_calls_on: bool,
    /// Calls that were read and not yet passed on, with their threads.
    pub(super) new_calls: Vec<(u32, Call)>,
    /// Ticks of the pass before the one that was read last.
    pass_before: Ticks,
    /// The blocks from before the recording, if a census has found them.
    pub census: Option<CensusSeen>,
    /// The classes of these blocks.
    pub(crate) before_classes: BeforeClasses,
    /// Location of parts of the census that were read and not yet passed on.
    pub(super) new_census: Vec<SymbolsAt>,
}

/// Location of a chunk of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallsAt {
    pub at: SymbolsAt,
    /// Ticks that no call of this or a later chunk is older than, but for those that are late.
    pub since: Ticks,
}

impl Meta {
    /// Creates one whose owner takes the calls as they are read.
    pub(super) fn passing_calls_on() -> Self {
        Self { passes_calls_on: true, ..Self::default() }
    }

    /// Returns the module that was loaded at an address last, with its number.
    pub fn module_at(&self, address: u64) -> Option<(u32, &Module)> {
        let there = self.modules.iter().filter(|(_, m)| (m.start..m.end).contains(&address));
        there.max_by_key(|(id, _)| **id).map(|(id, m)| (*id, m))
    }

    /// Decodes a chunk of any kind except events. Returns the ticks of a pass that begins.
    pub(crate) fn take(&mut self, kind: u16, payload: &[u8], at: u64) -> Option<Ticks> {
        if kind != kind::ZIPPED {
            return self.plain(kind, payload, SymbolsAt { at, len: payload.len(), zipped: false });
        }
        let place = SymbolsAt { at, len: payload.len(), zipped: true };
        let zipped = Zipped::decode(payload);
        if zipped.is_some_and(|z| z.kind == kind::FILE) {
            return None; // nothing that is said of events
        }
        if let Some(kind) = zipped.map(|z| z.kind).filter(|k| is_scan_part(*k)) {
            self.add_scan_part(kind, place);
            return None;
        }
        // Bytes that a file of this size usually holds do not count.
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

    /// Decodes a chunk that is not, or no longer, compressed. `place` is its location.
    fn plain(&mut self, kind: u16, payload: &[u8], place: SymbolsAt) -> Option<Ticks> {
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
            kind::JOINED => Joined::decode(payload).map(|j| self.joined = Some(j)),
            // Note only the location: the names are read when a stack of the module is shown.
            kind::SYMBOLS => Symbols::decode(payload).map(|s| {
                self.symbols.insert(s.module, place);
            }),
            kind::FRAMES => Frames::decode(payload).map(|_| self.frames.push(place)),
            kind::STRIPPED => Stripped::decode(payload).map(|s| self.strip(s)),
            kind::FOLDED => Folded::decode(payload).map(|f| self.fold(f)),
            kind::FOLD_FAILED => FoldFailed::decode(payload).map(|f| self.fold_failed = Some(f)),
            kind::WENT_OVER => WentOver::decode(payload).map(|w| self.went_over = Some(w)),
            kind::STEP => Step::decode(payload).map(|s| {
                self.steps.push(StepAt { at: place, begin: s.begin, end: s.end });
            }),
            kind::MEMORY => Memory::decode(payload).map(|m| self.memory.take(m)),
            kind::SCAN => Scan::decode(payload).map(|s| self.add_scan(s, place)),
            kind if is_scan_part(kind) => {
                self.add_scan_part(kind, place);
                Some(())
            }
            kind::MAPPINGS => Mappings::decode(payload).map(|_| self.mappings.push(place)),
            kind::ALLOCATORS => Allocators::decode(payload).map(|a| self.allocators(a)),
            kind::RUNTIMES => Runtimes::decode(payload).map(|r| {
                self.runtimes = r.names.iter().filter_map(|n| Runtime::from_name(n)).collect();
            }),
            kind::PROCESS => Process::decode(payload).map(|p| self.process.take(&p)),
            kind::EPOCH => Epoch::decode(payload).map(|e| self.epochs.push(e)),
            kind::MARK => Mark::decode(payload).map(|m| {
                if self.marks.len() < MARKS {
                    self.marks.push(m);
                }
            }),
            kind::DISTANCE => Distance::decode(payload).map(|d| self.distance(&d)),
            kind::CALLS => Calls::decode(payload).map(|c| self.add_calls(c, place)),
            kind::CENSUS => Census::decode(payload).map(|c| self.add_census(&c, place)),
            kind::CENSUS_CLASSES => CensusClasses::decode(payload).map(|c| self.add_classes(c)),
            kind::CALL_FILE => CallFile::decode(payload).map(|f| {
                self.call_files.insert(f.id, Arc::new(f));
            }),
            _ => Some(()),
        };
        self.bad_chunks += good.is_none() as u64;
        began
    }

    /// Keeps what was read last. A look that found no arenas, or did not search as long, takes nothing away.
    fn allocators(&mut self, mut new: Allocators) {
        if let Some(old) = self.allocators.take() {
            if new.arenas.is_empty() {
                (new.arena_len, new.arenas) = (old.arena_len, old.arenas);
            }
            if new.found.len() < old.found.len() {
                new.found = old.found;
            }
        }
        self.allocators = Some(new);
    }

    fn add_calls(&mut self, all: Calls, at: SymbolsAt) {
        let least = self.calls.last().map_or(Ticks::ZERO, |c| c.since);
        let since = self.pass_before.max(least);
        self.calls.push(CallsAt { at, since });
        let late = all.calls.iter().filter(|c| c.1.at() < since);
        self.late_calls.extend(late.cloned());
        if self.passes_calls_on {
            self.new_calls.extend(all.calls);
        }
    }

    /// Returns whether the recording is one of the kernel's own memory, as `prof kernel` makes it.
    #[must_use]
    pub fn is_of_kernel(&self) -> bool {
        let hooked = &self.hooks.hooked;
        !hooked.is_empty() && hooked.iter().all(|h| h.method == "tracepoint")
    }

    fn pass(&mut self, p: &Pass) {
        self.end = None; // somebody took the recording up again
        self.passes += 1;
        // Passes of one collector are seconds apart at most, and use one clock.
        self.went_back += u64::from(p.ticks < self.newest_pass);
        self.pass_before = self.newest_pass;
        self.newest_pass = p.ticks;
        self.last_pass = Some(self.last_pass.unwrap_or_default().max(p.ticks));
        self.clock.sample(p);
        if p.rss_pages != 0 {
            let page = self.target.page_size as u64;
            let rss_bytes = p.rss_pages.saturating_mul(page);
            let vss_bytes = p.vss_pages.saturating_mul(page);
            self.kernel = Some(Kernel { rss_bytes, vss_bytes, ticks: p.ticks });
            self.resident.push(p.ticks, rss_bytes, vss_bytes);
        }
    }

    fn add_nodes(&mut self, nodes: &Nodes) {
        for t in nodes.triples.as_chunks::<3>().0 {
            let [Ok(id), Ok(parent), Ok(pc)] = t.map(u32::try_from) else {
                self.bad_chunks += 1;
                return;
            };
            // 0 is the root. The first meaning of an ID stays, as events may already have been passed on.
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

    /// Returns the canonical ID of a stack node, which may have several IDs.
    #[inline]
    pub(crate) fn one_id(&self, node: u32) -> u32 {
        self.others.get(node).unwrap_or(node)
    }

    /// Returns the other IDs of nodes that have several, with the canonical ones.
    pub(crate) fn other_ids(&self) -> impl Iterator<Item = (u32, u32)> {
        self.others.entries()
    }

    /// Returns whether any node has several IDs.
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

    /// Returns ID, parent and code address ID of all nodes that stacks are made of, parents before their children.
    pub(crate) fn nodes_in_order(&self) -> Vec<[u32; 3]> {
        let (mut all, mut done, mut path) = (Vec::new(), HashSet::new(), Vec::new());
        for (id, _) in self.nodes.entries() {
            let mut at = self.one_id(id);
            while at != 0
                && path.len() < DEEPEST
                && let Some((parent, pc)) = self.nodes.get(at)
                && done.insert(at)
            {
                path.push([at, parent, pc]);
                at = parent;
            }
            all.extend(path.drain(..).rev());
        }
        all
    }

    /// Returns a code address, and whether it is that of a signal trampoline.
    pub(crate) fn pc(&self, id: u32) -> (Pc, bool) {
        (self.pcs.get(id).unwrap_or_default(), self.trampolines.contains(&id))
    }

    /// Returns all code addresses of stacks.
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

    /// Returns whether a stack was cut short.
    pub fn is_cut(&self, node: u32) -> bool {
        if is_before(node) {
            return false;
        }
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

    /// Returns the code addresses of a stack, innermost first. They are empty for node 0, and where the node is
    /// missing.
    pub fn stack(&self, node: u32) -> Vec<Pc> {
        let mut out = Vec::new();
        if is_before(node) {
            return self.before_classes.frames(node);
        }
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

    /// Returns the last moment that the recording knows of, given the time of its last event.
    pub fn end_ticks(&self, last_event: Ticks) -> Ticks {
        let end = match &self.end {
            Some(e) => e.ticks,
            None => self.last_pass.unwrap_or_default().max(last_event),
        };
        end.max(self.target.start_ticks)
    }

    /// Returns the periods up to `end` in which recording was on. Without any record of switching, it was on.
    pub fn parts(&self, end: Ticks) -> Vec<Part> {
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

    /// Returns whether recording was off between two of its parts, or all the time. An attach takes some time before it is
    /// on, and a detach after it is off.
    pub(crate) fn was_off(&self) -> bool {
        self.parts(self.end_ticks(Ticks::ZERO)).len() != 1
    }

    /// Returns whether recording was on at the end of what was read, and since which ticks.
    pub fn state(&self) -> (bool, Ticks) {
        let last = self.toggles.iter().max_by_key(|t| t.ticks);
        last.map_or((true, self.target.start_ticks), |t| (t.on != 0, t.ticks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(toggles: &[(u64, u32)]) -> Meta {
        let mut m = Meta::default();
        m.target.start_ticks = Ticks(10);
        m.toggles = toggles.iter().map(|&(ticks, on)| Toggle { ticks: Ticks(ticks), on }).collect();
        m
    }

    fn parts(toggles: &[(u64, u32)]) -> Vec<(u64, u64)> {
        meta(toggles).parts(Ticks(100)).iter().map(|p| (p.start.0, p.end.0)).collect()
    }

    #[test]
    fn parts_follow_the_toggles() {
        assert_eq!(parts(&[]), [(10, 100)]);
        assert_eq!(parts(&[(10, 1), (20, 0), (30, 1)]), [(10, 20), (30, 100)]);
        assert_eq!(parts(&[(20, 0), (30, 1), (40, 0)]), [(10, 20), (30, 40)]);
        assert_eq!(parts(&[(10, 0), (50, 1)]), [(50, 100)]);
        assert_eq!(parts(&[(10, 0)]), []);
        assert_eq!(parts(&[(12, 1), (13, 1), (20, 0), (21, 0)]), [(12, 20)]);
        assert_eq!(meta(&[(12, 1), (20, 0)]).state(), (false, Ticks(20)));
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
        // The same two nodes under other IDs, a child of the second of them, and invalid ones: the root, and 2 anew.
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
