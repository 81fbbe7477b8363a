//! What the dynamic linker's list says of the modules: which of them are never unloaded, and where an
//! entry has the address at which its module begins.

use crate::elf::{self, Module};
use crate::memory::{WORD, words};
use crate::{RemoteAddr, RemoteMemory};
use std::collections::BTreeSet;

/// Entries that are followed.
const MOST: usize = 8192;
/// Bytes of an entry that are looked at: more than any libc's has.
const ENTRY: usize = 2048;

/// An entry of the list: the module that it is of, if that is known, and its first bytes.
type Entry = (Option<usize>, Vec<u8>);

/// What the list says.
#[derive(Debug, Default)]
pub(crate) struct List {
    /// Address of the linker's `r_debug`; 0: there is none.
    pub r_debug: u64,
    /// By module: whether it stays for as long as the process does.
    pub stays: Vec<bool>,
    /// See [`prof_trace::shared::Control::start_in_list`].
    pub start_at: u32,
}

impl List {
    /// Reads it, while the target runs.
    pub fn of(mem: &RemoteMemory, modules: &[Module]) -> Self {
        let r_debug = elf::r_debug(mem, modules);
        let is_vdso = |m: &Module| m.path.as_os_str() == "[vdso]";
        if r_debug == 0 {
            // Nothing that anybody could load by a linker, and unload.
            return Self { r_debug, stays: vec![true; modules.len()], start_at: 0 };
        }
        let entries = entries(mem, r_debug, modules);
        let linked = linked(mem, modules, &entries);
        // What is loaded later stands behind all that the program was started with.
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
        // l_addr, l_name, l_ld, l_next
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

/// The program, and what it and all that need: by their names, as the linker looks for them.
fn linked(mem: &RemoteMemory, modules: &[Module], entries: &[Entry]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    // The program comes first.
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

/// The offset at which the entries of all modules have the address at which the module begins; not the
/// first word, which is the difference to the file's addresses, and mostly the same.
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
    use crate::proc;

    #[test]
    fn the_list_of_this_process_is_understood() {
        let pid = std::process::id() as i32;
        let mem = RemoteMemory::open(pid).expect("memory");
        let modules = elf::modules(&mem, &proc::maps(pid).expect("mappings"));
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
