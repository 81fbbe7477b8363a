//! The answers of routes: a whole body that may be kept, a stream, or a failure.

use bytes::Bytes;
use serde::Serialize;
use std::io::Write;

/// The media type of JSON.
pub(crate) const JSON: &str = "application/json";
/// The media type of text.
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

/// An answer whose body is in memory.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub kind: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
}

impl Answer {
    pub(crate) fn new(kind: &'static str, body: impl Into<Bytes>) -> Self {
        Self { kind, headers: Vec::new(), body: body.into() }
    }

    /// Writes a value as JSON.
    pub(crate) fn json(value: &impl Serialize) -> Result<Self, Failure> {
        let body = serde_json::to_vec(value);
        Ok(Self::new(JSON, body.map_err(|e| Failure::internal(e.to_string()))?))
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns about how many bytes the answer takes in memory.
    pub(crate) fn weight(&self) -> u64 {
        let headers: usize = self.headers.iter().map(|h| h.1.len() + 64).sum();
        (self.body.len() + headers + 128) as u64
    }
}

/// Writes the body of an answer that is not held in memory.
pub(crate) type Writer = Box<dyn FnOnce(&mut dyn Write) -> Result<(), String> + Send>;

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Status code of HTTP.
    pub status: u16,
    /// The reason, in one line.
    pub why: String,
    /// The parameter that is wrong.
    pub name: Option<String>,
    /// Progress of opening the recording, if the request waits for that: a part of 1000.
    pub progress: Option<u32>,
}

impl Failure {
    pub(crate) fn new(status: u16, why: impl Into<String>) -> Self {
        Self { status, why: why.into(), name: None, progress: None }
    }

    /// The request is wrong.
    pub(crate) fn bad(why: impl Into<String>) -> Self {
        Self::new(400, why)
    }

    /// A parameter is wrong.
    pub(crate) fn of(name: &str, why: impl std::fmt::Display) -> Self {
        Self { name: Some(name.to_owned()), ..Self::bad(format!("{name}: {why}")) }
    }

    /// Nobody waits for the answer any more. The code is one that no standard has, and nobody sees it.
    pub(crate) fn gone() -> Self {
        Self::new(499, "nobody waits for the answer any more")
    }

    pub(crate) fn missing(why: impl Into<String>) -> Self {
        Self::new(404, why)
    }

    pub(crate) fn internal(why: impl Into<String>) -> Self {
        Self::new(500, why)
    }
}

impl From<prof_analyze::index::ScanError> for Failure {
    fn from(e: prof_analyze::index::ScanError) -> Self {
        match e {
            prof_analyze::index::ScanError::Cancelled => Self::gone(),
            other => Self::internal(other.to_string()),
        }
    }
}

impl From<prof_analyze::query::QueryError> for Failure {
    fn from(e: prof_analyze::query::QueryError) -> Self {
        match e {
            prof_analyze::query::QueryError::Missing(why) => Self::bad(why),
            other => Self::internal(other.to_string()),
        }
    }
}
