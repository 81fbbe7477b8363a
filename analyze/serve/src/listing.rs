//! Descriptions of the recordings, for the list of them and for the event that tells of a change in it.

use crate::state::{Recording, Shared, State};
use prof_analyze::Note;
use prof_analyze::report::Head;
use serde_json::{Value, json};

/// Returns the description of a recording.
pub(crate) fn item(recording: &Recording) -> Value {
    let state = recording.state();
    let (name, why, open) = match &state {
        State::Waiting => ("unread", None, None),
        State::Opening => ("indexing", None, None),
        State::Failed(why) => ("unread", Some(why.clone()), None),
        State::Ready(open) => {
            let notes = open.index.analysis().notes();
            let has = |is: fn(&Note) -> bool| notes.iter().any(is);
            let name = if has(|n| matches!(n, Note::Damaged { .. })) {
                "damaged"
            } else if has(|n| matches!(n, Note::Growing)) {
                "growing"
            } else {
                "ready"
            };
            (name, None, Some(open))
        }
    };
    let making = recording.making();
    let progress = making.filter(|m| m.total > 0).map(|m| m.done as f64 / m.total as f64);
    json!({
        "id": recording.id,
        "name": recording.name(),
        "path": recording.path.to_string_lossy(),
        "bytes": recording.bytes(),
        "modified_unix_ms": recording.modified_ms(),
        "state": name,
        "why": why,
        "progress": progress,
        "making": making.map(|m| json!({ "what": m.what, "done": m.done, "total": m.total })),
        "pid": recording.pid,
        "head": open.map(|o| Head::new(o.index.analysis(), &[])),
    })
}

/// Returns the descriptions of all recordings.
pub(crate) fn all(shared: &Shared) -> Value {
    let items: Vec<Value> = shared.recordings().iter().map(|r| item(r)).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "control": shared.control().is_some(),
        "sources": shared.options.sources.is_some(),
        "scripts": cfg!(feature = "script"),
        "recordings": items,
    })
}
