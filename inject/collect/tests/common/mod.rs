//! A ring, threads that write to it as the hook does, and a reader of recordings.
#![allow(dead_code)] // each test binary uses its part
#![allow(missing_docs)]

use prof_os::Pid;
use prof_trace::call::RawCall;
use prof_trace::chunk::{self, FILE_HEADER, Next};
use prof_trace::derived::Zipped;
use prof_trace::event::Event;
use prof_trace::ids::{PcId, SegmentNode};
use prof_trace::pack::{Packed, Unpacker};
use prof_trace::records::{
    Allocators, Call, Calls, Counters, End, Events, Hooks, Memory, Module, NodeRun, Pass, Pcs,
    Process, Symbols, Target, Thread, Toggle, kind,
};
use prof_trace::ring::{self, SEGMENT_FULL};
use prof_trace::shared::{Geometry, LAYOUT, MAGIC, SEGMENT_SIZE, Shared, clock, slot, state};
use prof_trace::ticks::Ticks;
use prof_trace::{event::Codec, pcs};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, Release};

pub(crate) fn new_ring(bytes: usize) -> Shared<'static> {
    let geometry = Geometry::for_ring(bytes);
    // SAFETY: the name is a valid C string; the result is a new descriptor that nothing else owns.
    let fd = unsafe {
        let fd = libc::memfd_create(prof_trace::shared::MEMFD_CNAME.as_ptr(), 0);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    };
    let file = File::from(fd);
    file.set_len(geometry.size() as u64).expect("size");
    let mut head = MAGIC.to_ne_bytes().to_vec();
    head.extend(LAYOUT.to_ne_bytes());
    head.extend((geometry.segments() as u32).to_ne_bytes());
    file.write_all_at(&head, 0).expect("head");
    let shared = prof_collect::map_ring(file.into()).expect("ring");
    // SAFETY: the ring is new, so nothing else refers to its control page yet.
    let c = unsafe { shared.control_mut() };
    c.clock.store(if COUNTER { clock::COUNTER } else { clock::SYSCALL }, Relaxed);
    let per_sec = if COUNTER { 250_000_000 } else { 1_000_000_000 };
    c.ticks_per_sec.store(per_sec, Relaxed);
    c.ring_addr.store(shared.base() as u64, Relaxed);
    c.ring_len.store(geometry.size() as u64, Relaxed);
    c.states_count = 8192;
    c.next_thread = 1.into();
    c.state = state::ATTACHED.into();
    ring::fill(&shared);
    shared
}

/// Whether tests read the processor's counter: on other architectures it wraps within seconds, or does not exist.
const COUNTER: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Returns the time by the clock that the control page names.
pub(crate) fn now() -> u64 {
    if COUNTER {
        return prof_arch::native::capture::counter();
    }
    prof_os::clock::monotonic_ns()
}

/// Writes events as a thread's hook does. It does not allocate.
pub(crate) struct Writer {
    pub shared: Shared<'static>,
    pub index: usize,
    pub serial: u32,
    pub tid: u32,
    seq: u64,
    segment: Option<usize>,
    pos: usize,
    codec: Codec,
    /// Nodes defined in the segment: the outer frames that all stacks share, and (stack, node) pairs.
    outer: [u32; 64],
    leaves: [(u32, u32); 1024],
}

impl Writer {
    /// Takes slot `index`, which must be free.
    pub(crate) fn new(shared: Shared<'static>, index: usize) -> Self {
        // SAFETY: `gettid` takes no arguments and always succeeds.
        let tid = unsafe { libc::gettid() } as u32;
        let serial = shared.control().next_thread.fetch_add(1, Relaxed);
        shared.note_slot(index);
        let s = shared.slot(index).expect("slot");
        s.tid.store(tid, Relaxed);
        s.serial.store(serial, Relaxed);
        s.tp.store(serial as u64 * 4096, Relaxed);
        s.state.store(slot::LIVE, Release);
        Self {
            shared,
            index,
            serial,
            tid,
            seq: 0,
            segment: None,
            pos: usize::MAX,
            codec: Codec::default(),
            outer: [0; 64],
            leaves: [(0, 0); 1024],
        }
    }

    /// Returns the node of a stack in the segment; defines it if necessary.
    fn node(&mut self, stack: u32) -> u32 {
        if stack == 0 {
            return 0;
        }
        let place = stack.wrapping_mul(0x9e37_79b9) as usize >> 22;
        if self.leaves[place].0 == stack {
            return self.leaves[place].1;
        }
        let mut parent = 0;
        for i in 0..(stack >> 21) - 1 {
            if self.outer[i as usize] == 0 {
                self.outer[i as usize] = self.define(parent, pc_id(&self.shared, outer_pc(i)));
            }
            parent = self.outer[i as usize];
        }
        let node = self.define(parent, stack & ((1 << 21) - 1));
        self.leaves[place] = (stack, node);
        node
    }

    fn define(&mut self, parent: u32, pc: u32) -> u32 {
        let data = self.shared.data(self.segment.expect("a segment")).expect("data");
        assert!(self.pos < SEGMENT_SIZE - 64);
        // SAFETY: the segment has room for more than a definition from `pos` on.
        self.pos += unsafe {
            self.codec.put_define(data.add(self.pos), SegmentNode(parent), [pc, 0, 0].map(PcId))
        };
        self.codec.defined
    }

    /// Writes an event with a stack of at most 40 code address IDs, from the root inwards. `seen` holds the nodes that
    /// the segment has defined, by (parent, code address).
    pub(crate) fn put_stack(
        &mut self,
        e: &Event,
        stack: &[u32],
        seen: &mut HashMap<(u32, u32), u32>,
    ) {
        if self.make_room() {
            seen.clear();
        }
        let mut at = 0;
        for pc in stack {
            at = *seen.entry((at, *pc)).or_insert_with(|| self.define(at, *pc));
        }
        self.append(e, at);
    }

    pub(crate) fn put(&mut self, e: &Event) {
        self.make_room();
        let node = self.node(e.node());
        self.append(e, node);
    }

    /// Writes a call that changes mappings, with a stack.
    pub(crate) fn put_call(&mut self, call: &RawCall) {
        self.make_room();
        let node = self.node(call.node);
        let Some(s) = self.segment else { return };
        let (Some(data), Some(head)) = (self.shared.data(s), self.shared.head(s)) else { return };
        // SAFETY: `make_room` leaves room for more than an event.
        self.pos += unsafe { self.codec.put_call(data.add(self.pos), &RawCall { node, ..*call }) };
        ring::commit(head, self.pos);
        self.shared.slot(self.index).expect("slot").events.fetch_add(1, Relaxed);
    }

    /// Makes room for a definition of 40 nodes and an event; returns true if that took a new segment.
    fn make_room(&mut self) -> bool {
        let full = self.pos > SEGMENT_FULL - 512;
        if full {
            if let Some(s) = self.segment {
                ring::close(&self.shared, s);
            }
            let s = loop {
                match ring::take(&self.shared, self.index + self.seq as usize) {
                    Some(s) => break s,
                    None => std::thread::yield_now(),
                }
            };
            self.seq += 1;
            ring::open(&self.shared, s, self.index as u32, self.serial, self.tid, self.seq);
            (self.segment, self.pos, self.codec) = (Some(s), 0, Codec::default());
            self.outer.fill(0);
            self.leaves.fill((0, 0));
        }
        full
    }

    fn append(&mut self, e: &Event, node: u32) {
        let Some(s) = self.segment else { return };
        let (Some(data), Some(head)) = (self.shared.data(s), self.shared.head(s)) else { return };
        assert!(self.pos < SEGMENT_SIZE);
        // SAFETY: `pos` is at most SEGMENT_FULL, which leaves room for an event.
        let n = unsafe {
            let at = data.add(self.pos);
            match *e {
                Event::Alloc { time, addr, size, .. } => {
                    self.codec.put_alloc(at, time, addr, size, node)
                }
                Event::Free { time, addr, .. } => self.codec.put_free(at, time, addr, node),
                Event::Realloc { time_before, time, old, addr, size, .. } => {
                    self.codec.put_realloc(at, time_before, time, old, addr, size, node)
                }
            }
        };
        self.pos += n;
        ring::commit(head, self.pos);
        self.shared.slot(self.index).expect("slot").events.fetch_add(1, Relaxed);
    }
}

/// Returns event number `i` of a thread, which follows from the number but for its time.
pub(crate) fn event(serial: u32, i: u64, node: u32) -> Event {
    let addr = 0x7f00_0000_0000 + (serial as u64) * 0x100_0000 + (i % 1000) * 64;
    let time = now();
    match i % 5 {
        0 | 2 => Event::Alloc { time: Ticks(time), addr, size: i.into(), node },
        1 | 3 => Event::Free { time: Ticks(time), addr, node: 0 },
        _ => Event::Realloc {
            time_before: Ticks(time - 50),
            time: Ticks(time),
            old: addr,
            addr: addr + 8,
            size: i.into(),
            node,
        },
    }
}

/// Returns whether `e` was made by `event(serial, i, _)`.
pub(crate) fn is_event(e: &Event, serial: u32, i: u64) -> bool {
    let of = |node| event(serial, i, node);
    match (*e, of(0)) {
        (Event::Alloc { addr, size, .. }, Event::Alloc { addr: a, size: s, .. }) => {
            (addr, size) == (a, s)
        }
        (Event::Free { addr, .. }, Event::Free { addr: a, .. }) => addr == a,
        (
            Event::Realloc { addr, size, old, .. },
            Event::Realloc { addr: a, size: s, old: o, .. },
        ) => (addr, size, old) == (a, s, o),
        _ => false,
    }
}

/// Returns a stack of `depth` frames for [`Writer::put`]: its innermost code address ID, and the depth.
pub(crate) fn stack(shared: &Shared, leaf: u64, depth: u32) -> u32 {
    (0..depth).for_each(|i| {
        pc_id(shared, outer_pc(i));
    });
    pc_id(shared, leaf) | depth << 21
}

fn outer_pc(i: u32) -> u64 {
    0x40_0000 + u64::from(i) * 16
}

pub(crate) fn pc_id(shared: &Shared, pc: u64) -> u32 {
    match pcs::add_pc(shared, pc, if pc < 0x1_0000_0000 { 1 } else { 2 }) {
        pcs::Found::Id(id) => id.0,
        full => panic!("{full:?}"),
    }
}

/// The decoded contents of a recording.
#[derive(Default)]
pub(crate) struct Recording {
    pub target: Option<Target>,
    pub hooks: Option<Hooks>,
    pub events: BTreeMap<u32, Vec<Event>>,
    pub calls: Vec<(u32, Call)>,
    pub nodes: BTreeMap<u32, (u32, u32)>,
    pub pcs: BTreeMap<u32, (u64, u16)>,
    pub threads: BTreeMap<u32, Thread>,
    pub modules: BTreeMap<u32, Module>,
    pub symbols: BTreeMap<u32, Symbols>,
    pub toggles: Vec<Toggle>,
    pub passes: Vec<Pass>,
    pub counters: Option<Counters>,
    pub end: Option<End>,
    pub len: usize,
    /// Number of events in packed chunks.
    pub packed: u64,
    /// Number of events whose node was not defined before them.
    pub unknown_nodes: u64,
    /// Number of events older than the pass before the one that they follow.
    pub late: u64,
}

pub(crate) fn read(path: &Path) -> Recording {
    let bytes = std::fs::read(path).expect("recording");
    chunk::check_header(&bytes).expect("header");
    let mut r = Recording { len: bytes.len(), ..Default::default() };
    let mut at = FILE_HEADER;
    while let Next::Chunk(k, payload, n) = chunk::next(&bytes[at..]) {
        at += n;
        r.chunk(k, payload).expect("a payload");
    }
    assert_eq!(at, bytes.len(), "all chunks are whole");
    r
}

impl Recording {
    fn chunk(&mut self, k: u16, p: &[u8]) -> Option<()> {
        match k {
            kind::TARGET => self.target = Some(Target::decode(p)?),
            kind::HOOKS => self.hooks = Some(Hooks::decode(p)?),
            kind::PASS => self.passes.push(Pass::decode(p)?),
            kind::TOGGLE => self.toggles.push(Toggle::decode(p)?),
            kind::COUNTERS => self.counters = Some(Counters::decode(p)?),
            kind::END => self.end = Some(End::decode(p)?),
            kind::THREAD => {
                let t = Thread::decode(p)?;
                self.threads.insert(t.number, t);
            }
            kind::MODULE => {
                let m = Module::decode(p)?;
                self.modules.insert(m.number, m);
            }
            kind::SYMBOLS => {
                let s = Symbols::decode(p)?;
                self.symbols.insert(s.module, s);
            }
            kind::PCS => {
                for t in Pcs::decode(p)?.triples.as_chunks::<3>().0 {
                    self.pcs.insert(t[0] as u32, (t[1], t[2] as u16));
                }
            }
            kind::NODE_RUN => {
                for t in NodeRun::decode(p)?.nodes()?.triples.as_chunks::<3>().0 {
                    assert!(t[1] == 0 || self.nodes.contains_key(&(t[1] as u32)), "parent first");
                    let node = (t[1] as u32, t[2] as u32);
                    assert_eq!(self.nodes.insert(t[0] as u32, node), None, "an id means one node");
                }
            }
            kind::ZIPPED => {
                let zipped = Zipped::decode(p)?;
                assert!([kind::NODE_RUN, kind::MAPPINGS].contains(&zipped.kind), "{}", zipped.kind);
                self.chunk(zipped.kind, &zipped.unzip()?)?;
            }
            kind::EVENTS => self.events_chunk(&Events::decode(p)?),
            kind::PACKED => {
                let packed = Packed::read(p)?;
                let all = Unpacker::default()
                    .unpack(&packed, |run, e| self.event(packed.runs[run].thread, e));
                assert!(all.is_some(), "the events of a packed chunk");
                self.packed += packed.events() as u64;
            }
            kind::MEMORY => {
                let m = Memory::decode(p)?;
                assert!(m.rss > 0 && !m.heaps.is_empty(), "our own memory");
            }
            kind::PROCESS => {
                let p = Process::decode(p)?;
                assert!(p.private > 0, "our own memory");
            }
            kind::MAPPINGS => {
                prof_trace::records::Mappings::decode(p)?;
            }
            kind::CALLS => self.calls.extend(Calls::decode(p)?.calls),
            kind::ALLOCATORS => {
                let a = Allocators::decode(p)?;
                assert!(a.found.len().is_multiple_of(3), "our own allocators");
            }
            kind::CALL_FILE => {
                prof_trace::records::CallFile::decode(p)?;
            }
            kind::BOUNDS => {
                prof_trace::records::Bounds::decode(p)?;
            }
            kind::THREADS_LEFT => {
                prof_trace::records::ThreadsLeft::decode(p)?;
            }
            other => panic!("chunk kind {other}"),
        }
        Some(())
    }

    fn events_chunk(&mut self, e: &Events) {
        let (mut codec, mut at, mut count) = (e.codec(), 0, 0);
        while let Some((event, n)) = codec.get(&e.bytes[at..]) {
            at += n;
            count += 1;
            self.event(e.thread, event);
        }
        assert_eq!((count, at), (e.count, e.bytes.len()));
    }

    /// Returns the depths of the stacks of a thread's events.
    pub(crate) fn depths(&self, serial: u32) -> impl Iterator<Item = u32> + '_ {
        self.events[&serial].iter().filter_map(|e| {
            let (Event::Alloc { node, .. }
            | Event::Free { node, .. }
            | Event::Realloc { node, .. }) = *e;
            (node != 0).then(|| self.depth(node))
        })
    }

    fn event(&mut self, thread: u32, event: Event) {
        assert!(!self.passes.is_empty(), "events stand in a pass");
        let before = self.passes.len().checked_sub(2).map_or(Ticks::ZERO, |i| self.passes[i].ticks);
        let node = event.node();
        self.unknown_nodes += u64::from(node != 0 && !self.nodes.contains_key(&node));
        self.late += u64::from(event.time() < before);
        self.events.entry(thread).or_default().push(event);
    }

    /// Returns the code address IDs of a node's stack, from the root inwards.
    pub(crate) fn stack(&self, mut node: u32) -> Vec<u32> {
        let mut all = Vec::new();
        while node != 0 {
            let (parent, pc) = self.nodes[&node];
            all.push(pc);
            node = parent;
        }
        all.reverse();
        all
    }

    pub(crate) fn depth(&self, mut node: u32) -> u32 {
        let mut n = 0;
        while node != 0 {
            let (parent, pc) = self.nodes[&node];
            assert!(pc == 0 || self.pcs.contains_key(&pc));
            node = parent;
            n += 1;
        }
        n
    }
}

pub(crate) fn temp(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("prof-collect-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

pub(crate) fn start(path: &Path) -> File {
    start_of(path, Pid::this())
}

/// Creates a recording of process `pid` and writes its beginning.
pub(crate) fn start_of(path: &Path, pid: Pid) -> File {
    let mut file = prof_collect::create_recording(path).expect("create");
    let since = std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970");
    let wall_ns = since.as_nanos() as u64;
    let target = Target { pid: pid.as_u32(), wall_ns, comm: "test".into(), ..Default::default() };
    prof_collect::write_prologue(&mut file, &target, &Hooks::default()).expect("prologue");
    file
}
