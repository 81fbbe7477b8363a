//! The hook in this process: shared memory, flag and states as the injector would make them, and
//! functions that go through the hook's entries as a stub would.

use prof_hook::header::PROF_HOOK;
use prof_trace::event::{Codec, Entry, Event};
use prof_trace::pcs;
use prof_trace::ring;
use prof_trace::shared::{
    FLAG_COOKIE, FUNCTIONS, Geometry, Kind, LAYOUT, MAGIC, Shared, clock, flags, segment, state,
};
use std::cell::RefCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

unsafe extern "C" {
    fn malloc(n: usize) -> *mut u8;
    fn free(p: *mut u8);
    fn mmap(at: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, off: i64) -> *mut u8;
    fn dl_iterate_phdr(f: extern "C" fn(*const Info, usize, *mut u8) -> i32, data: *mut u8) -> i32;
    fn gettid() -> i32;
}

#[repr(C)]
struct Info {
    addr: u64,
    name: *const u8,
    phdr: *const [u64; 7],
    phnum: u16,
}

/// Anonymous zeroed memory.
pub fn map(len: usize) -> *mut u8 {
    // SAFETY: an anonymous mapping disturbs nobody.
    let p = unsafe { mmap(std::ptr::null_mut(), len, 3, 0x4022, -1, 0) };
    assert_ne!(p as isize, -1);
    p
}

/// The ring, set up once.
pub struct Hook {
    /// The shared memory.
    pub shared: Shared,
    /// Stack nodes that were read: parent and code address id, by id minus 1.
    nodes: RefCell<Vec<(u32, u32)>>,
}

/// Sets the hook up in this process.
pub fn install(extra_flags: u32) -> Hook {
    let geometry = Geometry::for_ring(64 << 20);
    // SAFETY: mapped for good.
    let shared = unsafe { Shared::new(map(geometry.size()), geometry) };
    let states = 64;
    {
        // SAFETY: nobody else has it yet.
        let c = unsafe { shared.control_mut() };
        c.magic = MAGIC;
        c.layout = LAYOUT;
        c.segments = geometry.segments() as u32;
        c.clock = clock::COUNTER;
        c.max_depth = 1024;
        c.tid_offset = i32::MIN;
        c.main_tid = std::process::id();
        c.ticks_per_sec = 2_600_000_000;
        c.ring_addr = shared.base() as u64;
        c.states_addr = map(states * prof_hook::state::SIZE) as u64;
        c.states_stride = prof_hook::state::SIZE as u64;
        c.states_count = states as u64;
        c.flags.store(flags::SYSCALLS | extra_flags, Relaxed);
        c.state.store(state::ATTACHED, Relaxed);
    }
    ring::fill(&shared);
    let flag = map(4096).cast::<u32>();
    // SAFETY: a fresh page; PROF_HOOK is in writable memory since it has atomics.
    unsafe {
        *flag = 1;
        *flag.add(1) = FLAG_COOKIE;
        std::ptr::addr_of!(PROF_HOOK.segments)
            .cast_mut()
            .write_volatile(geometry.segments() as u32);
        dl_iterate_phdr(add_module, std::ptr::from_ref(&shared).cast_mut().cast());
    }
    PROF_HOOK.shared.store(shared.base() as u64, Relaxed);
    PROF_HOOK.flag.store(flag as u64, Relaxed);
    for (i, (kind, f)) in
        [(Kind::Malloc, malloc as *const ()), (Kind::Free, free as *const ())].iter().enumerate()
    {
        // SAFETY: nobody else has it yet.
        let d = unsafe { shared.function_mut(i) }.expect("a function");
        d.original = *f as u64;
        d.kind = *kind as u32;
        d.index = i as u32;
        d.headers = if cfg!(target_env = "gnu") && *kind == Kind::Malloc { 2 } else { 0 };
    }
    Hook { shared, nodes: RefCell::default() }
}

extern "C" fn add_module(info: *const Info, _: usize, data: *mut u8) -> i32 {
    // SAFETY: as `install` passes it, and as the linker fills it in.
    let (shared, info) = unsafe { (&*data.cast::<Shared>(), &*info) };
    let c = shared.control();
    let m = shared.module(c.modules.fetch_add(1, Relaxed) as usize).expect("room");
    // SAFETY: the module's program headers.
    let phdrs = unsafe { std::slice::from_raw_parts(info.phdr, info.phnum as usize) };
    let (mut start, mut end, mut hdr) = (u64::MAX, 0, (0, 0));
    for p in phdrs {
        let (kind, addr, size) = (p[0] as u32, info.addr + p[2], p[5]);
        if kind == 1 {
            start = start.min(addr & !4095);
            end = end.max(addr + size);
        } else if kind == 0x6474_e550 {
            hdr = (addr, size);
        }
    }
    m.start.store(start, Relaxed);
    m.end.store(end, Relaxed);
    m.bias.store(info.addr, Relaxed);
    m.eh_frame_hdr.store(hdr.0, Relaxed);
    m.eh_frame_hdr_len.store(hdr.1, Relaxed);
    if hdr.0 != 0 {
        // SAFETY: mapped, by the program header.
        let bytes = unsafe { std::slice::from_raw_parts(hdr.0 as *const u8, hdr.1 as usize) };
        let eh = prof_arch::unwind::eh_frame_address(bytes, hdr.0).expect("eh_frame");
        m.eh_frame.store(eh, Relaxed);
        for p in phdrs {
            let (addr, size) = (info.addr + p[2], p[4]);
            if p[0] as u32 == 1 && eh >= addr && eh < addr + size {
                m.eh_frame_len.store(addr + size - eh, Relaxed);
            }
        }
    }
    m.ready.store(1, Relaxed);
    0
}

/// malloc and free as a patched program calls them.
#[unsafe(naked)]
pub unsafe extern "C" fn hooked(arg: usize, descriptor: u64, entry: *const ()) -> *mut u8 {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!("mov r11, rsi", "jmp rdx");
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("mov x17, x1", "br x2");
}

impl Hook {
    fn descriptor(&self, index: usize) -> u64 {
        assert!(index < FUNCTIONS);
        self.shared.base() as u64 + Shared::function_offset(index) as u64
    }

    /// malloc through the hook.
    #[inline(always)]
    pub fn malloc(&self, n: usize) -> *mut u8 {
        // SAFETY: the entry gets what a stub would pass.
        unsafe { hooked(n, self.descriptor(0), prof_hook::entry::alloc as *const ()) }
    }

    /// free through the hook.
    #[inline(always)]
    pub fn free(&self, p: *mut u8) {
        // SAFETY: the entry gets what a stub would pass.
        unsafe { hooked(p as usize, self.descriptor(1), prof_hook::entry::free as *const ()) };
    }

    /// All events in the ring of the calling thread, in order, each segment given back. Their nodes are
    /// for [`Hook::stack`].
    pub fn drain(&self) -> Vec<Event> {
        // SAFETY: no arguments.
        let me = unsafe { gettid() } as u32;
        let mut views: Vec<_> = (0..self.shared.geometry().segments())
            .filter_map(|i| ring::view(&self.shared, i))
            .filter(|v| v.tid == me)
            .collect();
        views.sort_by_key(|v| v.seq);
        let mut all = Vec::new();
        for v in views {
            let data = self.shared.data(v.index).expect("data");
            // SAFETY: committed bytes of a segment of this very thread.
            let bytes = unsafe { std::slice::from_raw_parts(data, v.committed) };
            let mut codec = Codec::default();
            let mut pos = 0;
            let mut nodes = self.nodes.borrow_mut();
            let mut names = vec![0];
            while pos < bytes.len() {
                let (e, n) = codec.get_entry(&bytes[pos..]).expect("an entry");
                match e {
                    Entry::Event(mut e) => {
                        let (Event::Alloc { node, .. }
                        | Event::Free { node, .. }
                        | Event::Realloc { node, .. }) = &mut e;
                        *node = names[*node as usize];
                        all.push(e);
                    }
                    Entry::Define { parent, pcs } => {
                        let mut at = names[parent as usize];
                        for pc in pcs.into_iter().filter(|pc| *pc != 0) {
                            nodes.push((at, pc));
                            at = nodes.len() as u32;
                            names.push(at);
                        }
                    }
                }
                pos += n;
            }
            if self.shared.head(v.index).expect("head").state.load(Acquire) == segment::CLOSED {
                ring::give_back(&self.shared, v.index);
            }
        }
        all
    }

    /// The code addresses of a stack, innermost first.
    pub fn stack(&self, mut node: u32) -> Vec<u64> {
        let nodes = self.nodes.borrow();
        let mut pcs = Vec::new();
        while node != 0 {
            let (parent, pc) = nodes[node as usize - 1];
            pcs.push(pcs::pc_parts(&self.shared, pc).expect("a pc").0);
            node = parent;
        }
        pcs
    }

    /// Sum over the slots.
    pub fn mismatches(&self) -> u64 {
        (0..8192).filter_map(|i| self.shared.slot(i)).map(|s| s.mismatches.load(Relaxed)).sum()
    }
}
