//! Which modules the target has, by its mappings: where the hook is not told, or may make no system calls.
//!
//! Whatever is found gone is taken out of the table, and what is new is entered with copies of its unwind
//! tables. The hook does the same at the same time; entries that were made after the mappings were read are
//! not judged by them.

use crate::maps::{Mapping, Maps};
use crate::target::Watched;
use prof_arch::unwind::loaded;
use prof_trace::modules::{Modules, New, bits, in_doubt, ready, settle};
use prof_trace::shared::{Module, Shared, flags};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

/// While it is in doubt what there is, the mappings are read again, but not more often than this.
const DOUBTS_EVERY: Duration = Duration::from_millis(5);

/// So long a linker that is changing its list is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the modules were when they were first seen.
#[derive(Debug, Default)]
pub struct Watch {
    /// The file of the mapping that a module begins with.
    files: BTreeMap<usize, (String, u64)>,
    looked: Option<Instant>,
    /// Since when there is doubt.
    asked: Option<Instant>,
}

impl Watch {
    /// Whether the hook waits for a look at the mappings.
    pub fn is_asked(&self, shared: &Shared) -> bool {
        in_doubt(shared.control()) && self.looked.is_none_or(|at| at.elapsed() > DOUBTS_EVERY)
    }

    /// Reads the mappings, and brings the table of modules in line with them; false if there are none.
    pub fn look(&mut self, shared: &Shared, maps: &mut Maps, target: &Watched) -> bool {
        let c = shared.control();
        let doubts = c.doubts.load(Acquire);
        let asked = in_doubt(c);
        self.asked = self.asked.or_else(|| Some(Instant::now())).filter(|_| asked);
        let late = self.asked.is_none_or(|at| at.elapsed() > PATIENCE);
        let all = Modules::new(*shared);
        let is_loaded = |i: &usize| shared.module(*i).is_some_and(is_ready);
        let judged: Vec<usize> = (0..all.count()).filter(is_loaded).collect();
        if !maps.read() {
            return false;
        }
        self.looked = Some(Instant::now());
        for i in judged {
            let stays = |m: &&Module| m.flags.load(Relaxed) & bits::STAYS != 0;
            let Some(m) = shared.module(i).filter(|m| is_ready(m) && !stays(m)) else { continue };
            if !self.is_there(i, m, maps, target) {
                all.retire(i);
            }
        }
        // What is being loaded may not be there as it will be.
        if !late && is_changing(shared, target) {
            return true;
        }
        // Where the hook is told it knows of them first, and when they are complete.
        if asked || c.flags.load(Relaxed) & flags::LOADER == 0 {
            for at in 0..maps.all.len() {
                let _ = enter(&all, &maps.all, at, target);
            }
        }
        if asked {
            self.asked = None;
            settle(c, doubts);
        }
        true
    }

    /// Whether a module is still mapped.
    fn is_there(&mut self, index: usize, m: &Module, maps: &Maps, target: &Watched) -> bool {
        let start = m.start.load(Relaxed);
        let Some(mapping) = maps.at(start) else {
            return false;
        };
        let file = (mapping.device.clone(), mapping.inode);
        let known = self.files.entry(index).or_insert_with(|| file.clone());
        // Some programs copy their code to memory of their own, and put it in the place of the file.
        *known == file || (mapping.inode == 0 && is_elf(target, start))
    }
}

fn is_ready(m: &Module) -> bool {
    m.ready.load(Acquire) == ready::LOADED
}

/// Whether the dynamic linker is changing its list (`r_debug.r_state`).
fn is_changing(shared: &Shared, target: &Watched) -> bool {
    let r_debug = shared.control().r_debug;
    let at = r_debug.wrapping_add(3 * size_of::<usize>() as u64);
    let mut state = [0; 4];
    let read = target.mem().map(|mem| mem.read_exact_at(&mut state, at));
    r_debug != 0 && matches!(read, Some(Ok(()))) && state != [0; 4]
}

fn is_elf(target: &Watched, start: u64) -> bool {
    let mut magic = [0; 4];
    let read = target.mem().map(|mem| mem.read_exact_at(&mut magic, start));
    matches!(read, Some(Ok(()))) && magic == *b"\x7fELF"
}

/// Enters the module that begins with a mapping, if there is one that is not known.
fn enter(all: &Modules, maps: &[Mapping], at: usize, target: &Watched) -> Option<usize> {
    let first = maps.get(at)?;
    if first.inode == 0 || first.offset != 0 || first.perms[0] != b'r' {
        return None;
    }
    let holds =
        |m: &Module, addr: u64| (m.start.load(Relaxed)..m.end.load(Relaxed)).contains(&addr);
    // One may lie in a gap of the program or of its linker.
    let is_known = |m: &Module| {
        m.start.load(Relaxed) == first.start
            || (holds(m, first.start) && m.flags.load(Relaxed) & bits::STAYS == 0)
    };
    if all.find(is_known).is_some() {
        return None;
    }
    let mem = target.mem()?;
    let mut read = |addr: u64, to: &mut [u8]| mem.read_exact_at(to, addr).is_ok();
    let l = loaded(first.start, &mut read)?;
    // A file that was mapped to be looked at has no code.
    let mut rest = maps.get(at..)?.iter().take_while(|m| m.start < l.end);
    let has_code =
        rest.any(|m| m.perms[2] == b'x' && m.inode == first.inode && m.device == first.device);
    // The program and its linker are in several pieces, of which each may begin with the file.
    let inside = all.find(|m| holds(m, first.start) && m.end.load(Relaxed) >= l.end);
    if !has_code || inside.is_some() {
        return None;
    }
    let new = New { start: l.start, end: l.end, bias: l.bias, tables: l.tables };
    all.add(&new, 0, first.path.as_bytes(), &mut read)
}
