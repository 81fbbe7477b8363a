//! The rings and the events of all processors.

use super::Options;
use crate::Error;
use crate::perf::{Event, Of, Wanted};
use crate::ring::Ring;
use crate::sample::Numbers;
use crate::sys;
use crate::tasks::{Scope, threads_of};
use crate::tracepoints::Tracepoint;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use prof_os::Pid;
use prof_trace::values::text::bytes;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// A ring for each processor.
#[derive(Debug)]
pub(super) struct Rings {
    events: Vec<Event>,
    /// The processors' numbers.
    pub processors: Vec<u32>,
    /// The mapped rings.
    pub all: Vec<Ring>,
}

impl Rings {
    /// Opens the rings of all processors that are on; `len` bytes each.
    pub(super) fn open(len: usize, page: usize) -> Result<Self, Error> {
        let processors = sys::processors();
        raise_limit();
        let (mut events, mut all) = (Vec::new(), Vec::new());
        for processor in &processors {
            let event = Event::ring(*processor, (len / 4) as u32).map_err(|e| refused(e, 1))?;
            event.enable().map_err(|e| refused(e, 1))?;
            let ring = Ring::map(&event, len, page).map_err(|e| {
                let what = format!(
                    "cannot get {} of locked memory for the ring of processor {processor}; give a smaller \
                     --ring-size, or raise `ulimit -l`",
                    bytes(len as u64)
                );
                Error::io(what)(e)
            })?;
            events.push(event);
            all.push(ring);
        }
        Ok(Self { events, processors, all })
    }

    /// Waits until a ring is a quarter full, a signal comes, or for `most`.
    pub(super) fn wait(&self, most: Duration) {
        let of = |e| PollFd::new(Event::as_fd(e), PollFlags::POLLIN);
        let mut fds: Vec<PollFd<'_>> = self.events.iter().map(of).collect();
        let most = PollTimeout::try_from(most.min(Duration::from_secs(60)));
        // Any result, also an error, ends the wait.
        let _ = poll(&mut fds, most.unwrap_or(PollTimeout::MAX));
    }
}

/// The events of all tracepoints and processors.
#[derive(Debug)]
pub(super) struct Opened {
    /// Index of the tracepoint, and its event.
    events: Vec<(usize, Event)>,
}

impl Opened {
    /// Opens all events, disabled, and sends them to the rings.
    pub(super) fn open(
        options: &Options,
        tracepoints: &[Tracepoint],
        rings: &Rings,
        page: u64,
        numbers: &mut Numbers,
    ) -> Result<Self, Error> {
        let cgroup = match &options.scope {
            Scope::Cgroup(path) => Some(File::open(path).map_err(Error::io(format!(
                "cannot open the cgroup {}; give its folder below /sys/fs/cgroup",
                path.display()
            )))?),
            _ => None,
        };
        let whole = match &cgroup {
            Some(folder) => Of::Cgroup(folder.as_fd()),
            None => Of::All,
        };
        let mut all = Self { events: Vec::new() };
        let frees = tracepoints.iter().enumerate().filter(|(_, t)| !t.is_alloc);
        for (i, t) in frees {
            all.add(i, t, Of::All, options, rings, page, numbers)?;
        }
        let allocs = tracepoints.iter().enumerate().filter(|(_, t)| t.is_alloc);
        match options.scope.process() {
            None => {
                for (i, t) in allocs {
                    all.add(i, t, whole, options, rings, page, numbers)?;
                }
            }
            Some(pid) => {
                // Threads that appear meanwhile inherit the events, or are found at the next look.
                let mut known = Vec::new();
                loop {
                    let threads = threads_of(pid).ok_or(Error::Gone(pid))?;
                    let new: Vec<Pid> =
                        threads.into_iter().filter(|t| !known.contains(t)).collect();
                    if new.is_empty() {
                        break;
                    }
                    for tid in &new {
                        for (i, t) in allocs.clone() {
                            match all.add(i, t, Of::Thread(*tid), options, rings, page, numbers) {
                                // The thread has ended.
                                Err(Error::Refused { source, .. })
                                    if source.raw_os_error() == Some(libc::ESRCH) => {}
                                result => result?,
                            }
                        }
                    }
                    known.extend(new);
                }
            }
        }
        Ok(all)
    }

    #[allow(clippy::too_many_arguments)] // one call's context
    fn add(
        &mut self,
        index: usize,
        t: &Tracepoint,
        of: Of<'_>,
        options: &Options,
        rings: &Rings,
        page: u64,
        numbers: &mut Numbers,
    ) -> Result<(), Error> {
        let period = if t.is_alloc { options.sample_every.max(1) } else { 1 };
        let wanted = Wanted { id: t.id, period, stack: t.is_alloc };
        for (processor, ring) in rings.processors.iter().zip(&rings.events) {
            let refused = |e| refused(e, self.events.len() + 1);
            let event = Event::tracepoint(wanted, of, *processor).map_err(refused)?;
            if let Some(expression) = t.filter(options.min_size, options.max_size, page) {
                event.filter(&expression).map_err(|e| Error::Tracepoint {
                    name: t.name,
                    why: format!("the kernel does not accept the filter {expression:?}: {e}"),
                })?;
            }
            event.send_to(ring).map_err(refused)?;
            if !numbers.add(event.number().map_err(refused)?, index) {
                let why = "its events have numbers that are too far apart".into();
                return Err(Error::Tracepoint { name: t.name, why });
            }
            self.events.push((index, event));
        }
        Ok(())
    }

    /// Starts all events: frees before allocations, so that no free is missed.
    pub(super) fn enable(&self) -> Result<(), Error> {
        self.events.iter().try_for_each(|(_, e)| e.enable()).map_err(|e| refused(e, 0))
    }

    /// Stops all events.
    pub(super) fn disable(&self) {
        for (_, e) in self.events.iter().rev() {
            if let Err(e) = e.disable() {
                log::warn!("cannot stop a tracepoint: {e}");
            }
        }
    }

    /// Returns how many allocations and frees were lost, as far as the kernel counts them.
    pub(super) fn lost(&self, tracepoints: &[Tracepoint]) -> (u64, u64) {
        let mut lost = (0, 0);
        for (i, e) in &self.events {
            let n = e.counts().map_or(0, |c| c.1);
            if tracepoints[*i].is_alloc { lost.0 += n } else { lost.1 += n }
        }
        lost
    }

    /// Returns how often each tracepoint was passed; 0 where the kernel does not say.
    pub(super) fn hits(&self, tracepoints: &[Tracepoint]) -> Vec<u64> {
        let mut hits = vec![0; tracepoints.len()];
        for (i, e) in &self.events {
            hits[*i] += e.counts().map_or(0, |c| c.0);
        }
        hits
    }
}

/// Lets this process have as many descriptors as it may.
fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write an `rlimit`, which this is.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Makes an error of what the kernel said, with what to do about it.
fn refused(source: io::Error, opened: usize) -> Error {
    let lockdown = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let advice = match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => return Error::Descriptors { needed: opened },
        Some(libc::EPERM | libc::EACCES) if lockdown.contains("[confidentiality]") => {
            "the machine is locked down (lockdown=confidentiality), so that nobody may see the kernel's memory".into()
        }
        Some(libc::EPERM | libc::EACCES) => {
            let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
            let level = level.unwrap_or_default();
            format!(
                "run prof as root, or with CAP_PERFMON and CAP_SYSLOG (kernel.perf_event_paranoid is {}; in a container \
                 its seccomp profile must allow perf_event_open, too)",
                level.trim()
            )
        }
        Some(libc::ENOSYS | libc::ENOENT) => {
            "it was built without perf events or tracepoints (CONFIG_PERF_EVENTS, CONFIG_EVENT_TRACING)".into()
        }
        Some(libc::EBADF | libc::EINVAL) => {
            "that is not the folder of a cgroup with the perf_event controller, or the kernel is older than 4.8".into()
        }
        _ => "see `dmesg`".into(),
    };
    Error::Refused { source, advice }
}
