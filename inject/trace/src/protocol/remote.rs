//! Reads the control page of a recording by any build of prof, in the memory of another process.
//!
//! The process may have written anything into the page. All counts and lengths are therefore bounded, and an entry whose
//! fields lie outside of it is left out.

use super::{MOST, Memory, entry};
use crate::shared::{FunctionFields, Header, LAYOUT, Slot, SlotFields, Table, set_bits};
use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

/// Upper bound on the bytes that are read at once.
const LONGEST: usize = 64 << 10;
/// Upper bound on the length of the recording's path.
const PATH: u32 = 4096;
/// Upper bound on the bytes of a patch.
const PATCH: usize = 64;
/// Upper bound on the bytes of a thread slot that are read.
const SLOT: usize = 4096;

/// Reads the start of the control page at address `page`.
///
/// # Errors
/// If the memory can't be read.
pub fn header<M: Memory>(mem: &M, page: u64) -> Result<Box<Header>, M::Error> {
    let mut b = Box::<Header>::new_uninit();
    // SAFETY: `write_bytes` initialises all bytes of the box, and only those are written to. Any values are valid, as all
    // fields are integers and atomics.
    unsafe {
        b.as_mut_ptr().write_bytes(0, 1);
        let bytes =
            std::slice::from_raw_parts_mut(b.as_mut_ptr().cast::<u8>(), size_of::<Header>());
        mem.read(page, bytes)?;
        Ok(b.assume_init())
    }
}

/// The control page at an address in another process.
#[derive(Debug)]
pub struct Page<'a, M> {
    mem: &'a M,
    at: u64,
    header: &'a Header,
}

impl<'a, M: Memory> Page<'a, M> {
    /// Makes access to the page at address `at`, of which [`header`] has read the start.
    pub fn new(mem: &'a M, at: u64, header: &'a Header) -> Self {
        Self { mem, at, header }
    }

    /// Reads a part of the shared memory; `None` if it can't be read as a whole.
    pub fn bytes(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len.min(LONGEST)];
        self.mem.read(self.at.checked_add(offset)?, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns the recording's path; empty if it can't be read.
    pub fn path(&self) -> Vec<u8> {
        self.bytes(self.header.path_at, self.header.path_len.min(PATH) as usize).unwrap_or_default()
    }

    /// Returns the hooked functions.
    pub fn functions(&self) -> impl Iterator<Item = HookedFunction> {
        let table = self.header.function_table;
        let count = self.header.functions.load(Relaxed).min(table.count).min(MOST);
        (0..count).filter_map(move |i| self.function_at(self.at.checked_add(entry(table, i)?)?))
    }

    /// Returns the hooked function whose entry is at an address.
    pub fn function_at(&self, at: u64) -> Option<HookedFunction> {
        let mut bytes = vec![0; (self.header.function_table.stride as usize).min(LONGEST)];
        self.mem.read(at, &mut bytes).ok()?;
        HookedFunction::of(&self.header.function_fields, at, &bytes)
    }

    /// Returns the thread slots that were ever taken.
    pub fn slots(&self) -> impl Iterator<Item = ThreadSlot> {
        let (used, table) = (self.header.slots_used_table, self.header.slot_table);
        let words = self.bytes(used.at, (used.count.min(MOST) as usize).saturating_mul(8));
        let words = words.unwrap_or_default();
        let words: Vec<u64> =
            words.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
        let taken = set_bits(words.into_iter()).take_while(move |i| *i < table.count as usize);
        taken.filter_map(move |i| self.slot(table, i))
    }

    fn slot(&self, table: Table, index: usize) -> Option<ThreadSlot> {
        let f = &self.header.slot_fields;
        let own = self.header.layout == LAYOUT;
        let abandoned = own.then_some(offset_of!(Slot, abandoned) as u32);
        let fields = [f.tp, f.state, f.busy_sp, f.inner_sp, f.events, f.lost];
        let end = (fields.into_iter().chain(abandoned).max()? as usize).saturating_add(8);
        let bytes = self.bytes(entry(table, u32::try_from(index).ok()?)?, end.min(SLOT))?;
        ThreadSlot::of(f, abandoned, &bytes)
    }
}

fn u32_at(bytes: &[u8], at: u32) -> Option<u32> {
    bytes.get(at as usize..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

fn u64_at(bytes: &[u8], at: u32) -> Option<u64> {
    bytes.get(at as usize..)?.first_chunk().map(|b| u64::from_ne_bytes(*b))
}

/// A hooked function, as far as all builds describe it alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookedFunction {
    /// The function's number in [`Kind`](crate::shared::Kind) of the build that has attached.
    pub kind: u32,
    /// Address of the word that tells whether the patch is in the code.
    pub patched_at: u64,
    /// Whether the patch is in the code.
    pub is_patched: bool,
    /// Address of the patched bytes.
    pub patch_addr: u64,
    /// The bytes before the patch.
    pub old_bytes: Vec<u8>,
    /// The bytes of the patch, which are as many.
    pub new_bytes: Vec<u8>,
    /// The function's name and the path of its module, separated by a NUL.
    pub text: Vec<u8>,
}

impl HookedFunction {
    /// Reads an entry of the function table, which is at address `at`.
    fn of(f: &FunctionFields, at: u64, bytes: &[u8]) -> Option<Self> {
        let len = (u32_at(bytes, f.patch_len)?.min(f.bytes) as usize).min(PATCH);
        let part = |offset: u32| bytes.get(offset as usize..)?.get(..len);
        let text = bytes.get(f.name as usize..)?;
        Some(Self {
            kind: u32_at(bytes, f.kind)?,
            patched_at: at.wrapping_add(u64::from(f.patched)),
            is_patched: u32_at(bytes, f.patched)? != 0,
            patch_addr: u64_at(bytes, f.patch_addr)?,
            old_bytes: part(f.old_bytes)?.to_vec(),
            new_bytes: part(f.new_bytes)?.to_vec(),
            text: text.get(..f.name_len as usize).unwrap_or(text).to_vec(),
        })
    }
}

/// A thread slot, as far as all builds describe it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSlot {
    /// The thread pointer.
    pub tp: u64,
    /// Whether a thread owns the slot.
    pub is_live: bool,
    /// The stack pointers with which the thread entered the hook; 0 if it is not in the hook.
    pub inside: [u64; 2],
    /// [`Slot::abandoned`]; 0 if another build has attached.
    pub abandoned: u64,
    /// Number of events that the thread has written.
    pub events: u64,
    /// Number of events that the thread has lost.
    pub lost: u64,
}

impl ThreadSlot {
    fn of(f: &SlotFields, abandoned: Option<u32>, bytes: &[u8]) -> Option<Self> {
        let word = |offset: u32| u64_at(bytes, offset);
        Some(Self {
            tp: word(f.tp)?,
            is_live: u32_at(bytes, f.state)? & f.mask == f.live,
            inside: [word(f.busy_sp)?, word(f.inner_sp)?],
            abandoned: abandoned.map_or(Some(0), word)?,
            events: word(f.events).unwrap_or(0),
            lost: word(f.lost).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{Control, Kind, Shared};

    /// The memory of a test's ring, as another process has it at address 0.
    struct Copied(Vec<u8>);

    impl Memory for Copied {
        type Error = ();

        fn read(&self, at: u64, to: &mut [u8]) -> Result<(), ()> {
            let from = self.0.get(at as usize..).and_then(|b| b.get(..to.len())).ok_or(())?;
            to.copy_from_slice(from);
            Ok(())
        }
    }

    fn copied(s: &Shared) -> Copied {
        let len = Shared::function_offset(2).max(Shared::slot_offset(8));
        // SAFETY: the memory is longer, and nobody writes to it now.
        Copied(unsafe { std::slice::from_raw_parts(s.base(), len) }.to_vec())
    }

    fn ring() -> Shared<'static> {
        let s = Shared::leaked();
        // SAFETY: the memory is new.
        let (c, f) = unsafe { (s.control_mut(), s.function_mut(0).expect("a function")) };
        c.begin(64, "test", b"prof");
        c.set_path(b"/r.prof");
        c.functions.store(1, Relaxed);
        (f.kind, f.patch_len, f.patch_addr) = (Kind::Free as u32, 2, 0x1234);
        f.old_bytes[..2].copy_from_slice(&[1, 2]);
        f.new_bytes[..2].copy_from_slice(&[3, 4]);
        f.name[..9].copy_from_slice(b"free\0libc");
        let slot = s.slot(3).expect("a slot");
        s.note_slot(3);
        slot.tp.store(7, Relaxed);
        slot.state.store(crate::shared::slot::LIVE, Relaxed);
        slot.inner_sp.store(99, Relaxed);
        slot.events.store(5, Relaxed);
        slot.lost.store(6, Relaxed);
        slot.abandoned.store(8, Relaxed);
        s
    }

    #[test]
    fn a_page_is_read_from_outside() {
        let mem = copied(&ring());
        let h = header(&mem, 0).expect("a header");
        let page = Page::new(&mem, 0, &h);
        assert_eq!(page.path(), b"/r.prof");
        let f: Vec<_> = page.functions().collect();
        assert_eq!(f.len(), 1);
        assert_eq!((f[0].kind, f[0].patch_addr), (Kind::Free as u32, 0x1234));
        assert_eq!((&f[0].old_bytes[..], &f[0].new_bytes[..]), (&[1, 2][..], &[3, 4][..]));
        assert!(f[0].text.starts_with(b"free\0libc\0") && !f[0].is_patched);
        let slots: Vec<_> = page.slots().collect();
        let expected =
            ThreadSlot { tp: 7, is_live: true, inside: [0, 99], abandoned: 8, events: 5, lost: 6 };
        assert_eq!(slots, [expected]);
    }

    #[test]
    fn numbers_that_the_target_made_up_lead_nowhere() {
        let s = ring();
        // SAFETY: nobody else uses the memory.
        let c: &mut Control = unsafe { s.control_mut() };
        c.functions.store(u32::MAX, Relaxed);
        c.function_table.count = u32::MAX;
        c.function_fields.old_bytes = u32::MAX;
        c.slot_fields.tp = u32::MAX;
        c.slots_used_table.count = u32::MAX;
        (c.path_at, c.path_len) = (u64::MAX, u32::MAX);
        let mem = copied(&s);
        let h = header(&mem, 0).expect("a header");
        let page = Page::new(&mem, 0, &h);
        assert!(page.path().is_empty());
        assert_eq!(page.functions().count() + page.slots().count(), 0);
        // A stride that leads out of the memory.
        c.function_table.stride = u32::MAX;
        let mem = copied(&s);
        let h = header(&mem, 0).expect("a header");
        assert_eq!(Page::new(&mem, u64::MAX, &h).functions().count(), 0);
    }
}
