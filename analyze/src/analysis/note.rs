//! Facts about a recording that readers of its figures should know, in words.

use super::Source;
use crate::heap::Totals;
use crate::load::Tail;
use crate::style::printable;
use prof_trace::records::{Joined, Stripped};
use prof_trace::values::text::{count, duration, number};
use std::fmt;
use std::path::PathBuf;

/// A fact about a recording that readers of its figures should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The recording has no end, and its target is alive.
    Growing,
    /// The recording has no end, and its target is gone.
    NoEnd,
    /// The recording could not be written to its end, for this reason.
    Stopped(String),
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
        /// Until when the recording had events, in nanoseconds since the start, and their number, if it had any.
        events: Option<(u64, u64)>,
    },
    /// Of the oldest blocks only the figures were kept.
    Folded {
        /// Number of blocks left out.
        blocks: u64,
        /// When they had all ended, in nanoseconds since the start.
        until_ns: u64,
    },
    /// The recordings of several processes lack some of what they were to have.
    Joined(Joined),
    /// The peaks of several processes are upper bounds, as some of their blocks are in the figures only.
    PeaksAtMost,
    /// The peaks of several processes are known as well as their steps tell.
    PeaksBySteps,
    /// The oldest part could not be dropped.
    FoldFailed {
        /// Number of times.
        failures: u64,
        /// When it could not the last time, in nanoseconds since the start.
        at_ns: u64,
        /// Why it could not then.
        why: String,
        /// Figures by stack could not be made of the events.
        over: bool,
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
                "still recording, if its collector lives (`prof status` says so): these are the figures of this moment, \
                 and the newest events may be missing"
            ),
            Note::NoEnd => write!(
                f,
                "the recording has no end: prof is finishing it at this moment, or was killed before it did; \
                 events of its last moments may be missing"
            ),
            Note::Stopped(why) => write!(
                f,
                "the recording lacks what came last: {}",
                printable(why.strip_prefix("stopped: ").unwrap_or(why))
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
            Note::Aggregated { until_ns, killed, events } => {
                aggregated(f, *until_ns, *killed, *events)
            }
            Note::Culled { below_ns, blocks, early, until_ns, killed } => {
                culled(f, *below_ns, (*blocks, *early), *until_ns, *killed)?;
                if *killed { cut_short(f, *below_ns, until_ns.unwrap_or(0)) } else { Ok(()) }
            }
            Note::Folded { blocks, until_ns } => write!(
                f,
                "{} that ended in the first {} left the recording as it met its bound (--on-limit drop-oldest): the \
                 figures of all count them, but filters, moments and lists of blocks have only the others",
                count(*blocks, "block", "blocks"),
                duration(*until_ns)
            ),
            Note::Joined(j) => joined(f, j),
            Note::PeaksAtMost => write!(
                f,
                "peaks of several processes are upper bounds where blocks are in the figures only: when each process held \
                 these is not known"
            ),
            Note::PeaksBySteps => write!(
                f,
                "the peak of all processes is the greatest sum of what each held at most within one step, an upper bound; that \
                 of a stack in several processes is an estimate from the steps"
            ),
            Note::FoldFailed { failures, at_ns, why, over } => write!(
                f,
                "{} {}; at {}: {}",
                match over {
                    true =>
                        "no figures by stack could be made of the events (--on-limit aggregate)",
                    false => "the oldest part could not be dropped (--on-limit)",
                },
                often(*failures),
                duration(*at_ns),
                printable(why)
            ),
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

/// Says what is missing of the processes whose recordings were joined.
fn joined(f: &mut fmt::Formatter<'_>, j: &Joined) -> fmt::Result {
    let of = count(j.recordings, "recording", "recordings");
    let some =
        |n: u64, one, more| format!("{} of {of} {}", number(n), if n == 1 { one } else { more });
    let all = [
        (j.growing, some(j.growing, "is still being recorded", "are still being recorded")),
        (j.incomplete, some(j.incomplete, "is not complete", "are not complete")),
        (j.lost, count(j.lost, "recording is gone", "recordings are gone") + " or can't be read"),
        (j.missed, count(j.missed, "process was", "processes were") + " not recorded"),
        (j.more, "there may have been more processes".to_owned()),
        (j.paused, some(j.paused, "was off for a time (a pause)", "were off for a time (a pause)")),
    ];
    let lacks: Vec<String> = all.into_iter().filter(|l| l.0 > 0).map(|l| l.1).collect();
    write!(f, "these figures may lack some of what the family did: {}", lacks.join("; "))
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
            "; no figures of them are recorded yet: these are the figures of the others, up to about {below} ago"
        ),
        Some(ns) => write!(
            f,
            "; the figures are those at {}, and blocks of about the last {below} of the recording are not in it",
            duration(ns)
        ),
    }
}

/// Says what a recording made with `--aggregate` has, and until when.
fn aggregated(
    f: &mut fmt::Formatter<'_>,
    until_ns: Option<u64>,
    killed: bool,
    events: Option<(u64, u64)>,
) -> fmt::Result {
    match events {
        None => write!(f, "figures by stack alone were recorded (--aggregate)")?,
        Some((at_ns, events)) => write!(
            f,
            "from {} on figures by stack alone were recorded, and the {} before became figures, as the recording met \
             its bound (--on-limit aggregate)",
            duration(at_ns),
            count(events, "event", "events")
        )?,
    }
    write!(f, ": moments are those at which figures were written, and there are no single blocks")?;
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
        "; events of about the last {below} before it was killed are missing: blocks allocated then are not here, and \
         blocks freed then count as live"
    )
}

fn often(n: u64) -> String {
    if n == 1 { "once".into() } else { format!("{} times", number(n)) }
}

/// Returns the facts about a recording.
pub(super) fn notes(source: &Source, totals: &Totals) -> Vec<Note> {
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
    if let Some(end) = meta.end.as_ref().filter(|e| e.is_cut()) {
        notes.push(Note::Stopped(end.reason.clone()));
    }
    if let Some(first) = meta.epochs.first() {
        let back = u128::from(first.back) * 1_000_000_000;
        let back_ns = (back / u128::from(meta.target.ticks_per_sec.max(1))) as u64;
        notes.push(Note::Epochs { times: meta.epochs.len() as u64, back_ns });
    }
    if let Some(s) = &meta.stripped {
        let (below_ns, blocks, early) = (s.threshold_ns, s.blocks, s.early);
        let until = if s.totals.is_empty() { 0 } else { meta.clock.ns(totals.last_ticks).max(1) };
        let events = meta.went_over.as_ref().map(|w| (meta.clock.ns(w.ticks), w.events));
        // Of several processes some may go on.
        let killed = !meta.is_of_several()
            && (meta.end.is_some() || !crate::symbols::is_target(&meta.target));
        notes.push(match s.how {
            Stripped::LATER => Note::Stripped { below_ns, blocks },
            Stripped::AGGREGATED => {
                let last = meta.steps.last().map_or(0, |s| meta.clock.ns(s.end).max(1));
                Note::Aggregated { until_ns: Some(last), killed, events }
            }
            Stripped::AGGREGATED_TO_THE_END => {
                Note::Aggregated { until_ns: None, killed: false, events }
            }
            Stripped::CULLED_TO_THE_END => {
                Note::Culled { below_ns, blocks, early, until_ns: None, killed: false }
            }
            _ => Note::Culled { below_ns, blocks, early, until_ns: Some(until), killed },
        });
    }
    if let Some(f) = &meta.folded {
        notes.push(Note::Folded { blocks: f.blocks, until_ns: meta.clock.ns(f.until) });
    }
    if let Some(j) = meta.joined.as_ref().filter(|j| j.lacks_any() || j.paused > 0) {
        notes.push(Note::Joined(j.clone()));
    }
    if meta.is_of_several() && meta.lacks_blocks() {
        notes.push(if meta.is_aggregated() { Note::PeaksBySteps } else { Note::PeaksAtMost });
    }
    if let Some(f) = &meta.fold_failed {
        let (failures, at_ns) = (f.failures, meta.clock.ns(f.ticks));
        notes.push(Note::FoldFailed { failures, at_ns, why: f.reason.clone(), over: f.over != 0 });
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
