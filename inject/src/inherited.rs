//! Finds what a process has of prof if it was forked while its parent was recorded: the patched functions, the stubs
//! and the hook's code, switched off by the kernel, and none of the shared memory.
//!
//! A note behind the hook's data says which bytes the patches have replaced. By that note prof can be taken out, even
//! if the parent has ended. Without it (builds of prof before it was introduced), the process can't be recorded.

use crate::hooked::found::Found;
use crate::mapped::library_file::is_library;
use crate::process::rings::ring_in;
use crate::recorded::{Patched, Recorded};
use crate::{Refusal, RemoteAddr, RemoteMemory, Result};
use prof_arch::native::jump::{code_at, decode_jump};
use prof_os::maps::{self, Map};
use prof_os::{Pid, process};
use prof_trace::protocol::remote;
use prof_trace::shared::{EDITION, FUNCTIONS, Function, Header, MAGIC, Shared};
use std::sync::atomic::Ordering::Relaxed;

/// First word of the note. A checksum follows, and the number of bytes from [`HEADER_AT`] on, which it covers.
const NOTE: u64 = u64::from_le_bytes(*b"profnote");
/// Offset in the note of the control page's [`Header`], which the [`Function`]s follow.
const HEADER_AT: u64 = 256;
const FUNCTIONS_AT: u64 = HEADER_AT + size_of::<Header>() as u64;

/// Returns the number of bytes that are reserved for the note behind the hook.
pub(crate) fn room() -> u64 {
    (FUNCTIONS_AT + (FUNCTIONS * size_of::<Function>()) as u64)
        .next_multiple_of(prof_os::page_size())
}

/// Computes the FNV-1a hash of bytes.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// Writes the note to address `at`, with the header and the first `functions` functions of the shared memory at
/// `ring`.
///
/// # Errors
/// If the target's memory can't be read or written.
pub(crate) fn leave(
    mem: &RemoteMemory,
    ring: RemoteAddr,
    functions: usize,
    at: RemoteAddr,
) -> Result<()> {
    let mut header = vec![0; size_of::<Header>()];
    mem.read(ring, &mut header)?;
    let mut table = vec![0; functions.min(FUNCTIONS) * size_of::<Function>()];
    mem.read(ring.plus(Shared::function_offset(0) as u64), &mut table)?;
    let body = [header, table].concat();
    let words = [NOTE, sum(&body), body.len() as u64];
    mem.write(at.plus(HEADER_AT), &body)?;
    mem.write(at, &words.map(u64::to_ne_bytes).concat())
}

/// Returns the description of the parent's recording, applied to this process, and the functions that were hooked.
/// `None`: the process has no note.
///
/// # Errors
/// If a newer build wrote the note, or the process has ended.
pub(crate) fn as_parent(pid: Pid) -> Result<Option<(Recorded, Vec<Patched>)>> {
    let (maps, mem) = (maps::of(pid)?, RemoteMemory::open(pid)?);
    let Some((control, functions)) = find_note(&mem, &maps) else { return Ok(None) };
    if control.needs > EDITION {
        let by = "a newer prof, which its parent was recorded by".into();
        return Err(Refusal::OtherVersion { pid, by }.into());
    }
    let ring = RemoteAddr(control.ring_addr.load(Relaxed));
    let ring_len = control.ring_len.load(Relaxed);
    let r = Recorded { pid, ring, ring_len, control, mem };
    let page = r.page();
    let stride = u64::from(r.control.function_table.stride);
    let count = r.control.functions.load(Relaxed).min(FUNCTIONS as u32);
    let all = (0..u64::from(count)).filter_map(|i| page.function_at(functions.plus(i * stride).0));
    let all = all.map(Patched::of).collect();
    Ok(Some((r, all)))
}

/// Returns whether the process has a note by which prof can be taken out.
#[must_use]
pub fn says_what_stood_where(pid: Pid) -> bool {
    matches!(as_parent(pid), Ok(Some(_)))
}

/// Finds the note. Returns the control page's header from it, and the address of its functions.
fn find_note(mem: &RemoteMemory, maps: &[Map]) -> Option<(Box<Header>, RemoteAddr)> {
    data(maps).find_map(|m| {
        let bytes = mem.read_some(m.start, m.len() as usize);
        let words: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
        let at = words.iter().position(|w| *w == NOTE)?;
        let (expected, len) = (*words.get(at + 1)?, *words.get(at + 2)? as usize);
        let from = at * 8 + HEADER_AT as usize;
        let body = bytes.get(from..from.checked_add(len)?)?;
        let note = m.start.plus(at as u64 * 8);
        let header = remote::header(mem, note.plus(HEADER_AT).0).ok()?;
        let hook = header.hook_addr..header.hook_addr.checked_add(header.hook_len)?;
        let place = header.place.get();
        let place = place.addr..place.addr.checked_add(place.len)?;
        let is_there = hook.contains(&note.0) || place.contains(&note.0);
        (len >= size_of::<Header>() && sum(body) == expected && is_there)
            .then(|| (header, note.plus(FUNCTIONS_AT)))
    })
}

/// Upper bound on the length of the mapping with the hook's data, or with the stack in its place.
pub(crate) const MOST: u64 = 512 << 10;
/// Maximum number of mappings that are searched.
const MAPPINGS: usize = 256;
/// Number of bytes at a function's start that are searched for a jump.
const FIRST: usize = 16;

fn is_nobodys(m: &Map) -> bool {
    m.inode == 0 && m.name.is_empty() && !m.shared
}

/// Returns whether the process has a copy of the hook, and no ring: then it was forked from a recorded one.
#[must_use]
pub fn is_copy(pid: Pid) -> bool {
    let (Ok(maps), Ok(mem)) = (maps::of(pid), RemoteMemory::open(pid)) else { return false };
    ring_in(&maps).is_none() && has_hook(&mem, &maps)
}

/// Returns the mappings that may hold the hook's data, which lies right behind its code; or the note of a hook that is a
/// library, which lies right behind a guard page.
fn data(maps: &[Map]) -> impl Iterator<Item = &Map> {
    let is_guard = |m: &Map| !m.read && !m.write && m.len() == prof_os::page_size();
    let behind = move |m: &&[Map]| {
        is_nobodys(&m[0]) && (m[0].exec || is_guard(&m[0])) && m[0].end == m[1].start
    };
    let data = maps.windows(2).filter(behind).map(|m| &m[1]);
    data.filter(|m| is_nobodys(m) && m.read && m.write && m.len() <= MOST).take(MAPPINGS)
}

/// Returns whether a mapping that may hold the hook's data has the magic number of the hook's header in it.
fn has_hook(mem: &RemoteMemory, maps: &[Map]) -> bool {
    data(maps).any(|m| {
        let bytes = mem.read_some(m.start, m.len() as usize);
        bytes.as_chunks::<8>().0.iter().any(|w| u64::from_ne_bytes(*w) == MAGIC)
    })
}

/// Refuses a process in which one of the functions to be hooked has an inherited patch.
///
/// # Errors
/// If one has.
pub(crate) fn check(pid: Pid, mem: &RemoteMemory, maps: &[Map], found: &[Found]) -> Result<()> {
    let leads_out = |f: &Found| {
        let code = mem.read_some(RemoteAddr(code_at(f.addr.0)), FIRST);
        (0..code.len()).any(|at| {
            let to = decode_jump(f.addr.0.wrapping_add(at as u64), &code[at..]);
            to.is_some_and(|to| {
                let to = RemoteAddr(code_at(to));
                // Stubs of a hook that is a library are in pages of its file.
                let has_stubs = |m: &Map| is_nobodys(m) || is_library(&m.name);
                maps.iter().any(|m| m.holds(to) && m.exec && has_stubs(m))
            })
        })
    };
    if found.iter().any(leads_out) && has_hook(mem, maps) {
        return Err(Refusal::Inherited(pid, process::comm(pid)).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::library::LINKER_STACK;

    #[test]
    fn the_note_behind_the_linkers_stack_is_looked_for() {
        // With pages of up to 64 KiB.
        let most_room = room().next_multiple_of(64 << 10);
        assert!(LINKER_STACK + most_room <= MOST, "{most_room}");
    }
}
