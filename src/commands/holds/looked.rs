//! What `prof holds` reports on: blocks, pointers and names, of a process as it is now or of a scan in its recording.

use super::report::SavedData;
use super::roots::{RootData, Roots};
use crate::commands::holds::{HoldsArgs, Live};
use crate::commands::reach::before::{BEFORE, LABEL};
use crate::commands::reach::ledger::Ledger;
use crate::commands::reach::scan::{Ends, ScanData, failed};
use crate::failure::usage;
use anyhow::Result;
use prof_analyze::live::Names;
use prof_analyze::load::ScanAt;
use prof_analyze::{Analysis, Index};
use prof_graph::{Heap, Held, Root, Saved};
use prof_os::Pid;
use prof_scan::{ScanStats, Scanner};
use prof_trace::records::{Scan, ScanFigures};
use prof_trace::values::text::{count, duration};
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Usual ratio of compression of a scan's parts at most, and the limit of the bytes decompressed in excess of it, so that a
/// small file can't fill the memory.
const USUAL: usize = 32;
const EXCESS: usize = 256 << 20;

/// What the memory itself says, beside the pointers.
pub(super) trait Memory {
    /// Returns the mangled name of the class of a table of virtual functions.
    fn class(&self, table: u64) -> Option<String>;
    /// Returns the offset in a block of the first word that points into a range; `None`: it is not known.
    fn offset(&self, from: Range<u64>, to: &Range<u64>) -> Option<u64>;
}

impl Memory for Scanner {
    fn class(&self, table: u64) -> Option<String> {
        self.class_of(table)
    }

    fn offset(&self, from: Range<u64>, to: &Range<u64>) -> Option<u64> {
        self.offset_of(from, to)
    }
}

/// The names of classes in a recording, in which a table's address is a number.
struct Classes(Vec<String>);

impl Memory for Classes {
    fn class(&self, table: u64) -> Option<String> {
        self.0.get(usize::try_from(table.checked_sub(1)?).ok()?).cloned()
    }

    fn offset(&self, _: Range<u64>, _: &Range<u64>) -> Option<u64> {
        None
    }
}

/// The analysis of a recording that grows, or of one that was opened.
pub(super) enum Of<'a> {
    Growing(Box<Analysis>),
    Opened(&'a Analysis),
}

impl std::ops::Deref for Of<'_> {
    type Target = Analysis;

    fn deref(&self) -> &Analysis {
        match self {
            Self::Growing(a) => a,
            Self::Opened(a) => a,
        }
    }
}

/// The blocks of a moment with all that is known of them.
pub(super) struct Looked<'a> {
    pub pid: Pid,
    /// The moment, in ticks and in nanoseconds since the start of the recording.
    pub ticks: u64,
    pub at_ns: u64,
    /// The scan of the recording that this is; `None`: the process was looked at now.
    pub saved: Option<SavedData>,
    pub heap: Heap,
    pub held: Held,
    /// Names of the roots. Roots with the same name are one.
    pub roots: HashMap<Root, RootData>,
    pub scan: ScanData,
    pub figures: ScanFigures,
    pub census: bool,
    pub memory: Box<dyn Memory>,
    pub analysis: Of<'a>,
    pub names: Names,
}

impl Looked<'_> {
    /// Looks at a process.
    ///
    /// # Errors
    /// If the process is not recorded, can't be read, or its blocks are not known.
    pub(super) fn now(pid: Pid, args: &HoldsArgs, live: &Live) -> Result<Looked<'static>> {
        let mut names = Names::new(args.symbols.options()?);
        let mut ledger = Ledger::open(pid, Instant::now() + live.timeout)?;
        if args.census {
            ledger.add_census(live.snapshot.of_census())?;
            names.put_note(BEFORE, LABEL);
        }
        let mut scanner = args.how.open(pid)?;
        let until = ledger.until;
        let stop = live.snapshot.stop();
        let mut heap = scanner.survey(&mut ledger, stop, until).map_err(failed)?;
        heap.renumber_stacks(|group| ledger.node_of(group));
        let follower = &ledger.follower;
        let analysis = names.analysis(follower)?;
        let mut lookup = Roots::new(pid, &analysis);
        let mut roots: HashMap<Root, RootData> =
            heap.roots().iter().map(|r| (r.clone(), lookup.of(r))).collect();
        lookup.add_places(&mut roots);
        heap.merge_roots(|r| roots.get(r).cloned());
        let ends = Ends { settled: true, ..Ends::default() };
        Ok(Looked {
            pid,
            ticks: follower.now_ticks(),
            at_ns: follower.now_ns(),
            saved: None,
            held: heap.held(),
            heap,
            roots,
            scan: ScanData::new(&scanner.figures, ends, follower.meta()),
            figures: figures(&scanner.figures),
            census: args.census,
            memory: Box::new(scanner),
            analysis: Of::Growing(Box::new(analysis)),
            names,
        })
    }
}

impl<'a> Looked<'a> {
    /// Reads a scan of a recording. `wanted` is its number, its name, or `last`.
    ///
    /// # Errors
    /// If there is none, or it can't be used.
    pub(super) fn saved(index: &'a Index, args: &HoldsArgs, wanted: &str) -> Result<Self> {
        let analysis = index.analysis();
        let meta = analysis.meta();
        let at = find(analysis, wanted)?;
        let scan = &meta.scans[at];
        let (heap, head, roots) = read(analysis, scan).map_err(|why| {
            let path = crate::term::one_line(&analysis.path().to_string_lossy());
            usage(format!("scan #{} of {path} can't be used: {why}", at + 1))
        })?;
        let mut names = Names::new(args.symbols.options()?);
        names.put_note(BEFORE, LABEL);
        let roots = (0..).zip(&roots).map(|(i, r)| (Root::Saved(i), RootData::of_record(r)));
        let figures = ScanFigures::decode(&head.figures);
        let ends = Ends { settled: true, ..Ends::default() };
        let name = crate::term::one_line(&head.name);
        Ok(Self {
            pid: Pid::from_u32(meta.target.pid),
            ticks: head.ticks,
            at_ns: meta.clock.ns(head.ticks),
            saved: Some(SavedData { number: at + 1, name, of: meta.scans.len() }),
            held: heap.held(),
            heap,
            roots: roots.collect(),
            scan: ScanData::new(&stats(&figures), ends, meta),
            figures,
            census: head.census != 0,
            memory: Box::new(Classes(head.classes)),
            analysis: Of::Opened(analysis),
            names,
        })
    }
}

/// Returns the index of the scan that a user means.
fn find(analysis: &Analysis, wanted: &str) -> Result<usize> {
    let meta = analysis.meta();
    let scans = &meta.scans;
    let path = crate::term::one_line(&analysis.path().to_string_lossy());
    if scans.is_empty() {
        return Err(usage(format!(
            "{path} has no scan; `prof holds {} --save` adds one while the process is recorded",
            meta.target.pid
        )));
    }
    let last = (wanted == "last").then(|| scans.len() - 1);
    let number = wanted.trim_start_matches('#').parse::<usize>().ok();
    let by_number = number.and_then(|n| n.checked_sub(1)).filter(|i| *i < scans.len());
    let by_name = || scans.iter().rposition(|s| !wanted.is_empty() && s.name == wanted);
    by_name().or(last).or(by_number).ok_or_else(|| {
        let list = scans.iter().enumerate().map(|(i, s)| described(i, s, analysis));
        let list: Vec<String> = list.collect();
        usage(format!("{path} has no scan {wanted:?}; there are {}", list.join(", ")))
    })
}

/// Describes a scan in a few words.
fn described(i: usize, s: &ScanAt, analysis: &Analysis) -> String {
    let name = crate::term::one_line(&s.name);
    let name = if name.is_empty() { String::new() } else { format!(" {name}") };
    let at = duration(analysis.meta().clock.ns(s.ticks));
    format!("#{}{name} at {at} ({})", i + 1, count(s.blocks, "block", "blocks"))
}

type Read = (Heap, Scan, Vec<prof_trace::records::ScanRoot>);

fn read(analysis: &Analysis, at: &ScanAt) -> Result<Read, String> {
    let unreadable = || "it could not be read".to_owned();
    let head = analysis.payload(&at.head).and_then(|p| Scan::decode(&p)).ok_or_else(unreadable)?;
    let (mut saved, mut excess) = (Saved::new(head), 0);
    for (kind, place) in &at.parts {
        let payload = analysis.payload(place).ok_or_else(unreadable)?;
        excess += payload.len().saturating_sub(USUAL * place.len);
        if excess > EXCESS {
            return Err("its parts are compressed as no scan is".to_owned());
        }
        saved.take(*kind, &payload, BEFORE);
    }
    saved.finish().map_err(|e| e.to_string())
}

fn ns(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the figures of a scan as a recording keeps them.
fn figures(s: &ScanStats) -> ScanFigures {
    ScanFigures {
        scanned: s.scanned,
        took_ns: ns(s.took),
        cpu_ns: ns(s.cpu),
        longest_stop_ns: ns(s.longest_stop),
        stop_ns: s.stop.map(ns),
        unreadable: s.unreadable,
        absent: s.absent,
        unread_threads: s.unread_threads,
        rings: s.rings,
        aio: s.aio,
        nested: s.nested,
    }
}

/// Returns the figures of a scan in a recording as those of one that was just made.
fn stats(f: &ScanFigures) -> ScanStats {
    ScanStats {
        passes: 1,
        scanned: f.scanned,
        took: Duration::from_nanos(f.took_ns),
        cpu: Duration::from_nanos(f.cpu_ns),
        first_cpu: Duration::from_nanos(f.cpu_ns),
        longest_stop: Duration::from_nanos(f.longest_stop_ns),
        stop: f.stop_ns.map(Duration::from_nanos),
        unreadable: f.unreadable,
        absent: f.absent,
        unread_threads: f.unread_threads,
        rings: f.rings,
        aio: f.aio,
        nested: f.nested,
        ..ScanStats::default()
    }
}
