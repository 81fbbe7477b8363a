//! Holds events back until the census is in the recording, which stands in front of them.

use super::Collector;
use prof_os::Pid;
use prof_os::process::{is_running, start_time};
use prof_trace::shared::state;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

/// Interval at which the census is looked for.
const LOOK: Duration = Duration::from_millis(1);
/// Time for the census to come once recording is on: until then the ring holds all events.
const PATIENCE: Duration = Duration::from_secs(30);

impl Collector<'_> {
    /// Has the collector wait for a census from this process, which is to come before events are read.
    pub fn await_census(&mut self, from: Pid) {
        self.awaits = start_time(from).map(|start| (from, start));
    }

    /// Waits for the census, and takes it in. Ends without it if who was to take it has ended, or the target has, or the
    /// recording is over.
    pub(super) fn hold(&mut self, stop: &AtomicBool) {
        let Some((from, start)) = self.awaits else { return };
        let c = self.shared.control();
        let mut on_since = None;
        while is_running(from, start) && !stop.load(Relaxed) {
            // The heart tells threads that wait for room that somebody will make it.
            if let Some(heart) = &self.heart {
                heart.beat(self.epochs.look().0);
            }
            if self.take_scan() || c.scans_done.load(Relaxed) != 0 {
                while self.take_scan() {}
                break;
            }
            if c.toggle_count.load(Acquire) > 0 {
                let since = on_since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    log::error!("no census has come, so the recording goes on without it");
                    break;
                }
            }
            let ends = matches!(c.state.load(Acquire), state::DETACHING | state::DETACHED);
            if ends || self.target.has_left() || self.target.wait(LOOK) {
                break;
            }
        }
        self.awaits = None;
    }
}
