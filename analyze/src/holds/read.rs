//! Reads a scan that is in a recording.

use super::report::SavedData;
use super::roots::RootData;
use super::scan::ScanData;
use super::tree::Tree;
use super::{BEFORE, Classes, Holders};
use crate::Analysis;
use crate::job::{Job, Pass};
use crate::load::ScanAt;
use crate::style::printable;
use prof_graph::{Read, Root, Saved};
use prof_os::Pid;
use prof_trace::records::{Scan, ScanFigures};
use prof_trace::values::text::{count, duration};

/// Usual ratio of compression of a scan's parts at most, and the limit of the bytes decompressed in excess of it, so that a
/// small file can't fill the memory.
const USUAL: usize = 32;
const EXCESS: usize = 256 << 20;

/// Why there is no scan to show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldsError {
    /// The recording has none, or none of that number or name; or it can't be used.
    #[error("{0}")]
    Unusable(String),
    /// The job of the thread was cancelled.
    #[error("reading a scan was cancelled")]
    Cancelled,
}

/// Returns the path of a recording as a message has it.
fn path_of(analysis: &Analysis) -> String {
    printable(&analysis.shown_path().to_string_lossy())
}

/// Returns the index of the scan of a recording that a user means: by its name, `last`, or its number from 1 on.
///
/// # Errors
/// If there is none: a message that lists the scans that there are.
pub fn find(analysis: &Analysis, wanted: &str) -> Result<usize, HoldsError> {
    let meta = analysis.meta();
    let scans = &meta.scans;
    let path = path_of(analysis);
    if scans.is_empty() {
        let pid = meta.target.pid;
        return Err(HoldsError::Unusable(match (meta.is_aggregated(), meta.end.is_some()) {
            (true, _) => format!(
                "{path} has no scan: it has only figures by stack, and no blocks ({})",
                meta.figures_by()
            ),
            (false, true) => format!(
                "{path} has no scan, and its recording has ended; `prof holds PID --save` adds one while a process is \
                 recorded"
            ),
            (false, false) => format!(
                "{path} has no scan; `prof holds {pid} --save` adds one while the process is recorded"
            ),
        }));
    }
    let last = (wanted == "last").then(|| scans.len() - 1);
    let number = wanted.trim_start_matches('#').parse::<usize>().ok();
    let by_number = number.and_then(|n| n.checked_sub(1)).filter(|i| *i < scans.len());
    let by_name = || scans.iter().rposition(|s| !wanted.is_empty() && s.name == wanted);
    by_name().or(last).or(by_number).ok_or_else(|| {
        let list: Vec<String> = (0..scans.len()).map(|i| described(analysis, i)).collect();
        HoldsError::Unusable(format!(
            "{path} has no scan {wanted:?}; there are {}",
            list.join(", ")
        ))
    })
}

/// Describes a scan of a recording in a few words.
#[must_use]
pub fn described(analysis: &Analysis, index: usize) -> String {
    let Some(s) = analysis.meta().scans.get(index) else { return String::new() };
    let name = printable(&s.name);
    let name = if name.is_empty() { String::new() } else { format!(" {name}") };
    let at = duration(analysis.meta().clock.ns(s.ticks));
    format!("#{}{name} at {at} ({})", index + 1, count(s.blocks, "block", "blocks"))
}

/// Reads a scan of a recording, by its index.
///
/// # Errors
/// If it can't be used, or the job of this thread is cancelled.
pub fn read(analysis: &Analysis, index: usize) -> Result<Holders, HoldsError> {
    let meta = analysis.meta();
    let path = path_of(analysis);
    let unusable = |why: &str| {
        let number = index + 1;
        HoldsError::Unusable(format!("scan #{number} of {path} can't be used: {why}"))
    };
    let scan = meta.scans.get(index).ok_or_else(|| unusable("there is none"))?;
    let read = parts(analysis, scan)?.map_err(|why| unusable(&why))?;
    let Read { heap, head, roots, frames } = read;
    let held = heap.held_unless(&Job::is_current_cancelled).ok_or(HoldsError::Cancelled)?;
    let frame = |f| RootData::of_frame(f, roots.get(f.root as usize));
    let named = roots.iter().map(RootData::of_record).chain(frames.iter().map(frame));
    let named = (0..).map(Root::Saved).zip(named).collect();
    let (number, name) = (index + 1, printable(&head.name));
    Ok(Holders {
        pid: Pid::from_u32(meta.target.pid),
        at_ns: meta.clock.ns(head.ticks),
        ticks: head.ticks,
        saved: Some(SavedData { number, name, of: meta.scans.len() }),
        tree: Tree::new(&held),
        held,
        heap,
        roots: named,
        scan: ScanData::of_saved(&ScanFigures::decode(&head.figures), meta),
        memory: Classes(head.classes),
    })
}

type Parts = Result<Read, String>;

/// Reads the parts of a scan. The outer error is that the job was cancelled.
fn parts(analysis: &Analysis, at: &ScanAt) -> Result<Parts, HoldsError> {
    let unreadable = || "it could not be read".to_owned();
    let Some(head) = analysis.payload(&at.head).and_then(|p| Scan::decode(&p)) else {
        return Ok(Err(unreadable()));
    };
    let pass = Pass::begin("reading the scan", at.parts.len() as u64);
    let (mut saved, mut excess) = (Saved::new(head), 0);
    for (kind, place) in &at.parts {
        if pass.is_cancelled() {
            return Err(HoldsError::Cancelled);
        }
        let Some(payload) = analysis.payload(place) else { return Ok(Err(unreadable())) };
        excess += payload.len().saturating_sub(USUAL * place.len);
        if excess > EXCESS {
            return Ok(Err("its parts are compressed as no scan is".to_owned()));
        }
        saved.take(*kind, &payload, BEFORE);
        pass.add(1);
    }
    Ok(saved.finish().map_err(|e| e.to_string()))
}
