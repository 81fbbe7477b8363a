//! Reads the target's mappings, and finds the stacks among them.

use crate::target::proc_dir;
use prof_trace::protocol::{self, Candidate};
use std::io::{self, Read, Seek, SeekFrom};
use std::time::Instant;

/// Greatest length of a list of mappings that is read.
pub const MAX_TEXT: u64 = 64 << 20;

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind its end.
    pub end: u64,
    /// Permissions, such as `rwxp`, as the kernel prints them.
    pub perms: [u8; 4],
    /// Offset in the mapped file, in bytes.
    pub offset: u64,
    /// Device, as `major:minor` in hexadecimal.
    pub device: String,
    /// Inode; 0 if no file is mapped.
    pub inode: u64,
    /// Path or `[name]`; empty if there is none.
    pub path: String,
}

/// Parses `/proc/PID/maps`; skips lines that are not valid.
pub fn parse_maps(text: &[u8]) -> Vec<Mapping> {
    String::from_utf8_lossy(text).lines().filter_map(parse_line).collect()
}

pub(crate) fn parse_line(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        rest = rest.trim_start_matches(' ');
        let (w, r) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
        rest = r;
        w
    };
    let (start, end) = word().split_once('-')?;
    let (perms, offset, device, inode) = (word(), word(), word(), word());
    let (start, end) = (hex(start)?, hex(end)?);
    (start < end).then_some(())?;
    Some(Mapping {
        start,
        end,
        perms: perms.as_bytes().try_into().ok()?,
        offset: hex(offset)?,
        device: device.into(),
        inode: inode.parse().ok()?,
        path: unescape(rest.trim_start_matches(' ')),
    })
}

fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word, 16).ok()
}

/// Reverses the kernel's escape of newlines in a path, `\012`.
fn unescape(path: &str) -> String {
    path.replace("\\012", "\n")
}

/// `/proc/PID/maps`, held open. The open file stays with the address space of the program that ran when it was opened,
/// and reads empty when that is gone, by exit or exec.
#[derive(Debug)]
pub struct Maps {
    file: std::fs::File,
    text: Vec<u8>,
    /// Memory for the next text.
    spare: Vec<u8>,
    /// The mappings as of the last [`Maps::read`].
    pub all: Vec<Mapping>,
    /// Time when the last read that found mappings began.
    pub read_at: Option<Instant>,
    /// The last read found no mappings.
    pub gone: bool,
}

impl Maps {
    /// Opens the mappings of process `pid`.
    ///
    /// # Errors
    /// If the file can't be opened.
    pub fn open(pid: u32) -> io::Result<Self> {
        let file = std::fs::File::open(format!("{}/maps", proc_dir(pid)))?;
        let (text, spare, all) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { file, text, spare, all, read_at: None, gone: false })
    }

    /// Reads the mappings; returns false if there are none, as the address space is gone.
    pub fn read(&mut self) -> bool {
        let began = Instant::now();
        self.gone = true;
        self.spare.clear();
        let ok = self.file.seek(SeekFrom::Start(0)).is_ok()
            && (&self.file).take(MAX_TEXT).read_to_end(&mut self.spare).is_ok();
        if !ok || self.spare.is_empty() {
            return false;
        }
        // Comparing the texts is far cheaper than parsing one that has not changed.
        if self.spare != self.text {
            std::mem::swap(&mut self.spare, &mut self.text);
            self.all = parse_maps(&self.text);
        }
        self.gone = self.all.is_empty();
        self.read_at = Some(began);
        !self.gone
    }

    /// Returns the mapping that contains `addr`.
    pub fn at(&self, addr: u64) -> Option<&Mapping> {
        let i = self.all.partition_point(|m| m.end <= addr);
        self.all.get(i).filter(|m| m.start <= addr)
    }
}

/// Returns the mappings that may be stacks.
pub fn stacks(all: &[Mapping]) -> impl Iterator<Item = (u64, u64)> + use<'_> {
    protocol::stacks(all.iter().map(|m| Candidate {
        start: m.start,
        end: m.end,
        perms: m.perms,
        inode: m.inode,
        name: m.path.as_bytes(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0c0000000-55d0c0021000 r-xp 00001000 fe:01 1234                       /opt/a b/x (deleted)
7f0000000000-7f0000001000 ---p 00000000 00:00 0 
7f0000001000-7f0000801000 rw-p 00000000 00:00 0 
7f0000801000-7f0000901000 rw-p 00000000 00:00 0 
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
nonsense
";

    #[test]
    fn lines_are_understood() {
        let all = parse_maps(TEXT.as_bytes());
        assert_eq!(all.len(), 5);
        assert_eq!(all[0].path, "/opt/a b/x (deleted)");
        assert_eq!((all[0].offset, all[0].inode, &*all[0].device), (0x1000, 1234, "fe:01"));
        assert_eq!(
            stacks(&all).collect::<Vec<_>>(),
            [(0x7f00_0000_1000, 0x7f00_0080_1000), (0x7ffc_0000_0000, 0x7ffc_0002_1000)]
        );
    }

    #[test]
    fn our_own_stack_is_found() {
        let mut maps = Maps::open(std::process::id()).expect("maps");
        assert!(maps.read());
        let here = 0u8;
        let at = std::ptr::from_ref(&here) as u64;
        let found = stacks(&maps.all).any(|(s, e)| (s..e).contains(&at));
        assert!(found, "a test runs on a thread's stack");
        assert!(maps.at(at).is_some_and(|m| m.start <= at && at < m.end));
    }
}
