//! The C++ classes of the blocks of a heap.

use crate::classes;
use crate::failure::refused;
use anyhow::Result;
use prof_analyze::objects::ObjectData;
use prof_analyze::report::{Style, Table};
use prof_census::Census;
use prof_os::Pid;
use prof_scan::Classes;
use prof_trace::values::text::{bytes, count, number};
use serde::Serialize;
use std::fmt::{self, Write};

/// The blocks in use, added up by the C++ class of the object that they begin with. Bytes are those that the program can use.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ClassesData {
    /// The classes, those of most bytes first.
    list: Vec<ObjectData>,
    /// Blocks that begin with no object that has virtual functions.
    other_bytes: u64,
    other_blocks: u64,
}

/// Adds up the blocks in use of process `pid`.
///
/// # Errors
/// If the process has ended since the census.
pub(super) fn of_process(pid: Pid, census: &Census) -> Result<ClassesData> {
    let mut names = Classes::open(pid).ok_or_else(|| {
        refused(format!("process {pid} has ended before its blocks could be told by class"))
    })?;
    let list = classes::of(&mut names, census.blocks().map(|b| (b.address, b.size)));
    let (mut other_bytes, mut other_blocks) = (0u64, 0u64);
    for b in census.blocks() {
        (other_bytes, other_blocks) = (other_bytes.saturating_add(b.size), other_blocks + 1);
    }
    for c in &list {
        other_bytes = other_bytes.saturating_sub(c.bytes);
        other_blocks = other_blocks.saturating_sub(c.blocks);
    }
    Ok(ClassesData { list, other_bytes, other_blocks })
}

impl ClassesData {
    /// Writes a table with at most `top` classes.
    pub(super) fn write(&self, top: usize, style: Style, out: &mut String) -> fmt::Result {
        let mut table = Table::new(vec!["usable", "blocks", "C++ class"]);
        for c in self.list.iter().take(top) {
            table.row(vec![bytes(c.bytes), number(c.blocks), c.class.clone()]);
        }
        table.row(vec![bytes(self.other_bytes), number(self.other_blocks), "(no class)".into()]);
        table.write(style, out)?;
        match self.list.len().saturating_sub(top) as u64 {
            0 => Ok(()),
            n => writeln!(out, "{} more (--top 0 shows them)", count(n, "class", "classes")),
        }
    }
}
