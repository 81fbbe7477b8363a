//! Waits for the end of a recording after a detach, when prof is out of the process, but the collector still writes.

use crate::failure::refused;
use crate::kept::Kept;
use crate::{orphans, recorder, term};
use anyhow::Result;
use prof_collect::{Drained, Peek};
use prof_inject::process::program::Program;
use prof_os::Pid;
use prof_trace::values::text;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// Time within which an exec shows that has made a detach fail.
const EXEC: Duration = Duration::from_millis(50);

/// Result of a detach.
pub(crate) struct Detached {
    /// Path of the recording; empty if there is none.
    pub path: PathBuf,
    /// Process ID.
    pub pid: Pid,
    /// Descriptions of the parts of prof that are left in the process.
    pub left: Vec<String>,
    /// Remains of prof stay for as long as the process runs this program.
    pub stays: bool,
    /// Messages for the user.
    pub messages: Vec<String>,
    /// The process has ended by itself, or runs another program, and so has nothing of prof's any more.
    pub gone: bool,
    /// The unfinished recording, until [`Detached::finish`].
    pub ending: Option<Ending>,
    /// The recording is finished, and at its original path.
    pub whole: bool,
}

/// A recording that is being finished.
pub(crate) struct Ending {
    /// The collector's process ID and start time.
    pub collector: (Pid, u64),
    /// The file, to be saved by this process if it has been deleted.
    pub kept: Option<Kept>,
    /// The ring, with what the collector has not written if it is killed before its end; `None`: prof may not open it.
    pub ring: Option<OwnedFd>,
}

impl Detached {
    /// Returns whether nothing is left in the process.
    pub(crate) fn is_clean(&self) -> bool {
        self.left.is_empty()
    }

    /// Creates the result of a detach from a process that is not recorded itself.
    pub(crate) fn without_recording(pid: Pid, left: Vec<String>, messages: Vec<String>) -> Self {
        let path = PathBuf::new();
        Self { path, pid, left, stays: false, messages, gone: false, ending: None, whole: true }
    }

    /// Creates the result of a detach in whose midst the process has departed: see [`departed`]. `children`: prof was to be
    /// taken out of its children, too.
    pub(crate) fn from_departed(
        pid: Pid,
        path: PathBuf,
        mut messages: Vec<String>,
        ending: Option<Ending>,
        children: bool,
    ) -> Self {
        if children {
            messages.push("processes that were forked from it were not looked at: `prof detach` of each takes prof's patches out of it".into());
        }
        let (left, stays) = (Vec::new(), false);
        Self { path, pid, left, stays, messages, gone: true, ending, whole: !children }
    }

    /// Waits until the recording is finished, and adds messages about that.
    pub(crate) fn finish(&mut self) {
        let Some(Ending { collector, kept, ring }) = self.ending.take() else { return };
        let id = collector.0;
        let waits = |stopped: bool| {
            let (how, advice) = match stopped {
                true => (", which is stopped", format!("; `kill -CONT {id}` lets it go on")),
                false => ("", String::new()),
            };
            let path = self.path.display();
            term::say(&format!(
                "waiting for the collector (process {id}{how}) to finish {path}{advice}"
            ));
        };
        if !recorder::wait(collector, waits) {
            self.whole = false;
            self.messages.push(format!(
                "the collector (process {id}) is still writing {}, which is complete when it has ended",
                self.path.display()
            ));
        } else if let Some(displaced) = kept.and_then(|kept| {
            let here: Vec<_> = std::env::current_dir().ok().into_iter().collect();
            kept.save_displaced(&here)
        }) {
            self.whole = false;
            self.messages.push(displaced.message);
            self.path = displaced.path.unwrap_or_default();
        } else {
            self.finish_rest(ring);
        }
        self.messages.extend(orphans::end(self.pid, collector));
    }

    /// Finishes the recording in place of a collector that was killed before it had done so.
    fn finish_rest(&mut self, ring: Option<OwnedFd>) {
        match prof_collect::drain_rest(self.pid, ring, &self.path) {
            Ok(None) => {}
            Ok(Some(d)) => {
                self.whole &= d.lost == 0 && is_whole(&d);
                self.messages.push(saved(&d));
            }
            Err(e) => {
                self.whole = false;
                self.messages.push(format!(
                    "the collector ended before it had finished {}, and the events that it had not written are \
                     lost: {e}",
                    self.path.display()
                ));
            }
        }
    }
}

/// Returns how a recorded process has left in the midst of a detach: by its end, or by running another program. The
/// collector then finishes the recording. An error if other processes have the memory that it had.
pub(crate) fn departed(program: &Program, pid: Pid) -> Result<Option<String>> {
    let how = if prof_os::process::has_ended(pid) {
        "has ended by itself"
    } else if program.is_replaced_within(EXEC) {
        "has run another program in its place (exec)"
    } else {
        return Ok(None);
    };
    match held_by_others(pid) {
        Some(e) => Err(e),
        None => Ok(Some(format!(
            "process {pid} {how} while prof was taken out of it; nothing of prof is left, and its recording goes up to there"
        ))),
    }
}

/// Returns an error if the process is not recorded itself, but other processes share the memory that it had.
pub(crate) fn held_by_others(pid: Pid) -> Option<anyhow::Error> {
    let others = prof_inject::recorded::left_by(pid);
    let other = others.first()?;
    Some(refused(format!(
        "process {pid} has ended, or runs another program, but process {other} has the memory that it had, and \
         prof's hooks in it: `prof detach {other}` takes them out"
    )))
}

/// Returns whether a recording has all that it can have: nothing but its bounds keeps out what a dead collector had left.
pub(crate) fn is_whole(d: &Drained) -> bool {
    !d.has_figures || d.is_counted && d.missing == 0
}

/// Returns the message about events that were saved in place of a dead collector, or of one that there never was.
pub(crate) fn saved(d: &Drained) -> String {
    if d.has_figures {
        let since = match d.is_counted {
            true => format!("{} since then are", text::count(d.missing, "event", "events")),
            false => "all events since then, whose number is not known, are".to_owned(),
        };
        return format!(
            "the collector had died: the figures are those that it had written last, and {since} in none (--cull, --aggregate, \
             --on-limit aggregate)"
        );
    }
    let events = text::number(d.events);
    let saved = match d.had_collector {
        true => format!("the collector had died; saved what it had left: {events} events"),
        false => format!(
            "saved what it had recorded since its fork, without a collector: {events} events"
        ),
    };
    let lost = match d.lost {
        0 => String::new(),
        n => format!(
            "; {} more are lost, as the recording's bounds have no room for them (--max-disk, --keep-free)",
            text::number(n)
        ),
    };
    let cut = cut_off(d.missing).map_or(String::new(), |what| format!("; {what}"));
    format!("{saved}{lost}{cut}")
}

/// Returns the message that a recording has lost this many of its events.
pub(crate) fn cut_off(missing: u64) -> Option<String> {
    (missing > 0).then(|| {
        format!(
            "{} events that were recorded are not in it any more, as it was cut off or damaged since its collector died",
            text::number(missing)
        )
    })
}

/// Returns the message that the last events of a recording can't be saved.
pub(crate) fn rest_is_lost(peek: &Peek, e: &prof_collect::Error) -> String {
    let path = peek.path.display();
    let by = peek.foreign.as_ref().map(|by| format!(" ({} could have)", by.describe()));
    format!(
        "the collector had died, and the events that were still in memory can't be saved: {e}{}; what is in {path} is readable",
        by.unwrap_or_default()
    )
}

/// Returns the message why prof's memory can't be removed from a process.
pub(crate) fn stays(pid: Pid) -> String {
    format!(
        "the kernel does not let it be unmapped (EPERM), as process {pid} has sealed all of its mappings (mseal); \
         it goes when the process ends or runs another program"
    )
}
