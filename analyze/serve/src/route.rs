//! A route has a path, parameters, and the work that answers a request.

use crate::ask::Ask;
use crate::params::Params;
use crate::reply::{Answer, Failure, Writer};
use crate::state::Shared;
use crate::work::Weight;
use prof_os::Pid;
use std::sync::Arc;

/// A parameter of a route, with its description.
pub(crate) type Param = (&'static str, &'static str);

/// A function that runs a script on the recording that a request is about.
pub(crate) type Run = fn(Ask, String) -> Result<Answer, Failure>;

/// A function that answers a script that has waited for its turn in vain, with the reason.
pub(crate) type Busy = fn(&str) -> Result<Answer, Failure>;

/// The work of a route.
#[derive(Clone, Copy)]
pub(crate) enum Does {
    /// Answers at once, from what the server knows.
    Now(fn(&Arc<Shared>, &mut Params) -> Result<Answer, Failure>),
    /// As [`Self::Now`], when all recordings are open: for clients that know no other answer.
    Open(fn(&Arc<Shared>, &mut Params) -> Result<Answer, Failure>),
    /// Answers from a recording; answers are kept.
    Data(fn(&mut Ask) -> Result<Answer, Failure>),
    /// As [`Self::Data`], of two recordings that the parameters name.
    Two(fn(&mut Ask) -> Result<Answer, Failure>),
    /// Writes the answer while it is sent.
    Stream(fn(Ask) -> Result<(Answer, Writer), Failure>),
    /// Events, until the client goes.
    Events,
    /// Runs the body, a script, on the recording it is about; the second function answers one that has waited for its
    /// turn in vain.
    Post(Run, Busy),
    /// As [`Self::Post`], and writes the answer while it is sent.
    PostStream(fn(Ask, String) -> Result<(Answer, Writer), Failure>),
    /// Asks for a job, or ends it.
    Job(crate::jobs::Act),
    /// Controls a process.
    Control(fn(&Arc<Shared>, Pid) -> Result<Answer, Failure>),
}

/// A route.
pub(crate) struct Route {
    pub path: &'static str,
    pub about: &'static str,
    pub params: &'static [Param],
    /// Whether the path takes the fields of a filter.
    pub filter: bool,
    /// Media type of the answer.
    pub kind: &'static str,
    pub does: Does,
}

/// Routes that are answered from the figures which are kept as a recording grows, and the parameters with which they
/// are: a filter needs the single blocks.
const IN_PLACE: [(&str, &[&str]); 4] = [
    ("/api/v1/{r}/head", &[]),
    ("/api/v1/{r}/timeline", &["start", "end", "width", "series"]),
    ("/api/v1/{r}/flame", &["metric", "dir", "prune", "depth", "transforms", "root"]),
    ("/api/v1/{r}/tree", &["node", "bottom-up", "sort", "reverse"]),
];

/// The route that is answered from the figures of all stacks, and the parameters with which it is.
const OF_FIGURES: (&str, &[&str]) = ("/api/v1/{r}/groups", &["sort", "reverse", "skip", "count"]);

impl Route {
    /// Returns the class of work that a request causes.
    pub(crate) fn weight(&self, params: &Params) -> Weight {
        let (path, takes) = OF_FIGURES;
        let is_of_figures = self.path == path && params.rest().all(|name| takes.contains(&name));
        let is_light = is_of_figures || self.is_in_place(params);
        if is_light { Weight::Light } else { Weight::Heavy }
    }

    /// Returns whether the figures that are kept as a recording grows answer a request.
    pub(crate) fn is_in_place(&self, params: &Params) -> bool {
        let route = IN_PLACE.iter().find(|r| r.0 == self.path);
        // Which blocks are live at the peak is not kept.
        route.is_some_and(|r| params.rest().all(|name| r.1.contains(&name)))
            && !params.has("metric", "peak")
    }

    /// Returns whether the route is one of prof's own API: there a parameter that is not known is an error. In
    /// bytehound's it is named in a header.
    pub(crate) fn is_own(&self) -> bool {
        self.path.starts_with("/api/")
    }

    pub(crate) fn is_post(&self) -> bool {
        matches!(
            self.does,
            Does::Post(..)
                | Does::PostStream(_)
                | Does::Control(_)
                | Does::Job(crate::jobs::Act::Cancel)
        )
    }
}
