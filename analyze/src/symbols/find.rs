//! Where the files of modules, and those with their debug information, are.

use super::elf::Image;
use crate::Analysis;
use prof_trace::files::read_at_most;
use prof_trace::records::{Module, Target};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DEBUG: &str = "/usr/lib/debug";

/// The files of a module.
#[derive(Default)]
pub(super) struct Files {
    /// What was loaded.
    pub image: Option<Arc<Image>>,
    /// A separate file with debug information.
    pub debug: Option<Arc<Image>>,
}

/// Whether the process of a recording is there and is the one that was recorded.
pub fn is_target(target: &Target) -> bool {
    let proc = PathBuf::from(format!("/proc/{}", target.pid));
    if target.pid == 0 || !proc.exists() {
        return false;
    }
    let exe = std::fs::read_link(proc.join("exe")).ok();
    let exe = exe.as_ref().and_then(|p| p.to_str());
    if exe.is_some_and(|p| p.strip_suffix(" (deleted)").unwrap_or(p) == target.exe) {
        return true;
    }
    let cmdline = read_at_most(&proc.join("cmdline"), 1 << 20).unwrap_or_default();
    let cmdline = cmdline.strip_suffix(b"\0").unwrap_or(&cmdline);
    !cmdline.is_empty()
        && cmdline
            .split(|b| *b == 0)
            .map(String::from_utf8_lossy)
            .eq(target.cmdline.iter().map(String::as_str))
}

/// A path, and the root folder that it begins at if that is not this process's.
type Place = (Option<PathBuf>, PathBuf);

/// Finds the files of a module: the same file that was loaded, or nothing.
pub(super) fn find(analysis: &Analysis, module: &Module) -> Files {
    let target = &analysis.meta().target;
    let image = candidates(target, module)
        .filter_map(|(root, path)| Image::open_in(root.as_deref(), &path))
        .find(|i| i.build_id() == module.build_id)
        .map(Arc::new);
    let debug = by_build_id(&module.build_id)
        .or_else(|| image.as_ref().and_then(|i| by_link(i, Path::new(&module.path))));
    Files { image, debug }
}

fn candidates(target: &Target, module: &Module) -> impl Iterator<Item = Place> {
    let mut places = Vec::new();
    let path = module.path.as_str();
    if path.starts_with('/') {
        places.push((None, PathBuf::from(path)));
    }
    let live = is_target(target);
    if live && path.starts_with('/') {
        places.push((Some(format!("/proc/{}/root", target.pid).into()), PathBuf::from(path)));
    }
    // Files that were deleted or replaced are still there behind the mappings; reading the list
    // is put off until the others have failed.
    let mapped = std::iter::once_with(move || if live { mapped(target, module) } else { vec![] });
    places.into_iter().chain(mapped.flatten().map(|p| (None, p)))
}

/// The mappings of a module, as paths of the files behind them.
fn mapped(target: &Target, module: &Module) -> Vec<PathBuf> {
    let dir = PathBuf::from(format!("/proc/{}", target.pid));
    let maps = std::fs::read_to_string(dir.join("maps")).unwrap_or_default();
    let mut out = Vec::new();
    for line in maps.lines() {
        let Some((range, _)) = line.split_once(' ') else { continue };
        let Some((start, _)) = range.split_once('-') else { continue };
        let Ok(at) = u64::from_str_radix(start, 16) else { continue };
        if (module.start..module.end).contains(&at) {
            out.push(dir.join("map_files").join(range));
            break;
        }
    }
    if module.path == target.exe {
        out.push(dir.join("exe"));
    }
    out
}

fn by_build_id(id: &[u8]) -> Option<Arc<Image>> {
    let (first, rest) = id.split_first()?;
    if rest.is_empty() {
        return None;
    }
    let rest: String = rest.iter().map(|b| format!("{b:02x}")).collect();
    let path = format!("{DEBUG}/.build-id/{first:02x}/{rest}.debug");
    let image = Image::open(Path::new(&path))?;
    (image.build_id() == id).then(|| Arc::new(image))
}

fn by_link(image: &Image, path: &Path) -> Option<Arc<Image>> {
    let (name, sum) = image.debug_link()?;
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let dir = path.parent()?;
    let here = image.path().parent()?;
    let global = Path::new(DEBUG).join(dir.strip_prefix("/").ok()?);
    let root = image.root();
    let places = [
        (root, here.join(&name)),
        (root, here.join(".debug").join(&name)),
        (None, global.join(&name)),
    ];
    let wanted = |i: &Image| match image.build_id() {
        [] => i.checksum() == sum,
        id => i.build_id() == id,
    };
    places
        .iter()
        .filter(|(_, p)| p != image.path())
        .filter_map(|(root, p)| Image::open_in(*root, p))
        .find(wanted)
        .map(Arc::new)
}

/// The file that a debug file shares parts of its information with.
pub(super) fn alternate(image: &Image) -> Option<Arc<Image>> {
    let (path, id) = image.alternate()?;
    let relative = image.path().parent()?.join(path);
    let found =
        Image::open_in(image.root(), &relative).filter(|i| i.build_id() == id).map(Arc::new);
    found.or_else(|| by_build_id(&id))
}
