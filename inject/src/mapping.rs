//! prof's mappings in the target, made and taken back by remote calls: few in each stop, so that no
//! stop is long. The ring is made in [`crate::ring`].
//!
//! prof may be killed while the target makes such a call. So where a mapping will be stands in the
//! control page before it is made, and until it has been taken back; whoever takes over looks in the
//! target's maps whether it is there.
//!
//! Pages that nobody may touch lie around everything, so that what runs over the end of a block of the
//! target's faults as it does without prof, and does not write into prof's memory. None of it is locked, and
//! none is in core files.

use crate::image::Image;
use crate::install::{with_all_stopped, with_caller};
use crate::proc::{self, Map};
use crate::remote::{Caller, Gadgets};
use crate::ring::{Ring, grow};
use crate::threads::StopTimes;
use crate::{Error, RemoteAddr, RemoteMemory, Result, inherited};
use nix::errno::Errno;
use prof_arch::native::syscall::nr;
use prof_trace::shared::{Area, Control, STABLE_AT, Stable};
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Protection and mapping bits of the kernel's mmap (those for mapping are others on MIPS).
pub(crate) mod bits {
    #![allow(missing_docs)]
    pub const NONE: u64 = 0;
    pub const READ: u64 = 1;
    pub const WRITE: u64 = 2;
    pub const EXEC: u64 = 4;
    pub const SHARED: u64 = libc::MAP_SHARED as u64;
    pub const ANON: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    pub const NORESERVE: u64 = libc::MAP_NORESERVE as u64;
    pub const FIXED_NOREPLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
    pub const NO_FD: u64 = u64::MAX;
}

/// What was mapped, to be taken back if something fails.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub ring: Area,
    pub guards: [Area; 2],
    /// What hook and flag page lie in.
    pub place: Area,
    pub flag: Area,
    pub hook: Area,
    pub stubs: Vec<Area>,
    /// A page of the hook that stays.
    pub kept: Option<Area>,
}

/// The most of the ring that is unmapped in one stop, if all its pages are there; where few are, it is more.
const PART: u64 = 64 << 20;
/// So often another place is looked for where a thread of the target has just mapped something.
const TRIES: usize = 16;
/// So many calls are made in a stop.
const CALLS: usize = 2;

/// A remote call: what it is, its number and its arguments.
type Call = (&'static str, u64, [u64; 6]);

/// Where remote calls are made.
pub(crate) struct Site<'a> {
    pub pid: i32,
    pub mem: &'a RemoteMemory,
    pub gadgets: Gadgets,
    pub timeout: Duration,
    pub stops: &'a mut StopTimes,
    /// What the last mapping could not be taken back for.
    pub refused: Option<Errno>,
}

impl Site<'_> {
    fn stop<T>(&mut self, f: impl FnOnce(&mut Caller<'_>) -> Result<T>) -> Result<T> {
        with_caller(self.pid, self.mem, self.gadgets, self.timeout, self.stops, f)
    }

    /// The same while all threads of the target are stopped.
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

    /// Maps everything beside the ring, the stubs where `place` says, which is told how often it was asked
    /// before.
    ///
    /// # Errors
    /// If something can't be mapped; `m` then has what could.
    pub fn map_all(
        &mut self,
        ring: &Ring,
        image: &Image,
        place: impl FnMut(usize) -> Result<Vec<Area>>,
        m: &mut Mapped,
    ) -> Result<()> {
        m.ring = ring.at;
        // SAFETY: the target has it mapped, but nothing there knows of it yet.
        let control = unsafe { ring.shared.control_mut() };
        self.stop(|c| {
            // A thread touches a few pages of its state; a kernel without huge pages refuses this.
            let _ = advise(c, m.ring, libc::MADV_NOHUGEPAGE);
            // The answer stands where the clock's name will.
            let at = m.ring.addr + offset_of!(Control, clock) as u64;
            c.ask("prctl", nr::PRCTL, [libc::PR_GET_TSC as u64, at, 0, 0, 0, 0]);
            advise(c, m.ring, libc::MADV_DONTDUMP)
        })?;
        let page = proc::page_size();
        for (k, addr) in [m.ring.addr - page, m.ring.addr + m.ring.len].into_iter().enumerate() {
            let note = |a| (control.guards[k], m.guards[k]) = (a, a);
            self.map_at(Area { addr, len: page }, bits::NONE, note)?;
        }
        self.map_hook(image, control, m)?;
        self.map_stubs(place, control, m)
    }

    /// Maps the stubs, elsewhere if a thread of the target is faster.
    fn map_stubs(
        &mut self,
        mut place: impl FnMut(usize) -> Result<Vec<Area>>,
        control: &mut Control,
        m: &mut Mapped,
    ) -> Result<()> {
        let mut tried = 0;
        loop {
            let stubs = place(tried)?;
            tried += 1;
            match self.map_stubs_at(&stubs, control, m) {
                Err(e) if is_taken(&e) && tried < TRIES => {
                    for (a, noted) in std::mem::take(&mut m.stubs).iter().zip(&mut control.stubs) {
                        let there = left_of(&proc::maps(self.pid)?, *a, Kind::Code);
                        if there.is_none_or(|a| self.unmap(a.addr, a.len)) {
                            *noted = Area::default();
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
        control: &mut Control,
        m: &mut Mapped,
    ) -> Result<()> {
        use bits::{EXEC, READ};
        let page = proc::page_size();
        m.stubs = vec![Area::default(); stubs.len()];
        for ((a, to), done) in stubs.iter().zip(&mut control.stubs).zip(&mut m.stubs) {
            self.map_at(*a, READ | EXEC, |a| (*to, *done) = (a, a))?;
            self.calls(&[guard(a.addr, page), guard(a.addr + a.len - page, page)])?;
        }
        Ok(())
    }

    /// Maps hook and flag page into one place, with guard pages before, between and behind them.
    fn map_hook(&mut self, image: &Image, control: &mut Control, m: &mut Mapped) -> Result<()> {
        use bits::{EXEC, READ, WRITE};
        let page = proc::page_size();
        // The note for children stands behind it.
        let hook_len = image.len() as u64 + inherited::room();
        let all = hook_len + 4 * page;
        let mut tried = 0;
        loop {
            let Some(addr) = remote_place(&proc::maps(self.pid)?, all, page) else {
                return Err(Error::Remote { what: "mmap", pid: self.pid, errno: Errno::ENOMEM });
            };
            tried += 1;
            m.hook = Area { addr: addr + page, len: hook_len };
            m.flag = Area { addr: addr + 2 * page + hook_len, len: page };
            (control.hook_addr, control.hook_len) = (m.hook.addr, m.hook.len);
            (control.flag_addr, control.flag_len) = (m.flag.addr, m.flag.len);
            // Executable first, and less afterwards: where memory can't become executable (PR_SET_MDWE), it
            // can still be made so.
            let note = |a| (control.place, m.place) = (a, a);
            match self.map_at(Area { addr, len: all }, READ | EXEC, note) {
                Ok(()) => break,
                Err(e) if is_taken(&e) && tried < TRIES => {}
                Err(e) => return Err(e),
            }
        }
        let hook = m.hook.addr;
        let behind = hook + hook_len;
        self.calls(&[
            guard(m.place.addr, page),
            guard(behind, m.place.addr + all - behind),
            protect(hook, image.code.0 as u64, READ),
            protect(hook + image.data.0 as u64, hook_len - image.data.0 as u64, READ | WRITE),
            protect(m.flag.addr, page, READ | WRITE),
            ("madvise", nr::MADVISE, [m.flag.addr, page, libc::MADV_WIPEONFORK as u64, 0, 0, 0]),
        ])
    }

    /// Maps memory at a certain place, not locked and in no core file. `note` is told before, and with an
    /// empty area if the kernel has refused.
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

    /// Takes back what has been mapped; the ring, which says what there is, last.
    pub fn unmap_all(&mut self, m: &Mapped) {
        let entry = |offset: usize| STABLE_AT + offset;
        for (k, a) in m.stubs.iter().enumerate() {
            let entry = entry(offset_of!(Stable, stubs) + k * size_of::<Area>());
            self.take_back(m.ring, *a, Kind::Code, entry);
        }
        // Hook and flag are parts of the place, but for builds that had no guard pages.
        let (place, hook) =
            (entry(offset_of!(Stable, place)), entry(offset_of!(Stable, hook_addr)));
        if let Some(kept) = m.kept {
            let all = if m.place.len == 0 { m.hook } else { m.place };
            self.take_back_around(m.ring, all, kept, place);
            self.note_gone(m.ring, hook);
        } else {
            self.take_back(m.ring, m.place, Kind::Code, place);
            self.take_back(m.ring, m.hook, Kind::Any, hook);
        }
        self.take_back(m.ring, m.flag, Kind::Any, entry(offset_of!(Stable, flag_addr)));
        for (k, a) in m.guards.iter().enumerate() {
            let entry = entry(offset_of!(Stable, guards) + k * size_of::<Area>());
            self.take_back(m.ring, *a, Kind::Guard, entry);
        }
        self.unmap_ring(m.ring.addr);
    }

    /// In parts, from its end, so that no stop is long; the control page is in the last. What there is
    /// of it say the target's maps: another prof may have been killed in the middle of this.
    pub(crate) fn unmap_ring(&mut self, addr: u64) {
        let maps = proc::maps(self.pid).unwrap_or_default();
        let Some(first) = maps.iter().find(|m| m.start.0 == addr && m.shared) else { return };
        for m in maps.iter().rev().filter(|m| m.shared && m.inode == first.inode) {
            let mut left = m.len();
            while left > 0 {
                let rest = self.rest(m.start.0, left);
                if !self.unmap(m.start.0 + rest, left - rest) {
                    return;
                }
                left = rest;
            }
        }
    }

    /// What to leave for later of so many bytes.
    fn rest(&self, start: u64, left: u64) -> u64 {
        let page = proc::page_size();
        let pagemap = File::open(prof_trace::process::folder(self.pid) + "/pagemap");
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

    /// Unmaps what a forked child has where its parent has the ring: memory of its own (`hook/src/fork.rs`), if any.
    pub(crate) fn unmap_copies(&mut self, ring: Area) {
        let maps = proc::maps(self.pid).unwrap_or_default();
        for part in parts_around(&maps, ring, Area::default()) {
            self.unmap(part.addr, part.len);
        }
    }

    /// Unmaps an area if it is there, and then takes it out of the control page.
    fn take_back(&mut self, ring: Area, a: Area, kind: Kind, entry: usize) {
        if a.len == 0 {
            return;
        }
        let there = proc::maps(self.pid).ok().and_then(|maps| left_of(&maps, a, kind));
        if there.is_some_and(|a| !self.unmap(a.addr, a.len)) {
            return;
        }
        self.note_gone(ring, entry);
    }

    /// Takes an area out of the control page.
    fn note_gone(&mut self, ring: Area, entry: usize) {
        let at = RemoteAddr(ring.addr).plus(entry as u64);
        if ring.len != 0
            && let Err(e) = self.mem.write(at, &[0; size_of::<Area>()])
        {
            e.warn(self.pid, "prof could not note what it has unmapped");
        }
    }

    /// The same of an area of which a page stays, and of which a prof that was killed may have unmapped a
    /// part.
    fn take_back_around(&mut self, ring: Area, a: Area, kept: Area, entry: usize) {
        let maps = proc::maps(self.pid).unwrap_or_default();
        for part in parts_around(&maps, a, kept) {
            if !self.unmap(part.addr, part.len) {
                return;
            }
        }
        self.note_gone(ring, entry);
    }

    fn unmap(&mut self, addr: u64, len: u64) -> bool {
        let r = self.stop(|c| c.call("munmap", nr::MUNMAP, [addr, len, 0, 0, 0, 0]));
        let Err(e) = &r else { return true };
        let refused = match e {
            Error::Remote { errno, .. } => Some(*errno),
            _ => None,
        };
        // Said once for all mappings.
        if refused.is_none() || refused != self.refused {
            e.warn(self.pid, "memory of prof's is left");
        }
        self.refused = refused;
        false
    }
}

/// What an area of prof's is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Some of it can be executed.
    Code,
    /// Nobody may touch it.
    Guard,
    /// Either.
    Any,
}

/// Whether prof's area is mapped, and not something that the target has put there since: all of it
/// private memory of no file, and as it must be.
pub(crate) fn is_ours(maps: &[Map], a: Area, kind: Kind) -> bool {
    let end = a.addr.saturating_add(a.len);
    let mut parts = maps.iter().filter(|m| m.start.0 < end && a.addr < m.end.0).peekable();
    if parts.peek().is_none() {
        return false;
    }
    let (mut at, mut code, mut access) = (a.addr, false, false);
    for m in parts {
        if m.shared || m.inode != 0 || !m.name.is_empty() || m.start.0 > at {
            return false;
        }
        at = m.end.0;
        code |= m.exec;
        access |= m.read || m.write || m.exec;
    }
    let as_it_must_be = match kind {
        Kind::Code => code,
        Kind::Guard => !access,
        Kind::Any => true,
    };
    at >= end && as_it_must_be
}

/// What is mapped of prof's area, without a page of it: private memory of no file.
fn parts_around(maps: &[Map], a: Area, kept: Area) -> Vec<Area> {
    let end = a.addr.saturating_add(a.len);
    let ours = maps.iter().filter(|m| !m.shared && m.inode == 0 && m.name.is_empty());
    let clip = |from: u64, to: u64| (from < to).then(|| Area { addr: from, len: to - from });
    let parts = ours.flat_map(|m| {
        let (from, to) = (m.start.0.max(a.addr), m.end.0.min(end));
        [clip(from, to.min(kept.addr)), clip(from.max(kept.addr + kept.len), to)]
    });
    parts.flatten().collect()
}

/// What there is of an area: all, or the first page if prof was killed before it grew (see [`fixed`]).
fn left_of(maps: &[Map], a: Area, kind: Kind) -> Option<Area> {
    if is_ours(maps, a, kind) {
        return Some(a);
    }
    let first = Area { addr: a.addr, len: proc::page_size() };
    let rest = first.addr + first.len..a.addr.saturating_add(a.len);
    let alone = maps.iter().all(|m| m.end.0 <= rest.start || rest.end <= m.start.0);
    (alone && a.len > first.len && is_ours(maps, first, Kind::Code)).then_some(first)
}

/// Whether somebody else has mapped memory where some was to be.
fn is_taken(e: &Error) -> bool {
    matches!(e, Error::Remote { what: "mmap", errno: Errno::EEXIST, .. })
}

/// A place for `len` bytes in the middle of nowhere, where the kernel puts nothing by itself, at a multiple of
/// `align`.
pub(crate) fn remote_place(maps: &[Map], len: u64, align: u64) -> Option<u64> {
    // What is behind the last gap does not belong to the process.
    let kernels = |m: &&Map| m.name == b"[vsyscall]" || m.name == b"[vectors]";
    let own = maps.iter().filter(|m| !kernels(m)).collect::<Vec<_>>();
    let gaps = own.windows(2).map(|m| (m[0].end.0, m[1].start.0));
    let (from, to) = gaps.filter(|(from, to)| from < to).max_by_key(|(from, to)| to - from)?;
    // Not always the same place: what is there can be written and executed.
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), len);
    let quarter = (to - from) / 4;
    let at = (from + quarter + seed % quarter.max(1)).next_multiple_of(align);
    (at.checked_add(len)? <= to).then_some(at)
}

/// Maps private memory at a certain place, not locked. Where all that is mapped gets locked and little more
/// may be, it is made of one page that is unlocked and grows.
fn fixed(c: &mut Caller<'_>, a: Area, prot: u64) -> Result<()> {
    use bits::{ANON, FIXED_NOREPLACE, NO_FD};
    let first = Area { addr: a.addr, len: proc::page_size() };
    let mut last = c.failed("mmap", Errno::EAGAIN);
    for part in [a, first] {
        match map(c, part.addr, part.len, prot, ANON | FIXED_NOREPLACE, NO_FD) {
            Ok(got) if got.addr == a.addr => return grow(c, part, a),
            Ok(got) => {
                // A kernel before 4.17 takes the address as a hint.
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
