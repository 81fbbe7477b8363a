//! mimalloc's part of the report of `prof heap`.

use super::SumData;
use prof_census::MimallocStats;
use prof_trace::values::text::{bytes, count};
use serde::Serialize;
use std::fmt::{self, Write};

/// A mimalloc that the process has.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct MimallocData {
    /// Whether its layout is one that is known; if not, no block is counted.
    known: bool,
    segments: u64,
    system_bytes: u64,
    /// Segments whose threads have ended, and those without a page.
    abandoned_segments: u64,
    kept_segments: u64,
    page_bytes: u64,
    in_use: SumData,
    /// Blocks with segments of their own; they are part of `in_use`.
    huge: SumData,
    /// Blocks that may begin later than their places, as one of their page does; they are part of `in_use`.
    shifted: SumData,
    free: SumData,
}

impl From<&MimallocStats> for MimallocData {
    fn from(m: &MimallocStats) -> Self {
        Self {
            known: m.known,
            segments: m.segments,
            system_bytes: m.system,
            abandoned_segments: m.abandoned,
            kept_segments: m.kept,
            page_bytes: m.pages,
            in_use: m.in_use.into(),
            huge: m.huge.into(),
            shifted: m.shifted.into(),
            free: m.free.into(),
        }
    }
}

impl MimallocData {
    /// Writes what it has from the kernel, and what is free.
    pub(super) fn write(&self, out: &mut String) -> fmt::Result {
        if !self.known {
            return writeln!(
                out,
                "  a mimalloc is there whose data are laid out in a way that prof does not know: none of its blocks is \
                 counted"
            );
        }
        write!(
            out,
            "  mimalloc 2.0: {} of pages, in {} of {}; {} free in {}",
            bytes(self.page_bytes),
            count(self.segments, "segment", "segments"),
            bytes(self.system_bytes),
            bytes(self.free.bytes),
            count(self.free.blocks, "place", "places"),
        )?;
        if self.abandoned_segments > 0 {
            let (one, many) = ("segment is of a thread", "segments are of threads");
            let segments = count(self.abandoned_segments, one, many);
            write!(out, "; {segments} that ended")?;
        }
        if self.huge.blocks > 0 {
            let (one, many) =
                ("block has a segment of its own", "blocks have segments of their own");
            let blocks = count(self.huge.blocks, one, many);
            write!(out, "; {blocks}: {}", bytes(self.huge.bytes))?;
        }
        writeln!(out)
    }
}
