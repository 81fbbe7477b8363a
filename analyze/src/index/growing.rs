//! The index of a recording that grows: what was read is kept, and each look reads only what was added.
//!
//! The rows of blocks that have ended stand in a file without a name, as in any index, and more are written behind them.
//! The blocks that are live in the moment of a look have their rows behind these, in a file of their own: at the next look
//! they may have ended.

use super::build::{Built, Figures, Pipe, Rows, run, thread_numbers};
use super::format::Identity;
use super::rows::{Out, Store, Writer};
use super::{Index, IndexOptions, files};
use crate::Error;
use crate::analysis::{Source, read_on};
use crate::heap::Replay;
use crate::load::{Stream, Tail};
use crate::symbols::SymbolOptions;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Live blocks whose rows are kept in memory: 1.5 MiB at most.
const FEW: usize = 1 << 16;

/// A recording that grows, read up to a moment, with its rows.
pub struct Growing {
    path: PathBuf,
    options: IndexOptions,
    /// The recording's file; another one may stand under its path later.
    file: File,
    stream: Stream,
    /// Absent only if a look has ended in a panic.
    parts: Option<(Replay<Rows>, Writer)>,
    /// The file of the rows, to be read from.
    rows: Arc<File>,
    finished: bool,
    symbols: Option<SymbolOptions>,
}

impl Growing {
    /// Opens a recording that grows. Nothing is read before the first look. Returns `None` if there is no disk for its
    /// rows.
    ///
    /// # Errors
    /// If the file can't be read, or is not a recording that this version understands.
    pub fn open(path: &Path, options: &IndexOptions) -> Result<Option<Self>, Error> {
        let stream = Stream::open(path, &options.load)?;
        let file = stream.same_file()?;
        let Some(rows) = unnamed(path, options) else { return Ok(None) };
        let Ok(readers) = rows.try_clone() else { return Ok(None) };
        let writer = Writer::new(Out::file(rows), 0, stream.event_bytes());
        let parts = Some((Replay::new(Rows::default()), writer));
        let (path, options) = (path.to_owned(), *options);
        Ok(Some(Self {
            path,
            options,
            file,
            stream,
            parts,
            rows: Arc::new(readers),
            finished: false,
            symbols: None,
        }))
    }

    /// Sets where symbols are looked for, and how they are shown.
    pub fn set_symbol_options(&mut self, options: SymbolOptions) {
        self.symbols = Some(options);
    }

    /// Reads what was added, and returns the index of this moment: events whose order is not final yet are not in it.
    /// Of a recording that was finished it has all. Returns `None` if the recording has to be opened anew, as another file
    /// stands under its path, it has become shorter or goes on after its end, or the disk is full.
    ///
    /// # Errors
    /// If the file can't be read, or the job of this thread is cancelled. What was read until then is kept.
    pub fn look(&mut self) -> Result<Option<Index>, Error> {
        if self.finished || !self.is_the_same() {
            return Ok(None);
        }
        let Some((replay, writer)) = self.parts.take() else { return Ok(None) };
        let (read, replay, mut writer) = run(&mut self.stream, replay, writer, read);
        let made = match read {
            Ok(()) => self.index(&replay, &mut writer),
            Err(e) => Err(e),
        };
        self.finished = self.stream.meta().end.is_some();
        self.parts = Some((replay, writer));
        made
    }

    /// Returns whether the path still leads to the file that is being read, which is at least as long as it was.
    fn is_the_same(&self) -> bool {
        let (Ok(now), Ok(then)) = (std::fs::metadata(&self.path), self.file.metadata()) else {
            return false;
        };
        let same = (now.dev(), now.ino()) == (then.dev(), then.ino());
        same && now.len() >= self.stream.bytes_read()
    }

    fn index(&self, replay: &Replay<Rows>, writer: &mut Writer) -> Result<Option<Index>, Error> {
        let target = &self.stream.meta().target;
        if target.arch.is_empty() && target.pid == 0 {
            return Err(Error::Empty { path: self.path.clone() });
        }
        let failed = |e| Error::read(&self.path, e);
        let file = self.file.try_clone().map_err(failed)?;
        let identity = Identity::of(&file).map_err(failed)?;
        let figures = Figures::of(replay, self.stream.meta(), &file);
        let many = replay.live_len() > FEW;
        let out = many.then(|| unnamed(&self.path, &self.options)).flatten();
        let out = out.map_or_else(|| Out::Memory(Vec::new()), Out::file);
        let end = writer.at;
        let Ok(mut tail) = writer.branch(out) else { return Ok(None) };
        for (addr, b) in replay.live_by_time() {
            tail.push(&replay.watch().live(addr, &b));
        }
        tail.finish_rows();
        let source = Source::of(&self.stream, file);
        let threads = thread_numbers(&self.stream);
        let summary = figures.summary(identity, &source, threads, &mut tail, replay.watch());
        let Ok(tail) = tail.into_store() else { return Ok(None) };
        let (file, tail) = (Arc::clone(&self.rows), Box::new(tail));
        let store = Store::Grown { file, end, tail };
        let mut index = Index::new(Built { source, store, summary });
        if let Some(symbols) = &self.symbols {
            index.set_symbol_options(symbols.clone());
        }
        Ok(Some(index))
    }
}

/// Reads what was added; of a recording that was finished also what still waits.
fn read(stream: &mut Stream, pipe: &mut Pipe) -> Result<(), Error> {
    read_on(stream, pipe)?;
    if stream.meta().end.is_some() && stream.tail() == Tail::Whole {
        stream.finish(pipe)?;
    }
    Ok(())
}

/// Creates a file without a name where indexes of the recording may be, or else in the folder for temporary files.
fn unnamed(path: &Path, options: &IndexOptions) -> Option<File> {
    let beside = files::NewFile::of(path, options.dir).ok().and_then(|mut f| f.take());
    beside.or_else(|| files::unnamed(true))
}
