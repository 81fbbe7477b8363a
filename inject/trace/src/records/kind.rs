//! Numbers of the chunk kinds.

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
pub const CALLS: u16 = 24;
pub const CALL_FILE: u16 = 25;
pub const MAPPINGS: u16 = 26;
pub const ALLOCATORS: u16 = 27;
pub const MARK: u16 = 28;
pub const SCAN: u16 = 29;
pub const SCAN_ROOTS: u16 = 30;
pub const SCAN_BLOCKS: u16 = 31;
pub const SCAN_POINTERS: u16 = 32;
pub const STEP: u16 = 33;
pub const CENSUS: u16 = 34;
pub const FOLDED: u16 = 35;
pub const FOLD_END: u16 = 36;
pub const FOLD_FAILED: u16 = 37;
pub const BOUNDS: u16 = 38;
pub const WENT_OVER: u16 = 39;
pub const CENSUS_CLASSES: u16 = 40;
pub const FORKED: u16 = 41;
pub const JOINED: u16 = 42;
pub const THREADS_LEFT: u16 = 43;

const NAMES: [&str; 43] = [
    "target",
    "pass",
    "events",
    "thread",
    "nodes",
    "pcs",
    "module",
    "toggle",
    "hooks",
    "counters",
    "end",
    "symbols",
    "packed",
    "node run",
    "zipped",
    "frames",
    "stripped",
    "file",
    "memory",
    "runtimes",
    "process",
    "epoch",
    "distance",
    "calls",
    "call file",
    "mappings",
    "allocators",
    "mark",
    "scan",
    "scan roots",
    "scan blocks",
    "scan pointers",
    "step",
    "census",
    "folded",
    "fold end",
    "fold failed",
    "bounds",
    "went over",
    "census classes",
    "forked",
    "joined",
    "threads left",
];

/// Returns the name of a kind; `None` if this version does not know it.
pub fn name(kind: u16) -> Option<&'static str> {
    NAMES.get(usize::from(kind).checked_sub(1)?).copied()
}
