//! Chooses free address space in the target for the stubs and for the ring.

use crate::RemoteAddr;
use crate::hooked::plan::Planned;
use crate::process::elf::Module;
use prof_os::maps::Map;
use prof_os::{Pid, limits, process};
use prof_trace::records::NotHooked;
use prof_trace::shared::Area;
use std::ops::Range;

/// Bytes of the stubs in one stub area, or a page if that is more. A guard page lies on each side of them.
const AREA: u64 = 16 << 10;

/// Alignment of stubs.
const ALIGN: u64 = 64;

/// Space that is left free for the heap to grow, and below for the first thread's stack.
const HEAP_REACH: u64 = if cfg!(target_pointer_width = "64") { 1 << 30 } else { 256 << 20 };
const STACK_REACH: u64 = if cfg!(target_pointer_width = "64") { 256 << 20 } else { 64 << 20 };

/// Pages that the kernel leaves free below a stack (`stack_guard_gap`), and some more for arguments, which the limit
/// does not count.
const STACK_GUARD: u64 = 2 * 256;

/// Alignment of the ring. A shared mapping has to be aligned where caches are looked up by virtual addresses.
const RING_ALIGN: u64 = 2 << 20;

/// Maximum number of places that are tried for the ring.
const RING_PLACES: usize = 8;

/// Lowest address of any place.
const LOWEST: u64 = 64 << 10;

/// Bytes that are left free on both sides of stubs, for mappings that grow towards them.
const SPARE: u64 = 64 << 10;

/// The mappings of the target that grow in place, for which space is left free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// Start of the heap; 0 if it is not known.
    pub start_brk: u64,
    /// Maximum size of the first thread's stack in bytes; `None` if there is no limit.
    pub stack_limit: Option<u64>,
    /// Whether only the space within the stack's limit is left free, rather than [`STACK_REACH`] bytes.
    stack_limited: bool,
}

impl Growth {
    /// Reads the values from `/proc/PID`.
    #[must_use]
    pub(crate) fn of(pid: Pid) -> Self {
        let (start_brk, stack_limit) = (process::start_brk(pid), limits::stack(pid));
        Growth { start_brk, stack_limit, stack_limited: false }
    }

    /// Returns a copy that leaves only the space within the stack's limit free, for use where no other place is
    /// found. On MIPS64 jumps stay in a region of 256 MiB that usually holds both the libraries and the stack, and
    /// threads' stacks fill the rest. The kernel keeps at least 128 MiB free for the first stack, which is more than
    /// its usual limit.
    fn no_more_than_must(self) -> Self {
        Growth { stack_limited: true, ..self }
    }

    /// Returns the lowest address that the stack, mapped from `start` to `end`, may reach.
    fn stack_bottom(&self, start: u64, end: u64) -> u64 {
        match self.stack_limit.filter(|_| self.stack_limited) {
            Some(limit) => {
                let lowest = end.saturating_sub(limit).min(start);
                lowest.saturating_sub(STACK_GUARD * prof_os::page_size())
            }
            None => start.saturating_sub(STACK_REACH),
        }
    }
}

/// Chooses free address space for the stub areas, within reach of the functions. `tried` is how many times the target
/// has mapped something there before prof could.
pub(crate) fn place(
    maps: &[Map],
    growth: &Growth,
    modules: &[Module],
    planned: &mut Vec<Planned>,
    not: &mut Vec<NotHooked>,
    tried: usize,
) -> Vec<Area> {
    let mut areas: Vec<(Area, u64)> = Vec::new();
    let (len, page) = (area_len(), prof_os::page_size());
    let spare = SPARE << tried.min(6);
    planned.retain_mut(|p| {
        let fits = |(a, used): &(Area, u64)| {
            used + 512 <= a.len - 2 * page
                && p.window.start <= a.addr
                && a.addr + a.len <= p.window.end
        };
        let index = areas.iter().position(fits).or_else(|| {
            let taken: Vec<Area> = areas.iter().map(|(a, _)| *a).collect();
            let near = p.found.addr.0;
            let less = growth.no_more_than_must();
            let at = |growth, spare| gap(maps, growth, &taken, &p.window, near, len, spare);
            let addr =
                at(growth, spare).or_else(|| at(growth, SPARE)).or_else(|| at(&less, SPARE))?;
            areas.push((Area { addr, len }, 0));
            Some(areas.len() - 1)
        });
        let Some(i) = index else {
            not.push(NotHooked {
                function: p.found.name.clone(),
                module: modules[p.found.module].path.display().to_string(),
                reason: "no free address space within reach of a jump".into(),
            });
            return false;
        };
        p.area = i;
        p.stub_addr = RemoteAddr(areas[i].0.addr + page + areas[i].1);
        areas[i].1 += 512u64.next_multiple_of(ALIGN);
        true
    });
    areas.into_iter().map(|(a, _)| a).collect()
}

fn area_len() -> u64 {
    let page = prof_os::page_size();
    AREA.next_multiple_of(page) + 2 * page
}

/// Returns places for the ring of `len` bytes, the best first. They are far from all other mappings, so that no block
/// of the target is next to the ring and the whole reach of the functions is left for stubs. Where address space is
/// short, that would leave too little in one piece. There the ring is put below another mapping, with room for guard
/// pages, and outside of `windows`, which are for stubs.
pub(crate) fn ring_places(
    maps: &[Map],
    start_brk: u64,
    windows: &[Range<u64>],
    len: u64,
) -> Vec<u64> {
    if cfg!(target_pointer_width = "64") {
        let room = len + 2 * RING_ALIGN;
        let place = |_| remote_place(maps, room, RING_ALIGN).map(|at| at + RING_ALIGN);
        return (0..RING_PLACES).filter_map(place).collect();
    }
    below_others(maps, start_brk, windows, len)
}

fn below_others(maps: &[Map], start_brk: u64, windows: &[Range<u64>], len: u64) -> Vec<u64> {
    let page = prof_os::page_size();
    let clear =
        |at: u64, other: Range<u64>| at + len + page <= other.start || other.end + page <= at;
    let heap = start_brk..start_brk.saturating_add(HEAP_REACH);
    // Candidates are places below the windows, and then below mappings, but never where the first stack grows.
    let stack = maps.iter().find(|m| m.name == b"[stack]");
    let stack = stack.map(|m| m.start.0.saturating_sub(STACK_REACH)..u64::MAX >> 1);
    let ends = windows.iter().map(|w| w.start).chain(maps.iter().rev().map(|m| m.start.0));
    // A static program may have nothing but its stack above its heap.
    let ends = ends.chain(stack.as_ref().map(|s| s.start));
    let below = |end: u64| {
        let at = end.checked_sub(len + 2 * page)? & !(RING_ALIGN - 1);
        (at >= LOWEST.max(page)).then_some(at)
    };
    let free = |at: &u64| {
        maps.iter().all(|m| clear(*at, m.start.0..m.end.0))
            && stack.as_ref().is_none_or(|s| at + len + page <= s.start)
    };
    let fits = |at: &u64| windows.iter().all(|w| clear(*at, w.clone())) && clear(*at, heap.clone());
    let all: Vec<u64> = ends.filter_map(below).filter(free).collect();
    let (good, rest): (Vec<u64>, Vec<u64>) = all.into_iter().partition(fits);
    good.into_iter().chain(rest).take(RING_PLACES).collect()
}

/// Finds a free place for `len` bytes, which are whole pages, inside `window` and as near as possible to `near`.
fn gap(
    maps: &[Map],
    growth: &Growth,
    taken: &[Area],
    window: &Range<u64>,
    near: u64,
    len: u64,
    spare: u64,
) -> Option<u64> {
    let page = prof_os::page_size();
    // The heap grows up from its start and the first stack grows down; both are left space.
    let heap = if growth.start_brk == 0 { u64::MAX } else { growth.start_brk };
    let heap = heap..heap.saturating_add(HEAP_REACH);
    let mut best: Option<u64> = None;
    let mut low = LOWEST;
    let ends = maps.iter().map(|m| (m.start.0, m.end.0, m.name.as_slice()));
    for (start, end, name) in ends.chain(std::iter::once((window.end, window.end, &b""[..]))) {
        let clear = match name {
            b"[stack]" => growth.stack_bottom(start, end),
            _ => u64::MAX,
        };
        for part in [low..start.min(heap.start), low.max(heap.end)..start] {
            let from = part.start.max(window.start);
            let to = part.end.saturating_sub(spare).min(clear).min(window.end);
            if to <= from || to - from < len + spare + page {
                continue;
            }
            for addr in [from.next_multiple_of(page) + spare, (to - len) & !(page - 1)] {
                let free = taken.iter().all(|a| addr + len <= a.addr || a.addr + a.len <= addr);
                if free
                    && addr >= from
                    && best.is_none_or(|b| b.abs_diff(near) > addr.abs_diff(near))
                {
                    best = Some(addr);
                }
            }
        }
        // Memory above the first stack may be the kernel's.
        if name == b"[stack]" {
            break;
        }
        low = low.max(end);
    }
    best
}

/// Returns a place for `len` bytes at a multiple of `align`, far from all mappings, where the kernel puts nothing by
/// itself.
pub(crate) fn remote_place(maps: &[Map], len: u64, align: u64) -> Option<u64> {
    // These belong to the kernel; the gap below them is not the process's.
    let kernels = |m: &&Map| m.name == b"[vsyscall]" || m.name == b"[vectors]";
    let own = maps.iter().filter(|m| !kernels(m)).collect::<Vec<_>>();
    let gaps = own.windows(2).map(|m| (m[0].end.0, m[1].start.0));
    let (from, to) = gaps.filter(|(from, to)| from < to).max_by_key(|(from, to)| to - from)?;
    // The place is random, since what is there can be written and executed.
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), len);
    let quarter = (to - from) / 4;
    let at = (from + quarter + seed % quarter.max(1)).next_multiple_of(align);
    (at.checked_add(len)? <= to).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(start: u64, end: u64) -> Map {
        let text = format!("{start:x}-{end:x} r-xp 00000000 00:00 0 \n");
        prof_os::maps::parse(text.as_bytes()).remove(0)
    }

    fn named(start: u64, end: u64, name: &str) -> Map {
        let text = format!("{start:x}-{end:x} rw-p 00000000 00:00 0 {name}\n");
        prof_os::maps::parse(text.as_bytes()).remove(0)
    }

    #[test]
    fn stubs_are_put_below_the_stack() {
        // A 32-bit ARM process under a 64-bit kernel has its libraries and its stack at the end of the addresses.
        let (libs, len) = (0xf7a0_0000..0xf7c0_0000, area_len());
        let stack = named(0xf9d0_0000, 0xf9d2_0000, "[stack]");
        let vectors = named(0xffff_0000, 0xffff_1000, "[vectors]");
        let maps = [map(0x40_0000, 0x50_0000), map(libs.start, libs.end), stack, vectors];
        let window = libs.start - (15 << 20)..libs.end + (15 << 20);
        let growth =
            Growth { start_brk: 0x100_0000, stack_limit: Some(8 << 20), stack_limited: false };
        let at = gap(&maps, &growth, &[], &window, libs.start, len, SPARE).expect("a place");
        assert!(window.start <= at && at + len <= libs.start, "{at:x}");
        // There is room above the stack, but that may be the kernel's, and the space below is the stack's.
        let window = libs.end..0xffff_0000;
        assert_eq!(gap(&maps, &growth, &[], &window, libs.start, len, SPARE), None);
    }

    #[test]
    fn what_the_stack_cannot_grow_to_is_taken_when_nothing_else_is_free() {
        // MIPS64: threads' stacks fill the region below the libraries.
        let (len, region) = (area_len(), 0xff_f000_0000..0x100_0000_0000);
        let libs_end = 0xff_ffd0_0000 - STACK_REACH / 2;
        let libs = libs_end - 0x20_0000..libs_end;
        let stack = named(0xff_ffd0_0000, 0xff_ffd2_0000, "[stack]");
        let maps = [map(0x1_2000_0000, 0x1_2010_0000), map(region.start, libs.end), stack];
        let growth =
            |limit| Growth { start_brk: 0x1_3000_0000, stack_limit: limit, stack_limited: false };
        let place = |g: Growth| gap(&maps, &g, &[], &region, libs.start, len, SPARE);
        assert_eq!(place(growth(Some(8 << 20))), None);
        let at = place(growth(Some(8 << 20)).no_more_than_must()).expect("a place");
        let bottom = 0xff_ffd2_0000 - (8 << 20) - STACK_GUARD * prof_os::page_size();
        assert!(libs.end <= at && at + len <= bottom, "{at:x}");
        // A stack without a limit, or with a limit of most of that space, keeps the space.
        assert_eq!(place(growth(None).no_more_than_must()), None);
        assert_eq!(place(growth(Some(STACK_REACH / 2)).no_more_than_must()), None);
    }

    #[test]
    fn the_ring_is_put_below_others_where_space_is_short() {
        let (libs, len) = (0xb7a0_0000..0xb7c0_0000, 100 << 20);
        let window = libs.start - (15 << 20)..libs.end + (15 << 20);
        let stack = named(0xffd0_0000, 0xffd2_0000, "[stack]");
        let maps = [map(0x40_0000, 0x50_0000), map(libs.start, libs.end), stack];
        let windows = [window.clone()];
        let at = below_others(&maps, 0x100_0000, &windows, len)[0];
        assert!(at.is_multiple_of(RING_ALIGN) && at + len + prof_os::page_size() <= window.start);
        assert!(window.start - at < len + 2 * RING_ALIGN);
        // If that place is taken, the next is below whatever takes it.
        let [code, libs, stack] = maps;
        let maps = [code, map(at + len, at + len + 4096), libs, stack];
        let next = below_others(&maps, 0x100_0000, &windows, len);
        assert!(next.first().is_some_and(|a| *a < at), "{next:x?}");
    }

    #[test]
    fn the_ring_of_a_static_program_is_below_its_stack() {
        // 32-bit ARM: everything else is above the stack, or too low for room below it.
        let (stack, len) = (0xbed0_0000, 100 << 20);
        let maps = [
            map(0x1_0000, 0x9_0000),
            map(0xb_0000, 0xd_0000),
            named(stack, stack + 0x2_0000, "[stack]"),
            named(0xbedf_5000, 0xbedf_6000, "[sigpage]"),
            named(0xffff_0000, 0xffff_1000, "[vectors]"),
        ];
        let window = 0..0x201_0000;
        let at = below_others(&maps, 0xb_0000, std::slice::from_ref(&window), len)[0];
        assert!(at + len <= stack - STACK_REACH.min(64 << 20), "{at:x}");
        assert!(at >= 0xb_0000 + (256 << 20), "{at:x}");
    }

    #[test]
    fn the_ring_is_far_from_everything() {
        if cfg!(target_pointer_width = "32") {
            return;
        }
        let (end, len) = (0x7fff_8000_0000, 512 << 20);
        let maps = [map(0x5555_0000_0000, 0x5555_1000_0000), map(end, end + 4096)];
        let places = ring_places(&maps, 0, &[], len);
        assert_eq!(places.len(), RING_PLACES);
        for at in places {
            assert!(at.is_multiple_of(RING_ALIGN), "{at:x}");
            assert!(at > 0x5555_1000_0000 + (1 << 40) && at + len < end - (1 << 40), "{at:x}");
        }
        // No gap is large enough.
        assert!(ring_places(&[map(0, 1 << 20), map(8 << 20, 16 << 20)], 0, &[], len).is_empty());
    }
}
