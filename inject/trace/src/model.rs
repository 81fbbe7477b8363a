//! What packing expects to come next. Writer and reader of a packed chunk keep the same [`Model`]
//! from event to event, so that only what was not expected has to be written.
//!
//! Allocators hand out what comes next, or what was freed last; programs free what they allocated
//! last, or blocks in the order in which they got them, or do again what they did before. Each of
//! these is a guess.

/// Entries of a table of guesses, as a power of two.
const BITS: u32 = 12;
/// Classes of sizes: multiples of 16, and one for all that is larger.
const CLASSES: usize = 64;
/// Guesses of what is allocated.
pub(crate) const ALLOC_GUESSES: usize = 3;
/// Guesses of what is freed.
pub(crate) const FREE_GUESSES: usize = 5;

#[inline(always)]
fn slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)) as usize
}

/// A table that a hash chooses from.
struct Table<T>(std::boxed::Box<[T; 1 << BITS]>);

impl<T: Copy + Default> Table<T> {
    fn new() -> Self {
        Self(std::boxed::Box::new([T::default(); 1 << BITS]))
    }

    #[inline(always)]
    fn at(&mut self, slot: usize) -> &mut T {
        &mut self.0[slot & ((1 << BITS) - 1)]
    }
}

/// The state that guesses are made from. It starts anew with each chunk.
pub(crate) struct Model {
    /// Time of the last event of the run.
    pub time: u64,
    /// The last stack node.
    pub node: u32,
    node_before: u32,
    /// The last address that was allocated, and the one before.
    pub allocated: u64,
    allocated_before: u64,
    /// The last address that was freed.
    pub freed: u64,
    /// Where a block would lie that follows the last one.
    next: u64,
    /// The last two addresses of any event.
    last: [u64; 2],
    /// By the last two nodes: the next.
    nodes: Table<u32>,
    /// By node: the last size.
    sizes: Table<u64>,
    /// By the last two addresses: the next.
    after: Table<u64>,
    /// By address: what was allocated next.
    next_allocated: Table<u64>,
    /// By address: what was freed next.
    next_freed: Table<u64>,
    /// By address: the address and its class of size.
    classes: Table<(u64, u32)>,
    /// By class of size: the last address that was freed.
    freed_of: [u64; CLASSES],
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            time: 0,
            node: 0,
            node_before: 0,
            allocated: 0,
            allocated_before: 0,
            freed: 0,
            next: 0,
            last: [0; 2],
            nodes: Table::new(),
            sizes: Table::new(),
            after: Table::new(),
            next_allocated: Table::new(),
            next_freed: Table::new(),
            classes: Table::new(),
            freed_of: [0; CLASSES],
        }
    }

    /// As new.
    pub(crate) fn reset(&mut self) {
        (self.time, self.node, self.node_before) = (0, 0, 0);
        (self.allocated, self.allocated_before, self.freed, self.next) = (0, 0, 0, 0);
        (self.last, self.freed_of) = ([0; 2], [0; CLASSES]);
        self.nodes.0.fill(0);
        self.sizes.0.fill(0);
        self.after.0.fill(0);
        self.next_allocated.0.fill(0);
        self.next_freed.0.fill(0);
        self.classes.0.fill((0, 0));
    }

    #[inline(always)]
    fn context(&self) -> usize {
        slot(self.last[0] ^ self.last[1].rotate_left(17))
    }

    /// Guesses of the next address, if it is allocated and has this size. The likeliest is first.
    #[inline(always)]
    pub(crate) fn guess_allocated(&mut self, size: u64) -> [u64; ALLOC_GUESSES] {
        let context = self.context();
        [self.next, self.freed_of[class(size)], *self.after.at(context)]
    }

    /// Guesses of the next address, if it is freed.
    #[inline(always)]
    pub(crate) fn guess_freed(&mut self) -> [u64; FREE_GUESSES] {
        let (context, freed) = (self.context(), slot(self.freed));
        [
            self.allocated,
            self.allocated_before,
            *self.next_allocated.at(freed),
            *self.next_freed.at(freed),
            *self.after.at(context),
        ]
    }

    /// The entry that guesses the next node.
    #[inline(always)]
    pub(crate) fn node_guess(&mut self) -> &mut u32 {
        let key = self.node as u64 | (self.node_before as u64) << 32;
        self.nodes.at(slot(key))
    }

    /// The entry that guesses the size that a node asks for.
    #[inline(always)]
    pub(crate) fn size_guess(&mut self, node: u32) -> &mut u64 {
        self.sizes.at(slot(node as u64))
    }

    #[inline(always)]
    pub(crate) fn saw_node(&mut self, node: u32) {
        self.node_before = self.node;
        self.node = node;
    }

    #[inline(always)]
    fn saw(&mut self, addr: u64) {
        let context = self.context();
        *self.after.at(context) = addr;
        self.last = [addr, self.last[0]];
    }

    #[inline(always)]
    pub(crate) fn saw_allocated(&mut self, addr: u64, size: u64) {
        self.saw(addr);
        // As glibc lays them out: 8 bytes of its own, rounded up to 16, at least 32.
        self.next = addr.wrapping_add((size.wrapping_add(8 + 15) & !15).max(32));
        let before = slot(self.allocated);
        *self.next_allocated.at(before) = addr;
        *self.classes.at(slot(addr)) = (addr, class(size) as u32);
        self.allocated_before = self.allocated;
        self.allocated = addr;
    }

    #[inline(always)]
    pub(crate) fn saw_freed(&mut self, addr: u64) {
        self.saw(addr);
        let before = slot(self.freed);
        *self.next_freed.at(before) = addr;
        self.freed = addr;
        let (known, class) = *self.classes.at(slot(addr));
        if known == addr {
            self.freed_of[class as usize % CLASSES] = addr;
        }
    }
}

#[inline(always)]
fn class(size: u64) -> usize {
    (size.wrapping_add(8 + 15) >> 4).min(CLASSES as u64 - 1) as usize
}
