//! The memory that holds the frame of a remote call.
//!
//! There may be somebody else's data below a stack pointer: a thread may be on a fiber, a goroutine's stack or a
//! signal stack, and these lie side by side in one mapping. So the frame is put on a stack only where that is known
//! to reach far enough. Elsewhere it is put behind the code of a mapped file: nobody uses the rest of the last page
//! of a read-only segment, and the kernel only reads a frame.

use crate::process::elf;
use crate::process::elf_file::ElfFile;
use crate::stopped::gadgets::Sigreturn;
use crate::stopped::memory::{WORD, words};
use crate::{RemoteAddr, RemoteMemory};
use goblin::elf::program_header::{PF_W, PT_LOAD};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_arch::native::capture::DESCRIPTOR;
use prof_os::Pid;
use prof_os::maps::Map;

/// Alignment of frames.
const ALIGN: u64 = 64;
/// Maximum number of bytes of a stack that are searched for signs of a signal handler.
const SEARCH: usize = 64 << 10;
/// Upper bound on the size of a thread's descriptor and of what else libc keeps at the end of a thread's stack.
const MOST_TLS: u64 = 1 << 20;

/// The inputs of a search for a place.
pub(crate) struct Finder<'a> {
    pub pid: Pid,
    pub tid: Pid,
    pub mem: &'a RemoteMemory,
    pub maps: &'a [Map],
    pub sigreturn: Sigreturn,
}

/// Memory for a frame.
pub(crate) struct FramePlace {
    /// The lowest address.
    pub low: RemoteAddr,
    /// The bytes that the frame overwrites, which are restored afterwards.
    pub covered: Vec<u8>,
}

impl Finder<'_> {
    /// Finds `need` bytes for a thread with these registers. If they are on its stack, `kept` bytes below the stack
    /// pointer are left free.
    pub(crate) fn find(&self, regs: &UserRegs, kept: u64, need: u64) -> Option<FramePlace> {
        let low = regs.sp().checked_sub(kept + need)? & !(ALIGN - 1);
        if self.reaches(regs, low) {
            // No code uses the memory below the stack pointer, but a debugger's user may look at the remains of a
            // signal handler there. So the memory is restored.
            let covered = self.mem.read_some(RemoteAddr(low), need as usize);
            if covered.len() as u64 == need {
                return Some(FramePlace { low: RemoteAddr(low), covered });
            }
        }
        self.padding(need)
    }

    /// Returns whether the thread's stack is known to reach down to `low`.
    pub(crate) fn reaches(&self, regs: &UserRegs, low: u64) -> bool {
        let sp = regs.sp();
        let inside = sp.checked_sub(1).map(RemoteAddr);
        let Some(m) = inside.and_then(|a| self.maps.iter().find(|m| m.holds(a))) else {
            return false;
        };
        let floor = if self.tid == self.pid && m.name == b"[stack]" {
            Some(m.start.0)
        } else {
            self.descriptor(regs.thread_pointer(), sp).map(|base| base.max(m.start.0))
        };
        m.write && floor.is_some_and(|f| f <= low && low < sp) && !self.may_be_handling(m, sp)
    }

    /// Returns the start of the stack that libc's thread descriptor names, if `sp` is on that stack. The descriptor
    /// holds the stack's start and length side by side, and lies itself at the end of that stack.
    fn descriptor(&self, tp: u64, sp: u64) -> Option<u64> {
        let at = |o: i32| tp.wrapping_add_signed(i64::from(o));
        let (start, end) = (at(DESCRIPTOR.start), at(DESCRIPTOR.end));
        // The end of the searched range need not be mapped.
        let m = self.maps.iter().find(|m| m.holds(RemoteAddr(tp.min(end) & !(WORD as u64 - 1))))?;
        let (start, end) = (start.max(m.start.0), end.min(m.end.0));
        let bytes = self.mem.read_some(RemoteAddr(start), end.checked_sub(start)? as usize);
        let all: Vec<u64> = words(&bytes).collect();
        let page = prof_os::page_size() - 1;
        all.windows(2).find_map(|w| {
            let (base, len) = (w[0], w[1]);
            let top = base.checked_add(len)?;
            let aligned = base & page == 0 && base != 0;
            let holds = base < sp && sp < tp && top >= tp.min(end) && top - tp.min(top) < MOST_TLS;
            (aligned && holds && self.is_one_mapping(base, sp)).then_some(base)
        })
    }

    /// Returns whether `base` is mapped, and `sp` is in a writable mapping. These may be two mappings, since the
    /// guard below a stack may be one of its own.
    fn is_one_mapping(&self, base: u64, sp: u64) -> bool {
        self.maps.iter().any(|m| m.start.0 <= base && base < m.end.0)
            && self.maps.iter().any(|m| m.holds(RemoteAddr(sp)) && m.write)
    }

    /// Returns whether a signal handler may be running, by the restorer's address on the stack. A handler may run on
    /// a signal stack that lies within the thread's own stack.
    fn may_be_handling(&self, m: &Map, sp: u64) -> bool {
        let Sigreturn::Restorer(back) = self.sigreturn else { return false };
        let from = sp & !(WORD as u64 - 1);
        let len = (m.end.0 - from).min(SEARCH as u64) as usize;
        words(&self.mem.read_some(RemoteAddr(from), len)).any(|w| w == back.0)
    }

    /// Finds a place in the rest of a segment's last page.
    fn padding(&self, need: u64) -> Option<FramePlace> {
        let lasting = |m: &&Map| {
            m.offset == 0 && m.read && !m.shared && m.inode != 0 && m.name.starts_with(b"/")
        };
        // The program and its libc come first, since they stay mapped.
        let mut files: Vec<&Map> = self.maps.iter().filter(lasting).collect();
        let program = files.first().map(|m| m.inode);
        files.sort_by_key(|m| {
            let name = m.name.rsplit(|b| *b == b'/').next().unwrap_or_default();
            let libc = name.starts_with(b"libc") || name.starts_with(b"ld-");
            !(libc || Some(m.inode) == program)
        });
        files.into_iter().find_map(|m| self.padding_of(m, need))
    }

    fn padding_of(&self, first: &Map, need: u64) -> Option<FramePlace> {
        let page = prof_os::page_size();
        let head = ElfFile::of_bytes(self.mem.read_some(first.start, 4096))?;
        let loads = head.segments().iter().filter(|s| s.p_type == PT_LOAD);
        let base = loads.clone().find(|s| s.p_offset < page)?;
        let bias = first.start.0.wrapping_sub(base.p_vaddr & !(page - 1));
        let place =
            loads.filter(|s| s.p_flags & PF_W == 0 && s.p_filesz == s.p_memsz).find_map(|s| {
                let end = bias.wrapping_add(s.p_vaddr).checked_add(s.p_memsz)?;
                let low = end.next_multiple_of(ALIGN);
                let last = end.next_multiple_of(page);
                let fits = low.checked_add(need)? <= last;
                let m = self.maps.iter().find(|m| m.holds(RemoteAddr(end - 1)))?;
                let its =
                    m.inode == first.inode && !m.shared && !m.write && m.read && m.end.0 == last;
                (fits && its).then_some((low, m))
            });
        let (low, m) = place?;
        let len = need as usize;
        // The covered bytes are read from the file, because a killed prof's frame may be in memory.
        let own: Vec<Map> = self.maps.iter().filter(|o| o.inode == first.inode).cloned().collect();
        let module = elf::modules(self.mem, &own).into_iter().next();
        let file = module.and_then(|f| f.open(self.pid, self.mem));
        let from_file = file.and_then(|f| {
            let at = m.offset + (low - m.start.0);
            let mut bytes = f.read(at, need.min(f.len().saturating_sub(at)))?;
            bytes.resize(len, 0);
            Some(bytes)
        });
        let covered = from_file.unwrap_or_else(|| self.mem.read_some(RemoteAddr(low), len));
        (covered.len() == len).then_some(FramePlace { low: RemoteAddr(low), covered })
    }
}
