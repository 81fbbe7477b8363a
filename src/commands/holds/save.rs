//! Writes a scan into the recording of its process.

use super::looked::{Looked, Seen};
use crate::commands::reach::before::BEFORE;
use crate::failure::refused;
use crate::term::one_line;
use anyhow::{Context, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use prof_analyze::holds::{Memory, RootData};
use prof_graph::{Naming, Root};
use prof_inject::ScanAnswer;
use prof_trace::chunk;
use prof_trace::derived::Zipper;
use prof_trace::records::{Scan, ScanFrame, ScanRoot, ScanStack, kind};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

/// Free space that stays on the file system: a full one would end the recording.
const SPARE: u64 = 64 << 20;

struct Names<'a> {
    roots: &'a HashMap<Root, RootData>,
    memory: &'a Seen,
}

impl Naming for Names<'_> {
    fn root(&self, root: &Root) -> ScanRoot {
        self.roots.get(root).map(RootData::record).unwrap_or_default()
    }

    fn frame(&self, frame: &Root) -> ScanFrame {
        self.roots.get(frame).map(RootData::frame_record).unwrap_or_default()
    }

    fn class(&self, table: u64) -> Option<String> {
        self.memory.class(table)
    }

    fn stack(&self, number: u32) -> ScanStack {
        if number == BEFORE { ScanStack::Before } else { ScanStack::Node(number) }
    }
}

/// Writes the scan of a process into its recording. Returns the message to the user.
///
/// # Errors
/// If the recording has no room, or the collector does not answer.
pub(super) fn save(looked: &Looked<'_>, name: &str, until: Instant) -> Result<String> {
    let pid = looked.of.pid;
    let recording = looked.analysis.path();
    let file = encode(looked, name).context("cannot keep the scan in memory")?;
    let len = file.metadata()?.len();
    has_room(&recording, len)?;
    let known = looked.analysis.meta().scans.len();
    let answer =
        prof_inject::add_scan(pid, &file, until).map_err(|e| crate::failure::failed(pid, e))?;
    let path = one_line(&recording.to_string_lossy());
    match answer {
        ScanAnswer::Written => {
            let called = if name.is_empty() { (known + 1).to_string() } else { name.to_owned() };
            let word = shlex::try_quote(&called).map_or(called.clone(), |q| q.into_owned());
            Ok(format!("the scan is in the recording: `prof holds {path} --scan {word}` shows it"))
        }
        ScanAnswer::NoRoom => Err(refused(format!(
            "{path} may not become as long as the scan makes it; attach with a larger --max-disk"
        ))),
        ScanAnswer::Unreadable => Err(refused(format!(
            "the collector of process {pid} could not take the scan: it is another build of prof, or runs as another \
             user or in another container; run `prof holds` where `prof attach` was run"
        ))),
    }
}

/// Returns a file in memory with the chunks of a scan.
fn encode(looked: &Looked<'_>, name: &str) -> Result<File> {
    let fd = memfd_create(c"prof-scan", MFdFlags::MFD_CLOEXEC)?;
    let mut out = BufWriter::new(File::from(fd));
    let head = Scan {
        ticks: looked.of.ticks,
        name: name.to_owned(),
        census: looked.census.into(),
        figures: looked.figures.encode(),
        ..Scan::default()
    };
    let (mut zipper, mut bytes) = (Zipper::default(), Vec::new());
    let names = Names { roots: &looked.of.roots, memory: &looked.of.memory };
    looked.of.heap.save(head, &names, |of, payload| {
        bytes.clear();
        // The first chunk is read whenever the recording is.
        match (of != kind::SCAN).then(|| zipper.zip(of, payload)).flatten() {
            Some(zipped) => chunk::put(&mut bytes, kind::ZIPPED, &zipped),
            None => chunk::put(&mut bytes, of, payload),
        }
        out.write_all(&bytes)
    })?;
    Ok(out.into_inner().map_err(std::io::IntoInnerError::into_error)?)
}

/// Refuses a scan for which the recording's file system has no room.
#[allow(clippy::useless_conversion, reason = "the fields have 32 bits on some systems")]
fn has_room(recording: &Path, len: u64) -> Result<()> {
    let Ok(s) = nix::sys::statvfs::statvfs(recording) else { return Ok(()) };
    let free = u64::from(s.blocks_available()).saturating_mul(u64::from(s.fragment_size()));
    if len.saturating_add(SPARE) <= free {
        return Ok(());
    }
    let (len, free) = (prof_trace::values::text::bytes(len), prof_trace::values::text::bytes(free));
    Err(refused(format!(
        "the scan takes {len}, and the file system of {} has {free} left: make room there first",
        one_line(&recording.to_string_lossy())
    )))
}
