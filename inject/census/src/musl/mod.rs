//! musl's allocator since 1.2.1: its blocks by its own data, walked from outside, without symbols.
//!
//! It keeps blocks in groups of up to 32 slots of one size. A description of each group (`context.rs`) says where the group
//! is and which slots are free; the group has the address of its description. A group may itself lie in a slot of another
//! one. A block need not begin where its slot does: the slot says where. There are no caches of threads.

mod context;
#[cfg(test)]
mod tests;

use crate::data::is_own;
use crate::sums::{Block, SizeClass, Sum, class_of};
use crate::view::{Memory as _, View, WORD, words};
use context::{AREA, HEAD, META};
pub(crate) use context::{Context, find};
use prof_os::maps::Map;
use std::collections::BTreeMap;
use std::ops::Range;

/// Unit of sizes and alignment, and bytes of a group in front of its slots.
const UNIT: u64 = 16;
/// Bytes of a slot's header, which stand in front of its block; the header of the next slot ends this one.
const HEADER: u64 = 4;
/// Units of the slots of each class.
const CLASSES: [u64; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146,
    170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730,
    3276, 4095, 4680, 5460, 6552, 8191,
];
/// Class of a group whose one slot has a mapping of its own.
const OWN_MAPPING: u64 = 63;
/// In the upper bits of a header's byte: the block begins later in the slot.
const LATER: u8 = 7;
/// Number of groups that may lie in each other.
const DEEP: usize = 8;
/// Attempts to read a block's header that makes no sense: the target may be about to change it.
const TRIES: usize = 4;
/// Bytes from which on the headers of neighbours are not read at once.
const APART: u64 = 2048;

/// A group of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    at: u64,
    /// Bytes from one slot to the next.
    stride: u64,
    slots: u32,
    /// A bit for each slot that is free.
    free: u32,
    /// Bytes of its mapping; 0 if it lies in a slot of another group, or in a library's data.
    mapped: u64,
    class: u64,
}

/// The content of a description.
enum Described {
    /// It is not in use.
    Nothing,
    /// Nothing that makes sense, of so much memory.
    Nonsense(Range<u64>),
    Group(Group),
}

impl Group {
    /// Reads a description, which lies at an address.
    fn of(view: &mut View<'_>, maps: &[Map], meta: u64, bytes: &[u8]) -> Described {
        let nonsense = || Described::Nonsense(meta..meta + META);
        let all: Vec<u64> = words(&bytes[..3 * WORD as usize]).collect();
        let [_, _, at] = all[..] else { return nonsense() };
        let mask = |i: usize| {
            let from = 3 * WORD as usize + 4 * i;
            bytes[from..].first_chunk().map_or(0, |b| u32::from_ne_bytes(*b))
        };
        if at == 0 {
            return Described::Nothing;
        }
        let Some(bits) = words(&bytes[3 * WORD as usize + 8..]).next() else {
            return nonsense();
        };
        let (last, class, pages) = (bits & 31, bits >> 6 & 63, bits >> 12);
        let mapped = pages * AREA;
        let stride = match CLASSES.get(class as usize) {
            _ if last == 0 && pages > 0 => mapped - UNIT,
            Some(units) => units * UNIT,
            None => return nonsense(),
        };
        let len = UNIT + (last + 1) * stride;
        let fits = at.is_multiple_of(UNIT)
            && (class < CLASSES.len() as u64 || class == OWN_MAPPING)
            && (mapped == 0 || len <= mapped && at.is_multiple_of(AREA))
            && at
                .checked_add(len.max(mapped))
                .is_some_and(|end| mapped == 0 || is_own(maps, &(at..end)))
            && view.words(at) == Some([meta]);
        if !fits {
            let end = at.checked_add(len).filter(|end| is_own(maps, &(at..*end)));
            return end.map_or_else(nonsense, |end| Described::Nonsense(at..end));
        }
        let slots = last as u32 + 1;
        let free = (mask(0) | mask(1)) & (u32::MAX >> (32 - slots));
        Described::Group(Self { at, stride, slots, free, mapped, class })
    }

    fn range(&self) -> Range<u64> {
        let len = UNIT + u64::from(self.slots) * self.stride;
        self.at..self.at + len.max(self.mapped)
    }

    fn slot(&self, i: u32) -> u64 {
        self.at + UNIT + u64::from(i) * self.stride
    }

    /// Returns the block in a slot: its address and its size. `None` if the header makes no sense.
    fn block(&self, view: &mut View<'_>, i: u32) -> Option<Block> {
        let start = self.slot(i);
        let end = start + self.stride - HEADER;
        let first = eight(view, start - 8, self)?;
        if first[5] >> 5 != LATER {
            return self.block_at(view, i, start, first);
        }
        let units = u64::from(u16::from_ne_bytes([first[6], first[7]]));
        // Of a block with an extreme alignment it has the low bits only.
        let mut at = start + units * UNIT;
        while at < end {
            let header = eight(view, at - 8, self)?;
            let found = self.block_at(view, i, at, header);
            if found.is_some() || self.slots > 1 {
                return found;
            }
            at += UNIT << 16;
        }
        None
    }

    /// Returns the block that begins at an address, if the eight bytes in front of it are the header of one.
    fn block_at(&self, view: &mut View<'_>, i: u32, at: u64, header: [u8; 8]) -> Option<Block> {
        let end = self.slot(i) + self.stride - HEADER;
        let [far @ .., _, _, _, _] = header;
        let near = u16::from_ne_bytes([header[6], header[7]]);
        let offset = match (header[4], near) {
            (0, near) => u64::from(near),
            (_, 0) => u64::from(u32::from_ne_bytes(far)),
            _ => return None,
        };
        if u32::from(header[5] & 31) != i || offset * UNIT != at - self.at - UNIT || at > end {
            return None;
        }
        let rest = match header[5] >> 5 {
            5 => {
                let [.., a, b, c, d] = eight(view, end - 8, self)?;
                u64::from(u32::from_ne_bytes([a, b, c, d]))
            }
            n => u64::from(n),
        };
        let size = (end - at).checked_sub(rest)?;
        Some(Block { address: at, size })
    }
}

/// Reads eight bytes of a group.
fn eight(view: &mut View<'_>, at: u64, group: &Group) -> Option<[u8; 8]> {
    // The headers of large slots are far from each other, and what lies between need not be read.
    let end = if group.stride > APART { at + 8 } else { group.range().end };
    let mut bytes = [0; 8];
    for (to, at) in bytes.chunks_exact_mut(WORD as usize).zip((at..at + 8).step_by(WORD as usize)) {
        to.copy_from_slice(&(view.word(at, end)? as usize).to_ne_bytes());
    }
    Some(bytes)
}

/// The allocator of musl that a process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MuslStats {
    /// Number of groups.
    pub groups: u64,
    /// Bytes that groups have from the kernel.
    pub system: u64,
    /// Blocks that the program has. Bytes are those that it has asked for.
    pub in_use: Sum,
    /// The part of `in_use` that is in blocks with mappings of their own.
    pub mapped: Sum,
    /// Free slots.
    pub free: Sum,
}

/// The heap of one allocator.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// In the order of their addresses.
    groups: Vec<Group>,
    /// In the order of groups and slots.
    blocks: Vec<Block>,
    areas: Vec<u64>,
    mapped: Sum,
    /// Slots and groups that make no sense, and groups that overlap others. Where not even their place is known, what leads
    /// to them.
    pub lost: Vec<Range<u64>>,
}

impl Heap {
    /// Walks a heap.
    pub(crate) fn walk(view: &mut View<'_>, maps: &[Map], context: &Context) -> Self {
        let mut heap = Self::default();
        let (areas, whole) = context.areas(view);
        heap.lost.extend((!whole).then(|| context.place()));
        for (area, bytes) in &areas {
            heap.areas.push(*area);
            let each = bytes[HEAD as usize..].chunks_exact(META as usize);
            for (i, bytes) in each.enumerate() {
                heap.add(view, maps, area + HEAD + i as u64 * META, bytes);
            }
        }
        heap.areas.sort_unstable();
        heap.settle();
        heap.read_blocks(view);
        heap
    }

    /// Adds the group of a description.
    fn add(&mut self, view: &mut View<'_>, maps: &[Map], meta: u64, bytes: &[u8]) {
        let mut described = Group::of(view, maps, meta, bytes);
        for _ in 1..TRIES {
            if !matches!(described, Described::Nonsense(_)) {
                break;
            }
            let bytes = view.all(meta..meta + META);
            if bytes.len() as u64 == META {
                described = Group::of(view, maps, meta, &bytes);
            }
        }
        match described {
            Described::Nothing => {}
            Described::Nonsense(range) => self.lost.push(range),
            Described::Group(group) => self.groups.push(group),
        }
    }

    /// Puts the groups in order, and leaves out those that overlap others, or lie too deep in others.
    fn settle(&mut self) {
        self.groups.sort_by_key(|g| (g.at, std::cmp::Reverse(g.range().end)));
        let (mut around, lost): (Vec<u64>, _) = (Vec::new(), &mut self.lost);
        self.groups.retain(|g| {
            let range = g.range();
            while around.last().is_some_and(|end| *end <= range.start) {
                around.pop();
            }
            let fits = around.last().is_none_or(|end| range.end <= *end) && around.len() < DEEP;
            match fits {
                true => around.push(range.end),
                false => lost.push(range),
            }
            fits
        });
    }

    /// Reads the headers of the slots that are in use and have no group.
    fn read_blocks(&mut self, view: &mut View<'_>) {
        for (n, g) in self.groups.iter().enumerate() {
            let mut inner = self.groups[n + 1..].iter().map(|g| g.at).peekable();
            for i in (0..g.slots).filter(|i| g.free >> i & 1 == 0) {
                let (start, end) = (g.slot(i), g.slot(i) + g.stride);
                while inner.next_if(|at| *at < start).is_some() {}
                if inner.peek().is_some_and(|at| *at < end) {
                    continue;
                }
                let mut tries = (0..TRIES).map(|n| {
                    if n > 0 {
                        view.forget();
                    }
                    g.block(view, i)
                });
                match tries.find_map(|b| b) {
                    Some(block) => {
                        self.blocks.push(block);
                        if g.class == OWN_MAPPING {
                            self.mapped.add(block.size);
                        }
                    }
                    None => self.lost.push(start..end),
                }
            }
        }
    }

    /// Returns the blocks that the program has. Their sizes are those that it has asked for.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block> {
        self.blocks.iter().copied()
    }

    /// Returns the bytes of groups.
    pub(crate) fn system(&self) -> u64 {
        self.groups.iter().map(|g| g.mapped).fold(0, u64::saturating_add)
    }

    /// Returns the memory of groups and of their descriptions.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let mapped = self.groups.iter().filter(|g| g.mapped > 0).map(Group::range);
        mapped.chain(self.areas.iter().map(|a| *a..a + AREA))
    }

    fn free_slots(&self) -> impl Iterator<Item = u64> {
        let each = |g: &Group| std::iter::repeat_n(g.stride - HEADER, g.free.count_ones() as usize);
        self.groups.iter().flat_map(each)
    }

    /// Returns its numbers.
    pub(crate) fn stats(&self) -> MuslStats {
        let sum = |sizes: &mut dyn Iterator<Item = u64>| {
            sizes.fold(Sum::default(), |mut sum, size| {
                sum.add(size);
                sum
            })
        };
        MuslStats {
            groups: self.groups.len() as u64,
            system: self.system(),
            in_use: sum(&mut self.blocks.iter().map(|b| b.size)),
            mapped: self.mapped,
            free: sum(&mut self.free_slots()),
        }
    }

    /// Adds the blocks of each size to what is counted by least and greatest size.
    pub(crate) fn count_sizes(&self, all: &mut BTreeMap<(u64, u64), SizeClass>) {
        let mut class = |size: u64, in_use: bool| {
            let sizes = class_of(size);
            let key = (sizes.1, sizes.0 - 1);
            let class = all.entry(key).or_insert(SizeClass { sizes, ..SizeClass::default() });
            let sum = if in_use { &mut class.in_use } else { &mut class.free };
            sum.add(size);
        };
        self.blocks.iter().for_each(|b| class(b.size, true));
        self.free_slots().for_each(|size| class(size, false));
    }
}
