//! The census of an attach: the blocks that a process has before its recording begins.

use crate::commands::record::RecordArgs;
use crate::failure::refused;
use anyhow::{Context, Result, anyhow};
use nix::sys::memfd::{MFdFlags, memfd_create};
use prof_census::{Lost, Placed, Taken, Walk};
use prof_collect::{GOOGLES, list_allocators};
use prof_inject::{Begun, Installed, ScanAnswer, add_scan};
use prof_os::Pid;
use prof_scan::Classes;
use prof_trace::chunk;
use prof_trace::derived::Zipper;
use prof_trace::records::{Census, CensusAt, CensusBlock, CensusClasses, allocator, kind};
use prof_trace::size::Header;
use prof_trace::values::text::{bytes, count, time};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant};

/// Time for the search of the process's memory before it is stopped, and the walk.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time for the collector to take the census.
const HANDOVER: Duration = Duration::from_secs(30);
/// Time for the classes of the blocks. Meanwhile the ring has to hold all events, as the collector waits for the census.
const CLASSES: Duration = Duration::from_secs(2);
/// Number of attempts: the program may change its heap between the search and the stop.
const TRIES: usize = 3;

/// Activates the hooks. With a census, which may stop the process for `most`, recording is turned on in the census's
/// moment; returns a message about it.
///
/// # Errors
/// If the hooks can't be activated, or the blocks not be counted.
pub(crate) fn begin(installed: &mut Installed, most: Option<Duration>) -> Result<Option<String>> {
    let pid = installed.target.pid;
    let census = most.map(|most| prepare(pid, most)).transpose()?;
    if census.is_some() {
        installed.options.on = false;
    }
    installed.activate()?;
    census.map(|census| census.take(installed)).transpose()
}

/// Refuses options with which a census makes no sense, if one is wanted.
///
/// # Errors
/// A message that says which.
pub(crate) fn check(record: &RecordArgs, wanted: bool, on: bool) -> Result<(), String> {
    if !wanted {
        return Ok(());
    }
    if !on {
        return Err("--census with --paused: blocks that are freed before recording is on would count as live for ever; \
                    attach with --census when recording is to begin"
            .into());
    }
    let bounds = &record.bounds;
    let leaves_out = !record.capture().is_everything();
    if leaves_out || bounds.cull().is_some() || bounds.aggregate().is_some() {
        return Err("--census needs all blocks and all frees, and with --sample, --sample-rate, --min-size, --max-size, \
                    --max-cpu, --max-overhead, --cull or --aggregate a recording does not have them; leave --census or \
                    these out"
            .into());
    }
    if bounds.folds() {
        return Err("--census with --on-limit drop-oldest or aggregate: blocks from before have no figures that could be \
                    kept when events go; leave out one of the two"
            .into());
    }
    Ok(())
}

/// A census that is about to be taken.
struct Prepared {
    pid: Pid,
    walk: Walk,
    /// Longest stop that the user allows.
    most: Duration,
}

/// Looks for the heap of a process while it runs.
///
/// # Errors
/// If its blocks can't be counted, or stopping it for that would take longer than `most`.
fn prepare(pid: Pid, most: Duration) -> Result<Prepared> {
    let found = list_allocators(pid).unwrap_or_default();
    let walk = Walk::prepare(pid, TIMEOUT).map_err(|e| refused(e.to_string()))?;
    let known = |[name, version, _]: &[String; 3]| match &**name {
        allocator::GLIBC => true,
        // musl is the C library even where another allocator has taken over.
        allocator::MUSL => walk.has_musl() || is_groups(version),
        allocator::JEMALLOC => walk.has_jemalloc(),
        allocator::MIMALLOC => walk.has_mimalloc(),
        allocator::TCMALLOC => walk.has_tcmalloc() && version != GOOGLES,
        _ => false,
    };
    if let Some([name, version, _]) = found.into_iter().find(|a| !known(a)) {
        let allocator = format!("{name} {version}");
        let allocator = allocator.trim_end();
        return Err(refused(format!(
            "process {pid} has an allocator whose blocks no census can count, {allocator}: attach without --census, \
             and its blocks from before stay unknown"
        )));
    }
    if !walk.has_heap() {
        return Err(refused(format!(
            "process {pid} has no heap of glibc's, jemalloc's, mimalloc's, tcmalloc's or musl's, the only ones that --census can count: \
             attach without it, and blocks from before stay unknown"
        )));
    }
    if walk.estimate() > most {
        return Err(refused(format!(
            "the heap of process {pid} has {}, so that a census would stop it for up to {}, and {} are allowed: give \
             --census-stop {} if it may stand still for that long, or attach without --census",
            bytes(walk.heap_bytes()),
            time(walk.estimate()),
            time(most),
            time_option(walk.estimate()),
        )));
    }
    Ok(Prepared { pid, walk, most })
}

/// Returns whether this version of musl has the allocator that the census knows.
fn is_groups(version: &str) -> bool {
    let parts: Vec<u32> = version.split('.').map_while(|n| n.parse().ok()).collect();
    parts.as_slice() >= &[1, 2, 1][..]
}

/// Returns a time as an option has it, rounded up to tenths of a second.
fn time_option(t: Duration) -> String {
    let tenths = t.as_millis().div_ceil(100);
    format!("{}.{}s", tenths / 10, tenths % 10)
}

impl Prepared {
    /// Turns recording on, takes the census in the same moment, and has the collector write it. Returns a message.
    ///
    /// # Errors
    /// If the heap can't be counted as a whole, or the census can't be written.
    fn take(mut self, installed: &mut Installed) -> Result<String> {
        let pid = self.pid;
        // A static program has only what it calls.
        let is_absent = |f: &str| {
            matches!(f, "realloc" | "calloc")
                && installed.not_hooked.iter().all(|n| n.function != f)
        };
        let missing = ["malloc", "free", "realloc", "calloc"]
            .into_iter()
            .find(|f| !installed.hooked.iter().any(|h| h.function == *f) && !is_absent(f));
        if let Some(function) = missing {
            return Err(refused(format!(
                "{function} of process {pid} is not hooked, so that nobody sees what becomes of the blocks from before; \
                 attach without --census"
            )));
        }
        let mut tries = TRIES;
        let (taken, begun) = loop {
            match self.attempt(installed)? {
                Ok(done) => break done,
                Err(lost) if tries <= 1 || lost.late => return Err(self.incomplete(&lost)),
                Err(_) => {}
            }
            tries -= 1;
            self.walk = Walk::prepare(pid, TIMEOUT).map_err(|e| refused(e.to_string()))?;
        };
        let blocks = taken.blocks();
        let sum = blocks.iter().map(|b| b.size).sum();
        let classes = Classes::open(pid);
        let (file, untold) =
            encode(&blocks, &begun, classes).context("cannot keep the census in memory")?;
        drop(taken);
        let n = count(blocks.len() as u64, "block", "blocks");
        match add_scan(pid, &file, Instant::now() + HANDOVER)? {
            ScanAnswer::Written => Ok(format!(
                "{n} from before the attach, {}, are in the recording; the process was stopped for {} for their census{}",
                bytes(sum),
                time(begun.stop),
                classes_missing(untold)
            )),
            ScanAnswer::NoRoom => Err(refused(format!(
                "the recording may not become as long as the census of {n} makes it; give a larger --max-disk"
            ))),
            ScanAnswer::Unreadable => Err(anyhow!(
                "the collector of process {pid} could not read the census; attach without --census"
            )),
        }
    }

    /// Turns recording on if the walk is complete; otherwise returns what it has lost.
    fn attempt(&self, installed: &mut Installed) -> Result<Result<(Taken, Begun), Lost>> {
        let mut outcome = None;
        let begun = installed.begin_with(self.most / 2, || {
            // The other half is for the look for a moment. The estimate is of a slow machine: most stops take a quarter of it.
            let taken = self.walk.read(self.most / 2);
            let complete = taken.as_ref().is_ok_and(|t| t.lost().is_nothing());
            outcome = Some(taken);
            complete
        });
        let begun = begun?;
        match (outcome, begun) {
            (Some(Ok(taken)), Some(begun)) => Ok(Ok((taken, begun))),
            (Some(Ok(taken)), None) => Ok(Err(taken.lost())),
            (Some(Err(e)), _) => Err(refused(e.to_string())),
            (None, _) => Err(refused(format!("process {} was not looked at", self.pid))),
        }
    }

    fn incomplete(&self, lost: &Lost) -> anyhow::Error {
        let (pid, half) = (self.pid, time(self.most / 2));
        refused(match lost.late {
            true => format!(
                "the census of process {pid} was not ready within half of --census-stop, {half} in which the process stood \
                 still, and was given up; allow more with --census-stop, or attach without --census"
            ),
            false => format!(
                "the heap of process {pid} could not be walked as a whole (`prof heap {pid}` says why), so that its blocks \
                 are not known; attach without --census"
            ),
        })
    }
}

/// Returns a file in memory with the census, as chunks of a recording. The classes of blocks are read now, while the program
/// runs on, for up to [`CLASSES`]. Also returns the number of blocks for which there was no time.
fn encode(blocks: &[Placed], begun: &Begun, mut classes: Option<Classes>) -> Result<(File, u64)> {
    let fd = memfd_create(c"prof-census", MFdFlags::MFD_CLOEXEC)?;
    let mut out = BufWriter::new(File::from(fd));
    let (mut zipper, mut chunks) = (Zipper::default(), Vec::new());
    let stop_ns = begun.stop.as_nanos() as u64;
    // A census of no blocks says that there were none.
    let none: &[Placed] = &[];
    let parts = blocks.chunks(Census::PART).chain(blocks.is_empty().then_some(none));
    let (mut named, mut untold, deadline) = (0, 0, Instant::now() + CLASSES);
    for part in parts {
        if Instant::now() > deadline {
            classes = None;
            untold += part.len() as u64;
        }
        let addresses: Vec<u64> = part.iter().map(|b| b.address).collect();
        let numbers = classes.as_mut().map_or_else(Vec::new, |c| c.numbers(&addresses));
        let names = classes.as_ref().map_or(&[][..], |c| &c.names()[named..]);
        chunks.clear();
        if !names.is_empty() {
            let names = CensusClasses { first: named as u64 + 1, names: names.to_vec() };
            named += names.names.len();
            put(&mut chunks, &mut zipper, kind::CENSUS_CLASSES, &names.encode());
        }
        let mut census = Census { ticks: begun.ticks, stop_ns, ..Census::default() };
        let mut at = CensusAt::default();
        for (b, class) in part.iter().zip(numbers.into_iter().chain(std::iter::repeat(0))) {
            let arena = if b.main { 1 } else { 2 };
            let in_arena = b.headed && !b.mapped;
            let header =
                Header { arena: if in_arena { arena } else { 0 }, mapped: b.mapped, extra: 0 };
            let block = CensusBlock { address: b.address, size: b.size, header, class };
            census.put(&mut at, &block);
        }
        put(&mut chunks, &mut zipper, kind::CENSUS, &census.encode());
        out.write_all(&chunks)?;
    }
    Ok((out.into_inner().map_err(std::io::IntoInnerError::into_error)?, untold))
}

/// Returns what is to be said of blocks for whose classes there was no time.
fn classes_missing(untold: u64) -> String {
    match untold {
        0 => String::new(),
        n => {
            format!("; of {} there was no time to read the C++ class", count(n, "block", "blocks"))
        }
    }
}

/// Appends a chunk, compressed if that makes it shorter.
fn put(chunks: &mut Vec<u8>, zipper: &mut Zipper, kind: u16, payload: &[u8]) {
    match zipper.zip(kind, payload) {
        Some(zipped) => chunk::put(chunks, kind::ZIPPED, &zipped),
        None => chunk::put(chunks, kind, payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_trace::chunk::Next;
    use prof_trace::derived::Zipped;
    use prof_trace::ticks::Ticks;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_census_of_many_blocks_has_several_parts_and_one_of_none_has_one() {
        let begun = Begun { ticks: Ticks(77), stop: Duration::from_millis(3) };
        for n in [0, 1, Census::PART + 1] {
            let block = |i: usize| Placed {
                address: 0x1000 + 32 * i as u64,
                size: 24,
                main: i.is_multiple_of(2),
                mapped: i == 7,
                headed: i != 8,
            };
            let blocks: Vec<_> = (0..n).map(block).collect();
            let file = encode(&blocks, &begun, None).expect("a file").0;
            let mut bytes = vec![0; file.metadata().expect("its length").len() as usize];
            file.read_exact_at(&mut bytes, 0).expect("chunks");
            let (mut at, mut parts, mut back) = (0, 0, Vec::new());
            while let Next::Chunk(kind, payload, len) = chunk::next(&bytes[at..]) {
                let unzipped = (kind == kind::ZIPPED)
                    .then(|| Zipped::decode(payload).and_then(|z| z.unzip()).expect("whole"));
                let census = Census::decode(unzipped.as_deref().unwrap_or(payload)).expect("one");
                assert_eq!((census.ticks, census.stop_ns), (Ticks(77), 3_000_000));
                back.extend(census.into_blocks());
                (at, parts) = (at + len, parts + 1);
            }
            assert_eq!((at, back.len(), parts), (bytes.len(), n, n.div_ceil(Census::PART).max(1)));
            for (b, c) in blocks.iter().zip(&back) {
                assert_eq!((b.address, b.size, b.mapped), (c.address, c.size, c.header.mapped));
                let arena = if b.headed && !b.mapped { 2 - u8::from(b.main) } else { 0 };
                assert_eq!(c.header.arena, arena);
            }
        }
    }

    #[test]
    fn old_and_unknown_versions_of_musl_are_not_known() {
        for (version, known) in
            [("1.2.1", true), ("1.2.5", true), ("2.0.0", true), ("1.2.0", false), ("?", false)]
        {
            assert_eq!(is_groups(version), known, "{version}");
        }
    }

    #[test]
    fn times_are_rounded_up_for_options() {
        assert_eq!(time_option(Duration::from_millis(1201)), "1.3s");
        assert_eq!(time_option(Duration::from_millis(900)), "0.9s");
    }
}
