//! Reads all that a client controls, without a socket: for the fuzz targets.

use crate::compat::filter::{self, Time};
use crate::compat::script;
use crate::guard::{At, Decision, Guard};
use crate::params::Params;
use http::Request;
use std::sync::Mutex;

/// Decides on a request: the first line of the text is its target, the others are headers.
pub fn head(text: &str) {
    let mut lines = text.lines();
    let mut request = Request::builder().uri(lines.next().unwrap_or_default());
    for (name, value) in lines.filter_map(|l| l.split_once(": ")) {
        request = request.header(name, value);
    }
    let Ok(request) = request.body(()) else { return };
    for at in [At::Tcp(([127, 0, 0, 1], 8080).into()), At::Unix] {
        let token = Some("token-token".to_owned());
        let guard = Guard { at, names: vec!["name:1".into()], token, once: Mutex::default() };
        if let Decision::Enter(path) = guard.decide(&request) {
            assert!(path.starts_with('/') && !path.starts_with("//"), "{path:?} leads elsewhere");
        }
    }
}

/// Takes filters from a query, as each of the APIs does, and as code.
pub fn query(text: &str) {
    let Ok(params) = Params::parse(text) else { return };
    let _ = params.key();
    let _ = params.clone().filter();
    let (start, duration) = (1_700_000_000_000_000_000, 60_000_000_000);
    let _ = filter::take_at(&mut params.clone(), Time { start, duration });
    let time = script::Time { start_ms: start / 1_000_000, duration };
    let _ = script::code(&mut params.clone(), "allocations", &time);
}
