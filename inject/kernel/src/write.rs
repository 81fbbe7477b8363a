//! Writes a recording.

use crate::Error;
use crate::names::{KernelFunction, Names};
use crate::stacks::{CACHES, Stacks};
use crate::tasks::Threads;
use prof_collect::Output;
use prof_trace::derived::{Frames, NamedAddress, NamedFrame};
use prof_trace::event::{Codec, Event};
use prof_trace::pack::Compress;
use prof_trace::records::{Counters, End, Module, NodeRun, Pass, Pcs, Thread, kind};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::fs::File;

/// Name of the module of the frames that name a slab cache.
const SLAB: &str = "[slab]";
/// Largest number of events in a run: fewer than a packed chunk holds.
const RUN: usize = 1 << 14;

/// A recording that is being written.
#[derive(Debug)]
pub(crate) struct Recording {
    out: Output,
    /// Events that are to be written, by the number of their thread.
    events: Vec<Vec<Event>>,
    /// Threads that have some.
    busy: Vec<u32>,
    modules: HashMap<String, u32>,
    pass: u64,
}

impl Recording {
    /// Appends to a file with a prologue.
    pub(crate) fn new(file: File) -> Result<Self, Error> {
        let mut out = Output::new(file)?;
        out.set_compress(Compress::Fast);
        Ok(Self { out, events: Vec::new(), busy: Vec::new(), modules: HashMap::new(), pass: 0 })
    }

    /// Adds an event. They come in the order of time.
    #[inline]
    pub(crate) fn push(&mut self, thread: u32, event: Event) {
        let i = thread as usize;
        if self.events.len() <= i {
            self.events.resize_with(i + 1, Vec::new);
        }
        if self.events[i].is_empty() {
            self.busy.push(thread);
        }
        self.events[i].push(event);
    }

    /// Writes all that was added, behind what it refers to. `start` is a time before which no later event lies.
    pub(crate) fn pass(
        &mut self,
        start: Ticks,
        stacks: &mut Stacks,
        threads: &mut Threads,
        names: &Names,
    ) {
        let pass = Pass { number: self.pass, ticks: start, clock_ns: start.0, ..Pass::default() };
        self.pass += 1;
        self.out.put(kind::PASS, &pass.encode());
        for (number, tid, name) in threads.new.drain(..) {
            self.out.put(kind::THREAD, &Thread { number, tid: tid.as_u32(), name }.encode());
        }
        self.code(stacks, names);
        let mut run = NodeRun::default();
        stacks.new_nodes.drain(..).for_each(|(id, parent, code)| run.push(id, parent, code));
        if !run.pairs.is_empty() {
            self.out.put(kind::NODE_RUN, &run.encode());
        }
        self.put_events();
        if self.out.is_full() {
            self.out.flush();
        }
    }

    /// Writes everything to the file.
    pub(crate) fn flush(&mut self) {
        self.out.flush();
    }

    fn put_events(&mut self) {
        for thread in self.busy.drain(..) {
            let events = std::mem::take(&mut self.events[thread as usize]);
            for run in events.chunks(RUN) {
                let from = Codec { time: run[0].time(), ..Codec::default() };
                // The packer counts two bytes for each event.
                let mut packing =
                    self.out.packer(2 * run.len()).begin::<true>(thread, &from, 2 * run.len());
                for event in run {
                    event.show(&mut packing);
                }
                packing.end();
            }
        }
    }

    /// Writes new code addresses and their names.
    fn code(&mut self, stacks: &mut Stacks, names: &Names) {
        if stacks.new_code.is_empty() {
            return;
        }
        let (mut pcs, mut frames) = (Pcs::default(), Frames::default());
        let mut strings: HashMap<String, u32> = HashMap::new();
        for (id, address) in std::mem::take(&mut stacks.new_code) {
            let cache = stacks.cache_name(address).filter(|_| address < 1 << 31);
            let named = names.find(address.wrapping_sub(1));
            let (module, function, offset) = match (cache, named) {
                (Some(cache), _) => (SLAB, cache, None),
                (None, Some(KernelFunction { function, offset, module })) => {
                    (module, function, Some(offset + 1))
                }
                (None, None) => ("", "", None),
            };
            let module = self.module(module, names);
            pcs.triples.extend([id.into(), address, module.into()]);
            if function.is_empty() {
                continue;
            }
            let next = strings.len() as u32 + 1;
            let function = *strings.entry(function.into()).or_insert_with(|| {
                frames.strings.push(function.into());
                next
            });
            let frame = NamedFrame { function, offset, ..NamedFrame::default() };
            frames.addresses.push(NamedAddress {
                address,
                module,
                exact: false,
                frames: vec![frame],
            });
        }
        self.out.put(kind::PCS, &pcs.encode());
        self.out.put(kind::FRAMES, &frames.encode());
    }

    /// Returns the number of a module, which is written first if it is new; 0 without a name.
    fn module(&mut self, path: &str, names: &Names) -> u32 {
        if path.is_empty() {
            return 0;
        }
        if let Some(n) = self.modules.get(path) {
            return *n;
        }
        let number = self.modules.len() as u32 + 1;
        self.modules.insert(path.into(), number);
        let (start, end) = names.extent(path).unwrap_or((CACHES, 1 << 31));
        let module = Module { number, start, end, path: path.into(), ..Module::default() };
        self.out.put(kind::MODULE, &module.encode());
        number
    }

    /// Writes totals.
    pub(crate) fn counters(&mut self, counters: &Counters) {
        self.out.put(kind::COUNTERS, &counters.encode());
    }

    /// Ends the recording. Returns the error that ended the writing, and the number of events that it has cost.
    pub(crate) fn end(mut self, ticks: Ticks, reason: &str) -> (Option<std::io::Error>, u64) {
        // Events of the last pass come first: behind an end, they would mean that somebody has continued the recording.
        self.out.flush();
        self.out.put(kind::END, &End { ticks, reason: reason.into() }.encode());
        self.out.flush();
        (self.out.take_failure(), self.out.lost())
    }

    /// Returns the error that ended the writing.
    pub(crate) fn failure(&self) -> Option<&std::io::Error> {
        self.out.failure()
    }
}
