//! Files, lines and inlined functions from debug information.

use super::elf::Image;
use super::find;
use addr2line::Context;
use gimli::{EndianSlice, RunTimeEndian, Section, SectionId};
use std::borrow::Cow;
use std::sync::Arc;

/// A frame as the debug information has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The function, not demangled.
    pub function: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line.
    pub line: Option<u32>,
}

type Slice = EndianSlice<'static, RunTimeEndian>;

/// The debug information of a module.
pub(super) struct Dwarf {
    // Before what it points into: fields are dropped in order.
    context: Context<Slice>,
    _keep: Keep,
}

/// What the slices of a context point into.
#[derive(Default)]
struct Keep {
    images: Vec<Arc<Image>>,
    decompressed: Vec<Vec<u8>>,
}

impl Keep {
    /// A section as a slice that is valid for as long as `self` is.
    fn section(&mut self, image: &Arc<Image>, id: SectionId) -> Slice {
        let endian = match image.is_little_endian() {
            true => RunTimeEndian::Little,
            false => RunTimeEndian::Big,
        };
        let bytes: *const [u8] = match image.section(id.name()) {
            None => &[],
            Some(Cow::Borrowed(b)) => b,
            Some(Cow::Owned(v)) => {
                self.decompressed.push(v);
                self.decompressed.last().map_or(&[], |v| v.as_slice())
            }
        };
        // SAFETY: the bytes are those of a mapping that `images` holds, or of the heap block of a
        // vector in `decompressed`, neither of which moves or changes; and both live in the same
        // `Dwarf` as all copies of this slice, behind them.
        EndianSlice::new(unsafe { &*bytes }, endian)
    }
}

impl Dwarf {
    /// The debug information of a file; `None` if it has none.
    pub(super) fn load(image: Arc<Image>) -> Option<Self> {
        let mut keep = Keep { images: vec![image.clone()], ..Keep::default() };
        let load = |id| Ok::<_, gimli::Error>(keep.section(&image, id));
        let mut dwarf = gimli::Dwarf::load(load).ok()?;
        if dwarf.debug_info.reader().is_empty() {
            return None;
        }
        if let Some(other) = find::alternate(&image) {
            keep.images.push(other.clone());
            dwarf.load_sup(|id| Ok::<_, gimli::Error>(keep.section(&other, id))).ok()?;
        }
        Some(Self { context: Context::from_dwarf(dwarf).ok()?, _keep: keep })
    }

    /// The frames at an address of the file, innermost first; the last is the function whose code
    /// it is, those before it were inlined. Empty if nothing is known.
    pub(super) fn frames(&self, address: u64) -> Vec<Found> {
        let mut out = Vec::new();
        let Ok(mut frames) = self.context.find_frames(address).skip_all_loads() else { return out };
        while let Ok(Some(f)) = frames.next() {
            let name = |n: addr2line::FunctionName<Slice>| n.raw_name().ok().map(Cow::into_owned);
            out.push(Found {
                function: f.function.and_then(name),
                file: f.location.as_ref().and_then(|l| l.file).map(str::to_owned),
                line: f.location.as_ref().and_then(|l| l.line).filter(|l| *l != 0),
            });
        }
        out
    }
}
