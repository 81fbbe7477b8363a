//! Records that events refer to: threads, stack nodes, code addresses, modules and their symbols.

use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

record! {
    /// A thread. It is repeated when its name becomes known or changes.
    Thread {
        /// Thread number in this file (unique, unlike the thread id).
        number: int32,
        /// Thread id in the target's namespace.
        tid: int32,
        /// Thread name; may be empty.
        name: text,
    }
}

record! {
    /// Threads that have ended: all events of theirs stand in front of this, but for those that `--cull` holds back.
    ThreadsLeft {
        /// Numbers of the threads in this file.
        numbers: ints,
    }
}

record! {
    /// Stack nodes, as triples of id, parent id and code address id. A parent stands before its children;
    /// parent 0 is the root.
    Nodes {
        /// The triples, flat.
        triples: ints,
    }
}

record! {
    /// Stack nodes with consecutive ids: equivalent to [`Nodes`], in half the bytes.
    NodeRun {
        /// Id of the first node.
        first: int32,
        /// For each node, in LEB128: its id minus its parent's id (0: the root), and its code address id.
        pairs: bytes,
    }
}

impl NodeRun {
    /// Appends the node `id`, which must be the last id plus one, below a parent with a lower id.
    #[inline]
    pub fn push(&mut self, id: u32, parent: u32, pc: u32) {
        if self.pairs.is_empty() {
            self.first = id;
        }
        let back = if parent == 0 { 0 } else { id.wrapping_sub(parent) };
        let mut w = Writer { bytes: core::mem::take(&mut self.pairs) };
        w.int(back.into()).int(pc.into());
        self.pairs = w.bytes;
    }

    /// Decodes all nodes; returns `None` if the bytes are malformed.
    pub fn nodes(&self) -> Option<Nodes> {
        let mut triples = Vec::with_capacity(self.pairs.len() * 3 / 2);
        let (mut r, mut id) = (Reader::new(&self.pairs), u64::from(self.first));
        while !r.rest().is_empty() {
            u32::try_from(id).ok()?;
            let (back, pc) = (r.int32()?, r.int32()?);
            let parent = if back == 0 { 0 } else { id.checked_sub(back.into())? };
            triples.extend([id, parent, pc.into()]);
            id += 1;
        }
        Some(Nodes { triples })
    }
}

/// Flag beside the module number in [`Pcs`]: the address is that of a signal trampoline. The next outer frame
/// is the interrupted one; its address is that of the interrupted instruction plus one.
pub const PC_IS_TRAMPOLINE: u64 = 1 << 16;

record! {
    /// Code addresses: triples of id, address, module number (0: none) with [`PC_IS_TRAMPOLINE`].
    Pcs {
        /// The triples, flat.
        triples: ints,
    }
}

record! {
    /// A module. It is repeated when more becomes known of it.
    Module {
        /// Module number in this file.
        number: int32,
        /// First mapped address.
        start: int,
        /// End address of the last mapping.
        end: int,
        /// Load bias: address minus the file's virtual address.
        bias: int,
        /// Path as the target sees it; `[vdso]` for the vDSO.
        path: text,
        /// Build id; may be empty.
        build_id: bytes,
        /// Ticks when the module was first seen.
        loaded: ticks,
        /// Ticks when the module was found to be unloaded; 0: still loaded.
        unloaded: ticks,
    }
}

record! {
    /// Symbols of a module whose file may be gone when the recording is read.
    Symbols {
        /// Module number.
        module: int32,
        /// Symbols, sorted, as quadruples of start, size, offset of the name in `names`, length of the name;
        /// starts are virtual addresses of the file.
        symbols: ints,
        /// Mangled names.
        names: bytes,
    }
}
