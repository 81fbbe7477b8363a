//! Knows stacks again without unwinding them.
//!
//! To unwind a stack takes the kernel 2 µs. But where a return address lies on the stack follows from the return address
//! before it alone, as a function takes the same room at each of its calls from one place. So a program can go from one
//! return address to the next by a table, and needs some nanoseconds for each. The table is filled from stacks that the
//! kernel has unwound, together with a copy of the stack's memory.
//!
//! Some functions take different room at different times: to align it, or as the kernel's entry for system calls does, to
//! make addresses unpredictable. They are noticed as soon as the distance differs. They have a frame pointer, which the
//! function that they call keeps on the stack: then the way to the next return address goes by that word. Or the next
//! one is the last of the stack, and its distance from the stack's end is the same. If neither is so, or turns out not to
//! be always so, no stack goes by the table through that function.
//!
//! A stack is known only if each return address on the way is in the table as a caller of those before it, and if the
//! last one lies exactly as far from the stack's end as it did. Stacks on which an exception lies between two functions
//! are never known. And some of the known stacks are unwound, too, and compared.

use super::layout::*;
use crate::live::Map;
use crate::names::Names;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The settings and the table, as programs read them.
#[derive(Debug)]
pub(super) struct Table(*mut u8);

// SAFETY: the mapping is of the process, and only this value refers to it.
unsafe impl Send for Table {}

impl Table {
    /// Maps the array that has them.
    pub(super) fn map(array: &OwnedFd) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address, so that no other mapping is touched.
        let base = unsafe {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), TABLE, both, libc::MAP_SHARED, array.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self(base.cast()))
        }
    }

    /// Makes one that no program reads.
    #[cfg(test)]
    fn plain() -> Self {
        // SAFETY: the kernel chooses the address, so that no other mapping is touched.
        let base = unsafe {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), TABLE, both, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self(base.cast())
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= TABLE);
        // SAFETY: the mapping has `TABLE` bytes as long as `self` lives, and offsets are multiples of 8.
        unsafe { &*self.0.add(offset).cast::<AtomicU64>() }
    }

    /// Sets a setting.
    pub(super) fn set(&self, setting: i16, value: u64) {
        self.word(setting as usize).store(value, Ordering::Relaxed);
    }

    fn entry(&self, index: usize, field: i16) -> &AtomicU64 {
        self.word(SETTINGS + index * ENTRY + field as usize)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, to which nothing refers any more.
        unsafe { libc::munmap(self.0.cast(), TABLE) };
    }
}

/// Which addresses may be where on a stack.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// Functions that the kernel is entered by. They stand at the end of a stack, or where an exception lies.
    entries: Vec<(u64, u64)>,
    /// Functions at which threads of the kernel begin.
    starts: Vec<(u64, u64)>,
    /// Functions between the one with the tracepoint and the program.
    inner: Vec<(u64, u64)>,
}

/// Most frames between a program and the function with the tracepoint.
const INNER: usize = 8;

impl Places {
    /// Finds them by name.
    pub(super) fn new(names: &Names) -> Self {
        let starts = |name: &str| name.starts_with("ret_from_fork");
        let inner = |name: &str| {
            ["bpf_trace_run", "__bpf_trace_", "__traceiter_"].iter().any(|p| name.starts_with(p))
        };
        Self {
            entries: names.between("__entry_text_start", "__entry_text_end").into_iter().collect(),
            starts: names.ranges(starts),
            inner: names.ranges(inner),
        }
    }

    /// Returns a stack without the program's own frames.
    pub(super) fn trim<'a>(&self, frames: &'a [[u8; 8]]) -> &'a [[u8; 8]] {
        let near = &frames[..frames.len().min(INNER)];
        let last = near.iter().rposition(|a| is_in(&self.inner, u64::from_ne_bytes(*a)));
        &frames[last.map_or(0, |i| i + 1)..]
    }

    /// Returns whether a stack can be known: one without exceptions that ends where stacks end.
    fn fits(&self, frames: &[u64]) -> bool {
        let Some((last, others)) = frames.split_last() else { return false };
        frames.len() < DEPTH as usize
            && !frames.contains(&0)
            && !others.iter().any(|a| is_in(&self.entries, *a))
            && (is_in(&self.entries, *last) || is_in(&self.starts, *last))
    }
}

/// Returns whether a return address is in one of these functions, which are in the order of their addresses: it lies
/// behind the call, possibly in the next one.
fn is_in(ranges: &[(u64, u64)], address: u64) -> bool {
    let before = ranges.partition_point(|(start, _)| *start < address);
    before.checked_sub(1).is_some_and(|i| address <= ranges[i].1)
}

/// The copy of a stack's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory<'a> {
    /// Address of the first word.
    pub base: u64,
    pub words: &'a [[u8; 8]],
}

impl Memory<'_> {
    fn get(self, at: usize) -> Option<u64> {
        self.words.get(at).map(|w| u64::from_ne_bytes(*w))
    }

    /// Follows a way from the word `at`. Returns the number of the word where it leads.
    fn follow(self, at: usize, way: u32) -> Option<usize> {
        let words = (way & DISTANCE) as usize / 8;
        if way & BY_WORD != 0 {
            let pointer = self.get(at.checked_sub(words)?)?;
            let bytes = pointer.checked_sub(self.base)?;
            usize::try_from(bytes / 8 + 1).ok()
        } else if way & FROM_END != 0 {
            self.words.len().checked_sub(words)
        } else {
            Some(at + words)
        }
    }

    /// Finds the only word of a value above `at`.
    fn only(self, at: usize, value: u64) -> Option<usize> {
        let mut places = (at + 1..self.words.len()).filter(|i| self.get(*i) == Some(value));
        // Another may be an old one, or that of a function that calls itself.
        places.next().filter(|_| places.next().is_none())
    }

    /// Finds the only word between two that points to the one below `to`, as the frame pointer does that a function
    /// keeps for its caller. Returns the way from `at` by it.
    fn pointer(self, below: usize, at: usize, to: usize) -> Option<u32> {
        let wanted = self.base + to as u64 * 8 - 8;
        let mut places = (below + 1..at).filter(|i| self.get(*i) == Some(wanted));
        let place = places.next().filter(|_| places.next().is_none())?;
        Some(BY_WORD | ((at - place) as u32 * 8))
    }
}

/// The known stacks.
#[derive(Debug)]
pub(super) struct Memo {
    pub table: Table,
    pub places: Places,
    /// Index of the entry, by the node of the frames before and the address.
    entries: Map<(u32, u64), usize>,
    /// The address of each node, whose first one has none.
    nodes: Vec<u64>,
    /// The way from a return address to the next one, by the one before and itself, and how often it was another one.
    ways: Map<(u64, u64), (u32, u32)>,
    /// Distance from the last return address of a stack to the stack's end; 0: not always the same.
    ends: Map<u64, u32>,
    /// What the ways of steps may be that are not known so far.
    candidates: Map<(u64, u64), Candidates>,
    /// How often a stack could not be learned.
    failures: Map<u32, u32>,
}

/// Number of times after which a stack is tried to be learned more seldom, and of those that a way may turn out to be
/// another one.
const TRIES: u32 = 256;

/// What the distance of a step may be.
#[derive(Debug)]
struct Candidates {
    /// Distances in words that have been possible each time.
    distances: Vec<usize>,
    /// Some of the return addresses that came next.
    callers: Vec<u64>,
}

/// Number of callers of a function for all of which several distances are possible, until the farthest one is known to be
/// right.
const CALLERS: usize = 4;

impl Memo {
    /// Begins with no stacks.
    pub(super) fn new(table: Table, places: Places) -> Self {
        let (entries, ways, ends) = (Map::default(), Map::default(), Map::default());
        Self {
            table,
            places,
            entries,
            nodes: vec![0],
            ways,
            ends,
            candidates: Map::default(),
            failures: Map::default(),
        }
    }

    /// Lets programs use the table, and tell what it lacks. All must run before: with another number of programs at a
    /// tracepoint, the kernel has other frames between it and them.
    pub(super) fn begin(&self) {
        self.table.set(USES_TABLE, 1);
        self.table.set(LEARNS, 1);
    }

    /// Makes programs unwind every stack from now on.
    pub(super) fn give_up(&self) {
        self.table.set(USES_TABLE, 0);
        self.table.set(LEARNS, 0);
    }

    /// Learns a stack that was unwound. `first` is the word by which its first node is found, and `number` what programs
    /// then tell. Returns whether it is known now.
    pub(super) fn learn(
        &mut self,
        first: u64,
        frames: &[u64],
        memory: Memory<'_>,
        number: u32,
    ) -> bool {
        if first == 0 || number == u32::MAX || !self.places.fits(frames) {
            return false;
        }
        let failures = self.failures.get(&number).copied().unwrap_or(0);
        // Other stacks may have told meanwhile what this one lacks.
        let is_tried = failures < TRIES || failures.is_multiple_of(TRIES);
        let end = is_tried.then(|| self.walk(first, frames, memory)).flatten();
        let is_known = end.is_some_and(|end| self.add(first, frames, number, end).is_some());
        if !is_known {
            self.failures.insert(number, failures.saturating_add(1));
        }
        is_known
    }

    /// Finds the return addresses in the stack's memory, and notes the ways between them. Returns the distance from the
    /// last one to the stack's end in bytes; `None` if a place is not certain.
    fn walk(&mut self, first: u64, frames: &[u64], memory: Memory<'_>) -> Option<u32> {
        let (mut step, mut below, mut at) = ((0, first), 0, 0);
        for (i, address) in frames.iter().enumerate() {
            let is_last = i + 1 == frames.len();
            let end = self.ends.get(address).filter(|e| is_last && **e != 0);
            let by_end = end.and_then(|e| memory.words.len().checked_sub(*e as usize / 8));
            let find = || {
                let to = by_end.or_else(|| memory.only(at, *address))?;
                (to > at && memory.get(to) == Some(*address)).then_some(to)
            };
            let to = match self.ways.get(&step).copied() {
                Some((0, _)) => return None,
                None => {
                    let distance = by_end.map(|to| to - at);
                    let distance = distance.or_else(|| self.distance(step, memory, at, *address));
                    let to = at + distance?;
                    self.ways.insert(step, ((to - at) as u32 * 8, 0));
                    to
                }
                Some((way, others)) => match memory.follow(at, way) {
                    Some(to) if memory.get(to) == Some(*address) => to,
                    _ => {
                        let to = find();
                        let other = to.and_then(|to| match is_last {
                            true => Some(FROM_END | ((memory.words.len() - to) as u32 * 8)),
                            false => memory.pointer(below, at, to),
                        });
                        let new = if others < TRIES { other.unwrap_or(way) } else { 0 };
                        self.ways.insert(step, (new, others + 1));
                        self.change(step, new);
                        other.and(to)?
                    }
                },
            };
            (step, below, at) = ((step.1, *address), at, to);
        }
        let from = step.1;
        let end = (memory.words.len() - at) as u32 * 8;
        match *self.ends.entry(from).or_insert(end) {
            known if known == end => Some(end),
            0 => None,
            _ => {
                self.ends.insert(from, 0);
                for ((_, _), index) in self.entries.iter().filter(|((_, a), _)| *a == from) {
                    self.table.entry(*index, ENTRY_END).store(0, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// Finds the distance of a step from an address to the next one in words: it is among those to all words of that value.
    /// Some of these are old ones, which differ from stack to stack, and some are copies that the function itself keeps
    /// of its return address, which lie below it.
    fn distance(
        &mut self,
        step: (u64, u64),
        memory: Memory<'_>,
        at: usize,
        next: u64,
    ) -> Option<usize> {
        let is = |distance: &usize| memory.get(at + distance) == Some(next);
        let c = self.candidates.entry(step).or_insert_with(|| Candidates {
            distances: (1..memory.words.len() - at).filter(is).collect(),
            callers: Vec::new(),
        });
        c.distances.retain(is);
        if c.callers.len() < CALLERS && !c.callers.contains(&next) {
            c.callers.push(next);
        }
        match *c.distances {
            // It is not always the same: this is one of them.
            [] => {
                self.candidates.remove(&step);
                memory.only(at, next).map(|to| to - at)
            }
            [one] => Some(one),
            [.., farthest] => (c.callers.len() == CALLERS).then_some(farthest),
        }
    }

    /// Changes the way of a step in all entries.
    fn change(&self, step: (u64, u64), way: u32) {
        let is_of = |(parent, address): (u32, u64)| {
            (self.nodes.get(parent as usize), address) == (Some(&step.0), step.1)
        };
        for (_, index) in self.entries.iter().filter(|(e, _)| is_of(**e)) {
            let word = self.table.entry(*index, ENTRY_NEXT);
            let node = word.load(Ordering::Relaxed) as u32;
            word.store(u64::from(way) << 32 | u64::from(node), Ordering::Relaxed);
        }
    }

    /// Puts a stack into the table; `None` if it is full.
    fn add(&mut self, first: u64, frames: &[u64], number: u32, end: u32) -> Option<()> {
        let (last, others) = frames.split_last()?;
        let mut node = 0;
        for address in [first].iter().chain(others) {
            let index = self.entry(node, *address)?;
            let word = self.table.entry(index, ENTRY_NEXT);
            let before = *self.nodes.get(node as usize)?;
            let way = u64::from(self.ways.get(&(before, *address))?.0);
            node = word.load(Ordering::Relaxed) as u32;
            word.store(way << 32 | u64::from(node), Ordering::Release);
        }
        let index = self.entry(node, *last)?;
        let value = u64::from(end) << 32 | (u64::from(number) + 1);
        self.table.entry(index, ENTRY_END).store(value, Ordering::Release);
        Some(())
    }

    /// Returns the index of an entry, which is made if there is none; `None` if there is no room.
    fn entry(&mut self, parent: u32, address: u64) -> Option<usize> {
        if let Some(index) = self.entries.get(&(parent, address)) {
            return Some(*index);
        }
        let start = place(parent, address);
        let is_free = |i: &usize| self.table.entry(*i, ENTRY_ADDRESS).load(Ordering::Relaxed) == 0;
        let index = (start..start + PROBES).find(is_free)?;
        let node = self.nodes.len() as u64;
        self.nodes.push(address);
        self.table.entry(index, ENTRY_PARENT).store(parent.into(), Ordering::Relaxed);
        self.table.entry(index, ENTRY_NEXT).store(node, Ordering::Relaxed);
        // Programs look at the rest behind the address alone.
        self.table.entry(index, ENTRY_ADDRESS).store(address, Ordering::Release);
        self.entries.insert((parent, address), index);
        if self.entries.len() > ENTRIES / 4 * 3 {
            self.table.set(LEARNS, 0);
        }
        Some(index)
    }
}

#[cfg(test)]
impl Memo {
    /// Gives each known stack the number of another one.
    pub(super) fn spoil(&self) {
        for index in self.entries.values() {
            let word = self.table.entry(*index, ENTRY_END);
            let end = word.load(Ordering::Relaxed);
            if end != 0 {
                word.store(end & !0xffff_ffff | 1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Names;

    const TEXT: &str = "1000 T __entry_text_start\n1100 T entry\n1800 T __entry_text_end\n\
        2000 T a\n2100 T b\n2200 T c\n2300 T __traceiter_x\n2400 T bpf_trace_run2\n2500 T end\n";
    const BASE: u64 = 0xffff_c900_0000_0000;

    fn memo() -> Memo {
        let array = Table::plain();
        Memo::new(array, Places::new(&Names::parse(TEXT)))
    }

    /// Returns a stack's memory with addresses at some words.
    fn memory(len: usize, words: &[(usize, u64)]) -> Vec<[u8; 8]> {
        let mut all = vec![[0; 8]; len];
        words.iter().for_each(|(i, w)| all[*i] = w.to_ne_bytes());
        all
    }

    /// Looks a stack up as the programs do.
    fn find(m: &Memo, first: u64, words: &[[u8; 8]]) -> Option<u32> {
        let memory = Memory { base: BASE, words };
        let (mut node, mut address, mut at) = (0u64, first, 0);
        for _ in 0..DEPTH {
            let start = place(node as u32, address);
            let field = |i: usize, f: i16| m.table.entry(i, f).load(Ordering::Relaxed);
            let is =
                |i: &usize| field(*i, ENTRY_ADDRESS) == address && field(*i, ENTRY_PARENT) == node;
            let index = (start..start + PROBES).find(is)?;
            let (end, next) = (field(index, ENTRY_END), field(index, ENTRY_NEXT));
            if end != 0 && (end >> 32) as usize == (words.len() - at) * 8 {
                return Some(end as u32 - 1);
            }
            if next >> 32 == 0 {
                return None;
            }
            at = memory.follow(at, (next >> 32) as u32)?;
            (node, address) = (u64::from(next as u32), memory.get(at)?);
        }
        None
    }

    fn learn(m: &mut Memo, frames: &[u64], words: &[[u8; 8]], number: u32) -> bool {
        m.learn(7, frames, Memory { base: BASE, words }, number)
    }

    #[test]
    fn a_stack_is_known_by_all_its_return_addresses() {
        let mut m = memo();
        let words = memory(20, &[(3, 0x2010), (6, 0x2110), (12, 0x1110)]);
        assert!(learn(&mut m, &[0x2010, 0x2110, 0x1110], &words, 5));
        assert_eq!(find(&m, 7, &words), Some(5));
        assert_eq!(find(&m, 8, &words), None);
        for (i, wrong) in [(3, 0x2110), (6, 0x2010), (12, 0x1118), (6, 0)] {
            let mut other = words.clone();
            other[i] = u64::to_ne_bytes(wrong);
            assert_eq!(find(&m, 7, &other), None, "{i}");
        }
        let longer = memory(21, &[(3, 0x2010), (6, 0x2110), (12, 0x1110)]);
        assert_eq!(find(&m, 7, &longer), None, "the stack goes on");
    }

    #[test]
    fn old_return_addresses_do_not_mislead() {
        let mut m = memo();
        let frames = [0x2010, 0x2110, 0x1110];
        let old = memory(20, &[(3, 0x2010), (5, 0x2110), (6, 0x2110), (12, 0x1110)]);
        assert!(!learn(&mut m, &frames, &old, 5), "it is one of two");
        assert_eq!(find(&m, 7, &old), None);
        let other = memory(20, &[(3, 0x2010), (6, 0x2110), (7, 0x2110), (12, 0x1110)]);
        assert!(learn(&mut m, &frames, &other, 5), "one is in both");
        assert_eq!((find(&m, 7, &old), find(&m, 7, &other)), (Some(5), Some(5)));
    }

    #[test]
    fn frames_of_different_size_go_by_frame_pointer_or_end() {
        let mut m = memo();
        let frames = [0x2010, 0x2110, 0x2210, 0x1110];
        // The function of the second one keeps, 1 below, the frame pointer that points to the word below the third.
        let aligned = |shift: usize| {
            let pointer = BASE + (8 + shift as u64) * 8;
            memory(20, &[(3, 0x2010), (5, pointer), (6, 0x2110), (9 + shift, 0x2210), (16, 0x1110)])
        };
        assert!(learn(&mut m, &frames, &aligned(0), 5));
        assert_eq!(find(&m, 7, &aligned(1)), None);
        assert!(!learn(&mut m, &frames, &aligned(1), 5) || find(&m, 7, &aligned(1)).is_some());
        assert!(learn(&mut m, &frames, &aligned(2), 5));
        for shift in 0..4 {
            assert_eq!(find(&m, 7, &aligned(shift)), Some(5), "{shift}");
        }
    }

    #[test]
    fn stacks_that_do_not_end_as_stacks_do_are_not_learned() {
        let mut m = memo();
        let words = memory(20, &[(3, 0x2010), (6, 0x1110), (9, 0x2110), (12, 0x1110)]);
        assert!(!learn(&mut m, &[0x2010, 0x1110, 0x2110, 0x1110], &words, 1), "an exception");
        assert!(!learn(&mut m, &[0x2010, 0x2110], &words, 1), "no entry");
        assert!(!learn(&mut m, &[], &words, 1) && !learn(&mut m, &[0, 0x1110], &words, 1));
        assert!(!learn(&mut m, &[0x2010, 0x2110, 0x2210, 0x1110], &words, 1), "not in the memory");
        assert!(!learn(&mut m, &[0x2010, 0x1110], &[], 1));
        assert!(m.entries.is_empty());
    }

    #[test]
    fn the_programs_own_frames_are_left_out() {
        let m = memo();
        let bytes: Vec<[u8; 8]> =
            [0x9999, 0x2410, 0x2310, 0x2010, 0x1110].map(u64::to_ne_bytes).to_vec();
        assert_eq!(m.places.trim(&bytes), &bytes[3..]);
        assert_eq!(m.places.trim(&bytes[3..]), &bytes[3..]);
    }
}
