//! The index of a recording: a row for each block that was ever allocated.
//!
//! One pass over the recording ([`mod@build`]) replays it and writes a row for each block when it ends, so that only
//! live blocks are held in memory, whatever the length of the recording. The rows are stored in columns, in blocks of
//! some thousands ([`rows`], [`mod@column`]), in a file beside the recording ([`mod@format`]) that is used again until
//! the recording changes. What the rows do not contain (threads, modules, stacks) is read from the recording itself
//! ([`meta`]).
//!
//! The file is read by position and not mapped. Access to a mapping of a file that is truncated meanwhile raises a
//! signal. Mapped pages also count as memory of the process, so a scan of a large index would look like, and be limited
//! as, use of memory.

mod batches;
mod before;
mod build;
mod column;
mod course;
pub(crate) mod files;
mod format;
mod growing;
mod meta;
mod rows;
mod scan;

use crate::analysis::{Analysis, Source};
use crate::heap::Course;
use crate::load::{LoadOptions, open_file};
use crate::stacks::Stacks;
use crate::symbols::SymbolOptions;
use crate::{Error, Note};
use build::{Built, Failure, build};
use format::{HEADER, Identity, Summary};
use prof_os::files::open_regular;
use rows::Store;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use before::Before;
pub(crate) use course::{decode as decode_course, encode as encode_course};
#[doc(hidden)]
pub use format::reseal;
pub use growing::Growing;
pub use rows::{Block, Column, flags};
pub use scan::ScanError;

/// Condition for writing an index to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Only for recordings of at least [`WORTH_IT`] bytes.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never: it is neither written nor read.
    Never,
}

/// Options for opening an index.
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexOptions {
    /// Condition for writing the index to a file.
    pub keep: Keep,
    /// Options for loading the recording.
    pub load: LoadOptions,
    /// The folder for the index. By default it is beside the recording or, where that can't be written to, in the
    /// user's cache folder.
    pub dir: Option<&'static Path>,
}

/// Shorter recordings are read again each time, which takes less than half a second.
const WORTH_IT: u64 = 32 << 20;

/// A recording with its index.
pub struct Index {
    analysis: Analysis,
    store: Store,
    rows: u64,
    chains: u64,
    thread_numbers: Vec<u32>,
    blocks: Vec<u64>,
    before: Before,
    course: Course,
    /// The named stacks, made when they are first asked for.
    stacks: OnceLock<Arc<Stacks>>,
    /// Path of the index; `None` if it is in memory or in an unnamed file.
    path: Option<PathBuf>,
    /// Whether this run built the index.
    made: bool,
}

/// Returns the path of the index beside a recording.
pub fn path_of(recording: &Path) -> PathBuf {
    let mut name = recording.as_os_str().to_owned();
    name.push(".idx");
    name.into()
}

impl Index {
    /// Opens the index of a recording, or builds it.
    ///
    /// # Errors
    /// If the recording can't be read, see [`Analysis::from_file`]. A problem with the index itself is no
    /// error: the index is built anew, in memory if it can't be written.
    pub fn open(path: &Path, options: &IndexOptions) -> Result<Self, Error> {
        let file = open_file(path)?;
        let len = file.metadata().map_or(0, |m| m.len());
        let wanted = match options.keep {
            Keep::Auto => len >= WORTH_IT,
            Keep::Always => true,
            Keep::Never => false,
        };
        if options.keep != Keep::Never
            && let Some(index) = Self::existing(path, file, options.dir)
        {
            return Ok(index);
        }
        Self::make(path, options, wanted)
    }

    /// Opens the index of a recording if there is one that fits.
    fn existing(path: &Path, recording: File, dir: Option<&Path>) -> Option<Self> {
        let identity = Identity::of(&recording).ok()?;
        let (at, store, summary) = files::places(path, dir).into_iter().find_map(|at| {
            let file = open_regular(&at).ok()?;
            let len = file.metadata().ok()?.len();
            let store = Store::File(file);
            let read = |at, len| {
                let mut buf = Vec::new();
                store.read(at, len, &mut buf).ok().map(|()| buf)
            };
            let summary = Summary::read(&read(0, HEADER as usize)?, len, read)?;
            (summary.identity == identity).then_some((at, store, summary))
        })?;
        let source = Source {
            path: path.to_owned(),
            meta: meta::read(&recording, summary.bytes).ok()??,
            file: recording,
            tail: summary.tail,
            events: summary.events,
            bytes: summary.bytes,
            damaged_bytes: summary.damaged_bytes,
            packed: summary.packed,
            named: std::sync::OnceLock::new(),
        };
        let mut index = Self::new(Built { source, store, summary });
        index.path = Some(at);
        index.made = false;
        Some(index)
    }

    fn make(path: &Path, options: &IndexOptions, wanted: bool) -> Result<Self, Error> {
        let mut note = None;
        if wanted {
            match files::NewFile::of(path, options.dir) {
                Ok(mut place) => match build(path, &options.load, place.take()) {
                    Ok(built) => {
                        // The index of a recording that still grows would be stale at once.
                        let finished = built.source.meta.end.is_some()
                            || !crate::symbols::is_target(&built.source.meta.target);
                        let kept = if finished { place.keep() } else { None };
                        let mut index = Self::new(built);
                        index.path = kept;
                        return Ok(index);
                    }
                    Err(Failure::Recording(e)) => return Err(e),
                    Err(Failure::Index(e)) => note = Some(e),
                },
                Err(e) => note = Some(e),
            }
        }
        let mut index = match build(path, &options.load, files::unnamed(wanted)) {
            Ok(built) => Self::new(built),
            Err(Failure::Recording(e)) => return Err(e),
            // The folder for temporary files is full as well: build in memory.
            Err(Failure::Index(_)) => match build(path, &options.load, None) {
                Ok(built) => Self::new(built),
                Err(Failure::Recording(e)) => return Err(e),
                Err(Failure::Index(e)) => return Err(Error::read(path, e)),
            },
        };
        if let Some(e) = note {
            index.analysis.add_note(Note::NoIndex(path_of(path), e.to_string()));
        }
        Ok(index)
    }

    fn new(built: Built) -> Self {
        let Built { source, store, summary: s } = built;
        let analysis = Analysis::new(source, s.totals, s.groups);
        Self {
            analysis,
            store,
            rows: s.rows,
            chains: s.chains,
            thread_numbers: s.thread_numbers,
            blocks: s.blocks,
            before: s.before,
            course: s.course,
            stacks: OnceLock::new(),
            path: None,
            made: true,
        }
    }

    /// Returns the analysis of the whole recording.
    pub fn analysis(&self) -> &Analysis {
        &self.analysis
    }

    /// Returns the recording, for what is to be noted of it.
    pub fn analysis_mut(&mut self) -> &mut Analysis {
        &mut self.analysis
    }

    /// Sets where symbols are looked for, and how they are shown.
    pub fn set_symbol_options(&mut self, options: SymbolOptions) {
        self.analysis.set_symbol_options(options);
        self.stacks = OnceLock::new();
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the number of chains of reallocations, which are numbered from 1.
    pub fn chains(&self) -> u64 {
        self.chains
    }

    /// Returns the numbers of the threads, by thread index.
    pub fn thread_numbers(&self) -> &[u32] {
        &self.thread_numbers
    }

    /// Returns the frees of blocks from before the recording.
    pub fn before(&self) -> &Before {
        &self.before
    }

    /// Returns the figures of all blocks over time.
    pub fn course(&self) -> &Course {
        &self.course
    }

    /// Returns the named stacks of all groups. The first call symbolises them.
    pub fn stacks(&self) -> &Stacks {
        self.stacks.get_or_init(|| Arc::new(Stacks::new(&self.analysis)))
    }

    /// Takes the named stacks of an earlier moment of the same recording, if no stack was added since and its groups are
    /// in the same order, as those of a [`Growing`] recording are.
    pub fn take_stacks(&mut self, earlier: &Self) {
        if let Some(stacks) = earlier.stacks.get()
            && stacks.len() == self.analysis.groups().len()
        {
            self.stacks = OnceLock::from(Arc::clone(stacks));
        }
    }

    /// Returns the path of the index, if it is in a named file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns whether this run built the index.
    pub fn was_made(&self) -> bool {
        self.made
    }
}
