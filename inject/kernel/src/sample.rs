//! Decodes records of a ring.

use crate::tracepoints::Tracepoint;
use prof_os::Pid;
use prof_trace::ticks::Ticks;

const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_FORK: u32 = 7;
pub(crate) const RECORD_SAMPLE: u32 = 9;

/// Addresses from here on are no frames, but say whose the next ones are.
const CONTEXT: u64 = -4095i64 as u64;

/// An allocation or a free as the kernel reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    /// Index of its tracepoint.
    pub tracepoint: usize,
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Pid,
    /// `CLOCK_MONOTONIC`, in ns.
    pub time: Ticks,
    /// The kernel's stack as 8 bytes for each return address, innermost first; empty for a free.
    pub stack: &'a [[u8; 8]],
    /// The tracepoint's fields.
    pub raw: &'a [u8],
}

/// A record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Record<'a> {
    /// An allocation or a free.
    Sample(Sample<'a>),
    /// Number of samples that were lost.
    Lost(u64),
    /// A thread has a new name.
    Name(Pid, &'a [u8]),
    /// A thread has made another one: the new one, and its maker.
    Fork(Pid, Pid),
}

/// The tracepoint of an event, by the number that its samples carry.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    first: u64,
    indices: Vec<u8>,
}

impl Numbers {
    const NONE: u8 = u8::MAX;
    /// Numbers are given one after the other, so that they are close to each other.
    const SPAN: u64 = 1 << 24;

    /// Adds a number; returns false if it is too far from the first.
    pub(crate) fn add(&mut self, number: u64, tracepoint: usize) -> bool {
        if self.indices.is_empty() {
            self.first = number;
        }
        let Some(at) = number.checked_sub(self.first).filter(|at| *at < Self::SPAN) else {
            return false;
        };
        let at = at as usize;
        if self.indices.len() <= at {
            self.indices.resize(at + 1, Self::NONE);
        }
        self.indices[at] = tracepoint as u8;
        true
    }

    #[inline]
    fn get(&self, number: u64) -> Option<usize> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.indices.get(at).filter(|i| **i != Self::NONE).map(|i| usize::from(*i))
    }
}

/// Decodes a record; `None` if it is of another kind, or malformed.
#[inline]
pub(crate) fn decode<'a>(
    kind: u32,
    body: &'a [u8],
    numbers: &Numbers,
    tracepoints: &[Tracepoint],
) -> Option<Record<'a>> {
    let (words, _) = body.as_chunks::<8>();
    let word = |i: usize| words.get(i).map(|w| u64::from_ne_bytes(*w));
    let ids = |i: usize| {
        let [a, b, c, d, e, f, g, h] = *words.get(i)?;
        Some((
            Pid::from_raw(i32::from_ne_bytes([a, b, c, d])),
            Pid::from_raw(i32::from_ne_bytes([e, f, g, h])),
        ))
    };
    match kind {
        RECORD_SAMPLE => {
            let tracepoint = numbers.get(word(0)?)?;
            let ((pid, tid), time) = (ids(1)?, word(2)?);
            let (mut at, mut stack) = (3, &words[..0]);
            if tracepoints[tracepoint].is_alloc {
                let n = usize::try_from(word(3)?).ok()?;
                stack = words.get(4..4usize.checked_add(n)?)?;
                at = 4 + n;
            }
            let [a, b, c, d, ..] = *words.get(at)?;
            let len = u32::from_ne_bytes([a, b, c, d]) as usize;
            let raw = body.get(at * 8 + 4..)?.get(..len)?;
            Some(Record::Sample(Sample { tracepoint, pid, tid, time: Ticks(time), stack, raw }))
        }
        RECORD_LOST => Some(Record::Lost(word(1)?)),
        RECORD_COMM => {
            let (_, tid) = ids(0)?;
            let name = body.get(8..)?;
            Some(Record::Name(tid, &name[..name.iter().position(|b| *b == 0)?]))
        }
        RECORD_FORK => {
            let ((_, _), (tid, by)) = (ids(0)?, ids(1)?);
            Some(Record::Fork(tid, by))
        }
        _ => None,
    }
}

/// Returns the return addresses of a stack, without the marks between them.
#[inline]
pub(crate) fn addresses(stack: &[[u8; 8]]) -> impl Iterator<Item = u64> {
    stack.iter().map(|a| u64::from_ne_bytes(*a)).filter(|a| *a < CONTEXT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Field;
    use crate::live::Kind;

    fn point(is_alloc: bool) -> Tracepoint {
        Tracepoint {
            name: "kmem:kmalloc",
            id: 1,
            kind: Kind::Slab,
            is_alloc,
            address: Field { offset: 8, size: 8 },
            size: None,
            size_name: "",
            cache: None,
        }
    }

    #[test]
    fn samples_are_decoded_and_cut_ones_are_not() {
        let points = [point(true), point(false)];
        let mut numbers = Numbers::default();
        assert!(numbers.add(70, 0) && numbers.add(72, 1));
        assert!(!numbers.add(3, 0) && !numbers.add(1 << 40, 0));
        let mut body = Vec::new();
        for w in [70, 5 | 6 << 32, 1000, 3, -128i64 as u64, 0xffff_ffff_8100_0000, 7] {
            body.extend_from_slice(&u64::to_ne_bytes(w));
        }
        body.extend_from_slice(&20u32.to_ne_bytes());
        body.extend_from_slice(&[0; 8]);
        body.extend_from_slice(&99u64.to_ne_bytes());
        body.extend_from_slice(&[0; 4]);
        let Some(Record::Sample(s)) = decode(RECORD_SAMPLE, &body, &numbers, &points) else {
            panic!("no sample")
        };
        if cfg!(target_endian = "little") {
            assert_eq!((s.pid.as_raw(), s.tid.as_raw()), (5, 6));
        }
        assert_eq!((s.tracepoint, s.time, s.raw.len()), (0, Ticks(1000), 20));
        assert_eq!(points[0].address.int(s.raw), 99);
        let all: Vec<u64> = addresses(s.stack).collect();
        assert_eq!(all, [0xffff_ffff_8100_0000, 7]);
        for cut in 0..body.len() - 3 {
            assert!(decode(RECORD_SAMPLE, &body[..cut], &numbers, &points).is_none(), "{cut}");
        }
        body[..8].copy_from_slice(&71u64.to_ne_bytes());
        assert!(decode(RECORD_SAMPLE, &body, &numbers, &points).is_none(), "an unknown event");
    }
}
