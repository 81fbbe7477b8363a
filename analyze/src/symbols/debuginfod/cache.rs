//! The folder that clients of debuginfod share: `BUILDID/debuginfo` for each build, empty where no server had it,
//! and files with the times after which things are done, in seconds (debuginfod_find_debuginfo(3)).

use super::super::cache::is_own;
use super::super::elf::ObjectFile;
use crate::index::files::NewFile;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// For how long a file is taken to be missing on all servers: the file's name, and the seconds if it isn't there.
const MISSING: (&str, u64) = ("cache_miss_s", 600);
/// Interval at which the folder is cleaned, in seconds.
const CLEANED: (&str, u64) = ("cache_clean_interval_s", 86400);
/// For how long nobody must have used a file.
const UNUSED: (&str, u64) = ("max_unused_age_s", 604_800);

/// The folder that the environment says, or that is usual. None in the home of another user: sudo may have left HOME
/// as it was.
pub(super) fn folder(variable: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).map(PathBuf::from).filter(|p| p.is_absolute());
    if let Some(named) = path("DEBUGINFOD_CACHE_PATH") {
        return Some(named);
    }
    let home = path("HOME");
    let old = home.as_ref().map(|h| h.join(".debuginfod_client_cache")).filter(|p| p.is_dir());
    let new = || {
        let base = path("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")))?;
        Some(base.join("debuginfod_client"))
    };
    let folder = old.or_else(new)?;
    let there = folder.ancestors().find(|p| p.exists())?;
    is_own(&fs::metadata(there).ok()?).then_some(folder)
}

/// Bytes that the file system of a file has left.
pub(super) fn room(file: &File) -> u64 {
    // SAFETY: all zeroes are a value of the struct, and fstatvfs writes one where its argument points.
    let (rc, s) = unsafe {
        let mut s: libc::statvfs = std::mem::zeroed();
        (libc::fstatvfs(file.as_raw_fd(), &mut s), s)
    };
    #[allow(clippy::unnecessary_cast)] // of other types where words are of 32 bits
    if rc == 0 { (s.f_bavail as u64).saturating_mul(s.f_frsize as u64) } else { u64::MAX }
}

/// The place of a build's debug information.
pub(super) struct Entry {
    name: String,
    folder: PathBuf,
    file: PathBuf,
    root: PathBuf,
}

/// Result of a search in the cache.
pub(super) enum Found {
    /// The file is in the cache.
    File(Box<ObjectFile>),
    /// No server had it a short while ago.
    Missing,
    /// Nothing, or nothing that is of use.
    Nothing,
}

impl Entry {
    pub(super) fn of(root: &Path, name: &str) -> Self {
        let folder = root.join(name);
        Self {
            name: name.to_owned(),
            file: folder.join("debuginfo"),
            folder,
            root: root.to_owned(),
        }
    }

    /// The build id, as text.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    pub(super) fn look(&self, id: &[u8]) -> Found {
        match fs::metadata(&self.file) {
            Ok(meta) if meta.len() == 0 => {
                let age = meta.modified().ok().and_then(|t| t.elapsed().ok());
                let lasts = seconds(&self.root, MISSING);
                if age.is_some_and(|a| a < lasts) { Found::Missing } else { Found::Nothing }
            }
            Ok(_) => match ObjectFile::open_in(None, &self.file).filter(|i| i.build_id() == id) {
                Some(image) => Found::File(Box::new(image)),
                None => Found::Nothing,
            },
            Err(_) => Found::Nothing,
        }
    }

    /// A file to write to, which takes the entry's name when it is whole.
    pub(super) fn place(&self) -> io::Result<NewFile> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        NewFile::at(self.file.clone(), None)
    }

    /// Writes down that no server has it. If that fails they are asked again, which costs only time.
    pub(super) fn note_missing(&self) {
        if let Ok(place) = self.place() {
            let _ = place.keep();
        }
    }
}

/// A time that a file in the folder says.
fn seconds(root: &Path, (name, usual): (&str, u64)) -> Duration {
    let text = prof_os::files::read_at_most(&root.join(name), 32).ok();
    let text = text.and_then(|b| String::from_utf8(b).ok()?.trim().parse().ok());
    Duration::from_secs(text.unwrap_or(usual))
}

/// Removes what nobody has used for a week, once a day, as the official client does: by the last access.
pub(super) fn clean(root: &Path) {
    let stamp = root.join(CLEANED.0);
    let age = |t: Option<SystemTime>| t.and_then(|t| t.elapsed().ok());
    match fs::metadata(&stamp) {
        Ok(m) if age(m.modified().ok()).is_none_or(|a| a < seconds(root, CLEANED)) => return,
        Ok(_) => {
            let now = SystemTime::now();
            let touched =
                File::options().append(true).open(&stamp).and_then(|f| f.set_modified(now));
            if touched.is_err() {
                return;
            }
        }
        Err(_) => {
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(root);
            let _ = fs::write(&stamp, CLEANED.1.to_string());
            return;
        }
    }
    let unused = seconds(root, UNUSED);
    for build in fs::read_dir(root).into_iter().flatten().flatten() {
        let is_id =
            build.file_name().to_str().is_some_and(|n| n.bytes().all(|b| b.is_ascii_hexdigit()));
        if !is_id || !build.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        let file = build.path().join("debuginfo");
        let used = fs::symlink_metadata(&file).ok().filter(fs::Metadata::is_file);
        if age(used.and_then(|m| m.accessed().ok())).is_some_and(|a| a > unused) {
            let _ = fs::remove_file(&file);
            // Stays if something else is in it.
            let _ = fs::remove_dir(build.path());
        }
    }
}
