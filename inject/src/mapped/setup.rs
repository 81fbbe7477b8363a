//! Fills in the shared memory before any code of the target can look at it.

use crate::clock::{calibrate, clock_source, is_late, now};
use crate::installed::Installed;
use crate::mapped::code::code;
use crate::mapped::mapping::Mapped;
use crate::mapped::thread_id::tid_offset;
use crate::process::cgroup::levels;
use crate::process::elf;
use crate::process::linked::List;
use crate::stopped::tables::Tables;
use crate::{Refusal, RemoteAddr, Result, inherited, sandbox};
use prof_arch::native::Rule;
use prof_arch::unwind::function_range;
use prof_os::Pid;
use prof_os::maps::Map;
use prof_os::status::Status;
use prof_trace::modules::{Modules, New, bits};
use prof_trace::protocol::{self, Candidate, publish_stacks};
use prof_trace::ring;
use prof_trace::shared::{Area, FLAG_COOKIE, Shared, clock, flags, state};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// Fills in the control page, the modules, the functions, the stubs, the hook and the flag page.
pub(crate) fn fill(i: &mut Installed, maps: &[Map], mapped: &Mapped) -> Result<()> {
    let pid = i.target.pid;
    let status = Status::of(pid)?;
    let tid_offset = tid_offset(pid, i)?;
    let is_closed = i.shared.control().clock.load(Relaxed) == libc::PR_TSC_SIGSEGV as u32;
    let (source, vdso_clock) =
        if is_closed { (clock::SYSCALL, 0) } else { clock_source(&i.mem, &i.modules) };
    if is_late(now(source)) {
        return Err(Refusal::LateClock(pid).into());
    }
    if is_closed {
        i.notes.push("its threads may not read the processor's counter (PR_SET_TSC): the time of each event takes a system call".into());
    }
    let quiet = quiet(i);
    let beside = crate::process::cgroup::levels(pid, Pid::this());
    // SAFETY: the target has it mapped, but none of the target's code knows of it yet.
    let c = unsafe { i.shared.control_mut() };
    c.state.store(state::SETUP, Relaxed);
    c.clock.store(source, Relaxed);
    c.vdso_clock = vdso_clock;
    c.max_depth = i.options.max_depth.clamp(1, 1024);
    c.tid_offset = tid_offset.unwrap_or(i32::MIN);
    c.main_tid = status.ns_pid().unwrap_or(pid).as_u32();
    let stack = maps.iter().find(|m| m.name == b"[stack]");
    // If the first thread has ended, no thread uses its stack.
    let stack = stack.filter(|_| prof_os::process::lives(pid));
    c.main_stack_end = stack.map_or(0, |m| m.end.0);
    let per_sec = if source == clock::COUNTER { calibrate() } else { 1_000_000_000 };
    c.ticks_per_sec.store(per_sec, Relaxed);
    c.wait_ns.store(i.options.wait.as_nanos() as u64, Relaxed);
    let capture = &i.options.capture;
    c.sample_bytes.store(capture.sample_bytes, Relaxed);
    c.sample_every = capture.sample_every;
    c.min_size = capture.min_size;
    c.max_size = capture.max_size;
    c.set_path(i.options.path.as_os_str().as_encoded_bytes());
    c.ring_addr.store(mapped.ring.addr, Relaxed);
    c.ring_len.store(mapped.ring.len, Relaxed);
    c.hook_addr = mapped.hook.addr;
    c.hook_len = mapped.hook.len;
    let geometry = i.shared.geometry();
    let tables = geometry.tables();
    (c.tables_at, c.tables_len) = (tables.start as u64, tables.len() as u64);
    c.states_addr = mapped.ring.addr + geometry.states_at() as u64;
    c.states_count = geometry.states() as u64;
    let first_segments = geometry.first_segments() as u64;
    c.first_segments.store(first_segments, Relaxed);
    c.ring_beside = beside.first().is_some_and(|l| l.shared).into();
    // Each of these threads may hold a segment before the collector frees any.
    let holders = prof_os::process::threads(i.target.pid).map_or(0, |t| t.len() as u64);
    if holders > first_segments / 4 {
        c.more_segments.store(2 * holders, Relaxed);
    }
    c.states_stride = prof_trace::shared::STATE_SIZE as u64;
    c.flag_addr.store(mapped.flag.addr, Relaxed);
    c.flag_len = mapped.flag.len;
    for (to, a) in c.stubs.iter().zip(&mapped.stubs) {
        to.set(*a);
    }
    c.quiet = quiet;
    c.next_thread.store(prof_trace::shared::FIRST_THREAD, Relaxed);
    c.heartbeat.store(now(source).0, Relaxed);
    c.pid = pid.as_u32();
    c.flags.store(flag_bits(i), Relaxed);
    ring::fill(&i.shared);
    modules(i);
    stacks(&i.shared, maps);
    // The cookie is written before the toggle signal's handler is installed, and stays until the handler is gone:
    // without it, the handler takes the process for a forked child and lets the signal kill it.
    let mut page = [0u8; 8];
    page[4..].copy_from_slice(&FLAG_COOKIE.to_ne_bytes());
    i.mem.write(RemoteAddr(mapped.flag.addr), &page)?;
    code(i, mapped)?;
    // A child that is forked from here on can be rid of what it has of prof's.
    inherited::leave(&i.mem, RemoteAddr(mapped.ring.addr), i.planned.len(), i.note)
}

/// Returns the bits of `Control::flags` that say how the target is recorded.
fn flag_bits(i: &Installed) -> u32 {
    let pid = i.target.pid;
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
    // For the time of a fork, the memory for the child counts in its parent as well.
    let has_room = prof_os::limits::address_space(pid).is_none() && has_room_for_heirs(pid);
    if i.options.choice.heirs && has_room {
        bits |= flags::HEIRS;
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
    bits | sandbox::word_to_keep(pid)
}

/// Returns whether the process's cgroups have room for the memory of many children at a time. A child begins with some
/// 0.5 MiB, which is charged to them, and they may be too many to be counted before.
fn has_room_for_heirs(pid: Pid) -> bool {
    const ROOM: u64 = 256 << 20;
    levels(pid, Pid::this()).iter().all(|level| level.left() >= ROOM)
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
    c.r_debug.store(list.r_debug, Relaxed);
    c.start_in_list = list.start_at;
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

/// Publishes the stacks to the hook.
fn stacks(shared: &Shared, maps: &[Map]) {
    let all = maps.iter().map(|m| Candidate {
        start: m.start.0,
        end: m.end.0,
        perms: m.perms(),
        inode: m.inode,
        name: &m.name,
    });
    publish_stacks(shared, protocol::stacks(all));
}
