//! Recordings that grow, and the events that tell of them.

use crate::body::Stream;
use crate::reply::Failure;
use crate::state::{Recording, Shared};
use crate::work::lock;
use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http::header::CONTENT_TYPE;
use prof_analyze::stacks::Stacks;
use prof_analyze::{Analysis, Follower, Progress};
use prof_os::Pid;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time between two ticks.
const TICK: Duration = Duration::from_secs(1);
/// Time after which nobody listens for the ticks of a recording any more, and its figures are let go.
const UNHEARD: Duration = Duration::from_secs(60);

/// A recording that grows: its figures are kept as it does, not read anew.
#[derive(Default)]
pub(crate) struct Live {
    state: Mutex<Option<Following>>,
    has_ended: AtomicBool,
}

/// A recording that grows, read up to a moment.
pub(crate) struct Following {
    pub follower: Follower,
    tick: Value,
    at: Instant,
    finished: bool,
    analysis: Option<Arc<Analysis>>,
    stacks: Option<Arc<Stacks>>,
}

impl Following {
    /// Returns the figures by stack and the records of this moment; `like` says how to name stacks.
    pub(crate) fn analysis(&mut self, like: &Analysis) -> Result<Arc<Analysis>, Failure> {
        if let Some(analysis) = &self.analysis {
            return Ok(analysis.clone());
        }
        let made = self.follower.analysis().map_err(|e| Failure::internal(e.to_string()));
        let mut analysis = made?;
        analysis.set_symbol_options(like.symbol_options().clone());
        Ok(self.analysis.insert(Arc::new(analysis)).clone())
    }

    /// Returns the named stacks of all groups of [`Self::analysis`].
    pub(crate) fn stacks(&mut self, like: &Analysis) -> Result<Arc<Stacks>, Failure> {
        let analysis = self.analysis(like)?;
        // Groups only become more.
        match &self.stacks {
            Some(stacks) if stacks.len() >= analysis.groups().len() => Ok(stacks.clone()),
            _ => Ok(self.stacks.insert(Arc::new(Stacks::new(&analysis))).clone()),
        }
    }
}

impl Live {
    /// Returns whether a recording is one that grows.
    pub(crate) fn grows(&self, recording: &Recording) -> bool {
        recording.pid.is_some() && !self.has_ended.load(Ordering::Relaxed)
    }

    /// Calls `work` with what was read up to this moment; `None` if the recording does not grow, or can't be read.
    pub(crate) fn with<T>(
        &self,
        shared: &Shared,
        recording: &Recording,
        work: impl FnOnce(&mut Following) -> T,
    ) -> Option<T> {
        self.tick(shared, recording)?;
        lock(&self.state).as_mut().map(work)
    }

    /// Returns the figures of this moment; reads what was added, at most once a tick for all who ask.
    fn tick(&self, shared: &Shared, recording: &Recording) -> Option<Value> {
        let pid = recording.pid?;
        let mut state = lock(&self.state);
        if state.as_ref().is_none_or(|f| f.at.elapsed() > UNHEARD && !f.finished) {
            let follower = Follower::open(&recording.path).ok()?;
            let at = Instant::now().checked_sub(TICK).unwrap_or_else(Instant::now);
            *state = Some(Following {
                follower,
                tick: Value::Null,
                at,
                finished: false,
                analysis: None,
                stacks: None,
            });
        }
        let f = state.as_mut()?;
        if f.finished || f.at.elapsed() < TICK / 2 && !f.tick.is_null() {
            return Some(f.tick.clone());
        }
        let Ok(progress) = f.follower.poll() else {
            // Another file may have its place, which is read from the front at the next tick (--on-limit).
            *state = None;
            return None;
        };
        f.at = Instant::now();
        f.finished = progress.finished;
        f.analysis = None;
        self.has_ended.store(f.finished, Ordering::Relaxed);
        let status = match (shared.options.is_recorded)(pid) {
            _ if progress.finished => "ended",
            Some(true) => "recording",
            Some(false) => "paused",
            None => "detached",
        };
        f.tick = described(recording, pid, status, &f.follower, &progress);
        Some(f.tick.clone())
    }
}

fn described(
    recording: &Recording,
    pid: Pid,
    status: &str,
    follower: &Follower,
    p: &Progress,
) -> Value {
    let t = &p.totals;
    let kernel = follower.kernel();
    let at_ns = follower.now_ns();
    json!({
        "id": recording.id,
        "pid": pid,
        "state": status,
        "duration_ns": at_ns,
        "events": p.events,
        "lost": p.lost,
        "bytes": p.bytes,
        "finished": p.finished,
        "totals": {
            "live_bytes": t.figures.live_bytes,
            "live_count": t.figures.live_count,
            "peak_bytes": t.figures.peak_bytes,
            "allocations": t.figures.allocations,
            "reallocations": t.figures.reallocations,
            "allocated_bytes": t.figures.allocated_bytes,
            "temporary": t.figures.temporary,
            "frees": t.frees,
        },
        "point": {
            "at_ns": at_ns,
            "live_bytes": t.figures.live_bytes,
            "live_blocks": t.figures.live_count,
            "allocations": t.figures.allocations,
            "frees": t.frees,
            "allocated_bytes": t.figures.allocated_bytes,
            "rss": kernel.map(|k| k.rss_bytes),
            "vss": kernel.map(|k| k.vss_bytes),
        },
        "top": top(follower),
    })
}

/// Number of stacks in a tick.
const TOP: usize = 10;

/// Returns the stacks that hold the most.
fn top(follower: &Follower) -> Value {
    let mut groups = follower.groups();
    let n = TOP.min(groups.len());
    if n == 0 {
        return json!([]);
    }
    groups.select_nth_unstable_by_key(n - 1, |g| std::cmp::Reverse((g.figures.live_bytes, g.node)));
    groups.truncate(n);
    groups.sort_by_key(|g| std::cmp::Reverse((g.figures.live_bytes, g.node)));
    let row = |g: &prof_analyze::heap::Group| {
        json!({
            "stack": g.node,
            "live_bytes": g.figures.live_bytes,
            "live_count": g.figures.live_count,
            "allocations": g.figures.allocations + g.figures.reallocations,
            "allocated_bytes": g.figures.allocated_bytes,
        })
    };
    groups.iter().map(row).collect()
}

/// Returns the events of the server, until the client goes.
pub(crate) fn events(shared: &Arc<Shared>) -> Response<Body> {
    let (sender, body) = Stream::new();
    let shared = shared.clone();
    tokio::spawn(async move {
        let (mut told, mut jobs_told) = (String::new(), String::new());
        loop {
            let begun = Instant::now();
            let own = shared.clone();
            // Reading what was added takes a while, and must not keep other requests waiting.
            let made = tokio::task::spawn_blocking(move || {
                let all = crate::listing::all(&own).to_string();
                let ticks: Vec<Value> =
                    own.recordings().iter().filter_map(|r| r.live.tick(&own, r)).collect();
                (all, ticks)
            });
            let Ok((all, ticks)) = made.await else { break };
            let mut text = String::new();
            if all != told {
                text.push_str(&format!("event: recordings\ndata: {all}\n\n"));
                told = all;
            }
            for tick in ticks {
                text.push_str(&format!("event: tick\ndata: {tick}\n\n"));
            }
            let jobs = serde_json::Value::from(shared.jobs.list()).to_string();
            if jobs != jobs_told && !(jobs_told.is_empty() && jobs == "[]") {
                text.push_str(&format!("event: jobs\ndata: {jobs}\n\n"));
                jobs_told = jobs;
            }
            if text.is_empty() {
                text.push_str(": nothing new\n\n");
            }
            if sender.send(Bytes::from(text)).await.is_err() {
                break;
            }
            tokio::time::sleep(TICK.saturating_sub(begun.elapsed())).await;
        }
    });
    let response = Response::builder().header(CONTENT_TYPE, "text/event-stream");
    response.body(Body::new(body)).unwrap_or_default()
}
