//! Lets the kernel run programs at its tracepoints, which write less than perf events do and mostly need not unwind the
//! stack.
//!
//! Programs, maps and what ties them to tracepoints are descriptors, so nothing stays when this process ends.

mod asm;
mod btf;
mod calibrate;
mod facts;
mod layout;
mod memo;
mod programs;
mod record;
mod ring;
mod sys;

use crate::live::Kind;
use crate::names::Names;
use crate::recorder::Options;
use crate::stacks::Stacks;
use crate::tasks::Scope;
use crate::tracepoints::Tracepoint;
use btf::Btf;
use facts::{Arguments, Facts};
use layout::*;
use memo::{Memo, Memory, Places, Table};
use prof_os::Pid;
use prof_trace::ticks::Ticks;
use programs::{Maps, Purpose, Which};
use ring::Ring;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use sys::{MapType, Size};

/// Bytes that a processor's events take in a microsecond at most.
const RATE: usize = 96;
/// Unless one of these bits of the time is set, a known stack is unwound, too.
const COMPARED_BITS: u64 = 0xff;
/// The namespace of process numbers that the machine begins with, in which programs are told numbers.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// An allocation or a free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Index of its tracepoint.
    pub tracepoint: usize,
    /// `CLOCK_MONOTONIC`, in ns.
    pub time: Ticks,
    /// The address, or the number of a page.
    pub address: u64,
    /// Size in bytes, or order of pages.
    pub size: u64,
    /// Number of the stack; 0 for a free.
    pub stack: u32,
    /// The process and the thread; 0 for a free.
    pub pid: Pid,
    pub tid: Pid,
}

/// Numbers of events that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub allocations: u64,
    pub frees: u64,
    /// Those of both that came while the recording of another one was interrupted.
    pub nested: u64,
}

/// The programs at the kernel's tracepoints.
#[derive(Debug)]
pub(crate) struct Programs {
    rings: Vec<Ring>,
    memo: Memo,
    facts: Facts,
    state: OwnedFd,
    /// The copies of the program of each tracepoint.
    copies: Vec<Vec<OwnedFd>>,
    /// What ties programs to tracepoints: those of frees first.
    links: Vec<OwnedFd>,
    /// All other descriptors.
    kept: Vec<OwnedFd>,
    ring: usize,
    /// Address of the description of page 0; `None`: events tell addresses of descriptions, and no numbers.
    first_page: Option<u64>,
    kinds: Vec<(Kind, bool)>,
    /// What was lost before the recording began; see [`Programs::gone`].
    before: [i64; 4],
    /// How often each tracepoint was passed before.
    hits_before: Vec<u64>,
    /// Stacks that were compared, and those of them that were others.
    pub compared: u64,
    pub wrong: u64,
    /// Records that could not be decoded.
    pub damaged: u64,
    /// Greatest number of bytes that waited in a ring.
    pub fullest: u64,
}

/// Says why this machine or recording needs the other way, if that can be told beforehand.
fn unsuited(scope: &Scope) -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("its programs are for AMD64".into());
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if release.split('.').next().and_then(|major| major.parse().ok()).is_none_or(|n: u32| n > 6) {
        // The copies of a program would run on different processors.
        return Err("from Linux 7.0 on threads take turns in the midst of a tracepoint".into());
    }
    match scope {
        Scope::Family(_) => return Err("it can't follow the children of a command".into()),
        Scope::Cgroup(_) => return Err("it can't tell a cgroup's tasks".into()),
        Scope::Machine | Scope::Process(_) => {}
    }
    match std::fs::read_link("/proc/self/ns/pid") {
        Ok(name) if name.to_str() == Some(FIRST_NAMESPACE) => Ok(()),
        Ok(_) => Err("prof is in a container with numbers of processes of its own".into()),
        Err(e) => Err(format!("cannot read /proc/self/ns/pid: {e}")),
    }
}

impl Programs {
    /// Loads the programs and starts them; only what this process allocates is recorded so far.
    ///
    /// # Errors
    /// If the kernel or the scope does not allow it; says why.
    pub(crate) fn start(
        options: &Options,
        tracepoints: &[Tracepoint],
        names: &Names,
        stacks: &mut Stacks,
        processors: &[u32],
    ) -> Result<Self, String> {
        unsuited(&options.scope)?;
        let btf = Btf::read().map_err(|e| format!("the kernel's BTF can't be read ({e})"))?;
        let facts = Facts::new(&btf)?;
        let arguments: Result<Vec<Arguments>, String> =
            tracepoints.iter().map(|t| Arguments::new(&btf, t)).collect();
        drop(btf);
        let refused = |e: io::Error| format!("the kernel refuses BPF maps ({e})");
        let mut kept = Vec::new();
        let rings = rings(options.ring, processors, &mut kept).map_err(refused)?;
        let one = |value: usize| Size { value: value as u32, entries: 1 };
        let state = sys::map(MapType::PerCpuArray, one(STATE), 0, None).map_err(refused)?;
        let array = sys::map(MapType::Array, one(TABLE), sys::MMAPABLE, None).map_err(refused)?;
        let table = Table::map(&array).map_err(refused)?;
        table.set(SCOPE, u64::from(Pid::this().as_u32()));
        table.set(EVERY, 1);
        table.set(COMPARED, COMPARED_BITS);
        for limits in [SIZES, ORDERS] {
            table.set(limits, 0);
            table.set(limits + 8, u64::MAX);
        }
        let maps = Maps {
            rings: kept[0].as_raw_fd(),
            state: state.as_raw_fd(),
            table: array.as_raw_fd(),
            scratch: -1,
        };
        kept.push(array);
        let mut all = Self {
            memo: Memo::new(table, Places::new(names)),
            rings,
            facts,
            state,
            copies: Vec::new(),
            links: Vec::new(),
            kept,
            before: [0; 4],
            hits_before: Vec::new(),
            ring: options.ring,
            first_page: None,
            kinds: tracepoints.iter().map(|t| (t.kind, t.is_alloc)).collect(),
            compared: 0,
            wrong: 0,
            damaged: 0,
            fullest: 0,
        };
        all.run(tracepoints, &arguments?, maps)?;
        if options.what.pages {
            let page = prof_os::page_size();
            all.first_page = Some(calibrate::first_page(&mut all, stacks, page)?);
        }
        // A stack's memory has to fit into a ring several times.
        if options.ring >= 16 * SCRATCH {
            all.memo.begin();
        }
        Ok(all)
    }

    /// Loads the programs, and lets tracepoints run them.
    fn run(
        &mut self,
        tracepoints: &[Tracepoint],
        arguments: &[Arguments],
        maps: Maps,
    ) -> Result<(), String> {
        for (index, (t, arguments)) in tracepoints.iter().zip(arguments).enumerate() {
            let mut copies = Vec::new();
            for copy in Which::ALL {
                let purpose = Purpose { tracepoint: t, index, arguments: *arguments, copy };
                copies.push(load(&purpose, maps, &self.facts, &mut self.kept)?);
            }
            match sys::passed_over(&copies[0]) {
                Ok(Some(_)) => self.copies.push(copies),
                Ok(None) => return Err("the kernel does not count what programs miss".into()),
                Err(e) => return Err(format!("the kernel does not tell of programs ({e})")),
            }
        }
        // Frees come first, so that none is missed.
        for is_alloc in [false, true] {
            for (t, copies) in tracepoints.iter().zip(&self.copies) {
                if t.is_alloc == is_alloc {
                    self.links.extend(attach(t, copies)?);
                }
            }
        }
        // A first copy that ran before the others were there has made an owner whose time nobody has ended.
        let zeros = vec![0; possible_processors() * STATE / 8];
        let refused = |e| format!("the kernel does not take counts back ({e})");
        sys::write_each(&self.state, &zeros).map_err(refused)
    }

    /// Records what the options ask for from now on.
    pub(crate) fn begin(&mut self, options: &Options, tracepoints: &[Tracepoint]) {
        self.before = self.gone();
        self.hits_before = self.hits_in_all();
        self.fullest = 0;
        let table = &self.memo.table;
        let page = prof_os::page_size();
        for t in tracepoints {
            let limits = if t.kind == Kind::Page { ORDERS } else { SIZES };
            if let Some((least, most)) = t.sizes(options.min_size, options.max_size, page) {
                table.set(limits, least);
                table.set(limits + 8, most);
            }
        }
        table.set(EVERY, options.sample_every);
        let pid = options.scope.process().unwrap_or(Pid::NONE);
        table.set(SCOPE, u64::from(pid.as_u32()));
    }

    /// Stops the programs.
    pub(crate) fn stop(&mut self) {
        // Allocations come first, and first copies before those that do for them.
        for of_one in self.links.rchunks_mut(Which::ALL.len()) {
            of_one.reverse();
        }
        while self.links.pop().is_some() {}
    }

    /// Returns how long a reader may wait lest a ring gets full.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_micros((self.ring / 8 / RATE) as u64).max(Duration::from_millis(1))
    }

    /// Passes each event that waits to `f`, with its stack among `stacks`.
    pub(crate) fn read(&mut self, stacks: &mut Stacks, mut f: impl FnMut(&Stacks, &Event)) {
        let first_page = self.first_page;
        let Self { rings, memo, kinds, compared, wrong, damaged, fullest, .. } = self;
        let page = u64::from(self.facts.page);
        let mut frames = Vec::new();
        for ring in rings {
            *fullest = (*fullest).max(ring.waiting());
            ring.read(|bytes| {
                let decoded = record::decode(bytes);
                let Some((r, (kind, is_alloc))) =
                    decoded.and_then(|r| Some((r, *kinds.get(r.tracepoint)?)))
                else {
                    *damaged += 1;
                    return;
                };
                let (mut stack, mut size) = (r.number, r.size);
                if !is_alloc {
                    (stack, size) = (0, u64::from(r.number));
                } else if let Some(w) = r.whole
                    // The kernel may be unable to unwind a known one.
                    && (stack == u32::MAX || !w.frames.is_empty())
                {
                    let cache = if w.cache.is_empty() { 0 } else { stacks.cache(w.cache) };
                    let trimmed = memo.places.trim(w.frames);
                    let number = stacks.number(cache, trimmed);
                    if stack != u32::MAX {
                        *compared += 1;
                        if stack != number {
                            *wrong += 1;
                            memo.give_up();
                        }
                    } else if !w.memory.is_empty() {
                        frames.clear();
                        frames.extend(trimmed.iter().map(|a| u64::from_ne_bytes(*a)));
                        let memory = Memory { base: w.base, words: w.memory };
                        memo.learn(w.first, &frames, memory, number);
                    }
                    stack = number;
                } else if !stacks.has(stack) {
                    *damaged += 1;
                    return;
                }
                let address = match (kind, first_page) {
                    (Kind::Page, Some(first)) => r.address.wrapping_sub(first) / page,
                    _ => r.address,
                };
                let (tracepoint, time, pid, tid) = (r.tracepoint, r.time, r.pid, r.tid);
                f(stacks, &Event { tracepoint, time, address, size, stack, pid, tid });
            });
        }
    }

    fn counts(&self) -> Vec<[u64; STATE / 8]> {
        let mut all = vec![0; possible_processors() * STATE / 8];
        if let Err(e) = sys::read_each(&self.state, &mut all) {
            log::warn!("cannot read the counts of lost events: {e}");
        }
        all.as_chunks().0.to_vec()
    }

    /// Returns how much was lost since the recording began.
    pub(crate) fn lost(&self) -> Lost {
        let (all, before) = (self.gone(), self.before);
        let since = |i: usize| (all[i] - before[i]).max(0).cast_unsigned();
        let (allocations, frees) = (since(2), since(3));
        Lost {
            allocations: since(0) + allocations,
            frees: since(1) + frees,
            nested: allocations + frees,
        }
    }

    /// Returns how many allocations and frees were lost as a ring was full, then how many were not recorded by the other
    /// copies when the first one was passed over. The latter can't be read at one moment, and may be some too few.
    fn gone(&self) -> [i64; 4] {
        let mut gone = [0; 4];
        // The kernel's counts come first: what was passed over has been taken by another copy soon after.
        let passed = |copies: &Vec<OwnedFd>| match sys::passed_over(&copies[0]) {
            Ok(n) => n.unwrap_or(0).cast_signed(),
            Err(e) => {
                log::warn!("cannot read how many events programs have missed: {e}");
                0
            }
        };
        let passed: Vec<i64> = self.copies.iter().map(passed).collect();
        let counts = self.counts();
        let sum = |at: usize| counts.iter().map(|c| c[at].cast_signed()).sum::<i64>();
        gone[0] = sum(FULL_ALLOCS as usize / 8);
        gone[1] = sum(FULL_FREES as usize / 8);
        for (i, (passed, (_, is_alloc))) in passed.iter().zip(&self.kinds).enumerate() {
            gone[if *is_alloc { 2 } else { 3 }] += passed - sum(first_hit(i) + 1);
        }
        gone
    }

    /// Returns how often each tracepoint was passed since the recording began.
    pub(crate) fn hits(&self) -> Vec<u64> {
        let mut hits = self.hits_in_all();
        hits.iter_mut().zip(&self.hits_before).for_each(|(n, before)| *n -= before);
        hits
    }

    fn hits_in_all(&self) -> Vec<u64> {
        let mut hits = vec![0; self.kinds.len()];
        for c in self.counts() {
            for (i, n) in hits.iter_mut().enumerate() {
                *n += c[first_hit(i)..first_hit(i) + KINDS].iter().sum::<u64>();
            }
        }
        hits
    }
}

/// Returns how many processors there may be, for each of which an array has room.
fn possible_processors() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    crate::sys::parse_list(&text).len().max(1)
}

/// Returns the number of the first word that counts the events of a tracepoint.
fn first_hit(tracepoint: usize) -> usize {
    HITS as usize / 8 + tracepoint * WORDS as usize
}

/// Makes the rings of all processors; the first of the descriptors is the array of rings.
fn rings(len: usize, processors: &[u32], kept: &mut Vec<OwnedFd>) -> io::Result<Vec<Ring>> {
    let size = Size { value: 0, entries: len as u32 };
    let mut all = Vec::new();
    let mut mapped = Vec::new();
    for _ in processors {
        let ring = sys::map(MapType::RingBuf, size, 0, None)?;
        mapped.push(Ring::map(&ring, len, prof_os::page_size() as usize)?);
        all.push(ring);
    }
    let count = processors.iter().max().map_or(1, |n| n + 1);
    let size = Size { value: 4, entries: count };
    let array = sys::map(MapType::ArrayOfMaps, size, 0, all.first())?;
    for (processor, ring) in processors.iter().zip(&all) {
        sys::put_map(&array, *processor, ring)?;
    }
    kept.push(array);
    kept.extend(all);
    Ok(mapped)
}

/// Lets a tracepoint run the copies of its program, in their order.
fn attach(t: &Tracepoint, copies: &[OwnedFd]) -> Result<Vec<OwnedFd>, String> {
    let name = t.name.rsplit(':').next().unwrap_or(t.name);
    let refused = |e| format!("the kernel refuses a program at {} ({e})", t.name);
    copies.iter().map(|program| sys::attach(name, program).map_err(refused)).collect()
}

/// Loads a program. One for allocations gets room of its own.
fn load(
    purpose: &Purpose<'_>,
    mut maps: Maps,
    facts: &Facts,
    kept: &mut Vec<OwnedFd>,
) -> Result<OwnedFd, String> {
    let name = purpose.tracepoint.name;
    if purpose.tracepoint.is_alloc {
        let size = Size { value: SCRATCH as u32, entries: 1 };
        let scratch = sys::map(MapType::PerCpuArray, size, 0, None);
        let scratch = scratch.map_err(|e| format!("the kernel refuses BPF maps ({e})"))?;
        maps.scratch = scratch.as_raw_fd();
        kept.push(scratch);
    }
    let code = programs::assemble(purpose, maps, facts).map_err(|e| format!("{name}: {e}"))?;
    sys::program("prof_kernel", &code).map_err(|(e, said)| {
        let said = if said.is_empty() { said } else { format!(": {said}") };
        format!("the kernel refuses the program for {name} ({e}{said})")
    })
}

#[cfg(test)]
mod tests;
