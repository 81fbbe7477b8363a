//! Joins the recordings of several processes into one, so that every question to it is one about all of them.
//!
//! Times are the machine's, and stay. Addresses of blocks get the number of their recording in their high bits, as
//! processes have blocks at the same addresses. Code is told apart by module (path and build ID) and offset: the address
//! of a module is that in the first recording that has it, so that stacks of the same code are the same stack. Code
//! outside of modules is named here, by what is known of its own process.
//!
//! Mappings, resident memory and allocators are those of one process each, and are left out.

use super::RewriteError;
use super::inherited::{self, Ancestor, Inherited};
use super::joining::{Joining, Numbers};
use super::out::Out;
use crate::Analysis;
use crate::analysis::{Source, read_all};
use crate::heap::Totals;
use crate::load::open_file;
use crate::load::{
    BEFORE_THREAD, ChunkFile, Clock, Item, LoadOptions, Meta, Op, OpKind, Pc, Sink, Stream,
};
use crate::symbols::{SymbolOptions, Symbolizer};
use prof_trace::derived::{Frames, NamedAddress, NamedFrame};
use prof_trace::records::{
    CensusClasses, Counters, End, Hook, Hooks, Mark, Module, Nodes, PC_IS_TRAMPOLINE, Pass, Pcs,
    Runtimes, Symbols, Target, Thread, kind,
};
use prof_trace::ticks::Ticks;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Number of triples in a chunk.
const TRIPLES: usize = 65_536;
/// Number of bits of an address of the target.
const ADDRESS_BITS: u32 = 48;
/// Greatest number of recordings, so that their numbers fit above the addresses.
const MOST: usize = 1 << 15;
/// Number of readings of the clock.
const READINGS: u64 = 64;
/// Clocks that differ by more than this in seconds are not the same.
const APART: u64 = 1;

/// Describes the joined recording.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// Name of all processes together.
    pub name: String,
    /// Path that stands for all recordings.
    pub path: PathBuf,
    /// Options of the search for symbols of code outside of modules.
    pub symbols: SymbolOptions,
}

/// Result of joining.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// Number of recordings that were joined.
    pub recordings: u64,
    /// Number of those whose process has ended.
    pub ended: u64,
    /// Recordings that could not be read, with the reason.
    pub left_out: Vec<(PathBuf, String)>,
}

/// Writes one recording that has the blocks of all of these.
///
/// # Errors
/// If none can be read, they record different blocks, or the output can't be written.
pub fn join(
    paths: &[PathBuf],
    options: &JoinOptions,
    out: &mut dyn Write,
) -> Result<Joined, RewriteError> {
    let mut done = Joined::default();
    let mut all: Vec<(&Path, Target)> = Vec::new();
    for path in paths {
        match target(path) {
            Ok(target) => all.push((path, target)),
            Err(e) => done.left_out.push((path.clone(), e.to_string())),
        }
    }
    all.sort_by_key(|(_, t)| (t.wall_ns, t.pid));
    let Some((_, first)) = all.first() else {
        let why = done.left_out.first().map_or("there is none".into(), |l| l.1.clone());
        return Err(RewriteError::Different(format!("no recording can be read: {why}")));
    };
    if all.iter().any(|(_, t)| t.capture() != first.capture() || t.arch != first.arch) {
        return Err(RewriteError::Different(
            "the recordings have different blocks (--sample, --min-size and their like), or are of different machines"
                .into(),
        ));
    }
    if all.len() > MOST {
        return Err(RewriteError::Different(format!("more than {MOST} recordings")));
    }
    let mut to = Out::fast(out)?;
    to.put(kind::TARGET, &of_all(&all, options).encode())?;
    let mut joiner = Joiner::new(to, options, first.clone());
    for (number, (path, target)) in all.iter().enumerate() {
        joiner.add(number as u64, path, target)?;
    }
    joiner.finish()?;
    done.recordings = all.len() as u64;
    done.ended = joiner.ended;
    Ok(done)
}

/// Writes the recording of one process with the blocks that it has from its ancestors, the eldest first. These are as they were
/// allocated there: with their stacks, and at their times.
///
/// # Errors
/// If one of the recordings can't be read, or has figures in place of blocks, or the output can't be written.
pub fn join_inherited(
    path: &Path,
    ancestors: &[Ancestor],
    options: &JoinOptions,
    out: &mut dyn Write,
) -> Result<(), RewriteError> {
    let own = target(path)?;
    let first = ancestors.first().map_or_else(|| Ok(own.clone()), |a| target(&a.path))?;
    if own.capture() != first.capture() {
        return Err(RewriteError::Different(
            "what it has inherited was recorded with other settings (--sample, --min-size and their like)".into(),
        ));
    }
    let (wall_ns, start_ticks) = (first.wall_ns, first.start_ticks);
    let exe = options.path.display().to_string();
    let mut to = Out::fast(out)?;
    to.put(kind::TARGET, &Target { exe, wall_ns, start_ticks, ..own.clone() }.encode())?;
    let mut joiner = Joiner::new(to, options, first);
    for Inherited { stream, ops } in inherited::of(ancestors)? {
        joiner.add_inherited(stream, &ops)?;
    }
    joiner.add(0, path, &own)?;
    joiner.finish()
}

/// Reads which process a recording is of.
///
/// # Errors
/// If the file is no recording, or does not say so yet.
pub fn target(path: &Path) -> Result<Target, crate::Error> {
    let mut file = ChunkFile::open(path)?;
    match file.next()? {
        Item::Chunk(kind::TARGET, payload, _) => Target::decode(payload),
        _ => None,
    }
    .ok_or_else(|| crate::Error::Empty { path: path.to_owned() })
}

/// Returns the record that stands for all processes.
fn of_all(all: &[(&Path, Target)], options: &JoinOptions) -> Target {
    let first = &all[0].1;
    let named = |t: &Target| format!("{} {}", t.comm, t.pid);
    let pids: BTreeSet<u32> = all.iter().map(|(_, t)| t.pid).collect();
    let processes = prof_trace::values::text::count(pids.len() as u64, "process", "processes");
    Target {
        // There is no process that all is known of.
        pid: 0,
        pid_namespace: 0,
        exe: options.path.display().to_string(),
        cmdline: all.iter().map(|(_, t)| named(t)).collect(),
        comm: format!("{}, {processes}", options.name),
        start_ticks: all
            .iter()
            .map(|(_, t)| t.start_ticks)
            .min()
            .unwrap_or(Ticks::ZERO)
            .min(first.start_ticks),
        early: all.iter().map(|(_, t)| t.early).max().unwrap_or(0),
        ..first.clone()
    }
}

/// The properties of a module that are the same in all processes: path, build ID and, without one, extent.
type ModuleKey = (String, Vec<u8>, [u64; 2]);

struct Joiner<'a, 'b> {
    to: Out<'b>,
    options: &'a JoinOptions,
    first: Target,
    modules: HashMap<ModuleKey, Module>,
    with_symbols: HashSet<u32>,
    pcs: HashMap<(Pc, bool), u32>,
    new_pcs: Vec<u64>,
    /// Names of code addresses outside of modules.
    named: BTreeMap<u64, String>,
    /// Number of IDs of nodes, and of threads, that were given.
    nodes: u32,
    threads: u32,
    /// Number of numbers that were given to classes of blocks from before the attach.
    classes: u32,
    hooks: Hooks,
    counters: Counters,
    runtimes: BTreeSet<String>,
    reasons: BTreeMap<Option<String>, u64>,
    clock: Option<Clock>,
    /// Ticks, number of the recording, and name of each mark.
    marks: Vec<(Ticks, u64, String)>,
    end: Ticks,
    ended: u64,
}

impl<'a, 'b> Joiner<'a, 'b> {
    fn new(to: Out<'b>, options: &'a JoinOptions, first: Target) -> Self {
        Self {
            to,
            options,
            first,
            modules: HashMap::new(),
            with_symbols: HashSet::new(),
            pcs: HashMap::new(),
            new_pcs: Vec::new(),
            named: BTreeMap::new(),
            nodes: 0,
            threads: 0,
            classes: 0,
            hooks: Hooks::default(),
            counters: Counters::default(),
            runtimes: BTreeSet::new(),
            reasons: BTreeMap::new(),
            clock: None,
            marks: Vec::new(),
            end: Ticks::ZERO,
            ended: 0,
        }
    }

    /// Adds a recording. `number` tells its blocks from those of others.
    fn add(&mut self, number: u64, path: &Path, target: &Target) -> Result<(), RewriteError> {
        let mut stream = Stream::open(path, &LoadOptions::default())?;
        let numbers = self.numbers(number, target);
        let shift = numbers.shift;
        let mut events = Joining::new(&mut self.to, numbers);
        read_all(&mut stream, &mut events)?;
        events.finish()?;
        let (count, last, most) = (events.thread_count(), events.last, events.most_class);
        self.threads(&stream, count)?;
        let mut analysis =
            Analysis::new(Source::new(stream, open_file(path)?), Totals::default(), Vec::new());
        analysis.set_symbol_options(self.options.symbols.clone());
        self.stacks(number, &analysis)?;
        let meta = analysis.meta();
        self.classes(meta, most)?;
        has_blocks(meta, path)?;
        self.counts(meta);
        self.runtimes.extend(meta.runtimes.iter().map(|r| r.name().to_owned()));
        *self.reasons.entry(meta.end.as_ref().map(|e| e.reason.clone())).or_default() += 1;
        self.end = self.end.max(meta.end_ticks(Ticks::ZERO).wrapping_add(shift)).max(last);
        let marks =
            meta.marks.iter().map(|m| (m.ticks.wrapping_add(shift), number, m.name.clone()));
        self.marks.extend(marks);
        self.ended += u64::from(meta.end.as_ref().is_some_and(|e| is_end(&e.reason)));
        if self.clock.is_none() {
            self.clock = Some(meta.clock.clone());
        }
        Ok(())
    }

    /// Returns what makes the numbers of a recording differ from those of all before.
    fn numbers(&self, number: u64, target: &Target) -> Numbers {
        Numbers {
            base: number << ADDRESS_BITS,
            nodes: self.nodes,
            threads: self.threads,
            classes: self.classes,
            shift: shift(&self.first, target),
        }
    }

    /// Writes the threads of a recording that had events, of which there are so many.
    fn threads(&mut self, stream: &Stream, count: u32) -> Result<(), RewriteError> {
        for thread_index in 0..count {
            if stream.thread_of(thread_index) == Some(BEFORE_THREAD) {
                continue;
            }
            let old = stream.thread_of(thread_index).and_then(|n| stream.meta().threads.get(&n));
            let number = self.threads + thread_index + 1;
            let thread = Thread { number, ..old.cloned().unwrap_or_default() };
            self.to.put(kind::THREAD, &thread.encode())?;
        }
        self.threads = self.threads.checked_add(count).ok_or_else(too_many)?;
        Ok(())
    }

    /// Adds the blocks that a process has from an ancestor, whose recording has been read.
    fn add_inherited(&mut self, stream: Stream, ops: &[Op]) -> Result<(), RewriteError> {
        let path = stream.path().to_owned();
        has_blocks(stream.meta(), &path)?;
        let numbers = self.numbers(0, &stream.meta().target);
        let mut events = Joining::new(&mut self.to, numbers);
        events.take(ops);
        events.finish()?;
        let (count, most) = (events.thread_count(), events.most_class);
        self.threads(&stream, count)?;
        let mut analysis =
            Analysis::new(Source::new(stream, open_file(&path)?), Totals::default(), Vec::new());
        analysis.set_symbol_options(self.options.symbols.clone());
        self.stacks(0, &analysis)?;
        self.classes(analysis.meta(), most)?;
        let events = ops.iter().filter(|op| op.kind != OpKind::Found).count();
        self.counters.events = self.counters.events.saturating_add(events as u64);
        if self.clock.is_none() {
            self.clock = Some(analysis.meta().clock.clone());
        }
        Ok(())
    }

    /// Writes the names of the classes of blocks from before the attach. `most` is the greatest number that one of them has.
    fn classes(&mut self, meta: &Meta, most: u32) -> io::Result<()> {
        let all = meta.before_classes.in_order();
        let first = u64::from(self.classes) + 1;
        for (number, name) in &all {
            let first = first + u64::from(*number) - 1;
            let one = CensusClasses { first, names: vec![(*name).to_owned()] };
            self.to.put(kind::CENSUS_CLASSES, &one.encode())?;
        }
        let most = all.last().map_or(most, |(number, _)| most.max(*number));
        self.classes = self.classes.saturating_add(most);
        Ok(())
    }

    /// Writes the nodes of a recording, with what they refer to.
    fn stacks(&mut self, number: u64, analysis: &Analysis) -> Result<(), RewriteError> {
        let meta = analysis.meta();
        let (mut symbols, mut known) = (Symbolizer::new(analysis), HashMap::new());
        let mut triples = Vec::new();
        let mut most = 0;
        for [id, parent, pc] in meta.nodes_in_order() {
            let pc = match known.get(&pc) {
                Some(pc) => *pc,
                None => {
                    let new = self.pc(number, analysis, &mut symbols, pc)?;
                    known.insert(pc, new);
                    new
                }
            };
            let of_all = |id: u32| self.nodes.checked_add(id).ok_or_else(too_many);
            let parent = if parent == 0 { 0 } else { of_all(parent)? };
            triples.extend([of_all(id)?, parent, pc].map(u64::from));
            most = most.max(id);
        }
        self.put_pcs()?;
        for part in triples.chunks(3 * TRIPLES) {
            self.to.put_zipped(kind::NODES, &Nodes { triples: part.to_vec() }.encode())?;
        }
        self.nodes = self.nodes.checked_add(most).ok_or_else(too_many)?;
        Ok(())
    }

    /// Returns the number that a code address of a recording has among those of all.
    fn pc(
        &mut self,
        number: u64,
        analysis: &Analysis,
        symbols: &mut Symbolizer<'_>,
        id: u32,
    ) -> Result<u32, RewriteError> {
        let meta = analysis.meta();
        let (mut pc, trampoline) = meta.pc(id);
        match meta.modules.get(&pc.module) {
            Some(module) => {
                let of_all = self.module(analysis, module)?;
                pc.address = pc.address.wrapping_sub(module.bias).wrapping_add(of_all.1);
                pc.module = of_all.0;
            }
            None => {
                let name = symbols.peek(pc).last().and_then(|f| f.function.clone());
                pc.module = 0;
                if let Some(name) = name {
                    // What another process has at this address is other code.
                    if self.named.get(&pc.address).is_some_and(|other| *other != *name) {
                        pc.address = pc.address.wrapping_add(number << ADDRESS_BITS);
                    }
                    self.named.insert(pc.address, name.to_string());
                }
            }
        }
        let next = self.pcs.len() as u32 + 1;
        let new = *self.pcs.entry((pc, trampoline)).or_insert(next);
        if new == next {
            let flag = if trampoline { PC_IS_TRAMPOLINE } else { 0 };
            self.new_pcs.extend([u64::from(new), pc.address, u64::from(pc.module) | flag]);
        }
        Ok(new)
    }

    fn put_pcs(&mut self) -> io::Result<()> {
        for part in std::mem::take(&mut self.new_pcs).chunks(3 * TRIPLES) {
            self.to.put_zipped(kind::PCS, &Pcs { triples: part.to_vec() }.encode())?;
        }
        Ok(())
    }

    /// Returns number and load bias that a module of a recording has among those of all.
    fn module(&mut self, analysis: &Analysis, m: &Module) -> Result<(u32, u64), RewriteError> {
        let extent = match m.build_id.is_empty() {
            true => [m.start.wrapping_sub(m.bias), m.end.wrapping_sub(m.bias)],
            false => [0, 0],
        };
        let next = self.modules.len() as u32 + 1;
        let key = (m.path.clone(), m.build_id.to_vec(), extent);
        let all = self.modules.entry(key).or_insert_with(|| Module { number: next, ..m.clone() });
        let of_all = (all.number, all.bias);
        if of_all.0 == next {
            self.to.put(kind::MODULE, &all.encode())?;
        }
        if !self.with_symbols.contains(&of_all.0)
            && let Some(symbols) = analysis.symbols(m.number)
        {
            self.with_symbols.insert(of_all.0);
            let symbols = Symbols { module: of_all.0, ..symbols };
            self.to.put_zipped(kind::SYMBOLS, &symbols.encode())?;
        }
        Ok(of_all)
    }

    /// Adds the counters and the hooked functions of a recording.
    fn counts(&mut self, meta: &Meta) {
        let (all, c) = (&mut self.counters, &meta.counters);
        for (sum, n) in [
            (&mut all.events, c.events),
            (&mut all.lost, c.lost),
            (&mut all.reentered, c.reentered),
            (&mut all.truncated, c.truncated),
            (&mut all.mismatches, c.mismatches),
            (&mut all.damaged_bytes, c.damaged_bytes),
            (&mut all.verified, c.verified),
            (&mut all.doubtful, c.doubtful),
        ] {
            *sum = sum.saturating_add(n);
        }
        let mut indices: HashMap<u32, u32> = HashMap::new();
        for h in &meta.hooks.hooked {
            let same = |o: &&Hook| (&o.function, &o.module) == (&h.function, &h.module);
            let known = self.hooks.hooked.iter().find(same).map(|o| o.index);
            let next = self.hooks.hooked.iter().map(|o| o.index + 1).max().unwrap_or(0);
            // An alias has the index of the first name.
            let first = *indices.entry(h.index).or_insert(known.unwrap_or(next));
            if known.is_none() {
                self.hooks.hooked.push(Hook { index: first, ..h.clone() });
            }
        }
        for n in &meta.hooks.not_hooked {
            if !self.hooks.not_hooked.contains(n) {
                self.hooks.not_hooked.push(n.clone());
            }
        }
        for (old, new) in indices {
            let (calls, new) = (c.calls.get(old as usize).copied().unwrap_or(0), new as usize);
            if all.calls.len() <= new {
                all.calls.resize(new + 1, 0);
            }
            all.calls[new] = all.calls[new].saturating_add(calls);
        }
    }

    /// Writes the marks. `prof mark` sets one of the same name in each process of a family, one after the other: the first
    /// of them counts.
    fn put_marks(&mut self) -> Result<(), RewriteError> {
        self.marks.sort();
        let mut last: Option<(u64, String)> = None;
        for (ticks, number, name) in std::mem::take(&mut self.marks) {
            if last.as_ref().is_some_and(|(n, l)| *n != number && *l == name) {
                continue;
            }
            self.to.put(kind::MARK, &Mark { ticks, name: name.clone() }.encode())?;
            last = Some((number, name));
        }
        Ok(())
    }

    /// Writes what is known when all recordings have been read.
    fn finish(&mut self) -> Result<(), RewriteError> {
        self.to.flush()?;
        self.names()?;
        let names = std::mem::take(&mut self.runtimes).into_iter().collect();
        self.to.put(kind::RUNTIMES, &Runtimes { names }.encode())?;
        self.to.put_zipped(kind::HOOKS, &self.hooks.encode())?;
        let start = self.first.start_ticks;
        let clock = self.clock.take().unwrap_or_default();
        for number in 0..=READINGS {
            let part = u128::from(self.end.since(start)) * u128::from(number);
            let ticks = start.saturating_add((part / u128::from(READINGS)) as u64);
            let clock_ns = clock.absolute(ticks);
            let pass = Pass { number, ticks, clock_ns, ..Pass::default() };
            self.to.put(kind::PASS, &pass.encode())?;
        }
        self.put_marks()?;
        self.to.put(kind::COUNTERS, &self.counters.encode())?;
        let reasons = &self.reasons;
        let reason = match reasons.iter().next() {
            Some((Some(one), _)) if reasons.len() == 1 => one.clone(),
            _ => {
                let words = |(why, n): (&Option<String>, &u64)| {
                    format!("{n} {}", why.as_deref().unwrap_or("still being recorded"))
                };
                reasons.iter().map(words).collect::<Vec<_>>().join(", ")
            }
        };
        self.to.put(kind::END, &End { ticks: self.end, reason }.encode())?;
        Ok(())
    }

    /// Writes the names of code outside of modules.
    fn names(&mut self) -> io::Result<()> {
        let all: Vec<(u64, String)> = std::mem::take(&mut self.named).into_iter().collect();
        for part in all.chunks(TRIPLES) {
            let mut names = Frames::default();
            for (address, name) in part {
                names.strings.push(name.clone());
                let function = names.strings.len() as u32;
                let frame = NamedFrame { function, ..NamedFrame::default() };
                for exact in [false, true] {
                    let (address, module, frames) = (*address, 0, vec![frame]);
                    names.addresses.push(NamedAddress { address, module, exact, frames });
                }
            }
            self.to.put_zipped(kind::FRAMES, &names.encode())?;
        }
        Ok(())
    }
}

/// Refuses a recording in which blocks are missing.
fn has_blocks(meta: &Meta, path: &Path) -> Result<(), RewriteError> {
    if !meta.lacks_blocks() {
        return Ok(());
    }
    Err(RewriteError::Different(format!(
        "{} has figures of blocks that are not in it (--cull, --aggregate, --on-limit drop-oldest, prof strip), which can't be \
         added up",
        path.display()
    )))
}

/// Returns whether a recording that ended for this reason is of a process, or of a program, that is gone.
fn is_end(reason: &str) -> bool {
    ["exited", "ended", "exec"].contains(&reason) || reason.starts_with("killed")
}

fn too_many() -> RewriteError {
    RewriteError::Different("the recordings have more stacks or threads than numbers".into())
}

/// Returns the ticks to be added to the times of a recording: 0, as all counters of a machine go alike, unless its
/// counter is another, or was set back since.
fn shift(first: &Target, other: &Target) -> u64 {
    let per_sec = first.ticks_per_sec.max(1);
    let since = other.wall_ns.saturating_sub(first.wall_ns);
    let ticks = u128::from(since) * u128::from(per_sec) / 1_000_000_000;
    let expected = first.start_ticks.saturating_add(ticks as u64);
    match expected.0.abs_diff(other.start_ticks.0) <= APART * per_sec {
        true => 0,
        // The lowest bit of a time has a meaning of its own.
        false => expected.wrapping_since(other.start_ticks) & !1,
    }
}
