//! Finds the target's modules by its mappings, where the hook is not notified, or may not make system calls.
//!
//! Unmapped modules are removed from the table, and new ones are entered with copies of their unwind tables. The hook
//! does the same concurrently; entries that were made after the mappings were read are not compared with them.

use crate::maps::Maps;
use crate::target::Watched;
use prof_arch::unwind::loaded;
use prof_os::maps::Map;
use prof_trace::modules::{Modules, New, bits, in_doubt, ready, settle};
use prof_trace::shared::{Module, Shared, flags};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

/// Shortest interval between two reads of the mappings while the modules are in doubt.
const DOUBTS_EVERY: Duration = Duration::from_millis(5);

/// Longest wait for a dynamic linker that is changing its list.
const PATIENCE: Duration = Duration::from_secs(1);

/// The modules as they were when they were first seen.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Device and inode of a module's first mapping.
    files: BTreeMap<usize, ((u32, u32), u64)>,
    looked: Option<Instant>,
    /// Time since when there is doubt.
    asked: Option<Instant>,
}

impl Watch {
    /// Returns whether the hook waits for a look at the mappings.
    pub(crate) fn is_asked(&self, shared: &Shared) -> bool {
        in_doubt(shared.control()) && self.looked.is_none_or(|at| at.elapsed() > DOUBTS_EVERY)
    }

    /// Reads the mappings, and updates the table of modules; returns false if there are no mappings.
    pub(crate) fn look(&mut self, shared: &Shared, maps: &mut Maps, target: &Watched) -> bool {
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
        // A module that is being loaded may not have its final mappings yet.
        if !late && is_changing(shared, target) {
            return true;
        }
        // Otherwise the hook is notified of modules first, and when they are complete.
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

    /// Returns whether a module is still mapped.
    fn is_there(&mut self, index: usize, m: &Module, maps: &Maps, target: &Watched) -> bool {
        let start = m.start.load(Relaxed);
        let Some(mapping) = maps.at(start) else {
            return false;
        };
        let file = (mapping.device, mapping.inode);
        let known = self.files.entry(index).or_insert(file);
        // Some programs copy their code to anonymous memory, which they map in place of the file.
        *known == file || (mapping.inode == 0 && is_elf(target, start))
    }
}

fn is_ready(m: &Module) -> bool {
    m.ready.load(Acquire) == ready::LOADED
}

/// Returns whether the dynamic linker is changing its list (`r_debug.r_state`).
fn is_changing(shared: &Shared, target: &Watched) -> bool {
    let r_debug = shared.control().r_debug.load(Relaxed);
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

/// Enters the module that begins with a mapping, if it is not known.
fn enter(all: &Modules<'_>, maps: &[Map], at: usize, target: &Watched) -> Option<usize> {
    let first = maps.get(at)?;
    if first.inode == 0 || first.offset != 0 || !first.read {
        return None;
    }
    let start = first.start.0;
    let holds =
        |m: &Module, addr: u64| (m.start.load(Relaxed)..m.end.load(Relaxed)).contains(&addr);
    // A module may lie in a gap of the program or of its linker.
    let is_known = |m: &Module| {
        m.start.load(Relaxed) == start
            || (holds(m, start) && m.flags.load(Relaxed) & bits::STAYS == 0)
    };
    if all.find(is_known).is_some() {
        return None;
    }
    let mem = target.mem()?;
    let mut read = |addr: u64, to: &mut [u8]| mem.read_exact_at(to, addr).is_ok();
    let l = loaded(start, &mut read)?;
    // A file that was mapped only to be read has no code.
    let mut rest = maps.get(at..)?.iter().take_while(|m| m.start.0 < l.end);
    let has_code = rest.any(|m| m.exec && m.inode == first.inode && m.device == first.device);
    // The program and its linker consist of several mappings, each of which may begin with the start of the file.
    let inside = all.find(|m| holds(m, start) && m.end.load(Relaxed) >= l.end);
    if !has_code || inside.is_some() {
        return None;
    }
    let new = New { start: l.start, end: l.end, bias: l.bias, tables: l.tables };
    all.add(&new, 0, &first.name, &mut read)
}
