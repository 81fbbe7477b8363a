//! Where symbols are looked for, and how they are shown.

use std::path::{Path, PathBuf};
use std::time::Duration;

const DEBUG: &str = "/usr/lib/debug";

/// Where symbols are looked for, and how they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolOptions {
    /// Folders with debug files or programs, looked into before the usual ones.
    pub debug_paths: Vec<PathBuf>,
    /// The root folder of another machine, looked into before this one's.
    pub sysroot: Option<PathBuf>,
    /// Names of functions without template arguments and parameters.
    pub short_names: bool,
    /// Functions that are passed over in the search for who asked for memory: regular expressions.
    pub skip: Vec<String>,
    /// Only allocators are passed over, not wrappers of them and standard libraries.
    pub show_wrappers: bool,
    /// Where names are kept for the next time; `None`: they are not.
    pub cache: Option<SymbolCache>,
}

/// Where names are kept, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolCache {
    /// The folder.
    pub folder: PathBuf,
    /// Names of a module are kept if it took as long as that to find them.
    pub worth: Duration,
}

impl SymbolCache {
    /// That of the user, if there is one: in `XDG_CACHE_HOME` or `~/.cache`.
    pub fn of_user() -> Option<Self> {
        Some(Self { folder: super::cache::folder()?, worth: Duration::from_millis(20) })
    }
}

/// A path, and the root folder that it begins at if that is not this process's.
pub(super) type Place = (Option<PathBuf>, PathBuf);

/// `/x` under a root folder.
pub(super) fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

impl SymbolOptions {
    /// Checks an entry of `skip`.
    ///
    /// # Errors
    /// What is wrong with the regular expression.
    pub fn skip_pattern(text: &str) -> Result<String, String> {
        regex::Regex::new(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
    }

    /// Folders that debug files lie in by build id, or by the folder of their program.
    pub(super) fn debug_folders(&self) -> impl Iterator<Item = Place> {
        let own = self.debug_paths.iter().map(|p| (None, p.clone()));
        let root = self.sysroot.iter().map(|r| (Some(r.clone()), PathBuf::from(DEBUG)));
        own.chain(root).chain([(None, DEBUG.into())])
    }

    /// Where a file of this path may be, other than there: under the root folder, and by its name
    /// in the folders that were named.
    pub(super) fn elsewhere(&self, path: &Path) -> impl Iterator<Item = Place> {
        let root = self.sysroot.iter().map(|r| (Some(r.clone()), path.to_owned()));
        let folders = self.debug_paths.iter().flat_map(|dir| {
            let named = path.file_name().map(|name| (None, dir.join(name)));
            [Some((None, under(dir, path))), named].into_iter().flatten()
        });
        root.chain(folders)
    }
}
