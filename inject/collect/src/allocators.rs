//! Finds the target's allocators, and reads their settings and statistics from its files, its environment and its
//! memory. Nothing in the target is called.

mod glibc;
mod others;
mod recognise;

pub use recognise::GOOGLES;

use crate::arenas::Look;
use crate::maps::Maps;
use crate::pages::Pages;
use crate::symbols::ElfImage;
use prof_os::Pid;
use prof_os::files::{open_below, read_at_most};
use prof_os::maps::Map;
use prof_os::process::folder;
use prof_trace::records::{Allocators, Arena, allocator, setting};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Greatest length of an environment that is read.
const MAX_ENVIRONMENT: u64 = 1 << 20;
/// Greatest length of a setting's value that is recorded.
const MAX_VALUE: usize = 4096;
/// Greatest number of files that are remembered.
const MAX_FILES: usize = 1 << 12;

/// Beginnings of the names of variables by which allocators are set.
const VARIABLES: [&str; 5] =
    ["GLIBC_TUNABLES", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "PYTHONMALLOC"];
/// Ends of such names: jemalloc's prefix stands in front of its variable.
const ENDS: [&str; 1] = ["_MALLOC_CONF"];

/// An allocator that a file contains.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    name: &'static str,
    version: String,
    /// Addresses of variables of interest in the file, by their names' places in [`others::VARIABLES`].
    symbols: Vec<(usize, u64)>,
}

/// Inode and path of a file.
type FileKey = (u64, Vec<u8>);

/// Finds allocators; it reads each file once.
#[derive(Debug)]
pub(crate) struct Finder {
    folder: PathBuf,
    files: Mutex<HashMap<FileKey, Vec<Found>>>,
}

/// A target's memory, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// Mappings of the target.
    pub maps: &'a [Map],
    /// Memory of the target; `None`: it can't be read.
    pub mem: Option<&'a File>,
    /// glibc's arenas, as they were just read; `None`: there are none, or they could not be followed.
    pub arenas: Option<&'a [Arena]>,
}

impl Finder {
    /// Creates a finder for process `pid`.
    pub(crate) fn new(pid: Pid) -> Self {
        Self { folder: PathBuf::from(folder(pid)), files: Mutex::default() }
    }

    /// Returns what is known of the allocators, but for the time. The program's own file may be large, so it is searched
    /// only if `thorough`.
    pub(crate) fn look(&self, t: Target<'_>, thorough: bool) -> Allocators {
        let mut all = Allocators::default();
        let program = self.program();
        let mut seen: Vec<&[u8]> = Vec::new();
        for m in t.maps.iter().filter(|m| m.inode != 0) {
            if seen.contains(&m.name.as_slice()) {
                continue;
            }
            seen.push(&m.name);
            let is_program = m.name == program;
            if !(recognise::is_named(&m.text()) || (is_program && thorough)) {
                continue;
            }
            for found in self.in_file(m) {
                // A program that is not linked statically has only libc's name in it.
                if is_program && found.name == allocator::GLIBC && has_libc(t.maps) {
                    continue;
                }
                all.found.extend([found.name.into(), found.version.clone(), m.text().into_owned()]);
                if let Some(mem) = t.mem {
                    let bias = bias_of(mem, m);
                    others::add(mem, bias, &found, &mut all);
                }
            }
        }
        self.environment(&mut all);
        if let Some(arenas) = t.arenas {
            all.set_arenas(arenas);
        }
        if has(&all, allocator::GLIBC) {
            match t.mem {
                Some(mem) => glibc::add(mem, t.maps, glibc_version(&all), &mut all),
                None => not(&mut all, allocator::GLIBC, "its memory can't be read"),
            }
            if t.arenas.is_none() {
                not(&mut all, allocator::GLIBC, NO_ARENAS);
            }
        }
        others::say_unknown(&mut all);
        all
    }

    /// Returns the name that the program's mappings have. They need not be the first: prof's own may lie in front of them.
    fn program(&self) -> Vec<u8> {
        let path = std::fs::read_link(self.folder.join("exe")).unwrap_or_default();
        path.into_os_string().into_vec()
    }

    /// Returns the allocators in a mapping's file.
    fn in_file(&self, m: &Map) -> Vec<Found> {
        let key = (m.inode, m.name.clone());
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = files.get(&key) {
            return found.clone();
        }
        let found = self.open(m).map(|file| search(&file, &m.text())).unwrap_or_default();
        if files.len() < MAX_FILES {
            files.insert(key, found.clone());
        }
        found
    }

    /// Opens a mapping's file, if it is still at its path.
    fn open(&self, m: &Map) -> Option<File> {
        let file = open_below(&self.folder.join("root"), m.path()).ok()?;
        (file.metadata().ok()?.ino() == m.inode).then_some(file)
    }

    /// Adds the variables of the environment that the program was started with.
    fn environment(&self, all: &mut Allocators) {
        let bytes = read_at_most(&self.folder.join("environ"), MAX_ENVIRONMENT);
        for line in bytes.unwrap_or_default().split(|b| *b == 0) {
            let line = String::from_utf8_lossy(line);
            let Some((name, value)) = line.split_once('=') else { continue };
            let wanted = VARIABLES.iter().any(|v| name.starts_with(v))
                || ENDS.iter().any(|e| name.ends_with(e));
            if wanted && name.len() < MAX_VALUE {
                let value: String = value.chars().take(MAX_VALUE).collect();
                all.set(setting::ENVIRONMENT, name, value);
            }
        }
    }
}

/// Why there is nothing to say of glibc's arenas.
const NO_ARENAS: &str = "its arenas were not found, or changed faster than they could be read";

fn search(file: &File, path: &str) -> Vec<Found> {
    let mut found = recognise::search(file, path);
    if let Some(image) = ElfImage::file(file).filter(|_| !found.is_empty()) {
        let symbols = image.variables(&others::VARIABLES.map(|v| v.symbol));
        for f in &mut found {
            f.symbols = symbols.clone();
        }
    }
    found
}

/// Returns the difference between addresses in the target and in the file of which this is the first mapping.
fn bias_of(mem: &File, m: &Map) -> u64 {
    ElfImage::memory(mem, m.start.0, 0)
        .map_or(m.start.0, |i| m.start.0.wrapping_sub(i.first_address()))
}

/// Returns whether glibc is mapped as a library.
fn has_libc(maps: &[Map]) -> bool {
    maps.iter().any(|m| m.inode != 0 && recognise::is_libc(&m.text()))
}

fn has(all: &Allocators, name: &str) -> bool {
    all.found.iter().step_by(3).any(|n| n == name)
}

/// Returns glibc's minor version; 0: unknown.
fn glibc_version(all: &Allocators) -> u32 {
    let glibc = all.found.as_chunks::<3>().0.iter().find(|f| f[0] == allocator::GLIBC);
    let minor = glibc.and_then(|f| f[1].strip_prefix("2.")?.split('.').next()?.parse().ok());
    minor.unwrap_or(0)
}

/// Notes what can't be told.
fn not(all: &mut Allocators, name: &str, what: &str) {
    all.unknown.extend([name.into(), what.into()]);
}

/// Reads the allocators of a process that need not be recorded. Times are 0.
///
/// # Errors
/// If the process is gone, or its mappings can't be read.
pub fn read_allocators(pid: Pid) -> std::io::Result<Allocators> {
    let mut maps = Maps::open(pid)?;
    if !maps.read() {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    let at = PathBuf::from(folder(pid));
    let mem = File::open(at.join("mem"))?;
    let pages = File::open(at.join("pagemap")).ok().map(Pages::new);
    let walk = Look::new(&mem, pages.as_ref()).walks(&maps.all, || Ticks::ZERO);
    let walk = walk.filter(|w| w.arenas.system > 0);
    let arenas = walk.as_ref().map(|w| w.arenas.each.as_slice());
    let target = Target { maps: &maps.all, mem: Some(&mem), arenas };
    Ok(Finder::new(pid).look(target, true))
}

/// Returns the allocators of a process: name, version and path of each. Their statistics are not read.
///
/// # Errors
/// If the process is gone, or its mappings can't be read.
pub fn list_allocators(pid: Pid) -> std::io::Result<Vec<[String; 3]>> {
    let mut maps = Maps::open(pid)?;
    if !maps.read() {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    let mem = File::open(PathBuf::from(folder(pid)).join("mem"))?;
    let all =
        Finder::new(pid).look(Target { maps: &maps.all, mem: Some(&mem), arenas: None }, true);
    Ok(all.found.as_chunks::<3>().0.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text in this program's file by which an allocator is known.
    #[used]
    static MARK: [u8; 23] = *b"\0TCMALLOC_HPAA_CONTROL\0";

    #[test]
    fn the_program_is_searched_wherever_it_lies() {
        let mut maps = Maps::open(Pid::this()).expect("this process");
        assert!(maps.read());
        let program = Finder::new(Pid::this()).program();
        // As prof's ring in a recorded process.
        let other = maps.all.iter().position(|m| m.inode != 0 && m.name != program);
        maps.all.rotate_left(other.unwrap_or(0));
        let target = Target { maps: &maps.all, mem: None, arenas: None };
        for thorough in [true, false] {
            let found = Finder::new(Pid::this()).look(target, thorough).found;
            let mut paths = found.as_chunks::<3>().0.iter().map(|f| f[2].as_bytes());
            assert_eq!(paths.any(|p| p == program), thorough, "{found:?} and {MARK:?}");
        }
    }

    #[test]
    #[cfg(all(target_env = "gnu", target_pointer_width = "64"))]
    fn this_process_has_glibc_and_its_arenas() {
        let blocks: Vec<Vec<u8>> = (1..2000).map(|n| vec![1; n]).collect();
        let a = read_allocators(Pid::this()).expect("this process");
        let glibc = a.found.as_chunks::<3>().0.iter().find(|f| f[0] == allocator::GLIBC);
        let [_, version, path] = glibc.expect("glibc");
        assert!(version.starts_with("2."), "{version}");
        assert!(path.contains("libc"), "{path}");
        // Other tests of this process allocate meanwhile.
        let good = |arenas: &[Arena]| {
            let used: u64 = arenas.iter().map(Arena::in_use).sum();
            let mains = arenas.iter().filter(|a| a.heaps == 0).count();
            used >= 2_000_000
                && mains == 1
                && arenas[0].heaps == 0
                && arenas.iter().all(|a| a.free >= a.top.max(a.fast) && a.dirty <= a.free)
                && arenas.iter().all(|a| a.mapped <= a.most_mapped)
        };
        let mut maps = Maps::open(Pid::this()).expect("maps");
        assert!(maps.read());
        let mem = File::open("/proc/self/mem").expect("memory");
        let pages = File::open("/proc/self/pagemap").ok().map(Pages::new);
        let walk = || Look::new(&mem, pages.as_ref()).walks(&maps.all, || Ticks(0));
        let arenas = || walk().map(|w| w.arenas.each).unwrap_or_default();
        let found = (0..200).map(|_| arenas()).any(|a| !a.is_empty() && good(&a));
        assert!(found, "{:?}", arenas());
        assert!(blocks.len() > 1000);
    }
}
