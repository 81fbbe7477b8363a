//! jemalloc's part of the report of `prof heap`.

use super::SumData;
use prof_analyze::report::{Style, Table};
use prof_census::{JemallocArena, JemallocStats};
use prof_trace::values::text::{bytes, count, number};
use serde::Serialize;
use std::fmt::{self, Write};

#[derive(Clone, Copy, Debug, Serialize)]
struct ArenaData {
    number: u16,
    in_use: SumData,
    cached: SumData,
    free: SumData,
    active_bytes: u64,
    dirty_bytes: u64,
    muzzy_bytes: u64,
    retained_bytes: u64,
}

impl From<&JemallocArena> for ArenaData {
    fn from(a: &JemallocArena) -> Self {
        Self {
            number: a.number,
            in_use: a.in_use.into(),
            cached: a.cached.into(),
            free: a.free.into(),
            active_bytes: a.active,
            dirty_bytes: a.dirty,
            muzzy_bytes: a.muzzy,
            retained_bytes: a.retained,
        }
    }
}

/// A jemalloc that the process has.
#[derive(Clone, Debug, Serialize)]
pub(super) struct JemallocData {
    /// The version whose layout fits; `None`: none does, and no block is counted.
    version: Option<String>,
    caches: u64,
    /// Blocks in which jemalloc keeps the lists of caches; they are part of those in use.
    own: SumData,
    in_use: SumData,
    cached: SumData,
    free: SumData,
    arenas: Vec<ArenaData>,
}

impl From<&JemallocStats> for JemallocData {
    fn from(j: &JemallocStats) -> Self {
        Self {
            version: j.version.map(|(major, minor)| format!("{major}.{minor}")),
            caches: j.caches,
            own: j.own.into(),
            in_use: j.sum(|a| a.in_use).into(),
            cached: j.sum(|a| a.cached).into(),
            free: j.sum(|a| a.free).into(),
            arenas: j.arenas.iter().map(ArenaData::from).collect(),
        }
    }
}

impl JemallocData {
    /// Writes what is free.
    pub(super) fn free(&self, out: &mut String) -> fmt::Result {
        let Some(version) = &self.version else {
            return writeln!(
                out,
                "  a jemalloc is there whose data are laid out in a way that prof does not know: none of its blocks is \
                 counted"
            );
        };
        let sum = |of: fn(&ArenaData) -> u64| bytes(self.arenas.iter().map(of).sum());
        writeln!(
            out,
            "  jemalloc {version}: {} free in slabs, {} in {}; free pages: {} dirty, {} muzzy, {} retained",
            bytes(self.free.bytes),
            bytes(self.cached.bytes),
            count(self.caches, "cache of a thread", "caches of threads"),
            sum(|a| a.dirty_bytes),
            sum(|a| a.muzzy_bytes),
            sum(|a| a.retained_bytes),
        )?;
        if self.caches == 0 {
            writeln!(
                out,
                "  no cache of a thread was found: free blocks in such caches count as in use"
            )?;
        }
        Ok(())
    }

    /// Writes the table of arenas.
    pub(super) fn arenas(&self, style: Style, out: &mut String) -> fmt::Result {
        let head = [
            "pages in use",
            "in use",
            "blocks",
            "caches",
            "slabs",
            "dirty",
            "muzzy",
            "retained",
            "arena",
        ];
        let mut table = Table::new(head.to_vec());
        for a in &self.arenas {
            table.row(vec![
                bytes(a.active_bytes),
                bytes(a.in_use.bytes),
                number(a.in_use.blocks),
                bytes(a.cached.bytes),
                bytes(a.free.bytes),
                bytes(a.dirty_bytes),
                bytes(a.muzzy_bytes),
                bytes(a.retained_bytes),
                format!("jemalloc {}", a.number),
            ]);
        }
        table.write(style, out)
    }
}
