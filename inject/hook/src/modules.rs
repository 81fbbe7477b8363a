//! Whose code an address is.
//!
//! prof fills the module table in before recording begins. What is loaded later is found here: by
//! the hook on the dynamic linker's `_dl_debug_state`, which it calls whenever its list has changed
//! (with its lock held, so that the list is whole), and where that can't be hooked, by following
//! the list when an address turns up that is nobody's, through reads that cannot fault.

use crate::memory::{self, WORD};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use prof_arch::unwind::{CfiModule, eh_frame_address};
use prof_trace::shared::{MODULES, Module, Shared};

/// Entries of the linker's list that are followed.
const MAX_LIST: usize = 8192;
/// Values of [`Module::ready`].
const LOADED: u32 = 1;
const UNLOADED: u32 = 2;
/// Last entry of the linker's list when it was last followed.
static TAIL: AtomicU64 = AtomicU64::new(0);

/// Whether the module with this 1-based number is there; 0, code of no module, always is.
#[inline(always)]
pub fn is_loaded(shared: &Shared, number: u16) -> bool {
    number == 0
        || shared.module(number as usize - 1).is_some_and(|m| m.ready.load(Relaxed) == LOADED)
}

fn count(shared: &Shared) -> usize {
    (shared.control().modules.load(Acquire) as usize).min(MODULES)
}

/// The module that `addr` lies in, and its 1-based number.
pub fn find(shared: &Shared, addr: u64) -> Option<(u16, &'static Module)> {
    for i in 0..count(shared) {
        let m = shared.module(i)?;
        if m.ready.load(Acquire) == LOADED
            && m.start.load(Relaxed) <= addr
            && addr < m.end.load(Relaxed)
        {
            return Some((i as u16 + 1, m));
        }
    }
    None
}

/// Its call frame information.
///
/// # Safety
/// The module must stay loaded while the result is in use: the caller holds a code address of it
/// that stands on a live stack.
pub unsafe fn cfi(m: &Module) -> CfiModule<'static> {
    let slice = |addr: u64, len: u64| -> &'static [u8] {
        if addr == 0 || len == 0 || len > isize::MAX as u64 {
            return &[];
        }
        // SAFETY: inside a segment of a loaded module, by its program headers.
        unsafe { core::slice::from_raw_parts(addr as *const u8, len as usize) }
    };
    let (hdr, eh) = (m.eh_frame_hdr.load(Relaxed), m.eh_frame.load(Relaxed));
    let (exidx, extab) = (m.exidx.load(Relaxed), m.extab.load(Relaxed));
    CfiModule {
        hdr: slice(hdr, m.eh_frame_hdr_len.load(Relaxed)),
        hdr_addr: hdr,
        eh_frame: slice(eh, m.eh_frame_len.load(Relaxed)),
        eh_frame_addr: eh,
        narrow: WORD == 4,
        exidx: slice(exidx, m.exidx_len.load(Relaxed)),
        exidx_addr: exidx,
        extab: slice(extab, m.extab_len.load(Relaxed)),
        extab_addr: extab,
        ..CfiModule::default()
    }
}

/// Looks for modules that were loaded since; true if there may be new ones.
pub fn refresh(shared: &Shared) -> bool {
    let tail = TAIL.load(Relaxed);
    // New modules are put at the end of the list. The end may have gone meanwhile, and another be in its place.
    let word = |n: u64| memory::word(shared, tail + n * WORD);
    let still = || known(shared, word(0)?, word(2)?);
    if tail != 0 && word(3) == Some(0) && still().is_some() {
        return false;
    }
    follow(shared, &mut |_| ());
    true
}

/// Brings the table in line with the linker's list; to be called with the linker's lock held.
pub fn sync(shared: &Shared) {
    let r_debug = shared.control().r_debug;
    // An int, which is not the lower half of a word in either byte order.
    let mut state = [0u8; 4];
    let consistent = memory::read(shared, r_debug + 3 * WORD, &mut state) && state == [0; 4];
    if r_debug == 0 || !consistent {
        return;
    }
    let mut seen = [0u64; MODULES / 64];
    follow(shared, &mut |i| {
        if let Some(w) = seen.get_mut(i / 64) {
            *w |= 1 << (i % 64);
        }
    });
    for i in 0..count(shared) {
        let listed = seen.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1);
        let Some(m) = shared.module(i) else { break };
        if listed || m.ready.load(Acquire) != LOADED {
            continue;
        }
        // The vDSO and modules of other namespaces are not on the list, but are there.
        let mut magic = [0u8; 4];
        if !memory::read(shared, m.start.load(Relaxed), &mut magic) {
            m.ready.store(UNLOADED, Release);
            shared.control().modules_seq.fetch_add(1, AcqRel);
        }
    }
}

/// Follows the linker's list, adds what is new, and tells `seen` the index of each.
fn follow(shared: &Shared, seen: &mut dyn FnMut(usize)) {
    let r_debug = shared.control().r_debug;
    if r_debug == 0 {
        return;
    }
    let mut at = memory::word(shared, r_debug + WORD).unwrap_or(0);
    let mut last = 0;
    for _ in 0..MAX_LIST {
        let mut entry = [0usize; 4]; // l_addr, l_name, l_ld, l_next
        // SAFETY: the words of the array as bytes.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(entry.as_mut_ptr().cast::<u8>(), size_of_val(&entry))
        };
        if at == 0 || !memory::read(shared, at, bytes) {
            break;
        }
        last = at;
        if let Some(i) = known(shared, entry[0] as u64, entry[2] as u64) {
            seen(i);
        } else if let Some(i) = add(shared, entry[0] as u64, entry[1] as u64) {
            seen(i);
        }
        at = entry[3] as u64;
    }
    TAIL.store(last, Relaxed);
}

/// The index of the loaded module with this bias, in which its dynamic section lies.
fn known(shared: &Shared, bias: u64, dynamic: u64) -> Option<usize> {
    (0..count(shared)).find(|i| {
        shared.module(*i).is_some_and(|m| {
            m.ready.load(Acquire) == LOADED
                && m.bias.load(Relaxed) == bias
                && m.start.load(Relaxed) <= dynamic
                && dynamic < m.end.load(Relaxed)
        })
    })
}

/// What the program headers say.
#[derive(Default)]
struct Layout {
    start: u64,
    end: u64,
    hdr: u64,
    hdr_len: u64,
    eh_frame: u64,
    eh_frame_len: u64,
    exidx: u64,
    exidx_len: u64,
    extab: u64,
    extab_len: u64,
}

fn add(shared: &Shared, bias: u64, name: u64) -> Option<usize> {
    let l = layout(shared, bias)?;
    // Whatever was there before is not there any more.
    for i in 0..count(shared) {
        let m = shared.module(i)?;
        if m.ready.load(Acquire) == LOADED
            && m.start.load(Relaxed) < l.end
            && l.start < m.end.load(Relaxed)
        {
            m.ready.store(UNLOADED, Release);
        }
    }
    let i = shared.control().modules.fetch_add(1, AcqRel) as usize;
    let Some(m) = shared.module(i) else {
        shared.control().modules.store(MODULES as u32, Relaxed);
        return None;
    };
    m.start.store(l.start, Relaxed);
    m.end.store(l.end, Relaxed);
    m.bias.store(bias, Relaxed);
    m.eh_frame_hdr.store(l.hdr, Relaxed);
    m.eh_frame_hdr_len.store(l.hdr_len, Relaxed);
    m.eh_frame.store(l.eh_frame, Relaxed);
    m.eh_frame_len.store(l.eh_frame_len, Relaxed);
    m.exidx.store(l.exidx, Relaxed);
    m.exidx_len.store(l.exidx_len, Relaxed);
    m.extab.store(l.extab, Relaxed);
    m.extab_len.store(l.extab_len, Relaxed);
    for (k, to) in m.name.iter().take(m.name.len() - 1).enumerate() {
        let mut b = [0u8; 1];
        if !memory::read(shared, name + k as u64, &mut b) || b[0] == 0 {
            break;
        }
        to.store(b[0], Relaxed);
    }
    m.ready.store(LOADED, Release);
    shared.control().modules_seq.fetch_add(1, AcqRel);
    Some(i)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0u8; 8];
    let Some(b) = bytes.get(at..at + N) else { return 0 };
    if cfg!(target_endian = "little") {
        out[..N].copy_from_slice(b);
        u64::from_le_bytes(out)
    } else {
        out[8 - N..].copy_from_slice(b);
        u64::from_be_bytes(out)
    }
}

/// Reads the program headers of the ELF file mapped with this bias (System V gABI, "ELF Header",
/// "Program Header"); both widths.
fn layout(shared: &Shared, bias: u64) -> Option<Layout> {
    let mut head = [0u8; 64];
    if !memory::read(shared, bias, &mut head) || head[..4] != *b"\x7fELF" {
        return None;
    }
    let wide = head[4] == 2;
    let (phoff, size, count) = if wide {
        (field::<8>(&head, 32), field::<2>(&head, 54), field::<2>(&head, 56))
    } else {
        (field::<4>(&head, 28), field::<2>(&head, 42), field::<2>(&head, 44))
    };
    let mut l = Layout { start: u64::MAX, ..Layout::default() };
    let each = |see: &mut dyn FnMut(u32, u64, u64, u64)| {
        for i in 0..count.min(64) {
            let mut p = [0u8; 56];
            let at = bias.wrapping_add(phoff).wrapping_add(i * size);
            let len = if wide { 56 } else { 32 };
            let Some(p) = p.get_mut(..len) else { return };
            if !memory::read(shared, at, p) {
                return;
            }
            let kind = field::<4>(p, 0) as u32;
            if wide {
                see(kind, field::<8>(p, 16), field::<8>(p, 32), field::<8>(p, 40));
            } else {
                see(kind, field::<4>(p, 8), field::<4>(p, 16), field::<4>(p, 20));
            }
        }
    };
    const PT_LOAD: u32 = 1;
    const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
    const PT_ARM_EXIDX: u32 = 0x7000_0001; // of other machines something else
    each(&mut |kind, addr, _, memory_size| {
        let addr = addr.wrapping_add(bias);
        if kind == PT_LOAD {
            l.start = l.start.min(addr & !4095);
            l.end = l.end.max(addr.wrapping_add(memory_size + 4095) & !4095);
        } else if kind == PT_GNU_EH_FRAME {
            l.hdr = addr;
            l.hdr_len = memory_size;
        } else if cfg!(target_arch = "arm") && kind == PT_ARM_EXIDX {
            l.exidx = addr;
            l.exidx_len = memory_size;
        }
    });
    let mut hdr = [0u8; 16];
    if l.hdr != 0 && memory::read(shared, l.hdr, &mut hdr) {
        l.eh_frame = eh_frame_address(&hdr, l.hdr).unwrap_or(0);
    }
    each(&mut |kind, addr, file_size, _| {
        let addr = addr.wrapping_add(bias);
        let end = addr.wrapping_add(file_size);
        if kind == PT_LOAD && l.eh_frame >= addr && l.eh_frame < end {
            l.eh_frame_len = end - l.eh_frame;
        }
        // What it leads to lies in the same segment.
        if kind == PT_LOAD && l.exidx >= addr && l.exidx < end {
            l.extab = addr;
            l.extab_len = end - addr;
        }
    });
    (l.start < l.end).then_some(l)
}
