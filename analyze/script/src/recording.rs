//! The recordings that scripts ask about, and what all functions of a script share.

use crate::error::{Fault, fault, of_scan};
use crate::host::{FileKind, Host};
use crate::loaded::Scans;
use prof_analyze::maps::Maps;
use prof_analyze::query::RowSet;
use prof_analyze::{Analysis, Index, IndexOptions};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// A holder of an index: a script's own, or a server's.
pub trait Indexed: Send + Sync {
    /// Returns the index.
    fn index(&self) -> &Index;
}

impl Indexed for Index {
    fn index(&self) -> &Index {
        self
    }
}

/// A recording that scripts ask about.
pub struct Recording {
    holder: Box<dyn Indexed>,
    maps: OnceLock<Result<Maps, String>>,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Recording").field(&self.analysis().path()).finish()
    }
}

impl Recording {
    /// Creates the recording of an index.
    pub fn new(holder: impl Indexed + 'static) -> Arc<Self> {
        Arc::new(Self { holder: Box::new(holder), maps: OnceLock::new() })
    }

    /// Opens a recording.
    ///
    /// # Errors
    /// A message if it can't be read.
    pub fn open(path: &Path, options: &IndexOptions) -> Result<Arc<Self>, String> {
        Index::open(path, options).map(Self::new).map_err(|e| e.to_string())
    }

    /// Returns the index.
    pub fn index(&self) -> &Index {
        self.holder.index()
    }

    pub(crate) fn analysis(&self) -> &Analysis {
        self.index().analysis()
    }

    pub(crate) fn runtime_ns(&self) -> u64 {
        self.analysis().duration_ns()
    }

    pub(crate) fn maps(&self) -> Result<&Maps, Fault> {
        let made = self.maps.get_or_init(|| Maps::of(self.analysis()).map_err(|e| e.to_string()));
        made.as_ref().map_err(|e| fault(e.clone()))
    }
}

/// The memory that the selections of a script take.
#[derive(Debug)]
pub(crate) struct Budget {
    used: Cell<u64>,
    most: u64,
}

/// A set of rows that counts against the budget for as long as any list has it.
#[derive(Clone)]
pub(crate) struct Rows(Rc<Counted>);

struct Counted {
    set: Arc<RowSet>,
    len: Cell<Option<u64>>,
    _memory: Taken,
}

/// Memory that counts against the budget until it is dropped.
pub(crate) struct Taken {
    bytes: u64,
    budget: Rc<Budget>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.used.set(self.budget.used.get().saturating_sub(self.bytes));
    }
}

impl Rows {
    pub(crate) fn set(&self) -> &Arc<RowSet> {
        &self.0.set
    }

    pub(crate) fn len(&self) -> u64 {
        let len = self.0.len.get().unwrap_or_else(|| self.0.set.len());
        self.0.len.set(Some(len));
        len
    }
}

/// Opens the recording of a path.
pub type Open = Box<dyn Fn(&Path) -> Result<Arc<Recording>, String>>;

/// Finds a recording.
pub type Fallback = Box<dyn Fn() -> Result<Arc<Recording>, String>>;

/// The part of an engine that all functions share.
pub(crate) struct Shared {
    pub host: RefCell<Box<dyn Host>>,
    /// The recordings given on the command line, or that of the page.
    pub data: RefCell<Vec<Arc<Recording>>>,
    pub argv: Vec<String>,
    pub budget: Rc<Budget>,
    /// Greatest length of a text that functions make, in bytes.
    pub longest: usize,
    /// Numbers of the next files without names.
    pub graphs: Cell<u64>,
    pub flamegraphs: Cell<u64>,
    /// Opens recordings.
    pub open: Open,
    /// Finds a recording if none was given.
    pub fallback: Option<Fallback>,
    /// The scans that were read last.
    pub scans: RefCell<Scans>,
    told: RefCell<HashSet<String>>,
}

impl Shared {
    pub(crate) fn new(
        host: Box<dyn Host>,
        data: Vec<Arc<Recording>>,
        argv: Vec<String>,
        most_bytes: Option<u64>,
        (open, fallback): (Open, Option<Fallback>),
    ) -> Rc<Self> {
        Rc::new(Self {
            host: RefCell::new(host),
            data: RefCell::new(data),
            argv,
            budget: Rc::new(Budget { used: Cell::new(0), most: most_bytes.unwrap_or(u64::MAX) }),
            longest: if most_bytes.is_some() { 4 << 20 } else { usize::MAX },
            graphs: Cell::new(0),
            flamegraphs: Cell::new(0),
            open,
            fallback,
            scans: RefCell::default(),
            told: RefCell::default(),
        })
    }

    /// Tells the user something, once.
    pub(crate) fn tell(&self, text: &str) {
        if self.told.borrow_mut().insert(text.to_owned()) {
            self.host.borrow_mut().note(text);
        }
    }

    /// Writes a file.
    pub(crate) fn write(
        &self,
        path: &str,
        kind: FileKind,
        data: Option<serde_json::Value>,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let mut write = |out: &mut dyn std::io::Write| {
            out.write_all(bytes).map_err(|e| format!("cannot write {path}: {e}"))
        };
        self.host.borrow_mut().file(path, kind, data, &mut write).map_err(fault)
    }

    /// Returns the first recording.
    pub(crate) fn recording(&self) -> Result<Arc<Recording>, Fault> {
        if let Some(first) = self.data.borrow().first() {
            return Ok(first.clone());
        }
        let Some(find) = &self.fallback else {
            let text =
                "no recording is loaded: give one with --data FILE, or load one with load(path)";
            return Err(fault(text));
        };
        let found = find().map_err(fault)?;
        self.data.borrow_mut().push(found.clone());
        Ok(found)
    }

    /// Takes memory for lists and scans.
    pub(crate) fn take(&self, bytes: u64) -> Result<Taken, Fault> {
        let used = self.budget.used.get().saturating_add(bytes);
        if used > self.budget.most {
            let most = self.budget.most >> 20;
            return Err(fault(format!(
                "the script's lists and scans take more than {most} MiB of memory; keep fewer of them at a time, or run it \
                 with `prof script`, which has no such limit"
            )));
        }
        self.budget.used.set(used);
        Ok(Taken { bytes, budget: self.budget.clone() })
    }

    /// Makes a set of rows part of the script's memory.
    pub(crate) fn keep(&self, of: &Recording, set: RowSet) -> Result<Rows, Fault> {
        let _memory = self.take(of.index().rows().div_ceil(64) * 8)?;
        Ok(Rows(Rc::new(Counted { set: Arc::new(set), len: Cell::new(None), _memory })))
    }

    pub(crate) fn rows_of(
        &self,
        of: &Recording,
        query: &prof_analyze::query::Query<'_>,
    ) -> Result<Rows, Fault> {
        self.keep(of, query.rows().map_err(of_scan)?)
    }
}
