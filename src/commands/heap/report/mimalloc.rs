//! mimalloc's part of the report of `prof heap`.

use super::SumData;
use prof_census::MimallocStats;
use prof_trace::values::text::{bytes, count};
use serde::Serialize;
use std::fmt::{self, Write};

/// A mimalloc that the process has.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MimallocData {
    /// Whether its layout is one that is known; if not, no block is counted.
    known: bool,
    /// The version that has this layout, such as `2.1`.
    version: Option<String>,
    segments: u64,
    system_bytes: u64,
    /// Segments, of version 3 pages, whose threads have ended, and segments without a page.
    abandoned_segments: u64,
    kept_segments: u64,
    page_bytes: u64,
    in_use: SumData,
    /// Blocks with segments of their own, of version 3 pages; they are part of `in_use`.
    huge: SumData,
    /// Blocks that may begin later than their places, as one of their page does; they are part of `in_use`.
    shifted: SumData,
    free: SumData,
}

impl From<&MimallocStats> for MimallocData {
    fn from(m: &MimallocStats) -> Self {
        Self {
            known: m.version.is_some(),
            version: m.version.map(|(major, minor)| format!("{major}.{minor}")),
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
        let Some(version) = &self.version else {
            return writeln!(
                out,
                "  a mimalloc is there whose data are laid out in a way that prof does not know: none of its blocks is \
                 counted"
            );
        };
        // Version 3 has no segments.
        let has_segments = self.segments > 0;
        let (one, many) = if has_segments { ("segment", "segments") } else { ("page", "pages") };
        let segments = match has_segments {
            true => {
                format!(", in {} of {}", count(self.segments, one, many), bytes(self.system_bytes))
            }
            false => String::new(),
        };
        write!(
            out,
            "  mimalloc {version}: {} of pages{segments}; {} free in {}",
            bytes(self.page_bytes),
            bytes(self.free.bytes),
            count(self.free.blocks, "place", "places"),
        )?;
        if self.abandoned_segments > 0 {
            let (one, many) = (format!("{one} is of a thread"), format!("{many} are of threads"));
            let segments = count(self.abandoned_segments, &one, &many);
            write!(out, "; {segments} that ended")?;
        }
        if self.huge.blocks > 0 {
            let (first, other) = (
                format!("block has a {one} of its own"),
                format!("blocks have {many} of their own"),
            );
            let blocks = count(self.huge.blocks, &first, &other);
            write!(out, "; {blocks}: {}", bytes(self.huge.bytes))?;
        }
        writeln!(out)
    }
}
