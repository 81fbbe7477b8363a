//! Changes of the control page by more than one party while a process is recorded: turning recording on and off, and
//! publishing the stacks.
//!
//! Whoever turns recording on or off follows one rule, in this order:
//!
//! 1. On the way to "on", doubt the modules ([`doubt`]), since nobody has reported those that came and went meanwhile,
//!    and clear [`Stable::orphaned`](crate::shared::Stable::orphaned).
//! 2. Raise [`Stable::unseen`](crate::shared::Stable::unseen): frees may be missed, so what threads know of blocks
//!    that they have handed out is out of date.
//! 3. Write a [`Toggle`](crate::shared::Toggle) and its number, by which the collector learns of the change.
//! 4. Change the flag. Only the handler of the toggle signal does so before 2, as it has to flip the flag to know its
//!    value.
//!
//! [`note`] does 2 and 3 in a mapping of the page, [`switch`] all of it from outside, in a page of any build. [`remote`]
//! reads such a page.

#[cfg(feature = "std")]
pub mod remote;

use crate::modules::doubt;
use crate::shared::{Control, Header, STABLE_AT, STACKS, Shared, Stable, TOGGLES, Table};
use crate::ticks::Ticks;
use core::mem::offset_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Notes in the page that recording is turned on or off. `now` returns the present time in ticks.
pub fn note(c: &Control, on: bool, now: impl FnOnce() -> Ticks) {
    c.unseen.fetch_add(1, AcqRel);
    let n = c.toggle_count.fetch_add(1, AcqRel);
    let t = &c.toggles[n as usize % TOGGLES];
    t.on.store(u64::from(on), Relaxed);
    t.time.store(now().0, Release);
}

/// Does what comes before recording is turned on.
pub fn before_on(c: &Control) {
    doubt(c);
    c.orphaned.store(0, Relaxed);
}

/// Memory of another process.
pub trait Memory {
    /// Error of an access.
    type Error;

    /// Fills `to` with the bytes from `at` on.
    ///
    /// # Errors
    /// If not all of them can be read.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Self::Error>;
}

/// Memory of another process that prof may change.
pub trait MemoryMut: Memory {
    /// Writes bytes from `at` on.
    ///
    /// # Errors
    /// If they can't be written.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Self::Error>;
}

fn raise_u32<M: MemoryMut>(mem: &M, at: u64) -> Result<(), M::Error> {
    let mut n = [0; 4];
    mem.read(at, &mut n)?;
    mem.write(at, &u32::from_ne_bytes(n).wrapping_add(1).to_ne_bytes())
}

fn number<M: Memory>(mem: &M, at: u64) -> Result<u64, M::Error> {
    let mut n = [0; 8];
    mem.read(at, &mut n)?;
    Ok(u64::from_ne_bytes(n))
}

/// Upper bound on the number of entries of a table in a page of any build.
const MOST: u32 = 1 << 20;

/// Returns the offset of an entry from the control page. The numbers come from the target, which may have written any.
#[must_use]
pub fn entry(t: Table, index: u32) -> Option<u64> {
    t.at.checked_add(u64::from(t.stride) * u64::from(index))
}

/// Turns recording on or off in the process that `mem` is the memory of. The control page `h` is at address `page`; it
/// may be of another build. `now` is the present time in ticks.
///
/// # Errors
/// If the memory can't be read or written.
pub fn switch<M: MemoryMut>(
    mem: &M,
    page: u64,
    h: &Header,
    on: bool,
    now: Ticks,
) -> Result<(), M::Error> {
    let at = |offset: usize| page.wrapping_add((STABLE_AT + offset) as u64);
    if on {
        raise_u32(mem, at(offset_of!(Stable, doubts)))?;
        raise_u32(mem, at(offset_of!(Stable, modules_seq)))?;
        mem.write(at(offset_of!(Stable, orphaned)), &0u32.to_ne_bytes())?;
    }
    let unseen_at = at(offset_of!(Stable, unseen));
    let unseen = number(mem, unseen_at)?.wrapping_add(1);
    mem.write(unseen_at, &unseen.to_ne_bytes())?;
    // The number is taken last: a collector that sees it finds the entry.
    let count_at = at(offset_of!(Stable, toggle_count));
    let n = number(mem, count_at)?;
    let index = (n % u64::from(h.toggle_table.count.clamp(1, MOST))) as u32;
    if let Some(offset) = entry(h.toggle_table, index) {
        let toggle = page.wrapping_add(offset);
        mem.write(toggle.wrapping_add(8), &u64::from(on).to_ne_bytes())?;
        mem.write(toggle, &now.0.to_ne_bytes())?;
    }
    mem.write(count_at, &n.wrapping_add(1).to_ne_bytes())?;
    mem.write(h.flag_addr.load(Relaxed), &u32::from(on).to_ne_bytes())
}

/// A mapping of the target, as far as it shows whether the mapping may be a stack.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// First address.
    pub start: u64,
    /// End address.
    pub end: u64,
    /// Permissions, as the kernel prints them: `rwxp`.
    pub perms: [u8; 4],
    /// Inode; 0 if no file is mapped.
    pub inode: u64,
    /// Path or name; empty if there is none.
    pub name: &'a [u8],
}

/// Returns the ranges of the mappings that may be stacks: `[stack]`, and anonymous ones with a guard page below. Some of
/// them are not stacks, which does no harm, but no stack of a thread library is left out.
pub fn stacks<'a>(all: impl Iterator<Item = Candidate<'a>>) -> impl Iterator<Item = (u64, u64)> {
    let mut guard_end = None;
    let found = all.filter_map(move |m| {
        let guarded = guard_end == Some(m.start);
        guard_end = (&m.perms[..3] == b"---").then_some(m.end);
        let anonymous = m.inode == 0 && (m.name.is_empty() || m.name.starts_with(b"[anon"));
        let writable = &m.perms[..2] == b"rw" && m.perms[3] == b'p';
        let may_be = writable && (m.name.starts_with(b"[stack") || (anonymous && guarded));
        may_be.then_some((m.start, m.end))
    });
    found.take(STACKS)
}

/// Publishes the stacks to the hook, which looks for them by [`stack_of`].
pub fn publish_stacks(shared: &Shared, ranges: impl Iterator<Item = (u64, u64)>) {
    let c = shared.control();
    let odd = c.stacks_seq.load(Relaxed) | 1;
    c.stacks_seq.swap(odd, AcqRel);
    let mut n = 0;
    for (start, end) in ranges {
        let Some(s) = shared.stack(n) else { break };
        s.start.store(start, Release);
        s.end.store(end, Release);
        n += 1;
    }
    c.stacks.store(n as u32, Release);
    c.stacks_seq.store(odd.wrapping_add(1), Release);
    let _ = c.stacks_seq.load(Acquire);
}

/// Returns the published stack that holds an address. It may be unmapped by now. Returns `None` if there is none, or
/// the list changes at the moment.
#[inline(always)]
pub fn stack_of(shared: &Shared, addr: u64) -> Option<(u64, u64)> {
    let c = shared.control();
    let seq = c.stacks_seq.load(Acquire);
    if seq & 1 == 1 {
        return None;
    }
    let count = (c.stacks.load(Acquire) as usize).min(STACKS);
    let mut found = None;
    for i in 0..count {
        let s = shared.stack(i)?;
        let (start, end) = (s.start.load(Relaxed), s.end.load(Relaxed));
        if addr >= start && addr < end {
            found = Some((start, end));
            break;
        }
    }
    core::sync::atomic::fence(Acquire);
    found.filter(|_| c.stacks_seq.load(Relaxed) == seq)
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// The page of a test, accessed as from another process.
    struct Own;

    impl Memory for Own {
        type Error = ();

        fn read(&self, at: u64, to: &mut [u8]) -> Result<(), ()> {
            // SAFETY: the test passes addresses in its page, which nobody else uses.
            unsafe { core::ptr::copy_nonoverlapping(at as *const u8, to.as_mut_ptr(), to.len()) };
            Ok(())
        }
    }

    impl MemoryMut for Own {
        fn write(&self, at: u64, bytes: &[u8]) -> Result<(), ()> {
            // SAFETY: as above.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
            Ok(())
        }
    }

    fn page(flag: &mut [u32; 2]) -> Shared<'static> {
        let s = Shared::leaked();
        // SAFETY: the memory is new.
        let c = unsafe { s.control_mut() };
        c.begin(64, "test", b"prof");
        c.flag_addr.store(flag.as_mut_ptr() as u64, Relaxed);
        s
    }

    #[test]
    fn both_ways_to_switch_leave_the_same_page() {
        let (mut a, mut b) = ([0, 0], [0, 0]);
        let (inside, outside) = (page(&mut a), page(&mut b));
        let (c, o) = (inside.control(), outside.control());
        // SAFETY: the page begins with what any build may read.
        let h = unsafe { &*outside.base().cast::<Header>() };
        for k in 1..=TOGGLES as u64 + 3 {
            let on = k % 2 == 1;
            c.orphaned.store(1, Relaxed);
            o.orphaned.store(1, Relaxed);
            if on {
                before_on(c);
            }
            note(c, on, || Ticks(k * 100));
            assert_eq!(switch(&Own, outside.base() as u64, h, on, Ticks(k * 100)), Ok(()));
            let state = |c: &Control| {
                let all = c.toggles.iter().map(|t| (t.time.load(Relaxed), t.on.load(Relaxed)));
                let counts = [c.unseen.load(Relaxed), c.toggle_count.load(Relaxed)];
                let flags = [&c.orphaned, &c.doubts, &c.modules_seq].map(|f| f.load(Relaxed));
                (all.collect::<Vec<_>>(), counts, flags)
            };
            assert_eq!(state(c), state(o));
            // SAFETY: the flag lives, and nobody else uses it.
            assert_eq!(unsafe { (o.flag_addr.load(Relaxed) as *const u32).read() }, u32::from(on));
        }
        assert_eq!(c.unseen.load(Relaxed), TOGGLES as u64 + 3);
    }

    #[test]
    fn stacks_are_found_where_they_were_published() {
        let m = |start, end, perms: &[u8; 4], inode, name| Candidate {
            start,
            end,
            perms: *perms,
            inode,
            name,
        };
        let all = [
            m(0x1000, 0x2000, b"---p", 0, &b""[..]),
            m(0x2000, 0x8000, b"rw-p", 0, b"[anon:stack]"),
            m(0x8000, 0x9000, b"rw-p", 0, b""),
            m(0xa000, 0xb000, b"---p", 7, b"/lib"),
            m(0xb000, 0xc000, b"rw-p", 7, b"/lib"),
            m(0xd000, 0xe000, b"rw-p", 0, b"[stack]"),
        ];
        let found: Vec<_> = stacks(all.into_iter()).collect();
        assert_eq!(found, [(0x2000, 0x8000), (0xd000, 0xe000)]);
        let s = Shared::leaked();
        publish_stacks(&s, found.into_iter());
        assert_eq!(stack_of(&s, 0x7fff), Some((0x2000, 0x8000)));
        assert_eq!(stack_of(&s, 0x8000), None);
        assert_eq!(stack_of(&s, 0xd000), Some((0xd000, 0xe000)));
        s.control().stacks_seq.fetch_or(1, Relaxed);
        assert_eq!(stack_of(&s, 0x7fff), None);
    }
}
