//! The hook's library in the list of the target's dynamic linker.
//!
//! glibc's `dlclose` takes it out of the list. musl's does nothing, so there prof takes it out itself, while all threads stand
//! still and none is inside the linker. musl knows a library that is not global, has no dependencies, no thread-local storage
//! and no functions for the end of the process by the list alone: by `next` of the entry before, `prev` of the one behind, and
//! the variable `tail` if it is the last one (`load_library` and `dlopen` in musl's `ldso/dynlink.c`). The memory of the entry
//! itself, some 500 bytes, stays: a thread may be between two entries in `dl_iterate_phdr`.

use crate::mapped::library_file;
use crate::process::c_library::CLibrary;
use crate::process::elf::{self, Module};
use crate::process::elf_file::ElfFile;
use crate::process::link_map::MOST;
use crate::stopped::memory::{WORD, words};
use crate::{RemoteAddr, RemoteMemory, Result};
use goblin::elf::ProgramHeader;
use goblin::elf::program_header::{PF_W, PT_LOAD};

/// Maximum length of a path that is read.
const PATH: usize = 512;
/// Words of an entry in which another entry's address may be: all fields of musl's `struct dso`.
const ENTRY: usize = 45;
/// Numbers of the words of an entry, in glibc's and musl's `struct link_map`.
const BIAS: u64 = 0;
const NAME: u64 = 1;
const NEXT: u64 = 3;
const PREV: u64 = 4;
/// Maximum number of bytes of musl's variables that are searched.
const MOST_DATA: u64 = 1 << 20;

/// An entry of the dynamic linker's list.
pub(super) struct Loaded {
    /// Address of the entry, which `dlopen` of glibc and of musl returns.
    pub handle: u64,
    /// The difference between addresses in memory and in the file.
    pub bias: u64,
}

/// Result of a search in the dynamic linker's list.
pub(super) enum Listed {
    Yes(Loaded),
    /// The whole list was read, and the library is not in it.
    No,
    /// A part of the list can't be read, or it has too many entries.
    Unknown,
}

/// Returns the address of the list's first entry.
fn first(mem: &RemoteMemory, modules: &[Module]) -> Result<u64> {
    mem.word(RemoteAddr(elf::r_debug(mem, modules)).plus(WORD as u64))
}

/// Returns the address of a word of an entry.
fn place(entry: u64, number: u64) -> RemoteAddr {
    RemoteAddr(entry).plus(number * WORD as u64)
}

/// Searches the linker's list, which must not change meanwhile, for the library with this number.
pub(super) fn find(mem: &RemoteMemory, modules: &[Module], number: u64) -> Listed {
    first(mem, modules).map_or(Listed::Unknown, |first| find_from(mem, first, number))
}

/// Searches from the list's first entry on, which is the program: a list without any is not the linker's.
fn find_from(mem: &RemoteMemory, first: u64, number: u64) -> Listed {
    let mut at = first;
    for _ in 0..MOST {
        if at == 0 {
            return if first == 0 { Listed::Unknown } else { Listed::No };
        }
        let field = |k: u64| mem.word(place(at, k));
        let [Ok(bias), Ok(name), Ok(next)] = [BIAS, NAME, NEXT].map(field) else {
            return Listed::Unknown;
        };
        let name = mem.read_some(RemoteAddr(name), PATH);
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        if library_file::is_path(&name[..end], number) {
            return Listed::Yes(Loaded { handle: at, bias });
        }
        at = next;
    }
    Listed::Unknown
}

/// Takes the library with this entry out of musl's list. No thread may be inside the linker. Returns the reason if the library
/// has to stay, as something refers to its entry that prof does not know of.
///
/// # Errors
/// If the target's memory can't be read or written.
pub(super) fn take_out(
    mem: &RemoteMemory,
    modules: &[Module],
    library: &CLibrary,
    entry: u64,
) -> Result<std::result::Result<(), String>> {
    let Some((libc, _)) = library.among(modules) else {
        return Ok(Err("its libc has gone".into()));
    };
    let mut data = Vec::new();
    for (start, len) in data_of(mem, &modules[libc]) {
        let bytes = mem.read_some(start, len.min(MOST_DATA) as usize);
        if bytes.len() as u64 != len {
            return Ok(Err("musl's variables can't be read".into()));
        }
        data.push((start, bytes));
    }
    let holding = |value: u64| {
        let of = |(start, bytes): &(RemoteAddr, Vec<u8>)| {
            let at = (0u64..).step_by(WORD).map(|offset| start.plus(offset));
            at.zip(words(bytes)).filter(|(_, w)| *w == value).map(|(at, _)| at).collect::<Vec<_>>()
        };
        data.iter().flat_map(of).collect()
    };
    take_out_of(mem, first(mem, modules)?, &holding, entry)
}

/// Returns start and length of musl's variables. What is left of their first and last pages is not among them: musl's allocator
/// gives that away (`reclaim_gaps` in `ldso/dynlink.c`).
fn data_of(mem: &RemoteMemory, libc: &Module) -> Vec<(RemoteAddr, u64)> {
    let Some(head) = ElfFile::of_bytes(mem.read_some(libc.start, 4096)) else { return Vec::new() };
    let is_data = |s: &&ProgramHeader| s.p_type == PT_LOAD && s.p_flags & PF_W != 0;
    let all = head.segments().iter().filter(is_data);
    let word = WORD as u64;
    all.map(|s| {
        let start = s.p_vaddr.next_multiple_of(word);
        let end = s.p_vaddr.saturating_add(s.p_memsz);
        (RemoteAddr(start.wrapping_add(libc.bias)), end.saturating_sub(start))
    })
    .collect()
}

/// Takes an entry out of musl's list, which begins at `first`. `holding` returns the variables of musl's that have a value.
fn take_out_of(
    mem: &RemoteMemory,
    first: u64,
    holding: &dyn Fn(u64) -> Vec<RemoteAddr>,
    entry: u64,
) -> Result<std::result::Result<(), String>> {
    let (prev, next) = (mem.word(place(entry, PREV))?, mem.word(place(entry, NEXT))?);
    // The order of both writes: a prof that was killed in between has made the first one. That leaves a list that musl can walk
    // and add to.
    let (behind, before) = (place(next, PREV), place(prev, NEXT));
    // The entries of musl itself and of the vDSO are variables as well.
    let mut variables = holding(entry);
    variables.retain(|at| *at != before && (next == 0 || *at != behind));
    let to_write = match (&variables[..], next) {
        ([tail], 0) => Some(*tail),
        ([], 0) if !holding(prev).is_empty() => None,
        ([], next) if next != 0 && mem.word(behind)? == entry => Some(behind),
        ([], next) if next != 0 && mem.word(behind)? == prev => None,
        ([], next) if next != 0 => {
            return Ok(Err("its neighbours in musl's list do not refer to it".into()));
        }
        (all, _) => {
            let n = all.len();
            return Ok(Err(format!(
                "{n} variables of musl refer to it, and prof knows only the one of the list's end"
            )));
        }
    };
    let (mut at, mut found) = (first, Vec::new());
    for _ in 0..MOST {
        if at == 0 {
            break;
        }
        let bytes = mem.read_some(RemoteAddr(at), ENTRY * WORD);
        let refers = |w: &(u64, u64)| at != entry && w.1 == entry;
        found.extend((0u64..).zip(words(&bytes)).filter(refers).map(|(k, _)| place(at, k)));
        at = words(&bytes).nth(NEXT as usize).unwrap_or(0);
    }
    found.retain(|at| Some(*at) != to_write);
    if at != 0 || found != [before] {
        return Ok(Err("another library refers to it in musl's list".into()));
    }
    let word = |w: u64| (w as usize).to_ne_bytes();
    if let Some(at) = to_write {
        mem.write_data(at, &word(prev))?;
    }
    mem.write_data(before, &word(next))?;
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_os::Pid;

    /// Makes a list whose entries have these names, and whose last one has this successor. Returns its first entry.
    fn list(names: &[&std::ffi::CStr], last: u64) -> u64 {
        let mut next = last;
        for name in names.iter().rev() {
            let mut entry = [0; ENTRY];
            entry[..4].copy_from_slice(&[1, name.as_ptr() as usize, 0, next as usize]);
            next = Box::leak(Box::new(entry)).as_ptr() as u64;
        }
        next
    }

    fn own() -> RemoteMemory {
        RemoteMemory::open(Pid::this()).expect("own memory")
    }

    #[test]
    fn only_a_list_that_was_read_whole_lacks_the_library() {
        let mem = own();
        let found = |first| match find_from(&mem, first, 0x1234) {
            Listed::Yes(loaded) => Some(loaded.handle),
            Listed::No => Some(0),
            Listed::Unknown => None,
        };
        let (libc, ours) = (c"/lib/libc.so.6", c"/tmp/prof-hook-0000000000001234/libprof_hook.so");
        let whole = list(&[c"", libc], 0);
        assert_eq!(found(whole), Some(0));
        let with = list(&[ours], 8);
        assert_eq!(found(list(&[c"", libc], with)), Some(with));
        // Nothing is known of the rest of a list that leads nowhere, nor of one that never ends or has no entry.
        assert_eq!(found(list(&[c"", libc], 8)), None);
        let round = list(&[c""], 0);
        own().write_data(place(round, NEXT), &(round as usize).to_ne_bytes()).expect("written");
        assert_eq!(found(round), None);
        assert_eq!(found(0), None);
    }

    /// Makes a list of three entries as musl has it, with a variable for its end.
    fn of_musl() -> ([u64; 3], RemoteAddr) {
        let first = list(&[c"a", c"b", c"c"], 0);
        let mem = own();
        let next = |at| mem.word(place(at, NEXT)).expect("a word");
        let all = [first, next(first), next(next(first))];
        for pair in all.windows(2) {
            mem.write_data(place(pair[1], PREV), &(pair[0] as usize).to_ne_bytes())
                .expect("written");
        }
        (all, RemoteAddr(Box::leak(Box::new(all[2] as usize)) as *mut usize as u64))
    }

    /// Returns a function that looks for values in these variables.
    fn only(variables: &[RemoteAddr]) -> impl Fn(u64) -> Vec<RemoteAddr> {
        let (mem, variables) = (own(), variables.to_vec());
        move |value| {
            variables.iter().copied().filter(|at| mem.word(*at).expect("a word") == value).collect()
        }
    }

    #[test]
    fn a_prof_goes_on_where_another_was_killed_between_the_two_words() {
        let mem = own();
        let word = |at| mem.word(at).expect("a word");
        let write = |at, value: u64| mem.write_data(at, &(value as usize).to_ne_bytes());
        // The last entry, with the list's end set already.
        let (all, tail) = of_musl();
        write(tail, all[1]).expect("written");
        assert_eq!(take_out_of(&mem, all[0], &only(&[tail]), all[2]).expect("readable"), Ok(()));
        assert_eq!((word(place(all[1], NEXT)), word(tail)), (0, all[1]));
        // One in the midst, which the next one does not refer to any more.
        let (all, tail) = of_musl();
        write(place(all[2], PREV), all[0]).expect("written");
        assert_eq!(take_out_of(&mem, all[0], &only(&[tail]), all[1]).expect("readable"), Ok(()));
        assert_eq!((word(place(all[0], NEXT)), word(place(all[2], PREV))), (all[2], all[0]));
    }

    #[test]
    fn an_entry_is_taken_out_of_musls_list() {
        let mem = own();
        let word = |at| mem.word(at).expect("a word");
        // The last one.
        let (all, tail) = of_musl();
        assert_eq!(take_out_of(&mem, all[0], &only(&[tail]), all[2]).expect("readable"), Ok(()));
        assert_eq!((word(place(all[1], NEXT)), word(tail)), (0, all[1]));
        // The entry before it is one of musl's variables.
        let (all, tail) = of_musl();
        let variables = [place(all[1], NEXT), tail];
        assert_eq!(take_out_of(&mem, all[0], &only(&variables), all[2]).expect("readable"), Ok(()));
        assert_eq!((word(place(all[1], NEXT)), word(tail)), (0, all[1]));
        // One in the midst.
        let (all, tail) = of_musl();
        assert_eq!(take_out_of(&mem, all[0], &only(&[tail]), all[1]).expect("readable"), Ok(()));
        assert_eq!((word(place(all[0], NEXT)), word(place(all[2], PREV))), (all[2], all[0]));
        assert_eq!(word(tail), all[2]);
    }

    #[test]
    fn an_entry_that_others_refer_to_stays() {
        let mem = own();
        let untouched = |all: [u64; 3], variables: &[RemoteAddr], entry| {
            let said = take_out_of(&mem, all[0], &only(variables), entry).expect("readable");
            let next = |at| mem.word(place(at, NEXT)).expect("a word");
            assert_eq!((next(all[0]), next(all[1]), next(all[2])), (all[1], all[2], 0));
            said.expect_err("it stays")
        };
        let (all, tail) = of_musl();
        assert!(untouched(all, &[tail, tail], all[2]).contains("2 variables"));
        assert!(untouched(all, &[], all[2]).contains("0 variables"));
        let other = RemoteAddr(Box::leak(Box::new(all[1] as usize)) as *mut usize as u64);
        assert!(untouched(all, &[tail, other], all[1]).contains("1 variables"));
        // A field that prof does not know of, as `syms_next` of a library that is global.
        mem.write_data(place(all[0], 13), &(all[2] as usize).to_ne_bytes()).expect("written");
        assert!(untouched(all, &[tail], all[2]).contains("another library"));
    }
}
