//! Functions that change mappings, or the settings of the allocator: libc's, and the dynamic linker's own copies.

use crate::hooked::found::{Found, is_libc, is_linker};
use crate::hooked::functions::{JEMALLOC, JEMALLOC_MARK};
use crate::process::elf::{Module, Symbol};
use crate::stopped::tables::Tables;
use crate::{RemoteAddr, RemoteMemory};
use prof_arch::native::syscall::nr;
use prof_arch::native::{Rule, insn};
use prof_arch::unwind::function_range;
use prof_os::Pid;
use prof_trace::shared::{Area, Kind};

/// Functions of libc. Of several names of one function, the first counts.
const TABLE: [(&str, Kind); 22] = [
    ("mmap", Kind::Mmap),
    ("mmap64", Kind::Mmap64),
    ("munmap", Kind::Munmap),
    ("mremap", Kind::Mremap),
    ("brk", Kind::Brk),
    ("shmat", Kind::Shmat),
    ("shmdt", Kind::Shmdt),
    ("madvise", Kind::Madvise),
    ("mprotect", Kind::Mprotect),
    ("mallopt", Kind::Mallopt),
    ("malloc_trim", Kind::MallocTrim),
    ("malloc_info", Kind::MallocInfo),
    // Programs that are linked statically may only have these names.
    ("__mmap", Kind::Mmap),
    ("__mmap64", Kind::Mmap64),
    ("__munmap", Kind::Munmap),
    ("__mremap", Kind::Mremap),
    ("__brk", Kind::Brk),
    ("__madvise", Kind::Madvise),
    ("__mprotect", Kind::Mprotect),
    ("__libc_mallopt", Kind::Mallopt),
    ("__malloc_trim", Kind::MallocTrim),
    ("__malloc_info", Kind::MallocInfo),
];
/// Function that returns the address of the calling thread's error number.
const ERRNO: &str = "__errno_location";
/// glibc's variable that holds the break.
const BREAK: &str = "__curbrk";
/// Names of the function that calls `brk` for the program.
const SBRK: [&str; 2] = ["sbrk", "__sbrk"];

/// jemalloc's functions for its settings; a prefix may stand in front.
const CONTROLS: [(&str, Kind); 2] =
    [(JEMALLOC_MARK, Kind::Mallctl), ("mallctlbymib", Kind::MallctlByMib)];

/// Returns whether a function is one of these.
#[must_use]
pub fn is_call(name: &str) -> bool {
    TABLE.iter().any(|(n, _)| *n == name) || control(name).is_some()
}

/// Returns the kind of one of jemalloc's functions for its settings.
fn control(name: &str) -> Option<Kind> {
    let plain = JEMALLOC.iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name);
    CONTROLS.iter().find(|(n, _)| *n == plain).map(|(_, kind)| *kind)
}

/// Returns whether a function is jemalloc's, for its settings.
pub(crate) fn is_control(name: &str) -> bool {
    control(name).is_some()
}

/// Adds jemalloc's functions for its settings among these symbols of a module.
pub(crate) fn add_controls(index: usize, symbols: &[Symbol], found: &mut Vec<Found>) {
    for s in symbols.iter().filter(|s| !s.indirect) {
        let Some(kind) = control(&s.name) else { continue };
        if !found.iter().any(|f| f.addr == s.addr) {
            found.push(Found::new(s, kind, index));
        }
    }
}

/// Returns names of functions for a message, each once; of those that change mappings only the first, if there are
/// more than three.
#[must_use]
pub fn in_short(names: &[&str]) -> String {
    let (mut calls, mut shown) = (Vec::new(), Vec::new());
    for name in names {
        let to = if is_call(name) { &mut calls } else { &mut shown };
        if !to.contains(name) {
            to.push(*name);
        }
    }
    let more = calls.len().saturating_sub(2);
    if more > 1 {
        calls.truncate(2);
    }
    shown.append(&mut calls);
    let shown = shown.join(", ");
    if more > 1 { format!("{shown} and {more} others that change mappings") } else { shown }
}

/// Returns the kind of a function. The last argument of `mmap` has 64 bits where there is only that function.
fn kind_of(kind: Kind, module: &Module) -> Kind {
    let is_wide = size_of::<usize>() == 8;
    let is_musl = module.file_name().contains("musl");
    match kind {
        Kind::Mmap64 if is_wide => Kind::Mmap,
        Kind::Mmap if !is_wide && is_musl => Kind::Mmap64,
        kind => kind,
    }
}

/// Adds these functions of a module, which is libc, a program that contains it, or the dynamic linker.
pub(crate) fn add(
    (pid, mem): (Pid, &RemoteMemory),
    index: usize,
    module: &Module,
    alone: bool,
    found: &mut Vec<Found>,
) {
    if is_linker(module) {
        return add_linkers(pid, mem, index, module, found);
    }
    if !(alone || is_libc(module)) {
        return;
    }
    let wanted = |n: &str| is_call(n) || n == ERRNO || SBRK.contains(&n);
    let symbols = module.symbols(pid, mem, wanted);
    let named = |name: &str| symbols.iter().find(|s| !s.indirect && s.name == name);
    let errno_at = named(ERRNO).map_or(0, |s| s.addr.0);
    for (name, kind) in TABLE {
        let Some(s) = named(name) else { continue };
        if found.iter().any(|f| f.addr == s.addr) {
            continue;
        }
        let mut f = Found::new(s, kind_of(kind, module), index);
        f.helpers.errno_at = errno_at;
        if kind == Kind::Brk {
            f.helpers.break_at = module.data_symbol(pid, mem, BREAK).map_or(0, |a| a.0);
            let caller = SBRK.into_iter().find_map(named);
            f.helpers.caller = caller.map_or(Area::default(), area);
        }
        found.push(f);
    }
}

fn area(s: &Symbol) -> Area {
    Area { addr: prof_arch::native::jump::code_at(s.addr.0), len: s.size }
}

/// The dynamic linker's functions for its own use, with the numbers of their system calls.
const LINKERS: [(&str, Kind, u64); 3] = [
    ("mmap", Kind::Mmap, nr::MMAP),
    ("munmap", Kind::Munmap, nr::MUNMAP),
    ("mprotect", Kind::Mprotect, nr::MPROTECT),
];
/// Greatest length of a function that only makes a system call, and greatest distance of the call from its start.
const SHORT: (u64, u64) = (128, 48);

/// Adds the copies of mmap, munmap and mprotect by which the dynamic linker maps libraries. It has no names for them:
/// each is known by its system call, if only one place in the linker makes that, and this is a function of its own by
/// the unwind tables. Other calls of the linker are seen, not caught.
fn add_linkers(
    pid: Pid,
    mem: &RemoteMemory,
    index: usize,
    module: &Module,
    found: &mut Vec<Found>,
) {
    let Some((addr, code)) = module.open(pid, mem).and_then(|file| file.code()) else { return };
    let tables = Tables::of(mem, module);
    for (name, kind, number) in LINKERS {
        let places = insn::find_calls(&code, number);
        let &[at] = places.as_slice() else { continue };
        let at = addr.wrapping_add(at as u64).wrapping_add(module.bias);
        let Some(range) = function_range::<Rule>(&tables.cfi(), at) else { continue };
        let (len, from_start) = (range.end - range.start, at - range.start);
        if len > SHORT.0 || from_start > SHORT.1 || found.iter().any(|f| f.addr.0 == range.start) {
            continue;
        }
        let (addr, size) = (RemoteAddr(range.start), len);
        let s = Symbol { name: name.into(), addr, size, indirect: false };
        found.push(Found::new(&s, kind_of(kind, module), index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_functions_are_named_and_of_many_the_first() {
        assert_eq!(in_short(&["malloc", "mmap", "mmap", "brk"]), "malloc, mmap, brk");
        assert_eq!(in_short(&["mmap", "munmap", "brk"]), "mmap, munmap, brk");
        let many = in_short(&["mmap", "free", "munmap", "brk", "shmat", "mmap"]);
        assert_eq!(many, "free, mmap, munmap and 2 others that change mappings");
    }

    #[test]
    fn a_linkers_call_is_found_in_its_code() {
        #[cfg(target_arch = "x86_64")]
        {
            let code = [0x90, 0xb8, 9, 0, 0, 0, 0x0f, 0x05, 0xb8, 9, 0, 0, 0, 0x90, 0x0f, 0x05];
            assert_eq!(insn::find_calls(&code, nr::MMAP), [1]);
            assert_eq!(insn::find_calls(&code, nr::MUNMAP), []);
        }
    }
}
