//! What `prof holds` says: roots and stacks with what they retain, and chains of pointers.

use super::looked::{Looked, Memory};
use super::roots::RootData;
use super::{By, Wanted};
use crate::commands::reach::scan::ScanData;
use crate::term::one_line as printable;
use prof_analyze::live::{NamedStack, Names};
use prof_analyze::report::{AskedData, FrameData, Style};
use prof_analyze::symbols::demangle;
use prof_graph::{Heap, Held, Holder, Root, Sum};
use prof_os::Pid;
use prof_trace::values::text::{bytes, count, duration};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};
use std::ops::Range;

/// Blocks that may be passed over to compute exactly what stacks retain, for all stacks together.
const EXACT: u64 = 100_000_000;

/// Bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct SumData {
    pub bytes: u64,
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

/// Blocks of one stack below a holder.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NodeData {
    /// Number of the stack in this recording.
    pub stack: u32,
    /// The function that asked for the memory, with its place.
    pub from: String,
    /// The C++ class that most of the blocks begin with, and how many do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_blocks: Option<u64>,
    /// These blocks.
    pub own: SumData,
    /// These blocks, and all that only they hold.
    pub retained: SumData,
    /// What they hold, by stack.
    pub holds: Vec<NodeData>,
    /// What they hold that is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<SumData>,
}

/// A root.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RootReport {
    #[serde(flatten)]
    pub root: RootData,
    pub retained: SumData,
    pub holds: Vec<NodeData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<SumData>,
}

/// A stack.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StackReport {
    pub stack: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Its blocks that are reached.
    pub own: SumData,
    /// What would be unreachable if all its blocks were gone, with those.
    pub retained: SumData,
    /// There may be more that only several of its blocks hold together.
    pub at_least: bool,
    pub asked_by: Option<AskedData>,
    pub frames: Vec<FrameData>,
    pub truncated: bool,
    /// The stack in words: for a terminal, and without its control sequences.
    #[serde(skip)]
    text: String,
    #[serde(skip)]
    pub plain: String,
}

/// A step of a chain of pointers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StepData {
    /// Address of the block, in hexadecimal.
    pub address: String,
    pub size: u64,
    pub stack: Option<u32>,
    pub from: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Offset of the word in it that points to the next block.
    pub offset: Option<u64>,
}

/// A chain of pointers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PathData {
    pub to: String,
    /// The root; nothing: no root leads there.
    pub root: Option<RootData>,
    /// Bytes from the start of the variable to the word that points to the first block.
    pub root_offset: Option<u64>,
    pub blocks: Vec<StepData>,
}

/// A scan of a recording.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SavedData {
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
pub(super) struct HoldsData {
    pub pid: Pid,
    /// The moment of the scan, in nanoseconds since the start of the recording.
    pub at_ns: u64,
    /// The scan of the recording; nothing: the process was looked at now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedData>,
    pub live: SumData,
    /// What no root leads to.
    pub unreachable: SumData,
    pub scan: ScanData,
    /// Pointers for which there was no room: what only they lead to counts as unreachable.
    pub pointers_left_out: u64,
    /// Number of roots that lead to blocks.
    pub roots: u64,
    pub top_roots: Vec<RootReport>,
    /// What hangs on several roots, each of which leads to it.
    pub shared: Option<RootReport>,
    pub top_stacks: Vec<StackReport>,
    pub paths: Vec<PathData>,
}

/// How the report is made.
pub(super) struct ReportOptions<'a> {
    pub by: By,
    pub top: usize,
    pub depth: usize,
    pub paths: &'a [Wanted],
}

/// What is known of a stack.
#[derive(Clone, Copy, Debug, Default)]
struct StackSums {
    stack: u32,
    own: Sum,
    retained: Sum,
    /// It may retain more.
    at_least: bool,
    class: Option<(u64, u64)>,
}

/// What parts of a report are made of.
struct Maker<'a> {
    heap: &'a Heap,
    held: &'a Held,
    names: &'a Names,
    classes: HashMap<u64, Option<String>>,
    memory: &'a dyn Memory,
    children: Vec<Vec<u32>>,
    options: &'a ReportOptions<'a>,
}

impl HoldsData {
    /// Makes the report of what was read.
    pub(super) fn new(looked: &mut Looked<'_>, options: &ReportOptions<'_>) -> Self {
        let Looked { heap, held, roots: named, memory, analysis, names, .. } = looked;
        let mut children = vec![Vec::new(); held.nodes.len()];
        for (i, n) in held.nodes.iter().enumerate().skip(1) {
            children[n.parent as usize].push(i as u32);
        }
        for c in &mut children {
            c.sort_by_key(|i| (std::cmp::Reverse(held.nodes[*i as usize].retained), *i));
        }
        let mut nodes: HashSet<u32> = HashSet::new();
        let none = Names::default();
        let (classes, memory) = (HashMap::new(), &**memory);
        let mut maker = Maker { heap, held, names: &none, classes, memory, children, options };
        maker.shown_stacks(&mut nodes);
        let stacks = maker.stacks();
        nodes.extend(stacks.iter().map(|s| s.stack));
        let paths: Vec<_> = options.paths.iter().map(|w| (*w, maker.path(*w))).collect();
        let of_path = |p: &Option<prof_graph::Path>| -> Vec<u32> {
            let blocks = p.iter().flat_map(|p| p.blocks.iter());
            blocks.filter_map(|b| heap.stack_of(b.start)).collect()
        };
        nodes.extend(paths.iter().flat_map(|(_, p)| of_path(p)));
        names.look_up_in(analysis, nodes.iter().copied());
        maker.names = names;
        let top_roots = maker.roots(named);
        let shared = maker.shared();
        let top_stacks = stacks.into_iter().map(|s| maker.stack(s)).collect();
        let paths = paths.into_iter().map(|(w, p)| maker.chain(w, p, named)).collect();
        Self {
            pid: looked.pid,
            at_ns: looked.at_ns,
            saved: looked.saved.clone(),
            live: looked.heap.live().into(),
            unreachable: looked.held.unreachable.into(),
            scan: looked.scan.clone(),
            pointers_left_out: looked.heap.left_out(),
            roots: looked.heap.roots().len() as u64,
            top_roots,
            shared,
            top_stacks,
            paths,
        }
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
            writeln!(out, " [stack {}]", s.stack)?;
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
    pub(super) fn write(&self, at_ns: u64, out: &mut String) -> fmt::Result {
        let name = if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) };
        let (n, of, at) = (self.number, self.of, duration(at_ns));
        writeln!(out, "scan #{n}{name} of {of}, {at} after the start of the recording")
    }
}

/// Returns the name of a class as people write it.
pub(super) fn demangled(class: &str) -> String {
    let text = demangle(&format!("_ZTS{class}"));
    printable(text.strip_prefix("typeinfo name for ").unwrap_or(class))
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
        write!(out, "{indent}{}: {class}{} [stack {}]", n.retained, n.from, n.stack)?;
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
    pub(super) fn write(&self, title: &str, out: &mut String) -> fmt::Result {
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

impl Maker<'_> {
    /// Returns the nodes below another that are shown: the largest, at least a hundredth of it.
    fn shown(&self, node: u32, level: usize) -> &[u32] {
        let all = &self.children[node as usize];
        if level >= self.options.depth {
            return &[];
        }
        let least = self.held.nodes[node as usize].retained.bytes / 100;
        let is_shown = |i: &&u32| self.held.nodes[**i as usize].retained.bytes >= least.max(1);
        let n = all.iter().take(self.options.top).take_while(is_shown).count();
        &all[..n]
    }

    /// Returns the nodes of roots that are shown.
    fn shown_roots(&self) -> impl Iterator<Item = u32> {
        let is_root = |i: &u32| matches!(self.held.nodes[*i as usize].holder, Holder::Root(_));
        let holds = |i: &u32| self.held.nodes[*i as usize].retained.blocks > 0;
        let top = if self.options.by == By::Stack { 0 } else { self.options.top };
        self.children[0].iter().copied().filter(is_root).filter(holds).take(top)
    }

    /// Returns the nodes that hang on several roots.
    fn on_several(&self) -> Vec<u32> {
        let is_stack = |i: &u32| matches!(self.held.nodes[*i as usize].holder, Holder::Stack(_));
        self.children[0].iter().copied().filter(is_stack).collect()
    }

    /// Adds the stacks of all nodes that are shown.
    fn shown_stacks(&self, to: &mut HashSet<u32>) {
        let mut work: Vec<(u32, usize)> = self.shown_roots().map(|n| (n, 0)).collect();
        work.extend(self.on_several().into_iter().take(self.options.top).map(|n| (n, 1)));
        while let Some((node, level)) = work.pop() {
            if let Holder::Stack(s) = self.held.nodes[node as usize].holder {
                to.insert(s);
            }
            work.extend(self.shown(node, level).iter().map(|n| (*n, level + 1)));
        }
    }

    fn class(&mut self, class: Option<(u64, u64)>) -> (Option<String>, Option<u64>) {
        let Some((table, n)) = class else { return (None, None) };
        let memory = self.memory;
        let name = self
            .classes
            .entry(table)
            .or_insert_with(|| memory.class(table).map(|mangled| demangled(&mangled)));
        (name.clone(), name.as_ref().map(|_| n))
    }

    fn node(&mut self, index: u32, level: usize) -> NodeData {
        let n = self.held.nodes[index as usize].clone();
        let Holder::Stack(stack) = n.holder else { unreachable!("only stacks are below others") };
        let (class, class_blocks) = self.class(n.class);
        let (holds, more) = self.below(index, level);
        NodeData {
            stack,
            from: self.names.get(stack).label(),
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
        let more = self.rest(&self.children[index as usize][shown.len()..]);
        (holds, more)
    }

    fn rest(&self, nodes: &[u32]) -> Option<SumData> {
        let mut sum = Sum::default();
        nodes.iter().for_each(|i| sum += self.held.nodes[*i as usize].retained);
        (sum.blocks > 0).then(|| sum.into())
    }

    fn roots(&mut self, named: &HashMap<Root, RootData>) -> Vec<RootReport> {
        let shown: Vec<u32> = self.shown_roots().collect();
        let mut all = Vec::new();
        for index in shown {
            let n = &self.held.nodes[index as usize];
            let Holder::Root(number) = n.holder else { continue };
            let retained = n.retained.into();
            let Some(root) = named.get(&self.heap.roots()[number as usize]) else { continue };
            let (holds, more) = self.below(index, 0);
            all.push(RootReport { root: root.clone(), retained, holds, more });
        }
        all
    }

    fn shared(&mut self) -> Option<RootReport> {
        let nodes = self.on_several();
        let retained = self.rest(&nodes).filter(|_| self.options.by != By::Stack)?;
        let n = nodes.len().min(self.options.top);
        let holds = nodes[..n].iter().map(|i| self.node(*i, 1)).collect();
        let root = RootData::several();
        Some(RootReport { root, retained, holds, more: self.rest(&nodes[n..]) })
    }

    /// Returns the stacks that retain most.
    fn stacks(&self) -> Vec<StackSums> {
        if self.options.by == By::Root {
            return Vec::new();
        }
        let mut by_stack: HashMap<u32, StackSums> = HashMap::new();
        for n in &self.held.nodes {
            if let Holder::Stack(stack) = n.holder {
                let sums = by_stack.entry(stack).or_default();
                (sums.stack, sums.at_least) = (stack, true);
                sums.own += n.own;
                sums.retained += n.retained;
                sums.class = match (sums.class, n.class) {
                    (Some(a), Some(b)) if a.1 >= b.1 => Some(a),
                    (a, b) => b.or(a),
                };
            }
        }
        let mut all: Vec<StackSums> = by_stack.into_values().collect();
        let order = |s: &StackSums| (std::cmp::Reverse(s.retained), s.stack);
        all.sort_by_key(order);
        all.truncate(self.options.top);
        let each = self.held.nodes[0].retained.blocks.max(1);
        let exact = (EXACT / each) as usize;
        for s in all.iter_mut().take(exact) {
            s.retained = self.heap.retained_by(self.held, |other| other == s.stack);
            s.at_least = false;
        }
        all.sort_by_key(order);
        all
    }

    fn stack(&mut self, s: StackSums) -> StackReport {
        let named: std::sync::Arc<NamedStack> = self.names.get(s.stack);
        let style = Style { color: crate::term::color(), width: crate::term::width() };
        StackReport {
            stack: s.stack,
            class: self.class(s.class).0,
            own: s.own.into(),
            retained: s.retained.into(),
            at_least: s.at_least,
            asked_by: named.asked.clone(),
            frames: named.frames.clone(),
            truncated: named.cut,
            text: named.text(style),
            plain: named.text(Style::default()),
        }
    }

    fn path(&self, wanted: Wanted) -> Option<prof_graph::Path> {
        match wanted {
            Wanted::Stack(s) => self.heap.path(|_, stack| stack == s),
            Wanted::Block(at) => {
                let block = self.heap.block_at(at)?;
                self.heap.path(|start, _| start == block.start)
            }
        }
    }

    fn chain(
        &mut self,
        wanted: Wanted,
        path: Option<prof_graph::Path>,
        roots: &HashMap<Root, RootData>,
    ) -> PathData {
        let to = match wanted {
            Wanted::Block(at) => format!("{at:#x}"),
            Wanted::Stack(s) => format!("stack {s}"),
        };
        let Some(path) = path else {
            return PathData { to, root: None, root_offset: None, blocks: Vec::new() };
        };
        let Some(root) = roots.get(&path.root).cloned() else {
            return PathData { to, root: None, root_offset: None, blocks: Vec::new() };
        };
        let start = root.start();
        let root_offset = start.and_then(|s| path.at.checked_sub(s)).filter(|n| *n > 0);
        let next = |i: usize| path.blocks.get(i + 1);
        let blocks = path.blocks.iter().enumerate().map(|(i, b)| self.step(b, next(i)));
        PathData { to, root: Some(root), root_offset, blocks: blocks.collect() }
    }

    fn step(&mut self, block: &Range<u64>, next: Option<&Range<u64>>) -> StepData {
        let stack = self.heap.stack_of(block.start);
        let class = self.heap.class_of(block.start);
        StepData {
            address: format!("{:#x}", block.start),
            size: block.end - block.start,
            stack,
            from: stack.map(|s| self.names.get(s).label()).unwrap_or_default(),
            class: self.class(class.map(|table| (table, 1))).0,
            offset: next.and_then(|n| self.memory.offset(block.clone(), n)),
        }
    }
}
