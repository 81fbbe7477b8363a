//! The names of files with joined recordings, by which all others know them.

use std::path::Path;

/// Beginning of the names of files with joined recordings. Reports name the path that stands for all recordings in place
/// of such a file's.
pub const JOINED: &str = ".joined-";

/// Returns whether a recording was joined from several, by its name.
pub fn is_joined(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(JOINED.as_bytes()))
}
