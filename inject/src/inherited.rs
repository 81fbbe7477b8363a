//! What a process has of prof that was forked while its parent was recorded: the patched functions, the stubs and
//! the hook's code, switched off by the kernel, and nothing that says what stood where. It can't be recorded.

use crate::proc::{self, Map};
use crate::recorded::ring_in;
use crate::search::Found;
use crate::{Refusal, RemoteAddr, RemoteMemory, Result};
use prof_arch::native::jump::{code_at, decode_jump};
use prof_trace::shared::MAGIC;

/// The hook's parts are smaller.
const MOST: u64 = 256 << 10;
/// More mappings are not looked through.
const MAPPINGS: usize = 256;
/// A patch begins in the first bytes of a function.
const FIRST: usize = 16;

fn is_nobodys(m: &Map) -> bool {
    m.inode == 0 && m.name.is_empty() && !m.shared
}

/// Whether the process has a copy of the hook in it, and no ring: it was forked from one that was recorded then.
#[must_use]
pub fn is_copy(pid: i32) -> bool {
    let (Ok(maps), Ok(mem)) = (proc::maps(pid), RemoteMemory::open(pid)) else { return false };
    ring_in(&maps).is_none() && has_hook(&mem, &maps)
}

/// The hook's data lies right behind its code, and is known by its first word.
fn has_hook(mem: &RemoteMemory, maps: &[Map]) -> bool {
    let behind_code = |m: &[Map]| is_nobodys(&m[0]) && m[0].exec && m[0].end == m[1].start;
    let data = maps.windows(2).filter(|m| behind_code(m)).map(|m| &m[1]);
    let data = data.filter(|m| is_nobodys(m) && m.read && m.write && m.len() <= MOST);
    data.take(MAPPINGS).any(|m| {
        let bytes = mem.read_some(m.start, m.len() as usize);
        bytes.as_chunks::<8>().0.iter().any(|w| u64::from_ne_bytes(*w) == MAGIC)
    })
}

/// Refuses a process in which one of the functions to be hooked has a jump of such a kind.
///
/// # Errors
/// If one has.
pub(crate) fn check(pid: i32, mem: &RemoteMemory, maps: &[Map], found: &[Found]) -> Result<()> {
    let leads_out = |f: &Found| {
        let code = mem.read_some(RemoteAddr(code_at(f.addr.0)), FIRST);
        (0..code.len()).any(|at| {
            let to = decode_jump(f.addr.0.wrapping_add(at as u64), &code[at..]);
            to.is_some_and(|to| {
                let to = RemoteAddr(code_at(to));
                maps.iter().any(|m| m.holds(to) && m.exec && is_nobodys(m))
            })
        })
    };
    if found.iter().any(leads_out) && has_hook(mem, maps) {
        return Err(Refusal::Inherited(pid, proc::comm(pid)).into());
    }
    Ok(())
}
