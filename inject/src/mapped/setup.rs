//! Fills in the shared memory before any code of the target can look at it.

use crate::hooked::calls::is_call;
use crate::hooked::functions::LOADER;
use crate::hooked::plan::Planned;
use crate::hooked::search::{Found, is_last_malloc};
use crate::install::{Fitness, Installed, candidates};
use crate::mapped::mapping::Mapped;
use crate::process::elf;
use crate::process::linked::List;
use crate::process::proc::{Map, Status};
use crate::stopped::tables::Tables;
use crate::{Error, Refusal, RemoteAddr, RemoteMemory, Result, sandbox};
use nix::errno::Errno;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::Rule;
use prof_arch::native::bridge::{Bridge, LEAST_FRAME};
use prof_arch::native::capture::{DESCRIPTOR, counter_is_steady};
use prof_arch::native::jump::code_at;
use prof_arch::unwind::function_range;
use prof_trace::modules::{Modules, New, bits};
use prof_trace::records::{Hook, NotHooked};
use prof_trace::ring;
use prof_trace::shared::{
    Area, FLAG_COOKIE, FUNCTIONS, Geometry, Kind, NEEDS_FOR_BRIDGE, Shared, clock, flags, state,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

fn checked(pid: i32, geometry: Geometry, what: &'static str, r: i32) -> Result<()> {
    match Errno::last() {
        _ if r == 0 => Ok(()),
        Errno::EFBIG => Err(Error::FileLimit(geometry.size())),
        errno => Err(Error::Sys { what, pid, errno }),
    }
}

/// Gives the memfd its size and seals it against shrinking, so that nobody who maps it can get SIGBUS. This is quick,
/// since all threads of the target are stopped.
pub(crate) fn size_ring(pid: i32, f: &File, geometry: Geometry) -> Result<()> {
    let fd = f.as_raw_fd();
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: the descriptor is ours, and all other arguments are integers.
    unsafe {
        let sized = libc::ftruncate64(fd, geometry.size() as i64);
        checked(pid, geometry, "set the size of the ring for", sized)?;
        checked(
            pid,
            geometry,
            "seal the size of the ring for",
            libc::fcntl(fd, libc::F_ADD_SEALS, seals),
        )
    }
}

/// Allocates the pages that are used from the first event on, so that the kernel charges them to prof.
pub(crate) fn allocate_ring(pid: i32, fd: &OwnedFd, geometry: Geometry) -> Result<()> {
    for (at, len) in geometry.hot_ranges() {
        // SAFETY: the descriptor is ours, and all other arguments are integers.
        let made = unsafe { libc::fallocate64(fd.as_raw_fd(), 0, at as i64, len as i64) };
        checked(pid, geometry, "allocate the ring of", made)?;
    }
    Ok(())
}

/// Maps the ring into this process, until [`unmap_ring`] or for good.
pub(crate) fn map_ring(fd: &File, geometry: Geometry) -> Result<Shared> {
    // SAFETY: the mapping is new, and the file has this size and can't shrink.
    unsafe {
        let p = libc::mmap(
            std::ptr::null_mut(),
            geometry.size(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        );
        if p == libc::MAP_FAILED {
            return Err(Error::Own { what: "map the ring", errno: Errno::last() });
        }
        Ok(Shared::new(p.cast(), geometry))
    }
}

/// Unmaps what [`map_ring`] has mapped.
///
/// # Safety
/// Nothing that was obtained from `shared`, nor another copy of it, may be used any more.
pub(crate) unsafe fn unmap_ring(shared: Shared) {
    // SAFETY: it was mapped with that size, and the caller promises that nothing uses it any more.
    unsafe { libc::munmap(shared.base().cast(), shared.geometry().size()) };
}

/// Fills in the control page, the modules, the functions, the stubs, the hook and the flag page.
pub(crate) fn fill(i: &mut Installed, maps: &[Map], mapped: &Mapped) -> Result<()> {
    let pid = i.target.pid;
    let status = Status::of(pid)?;
    let tid_offset = tid_offset(pid, i)?;
    let is_closed = i.shared.control().clock.load(Relaxed) == libc::PR_TSC_SIGSEGV as u32;
    let (source, vdso_clock) =
        if is_closed { (clock::SYSCALL, 0) } else { clock_source(&i.mem, &i.modules) };
    if is_closed {
        i.notes.push("its threads may not read the processor's counter (PR_SET_TSC): the time of each event takes a system call".into());
    }
    let quiet = quiet(i);
    let beside = crate::process::cgroup::levels(pid, std::process::id() as i32);
    // SAFETY: the target has it mapped, but none of the target's code knows of it yet.
    let c = unsafe { i.shared.control_mut() };
    c.state.store(state::SETUP, Relaxed);
    c.clock.store(source, Relaxed);
    c.vdso_clock = vdso_clock;
    c.max_depth = i.options.max_depth.clamp(1, 1024);
    c.tid_offset = tid_offset.unwrap_or(i32::MIN);
    c.main_tid = status.ns_pid().unwrap_or(pid as u32);
    let stack = maps.iter().find(|m| m.name == b"[stack]");
    // If the first thread has ended, its stack belongs to nobody.
    let stack = stack.filter(|_| prof_trace::process::lives(pid));
    c.main_stack_end = stack.map_or(0, |m| m.end.0);
    c.ticks_per_sec = if source == clock::COUNTER { calibrate() } else { 1_000_000_000 };
    c.wait_ns.store(i.options.wait.as_nanos() as u64, Relaxed);
    let capture = &i.options.capture;
    c.sample_bytes.store(capture.sample_bytes, Relaxed);
    c.sample_every = capture.sample_every;
    c.min_size = capture.min_size;
    c.max_size = capture.max_size;
    c.set_path(i.options.path.as_os_str().as_encoded_bytes());
    c.ring_addr = mapped.ring.addr;
    c.ring_len = mapped.ring.len;
    c.hook_addr = mapped.hook.addr;
    c.hook_len = mapped.hook.len;
    let geometry = i.shared.geometry();
    let tables = geometry.tables();
    (c.tables_at, c.tables_len) = (tables.start as u64, tables.len() as u64);
    c.states_addr = mapped.ring.addr + geometry.states_at() as u64;
    c.states_count = geometry.states() as u64;
    c.more_count = geometry.more_states() as u64;
    c.first_segments = geometry.first_segments() as u64;
    c.ring_beside = beside.first().is_some_and(|l| l.shared).into();
    // Each of these threads may hold a segment before the collector frees any.
    let holders = crate::process::proc::threads(i.target.pid).map_or(0, |t| t.len() as u64);
    if holders > c.first_segments / 4 {
        c.more_segments.store(2 * holders, Relaxed);
    }
    c.states_stride = prof_trace::shared::STATE_SIZE as u64;
    c.flag_addr = mapped.flag.addr;
    c.flag_len = mapped.flag.len;
    for (to, a) in c.stubs.iter_mut().zip(&mapped.stubs) {
        *to = *a;
    }
    c.quiet = quiet;
    c.next_thread.store(prof_trace::shared::FIRST_THREAD, Relaxed);
    c.heartbeat.store(now(source), Relaxed);
    c.pid = pid as u32;
    let mut bits = 0;
    if !sandbox::is_filtered(pid) {
        bits |= flags::SYSCALLS;
    }
    if i.collects {
        bits |= flags::COLLECTS;
    }
    if i.options.free_stacks {
        bits |= flags::FREE_STACKS;
    }
    if i.options.verify {
        bits |= flags::VERIFY;
    }
    if !i.options.capture.is_everything() {
        bits |= flags::SELECT;
    }
    if i.options.capture.adapts {
        bits |= flags::ADAPTS;
    }
    if i.options.choice.mappings {
        bits |= flags::MAPPINGS;
    }
    c.flags.store(bits | sandbox::word_to_keep(pid), Relaxed);
    ring::fill(&i.shared);
    modules(i);
    stacks(&i.shared, pid, maps);
    // The cookie is written before the toggle signal's handler is installed, and stays until the handler is gone:
    // without it, the handler takes the process for a forked child and lets the signal kill it.
    let mut page = [0u8; 8];
    page[4..].copy_from_slice(&FLAG_COOKIE.to_ne_bytes());
    i.mem.write(RemoteAddr(mapped.flag.addr), &page)?;
    code(i, mapped)
}

/// Returns the modules of the planned functions that are glibc, which is known by a message of its allocator. glibc's
/// debugging library has a copy of that, but puts headers of its own in front of blocks, so it does not count. Each
/// module has level 2 if its functions can only hand out glibc's blocks: since 2.34 glibc has no malloc hooks.
/// Otherwise the level is 1.
fn glibc(i: &Installed) -> BTreeMap<usize, u8> {
    const MESSAGE: &[u8] = b"munmap_chunk(): invalid pointer";
    const WITHOUT_HOOKS: &[u8] = b"\0GLIBC_2.34\0";
    let is = |k: usize| {
        let m = &i.modules[k];
        let file = m.open(i.target.pid, &i.mem).filter(|f| f.find(MESSAGE).is_some())?;
        let level = if file.find(WITHOUT_HOOKS).is_some() { 2 } else { 1 };
        (!m.file_name().starts_with("libc_malloc_debug")).then_some((k, level))
    };
    let all: BTreeSet<usize> = i.planned.iter().map(|p| p.found.module).collect();
    all.into_iter().filter_map(is).collect()
}

/// Returns the code of glibc's function that calls `free` for the blocks in a thread's cache when the thread ends.
/// The program has freed these blocks before. The function is known by the message that it refers to.
fn quiet(i: &Installed) -> Area {
    use prof_arch::native::insn;
    const MESSAGE: &[u8] = b"tcache_thread_shutdown(): unaligned tcache chunk";
    /// Maximum size of a table that is read.
    const MOST: u64 = 1 << 20;
    let find = |m: &elf::Module| {
        let file = m.open(i.target.pid, &i.mem)?;
        let at = file.find(MESSAGE)?;
        let code = file.code()?;
        let reference = insn::find_reference(&code.1, code.0, at).or_else(|| {
            let table = file.section_bytes(".got", MOST)?;
            insn::find_reference_by_table(&code.1, code.0, at, &table)
        })?;
        let tables = Tables::of(&i.mem, m);
        let range = function_range::<Rule>(&tables.cfi(), reference.wrapping_add(m.bias)).or_else(
            || {
                let r = insn::function_around(&code.1, code.0, reference)?;
                Some(r.start.wrapping_add(m.bias)..r.end.wrapping_add(m.bias))
            },
        )?;
        Some(Area { addr: range.start, len: range.end - range.start })
    };
    let allocators: BTreeSet<usize> = i.planned.iter().map(|p| p.found.module).collect();
    allocators.iter().find_map(|k| find(&i.modules[*k])).unwrap_or_default()
}

/// Enters the modules, with copies of their unwind tables.
fn modules(i: &mut Installed) {
    let list = List::of(&i.mem, &i.modules);
    let all = Modules::new(i.shared);
    for (k, m) in i.modules.iter().enumerate() {
        let none = Tables::default();
        let tables = i.tables.get(k).unwrap_or(&none);
        let parts = tables.parts();
        let new = New {
            start: m.start.0,
            end: m.end.0,
            bias: m.bias,
            tables: parts.map(|(at, bytes)| (at, bytes.len() as u64)),
        };
        let mut read = |at: u64, to: &mut [u8]| {
            let found = parts.iter().find_map(|(addr, bytes)| {
                let from = usize::try_from(at.checked_sub(*addr)?).ok()?;
                bytes.get(from..from.checked_add(to.len())?)
            });
            found.map(|bytes| to.copy_from_slice(bytes)).is_some()
        };
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let flags = flag(list.stays.get(k) == Some(&true), bits::STAYS)
            | flag(k >= i.tables.len(), bits::INCOMPLETE);
        all.add(&new, flags, m.path.as_os_str().as_encoded_bytes(), &mut read);
    }
    // SAFETY: the target has it mapped, but none of the target's code knows of it yet.
    let c = unsafe { i.shared.control_mut() };
    (c.r_debug, c.start_in_list) = (list.r_debug, list.start_at);
    c.first_modules = c.modules.load(Relaxed);
    let missing = c.tables_lost.load(Relaxed) + c.modules_lost.load(Relaxed);
    if missing > 0 {
        i.notes.push(format!(
            "prof has no room for the unwind tables of {missing} of {} modules; stacks end (`[cut]`) at a frame of such a module",
            i.modules.len()
        ));
    }
    i.tables = Vec::new();
}

/// Enters the stacks for the hook: writable private mappings without a file that follow a guard page.
fn stacks(shared: &Shared, _pid: i32, maps: &[Map]) {
    let mut n = 0;
    for pair in maps.windows(2) {
        let (guard, m) = (&pair[0], &pair[1]);
        let guarded = !guard.read && !guard.write && guard.end == m.start;
        if !(guarded && m.read && m.write && m.inode == 0) {
            continue;
        }
        let Some(s) = shared.stack(n) else { break };
        s.start.store(m.start.0, Relaxed);
        s.end.store(m.end.0, Relaxed);
        n += 1;
    }
    shared.control().stacks.store(n as u32, Release);
}

/// Writes the hook, the stubs and the functions' descriptors.
fn code(i: &mut Installed, mapped: &Mapped) -> Result<()> {
    let base = RemoteAddr(mapped.hook.addr);
    let segments = i.shared.geometry().segments() as u32;
    let (ring, flag) = (RemoteAddr(mapped.ring.addr), RemoteAddr(mapped.flag.addr));
    i.mem.write(base, &i.image.at(base, segments, ring, flag))?;
    let header = i.image.header_at(base);
    let select = i.shared.control().flags.load(Relaxed) & flags::SELECT != 0;
    let found: Vec<Found> = i.planned.iter().map(|p| p.found.clone()).collect();
    let mut kept = Vec::new();
    // The functions that prof only watches come first: where there is no room for all, a function of an allocator is
    // left out rather than the way by which prof learns of new libraries.
    // Calls that change mappings come last.
    i.planned.sort_by_key(|p| (p.found.kind.is_recorded(), p.found.kind.is_call()));
    for mut p in std::mem::take(&mut i.planned) {
        let index = kept.len();
        let desc = ring.plus(Shared::function_offset(index) as u64);
        let code = match p.found.kind {
            Kind::Malloc if select && is_last_malloc(&p.found, &found, &i.modules) => {
                header.pass[0]
            }
            Kind::Free if select => header.pass[1],
            Kind::Delete if select => header.pass[2],
            kind => kind.entry(&header.entries),
        };
        let entry = RemoteAddr(code.0 as u64);
        // This is the address of the cookie beside the flag.
        let flag = if p.found.kind.is_always_on() { flag.plus(4) } else { flag };
        let fits = index < FUNCTIONS;
        let built = if fits {
            p.build(flag, desc, entry)
        } else {
            Err(format!("prof hooks at most {FUNCTIONS} functions; choose modules with --obj"))
        };
        if let Err(reason) = built {
            let module = i.modules[p.found.module].path.display().to_string();
            i.not_hooked.push(NotHooked { function: p.found.name, module, reason });
            continue;
        }
        kept.push(p);
    }
    i.planned = kept;
    let glibc = glibc(i);
    let bridge = bridge(i);
    if let Some(b) = bridge {
        // SAFETY: nothing in the target knows of it yet.
        let stable = unsafe { &mut i.shared.control_mut().stable };
        (stable.bridge, stable.bridge_frame) = (code_at(b.back), b.frame);
        stable.needs = NEEDS_FOR_BRIDGE;
    }
    for (index, p) in i.planned.iter().enumerate() {
        let Some(stub) = &p.stub else { continue };
        i.mem.write(p.stub_addr, &stub.bytes)?;
        // SAFETY: nothing in the target knows of it yet.
        let Some(f) = (unsafe { i.shared.function_mut(index) }) else { continue };
        f.original = stub.original_addr;
        f.kind = p.found.kind as u32;
        let headers = glibc.get(&p.found.module).copied();
        f.headers = headers.filter(|_| p.found.kind.hands_out_chunks()).unwrap_or(0);
        f.asks = p.found.asks;
        let helpers = p.found.helpers;
        (f.errno_at, f.break_at, f.caller) = (helpers.errno_at, helpers.break_at, helpers.caller);
        if p.found.kind.is_call() {
            f.frame = LEAST_FRAME;
        }
        (f.size_arg, f.block_arg) = p.found.args;
        f.index = index as u32;
        f.patch_addr = stub.patch_addr;
        f.patch_len = stub.patch.len() as u32;
        f.new_bytes[..stub.patch.len()].copy_from_slice(&stub.patch);
        let at = (stub.patch_addr - code_at(p.found.addr.0)) as usize;
        f.old_bytes[..stub.patch.len()].copy_from_slice(&p.code[at..at + stub.patch.len()]);
        f.stub_addr = p.stub_addr.0;
        f.stub_len = stub.bytes.len() as u64;
        f.addr = p.found.addr.0;
        if p.found.kind.has_many_entry() {
            f.back = bridge.map_or(0, |b| b.back);
            f.frame = bridge.map_or(LEAST_FRAME, |b| b.frame);
            f.back_register = bridge.map_or(0, |b| b.register);
            f.back_slots = bridge.map_or([0; 16], |b| b.slots);
        }
        for (at, place) in f.places.iter_mut().enumerate() {
            let moved = &stub.relocated.map;
            let place_of = moved.iter().rev().find(|(_, new)| *new <= at);
            *place = match place_of {
                Some((old, _)) if at < stub.relocated.bytes.len() => *old as u8,
                _ => 0,
            };
        }
        if matches!(p.found.kind, Kind::New | Kind::NewAligned) {
            // The hook calls the original of the nothrow form, also if that is hooked itself.
            let n = p.found.nothrow.map_or(0, |a| a.0);
            let own = i.planned.iter().find(|o| o.found.addr.0 == n);
            let original = own.and_then(|o| o.stub.as_ref()).map(|s| s.original_addr);
            f.nothrow = original.unwrap_or(n);
        }
        let module = i.modules[p.found.module].path.display().to_string();
        let text = format!("{}\0{module}", p.found.name);
        let n = text.len().min(f.name.len() - 1);
        f.name[..n].copy_from_slice(&text.as_bytes()[..n]);
        if !p.found.kind.is_recorded() {
            continue;
        }
        for name in std::iter::once(&p.found.name).chain(&p.found.aliases) {
            i.hooked.push(Hook {
                index: index as u32,
                function: name.clone(),
                module: module.clone(),
                method: "inline".into(),
            });
        }
    }
    let c = i.shared.control();
    c.functions.store(i.planned.len() as u32, Release);
    if i.planned.iter().any(|p| p.found.kind == Kind::Loader) {
        c.flags.fetch_or(flags::LOADER, Relaxed);
    } else if c.r_debug != 0 {
        let loader = i.not_hooked.iter().find(|n| n.function == LOADER);
        let reason = loader.map_or("its symbol is missing", |n| n.reason.as_str());
        i.notes.push(format!("the dynamic linker's {LOADER} can't be hooked ({reason}), so prof notices loaded and unloaded libraries only once a second; until then, stacks may end at their frames"));
    }
    let forks = |n: &&NotHooked| crate::sandbox::FORKS.contains(&n.function.as_str());
    if let Some(n) = i.not_hooked.iter().find(forks) {
        i.notes.push(format!(
            "{} can't be hooked ({}): if a signal handler forks, the child may crash when it returns from that handler",
            n.function, n.reason
        ));
    }
    // The message names a function of the allocator rather than one that prof only watches.
    let allocates = |n: &&NotHooked| {
        !crate::sandbox::FUNCTIONS.contains(&n.function.as_str()) && !is_call(&n.function)
    };
    let missing = i.not_hooked.iter().find(allocates).or(i.not_hooked.first());
    let is_block = |p: &Planned| p.found.kind.is_recorded() && !p.found.kind.is_call();
    match missing.filter(|_| !i.planned.iter().any(is_block)) {
        None => Ok(()),
        Some(n) => Err(Refusal::NothingHooked {
            pid: i.target.pid,
            comm: i.target.name.clone(),
            function: n.function.clone(),
            module: n.module.clone(),
            reason: n.reason.clone(),
        }
        .into()),
    }
}

/// Finds a bridge, by which the target's unwinder gets past the hook, if the user has named functions.
fn bridge(i: &mut Installed) -> Option<Bridge> {
    if !i.planned.iter().any(|p| p.found.kind.has_many_entry()) {
        return None;
    }
    let found = crate::mapped::bridge::find(&i.mem, &i.modules);
    let unwinds = |m: &elf::Module| m.eh_frame.1 != 0 || m.exidx.1 != 0;
    if found.is_none() && i.modules.iter().any(unwinds) {
        i.notes.push("no exception and no thread cancellation can pass through the functions named by --alloc-fn, --realloc-fn and --free-fn: it would end the program (no code of the program or its libraries serves as a bridge for the unwinder)".into());
    }
    found
}

/// Returns the offset from the thread pointer at which libc keeps a thread's id: the one that all examined threads
/// have in common. Of several offsets the nearest to the thread pointer is taken, since memory further away may be
/// stack.
fn tid_offset(pid: i32, i: &mut Installed) -> Result<Option<i32>> {
    const SPAN: usize = (DESCRIPTOR.end - DESCRIPTOR.start) as usize;
    let mut common: Option<Vec<usize>> = None;
    let fit = candidates(pid)?;
    let best = fit.first().map_or(Fitness::Running, |f| f.0).max(Fitness::Running);
    for (_, tid) in fit.into_iter().take_while(|f| f.0 <= best).take(8) {
        let Ok(Some(mut t)) = crate::stopped::tracee::Tracee::seize(pid, tid) else { continue };
        let since = Instant::now();
        t.interrupt();
        let Ok(true) = t.wait_stopped(since + Duration::from_secs(1)) else { continue };
        let regs = t.regs().map(|r| (r.thread_pointer(), r.sp()));
        t.detach();
        i.stops.add(since);
        let Ok((tp, sp)) = regs else { continue };
        // Threads that the kernel itself has in the process (io_uring's) have no stack.
        if tp == 0 && sp != 0 {
            leave_out_calls(i);
        }
        let Some(id) = Status::of_thread(pid, tid).ok().and_then(|s| s.ns_pid()) else { continue };
        let start = RemoteAddr(tp.wrapping_add_signed(i64::from(DESCRIPTOR.start)));
        let bytes = descriptor(&i.mem, start, SPAN);
        let here = |o: &usize| bytes.get(*o..*o + 4) == Some(&id.to_ne_bytes()[..]);
        let found: Vec<usize> = match common {
            None => (0..SPAN).step_by(4).filter(here).collect(),
            Some(c) => c.into_iter().filter(here).collect(),
        };
        common = Some(found);
    }
    let offsets = common.into_iter().flatten().map(|o| o as i32 + DESCRIPTOR.start);
    Ok(offsets.min_by_key(|o| o.unsigned_abs()))
}

/// Leaves out the functions that change mappings, as a thread has no thread pointer. The hook finds a thread's state by
/// the thread pointer, which libc sets up before anybody calls an allocator, but maps memory without.
fn leave_out_calls(i: &mut Installed) {
    let all = std::mem::take(&mut i.planned);
    let (calls, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|p| p.found.kind.is_call());
    i.planned = others;
    for p in calls {
        i.not_hooked.push(NotHooked {
            function: p.found.name,
            module: i.modules[p.found.module].path.display().to_string(),
            reason: "a thread has no thread pointer, by which prof would know it: the program has just started. Attach again later to record these calls".into(),
        });
    }
}

/// Reads the memory in which a thread descriptor may lie, with zeroes where nothing is mapped.
fn descriptor(mem: &RemoteMemory, start: RemoteAddr, len: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(len);
    // The memory is read page by page, in pieces that fit any page size.
    while all.len() < len {
        let at = start.plus(all.len() as u64);
        let n = ((4096 - (at.0 & 4095)) as usize).min(len - all.len());
        let mut piece = mem.read_some(at, n);
        piece.resize(n, 0);
        all.append(&mut piece);
    }
    all
}

/// Returns the clock that the hook uses, and the address of the vDSO's function for it.
///
/// The hook reads the processor's counter if that runs at one speed on all processors, as shown by the kernel's own
/// choice. Otherwise it calls the vDSO's function for the kernel's time; whether that makes a system call depends on
/// the kernel's clock source. `PROF_CLOCK` (`counter`, `vdso`, `syscall`) is for tests.
fn clock_source(mem: &RemoteMemory, modules: &[elf::Module]) -> (u32, u64) {
    const IN_VDSO: [&str; 6] =
        ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "MIPS", "GIC"];
    const NAMES: [&str; 2] = ["__vdso_clock_gettime", "__kernel_clock_gettime"];
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let kernel = std::fs::read_to_string(file).unwrap_or_default();
    let kernel = kernel.trim();
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let wanted = std::env::var("PROF_CLOCK").unwrap_or_default();
    let counter = match wanted.as_str() {
        "counter" => true,
        "vdso" | "syscall" => false,
        _ => counter_is_steady(kernel, &info),
    };
    if counter {
        return (clock::COUNTER, 0);
    }
    let vdso = modules.iter().find(|m| m.path.as_os_str() == "[vdso]");
    let symbols =
        vdso.map(|m| m.symbols(mem.pid(), mem, |n| NAMES.contains(&n))).unwrap_or_default();
    let at = symbols.first().map_or(0, |s| s.addr.0);
    // With any other source, the vDSO's function makes a system call.
    let within = at != 0 && IN_VDSO.contains(&kernel) && wanted != "syscall";
    (if within { clock::VDSO } else { clock::SYSCALL }, if wanted == "syscall" { 0 } else { at })
}

fn monotonic() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Returns the present time in ticks, as the hook counts them.
pub(crate) fn now(source: u32) -> u64 {
    if clock::is_counter(source) { prof_arch::native::capture::counter() } else { monotonic() }
}

/// Measures the ticks per second, to about one in ten thousand. The recording gets more exact pairs later.
fn calibrate() -> u64 {
    let (t0, c0) = (monotonic(), now(clock::COUNTER));
    std::thread::sleep(Duration::from_millis(10));
    let (t1, c1) = (monotonic(), now(clock::COUNTER));
    ((c1 - c0) as u128 * 1_000_000_000 / (t1 - t0).max(1) as u128) as u64
}

/// Returns an area as a range.
pub(crate) fn range(a: &Area) -> std::ops::Range<u64> {
    a.addr..a.addr.saturating_add(a.len)
}
