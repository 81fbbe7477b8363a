//! The report of `prof reach`: unreachable blocks by stack, and the memory that the scan did not see.

use super::before::BEFORE;
use super::classes::Looker;
use super::ledger::Ledger;
use super::looks::{self, Looks, Went};
use super::scan::{self, Ends};
use anyhow::Result;
use prof_analyze::holds::ScanData;
use prof_analyze::live::{Names, Only};
use prof_analyze::objects::{self, ObjectData};
use prof_analyze::report::{AskedData, FrameData, Style};
use prof_os::Pid;
use prof_scan::{Block, Proof, ScanStats};
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

/// Unreachable memory, as LeakSanitizer counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Unreachable {
    /// All unreachable blocks.
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
    /// The C++ class that it begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// First bytes of a block from before the attach, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
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
    /// The C++ classes that blocks begin with, those of most bytes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ObjectData>,
    pub asked_by: Option<AskedData>,
    pub frames: Vec<FrameData>,
    pub truncated: bool,
    /// Whether the blocks are from before the attach. Their ages are then lower bounds.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub before_attach: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_listed: Option<Vec<BlockData>>,
    #[serde(skip)]
    text: String,
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ReachData {
    pub pid: Pid,
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

/// Input of the report.
pub(super) struct ReportOptions<'a> {
    pub only: &'a Only,
    pub top: usize,
    pub list: bool,
    /// Show how listed blocks from before the attach begin.
    pub content: bool,
    pub style: Style,
}

/// Returns how long ago a block was allocated.
fn age_ns(ledger: &Ledger, block: &Block) -> u64 {
    let follower = &ledger.follower;
    follower.meta().clock.between(block.time, follower.now_ticks().max(block.time))
}

/// Returns the unreachable blocks of the selected size and age by the node of their stack, each with whether another
/// unreachable block holds it.
fn by_node(ledger: &Ledger, proof: &Proof, only: &Only) -> HashMap<u32, Vec<(Block, bool)>> {
    let older = only.older_ns(ledger.follower.now_ns()).unwrap_or(0);
    let mut by_node: HashMap<u32, Vec<(Block, bool)>> = HashMap::new();
    for (b, held) in proof.unreachable.iter().zip(&proof.held) {
        if only.has_size(b.size) && age_ns(ledger, b) >= older {
            by_node.entry(ledger.node_of(b.group)).or_default().push((*b, *held));
        }
    }
    by_node
}

impl ReachData {
    /// Makes the report of a verdict.
    ///
    /// # Errors
    /// If names can't be looked up.
    pub(super) fn new(
        ledger: &Ledger,
        proof: &Proof,
        figures: &ScanStats,
        names: &mut Names,
        options: &ReportOptions<'_>,
        looks: Option<&Looks>,
    ) -> Result<Self> {
        let follower = &ledger.follower;
        let went = |b: &Block| looks.and_then(|l| l.went(b));
        let age = |b: &Block| age_ns(ledger, b);
        let by_node = by_node(ledger, proof, options.only);
        names.look_up(follower, by_node.keys().copied())?;
        let (mut all, mut suppressed, mut top) =
            (Unreachable::default(), Sum::default(), Vec::new());
        for (&id, blocks) in &by_node {
            let stack = names.get(id);
            if options.only.is_suppressed(&stack) {
                blocks.iter().for_each(|(b, _)| suppressed.add(b.size));
                continue;
            }
            if !options.only.has_stack(&stack) {
                continue;
            }
            let mut sum = Unreachable::default();
            for (b, held) in blocks {
                all.add(b.size, *held);
                sum.add(b.size, *held);
            }
            let ages = || blocks.iter().map(|(b, _)| age(b));
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
                before_attach: id == BEFORE,
                classes: Vec::new(),
                blocks_listed: None,
                text: stack.text(options.style),
            });
        }
        top.sort_by_key(|s| (std::cmp::Reverse(s.unreachable.all.bytes), s.id));
        let stacks = top.len() as u64;
        if options.top > 0 {
            top.truncate(options.top);
        }
        let mut looker = Looker::new(ledger.pid, options.content && options.list);
        for s in &mut top {
            let blocks = by_node.get(&s.id).map_or(&[][..], Vec::as_slice);
            s.classes = looker.classes(blocks.iter().map(|(b, _)| b));
            let listed = |b: &(Block, bool)| listed(b, age(&b.0), went(&b.0), &mut looker);
            s.blocks_listed = options.list.then(|| blocks.iter().map(listed).collect());
        }
        let ends = Ends { settled: proof.settled, late: proof.late, ended: proof.ended };
        let scan = scan::data(figures, ends, follower.meta());
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

/// Returns an unreachable block for the list, with whether another one holds it.
fn listed(
    (b, held): &(Block, bool),
    age_ns: u64,
    went: Option<Went>,
    looker: &mut Looker,
) -> BlockData {
    BlockData {
        address: format!("{:#x}", b.address),
        size: b.size,
        age_ns,
        indirect: *held,
        class: looker.class(b),
        content: looker.content(b),
        went_after_ns: went.map(|w| w.after_ns),
        went_before_ns: went.map(|w| w.before_ns),
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
            (a, _) if self.before_attach => write!(out, " [allocated: more than {a} ago]")?,
            (a, b) if a == b => write!(out, " [allocated: {a} ago]")?,
            (a, b) => write!(out, " [allocated: {a} to {b} ago]")?,
        }
        if let Some(w) = went_of(self.went_after_ns, self.went_before_ns) {
            write!(out, " [last pointer went: {}]", ago(w, all.at_ns))?;
        }
        out.push('\n');
        if let Some(line) = objects::line(&self.classes) {
            writeln!(out, "{line}")?;
        }
        for b in self.blocks_listed.iter().flatten() {
            let indirect = if b.indirect { ", indirect" } else { "" };
            let (age, size) = (duration(b.age_ns), bytes(b.size));
            let older = if self.before_attach { "more than " } else { "" };
            let class = b.class.as_ref().map(|c| format!(" {c},")).unwrap_or_default();
            write!(out, "  {}{class} {size}, {older}{age} old{indirect}", b.address)?;
            if let Some(w) = went_of(b.went_after_ns, b.went_before_ns) {
                write!(out, ", last pointer went {}", ago(w, all.at_ns))?;
            }
            if let Some(content) = &b.content {
                write!(out, ", begins with {content}")?;
            }
            out.push('\n');
        }
        out.write_str(&self.text)
    }
}
