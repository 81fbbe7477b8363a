//! The heartbeat that tells the hook that somebody collects. Its thread also serves threads of the target that wait for a slot.

use crate::clock::Clock;
use crate::ring_growth::{self, Growth};
use prof_trace::shared::Shared;
use prof_trace::ticks::Ticks;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time between two heartbeats.
pub(crate) const BEAT: Duration = Duration::from_millis(500);

/// Updates the heartbeat that tells the hook that the collector is alive, even while a write to a slow disk blocks it.
#[derive(Debug)]
pub(crate) struct Heart {
    shared: Shared<'static>,
    stop: Arc<AtomicBool>,
    growth: Arc<Mutex<Option<Growth>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Heart {
    /// Starts a thread that updates the heartbeat until the value is dropped.
    pub(crate) fn start(shared: Shared<'static>, clock: Clock) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let growth = Arc::<Mutex<Option<Growth>>>::default();
        let (stopped, grows) = (stop.clone(), growth.clone());
        let beat = move || {
            loop {
                set(&shared.control().heartbeat, clock.now());
                let wish = shared.control().more_asked.load(Acquire);
                if stopped.load(Relaxed) {
                    break;
                }
                let mut growth = grows.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(growth) = growth.take_if(|_| ring_growth::is_wanted(wish)) {
                    growth.make_or_say(&shared);
                }
                let waits_for_wish = growth.is_some();
                drop(growth);
                if waits_for_wish {
                    ring_growth::await_change(&shared, wish, BEAT);
                } else {
                    std::thread::park_timeout(BEAT);
                }
            }
        };
        let thread = std::thread::Builder::new().name("prof-heart".into()).spawn(beat).ok();
        Self { shared, stop, growth, thread }
    }

    /// Has the thread lengthen the ring's file when that is wanted. If there is no thread, it is lengthened at once.
    pub(crate) fn lengthen(&self, growth: Growth) {
        let Some(thread) = &self.thread else { return growth.make_or_say(&self.shared) };
        *self.growth.lock().unwrap_or_else(PoisonError::into_inner) = Some(growth);
        thread.thread().unpark();
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
            ring_growth::nudge(&self.shared);
            let _ = t.join();
        }
    }
}
