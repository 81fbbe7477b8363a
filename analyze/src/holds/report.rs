//! The report of `prof holds`: roots and stacks with the blocks that they retain, and chains of pointers.

use super::roots::RootData;
use super::scan::ScanData;
use super::tree::StackSums;
use super::{Holders, Memory, page};
use crate::Analysis;
use crate::job::Job;
use crate::live::{NamedStack, Names};
use crate::load::BEFORE;
use crate::report::{AskedData, FrameData};
use crate::style::Style;
use prof_graph::{Heap, Holder, Sum};
use prof_os::Pid;
use prof_trace::values::text::{bytes, count, duration};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};
use std::ops::Range;

/// Bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SumData {
    /// Bytes requested.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl From<Sum> for SumData {
    fn from(s: Sum) -> Self {
        Self { bytes: s.bytes, blocks: s.blocks }
    }
}

impl fmt::Display for SumData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", bytes(self.bytes), count(self.blocks, "block", "blocks"))
    }
}

/// Blocks of one stack below a holder, or what a frame of a thread's stack holds.
#[derive(Clone, Debug, Serialize)]
pub struct NodeData {
    /// Number of the stack in this recording; nothing: this is a frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
    /// The frame; nothing: these are blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<RootData>,
    /// The function that asked for the memory, with its place; of a frame its function, with its number and place.
    pub from: String,
    /// The C++ class that most of the blocks begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The number of blocks that begin with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_blocks: Option<u64>,
    /// Number and bytes of these blocks.
    pub own: SumData,
    /// Sum of these blocks and of all that only they hold.
    pub retained: SumData,
    /// The blocks that they hold, by stack.
    pub holds: Vec<NodeData>,
    /// Sum of the held blocks that are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<SumData>,
}

/// A root.
#[derive(Clone, Debug, Serialize)]
pub struct RootReport {
    /// The root.
    #[serde(flatten)]
    pub root: RootData,
    /// Sum of the blocks that would be unreachable without the root.
    pub retained: SumData,
    /// The blocks that hang on it, by stack.
    pub holds: Vec<NodeData>,
    /// Sum of the blocks on it that are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<SumData>,
}

/// A stack.
#[derive(Clone, Debug, Serialize)]
pub struct StackReport {
    /// Number of the stack in this recording.
    pub stack: u32,
    /// The C++ class that most of the blocks begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Sum of the stack's reachable blocks.
    pub own: SumData,
    /// Sum of these blocks and of all that would be unreachable without them.
    pub retained: SumData,
    /// There may be more that only several of its blocks hold together.
    pub at_least: bool,
    /// The frame that asked for the memory.
    pub asked_by: Option<AskedData>,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
    /// The outer frames are missing.
    pub truncated: bool,
    /// The stack in words, for a terminal.
    #[serde(skip)]
    text: String,
    /// The stack in words, without control sequences of a terminal.
    #[serde(skip)]
    pub plain: String,
}

/// A step of a chain of pointers.
#[derive(Clone, Debug, Serialize)]
pub struct StepData {
    /// Address of the block, in hexadecimal.
    pub address: String,
    /// Bytes that it takes.
    pub size: u64,
    /// Number of its stack; nothing: it was freed meanwhile.
    pub stack: Option<u32>,
    /// The function that asked for the memory, with its place.
    pub from: String,
    /// The C++ class that it begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Offset of the word in it that points to the next block.
    pub offset: Option<u64>,
}

/// A chain of pointers.
#[derive(Clone, Debug, Serialize)]
pub struct PathData {
    /// The block or stack that was asked for.
    pub to: String,
    /// The root; nothing: no root leads there.
    pub root: Option<RootData>,
    /// Bytes from the start of the variable to the word that points to the first block.
    pub root_offset: Option<u64>,
    /// The blocks, each of which points to the next.
    pub blocks: Vec<StepData>,
}

/// A scan of a recording.
#[derive(Clone, Debug, Serialize)]
pub struct SavedData {
    /// Number of the scan in the recording, from 1 on.
    pub number: usize,
    /// Name that was given to it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Number of scans in the recording.
    pub of: usize,
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub struct HoldsData {
    /// The process.
    pub pid: Pid,
    /// The moment of the scan, in nanoseconds since the start of the recording.
    pub at_ns: u64,
    /// The scan of the recording; nothing: the process was looked at now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedData>,
    /// All live blocks.
    pub live: SumData,
    /// Live blocks that no root leads to.
    pub unreachable: SumData,
    /// Cost of the scan, and pointers that it may have missed.
    pub scan: ScanData,
    /// Pointers for which there was no room: what only they lead to counts as unreachable.
    pub pointers_left_out: u64,
    /// Number of roots that lead to blocks.
    pub roots: u64,
    /// The roots that retain most.
    pub top_roots: Vec<RootReport>,
    /// Blocks that several roots lead to, so that none retains them alone.
    pub shared: Option<RootReport>,
    /// The stacks that retain most.
    pub top_stacks: Vec<StackReport>,
    /// The chains that were asked for.
    pub paths: Vec<PathData>,
}

/// Destination of a chain of pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A block, by an address in it.
    Block(u64),
    /// Any block of a stack, by the stack's number in the recording.
    Stack(u32),
}

impl Wanted {
    /// Returns whether there is a block to which a chain can lead.
    #[must_use]
    pub fn is_in(self, heap: &Heap) -> bool {
        match self {
            Self::Block(at) => heap.block_at(at).is_some(),
            Self::Stack(n) => heap.has_stack(n),
        }
    }
}

/// Options of the report.
#[derive(Clone, Copy, Debug)]
pub struct HoldsOptions<'a> {
    /// List roots.
    pub roots: bool,
    /// List stacks.
    pub stacks: bool,
    /// Greatest number of each.
    pub top: usize,
    /// Greatest number of levels below a root.
    pub depth: usize,
    /// The chains that are shown.
    pub paths: &'a [Wanted],
    /// The style of the stacks in the text.
    pub style: Style,
}

/// Makes the parts of a report.
struct Maker<'a, M> {
    of: &'a Holders<M>,
    names: &'a Names,
    classes: HashMap<u64, Option<String>>,
    options: &'a HoldsOptions<'a>,
}

impl HoldsData {
    /// Makes the report of what was read. `names` learns the stacks that are shown.
    pub fn new<M: Memory>(
        of: &Holders<M>,
        analysis: &Analysis,
        names: &mut Names,
        options: &HoldsOptions<'_>,
    ) -> Self {
        let (mut nodes, none) = (HashSet::new(), Names::default());
        let mut maker = Maker { of, names: &none, classes: HashMap::new(), options };
        maker.shown_stacks(&mut nodes);
        let stacks = if options.stacks { of.stacks(options.top) } else { Vec::new() };
        nodes.extend(stacks.iter().map(|s| s.stack));
        let paths: Vec<_> = options.paths.iter().map(|w| (*w, maker.path(*w))).collect();
        let of_path = |p: &Option<prof_graph::Path>| -> Vec<u32> {
            let blocks = p.iter().flat_map(|p| p.blocks.iter());
            blocks.filter_map(|b| of.heap.stack_of(b.start)).collect()
        };
        nodes.extend(paths.iter().flat_map(|(_, p)| of_path(p)));
        names.look_up_in(analysis, nodes);
        maker.names = names;
        let top_roots = maker.roots();
        let shared = maker.shared();
        let top_stacks = stacks.into_iter().map(|s| maker.stack(s)).collect();
        let paths = paths.into_iter().map(|(w, p)| maker.chain(w, p)).collect();
        Self {
            pid: of.pid,
            at_ns: of.at_ns,
            saved: of.saved.clone(),
            live: of.heap.live().into(),
            unreachable: of.held.unreachable.into(),
            scan: of.scan.clone(),
            pointers_left_out: of.heap.left_out(),
            roots: of.heap.root_count() as u64,
            top_roots,
            shared,
            top_stacks,
            paths,
        }
    }

    /// Returns the report as a page for a browser.
    #[must_use]
    pub fn html(&self) -> String {
        page::of(self)
    }

    /// Returns the report in one line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Returns the report as text.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        let roots = count(self.roots, "root", "roots");
        if let Some(s) = &self.saved {
            s.write(self.at_ns, out)?;
        }
        writeln!(out, "process {}: {} live, held by {roots}", self.pid, self.live)?;
        if self.unreachable.blocks > 0 {
            write!(out, "  {} that no root leads to", self.unreachable)?;
            match self.saved {
                None => writeln!(out, "; `prof reach {}` proves which are lost", self.pid)?,
                Some(_) => out.push('\n'),
            }
        }
        let (read, took) = (bytes(self.scan.scanned_bytes), duration(self.scan.took_ns));
        match self.scan.stop_ns {
            Some(ns) => {
                let stop = duration(ns);
                writeln!(out, "  {read} read in {took}, all threads stopped for {stop}")?;
            }
            None => writeln!(
                out,
                "  {read} read in {took} while the process ran, so that pointers are of different moments"
            )?,
        }
        if self.scan.left_out_blocks > 0 {
            let sum =
                SumData { bytes: self.scan.left_out_bytes, blocks: self.scan.left_out_blocks };
            let more = match self.saved {
                None => "; --snapshot stop has them, too",
                Some(_) => "",
            };
            writeln!(out, "  {sum} more are not in this: they were allocated meanwhile{more}")?;
        }
        if self.pointers_left_out > 0 {
            let n = count(self.pointers_left_out, "pointer was", "pointers were");
            writeln!(
                out,
                "  {n} left out for want of room: some blocks are held by more than is shown"
            )?;
        }
        for line in self.scan.hidden() {
            writeln!(out, "  may hide pointers: {line}")?;
        }
        if self.scan.cut_stacks > 0 {
            let n = count(self.scan.cut_stacks, "thread", "threads");
            writeln!(out, "  outer frames are not known of {n}: the stack could not be followed")?;
        }
        let title = |text: String| match style.color {
            true => format!("\x1b[1m{text}\x1b[0m"),
            false => text,
        };
        for p in &self.paths {
            p.write(&title(format!("=== chain to {} ===", p.to)), out)?;
        }
        for (i, r) in self.top_roots.iter().enumerate() {
            let title = title(format!("=== root #{i} ==="));
            writeln!(out, "\n{title} [retains {}] {}", r.retained, r.root.text())?;
            lines(&r.holds, r.more, 1, out)?;
        }
        if let Some(s) = &self.shared {
            let title = title("=== several roots ===".to_owned());
            writeln!(
                out,
                "\n{title} [{}] each of these is held by more than one root",
                s.retained
            )?;
            lines(&s.holds, s.more, 1, out)?;
        }
        for (i, s) in self.top_stacks.iter().enumerate() {
            let title = title(format!("=== stack #{i} ==="));
            let least = if s.at_least { "at least " } else { "" };
            write!(out, "\n{title} [retains {least}{}] [own: {}]", s.retained, s.own)?;
            if let Some(class) = &s.class {
                write!(out, " [class: {class}]")?;
            }
            writeln!(out, "{}", number_of(s.stack))?;
            out.write_str(&s.text)?;
        }
        Ok(())
    }
}

impl SavedData {
    /// Writes which scan it is.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write(&self, at_ns: u64, out: &mut String) -> fmt::Result {
        let name = if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) };
        let (n, of, at) = (self.number, self.of, duration(at_ns));
        writeln!(out, "scan #{n}{name} of {of}, {at} after the start of the recording")
    }
}

/// Returns the number by which a stack is asked for. Blocks from before the attach have none.
pub(super) fn number_of(stack: u32) -> String {
    if stack == BEFORE { String::new() } else { format!(" [stack {stack}]") }
}

/// Writes what a holder holds, a line for each node, indented by its level.
fn lines(nodes: &[NodeData], more: Option<SumData>, level: usize, out: &mut String) -> fmt::Result {
    let indent = "  ".repeat(level);
    for n in nodes {
        let class = match (&n.class, n.class_blocks) {
            (Some(c), Some(m)) if m == n.own.blocks => format!("{c}, "),
            (Some(c), _) => format!("mostly {c}, "),
            _ => String::new(),
        };
        write!(out, "{indent}{}: {class}{}", n.retained, n.from)?;
        let Some(stack) = n.stack else {
            out.push('\n');
            lines(&n.holds, n.more, level + 1, out)?;
            continue;
        };
        out.push_str(&number_of(stack));
        if n.own != n.retained {
            write!(out, " [own: {}]", n.own)?;
        }
        out.push('\n');
        lines(&n.holds, n.more, level + 1, out)?;
    }
    if let Some(more) = more {
        writeln!(out, "{indent}{more}: smaller, or below the levels that are shown")?;
    }
    Ok(())
}

impl PathData {
    /// Writes the chain, a line for each step.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write(&self, title: &str, out: &mut String) -> fmt::Result {
        writeln!(out, "\n{title}")?;
        let Some(root) = &self.root else {
            return writeln!(out, "  no root leads there");
        };
        let offset = self.root_offset.map(|n| format!("+{n:#x}")).unwrap_or_default();
        writeln!(out, "  {}{offset}", root.text())?;
        for b in &self.blocks {
            let class = b.class.as_ref().map(|c| format!("{c}, ")).unwrap_or_default();
            let offset = b.offset.map(|n| format!("+{n:#x}")).unwrap_or_default();
            writeln!(out, "  -> {}{offset}: {class}{}, {}", b.address, bytes(b.size), b.from)?;
        }
        Ok(())
    }
}

impl<M: Memory> Maker<'_, M> {
    /// Returns the nodes below another that are shown: the largest, at least a hundredth of it.
    fn shown(&self, node: u32, level: usize) -> &[u32] {
        let all = self.of.tree.below(node);
        if level >= self.options.depth {
            return &[];
        }
        let least = self.of.held.nodes[node as usize].retained.bytes / 100;
        let is_shown = |i: &&u32| self.of.held.nodes[**i as usize].retained.bytes >= least.max(1);
        let n = all.iter().take(self.options.top).take_while(is_shown).count();
        &all[..n]
    }

    /// Returns the nodes of roots that are shown.
    fn shown_roots(&self) -> impl Iterator<Item = u32> {
        let top = if self.options.roots { self.options.top } else { 0 };
        self.of.root_nodes().take(top)
    }

    /// Adds the stacks of all nodes that are shown.
    fn shown_stacks(&self, to: &mut HashSet<u32>) {
        let mut work: Vec<(u32, usize)> = self.shown_roots().map(|n| (n, 0)).collect();
        work.extend(self.of.shared_nodes().into_iter().take(self.options.top).map(|n| (n, 1)));
        while let Some((node, level)) = work.pop() {
            if let Holder::Stack(s) = self.of.held.nodes[node as usize].holder {
                to.insert(s);
            }
            work.extend(self.shown(node, level).iter().map(|n| (*n, level + 1)));
        }
    }

    fn class(&mut self, class: Option<(u64, u64)>) -> (Option<String>, Option<u64>) {
        let Some((table, n)) = class else { return (None, None) };
        let of = self.of;
        let name = self.classes.entry(table).or_insert_with(|| of.class(table));
        (name.clone(), name.as_ref().map(|_| n))
    }

    fn node(&mut self, index: u32, level: usize) -> NodeData {
        let n = self.of.held.nodes[index as usize].clone();
        let (class, class_blocks) = self.class(n.class);
        let (holds, more) = self.below(index, level);
        let (stack, frame) = match n.holder {
            Holder::Stack(stack) => (Some(stack), None),
            Holder::Root(number) => (None, self.of.root(number).cloned()),
            Holder::All => (None, None),
        };
        let from = match (stack, &frame) {
            (Some(stack), _) => self.names.get(stack).label(),
            (None, Some(frame)) => frame.frame_text(),
            (None, None) => String::new(),
        };
        NodeData {
            stack,
            frame,
            from,
            class,
            class_blocks,
            own: n.own.into(),
            retained: n.retained.into(),
            holds,
            more,
        }
    }

    /// Returns what hangs on a node, and the sum of what is not shown.
    fn below(&mut self, index: u32, level: usize) -> (Vec<NodeData>, Option<SumData>) {
        let shown = self.shown(index, level).to_vec();
        let holds: Vec<NodeData> = shown.iter().map(|i| self.node(*i, level + 1)).collect();
        let more = self.rest(&self.of.tree.below(index)[shown.len()..]);
        (holds, more)
    }

    fn rest(&self, nodes: &[u32]) -> Option<SumData> {
        Some(self.of.sum(nodes)).filter(|s| s.blocks > 0).map(Into::into)
    }

    fn roots(&mut self) -> Vec<RootReport> {
        let shown: Vec<u32> = self.shown_roots().collect();
        let mut all = Vec::new();
        for index in shown {
            let n = &self.of.held.nodes[index as usize];
            let Holder::Root(number) = n.holder else { continue };
            let retained = n.retained.into();
            let Some(root) = self.of.root(number) else { continue };
            let (holds, more) = self.below(index, 0);
            all.push(RootReport { root: root.clone(), retained, holds, more });
        }
        all
    }

    fn shared(&mut self) -> Option<RootReport> {
        let nodes = self.of.shared_nodes();
        let retained = self.rest(&nodes).filter(|_| self.options.roots)?;
        let n = nodes.len().min(self.options.top);
        let holds = nodes[..n].iter().map(|i| self.node(*i, 1)).collect();
        let root = RootData::several();
        Some(RootReport { root, retained, holds, more: self.rest(&nodes[n..]) })
    }

    fn stack(&mut self, s: StackSums) -> StackReport {
        let named: std::sync::Arc<NamedStack> = self.names.get(s.stack);
        StackReport {
            stack: s.stack,
            class: self.class(s.class).0,
            own: s.own.into(),
            retained: s.retained.into(),
            at_least: s.at_least,
            asked_by: named.asked.clone(),
            frames: named.frames.clone(),
            truncated: named.cut,
            text: named.text(self.options.style),
            plain: named.text(Style::default()),
        }
    }

    fn path(&self, wanted: Wanted) -> Option<prof_graph::Path> {
        let heap = &self.of.heap;
        match wanted {
            Wanted::Stack(s) => heap.path(|_, stack| stack == s || Job::is_current_cancelled()),
            Wanted::Block(at) => {
                let block = heap.block_at(at)?;
                heap.path(|start, _| start == block.start || Job::is_current_cancelled())
            }
        }
    }

    fn chain(&mut self, wanted: Wanted, path: Option<prof_graph::Path>) -> PathData {
        let to = match wanted {
            Wanted::Block(at) => format!("{at:#x}"),
            Wanted::Stack(s) => format!("stack {s}"),
        };
        let Some(path) = path else {
            return PathData { to, root: None, root_offset: None, blocks: Vec::new() };
        };
        let Some(root) = self.of.roots.get(&path.root).cloned() else {
            return PathData { to, root: None, root_offset: None, blocks: Vec::new() };
        };
        let start = root.start();
        let root_offset = start.and_then(|s| path.at.checked_sub(s)).filter(|n| *n > 0);
        let next = |i: usize| path.blocks.get(i + 1);
        let blocks = path.blocks.iter().enumerate().map(|(i, b)| self.step(b, next(i)));
        PathData { to, root: Some(root), root_offset, blocks: blocks.collect() }
    }

    fn step(&mut self, block: &Range<u64>, next: Option<&Range<u64>>) -> StepData {
        let stack = self.of.heap.stack_of(block.start);
        let class = self.of.heap.class_of(block.start);
        StepData {
            address: format!("{:#x}", block.start),
            size: block.end - block.start,
            stack,
            from: stack.map(|s| self.names.get(s).label()).unwrap_or_default(),
            class: self.class(class.map(|table| (table, 1))).0,
            offset: next.and_then(|n| self.of.memory.offset(block.clone(), n)),
        }
    }
}
