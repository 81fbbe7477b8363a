//! Decodes the records of programs.

use super::layout::*;
use prof_os::Pid;
use prof_trace::ticks::Ticks;

/// A record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    /// Index of the tracepoint.
    pub tracepoint: usize,
    /// Order of pages that are freed, or number of a known stack.
    pub number: u32,
    /// `CLOCK_MONOTONIC`, in ns.
    pub time: Ticks,
    pub address: u64,
    /// Size in bytes or order of pages; 0 for a free.
    pub size: u64,
    pub pid: Pid,
    pub tid: Pid,
    /// The stack, if the program could not say its number alone.
    pub whole: Option<Whole<'a>>,
}

/// A stack that the kernel has unwound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole<'a> {
    /// The word by which its first node is found.
    pub first: u64,
    /// Name of the slab cache; empty: none.
    pub cache: &'a [u8],
    /// The return addresses, innermost first.
    pub frames: &'a [[u8; 8]],
    /// The stack's memory from the program's frame on; empty: not told.
    pub memory: &'a [[u8; 8]],
    /// Address of that memory.
    pub base: u64,
}

/// Decodes a record; `None` if it is damaged.
#[inline]
pub(super) fn decode(record: &[u8]) -> Option<Record<'_>> {
    let (words, _) = record.as_chunks::<8>();
    let word = |offset: i16| words.get(offset as usize / 8).map(|w| u64::from_ne_bytes(*w));
    let tag = word(TAG)?;
    let is_alloc = record.len() >= ALLOC_LENGTH as usize;
    let thread = if is_alloc { word(THREAD)? } else { 0 };
    Some(Record {
        tracepoint: tag as u32 as usize,
        number: (tag >> 32) as u32,
        time: Ticks(word(TIME)?),
        address: word(ADDRESS)?,
        size: if is_alloc { word(SIZE)? } else { 0 },
        pid: Pid::from_u32((thread >> 32) as u32),
        tid: Pid::from_u32(thread as u32),
        whole: if record.len() > ALLOC_LENGTH as usize {
            Some(whole(record, words)?)
        } else {
            None
        },
    })
}

fn whole<'a>(record: &'a [u8], words: &'a [[u8; 8]]) -> Option<Whole<'a>> {
    let word = |offset: i16| words.get(offset as usize / 8).map(|w| u64::from_ne_bytes(*w));
    let count = |offset: i16| Some(usize::try_from(word(offset)?).ok()? / 8);
    let name = record.get(NAME as usize..FRAME as usize)?;
    let rest = words.get(FRAMES as usize / 8..)?;
    let (frames, memory) = rest.split_at_checked(count(FRAMES_BYTES)?)?;
    Some(Whole {
        first: word(FIRST)?,
        cache: &name[..name.iter().position(|b| *b == 0).unwrap_or(name.len())],
        frames,
        base: word(FRAME)?,
        memory: memory.get(..count(RAW_BYTES)?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    #[test]
    fn records_are_decoded_and_cut_ones_are_not() {
        let free = bytes(&[1000, 0x5000, 3 | 2 << 32]);
        let r = decode(&free).expect("a free");
        assert_eq!((r.tracepoint, r.number, r.time, r.address), (3, 2, Ticks(1000), 0x5000));
        assert!(r.whole.is_none() && decode(&free[..16]).is_none());
        let mut alloc = bytes(&[1000, 0x5000, 1 | 7 << 32, 64, 5 << 32 | 6]);
        let r = decode(&alloc).expect("an allocation");
        assert_eq!((r.number, r.size, r.pid.as_raw(), r.tid.as_raw()), (7, 64, 5, 6));
        alloc.extend(bytes(&[9, 16, 8]));
        let mut name = *b"filp\0xyz";
        alloc.extend_from_slice(&name);
        name.fill(b'n');
        (0..7).for_each(|_| alloc.extend_from_slice(&name));
        alloc.extend(bytes(&[100, 200, 300]));
        let w = decode(&alloc).and_then(|r| r.whole).expect("a stack");
        assert_eq!((w.first, w.cache, w.frames.len(), w.memory.len()), (9, &b"filp"[..], 2, 1));
        assert_eq!(u64::from_ne_bytes(w.memory[0]), 300);
        for cut in ALLOC_LENGTH as usize + 1..alloc.len() {
            assert!(decode(&alloc[..cut]).is_none(), "{cut}");
        }
        for offset in [FRAMES_BYTES as usize, RAW_BYTES as usize] {
            let mut wrong = alloc.clone();
            wrong[offset..offset + 8].fill(0xff);
            assert!(decode(&wrong).is_none());
        }
    }
}
