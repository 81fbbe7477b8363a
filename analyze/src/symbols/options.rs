//! Options that say where to look for symbols, and how to show them.

use super::Debuginfod;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const DEBUG: &str = "/usr/lib/debug";

/// Options that say where to look for symbols, and how to show them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolOptions {
    /// Folders with debug files or programs, searched before the usual ones.
    pub debug_paths: Vec<PathBuf>,
    /// Root folder of another machine, searched before this one's.
    pub sysroot: Option<PathBuf>,
    /// Show functions without template arguments and parameters.
    pub short_names: bool,
    /// Regular expressions of functions that the search for the asking frame passes over.
    pub skip: Vec<String>,
    /// Pass over allocators only, not over their wrappers and the standard libraries.
    pub show_wrappers: bool,
    /// The cache of names; `None`: names are not cached.
    pub cache: Option<SymbolCache>,
    /// Servers that are asked for what is not here; `None`: nothing is.
    pub servers: Option<Arc<Debuginfod>>,
}

/// Settings of the cache of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolCache {
    /// The folder of the cache.
    pub folder: PathBuf,
    /// Names of a module are cached if it took at least this long to find them.
    pub worth: Duration,
}

impl SymbolCache {
    /// Returns the user's cache, in `XDG_CACHE_HOME` or `~/.cache`, if there is one.
    pub fn of_user() -> Option<Self> {
        Some(Self { folder: super::cache::folder()?, worth: Duration::from_millis(20) })
    }
}

/// A path, and the root folder that it is relative to if that is not this process's.
pub(super) type RootedPath = (Option<PathBuf>, PathBuf);

/// Returns a path, absolute or not, below a root folder.
pub(super) fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

impl SymbolOptions {
    /// Checks an entry of `skip`.
    ///
    /// # Errors
    /// A message that says what is wrong with the regular expression.
    pub fn skip_pattern(text: &str) -> Result<String, String> {
        regex::Regex::new(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
    }

    /// Returns the folders with debug files by build ID, or by the folder of their program.
    pub(super) fn debug_folders(&self) -> impl Iterator<Item = RootedPath> {
        let own = self.debug_paths.iter().map(|p| (None, p.clone()));
        let root = self.sysroot.iter().map(|r| (Some(r.clone()), PathBuf::from(DEBUG)));
        own.chain(root).chain([(None, DEBUG.into())])
    }

    /// Returns other places where a file with this path may be: below the root folder, and by path or name in
    /// `debug_paths`.
    pub(super) fn elsewhere(&self, path: &Path) -> impl Iterator<Item = RootedPath> {
        let root = self.sysroot.iter().map(|r| (Some(r.clone()), path.to_owned()));
        let folders = self.debug_paths.iter().flat_map(|dir| {
            let named = path.file_name().map(|name| (None, dir.join(name)));
            [Some((None, under(dir, path))), named].into_iter().flatten()
        });
        root.chain(folders)
    }
}
