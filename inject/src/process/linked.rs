//! Reads the dynamic linker's list of modules: which modules are never unloaded, and at which offset an entry holds
//! the address where its module begins.

use crate::process::elf::{self, Module};
use crate::stopped::memory::{WORD, words};
use crate::{RemoteAddr, RemoteMemory};
use std::collections::BTreeSet;

/// Maximum number of entries that are followed.
const MOST: usize = 8192;
/// Number of bytes of an entry that are read: more than any libc's entry has.
const ENTRY: usize = 2048;

/// An entry of the list: the index of its module, if that is known, and its first bytes.
type Entry = (Option<usize>, Vec<u8>);

/// Results of reading the list.
#[derive(Debug, Default)]
pub(crate) struct List {
    /// Address of the linker's `r_debug`; 0: there is none.
    pub r_debug: u64,
    /// For each module, whether it stays loaded for as long as the process lives.
    pub stays: Vec<bool>,
    /// Offset in an entry of its module's first address; see [`prof_trace::shared::Control::start_in_list`].
    pub start_at: u32,
}

impl List {
    /// Reads the list, while the target runs.
    pub(crate) fn of(mem: &RemoteMemory, modules: &[Module]) -> Self {
        let r_debug = elf::r_debug(mem, modules);
        let is_vdso = |m: &Module| m.path.as_os_str() == "[vdso]";
        if r_debug == 0 {
            // Without a dynamic linker, no module is loaded or unloaded.
            return Self { r_debug, stays: vec![true; modules.len()], start_at: 0 };
        }
        let entries = entries(mem, r_debug, modules);
        let linked = linked(mem, modules, &entries);
        // Modules that are loaded later stand behind all those that the program was started with.
        let last = entries.iter().rposition(|(m, _)| m.is_some_and(|m| linked.contains(&m)));
        let mut stays: Vec<bool> = modules.iter().map(is_vdso).collect();
        for module in entries.iter().take(last.map_or(0, |l| l + 1)).filter_map(|(m, _)| *m) {
            stays[module] = true;
        }
        Self { r_debug, stays, start_at: start_at(modules, &entries) }
    }
}

fn entries(mem: &RemoteMemory, r_debug: u64, modules: &[Module]) -> Vec<Entry> {
    let mut all = Vec::new();
    let mut at = mem.word(RemoteAddr(r_debug).plus(WORD as u64)).unwrap_or(0);
    while at != 0 && all.len() < MOST {
        let bytes = mem.read_some(RemoteAddr(at), ENTRY);
        // The entry begins with `l_addr`, `l_name`, `l_ld` and `l_next`.
        let mut fields = words(&bytes);
        let (Some(bias), Some(_), Some(dynamic), Some(next)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            break;
        };
        let is = |m: &Module| m.bias == bias && m.start.0 <= dynamic && dynamic < m.end.0;
        let module = modules.iter().position(is);
        drop(fields);
        all.push((module, bytes));
        at = next;
    }
    all
}

/// Returns the program and all modules that it needs, directly or not. They are found by name, as the linker does.
fn linked(mem: &RemoteMemory, modules: &[Module], entries: &[Entry]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    // The program is the list's first entry.
    let mut todo: Vec<usize> = entries.first().and_then(|(m, _)| *m).into_iter().collect();
    while let Some(index) = todo.pop() {
        let Some(m) = modules.get(index).filter(|_| found.insert(index)) else { continue };
        for name in m.needed(mem) {
            let is = |m: &Module| m.file_name() == name || m.path.as_os_str() == name.as_str();
            let by_file = modules.iter().position(is);
            let by_name =
                || modules.iter().position(|m| m.shared_name(mem).as_ref() == Some(&name));
            todo.extend(by_file.or_else(by_name));
        }
    }
    found
}

/// Returns the offset at which the entries of all modules hold the address where the module begins; 0: unknown. The
/// search leaves out the public fields: the first of them is the load bias, which mostly has the same value.
fn start_at(modules: &[Module], entries: &[Entry]) -> u32 {
    let known = || entries.iter().filter_map(|(m, bytes)| Some((modules.get((*m)?)?, bytes)));
    let starts: BTreeSet<u64> = known().map(|(m, _)| m.start.0).collect();
    if starts.len() < 2 {
        return 0;
    }
    let is = |at: &usize| {
        known()
            .all(|(m, bytes)| bytes.get(*at..*at + WORD).is_some_and(|w| words(w).eq([m.start.0])))
    };
    (4 * WORD..ENTRY).step_by(WORD).find(is).unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_os::Pid;
    use prof_os::maps;

    #[test]
    fn the_list_of_this_process_is_understood() {
        let pid = Pid::this();
        let mem = RemoteMemory::open(pid).expect("memory");
        let modules = elf::modules(&mem, &maps::of(pid).expect("mappings"));
        let list = List::of(&mem, &modules);
        let stays = |name: &str| {
            let at = modules.iter().position(|m| m.file_name().starts_with(name));
            list.stays[at.unwrap_or_else(|| panic!("no {name}"))]
        };
        assert_ne!(list.r_debug, 0);
        assert!(stays("libc.so") && stays("ld") && list.stays[0], "{list:?}");
        assert_ne!(list.start_at, 0, "{list:?}");
    }
}
