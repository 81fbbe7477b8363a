//! What packing expects to come next. Writer and reader of a packed chunk keep the same [`Model`]
//! from event to event, so that only what was not expected has to be written.
//!
//! Allocators hand out what comes next, or what was freed last; programs free what they allocated
//! last, or blocks in the order in which they got them, or do again what they did before. Each of
//! these is a guess.
//!
//! The last ones, by what followed an address before, cost a tenth of the time of packing and save next to
//! nothing of what a general compressor makes of the rest (2 to 3 of 100 bytes, none in most programs): whoever is
//! in haste does not make them.

/// Entries of a table, as a power of two.
const BITS: u32 = 12;
/// Classes of sizes: multiples of 16, and one for all that is larger.
const CLASSES: usize = 64;
/// Guesses of what is allocated, and how many of them are made in haste.
pub(crate) const ALLOC_GUESSES: usize = 3;
pub(crate) const FEW_ALLOC_GUESSES: usize = 2;
/// Guesses of what is freed, likewise.
pub(crate) const FREE_GUESSES: usize = 5;
pub(crate) const FEW_FREE_GUESSES: usize = 2;

/// Where a key is looked up, below [`ENTRIES`].
#[inline(always)]
fn slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)) as usize
}

/// Entries of a table.
const ENTRIES: usize = 1 << BITS;

/// What guesses are looked up in. All of it starts anew with each chunk.
pub(crate) struct Tables {
    /// By the last two nodes: the next.
    nodes: [u32; ENTRIES],
    /// By node: the last size.
    sizes: [u64; ENTRIES],
    /// By the last two addresses: the next.
    after: [u64; ENTRIES],
    /// By address: what was allocated next.
    next_allocated: [u64; ENTRIES],
    /// By address: what was freed next.
    next_freed: [u64; ENTRIES],
    /// By address: the address and its class of size.
    classes: [(u64, u32); ENTRIES],
    /// By class of size: the last address that was freed.
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

    /// As new.
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

/// What was seen last. It starts anew with each chunk, too.
#[derive(Clone, Copy, Default)]
pub(crate) struct State {
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
    /// Where the two are looked up.
    slots: [usize; 2],
    /// Where a block would lie that follows the last one.
    next: u64,
    /// The last two addresses of any event.
    last: [u64; 2],
}

/// Makes guesses. Its state is in a value of its own, which whoever packs holds in registers from event to event:
/// through a reference each event would load and store all of it. If not `ALL` are made, the guesses beyond the few
/// mean nothing.
pub(crate) struct Model<'t, const ALL: bool> {
    pub state: State,
    tables: &'t mut Tables,
}

impl<'t, const ALL: bool> Model<'t, ALL> {
    /// Goes on from `state`.
    pub(crate) fn new(tables: &'t mut Tables, state: State) -> Self {
        Self { state, tables }
    }

    #[inline(always)]
    fn context(&self) -> usize {
        slot(self.state.last[0] ^ self.state.last[1].rotate_left(17))
    }

    /// Guesses of the next address, if it is allocated and has this size. The likeliest is first.
    #[inline(always)]
    pub(crate) fn guess_allocated(&self, size: u64) -> [u64; ALLOC_GUESSES] {
        let t = &*self.tables;
        let after = if ALL { t.after[self.context()] } else { 0 };
        [self.state.next, t.freed_of[class(size)], after]
    }

    /// Guesses of the next address, if it is freed.
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

    /// The entry that guesses the next node.
    #[inline(always)]
    pub(crate) fn node_guess(&mut self) -> &mut u32 {
        let key = self.state.node as u64 | (self.state.node_before as u64) << 32;
        &mut self.tables.nodes[slot(key)]
    }

    /// The entry that guesses the size that a node asks for.
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
        // As glibc lays them out: 8 bytes of its own, rounded up to 16, at least 32.
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
