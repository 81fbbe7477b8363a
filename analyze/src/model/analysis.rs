//! A recording, analysed.

use super::replay::{Group, Replay, Totals};
use super::stripped;
use crate::Error;
use crate::load::{LoadOptions, Meta, Part, Sample, Sink, Stream, SymbolsAt, Tail, open_file};
use crate::query::Rule;
use crate::symbols::{Named, SymbolOptions};
use crate::unseen::{self, Unseen, WorkerData};
use prof_trace::capture::Capture;
use prof_trace::derived::{Frames, Zipped};
use prof_trace::family::Worker;
use prof_trace::records::Symbols;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often, and how far apart, the end of a growing recording is looked at again.
const RETRIES: usize = 5;
const RETRY: Duration = Duration::from_millis(10);

/// Something about a recording that a reader of its figures should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// It has no end, and its target is alive.
    Growing,
    /// It has no end, and its target is gone.
    NoEnd,
    /// It ends in the middle of a chunk.
    CutOff {
        /// Where the last whole chunk ends.
        at: u64,
        /// Bytes behind it.
        unread: u64,
    },
    /// It is damaged.
    Damaged {
        /// Where.
        at: u64,
        /// Bytes from there on.
        unread: u64,
    },
    /// Bytes of events that made no sense, to the collector or to this reader.
    BadEvents(u64),
    /// Threads whose counters the target has written over.
    Doubtful(u64),
    /// Whole chunks that made no sense.
    BadChunks(u64),
    /// Events with address 0.
    Nonsense(u64),
    /// The index could not be written there.
    NoIndex(PathBuf, String),
    /// The machine's counter went back; times go on.
    Epochs {
        /// How often.
        times: u64,
        /// By how much the first time.
        back_ns: u64,
    },
    /// Times go back so often, and do not go on.
    WentBack(u64),
    /// Short-lived blocks were left out by `prof strip`.
    Stripped {
        /// They lived shorter than that.
        below_ns: u64,
        /// How many.
        blocks: u64,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Growing => write!(
                f,
                "still recording: these are the figures of this moment, and the newest events \
                 may be missing"
            ),
            Note::NoEnd => write!(
                f,
                "the recording has no end: prof was killed before it finished it; events of its \
                 last moments may be missing"
            ),
            Note::CutOff { at, unread } => write!(
                f,
                "recording cut off: reported up to its last whole chunk, which ends at byte {at}; \
                 {unread} bytes behind it were left out"
            ),
            Note::Damaged { at, unread } => write!(
                f,
                "recording damaged at byte {at}: reported up to there; {unread} bytes were left out"
            ),
            Note::BadEvents(n) => {
                write!(f, "{n} bytes of events are damaged and were passed over")
            }
            Note::Doubtful(n) => write!(
                f,
                "the target has written over prof's counters (of {n} threads): how many events were lost is \
                 not known"
            ),
            Note::BadChunks(n) => write!(f, "{n} chunks make no sense and were passed over"),
            Note::NoIndex(path, why) => write!(
                f,
                "the index could not be written to {}: {why}; the recording is read anew each time",
                path.display()
            ),
            Note::Stripped { below_ns, blocks } => write!(
                f,
                "{blocks} blocks that lived shorter than {} were taken out by prof strip: the figures of \
                 all count them, but filters, moments and lists of blocks have only the others",
                crate::report::units::duration(*below_ns)
            ),
            Note::Epochs { times, back_ns } => write!(
                f,
                "the machine's counter went back {}, by {}{} (a suspend, or a move to another host): the order \
                 of events holds, but a suspend takes no time, and 10 ms are added each time",
                often(*times),
                crate::report::units::duration(*back_ns),
                if *times == 1 { "" } else { " the first time" }
            ),
            Note::WentBack(n) => write!(
                f,
                "its times go back {}, as the machine was suspended or moved while an older prof recorded: \
                 events of different threads may be in the wrong order from there on, and blocks may count \
                 as live, or as given back, that are not",
                often(*n)
            ),
            Note::Nonsense(n) => write!(f, "{n} events of address 0 were passed over"),
        }
    }
}

fn often(n: u64) -> String {
    if n == 1 { "once".into() } else { format!("{n} times") }
}

/// What was read of a recording beside what happened to its blocks.
pub(crate) struct Source {
    pub path: PathBuf,
    /// For what is read later: symbols.
    pub file: File,
    pub meta: Meta,
    pub tail: Tail,
    pub events: u64,
    /// Bytes of the file that were read.
    pub bytes: u64,
    pub damaged_bytes: u64,
    /// Events are compressed.
    pub packed: bool,
    /// Code addresses that were looked up when the recording was packed.
    pub named: OnceLock<Named>,
}

impl Source {
    pub(crate) fn new(stream: Stream, file: File) -> Self {
        Self {
            path: stream.path().to_owned(),
            file,
            tail: stream.tail(),
            events: stream.events(),
            bytes: stream.bytes_read(),
            damaged_bytes: stream.damaged_bytes(),
            packed: stream.is_packed(),
            meta: stream.into_meta(),
            named: OnceLock::new(),
        }
    }
}

/// What rules left out of the figures.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    /// By rule: how many stacks it names, and their figures.
    pub rules: Vec<(Rule, u64, Group)>,
    /// Modules whose suppressions could not be read.
    pub unread: Vec<String>,
}

/// A recording, read to its present end.
pub struct Analysis {
    source: Arc<Source>,
    totals: Totals,
    groups: Vec<Group>,
    notes: Vec<Note>,
    /// Ticks that the figures are of, if it is not the end.
    at: Option<u64>,
    left_out: Option<LeftOut>,
    symbols: Arc<SymbolOptions>,
}

/// Gives `sink` all of a recording that is there.
///
/// # Errors
/// If the file can't be read, or ends before the recording says whose it is.
pub(crate) fn read_all(stream: &mut Stream, sink: &mut impl Sink) -> Result<(), Error> {
    stream.advance(sink)?;
    for _ in 0..RETRIES {
        let unfinished = matches!(stream.tail(), Tail::Partial { .. });
        if !unfinished || !crate::symbols::is_target(&stream.meta().target) {
            break;
        }
        // Most likely a chunk that is just being written.
        std::thread::sleep(RETRY);
        stream.advance(sink)?;
    }
    stream.finish(sink)?;
    let target = &stream.meta().target;
    if target.arch.is_empty() && target.pid == 0 {
        return Err(Error::Empty { path: stream.path().to_owned() });
    }
    Ok(())
}

impl Analysis {
    /// Reads a recording: one that is finished, one that is cut off, or one that is still growing,
    /// up to its last whole chunk.
    ///
    /// # Errors
    /// If the file can't be read, is no recording, is of a newer version, or ends before the
    /// recording says whose it is.
    pub fn from_file(path: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let mut stream = Stream::open(path, options)?;
        let file = open_file(path)?;
        let mut replay: Replay = Replay::default();
        read_all(&mut stream, &mut replay)?;
        let (mut totals, mut groups) = (replay.totals(), replay.groups());
        if let Some(s) = &stream.meta().stripped {
            stripped::restore(s, &mut totals, &mut groups);
        }
        Ok(Self::new(Source::new(stream, file), totals, groups))
    }

    pub(crate) fn new(source: Source, totals: Totals, groups: Vec<Group>) -> Self {
        let notes = notes(&source, &totals);
        let symbols = Arc::default();
        Self { source: Arc::new(source), totals, groups, notes, at: None, left_out: None, symbols }
    }

    pub(crate) fn add_note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// The same recording with other figures: those of some of its blocks, or of another moment.
    pub(crate) fn with_figures(&self, totals: Totals, groups: Vec<Group>, at: Option<u64>) -> Self {
        let (source, notes) = (self.source.clone(), self.notes.clone());
        let symbols = self.symbols.clone();
        Self { source, totals, groups, notes, at, left_out: None, symbols }
    }

    pub(crate) fn set_suppressed(&mut self, left_out: LeftOut) {
        self.left_out = Some(left_out);
    }

    /// Where symbols are looked for from now on, and how they are shown.
    pub fn set_symbol_options(&mut self, options: SymbolOptions) {
        self.symbols = Arc::new(options);
    }

    /// Where symbols are looked for, and how they are shown.
    pub fn symbol_options(&self) -> &SymbolOptions {
        &self.symbols
    }

    /// What rules left out of the figures.
    pub fn left_out(&self) -> Option<&LeftOut> {
        self.left_out.as_ref()
    }

    /// The last ticks that are not later than so many nanoseconds since the start.
    pub fn ticks_at(&self, ns: u64) -> u64 {
        crate::query::tick_to(&self.meta().clock, ns)
    }

    /// Nanoseconds since the start of the moment that the figures are of, if it is not the end.
    pub fn at_ns(&self) -> Option<u64> {
        self.at.map(|t| self.meta().clock.ns(t))
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.source.path.clone()
    }

    /// What the recording says beside its events.
    pub fn meta(&self) -> &Meta {
        &self.source.meta
    }

    /// The figures of all blocks.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The figures by stack, in the order in which the stacks first appeared.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// What a reader of the figures should know.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Which blocks are in the recording.
    pub fn capture(&self) -> Capture {
        self.meta().target.capture()
    }

    /// Events read.
    pub fn events(&self) -> u64 {
        self.source.events
    }

    /// Whether the recording was finished and all of it could be read.
    pub fn complete(&self) -> bool {
        self.meta().end.is_some() && self.source.tail == Tail::Whole
    }

    /// Ticks of the end of the recording, or of the last thing it knows of.
    pub fn end_ticks(&self) -> u64 {
        self.meta().end_ticks(self.totals.last_ticks)
    }

    /// From the start of the recording to its end.
    pub fn duration_ns(&self) -> u64 {
        self.meta().clock.ns(self.end_ticks())
    }

    /// Nanoseconds since the start of the recording when the most bytes were live.
    pub fn peak_at_ns(&self) -> u64 {
        self.meta().clock.ns(self.totals.peak_ticks)
    }

    /// The times in which recording was on.
    pub fn parts(&self) -> Vec<Part> {
        self.meta().parts(self.end_ticks())
    }

    /// How old a group's oldest live block is, at the end of the recording.
    pub fn oldest_age_ns(&self, group: &Group) -> Option<u64> {
        let now = self.at.unwrap_or_else(|| self.end_ticks());
        group.oldest.map(|t| self.meta().clock.between(t, now))
    }

    /// Bytes of the file that were read.
    pub fn bytes(&self) -> u64 {
        self.source.bytes
    }

    /// Symbols that the recording holds of a module.
    pub fn symbols(&self, module: u32) -> Option<Symbols> {
        let at = self.source.meta.symbols.get(&module)?;
        Symbols::decode(&self.payload(at)?)
    }

    /// A chunk again.
    fn payload(&self, at: &SymbolsAt) -> Option<Vec<u8>> {
        let mut payload = vec![0; at.len];
        self.source.file.read_exact_at(&mut payload, at.at).ok()?;
        if at.zipped { Zipped::decode(&payload)?.unzip() } else { Some(payload) }
    }

    /// The code addresses that were looked up when the recording was packed.
    pub(crate) fn named(&self) -> &Named {
        self.source.named.get_or_init(|| {
            let chunks = self.source.meta.frames.iter();
            let chunks = chunks.filter_map(|at| Frames::decode(&self.payload(at)?));
            Named::new(chunks.collect())
        })
    }
}

fn notes(source: &Source, totals: &Totals) -> Vec<Note> {
    let meta = &source.meta;
    let mut notes = Vec::new();
    match source.tail {
        Tail::Whole => {}
        Tail::Partial { at, unread } => notes.push(Note::CutOff { at, unread }),
        Tail::Damaged { at, unread } => notes.push(Note::Damaged { at, unread }),
    }
    if meta.end.is_none() && source.tail == Tail::Whole {
        let alive = crate::symbols::is_target(&meta.target);
        notes.push(if alive { Note::Growing } else { Note::NoEnd });
    }
    if let Some(first) = meta.epochs.first() {
        let back = u128::from(first.back) * 1_000_000_000;
        let back_ns = (back / u128::from(meta.target.ticks_per_sec.max(1))) as u64;
        notes.push(Note::Epochs { times: meta.epochs.len() as u64, back_ns });
    }
    if let Some(s) = &meta.stripped {
        notes.push(Note::Stripped { below_ns: s.threshold_ns, blocks: s.blocks });
    }
    let counts = [
        (
            source.damaged_bytes.saturating_add(meta.counters.damaged_bytes),
            Note::BadEvents as fn(u64) -> Note,
        ),
        (meta.counters.doubtful, Note::Doubtful),
        (meta.bad_chunks, Note::BadChunks),
        (meta.went_back, Note::WentBack),
        (totals.nonsense, Note::Nonsense),
    ];
    notes.extend(counts.into_iter().filter(|c| c.0 > 0).map(|(n, note)| note(n)));
    notes
}

/// What `prof status` says of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Events read.
    pub events: u64,
    /// Events lost.
    pub lost: u64,
    /// The figures.
    pub totals: Totals,
    /// Whether recording was on at the end of what was read.
    pub on: bool,
    /// Nanoseconds from the start of the recording to when it was last switched.
    pub since_ns: u64,
    /// Nanoseconds that are recorded, pauses included.
    pub duration_ns: u64,
    /// How many times recording was on.
    pub parts: usize,
    /// Whether the recording was finished.
    pub complete: bool,
    /// Bytes of the file that were read.
    pub bytes: u64,
    /// Which blocks are in it.
    pub capture: Capture,
    /// Whether events are compressed in it.
    pub compressed: bool,
    /// Why it ended, if it has.
    pub end_reason: Option<String>,
    /// What speaks against it.
    pub unseen: Option<Unseen>,
    /// The target's workers.
    pub workers: Vec<WorkerData>,
}

/// What is known of a target beside its recording.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// Its memory and processor time; the ticks do not matter.
    pub sample: Option<Sample>,
    /// Its workers.
    pub workers: Vec<Worker>,
}

/// Reads a recording for its totals only, with what is known of its target now.
///
/// # Errors
/// As [`Analysis::from_file`].
pub fn live_summary(path: &Path, now: &Now) -> Result<Summary, Error> {
    let a = Analysis::from_file(path, &LoadOptions::default())?;
    let (on, since) = a.meta().state();
    let seen = &a.meta().process;
    let workers = match now.workers.is_empty() {
        true => unseen::workers(seen.workers()),
        false => unseen::workers(&seen.seen_again(&now.workers)),
    };
    Ok(Summary {
        end_reason: a.meta().end.as_ref().map(|e| e.reason.clone()),
        unseen: Unseen::of(&a, now.sample),
        workers,
        events: a.events(),
        lost: a.meta().counters.lost,
        totals: a.totals,
        on,
        since_ns: a.meta().clock.ns(since),
        duration_ns: a.duration_ns(),
        parts: a.parts().len(),
        complete: a.complete(),
        bytes: a.source.bytes,
        capture: a.capture(),
        compressed: a.source.packed,
    })
}
