//! The allocator's recorded actions: calls that change its settings, and its own calls of the kernel, which have its
//! functions in their stacks.

use crate::askers::is_allocator;
use crate::load::MapEvent;
use crate::report::{FrameData, frames_of};
use crate::style::printable;
use crate::symbols::Symbolizer;
use crate::{Analysis, Error};
use prof_trace::call::CallKind;
use prof_trace::records::{Allocators, Call, allocator};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// A call that changes the allocator's settings, or asks it to do something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingCallData {
    /// Nanoseconds since the start.
    pub ns: u64,
    /// Nanoseconds that the call took.
    pub took_ns: u64,
    /// Number of the thread.
    pub thread: u32,
    /// Name of the thread.
    pub thread_name: String,
    /// The function: `mallopt`, `malloc_trim`, `malloc_info`, `mallctl`, `mallctlbymib`.
    pub function: &'static str,
    /// Name of the parameter, as in `M_MMAP_THRESHOLD`, `pad`, `arena.0.purge`; of `mallctlbymib` the numbers of its parts.
    pub parameter: String,
    /// The value that it was given; `None`: none.
    pub value: Option<i64>,
    /// Result of the function.
    pub result: i64,
    /// The function says that it has done what it was asked for.
    pub success: bool,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// Calls of a function with the same parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SettingGroupData {
    /// The function.
    pub function: &'static str,
    /// Name of the parameter, as in [`SettingCallData::parameter`].
    pub parameter: String,
    /// Number of calls.
    pub count: u64,
    /// Number of calls that did not do what they were asked for.
    pub failed: u64,
    /// The value of the last call that did.
    pub last_value: Option<i64>,
    /// First call, in nanoseconds since the start.
    pub first_ns: u64,
    /// Last call, in nanoseconds since the start.
    pub last_ns: u64,
}

/// Calls of the kernel that do the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DoingData {
    /// Effect of the calls; the reference lists the names.
    pub what: &'static str,
    /// Number of calls.
    pub count: u64,
    /// Bytes of address space that they were about.
    pub bytes: u64,
    /// First call, in nanoseconds since the start.
    pub first_ns: u64,
    /// Last call, in nanoseconds since the start.
    pub last_ns: u64,
}

/// An arena of glibc's, or a further heap of one, that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MadeData {
    /// Nanoseconds since the start.
    pub ns: u64,
    /// `arena`, or `heap` for a further heap of an arena, or where it is not known which of them it is.
    pub what: &'static str,
    /// Address of the heap.
    pub address: u64,
    /// Number of the thread.
    pub thread: u32,
    /// Name of the thread.
    pub thread_name: String,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// The allocator's actions that a recording has.
#[derive(Default)]
pub(super) struct Doings {
    pub calls: Vec<SettingCallData>,
    pub doings: Vec<DoingData>,
    pub made: Vec<MadeData>,
    /// Number of heaps that were made.
    pub heaps_made: u64,
    /// The calls by function and parameter.
    pub groups: Vec<SettingGroupData>,
    /// Stack nodes of `calls`.
    nodes: Vec<u32>,
    /// Whether the recording has calls of this sort at all.
    pub recorded: bool,
}

/// Greatest number of calls, and of heaps made, that are kept.
const MOST: usize = 100_000;
const MOST_MADE: usize = 1000;
/// Names of mallopt's parameters (`malloc.h`).
const PARAMETERS: [(i32, &str); 9] = [
    (1, "M_MXFAST"),
    (-1, "M_TRIM_THRESHOLD"),
    (-2, "M_TOP_PAD"),
    (-3, "M_MMAP_THRESHOLD"),
    (-4, "M_MMAP_MAX"),
    (-5, "M_CHECK_ACTION"),
    (-6, "M_PERTURB"),
    (-7, "M_ARENA_TEST"),
    (-8, "M_ARENA_MAX"),
];
/// Functions, beside those that allocate, inside of which an allocator calls the kernel.
const OTHERS: [&str; 12] = [
    "free",
    "cfree",
    "free_sized",
    "free_aligned_sized",
    "malloc_trim",
    "mallctl",
    "mallctlbymib",
    "sdallocx",
    "dallocx",
    "mallocx",
    "rallocx",
    "xallocx",
];
/// Beginnings of further names: parts of glibc's allocator, if its debug symbols are there.
const PARTS: [&str; 8] = [
    "_int_",
    "sysmalloc",
    "systrim",
    "arena_get",
    "mtrim",
    "munmap_chunk",
    "tcache_",
    "operator delete",
];

/// Advice of madvise by which pages are given back, and by which huge ones are asked for.
const RELEASES: [u32; 2] = [4, 8];
const HUGE: u32 = 14;
const MAP_FIXED: u32 = 0x10;
const PROT_WRITE: u32 = 2;

/// Returns whether a hooked function is none of an allocator's that hand out or take back blocks.
pub(super) fn is_call(function: &str) -> bool {
    CallKind::ALL.iter().any(|(_, name)| function.trim_start_matches('_') == *name)
        || ["mmap64", "prctl", "syscall", "fork", "_dl_debug_state"].contains(&function)
}

fn is_inside(function: &str) -> bool {
    let plain = function.split(['(', '@']).next().unwrap_or(function);
    let plain = plain.strip_prefix("__GI_").unwrap_or(plain);
    let bare = plain.strip_prefix("__libc_").unwrap_or(plain.trim_start_matches("__"));
    is_allocator(function) || OTHERS.contains(&bare) || PARTS.iter().any(|p| plain.starts_with(p))
}

/// Says of stacks whether they are inside of an allocator.
struct Inside<'a> {
    analysis: &'a Analysis,
    /// Files that contain allocators and nothing else.
    files: Vec<&'a str>,
    known: HashMap<u32, bool>,
}

impl Inside<'_> {
    fn of(&mut self, node: u32, symbols: &mut Symbolizer<'_>) -> bool {
        if let Some(is) = self.known.get(&node) {
            return *is;
        }
        let frames = frames_of(self.analysis, node, symbols);
        let is = frames.iter().any(|f| {
            f.function.as_deref().is_some_and(is_inside)
                || f.module.as_deref().is_some_and(|m| self.files.contains(&m))
        });
        self.known.insert(node, is);
        is
    }
}

/// glibc's heaps, by their addresses.
struct Heaps {
    /// Length and alignment of a heap.
    len: u64,
    /// Addresses of the arenas' first heaps.
    arenas: Vec<u64>,
    /// Heaps that were made, with the ends of what was mapped for them.
    made: BTreeMap<u64, (u64, u64)>,
    /// glibc is the only allocator.
    alone: bool,
}

impl Heaps {
    fn of(analysis: &Analysis, all: &Allocators) -> Self {
        let narrow = analysis.meta().target.pointer_size == 4;
        let len: u64 = if narrow { 1 << 20 } else { 64 << 20 };
        let arenas = all.all_arenas();
        let arenas = arenas.iter().filter(|a| a.heaps > 0).map(|a| a.address & !(len - 1));
        let others = [allocator::GLIBC, allocator::MUSL];
        let alone = all.found.as_chunks::<3>().0.iter().all(|f| others.contains(&f[0].as_str()));
        Self { len, arenas: arenas.collect(), made: BTreeMap::new(), alone }
    }

    /// Returns whether a range is in a heap that was made, or in an arena's first one.
    fn has(&self, addr: u64) -> bool {
        let start = addr & !(self.len - 1);
        self.arenas.contains(&start) || self.made.contains_key(&start)
    }

    /// Returns whether a range lies in what was mapped for a heap, but outside of it.
    fn is_rest(&self, addr: u64) -> bool {
        let start = addr & !(self.len - 1);
        let near = [start.wrapping_sub(self.len), start, start.wrapping_add(self.len)];
        let around = near.iter().filter_map(|s| self.made.get_key_value(s));
        let mut around = around.filter(|(_, (from, to))| (*from..*to).contains(&addr));
        around.any(|(heap, _)| addr < *heap || addr >= heap.saturating_add(self.len))
    }

    /// Returns what a call of the allocator's does, and the bytes that it is about; `None`: nothing of interest.
    fn what(&mut self, c: &Call) -> Option<(&'static str, u64)> {
        let name = match c.kind {
            CallKind::Brk | CallKind::Sbrk if c.addr >= c.old_addr => "brk-grown",
            CallKind::Brk | CallKind::Sbrk => "brk-shrunk",
            CallKind::Mmap if self.alone && c.prot == 0 && c.flags & MAP_FIXED == 0 => {
                let start = c.addr.checked_next_multiple_of(self.len)?;
                self.made.insert(start, (c.addr, c.addr.saturating_add(c.len)));
                "heap-made"
            }
            CallKind::Mmap if c.prot == 0 && c.flags & MAP_FIXED != 0 => "heap-shrunk",
            CallKind::Mmap => "mapped",
            CallKind::Munmap if self.alone && self.is_rest(c.addr) => return None,
            CallKind::Munmap if self.made.contains_key(&c.addr) && c.len == self.len => {
                self.made.remove(&c.addr);
                "heap-removed"
            }
            CallKind::Munmap => "unmapped",
            CallKind::Mremap => "remapped",
            CallKind::Mprotect if self.alone && self.has(c.addr) && c.prot & PROT_WRITE != 0 => {
                "heap-grown"
            }
            CallKind::Mprotect => "protected",
            CallKind::Madvise if RELEASES.contains(&c.flags) => "pages-released",
            CallKind::Madvise if c.flags == HUGE => "huge-pages-asked",
            _ => return None,
        };
        let moved = matches!(c.kind, CallKind::Brk | CallKind::Sbrk);
        let bytes = match (moved, c.old_addr) {
            (true, 0) => 0,
            (true, old) => c.addr.abs_diff(old),
            (false, _) => c.len,
        };
        (!moved || bytes > 0).then_some((name, bytes))
    }
}

impl Doings {
    /// Reads the calls of a recording.
    pub(super) fn of(
        analysis: &Analysis,
        all: &Allocators,
        symbols: &mut Symbolizer<'_>,
    ) -> Result<Self, Error> {
        let meta = analysis.meta();
        let named = all.found.as_chunks::<3>().0.iter();
        let own = named.filter(|f| f[0] != allocator::GLIBC && f[2] != meta.target.exe);
        let own = own.filter(|f| f[0] != allocator::MUSL);
        let files = own.map(|f| f[2].as_str()).collect();
        let mut inside = Inside { analysis, files, known: HashMap::new() };
        let mut heaps = Heaps::of(analysis, all);
        let mut found = Self::default();
        let mut sums: BTreeMap<&'static str, DoingData> = BTreeMap::new();
        let mut groups: BTreeMap<(&'static str, String), SettingGroupData> = BTreeMap::new();
        crate::load::calls(&analysis.path(), |e| {
            let c = &e.call;
            found.recorded = true;
            if c.kind.is_of_allocator() {
                let call = setting(analysis, e);
                group(&mut groups, &call);
                if found.calls.len() < MOST {
                    found.calls.push(call);
                    found.nodes.push(c.node);
                }
                return;
            }
            if c.errno != 0 || !inside.of(c.node, symbols) {
                return;
            }
            let Some((what, bytes)) = heaps.what(c) else { return };
            let ns = meta.clock.ns(c.at());
            let sum = sums.entry(what).or_insert(DoingData {
                what,
                first_ns: ns,
                ..DoingData::default()
            });
            sum.count += 1;
            sum.bytes = sum.bytes.saturating_add(bytes);
            sum.last_ns = ns;
            found.heaps_made += u64::from(what == "heap-made");
            if what == "heap-made" && found.made.len() < MOST_MADE {
                found.made.push(made(analysis, &heaps, e, symbols));
            }
        })?;
        found.groups = groups.into_values().collect();
        found.groups.sort_by_key(|g| std::cmp::Reverse(g.count));
        found.doings = sums.into_values().collect();
        found.recorded |= meta.hooks.hooked.iter().any(|h| h.function == "mmap");
        Ok(found)
    }

    /// Returns the first calls, with their frames.
    pub(super) fn first_calls(
        &self,
        most: usize,
        analysis: &Analysis,
        symbols: &mut Symbolizer<'_>,
    ) -> Vec<SettingCallData> {
        let shown = self.calls.iter().zip(&self.nodes).take(most);
        let with_frames = shown.map(|(call, node)| {
            let frames = frames_of(analysis, *node, symbols);
            SettingCallData { frames, ..call.clone() }
        });
        with_frames.collect()
    }
}

/// Adds a call to those of its function and parameter.
fn group(all: &mut BTreeMap<(&'static str, String), SettingGroupData>, c: &SettingCallData) {
    // A target may give any number of names.
    let key = (c.function, c.parameter.clone());
    if all.len() >= MOST && !all.contains_key(&key) {
        return;
    }
    let g = all.entry(key).or_insert_with(|| SettingGroupData {
        function: c.function,
        parameter: c.parameter.clone(),
        first_ns: c.ns,
        ..SettingGroupData::default()
    });
    g.count += 1;
    g.last_ns = c.ns;
    if c.success {
        g.last_value = c.value;
    } else {
        g.failed += 1;
    }
}

fn thread_name(analysis: &Analysis, thread: u32) -> String {
    analysis.meta().threads.get(&thread).map_or(String::new(), |t| printable(&t.name))
}

fn made(
    analysis: &Analysis,
    heaps: &Heaps,
    e: &MapEvent,
    symbols: &mut Symbolizer<'_>,
) -> MadeData {
    let address = e.call.addr.next_multiple_of(heaps.len);
    let frames = frames_of(analysis, e.call.node, symbols);
    let named = |f: &FrameData| {
        f.function
            .as_deref()
            .is_some_and(|n| n.starts_with("_int_new_arena") || n.starts_with("arena_get2"))
    };
    let is_arena = heaps.arenas.contains(&address) || frames.iter().any(named);
    MadeData {
        ns: analysis.meta().clock.ns(e.call.at()),
        what: if is_arena { "arena" } else { "heap" },
        address,
        thread: e.thread,
        thread_name: thread_name(analysis, e.thread),
        frames,
    }
}

/// Returns a call with its parameter by name, without its frames.
fn setting(analysis: &Analysis, e: &MapEvent) -> SettingCallData {
    let (c, clock) = (&e.call, &analysis.meta().clock);
    let number = c.flags as i32;
    let result = i64::from(c.result as u32 as i32);
    let (parameter, value, result, success) = match c.kind {
        CallKind::Mallopt => {
            let named = PARAMETERS.iter().find(|(n, _)| *n == number);
            let parameter = named.map_or_else(|| number.to_string(), |(_, name)| (*name).into());
            (parameter, Some(c.value), result, result == 1)
        }
        // 0 says that there was nothing to give back.
        CallKind::MallocTrim => ("pad".into(), Some(c.len as i64), result, true),
        CallKind::MallocInfo => ("options".into(), Some(i64::from(number)), result, result == 0),
        _ => {
            let value = (c.len > 0).then_some(c.value);
            (printable(&c.name), value, i64::from(c.errno), c.errno == 0)
        }
    };
    SettingCallData {
        ns: clock.ns(c.begin),
        took_ns: clock.ns(c.end).saturating_sub(clock.ns(c.begin)),
        thread: e.thread,
        thread_name: thread_name(analysis, e.thread),
        function: c.kind.name(),
        parameter,
        value,
        result,
        success,
        frames: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heaps(arenas: Vec<u64>) -> Heaps {
        Heaps { len: 64 << 20, arenas, made: BTreeMap::new(), alone: true }
    }

    #[test]
    fn what_glibc_does_is_told_from_its_calls() {
        let mut h = heaps(vec![0x7000_0000_0000]);
        let mib = |n: u64| n << 20;
        let call = |kind, addr, len| Call { kind, addr, len, ..Call::default() };
        let reserve = call(CallKind::Mmap, 0x7100_0100_0000, mib(128));
        assert_eq!(h.what(&reserve), Some(("heap-made", mib(128))));
        let heap = 0x7100_0400_0000;
        // What was mapped for the alignment alone is given back at once.
        assert_eq!(h.what(&call(CallKind::Munmap, 0x7100_0100_0000, mib(48))), None);
        assert_eq!(h.what(&call(CallKind::Munmap, heap + mib(64), mib(16))), None);
        let grow = Call { prot: 3, ..call(CallKind::Mprotect, heap + 4096, 8192) };
        assert_eq!(h.what(&grow), Some(("heap-grown", 8192)));
        let first = Call { prot: 3, ..call(CallKind::Mprotect, 0x7000_0002_0000, 4096) };
        assert_eq!(h.what(&first), Some(("heap-grown", 4096)));
        let shrink = Call { flags: MAP_FIXED, ..call(CallKind::Mmap, heap + 8192, 4096) };
        assert_eq!(h.what(&shrink), Some(("heap-shrunk", 4096)));
        assert_eq!(h.what(&call(CallKind::Munmap, heap, mib(64))), Some(("heap-removed", mib(64))));
        assert_eq!(h.what(&call(CallKind::Munmap, heap, mib(64))), Some(("unmapped", mib(64))));
        let block = Call { prot: 3, ..call(CallKind::Mmap, 0x7200_0000_0000, mib(1)) };
        assert_eq!(h.what(&block), Some(("mapped", mib(1))));
        let brk = |old_addr, addr| Call { old_addr, ..call(CallKind::Sbrk, addr, 0) };
        assert_eq!(h.what(&brk(0x1000, 0x5000)), Some(("brk-grown", 0x4000)));
        assert_eq!(h.what(&brk(0x5000, 0x4000)), Some(("brk-shrunk", 0x1000)));
        assert_eq!(h.what(&brk(0x5000, 0x5000)), None);
        let advise = |flags| Call { flags, ..call(CallKind::Madvise, 0x1000, 4096) };
        assert_eq!(h.what(&advise(4)), Some(("pages-released", 4096)));
        assert_eq!(
            (h.what(&advise(14)), h.what(&advise(0))),
            (Some(("huge-pages-asked", 4096)), None)
        );
        // Another allocator's memory without access is no heap of glibc's.
        h.alone = false;
        assert_eq!(h.what(&reserve), Some(("mapped", mib(128))));
    }

    #[test]
    fn functions_inside_of_which_an_allocator_works() {
        for name in [
            "malloc",
            "__libc_malloc",
            "free",
            "__GI___libc_free",
            "operator delete(void*)",
            "sysmalloc_mmap",
            "malloc_trim",
        ] {
            assert!(is_inside(name), "{name}");
        }
        for name in ["mmap", "main", "pthread_create", "free_list", "dl_open"] {
            assert!(!is_inside(name), "{name}");
        }
        assert!(is_call("__mmap") && is_call("mallctl") && !is_call("malloc"));
    }
}
