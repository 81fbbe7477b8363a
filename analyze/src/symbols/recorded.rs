//! Names of code addresses that the recording contains, because it was packed.

use super::{Frame, Names};
use crate::load::{Meta, Pc};
use prof_trace::derived::{Frames, NamedFrame};
use std::collections::HashMap;

/// The recorded names by code address.
#[derive(Debug, Default)]
pub(crate) struct RecordedNames {
    chunks: Vec<Frames>,
    /// Index of the chunk, and of the address in it.
    places: HashMap<Pc, (u32, u32)>,
}

impl RecordedNames {
    pub(crate) fn new(chunks: Vec<Frames>) -> Self {
        let mut places = HashMap::new();
        for (i, c) in chunks.iter().enumerate() {
            for (k, a) in c.addresses.iter().enumerate() {
                let pc = Pc { address: a.address, module: a.module, exact: a.exact };
                places.insert(pc, (i as u32, k as u32));
            }
        }
        Self { chunks, places }
    }

    /// Returns the frames of an address, if the recording has them.
    pub(super) fn frames(&self, meta: &Meta, pc: Pc, names: &mut Names) -> Option<Vec<Frame>> {
        let (chunk, place) = self.places.get(&pc)?;
        let chunk = self.chunks.get(*chunk as usize)?;
        let found = chunk.addresses.get(*place as usize)?;
        // An address without a name when the recording was packed may have one here.
        found.frames.iter().find(|f| f.function != 0)?;
        let module = meta.modules.get(&pc.module);
        let string = |n: u32| chunk.strings.get((n as usize).checked_sub(1)?);
        let frame = |f: &NamedFrame| Frame {
            address: pc.address,
            function: string(f.function).map(|s| names.function(s)),
            function_offset: f.offset,
            file: string(f.file).map(|s| names.file(s)),
            line: f.line,
            module: Some(module.map_or("[jit]", |m| m.path.as_str()).into()),
            offset: module.map(|m| pc.address.wrapping_sub(m.bias)),
            inlined: f.inlined,
        };
        Some(found.frames.iter().map(frame).collect())
    }
}
