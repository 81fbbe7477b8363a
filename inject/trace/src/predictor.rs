//! Prediction of events. The writer and the reader of a packed chunk keep the same [`Predictor`] from event to
//! event, so that only mispredicted values are written.
//!
//! Allocators return the next free block, or the one freed last; programs free what they allocated last, or
//! free blocks in the order of allocation, or repeat what they did before. Each guess stands for one of
//! these.
//!
//! The guesses that look up what followed an address before cost a tenth of the packing time. They save
//! little of what a general-purpose compressor leaves (2 to 3 %, in most programs nothing), so a writer that
//! must be fast skips them.

use crate::ticks::Ticks;
/// Number of entries per table, as a power of two.
const BITS: u32 = 12;
/// Number of size classes: multiples of 16, and one class for all larger sizes.
const CLASSES: usize = 64;
/// Number of guesses for an allocated address; a fast writer makes only the first few.
pub(crate) const ALLOC_GUESSES: usize = 3;
pub(crate) const FEW_ALLOC_GUESSES: usize = 2;
/// Number of guesses for a freed address; a fast writer makes only the first few.
pub(crate) const FREE_GUESSES: usize = 5;
pub(crate) const FEW_FREE_GUESSES: usize = 2;

/// Returns the table index of a key, below [`ENTRIES`].
#[inline(always)]
fn slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)) as usize
}

/// Number of entries per table.
const ENTRIES: usize = 1 << BITS;

/// Tables that guesses are looked up in. They start empty in each chunk.
pub(crate) struct Tables {
    /// Next node, by the last two nodes.
    nodes: [u32; ENTRIES],
    /// Last size, by node.
    sizes: [u64; ENTRIES],
    /// Next address, by the last two addresses.
    after: [u64; ENTRIES],
    /// Address allocated after a given one was, by that address.
    next_allocated: [u64; ENTRIES],
    /// Address freed after a given one was, by that address.
    next_freed: [u64; ENTRIES],
    /// Address and its size class, by address.
    classes: [(u64, u32); ENTRIES],
    /// Last freed address, by size class.
    freed_of: [u64; CLASSES],
}

impl Tables {
    const NEW: Self = Self {
        nodes: [0; ENTRIES],
        sizes: [0; ENTRIES],
        after: [0; ENTRIES],
        next_allocated: [0; ENTRIES],
        next_freed: [0; ENTRIES],
        classes: [(0, 0); ENTRIES],
        freed_of: [0; CLASSES],
    };

    pub(crate) fn new() -> std::boxed::Box<Self> {
        std::boxed::Box::new(Self::NEW)
    }

    /// Empties all tables.
    pub(crate) fn reset(&mut self) {
        self.nodes.fill(0);
        self.sizes.fill(0);
        self.after.fill(0);
        self.next_allocated.fill(0);
        self.next_freed.fill(0);
        self.classes.fill((0, 0));
        self.freed_of.fill(0);
    }
}

/// Last values seen. They start as zeroes in each chunk.
#[derive(Clone, Copy, Default)]
pub(crate) struct State {
    /// Time of the last event of the run.
    pub time: Ticks,
    /// Last stack node.
    pub node: u32,
    node_before: u32,
    /// Last allocated address, and the one before it.
    pub allocated: u64,
    allocated_before: u64,
    /// Last freed address.
    pub freed: u64,
    /// Table indices of the last allocated and of the last freed address.
    slots: [usize; 2],
    /// Address of a block that directly follows the last allocated one.
    next: u64,
    /// Last two addresses of any event, the newest first.
    last: [u64; 2],
}

/// Makes guesses and learns from events. `state` is held by value, so that the writer keeps it in registers
/// from event to event; behind a reference each event would load and store all of it. If `ALL` is false, the
/// guesses beyond the first few are meaningless.
pub(crate) struct Predictor<'t, const ALL: bool> {
    pub state: State,
    tables: &'t mut Tables,
}

impl<'t, const ALL: bool> Predictor<'t, ALL> {
    /// Continues from `state`.
    pub(crate) fn new(tables: &'t mut Tables, state: State) -> Self {
        Self { state, tables }
    }

    #[inline(always)]
    fn context(&self) -> usize {
        slot(self.state.last[0] ^ self.state.last[1].rotate_left(17))
    }

    /// Returns guesses of the next address if it is allocated with this size; the likeliest first.
    #[inline(always)]
    pub(crate) fn guess_allocated(&self, size: u64) -> [u64; ALLOC_GUESSES] {
        let t = &*self.tables;
        let after = if ALL { t.after[self.context()] } else { 0 };
        [self.state.next, t.freed_of[class(size)], after]
    }

    /// Returns guesses of the next address if it is freed.
    #[inline(always)]
    pub(crate) fn guess_freed(&self) -> [u64; FREE_GUESSES] {
        let (s, t) = (&self.state, &*self.tables);
        let mut guesses = [0; FREE_GUESSES];
        (guesses[0], guesses[1]) = (s.allocated, s.allocated_before);
        if ALL {
            let freed = s.slots[1] & (ENTRIES - 1);
            guesses[2] = t.next_allocated[freed];
            guesses[3] = t.next_freed[freed];
            guesses[4] = t.after[self.context()];
        }
        guesses
    }

    /// Returns the table entry that guesses the next node.
    #[inline(always)]
    pub(crate) fn node_guess(&mut self) -> &mut u32 {
        let key = self.state.node as u64 | (self.state.node_before as u64) << 32;
        &mut self.tables.nodes[slot(key)]
    }

    /// Returns the table entry that guesses the size of a node's next allocation.
    #[inline(always)]
    pub(crate) fn size_guess(&mut self, node: u32) -> &mut u64 {
        &mut self.tables.sizes[slot(node as u64)]
    }

    #[inline(always)]
    pub(crate) fn saw_node(&mut self, node: u32) {
        self.state.node_before = self.state.node;
        self.state.node = node;
    }

    #[inline(always)]
    fn saw(&mut self, addr: u64) {
        if ALL {
            self.tables.after[self.context()] = addr;
            self.state.last = [addr, self.state.last[0]];
        }
    }

    #[inline(always)]
    pub(crate) fn saw_allocated(&mut self, addr: u64, size: u64) {
        self.saw(addr);
        let (s, t) = (&mut self.state, &mut *self.tables);
        // glibc's layout: a header of 8 bytes, rounded up to 16, at least 32.
        s.next = addr.wrapping_add((size.wrapping_add(8 + 15) & !15).max(32));
        if ALL {
            t.next_allocated[s.slots[0] & (ENTRIES - 1)] = addr;
        }
        s.slots[0] = slot(addr);
        t.classes[s.slots[0]] = (addr, class(size) as u32);
        s.allocated_before = s.allocated;
        s.allocated = addr;
    }

    #[inline(always)]
    pub(crate) fn saw_freed(&mut self, addr: u64) {
        self.saw(addr);
        let (s, t) = (&mut self.state, &mut *self.tables);
        if ALL {
            t.next_freed[s.slots[1] & (ENTRIES - 1)] = addr;
        }
        s.slots[1] = slot(addr);
        s.freed = addr;
        let (known, class) = t.classes[s.slots[1]];
        if known == addr {
            t.freed_of[class as usize % CLASSES] = addr;
        }
    }
}

#[inline(always)]
fn class(size: u64) -> usize {
    (size.wrapping_add(8 + 15) >> 4).min(CLASSES as u64 - 1) as usize
}
