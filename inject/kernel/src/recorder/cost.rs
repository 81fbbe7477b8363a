//! Measures what an event costs the thread that causes it.

use super::events::Rings;
use super::{Options, events::Opened};
use crate::Error;
use crate::bpf::Programs;
use crate::sample::{Numbers, Record, decode};
use crate::stacks::Stacks;
use crate::tasks::Scope;
use crate::tracepoints::{Tracepoint, What};
use prof_os::Pid;

/// Number of pipes that are opened and closed; each takes about six blocks.
const PIPES: usize = 300;
/// Number of attempts. The quickest is the least disturbed one.
const ATTEMPTS: usize = 3;

/// Returns the processor time of an event in ns, on average over allocations and frees: this thread causes some, with
/// and without being recorded.
/// `without` is what pipes take without it.
pub(super) fn of_an_event(
    tracepoints: &[Tracepoint],
    rings: &mut Rings,
    without: u64,
) -> Result<u64, Error> {
    let options = Options {
        backend: super::Backend::Perf,
        what: What::ALL,
        scope: Scope::Process(Pid::this()),
        min_size: 0,
        max_size: u64::MAX,
        sample_every: 1,
        ring: 0,
    };
    let mut numbers = Numbers::default();
    let opened = Opened::open(&options, tracepoints, rings, 0, &mut numbers)?;
    opened.enable()?;
    let mut with = u64::MAX;
    let mut events = 0;
    for _ in 0..ATTEMPTS {
        drain(rings, |_, _| {});
        let took = pipes();
        let mut n = 0;
        drain(rings, |kind, body| {
            let mine = |r: &Record<'_>| match r {
                Record::Sample(s) => s.pid == Pid::this(),
                _ => false,
            };
            n += u64::from(decode(kind, body, &numbers, tracepoints).as_ref().is_some_and(mine));
        });
        if took < with {
            (with, events) = (took, n);
        }
    }
    opened.disable();
    drop(opened);
    drain(rings, |_, _| {});
    Ok(with.saturating_sub(without).checked_div(events).unwrap_or(0))
}

/// Returns the same of programs, which record the allocations of this process alone so far. A free has no thread, so that
/// there are taken to be as many as there are allocations.
/// `without` is what pipes take without them.
pub(super) fn of_programs(programs: &mut Programs, stacks: &mut Stacks, without: u64) -> u64 {
    let (mut with, mut events) = (u64::MAX, 0);
    // At first the stacks are not known.
    for attempt in 0..2 * ATTEMPTS {
        programs.read(stacks, |_, _| {});
        let took = pipes();
        let mut n = 0;
        programs.read(stacks, |_, e| n += 2 * u64::from(e.pid == Pid::this()));
        if attempt >= ATTEMPTS && took < with {
            (with, events) = (took, n);
        }
    }
    with.saturating_sub(without).checked_div(events).unwrap_or(0)
}

fn drain(rings: &mut Rings, mut f: impl FnMut(u32, &[u8])) {
    rings.all.iter_mut().for_each(|r| r.read(&mut f));
}

/// Returns the processor time of the pipes in ns without being recorded.
pub(super) fn without() -> u64 {
    (0..ATTEMPTS).map(|_| pipes()).min().unwrap_or(0)
}

/// Opens and closes pipes; returns the processor time in ns.
fn pipes() -> u64 {
    let begin = prof_os::clock::thread_ns();
    for _ in 0..PIPES {
        drop(std::io::pipe());
    }
    prof_os::clock::thread_ns() - begin
}
