//! The analysis of a recording: its figures and records, once it has been read, and as it grows ([`Follower`]).

mod follow;

pub use follow::{Follower, Progress, Seen};
use prof_trace::ticks::Ticks;

use crate::Error;
use crate::heap::{Group, Replay, Totals, restore};
use crate::load::{LoadOptions, Meta, Part, Sink, Stream, SymbolsAt, Tail, open_file};
use crate::symbols::{RecordedNames, SymbolOptions};
use prof_trace::capture::Capture;
use prof_trace::derived::{Frames, Zipped};
use prof_trace::records::{Stripped, Symbols};
use prof_trace::values::text::{count, duration, number};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Number of times, and their distance, that the end of a growing recording is read again.
const RETRIES: usize = 5;
const RETRY: Duration = Duration::from_millis(10);

/// A fact about a recording that readers of its figures should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The recording has no end, and its target is alive.
    Growing,
    /// The recording has no end, and its target is gone.
    NoEnd,
    /// The recording ends within a chunk.
    CutOff {
        /// File offset of the end of the last whole chunk.
        at: u64,
        /// Bytes behind it.
        unread: u64,
    },
    /// The recording is damaged.
    Damaged {
        /// File offset of the damage.
        at: u64,
        /// Bytes from there on.
        unread: u64,
    },
    /// Bytes of events that the collector or this reader could not decode.
    BadEvents(u64),
    /// Number of threads whose counters the target has overwritten.
    Doubtful(u64),
    /// Number of whole chunks that could not be decoded.
    BadChunks(u64),
    /// Number of events with address 0.
    Nonsense(u64),
    /// The index could not be written to this path, for this reason.
    NoIndex(PathBuf, String),
    /// The machine's counter went back, but the recorded times continue.
    Epochs {
        /// Number of times.
        times: u64,
        /// Nanoseconds of the first jump backwards.
        back_ns: u64,
    },
    /// The recorded times go back this many times.
    WentBack(u64),
    /// `prof strip` removed short-lived blocks.
    Stripped {
        /// Upper bound of their lifetimes, in nanoseconds.
        below_ns: u64,
        /// Number of blocks removed.
        blocks: u64,
    },
    /// The recording has figures by stack, and no blocks.
    Aggregated {
        /// Until when the figures count, in nanoseconds since the start, if that is not the end; 0: there are none yet.
        until_ns: Option<u64>,
        /// No more figures will come: the collector was killed, or could not write them.
        killed: bool,
    },
    /// Short-lived blocks are counted, but not recorded.
    Culled {
        /// Upper bound of their lifetimes, in nanoseconds.
        below_ns: u64,
        /// Number of blocks that are not recorded.
        blocks: u64,
        /// Number of blocks that are recorded though they may have lived short, as too many were held back.
        early: u64,
        /// Until when the figures count them, in nanoseconds since the start, if that is not the end; 0: not yet.
        until_ns: Option<u64>,
        /// No more figures will come: the collector was killed, or could not write them.
        killed: bool,
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
                "the recording has no end: prof is finishing it at this moment, or was killed before it did; \
                 events of its last moments may be missing"
            ),
            Note::CutOff { at, unread } => write!(
                f,
                "recording cut off: reported up to its last whole chunk, which ends at byte {at}; \
                 {} bytes behind it were left out",
                number(*unread)
            ),
            Note::Damaged { at, unread } => write!(
                f,
                "recording damaged at byte {at}: reported up to there; {} bytes were left out",
                number(*unread)
            ),
            Note::BadEvents(n) => {
                write!(
                    f,
                    "{} are damaged and were passed over: events in them are missing, and blocks that they \
                     freed count as live",
                    count(*n, "byte", "bytes")
                )
            }
            Note::Doubtful(n) => write!(
                f,
                "the target has written over prof's counters (of {}): how many events were lost is \
                 not known",
                count(*n, "thread", "threads")
            ),
            Note::BadChunks(n) => {
                write!(
                    f,
                    "{} can't be decoded and were passed over: what they hold is missing in the figures",
                    count(*n, "chunk", "chunks")
                )
            }
            Note::NoIndex(path, why) => write!(
                f,
                "the index could not be written to {}: {why}; the recording is read anew each time",
                path.display()
            ),
            Note::Stripped { below_ns, blocks } => write!(
                f,
                "{} blocks that lived shorter than {} were taken out by prof strip: the figures of \
                 all count them, but filters, moments and lists of blocks have only the others",
                number(*blocks),
                duration(*below_ns)
            ),
            Note::Aggregated { until_ns, killed } => aggregated(f, *until_ns, *killed),
            Note::Culled { below_ns, blocks, early, until_ns, killed } => {
                culled(f, *below_ns, (*blocks, *early), *until_ns, *killed)?;
                if *killed { cut_short(f, *below_ns, until_ns.unwrap_or(0)) } else { Ok(()) }
            }
            Note::Epochs { times, back_ns } => epochs(f, *times, *back_ns),
            Note::WentBack(n) => write!(
                f,
                "its times go back {}, as the machine was suspended or moved while an older prof recorded: \
                 events of different threads may be in the wrong order from there on, and blocks may count \
                 as live, or as given back, that are not",
                often(*n)
            ),
            Note::Nonsense(n) => write!(
                f,
                "{} of address 0 were passed over: no block has that address, so the figures don't count them",
                count(*n, "event", "events")
            ),
        }
    }
}

/// Says that the machine's counter went back, and what that means for the times.
fn epochs(f: &mut fmt::Formatter<'_>, times: u64, back_ns: u64) -> fmt::Result {
    write!(
        f,
        "the machine's counter went back {}, by {}{} (a suspend, or a move to another host): the order \
         of events holds, but a suspend takes no time, and 10 ms are added each time",
        often(times),
        duration(back_ns),
        if times == 1 { "" } else { " the first time" }
    )
}

/// Says what the figures of a recording made with `--cull` count, and what it has of its last moments.
fn culled(
    f: &mut fmt::Formatter<'_>,
    below_ns: u64,
    (blocks, early): (u64, u64),
    until_ns: Option<u64>,
    killed: bool,
) -> fmt::Result {
    let below = duration(below_ns);
    write!(
        f,
        "{} that lived shorter than {below} were counted, but not recorded (--cull): the figures of all count \
         them, but filters, moments and lists of blocks have only the others",
        count(blocks, "block", "blocks")
    )?;
    if early > 0 {
        write!(
            f,
            "; {} were recorded before they were so old, as --cull-pending was reached",
            count(early, "block", "blocks")
        )?;
    }
    match until_ns {
        None => Ok(()),
        Some(_) if killed => Ok(()),
        Some(0) => write!(
            f,
            "; no figures of them are recorded yet: these are the figures of the others, up to {below} ago"
        ),
        Some(ns) => write!(
            f,
            "; the figures are those at {}, and blocks of the {below} before the end of the recording are not \
             in it",
            duration(ns)
        ),
    }
}

/// Says what a recording made with `--aggregate` has, and until when.
fn aggregated(f: &mut fmt::Formatter<'_>, until_ns: Option<u64>, killed: bool) -> fmt::Result {
    write!(
        f,
        "figures by stack alone were recorded (--aggregate): moments are those at which figures were written, and \
         there are no single blocks"
    )?;
    if killed {
        write!(f, "; the collector was killed")?;
    }
    match until_ns {
        None => Ok(()),
        Some(0) => write!(f, "; no figures are written yet"),
        Some(ns) => write!(f, "; the figures are those at {}", duration(ns)),
    }
}

/// Says what is missing where the collector of a recording made with `--cull` was killed, which held events back.
fn cut_short(f: &mut fmt::Formatter<'_>, below_ns: u64, until_ns: u64) -> fmt::Result {
    let below = duration(below_ns);
    match until_ns {
        0 => write!(
            f,
            "; the collector was killed before it had written figures of them, so they are counted nowhere"
        )?,
        ns => write!(
            f,
            "; the collector was killed: the figures are those at {}, and what came later is in none",
            duration(ns)
        )?,
    }
    write!(
        f,
        "; events of the {below} before it was killed are missing: blocks allocated then are not here, and blocks \
         freed then count as live"
    )
}

fn often(n: u64) -> String {
    if n == 1 { "once".into() } else { format!("{} times", number(n)) }
}

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
}

/// Passes all of a recording to `sink`.
///
/// # Errors
/// If the file can't be read, or ends before the record of its target.
pub(crate) fn read_all(stream: &mut Stream, sink: &mut impl Sink) -> Result<(), Error> {
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
    stream.finish(sink)?;
    let target = &stream.meta().target;
    if target.arch.is_empty() && target.pid == 0 {
        return Err(Error::Empty { path: stream.path().to_owned() });
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
        let file = open_file(path)?;
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
        let symbols = Arc::default();
        Self { source: Arc::new(source), totals, groups, notes, at: None, left_out: None, symbols }
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
        let symbols = self.symbols.clone();
        Self { source, totals, groups, notes, at, left_out: None, symbols }
    }

    pub(crate) fn set_suppressed(&mut self, left_out: LeftOut) {
        self.left_out = Some(left_out);
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

    /// Returns whether the recording was finished and could be read completely.
    pub fn complete(&self) -> bool {
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
        let (below_ns, blocks, early) = (s.threshold_ns, s.blocks, s.early);
        let until = if s.totals.is_empty() { 0 } else { meta.clock.ns(totals.last_ticks).max(1) };
        notes.push(match s.how {
            Stripped::LATER => Note::Stripped { below_ns, blocks },
            Stripped::AGGREGATED => {
                let last = meta.steps.last().map_or(0, |s| meta.clock.ns(s.end).max(1));
                let killed = meta.end.is_some() || !crate::symbols::is_target(&meta.target);
                Note::Aggregated { until_ns: Some(last), killed }
            }
            Stripped::AGGREGATED_TO_THE_END => Note::Aggregated { until_ns: None, killed: false },
            Stripped::CULLED_TO_THE_END => {
                Note::Culled { below_ns, blocks, early, until_ns: None, killed: false }
            }
            _ => {
                let killed = meta.end.is_some() || !crate::symbols::is_target(&meta.target);
                Note::Culled { below_ns, blocks, early, until_ns: Some(until), killed }
            }
        });
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
