//! Pointers to blocks: from blocks, and from the roots.

use prof_os::Pid;

/// A number that stands for nothing: no class, no stack, no node.
pub const NONE: u32 = u32::MAX;

/// A place outside of all recorded blocks that points to a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Root {
    /// The data of a program or library: the address of a word in it.
    Global(u64),
    /// The stack of a thread, with libc's thread-local variables, where they lie behind the stack.
    Stack(Pid),
    /// A frame of a thread's stack. It is a part of [`Root::Stack`].
    Frame {
        /// The thread.
        thread: Pid,
        /// Number of the frame, counted from the innermost, which is 0.
        number: u32,
        /// Address of the instruction at which the function goes on.
        pc: u64,
        /// Whether that instruction was interrupted. Otherwise it stands behind a call.
        exact: bool,
    },
    /// A thread's registers.
    Registers(Pid),
    /// Thread-local variables that lie in a mapping of their own.
    ThreadLocal(Pid),
    /// Another mapping, by its first address: memory from before the attach, or that no allocator has handed out.
    Mapping(u64),
    /// The kernel: an epoll descriptor or a timer.
    Kernel,
    /// A root of a scan that was saved, by its number there.
    Saved(u32),
}

/// A pointer from a root to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RootEdge {
    /// Index of the root.
    pub root: u32,
    /// Index of the block.
    pub to: u32,
    /// Address of the word; 0: it is in a register, or the kernel's.
    pub at: u64,
}

/// The pointers to the blocks of a table.
#[derive(Debug)]
pub struct Edges {
    /// For each block where its pointers begin in `to`, and behind them where the last one's end.
    pub starts: Vec<u32>,
    /// The blocks that are pointed to, without repetitions for each block.
    pub to: Vec<u32>,
    /// The roots.
    pub roots: Vec<Root>,
    /// For each root that is a part of another the index of that one, else [`NONE`]. Roots behind the end are no parts.
    pub above: Vec<u32>,
    /// The pointers of the roots.
    pub of_roots: Vec<RootEdge>,
    /// For each block the index of its class, or [`NONE`]; empty: no block has one.
    pub classes: Vec<u32>,
    /// The first words of blocks that are addresses of data that is never written to: of tables of virtual functions.
    pub tables: Vec<u64>,
    /// Number of pointers for which there was no room.
    pub left_out: u64,
}

impl Edges {
    /// Puts the pointers of roots in order, without repetitions: of several words of a root the first one counts.
    #[must_use]
    pub fn settled(mut self) -> Self {
        self.of_roots.sort_unstable();
        self.of_roots.dedup_by_key(|e| (e.root, e.to));
        self
    }
}
