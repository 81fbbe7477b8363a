//! Recognizes prof's own mappings among those of a target, which may have mapped something else in their places since.

use crate::mapped::library_file;
use prof_os::maps::Map;
use prof_trace::shared::Area;

/// The property by which an area is recognized as prof's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Some of it is executable.
    Code,
    /// The memory is not accessible.
    Guard,
    /// The first page and the last can be neither written nor executed: they are guards, or become guards.
    Guarded,
    /// Any access is possible.
    Any,
}

/// Returns whether a mapping may be a part of one of prof's areas: private memory, without a file or of the hook's library,
/// whose pages stubs may be in.
fn may_be_ours(m: &Map) -> bool {
    let nameless = m.inode == 0 && m.name.is_empty();
    !m.shared && (nameless || library_file::is_library(&m.name))
}

/// Returns whether prof's area is still mapped. All of it must be memory that may be prof's and have the property of its
/// kind; otherwise the target has mapped something else there since.
pub(crate) fn is_ours(maps: &[Map], a: Area, kind: Kind) -> bool {
    let end = a.addr.saturating_add(a.len);
    let mut parts = maps.iter().filter(|m| m.start.0 < end && a.addr < m.end.0).peekable();
    if parts.peek().is_none() {
        return false;
    }
    let (mut at, mut code, mut access, mut edges) = (a.addr, false, false, true);
    for m in parts {
        if !may_be_ours(m) || m.start.0 > at {
            return false;
        }
        let is_edge = m.start.0 <= a.addr || m.end.0 >= end;
        edges &= !is_edge || !(m.write || m.exec);
        at = m.end.0;
        code |= m.exec;
        access |= m.read || m.write || m.exec;
    }
    let as_it_must_be = match kind {
        Kind::Code => code,
        Kind::Guard => !access,
        Kind::Guarded => edges,
        Kind::Any => true,
    };
    at >= end && as_it_must_be
}

/// Returns the mapped parts of prof's area outside of the page `kept`. Only private memory without a file counts.
pub(crate) fn parts_around(maps: &[Map], a: Area, kept: Area) -> Vec<Area> {
    let end = a.addr.saturating_add(a.len);
    let ours = maps.iter().filter(|m| !m.shared && m.inode == 0 && m.name.is_empty());
    let clip = |from: u64, to: u64| (from < to).then(|| Area { addr: from, len: to - from });
    let parts = ours.flat_map(|m| {
        let (from, to) = (m.start.0.max(a.addr), m.end.0.min(end));
        [clip(from, to.min(kept.addr)), clip(from.max(kept.addr + kept.len), to)]
    });
    parts.flatten().collect()
}

/// Returns the mapped part of an area: all of it, or its first page if prof was killed before that page grew (see
/// [`crate::mapped::mapping`]).
pub(crate) fn left_of(maps: &[Map], a: Area, kind: Kind) -> Option<Area> {
    if is_ours(maps, a, kind) {
        return Some(a);
    }
    let first = Area { addr: a.addr, len: prof_os::page_size() };
    let rest = first.addr + first.len..a.addr.saturating_add(a.len);
    let alone = maps.iter().all(|m| m.end.0 <= rest.start || rest.end <= m.start.0);
    (alone && a.len > first.len && is_ours(maps, first, kind)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_in_pages_of_the_library_are_told_from_mappings_of_the_targets() {
        let area = Area { addr: 0x1000, len: 0x3000 };
        let ours = |name: &str, access: &str| {
            let text = format!("1000-4000 {access} 10000 08:01 7 {name}\n");
            is_ours(&prof_os::maps::parse(text.as_bytes()), area, Kind::Code)
        };
        let own = "/tmp/prof-hook-0123456789abcdef/libprof_hook.so (deleted)";
        assert!(ours(own, "r-xp"));
        assert!(!ours(own, "r-xs") && !ours(own, "r--p"));
        for other in ["/lib/libprof_hook.so", "/tmp/prof-hook-0123/libprof_hook.so", "/lib/libc.so"]
        {
            assert!(!ours(other, "r-xp"), "{other}");
        }
    }

    #[test]
    fn the_linker_stack_is_known_in_each_state() {
        let area = Area { addr: 0x1000, len: 0x5000 };
        let ours = |text: &str| {
            let lines: Vec<_> = text.split(',').map(|l| format!("{l} 0 00:00 0 \n")).collect();
            is_ours(&prof_os::maps::parse(lines.concat().as_bytes()), area, Kind::Guarded)
        };
        // The states of the mapping in order: just mapped, with one guard, with all guards, writable, and with the flag
        // page writable.
        assert!(ours("1000-6000 r--p"));
        assert!(ours("1000-2000 ---p,2000-6000 r--p"));
        assert!(ours("1000-2000 ---p,2000-3000 r--p,3000-6000 ---p"));
        assert!(ours("1000-2000 ---p,2000-3000 rw-p,3000-6000 ---p"));
        assert!(ours("1000-2000 ---p,2000-3000 rw-p,3000-4000 ---p,4000-5000 rw-p,5000-6000 ---p"));
        // Memory of the target's: an allocation, a stack with its guard, an arena, a part of something larger.
        assert!(!ours("1000-6000 rw-p"));
        assert!(!ours("1000-2000 ---p,2000-6000 rw-p"));
        assert!(!ours("1000-2000 rw-p,2000-6000 ---p"));
        assert!(!ours("0-8000 rw-p") && !ours("1000-6000 r-xp") && !ours("2000-6000 r--p"));
    }
}
