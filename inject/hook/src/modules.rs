//! Modules of code addresses, and their unwind tables.
//!
//! prof fills in the module table before recording begins. The hook adds modules that are loaded later, from
//! the dynamic linker's list. It reads the list in `_dl_debug_state`, which the linker calls whenever its
//! list has changed, with its lock held, so that the list is consistent and the modules in it are mapped.
//! Where that function can't be hooked, or was called while recording was paused, the hook follows the list
//! by reads that cannot fault. Where system calls are not allowed, the collector reads the target's mappings
//! instead.
//!
//! Tables are read from copies alone ([`prof_trace::modules`]).

use crate::mapping::Shared;
use crate::memory::{self, WORD};
use crate::sys;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use prof_arch::unwind::{CfiModule, loaded};
use prof_trace::modules::{Modules, New, bits, doubt, in_doubt, ready, settle};
use prof_trace::shared::{MODULES, Module, UnwindTable, flags};

/// Maximum number of entries of the linker's list that are followed.
const MAX_LIST: usize = 8192;
/// Address of the last entry of the linker's list when it was last followed.
static TAIL: AtomicU64 = AtomicU64::new(0);

/// The way in which memory is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// By system calls, which do not fault.
    Asked,
    /// By plain loads: only what the linker has mapped, in a thread that holds its lock.
    Direct,
}

impl Source {
    fn read(self, shared: &Shared, addr: u64, to: &mut [u8]) -> bool {
        if self == Self::Asked {
            return memory::read(shared, addr, to);
        }
        if addr < 4096 {
            return false;
        }
        // SAFETY: this thread holds the linker's lock, so that the linker's list, its strings, and what the
        // program headers of a loaded module call readable stay mapped.
        unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, to.as_mut_ptr(), to.len()) };
        true
    }

    fn word(self, shared: &Shared, addr: u64) -> Option<u64> {
        let mut b = [0u8; size_of::<usize>()];
        self.read(shared, addr, &mut b).then(|| usize::from_ne_bytes(b) as u64)
    }
}

/// Returns whether a module is still loaded at the address in the table.
#[inline(always)]
fn is_there(shared: &Shared, m: &Module) -> bool {
    m.ready.load(Acquire) == ready::LOADED
        && (!in_doubt(shared.control()) || m.flags.load(Relaxed) & bits::STAYS != 0)
}

/// Returns whether the code address `pc` still belongs to the module with this 1-based number. The number 0 stands for
/// code outside of all modules; it is valid as long as no module covers the address.
pub fn is_loaded(shared: &Shared, pc: u64, number: u16) -> bool {
    match (number as usize).checked_sub(1) {
        Some(i) => shared.module(i).is_some_and(|m| is_there(shared, m)),
        None => {
            let first = shared.control().first_modules as usize;
            find_from(shared, pc.wrapping_sub(1), first).is_none()
        }
    }
}

fn count(shared: &Shared) -> usize {
    (shared.control().modules.load(Acquire) as usize).min(MODULES)
}

fn find_from(shared: &Shared, addr: u64, first: usize) -> Option<(u16, &'static Module)> {
    for i in first..count(shared) {
        let m = shared.module(i)?;
        if m.start.load(Relaxed) <= addr && addr < m.end.load(Relaxed) && is_there(shared, m) {
            return Some((i as u16 + 1, m));
        }
    }
    None
}

/// Returns the module that `addr` lies in, with its 1-based number.
pub fn find(shared: &Shared, addr: u64) -> Option<(u16, &'static Module)> {
    find_from(shared, addr, 0)
}

/// Returns whether an address in no known module may be in one that the hook was not told of.
pub fn is_uncertain(shared: &Shared) -> bool {
    let c = shared.control();
    let told = c.flags.load(Relaxed) & (flags::LOADER | flags::SYSCALLS) != 0;
    c.modules_lost.load(Relaxed) != 0
        || (c.r_debug.load(Relaxed) != 0 && !(told && (sys::allowed(shared) || !in_doubt(c))))
}

/// Returns the call frame information of a module; `None` if not all of it could be copied.
pub fn cfi(shared: &Shared, m: &Module) -> Option<CfiModule<'static>> {
    if m.flags.load(Relaxed) & bits::INCOMPLETE != 0 {
        return None;
    }
    let all = Modules::trusted(*shared);
    let bytes = |t: &UnwindTable| all.copy(t.at.load(Relaxed), t.len.load(Relaxed));
    let [hdr, eh_frame, exidx, extab] = &m.tables;
    Some(CfiModule {
        hdr: bytes(hdr),
        hdr_addr: hdr.addr.load(Relaxed),
        eh_frame: bytes(eh_frame),
        eh_frame_addr: eh_frame.addr.load(Relaxed),
        narrow: WORD == 4,
        exidx: bytes(exidx),
        exidx_addr: exidx.addr.load(Relaxed),
        extab: bytes(extab),
        extab_addr: extab.addr.load(Relaxed),
        ..CfiModule::default()
    })
}

/// Looks for modules that were loaded since; returns true if there may be new ones.
pub fn refresh(shared: &Shared) -> bool {
    if !sys::allowed(shared) {
        return false;
    }
    let tail = TAIL.load(Relaxed);
    // The linker appends new modules to its list. The last known entry may be gone, and its memory used for
    // another.
    let word = |n: u64| memory::word(shared, tail + n * WORD);
    let still = || known(shared, word(0)?, word(2)?);
    if tail != 0 && word(3) == Some(0) && still().is_some() {
        return false;
    }
    follow(shared, Source::Asked, true, &mut |_| ());
    true
}

/// Checks which modules are loaded, if they may have changed unnoticed.
pub fn settle_doubts(shared: &Shared) {
    let c = shared.control();
    let seen = c.doubts.load(Acquire);
    if sys::allowed(shared)
        && (c.r_debug.load(Relaxed) == 0 || bring_in_line(shared, Source::Asked))
    {
        settle(c, seen);
    }
}

/// Brings the table in line with the linker's list. To be called with the linker's lock held.
pub fn sync(shared: &Shared) {
    let c = shared.control();
    let how = match sys::allowed(shared) {
        true => Source::Asked,
        false if c.start_in_list != 0 => Source::Direct,
        // The hook can't read the list, so the collector has to look.
        false => return doubt(c),
    };
    if c.r_debug.load(Relaxed) != 0 {
        bring_in_line(shared, how);
    }
}

/// Brings the table in line with the linker's list; returns false if the linker is just changing the list.
fn bring_in_line(shared: &Shared, how: Source) -> bool {
    // `r_state` is an int, not a word: where it would be in a word depends on the byte order.
    let mut state = [0u8; 4];
    if !how.read(shared, shared.control().r_debug.load(Relaxed) + 3 * WORD, &mut state) {
        return false;
    }
    let settled = state == [0; 4];
    if !settled && how == Source::Asked {
        return false;
    }
    let mut seen = [0u64; MODULES / 64];
    // Before a change, the present modules are only marked as listed.
    follow(shared, how, settled, &mut |i| {
        if let Some(w) = seen.get_mut(i / 64) {
            *w |= 1 << (i % 64);
        }
    });
    if !settled {
        return false;
    }
    let all = Modules::trusted(*shared);
    for i in 0..all.count() {
        let listed = seen.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1);
        let Some(m) = shared.module(i) else { break };
        let flags = m.flags.load(Relaxed);
        if listed || m.ready.load(Acquire) != ready::LOADED || flags & bits::STAYS != 0 {
            continue;
        }
        // Modules of other linker namespaces are loaded, but not on this list.
        let gone = flags & bits::LISTED != 0 || {
            let mut magic = [0u8; 4];
            how == Source::Asked
                && !(memory::read(shared, m.start.load(Relaxed), &mut magic)
                    && magic == *b"\x7fELF")
        };
        if gone {
            all.retire(i);
        }
    }
    true
}

/// Follows the linker's list, adds new modules if `add` is true, and passes the index of each module to
/// `seen`.
fn follow(shared: &Shared, how: Source, add: bool, seen: &mut dyn FnMut(usize)) {
    let r_debug = shared.control().r_debug.load(Relaxed);
    if r_debug == 0 {
        return;
    }
    let mut at = how.word(shared, r_debug + WORD).unwrap_or(0);
    let mut last = 0;
    for _ in 0..MAX_LIST {
        let mut entry = [0usize; 4]; // l_addr, l_name, l_ld, l_next
        // SAFETY: a view of the array's words as bytes.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(entry.as_mut_ptr().cast::<u8>(), size_of_val(&entry))
        };
        if at == 0 || !how.read(shared, at, bytes) {
            break;
        }
        last = at;
        let found = known(shared, entry[0] as u64, entry[2] as u64);
        let new =
            || if add { enter(shared, how, at, entry[0] as u64, entry[1] as u64) } else { None };
        if let Some(i) = found.or_else(new) {
            if let Some(m) = shared.module(i) {
                m.flags.fetch_or(bits::LISTED, Relaxed);
            }
            seen(i);
        }
        at = entry[3] as u64;
    }
    TAIL.store(last, Relaxed);
}

/// Returns the index of the loaded module with this bias in which the dynamic section lies.
fn known(shared: &Shared, bias: u64, dynamic: u64) -> Option<usize> {
    Modules::trusted(*shared).find(|m| {
        m.bias.load(Relaxed) == bias
            && m.start.load(Relaxed) <= dynamic
            && dynamic < m.end.load(Relaxed)
    })
}

/// Adds the module of an entry of the list.
fn enter(shared: &Shared, how: Source, entry: u64, bias: u64, name: u64) -> Option<usize> {
    // The first segment mostly begins at the bias, unless the file was linked for another address.
    let start = match shared.control().start_in_list as u64 {
        0 => bias,
        offset => how.word(shared, entry.wrapping_add(offset))?,
    };
    let mut read = |addr: u64, to: &mut [u8]| how.read(shared, addr, to);
    let l = loaded(start, &mut read).filter(|l| l.bias == bias && start != 0)?;
    let mut path = [0u8; 192];
    for (k, to) in path.iter_mut().enumerate().take(191) {
        let mut b = [0u8; 1];
        if name == 0 || !read(name + k as u64, &mut b) || b[0] == 0 {
            break;
        }
        *to = b[0];
    }
    let new = New { start: l.start, end: l.end, bias: l.bias, tables: l.tables };
    Modules::trusted(*shared).add(&new, 0, &path, &mut read)
}
