//! The source of `prof holds`: blocks, pointers and names, of a process as it is now or of a scan in its recording.

use super::roots::Roots;
use crate::commands::holds::{HoldsArgs, Live};
use crate::commands::reach::before::{BEFORE, LABEL};
use crate::commands::reach::ledger::Ledger;
use crate::commands::reach::scan::{self, Ends, failed};
use crate::failure::usage;
use anyhow::Result;
use prof_analyze::holds::{self, Classes, Holders, HoldsError, Memory, Root, RootData, Tree};
use prof_analyze::live::Names;
use prof_analyze::{Analysis, Index};
use prof_os::Pid;
use prof_scan::Scanner;
use prof_trace::records::ScanFigures;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

/// The memory of a process, or what a recording has of it.
pub(super) enum Seen {
    Now(Box<Scanner>),
    Saved(Classes),
}

impl Memory for Seen {
    fn class(&self, table: u64) -> Option<String> {
        match self {
            Self::Now(scanner) => scanner.class_of(table),
            Self::Saved(classes) => classes.class(table),
        }
    }

    fn offset(&self, from: Range<u64>, to: &Range<u64>) -> Option<u64> {
        match self {
            Self::Now(scanner) => scanner.offset_of(from, to),
            Self::Saved(classes) => classes.offset(from, to),
        }
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
    pub of: Holders<Seen>,
    pub figures: ScanFigures,
    pub census: bool,
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
        drop(lookup);
        heap.merge_roots(|r| roots.get(r).cloned());
        let ends = Ends { settled: true, ..Ends::default() };
        let (held, figures) = (heap.held(), scan::saved(&scanner.figures));
        let of = Holders {
            pid,
            ticks: follower.now_ticks(),
            at_ns: follower.now_ns(),
            saved: None,
            tree: Tree::new(&held),
            held,
            heap,
            roots,
            scan: scan::data(&scanner.figures, ends, follower.meta()),
            memory: Seen::Now(Box::new(scanner)),
        };
        let analysis = Of::Growing(Box::new(analysis));
        Ok(Looked { of, figures, census: args.census, analysis, names })
    }
}

impl<'a> Looked<'a> {
    /// Reads a scan of a recording. `wanted` is its number, its name, or `last`.
    ///
    /// # Errors
    /// If there is none, or it can't be used.
    pub(super) fn saved(index: &'a Index, args: &HoldsArgs, wanted: &str) -> Result<Self> {
        let analysis = index.analysis();
        let unusable = |e: HoldsError| usage(e.to_string());
        let at = holds::find(analysis, wanted).map_err(unusable)?;
        let of = holds::read(analysis, at).map_err(unusable)?.with(Seen::Saved);
        let mut names = Names::new(args.symbols.options()?);
        names.put_note(BEFORE, LABEL);
        let census = analysis.meta().scans[at].census;
        let figures = ScanFigures::default();
        Ok(Self { of, figures, census, analysis: Of::Opened(analysis), names })
    }
}
