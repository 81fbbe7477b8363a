//! Work whose answer is fetched later: of requests with `Prefer: respond-async`.

use crate::reply::{Answer, Failure};
use crate::work::{Outcome, Waiter, lock};
use prof_analyze::Job;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// Greatest number of jobs that are known at a time; the oldest that have ended go first.
const MOST: usize = 32;

/// Action of a request on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Tells how far it is.
    Status,
    /// Returns its answer.
    Result,
    /// Ends it.
    Cancel,
}

struct Entry {
    number: u64,
    /// Path of the route.
    route: &'static str,
    job: Job,
    result: watch::Receiver<Option<Outcome>>,
    /// Keeps the work going as long as the entry is there.
    waiter: Option<Waiter>,
}

impl Entry {
    fn status(&self) -> Value {
        let result = self.result.borrow().clone();
        let progress = self.job.progress();
        let (state, error) = match result {
            Some(Ok(_)) => ("done", None),
            _ if self.job.is_cancelled() => ("cancelled", None),
            // The sender is gone without a result.
            None if self.result.has_changed().is_err() => ("failed", None),
            Some(Err(f)) => ("failed", Some(f.why)),
            None => ("running", None),
        };
        let shown = state == "running" && progress.total > 0;
        let progress = shown.then(
            || json!({ "what": progress.what, "done": progress.done, "total": progress.total }),
        );
        json!({
            "job": self.number,
            "route": self.route,
            "state": state,
            "progress": progress,
            "error": error,
            "result": (state == "done").then(|| format!("/api/v1/jobs/{}/result", self.number)),
        })
    }

    fn has_ended(&self) -> bool {
        self.result.borrow().is_some() || self.result.has_changed().is_err()
    }
}

/// All jobs, in the order in which they began.
#[derive(Default)]
pub(crate) struct Jobs {
    all: Mutex<(u64, VecDeque<Entry>)>,
}

impl Jobs {
    /// Adds work that is under way; returns its number and state.
    ///
    /// # Errors
    /// If too many jobs run.
    pub(crate) fn add(
        &self,
        route: &'static str,
        job: Job,
        result: watch::Receiver<Option<Outcome>>,
        waiter: Waiter,
    ) -> Result<(u64, Value), Failure> {
        let mut jobs = lock(&self.all);
        if jobs.1.len() >= MOST {
            let ended = jobs.1.iter().position(Entry::has_ended);
            let at = ended.ok_or_else(|| Failure::new(503, "too many jobs are running"))?;
            jobs.1.remove(at);
        }
        jobs.0 += 1;
        let number = jobs.0;
        let entry = Entry { number, route, job, result, waiter: Some(waiter) };
        let status = entry.status();
        jobs.1.push_back(entry);
        Ok((number, status))
    }

    /// Returns the state of all jobs.
    pub(crate) fn list(&self) -> Vec<Value> {
        lock(&self.all).1.iter().map(Entry::status).collect()
    }

    /// Answers a request for a job.
    pub(crate) fn act(&self, number: &str, act: Act) -> Result<Arc<Answer>, Failure> {
        let mut jobs = lock(&self.all);
        let found = jobs.1.iter_mut().find(|e| number.parse() == Ok(e.number));
        let entry = found.ok_or_else(|| Failure::missing("there is no such job"))?;
        match act {
            Act::Status => {}
            Act::Result => {
                let result = entry.result.borrow().clone();
                return result.unwrap_or_else(|| Err(Failure::new(409, "the job is not done yet")));
            }
            Act::Cancel if entry.has_ended() => {}
            // Whoever else waits for the same work goes on.
            Act::Cancel => drop(entry.waiter.take()),
        }
        Ok(Arc::new(Answer::json(&entry.status())?))
    }
}

/// Returns whether a request prefers to be answered at once, with a job.
pub(crate) fn is_preferred(headers: &http::HeaderMap) -> bool {
    let given = headers.get_all("prefer").iter().filter_map(|v| v.to_str().ok());
    let mut words = given.flat_map(|v| v.split(',')).filter_map(|p| p.split(';').next());
    words.any(|word| word.trim().eq_ignore_ascii_case("respond-async"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderValue};

    #[test]
    fn the_preference_is_one_of_a_list() {
        let is = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", HeaderValue::from_static(text));
            is_preferred(&headers)
        };
        assert!(is("respond-async") && is("wait=5, Respond-Async; x=1"));
        assert!(!is("wait=10") && !is("no-respond-async") && !is_preferred(&HeaderMap::new()));
    }
}
