//! The named stacks of a recording, made once and kept with its index.

use crate::Analysis;
use crate::report::{PlaceData, Places, SymbolsData};
use serde::Serialize;
use std::collections::HashMap;

/// A function as flame graphs and groups show it: all its lines are one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct FunctionData {
    /// The function or, if it is not known, the offset in its module.
    pub name: String,
    /// Path of the module, if it is known.
    pub module: Option<String>,
    /// The source file, if it is known.
    pub file: Option<String>,
}

/// The stacks of all groups of a recording, symbolised. Groups, places and functions are named by their indices, which
/// are equal each time that the recording is read, as long as the symbols are.
#[derive(Debug, Default)]
pub struct Stacks {
    places: Vec<PlaceData>,
    functions: Vec<FunctionData>,
    /// For each place its function.
    function_of: Vec<u32>,
    /// For each function the first place in it.
    first: Vec<u32>,
    /// The places of all stacks, innermost first, one stack after the other.
    frames: Vec<u32>,
    /// For each group the end of its stack in `frames`.
    ends: Vec<usize>,
    /// For each group the index in its stack of the frame that asked for the memory.
    askers: Vec<u32>,
    /// For each group whether its outer frames are missing.
    cut: Vec<bool>,
    symbols: SymbolsData,
}

impl Stacks {
    /// Symbolises the stacks of a recording.
    pub fn new(analysis: &Analysis) -> Self {
        let mut places = Places::new(analysis);
        let mut s = Self::default();
        for g in analysis.groups() {
            let stack = places.stack(g.node);
            s.askers.push(places.asker(&stack).unwrap_or(0) as u32);
            s.cut.push(analysis.meta().is_cut(g.node));
            s.frames.extend(stack);
            s.ends.push(s.frames.len());
        }
        s.symbols = SymbolsData::new(&places.symbols);
        s.places = places.into_places();
        let mut ids: HashMap<(String, Option<String>), u32> = HashMap::new();
        for (place, p) in (0..).zip(&s.places) {
            let name = p.function.clone().or_else(|| p.offset.clone()).unwrap_or_default();
            let id = *ids.entry((name, p.module.clone())).or_insert_with_key(|(name, module)| {
                let (name, module) = (name.clone(), module.clone());
                s.functions.push(FunctionData { name, module, file: None });
                s.first.push(place);
                s.functions.len() as u32 - 1
            });
            let file = &mut s.functions[id as usize].file;
            *file = file.take().or_else(|| p.file.clone());
            s.function_of.push(id);
        }
        s
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the places of a group's stack, innermost first; empty if no stack is known.
    pub fn stack(&self, group: usize) -> &[u32] {
        let from = group.checked_sub(1).map_or(0, |g| self.ends[g]);
        &self.frames[from..self.ends[group]]
    }

    /// Returns the functions of a group's stack, innermost first.
    pub fn functions_of(&self, group: usize) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.stack(group).iter().map(|p| self.function_of[*p as usize])
    }

    /// Returns the index in a group's stack of the frame that asked for the memory; 0 if the stack has none.
    pub fn asker(&self, group: usize) -> usize {
        self.askers[group] as usize
    }

    /// Returns whether the outer frames of a group's stack are missing.
    pub fn is_cut(&self, group: usize) -> bool {
        self.cut[group]
    }

    /// Returns a place: function, file and line.
    pub fn place(&self, id: u32) -> &PlaceData {
        &self.places[id as usize]
    }

    /// Returns all functions; their indices are their numbers.
    pub fn functions(&self) -> &[FunctionData] {
        &self.functions
    }

    /// Returns the first place in a function.
    pub fn first_place(&self, function: u32) -> &PlaceData {
        self.place(self.first[function as usize])
    }

    /// Returns statistics of the symbolised code addresses.
    pub fn symbols(&self) -> &SymbolsData {
        &self.symbols
    }
}
