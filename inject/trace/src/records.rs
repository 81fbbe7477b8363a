//! The chunks of a recording, as values.

use crate::capture::Capture;
use crate::event::Codec;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

/// Numbers of the chunk kinds.
pub mod kind {
    #![allow(missing_docs)] // named as the records are
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

    const NAMES: [&str; 22] = [
        "target", "pass", "events", "thread", "nodes", "pcs", "module", "toggle", "hooks",
        "counters", "end", "symbols", "packed", "node run", "zipped", "frames", "stripped", "file",
        "memory", "runtimes", "process", "epoch",
    ];

    /// The name of a kind, if this version knows it.
    pub fn name(kind: u16) -> Option<&'static str> {
        NAMES.get(usize::from(kind).checked_sub(1)?).copied()
    }
}

/// A record of a fixed list of integers and blobs, written in that order.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:tt),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: record!(@ty $ty)),* }

        impl $name {
            /// The payload of a chunk.
            pub fn encode(&self) -> Vec<u8> {
                let mut w = Writer::default();
                self.write(&mut w);
                w.bytes
            }

            /// Appends the fields to a payload.
            pub fn write(&self, w: &mut Writer) {
                $( record!(@put $ty, w, self.$field); )*
            }

            /// From the front of a payload. Fields that a newer prof appended are passed over by
            /// whoever reads whole chunks.
            pub fn read(r: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: record!(@get $ty, r)),* })
            }

            /// From a payload; `None` if it is too short or nonsense.
            pub fn decode(payload: &[u8]) -> Option<Self> {
                Self::read(&mut Reader::new(payload))
            }
        }
    };
    (@ty int) => { u64 };
    (@ty later) => { u64 }; // appended in a later version: 0 where it is missing
    (@ty int32) => { u32 };
    (@ty text) => { String };
    (@ty bytes) => { Vec<u8> };
    (@ty ints) => { Vec<u64> };
    (@ty later_ints) => { Vec<u64> }; // likewise: none
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
    /// Who is recorded. The first chunk of a file.
    Target {
        /// As prof saw it.
        pid: int32,
        /// Path of the executable.
        exe: text,
        /// Arguments.
        cmdline: texts,
        /// Name of the process.
        comm: text,
        /// `x86_64`, `aarch64`, `arm`, `mips64`, `mips64el`.
        arch: text,
        /// Bytes of a pointer.
        pointer_size: int32,
        /// Bytes of a page.
        page_size: int32,
        /// Nanoseconds since 1970 when recording began.
        wall_ns: int,
        /// Ticks at that moment.
        start_ticks: int,
        /// Ticks in a second.
        ticks_per_sec: int,
        /// Version of prof.
        prof_version: text,
        /// See [`Capture::sample_bytes`]; 0: no such sampling.
        sample_bytes: later,
        /// See [`Capture::sample_every`]; 0 or 1: all.
        sample_every: later,
        /// Smaller blocks are not in the recording.
        min_size: later,
        /// Larger blocks are not in the recording; `u64::MAX` or 0: no limit.
        max_size: later,
        /// Ticks by which times may be too early, see FORMAT.md, section 3; 0: they are not.
        early: later,
    }
}

impl Target {
    /// Which blocks are in the recording.
    pub fn capture(&self) -> Capture {
        Capture {
            sample_bytes: self.sample_bytes,
            sample_every: self.sample_every,
            min_size: self.min_size,
            max_size: if self.max_size == 0 { u64::MAX } else { self.max_size },
        }
    }
}

record! {
    /// The collector begins to look through all threads' segments. All events with a time below
    /// `ticks` of a pass, but for those of threads that were interrupted between taking the time
    /// and publishing, stand before the next pass begins.
    Pass {
        /// Counts from 0.
        number: int,
        /// Now.
        ticks: int,
        /// `CLOCK_MONOTONIC` nanoseconds at the same moment.
        clock_ns: int,
        /// Pages of the target's resident set, 0: not read in this pass.
        rss_pages: int,
        /// Pages of its address space, 0: not read in this pass.
        vss_pages: int,
    }
}

record! {
    /// Events of one thread, in their order. Threads' chunks of one pass follow each other.
    Events {
        /// Number of the thread, see [`Thread`].
        thread: int32,
        /// Decoding state before the first event: time.
        time: int,
        /// Decoding state: address.
        addr: int,
        /// Decoding state: stack node.
        node: int32,
        /// How many events.
        count: int32,
        /// The events, see [`crate::event`].
        bytes: bytes,
    }
}

impl Events {
    /// The decoding state to start with.
    pub fn codec(&self) -> Codec {
        Codec { time: self.time, addr: self.addr, node: self.node, defined: 0 }
    }
}

record! {
    /// A thread; again when its name is learnt or changes.
    Thread {
        /// Its number in this file (unique, unlike the id).
        number: int32,
        /// Its id in the target's namespace.
        tid: int32,
        /// Its name, may be empty.
        name: text,
    }
}

record! {
    /// Stack nodes: triples of id, parent id, code address id. A parent stands before its
    /// children; parent 0 is the root.
    Nodes {
        /// The triples, flat.
        triples: ints,
    }
}

record! {
    /// Stack nodes with ids that follow each other: the same as [`Nodes`], in half the bytes.
    NodeRun {
        /// The id of the first.
        first: int32,
        /// For each, its id less that of its parent (0: the root), and its code address id; LEB128.
        pairs: bytes,
    }
}

impl NodeRun {
    /// Adds the node `id`, which must follow the last, below a parent with a lower id.
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

    /// All nodes; `None` if any of them is nonsense.
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

/// Flag beside the module number in [`Pcs`]: the address is that of a signal trampoline. The next
/// frame out is an interrupted one, and its address is one more than that of its instruction.
pub const PC_IS_TRAMPOLINE: u64 = 1 << 16;

record! {
    /// Code addresses: triples of id, address, module number (0: none) with [`PC_IS_TRAMPOLINE`].
    Pcs {
        /// The triples, flat.
        triples: ints,
    }
}

record! {
    /// A module; again when more is learnt of it.
    Module {
        /// Its number in this file.
        number: int32,
        /// First mapped address.
        start: int,
        /// End of the last mapping.
        end: int,
        /// Address minus the file's virtual address.
        bias: int,
        /// As the target sees it; `[vdso]` for the vDSO.
        path: text,
        /// The build id, may be empty.
        build_id: bytes,
        /// Ticks when it was first seen.
        loaded: int,
        /// Ticks when it was seen to be gone, 0: still there.
        unloaded: int,
    }
}

record! {
    /// The machine's counter has gone back. All times in the recording, in front of this and behind, go on as if it
    /// had not.
    Epoch {
        /// Ticks, as the recording counts them, when this was noticed.
        ticks: int,
        /// By how many ticks the counter went back.
        back: int,
        /// What has since then been added to the counter, modulo 2^64.
        offset: int,
    }
}

record! {
    /// Recording was switched.
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
        /// Its index; [`Counters::calls`] go by it.
        index: int32,
        /// Its name.
        function: text,
        /// Path of its module.
        module: text,
        /// `inline` or `got`.
        method: text,
    }
}

record! {
    /// A function that could not be hooked.
    NotHooked {
        /// Its name.
        function: text,
        /// Path of its module.
        module: text,
        /// Why.
        reason: text,
    }
}

/// What was hooked and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// In the order of their indices.
    pub hooked: Vec<Hook>,
    /// The others.
    pub not_hooked: Vec<NotHooked>,
}

impl Hooks {
    /// The payload of a chunk.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.int(self.hooked.len() as u64);
        self.hooked.iter().for_each(|h| h.write(&mut w));
        w.int(self.not_hooked.len() as u64);
        self.not_hooked.iter().for_each(|h| h.write(&mut w));
        w.bytes
    }

    /// From a payload; `None` if it is too short or nonsense.
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
    /// Totals so far; the last one counts.
    Counters {
        /// Events that the hook wrote.
        events: int,
        /// Events lost: no segment was free in time, or no slot.
        lost: int,
        /// Calls not recorded as they came from a signal handler inside the hook.
        reentered: int,
        /// Stacks cut short.
        truncated: int,
        /// Stacks that were unwound differently with and without memo (debugging).
        mismatches: int,
        /// Events that the collector found damaged and passed over, in bytes.
        damaged_bytes: int,
        /// Calls by hooked function.
        calls: ints,
        /// Stacks that were taken both ways.
        verified: later,
        /// Threads whose counters the target has written over: they are those from before that.
        doubtful: later,
    }
}

record! {
    /// The last chunk of a recording that was finished.
    End {
        /// Ticks.
        ticks: int,
        /// `detached`, `exited`, `killed by signal N`, `ended` (not known how), `exec`, `stopped`.
        reason: text,
    }
}

record! {
    /// Symbols of a module whose file may not be there later.
    Symbols {
        /// The module's number.
        module: int32,
        /// Quadruples of start, size, offset of the name in `names`, its length; sorted; starts
        /// are the file's virtual addresses.
        symbols: ints,
        /// The names, not demangled.
        names: bytes,
    }
}

record! {
    /// Short-lived blocks were left out of the recording; these are the figures with them. Should there be
    /// several, their groups belong together.
    Stripped {
        /// Chains of reallocations (most of one block) that lived shorter are not in it.
        threshold_ns: int,
        /// Blocks that were left out.
        blocks: int,
        /// Their bytes.
        bytes: int,
        /// The figures of all blocks: eight figures, eight standard errors, frees, unknown and implied
        /// frees, ticks of the peak and of the last event, events of address 0.
        totals: ints,
        /// For each stack: node, ticks of its first and last block and of its peak, eight figures, eight
        /// standard errors.
        groups: ints,
    }
}

record! {
    /// A piece of a file that is kept in the recording. The pieces of a file follow each other.
    FilePart {
        /// Its path in the target.
        path: text,
        /// Bytes of the file.
        length: int,
        /// Where this piece begins.
        offset: int,
        /// The piece.
        bytes: bytes,
    }
}

record! {
    /// The target's memory, as the kernel counts it, at a moment. The last one counts.
    Memory {
        /// Ticks.
        ticks: int,
        /// Bytes of `smaps_rollup`, 0: not known: resident, proportional, anonymous, dirty, swapped.
        rss: int,
        /// Proportional set.
        pss: int,
        /// Anonymous memory.
        anonymous: int,
        /// Swapped out.
        swap: int,
        /// Resident memory that is prof's own (ring, hook, stubs).
        prof: int,
        /// Mappings by what they are: triples of kind (see [`map_kind`]), bytes of address space, resident bytes.
        maps: ints,
        /// Mappings that allocators take memory from: triples of start, end, resident bytes.
        heaps: ints,
        /// The same by whom they belong to: start, end, resident bytes, kind (see [`part_kind`]).
        parts: later_ints,
        /// What glibc's arenas say of themselves, if that is known: bytes from the kernel, free bytes, resident
        /// free bytes.
        arenas: later_ints,
    }
}

/// Kinds of parts in [`Memory::parts`].
pub mod part_kind {
    /// Anonymous memory of nobody who is known: another allocator's, or the program's own.
    pub const UNKNOWN: u64 = 0;
    /// What `brk` has made, or a heap of one of glibc's arenas.
    pub const HEAP: u64 = 1;
    /// A block of glibc's that is mapped on its own.
    pub const BLOCK: u64 = 2;
}

/// Parts of nobody known are no longer than this, and begin at multiples of it, unless all of them is resident,
/// or nothing.
pub const PIECE: u64 = 2 << 20;

record! {
    /// What takes memory from the kernel itself in the target, and so is not seen whole.
    Runtimes {
        /// See [`Runtime::name`](crate::runtimes::Runtime::name).
        names: texts,
    }
}

record! {
    /// What the kernel says of the target, once a second.
    Process {
        /// Ticks.
        ticks: int,
        /// Resident bytes that are neither of files nor shared; 0: not known.
        private: int,
        /// Processor time since it began, in ms.
        cpu_ms: int,
        /// Its descendants that run the same program, if they were looked for: triples of process id, start
        /// (clock ticks since boot), resident bytes.
        children: ints,
    }
}

/// Kinds of mappings in [`Memory::maps`].
pub mod map_kind {
    #![allow(missing_docs)] // named as they are
    pub const HEAP: u64 = 0;
    pub const ANONYMOUS: u64 = 1;
    pub const STACK: u64 = 2;
    pub const FILE: u64 = 3;
    pub const PROF: u64 = 4;
    pub const OTHER: u64 = 5;
    pub const NAMES: [&str; 6] = ["heap", "anonymous", "stacks", "files", "prof", "other"];
}

impl Target {
    /// The command, as it is shown: the arguments, or what was executed if there are none. Programs
    /// that set their title leave blanks behind it.
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
        // It ends with two lists, both empty, which were not there.
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
        // The last five fields, one byte each here, may be missing.
        let old = bytes.len() - 5;
        for cut in 0..old {
            assert_eq!(Target::decode(&bytes[..cut]), None);
        }
        let from_old = Target::decode(&bytes[..old]).expect("an old target");
        assert_eq!(from_old.capture(), Capture::default());
        let sampled = Target { sample_bytes: 1 << 19, max_size: u64::MAX, ..from_old };
        let bytes = sampled.encode();
        assert_eq!(Target::decode(&bytes), Some(sampled));
        assert_eq!(Target::decode(&bytes[..bytes.len() - 2]), None);
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
