//! Frames without their addresses, so that equal frames of different stacks can be matched.

use super::FrameData;
use crate::Analysis;
use crate::askers::{Askers, Seen};
use crate::load::Pc;
use crate::style::printable;
use crate::symbols::{Frame, Symbolizer};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// A place in the code: equal for all addresses of a source line, or of a function without line information.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct PlaceData {
    /// The function, if it is known.
    pub function: Option<String>,
    /// The source file, if it is known.
    pub file: Option<String>,
    /// The line, if it is known.
    pub line: Option<u32>,
    /// Path of the module, if it is known.
    pub module: Option<String>,
    /// If the function is not known: the address relative to the module's file or, without a module, the address
    /// itself, in hexadecimal.
    pub offset: Option<String>,
    /// Whether the compiler inlined the function into that of the next frame.
    pub inlined: bool,
}

impl PlaceData {
    pub(super) fn of(f: &FrameData) -> Self {
        let offset = match f.function {
            Some(_) => None,
            None => Some(f.offset.clone().unwrap_or_else(|| f.address.clone())),
        };
        let (function, file, module) = (f.function.clone(), f.file.clone(), f.module.clone());
        Self { function, file, line: f.line, module, offset, inlined: f.inlined }
    }

    fn new(f: &Frame) -> Self {
        let offset = match f.function {
            Some(_) => None,
            None => Some(format!("{:#x}", f.offset.unwrap_or(f.address))),
        };
        Self {
            function: f.function.as_deref().map(printable),
            file: f.file.as_deref().map(printable),
            line: f.line,
            module: f.module.as_deref().map(printable),
            offset,
            inlined: f.inlined,
        }
    }
}

/// Numbers the places of a recording's stacks.
pub(crate) struct Places<'a> {
    analysis: &'a Analysis,
    pub symbols: Symbolizer<'a>,
    places: Vec<PlaceData>,
    ids: HashMap<PlaceData, u32>,
    known: HashMap<Pc, Arc<[u32]>>,
    askers: Option<Askers>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(analysis: &'a Analysis) -> Self {
        Self {
            analysis,
            symbols: Symbolizer::new(analysis),
            places: Vec::new(),
            ids: HashMap::new(),
            known: HashMap::new(),
            askers: None,
        }
    }

    pub(crate) fn get(&self, id: u32) -> &PlaceData {
        &self.places[id as usize]
    }

    /// Returns all places; their indices are their numbers.
    pub(crate) fn into_places(self) -> Vec<PlaceData> {
        self.places
    }

    /// Returns the places of a stack, innermost first.
    pub(crate) fn stack(&mut self, node: u32) -> Vec<u32> {
        let mut out = Vec::new();
        for pc in self.analysis.meta().stack(node) {
            match self.known.get(&pc) {
                Some(ids) => out.extend_from_slice(ids),
                None => out.extend_from_slice(&self.look(pc)),
            }
        }
        out
    }

    fn look(&mut self, pc: Pc) -> Arc<[u32]> {
        let frames = self.symbols.frames(pc);
        let ids: Arc<[u32]> = frames.iter().map(|f| self.id(PlaceData::new(f))).collect();
        self.known.insert(pc, ids.clone());
        ids
    }

    fn id(&mut self, place: PlaceData) -> u32 {
        if let Some(id) = self.ids.get(&place) {
            return *id;
        }
        let id = self.places.len() as u32;
        self.ids.insert(place.clone(), id);
        self.places.push(place);
        id
    }

    /// Returns the index of the frame that asked for the memory (see [`Askers`]).
    pub(crate) fn asker(&mut self, stack: &[u32]) -> Option<usize> {
        let (analysis, symbols) = (self.analysis, &mut self.symbols);
        let askers = self.askers.get_or_insert_with(|| Askers::new(analysis, symbols));
        let place = |i: usize| {
            let place = &self.places[*stack.get(i)? as usize];
            let (function, module) = (place.function.as_deref(), place.module.as_deref());
            Some(Seen { function, module, file: place.file.as_deref() })
        };
        askers.find(place).map(|asked| asked.asker)
    }
}
