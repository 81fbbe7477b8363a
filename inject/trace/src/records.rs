//! Chunks of a recording, as values.

use crate::capture::Capture;
use crate::event::Codec;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

/// Numbers of the chunk kinds.
pub mod kind {
    #![allow(missing_docs)] // the constants are named as the records
    pub const TARGET: u16 = 1;
    pub const PASS: u16 = 2;
    pub const EVENTS: u16 = 3;
    pub const THREAD: u16 = 4;
    pub const NODES: u16 = 5;
    pub const PCS: u16 = 6;
    pub const MODULE: u16 = 7;
    pub const TOGGLE: u16 = 8;
    pub const HOOKS: u16 = 9;
    pub const COUNTERS: u16 = 10;
    pub const END: u16 = 11;
    pub const SYMBOLS: u16 = 12;
    pub const PACKED: u16 = 13;
    pub const NODE_RUN: u16 = 14;
    pub const ZIPPED: u16 = 15;
    pub const FRAMES: u16 = 16;
    pub const STRIPPED: u16 = 17;
    pub const FILE: u16 = 18;
    pub const MEMORY: u16 = 19;
    pub const RUNTIMES: u16 = 20;
    pub const PROCESS: u16 = 21;
    pub const EPOCH: u16 = 22;
    pub const DISTANCE: u16 = 23;

    const NAMES: [&str; 23] = [
        "target", "pass", "events", "thread", "nodes", "pcs", "module", "toggle", "hooks",
        "counters", "end", "symbols", "packed", "node run", "zipped", "frames", "stripped", "file",
        "memory", "runtimes", "process", "epoch", "distance",
    ];

    /// Returns the name of a kind; `None` if this version does not know it.
    pub fn name(kind: u16) -> Option<&'static str> {
        NAMES.get(usize::from(kind).checked_sub(1)?).copied()
    }
}

/// Defines a record: integers and blobs, encoded in the order of its fields.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:tt),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: record!(@ty $ty)),* }

        impl $name {
            /// Encodes the payload of a chunk.
            pub fn encode(&self) -> Vec<u8> {
                let mut w = Writer::default();
                self.write(&mut w);
                w.bytes
            }

            /// Appends the encoded fields to a payload.
            pub fn write(&self, w: &mut Writer) {
                $( record!(@put $ty, w, self.$field); )*
            }

            /// Decodes the fields at the front of a payload. Callers that read whole chunks skip fields that
            /// a newer prof appended.
            pub fn read(r: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: record!(@get $ty, r)),* })
            }

            /// Decodes a payload; returns `None` if it is truncated or malformed.
            pub fn decode(payload: &[u8]) -> Option<Self> {
                Self::read(&mut Reader::new(payload))
            }
        }
    };
    (@ty int) => { u64 };
    (@ty later) => { u64 }; // appended in a later version: 0 if missing
    (@ty int32) => { u32 };
    (@ty text) => { String };
    (@ty bytes) => { Vec<u8> };
    (@ty ints) => { Vec<u64> };
    (@ty later_ints) => { Vec<u64> }; // appended in a later version: empty if missing
    (@ty texts) => { Vec<String> };
    (@put int, $w:ident, $v:expr) => { $w.int($v) };
    (@put later, $w:ident, $v:expr) => { $w.int($v) };
    (@put int32, $w:ident, $v:expr) => { $w.int($v as u64) };
    (@put text, $w:ident, $v:expr) => { $w.blob($v.as_bytes()) };
    (@put bytes, $w:ident, $v:expr) => { $w.blob(&$v) };
    (@put ints, $w:ident, $v:expr) => {{
        $w.int($v.len() as u64);
        for x in &$v { $w.int(*x); }
    }};
    (@put later_ints, $w:ident, $v:expr) => { record!(@put ints, $w, $v) };
    (@put texts, $w:ident, $v:expr) => {{
        $w.int($v.len() as u64);
        for x in &$v { $w.blob(x.as_bytes()); }
    }};
    (@get int, $r:ident) => { $r.int()? };
    (@get later, $r:ident) => { if $r.rest().is_empty() { 0 } else { $r.int()? } };
    (@get int32, $r:ident) => { $r.int32()? };
    (@get text, $r:ident) => { $r.text()? };
    (@get bytes, $r:ident) => { $r.blob()?.to_vec() };
    (@get later_ints, $r:ident) => {
        if $r.rest().is_empty() { Vec::new() } else { record!(@get ints, $r) }
    };
    (@get ints, $r:ident) => {{
        let n = $r.int()? as usize;
        if n > $r.rest().len() { return None; }
        let mut v = Vec::with_capacity(n);
        for _ in 0..n { v.push($r.int()?); }
        v
    }};
    (@get texts, $r:ident) => {{
        let n = $r.int()? as usize;
        if n > $r.rest().len() { return None; }
        let mut v = Vec::with_capacity(n);
        for _ in 0..n { v.push($r.text()?); }
        v
    }};
}

record! {
    /// The recorded process. This is the first chunk of a file.
    Target {
        /// Process id in prof's namespace.
        pid: int32,
        /// Path of the executable.
        exe: text,
        /// Command line arguments.
        cmdline: texts,
        /// Process name (`comm`).
        comm: text,
        /// `x86_64`, `aarch64`, `arm`, `mips64`, `mips64el`.
        arch: text,
        /// Pointer size, in bytes.
        pointer_size: int32,
        /// Page size, in bytes.
        page_size: int32,
        /// Start of the recording, in ns since 1970.
        wall_ns: int,
        /// Start of the recording, in ticks.
        start_ticks: int,
        /// Ticks per second.
        ticks_per_sec: int,
        /// Version of the prof that recorded.
        prof_version: text,
        /// See [`Capture::sample_bytes`]; 0: off.
        sample_bytes: later,
        /// See [`Capture::sample_every`]; 0 or 1: off.
        sample_every: later,
        /// Smallest block size recorded, in bytes.
        min_size: later,
        /// Largest block size recorded, in bytes; `u64::MAX` or 0: no limit.
        max_size: later,
        /// Upper bound on how early an unordered (odd) timestamp can be, in ticks (FORMAT.md, section 3); 0:
        /// none is.
        early: later,
        /// 1: see [`Capture::adapts`].
        adapts: later,
    }
}

impl Target {
    /// Returns the filter of the recorded blocks.
    pub fn capture(&self) -> Capture {
        Capture {
            sample_bytes: self.sample_bytes,
            adapts: self.adapts != 0,
            sample_every: self.sample_every,
            min_size: self.min_size,
            max_size: if self.max_size == 0 { u64::MAX } else { self.max_size },
        }
    }
}

record! {
    /// Start of a pass, in which the collector reads the segments of all threads. All events with a time
    /// below `ticks` of a pass stand before the next pass, except those of threads that were interrupted
    /// between taking the time and publishing the event.
    Pass {
        /// Number of the pass, from 0.
        number: int,
        /// Ticks at the start of the pass.
        ticks: int,
        /// `CLOCK_MONOTONIC` at the same moment, in ns.
        clock_ns: int,
        /// Resident set size of the target, in pages; 0: not read in this pass.
        rss_pages: int,
        /// Address space of the target, in pages; 0: not read in this pass.
        vss_pages: int,
    }
}

record! {
    /// Events of one thread, in their order. The chunks of all threads of a pass follow each other.
    Events {
        /// Thread number, see [`Thread`].
        thread: int32,
        /// Time of the decoding state before the first event.
        time: int,
        /// Address of that decoding state.
        addr: int,
        /// Stack node of that decoding state.
        node: int32,
        /// Number of events.
        count: int32,
        /// Encoded events, see [`crate::event`].
        bytes: bytes,
    }
}

impl Events {
    /// Returns the decoding state before the first event.
    pub fn codec(&self) -> Codec {
        Codec { time: self.time, addr: self.addr, node: self.node, defined: 0 }
    }
}

record! {
    /// A thread. It is repeated when its name becomes known or changes.
    Thread {
        /// Thread number in this file (unique, unlike the thread id).
        number: int32,
        /// Thread id in the target's namespace.
        tid: int32,
        /// Thread name; may be empty.
        name: text,
    }
}

record! {
    /// Stack nodes, as triples of id, parent id and code address id. A parent stands before its children;
    /// parent 0 is the root.
    Nodes {
        /// The triples, flat.
        triples: ints,
    }
}

record! {
    /// Stack nodes with consecutive ids: equivalent to [`Nodes`], in half the bytes.
    NodeRun {
        /// Id of the first node.
        first: int32,
        /// For each node, in LEB128: its id minus its parent's id (0: the root), and its code address id.
        pairs: bytes,
    }
}

impl NodeRun {
    /// Appends the node `id`, which must be the last id plus one, below a parent with a lower id.
    #[inline]
    pub fn push(&mut self, id: u32, parent: u32, pc: u32) {
        if self.pairs.is_empty() {
            self.first = id;
        }
        let back = if parent == 0 { 0 } else { id.wrapping_sub(parent) };
        let mut w = Writer { bytes: core::mem::take(&mut self.pairs) };
        w.int(back.into()).int(pc.into());
        self.pairs = w.bytes;
    }

    /// Decodes all nodes; returns `None` if the bytes are malformed.
    pub fn nodes(&self) -> Option<Nodes> {
        let mut triples = Vec::with_capacity(self.pairs.len() * 3 / 2);
        let (mut r, mut id) = (Reader::new(&self.pairs), u64::from(self.first));
        while !r.rest().is_empty() {
            u32::try_from(id).ok()?;
            let (back, pc) = (r.int32()?, r.int32()?);
            let parent = if back == 0 { 0 } else { id.checked_sub(back.into())? };
            triples.extend([id, parent, pc.into()]);
            id += 1;
        }
        Some(Nodes { triples })
    }
}

/// Flag beside the module number in [`Pcs`]: the address is that of a signal trampoline. The next outer frame
/// is the interrupted one; its address is that of the interrupted instruction plus one.
pub const PC_IS_TRAMPOLINE: u64 = 1 << 16;

record! {
    /// Code addresses: triples of id, address, module number (0: none) with [`PC_IS_TRAMPOLINE`].
    Pcs {
        /// The triples, flat.
        triples: ints,
    }
}

record! {
    /// A module. It is repeated when more becomes known of it.
    Module {
        /// Module number in this file.
        number: int32,
        /// First mapped address.
        start: int,
        /// End address of the last mapping.
        end: int,
        /// Load bias: address minus the file's virtual address.
        bias: int,
        /// Path as the target sees it; `[vdso]` for the vDSO.
        path: text,
        /// Build id; may be empty.
        build_id: bytes,
        /// Ticks when the module was first seen.
        loaded: int,
        /// Ticks when the module was found to be unloaded; 0: still loaded.
        unloaded: int,
    }
}

record! {
    /// The machine's counter has gone back. The collector corrects times, so that those of the recording
    /// continue.
    Epoch {
        /// Ticks of the recording when this was noticed.
        ticks: int,
        /// Ticks by which the counter went back.
        back: int,
        /// Offset that is added to the counter from then on, modulo 2^64.
        offset: int,
    }
}

record! {
    /// The sampling distance changed. Distances that threads have drawn before stay valid, so the distance that a block
    /// states decides about its weight.
    Distance {
        /// Ticks.
        ticks: int,
        /// Bytes.
        bytes: int,
    }
}

record! {
    /// Recording was turned on or off.
    Toggle {
        /// Ticks.
        ticks: int,
        /// 1: on; 0: off.
        on: int32,
    }
}

record! {
    /// A hooked function.
    Hook {
        /// Index of the function, also in [`Counters::calls`].
        index: int32,
        /// Name of the function.
        function: text,
        /// Path of its module.
        module: text,
        /// How the function was hooked: `inline` or `got`.
        method: text,
    }
}

record! {
    /// A function that could not be hooked.
    NotHooked {
        /// Name of the function.
        function: text,
        /// Path of its module.
        module: text,
        /// Reason why it could not be hooked.
        reason: text,
    }
}

/// Functions that were hooked, and those that could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Hooked functions, in the order of their indices.
    pub hooked: Vec<Hook>,
    /// Functions that could not be hooked.
    pub not_hooked: Vec<NotHooked>,
}

impl Hooks {
    /// Encodes the payload of a chunk.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.int(self.hooked.len() as u64);
        self.hooked.iter().for_each(|h| h.write(&mut w));
        w.int(self.not_hooked.len() as u64);
        self.not_hooked.iter().for_each(|h| h.write(&mut w));
        w.bytes
    }

    /// Decodes a payload; returns `None` if it is truncated or malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut r = Reader::new(payload);
        let mut all = Self::default();
        for _ in 0..r.int()? {
            all.hooked.push(Hook::read(&mut r)?);
        }
        for _ in 0..r.int()? {
            all.not_hooked.push(NotHooked::read(&mut r)?);
        }
        Some(all)
    }
}

record! {
    /// Totals up to this point; the last such chunk is valid.
    Counters {
        /// Events written by the hook.
        events: int,
        /// Events lost because no segment was free in time, or the thread had no slot.
        lost: int,
        /// Calls not recorded because a signal handler made them inside the hook.
        reentered: int,
        /// Stacks that were cut.
        truncated: int,
        /// Stacks that differ between memoized and full unwinding (debugging).
        mismatches: int,
        /// Bytes of damaged events that the collector skipped.
        damaged_bytes: int,
        /// Calls, by index of the hooked function.
        calls: ints,
        /// Stacks that were unwound both with and without the memo.
        verified: later,
        /// Threads whose counters the target has overwritten; the totals have their values from before.
        doubtful: later,
    }
}

record! {
    /// The last chunk of a recording that was finished.
    End {
        /// Ticks.
        ticks: int,
        /// Why recording ended: `detached`, `exited`, `killed by signal N`, `ended` (not known how), `exec`,
        /// `stopped`.
        reason: text,
    }
}

record! {
    /// Symbols of a module whose file may be gone when the recording is read.
    Symbols {
        /// Module number.
        module: int32,
        /// Symbols, sorted, as quadruples of start, size, offset of the name in `names`, length of the name;
        /// starts are virtual addresses of the file.
        symbols: ints,
        /// Mangled names.
        names: bytes,
    }
}

record! {
    /// Statistics of all blocks in a recording from which short-lived blocks were removed. If there are
    /// several such chunks, their groups belong together.
    Stripped {
        /// Lifetime threshold, in ns. Chains of reallocations (most of one block) that lived shorter were
        /// removed.
        threshold_ns: int,
        /// Number of blocks removed.
        blocks: int,
        /// Bytes of the blocks removed.
        bytes: int,
        /// Statistics of all blocks: eight values, eight standard errors, frees, unknown and implied frees,
        /// ticks of the peak and of the last event, events of address 0.
        totals: ints,
        /// For each stack: node, ticks of its first and last block and of its peak, eight values, eight
        /// standard errors.
        groups: ints,
    }
}

record! {
    /// A piece of a file that is kept in the recording. The pieces of a file follow each other.
    FilePart {
        /// Path of the file in the target.
        path: text,
        /// Length of the file, in bytes.
        length: int,
        /// Offset of the piece in the file.
        offset: int,
        /// Content of the piece.
        bytes: bytes,
    }
}

record! {
    /// The target's memory at one moment, as the kernel counts it. The last such chunk is valid.
    Memory {
        /// Ticks.
        ticks: int,
        /// Resident set size, in bytes; this and the next three are from `smaps_rollup`, 0: unknown.
        rss: int,
        /// Proportional set size, in bytes.
        pss: int,
        /// Anonymous memory, in bytes.
        anonymous: int,
        /// Swapped memory, in bytes.
        swap: int,
        /// Resident memory of prof's own mappings (ring, hook, stubs), in bytes.
        prof: int,
        /// Mappings by kind: triples of kind (see [`map_kind`]), bytes of address space, resident bytes.
        maps: ints,
        /// Mappings that allocators take memory from: triples of start, end, resident bytes.
        heaps: ints,
        /// Parts of those mappings by owner: quadruples of start, end, resident bytes, kind (see
        /// [`part_kind`]).
        parts: later_ints,
        /// Statistics of glibc's arenas, if known: bytes from the kernel, free bytes, resident free bytes.
        arenas: later_ints,
        /// Readings of these statistics, as the target changes them meanwhile: begin and end in ticks, bytes from the
        /// kernel, free bytes, and bytes that may have been free all the time though they count as in use.
        walks: later_ints,
    }
}

/// Kinds of parts in [`Memory::parts`].
pub mod part_kind {
    /// Anonymous memory of an unknown owner: another allocator's, or the program's own.
    pub const UNKNOWN: u64 = 0;
    /// The heap made by `brk`, or a heap of one of glibc's arenas.
    pub const HEAP: u64 = 1;
    /// A block that glibc has mapped on its own.
    pub const BLOCK: u64 = 2;
}

/// Maximum length and alignment of parts of unknown owner, unless all or none of the part is resident.
pub const PIECE: u64 = 2 << 20;

record! {
    /// Runtimes in the target that take memory from the kernel themselves, so that not all their memory is
    /// recorded.
    Runtimes {
        /// Names, see [`Runtime::name`](crate::runtimes::Runtime::name).
        names: texts,
    }
}

record! {
    /// Statistics of the kernel about the target, once a second.
    Process {
        /// Ticks.
        ticks: int,
        /// Private resident bytes (neither file-backed nor shared); 0: unknown.
        private: int,
        /// Processor time since the start of the process, in ms.
        cpu_ms: int,
        /// Worker processes, if they were looked for: triples of process id, start time (clock ticks since
        /// boot), resident bytes.
        children: ints,
    }
}

/// Kinds of mappings in [`Memory::maps`].
pub mod map_kind {
    #![allow(missing_docs)] // named as in [`NAMES`]
    pub const HEAP: u64 = 0;
    pub const ANONYMOUS: u64 = 1;
    pub const STACK: u64 = 2;
    pub const FILE: u64 = 3;
    pub const PROF: u64 = 4;
    pub const OTHER: u64 = 5;
    pub const NAMES: [&str; 6] = ["heap", "anonymous", "stacks", "files", "prof", "other"];
}

impl Target {
    /// Returns the command line for display: the arguments, or the executable if there are none. Trailing
    /// blanks are dropped, as programs that set their title leave some.
    #[must_use]
    pub fn command(&self) -> String {
        let command = self.cmdline.join(" ");
        let command = command.trim_end();
        if command.is_empty() { self.exe.clone() } else { command.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn what_an_earlier_prof_says_of_memory_is_read() {
        let new = Memory { ticks: 5, rss: 7, heaps: vec![1, 2, 3], ..Memory::default() };
        let bytes = new.encode();
        // The encoding ends with two empty lists, which the older version lacks.
        assert_eq!(Memory::decode(&bytes[..bytes.len() - 2]), Some(new.clone()));
        assert_eq!(Memory::decode(&bytes), Some(new));
    }

    #[test]
    fn a_command_is_its_arguments_without_what_titles_leave() {
        let mut t = Target { exe: "/bin/x".into(), ..Default::default() };
        assert_eq!(t.command(), "/bin/x");
        t.cmdline = vec!["nginx: worker process   ".into(), "".into()];
        assert_eq!(t.command(), "nginx: worker process");
        t.cmdline = vec!["x".into(), " y".into()];
        assert_eq!(t.command(), "x  y");
    }

    #[test]
    fn records_come_back_and_bad_ones_do_not() {
        let t = Target {
            pid: 7,
            exe: "/bin/x".into(),
            cmdline: vec!["x".into(), "".into()],
            wall_ns: u64::MAX,
            ..Default::default()
        };
        let bytes = t.encode();
        assert_eq!(Target::decode(&bytes), Some(t));
        // The last six fields, one byte each here, may be missing.
        let old = bytes.len() - 6;
        for cut in 0..old {
            assert_eq!(Target::decode(&bytes[..cut]), None);
        }
        let from_old = Target::decode(&bytes[..old]).expect("an old target");
        assert_eq!(from_old.capture(), Capture::default());
        let sampled = Target { sample_bytes: 1 << 19, max_size: u64::MAX, ..from_old };
        let bytes = sampled.encode();
        assert_eq!(Target::decode(&bytes), Some(sampled));
        assert_eq!(Target::decode(&bytes[..bytes.len() - 3]), None);
        let h = Hooks {
            hooked: vec![Hook { index: 1, function: "malloc".into(), ..Default::default() }],
            not_hooked: vec![NotHooked { reason: "too short".into(), ..Default::default() }],
        };
        assert_eq!(Hooks::decode(&h.encode()), Some(h));
        assert_eq!(Hooks::decode(&[0xff, 0xff, 0xff, 0xff, 0x0f]), None);
        assert_eq!(Nodes::decode(&[0xff, 0xff, 0xff, 0xff, 0x0f]), None);
        let n = Nodes { triples: vec![1, 0, 3, 2, 1, 4] };
        assert_eq!(Nodes::decode(&n.encode()), Some(n));
        let mut run = NodeRun::default();
        assert_eq!(run.nodes(), Some(Nodes::default()));
        let triples = [7, 0, 3, 8, 7, u32::MAX, 9, 0, 1, 10, 1, 300];
        triples.as_chunks::<3>().0.iter().for_each(|t| run.push(t[0], t[1], t[2]));
        let nodes = NodeRun::decode(&run.encode()).and_then(|r| r.nodes()).expect("nodes");
        assert_eq!(nodes.triples, triples.map(u64::from));
        let bad = |first, pairs: &[u8]| NodeRun { first, pairs: pairs.into() }.nodes();
        assert_eq!((bad(1, &[2, 1]), bad(1, &[0])), (None, None), "a parent below 0, half a pair");
        assert_eq!(bad(u32::MAX, &[1, 1, 1, 1]), None, "an id that is too high");
    }
}
