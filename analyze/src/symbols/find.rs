//! Finds the files of modules, and their debug files.

use super::alive::is_target;
use super::elf::ObjectFile;
use super::options::{RootedPath, SymbolOptions, under};
use crate::Analysis;
use prof_os::Pid;
use prof_trace::records::{Module, Target};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of a module.
#[derive(Default)]
pub(super) struct Files {
    /// The file that was loaded.
    pub image: Option<Arc<ObjectFile>>,
    /// A separate file with debug information.
    pub debug: Option<Arc<ObjectFile>>,
    /// A file has the module's path, but another build ID.
    pub replaced: bool,
}

/// Finds the files of a module: the same build that was loaded, or nothing.
pub(super) fn find(analysis: &Analysis, module: &Module) -> Files {
    let (target, options) = (&analysis.meta().target, analysis.symbol_options());
    let mut replaced = false;
    let image = candidates(target, module, options)
        .filter_map(|(root, path)| ObjectFile::open_in(root.as_deref(), &path))
        .find(|i| {
            let same = i.build_id() == module.build_id;
            replaced |= !same;
            same
        })
        .map(Arc::new);
    let debug = by_build_id(&module.build_id, options)
        .or_else(|| image.as_ref().and_then(|i| by_link(i, Path::new(&module.path), options)))
        .or_else(|| by_name(module, options))
        .or_else(|| by_server(image.as_deref(), module, options));
    Files { image, debug, replaced }
}

/// Returns the paths of a module's file and its debug file, each with the root folder that it is relative to, if that
/// is not this process's.
pub(crate) fn paths(analysis: &Analysis, module: &Module) -> Vec<RootedPath> {
    let found = find(analysis, module);
    let place = |i: Arc<ObjectFile>| (i.root().map(Path::to_owned), i.path().to_owned());
    found.image.into_iter().chain(found.debug).map(place).collect()
}

fn candidates<'a>(
    target: &'a Target,
    module: &'a Module,
    options: &'a SymbolOptions,
) -> impl Iterator<Item = RootedPath> + 'a {
    let mut places = Vec::new();
    let path = module.path.as_str();
    let live = is_target(target);
    if path.starts_with('/') {
        places.extend(options.elsewhere(Path::new(path)));
        places.push((None, PathBuf::from(path)));
        if live {
            places.push((Some(format!("/proc/{}/root", target.pid).into()), PathBuf::from(path)));
        }
    }
    // The mappings still refer to files that were deleted or replaced. The list is read only after the other places
    // have failed.
    let mapped = std::iter::once_with(move || if live { mapped(target, module) } else { vec![] });
    places.into_iter().chain(mapped.flatten().map(|p| (None, p)))
}

/// Returns paths under /proc of the files that a module's address range maps.
fn mapped(target: &Target, module: &Module) -> Vec<PathBuf> {
    let dir = PathBuf::from(format!("/proc/{}", target.pid));
    let mut out = Vec::new();
    let maps = prof_os::maps::of(Pid::from_u32(target.pid)).unwrap_or_default();
    let of_module = maps.iter().find(|m| (module.start..module.end).contains(&m.start.0));
    out.extend(of_module.map(|m| dir.join("map_files").join(format!("{:x}-{:x}", m.start, m.end))));
    if module.path == target.exe {
        out.push(dir.join("exe"));
    }
    out
}

fn by_build_id(id: &[u8], options: &SymbolOptions) -> Option<Arc<ObjectFile>> {
    let (first, rest) = id.split_first()?;
    if rest.is_empty() {
        return None;
    }
    let rest: String = rest.iter().map(|b| format!("{b:02x}")).collect();
    let name = PathBuf::from(format!(".build-id/{first:02x}/{rest}.debug"));
    let places = options.debug_folders().map(|(root, dir)| (root, dir.join(&name)));
    opened(places, |i| i.build_id() == id)
}

/// Opens the first of several files that satisfies `right`.
fn opened(
    places: impl Iterator<Item = RootedPath>,
    right: impl Fn(&ObjectFile) -> bool,
) -> Option<Arc<ObjectFile>> {
    places
        .filter_map(|(root, path)| ObjectFile::open_in(root.as_deref(), &path))
        .find(right)
        .map(Arc::new)
}

fn by_link(image: &ObjectFile, path: &Path, options: &SymbolOptions) -> Option<Arc<ObjectFile>> {
    let (name, sum) = image.debug_link()?;
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let dir = path.parent()?;
    let here = image.path().parent()?;
    let root = image.root().map(Path::to_owned);
    let beside = [(root.clone(), here.join(&name)), (root, here.join(".debug").join(&name))];
    let folders = options
        .debug_folders()
        .flat_map(|(root, f)| [(root.clone(), under(&f, dir).join(&name)), (root, f.join(&name))]);
    let wanted = |i: &ObjectFile| match i.build_id() {
        [] => i.checksum() == sum,
        id => id == image.build_id(),
    };
    opened(beside.into_iter().chain(folders).filter(|(_, p)| p != image.path()), wanted)
}

/// Opens the debug file in a folder of `debug_paths` that has the module's name and `.debug`.
fn by_name(module: &Module, options: &SymbolOptions) -> Option<Arc<ObjectFile>> {
    if module.build_id.is_empty() {
        return None;
    }
    let name = Path::new(&module.path).file_name()?.to_string_lossy().into_owned() + ".debug";
    let places = options.debug_paths.iter().map(|dir| (None, dir.join(&name)));
    opened(places, |i| i.build_id() == module.build_id)
}

/// Opens what a debuginfod server has for a module without local debug information.
fn by_server(
    image: Option<&ObjectFile>,
    module: &Module,
    options: &SymbolOptions,
) -> Option<Arc<ObjectFile>> {
    let servers = options.servers.as_ref()?;
    // The kernel's own code (`[vdso]`) is in no package.
    let is_file = !module.path.starts_with('[');
    if !is_file || image.is_some_and(ObjectFile::has_lines) {
        return None;
    }
    servers.find(&module.build_id, &module.path)
}

/// Opens the file that a debug file shares parts of its information with.
pub(super) fn alternate(image: &ObjectFile, options: &SymbolOptions) -> Option<Arc<ObjectFile>> {
    let (path, id) = image.alternate()?;
    let relative = image.path().parent()?.join(path);
    let found =
        ObjectFile::open_in(image.root(), &relative).filter(|i| i.build_id() == id).map(Arc::new);
    let of = || image.path().to_string_lossy().into_owned();
    found
        .or_else(|| by_build_id(&id, options))
        .or_else(|| options.servers.as_ref()?.find(&id, &of()))
}

/// Opens the package of an image's split debug information.
pub(super) fn package(image: &ObjectFile, options: &SymbolOptions) -> Option<Arc<ObjectFile>> {
    let mut name = image.path().as_os_str().to_owned();
    name.push(".dwp");
    let path = PathBuf::from(name);
    let beside = (image.root().map(Path::to_owned), path.clone());
    opened(std::iter::once(beside).chain(options.elsewhere(&path)), |_| true)
}

/// Opens files of split debug information, at the path that the program names.
pub(super) fn split(
    image: &ObjectFile,
    path: &Path,
    options: &SymbolOptions,
) -> Vec<Arc<ObjectFile>> {
    let there = (image.root().map(Path::to_owned), path.to_owned());
    let beside = image
        .path()
        .parent()
        .zip(path.file_name())
        .map(|(dir, name)| (image.root().map(Path::to_owned), dir.join(name)));
    std::iter::once(there)
        .chain(beside)
        .chain(options.elsewhere(path))
        .filter_map(|(root, path)| ObjectFile::open_in(root.as_deref(), &path))
        .map(Arc::new)
        .collect()
}
