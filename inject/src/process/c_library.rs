//! The functions of a process's C library, glibc or musl, by one pass over the symbols of each of its files.
//!
//! A process keeps its libc and its dynamic linker until it ends or executes another program. A second copy of libc can go
//! (dlmopen). So what was found once holds as long as both are in their places, at which each later look looks.

use crate::hooked::functions::LOADER;
use crate::process::code::linker;
use crate::process::elf::{Module, Symbol};
use crate::process::link_map;
use crate::{RemoteAddr, RemoteMemory};
use prof_arch::native::jump::code_at;
use prof_os::maps::Map;
use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;

/// A module, as it is known again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place(RemoteAddr, RemoteAddr, PathBuf);

impl Place {
    fn of(m: &Module) -> Self {
        Self(m.start, m.end, m.path.clone())
    }

    /// Returns the module's index.
    fn among(&self, modules: &[Module]) -> Option<usize> {
        modules.iter().position(|m| (m.start, m.end, &m.path) == (self.0, self.1, &self.2))
    }
}

/// Functions of a process's libc, which is glibc or musl, and of its dynamic linker.
#[derive(Clone, Debug)]
pub(crate) struct CLibrary {
    libc: Place,
    /// The dynamic linker; of musl, which is one file, libc itself.
    linker: Place,
    functions: Vec<Symbol>,
    linked: Option<u64>,
}

impl CLibrary {
    /// Finds libc and the dynamic linker, and those of libc's functions that have one of these names.
    ///
    /// # Errors
    /// The reason why they can't be found.
    pub(crate) fn of(
        mem: &RemoteMemory,
        maps: &[Map],
        all: &[Module],
        names: &HashSet<&str>,
    ) -> Result<Self, String> {
        let pid = mem.pid();
        let code = linker(pid, maps).map(|m| m.start);
        let of_linker = |m: &&Module| code.is_some_and(|at| m.start <= at && at < m.end);
        let linker = all.iter().find(of_linker);
        let is_glibc = |m: &&Module| m.exports(mem, &["gnu_get_libc_version"]);
        // musl is one file.
        let is_musl =
            |m: &&Module| m.exports(mem, &["dlopen"]) && m.exports(mem, &["__libc_start_main"]);
        let musl = linker.filter(is_musl).filter(|m| !is_glibc(m));
        // A namespace of dlmopen has a copy of its own.
        let is_own = |m: &&Module| link_map::lists(mem, all, m);
        let own = || all.iter().filter(is_glibc).find(is_own);
        let first = || all.iter().find(is_glibc);
        let Some(libc) = musl.or_else(own).or_else(first) else {
            let other = all.iter().find(|m| m.exports(mem, &["dlopen"]));
            return Err(other.map_or_else(
                || "it has no dynamic linker (a static program?)".into(),
                |m| {
                    let path = m.path.display().to_string();
                    format!("its libc, {path}, is neither glibc nor musl, the only ones whose dynamic linker prof knows")
                },
            ));
        };
        let Some(linker) = linker else {
            return Err("prof can't find its dynamic linker".into());
        };
        let linked = linker.symbols(pid, mem, |name| name == LOADER);
        Ok(Self {
            libc: Place::of(libc),
            linker: Place::of(linker),
            functions: libc.symbols(pid, mem, |name| names.contains(name)),
            linked: linked.first().map(|s| code_at(s.addr.0)),
        })
    }

    /// Returns whether libc is musl, whose dynamic linker is a part of it and never unloads a library.
    pub(crate) fn is_musl(&self) -> bool {
        self.libc == self.linker
    }

    /// Returns the indices of libc and of the dynamic linker among the modules of a later look; `None` if one of them is not
    /// where it was.
    pub(crate) fn among(&self, modules: &[Module]) -> Option<(usize, usize)> {
        Some((self.libc.among(modules)?, self.linker.among(modules)?))
    }

    /// Returns the functions of libc's with one of these names, among those that were asked for.
    pub(crate) fn functions(&self, names: &[&str]) -> impl Iterator<Item = &Symbol> {
        self.functions.iter().filter(move |s| names.contains(&s.name.as_str()))
    }

    /// Returns the code of these functions.
    pub(crate) fn code(&self, names: &[&str]) -> Vec<Range<u64>> {
        let range = |s: &Symbol| code_at(s.addr.0)..s.addr.0.saturating_add(s.size);
        self.functions(names).map(range).collect()
    }

    /// Returns the address of the linker's function that it calls when it has linked a program, before any code of the
    /// program's.
    pub(crate) fn linked(&self) -> Option<u64> {
        self.linked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::elf;
    use prof_os::{Pid, maps};

    fn of(names: &[&str]) -> (Vec<Module>, Result<CLibrary, String>) {
        let mem = RemoteMemory::open(Pid::this()).expect("own memory");
        let maps = maps::of(Pid::this()).expect("own maps");
        let all = elf::modules(&mem, &maps);
        let found = CLibrary::of(&mem, &maps, &all, &names.iter().copied().collect());
        (all, found)
    }

    #[test]
    fn the_functions_of_this_process_are_found() {
        let (mut all, found) = of(&["poll", "getppid", "no_such_function"]);
        let library = found.expect("this test runs with glibc");
        assert!(!library.is_musl());
        let (libc, linker) = library.among(&all).expect("both");
        assert!(all[libc].file_name().starts_with("libc.so"), "{}", all[libc].path.display());
        assert!(all[linker].file_name().starts_with("ld"), "{}", all[linker].path.display());
        let own = libc::getppid as *const () as u64;
        assert!(library.code(&["getppid"]).iter().any(|r| r.contains(&code_at(own))));
        assert!(!library.code(&["poll"]).iter().any(|r| r.contains(&code_at(own))));
        assert!(library.functions(&["no_such_function", "read"]).next().is_none());
        assert!(library.linked().is_some());
        // Another library in the place of libc is not taken for it.
        all[libc].path.push("other");
        assert_eq!(library.among(&all), None);
    }
}
