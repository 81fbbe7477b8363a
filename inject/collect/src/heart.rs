//! The heartbeat that tells the hook that somebody collects.

use crate::clock::Clock;
use prof_trace::shared::Shared;
use prof_trace::ticks::Ticks;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// Time between two heartbeats.
pub(crate) const BEAT: Duration = Duration::from_millis(500);

/// Updates the heartbeat that tells the hook that the collector is alive, even while a write to a slow disk blocks it.
#[derive(Debug)]
pub(crate) struct Heart {
    shared: Shared<'static>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Heart {
    /// Starts a thread that updates the heartbeat until the value is dropped.
    pub(crate) fn start(shared: Shared<'static>, clock: Clock) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let beat = move || {
            while !stopped.load(Relaxed) {
                set(&shared.control().heartbeat, clock.now());
                std::thread::park_timeout(BEAT);
            }
        };
        let thread = std::thread::Builder::new().name("prof-heart".into()).spawn(beat).ok();
        Self { shared, stop, thread }
    }

    /// Sets the heartbeat to the time `ticks`.
    pub(crate) fn beat(&self, ticks: Ticks) {
        set(&self.shared.control().heartbeat, ticks);
    }
}

fn set(heartbeat: &AtomicU64, ticks: Ticks) {
    heartbeat.store(ticks.max(Ticks(1)).0, Release);
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(t) = self.thread.take() {
            t.thread().unpark();
            let _ = t.join();
        }
    }
}
