//! The target's memory as the kernel counts it, mapping by mapping.

use crate::clock::Clock;
use crate::maps::{Mapping, parse_line};
use crate::target::proc_dir;
use prof_trace::records::{Memory, map_kind};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest text that is read.
const MAX_TEXT: u64 = 256 << 20;
/// The longest line that is looked at.
const MAX_LINE: usize = 8 << 10;
/// The most heaps that are listed.
const MAX_HEAPS: usize = 1 << 16;
/// An inaccessible mapping in front of another is the guard of a stack if it is no longer than this; what
/// arenas have in reserve is longer.
const GUARD: u64 = 1 << 20;
/// How long to wait between two looks: at first, and at most.
const GAP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// `/proc/PID/smaps` and `statm`, held open as [`Maps`](crate::maps::Maps) is. The kernel goes through the
/// page tables for the first, which takes a while for a large process: so it is read seldom, and by a thread
/// of its own while the collector goes on emptying the ring.
#[derive(Debug)]
pub struct Smaps {
    files: Option<Arc<Files>>,
    next: Instant,
    gap: Duration,
    looking: Option<JoinHandle<Option<Memory>>>,
}

#[derive(Debug)]
struct Files {
    smaps: File,
    statm: File,
}

/// What is counted of a mapping.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    rss: u64,
    pss: u64,
    anonymous: u64,
    swap: u64,
}

impl Smaps {
    /// Of process `pid`.
    pub fn open(pid: u32) -> Self {
        let open = |name: &str| File::open(format!("{}/{name}", proc_dir(pid))).ok();
        let files = open("smaps").zip(open("statm"));
        let files = files.map(|(smaps, statm)| Arc::new(Files { smaps, statm }));
        Self { files, next: Instant::now(), gap: GAP.0, looking: None }
    }

    /// Begins to look if it is time for that; what was seen last, if that is new. `ours` are prof's own
    /// mappings.
    pub fn poll(&mut self, ours: impl FnOnce() -> Vec<(u64, u64)>, clock: Clock) -> Option<Memory> {
        let done = self.looking.take_if(|l| l.is_finished());
        let seen = done.and_then(|l| l.join().ok()).flatten();
        if self.looking.is_none() && Instant::now() >= self.next {
            let files = self.files.clone()?;
            let ours = ours();
            let began = Instant::now();
            // A look that takes long is not over when the next is due.
            self.next = began + self.gap;
            self.gap = (self.gap * 2).min(GAP.1);
            let look = move || files.look(&ours, clock);
            self.looking = std::thread::Builder::new().name("prof-smaps".into()).spawn(look).ok();
        }
        seen
    }

    /// Waits for the look that is under way, but no longer than `most`.
    pub fn wait(&self, most: Duration) {
        let deadline = Instant::now() + most;
        let under_way = || self.looking.as_ref().is_some_and(|l| !l.is_finished());
        while under_way() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Looks now.
    pub fn now(&mut self, ours: &[(u64, u64)], clock: Clock) -> Option<Memory> {
        if let Some(l) = self.looking.take() {
            let _ = l.join();
        }
        self.files.as_ref()?.look(ours, clock)
    }
}

impl Files {
    fn look(&self, ours: &[(u64, u64)], clock: Clock) -> Option<Memory> {
        (&self.smaps).seek(SeekFrom::Start(0)).ok()?;
        let before = self.rss();
        let mut memory = sum_up(BufReader::new((&self.smaps).take(MAX_TEXT)), ours)?;
        memory.ticks = clock.now();
        // Of both the one that goes with the text: a detach may have unmapped the ring since, or while that
        // was being read.
        let mapped =
            memory.maps.as_chunks::<3>().0.iter().map(|k| k[2]).fold(0, u64::saturating_add);
        let after = self.rss();
        memory.rss =
            [before, after].into_iter().min_by_key(|n| n.abs_diff(mapped)).unwrap_or(after);
        Some(memory)
    }

    /// Bytes that are resident.
    fn rss(&self) -> u64 {
        let mut b = [0u8; 128];
        let n = self.statm.read_at(&mut b, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&b[..n]);
        let pages = text.split(' ').nth(1).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
        // SAFETY: no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
        pages.saturating_mul(page)
    }
}

/// Adds the mappings of a text up. `None` if there are none.
fn sum_up(mut text: impl BufRead, ours: &[(u64, u64)]) -> Option<Memory> {
    let mut sum = Sum { ours, ..Sum::default() };
    let mut line = Vec::new();
    while text.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        sum.line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    sum.end();
    sum.any.then_some(sum.all)
}

#[derive(Default)]
struct Sum<'a> {
    ours: &'a [(u64, u64)],
    all: Memory,
    any: bool,
    /// The mapping that is being read, and whether it has the guard of a stack below it.
    now: Option<(Mapping, bool)>,
    sizes: Sizes,
}

impl Sum<'_> {
    fn line(&mut self, line: &str) {
        let line = line.trim_end_matches('\n');
        if let Some(m) = parse_line(line) {
            let before = self.now.as_ref().map(|n| n.0.clone());
            self.end();
            let guarded = before.is_some_and(|b| {
                b.end == m.start && &b.perms[..3] == b"---" && b.end - b.start <= GUARD
            });
            self.now = Some((m, guarded));
            return;
        }
        let Some((name, rest)) = line.split_once(':') else { return };
        let kilobytes = rest.split_whitespace().next().and_then(|w| w.parse::<u64>().ok());
        let bytes = kilobytes.unwrap_or(0).saturating_mul(1024);
        match name {
            "Rss" => self.sizes.rss = bytes,
            "Pss" => self.sizes.pss = bytes,
            "Anonymous" => self.sizes.anonymous = bytes,
            "Swap" => self.sizes.swap = bytes,
            _ => {}
        }
    }

    /// The mapping that was read is whole.
    fn end(&mut self) {
        let s = std::mem::take(&mut self.sizes);
        let Some((m, guarded)) = self.now.take() else { return };
        if !self.any {
            self.all.maps = (0..map_kind::NAMES.len() as u64).flat_map(|k| [k, 0, 0]).collect();
            self.any = true;
        }
        let kind = self.kind(&m, guarded);
        let all = &mut self.all;
        all.pss = all.pss.saturating_add(s.pss);
        all.anonymous = all.anonymous.saturating_add(s.anonymous);
        all.swap = all.swap.saturating_add(s.swap);
        if kind == map_kind::PROF {
            all.prof = all.prof.saturating_add(s.rss);
        }
        if let Some([_, size, rss]) = all.maps.as_chunks_mut::<3>().0.get_mut(kind as usize) {
            *size = size.saturating_add(m.end - m.start);
            *rss = rss.saturating_add(s.rss);
        }
        let heap = kind == map_kind::HEAP || (kind == map_kind::ANONYMOUS && m.perms[1] == b'w');
        if !heap {
            return;
        }
        let room = all.heaps.len() < 3 * MAX_HEAPS;
        match all.heaps.as_chunks_mut::<3>().0.last_mut().filter(|h| h[1] == m.start) {
            Some(h) => (h[1], h[2]) = (m.end, h[2].saturating_add(s.rss)),
            None if room => all.heaps.extend([m.start, m.end, s.rss]),
            None => {}
        }
    }

    fn kind(&self, m: &Mapping, guarded: bool) -> u64 {
        let anonymous = m.inode == 0 && (m.path.is_empty() || m.path.starts_with("[anon"));
        if self.ours.iter().any(|(from, to)| *from < m.end && m.start < *to) {
            map_kind::PROF
        } else if m.path.starts_with("[heap") {
            map_kind::HEAP
        } else if m.path.starts_with("[stack") || (anonymous && guarded && m.perms[1] == b'w') {
            map_kind::STACK
        } else if anonymous && m.perms[3] == b'p' {
            map_kind::ANONYMOUS
        } else if m.inode != 0 {
            map_kind::FILE
        } else {
            map_kind::OTHER
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_added_up_by_kind() {
        let text = "\
5000-6000 r-xp 00000000 08:01 77 /bin/x\nSize: 4 kB\nRss:  4 kB\nPss: 2 kB\n\
7000-9000 rw-p 00000000 00:00 0 [heap]\nRss: 8 kB\nAnonymous: 8 kB\n\
9000-a000 rw-p 00000000 00:00 0 \nRss: 4 kB\nSwap: 12 kB\n\
b000-c000 ---p 00000000 00:00 0 \nRss: 0 kB\n\
c000-e000 rw-p 00000000 00:00 0 \nRss: 4 kB\n\
10000-18000 rw-s 00000000 00:05 9 /memfd:prof-ring (deleted)\nRss: 16 kB\n\
7fff0000-7fff2000 rw-p 00000000 00:00 0 [stack]\nRss: 8 kB\n\
7fff4000-7fff5000 r-xp 00000000 00:00 0 [vdso]\nRss: nonsense kB\nRss\n";
        let m = sum_up(text.as_bytes(), &[(0x10000, 0x18000)]).expect("mappings");
        let kinds: Vec<[u64; 3]> = m.maps.as_chunks::<3>().0.to_vec();
        let kb = 1024;
        assert_eq!(
            kinds,
            [
                [map_kind::HEAP, 0x2000, 8 * kb],
                [map_kind::ANONYMOUS, 0x2000, 4 * kb],
                [map_kind::STACK, 0x4000, 12 * kb],
                [map_kind::FILE, 0x1000, 4 * kb],
                [map_kind::PROF, 0x8000, 16 * kb],
                [map_kind::OTHER, 0x1000, 0],
            ]
        );
        assert_eq!(m.heaps, [0x7000, 0xa000, 12 * kb]);
        assert_eq!((m.pss, m.anonymous, m.swap, m.prof), (2 * kb, 8 * kb, 12 * kb, 16 * kb));
        assert_eq!(sum_up(&b""[..], &[]), None);
        assert_eq!(sum_up(&b"Rss: 4 kB\n"[..], &[]), None);
    }

    #[test]
    fn our_own_memory_is_there() {
        let clock = Clock::monotonic();
        let mut s = Smaps::open(std::process::id());
        let check = |m: &Memory| {
            let rss: u64 = m.maps.as_chunks::<3>().0.iter().map(|k| k[2]).sum();
            assert!(rss > 100 << 10 && m.rss > 100 << 10 && !m.heaps.is_empty(), "{m:?}");
        };
        check(&s.now(&[], clock).expect("mappings"));
        assert_eq!(s.poll(Vec::new, clock), None);
        let seen = loop {
            match s.poll(Vec::new, clock) {
                Some(m) => break m,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        check(&seen);
        assert!(s.next > Instant::now() && s.gap > GAP.0);
    }
}
