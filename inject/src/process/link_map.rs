//! The dynamic linker's list of modules (`r_debug` and `link_map` in glibc's and musl's link.h).

use crate::process::elf::{self, Module};
use crate::stopped::memory::WORD;
use crate::{RemoteAddr, RemoteMemory};

/// Maximum number of entries that are read.
pub(crate) const MOST: usize = 8192;
/// Values of `r_state` while nothing is added to the linker's list or taken from it, and while something is added, and that
/// field's place in `r_debug` (glibc's link.h, musl's).
pub(crate) const RT_CONSISTENT: u32 = 0;
pub(crate) const RT_ADD: u32 = 1;
pub(crate) const R_STATE: u64 = 3 * WORD as u64;

/// Returns whether the linker's list is complete, and has libc in it. Audit libraries are linked before the program is, in
/// a list of their own.
pub(crate) fn has_linked(mem: &RemoteMemory, modules: &[Module], libc: usize) -> bool {
    let list = RemoteAddr(elf::r_debug(mem, modules));
    let mut state = [0; 4];
    mem.read(list.plus(R_STATE), &mut state).is_ok()
        && u32::from_ne_bytes(state) == RT_CONSISTENT
        && lists(mem, modules, &modules[libc])
}

/// Returns whether the linker's list has this module. The list is that of the program's own namespace: what was loaded by
/// dlmopen is in others.
pub(crate) fn lists(mem: &RemoteMemory, modules: &[Module], m: &Module) -> bool {
    let list = RemoteAddr(elf::r_debug(mem, modules));
    let mut at = mem.word(list.plus(WORD as u64)).unwrap_or(0);
    for _ in 0..MOST {
        if at == 0 {
            break;
        }
        let field = |k: u64| mem.word(RemoteAddr(at).plus(k * WORD as u64)).ok();
        if field(0) == Some(m.bias) {
            return true;
        }
        at = field(3).unwrap_or(0);
    }
    false
}
