//! The report of `prof heap`.

mod jemalloc;
mod mimalloc;
mod tcmalloc;

use super::classes::ClassesData;
use jemalloc::JemallocData;
use mimalloc::MimallocData;
use prof_analyze::report::{Style, Table};
use prof_census::{ArenaStats, Census, MuslStats, SizeClass, Sum};
use prof_collect::list_allocators;
use prof_os::Pid;
use prof_trace::records::allocator;
use prof_trace::values::text::{bytes, count, duration, number};
use serde::Serialize;
use std::fmt::{self, Write};
use tcmalloc::TcmallocData;

/// Number of names of mappings that are shown.
const NAMES: usize = 5;

/// Bytes, of glibc's blocks with headers, and blocks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct SumData {
    bytes: u64,
    blocks: u64,
}

impl From<Sum> for SumData {
    fn from(s: Sum) -> Self {
        Self { bytes: s.bytes, blocks: s.blocks }
    }
}

/// An allocator that the process has.
#[derive(Clone, Debug, Serialize)]
struct AllocatorData {
    name: String,
    version: String,
    path: String,
    /// Whether the allocator's blocks are counted.
    walked: bool,
}

#[derive(Clone, Debug, Serialize)]
struct ArenaData {
    address: String,
    main: bool,
    heaps: u64,
    threads: Option<u64>,
    system_bytes: u64,
    most_system_bytes: u64,
    in_use: SumData,
    cached: SumData,
    fast_bins: SumData,
    bins: SumData,
    top_bytes: u64,
    /// The arena's own data, the ends of its heaps, and memory that the walk has lost.
    other_bytes: u64,
}

impl From<&ArenaStats> for ArenaData {
    fn from(a: &ArenaStats) -> Self {
        Self {
            address: format!("{:#x}", a.address),
            main: a.main,
            heaps: a.heaps,
            threads: a.threads,
            system_bytes: a.system,
            most_system_bytes: a.most_system,
            in_use: a.in_use.into(),
            cached: a.cached.into(),
            fast_bins: a.fast.into(),
            bins: a.binned.into(),
            top_bytes: a.top,
            other_bytes: a.rest(),
        }
    }
}

/// The allocator of musl.
#[derive(Clone, Copy, Debug, Serialize)]
struct MuslData {
    groups: u64,
    system_bytes: u64,
    in_use: SumData,
    /// Blocks with mappings of their own; they are part of `in_use`.
    mapped: SumData,
    free: SumData,
}

impl From<&MuslStats> for MuslData {
    fn from(m: &MuslStats) -> Self {
        Self {
            groups: m.groups,
            system_bytes: m.system,
            in_use: m.in_use.into(),
            mapped: m.mapped.into(),
            free: m.free.into(),
        }
    }
}

impl MuslData {
    /// Writes what is free, and what has mappings of its own.
    fn write(&self, out: &mut String) -> fmt::Result {
        let (one, many) = ("block has a mapping of its own", "blocks have mappings of their own");
        write!(
            out,
            "  musl: {} from the kernel in {}; {} free in {}",
            bytes(self.system_bytes),
            count(self.groups, "group of slots", "groups of slots"),
            bytes(self.free.bytes),
            count(self.free.blocks, "slot", "slots"),
        )?;
        if self.mapped.blocks > 0 {
            let blocks = count(self.mapped.blocks, one, many);
            write!(out, "; {blocks}: {}", bytes(self.mapped.bytes))?;
        }
        writeln!(out)
    }
}

/// Blocks of which a program can use this many bytes.
#[derive(Clone, Copy, Debug, Serialize)]
struct SizeData {
    least: u64,
    most: u64,
    in_use: SumData,
    free: SumData,
}

impl From<&SizeClass> for SizeData {
    fn from(s: &SizeClass) -> Self {
        Self { least: s.sizes.0, most: s.sizes.1, in_use: s.in_use.into(), free: s.free.into() }
    }
}

/// Touched anonymous memory that no walk explains.
#[derive(Clone, Debug, Serialize)]
struct OtherData {
    name: String,
    bytes: u64,
    mappings: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct LostData {
    bytes: u64,
    places: u64,
    links: u64,
    taken_by_others_bytes: u64,
    unknown_layout: bool,
    caches: bool,
    late: bool,
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct HeapData {
    pid: Pid,
    name: String,
    allocators: Vec<AllocatorData>,
    in_use: SumData,
    /// Blocks with mappings of their own; they are part of `in_use`.
    mapped: SumData,
    arenas: Vec<ArenaData>,
    jemallocs: Vec<JemallocData>,
    musls: Vec<MuslData>,
    mimallocs: Vec<MimallocData>,
    tcmallocs: Vec<TcmallocData>,
    sizes: Vec<SizeData>,
    /// The C++ classes of the blocks in use, those of most bytes first, and the other blocks. `None`: they were not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) classes: Option<ClassesData>,
    trim_bytes: u64,
    trim_top_bytes: u64,
    other_memory: Vec<OtherData>,
    lost: LostData,
    stop_ns: Option<u64>,
    given_up_stop_ns: Option<u64>,
    took_ns: u64,
    read_bytes: u64,
}

impl HeapData {
    /// Makes the report of a census.
    pub(super) fn new(pid: Pid, census: &Census) -> Self {
        let found = list_allocators(pid).unwrap_or_default();
        let allocators = found.into_iter().map(|[name, version, path]| AllocatorData {
            name: name.clone(),
            version: version.clone(),
            path: path.clone(),
            walked: match &*name {
                allocator::GLIBC => true,
                allocator::JEMALLOC => census.jemallocs.iter().any(|j| j.version.is_some()),
                allocator::MUSL => !census.musls.is_empty(),
                allocator::MIMALLOC => census.mimallocs.iter().any(|m| m.version.is_some()),
                allocator::TCMALLOC => census.tcmallocs.iter().any(|t| t.known),
                _ => false,
            },
        });
        let others = census.others.iter().map(|(name, bytes, mappings)| OtherData {
            name: name.clone(),
            bytes: *bytes,
            mappings: *mappings,
        });
        Self {
            pid,
            name: prof_os::process::comm(pid),
            allocators: allocators.collect(),
            in_use: census.in_use().into(),
            mapped: census.mapped.into(),
            arenas: census.arenas.iter().map(ArenaData::from).collect(),
            jemallocs: census.jemallocs.iter().map(JemallocData::from).collect(),
            musls: census.musls.iter().map(MuslData::from).collect(),
            mimallocs: census.mimallocs.iter().map(MimallocData::from).collect(),
            tcmallocs: census.tcmallocs.iter().map(TcmallocData::from).collect(),
            sizes: census.sizes.iter().map(SizeData::from).collect(),
            classes: None,
            trim_bytes: census.trim.top + census.trim.inside,
            trim_top_bytes: census.trim.top,
            other_memory: others.collect(),
            lost: LostData {
                bytes: census.lost.bytes,
                places: census.lost.places,
                links: census.lost.links,
                taken_by_others_bytes: census.lost.others,
                unknown_layout: census.lost.unknown,
                caches: census.lost.caches,
                late: census.lost.late,
            },
            stop_ns: census.stop.map(|d| d.as_nanos() as u64),
            given_up_stop_ns: census.given_up.map(|d| d.as_nanos() as u64),
            took_ns: census.took.as_nanos() as u64,
            read_bytes: census.read,
        }
    }

    /// Returns the report in one line of JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Returns the report as text, with at most `top` sizes and classes.
    pub(super) fn text(&self, top: usize, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(top, style, &mut out);
        out
    }

    fn write(&self, top: usize, style: Style, out: &mut String) -> fmt::Result {
        let (pid, name) = (self.pid, &self.name);
        let has_glibc = !self.arenas.is_empty();
        let others = self.jemallocs.len() + self.musls.len();
        if has_glibc || others + self.mimallocs.len() + self.tcmallocs.len() > 0 {
            let blocks = count(self.in_use.blocks, "block", "blocks");
            let sum = bytes(self.in_use.bytes);
            let headers = if has_glibc { ", headers included" } else { "" };
            writeln!(out, "process {pid} ({name}): {sum} in {blocks} in use{headers}")?;
            if has_glibc {
                self.free(out)?;
            }
            self.jemallocs.iter().try_for_each(|j| j.free(out))?;
            self.musls.iter().try_for_each(|m| m.write(out))?;
            self.mimallocs.iter().try_for_each(|m| m.write(out))?;
            self.tcmallocs.iter().try_for_each(|t| t.write(out))?;
        } else if self.lost.late {
            writeln!(
                out,
                "process {pid} ({name}): time was up before a heap was found (--timeout)"
            )?;
        } else {
            writeln!(
                out,
                "process {pid} ({name}): none of glibc's allocator, jemalloc, mimalloc, tcmalloc and musl's is there, or it was \
                 never used"
            )?;
        }
        self.scan(out)?;
        for a in self.allocators.iter().filter(|a| !a.walked) {
            let name = format!("{} {}", a.name, a.version);
            writeln!(out, "  not walked: {}, whose memory is below", name.trim_end())?;
        }
        self.loss(out)?;
        if !self.arenas.is_empty() {
            out.push('\n');
            self.arenas(style, out)?;
        }
        for j in self.jemallocs.iter() {
            out.push('\n');
            j.arenas(style, out)?;
        }
        if !self.sizes.is_empty() {
            out.push('\n');
            self.sizes(top, style, out)?;
        }
        if let Some(classes) = &self.classes {
            out.push('\n');
            classes.write(top, style, out)?;
        }
        self.others(style, out)
    }

    fn free(&self, out: &mut String) -> fmt::Result {
        let sum = |of: fn(&ArenaData) -> u64| bytes(self.arenas.iter().map(of).sum());
        writeln!(
            out,
            "  free: {} in bins, {} in caches of threads, {} in fast bins, {} at the ends of heaps",
            sum(|a| a.bins.bytes),
            sum(|a| a.cached.bytes),
            sum(|a| a.fast_bins.bytes),
            sum(|a| a.top_bytes)
        )?;
        writeln!(
            out,
            "  malloc_trim(0) would give back {}: {} inside of free blocks, {} at the end of the main heap",
            bytes(self.trim_bytes),
            bytes(self.trim_bytes - self.trim_top_bytes),
            bytes(self.trim_top_bytes)
        )
    }

    fn scan(&self, out: &mut String) -> fmt::Result {
        let how = match self.stop_ns {
            Some(ns) => format!("all threads were stopped for {}", duration(ns)),
            None => "the process ran meanwhile, so figures may be of different moments".into(),
        };
        writeln!(out, "  {} read in {}; {how}", bytes(self.read_bytes), duration(self.took_ns))?;
        match self.given_up_stop_ns {
            Some(ns) => writeln!(
                out,
                "  before that, all threads were stopped for {} for a walk that took longer than was thought, and was given up",
                duration(ns)
            ),
            None => Ok(()),
        }
    }

    fn loss(&self, out: &mut String) -> fmt::Result {
        let l = &self.lost;
        if l.late {
            writeln!(
                out,
                "  time was up before all was read: blocks are missing, and free ones may count as in use (--timeout, \
                 --snapshot stop)"
            )?;
        }
        if l.bytes > 0 {
            let places = count(l.places, "place", "places");
            let why = if l.late { "time was up" } else { "what leads to them makes no sense" };
            writeln!(out, "  not counted: {} of heaps, at {places}, as {why}", bytes(l.bytes))?;
        }
        if l.links > 0 {
            let links = count(l.links, "list of free blocks is", "lists of free blocks are");
            writeln!(out, "  {links} broken: free blocks behind may count as in use")?;
        }
        if l.taken_by_others_bytes > 0 {
            let n = bytes(l.taken_by_others_bytes);
            writeln!(out, "  {n} of the main heap were taken by others, who called sbrk")?;
        }
        Ok(())
    }

    fn arenas(&self, style: Style, out: &mut String) -> fmt::Result {
        let head = [
            "from kernel",
            "in use",
            "blocks",
            "caches",
            "fast bins",
            "bins",
            "top",
            "other",
            "threads",
            "heaps",
            "arena",
        ];
        let mut table = Table::new(head.to_vec());
        for a in &self.arenas {
            table.row(vec![
                bytes(a.system_bytes),
                bytes(a.in_use.bytes),
                number(a.in_use.blocks),
                bytes(a.cached.bytes),
                bytes(a.fast_bins.bytes),
                bytes(a.bins.bytes),
                bytes(a.top_bytes),
                bytes(a.other_bytes),
                a.threads.map_or_else(|| "?".into(), number),
                number(a.heaps),
                if a.main { "main".into() } else { a.address.clone() },
            ]);
        }
        table.write(style, out)?;
        if self.mapped.blocks > 0 {
            let (one, many) =
                ("block has a mapping of its own", "blocks have mappings of their own");
            let blocks = count(self.mapped.blocks, one, many);
            writeln!(out, "{blocks}: {}", bytes(self.mapped.bytes))?;
        }
        Ok(())
    }

    fn sizes(&self, top: usize, style: Style, out: &mut String) -> fmt::Result {
        let mut shown: Vec<&SizeData> = self.sizes.iter().collect();
        shown.sort_by_key(|s| std::cmp::Reverse(s.in_use.bytes + s.free.bytes));
        let more = shown.len().saturating_sub(top);
        shown.truncate(top);
        shown.sort_by_key(|s| s.most);
        let mut table = Table::new(vec!["in use", "blocks", "free", "blocks", "usable size"]);
        for s in shown {
            table.row(vec![
                bytes(s.in_use.bytes),
                number(s.in_use.blocks),
                bytes(s.free.bytes),
                number(s.free.blocks),
                format!("{} to {}", number(s.least), number(s.most)),
            ]);
        }
        table.write(style, out)?;
        if more > 0 {
            writeln!(out, "{} more (--top 0 shows them)", count(more as u64, "size", "sizes"))?;
        }
        Ok(())
    }

    fn others(&self, style: Style, out: &mut String) -> fmt::Result {
        let all: u64 = self.other_memory.iter().map(|o| o.bytes).sum();
        if all == 0 {
            return Ok(());
        }
        writeln!(
            out,
            "\n{} of other anonymous memory: stacks, other allocators, the program's own",
            bytes(all)
        )?;
        let mut table = Table::new(vec!["touched", "mappings", "name"]);
        for o in self.other_memory.iter().take(NAMES) {
            let name = if o.name.is_empty() { "(none)" } else { &o.name };
            table.row(vec![bytes(o.bytes), number(o.mappings), name.into()]);
        }
        table.write(style, out)?;
        let more = self.other_memory.len().saturating_sub(NAMES) as u64;
        if more > 0 {
            writeln!(out, "{} more in --format json", count(more, "name", "names"))?;
        }
        Ok(())
    }
}
