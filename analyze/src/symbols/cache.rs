//! Caches names by the addresses of a module, in files of the user's cache folder, so that the next report need not
//! read the debug information again.
//!
//! A cache file belongs to a module's build and to the very files that its names came from: if one of these is
//! replaced, removed or added, the key changes.

use super::Frame;
use super::elf::ObjectFile;
use prof_os::files::open_regular;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const VERSION: u32 = 1;

/// Greatest length of a cache file that is read.
const LONGEST: u64 = 128 << 20;

/// Greatest number of addresses of a module that are cached.
const MOST: usize = 500_000;

/// Limit on the bytes of all cache files; the oldest are removed first.
const ROOM: u64 = 512 << 20;

/// A frame, with its strings as indices of a list.
type Kept = (Option<u32>, Option<u64>, Option<u32>, Option<u32>);

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    key: String,
    strings: Vec<String>,
    addresses: Vec<(u64, Vec<Kept>)>,
}

/// The cached names of a module.
pub(super) struct Cache {
    path: PathBuf,
    key: String,
    strings: Vec<Arc<str>>,
    known: HashMap<u64, Vec<Kept>>,
}

/// Returns the user's cache folder for names.
pub(super) fn folder() -> Option<PathBuf> {
    of_user("symbols")
}

/// Returns a subfolder of the user's cache folder; `None` if that belongs to another user, as sudo may leave HOME
/// unchanged.
pub(crate) fn of_user(part: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    let there = base.ancestors().find(|p| p.exists())?;
    is_own(&fs::metadata(there).ok()?).then(|| base.join("prof").join(part))
}

/// Returns whether only this user can change a file.
pub(super) fn is_own(meta: &fs::Metadata) -> bool {
    let me = prof_os::process::effective_uid();
    meta.uid() == me && meta.mode() & 0o022 == 0
}

/// Returns a key that identifies the files that names come from, and the form of the names.
pub(super) fn key(
    short: bool,
    build_id: &[u8],
    files: &[Option<Arc<ObjectFile>>],
) -> Option<String> {
    let id: String = build_id.iter().map(|b| format!("{b:02x}")).collect();
    let mut key = format!("{} {id} {short}", env!("CARGO_PKG_VERSION"));
    for f in files {
        key.push('\n');
        if let Some(f) = f {
            key.push_str(f.identity()?);
        }
    }
    Some(key)
}

/// Returns a hash of a key, which names its file.
fn hash(key: &str) -> u64 {
    let mix = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    key.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Returns the number of an address in the list; `None` if it is not cached.
fn place(offset: u64, exact: bool) -> Option<u64> {
    (offset >> 63 == 0).then_some(offset << 1 | u64::from(exact))
}

impl Cache {
    /// Opens the cache with that key in a folder.
    pub(super) fn open(folder: &Path, key: String) -> Self {
        let path = folder.join(format!("{:016x}.json", hash(&key)));
        let stored = read(&path).filter(|s| s.version == VERSION && s.key == key);
        let mut cache = Self { path, key, strings: Vec::new(), known: HashMap::new() };
        if let Some(s) = stored {
            cache.strings = s.strings.into_iter().map(Arc::from).collect();
            cache.known = s.addresses.into_iter().collect();
        }
        cache
    }

    /// Returns the frames of an address, if they are cached; fields that are equal for all frames are copied from
    /// `plain`.
    pub(super) fn frames(&self, exact: bool, plain: &Frame) -> Option<Vec<Frame>> {
        let kept = self.known.get(&place(plain.offset?, exact)?)?;
        let text = |at: Option<u32>| match at {
            None => Some(None),
            Some(at) => self.strings.get(at as usize).cloned().map(Some),
        };
        let last = kept.len().checked_sub(1)?;
        let frame = |(i, k): (usize, &Kept)| {
            Some(Frame {
                function: text(k.0)?,
                function_offset: k.1,
                file: text(k.2)?,
                line: k.3,
                inlined: i < last,
                ..plain.clone()
            })
        };
        kept.iter().enumerate().map(frame).collect()
    }

    /// Writes the cache. Errors are ignored, as they only cost time.
    pub(super) fn save<'a>(&self, frames: impl Iterator<Item = (bool, &'a [Frame])>) {
        let mut ids: HashMap<Arc<str>, u32> = HashMap::new();
        let mut strings = Vec::new();
        let mut id = |s: &Option<Arc<str>>| {
            let s = s.as_ref()?;
            Some(*ids.entry(s.clone()).or_insert_with(|| {
                strings.push(s.to_string());
                strings.len() as u32 - 1
            }))
        };
        let mut all: HashMap<u64, Vec<Kept>> = HashMap::new();
        for (at, kept) in &self.known {
            let text = |i: Option<u32>| i.and_then(|i| self.strings.get(i as usize).cloned());
            let again = |k: &Kept| (id(&text(k.0)), k.1, id(&text(k.2)), k.3);
            all.insert(*at, kept.iter().map(again).collect());
        }
        for (exact, frames) in frames {
            let at = frames.first().and_then(|f| place(f.offset?, exact));
            if let Some(at) = at.filter(|_| all.len() < MOST) {
                let kept = |f: &Frame| (id(&f.function), f.function_offset, id(&f.file), f.line);
                all.insert(at, frames.iter().map(kept).collect());
            }
        }
        let mut addresses: Vec<_> = all.into_iter().collect();
        addresses.sort_unstable_by_key(|a| a.0);
        let stored = Stored { version: VERSION, key: self.key.clone(), strings, addresses };
        if let Some(folder) = self.path.parent() {
            let _ = write(folder, &self.path, &stored);
        }
    }
}

fn read(path: &Path) -> Option<Stored> {
    let file = open_regular(path).ok()?;
    let meta = file.metadata().ok()?;
    if !is_own(&meta) || meta.len() > LONGEST {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn write(folder: &Path, path: &Path, stored: &Stored) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if !is_own(&fs::symlink_metadata(folder)?) {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    let bytes = serde_json::to_vec(stored)?;
    make_room(folder, bytes.len() as u64);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(name);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(&bytes).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Removes the oldest files until there is room for another.
fn make_room(folder: &Path, len: u64) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let of = |e: fs::DirEntry| {
        let meta = e.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((meta.modified().ok()?, meta.len(), e.path()))
    };
    let mut all: Vec<_> = entries.flatten().filter_map(of).collect();
    all.sort();
    let mut sum = len + all.iter().map(|f| f.1).sum::<u64>();
    for (_, len, path) in all {
        if sum <= ROOM {
            break;
        }
        if fs::remove_file(path).is_ok() {
            sum -= len;
        }
    }
}
