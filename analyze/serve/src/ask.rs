//! Requests for data of a recording, as the routes get them.

use crate::live::Following;
use crate::params::Params;
use crate::state::{Open, Recording, Shared};
use prof_analyze::{Analysis, Index, Job};
use std::sync::Arc;

/// A request for data of a recording.
pub(crate) struct Ask {
    pub shared: Arc<Shared>,
    pub recording: Arc<Recording>,
    pub open: Arc<Open>,
    /// The other recording of a comparison.
    pub other: Option<Arc<Open>>,
    /// The parts of the path that are variables, but the recording.
    pub path: Vec<(String, String)>,
    pub params: Params,
    pub cancel: Job,
    /// The recording grows, and the answer is made of the figures that are kept as it does.
    pub in_place: bool,
}

impl Ask {
    pub(crate) fn index(&self) -> &Index {
        &self.open.index
    }

    /// Calls `work` with the figures that are kept as the recording grows, and with the recording as it was opened;
    /// `None` if there are none.
    pub(crate) fn now<T>(&self, work: impl FnOnce(&mut Following, &Analysis) -> T) -> Option<T> {
        let like = self.index().analysis();
        self.recording.live.with(&self.shared, &self.recording, |f| work(f, like))
    }

    /// Returns a variable of the path.
    pub(crate) fn variable(&self, name: &str) -> &str {
        self.path.iter().find(|p| p.0 == name).map_or("", |p| &p.1)
    }
}
