//! Recordings that are read a second time.

use super::replaced;
use crate::Error;
use crate::load::open_file;
use crate::rewrite::RewriteError;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Greatest number of recordings whose files are kept open.
const OPEN: u64 = 256;

/// A recording that is read again. It may be folded meanwhile, if it is still made: another file has its path then.
pub(super) struct Again {
    path: PathBuf,
    /// The file, if it is kept open.
    kept: Option<File>,
    /// Device and inode of the file, and its length.
    id: [u64; 3],
}

impl Again {
    /// Remembers the file of the recording that has this number among all.
    ///
    /// # Errors
    /// If nothing is known of the file.
    pub(super) fn new(number: u64, path: &Path, file: File) -> Result<Self, RewriteError> {
        let id = id(&file).map_err(|e| Error::read(path, e))?;
        Ok(Self { path: path.to_owned(), kept: (number < OPEN).then_some(file), id })
    }

    /// Opens the file once more.
    ///
    /// # Errors
    /// If it can't be opened, is another file by now, or has become shorter.
    pub(super) fn open(&self) -> Result<File, RewriteError> {
        let file = match &self.kept {
            Some(file) => file.try_clone().map_err(|e| Error::read(&self.path, e))?,
            None => open_file(&self.path)?,
        };
        let [dev, ino, len] = id(&file).map_err(|e| Error::read(&self.path, e))?;
        if [dev, ino] != self.id[..2] || len < self.id[2] {
            return Err(self.replaced());
        }
        Ok(file)
    }

    /// Returns the error of a file that is another one.
    pub(super) fn replaced(&self) -> RewriteError {
        replaced(&self.path)
    }
}

fn id(file: &File) -> std::io::Result<[u64; 3]> {
    file.metadata().map(|m| [m.dev(), m.ino(), m.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_at_the_path_is_not_taken_for_the_recording() {
        let dir = std::env::temp_dir().join(format!("prof-again-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("r.prof");
        let open = || File::open(&path).expect("a file");
        std::fs::write(&path, "12").expect("written");
        let [kept, other] =
            [0, OPEN].map(|number| Again::new(number, &path, open()).expect("known"));
        std::fs::write(&path, "1234").expect("it grows");
        assert!(kept.open().is_ok() && other.open().is_ok());
        std::fs::write(&path, "1").expect("it is cut");
        for again in [&kept, &other] {
            assert!(matches!(again.open(), Err(RewriteError::Replaced(_))));
        }
        std::fs::write(&path, "123").expect("it is as it was");
        std::fs::write(dir.join("new"), "123456").expect("written");
        std::fs::rename(dir.join("new"), &path).expect("renamed");
        assert!(matches!(other.open(), Err(RewriteError::Replaced(_))));
        assert_eq!(kept.open().expect("kept").metadata().expect("known").len(), 3);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
