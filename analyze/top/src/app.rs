//! The state of the view: the figures shown, and what the user has chosen by keys.

use crate::feed::{Feed, Source};
use crate::filter::Filter;
use crate::rows::{Baseline, Column, Data, Key, Order, Row, Rows, View};
use crate::snapshot::{Moment, Snapshot};
use crate::tree::Tree;
use prof_analyze::live::{Book, read};
use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

/// Time that a message stays.
const MESSAGE: Duration = Duration::from_secs(8);

/// The source of a process's figures.
pub trait SnapshotSource {
    /// Returns the last snapshot; `None` if there is none yet.
    fn latest(&self) -> Option<Arc<Snapshot>>;
    /// Returns how live bytes and resident memory went.
    fn course(&self) -> Vec<Moment>;
    /// Returns how much was read at first, from 0 to 1.
    fn progress(&self) -> f64;
    /// Returns the names.
    fn book(&self) -> &RwLock<Book>;
    /// Asks for the names of stacks before those of others.
    fn want(&self, stacks: Vec<u32>);
}

impl SnapshotSource for Feed {
    fn latest(&self) -> Option<Arc<Snapshot>> {
        Feed::latest(self)
    }

    fn course(&self) -> Vec<Moment> {
        Feed::course(self)
    }

    fn progress(&self) -> f64 {
        Feed::progress(self)
    }

    fn book(&self) -> &RwLock<Book> {
        Feed::book(self)
    }

    fn want(&self, stacks: Vec<u32>) {
        Feed::want(self, stacks);
    }
}

/// A process on the screen.
pub struct Process {
    /// The recording or process.
    pub source: Source,
    /// Whether this command has attached to it.
    pub own: bool,
    /// The figures.
    pub figures: Box<dyn SnapshotSource>,
    /// The snapshot that is shown.
    pub shown: Option<Arc<Snapshot>>,
    /// The values up to then.
    pub course: Vec<Moment>,
    /// From where growth is counted.
    pub baseline: Baseline,
    /// Whether the baseline was set by hand.
    pub is_set: bool,
    /// The rows of its trees that are open.
    pub tree: Tree,
}

impl Process {
    /// Creates one that is not read yet.
    pub fn new(source: Source, own: bool, figures: Box<dyn SnapshotSource>) -> Self {
        Self {
            source,
            own,
            figures,
            shown: None,
            course: Vec::new(),
            baseline: Baseline::default(),
            is_set: false,
            tree: Tree::default(),
        }
    }

    /// Returns whether its recording has ended.
    pub fn has_ended(&self) -> bool {
        self.figures.latest().is_some_and(|s| s.ended.is_some())
    }
}

/// The part of the view that receives the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The table.
    #[default]
    Table,
    /// Typing the filter; the one before.
    Filter(String),
    /// The list of keys.
    Help,
    /// Choosing a format to export; the chosen one.
    Export(usize),
    /// The question whether to detach.
    Leave,
}

/// The treatment of the processes when the view ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Detach from them.
    Detach,
    /// Go on recording.
    Keep,
}

/// The work that an event leaves to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// End; the answer to the question, if it was asked.
    Quit(Option<Leave>),
    /// Stop this process, as Ctrl-Z does.
    Suspend,
    /// Switch the recording of the shown process on or off.
    Toggle(bool),
    /// Export the recording of the shown process in a format, by its place in the list.
    Export(usize),
}

/// A format that recordings can be exported to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// The name.
    pub name: String,
    /// One line of help on the format.
    pub help: String,
}

/// The timeline's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeline {
    /// A chart if there is room, else one line.
    Auto,
    /// One line.
    Line,
    /// A chart.
    Chart,
    /// Not at all.
    Off,
}

/// The positions of the parts on the screen, for the mouse.
#[derive(Clone, Debug, Default)]
pub struct ScreenAreas {
    /// Line of the column headers, and columns with where they begin and end.
    pub header: (u16, Vec<(u16, u16, Column)>),
    /// First line of the rows, and their number.
    pub rows: (u16, u16),
    /// Line of the views, and where they begin and end.
    pub views: (u16, Vec<(u16, u16, View)>),
    /// Line of the processes, and where they begin and end.
    pub processes: (u16, Vec<(u16, u16, usize)>),
}

/// The state of the screen.
pub struct App {
    /// The processes.
    pub processes: Vec<Process>,
    /// The one that is shown.
    pub current: usize,
    /// The kind of rows.
    pub view: View,
    /// Their order.
    pub order: Order,
    /// The filter.
    pub filter: Filter,
    /// The part of the view that receives the keys.
    pub mode: Mode,
    /// The row that was chosen.
    pub selected: Option<Key>,
    /// The place of the selected row when it was last in the list.
    pub place: usize,
    /// The first row that is shown.
    pub offset: usize,
    /// The display stands still.
    pub is_held: bool,
    /// The detail of the chosen row is shown.
    pub detail: bool,
    /// First line of the detail.
    pub detail_offset: usize,
    /// The timeline.
    pub timeline: Timeline,
    /// First line of the help.
    pub help_offset: usize,
    /// Formats for exports.
    pub formats: Vec<Format>,
    /// The answer to the question at the end, given ahead.
    pub leave: Option<Leave>,
    /// Colours are used.
    pub color: bool,
    /// The rows.
    pub rows: Rows,
    /// The positions of the parts on the screen.
    pub areas: ScreenAreas,
    /// Lines of source files, by path and number.
    pub sources: HashMap<(String, u32), Vec<(u32, String)>>,
    /// The line of a source file that the detail would show.
    pub wanted_source: Option<(String, u32)>,
    message: Option<(String, Instant)>,
    made_of: Option<MadeOf>,
    pub(crate) clicked: Option<(Key, Instant)>,
}

/// The inputs that the present rows were made from.
#[derive(Clone, PartialEq)]
struct MadeOf {
    current: usize,
    view: View,
    filter: String,
    order: Option<Order>,
    names: (usize, u64),
    snapshot: usize,
    baseline: u64,
    tree: u64,
}

impl App {
    /// Creates the first screen.
    pub fn new(processes: Vec<Process>) -> Self {
        Self {
            processes,
            current: 0,
            view: View::default(),
            order: Order::default(),
            filter: Filter::default(),
            mode: Mode::default(),
            selected: None,
            place: 0,
            offset: 0,
            is_held: false,
            detail: false,
            detail_offset: 0,
            timeline: Timeline::Auto,
            help_offset: 0,
            formats: Vec::new(),
            leave: None,
            color: true,
            rows: Rows::default(),
            areas: ScreenAreas::default(),
            sources: HashMap::new(),
            wanted_source: None,
            message: None,
            made_of: None,
            clicked: None,
        }
    }

    /// Returns the process that is shown.
    pub fn process(&self) -> &Process {
        &self.processes[self.current]
    }

    /// Says something in the last line for a while.
    pub fn say(&mut self, text: impl Into<String>) {
        self.message = Some((text.into(), Instant::now()));
    }

    /// Returns what is to be said.
    pub fn message(&self) -> Option<&str> {
        self.message.as_ref().filter(|m| m.1.elapsed() < MESSAGE).map(|m| m.0.as_str())
    }

    /// Takes the newest figures; returns whether there are any.
    pub fn refresh(&mut self) -> bool {
        let mut changed = false;
        for p in &mut self.processes {
            let Some(latest) = p.figures.latest() else { continue };
            if self.is_held && p.shown.is_some() {
                continue;
            }
            if p.shown.as_ref().is_some_and(|s| Arc::ptr_eq(s, &latest)) {
                continue;
            }
            if p.shown.is_none() {
                p.baseline = Baseline::of(&latest);
            }
            p.course = p.figures.course();
            p.shown = Some(latest);
            changed = true;
        }
        changed
    }

    /// Makes the rows anew if anything that they are made of has changed. `window` rows are shown.
    pub fn arrange(&mut self, window: usize) {
        let Some(snapshot) = self.process().shown.clone() else {
            self.rows = Rows::default();
            return;
        };
        let p = &mut self.processes[self.current];
        let book = read(p.figures.book());
        self.filter.learn(&book);
        let made_of = MadeOf {
            current: self.current,
            view: self.view,
            filter: self.filter.text().to_owned(),
            order: self.view.is_tree().then_some(self.order),
            names: book.version(),
            snapshot: Arc::as_ptr(&snapshot) as usize,
            baseline: p.baseline.at_ns,
            tree: p.tree.version(),
        };
        if self.made_of.as_ref() != Some(&made_of) {
            let (filter, baseline) = (&self.filter, &p.baseline);
            let data = Data { snapshot: &snapshot, book: &book, filter, baseline };
            self.rows = Rows::new(self.view, &data, &p.tree, self.order);
            self.made_of = Some(made_of);
        }
        let (view, order) = (self.view, self.order);
        let until = |offset: usize| offset + window;
        let name = |r: &Row| name_of(r, view, &snapshot, &book);
        if view.is_tree() {
            if let Some(at) =
                self.selected.and_then(|k| self.rows.all.iter().position(|r| r.key == k))
            {
                self.place = at;
            }
        } else {
            if order.column == Column::Name {
                self.rows.arrange(usize::MAX, order, name);
            }
            if let Some(at) = self.selected.and_then(|k| self.rows.rank(k, order)) {
                self.place = at;
            }
        }
        let n = self.rows.all.len();
        self.place = self.place.min(n.saturating_sub(1));
        if self.selected.is_some() {
            self.offset = self.offset.min(self.place);
            if self.place >= until(self.offset) {
                self.offset = self.place + 1 - window.max(1);
            }
        }
        self.offset = self.offset.min(n.saturating_sub(window));
        if !view.is_tree() && order.column != Column::Name {
            self.rows.arrange(until(self.offset), order, name);
        }
        let shown = self.rows.all.iter().skip(self.offset).take(window).filter_map(|r| r.stack);
        let missing: Vec<u32> = shown.filter(|s| book.stack(*s).is_none()).collect();
        drop(book);
        if !missing.is_empty() {
            self.process().figures.want(missing);
        }
    }

    /// Returns the row that was chosen, if it is shown.
    pub fn chosen(&self) -> Option<&Row> {
        let key = self.selected?;
        self.rows.all.get(self.place).filter(|r| r.key == key)
    }

    /// Chooses the row at a place, as far as there is one.
    pub fn choose(&mut self, place: usize, window: usize) {
        let n = self.rows.all.len();
        if n == 0 {
            return;
        }
        self.place = place.min(n - 1);
        // Rows further down are not in order yet.
        if !self.view.is_tree() {
            let Some(snapshot) = self.process().shown.clone() else { return };
            let (view, order, at) = (self.view, self.order, self.place + window);
            let p = &self.processes[self.current];
            let book = read(p.figures.book());
            self.rows.arrange(at, order, |r| name_of(r, view, &snapshot, &book));
        }
        self.selected = self.rows.all.get(self.place).map(|r| r.key);
        self.detail_offset = 0;
    }

    /// Forgets which row was chosen, as rows are others from here on.
    pub fn forget(&mut self) {
        (self.selected, self.place, self.offset, self.detail_offset) = (None, 0, 0, 0);
        self.detail = false;
    }

    /// Shows another view.
    pub fn show(&mut self, view: View) {
        if view != self.view {
            self.view = view;
            self.forget();
        }
    }

    /// Shows another process.
    pub fn switch(&mut self, to: usize) {
        if to < self.processes.len() && to != self.current {
            self.current = to;
            // Frames have other ids there.
            self.filter = Filter::new(self.filter.text());
            self.forget();
        }
    }

    /// Sorts by a column; by the same one again in the other direction.
    pub fn sort(&mut self, column: Column) {
        self.order = match self.order {
            Order { column: c, reversed } if c == column => Order { column, reversed: !reversed },
            _ => Order { column, reversed: false },
        };
        self.offset = 0;
    }

    /// Sets the filter.
    pub fn filter(&mut self, text: &str) {
        self.filter = Filter::new(text);
        (self.offset, self.place) = (0, 0);
    }

    /// Counts growth from now on, or from the beginning of this view again.
    pub fn rebase(&mut self) {
        let p = &mut self.processes[self.current];
        let Some(shown) = &p.shown else { return };
        p.baseline = Baseline::of(shown);
        p.is_set = true;
        self.say("growth is counted from now on");
    }
}

/// Returns the name of a row.
pub fn name_of(row: &Row, view: View, snapshot: &Snapshot, book: &Book) -> String {
    let of_text = |id: u32| match id {
        u32::MAX => "[no stack, or not named yet]".to_owned(),
        id => book.text(id).to_owned(),
    };
    match row.key {
        Key::Stack(i) => match book.stack(i) {
            None => String::new(),
            Some(s) => match s.frames.get(s.asker) {
                None => "[no stack]".into(),
                Some(f) => of_text(book.function(*f)),
            },
        },
        Key::Text(id) if view == View::Modules && id != u32::MAX => {
            let path = book.text(id);
            path.rsplit('/').find(|s| !s.is_empty()).unwrap_or(path).to_owned()
        }
        Key::Text(id) => of_text(id),
        Key::Thread(i) => snapshot.threads.get(i as usize).map_or_else(String::new, |t| {
            let name: String =
                t.name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            match t.tid {
                0 => "[not known]".into(),
                tid => format!("{name} {tid}"),
            }
        }),
        Key::Node(_) => of_text(row.text),
    }
}
