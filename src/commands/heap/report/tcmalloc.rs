//! tcmalloc's part of the report of `prof heap`.

use super::SumData;
use prof_census::TcmallocStats;
use prof_trace::values::text::{bytes, count};
use serde::Serialize;
use std::fmt::{self, Write};

/// A tcmalloc that the process has.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct TcmallocData {
    /// Whether its variables were found; if not, no block is counted.
    known: bool,
    caches: u64,
    in_use: SumData,
    /// Blocks with spans of their own; they are part of `in_use`.
    large: SumData,
    /// Free blocks on lists of spans, in batches of the central lists, and in caches of threads.
    central: SumData,
    transfer: SumData,
    cached: SumData,
    /// Free pages with contents, and those whose contents the kernel has taken.
    free_page_bytes: u64,
    returned_page_bytes: u64,
}

impl From<&TcmallocStats> for TcmallocData {
    fn from(t: &TcmallocStats) -> Self {
        Self {
            known: t.known,
            caches: t.caches,
            in_use: t.in_use.into(),
            large: t.large.into(),
            central: t.central.into(),
            transfer: t.transfer.into(),
            cached: t.cached.into(),
            free_page_bytes: t.free,
            returned_page_bytes: t.returned,
        }
    }
}

impl TcmallocData {
    /// Writes what is free.
    pub(super) fn write(&self, out: &mut String) -> fmt::Result {
        if !self.known {
            return writeln!(
                out,
                "  a tcmalloc is there whose data are laid out in a way that prof does not know: none of its blocks is \
                 counted"
            );
        }
        write!(
            out,
            "  tcmalloc: {} free in spans, {} in batches, {} in {}; free pages: {}, {} returned",
            bytes(self.central.bytes),
            bytes(self.transfer.bytes),
            bytes(self.cached.bytes),
            count(self.caches, "cache of a thread", "caches of threads"),
            bytes(self.free_page_bytes),
            bytes(self.returned_page_bytes),
        )?;
        if self.large.blocks > 0 {
            let (one, many) = ("block has pages of its own", "blocks have pages of their own");
            let blocks = count(self.large.blocks, one, many);
            write!(out, "; {blocks}: {}", bytes(self.large.bytes))?;
        }
        writeln!(out)?;
        if self.caches == 0 {
            writeln!(
                out,
                "  no cache of a thread was found: free blocks in such caches count as in use"
            )?;
        }
        Ok(())
    }
}
