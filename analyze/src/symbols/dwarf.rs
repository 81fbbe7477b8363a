//! Reads files, lines and inlined functions from debug information.

use super::elf::ObjectFile;
use super::find;
use super::options::SymbolOptions;
use addr2line::{Context, LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{DwarfPackage, EndianSlice, RunTimeEndian, SectionId};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

type Slice = EndianSlice<'static, RunTimeEndian>;

/// The debug information of a module.
pub(super) struct Dwarf {
    // Declared before the data that its slices point into, as fields are dropped in order.
    context: Context<Slice>,
    package: Option<DwarfPackage<Slice>>,
    keep: RefCell<Keep>,
    image: Arc<ObjectFile>,
    options: SymbolOptions,
    split: Cell<bool>,
}

/// Owns the data that the slices of a context point into.
#[derive(Default)]
struct Keep {
    images: Vec<Arc<ObjectFile>>,
    decompressed: Vec<Vec<u8>>,
}

impl Keep {
    /// Returns a section as a slice that is valid as long as `self` lives.
    fn section(&mut self, image: &Arc<ObjectFile>, name: Option<&str>) -> Slice {
        let endian = match image.is_little_endian() {
            true => RunTimeEndian::Little,
            false => RunTimeEndian::Big,
        };
        let bytes: *const [u8] = match name.and_then(|n| image.section(n)) {
            None => &[],
            Some(Cow::Borrowed(b)) => b,
            Some(Cow::Owned(v)) => {
                self.decompressed.push(v);
                self.decompressed.last().map_or(&[], |v| v.as_slice())
            }
        };
        // SAFETY: the bytes belong to a file that `images` holds, or to the heap block of a vector in `decompressed`;
        // neither moves or changes. Both live in the same `Dwarf` as all copies of this slice, and are dropped after
        // them.
        EndianSlice::new(unsafe { &*bytes }, endian)
    }
}

impl Dwarf {
    /// Loads the debug information of a file; `None` if it has none.
    pub(super) fn load(image: Arc<ObjectFile>, options: &SymbolOptions) -> Option<Self> {
        let mut keep = Keep { images: vec![image.clone()], ..Keep::default() };
        let load = |id: SectionId| Ok::<_, gimli::Error>(keep.section(&image, Some(id.name())));
        let mut dwarf = gimli::Dwarf::load(load).ok()?;
        if gimli::Section::reader(&dwarf.debug_info).is_empty() {
            return None;
        }
        if let Some(other) = find::alternate(&image, options) {
            keep.images.push(other.clone());
            let load = |id: SectionId| Ok::<_, gimli::Error>(keep.section(&other, Some(id.name())));
            dwarf.load_sup(load).ok()?;
        }
        let package = find::package(&image, options).and_then(|p| {
            keep.images.push(p.clone());
            let load = |id: SectionId| Ok::<_, gimli::Error>(keep.section(&p, id.dwo_name()));
            DwarfPackage::load(load, EndianSlice::new(&[], RunTimeEndian::Little)).ok()
        });
        let context = Context::from_dwarf(dwarf).ok()?;
        let options = options.clone();
        Some(Self {
            context,
            package,
            keep: RefCell::new(keep),
            image,
            options,
            split: Cell::new(false),
        })
    }

    /// Calls `take` for the frames at an address of the file, innermost first, with the mangled function, the source
    /// file and the line. The last frame is the function that contains the code; those before it were inlined.
    pub(super) fn frames(
        &self,
        address: u64,
        mut take: impl FnMut(Option<&str>, Option<&str>, Option<u32>),
    ) {
        // No code is there, and addr2line would add one to it.
        if address == u64::MAX {
            return;
        }
        let mut lookup = self.context.find_frames(address);
        let found = loop {
            lookup = match lookup {
                LookupResult::Output(found) => break found,
                LookupResult::Load { load, continuation } => continuation.resume(self.split(load)),
            };
        };
        let Ok(mut frames) = found else { return };
        while let Ok(Some(f)) = frames.next() {
            let name = f.function.as_ref().and_then(|n| n.raw_name().ok());
            let file = f.location.as_ref().and_then(|l| l.file);
            let line = f.location.as_ref().and_then(|l| l.line).filter(|l| *l != 0);
            take(name.as_deref(), file, line);
        }
    }

    /// Returns whether parts of it were looked for in other files.
    pub(super) fn is_split(&self) -> bool {
        self.split.get()
    }

    /// Loads the debug information of a unit from a separate file, or from a package.
    fn split(&self, load: SplitDwarfLoad<Slice>) -> Option<Arc<gimli::Dwarf<Slice>>> {
        self.split.set(true);
        if let Some(package) = &self.package
            && let Ok(Some(unit)) = package.find_cu(load.dwo_id, &load.parent)
        {
            return Some(Arc::new(unit));
        }
        let named = load.path?;
        let mut path = Path::new(OsStr::from_bytes(named.slice())).to_owned();
        if let Some(dir) = &load.comp_dir {
            path = Path::new(OsStr::from_bytes(dir.slice())).join(path);
        }
        for image in find::split(&self.image, &path, &self.options) {
            let mut keep = self.keep.borrow_mut();
            keep.images.push(image.clone());
            let section =
                |id: SectionId| Ok::<_, gimli::Error>(keep.section(&image, id.dwo_name()));
            let Ok(mut dwarf) = gimli::Dwarf::load(section) else { continue };
            dwarf.make_dwo(&load.parent);
            let header = dwarf.units().next().ok().flatten();
            let unit = header.and_then(|h| dwarf.unit(h).ok());
            // A file of another build of the unit is ignored.
            if unit.is_some_and(|u| u.dwo_id == Some(load.dwo_id)) {
                return Some(Arc::new(dwarf));
            }
        }
        None
    }
}
