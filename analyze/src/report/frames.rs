//! The frames of a stack as data, and the frame among them that asked for the blocks.

use super::places::PlaceData;
use crate::Analysis;
use crate::askers::{Askers, Seen, bare};
use crate::style::printable;
use crate::symbols::{Frame, Symbolizer};
use serde::Serialize;

/// The frame that asked for blocks: the innermost that is neither an allocator, nor a wrapper of one, nor in a standard
/// library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AskedData {
    /// Function, file and line of the frame.
    #[serde(flatten)]
    pub place: PlaceData,
    /// The wrapper or library function that the frame called.
    pub through: Option<String>,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrameData {
    /// The address in the stack, in hexadecimal.
    pub address: String,
    /// The function, if it is known.
    pub function: Option<String>,
    /// Distance of the address from the start of the function, in bytes.
    pub function_offset: Option<u64>,
    /// The source file, if it is known.
    pub file: Option<String>,
    /// The line, if it is known.
    pub line: Option<u32>,
    /// Path of the module, if it is known.
    pub module: Option<String>,
    /// The address relative to the module's file, in hexadecimal.
    pub offset: Option<String>,
    /// Whether the compiler inlined the function into that of the next frame.
    pub inlined: bool,
}

impl FrameData {
    /// Returns the data of a frame; control characters in names are escaped.
    pub fn new(f: &Frame) -> Self {
        Self {
            address: format!("{:#x}", f.address),
            function: f.function.as_deref().map(printable),
            function_offset: f.function_offset,
            file: f.file.as_deref().map(printable),
            line: f.line,
            module: f.module.as_deref().map(printable),
            offset: f.offset.map(|o| format!("{o:#x}")),
            inlined: f.inlined,
        }
    }
}

/// Returns the frames of a stack, innermost first.
pub(crate) fn frames_of(
    analysis: &Analysis,
    node: u32,
    symbols: &mut Symbolizer<'_>,
) -> Vec<FrameData> {
    let stack = analysis.meta().stack(node);
    let frames = stack
        .into_iter()
        .flat_map(|pc| symbols.frames(pc).iter().map(FrameData::new).collect::<Vec<_>>());
    frames.collect()
}

/// Returns the frame that asked for the blocks of a stack.
pub(crate) fn asked_by(frames: &[FrameData], askers: &Askers) -> Option<AskedData> {
    let frame = |i: usize| {
        let f: &FrameData = frames.get(i)?;
        let (function, module) = (f.function.as_deref(), f.module.as_deref());
        Some(Seen { function, module, file: f.file.as_deref() })
    };
    let asked = askers.find(frame)?;
    let through = asked.through.and_then(|i| frames[i].function.as_deref()).map(bare);
    Some(AskedData { place: PlaceData::of(&frames[asked.asker]), through })
}
