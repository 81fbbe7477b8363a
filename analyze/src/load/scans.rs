//! Notes where the scans of a recording are, which are read when somebody asks for them, and the parts of its census, which
//! are read once more when their turn comes.

use super::before::{BEFORE_THREAD, CensusSeen, LABEL};
use super::meta::{Meta, SymbolsAt};
use prof_trace::records::{Census, CensusClasses, Scan, Thread, kind};
use prof_trace::ticks::Ticks;

/// A scan of the target's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanAt {
    /// Ticks when the pointers were read.
    pub ticks: Ticks,
    /// Name that a user has given the scan; empty: it has none.
    pub name: String,
    /// Number of live blocks.
    pub blocks: u64,
    /// Number of all pointers.
    pub pointers: u64,
    /// Whether blocks from before the attach are among them.
    pub census: bool,
    /// Location of its first chunk.
    pub head: SymbolsAt,
    /// Kind and location of its other chunks.
    pub parts: Vec<(u16, SymbolsAt)>,
}

impl ScanAt {
    /// Returns the most memory that reading the scan takes, in bytes.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.blocks.saturating_mul(120).saturating_add(self.pointers.saturating_mul(16))
    }
}

/// Returns whether a chunk is a scan's, but not its first: it is read when the scan is asked for.
pub(super) fn is_scan_part(kind: u16) -> bool {
    matches!(kind, kind::SCAN_ROOTS | kind::SCAN_BLOCKS | kind::SCAN_POINTERS)
}

impl Meta {
    /// Notes a scan that begins.
    pub(super) fn add_scan(&mut self, s: Scan, head: SymbolsAt) {
        let (ticks, name, blocks, census) = (s.ticks, s.name, s.blocks, s.census != 0);
        let pointers = s.pointers.saturating_add(s.root_pointers);
        self.scans.push(ScanAt { ticks, name, blocks, pointers, census, head, parts: Vec::new() });
    }

    /// Notes where a part of a scan is: it belongs to the scan that has begun last, or to none.
    pub(super) fn add_scan_part(&mut self, kind: u16, place: SymbolsAt) {
        if let Some(scan) = self.scans.last_mut() {
            scan.parts.push((kind, place));
        }
    }
}

impl Meta {
    /// Takes a part of a census; `at` is its location.
    pub(super) fn add_census(&mut self, c: &Census, at: SymbolsAt) {
        let seen = self.census.get_or_insert_with(|| {
            let name = LABEL.to_owned();
            self.threads.insert(BEFORE_THREAD, Thread { number: BEFORE_THREAD, tid: 0, name });
            CensusSeen { ticks: c.ticks, ..CensusSeen::default() }
        });
        seen.blocks = seen.blocks.saturating_add(c.count);
        seen.stop_ns = seen.stop_ns.max(c.stop_ns);
        if self.passes_calls_on {
            self.new_census.push(at);
        }
    }

    /// Takes names of the classes of a census.
    pub(super) fn add_classes(&mut self, c: CensusClasses) {
        for [stack, first] in self.before_classes.add(c) {
            self.others.set(stack, first);
        }
    }

    /// Returns the number of threads that the recording has seen.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads.len() - usize::from(self.threads.contains_key(&BEFORE_THREAD))
    }
}
