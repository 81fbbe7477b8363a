//! The rows of recordings that grow, which are kept between two looks.

use crate::Options;
use crate::work::lock;
use prof_analyze::{Growing, Index};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time after the last look at which the rows are let go, with the memory that each live block takes.
const UNASKED: Duration = Duration::from_secs(60);

struct Kept {
    growing: Growing,
    at: Instant,
}

/// The rows of a recording that grows, as far as it was read; nothing for other recordings.
#[derive(Clone, Default)]
pub(crate) struct Grown(Arc<Mutex<Option<Kept>>>);

/// The index of a recording, as it is now.
pub(crate) struct Look {
    pub index: Index,
    /// Time that another look would take; 0 after the first one, which takes far longer than the next.
    pub takes: Duration,
}

impl Grown {
    /// Reads what was added to a recording since the last look; reads all of it at the first one, if it does not grow, or
    /// if it can't be followed.
    ///
    /// # Errors
    /// The reason why it can't be read, in one line.
    pub(crate) fn look(&self, options: &Options, path: &Path, grows: bool) -> Result<Look, String> {
        let begin = Instant::now();
        let mut kept = lock(&self.0);
        if !grows {
            *kept = None;
        } else if kept.is_none() {
            let at = begin;
            *kept = (options.grow)(path)?.map(|growing| Kept { growing, at });
        }
        let mut found = None;
        if let Some(k) = kept.as_mut() {
            found = k.growing.look().map_err(|e| e.to_string())?;
            if found.is_none() && k.at != begin {
                // Another file stands there, in which the oldest part was folded: that one is followed from now on.
                let at = begin;
                *kept = (options.grow)(path)?.map(|growing| Kept { growing, at });
                let again = kept.as_mut().map(|k| k.growing.look()).transpose();
                found = again.map_err(|e| e.to_string())?.flatten();
            }
        }
        let is_first = kept.as_ref().is_none_or(|k| k.at == begin);
        let Some(index) = found else {
            *kept = None;
            let index = (options.open)(path)?;
            return Ok(Look { index, takes: begin.elapsed() });
        };
        match kept.as_mut() {
            Some(k) if index.analysis().meta().end.is_none() => k.at = Instant::now(),
            _ => *kept = None,
        }
        let takes = if is_first { Duration::ZERO } else { begin.elapsed() };
        Ok(Look { index, takes })
    }

    /// Lets the rows go when nobody has asked for them for a while.
    pub(crate) async fn expire(self) {
        tokio::time::sleep(UNASKED).await;
        lock(&self.0).take_if(|k| k.at.elapsed() >= UNASKED);
    }
}
