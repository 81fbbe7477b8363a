//! Joins the recordings of several processes into one, so that every question to it is one about all of them.
//!
//! Times are the machine's, and stay. Addresses of blocks get the number of their recording in their high bits, as
//! processes have blocks at the same addresses. Code is told apart by module (path and build ID) and offset: the address
//! of a module is that in the first recording that has it, so that stacks of the same code are the same stack. Code
//! outside of modules is named here, by what is known of its own process.
//!
//! Mappings, resident memory and allocators are those of one process each, and are left out.
//!
//! Figures of blocks that are not in the recordings are added up. How much several processes had at one moment is known
//! of blocks; of figures there is an upper bound.

mod again;
mod code;
mod course;
mod events;
mod figures;
mod steps;
mod survey;
mod together;

use self::code::Ids;
use self::events::{Joining, Numbers};
use super::RewriteError;
use super::inherited::{self, Ancestor, Inherited};
use super::out::Out;
use crate::Analysis;
use crate::analysis::{Source, read_all};
use crate::heap::Totals;
use crate::load::{
    BEFORE_THREAD, ChunkFile, Clock, Item, LoadOptions, Meta, Op, OpKind, Pc, Sink, Stream,
    open_file,
};
use crate::symbols::SymbolOptions;
use prof_trace::records::{
    self, CensusClasses, Counters, End, Hook, Hooks, Mark, Module, Pass, Runtimes, Target, Thread,
    kind,
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
    /// Number of further recordings of these processes that are gone or can't be read.
    pub lost: u64,
    /// Number of processes that could not be recorded.
    pub missed: u64,
    /// Whether there may have been more of these.
    pub more: bool,
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
    let lacks = lacks(&all)?;
    let folded = lacks == Lacks::Blocks { folded: true };
    let mut to = if folded { Out::fast_folded(out)? } else { Out::fast(out)? };
    to.put(kind::TARGET, &of_all(&all, options).encode())?;
    let mut joiner = Joiner::new(to, options, first.clone());
    joiner.joined.lost = options.lost.saturating_add(done.left_out.len() as u64);
    (joiner.joined.missed, joiner.joined.more) = (options.missed, options.more.into());
    match lacks {
        Lacks::Nothing => {
            for (number, (path, target)) in (0..).zip(&all) {
                joiner.add(number, path, target)?;
            }
        }
        Lacks::Blocks { folded } => joiner.add_with_figures(&all, folded)?,
        Lacks::Events => joiner.add_steps(&all)?,
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
    has_blocks(Stream::open_at_end(path, &LoadOptions::default())?.meta(), path)?;
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
    joiner.joined.recordings = ancestors.len() as u64;
    for Inherited { stream, ops } in inherited::of(ancestors)? {
        joiner.add_inherited(stream, &ops)?;
    }
    joiner.add(0, path, &own)?;
    joiner.finish()
}

/// Finds out what the recordings have in place of events.
fn lacks(all: &[(&Path, Target)]) -> Result<Lacks, RewriteError> {
    let (mut has_figures, mut blocks) = (None, [None; 2]);
    for (path, _) in all {
        let stream = Stream::open_at_end(path, &LoadOptions::default())?;
        let meta = stream.meta();
        if meta.is_aggregated() {
            has_figures.get_or_insert(*path);
        } else if meta.lacks_blocks() {
            blocks[usize::from(meta.folded.is_some())].get_or_insert(*path);
        }
    }
    match (has_figures, blocks) {
        (None, [None, None]) => Ok(Lacks::Nothing),
        (None, [Some(_), None]) => Ok(Lacks::Blocks { folded: false }),
        (None, [None, Some(_)]) => Ok(Lacks::Blocks { folded: true }),
        (Some(_), [None, None]) => Ok(Lacks::Events),
        (Some(one), [Some(other), _] | [None, Some(other)]) | (None, [Some(one), Some(other)]) => {
            Err(RewriteError::Different(format!(
                "{} and {} have figures in place of different blocks (--cull, --aggregate, --on-limit drop-oldest or aggregate, prof strip), which \
                 can't be added up",
                one.display(),
                other.display()
            )))
        }
    }
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

/// Facts about the events of a recording.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    /// Number of threads.
    threads: u32,
    /// Time of the last event, among those of all recordings.
    last: Ticks,
    /// Greatest number of a class of blocks from before the attach.
    most_class: u32,
}

/// Figures that recordings have in place of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacks {
    /// All events are there.
    Nothing,
    /// Figures of blocks that are not there, of the oldest part if they were folded.
    Blocks { folded: bool },
    /// Figures by stack alone.
    Events,
}

struct Joiner<'a, 'b> {
    to: Out<'b>,
    options: &'a JoinOptions,
    first: Target,
    modules: HashMap<ModuleKey, Module>,
    with_symbols: HashSet<u32>,
    pcs: HashMap<(Pc, bool), u32>,
    new_pcs: Vec<u64>,
    /// The number that stacks with the same parent and code address have, if figures are added up.
    one_node: Option<HashMap<(u32, u32), u32>>,
    /// The number of each class of blocks from before the attach, likewise.
    class_names: HashMap<String, u32>,
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
    /// Number of recordings by the way in which they ended.
    reasons: BTreeMap<String, u64>,
    clock: Option<Clock>,
    /// Ticks, number of the recording, and name of each mark.
    marks: Vec<(Ticks, u64, String)>,
    end: Ticks,
    ended: u64,
    joined: records::Joined,
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
            one_node: None,
            class_names: HashMap::new(),
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
            joined: records::Joined::default(),
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
        let (threads, last, most_class) = (events.thread_count(), events.last, events.most_class);
        if stream.meta().lacks_blocks() {
            return Err(replaced(path));
        }
        self.describe(number, stream, shift, &Read { threads, last, most_class })?;
        Ok(())
    }

    /// Writes all of a recording but its events. Returns the numbers that its stacks have among those of all, if figures are
    /// added up.
    fn describe(
        &mut self,
        number: u64,
        stream: Stream,
        shift: u64,
        read: &Read,
    ) -> Result<(Analysis, Ids), RewriteError> {
        self.threads(&stream, read.threads)?;
        let (file, damaged) = (stream.same_file()?, stream.damaged_bytes());
        let mut analysis = Analysis::new(Source::new(stream, file), Totals::default(), Vec::new());
        analysis.set_symbol_options(self.options.symbols.clone());
        let (nodes, offset) = (self.stacks(number, &analysis)?, self.classes);
        let meta = analysis.meta();
        let ids = Ids { nodes, classes: self.classes(meta, read.most_class)?, offset };
        self.counts(meta);
        self.runtimes.extend(meta.runtimes.iter().map(|r| r.name().to_owned()));
        let growing = meta.end.is_none() && crate::symbols::is_target(&meta.target);
        *self.reasons.entry(ending(meta, growing)).or_default() += 1;
        self.joined.recordings += 1;
        self.joined.growing += u64::from(growing);
        self.joined.incomplete += u64::from(!growing && !analysis.complete());
        self.joined.paused += u64::from(meta.was_off());
        self.counters.damaged_bytes = self.counters.damaged_bytes.saturating_add(damaged);
        let end = meta.end_ticks(Ticks::ZERO).wrapping_add(shift);
        self.end = self.end.max(end).max(read.last);
        let marks =
            meta.marks.iter().map(|m| (m.ticks.wrapping_add(shift), number, m.name.clone()));
        self.marks.extend(marks);
        self.ended += u64::from(meta.end.as_ref().is_some_and(|e| is_end(&e.reason)));
        if self.clock.is_none() {
            self.clock = Some(meta.clock.clone());
        }
        Ok((analysis, ids))
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
        let _ = self.stacks(0, &analysis)?;
        let _ = self.classes(analysis.meta(), most)?;
        let events = ops.iter().filter(|op| op.kind != OpKind::Found).count();
        self.counters.events = self.counters.events.saturating_add(events as u64);
        if self.clock.is_none() {
            self.clock = Some(analysis.meta().clock.clone());
        }
        Ok(())
    }

    /// Writes the names of the classes of blocks from before the attach. `most` is the greatest number that one of them has.
    /// Returns the number that each has among those of all, if figures are added up: a class has one.
    fn classes(&mut self, meta: &Meta, most: u32) -> io::Result<HashMap<u32, u32>> {
        let all = meta.before_classes.in_order();
        let mut ones = HashMap::new();
        for (number, name) in &all {
            let of_all = self.classes.saturating_add(*number);
            let (first, names) = (u64::from(of_all), vec![(*name).to_owned()]);
            self.to.put(kind::CENSUS_CLASSES, &CensusClasses { first, names }.encode())?;
            if self.one_node.is_some() {
                let one = self.class_names.entry((*name).to_owned()).or_insert(of_all);
                ones.insert(*number, *one);
            }
        }
        let most = all.last().map_or(most, |(number, _)| most.max(*number));
        self.classes = self.classes.saturating_add(most);
        Ok(ones)
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
        self.to.put(kind::JOINED, &self.joined.encode())?;
        let reasons = &self.reasons;
        let words = |(why, n): (&String, &u64)| format!("{n} {why}");
        let reason = match reasons.keys().next() {
            Some(one) if reasons.len() == 1 && !one.starts_with(GOES_ON) => one.clone(),
            _ => reasons.iter().map(words).collect::<Vec<_>>().join(", "),
        };
        self.to.put(kind::END, &End { ticks: self.end, reason }.encode())?;
        Ok(())
    }
}

/// Refuses a recording in which blocks are missing.
fn has_blocks(meta: &Meta, path: &Path) -> Result<(), RewriteError> {
    if !meta.lacks_blocks() {
        return Ok(());
    }
    Err(RewriteError::Different(format!(
        "{} has figures of blocks that are not in it (--cull, --aggregate, --on-limit drop-oldest, prof strip)",
        path.display()
    )))
}

fn replaced(path: &Path) -> RewriteError {
    RewriteError::Replaced(path.display().to_string())
}

/// The words for a recording that has no end, as its collector is at work.
const GOES_ON: &str = "still being recorded";

/// Returns how a recording ended, if it is not `growing`, and whether figures are missing that it was to have.
fn ending(meta: &Meta, growing: bool) -> String {
    let reason = match &meta.end {
        Some(end) => &end.reason,
        None if growing => GOES_ON,
        None => "without an end",
    };
    let lacks = match &meta.stripped {
        Some(s) if meta.lacks_figures() => {
            match (s.totals.is_empty() && meta.steps.is_empty(), growing) {
                (true, _) => ", with no figures so far",
                (_, true) => "",
                (_, false) => ", with no figures of its last moments",
            }
        }
        _ => "",
    };
    format!("{reason}{lacks}")
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
