//! The end of a recording, as a detach sees it: prof is out of the process, and the collector has still to write
//! what came last.

use crate::kept::Kept;
use crate::{orphans, recorder, term};
use std::path::PathBuf;

/// What a detach came to.
pub struct Detached {
    /// The recording; empty: there is none.
    pub path: PathBuf,
    /// The process.
    pub pid: i32,
    /// What is still in the process, if anything.
    pub left: Vec<String>,
    /// It stays for as long as the process runs this program.
    pub stays: bool,
    /// What there is to say.
    pub said: Vec<String>,
    /// Who writes the end of the recording, until [`Detached::finish`].
    pub ending: Option<Ending>,
    /// The recording is finished, and where it was made.
    pub whole: bool,
}

/// A recording that is being finished.
pub struct Ending {
    /// The collector: process id and start time.
    pub collector: (u32, u64),
    /// The file, to be saved here if it is nowhere any more.
    pub kept: Option<Kept>,
}

impl Detached {
    /// The process is as it was.
    pub fn is_clean(&self) -> bool {
        self.left.is_empty()
    }

    /// Waits until the recording is finished; what there is to say of that is added.
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
