//! Makes and removes prof's mappings in the target by remote calls. Each stop makes only a few calls, so that no stop
//! is long. [`crate::mapped::ring`] makes the ring.
//!
//! prof may be killed while the target makes such a call. So the control page names a mapping's place before the
//! mapping is made, and until it has been removed. A later prof reads the target's maps to see whether the mapping is
//! there.
//!
//! Guard pages that nobody may touch lie around all of prof's memory. An overrun of one of the target's blocks
//! therefore faults, as it does without prof, and does not write into prof's memory. None of this memory is locked,
//! and none is in core files.

use crate::hooked::places::remote_place;
use crate::mapped::bits;
use crate::mapped::image::HookImage;
use crate::mapped::library::{Functions, LINKER_STACK};
use crate::mapped::ours::{Kind, left_of, parts_around};
use crate::mapped::ring::{Ring, grow};
use crate::process::rings::has_parts;
use crate::recorded::{Patched, Recorded};
use crate::stopped::candidates::{with_all_stopped, with_caller};
use crate::stopped::gadgets::Gadgets;
use crate::stopped::remote::Caller;
use crate::stopped::threads::StopTimes;
use crate::{Error, Refusal, RemoteAddr, RemoteMemory, Result, again, inherited};
use nix::errno::Errno;
use prof_arch::native::syscall::nr;
use prof_os::{Pid, maps, process};
use prof_trace::shared::{Area, Control, STABLE_AT, SharedArea, Stable};
use std::any::Any;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::compiler_fence;
use std::time::Duration;

/// Number of looks whether an exec has removed prof's memory, and the time between two.
const EXEC_LOOKS: u32 = 50;
const EXEC_LOOK: Duration = Duration::from_millis(2);

/// The mappings that have been made, to be removed if something fails.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub ring: Area,
    pub guards: [Area; 2],
    /// The area that contains the hook and the flag page.
    pub place: Area,
    pub flag: Area,
    pub hook: Area,
    pub stubs: Vec<Area>,
    /// A page of the hook that stays mapped.
    pub kept: Option<Area>,
    /// Number of the hook's library, which the dynamic linker loads; 0: prof maps the hook.
    pub library: u64,
    /// The stack for calls of the dynamic linker, a part of the place.
    pub linker_stack: Area,
}

impl Mapped {
    /// Returns the mappings that a recorded process's control page names.
    pub(crate) fn of(r: &Recorded) -> Self {
        let c = &r.control;
        let area = |addr, len| Area { addr, len };
        Self {
            ring: area(r.ring.0, c.ring_len.load(Relaxed).min(r.ring_len)),
            guards: c.guards.each_ref().map(SharedArea::get),
            place: c.place.get(),
            flag: area(c.flag_addr.load(Relaxed), c.flag_len),
            hook: area(c.hook_addr, c.hook_len),
            stubs: c.stubs.iter().map(SharedArea::get).collect(),
            kept: None,
            library: c.library.load(Relaxed),
            linker_stack: c.linker_stack.get(),
        }
    }

    /// Returns where the note for forked children is: behind the hook, or behind the linker stack.
    pub(crate) fn note(&self, image: &HookImage) -> RemoteAddr {
        match self.library {
            0 => RemoteAddr(self.hook.addr).plus(image.len() as u64),
            _ => RemoteAddr(self.linker_stack.addr).plus(self.linker_stack.len),
        }
    }

    /// Returns the property of the area that contains the hook, or in its place the linker stack. The library has no
    /// number yet while that stack is mapped.
    pub(crate) fn place_kind(&self) -> Kind {
        if self.linker_stack.len == 0 { Kind::Code } else { Kind::Guarded }
    }
}

/// Step in which the ring is unmapped from its end. One stop unmaps whole steps until half a step's bytes are present
/// pages, so more of a sparse ring goes at once.
const PART: u64 = 64 << 20;
/// Maximum number of places that are tried when a thread of the target has just mapped something at the chosen one.
const TRIES: usize = 16;
/// Maximum number of remote calls in a stop.
const CALLS: usize = 2;

/// Number of pages in the place besides the hook, or the linker stack, and the note: three guards and the flag page.
const GUARDS_AND_FLAG: u64 = 4;

/// A remote call: its name for messages, its number and its arguments.
type Call = (&'static str, u64, [u64; 6]);

/// The process that makes remote calls, with the data that they need.
pub(crate) struct Site<'a> {
    pub pid: Pid,
    pub mem: &'a RemoteMemory,
    pub gadgets: Gadgets,
    pub timeout: Duration,
    pub stops: &'a mut StopTimes,
    /// The functions whose jumps must be out of the code before anything is unmapped.
    pub hooked: &'a [Patched],
    /// The functions by which the target's dynamic linker loads the hook; `None`: prof maps it.
    pub by_linker: Option<Functions>,
    /// Whether the file of the library that it loads stays.
    pub keeps_library: bool,
    /// Called before the target has a descriptor of the library, like [`Options::guard`](crate::Options::guard).
    pub guard: Option<fn(Pid) -> Box<dyn Any>>,
    /// The error of the last mapping that could not be unmapped.
    pub failed: Option<Error>,
}

impl<'a> Site<'a> {
    pub(crate) fn new(
        pid: Pid,
        mem: &'a RemoteMemory,
        gadgets: Gadgets,
        timeout: Duration,
        stops: &'a mut StopTimes,
    ) -> Self {
        Self {
            pid,
            mem,
            gadgets,
            timeout,
            stops,
            hooked: &[],
            by_linker: None,
            keeps_library: false,
            guard: None,
            failed: None,
        }
    }

    pub(crate) fn stop<T>(&mut self, f: impl FnOnce(&mut Caller<'_>) -> Result<T>) -> Result<T> {
        with_caller(self.pid, self.mem, self.gadgets, self.timeout, self.stops, f)
    }

    /// Runs `f` with a caller while all threads of the target are stopped.
    pub(crate) fn alone<T>(&mut self, f: impl FnOnce(&mut Caller<'_>) -> Result<T>) -> Result<T> {
        with_all_stopped(self.pid, self.mem, self.gadgets, self.timeout, self.stops, f)
    }

    fn calls(&mut self, all: &[Call]) -> Result<()> {
        for some in all.chunks(CALLS) {
            self.stop(|c| {
                some.iter()
                    .try_for_each(|(what, number, args)| c.call(what, *number, *args).map(|_| ()))
            })?;
        }
        Ok(())
    }

    /// Maps everything besides the ring. `place` returns the places of the stubs; its argument is the number of
    /// places that were tried before.
    ///
    /// # Errors
    /// If something can't be mapped. `m` then holds the mappings that were made.
    pub(crate) fn map_all(
        &mut self,
        ring: &Ring,
        image: &HookImage,
        place: impl FnMut(usize) -> Result<Vec<Area>>,
        m: &mut Mapped,
    ) -> Result<()> {
        m.ring = ring.at;
        // SAFETY: the target has it mapped, but none of the target's code knows of it yet.
        let control = unsafe { ring.shared.control_mut() };
        self.stop(|c| {
            // A thread touches only a few pages of its state, so huge pages would waste memory. A kernel without huge
            // pages refuses this.
            let _ = advise(c, m.ring, libc::MADV_NOHUGEPAGE);
            // The kernel writes its answer to the field that will hold the clock's name later.
            let at = m.ring.addr + offset_of!(Control, clock) as u64;
            c.ask("prctl", nr::PRCTL, [libc::PR_GET_TSC as u64, at, 0, 0, 0, 0]);
            advise(c, m.ring, libc::MADV_DONTDUMP)
        })?;
        let page = prof_os::page_size();
        for (k, addr) in [m.ring.addr - page, m.ring.addr + m.ring.len].into_iter().enumerate() {
            let note = |a| {
                control.guards[k].set(a);
                m.guards[k] = a;
            };
            self.map_at(Area { addr, len: page }, bits::NONE, note)?;
        }
        self.map_hook(image, control, m)?;
        if let Some(functions) = self.by_linker.clone() {
            self.load(&functions, image, control, m)?;
        }
        self.map_stubs(place, image, control, m)
    }

    /// Maps the stubs. Chooses another place if a thread of the target has just mapped something there.
    fn map_stubs(
        &mut self,
        mut place: impl FnMut(usize) -> Result<Vec<Area>>,
        image: &HookImage,
        control: &mut Control,
        m: &mut Mapped,
    ) -> Result<()> {
        let mut tried = 0;
        loop {
            let stubs = place(tried)?;
            tried += 1;
            match self.map_stubs_at(&stubs, image, control, m) {
                Err(e) if is_taken(&e) && tried < TRIES => {
                    for (a, noted) in std::mem::take(&mut m.stubs).iter().zip(&control.stubs) {
                        let there = left_of(&maps::of(self.pid)?, *a, Kind::Code);
                        if there.is_none_or(|a| self.unmap(a.addr, a.len)) {
                            noted.set(Area::default());
                        } else if let Some(e) = self.failed.take() {
                            return Err(e);
                        }
                    }
                }
                other => return other,
            }
        }
    }

    fn map_stubs_at(
        &mut self,
        stubs: &[Area],
        image: &HookImage,
        control: &mut Control,
        m: &mut Mapped,
    ) -> Result<()> {
        use bits::{EXEC, READ};
        let page = prof_os::page_size();
        m.stubs = vec![Area::default(); stubs.len()];
        for ((a, to), done) in stubs.iter().zip(&control.stubs).zip(&mut m.stubs) {
            let mut note = |a| {
                to.set(a);
                *done = a;
            };
            if self.by_linker.is_some() && self.map_of_library(*a, image, m.hook, &mut note)? {
                continue;
            }
            self.map_at(*a, READ | EXEC, note).map_err(forbidden)?;
            self.calls(&[guard(a.addr, page), guard(a.addr + a.len - page, page)])?;
        }
        Ok(())
    }

    /// Maps the hook, or in its place the linker stack, and the flag page in one area, with guard pages before, between and
    /// behind them.
    fn map_hook(&mut self, image: &HookImage, control: &mut Control, m: &mut Mapped) -> Result<()> {
        use bits::{EXEC, READ, WRITE};
        let page = prof_os::page_size();
        let by_linker = self.by_linker.is_some();
        // The note for forked children lies behind the hook or the stack.
        let first = if by_linker { LINKER_STACK } else { image.len() as u64 };
        let hook_len = first + inherited::room();
        let all = hook_len + GUARDS_AND_FLAG * page;
        let mut tried = 0;
        loop {
            let Some(addr) = remote_place(&maps::of(self.pid)?, all, page) else {
                return Err(Error::Remote { what: "mmap", pid: self.pid, errno: Errno::ENOMEM });
            };
            tried += 1;
            // The area is made executable first and restricted afterwards: where memory can't become executable later
            // (PR_SET_MDWE), it can still be mapped so.
            let access = if by_linker { READ } else { READ | EXEC };
            let note = |place| note_place(by_linker, place, page, control, m);
            match self.map_at(Area { addr, len: all }, access, note) {
                Ok(()) => break,
                Err(e) if is_taken(&e) && tried < TRIES => {}
                Err(e) => return Err(forbidden(e)),
            }
        }
        let start = m.place.addr + page;
        let behind = start + hook_len;
        let writable = match by_linker {
            true => 0,
            false => image.data.0 as u64,
        };
        let mut calls = vec![
            guard(m.place.addr, page),
            guard(behind, m.place.addr + all - behind),
            protect(start + writable, hook_len - writable, READ | WRITE),
            protect(m.flag.addr, page, READ | WRITE),
            ("madvise", nr::MADVISE, [m.flag.addr, page, libc::MADV_WIPEONFORK as u64, 0, 0, 0]),
        ];
        if !by_linker {
            calls.insert(2, protect(start, image.code.0 as u64, READ));
        }
        self.calls(&calls)
    }

    /// Maps memory at a certain address, unlocked and left out of core files. Calls `note` with the area beforehand,
    /// and with an empty area if the kernel has refused.
    fn map_at(&mut self, a: Area, prot: u64, mut note: impl FnMut(Area)) -> Result<()> {
        note(a);
        let mapped = self.stop(|c| match fixed(c, a, prot) {
            Ok(()) => advise(c, a, libc::MADV_DONTDUMP).map(Ok),
            Err(e @ Error::Remote { .. }) => Ok(Err(e)),
            Err(e) => Err(e),
        })?;
        if mapped.is_err() {
            note(Area::default());
        }
        mapped
    }

    /// Unmaps everything in `m`, and returns whether nothing is left.
    pub(crate) fn unmap_all(&mut self, m: &mut Mapped) -> bool {
        self.failed = None;
        if self.unmap_each(m) {
            return true;
        }
        // A thread in the midst of an exec can't be traced, or not be found; only a call that the kernel has refused was
        // made by a thread that goes on.
        let was_refused = matches!(self.failed, None | Some(Error::Remote { .. }));
        if !was_refused && self.goes_by_exec() {
            return true;
        }
        if let Some(e) = &self.failed {
            e.warn(self.pid, &format!(
                    "prof could not unmap all of its memory in pid {}; run `prof detach {0}` again; the reason",
                    self.pid
                ));
        }
        false
    }

    /// Returns whether everything goes within a short time, as an exec removes it that has just begun. The only thread
    /// is in the kernel then, and can make no call.
    fn goes_by_exec(&self) -> bool {
        (0..EXEC_LOOKS).any(|_| {
            std::thread::sleep(EXEC_LOOK);
            !has_parts(self.pid)
        })
    }

    /// Returns the error number with which the kernel has refused to unmap something.
    pub(crate) fn refused(&self) -> Option<Errno> {
        match self.failed {
            Some(Error::Remote { errno, .. }) => Some(errno),
            _ => None,
        }
    }

    /// Unmaps the rest of `m`, and removes from `m` what was unmapped. The ring is last, and is unmapped only after all
    /// others: its control page names the other mappings to the next prof.
    fn unmap_each(&mut self, m: &mut Mapped) -> bool {
        let entry = |offset: usize| STABLE_AT + offset;
        let mut gone = true;
        for (k, a) in m.stubs.iter_mut().enumerate() {
            let entry = entry(offset_of!(Stable, stubs) + k * size_of::<Area>());
            gone &= self.take_back(m.ring, a, Kind::Code, entry);
        }
        // A stub that stays may lead to the hook.
        if !gone {
            return false;
        }
        // The dynamic linker needs the linker stack, which is a part of the place, to unload the hook.
        if !self.unload(m) {
            return false;
        }
        // Hook and flag page are parts of the place, except in builds that had no guard pages.
        let (place, hook, flag) = (
            entry(offset_of!(Stable, place)),
            entry(offset_of!(Stable, hook_addr)),
            entry(offset_of!(Stable, flag_addr)),
        );
        let apart = m.place.len == 0;
        let (all, kind) = if apart { (m.hook, Kind::Any) } else { (m.place, m.place_kind()) };
        gone &= match m.kept {
            Some(kept) => self.unmap_around(all, kept),
            None => self.unmap_left(all, kind),
        };
        if apart {
            gone &= self.unmap_left(m.flag, Kind::Any);
        }
        if gone {
            (m.place, m.hook, m.flag) = Default::default();
            // The place goes last: without it, a part must not be named (see `note_place`).
            [hook, flag, place].into_iter().for_each(|entry| self.note_gone(m.ring, entry));
        }
        for (k, a) in m.guards.iter_mut().enumerate() {
            let entry = entry(offset_of!(Stable, guards) + k * size_of::<Area>());
            gone &= self.take_back(m.ring, a, Kind::Guard, entry);
        }
        gone && self.unmap_ring(m.ring.addr)
    }

    /// Unmaps the ring in parts, from its end, so that no stop is long. The control page is in the last part. The
    /// target's maps tell what remains, since another prof may have been killed in the middle of this. Returns whether
    /// nothing remains.
    pub(crate) fn unmap_ring(&mut self, addr: u64) -> bool {
        let maps = maps::of(self.pid).unwrap_or_default();
        let Some(first) = maps.iter().find(|m| m.start.0 == addr && m.shared) else { return true };
        for m in maps.iter().rev().filter(|m| m.shared && m.is_of_file_of(first)) {
            let mut left = m.len();
            while left > 0 {
                let rest = self.rest(m.start.0, left);
                if !self.unmap(m.start.0 + rest, left - rest) {
                    return false;
                }
                left = rest;
            }
        }
        true
    }

    /// Returns how many of the `left` bytes from `start` are kept for later stops.
    fn rest(&self, start: u64, left: u64) -> u64 {
        let page = prof_os::page_size();
        let pagemap = File::open(prof_os::process::folder(self.pid) + "/pagemap");
        let present = |from: u64, to: u64| {
            let mut entries = vec![0u8; ((to - from) / page * 8) as usize];
            let read =
                pagemap.as_ref().map(|f| f.read_exact_at(&mut entries, (start + from) / page * 8));
            let all = (to - from) / page;
            let there = |e: &&[u8; 8]| u64::from_ne_bytes(**e) >> 63 == 1;
            let count = || entries.as_chunks::<8>().0.iter().filter(there).count() as u64;
            if matches!(read, Ok(Ok(()))) { count() } else { all }
        };
        let (mut rest, mut pages) = (left, 0);
        while rest > 0 && pages < PART / page / 2 {
            let from = (rest - 1) / PART * PART;
            pages += present(from, rest);
            rest = from;
        }
        rest
    }

    /// Unmaps an area if it is there, and then clears it and its entry in the control page. Returns whether it is gone.
    fn take_back(&mut self, ring: Area, a: &mut Area, kind: Kind, entry: usize) -> bool {
        if a.len == 0 {
            return true;
        }
        if !self.unmap_left(*a, kind) {
            return false;
        }
        *a = Area::default();
        self.note_gone(ring, entry);
        true
    }

    /// Unmaps the rest of an area. Returns whether no part of it is mapped any more.
    fn unmap_left(&mut self, a: Area, kind: Kind) -> bool {
        if a.len == 0 {
            return true;
        }
        let there = maps::of(self.pid).ok().and_then(|maps| left_of(&maps, a, kind));
        there.is_none_or(|a| self.unmap(a.addr, a.len))
    }

    /// Clears an area's entry in the control page.
    fn note_gone(&mut self, ring: Area, entry: usize) {
        let at = RemoteAddr(ring.addr).plus(entry as u64);
        if ring.len != 0
            && let Err(e) = self.mem.write(at, &[0; size_of::<Area>()])
        {
            e.warn(self.pid, "prof unmapped a part of its memory, but could not note that in its control page, so the next detach looks for it again");
        }
    }

    /// Unmaps an area except for the page `kept`. A prof that was killed may already have unmapped a part of it. Returns
    /// whether the rest is gone.
    fn unmap_around(&mut self, a: Area, kept: Area) -> bool {
        let maps = maps::of(self.pid).unwrap_or_default();
        parts_around(&maps, a, kept).iter().all(|part| self.unmap(part.addr, part.len))
    }

    /// Unmaps memory, unless a jump of prof's is in the code again, which is looked at in the same stop.
    pub(crate) fn unmap(&mut self, addr: u64, len: u64) -> bool {
        let (mem, hooked) = (self.mem, self.hooked);
        let unmapped = self.stop(|c| {
            if again::are_back(mem, hooked) {
                return Ok(false);
            }
            c.call("munmap", nr::MUNMAP, [addr, len, 0, 0, 0, 0]).map(|_| true)
        });
        unmapped.unwrap_or_else(|e| {
            self.failed = Some(e);
            false
        })
    }
}

/// Notes the area of the hook, or in its place the linker stack, and of the flag page behind it, before it is mapped. An
/// empty area: nothing is mapped.
///
/// The parts are named only while the area is. A later prof knows the area by its guard pages or by its code; a part that is
/// named alone could be anything that the target has mapped there meanwhile.
fn note_place(by_linker: bool, place: Area, page: u64, control: &mut Control, m: &mut Mapped) {
    let (mut at, mut flag) = (Area::default(), 0);
    if place.len != 0 {
        at = Area { addr: place.addr + page, len: place.len - GUARDS_AND_FLAG * page };
        flag = at.addr + at.len + page;
        control.place.set(place);
    }
    compiler_fence(SeqCst);
    m.flag = Area { addr: flag, len: page };
    control.flag_addr.store(m.flag.addr, Relaxed);
    control.flag_len = m.flag.len;
    if by_linker {
        m.linker_stack = Area { addr: at.addr, len: LINKER_STACK.min(at.len) };
        control.linker_stack.set(m.linker_stack);
    } else {
        m.hook = at;
        (control.hook_addr, control.hook_len) = (m.hook.addr, m.hook.len);
    }
    compiler_fence(SeqCst);
    control.place.set(place);
    m.place = place;
}

/// Returns whether mmap has failed because the range is already mapped.
fn is_taken(e: &Error) -> bool {
    matches!(e, Error::Remote { what: "mmap", errno: Errno::EEXIST, .. })
}

/// Returns the error of a mapping of code, by which it can be seen whether a policy forbids that.
fn forbidden(e: Error) -> Error {
    match e {
        Error::Remote { what: "mmap", pid, errno: errno @ (Errno::EACCES | Errno::EPERM) } => {
            let why = format!(
                "the kernel refuses it executable memory without a file ({errno}), as a seccomp filter or a policy like SELinux's execmem does"
            );
            Refusal::NoCode { pid, comm: process::comm(pid), why }.into()
        }
        e => e,
    }
}

/// Maps private memory at a certain address, unlocked. Where the target locks all future mappings and its limit of
/// locked memory is too low for this one (EAGAIN), maps a single page, unlocks it and lets it grow.
fn fixed(c: &mut Caller<'_>, a: Area, prot: u64) -> Result<()> {
    use bits::{ANON, FIXED_NOREPLACE, NO_FD};
    let first = Area { addr: a.addr, len: prof_os::page_size() };
    let mut last = c.failed("mmap", Errno::EAGAIN);
    for part in [a, first] {
        match map(c, part.addr, part.len, prot, ANON | FIXED_NOREPLACE, NO_FD) {
            Ok(got) if got.addr == a.addr => return grow(c, part, a),
            Ok(got) => {
                // A kernel before 4.17 takes the address only as a hint.
                unmap_at(c, got)?;
                return Err(c.failed("mmap", Errno::EEXIST));
            }
            Err(e @ Error::Remote { errno: Errno::EAGAIN, .. }) => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

pub(crate) fn map(
    c: &mut Caller<'_>,
    at: u64,
    len: u64,
    prot: u64,
    flags: u64,
    fd: u64,
) -> Result<Area> {
    crate::shortage::check(c.pid())?;
    let addr = c.call("mmap", nr::MMAP, [at, len, prot, flags, fd, 0])?;
    Ok(Area { addr, len })
}

pub(crate) fn unmap_at(c: &mut Caller<'_>, a: Area) -> Result<()> {
    c.call("munmap", nr::MUNMAP, [a.addr, a.len, 0, 0, 0, 0]).map(|_| ())
}

pub(crate) fn advise(c: &mut Caller<'_>, a: Area, advice: i32) -> Result<()> {
    c.call("madvise", nr::MADVISE, [a.addr, a.len, advice as u64, 0, 0, 0]).map(|_| ())
}

fn protect(addr: u64, len: u64, prot: u64) -> Call {
    ("mprotect", nr::MPROTECT, [addr, len, prot, 0, 0, 0])
}

fn guard(addr: u64, len: u64) -> Call {
    protect(addr, len, bits::NONE)
}
