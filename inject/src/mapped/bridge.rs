//! Finds a bridge: a way back to the hook that the target's own unwinder can follow.
//!
//! The hook calls a function that the user has named. That function may throw an exception, or be left when its
//! thread is cancelled, and the unwinder has no table for the hook's code. So the original does not return to the
//! hook, but to an indirect call in the target's own code whose frame is known. The hook lays the stack out as that
//! frame's row of the unwind table says, with the caller's return address and registers in it, and puts its own
//! address into the register that is called. An exception passes through that frame as through any other of the
//! target's. A normal return reaches the hook.

use crate::RemoteMemory;
use crate::hooked::found::is_libc;
use crate::process::elf::Module;
use crate::stopped::tables::Tables;
use prof_arch::native::bridge::{BRIDGE_LEN, Bridge, bridges};
use prof_arch::native::jump::code_at;
use prof_os::maps;

/// Maximum number of bytes that are searched in each mapping of code.
const MOST: u64 = 64 << 20;
/// Libraries, beside libc, that stay loaded for as long as the program runs.
const LASTING: [&str; 3] = ["libstdc++.so", "libgcc_s.so", "libc++abi.so"];

/// Finds a bridge in libc, or else in another module that is never unloaded. Within a module, the smallest suitable
/// frame is chosen.
pub(crate) fn find(mem: &RemoteMemory, modules: &[Module]) -> Option<Bridge> {
    let maps = maps::of(mem.pid()).ok()?;
    let lasting = |m: &&Module| LASTING.iter().any(|n| m.file_name().starts_with(n));
    let libc = modules.iter().filter(|m| is_libc(m));
    let rest = modules.iter().take(1).chain(modules.iter().filter(lasting));
    libc.chain(rest).find_map(|m| {
        let tables = Tables::of(mem, m);
        let own = maps.iter().filter(|p| p.exec && m.start <= p.start && p.end <= m.end);
        own.filter_map(|p| {
            let code = mem.read_some(p.start, p.len().min(MOST) as usize);
            bridges(&tables.cfi(), &code, p.start.0)
        })
        .min_by_key(|b| b.frame)
    })
}

/// Returns the code addresses which, on a thread's stack, show that the thread is in an original called by way of the
/// bridge.
pub(crate) fn range(back: u64) -> Option<std::ops::Range<u64>> {
    // On ARM a return address also names the instruction set, in a bit that is no part of the code's address.
    let at = code_at(back);
    (back != 0).then(|| at..at.saturating_add(BRIDGE_LEN))
}
