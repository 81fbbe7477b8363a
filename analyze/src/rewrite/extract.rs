//! Extracts files, symbol tables and the list of modules from a recording.
//!
//! Names in a recording are untrusted: components of a path that could lead out of the folder are removed, the folder
//! is new, and no file in it is overwritten or link followed.

use super::RewriteError;
use crate::Analysis;
use crate::load::{ChunkFile, Item, LoadOptions};
use crate::progress::Step;
use crate::symbols::demangle;
use prof_trace::derived::Zipped;
use prof_trace::records::{FilePart, kind};
use prof_trace::values::text::bytes;
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Greatest length of a path component.
const PART: usize = 200;
/// Greatest number of path components.
const PARTS: usize = 40;
/// Greatest number of files.
const FILES: usize = 100_000;

/// Options of an extraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtractOptions {
    /// Greatest number of bytes to write.
    pub most: u64,
}

/// Result of an extraction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extracted {
    /// Paths and lengths of the target's files; `notes` names those that are incomplete.
    pub files: Vec<(PathBuf, u64)>,
    /// Paths of the symbol tables.
    pub tables: Vec<PathBuf>,
    /// Facts that a reader should know.
    pub notes: Vec<String>,
}

/// Converts an untrusted name to a relative path without unsafe components; `None` if nothing is left of it.
fn safe(name: &str) -> Option<PathBuf> {
    let part = |s: &str| -> Option<String> {
        let text: String = s
            .chars()
            .map(|c| if c.is_control() || matches!(c, '\\' | ':') { '_' } else { c })
            .scan(0, |n, c| {
                *n += c.len_utf8();
                (*n <= PART).then_some(c)
            })
            .collect();
        let empty = text.is_empty() || text.chars().all(|c| c == '.');
        (!empty).then_some(text)
    };
    let parts: Vec<String> = name.split('/').filter_map(part).collect();
    (!parts.is_empty() && parts.len() <= PARTS).then(|| parts.iter().collect())
}

/// A file that is being written.
struct Open {
    file: File,
    path: PathBuf,
    written: u64,
    length: u64,
}

struct Extractor<'a> {
    dir: &'a Path,
    left: u64,
    most: u64,
    open: HashMap<String, Option<Open>>,
    done: Extracted,
}

/// Extracts everything from a recording into a new folder.
///
/// # Errors
/// If the recording can't be read, the folder exists already, or a file can't be written.
pub fn extract(
    path: &Path,
    dir: &Path,
    options: &ExtractOptions,
) -> Result<Extracted, RewriteError> {
    let analysis = Analysis::from_file(path, &LoadOptions::default())?;
    let failed = |e| RewriteError::Write(dir.display().to_string(), e);
    // As the recording itself, only its owner may read what was in it.
    DirBuilder::new().mode(0o700).create(dir).map_err(failed)?;
    let most = options.most;
    let mut e =
        Extractor { dir, left: most, most, open: HashMap::new(), done: Extracted::default() };
    let mut file = ChunkFile::open(path)?;
    let step = Step::begin("extracting files", analysis.bytes());
    while file.position() < analysis.bytes() {
        step.set(file.position());
        let Item::Chunk(kind, payload, _) = file.next()? else { break };
        match kind {
            kind::FILE => e.piece(payload)?,
            kind::ZIPPED => {
                if let Some(z) = Zipped::decode(payload).filter(|z| z.kind == kind::FILE)
                    && let Some(inner) = z.unzip()
                {
                    e.piece(&inner)?;
                }
            }
            _ => {}
        }
    }
    e.end_files();
    e.tables(&analysis)?;
    e.modules(&analysis)?;
    Ok(e.done)
}

impl Extractor<'_> {
    fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> RewriteError {
        let name = path.display().to_string();
        move |e| RewriteError::Write(name, e)
    }

    /// Subtracts from the number of bytes that may still be written.
    fn spend(&mut self, n: u64) -> Result<(), RewriteError> {
        let Some(left) = self.left.checked_sub(n) else {
            let most = bytes(self.most);
            return Err(RewriteError::TooMuch(format!(
                "the recording holds more than {most} of files; --max-size allows for more"
            )));
        };
        self.left = left;
        Ok(())
    }

    /// Creates a new file. It overwrites nothing and follows no link, as the folder is prof's own.
    fn create(&mut self, below: &str, name: &Path) -> Result<(File, PathBuf), RewriteError> {
        let path = self.dir.join(below).join(name);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(Self::failed(&path))?;
        }
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = new.map_err(Self::failed(&path))?;
        Ok((file, path))
    }

    /// Writes a piece of a file.
    fn piece(&mut self, payload: &[u8]) -> Result<(), RewriteError> {
        let Some(part) = FilePart::decode(payload) else { return Ok(()) };
        self.spend(part.bytes.len() as u64)?;
        if !self.open.contains_key(&part.path) {
            let named = safe(&part.path).filter(|_| self.open.len() < FILES && part.offset == 0);
            let open = match named {
                Some(name) => match self.create("files", &name) {
                    Ok((file, path)) => Some(Open { file, path, written: 0, length: part.length }),
                    Err(e) => {
                        self.done.notes.push(format!("left out: {e}"));
                        None
                    }
                },
                None => {
                    let name = part.path.escape_debug();
                    self.done.notes.push(format!("left out, as its name is none: {name}"));
                    None
                }
            };
            self.open.insert(part.path.clone(), open);
        }
        let Some(Some(open)) = self.open.get_mut(&part.path) else { return Ok(()) };
        if part.offset != open.written {
            let path = open.path.display();
            self.done.notes.push(format!("a piece of {path} is not where it should be"));
            return Ok(());
        }
        open.file.write_all(&part.bytes).map_err(Self::failed(&open.path))?;
        open.written += part.bytes.len() as u64;
        Ok(())
    }

    fn end_files(&mut self) {
        let mut all: Vec<Open> = std::mem::take(&mut self.open).into_values().flatten().collect();
        all.sort_by(|a, b| a.path.cmp(&b.path));
        for o in all {
            if o.written != o.length {
                let (path, has, of) = (o.path.display(), bytes(o.written), bytes(o.length));
                self.done.notes.push(format!("{path} is cut off: {has} of {of}"));
            }
            self.done.files.push((o.path, o.written));
        }
    }

    /// Writes the symbol tables as text: address, size, name.
    fn tables(&mut self, analysis: &Analysis) -> Result<(), RewriteError> {
        let meta = analysis.meta();
        for (number, m) in &meta.modules {
            let Some(s) = analysis.symbols(*number) else { continue };
            let base = m.path.rsplit('/').next().unwrap_or_default();
            let base = safe(base).unwrap_or_else(|| "module".into());
            let name = PathBuf::from(format!("{number}-{}.txt", base.display()));
            let mut text = String::new();
            for q in s.symbols.as_chunks::<4>().0 {
                let at = usize::try_from(q[2]).unwrap_or(usize::MAX);
                let end = at.saturating_add(usize::try_from(q[3]).unwrap_or(usize::MAX));
                let Some(name) = s.names.get(at..end) else { continue };
                let name = demangle(&String::from_utf8_lossy(name));
                let name = name.replace(char::is_control, " ");
                text += &format!("{:#018x} {:#x} {name}\n", q[0], q[1]);
            }
            self.spend(text.len() as u64)?;
            let (mut file, path) = self.create("symbols", &name)?;
            file.write_all(text.as_bytes()).map_err(Self::failed(&path))?;
            self.done.tables.push(path);
        }
        Ok(())
    }

    /// Writes the list of modules, a line each.
    fn modules(&mut self, analysis: &Analysis) -> Result<(), RewriteError> {
        let mut text = String::new();
        for m in analysis.meta().modules.values() {
            let id: String = m.build_id.iter().map(|b| format!("{b:02x}")).collect();
            let path = m.path.replace(char::is_control, " ");
            text +=
                &format!("{} {:#x}-{:#x} {:#x} {id} {path}\n", m.number, m.start, m.end, m.bias);
        }
        self.spend(text.len() as u64)?;
        let (mut file, path) = self.create("", Path::new("modules.txt"))?;
        file.write_all(text.as_bytes()).map_err(Self::failed(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_lead_out() {
        for (name, want) in [
            ("/usr/lib/x.so", Some("usr/lib/x.so")),
            ("../../etc/passwd", Some("etc/passwd")),
            ("/a/./../..//b", Some("a/b")),
            ("a\0b\n\\c:d", Some("a_b__c_d")),
            ("", None),
            ("/", None),
            ("../..", None),
            ("...", None),
        ] {
            assert_eq!(safe(name), want.map(PathBuf::from), "{name:?}");
        }
        assert_eq!(safe(&"é".repeat(300)).map(|p| p.as_os_str().len()), Some(PART));
        assert_eq!(safe(&"a/".repeat(PARTS + 1)), None);
    }
}
