//! A way back to the hook that the target's own unwinder can follow.
//!
//! The hook calls a function that the user has named, which may throw an exception, or be left by a
//! thread's cancellation. The unwinder knows no table for the hook's code. So the original does not
//! return to the hook, but to an indirect call in the target's own code whose frame is known: the hook
//! lays the stack out as that frame's row says, with the caller's return address and registers in
//! it, and puts its own address into the register that is called. An exception passes through that
//! frame as through any other of the target's; a normal return comes to the hook.

use crate::elf::Module;
use crate::search::is_libc;
use crate::tables::Tables;
use crate::{RemoteMemory, proc};
use prof_arch::native::bridge::{BRIDGE_LEN, Bridge, bridges};
use prof_arch::native::jump::code_at;

/// As much code of a module is looked at.
const MOST: u64 = 64 << 20;
/// Libraries that stay for as long as the program runs, beside libc and the program itself.
const LASTING: [&str; 3] = ["libstdc++.so", "libgcc_s.so", "libc++abi.so"];

/// Looks for one in what is never unloaded: the smallest frame that will do.
pub(crate) fn find(mem: &RemoteMemory, modules: &[Module]) -> Option<Bridge> {
    let maps = proc::maps(mem.pid()).ok()?;
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

/// Where a thread's stack shows that it is inside of an original that was called so.
pub(crate) fn range(back: u64) -> Option<std::ops::Range<u64>> {
    // Where an address says which instruction set it is, this is about the code.
    let at = code_at(back);
    (back != 0).then(|| at..at.saturating_add(BRIDGE_LEN))
}
