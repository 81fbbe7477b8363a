//! Calls that change the address space or the settings of the allocator, and the files that they map.

use crate::call::{CallKind, RawCall, unpack_prot};
use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

/// A call that changes the address space, or the settings of the allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Function that was called.
    pub kind: CallKind,
    /// Ticks before the call.
    pub begin: Ticks,
    /// Ticks after the call.
    pub end: Ticks,
    /// Address: the result (`mmap`, `mremap`, `shmat`; the argument, if the call has failed), the argument (`munmap`,
    /// `shmdt`, `madvise`, `mprotect`, `prctl`), or the new break (`brk`, `sbrk`).
    pub addr: u64,
    /// Length in bytes, as given, of the new mapping or of the range; that of the segment, as far as the collector has found
    /// it (`shmat`); the pad of `malloc_trim`; the length of the value of `mallctl`. 0 if the call has none, as `brk` and `shmdt`.
    pub len: u64,
    /// Address before `mremap`; the break before `brk` and `sbrk`, 0 if that is unknown.
    pub old_addr: u64,
    /// Length before `mremap`, in bytes, as given.
    pub old_len: u64,
    /// Protection of `mmap` and `mprotect` (`PROT_*`).
    pub prot: u32,
    /// Flags of `mmap`, `mremap` and `shmat`, the advice of `madvise`, the parameter of `mallopt`, the options of
    /// `malloc_info`.
    pub flags: u32,
    /// Descriptor of `mmap` (-1: none), id of `shmat`.
    pub fd: i32,
    /// Offset in the file of `mmap`, in bytes.
    pub offset: u64,
    /// Error number; 0: the call has succeeded.
    pub errno: u16,
    /// Result of `mallopt`, `malloc_trim` and `malloc_info`. `mallctl` returns an error number.
    pub result: u64,
    /// Value that `mallopt` or `mallctl` was given.
    pub value: i64,
    /// Stack node; 0: none.
    pub node: u32,
    /// Number of the file, see [`CallFile`]; 0: none, or not known.
    pub file: u32,
    /// Name that `prctl` has given to the range, or name of the setting of `mallctl`; `mallctlbymib` has the numbers of
    /// the name's parts, as in `0.4096.3`.
    pub name: String,
}

record! {
    /// A mapped file. It precedes the calls that name it.
    CallFile {
        /// Number, from 1 on.
        id: int32,
        /// Device, as `major << 32 | minor`.
        device: int,
        /// Number of the file on the device.
        inode: int,
        /// Path, as the kernel gives it. One that was removed ends in ` (deleted)`.
        path: text,
    }
}

fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

fn unzigzag(v: u64) -> i64 {
    ((v >> 1) as i64) ^ -((v & 1) as i64)
}

impl Call {
    /// Returns the moment at which the call counts: its begin if it only gives memory back, else its end.
    #[must_use]
    pub fn at(&self) -> Ticks {
        if self.kind.is_release() { self.begin } else { self.end }
    }

    /// Returns a call of the ring, with the node's id in the recording, and a name.
    #[must_use]
    pub fn from_raw(raw: &RawCall, node: u32, name: String) -> Self {
        let mut call = Self {
            kind: raw.kind,
            begin: raw.time.wrapping_sub(raw.took),
            end: raw.time,
            addr: raw.addr,
            len: raw.len,
            prot: unpack_prot(raw.prot),
            flags: raw.flags,
            fd: -1,
            errno: raw.errno,
            node,
            name,
            ..Self::default()
        };
        let id = (raw.second as u32).wrapping_sub(1) as i32;
        match raw.kind {
            CallKind::Mmap => (call.offset, call.fd) = (raw.first, id),
            CallKind::Shmat => call.fd = id,
            CallKind::Mremap => (call.old_addr, call.old_len) = (raw.first, raw.second),
            CallKind::Brk | CallKind::Sbrk => call.old_addr = raw.first,
            CallKind::Mallopt => (call.value, call.result) = (unzigzag(raw.first), raw.second),
            CallKind::MallocTrim | CallKind::MallocInfo => call.result = raw.second,
            CallKind::Mallctl | CallKind::MallctlByMib => call.value = unzigzag(raw.first),
            CallKind::Munmap
            | CallKind::Shmdt
            | CallKind::Madvise
            | CallKind::Mprotect
            | CallKind::NameVma => {}
        }
        call
    }

    /// Appends the encoded call; `last` is the end of the call before it in the chunk.
    fn write(&self, w: &mut Writer, last: Ticks) {
        w.int(self.kind as u64);
        w.int(zigzag(self.end.wrapping_since(last) as i64));
        w.int(self.end.wrapping_since(self.begin));
        w.int(self.addr).int(self.len).int(self.old_addr).int(self.old_len);
        w.int(self.prot.into()).int(self.flags.into());
        w.int((i64::from(self.fd) + 1) as u64 & 0xffff_ffff);
        w.int(self.offset).int(self.errno.into()).int(self.result).int(zigzag(self.value));
        w.int(self.node.into()).int(self.file.into()).blob(self.name.as_bytes());
    }

    fn read(r: &mut Reader<'_>, last: Ticks) -> Option<Self> {
        let kind = CallKind::from_number(r.int()?)?;
        let end = last.wrapping_add(unzigzag(r.int()?) as u64);
        let begin = end.wrapping_sub(r.int()?);
        Some(Self {
            kind,
            begin,
            end,
            addr: r.int()?,
            len: r.int()?,
            old_addr: r.int()?,
            old_len: r.int()?,
            prot: r.int32()?,
            flags: r.int32()?,
            fd: r.int32()?.wrapping_sub(1) as i32,
            offset: r.int()?,
            errno: r.int()?.try_into().ok()?,
            result: r.int()?,
            value: unzigzag(r.int()?),
            node: r.int32()?,
            file: r.int32()?,
            name: r.text()?,
        })
    }
}

/// Calls of several threads, each with its thread's number. The calls of a thread are in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Thread number, see [`Thread`](crate::records::Thread), and call.
    pub calls: Vec<(u32, Call)>,
}

impl Calls {
    /// Encodes the payload of a chunk.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.int(self.calls.len() as u64);
        let mut last = Ticks::ZERO;
        for (thread, call) in &self.calls {
            // A length in front, so that a later version may add fields.
            let mut one = Writer::default();
            one.int((*thread).into());
            call.write(&mut one, last);
            w.blob(&one.bytes);
            last = call.end;
        }
        w.bytes
    }

    /// Returns the number of calls in a payload; `None` if it is malformed.
    #[must_use]
    pub fn count(payload: &[u8]) -> Option<u64> {
        Reader::new(payload).int()
    }

    /// Decodes a payload; returns `None` if it is truncated or malformed. Calls of a kind that this version does not
    /// know are left out.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut r = Reader::new(payload);
        let count = r.int()?;
        let (mut all, mut last) = (Self::default(), Ticks::ZERO);
        for _ in 0..count {
            let mut one = Reader::new(r.blob()?);
            let thread = one.int32()?;
            let mut ahead = one;
            let kind = ahead.int()?;
            if CallKind::from_number(kind).is_none() {
                last = last.wrapping_add(unzigzag(ahead.int()?) as u64);
                continue;
            }
            let call = Call::read(&mut one, last)?;
            last = call.end;
            all.calls.push((thread, call));
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn calls_come_back_and_cut_ones_do_not() {
        let mmap = Call {
            kind: CallKind::Mmap,
            begin: Ticks(90),
            end: Ticks(100),
            addr: 0x7f00_0000_0000,
            len: 8192,
            prot: 3,
            flags: 0x22,
            fd: -1,
            errno: 0,
            node: 7,
            ..Call::default()
        };
        let earlier = Call {
            kind: CallKind::Mallopt,
            begin: Ticks(20),
            end: Ticks(30),
            flags: -8i32 as u32,
            value: -5,
            result: 1,
            fd: i32::MAX - 1,
            name: "stack of a worker".into(),
            ..Call::default()
        };
        let all = Calls { calls: vec![(1, mmap), (9, earlier)] };
        let bytes = all.encode();
        assert_eq!(Calls::decode(&bytes), Some(all));
        assert_eq!(Calls::count(&bytes), Some(2));
        for cut in 0..bytes.len() {
            assert_eq!(Calls::decode(&bytes[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn calls_of_unknown_kinds_are_left_out() {
        let known = |end| Call { begin: end, end, fd: -1, ..Call::default() };
        let mut w = Writer::default();
        w.int(3);
        let mut last = Ticks::ZERO;
        for end in [10, 20, 30].map(Ticks) {
            let mut one = Writer::default();
            one.int(1);
            known(end).write(&mut one, last);
            if end == Ticks(20) {
                one.bytes[1] = 99;
            }
            w.blob(&one.bytes);
            last = end;
        }
        let calls = Calls::decode(&w.bytes).expect("calls").calls;
        assert_eq!(calls, [(1, known(Ticks(10))), (1, known(Ticks(30)))]);
    }

    #[test]
    fn releases_count_from_their_begin_on() {
        let call = |kind| Call { kind, begin: Ticks(1), end: Ticks(2), ..Call::default() };
        assert_eq!(call(CallKind::Munmap).at(), Ticks(1));
        assert_eq!(call(CallKind::Mmap).at(), Ticks(2));
    }
}
