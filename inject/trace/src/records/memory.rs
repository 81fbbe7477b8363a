//! The target's memory as the kernel counts it.

use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::vec::Vec;

record! {
    /// The target's memory at one moment, as the kernel counts it. The last such chunk is valid.
    Memory {
        /// Ticks.
        ticks: ticks,
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
        /// Bytes of the page tables; 0: unknown. They are not part of the resident set.
        page_tables: later,
        /// Figures of the target's memory cgroup: pairs of number (see [`cgroup_stat`]) and value.
        cgroup: later_ints,
    }
}

/// Numbers of figures in [`Memory::cgroup`]: bytes, but for the number of processes. Those of version 1 of the kernel's
/// interface are given the meaning that they have in version 2.
pub mod cgroup_stat {
    #![allow(missing_docs)] // named as in [`NAMES`]
    pub const CURRENT: u64 = 0;
    pub const MAX: u64 = 1;
    pub const ANON: u64 = 2;
    pub const FILE: u64 = 3;
    pub const SHMEM: u64 = 4;
    pub const KERNEL: u64 = 5;
    pub const SLAB: u64 = 6;
    pub const SOCK: u64 = 7;
    pub const KERNEL_STACK: u64 = 8;
    pub const PAGETABLES: u64 = 9;
    pub const SWAP: u64 = 10;
    pub const FILE_MAPPED: u64 = 11;
    pub const PROCESSES: u64 = 12;
    pub const NAMES: [&str; 13] = [
        "current",
        "max",
        "anon",
        "file",
        "shmem",
        "kernel",
        "slab",
        "sock",
        "kernel_stack",
        "pagetables",
        "swap",
        "file_mapped",
        "processes",
    ];
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
    /// Statistics of the kernel about the target, once a second.
    Process {
        /// Ticks.
        ticks: ticks,
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
