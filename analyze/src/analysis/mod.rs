//! The analysis of a recording: its figures and records, once it has been read, and as it grows ([`Follower`]).

mod follow;
mod note;

pub use follow::{Follower, Progress, Seen};
pub use note::Note;
use note::notes;
use prof_trace::ticks::Ticks;

use crate::Error;
use crate::heap::{Group, Replay, Totals, restore};
use crate::load::{LoadOptions, Meta, Part, Sink, Stream, SymbolsAt, Tail};
use crate::symbols::{RecordedNames, SymbolOptions};
use prof_trace::capture::Capture;
use prof_trace::derived::{Frames, Zipped};
use prof_trace::records::{End, Joined, Symbols};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Number of times, and their distance, that the end of a growing recording is read again.
const RETRIES: usize = 5;
const RETRY: Duration = Duration::from_millis(10);

/// Everything that was read of a recording, except its operations.
pub(crate) struct Source {
    pub path: PathBuf,
    /// The file, from which symbols are read later.
    pub file: File,
    pub meta: Meta,
    pub tail: Tail,
    pub events: u64,
    /// Number of bytes of the file that were read.
    pub bytes: u64,
    pub damaged_bytes: u64,
    /// The events are compressed.
    pub packed: bool,
    /// Names of the code addresses that were symbolised when the recording was packed.
    pub named: OnceLock<RecordedNames>,
}

impl Source {
    pub(crate) fn new(stream: Stream, file: File) -> Self {
        Self::without_meta(&stream, file).with(stream.into_meta())
    }

    /// Creates it while the recording is still read.
    pub(crate) fn of(stream: &Stream, file: File) -> Self {
        Self::without_meta(stream, file).with(stream.meta().clone())
    }

    fn with(self, meta: Meta) -> Self {
        Self { meta, ..self }
    }

    fn without_meta(stream: &Stream, file: File) -> Self {
        Self {
            path: stream.path().to_owned(),
            file,
            tail: stream.tail(),
            events: stream.events(),
            bytes: stream.bytes_read(),
            damaged_bytes: stream.damaged_bytes(),
            packed: stream.is_packed(),
            meta: Meta::default(),
            named: OnceLock::new(),
        }
    }
}

/// A line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The text of the line.
    pub text: String,
    /// Name of the list.
    pub from: String,
}

/// The figures that suppression rules removed.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    /// For each rule the number of stacks that it matches, and their figures.
    pub rules: Vec<(Rule, u64, Group)>,
    /// Modules whose suppressions could not be read.
    pub unread: Vec<String>,
}

/// A recording, analysed up to its present end.
pub struct Analysis {
    source: Arc<Source>,
    totals: Totals,
    groups: Vec<Group>,
    notes: Vec<Note>,
    /// Ticks of the moment that the figures describe, if that is not the end.
    at: Option<Ticks>,
    left_out: Option<LeftOut>,
    symbols: Arc<SymbolOptions>,
    /// Facts about the recordings that this one was joined from, or of whose family it is the only one.
    joined: Option<Joined>,
}

/// Passes all of a recording to `sink`.
///
/// # Errors
/// If the file can't be read, or ends before the record of its target.
pub(crate) fn read_all(stream: &mut Stream, sink: &mut impl Sink) -> Result<(), Error> {
    read_on(stream, sink)?;
    stream.finish(sink)?;
    let target = &stream.meta().target;
    if target.arch.is_empty() && target.pid == 0 {
        return Err(Error::Empty { path: stream.path().to_owned() });
    }
    Ok(())
}

/// Passes what a recording has by now to `sink`, as far as its order is final.
///
/// # Errors
/// If it can't be read.
pub(crate) fn read_on(stream: &mut Stream, sink: &mut impl Sink) -> Result<(), Error> {
    stream.advance(sink)?;
    for _ in 0..RETRIES {
        let unfinished = matches!(stream.tail(), Tail::Partial { .. });
        if !unfinished || !crate::symbols::is_target(&stream.meta().target) {
            break;
        }
        // The last chunk is most likely being written right now.
        std::thread::sleep(RETRY);
        stream.advance(sink)?;
    }
    Ok(())
}

impl Analysis {
    /// Analyses a recording: a finished one, one that is cut off, or one that is still growing, up to its last whole
    /// chunk.
    ///
    /// # Errors
    /// If the file can't be read, is not a recording, is of a newer version, or ends before the record of its
    /// target.
    pub fn from_file(path: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let mut stream = Stream::open(path, options)?;
        let file = stream.same_file()?;
        let mut replay: Replay = Replay::default();
        read_all(&mut stream, &mut replay)?;
        let (mut totals, mut groups) = (replay.totals(), replay.groups());
        if let Some(sum) = crate::aggregate::sum(&file, stream.meta()) {
            (totals, groups) = (sum.totals, sum.groups);
        } else if let Some(s) = &stream.meta().stripped {
            restore(s, &mut totals, &mut groups);
        }
        Ok(Self::new(Source::new(stream, file), totals, groups))
    }

    pub(crate) fn new(source: Source, totals: Totals, groups: Vec<Group>) -> Self {
        let notes = notes(&source, &totals);
        let (symbols, joined) = (Arc::default(), source.meta.joined.clone());
        let source = Arc::new(source);
        Self { source, totals, groups, notes, at: None, left_out: None, symbols, joined }
    }

    /// Returns the file of the recording.
    pub(crate) fn file(&self) -> &File {
        &self.source.file
    }

    pub(crate) fn add_note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Returns the recording with other figures: those of some of its blocks, or of another moment.
    pub(crate) fn with_figures(
        &self,
        totals: Totals,
        groups: Vec<Group>,
        at: Option<Ticks>,
    ) -> Self {
        let (source, notes) = (self.source.clone(), self.notes.clone());
        let (symbols, joined) = (self.symbols.clone(), self.joined.clone());
        Self { source, totals, groups, notes, at, left_out: None, symbols, joined }
    }

    pub(crate) fn set_suppressed(&mut self, left_out: LeftOut) {
        self.left_out = Some(left_out);
    }

    /// Returns facts about the recordings that this one was joined from, or of whose family it is the only one.
    pub fn joined(&self) -> Option<&Joined> {
        self.joined.as_ref()
    }

    /// Returns those of a recording that was not joined itself, for a copy of it.
    pub(crate) fn unrecorded_losses(&self) -> Option<&Joined> {
        self.joined.as_ref().filter(|_| self.meta().joined.is_none())
    }

    /// Notes what there is not of the family whose only recording this is: `lost` recordings, and `missed` processes, of which
    /// there may have been `more`.
    pub fn set_losses(&mut self, lost: u64, missed: u64, more: bool) {
        let grows = self.meta().end.is_none() && crate::symbols::is_target(&self.meta().target);
        let (growing, incomplete) = (u64::from(grows), u64::from(!grows && !self.complete()));
        let more = more.into();
        let paused = u64::from(self.meta().was_off());
        let joined = Joined { recordings: 1, growing, incomplete, lost, missed, more, paused };
        if joined.lacks_any() {
            self.notes.push(Note::Joined(joined.clone()));
        }
        self.joined = Some(joined);
    }

    /// Sets where symbols are looked for, and how they are shown.
    pub fn set_symbol_options(&mut self, options: SymbolOptions) {
        self.symbols = Arc::new(options);
    }

    /// Returns where symbols are looked for, and how they are shown.
    pub fn symbol_options(&self) -> &SymbolOptions {
        &self.symbols
    }

    /// Returns the figures that suppression rules removed.
    pub fn left_out(&self) -> Option<&LeftOut> {
        self.left_out.as_ref()
    }

    /// Returns the last ticks that are not later than `ns` nanoseconds after the start.
    pub fn ticks_at(&self, ns: u64) -> Ticks {
        self.meta().clock.last_at(ns)
    }

    /// Returns the moment that the figures describe, in nanoseconds since the start, if that is not the end.
    pub fn at_ns(&self) -> Option<u64> {
        self.at.map(|t| self.meta().clock.ns(t))
    }

    /// Returns the path of the recording.
    pub fn path(&self) -> PathBuf {
        self.source.path.clone()
    }

    /// Returns the path by which users know the recording: of several that were joined the folder that has them.
    pub fn shown_path(&self) -> PathBuf {
        let path = &self.source.path;
        match crate::joined::is_joined(path) {
            true => PathBuf::from(&self.meta().target.exe),
            false => path.clone(),
        }
    }

    /// Returns the records other than events.
    pub fn meta(&self) -> &Meta {
        &self.source.meta
    }

    /// Returns the figures of all blocks.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the figures by stack, in the order in which the stacks first appeared.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns facts that a reader of the figures should know.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Returns which blocks are recorded.
    pub fn capture(&self) -> Capture {
        self.meta().target.capture()
    }

    /// Returns the number of events read.
    pub fn events(&self) -> u64 {
        self.source.events
    }

    /// Returns whether the recording was finished and could be read completely, and lacks nothing that it was to have: what its
    /// collector left when it died, figures in place of blocks, or a part of one of the recordings that it was joined from.
    pub fn complete(&self) -> bool {
        let lost = self.joined.as_ref().is_some_and(Joined::lacks_any);
        let is_cut = self.meta().end.as_ref().is_some_and(End::is_cut);
        self.was_finished() && !is_cut && !self.meta().lacks_figures() && !lost
    }

    /// Returns whether the recording has an end and could be read completely.
    pub(crate) fn was_finished(&self) -> bool {
        let whole = self.source.tail == Tail::Whole && self.source.damaged_bytes == 0;
        whole && self.meta().end.is_some()
    }

    /// Returns the ticks of the end of the recording, or of the last moment it knows of.
    pub fn end_ticks(&self) -> Ticks {
        self.meta().end_ticks(self.totals.last_ticks)
    }

    /// Returns the time from the start of the recording to its end, in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.meta().clock.ns(self.end_ticks())
    }

    /// Returns the time of the peak of live bytes, in nanoseconds since the start.
    pub fn peak_at_ns(&self) -> u64 {
        self.meta().clock.ns(self.totals.peak_ticks)
    }

    /// Returns the periods in which recording was on.
    pub fn parts(&self) -> Vec<Part> {
        self.meta().parts(self.end_ticks())
    }

    /// Returns the age of a group's oldest live block at the moment that the figures describe, in nanoseconds.
    pub fn oldest_age_ns(&self, group: &Group) -> Option<u64> {
        let now = self.at.unwrap_or_else(|| self.end_ticks());
        group.oldest.map(|t| self.meta().clock.between(t, now))
    }

    /// Returns whether events are compressed.
    pub(crate) fn is_packed(&self) -> bool {
        self.source.packed
    }

    /// Returns the number of bytes of the file that were read.
    pub fn bytes(&self) -> u64 {
        self.source.bytes
    }

    /// Returns the recorded symbols of a module.
    pub fn symbols(&self, module: u32) -> Option<Symbols> {
        let at = self.source.meta.symbols.get(&module)?;
        Symbols::decode(&self.payload(at)?)
    }

    /// Reads the payload of a chunk again, and decompresses it; `None` if it can't be read.
    pub fn payload(&self, at: &SymbolsAt) -> Option<Vec<u8>> {
        let mut payload = vec![0; at.len];
        self.source.file.read_exact_at(&mut payload, at.at).ok()?;
        if at.zipped { Zipped::decode(&payload)?.unzip() } else { Some(payload) }
    }

    /// Returns the code addresses that were symbolised when the recording was packed.
    pub(crate) fn named(&self) -> &RecordedNames {
        self.source.named.get_or_init(|| {
            let chunks = self.source.meta.frames.iter();
            let chunks = chunks.filter_map(|at| Frames::decode(&self.payload(at)?));
            RecordedNames::new(chunks.collect())
        })
    }
}
