//! Names code outside of modules. Just-in-time compilers describe the code that they generate in `/tmp/perf-PID.map`,
//! or together with the code in `jit-PID.dump`.

use super::table::Found;
use crate::Analysis;
use prof_os::Pid;
use prof_os::files::{open_below, open_regular};
use prof_os::status::Status;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Greatest number of bytes read of a map or dump.
const LONGEST: u64 = 512 << 20;

/// The functions of a map, or of a dump.
#[derive(Default)]
pub(super) struct Jit {
    /// Ranges by first address, which do not overlap: end, first address of the function, name. An end equal to the
    /// start is not known.
    ranges: BTreeMap<u64, (u64, u64, Arc<[u8]>)>,
}

impl Jit {
    /// Reads the map and the dump of the recorded process, if there are any.
    pub(super) fn load(analysis: &Analysis) -> Self {
        let mut all = Self::default();
        let read = |file: File| {
            let mut bytes = Vec::new();
            // The part that could be read counts.
            let _ = file.take(LONGEST).read_to_end(&mut bytes);
            bytes
        };
        if let Some(file) = open_dump(analysis) {
            all.add_dump(&read(file));
        }
        if let Some(file) = open(analysis, "perf-", ".map") {
            all.add_map(&read(file));
        }
        all
    }

    fn add_map(&mut self, text: &[u8]) {
        for line in text.split(|b| *b == b'\n') {
            let mut parts = line.splitn(3, |b| *b == b' ');
            let mut number = || {
                let text = std::str::from_utf8(parts.next()?).ok()?;
                u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
            };
            let (Some(start), Some(size)) = (number(), number()) else { continue };
            if let Some(name) = parts.next().filter(|n| !n.is_empty()) {
                self.add(start, size, name.into());
            }
        }
    }

    /// Adds a function. Code is discarded and its memory used again, so the last entry counts.
    fn add(&mut self, start: u64, size: u64, name: Arc<[u8]>) {
        let end = start.saturating_add(size);
        let over = start..end.max(start.saturating_add(1));
        // An older function around the new one keeps both its sides; one that begins within it is removed.
        if let Some((_, older)) = self.ranges.range_mut(..start).next_back()
            && older.0 > start
        {
            let rest = older.clone();
            older.0 = start;
            if rest.0 > over.end {
                self.ranges.insert(over.end, rest);
            }
        }
        let hidden: Vec<u64> = self.ranges.range(over).map(|(at, _)| *at).collect();
        hidden.iter().for_each(|at| drop(self.ranges.remove(at)));
        self.ranges.insert(start, (end, start, name));
    }

    /// Adds the records of a dump (the kernel's tools/perf/Documentation/jitdump-specification.txt): code that was
    /// loaded, and code that was moved.
    fn add_dump(&mut self, bytes: &[u8]) {
        let Some(dump) = Dump::new(bytes) else { return };
        let mut at = dump.number(8, 4).unwrap_or(0);
        while let (Some(kind), Some(len)) = (dump.number(at, 4), dump.number(at + 4, 4)) {
            let word = |i: u64| dump.number(at + i, 8);
            match kind {
                LOAD => {
                    let place = word(32).zip(word(40));
                    let name = dump.name(at + 56, at.saturating_add(len));
                    if let (Some((start, size)), Some(name)) = (place, name) {
                        self.add(start, size, name.into());
                    }
                }
                MOVE => {
                    if let (Some(old), Some(new), Some(size)) = (word(32), word(40), word(48))
                        && let Some(name) = self.at(old).map(|(_, name)| name.clone())
                    {
                        self.add(new, size, name);
                    }
                }
                _ => {}
            }
            if len < RECORD {
                return; // nonsense, or the zeroes of a file that is being written
            }
            at = at.saturating_add(len);
        }
    }

    fn at(&self, address: u64) -> Option<(u64, &Arc<[u8]>)> {
        let (start, (end, base, name)) = self.ranges.range(..=address).next_back()?;
        (address < *end || start == end).then_some((*base, name))
    }

    /// Returns the function that an address lies in.
    pub(super) fn find(&self, address: u64) -> Option<Found<'_>> {
        let (start, name) = self.at(address)?;
        Some(Found { name: String::from_utf8_lossy(name), start })
    }
}

/// Kinds of a dump's records, and the length of the header that they have in common.
const LOAD: u64 = 0;
const MOVE: u64 = 1;
const RECORD: u64 = 16;
/// Magic number of a dump, in the byte order of the machine that wrote it.
const DUMP: u32 = 0x4a69_5444;

/// The bytes of a dump.
struct Dump<'a> {
    bytes: &'a [u8],
    big: bool,
}

impl<'a> Dump<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let magic = *bytes.first_chunk::<4>()?;
        let big = u32::from_be_bytes(magic) == DUMP;
        (big || u32::from_le_bytes(magic) == DUMP).then_some(Self { bytes, big })
    }

    fn number(&self, at: u64, len: usize) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(len)?)?;
        let fold = |n: u64, b: &u8| n << 8 | u64::from(*b);
        Some(if self.big { bytes.iter().fold(0, fold) } else { bytes.iter().rev().fold(0, fold) })
    }

    /// Returns a text that ends with NUL, within a record.
    fn name(&self, from: u64, to: u64) -> Option<&'a [u8]> {
        let (from, to) = (usize::try_from(from).ok()?, usize::try_from(to).ok()?);
        let bytes = self.bytes.get(from..to.min(self.bytes.len()))?;
        let end = bytes.iter().position(|b| *b == 0)?;
        Some(&bytes[..end]).filter(|name| !name.is_empty())
    }
}

/// Opens the dump: where a map may be, in the process's working directory, or through its mapping of the file.
fn open_dump(analysis: &Analysis) -> Option<File> {
    let target = &analysis.meta().target;
    let found = open(analysis, "jit-", ".dump");
    if found.is_some() || !super::is_target(target) {
        return found;
    }
    let own = own_pid(target.pid).unwrap_or(target.pid);
    let root = PathBuf::from(format!("/proc/{}/root", target.pid));
    let name = format!("jit-{own}.dump");
    let maps = prof_os::maps::of(Pid::from_u32(target.pid)).ok()?;
    let mapped = maps.iter().find(|m| m.inode != 0 && m.name.ends_with(name.as_bytes()));
    let cwd = std::fs::read_link(format!("/proc/{}/cwd", target.pid)).ok();
    let paths =
        mapped.map(|m| m.path().to_owned()).into_iter().chain(cwd.map(|dir| dir.join(&name)));
    paths.filter_map(|p| open_below(&root, &p).ok()).next()
}

/// Opens the map or dump in a folder of `debug_paths`. Otherwise, while the process runs, in its own /tmp and by the
/// PID of its own namespace; afterwards in this machine's /tmp, if the file was written after the recording began.
fn open(analysis: &Analysis, before: &str, behind: &str) -> Option<File> {
    let (target, options) = (&analysis.meta().target, analysis.symbol_options());
    let name = |pid: u32| format!("{before}{pid}{behind}");
    let named = options.debug_paths.iter().map(|dir| dir.join(name(target.pid)));
    if let Some(file) = named.filter_map(|p| open_regular(&p).ok()).next() {
        return Some(file);
    }
    if let Some(root) = &options.sysroot {
        let path = PathBuf::from("/tmp").join(name(target.pid));
        return open_below(root, &path).ok();
    }
    if super::is_target(target) {
        let own = own_pid(target.pid).unwrap_or(target.pid);
        let root = PathBuf::from(format!("/proc/{}/root", target.pid));
        return open_below(&root, &Path::new("/tmp").join(name(own))).ok();
    }
    let file = open_regular(&Path::new("/tmp").join(name(target.pid))).ok()?;
    let written = u64::try_from(file.metadata().ok()?.mtime()).ok()?;
    (written >= target.wall_ns / 1_000_000_000).then_some(file)
}

/// Returns the PID of a process in its own namespace.
fn own_pid(pid: u32) -> Option<u32> {
    Status::of(Pid::from_u32(pid)).ok()?.ns_pid().map(Pid::as_u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_and_the_last_word_counts() {
        let text =
            b"7f0010 20 first\n7f0040 10 LazyCompile:~f /x.js:3\nnonsense\n7f0010 18 second\n\
            0x7f0100 0x8 hex\nzz 1 bad\n7f0200 10 \n7f0300";
        let mut jit = Jit::default();
        jit.add_map(text);
        let name = |a| jit.find(a).map(|f| f.name.into_owned());
        assert_eq!(name(0x7f0010).as_deref(), Some("second"));
        assert_eq!(name(0x7f0027).as_deref(), Some("second"));
        assert_eq!(name(0x7f0028), None);
        assert_eq!(name(0x7f004f).as_deref(), Some("LazyCompile:~f /x.js:3"));
        assert_eq!((name(0x7f0104).as_deref(), name(0x7f0208)), (Some("hex"), None));
    }

    #[test]
    fn of_two_functions_over_an_address_the_later_one_counts() {
        let mut jit = Jit::default();
        jit.add_map(b"1000 100 old\n2000 10 next\n1040 20 inner\n10f0 20 across\n3000 0 open\n");
        let at = |jit: &Jit, a| jit.find(a).map(|f| (f.name.into_owned(), f.start));
        let is = |name: &str, start| Some((name.to_owned(), start));
        assert_eq!(at(&jit, 0x103f), is("old", 0x1000));
        assert_eq!(at(&jit, 0x1040), is("inner", 0x1040));
        assert_eq!(at(&jit, 0x1060), is("old", 0x1000), "its offset is from its own start");
        assert_eq!(at(&jit, 0x10ff), is("across", 0x10f0));
        assert_eq!((at(&jit, 0x1110), at(&jit, 0x200f)), (None, is("next", 0x2000)));
        assert_eq!(at(&jit, 0x3999), is("open", 0x3000));
        jit.add_map(b"0ff0 4000 all\n");
        assert_eq!(at(&jit, 0x1040), is("all", 0xff0));
        assert_eq!(at(&jit, 0x3000), is("all", 0xff0));
    }

    #[test]
    fn dumps_of_both_byte_orders_are_read() {
        for big in [false, true] {
            let n4 = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() }.to_vec();
            let n8 = |n: u64| if big { n.to_be_bytes() } else { n.to_le_bytes() }.to_vec();
            let record = |kind: u32, body: Vec<Vec<u8>>| {
                let body = body.concat();
                [n4(kind), n4(16 + body.len() as u32), n8(1), body].concat()
            };
            let load = |at: u64, name: &str| {
                let head = vec![n4(7), n4(7), n8(at), n8(at), n8(4), n8(1)];
                let rest = vec![name.as_bytes().to_vec(), vec![0, 1, 2, 3, 4]];
                record(0, [head, rest].concat())
            };
            let moved = vec![n4(7), n4(7), n8(0x9000), n8(0x5000), n8(0x9000), n8(4), n8(1)];
            let head = [n4(DUMP), n4(1), n4(40), n4(62), n4(0), n4(7), n8(0), n8(0)].concat();
            let other = record(2, vec![vec![9; 24]]);
            let bytes =
                [head, load(0x5000, "first"), other, load(0x6000, "second"), record(1, moved)];
            let mut jit = Jit::default();
            jit.add_dump(&bytes.concat());
            let name = |a| jit.find(a).map(|f| f.name.into_owned());
            assert_eq!(name(0x5003).as_deref(), Some("first"));
            assert_eq!(name(0x6000).as_deref(), Some("second"));
            assert_eq!(name(0x9003).as_deref(), Some("first"), "moved");
            assert_eq!(name(0x6004), None);
            let whole = bytes.concat();
            for cut in 0..whole.len() {
                Jit::default().add_dump(&whole[..cut]);
            }
        }
    }
}
