//! Writes the code of recordings that are joined: modules, code addresses, and the nodes of stacks.

use super::{ADDRESS_BITS, Joiner, TRIPLES, too_many};
use crate::Analysis;
use crate::load::{IdMap, class_of, is_before, stack_of};
use crate::rewrite::RewriteError;
use crate::symbols::Symbolizer;
use prof_trace::derived::{Frames, NamedAddress, NamedFrame};
use prof_trace::records::{Module, Nodes, PC_IS_TRAMPOLINE, Pcs, Symbols, kind};
use std::collections::HashMap;
use std::io;

/// The numbers that the stacks of a recording have among those of all. Equal stacks have the same number.
pub(super) struct Ids {
    /// By stack node.
    pub nodes: IdMap<u32>,
    /// By class of blocks from before the attach, if the class has a name.
    pub classes: HashMap<u32, u32>,
    /// Number that is added to those of other classes.
    pub offset: u32,
}

impl Ids {
    /// Returns the number of a stack; 0: it is not known.
    pub(super) fn of(&self, node: u32) -> u32 {
        match class_of(node) {
            0 if is_before(node) => node,
            0 => self.nodes.get(node).unwrap_or(0),
            class => {
                let other = class.saturating_add(self.offset);
                stack_of(self.classes.get(&class).copied().unwrap_or(other))
            }
        }
    }
}

impl Joiner<'_, '_> {
    /// Writes the nodes of a recording, with what they refer to. If figures are added up, the function returns the number that
    /// each stack has, the same in all recordings: that of its first node.
    pub(super) fn stacks(
        &mut self,
        number: u64,
        analysis: &Analysis,
    ) -> Result<IdMap<u32>, RewriteError> {
        let meta = analysis.meta();
        let (mut symbols, mut known) = (Symbolizer::new(analysis), HashMap::new());
        let mut triples = Vec::new();
        let (mut most, mut ones) = (0, IdMap::default());
        for [id, parent, pc] in meta.nodes_in_order() {
            let pc = match known.get(&pc) {
                Some(pc) => *pc,
                None => {
                    let new = self.pc(number, analysis, &mut symbols, pc)?;
                    known.insert(pc, new);
                    new
                }
            };
            let of_all = |id: u32| self.nodes.checked_add(id).ok_or_else(too_many);
            let new = of_all(id)?;
            if let Some(one_node) = &mut self.one_node {
                let key = (ones.get(parent).unwrap_or(0), pc);
                ones.set(id, *one_node.entry(key).or_insert(new));
            }
            let parent = if parent == 0 { 0 } else { of_all(parent)? };
            triples.extend([new, parent, pc].map(u64::from));
            most = most.max(id);
        }
        if self.one_node.is_some() {
            for (id, one) in meta.other_ids() {
                ones.set(id, ones.get(one).unwrap_or(0));
            }
        }
        self.put_pcs()?;
        for part in triples.chunks(3 * TRIPLES) {
            self.to.put_zipped(kind::NODES, &Nodes { triples: part.to_vec() }.encode())?;
        }
        self.nodes = self.nodes.checked_add(most).ok_or_else(too_many)?;
        Ok(ones)
    }

    /// Returns the number that a code address of a recording has among those of all.
    fn pc(
        &mut self,
        number: u64,
        analysis: &Analysis,
        symbols: &mut Symbolizer<'_>,
        id: u32,
    ) -> Result<u32, RewriteError> {
        let meta = analysis.meta();
        let (mut pc, trampoline) = meta.pc(id);
        match meta.modules.get(&pc.module) {
            Some(module) => {
                let of_all = self.module(analysis, module)?;
                pc.address = pc.address.wrapping_sub(module.bias).wrapping_add(of_all.1);
                pc.module = of_all.0;
            }
            None => {
                let name = symbols.peek(pc).last().and_then(|f| f.function.clone());
                pc.module = 0;
                if let Some(name) = name {
                    // Another process has other code at this address.
                    if self.named.get(&pc.address).is_some_and(|other| *other != *name) {
                        pc.address = pc.address.wrapping_add(number << ADDRESS_BITS);
                    }
                    self.named.insert(pc.address, name.to_string());
                }
            }
        }
        let next = self.pcs.len() as u32 + 1;
        let new = *self.pcs.entry((pc, trampoline)).or_insert(next);
        if new == next {
            let flag = if trampoline { PC_IS_TRAMPOLINE } else { 0 };
            self.new_pcs.extend([u64::from(new), pc.address, u64::from(pc.module) | flag]);
        }
        Ok(new)
    }

    fn put_pcs(&mut self) -> io::Result<()> {
        for part in std::mem::take(&mut self.new_pcs).chunks(3 * TRIPLES) {
            self.to.put_zipped(kind::PCS, &Pcs { triples: part.to_vec() }.encode())?;
        }
        Ok(())
    }

    /// Returns number and load bias that a module of a recording has among those of all.
    fn module(&mut self, analysis: &Analysis, m: &Module) -> Result<(u32, u64), RewriteError> {
        let extent = match m.build_id.is_empty() {
            true => [m.start.wrapping_sub(m.bias), m.end.wrapping_sub(m.bias)],
            false => [0, 0],
        };
        let next = self.modules.len() as u32 + 1;
        let key = (m.path.clone(), m.build_id.to_vec(), extent);
        let all = self.modules.entry(key).or_insert_with(|| Module { number: next, ..m.clone() });
        let of_all = (all.number, all.bias);
        if of_all.0 == next {
            self.to.put(kind::MODULE, &all.encode())?;
        }
        if !self.with_symbols.contains(&of_all.0)
            && let Some(symbols) = analysis.symbols(m.number)
        {
            self.with_symbols.insert(of_all.0);
            let symbols = Symbols { module: of_all.0, ..symbols };
            self.to.put_zipped(kind::SYMBOLS, &symbols.encode())?;
        }
        Ok(of_all)
    }

    /// Writes the names of code outside of modules.
    pub(super) fn names(&mut self) -> io::Result<()> {
        let all: Vec<(u64, String)> = std::mem::take(&mut self.named).into_iter().collect();
        for part in all.chunks(TRIPLES) {
            let mut names = Frames::default();
            for (address, name) in part {
                names.strings.push(name.clone());
                let function = names.strings.len() as u32;
                let frame = NamedFrame { function, ..NamedFrame::default() };
                for exact in [false, true] {
                    let (address, module, frames) = (*address, 0, vec![frame]);
                    names.addresses.push(NamedAddress { address, module, exact, frames });
                }
            }
            self.to.put_zipped(kind::FRAMES, &names.encode())?;
        }
        Ok(())
    }
}
