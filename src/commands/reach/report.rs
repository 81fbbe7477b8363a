//! What `prof reach` says: unreachable blocks by stack, and what the scan did not see.

use super::ledger::Ledger;
use super::looks::{self, Looks, Went};
use anyhow::Result;
use prof_analyze::live::{Names, Only};
use prof_analyze::report::{AskedData, FrameData, Style};
use prof_scan::{Block, Figures, Proof};
use prof_trace::runtimes::Runtime;
use prof_trace::values::text::{bytes, count, duration, number};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::{self, Write};

/// Bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Sum {
    pub bytes: u64,
    pub blocks: u64,
}

impl Sum {
    fn add(&mut self, size: u64) {
        self.bytes += size;
        self.blocks += 1;
    }
}

/// What is unreachable, as LeakSanitizer counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Unreachable {
    /// All of it.
    #[serde(flatten)]
    pub all: Sum,
    /// Blocks that no other unreachable block points to.
    pub direct: Sum,
    /// Blocks that others of them point to.
    pub indirect: Sum,
}

impl Unreachable {
    fn add(&mut self, size: u64, held: bool) {
        self.all.add(size);
        if held { &mut self.indirect } else { &mut self.direct }.add(size);
    }
}

/// A block.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BlockData {
    pub address: String,
    pub size: u64,
    pub age_ns: u64,
    /// Another unreachable block points to it.
    pub indirect: bool,
    /// See [`StackData`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub went_after_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub went_before_ns: Option<u64>,
}

/// A stack with its unreachable blocks.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StackData {
    /// Number of the stack in this recording.
    pub id: u32,
    #[serde(flatten)]
    pub unreachable: Unreachable,
    /// Age in nanoseconds of the oldest and of the youngest one.
    pub oldest_age_ns: u64,
    pub youngest_age_ns: u64,
    /// With `--watch`: the last pointers to its blocks went after this time and before the other, in nanoseconds since the
    /// start of the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub went_after_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub went_before_ns: Option<u64>,
    pub asked_by: Option<AskedData>,
    pub frames: Vec<FrameData>,
    pub truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_listed: Option<Vec<BlockData>>,
    #[serde(skip)]
    text: String,
}

/// What may hide pointers, and what the scan has cost.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ScanData {
    /// Number of passes.
    pub passes: u64,
    /// Enough passes in a row have agreed, or one was made with all threads stopped.
    pub settled: bool,
    /// Time was up before that.
    pub late: bool,
    /// The process has ended before that.
    pub ended: bool,
    pub scanned_bytes: u64,
    pub took_ns: u64,
    /// Processor time of all passes, and of the first one.
    pub scan_cpu_ns: u64,
    pub first_cpu_ns: u64,
    pub longest_stop_ns: u64,
    /// Time for which all threads were stopped; nothing: they were not.
    pub stop_ns: Option<u64>,
    pub unreadable_bytes: u64,
    pub absent_shared_bytes: u64,
    pub unread_threads: u64,
    pub io_uring: u64,
    pub aio: bool,
    pub nested_blocks: u64,
    pub java: bool,
    pub sample: bool,
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ReachData {
    pub pid: i32,
    /// The present, in nanoseconds since the start of the recording.
    pub at_ns: u64,
    /// Blocks that were judged.
    pub judged_blocks: u64,
    /// With `--watch`: number of looks so far, and blocks that no earlier one has shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub look: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_blocks: Option<u64>,
    pub unreachable: Unreachable,
    pub suppressed: Sum,
    /// Number of stacks.
    pub stacks: u64,
    pub scan: ScanData,
    pub top: Vec<StackData>,
}

/// How the report is made.
pub(super) struct ReportOptions<'a> {
    pub only: &'a Only,
    pub top: usize,
    pub list: bool,
    pub style: Style,
}

impl ReachData {
    /// Makes the report of a verdict.
    ///
    /// # Errors
    /// If names can't be looked up.
    pub(super) fn new(
        ledger: &Ledger,
        proof: &Proof,
        figures: &Figures,
        names: &mut Names,
        options: &ReportOptions<'_>,
        looks: Option<&Looks>,
    ) -> Result<Self> {
        let follower = &ledger.follower;
        let went = |b: &Block| looks.and_then(|l| l.went(b));
        let node = |b: &Block| follower.node_of(b.group);
        let mut by_node: HashMap<u32, Vec<(Block, bool)>> = HashMap::new();
        let (clock, now) = (&follower.meta().clock, follower.now_ticks());
        let age = |b: &Block| clock.between(b.time, now.max(b.time));
        let older = options.only.older_ns(follower.now_ns()).unwrap_or(0);
        for (b, held) in proof.unreachable.iter().zip(&proof.held) {
            if options.only.has_size(b.size) && age(b) >= older {
                by_node.entry(node(b)).or_default().push((*b, *held));
            }
        }
        names.look_up(follower, by_node.keys().copied())?;
        let (mut all, mut suppressed, mut top) =
            (Unreachable::default(), Sum::default(), Vec::new());
        for (id, blocks) in by_node {
            let stack = names.get(id);
            if options.only.is_suppressed(&stack) {
                blocks.iter().for_each(|(b, _)| suppressed.add(b.size));
                continue;
            }
            if !options.only.has_stack(&stack) {
                continue;
            }
            let mut sum = Unreachable::default();
            for (b, held) in &blocks {
                all.add(b.size, *held);
                sum.add(b.size, *held);
            }
            let ages = || blocks.iter().map(|(b, _)| age(b));
            let listed = |(b, held): &(Block, bool)| BlockData {
                address: format!("{:#x}", b.address),
                size: b.size,
                age_ns: age(b),
                indirect: *held,
                went_after_ns: went(b).map(|w| w.after_ns),
                went_before_ns: went(b).map(|w| w.before_ns),
            };
            let lost = looks::all_of(blocks.iter().filter_map(|(b, _)| went(b)));
            top.push(StackData {
                id,
                unreachable: sum,
                oldest_age_ns: ages().max().unwrap_or(0),
                youngest_age_ns: ages().min().unwrap_or(0),
                went_after_ns: lost.map(|w| w.after_ns),
                went_before_ns: lost.map(|w| w.before_ns),
                asked_by: stack.asked.clone(),
                frames: stack.frames.clone(),
                truncated: stack.cut,
                blocks_listed: options.list.then(|| blocks.iter().map(listed).collect()),
                text: stack.text(options.style),
            });
        }
        top.sort_by_key(|s| (std::cmp::Reverse(s.unreachable.all.bytes), s.id));
        let stacks = top.len() as u64;
        if options.top > 0 {
            top.truncate(options.top);
        }
        let runtimes = &follower.meta().runtimes;
        let scan = ScanData {
            passes: figures.passes,
            settled: proof.settled,
            late: proof.late,
            ended: proof.ended,
            scanned_bytes: figures.scanned,
            took_ns: figures.took.as_nanos() as u64,
            scan_cpu_ns: figures.cpu.as_nanos() as u64,
            first_cpu_ns: figures.first_cpu.as_nanos() as u64,
            longest_stop_ns: figures.longest_stop.as_nanos() as u64,
            stop_ns: figures.stop.map(|d| d.as_nanos() as u64),
            unreadable_bytes: figures.unreadable,
            absent_shared_bytes: figures.absent,
            unread_threads: figures.unread_threads,
            io_uring: figures.rings,
            aio: figures.aio,
            nested_blocks: figures.nested,
            java: runtimes.contains(&Runtime::Java),
            sample: !follower.meta().target.capture().is_everything(),
        };
        Ok(Self {
            pid: ledger.pid,
            at_ns: follower.now_ns(),
            judged_blocks: figures.blocks,
            look: looks.map(|l| l.number),
            new_blocks: looks.map(|l| l.new_blocks),
            unreachable: all,
            suppressed,
            stacks,
            scan,
            top,
        })
    }

    /// Returns the report in one line of JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Returns the report as text.
    pub(super) fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        let u = &self.unreachable;
        let blocks = |n| count(n, "block", "blocks");
        let (sum, known) = (bytes(u.all.bytes), blocks(self.judged_blocks));
        let (pid, n) = (self.pid, blocks(u.all.blocks));
        if self.scan.settled {
            writeln!(out, "process {pid}: {sum} in {n} unreachable, of {known} that were judged")?;
        } else {
            writeln!(
                out,
                "process {pid}: nothing is proved; {sum} in {n} not reached, of {known}"
            )?;
        }
        if u.all.blocks > 0 {
            writeln!(
                out,
                "  direct: {} in {}; indirect, held by those or by each other: {} in {}",
                bytes(u.direct.bytes),
                blocks(u.direct.blocks),
                bytes(u.indirect.bytes),
                blocks(u.indirect.blocks)
            )?;
        }
        if self.suppressed.blocks > 0 {
            writeln!(
                out,
                "  suppressed: {} in {}",
                bytes(self.suppressed.bytes),
                blocks(self.suppressed.blocks)
            )?;
        }
        if let (Some(look), Some(new), true) = (self.look, self.new_blocks, self.scan.settled) {
            writeln!(out, "  look {look}: {} not shown by an earlier one", blocks(new))?;
        }
        self.scan.write(out)?;
        for (i, s) in self.top.iter().enumerate() {
            s.write(i, self, style, out)?;
        }
        let more = self.stacks - self.top.len() as u64;
        if more > 0 {
            writeln!(out, "\n{} more (--top 0 shows them)", count(more, "stack", "stacks"))?;
        }
        Ok(())
    }
}

fn went_of(after_ns: Option<u64>, before_ns: Option<u64>) -> Option<Went> {
    Some(Went { after_ns: after_ns?, before_ns: before_ns? })
}

/// Says a time in which something happened, as seen from `now_ns`.
fn ago(w: Went, now_ns: u64) -> String {
    let ago = |ns| duration(now_ns.saturating_sub(ns));
    format!("{} to {} ago", ago(w.after_ns), ago(w.before_ns))
}

impl StackData {
    fn write(&self, i: usize, all: &ReachData, style: Style, out: &mut String) -> fmt::Result {
        let u = &self.unreachable;
        let what = if all.scan.settled { "unreachable" } else { "not reached" };
        let title = format!("=== {what} #{i} ===");
        let title = if style.color { format!("\x1b[1m{title}\x1b[0m") } else { title };
        let blocks = count(u.all.blocks, "block", "blocks");
        write!(out, "\n{title} [{} in {blocks}]", bytes(u.all.bytes))?;
        if u.indirect.blocks > 0 {
            write!(
                out,
                " [indirect: {} in {}]",
                bytes(u.indirect.bytes),
                number(u.indirect.blocks)
            )?;
        }
        match (duration(self.oldest_age_ns), duration(self.youngest_age_ns)) {
            (a, b) if a == b => write!(out, " [allocated: {a} ago]")?,
            (a, b) => write!(out, " [allocated: {a} to {b} ago]")?,
        }
        if let Some(w) = went_of(self.went_after_ns, self.went_before_ns) {
            write!(out, " [last pointer went: {}]", ago(w, all.at_ns))?;
        }
        out.push('\n');
        for b in self.blocks_listed.iter().flatten() {
            let indirect = if b.indirect { ", indirect" } else { "" };
            let age = duration(b.age_ns);
            write!(out, "  {} {}, {age} old{indirect}", b.address, bytes(b.size))?;
            if let Some(w) = went_of(b.went_after_ns, b.went_before_ns) {
                write!(out, ", last pointer went {}", ago(w, all.at_ns))?;
            }
            out.push('\n');
        }
        out.write_str(&self.text)
    }
}

impl ScanData {
    fn write(&self, out: &mut String) -> fmt::Result {
        let passes = count(self.passes, "pass", "passes");
        let how = match (self.ended, self.settled, self.stop_ns) {
            (true, ..) => {
                "the process ended meanwhile: this is what is known, and not confirmed".into()
            }
            _ if self.late => {
                "time was up: what is not decided may be held; --timeout gives more time".into()
            }
            (_, false, _) => {
                "the passes did not come to agree: what is shown may still change".into()
            }
            (.., Some(ns)) => format!("the last with all threads stopped, for {}", duration(ns)),
            _ => "the last of them agree; the process ran meanwhile".into(),
        };
        writeln!(out, "  {passes}: {how}")?;
        let rate = self.scanned_bytes as f64 / (self.took_ns.max(1) as f64 / 1e9);
        writeln!(
            out,
            "  {} scanned in {} ({}/s); longest stop of a thread: {}",
            bytes(self.scanned_bytes),
            duration(self.took_ns),
            bytes(rate as u64),
            duration(self.longest_stop_ns)
        )?;
        for line in self.hidden() {
            writeln!(out, "  may hide pointers: {line}")?;
        }
        if self.nested_blocks > 0 {
            let n = count(self.nested_blocks, "block lies", "blocks lie");
            writeln!(out, "  not judged: {n} in others")?;
        }
        if self.sample {
            writeln!(out, "  the recording is a sample: these are the blocks in it, and not all")?;
        }
        Ok(())
    }

    /// Returns what may hold pointers that the scan does not see.
    fn hidden(&self) -> Vec<String> {
        let mut all = Vec::new();
        if self.unreadable_bytes > 0 {
            all.push(format!("{} that could not be read", bytes(self.unreadable_bytes)));
        }
        if self.absent_shared_bytes > 0 {
            let n = bytes(self.absent_shared_bytes);
            all.push(format!("{n} of shared mappings that have no pages in the process now"));
        }
        if self.unread_threads > 0 {
            let n = count(self.unread_threads, "thread", "threads");
            all.push(format!("registers of {n} that did not stop"));
        }
        if self.io_uring > 0 {
            all.push("requests of io_uring that are on their way".into());
        }
        if self.aio {
            all.push("requests of aio that are on their way".into());
        }
        if self.java {
            all.push("the heap of Java, where pointers are compressed".into());
        }
        all
    }
}
