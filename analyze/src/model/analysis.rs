//! A recording, analysed.

use super::replay::{Group, Replay, Totals};
use crate::Error;
use crate::load::{LoadOptions, Meta, Part, Stream, Tail};
use prof_trace::capture::Capture;
use prof_trace::records::Symbols;
use std::fmt;
use std::path::{Path, PathBuf};
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
    /// Whole chunks that made no sense.
    BadChunks(u64),
    /// Events with address 0.
    Nonsense(u64),
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
            Note::BadChunks(n) => write!(f, "{n} chunks make no sense and were passed over"),
            Note::Nonsense(n) => write!(f, "{n} events of address 0 were passed over"),
        }
    }
}

/// A recording, read to its present end.
pub struct Analysis {
    stream: Stream,
    totals: Totals,
    groups: Vec<Group>,
    notes: Vec<Note>,
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
        let mut replay = Replay::default();
        stream.advance(&mut replay)?;
        for _ in 0..RETRIES {
            let unfinished = matches!(stream.tail(), Tail::Partial { .. });
            if !unfinished || !crate::symbols::is_target(&stream.meta().target) {
                break;
            }
            // Most likely a chunk that is just being written.
            std::thread::sleep(RETRY);
            stream.advance(&mut replay)?;
        }
        stream.finish(&mut replay)?;
        let begun = !stream.meta().target.arch.is_empty() || stream.meta().target.pid != 0;
        if !begun {
            return Err(Error::Empty { path: path.to_owned() });
        }
        let totals = replay.totals();
        let notes = notes(&stream, &totals);
        Ok(Self { groups: replay.groups(), totals, notes, stream })
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.stream.path().to_owned()
    }

    /// What the recording says beside its events.
    pub fn meta(&self) -> &Meta {
        self.stream.meta()
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
        self.stream.events()
    }

    /// Whether the recording was finished and all of it could be read.
    pub fn complete(&self) -> bool {
        self.meta().end.is_some() && self.stream.tail() == Tail::Whole
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
        group.oldest.map(|t| self.meta().clock.between(t, self.end_ticks()))
    }

    /// Symbols that the recording holds of a module.
    pub fn symbols(&self, module: u32) -> Option<Symbols> {
        self.stream.symbols(module)
    }
}

fn notes(stream: &Stream, totals: &Totals) -> Vec<Note> {
    let meta = stream.meta();
    let mut notes = Vec::new();
    match stream.tail() {
        Tail::Whole => {}
        Tail::Partial { at, unread } => notes.push(Note::CutOff { at, unread }),
        Tail::Damaged { at, unread } => notes.push(Note::Damaged { at, unread }),
    }
    if meta.end.is_none() && stream.tail() == Tail::Whole {
        let alive = crate::symbols::is_target(&meta.target);
        notes.push(if alive { Note::Growing } else { Note::NoEnd });
    }
    let counts = [
        (
            stream.damaged_bytes().saturating_add(meta.counters.damaged_bytes),
            Note::BadEvents as fn(u64) -> Note,
        ),
        (meta.bad_chunks, Note::BadChunks),
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
}

/// Reads a recording for its totals only.
///
/// # Errors
/// As [`Analysis::from_file`].
pub fn live_summary(path: &Path) -> Result<Summary, Error> {
    let a = Analysis::from_file(path, &LoadOptions::default())?;
    let (on, since) = a.meta().state();
    Ok(Summary {
        events: a.events(),
        lost: a.meta().counters.lost,
        totals: a.totals,
        on,
        since_ns: a.meta().clock.ns(since),
        duration_ns: a.duration_ns(),
        parts: a.parts().len(),
        complete: a.complete(),
        bytes: a.stream.bytes_read(),
        capture: a.capture(),
        compressed: a.stream.is_packed(),
    })
}
