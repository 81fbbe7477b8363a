//! The hook in this process: shared memory, flag and states as the injector would make them, and
//! functions that go through the hook's entries as a stub would.

use prof_arch::native::capture::enter_as_stub;
use prof_hook::header::LOCATIONS;
use prof_trace::event::{Codec, Entry, Event};
use prof_trace::ids::PcId;
use prof_trace::modules::{Modules, New, bits};
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
    fn dl_iterate_phdr(f: extern "C" fn(*const Info, usize, *mut u8) -> i32, data: *mut u8) -> i32;
    fn gettid() -> i32;
}

#[repr(C)]
struct Info {
    addr: usize,
    name: *const u8,
    phdr: *const Phdr,
    phnum: u16,
}

/// A program header: in 64 bits the flags stand behind the type (ELF gABI, "Program Header").
#[cfg(target_pointer_width = "64")]
#[repr(C)]
#[derive(Default)]
struct Phdr {
    kind: u32,
    flags: u32,
    offset: usize,
    vaddr: usize,
    paddr: usize,
    filesz: usize,
    memsz: usize,
    align: usize,
}

/// A program header: in 32 bits the flags are the last but one.
#[cfg(target_pointer_width = "32")]
#[repr(C)]
#[derive(Default)]
struct Phdr {
    kind: u32,
    offset: usize,
    vaddr: usize,
    paddr: usize,
    filesz: usize,
    memsz: usize,
    flags: u32,
    align: usize,
}

const PT_LOAD: u32 = 1;

/// Maps anonymous zeroed memory.
pub(crate) fn map(len: usize) -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping disturbs nobody.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(p, libc::MAP_FAILED);
    p.cast()
}

/// The hook, set up in this process.
pub(crate) struct Hook {
    /// The shared memory.
    pub shared: Shared<'static>,
    /// Stack nodes read so far: parent and code address id, by id minus 1.
    nodes: RefCell<Vec<(u32, PcId)>>,
}

/// Sets the hook up in this process.
pub(crate) fn install(extra_flags: u32) -> Hook {
    let geometry = Geometry::for_ring(64 << 20).with_tables(16 << 20);
    // SAFETY: the memory is mapped for good.
    let shared = unsafe { Shared::new(map(geometry.size()), geometry) };
    let states = 64;
    {
        // SAFETY: nobody else has the memory yet.
        let c = unsafe { shared.control_mut() };
        c.magic = MAGIC;
        c.layout = LAYOUT;
        c.segments = geometry.segments() as u32;
        let kernel = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let kernel = std::fs::read_to_string(kernel).unwrap_or_default();
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let steady = prof_arch::native::capture::counter_is_steady(kernel.trim(), &cpus);
        c.clock.store(if steady { clock::COUNTER } else { clock::SYSCALL }, Relaxed);
        c.max_depth = 1024;
        c.tid_offset = i32::MIN;
        c.main_tid = std::process::id();
        c.ticks_per_sec.store(325_000_000, Relaxed);
        c.ring_addr.store(shared.base() as u64, Relaxed);
        let tables = geometry.tables();
        (c.tables_at, c.tables_len) = (tables.start as u64, tables.len() as u64);
        // The states of the second part are mapped, too, for tests in which threads take them.
        c.states_addr = map(2 * states * prof_hook::state::SIZE) as u64;
        c.states_stride = prof_hook::state::SIZE as u64;
        c.states_count = states as u64;
        c.flags.store(flags::SYSCALLS | extra_flags, Relaxed);
        c.state.store(state::ATTACHED, Relaxed);
    }
    ring::fill(&shared);
    let flag = map(4096).cast::<u32>();
    // SAFETY: the page is fresh, and LOCATIONS is in writable memory since it has atomics.
    unsafe {
        *flag = 1;
        *flag.add(1) = FLAG_COOKIE;
        LOCATIONS.shared.set(shared);
        dl_iterate_phdr(add_module, std::ptr::from_ref(&shared).cast_mut().cast());
    }
    LOCATIONS.flag.store(flag as u64, Relaxed);
    for (i, (kind, f)) in
        [(Kind::Malloc, malloc as *const ()), (Kind::Free, free as *const ())].iter().enumerate()
    {
        // SAFETY: nobody else has the memory yet.
        let d = unsafe { shared.function_mut(i) }.expect("a function");
        d.original = *f as u64;
        d.kind = *kind as u32;
        d.index = i as u32;
        d.headers = if cfg!(target_env = "gnu") && *kind == Kind::Malloc { 2 } else { 0 };
    }
    Hook::of(shared)
}

extern "C" fn add_module(info: *const Info, _: usize, data: *mut u8) -> i32 {
    // SAFETY: `install` passes the shared memory, and the linker fills in the other.
    let (shared, info) = unsafe { (&*data.cast::<Shared<'static>>(), &*info) };
    // SAFETY: the linker passes the module's program headers.
    let phdrs = unsafe { std::slice::from_raw_parts(info.phdr, info.phnum as usize) };
    let first = phdrs.iter().filter(|p| p.kind == PT_LOAD).map(|p| p.vaddr & !4095).min();
    let start = info.addr.wrapping_add(first.expect("a segment")) as u64;
    let mut read = |at: u64, to: &mut [u8]| {
        // SAFETY: the memory is mapped, by the program headers.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, to.as_mut_ptr(), to.len()) };
        true
    };
    let l = prof_arch::unwind::loaded(start, &mut read).expect("a module");
    let new = New { start: l.start, end: l.end, bias: l.bias, tables: l.tables };
    Modules::new(*shared).add(&new, bits::STAYS, b"", &mut read).expect("room");
    0
}

impl Hook {
    /// Returns the hook for another thread, which has this memory.
    pub(crate) fn of(shared: Shared<'static>) -> Self {
        Self { shared, nodes: RefCell::default() }
    }

    fn descriptor(&self, index: usize) -> usize {
        assert!(index < FUNCTIONS);
        self.shared.base() as usize + Shared::function_offset(index)
    }

    /// Calls malloc through the hook.
    #[inline(always)]
    pub(crate) fn malloc(&self, n: usize) -> *mut u8 {
        // SAFETY: the entry gets the arguments that a stub would pass.
        unsafe { enter_as_stub(n, self.descriptor(0), prof_hook::entry::alloc as *const ()) }
    }

    /// Calls free through the hook.
    #[inline(always)]
    pub(crate) fn free(&self, p: *mut u8) {
        // SAFETY: the entry gets the arguments that a stub would pass.
        unsafe {
            enter_as_stub(p as usize, self.descriptor(1), prof_hook::entry::free as *const ())
        };
    }

    /// Returns all events of the calling thread in the ring, in order, and returns its segments to the free
    /// list. Their nodes are for [`Hook::stack`].
    pub(crate) fn drain(&self) -> Vec<Event> {
        // SAFETY: the call takes no arguments.
        let me = unsafe { gettid() } as u32;
        let mut views: Vec<_> = (0..self.shared.geometry().segments())
            .filter_map(|i| ring::view(&self.shared, i))
            .filter(|v| v.tid == me)
            .collect();
        views.sort_by_key(|v| v.seq);
        let mut all = Vec::new();
        for v in views {
            let data = self.shared.data(v.index).expect("data");
            // SAFETY: the bytes are committed, in a segment of this very thread.
            let bytes = unsafe { std::slice::from_raw_parts(data, v.committed) };
            let mut codec = Codec::default();
            let mut pos = 0;
            let mut nodes = self.nodes.borrow_mut();
            let mut names = vec![0];
            while pos < bytes.len() {
                let (e, n) = codec.get_entry(&bytes[pos..]).expect("an entry");
                match e {
                    Entry::Event(e) => all.push(e.map_node(|node| names[node.0 as usize])),
                    Entry::Call(_) | Entry::Text(..) => {}
                    Entry::Define { parent, pcs } => {
                        let mut at = names[parent.0 as usize];
                        for pc in pcs.into_iter().filter(|pc| *pc != PcId::NONE) {
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

    /// Returns the code addresses of a stack, innermost first.
    pub(crate) fn stack(&self, mut node: u32) -> Vec<u64> {
        let nodes = self.nodes.borrow();
        let mut pcs = Vec::new();
        while node != 0 {
            let (parent, pc) = nodes[node as usize - 1];
            pcs.push(pcs::pc_parts(&self.shared, pc).expect("a pc").0);
            node = parent;
        }
        pcs
    }

    /// Returns the number of mismatches in all slots.
    pub(crate) fn mismatches(&self) -> u64 {
        (0..8192).filter_map(|i| self.shared.slot(i)).map(|s| s.mismatches.load(Relaxed)).sum()
    }
}
