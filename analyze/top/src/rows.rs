//! The rows of a table: what is grouped how, and in which order.

use crate::filter::Filter;
use crate::snapshot::{RowStats, Snapshot};
use crate::tree::Tree;
use prof_analyze::live::Book;
use std::cmp::Ordering;
use std::collections::HashMap;

/// A kind of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum View {
    /// Stacks
    #[default]
    Stacks,
    /// Functions that asked for the memory
    Functions,
    /// Modules of these functions
    Modules,
    /// Threads that allocated the blocks
    Threads,
    /// Calls, from the outermost function inwards
    Tree,
    /// Calls, from the function that asked outwards
    #[cfg_attr(feature = "clap", value(name = "bottom-up"))]
    Callers,
}

impl View {
    /// All, in their order on the screen.
    pub const ALL: [Self; 6] =
        [Self::Stacks, Self::Functions, Self::Modules, Self::Threads, Self::Tree, Self::Callers];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stacks => "Stacks",
            Self::Functions => "Functions",
            Self::Modules => "Modules",
            Self::Threads => "Threads",
            Self::Tree => "Tree",
            Self::Callers => "Bottom-up",
        }
    }

    /// Returns whether rows open to others.
    pub fn is_tree(self) -> bool {
        matches!(self, Self::Tree | Self::Callers)
    }
}

/// A column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// Live bytes.
    #[default]
    Live,
    /// Growth since the baseline.
    Grown,
    /// Growth a second.
    Growth,
    /// Allocations a second.
    Rate,
    /// Live blocks.
    Blocks,
    /// The peak of live bytes.
    Peak,
    /// The age of the oldest live block.
    Age,
    /// Names.
    Name,
}

impl Column {
    /// All, in their order on the screen.
    pub const ALL: [Self; 8] = [
        Self::Live,
        Self::Grown,
        Self::Growth,
        Self::Rate,
        Self::Blocks,
        Self::Peak,
        Self::Age,
        Self::Name,
    ];
}

/// The identity of a row: the stack, thread or group that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A stack, by its number.
    Stack(u32),
    /// A function or module, by the id of its text.
    Text(u32),
    /// A thread, by its index in the snapshot.
    Thread(u32),
    /// A place in a tree, by a hash of its path.
    Node(u64),
}

/// A row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The stack, thread or group that the row stands for.
    pub key: Key,
    /// The figures of the row.
    pub figures: RowStats,
    /// Growth in bytes since the baseline.
    pub grown: i64,
    /// The stack that holds the most of its live bytes.
    pub stack: Option<u32>,
    /// Number of its stacks with live blocks.
    pub stacks: u32,
    /// The text of its name, in trees.
    pub text: u32,
    /// The frame, in trees.
    pub frame: Option<u32>,
    /// Depth of the row in a tree; 0 in a table.
    pub depth: u16,
    /// Whether the row is open; `None` if there is nothing to open.
    pub open: Option<bool>,
}

impl Row {
    /// Creates a row without figures.
    pub fn new(key: Key) -> Self {
        Self {
            key,
            figures: RowStats::default(),
            grown: 0,
            stack: None,
            stacks: 0,
            text: 0,
            frame: None,
            depth: 0,
            open: None,
        }
    }

    /// Adds a stack's figures; `most` are the live bytes of the largest one so far.
    pub fn add(&mut self, stack: u32, figures: &RowStats, grown: i64, most: &mut Option<u64>) {
        self.figures.add(figures);
        self.grown = self.grown.saturating_add(grown);
        self.stacks += u32::from(figures.blocks > 0);
        if most.is_none_or(|m| figures.live > m) {
            *most = Some(figures.live);
            self.stack = Some(stack);
        }
    }
}

/// The figures from which on growth is counted.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    /// The moment, in nanoseconds since the start of the recording.
    pub at_ns: u64,
    /// Live bytes by stack; those behind its end had none.
    pub stacks: Vec<u64>,
    /// Live bytes by thread.
    pub threads: Vec<u64>,
    /// Live bytes of all.
    pub total: u64,
}

impl Baseline {
    /// Takes the figures of a moment.
    pub fn of(s: &Snapshot) -> Self {
        Self {
            at_ns: s.at_ns,
            stacks: s.stacks.iter().map(|f| f.live).collect(),
            threads: s.threads.iter().map(|t| t.figures.live).collect(),
            total: s.total.live,
        }
    }

    /// Returns the growth of a stack.
    pub fn stack(&self, i: usize, live: u64) -> i64 {
        grown(&self.stacks, i, live)
    }
}

fn grown(before: &[u64], i: usize, live: u64) -> i64 {
    live.wrapping_sub(before.get(i).copied().unwrap_or(0)).cast_signed()
}

/// The order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The column.
    pub column: Column,
    /// The smallest first; of names, the last of the alphabet first.
    pub reversed: bool,
}

impl Default for Order {
    fn default() -> Self {
        Self { column: Column::Live, reversed: false }
    }
}

/// The inputs for making rows.
pub struct Data<'a> {
    /// The figures.
    pub snapshot: &'a Snapshot,
    /// The names.
    pub book: &'a Book,
    /// The filter, which has learnt the book.
    pub filter: &'a Filter,
    /// The moment from which on growth is counted.
    pub baseline: &'a Baseline,
}

/// The rows of a view.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// The rows. Flat ones are in order only as far as [`Rows::arrange`] was asked for.
    pub all: Vec<Row>,
    /// Figures of all rows together.
    pub sum: RowStats,
    /// Growth of all rows together.
    pub grown: i64,
    /// Number of stacks that a filter has left out as their names are not known yet.
    pub unnamed: usize,
}

impl Rows {
    /// Makes the rows of a view.
    pub fn new(view: View, data: &Data<'_>, tree: &Tree, order: Order) -> Self {
        let mut rows = match view {
            View::Stacks => stacks(data),
            View::Functions | View::Modules => by_text(view, data),
            View::Threads => threads(data),
            View::Tree | View::Callers => {
                let (mut rows, chosen) = (Self::default(), chosen(data));
                rows.unnamed = chosen.1;
                rows.all = tree.rows(view, data, &chosen.0, order);
                for i in chosen.0 {
                    let f = &data.snapshot.stacks[i as usize];
                    rows.count(f, data.baseline.stack(i as usize, f.live));
                }
                rows
            }
        };
        if data.filter.is_all() {
            rows.sum.peak = data.snapshot.total.peak;
        }
        rows
    }

    fn count(&mut self, figures: &RowStats, grown: i64) {
        self.sum.add(figures);
        self.grown = self.grown.saturating_add(grown);
    }

    /// Puts the first `n` rows of a flat view in order.
    pub fn arrange(&mut self, n: usize, order: Order, name: impl Fn(&Row) -> String) {
        let n = n.min(self.all.len());
        if n == 0 {
            return;
        }
        if order.column == Column::Name {
            let mut named: Vec<(String, Row)> = self.all.iter().map(|r| (name(r), *r)).collect();
            let by_name = |a: &(String, Row), b: &(String, Row)| {
                let (a, b) = if order.reversed { (b, a) } else { (a, b) };
                a.0.cmp(&b.0).then_with(|| id(a.1.key).cmp(&id(b.1.key)))
            };
            if n < named.len() {
                named.select_nth_unstable_by(n - 1, by_name);
            }
            named[..n].sort_by(by_name);
            self.all = named.into_iter().map(|(_, r)| r).collect();
            return;
        }
        if n < self.all.len() {
            self.all.select_nth_unstable_by(n - 1, |a, b| compare(a, b, order));
        }
        self.all[..n].sort_by(|a, b| compare(a, b, order));
    }

    /// Returns at which place a row stands in a flat view's order.
    pub fn rank(&self, key: Key, order: Order) -> Option<usize> {
        let at = self.all.iter().position(|r| r.key == key)?;
        if order.column == Column::Name {
            return Some(at);
        }
        let row = self.all[at];
        Some(self.all.iter().filter(|r| compare(r, &row, order) == Ordering::Less).count())
    }
}

fn id(key: Key) -> u64 {
    match key {
        Key::Stack(i) | Key::Text(i) | Key::Thread(i) => i.into(),
        Key::Node(i) => i,
    }
}

/// Compares two rows by their figures.
pub fn compare(a: &Row, b: &Row, order: Order) -> Ordering {
    let (f, g) = (&a.figures, &b.figures);
    let by = match order.column {
        Column::Live | Column::Name => g.live.cmp(&f.live),
        Column::Blocks => g.blocks.cmp(&f.blocks),
        Column::Grown => b.grown.cmp(&a.grown),
        Column::Growth => g.growth.total_cmp(&f.growth),
        Column::Rate => g.rate.total_cmp(&f.rate),
        Column::Peak => g.peak.cmp(&f.peak),
        Column::Age => g.age.cmp(&f.age),
    };
    let by = if order.reversed { by.reverse() } else { by };
    by.then(g.live.cmp(&f.live)).then(id(a.key).cmp(&id(b.key)))
}

/// Returns the stacks that the filter lets pass, and how many it does not know the names of.
fn chosen(data: &Data<'_>) -> (Vec<u32>, usize) {
    let (mut unnamed, is_all) = (0, data.filter.is_all());
    let mut passes = |i: &u32| {
        is_all
            || match data.book.stack(*i) {
                Some(s) => data.filter.has_stack(s),
                None => {
                    unnamed += 1;
                    false
                }
            }
    };
    let all = (0..data.snapshot.stacks.len() as u32).filter(|i| passes(i)).collect();
    (all, unnamed)
}

fn stacks(data: &Data<'_>) -> Rows {
    let (chosen, unnamed) = chosen(data);
    let mut rows = Rows { unnamed, ..Rows::default() };
    rows.all.reserve(chosen.len());
    for i in chosen {
        let figures = data.snapshot.stacks[i as usize];
        let grown = data.baseline.stack(i as usize, figures.live);
        rows.count(&figures, grown);
        let row = Row { figures, grown, stack: Some(i), stacks: 1, ..Row::new(Key::Stack(i)) };
        rows.all.push(row);
    }
    rows
}

fn by_text(view: View, data: &Data<'_>) -> Rows {
    let (chosen, unnamed) = chosen(data);
    let mut rows = Rows { unnamed, ..Rows::default() };
    let mut at: HashMap<u32, usize> = HashMap::new();
    let mut most: Vec<Option<u64>> = Vec::new();
    for i in chosen {
        let figures = &data.snapshot.stacks[i as usize];
        let grown = data.baseline.stack(i as usize, figures.live);
        rows.count(figures, grown);
        let frame = data.book.stack(i).and_then(|s| s.frames.get(s.asker).copied());
        let text = match (frame, view) {
            (None, _) => u32::MAX,
            (Some(f), View::Modules) => data.book.module(f),
            (Some(f), _) => data.book.function(f),
        };
        let n = *at.entry(text).or_insert_with(|| {
            rows.all.push(Row { text, frame, ..Row::new(Key::Text(text)) });
            most.push(None);
            rows.all.len() - 1
        });
        rows.all[n].add(i, figures, grown, &mut most[n]);
    }
    rows
}

fn threads(data: &Data<'_>) -> Rows {
    let mut rows = Rows::default();
    for (i, t) in data.snapshot.threads.iter().enumerate() {
        if !data.filter.has(&t.name) && !data.filter.has(&t.tid.to_string()) {
            continue;
        }
        let grown = grown(&data.baseline.threads, i, t.figures.live);
        rows.count(&t.figures, grown);
        rows.all.push(Row { figures: t.figures, grown, ..Row::new(Key::Thread(i as u32)) });
    }
    rows
}
