//! Compares two scans of a recording: what came to be held by whom.

use super::report::{SavedData, SumData, number_of};
use super::roots::{RootData, RootKind};
use super::{Holders, Memory};
use crate::Analysis;
use crate::live::Names;
use crate::style::Style;
use prof_graph::{Holder, Sum};
use prof_os::Pid;
use prof_trace::values::text::{bytes, count};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};

/// Stacks that are shown below a root.
const STACKS: usize = 5;

/// Memory of a holder at two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Course {
    /// At the earlier moment.
    pub before: SumData,
    /// At the later moment.
    pub after: SumData,
}

impl Course {
    /// Returns by how many bytes and blocks it has grown.
    #[must_use]
    pub fn change(&self) -> (i128, i128) {
        let less = |a: u64, b: u64| i128::from(a) - i128::from(b);
        (less(self.after.bytes, self.before.bytes), less(self.after.blocks, self.before.blocks))
    }

    /// Returns the order in which holders are listed: those that changed most come first.
    fn order(&self) -> Reverse<(u128, u128)> {
        let (bytes, blocks) = self.change();
        Reverse((bytes.unsigned_abs(), blocks.unsigned_abs()))
    }

    /// Returns the change in words, as `+1.2 KiB in +3 blocks`.
    fn text(&self) -> String {
        let (b, n) = self.change();
        let sign = |n: i128| if n < 0 { "-" } else { "+" };
        let size = bytes(u64::try_from(b.unsigned_abs()).unwrap_or(u64::MAX));
        let blocks = u64::try_from(n.unsigned_abs()).unwrap_or(u64::MAX);
        format!("{}{size} in {}{}", sign(b), sign(n), count(blocks, "block", "blocks"))
    }
}

/// Blocks of a stack that a root retains.
#[derive(Clone, Debug, Serialize)]
pub struct StackChange {
    /// Number of the stack in the recording.
    pub stack: u32,
    /// The function that asked for the memory, with its place.
    pub from: String,
    /// Blocks of the stack below the root, at both moments.
    #[serde(flatten)]
    pub own: Course,
}

/// Change of what a root retains.
#[derive(Clone, Debug, Serialize)]
pub struct RootChange {
    /// Kind of the root.
    pub kind: RootKind,
    /// The name for people.
    pub name: String,
    /// Whether the earlier scan has the root.
    pub was: bool,
    /// Whether the later scan has the root.
    pub is: bool,
    /// Blocks that the root retains, at both moments.
    #[serde(flatten)]
    pub retained: Course,
    /// The stacks whose blocks below the root changed most.
    pub stacks: Vec<StackChange>,
}

/// A scan that is compared.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// Number and name of the scan.
    #[serde(flatten)]
    pub scan: Option<SavedData>,
    /// The moment, in nanoseconds since the start of the recording.
    pub at_ns: u64,
}

/// The comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The process.
    pub pid: Pid,
    /// The earlier scan.
    pub before: Compared,
    /// The later scan.
    pub after: Compared,
    /// All live blocks.
    pub live: Course,
    /// Live blocks that no root leads to, at both moments.
    pub unreachable: Course,
    /// Live blocks that several roots lead to, at both moments.
    pub shared: Course,
    /// Number of roots whose retained size has changed.
    pub changed_roots: usize,
    /// The roots that changed most.
    pub roots: Vec<RootChange>,
}

/// A root at two moments.
#[derive(Default)]
struct Both {
    retained: [Option<Sum>; 2],
    stacks: HashMap<u32, [Sum; 2]>,
}

/// A root by its kind and name, which is the same in both scans.
type Key = (RootKind, String);

impl Comparison {
    /// Compares an earlier scan of a recording with a later one.
    pub fn new<M: Memory>(
        (old, new): (&Holders<M>, &Holders<M>),
        analysis: &Analysis,
        names: &mut Names,
        top: usize,
    ) -> Self {
        let mut all: BTreeMap<Key, Both> = BTreeMap::new();
        let mut shared = [Sum::default(); 2];
        for (side, of) in [old, new].into_iter().enumerate() {
            shared[side] = add(of, side, &mut all);
        }
        let course = |of: [Sum; 2]| Course { before: of[0].into(), after: of[1].into() };
        let shared = course(shared);
        let mut roots: Vec<(RootChange, Vec<(u32, Course)>)> = Vec::new();
        for ((kind, name), both) in all {
            let retained = course(both.retained.map(Option::unwrap_or_default));
            let mut stacks: Vec<(u32, Course)> =
                both.stacks.into_iter().map(|(s, of)| (s, course(of))).collect();
            stacks.retain(|(_, c)| c.change() != (0, 0));
            stacks.sort_by_key(|(s, c)| (c.order(), *s));
            stacks.truncate(STACKS);
            if retained.change() != (0, 0) || !stacks.is_empty() {
                let [was, is] = both.retained.map(|r| r.is_some());
                roots.push((
                    RootChange { kind, name, was, is, retained, stacks: Vec::new() },
                    stacks,
                ));
            }
        }
        roots.sort_by(|(a, _), (b, _)| {
            a.retained.order().cmp(&b.retained.order()).then_with(|| a.name.cmp(&b.name))
        });
        let changed_roots = roots.len();
        roots.truncate(top);
        let nodes = roots.iter().flat_map(|(_, stacks)| stacks.iter().map(|s| s.0));
        names.look_up_in(analysis, nodes);
        let named = |(stack, own): (u32, Course)| StackChange {
            stack,
            from: names.get(stack).label(),
            own,
        };
        let with_stacks = |(mut root, stacks): (RootChange, Vec<(u32, Course)>)| {
            root.stacks = stacks.into_iter().map(named).collect();
            root
        };
        let compared = |of: &Holders<M>| Compared { scan: of.saved.clone(), at_ns: of.at_ns };
        Self {
            pid: new.pid,
            before: compared(old),
            after: compared(new),
            live: course([old.heap.live(), new.heap.live()]),
            unreachable: course([old.held.unreachable, new.held.unreachable]),
            shared,
            changed_roots,
            roots: roots.into_iter().map(with_stacks).collect(),
        }
    }

    /// Returns the comparison in one line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Returns the comparison as text.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        for c in [&self.before, &self.after] {
            if let Some(s) = &c.scan {
                s.write(c.at_ns, out)?;
            }
        }
        let line = |what: &str, c: &Course, out: &mut String| match c.change() {
            (0, 0) => writeln!(out, "  {what}: {}, as before", c.after),
            _ => writeln!(out, "  {what}: {} ({} before, {} now)", c.text(), c.before, c.after),
        };
        writeln!(out, "process {}: from the first of them to the second", self.pid)?;
        line("live", &self.live, out)?;
        line("no root leads to", &self.unreachable, out)?;
        line("held by several roots", &self.shared, out)?;
        for (i, r) in self.roots.iter().enumerate() {
            let title = match style.color {
                true => format!("\x1b[1m=== root #{i} ===\x1b[0m"),
                false => format!("=== root #{i} ==="),
            };
            let news = match (r.was, r.is) {
                (false, _) => ", which held nothing before",
                (_, false) => ", which holds nothing any more",
                _ => "",
            };
            writeln!(out, "\n{title} [{}] {}{news}", r.retained.text(), r.name)?;
            writeln!(out, "  retained {}, retains {}", r.retained.before, r.retained.after)?;
            for s in &r.stacks {
                let (text, after) = (s.own.text(), s.own.after);
                writeln!(out, "  {text}: {} [now {after}]{}", s.from, number_of(s.stack))?;
            }
        }
        let more = self.changed_roots - self.roots.len();
        if more > 0 {
            let n = count(more as u64, "root has", "roots have");
            writeln!(out, "\n{n} changed beside these; --top 0 shows all")?;
        }
        if self.roots.is_empty() {
            writeln!(out, "\nno root retains more or less than before")?;
        }
        Ok(())
    }
}

/// Adds what each root retains, and the blocks of each stack below it. Returns what several roots hold.
fn add<M: Memory>(of: &Holders<M>, side: usize, to: &mut BTreeMap<Key, Both>) -> Sum {
    let nodes = &of.held.nodes;
    let mut shared = Sum::default();
    // For each node the root above it. A node stands behind its parent.
    let mut above: Vec<Option<u32>> = vec![None; nodes.len()];
    for (i, n) in nodes.iter().enumerate().skip(1) {
        above[i] = match n.holder {
            // Frames come and go: what they hold is their stack's.
            Holder::Root(r) => above[n.parent as usize].or(Some(r)),
            _ => above[n.parent as usize],
        };
        let Some(root) = above[i] else {
            if n.parent == 0 {
                shared += n.retained;
            }
            continue;
        };
        let Some(RootData { kind, name, .. }) = of.root(root) else { continue };
        match n.holder {
            Holder::Root(_) if n.retained.blocks == 0 || n.parent != 0 => {}
            Holder::Root(_) => {
                let both = to.entry((*kind, name.clone())).or_default();
                *both.retained[side].get_or_insert_default() += n.retained;
            }
            Holder::Stack(stack) => {
                let both = to.entry((*kind, name.clone())).or_default();
                both.stacks.entry(stack).or_default()[side] += n.own;
            }
            Holder::All => {}
        }
    }
    shared
}
