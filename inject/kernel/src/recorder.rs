//! Opens the events, and reads them pass by pass.

mod cost;
mod events;
mod order;

use crate::Error;
use crate::bpf::Programs;
use crate::live::Outstanding;
use crate::names::{KernelFunction, Names};
use crate::sample::{Numbers, Record, decode};
use crate::stacks::Stacks;
use crate::sys;
use crate::tasks::{Scope, Threads, threads_of};
use crate::tracefs::Tracefs;
use crate::tracepoints::{self, Tracepoint, What};
use crate::write::Recording;
use events::{Opened, Rings};
use order::{Change, Order};
use prof_os::Pid;
use prof_trace::records::{Counters, Hook, Hooks, Target};
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::time::Duration;

/// Time after which names are read again because an address lies far behind the last function before it: a module was
/// loaded.
const NAMES_AGAIN: u64 = 10_000_000_000;
/// Distance from the start of a function that no function reaches, in bytes.
const FAR: u64 = 1 << 20;
/// The priority (niceness) of this process while it records: on a busy machine the rings must be read in time.
const HASTE: i32 = -10;
/// Time between two writes to the file, in ns.
const FLUSH: u64 = 1_000_000_000;

/// Bytes of the rings that only names of threads are read from.
const NAMES_RING: usize = 1 << 20;

/// The way by which the kernel tells of its allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Backend {
    /// Programs where they can be used, else perf events.
    Auto,
    /// Perf events.
    Perf,
    /// Programs in the kernel (BPF).
    Bpf,
}

/// The settings of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// Kinds of memory.
    pub what: What,
    /// The tasks whose allocations are recorded.
    pub scope: Scope,
    /// Smallest size in bytes.
    pub min_size: u64,
    /// Largest size in bytes.
    pub max_size: u64,
    /// Number of allocations for each that is recorded.
    pub sample_every: u64,
    /// Bytes of each processor's ring: a power of two, and at least a page.
    pub ring: usize,
    /// The way by which the kernel tells of allocations.
    pub backend: Backend,
}

/// What tells of allocations.
#[derive(Debug)]
enum Source {
    Perf { opened: Opened, numbers: Numbers },
    Programs(Box<Programs>),
}

/// Counts of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelStats {
    /// Allocations seen.
    pub allocations: u64,
    /// Frees of these.
    pub frees: u64,
    /// Frees of blocks whose allocation was not seen.
    pub unknown_frees: u64,
    /// Blocks whose address was handed out again though no free was seen.
    pub implied_frees: u64,
    /// Page allocations that allocators made for the blocks that they hand out, and which are left out.
    pub own_pages: u64,
    /// Allocations that prof itself caused, and which are left out.
    pub of_prof: u64,
    /// Events that came out of order, and got a later time.
    pub late: u64,
    /// Allocations that were lost because a ring was full.
    pub lost_allocations: u64,
    /// Frees that were lost so.
    pub lost_frees: u64,
    /// Those of both kinds that were lost because they interrupted the recording of another one.
    pub lost_nested: u64,
    /// Stacks that were looked up as well as unwound, for comparison.
    pub compared: u64,
    /// Those of them that were looked up wrongly. From the first one on, all are unwound.
    pub wrong: u64,
    /// Records that could not be decoded.
    pub damaged: u64,
    /// Greatest number of bytes that waited in a ring.
    pub fullest: u64,
    /// Processor time that an event costs where it happens, in ns, as measured before the recording.
    pub event_ns: u64,
    /// Processor time of this process since then, in ns.
    pub own_ns: u64,
    /// Time since then, in ns.
    pub elapsed_ns: u64,
    /// Events read.
    pub events: u64,
}

/// Records the kernel's allocations.
#[derive(Debug)]
pub struct Recorder {
    options: Options,
    tracepoints: Vec<Tracepoint>,
    rings: Rings,
    source: Source,
    /// Why perf events are used where programs might have been.
    why_perf: Option<String>,
    order: Order,
    names: Names,
    names_read: u64,
    stacks: Stacks,
    threads: Threads,
    live: Outstanding,
    recording: Option<Recording>,
    figures: KernelStats,
    /// Losses that rings have reported; the only ones known before Linux 6.0.
    reported: u64,
    started: u64,
    cpu_at_start: u64,
    flushed: u64,
    page: u64,
    me: Pid,
}

impl Recorder {
    /// Opens everything and starts. The file, if there is one, is empty.
    ///
    /// # Errors
    /// If the kernel refuses, or the process of the scope is gone.
    pub fn start(options: Options, file: Option<File>, command: &str) -> Result<Self, Error> {
        let page = prof_os::page_size();
        let tracepoints = tracepoints::all(&Tracefs::open()?, options.what)?;
        let names = Names::read()?;
        let mut stacks = Stacks::new(&names, options.what.slab, options.what.percpu);
        if let Some(pid) = options.scope.process()
            && threads_of(pid).is_none()
        {
            return Err(Error::Gone(pid));
        }
        let without = cost::without();
        let (programs, why_perf) = programs(&options, &tracepoints, &names, &mut stacks)?;
        let ring = if programs.is_some() { options.ring.min(NAMES_RING) } else { options.ring };
        let mut rings = Rings::open(ring, page as usize)?;
        sys::go_first(HASTE);
        let (programs, event_ns) = match programs {
            Some(mut p) => {
                let ns = cost::of_programs(&mut p, &mut stacks, without);
                (Some(p), ns)
            }
            None => (None, cost::of_an_event(&tracepoints, &mut rings, without)?),
        };
        let started = prof_os::clock::monotonic_ns();
        let recording = match file {
            Some(file) => Some(begin(file, &options, &tracepoints, started, command)?),
            None => None,
        };
        let source = match programs {
            Some(mut programs) => {
                programs.begin(&options, &tracepoints);
                Source::Programs(programs)
            }
            None => {
                let mut numbers = Numbers::default();
                let opened = Opened::open(&options, &tracepoints, &rings, page, &mut numbers)?;
                opened.enable()?;
                Source::Perf { opened, numbers }
            }
        };
        Ok(Self {
            tracepoints,
            rings,
            source,
            why_perf,
            order: Order::new(Ticks(started)),
            names,
            names_read: started,
            stacks,
            threads: Threads::default(),
            live: Outstanding::default(),
            recording,
            figures: KernelStats { event_ns, ..KernelStats::default() },
            reported: 0,
            started,
            cpu_at_start: prof_os::clock::process_ns(),
            flushed: started,
            page,
            me: Pid::this(),
            options,
        })
    }

    /// Waits until a ring is a quarter full, or for `most`; then reads all rings.
    pub fn pass(&mut self, most: Duration) {
        let patience = match &self.source {
            Source::Perf { .. } => most,
            Source::Programs(p) => most.min(p.patience()),
        };
        self.rings.wait(patience);
        let start = prof_os::clock::monotonic_ns();
        self.read();
        self.take(self.order.safe());
        self.order.next_pass(Ticks(start));
        if start - self.flushed >= FLUSH
            && let Some(r) = &mut self.recording
        {
            r.flush();
            self.flushed = start;
        }
    }

    /// Reads all rings.
    fn read(&mut self) {
        let Self { rings, tracepoints, order, stacks, threads, figures, .. } = self;
        let whose = match self.options.scope {
            Scope::Process(pid) => Some(pid),
            _ => None,
        };
        let no_numbers = Numbers::default();
        let numbers = match &mut self.source {
            Source::Perf { numbers, .. } => numbers,
            Source::Programs(programs) => {
                programs.read(stacks, |stacks, e| {
                    figures.events += 1;
                    let t = &tracepoints[e.tracepoint];
                    let change = Change::free(t.kind, e.time, e.address, e.size, self.page);
                    if !t.is_alloc {
                        order.push(change);
                    } else if e.pid == self.me {
                        figures.of_prof += 1;
                    } else if whose.is_some_and(|pid| pid != e.pid) {
                        // The programs' scope was another one before.
                    } else if t.kind == crate::Kind::Page && stacks.get(e.stack).is_own {
                        figures.own_pages += 1;
                    } else {
                        order.push(change.by(e.stack, threads.number(e.tid)));
                    }
                });
                &no_numbers
            }
        };
        for ring in &mut rings.all {
            figures.fullest = figures.fullest.max(ring.waiting());
            ring.read(|kind, body| match decode(kind, body, numbers, tracepoints) {
                Some(Record::Sample(s)) => {
                    figures.events += 1;
                    let t = &tracepoints[s.tracepoint];
                    if !t.is_alloc {
                        return order.push(Change::of(t, &s, self.page));
                    }
                    if s.pid == self.me {
                        figures.of_prof += 1;
                    } else if whose.is_none_or(|pid| pid == s.pid) {
                        let cache = t.cache.map_or(0, |c| stacks.cache(c.text(s.raw)));
                        let stack = stacks.number(cache, s.stack);
                        if t.kind == crate::Kind::Page && stacks.get(stack).is_own {
                            figures.own_pages += 1;
                        } else {
                            let thread = threads.number(s.tid);
                            order.push(Change::of(t, &s, self.page).by(stack, thread));
                        }
                    }
                }
                Some(Record::Lost(n)) => self.reported += n,
                Some(Record::Name(tid, name)) => threads.rename(tid, name),
                Some(Record::Fork(tid, by)) => threads.fork(tid, by),
                None => figures.damaged += u64::from(kind == crate::sample::RECORD_SAMPLE),
            });
        }
    }

    /// Applies what happened before a time, in order, and writes it.
    fn take(&mut self, before: u64) {
        let Self { order, live, recording, figures, stacks, .. } = self;
        let mut sink = order::Sink { live, recording: recording.as_mut(), figures, stacks };
        let first = order.take(Ticks(before), self.page, &mut sink);
        self.new_names();
        if let Some(r) = &mut self.recording {
            r.pass(Ticks(first), &mut self.stacks, &mut self.threads, &self.names);
        } else {
            self.stacks.new_code.clear();
            self.stacks.new_nodes.clear();
            self.threads.new.clear();
        }
    }

    /// Reads the kernel's functions again if a new address is in none of them.
    fn new_names(&mut self) {
        let now = prof_os::clock::monotonic_ns();
        if now - self.names_read < NAMES_AGAIN {
            return;
        }
        let unknown = |address: u64| {
            self.stacks.cache_name(address).is_none()
                && self.names.find(address).is_none_or(|f| f.offset > FAR)
        };
        if self.stacks.new_code.iter().any(|(_, address)| unknown(*address)) {
            self.names_read = now;
            match Names::read() {
                Ok(names) => self.names = names,
                Err(e) => log::warn!("{e}"),
            }
        }
    }

    /// Returns what is outstanding.
    pub fn outstanding(&self) -> &Outstanding {
        &self.live
    }

    /// Returns the frames of a stack, innermost first: address, and function if it is known.
    pub fn frames(&self, stack: u32) -> Vec<(u64, Option<KernelFunction<'_>>)> {
        let name = |address: u64| match self.stacks.cache_name(address) {
            Some(function) => Some(KernelFunction { function, offset: 0, module: "[slab]" }),
            None => self.names.find(address.wrapping_sub(1)),
        };
        self.stacks.get(stack).frames.iter().map(|a| (*a, name(*a))).collect()
    }

    /// Returns the counts so far.
    pub fn figures(&self) -> KernelStats {
        let mut f = self.figures;
        match &self.source {
            Source::Perf { opened, .. } => {
                (f.lost_allocations, f.lost_frees) = opened.lost(&self.tracepoints);
                if f.lost_allocations + f.lost_frees == 0 {
                    f.lost_allocations = self.reported;
                }
            }
            Source::Programs(p) => {
                let lost = p.lost();
                (f.lost_allocations, f.lost_frees) = (lost.allocations, lost.frees);
                f.lost_nested = lost.nested;
                (f.compared, f.wrong, f.damaged) = (p.compared, p.wrong, f.damaged + p.damaged);
                f.fullest = p.fullest;
            }
        }
        f.own_ns = prof_os::clock::process_ns() - self.cpu_at_start;
        f.elapsed_ns = prof_os::clock::monotonic_ns() - self.started;
        f
    }

    /// Returns the bytes of all rings together, and the number of processors.
    pub fn rings(&self) -> (u64, usize) {
        let n = self.rings.processors.len();
        (self.options.ring as u64 * n as u64, n)
    }

    /// Returns which way the kernel tells of allocations, and why it is perf events where it might have been the other.
    pub fn backend(&self) -> (Backend, Option<&str>) {
        match self.source {
            Source::Perf { .. } => (Backend::Perf, self.why_perf.as_deref()),
            Source::Programs(_) => (Backend::Bpf, None),
        }
    }

    /// Returns the error that ended the writing of the recording.
    pub fn failure(&self) -> Option<&std::io::Error> {
        self.recording.as_ref().and_then(Recording::failure)
    }

    /// Stops, reads what is left, and ends the recording with a reason as `prof_trace::records::End` has it.
    ///
    /// # Errors
    /// If the recording could not be written to its end.
    pub fn finish(&mut self, reason: &str) -> Result<(), Error> {
        match &mut self.source {
            Source::Perf { opened, .. } => opened.disable(),
            Source::Programs(p) => p.stop(),
        }
        self.read();
        self.take(u64::MAX);
        let f = self.figures();
        let Some(mut recording) = self.recording.take() else { return Ok(()) };
        let calls = match &self.source {
            Source::Perf { opened, .. } => opened.hits(&self.tracepoints),
            Source::Programs(p) => p.hits(),
        };
        recording.counters(&Counters {
            events: f.events,
            lost: f.lost_allocations + f.lost_frees,
            calls,
            ..Counters::default()
        });
        match recording.end(Ticks(prof_os::clock::monotonic_ns()), reason) {
            (Some(e), lost) => {
                Err(Error::io(format!("the recording lacks its last {lost} events"))(e))
            }
            (None, _) => Ok(()),
        }
    }
}

/// Starts the programs, unless they are not wanted, or can't be used and need not be: then says why.
fn programs(
    options: &Options,
    tracepoints: &[Tracepoint],
    names: &Names,
    stacks: &mut Stacks,
) -> Result<(Option<Box<Programs>>, Option<String>), Error> {
    if options.backend == Backend::Perf {
        return Ok((None, None));
    }
    match Programs::start(options, tracepoints, names, stacks, &sys::processors()) {
        Ok(p) => Ok((Some(Box::new(p)), None)),
        Err(why) if options.backend == Backend::Bpf => Err(Error::NoPrograms(why)),
        Err(why) => Ok((None, Some(why))),
    }
}

/// Writes the beginning of a recording.
fn begin(
    mut file: File,
    options: &Options,
    tracepoints: &[Tracepoint],
    started: u64,
    command: &str,
) -> Result<Recording, Error> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let target = Target {
        pid: options.scope.process().unwrap_or(Pid::NONE).as_u32(),
        exe: format!("Linux {}", release.trim()),
        cmdline: vec![command.into()],
        comm: "kernel".into(),
        arch: arch().into(),
        pointer_size: size_of::<usize>() as u32,
        page_size: prof_os::page_size() as u32,
        wall_ns: prof_os::clock::wall_ns(),
        start_ticks: Ticks(started),
        ticks_per_sec: 1_000_000_000,
        prof_version: env!("CARGO_PKG_VERSION").into(),
        sample_every: if options.sample_every > 1 { options.sample_every } else { 0 },
        min_size: options.min_size,
        max_size: options.max_size,
        ..Target::default()
    };
    let hook = |(i, t): (usize, &Tracepoint)| Hook {
        index: i as u32,
        function: t.name.into(),
        module: crate::names::KERNEL.into(),
        method: "tracepoint".into(),
    };
    let hooked = tracepoints.iter().enumerate().map(hook).collect();
    let hooks = Hooks { hooked, not_hooked: Vec::new() };
    prof_collect::write_prologue(&mut file, &target, &hooks)
        .map_err(Error::io("cannot write the recording"))?;
    Recording::new(file)
}

/// Returns the architecture's name in recordings.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "mips64" if cfg!(target_endian = "little") => "mips64el",
        other => other,
    }
}
