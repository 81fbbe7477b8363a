//! Waits for the end of a recording after a detach, when prof is out of the process, but the collector still writes.

use crate::kept::Kept;
use crate::{orphans, recorder, term};
use std::path::PathBuf;

/// Result of a detach.
pub struct Detached {
    /// Path of the recording; empty if there is none.
    pub path: PathBuf,
    /// Process ID.
    pub pid: i32,
    /// Descriptions of what is left in the process.
    pub left: Vec<String>,
    /// What is left stays for as long as the process runs this program.
    pub stays: bool,
    /// Messages for the user.
    pub said: Vec<String>,
    /// The unfinished recording, until [`Detached::finish`].
    pub ending: Option<Ending>,
    /// The recording is finished, and at its original path.
    pub whole: bool,
}

/// A recording that is being finished.
pub struct Ending {
    /// The collector's process ID and start time.
    pub collector: (u32, u64),
    /// The file, to be saved by this process if it has been deleted.
    pub kept: Option<Kept>,
}

impl Detached {
    /// Returns whether nothing is left in the process.
    pub fn is_clean(&self) -> bool {
        self.left.is_empty()
    }

    /// Waits until the recording is finished, and adds messages about that.
    pub fn finish(&mut self) {
        let Some(Ending { collector, kept }) = self.ending.take() else { return };
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
            self.said.push(format!(
                "the collector (process {id}) is still writing {}, which is complete when it has ended",
                self.path.display()
            ));
        } else if let Some(displaced) = kept.and_then(|kept| {
            let here: Vec<_> = std::env::current_dir().ok().into_iter().collect();
            kept.settle(&here)
        }) {
            self.whole = false;
            self.said.push(displaced.said);
            self.path = displaced.path.unwrap_or_default();
        }
        self.said.extend(orphans::end(self.pid, collector));
    }
}
