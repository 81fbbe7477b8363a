//! The routes of prof's own API.

pub(crate) mod recordings;

use crate::reply::JSON;
use crate::route::{Does, Param, Route};

const AT: Param = ("at", "the figures as of this time, as if the recording had ended there");

/// All routes.
pub(crate) const ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/recordings",
        about: "the recordings, and whether they are open",
        params: &[],
        filter: false,
        kind: JSON,
        does: Does::Now(recordings::list),
    },
    Route {
        path: "/api/v1/fields",
        about: "the fields of filters, the metrics, the sort keys, and the export formats",
        params: &[],
        filter: false,
        kind: JSON,
        does: Does::Now(recordings::fields),
    },
    Route {
        path: "/api/v1/{r}/head",
        about: "the recording and its totals",
        params: &[AT],
        filter: true,
        kind: JSON,
        does: Does::Data(recordings::head),
    },
    Route {
        path: "/api/v1/events",
        about: "events (text/event-stream): recordings that change, progress, ticks of live recordings",
        params: &[],
        filter: false,
        kind: "text/event-stream",
        does: Does::Events,
    },
    Route {
        path: "/api/openapi.json",
        about: "this description",
        params: &[],
        filter: false,
        kind: JSON,
        does: Does::Now(crate::openapi::document),
    },
];
