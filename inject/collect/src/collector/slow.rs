//! The collector's slow tasks: some run once a second, others when a thread appears or memory is wanted.

use super::{Collector, Memory};
use crate::mappings::PART;
use crate::maps;
use crate::target::Watched;
use prof_trace::protocol::publish_stacks;
use prof_trace::ring::View;
use prof_trace::shared::{Shared, SharedArea, flags, state};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

/// Returns address and length of prof's mappings in the target.
pub(super) fn areas(shared: &Shared) -> impl Iterator<Item = (u64, u64)> {
    let c = shared.control();
    let ring = std::iter::once((c.ring_addr.load(Relaxed), c.ring_len.load(Relaxed)));
    let others = c.stubs.iter().chain(&c.guards).chain([&c.place]).map(SharedArea::get);
    // The hook is prof's also where the target's dynamic linker has loaded it.
    let library = (c.library.load(Relaxed) != 0).then_some((c.hook_addr, c.hook_len));
    ring.chain(others.map(|a| (a.addr, a.len))).chain(library).filter(|a| a.1 > 0)
}

impl Collector<'_> {
    /// Returns the target's resident pages and pages of address space, both without prof's own.
    pub(super) fn pages(&self) -> (u64, u64) {
        let c = self.shared.control();
        let (rss, vss) = self.target.pages();
        // While prof's memory is being removed, its size in the target is not known.
        if matches!(c.state.load(Acquire), state::DETACHED | state::DETACHING) || vss == 0 {
            return (0, 0);
        }
        let page = prof_os::page_size();
        let (mut ours, mut there) = (0u64, 0u64);
        let geometry = self.shared.geometry();
        let more = c.more_count.load(Relaxed);
        let geometry = geometry.with_states(c.states_count, more).unwrap_or(geometry);
        for (addr, len) in areas(&self.shared) {
            ours = ours.saturating_add(len / page);
            // The lengths in the control page are untrusted: look at no more pages than prof can have there.
            let parts = match addr == c.ring_addr.load(Relaxed) {
                true => geometry.in_use(self.drain.reached()),
                false => [0..geometry.size(), 0..0],
            };
            for part in parts {
                let (from, to) = (part.start as u64, len.min(part.end as u64));
                there += self.target.resident((addr + from) / page, to.saturating_sub(from) / page);
            }
        }
        let without = |all: u64, ours: u64| if ours < all { all - ours } else { all };
        (without(rss, there), without(vss, ours))
    }

    /// Runs the slow tasks: names, living threads, counters, the target's size and mappings.
    pub fn every_second(&mut self) -> Memory {
        let began = Instant::now();
        let there = if self.stacks_read.elapsed() < self.maps_took * PART {
            Memory::There
        } else {
            self.look_at_maps()
        };
        // The hook itself notices the usual ways to install a filter, while it is on.
        let flags = &self.shared.control().flags;
        // Nothing is known of filters beyond those that prof has examined.
        let calls = flags::CALLS;
        let may = flags.load(Relaxed) & calls;
        let known = if may & flags::SYSCALLS != 0 { 0 } else { self.filters };
        if may != 0 && self.most_filters() > known {
            flags.fetch_and(!calls, Relaxed);
        }
        self.threads.rename(&mut self.out);
        self.bury();
        if self.threads.are_many() || self.pass.is_multiple_of(64) {
            self.threads.forget(&self.shared, self.drain.serials());
        }
        self.modules.look(&self.shared, &self.target, self.epochs.clock().now(), &mut self.out);
        self.put_counters();
        self.smaps.note_resident(self.target.pages().0);
        self.look_at_memory(false);
        self.look_at_process();
        self.part(true);
        self.pace.note_second(began);
        there
    }

    /// Looks for threads that have ended, so that the next pass gives back their segments and new threads can take
    /// their slots. Returns whether there are any.
    pub(super) fn bury(&mut self) -> bool {
        let began = Instant::now();
        let census = self.threads.census(&self.shared);
        let threads = &self.threads;
        let gone = |v: &View| threads.has_ended(&census, v.tid, v.serial);
        let any = self.drain.mark_dead(&self.shared, gone);
        let freed = census.free_slots(&self.shared);
        if freed > 0 {
            self.shared.control().slots_freed.fetch_add(1, Release);
        }
        self.pace.note_buried(began, freed, census.asked());
        any || freed > 0
    }

    /// Reads the mappings, and publishes the stacks to the hook.
    pub(super) fn look_at_maps(&mut self) -> Memory {
        let (began, begun) = (Instant::now(), self.epochs.clock().now());
        let Some(maps) = &mut self.maps else { return Memory::There };
        if !self.watch.look(&self.shared, maps, &self.target) {
            return Memory::Gone;
        }
        publish_stacks(&self.shared, maps::stacks(&maps.all));
        self.stacks_read = Instant::now();
        let took = self.stacks_read - began;
        self.maps_took = took;
        let ours = areas(&self.shared).map(|a| (a.0, a.0.saturating_add(a.1)));
        self.tree.set_ours(ours.collect());
        self.note_mappings(begun);
        let Some(maps) = &self.maps else { return Memory::There };
        if self.ring_addr == 0 || maps.at(self.ring_addr).is_some() {
            Memory::There
        } else {
            Memory::Unmapped
        }
    }

    /// Returns the greatest number of seccomp filters that a process with the target's memory has.
    pub(super) fn most_filters(&self) -> u32 {
        self.threads.processes().map(Watched::filters).max().unwrap_or(0)
    }
}
