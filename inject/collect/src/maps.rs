//! Reads the target's mappings, and finds the stacks among them.

use prof_os::maps::{Map, parse};
use prof_os::process::folder;
use prof_os::{Pid, RemoteAddr};
use prof_trace::protocol::{self, Candidate};
use prof_trace::shared::is_ring;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::Instant;

/// Greatest length of a list of mappings that is read.
pub(crate) const MAX_TEXT: u64 = 64 << 20;

/// `/proc/PID/maps`, held open. The open file stays with the address space of the program that ran when it was opened,
/// and reads empty when that is gone, by exit or exec.
#[derive(Debug)]
pub(crate) struct Maps {
    /// The open file; `None`: what was read of it is all that there will be.
    file: Option<std::fs::File>,
    text: Vec<u8>,
    /// Memory for the next text.
    spare: Vec<u8>,
    /// The mappings as of the last [`Maps::read`].
    pub all: Vec<Map>,
    /// Time when the last read that found mappings began.
    pub read_at: Option<Instant>,
    /// Whether the last read found no mappings.
    pub gone: bool,
}

impl Maps {
    /// Opens the mappings of process `pid`.
    ///
    /// # Errors
    /// If the file can't be opened.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        let file = std::fs::File::open(folder(pid) + "/maps")?;
        let (text, spare, all) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { file: Some(file), text, spare, all, read_at: None, gone: false })
    }

    /// Returns what was read last, as what there will be from now on: the process has ended. prof's memory is left out, which a
    /// child moves soon after its fork.
    pub(crate) fn kept(mut self) -> Self {
        self.all.retain(|m| !is_ring(&m.name, m.offset));
        Self { file: None, ..self }
    }

    /// Reads the mappings; returns false if there are none, as the address space is gone.
    pub(crate) fn read(&mut self) -> bool {
        let began = Instant::now();
        let Some(mut file) = self.file.as_ref() else {
            self.read_at = Some(began);
            return !self.gone;
        };
        self.gone = true;
        self.spare.clear();
        let ok = file.seek(SeekFrom::Start(0)).is_ok()
            && file.take(MAX_TEXT).read_to_end(&mut self.spare).is_ok();
        if !ok || self.spare.is_empty() {
            return false;
        }
        // Comparing the texts is far cheaper than parsing one that has not changed.
        if self.spare != self.text {
            std::mem::swap(&mut self.spare, &mut self.text);
            self.all = parse(&self.text);
        }
        self.gone = self.all.is_empty();
        self.read_at = Some(began);
        !self.gone
    }

    /// Returns the mapping that contains `addr`.
    pub(crate) fn at(&self, addr: u64) -> Option<&Map> {
        let addr = RemoteAddr(addr);
        let i = self.all.partition_point(|m| m.end <= addr);
        self.all.get(i).filter(|m| m.start <= addr)
    }
}

/// Returns the mappings that may be stacks.
pub(crate) fn stacks(all: &[Map]) -> impl Iterator<Item = (u64, u64)> + use<'_> {
    protocol::stacks(all.iter().map(|m| Candidate {
        start: m.start.0,
        end: m.end.0,
        perms: m.perms(),
        inode: m.inode,
        name: &m.name,
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
    fn anonymous_memory_behind_a_guard_page_may_be_a_stack() {
        let all = parse(TEXT.as_bytes());
        assert_eq!(
            stacks(&all).collect::<Vec<_>>(),
            [(0x7f00_0000_1000, 0x7f00_0080_1000), (0x7ffc_0000_0000, 0x7ffc_0002_1000)]
        );
    }

    #[test]
    fn our_own_stack_is_found() {
        let mut maps = Maps::open(Pid::this()).expect("maps");
        assert!(maps.read());
        let here = 0u8;
        let at = std::ptr::from_ref(&here) as u64;
        let found = stacks(&maps.all).any(|(s, e)| (s..e).contains(&at));
        assert!(found, "a test runs on a thread's stack");
        assert!(maps.at(at).is_some_and(|m| m.holds(RemoteAddr(at))));
    }
}
