//! The world of a script: where its lines and files go, and what it may read.

use prof_os::files::own_descriptor;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The kind of a file that a script writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A picture as SVG.
    Svg,
    /// A picture as PNG.
    Png,
    /// A page.
    Html,
    /// A table of values separated by commas.
    Csv,
    /// JSON.
    Json,
    /// A Parquet file.
    Parquet,
}

impl FileKind {
    /// Returns the media type.
    pub fn media_type(self) -> &'static str {
        match self {
            FileKind::Svg => "image/svg+xml",
            FileKind::Png => "image/png",
            FileKind::Html => "text/html; charset=utf-8",
            FileKind::Csv => "text/csv; charset=utf-8",
            FileKind::Json => "application/json",
            FileKind::Parquet => "application/vnd.apache.parquet",
        }
    }
}

/// A piece of a script's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A line of text.
    Line(String),
    /// A file.
    File {
        /// The path that the script gave, made absolute in the script's own tree of folders.
        path: String,
        /// Kind of the file.
        kind: FileKind,
        /// The content.
        bytes: Vec<u8>,
        /// The data of a graph, for a page that draws it itself.
        data: Option<serde_json::Value>,
    },
}

/// Writes the content of a file.
pub type Write<'a> = &'a mut dyn FnMut(&mut dyn std::io::Write) -> Result<(), String>;

/// Takes a script's output, and gives it access to files. All errors are messages for the script.
pub trait Host {
    /// Takes a line of output.
    ///
    /// # Errors
    /// If it can't be written, or there is too much output.
    fn line(&mut self, text: &str) -> Result<(), String>;

    /// Takes a message that is no output: a note, or the text of `info`.
    fn note(&mut self, text: &str);

    /// Takes a file that `write` writes, and the data that it was drawn from if it is a graph.
    ///
    /// # Errors
    /// If it can't be written, or there are too many.
    fn file(
        &mut self,
        path: &str,
        kind: FileKind,
        data: Option<serde_json::Value>,
        write: Write<'_>,
    ) -> Result<(), String>;

    /// Makes a folder and those above it.
    ///
    /// # Errors
    /// If it can't be made.
    fn mkdir_p(&mut self, path: &str) -> Result<(), String>;

    /// Changes the current folder.
    ///
    /// # Errors
    /// If there is no such folder.
    fn chdir(&mut self, path: &str) -> Result<(), String>;

    /// Returns the path of a recording that the script wants to load.
    ///
    /// # Errors
    /// If scripts may load none here.
    fn load(&mut self, path: &str) -> Result<PathBuf, String>;
}

/// The error of a script whose output nobody reads any more.
pub const CLOSED: &str = "the reader of standard output has closed it";

/// The world of `prof script`: standard output, and the user's own files.
#[derive(Debug, Default)]
pub struct Native {
    /// Each file that was written is told on standard error, as somebody waits for it.
    pub tells_files: bool,
}

/// The file that is being written, and does not have its name yet.
static PART: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Removes the file that a script is writing in this moment: for a process that is about to end.
pub fn remove_part() {
    let part = PART.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(part) = part {
        let _ = std::fs::remove_file(part);
    }
}

impl Native {
    /// Writes a file, or to a device or pipe.
    fn written(
        &self,
        to: &Path,
        cannot: impl Fn(std::io::Error) -> String + Copy,
        write: Write<'_>,
    ) -> Result<(), String> {
        let mut options = OpenOptions::new();
        options.write(true);
        let put = |file: File, write: Write<'_>| {
            let mut out = BufWriter::new(file);
            write(&mut out).and_then(|()| out.flush().map_err(cannot))
        };
        if let Some(file) = own_descriptor(to) {
            return put(file.map_err(cannot)?, write);
        }
        // Devices and pipes are written to directly; a file gets its name when it is whole.
        if std::fs::metadata(to).is_ok_and(|m| !m.is_file()) {
            return put(options.open(to).map_err(cannot)?, write);
        }
        // A link stays, and the file that it leads to is replaced.
        let to = &std::fs::canonicalize(to).unwrap_or_else(|_| to.to_owned());
        let mut part = to.as_os_str().to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(part);
        // One of an earlier process of this number, which was killed.
        let _ = std::fs::remove_file(&part);
        // As with recordings, reports and exports, only the owner may read it.
        let file = options.create_new(true).mode(0o600).open(&part).map_err(cannot)?;
        *PART.lock().unwrap_or_else(PoisonError::into_inner) = Some(part.clone());
        let written = put(file, write).and_then(|()| std::fs::rename(&part, to).map_err(cannot));
        if written.is_err() {
            remove_part();
        }
        *PART.lock().unwrap_or_else(PoisonError::into_inner) = None;
        written
    }
}

impl Host for Native {
    fn line(&mut self, text: &str) -> Result<(), String> {
        let mut out = std::io::stdout().lock();
        let written = writeln!(out, "{text}").and_then(|()| out.flush());
        written.map_err(|e| match e.kind() {
            std::io::ErrorKind::BrokenPipe => CLOSED.to_owned(),
            _ => format!("cannot write to standard output: {e}"),
        })
    }

    fn note(&mut self, text: &str) {
        // A message is no reason to stop.
        let _ = std::io::stderr().write_all(format!("prof: {text}\n").as_bytes());
    }

    fn file(
        &mut self,
        path: &str,
        _: FileKind,
        _: Option<serde_json::Value>,
        write: Write<'_>,
    ) -> Result<(), String> {
        let to = Path::new(path);
        let cannot = |e: std::io::Error| format!("cannot write {path}: {e}");
        if prof_analyze::load::is_recording(to) {
            return Err(format!("cannot write {path}: it is a recording"));
        }
        let written = self.written(to, cannot, write);
        if written.is_ok() && self.tells_files {
            self.note(&format!("wrote {path}"));
        }
        written
    }

    fn mkdir_p(&mut self, path: &str) -> Result<(), String> {
        std::fs::create_dir_all(path).map_err(|e| format!("cannot make the folder {path}: {e}"))
    }

    fn chdir(&mut self, path: &str) -> Result<(), String> {
        std::env::set_current_dir(path)
            .map_err(|e| format!("cannot change to the folder {path}: {e}"))
    }

    fn load(&mut self, path: &str) -> Result<PathBuf, String> {
        Ok(path.into())
    }
}

/// Returns the path of a script's file from the root of its own tree of folders.
pub fn virtual_path(current: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let whole = if path.starts_with('/') { Vec::new() } else { current.split('/').collect() };
    for part in whole.into_iter().chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Limits on a script's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimits {
    /// Greatest number of lines.
    pub lines: u64,
    /// Greatest number of bytes of all lines.
    pub text: u64,
    /// Greatest number of files.
    pub files: u64,
    /// Greatest number of bytes of all files.
    pub bytes: u64,
}

impl Default for OutputLimits {
    fn default() -> Self {
        Self { lines: 10_000, text: 4 << 20, files: 200, bytes: 64 << 20 }
    }
}

/// Called with each piece of a script's output; an error ends the script.
pub type Sink = Box<dyn FnMut(Output) -> Result<(), String>>;

/// A world without files: pieces of output go to a function, and folders exist in name only.
pub struct Virtual {
    sink: Sink,
    limits: OutputLimits,
    used: OutputLimits,
    current: String,
}

impl Virtual {
    /// Creates a world whose output goes to `sink`.
    pub fn new(limits: OutputLimits, sink: Sink) -> Self {
        let used = OutputLimits { lines: 0, text: 0, files: 0, bytes: 0 };
        Self { sink, limits, used, current: "/".into() }
    }
}

/// Takes bytes up to a limit; `most` is 0 when it was met.
struct Bounded {
    bytes: Vec<u8>,
    most: u64,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let all = (self.bytes.len() + bytes.len()) as u64;
        if all > self.most {
            self.most = 0;
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Host for Virtual {
    fn line(&mut self, text: &str) -> Result<(), String> {
        self.used.lines += 1;
        self.used.text = self.used.text.saturating_add(text.len() as u64);
        if self.used.lines > self.limits.lines || self.used.text > self.limits.text {
            let (lines, text) = (self.limits.lines, self.limits.text >> 20);
            return Err(format!("the script prints more than {lines} lines or {text} MiB"));
        }
        (self.sink)(Output::Line(text.to_owned()))
    }

    fn note(&mut self, text: &str) {
        // Notes are few: a limit that they exceed is met by the next line as well.
        let _ = self.line(&format!("note: {text}"));
    }

    fn file(
        &mut self,
        path: &str,
        kind: FileKind,
        data: Option<serde_json::Value>,
        write: Write<'_>,
    ) -> Result<(), String> {
        self.used.files += 1;
        let (files, most) = (self.limits.files, self.limits.bytes);
        let too_much =
            || format!("the script writes more than {files} files or {} MiB", most >> 20);
        if self.used.files > files {
            return Err(too_much());
        }
        let mut out = Bounded { bytes: Vec::new(), most: most.saturating_sub(self.used.bytes) };
        let written = write(&mut out);
        self.used.bytes = self.used.bytes.saturating_add(out.bytes.len() as u64);
        written.map_err(|e| if out.most == 0 { too_much() } else { e })?;
        let path = virtual_path(&self.current, path);
        (self.sink)(Output::File { path, kind, bytes: out.bytes, data })
    }

    fn mkdir_p(&mut self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn chdir(&mut self, path: &str) -> Result<(), String> {
        self.current = virtual_path(&self.current, path);
        Ok(())
    }

    fn load(&mut self, path: &str) -> Result<PathBuf, String> {
        Err(format!(
            "load({path:?}): scripts in the server can't read files; start `prof serve` with all recordings, or use \
             `prof script`"
        ))
    }
}

/// Returns the path without its last component, as `dirname` does.
pub(crate) fn dirname(path: &str) -> String {
    match Path::new(path).parent() {
        Some(parent) => parent.to_string_lossy().into_owned(),
        None if path.starts_with('/') => "/".into(),
        None => ".".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn virtual_paths_stay_below_their_root() {
        for (current, path, whole) in [
            ("/", "a.svg", "/a.svg"),
            ("/a", "b/../c.svg", "/a/c.svg"),
            ("/a", "../../../etc/passwd", "/etc/passwd"),
            ("/a", "/b//c", "/b/c"),
            ("/", "..", "/"),
        ] {
            assert_eq!(virtual_path(current, path), whole, "{current} {path}");
        }
    }

    #[test]
    fn files_are_their_owners_and_leave_nothing_half_written() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("prof-script-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("a.csv");
        let name = path.to_str().expect("UTF-8").to_owned();
        let write =
            |content: Write<'_>| Native::default().file(&name, FileKind::Csv, None, content);
        write(&mut |out| out.write_all(b"1").map_err(|e| e.to_string())).expect("written");
        assert_eq!(std::fs::read(&path).expect("read"), b"1");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let files = || std::fs::read_dir(&dir).expect("a folder").count();
        let failed = write(&mut |_| Err("why".into()));
        assert_eq!((failed, files()), (Err("why".into()), 1));
        // A process that ends in the midst leaves nothing over.
        let mut within = 0;
        let ended = write(&mut |_| {
            within = files();
            remove_part();
            Err(format!("{}", files()))
        });
        assert_eq!((ended, within), (Err("1".into()), 2));
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn links_and_descriptors_stay_what_they_are() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::symlink;
        let dir = std::env::temp_dir().join(format!("prof-script-links-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let (file, link) = (dir.join("a.csv"), dir.join("link"));
        std::fs::write(&file, "old").expect("written");
        symlink("a.csv", &link).expect("a link");
        let write = |path: &Path| {
            let name = path.to_str().expect("UTF-8");
            let mut one =
                |out: &mut dyn std::io::Write| out.write_all(b"1").map_err(|e| e.to_string());
            Native::default().file(name, FileKind::Csv, None, &mut one)
        };
        write(&link).expect("written");
        assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
        // A descriptor is written to at its place: neither the link that names it nor the file is replaced.
        let mut behind = OpenOptions::new().append(true).open(&file).expect("open");
        write(Path::new(&format!("/dev/fd/{}", behind.as_raw_fd()))).expect("written");
        behind.write_all(b"2").expect("written");
        assert_eq!(std::fs::read(&file).expect("read"), b"112");
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn the_output_of_a_virtual_world_is_limited() {
        let taken = Rc::new(RefCell::new(0));
        let own = taken.clone();
        let sink: Sink = Box::new(move |_| {
            *own.borrow_mut() += 1;
            Ok(())
        });
        let limits = OutputLimits { lines: 2, text: 10, files: 1, bytes: 4 };
        let mut world = Virtual::new(limits, sink);
        assert!(world.line("12345").is_ok() && world.line("123456").is_err());
        let mut four =
            |out: &mut dyn std::io::Write| out.write_all(&[0; 4]).map_err(|e| e.to_string());
        assert!(world.file("a", FileKind::Svg, None, &mut four).is_ok());
        let error = world.file("b", FileKind::Svg, None, &mut four).expect_err("too many");
        assert!(error.contains("more than 1 files"), "{error}");
        assert!(world.load("/etc/passwd").is_err_and(|e| e.contains("prof script")));
        assert_eq!(*taken.borrow(), 2);
    }
}
