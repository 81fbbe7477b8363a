//! Keeps a recording, and what it costs, within its bounds.

use super::{Callback, Collector};
use crate::budget::{Budget, Meter};
use crate::folding::{Folder, Folding, MakeSieve};
use crate::limits::{Guard, Limits};
use crate::target::switch_off;
use prof_trace::records::{Toggle, kind};
use prof_trace::shared::flags;
use std::sync::atomic::Ordering::Relaxed;

/// Greatest number of stack nodes that keep their ids where the oldest events go: what names the nodes stays.
const NODES: usize = 1 << 20;

impl Collector<'_> {
    /// Sets what recording may cost: a sample whose distance adapts becomes so coarse that it costs no more.
    pub fn set_budget(&mut self, budget: Budget) {
        self.shared.control().flags.fetch_or(flags::COSTS, Relaxed);
        self.fineness.keep_to(Meter::new(budget, self.target.pid()));
    }

    /// Sets the bounds of the recording. At the first that is reached, recording is switched off.
    pub fn set_limits(&mut self, limits: Limits) {
        self.guard = Guard::new(limits);
        self.out.set_most(limits.hard());
        if let Some(bounds) = limits.record() {
            self.out.put(kind::BOUNDS, &bounds.encode());
        }
    }

    /// Sets the bounds of what a dead collector has left in memory: events beyond them are lost.
    pub(crate) fn set_limits_of_rest(&mut self, limits: &Limits) {
        self.out.set_most(limits.with_rest(self.out.file(), self.out.len()));
    }

    /// Has all that a dead collector has left in memory dropped, and counted as lost: the recording has figures in place of
    /// events, and what it takes to go on with them has died with the collector.
    pub(crate) fn drop_rest(&mut self) {
        self.out.set_most(0);
        self.drops_rest = true;
    }

    /// Returns the number of events that were read and could not be written, and of those that could not be read, or were cut
    /// off before the recording went on. The hook has `counted` so many in all.
    pub(super) fn losses(&self, counted: u64) -> [u64; 2] {
        let (unwritten, read) = (self.out.lost(), self.drain.events);
        match self.recorded {
            // Events that are in the figures may still stand in the ring, so only the hook's count tells.
            before if self.drops_rest => [0, before.map_or(0, |b| counted.saturating_sub(b))],
            Some(before) => [unwritten, counted.saturating_sub(before.saturating_add(read))],
            None => [unwritten, 0],
        }
    }

    /// Has the oldest part of the recording dropped as it meets its bounds, which must be set already. A recording that is
    /// too long for them, as another collector has begun it with wider ones, is folded at once, and keeps to them from then on.
    pub fn set_folder(&mut self, folder: Box<dyn Folder>) {
        let limits = self.guard.limits;
        self.tree.remember_all(NODES);
        self.drain.read_in_parts(Folding::pass(&limits));
        self.folding = Some(Folding::new(folder, &limits));
        if !limits.has_room_for_fold(self.out.len()) {
            self.ease(limits);
        }
    }

    /// Lets the recording be longer than wanted until it is folded, which begins at once.
    fn ease(&mut self, wanted: Limits) {
        let len = self.out.len();
        self.eased = Some((wanted, len));
        self.keep_to(wanted.eased(len));
        if let Some(folding) = &mut self.folding {
            folding.begin_at_once(&self.out);
        }
    }

    fn keep_to(&mut self, limits: Limits) {
        self.guard = Guard::new(limits);
        self.out.set_most(limits.hard());
    }

    /// Keeps to the bounds that are wanted when the recording was folded to fit them, or can't be.
    fn keep_to_wanted(&mut self) {
        let Some((wanted, before)) = self.eased else { return };
        match self.folding.as_ref().and_then(Folding::outcome) {
            None => {}
            // It became shorter, and may again.
            Some(Ok(len)) if !wanted.has_room_after_fold(len) && len < before - before / 4 => {
                self.ease(wanted);
            }
            Some(_) => {
                self.eased = None;
                self.keep_to(wanted);
                let clock = self.epochs.clock();
                if let Some(folding) = &mut self.folding {
                    folding.keep_to(&wanted, &mut self.out, || clock.now());
                }
            }
        }
    }

    /// Has all events of the recording made figures by stack as it meets its bounds, which must be set already: from there on
    /// it has figures alone, and of those the oldest are added up at a bound.
    pub fn set_going_over(&mut self, folder: Box<dyn Folder>, make: MakeSieve) {
        self.tree.remember_all(make().most_nodes());
        self.drain.read_in_parts(Folding::pass(&self.guard.limits));
        let mut folding = Folding::new(folder, &self.guard.limits);
        folding.go_over_first(make);
        self.folding = Some(folding);
    }

    /// Switches recording off in the target at the first error in writing. Draining goes on, so that no thread of the
    /// target waits for a free segment.
    pub(super) fn check_writing(&mut self) {
        // The output has dropped events that had no room, and drops all later ones: the bound is reached, even if the
        // file is shorter.
        let has_dropped = self.out.lost() > 0;
        let len = if has_dropped { self.guard.limits.hard() } else { self.out.len() };
        if self.out.failure().is_none() && self.guard.look(self.out.file(), len) {
            // The recording says that nothing follows, also if the detach takes long.
            let off = Toggle { ticks: self.epochs.clock().now(), on: 0 };
            self.out.put(kind::TOGGLE, &off.encode());
        }
        let failed = self.out.failure().map(|e| format!("cannot write the recording: {e}"));
        let Some(mut why) = failed.or_else(|| self.guard.reached.clone()) else { return };
        if let Some(not) = self.folding.take().and_then(|f| f.ended()) {
            why = format!("{why}; {not}");
            self.guard.reached = self.guard.reached.as_ref().map(|_| why.clone());
        }
        self.failed = self.out.failure().is_some();
        if let Some(Callback(f)) = self.on_failure.take() {
            f();
            log::error!("{why}; recording is switched off");
        }
        // Repeat this each time, as a signal may have switched recording on again.
        if let Some(mem) = self.target.mem() {
            let _ = switch_off(mem, &self.shared);
        }
    }

    /// Drops the oldest part of the recording, step by step, if it is time for that. Returns whether there is more to do
    /// at once.
    pub(super) fn fold(&mut self) -> bool {
        let (limits, clock) = (&self.guard.limits, self.epochs.clock());
        let busy =
            self.folding.as_mut().is_some_and(|f| f.step(&mut self.out, limits, || clock.now()));
        self.keep_to_wanted();
        busy
    }
}
