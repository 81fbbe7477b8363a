//! Which stack nodes and code addresses stand in the recording already, and writing those that
//! don't.

use crate::output::Output;
use prof_arch::native::Rule;
use prof_trace::records::{Nodes, PC_IS_TRAMPOLINE, Pcs, kind};
use prof_trace::shared::{MODULES, NODE_LEVEL0, NODE_LEVELS, PC_LEVEL0, PC_LEVELS, Shared};
use prof_trace::tree::{node_parts, pc_parts};
use std::sync::atomic::Ordering::Relaxed;

/// Parents that are followed from one node; the hook cuts stacks long before.
pub const MAX_CHAIN: usize = 4096;
/// Numbers in a chunk of triples.
const CHUNK_INTS: usize = 3 << 16;

/// A set of small numbers.
#[derive(Debug)]
pub struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// For numbers below `n`.
    pub fn new(n: usize) -> Self {
        Self { words: vec![0; n.div_ceil(64)] }
    }

    /// Whether it has `i`; `None` if it never can.
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<bool> {
        Some(self.words.get(i / 64)? >> (i % 64) & 1 == 1)
    }

    /// Adds `i`; false if it was there or can't be.
    #[inline(always)]
    pub fn add(&mut self, i: usize) -> bool {
        let Some(w) = self.words.get_mut(i / 64) else { return false };
        let new = *w >> (i % 64) & 1 == 0;
        *w |= 1 << (i % 64);
        new
    }
}

/// What of the two tables has been written.
#[derive(Debug)]
pub struct Tree {
    nodes: Bits,
    bad: Bits,
    pcs: Bits,
    modules: Bits,
    walk: Vec<(u32, u32, u32)>,
    node_triples: Vec<u64>,
    pc_triples: Vec<u64>,
    /// Modules that were named for the first time.
    pub new_modules: Vec<u16>,
}

impl Tree {
    /// With nothing written.
    pub fn new() -> Self {
        let nodes = NODE_LEVEL0 * ((1 << NODE_LEVELS) - 1) + 1;
        let pcs = PC_LEVEL0 * ((1 << PC_LEVELS) - 1) + 1;
        Self {
            nodes: Bits::new(nodes),
            bad: Bits::new(nodes),
            pcs: Bits::new(pcs),
            modules: Bits::new(MODULES + 1),
            walk: Vec::with_capacity(MAX_CHAIN),
            node_triples: Vec::new(),
            pc_triples: Vec::new(),
            new_modules: Vec::new(),
        }
    }

    /// An event names node `id`: sees to it that the node and its parents are written.
    #[inline(always)]
    pub fn see(&mut self, shared: &Shared, id: u32) {
        if id != 0 && self.nodes.get(id as usize) == Some(false) {
            self.resolve(shared, id);
        }
    }

    /// Follows a node that is not written to one that is, or to the root. A chain that comes to
    /// neither (a cycle, a number that is no node) is left out of the recording.
    #[cold]
    fn resolve(&mut self, shared: &Shared, id: u32) {
        self.walk.clear();
        let mut at = id;
        let ends = loop {
            if at == 0 || self.nodes.get(at as usize) == Some(true) {
                break true;
            }
            if self.walk.len() == MAX_CHAIN || self.bad.get(at as usize) != Some(false) {
                break false;
            }
            // A node is there before an event that names it or a child of it is published.
            let Some((parent, pc)) = node_parts(shared, at) else {
                self.bad.add(at as usize);
                break false;
            };
            self.walk.push((at, parent, pc));
            at = parent;
        };
        while let Some((node, parent, pc)) = self.walk.pop() {
            if !ends {
                self.bad.add(node as usize);
                continue;
            }
            // Twice in a walk only if somebody changes the table under our eyes.
            if !self.nodes.add(node as usize) {
                continue;
            }
            self.node_triples.extend([node, parent, pc].map(u64::from));
            self.see_pc(shared, pc);
        }
    }

    fn see_pc(&mut self, shared: &Shared, id: u32) {
        if id == 0 || self.pcs.get(id as usize) != Some(false) {
            return;
        }
        let Some((pc, module)) = pc_parts(shared, id) else { return };
        self.pcs.add(id as usize);
        // The caller of a signal trampoline is no caller: readers must know.
        let rule = shared.pc(id as usize - 1).map_or(0, |e| e.rule.load(Relaxed));
        let signal = if Rule::from_u64(rule).is_signal() { PC_IS_TRAMPOLINE } else { 0 };
        self.pc_triples.extend([u64::from(id), pc, u64::from(module) | signal]);
        if module != 0 && self.modules.add(module as usize) {
            self.new_modules.push(module);
        }
    }

    /// Adds what was found since the last time to the recording: addresses, then nodes.
    pub fn write(&mut self, out: &mut Output) {
        for part in self.pc_triples.chunks(CHUNK_INTS) {
            out.put(kind::PCS, &Pcs { triples: part.to_vec() }.encode());
        }
        for part in self.node_triples.chunks(CHUNK_INTS) {
            out.put(kind::NODES, &Nodes { triples: part.to_vec() }.encode());
        }
        self.pc_triples.clear();
        self.node_triples.clear();
    }
}
